"""Rebuilds the state of a cluster whose coordination has lost it, or the majority of its members.

    told = await Recovery(own, identity, held_here).run(wanted)

It runs at one node, the survivor. Other nodes have no session, so their pages tell what they hold.

Invariants:
1. Nothing is changed while the coordination service answers with a state that counts, while a node
   is in step with the cluster, or while a node that may hold something neither answers nor was
   given up.
2. The group goes on by the command of the coordination service that there is for it (`ADMIN GROUP
   FORCE`), on the member that has the most of the log.
3. Before the nodes are asked for the last time they give up their sessions, so they obey nobody
   until the state is rebuilt. What they tell then is written.
4. Each step may be interrupted; the same call again goes on.

Elsewhere: what is written (`cluster.core.recovery`, `cluster.core.writes`), the pages of nodes
(`cluster.aio.membership`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from millstream.cluster.aio.coordination_group import Group, read_group
from millstream.cluster.aio.joining import SESSION_S
from millstream.cluster.aio.own_node import OwnNode
from millstream.cluster.aio.state_reader import (
    SYSTEM_GROUP,
    execute,
    make_namespace,
    read_stale_state,
    read_state,
)
from millstream.cluster.core.elements import ClusterState, NodeRecord
from millstream.cluster.core.identity import Identity
from millstream.cluster.core.recovery import Held, Loss, known_nodes, losses, rebuild
from millstream.cluster.core.reports import from_peer
from millstream.cluster.core.requests import node_like
from millstream.cluster.core.writes import put_rebuilt
from millstream.coordination.aio.client.asking import ask_node
from millstream.errors import ConditionError, MillstreamError, UnavailableError

__all__ = ["HELD_PATH", "HeldRequest", "Recovery", "Wanted", "kept_log"]

_LOG = logging.getLogger(__name__)
HELD_PATH: Final = "/_millstream/cluster/held"
HELD_S_MAX: Final = 10.0
"""How long a node may take to tell what it holds."""
POOL_S_MAX: Final = 60.0
"""How long a node may take to begin coordination anew, and a group to serve."""
LISTEN_S_MAX: Final = 25.0
"""How long members of the group may still hear each other, and leases last."""
LEAVE_S_MAX: Final = 15.0
"""How long the pool may take to know that a lost node is no member of the group any more."""
POLL_S: Final = 0.3


class Wanted(NamedTuple):
    """What the operator asks for."""

    without: tuple[str, ...] = ()
    """Names or ids of nodes that never come back."""
    from_nodes: bool = False
    """Nobody has anything of the state, not even a backup."""
    is_trial: bool = False
    """Only tell what would be done, and what may be lost."""


class _Found(NamedTuple):
    state: ClusterState
    """Without a cluster: nothing is known."""
    is_answered: bool
    """The group has answered; else the state may be old."""


class HeldRequest(msgspec.Struct, frozen=True):
    """A node is asked for what it holds."""

    cluster: str
    is_last: bool = False
    """Give the session up first: obey nobody before the cluster is rebuilt."""
    pool: str = ""
    """Coordinate in the pool of this node from then on: HOST:PORT for other nodes."""


async def kept_log(own: OwnNode) -> tuple[int | None, str]:
    """Return how far this node has the log of the group that coordinates.

    Or None, and the code of why its group does not go on from here alone: `notready`: it listens
    whether others are there; `conflict`: they are.
    """
    words = (b"ADMIN", b"GROUP", b"FORCE", SYSTEM_GROUP)
    try:
        told = await ask_node(own.connect(SESSION_S), *words)
    except MillstreamError as error:
        return None, error.code
    return int(told[b"kept_lsn"]), ""


class Recovery:
    """One run.

    Args:
        own: this node.
        identity: of the cluster that it is a member of.
        held_here: tells what this node holds.
    """

    def __init__(
        self, own: OwnNode, identity: Identity, held_here: Callable[[HeldRequest], Awaitable[Held]]
    ) -> None:
        self._own, self._identity, self._held_here = own, identity, held_here

    async def run(self, wanted: Wanted) -> Mapping[str, Any]:
        """Rebuild the state, and return what was done and what may be lost.

        Raises:
            ConditionError: `not_lost`, `has_state`, `no_state`, `other_cluster`, `node_answers`,
                `bucket_failed`, `two_buckets`: nothing was changed.
            UsageError: `unknown_node`: nothing was changed.
            UnavailableError: `node_failed`, `not_ready`: nothing was changed; `busy`.
            OutcomeUnknownError: run it again.
        """
        found = await self._found()
        state = found.state
        if found.is_answered:
            self._check_state(state, wanted)
        held, without = await self._agreed(found, wanted)
        lost = [] if found.is_answered else await self._lost_log(held, wanted)
        if wanted.is_trial:
            after = rebuild(state, held, without, self._identity, _unix_ms())
            return _told(state, after, held, without, lost, is_done=False)
        if not found.is_answered:
            await self._have_group(wanted)
        async with self._own.connect(SESSION_S) as client:
            if wanted.from_nodes:
                await make_namespace(client)
            state = await read_state(client)
            if not wanted.from_nodes:
                self._check_state(state, wanted)
            held = await self._last_word(state, held, without, wanted)
            after = rebuild(state, held, without, self._identity, _unix_ms())
            for txn in put_rebuilt(state, after):
                if not await execute(client, txn):
                    raise UnavailableError(
                        "something else changes the state; run it again", code="busy"
                    )
                _LOG.warning("recovery: %s", txn.why)
            with contextlib.suppress(MillstreamError):
                await self._leave_pool(await read_group(client, after), without)
        return _told(state, after, held, without, lost, is_done=True)

    # ---- coordination

    async def _found(self) -> _Found:
        """Return what coordination knows."""
        try:
            async with self._own.connect(SESSION_S) as client:
                return _Found(await read_state(client), is_answered=True)
        except UnavailableError:
            return _Found(await self._stale(), is_answered=False)
        except ConditionError as error:
            if error.code != "not_managed":
                raise
            return _Found(ClusterState(), is_answered=True)

    async def _stale(self) -> ClusterState:
        """Return what the member here has, which may be old, or nothing."""
        try:
            state = await read_stale_state(self._own.connect(SESSION_S))
        except MillstreamError:
            return ClusterState()
        is_own = state.cluster is not None and state.cluster.uuid == self._identity.cluster
        return state if is_own else ClusterState()

    def _check_state(self, state: ClusterState, wanted: Wanted) -> None:
        """Refuse a state that counts, or is of another cluster, or is none."""
        if state.cluster is None:
            if not wanted.from_nodes:
                raise ConditionError(
                    "the coordination service answers and knows of no cluster: restore a backup, "
                    "or, if there is none, use --from-nodes",
                    code="no_state",
                )
        elif state.cluster.uuid != self._identity.cluster:
            raise ConditionError(
                f"the coordination service has the state of cluster {state.cluster.name!r}, and "
                f"this node is a member of {self._identity.name!r}",
                code="other_cluster",
            )
        elif not state.is_forked:
            raise _not_lost("the coordination service answers, and its state counts")
        elif wanted.from_nodes:
            raise ConditionError(
                "the coordination service has a state of this cluster: leave --from-nodes out",
                code="has_state",
            )

    async def _lost_log(self, held: Mapping[str, Held], wanted: Wanted) -> list[str]:
        """Return what the group may lose by going on from here; refuse if others have more."""
        kept = {name: one.kept_lsn for name, one in held.items() if one.kept_lsn is not None}
        best = max(kept, key=lambda name: (kept[name], name == self._own.uuid), default=None)
        if best is None:
            if wanted.from_nodes:
                return []
            raise ConditionError(
                "the coordination service does not answer, and no node that does has anything of "
                "its state: bring a node back that has, or restore a backup; if there is none, "
                "use --from-nodes",
                code="no_state",
            )
        if wanted.from_nodes:
            raise ConditionError(
                f"the node at {_address(held[best].record)} has the state of the coordination "
                "service: recover there, without --from-nodes",
                code="has_state",
            )
        if best != self._own.uuid:
            raise ConditionError(
                f"the node at {_address(held[best].record)} has more of the state of the "
                "coordination service than this one: recover there",
                code="has_state",
            )
        words = (b"ADMIN", b"GROUP", b"FORCE", SYSTEM_GROUP)
        told = await ask_node(self._own.connect(SESSION_S), *words)
        return [f"of the coordination service: {one.decode()}" for one in told[b"may_be_lost"]]

    async def _have_group(self, wanted: Wanted) -> None:
        """Have a group that serves: the one of this member, or a new one."""
        if wanted.from_nodes:
            await self._own.found_pool()
            await self._own.keep_identity(self._identity._replace(peer=""))
        else:
            words = (b"ADMIN", b"GROUP", b"FORCE", SYSTEM_GROUP, b"CONFIRM", SYSTEM_GROUP)
            await ask_node(self._own.connect(SESSION_S), *words)
        until_s = time.monotonic() + POOL_S_MAX
        while not (await self._found()).is_answered:
            if time.monotonic() > until_s:
                raise UnavailableError(
                    "the coordination service does not serve yet: run it again", code="not_ready"
                )
            await asyncio.sleep(POLL_S)

    async def _leave_pool(self, group: Group, without: frozenset[str]) -> None:
        """Remove nodes that never come back from the pool, when they are in no group any more."""
        until_s = time.monotonic() + LEAVE_S_MAX
        left = [group.pool_ids[name] for name in sorted(without & group.pool_ids.keys())]
        while left:
            try:
                await ask_node(self._own.connect(SESSION_S), "ADMIN", "LEAVE", left[-1])
                left.pop()
            except MillstreamError as error:
                if time.monotonic() > until_s:
                    _LOG.warning("recovery: %s is still in the pool: %s", ", ".join(left), error)
                    return
                await asyncio.sleep(POLL_S)

    # ---- nodes

    async def _agreed(
        self, found: _Found, wanted: Wanted
    ) -> tuple[dict[str, Held], frozenset[str]]:
        """Return what nodes hold, and which are given up, if nothing speaks against it."""
        until_s = time.monotonic() + LISTEN_S_MAX
        while True:
            held, silent = await self._collect(found.state)
            nodes = known_nodes(found.state, held)
            without = frozenset(node_like(nodes, text) for text in wanted.without)
            _check_nodes(nodes, held, silent, without)
            refusal = _not_yet(nodes, held, is_answered=found.is_answered)
            if refusal is None:
                return held, without
            if time.monotonic() > until_s:
                raise refusal
            await asyncio.sleep(POLL_S)

    async def _collect(self, state: ClusterState) -> tuple[dict[str, Held], dict[str, str]]:
        """Ask every node that anybody names; return what they hold, and why others are silent."""
        request = HeldRequest(self._identity.cluster)
        held = {self._own.uuid: await self._held_here(request)}
        silent: dict[str, str] = {}
        while True:
            nodes = known_nodes(state, held)
            new = [name for name in nodes if name not in held and name not in silent]
            if not new:
                return held, silent
            answers = await asyncio.gather(*(self._ask(nodes[name], request) for name in new))
            for name, answer in zip(new, answers, strict=True):
                if isinstance(answer, Held) and answer.node == name:
                    held[name] = answer
                else:
                    silent[name] = "another node" if isinstance(answer, Held) else answer

    async def _ask(self, node: NodeRecord, request: HeldRequest) -> Held | str:
        content = msgspec.json.encode(request)
        port = node.ports.get("http", 0)
        limit_s = POOL_S_MAX if request.pool else HELD_S_MAX
        try:
            async with asyncio.timeout(limit_s):
                said = await self._own.ask(node.host, port, "POST", HELD_PATH, content)
            return from_peer(said, Held)
        except TimeoutError:
            return f"no answer within {limit_s:g} s"
        except MillstreamError as error:
            return str(error)

    async def _last_word(
        self,
        state: ClusterState,
        held: Mapping[str, Held],
        without: frozenset[str],
        wanted: Wanted,
    ) -> dict[str, Held]:
        """Have all give up their sessions, and ask them again."""
        host, ports = self._own.addresses()
        pool = f"{host}:{ports.get('peer', 0)}" if wanted.from_nodes else ""
        nodes = known_nodes(state, held)
        others = sorted(nodes.keys() - {self._own.uuid} - without)
        request = HeldRequest(self._identity.cluster, is_last=True, pool=pool)
        answers = await asyncio.gather(*(self._ask(nodes[name], request) for name in others))
        here = HeldRequest(self._identity.cluster, is_last=True)
        found = {self._own.uuid: await self._held_here(here)}
        for name, answer in zip(others, answers, strict=True):
            if not isinstance(answer, Held) or answer.node != name:
                raise _silent(nodes[name].name, str(answer)[:500])
            found[name] = answer
        missing = known_nodes(state, found).keys() - found.keys() - without
        if missing:
            raise UnavailableError("nodes have changed meanwhile; run it again", code="busy")
        return found


def _check_nodes(
    nodes: Mapping[str, NodeRecord],
    held: Mapping[str, Held],
    silent: Mapping[str, str],
    without: frozenset[str],
) -> None:
    """Refuse if a node speaks against it.

    Raises:
        ConditionError: `node_answers`, `bucket_failed`.
        UnavailableError: `node_failed`.
    """
    for name in sorted(without & held.keys()):
        raise ConditionError(
            f"{nodes[name].name} answers: give up only nodes that never come back",
            code="node_answers",
        )
    for name, one in held.items():
        for bucket, why in one.failed.items():
            raise ConditionError(
                f"{nodes[name].name} cannot tell what it has of bucket {bucket!r}: {why}; mend "
                "that, or stop the node and name it with --without",
                code="bucket_failed",
            )
    for name in sorted(silent.keys() - without):
        raise _silent(f"{nodes[name].name} ({_address(nodes[name])})", silent[name])


def _not_yet(
    nodes: Mapping[str, NodeRecord], held: Mapping[str, Held], *, is_answered: bool
) -> MillstreamError | None:
    """Return what speaks against it, and may be over soon: others may be silent since a moment."""
    if is_answered:  # sessions may have outlasted the restore
        return None
    for name, one in held.items():
        if one.is_in_step:
            return _not_lost(f"{nodes[name].name} is in step with the cluster")
        if one.not_kept == "conflict":
            return _not_lost(f"{nodes[name].name} hears others that coordinate")
        if one.not_kept == "notready":
            return UnavailableError(
                f"{nodes[name].name} still listens whether others coordinate: run it again",
                code="not_ready",
            )
    return None


def _silent(node: str, why: str) -> UnavailableError:
    return UnavailableError(
        f"{node} does not answer: {why}; start it, or, if it never comes back, name it with "
        "--without",
        code="node_failed",
    )


def _not_lost(why: str) -> ConditionError:
    return ConditionError(f"nothing is to be recovered: {why}", code="not_lost")


def _told(
    before: ClusterState,
    after: ClusterState,
    held: Mapping[str, Held],
    without: frozenset[str],
    lost: list[str],
    *,
    is_done: bool,
) -> Mapping[str, Any]:
    assert after.cluster is not None, "it was rebuilt"
    may_be_lost = [*lost, *map(_loss_text, losses(after, held))]
    if before.cluster is None:
        may_be_lost.append("names, zones and settings that no running node remembers")
    else:
        may_be_lost += [
            f"bucket {bucket.name}: no node has it, so it is left out"
            for uuid, bucket in before.buckets.items()
            if uuid not in after.buckets
        ]
    if without:
        may_be_lost.append("writes without durability that only nodes given up have")
    return {
        "cluster": after.cluster.uuid,
        "name": after.cluster.name,
        "generation": after.cluster.generation,
        "is_done": is_done,
        "nodes": [
            {
                "id": name,
                "name": node.name,
                "address": _address(node),
                "is_given_up": name in without,
            }
            for name, node in sorted(after.nodes.items(), key=lambda one: one[1].name)
        ],
        "buckets": [
            {"name": one.name, "partitions": one.partitions} for one in after.buckets.values()
        ],
        "may_be_lost": may_be_lost,
    }


def _loss_text(loss: Loss) -> str:
    texts = [
        f"writes acknowledged at level {level} in {count} partitions, if only nodes had them that "
        "are given up or were killed"
        for level, count in sorted(loss.at_risk.items())
    ]
    if loss.gone:
        texts.append(
            f"all of {len(loss.gone)} partitions ({', '.join(map(str, loss.gone[:8]))}) but what "
            "left-over copies have"
        )
    return f"bucket {loss.bucket}: {'; '.join(texts)}"


def _address(node: NodeRecord) -> str:
    return f"{node.host}:{node.ports.get('http', 0)}"


def _unix_ms() -> int:
    return time.time_ns() // 1_000_000
