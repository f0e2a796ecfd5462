"""Reads the state of the cluster from the coordination service, and makes its namespace.

Invariants:
1. A state is of one moment. The token is read after it, so if it is still the reader's own, the
   reader held the lock at that moment, too.

Elsewhere: the elements (`cluster.core.elements`), how they are changed (`cluster.core.writes`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from millstream.cluster.aio.local_engine import ClusterMaps
from millstream.cluster.core.elements import (
    ORCHESTRATOR,
    ROOT,
    ClusterState,
    Element,
    state_from_elements,
)
from millstream.cluster.core.writes import Txn
from millstream.coordination.aio.client.asking import ask_node
from millstream.coordination.aio.client.async_client import AsyncClient
from millstream.coordination.core.client.errors import AbortedError, MissingError
from millstream.coordination.core.client.replies import Versioned, data_of, version_of
from millstream.errors import ConditionError
from millstream.vsr.core.versions import NEVER

__all__ = [
    "SYSTEM_GROUP",
    "execute",
    "make_namespace",
    "maps_of",
    "read_elements",
    "read_stale_state",
    "read_state",
]

SYSTEM_GROUP: Final = b"1"
"""Every pool has this group. It has the state of the cluster."""
_TOO_LATE: Final = ("CHECK_FAILED", "CAS_MISMATCH", "ERROR_DOES_NOT_EXISTS")
"""Errors of a transaction that is based on what is not so any more."""


async def read_state(client: AsyncClient) -> ClusterState:
    """Return the state, read linearizably.

    Raises:
        ConditionError: `not_managed`: there is no cluster.
        CorruptionError: as `state_from_elements`.
        UnavailableError: the coordination service does not answer.
    """
    return (await read_elements(client))[0]


async def read_elements(client: AsyncClient) -> tuple[ClusterState, Mapping[str, Versioned]]:
    """Return the state, and all elements that it was made of; raises as `read_state`."""
    try:
        found = await client.tree(ROOT)
    except MissingError as error:
        raise ConditionError(
            "there is no cluster here: make one with `millstream cluster init`", code="not_managed"
        ) from error
    leader = await client.election(ORCHESTRATOR).leader() if ORCHESTRATOR in found else None
    elements = {path: Element(one.version, one.data) for path, one in found.items()}
    token = NEVER
    if leader is not None:
        token = leader.token
        elements[ORCHESTRATOR] = elements[ORCHESTRATOR]._replace(data=leader.data)
    group = (await client.raw.execute(b"VDS", SYSTEM_GROUP, is_change=False))[SYSTEM_GROUP]
    return state_from_elements(elements, token, int(group[b"epoch"])), found


async def read_stale_state(client: AsyncClient) -> ClusterState:
    """Return the state as the first node of the client has it by itself; it may be old.

    Who leads is not in it. Raises as `ask_node`, and as `state_from_elements`.
    """
    rows = await ask_node(client, b"GROUP", SYSTEM_GROUP, b"TREE", ROOT.encode(), b"STALEREAD")
    elements = {
        row[0].decode(): Element(version_of(row[1]), data_of(row[2]))
        for row in rows
        if row[0] != ORCHESTRATOR.encode()
    }
    return state_from_elements(elements)


def maps_of(state: ClusterState) -> ClusterMaps:
    """Return what every node knows of the cluster: not of buckets that are being dropped."""
    state = state.without_dropped()
    assert state.cluster is not None, "there is a cluster"
    return ClusterMaps(
        state.cluster.uuid, state.settings, dict(state.nodes), dict(state.buckets),
        dict(state.data), dict(state.index), max(state.versions.values(), default=NEVER),
    )  # fmt: skip


async def execute(client: AsyncClient, txn: Txn) -> bool:
    """Execute a transaction; return whether it was done. If not, something else came first.

    Raises:
        OutcomeUnknownError: it may have been done, or may still be.
        MillstreamError: why it cannot be done.
    """
    transaction = client.transaction()
    for words in txn.words():
        transaction.add(*words)
    try:
        await transaction.commit()
    except AbortedError as error:
        if error.reason not in _TOO_LATE:
            raise
        return False
    return True


async def make_namespace(client: AsyncClient) -> None:
    """Make the namespace of the cluster, for nodes and administrators only; it may be there.

    It is in the group that every pool has. Whoever makes it owns it, and what is below it.
    """
    await client.execute("CREATENAMESPACE", ROOT, "GROUP", SYSTEM_GROUP, is_change=True)
    await client.set_acl(ROOT, "MODE", "700", "DEFAULT", "MODE", "700")
