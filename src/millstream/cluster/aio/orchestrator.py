"""The orchestrator: campaigns for the lock, and while it is held takes one step after the other.

A step reads the state, asks all nodes, decides, sends orders, writes. The next one follows at once
after a write, a reply, or a change of the state by others, else after `REPORT_INTERVAL_MS`, or
after `PROMOTING_MS` while a promotion waits, or a take-over is under way.

Invariants:
1. Whatever was remembered is forgotten when the lock is lost.
2. A write is never repeated: after it, whatever its outcome, the state is read again.
3. Orders are sent beside the loop, so a slow one delays no decision. An order that is under way is
   not sent again. What a node told earlier does not replace what it told later.
4. A request is answered after its effect is in the state, and taken from the queue after that.

Elsewhere: decisions (`cluster.core.deciding`), requests (`cluster.aio.request_queue`), the session
(`cluster.aio.node_agent`).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from millstream.cluster.aio.coordination_group import LOOK_S, CoordinationGroup
from millstream.cluster.aio.messages import OrdersReply, OrdersRequest
from millstream.cluster.aio.node_agent import monotonic_ms
from millstream.cluster.aio.request_queue import RequestQueue
from millstream.cluster.aio.state_reader import execute, maps_of, read_elements
from millstream.cluster.core.deciding import decide
from millstream.cluster.core.elements import (
    ORCHESTRATOR,
    REQUESTS,
    ROOT,
    ClusterState,
    Leader,
    NodeRecord,
    to_json,
)
from millstream.cluster.core.memory import Memory
from millstream.cluster.core.orders import Order, OrderKind, Place, Reply
from millstream.cluster.core.progress import Sample, progress_of
from millstream.cluster.core.reports import from_peer
from millstream.cluster.core.settings import (
    ACTIVATE_MS_MAX,
    HAND_OVER_MS,
    ORDER_MS_MAX,
    REPORT_INTERVAL_MS,
    STARTING_MS,
)
from millstream.cluster.core.step import Decision, EndSession, View
from millstream.cluster.core.writes import end_session
from millstream.coordination.aio.client.async_client import AsyncClient
from millstream.coordination.core.client.replies import version_of
from millstream.errors import ConditionError, MillstreamError, UnavailableError
from millstream.model.position import BRANCH_NOISE_BITS, branch_by_clock
from millstream.runtime.tasks import Tasks
from millstream.vsr.core.versions import Version

__all__ = ["REPORT_MS_MAX", "Orchestrator", "Send"]

_LOG = logging.getLogger(__name__)
REPORT_MS_MAX: Final = 500
"""How long a step waits for the report of a node."""
LOST_REPORT_MS_MAX: Final = 100
"""The same for a node that was failed over and has no session: a machine that is off delays no
promotion."""
STEP_MS_MIN: Final = 20
"""Shortest time from one step to the next."""
SAMPLE_MS: Final = 1000
"""Shortest time between two notes of how far a plan is."""
SAMPLES_MAX: Final = 90
NOTES_LOGGED_MAX: Final = 5
"""Lines of one step in the log: what concerns every partition would fill it."""
PROMOTING_MS: Final = 50
"""Longest time from one step to the next while a promotion is under way, which waits for times,
or a take-over, which only reports tell to be done."""
_LIMITS_MS: Final[dict[OrderKind, int]] = {
    "promise": ACTIVATE_MS_MAX,
    "activate": ACTIVATE_MS_MAX,
    "remove": ACTIVATE_MS_MAX,
}
"""Longest wait for the replies to orders of a kind, if it is not `ORDER_MS_MAX`."""
Send = Callable[[str, NodeRecord, bytes], Awaitable[bytes]]
"""Sends content to the orders page of a node, by its id and record; returns the answer."""


class Orchestrator:
    """Of one node: `run` is called in each of its sessions.

    Args:
        node: its id.
        address: where other nodes find it.
        send: to nodes, this one included.
        group: the group that coordinates; None: nobody tends it.
        started_ms: when the node has started, by `monotonic_ms`; None: now.
        streams: returns the nodes that copies here have streams from or to; True: all are broken.
    """

    def __init__(
        self,
        node: str,
        address: Callable[[], str],
        send: Send,
        group: CoordinationGroup | None = None,
        started_ms: int | None = None,
        streams: Callable[[], Mapping[str, bool]] = dict,
    ) -> None:
        self._node, self._address, self._send, self._group = node, address, send, group
        self._late = Late(monotonic_ms() if started_ms is None else started_ms, streams)
        self.reign: Reign | None = None
        """While this node is the orchestrator."""

    async def run(self, client: AsyncClient) -> None:
        """Campaign, and reign whenever the lock is won, until the session ends."""
        leader = to_json(Leader(self._node, self._address()))
        tasks = Tasks()
        tasks.start(self._late.watch(), name="nodes that start late")
        try:
            await self._run(client, leader)
        finally:
            await tasks.stop()

    async def _run(self, client: AsyncClient, leader: bytes) -> None:
        while True:
            words = (b"ELECT", b"CAMPAIGN", ORCHESTRATOR.encode(), leader)
            reply = await client.raw.execute(
                *words, is_change=True, deadline_s=float("inf"), may_wait=True
            )
            token = version_of(reply[1])
            self.reign = Reign(self._node, token, client, self._send, self._late, self._group)
            _LOG.info("this node is the orchestrator, token %s", reply[1].decode())
            try:
                await self.reign.run()
            finally:
                reign, self.reign = self.reign, None
                await reign.stop()
                _LOG.info("this node is the orchestrator no more")


class Late:
    """Which nodes may not have started yet, after a start of this one.

    Args:
        started_ms: when the node has started, by `monotonic_ms`.
        streams: as `Orchestrator`.
    """

    def __init__(self, started_ms: int, streams: Callable[[], Mapping[str, bool]]) -> None:
        self._until_ms = started_ms + STARTING_MS
        self._streams = streams
        self._heard: set[str] = set()

    def hear(self, names: Iterable[str]) -> None:
        """Note that these answer: from now on their silence is none of a start."""
        self._heard.update(names)

    async def watch(self) -> None:
        """Note who is heard on streams, until everybody had the time to start."""
        while monotonic_ms() < self._until_ms:
            self.hear(name for name, is_broken in self._streams().items() if not is_broken)
            await asyncio.sleep(REPORT_INTERVAL_MS / 1000)

    def among(self, names: Iterable[str]) -> frozenset[str]:
        """Return who of these may not have started yet."""
        if monotonic_ms() >= self._until_ms:
            return frozenset()
        return frozenset(names) - self._heard


class Reign:
    """From winning the lock until losing it; `run` returns once another node holds it."""

    def __init__(
        self,
        node: str,
        token: Version,
        client: AsyncClient,
        send: Send,
        late: Late,
        group: CoordinationGroup | None = None,
    ) -> None:
        self._late = late
        self.notes: tuple[str, ...] = ()
        """Why something that is wanted is not done."""
        self.memory = Memory()
        self.stalled: Mapping[Place, str] = {}
        """Partitions of the plan that do not get on, and why."""
        self.samples: deque[Sample] = deque(maxlen=SAMPLES_MAX)
        """How far the plan was, the last one now."""
        self._node, self._token, self._client, self._send = node, token, client, send
        self._group, self._state = group, ClusterState()
        self._digest = _digest(self._state)
        self._queue = RequestQueue(client, token, self.memory)
        self._wake = asyncio.Event()
        self._tasks = Tasks()
        self._under_way: set[Order] = set()
        self._newest: dict[str, tuple[str, int]] = {}
        """Process and number of the newest message of each node."""
        self._told: dict[str, tuple[int, int]] = {}
        """Digest of the maps that each node was sent last, and when."""
        self._telling: set[str] = set()

    async def stop(self) -> None:
        """Wait for nothing that is under way."""
        await self._tasks.stop()

    async def run(self) -> None:
        """Take steps until another node holds the lock."""
        self._tasks.start(self._watch(), name="changes of the cluster's state")
        if self._group is not None:
            self._group.members = None  # another orchestrator may have changed the group
            self._tasks.start(self._tend_group(self._group), name="nodes that coordinate")
        loop = asyncio.get_running_loop()
        while True:
            begun_s = loop.time()
            self._wake.clear()
            try:
                if not await self._step():
                    return
            except UnavailableError as error:
                _LOG.warning("orchestrator: %s", error)
            pause_s = STEP_MS_MIN / 1000 - (loop.time() - begun_s)
            if pause_s > 0:
                await asyncio.sleep(pause_s)
            try:
                async with asyncio.timeout(self._interval_ms() / 1000):
                    await self._wake.wait()
            except TimeoutError:
                pass

    def _interval_ms(self) -> int:
        """Return how long the loop sleeps at most: less while somebody waits for the next step."""
        since_ms = monotonic_ms() - HAND_OVER_MS
        is_handed = any(asked_ms > since_ms for asked_ms in self.memory.handed.values())
        return PROMOTING_MS if self.memory.promotions or is_handed else REPORT_INTERVAL_MS

    async def _step(self) -> bool:
        """Take a step; return whether the lock is still held."""
        state, elements = await read_elements(self._client)
        if state.token != self._token:
            return False
        for name in self._state.live.keys() - state.live.keys():
            if name in state.nodes:
                _LOG.info("%s has no session any more", state.nodes[name].name)
        self._state, self._digest = state, _digest(state)
        self._tell_maps(state)
        answered = await self._ask(state)
        self._late.hear(answered)
        begun = dict(self.memory.begun)
        decision = decide(self._view(state, answered), self.memory)
        if self.memory.begun != begun:
            self._wake.set()  # the next step writes who serves
        if decision.is_deposed:
            return False
        self._note(decision)
        self._sample(state)
        self._give(state, decision.orders)
        for end in decision.ends:
            await self._end(state, end)
        if decision.write is not None:
            is_done = await execute(self._client, decision.write)
            _LOG.info("%s: %s", decision.write.why, "written" if is_done else "came too late")
            self._wake.set()
        if state.is_forked:
            return True
        self._tell_maps_again(state, answered)
        if await self._queue.work(state.version(REQUESTS), elements):
            self._wake.set()
        return True

    def _view(self, state: ClusterState, answered: frozenset[str]) -> View:
        noise = secrets.randbits(BRANCH_NOISE_BITS)
        now_ns = time.time_ns()
        return View(
            me=self._node,
            token=self._token,
            state=state,
            is_fresh=True,
            answered=answered,
            now_ms=monotonic_ms(),
            unix_ms=now_ns // 1_000_000,
            branch_by_clock=branch_by_clock(now_ns, noise),
            noise=noise,
            starting=self._late.among(state.nodes),
            coordinators=frozenset() if self._group is None else self._group.members,
        )

    def _note(self, decision: Decision) -> None:
        known = set(self.notes)
        new = [note for note in decision.notes if note not in known]
        for note in new[:NOTES_LOGGED_MAX]:
            _LOG.warning("orchestrator: %s", note)
        if len(new) > NOTES_LOGGED_MAX:
            _LOG.warning("orchestrator: %d more; the status has all", len(new) - NOTES_LOGGED_MAX)
        problem = "" if self._group is None else self._group.problem
        more = (f"nodes that coordinate: {problem}",) if problem else ()
        self.notes = (*decision.notes, *more)
        self.stalled = decision.stalled

    def _sample(self, state: ClusterState) -> None:
        """Note how far the plan is."""
        if state.plan is None:
            self.samples.clear()
            return
        now_ms = monotonic_ms()
        if self.samples and now_ms - self.samples[-1].at_ms < SAMPLE_MS:
            return
        progress = progress_of(state, state.plan, self.memory)
        self.samples.append(Sample(now_ms, progress.copied, progress.total))

    async def _watch(self) -> None:
        """Wake the loop at each change by anybody."""
        while True:
            try:
                async with self._client.subscribe(ROOT, "TREE") as changes:
                    async for _ in changes:
                        self._wake.set()
            except (MillstreamError, OSError) as error:
                _LOG.info("changes of the cluster's state are not heard: %s", error)
            await asyncio.sleep(REPORT_INTERVAL_MS / 1000)

    async def _tend_group(self, group: CoordinationGroup) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            if not self._state.is_forked:
                await group.tend(self._state)

    # ---- nodes

    async def _ask(self, state: ClusterState) -> frozenset[str]:
        """Ask all nodes for their reports; return those that answered."""
        names = [
            name for name, node in state.nodes.items() if node.state != "out" or name in state.live
        ]
        answers = await asyncio.gather(*(self._report_of(state, name) for name in names))
        return frozenset(name for name, is_there in zip(names, answers, strict=True) if is_there)

    async def _report_of(self, state: ClusterState, name: str) -> bool:
        order = Order("report", _cluster(state), name, self._token)
        try:
            is_lost = state.nodes[name].state == "failed" and name not in state.live
            limit_ms = LOST_REPORT_MS_MAX if is_lost else REPORT_MS_MAX
            said = await self._exchange(state, name, OrdersRequest((order,)), limit_ms)
        except MillstreamError:
            said = None
        if said is None or said.report is None or not self._is_newest(name, said):
            self.memory.miss(name)
            return False
        self.memory.hear(said.report)
        return True

    def _is_newest(self, name: str, said: OrdersReply) -> bool:
        """Note the number of a message; return whether it is newer than all before it."""
        process, number = self._newest.get(name, ("", 0))
        if process == said.process and said.number <= number:
            return False
        self._newest[name] = said.process, said.number
        return True

    async def _exchange(
        self, state: ClusterState, name: str, request: OrdersRequest, limit_ms: int
    ) -> OrdersReply:
        """Send orders to a node and return its replies.

        Raises:
            MillstreamError: it did not answer, or refused them all.
        """
        try:
            async with asyncio.timeout(limit_ms / 1000):
                content = await self._send(name, state.nodes[name], msgspec.json.encode(request))
        except TimeoutError as error:
            message = f"{state.nodes[name].name} did not answer within {limit_ms} ms"
            raise UnavailableError(message, code="node_failed") from error
        said = from_peer(content, OrdersReply)
        if len(said.replies) != len(request.orders):
            message = f"{state.nodes[name].name} answered {len(said.replies)} orders of others"
            raise UnavailableError(message, code="node_failed")
        return said

    # ---- orders

    def _give(self, state: ClusterState, orders: Sequence[Order]) -> None:
        """Send what is not under way, one request per node and kind."""
        groups: dict[tuple[str, OrderKind], list[Order]] = {}
        for order in orders:
            if order not in self._under_way:
                groups.setdefault((order.to, order.kind), []).append(order)
        for (name, kind), group in groups.items():
            if name in state.nodes:
                self._under_way.update(group)
                work = self._order(state, name, kind, tuple(group))
                self._tasks.start(work, name=f"{kind} to {state.nodes[name].name}")

    async def _order(
        self, state: ClusterState, name: str, kind: OrderKind, orders: tuple[Order, ...]
    ) -> None:
        try:
            limit_ms = _LIMITS_MS.get(kind, ORDER_MS_MAX)
            said = await self._exchange(state, name, OrdersRequest(orders), limit_ms)
        except MillstreamError as error:
            _LOG.info("%s was not answered by %s: %s", kind, state.nodes[name].name, error)
            return
        finally:
            self._under_way.difference_update(orders)
        is_newest = self._is_newest(name, said)
        for order, reply in zip(orders, said.replies, strict=True):
            self._take(order, reply, is_newest=is_newest)

    def _take(self, order: Order, reply: Reply, *, is_newest: bool) -> None:
        memory, copies = self.memory, self.memory.copies.get(order.to)
        known = None if copies is None else copies.get(order.place)
        memory.take(order, reply, monotonic_ms())
        if copies is None:
            memory.copies.pop(order.to, None)  # it did not answer when it was last asked
        elif not is_newest and known is not None:
            copies[order.place] = known
        if reply.code != "refused":
            self._wake.set()

    # ---- maps

    def _tell_maps(self, state: ClusterState) -> None:
        """Send whole maps that are new to nodes with a session, beside the loop."""
        if state.is_forked:
            return
        for name in state.live.keys() & state.nodes.keys():
            if self._told.get(name, (None, 0))[0] != self._digest:
                self._begin_telling(state, name)

    def _tell_maps_again(self, state: ClusterState, answered: frozenset[str]) -> None:
        """Send them to nodes that have not taken them, or answer without a session."""
        for name in answered:
            report = self.memory.nodes.get(name)
            keys = {} if report is None else report.keys
            is_behind = any(keys.get(one) != state.data[one].key for one in state.data)
            told, told_ms = self._told.get(name, (None, 0))
            is_due = monotonic_ms() - told_ms >= REPORT_INTERVAL_MS
            if told != self._digest or (is_behind and is_due):
                self._begin_telling(state, name)

    def _begin_telling(self, state: ClusterState, name: str) -> None:
        if name not in self._telling:
            self._telling.add(name)
            self._tasks.start(self._tell(state, name, self._digest), name="maps to a node")

    async def _tell(self, state: ClusterState, name: str, digest: int) -> None:
        try:
            request = OrdersRequest(maps=maps_of(state))
            await self._exchange(state, name, request, ACTIVATE_MS_MAX)
            self._told[name] = digest, monotonic_ms()
        except MillstreamError as error:
            _LOG.info("maps were not sent to %s: %s", state.nodes[name].name, error)
            await asyncio.sleep(REPORT_INTERVAL_MS / 1000)
        finally:
            self._telling.discard(name)
            if self._told.get(name, (digest, 0))[0] != self._digest:
                self._wake.set()  # the maps have changed meanwhile

    # ---- sessions

    async def _end(self, state: ClusterState, end: EndSession) -> None:
        live = state.live.get(end.node)
        if live is None or live.boots != end.boots or live.is_ending:
            return
        _LOG.warning("the session of %s ends: %s", end.node, end.why)
        try:
            await execute(self._client, end_session(state, end.node))
        except ConditionError as error:
            _LOG.info("a session was not ended: %s", error)


def _cluster(state: ClusterState) -> str:
    return "" if state.cluster is None else state.cluster.uuid


def _digest(state: ClusterState) -> int:
    """Return a number that changes with what whole maps say, and not with sessions."""
    kept = ("nodes/", "buckets/", "settings", "cluster")
    size = len(ROOT) + 1
    return hash(
        tuple(
            (path, version)
            for path, version in sorted(state.versions.items())
            if path[size:].startswith(kept)
        )
    )
