"""The session of a node in the coordination service, and with it the right to serve by a lease.

    agent = NodeAgent(...); agent.start(); ...; await agent.stop()

A session is opened, the state is read, the maps are taken: then the node is *in step*. A beat
every `SESSION_BEAT_MS` reads the element of the session linearizably; the lease is counted from
when the last answered beat was sent.

Invariants:
1. The lease ends before the coordination service can end the session: each beat is a sign of life
   of the session, and the lease is shorter than its time-out.
2. A beat that finds the element changed, marked as ending or gone is no answer: the node is out of
   step at once. Then the session is closed and another one is opened.
3. A node whose lease has lapsed is out of step, too. If a later beat is answered, the session has
   lasted: then the node reads the state anew, is in step again, and has to be admitted again.
4. A state that was restored and not rebuilt since is no state: nobody is in step with it.
5. Without the coordination service the node goes on, out of step; it tries again for ever.

Elsewhere: orders (`cluster.aio.order_taker`), who may serve (`model.serving_rights`), what runs in
the session beside it (`cluster.aio.orchestrator`).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from msgspec.structs import replace

from millstream.cluster.aio.order_taker import OrderTaker
from millstream.cluster.aio.state_reader import execute, maps_of, read_state
from millstream.cluster.core.elements import (
    NOT_RECOVERED,
    ClusterState,
    Live,
    NodeRecord,
    boots_path,
    live_path,
)
from millstream.cluster.core.settings import SESSION_BEAT_MS, SESSION_MS_MAX, SESSION_TTL_MS
from millstream.cluster.core.writes import open_session, put_node
from millstream.coordination.aio.client.async_client import AsyncClient
from millstream.coordination.core.client.errors import MissingError
from millstream.errors import ConditionError, MillstreamError, UnavailableError
from millstream.model.serving_rights import lease_until_ms
from millstream.runtime.tasks import Tasks
from millstream.vsr.core.versions import Version

__all__ = ["CALL_S_MAX", "Connect", "NodeAgent", "monotonic_ms"]

_LOG = logging.getLogger(__name__)
CALL_S_MAX: Final = 3.0
"""How long a call of the coordination service may take."""
RETRY_S: Final = 0.3
"""Pause before the next session, and before what runs in it is started again."""
RETRY_S_MAX: Final = 5.0
"""Longest pause, if sessions were opened and the maps could not be taken."""
Connect = Callable[[float, Callable[[], None]], AsyncClient]
"""Returns a client, given its session's time-out in seconds and what is called if it is lost."""


def monotonic_ms() -> int:
    """Return the clock of leases."""
    return time.monotonic_ns() // 1_000_000


class NodeAgent:
    """Of one node; begun by `start`, ended by `stop`.

    Args:
        node: its id.
        cluster: the cluster's uuid.
        taker: carries out its orders.
        connect: to the coordination service.
        addresses: returns the present host and ports of the node.
        version: of this program.
        lead: runs while there is a session, with its client.
        zone: of the node; empty: as its record says.
    """

    def __init__(
        self,
        node: str,
        cluster: str,
        taker: OrderTaker,
        connect: Connect,
        addresses: Callable[[], tuple[str, Mapping[str, int]]],
        version: str = "",
        lead: Callable[[AsyncClient], Awaitable[None]] | None = None,
        zone: str = "",
    ) -> None:
        self.taker = taker
        self.client: AsyncClient | None = None
        """Of the open session."""
        self.lease_ms = 0
        """On the clock of `monotonic_ms`."""
        self.problem = "no session was opened yet"
        """Why the node is out of step; empty while it is in step."""
        self._node, self._cluster = node, cluster
        self._connect, self._addresses, self._version = connect, addresses, version
        self._lead, self._zone = lead, zone
        self._incarnation = secrets.token_hex(16)
        self._ttl_ms = SESSION_TTL_MS
        self._tasks = Tasks()
        self._in_step = asyncio.Event()
        self._is_answered, self._has_lapsed = asyncio.Event(), asyncio.Event()
        """Whether the last beat was answered in time; the other one is its opposite."""

    def start(self) -> None:
        """Open sessions from now on."""
        self._tasks.start(self._run(), name="session of the cluster")

    async def stop(self) -> None:
        """Be out of step, and close the session."""
        await self._tasks.stop()
        await self.taker.stop()

    async def until_in_step(self) -> None:
        """Return once the node is in step."""
        await self._in_step.wait()

    async def _run(self) -> None:
        failures = 0
        while True:
            try:
                await self._session()
                failures = 0
            except (MillstreamError, OSError) as error:
                if str(error) != self.problem:
                    _LOG.warning("this node is out of step with its cluster: %s", error)
                self.problem = str(error)
                failures = 0 if isinstance(error, UnavailableError) else failures + 1
            await asyncio.sleep(min(RETRY_S * 2 ** min(failures, 8), RETRY_S_MAX))

    async def _session(self) -> None:
        """Open a session, and return, or raise, once it is over."""
        lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def lose(why: str) -> None:
            if not lost.done():
                self._leave()
                lost.set_result(why)

        seconds = min(self._ttl_ms, SESSION_MS_MAX) / 1000
        tasks = Tasks()
        async with self._connect(
            seconds, lambda: lose("the coordination service ended the session")
        ) as client:
            try:
                number, version = await self._open(client)
                tasks.start(self._beat(client, version, lose), name="beats of the session")
                work = self._keep_in_step(client, number, lost)
                tasks.start(work, name="in step with the cluster")
                if self._lead is not None:
                    tasks.start(self._lead_on(client, lose), name="campaign for the orchestrator")
                self.problem = await lost
                _LOG.warning("this node is out of step with its cluster: %s", self.problem)
            finally:
                self._leave()
                await tasks.stop()

    async def _keep_in_step(
        self, client: AsyncClient, number: int, lost: asyncio.Future[str]
    ) -> None:
        """Be in step whenever beats are answered: the session has lasted all the time then."""
        while True:
            await self._is_answered.wait()
            try:
                await self._synchronise(client, number)
            except MillstreamError as error:
                if not lost.done():
                    self._leave()
                    lost.set_exception(error)
                return
            if self._is_answered.is_set() and not lost.done():
                self._enter(client, number)
            else:
                self._leave()
            await self._has_lapsed.wait()

    async def _synchronise(self, client: AsyncClient, number: int) -> None:
        """Read token and maps, after the session was opened.

        Raises:
            UnavailableError: `other_time_out`: the session has to be opened with other settings.
            MillstreamError: a bucket could not follow the maps.
        """
        state = await read_state(client)
        self._check_member(state)
        if state.is_forked:
            raise UnavailableError(NOT_RECOVERED, code="not_recovered")
        if state.settings.session_ttl_ms != self._ttl_ms:
            self._ttl_ms = state.settings.session_ttl_ms
            raise UnavailableError("the time-out of sessions was changed", code="other_time_out")
        await self.taker.begin(number, state.token, maps_of(state))

    def _enter(self, client: AsyncClient, number: int) -> None:
        self.client, self.problem = client, ""
        self._in_step.set()
        _LOG.info("this node is in step with its cluster: session %d", number)

    def _leave(self) -> None:
        self.client, self.lease_ms = None, 0
        self._in_step.clear()
        self._is_answered.clear()
        self._has_lapsed.set()
        self.taker.leave()

    def _lapse(self) -> None:
        self._leave()
        self.problem = "no beat was answered in time"
        _LOG.warning("this node is out of step with its cluster: %s", self.problem)

    # ---- opening

    async def _open(self, client: AsyncClient) -> tuple[int, Version]:
        """Open a session; return its number, and the version of its element."""
        state = await read_state(client)
        self._check_member(state)
        if self._node in state.live:
            other = state.live[self._node].incarnation != self._incarnation
            raise UnavailableError(
                "an earlier session of this node lasts"
                + (", or another process has its data directory's id" if other else ""),
                code="id_in_use",
            )
        await self._put_addresses(client, state)
        number = state.boots.get(self._node, 0) + 1
        host, ports = self._addresses()
        addresses = {name: f"{host}:{port}" for name, port in ports.items()}
        live = Live(self._incarnation, addresses, number)
        txn = open_session(self._node, live, state.version(boots_path(self._node)))
        if not await execute(client, txn):
            raise UnavailableError("another session of this node came first", code="id_in_use")
        found = await client.get(live_path(self._node))
        return number, found.version

    def _check_member(self, state: ClusterState) -> None:
        if state.cluster is None or state.cluster.uuid != self._cluster:
            raise ConditionError(
                f"this node is a member of cluster {self._cluster}, and the coordination service "
                "is of another one: check with which pool it coordinates",
                code="other_cluster",
            )
        node = state.nodes.get(self._node)
        if node is None:
            raise ConditionError(
                "this node has not finished joining: run `millstream cluster join` again",
                code="not_joined",
            )
        if node.state == "out":
            raise ConditionError(
                "this node was removed from its cluster: empty its directory and join anew",
                code="removed",
            )

    async def _put_addresses(self, client: AsyncClient, state: ClusterState) -> None:
        """Write addresses, version and zone of this start; raise if others came first."""
        record = state.nodes[self._node]
        host, ports = self._addresses()
        wanted: NodeRecord = replace(
            record, host=host, ports=dict(ports), version=self._version,
            zone=self._zone or record.zone,
        )  # fmt: skip
        if wanted != record and not await execute(client, put_node(state, self._node, wanted)):
            message = (
                "the record of this node was changed meanwhile; its addresses are written again"
            )
            raise UnavailableError(message, code="busy")

    # ---- while it lasts

    async def _beat(
        self, client: AsyncClient, version: Version, lose: Callable[[str], None]
    ) -> None:
        """Keep the lease until the session is over."""
        timer: asyncio.TimerHandle | None = None
        loop = asyncio.get_running_loop()
        try:
            while True:
                sent_ms = monotonic_ms()
                try:
                    found = await client.get(live_path(self._node))
                except MissingError:
                    return lose("the session has ended")
                except UnavailableError as error:
                    _LOG.info("no beat was answered: %s", error)
                    await asyncio.sleep(RETRY_S / 10)
                    continue
                if found.version != version:
                    return lose("the orchestrator ended the session")
                ttl_ms = min(self._ttl_ms, client.raw.time_out_ms)
                left_ms = lease_until_ms(sent_ms, ttl_ms) - monotonic_ms()
                if left_ms <= 0:
                    continue  # it took too long: only the next one says that the session is there
                if timer is not None:
                    timer.cancel()
                timer = loop.call_later(left_ms / 1000, self._lapse)
                self.lease_ms = lease_until_ms(sent_ms, ttl_ms)
                self.taker.set_lease(self.lease_ms)
                self._has_lapsed.clear()
                self._is_answered.set()
                passed_ms = monotonic_ms() - sent_ms
                await asyncio.sleep(max(0, SESSION_BEAT_MS - passed_ms) / 1000)
        except MillstreamError as error:
            lose(str(error))
        finally:
            if timer is not None:
                timer.cancel()

    async def _lead_on(self, client: AsyncClient, lose: Callable[[str], None]) -> None:
        assert self._lead is not None
        while True:
            try:
                await self._lead(client)
            except (MillstreamError, OSError) as error:
                _LOG.warning("orchestrator: %s", error)
            except Exception:  # noqa: BLE001 - another node should try, too
                _LOG.exception("a mistake in the orchestrator; the session ends")
                return lose("the orchestrator made a mistake, see the log")
            await asyncio.sleep(RETRY_S)
