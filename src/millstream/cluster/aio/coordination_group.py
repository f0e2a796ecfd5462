"""Changes the group that coordinates, as members of the cluster come and go.

Invariants:
1. One change is made at a time, on a connection of its own: it waits until new members have the
   log, and delays no beat.
2. A refused change is tried again with the next look; the coordination service does nothing that
   would leave it without a quorum.

Elsewhere: which nodes should be members (`cluster.core.coordinators`), how a group changes
(`coordination.core.pool.group_commands`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from millstream.cluster.aio.state_reader import SYSTEM_GROUP
from millstream.cluster.core.coordinators import next_coordinators
from millstream.cluster.core.elements import ClusterState
from millstream.coordination.aio.client.async_client import AsyncClient
from millstream.errors import MillstreamError

__all__ = ["LOOK_S", "CoordinationGroup", "Group", "read_group"]

_LOG = logging.getLogger(__name__)
LOOK_S: Final = 3.0
"""How often the orchestrator looks at the group."""
CHANGE_S_MAX: Final = 120.0
"""How long a change may take before it is asked for again."""


class Group(NamedTuple):
    """The group that has the state of the cluster."""

    epoch: int
    members: tuple[str, ...]
    """By id of the node in the cluster; of a node that is none, its id in the pool."""
    pool_ids: Mapping[str, str]
    """The id in the pool by id of the node."""


async def read_group(client: AsyncClient, state: ClusterState) -> Group:
    """Return the group as a node of the pool knows it; raises MillstreamError."""
    rows = await client.raw.execute(b"ADMIN", b"NODES", is_change=False)
    entry = (await client.raw.execute(b"VDS", SYSTEM_GROUP, is_change=False))[SYSTEM_GROUP]
    ids = _pool_ids(rows, state)
    names = {one: name for name, one in ids.items()}
    members = tuple(names.get(one.decode(), one.decode()) for one in entry[b"nodes"])
    return Group(int(entry[b"epoch"]), members, ids)


def _pool_ids(rows: list[dict[bytes, Any]], state: ClusterState) -> dict[str, str]:
    """Return the ids in the pool of the cluster's nodes, which are found by their addresses.

    If a lost node's address was given to a new one, the node of the pool counts that was heard
    last, and the node of the cluster that is present.
    """
    by_age = sorted(rows, key=_heard_s_ago, reverse=True)
    known = {
        row[b"coord"].decode(): row[b"node"].decode()
        for row in by_age
        if row[b"coord"] is not None
    }
    found = {}
    present_first = sorted(state.nodes.items(), key=lambda one: one[1].state in ("out", "failed"))
    for name, node in present_first:
        host = f"[{node.host}]" if ":" in node.host else node.host
        pool_id = known.pop(f"{host}:{node.ports.get('coord', 0)}", None)
        if pool_id is not None:
            found[name] = pool_id
    return found


def _heard_s_ago(row: dict[bytes, Any]) -> float:
    if row.get(b"is_here"):
        return 0.0
    heard_ms = row.get(b"heard_ms")
    return float("inf") if heard_ms is None else heard_ms / 1000


class CoordinationGroup:
    """The group, as the orchestrator tends it.

    Args:
        connect: makes a client that is used for one change.
    """

    def __init__(self, connect: Callable[[], AsyncClient]) -> None:
        self._connect = connect
        self.problem = ""
        """Why the group is not as it should be; empty: it is."""
        self.members: frozenset[str] | None = None
        """Nodes that are of the group; None: not known, as while it is changed."""

    async def tend(self, state: ClusterState) -> bool:
        """Look at the group, and change it if it should be another one; return whether it was."""
        try:
            async with self._connect() as client:
                group = await read_group(client, state)
                wanted = next_coordinators(state, group.members, time.time_ns() // 1_000_000)
                self.members = frozenset(group.members) if wanted is None else None
                if wanted is None:
                    self.problem = ""
                    return False
                await self._change(client, group, wanted)
        except MillstreamError as error:
            if str(error) != self.problem:
                _LOG.warning("nodes that coordinate: %s", error)
            self.members = None
            self.problem = str(error)
            return False
        self.members = frozenset(wanted)
        _LOG.info("%d nodes coordinate: %s", len(wanted), ", ".join(wanted))
        self.problem = ""
        return True

    async def _change(self, client: AsyncClient, group: Group, wanted: tuple[str, ...]) -> None:
        ids = [group.pool_ids.get(one, one).encode() for one in wanted]
        words = (b"ADMIN", b"GROUP", b"RECONFIG", SYSTEM_GROUP, *ids, b"EPOCH")
        await client.raw.execute(
            *words, b"%d" % group.epoch, is_change=False, deadline_s=CHANGE_S_MAX
        )
