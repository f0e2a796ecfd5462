"""Makes a cluster of one node, and makes a node a member of a cluster.

Invariants:
1. Each step may be interrupted; the same call again goes on.
2. A node that joins keeps its identity durably before anything else, and brings no data. A node
   that makes a cluster keeps it last, when the cluster has all its buckets.
3. A refused join changes nothing.

Elsewhere: the member afterwards (`cluster.aio.membership`), the transactions
(`cluster.core.writes`).
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Sequence
from typing import Final

import msgspec

from millstream.cluster.aio.own_node import OwnBucket, OwnNode
from millstream.cluster.aio.state_reader import execute, make_namespace, read_state
from millstream.cluster.core.elements import (
    ORCHESTRATOR,
    Bucket,
    Cluster,
    ClusterState,
    NodeRecord,
    NodeState,
    Role,
)
from millstream.cluster.core.identity import Identity
from millstream.cluster.core.settings import Settings
from millstream.cluster.core.writes import create_bucket, found_cluster, join_node, put_node
from millstream.coordination.aio.client.async_client import AsyncClient
from millstream.errors import ConditionError, MillstreamError, UnavailableError
from millstream.model.cluster_maps import (
    BRANCH_MAX,
    DataMap,
    DataRecord,
    IndexMap,
    IndexRecord,
    MapKey,
)
from millstream.model.partitions import PartitionState

__all__ = ["CLOCK_MS_MAX", "MEMBER_PATH", "Told", "found", "join"]

MEMBER_PATH: Final = "/_millstream/cluster/member"
CLOCK_MS_MAX: Final = 1000
"""A node whose clock differs by more than this does not join."""
CLOCK_MS_WARNED: Final = 100
"""A node whose clock differs by more than this joins with a warning."""
SESSION_S: Final = 5.0
POOL_S: Final = 60.0
"""How long the state of the cluster may take to be there after the pool was joined."""
PAUSE_S: Final = 0.1
EMPTY_BUCKET: Final = "default"
"""A node makes this one at its first start; it is no data while it is empty."""


class Told(msgspec.Struct, frozen=True):
    """What a member tells a node that wants to join."""

    cluster: str
    name: str
    version: str
    peer: str
    """HOST:PORT of its coordination for other nodes."""
    unix_ms: int
    nodes: dict[str, NodeRecord]


# ---- a cluster of one node


async def found(own: OwnNode, name: str, version: str, settings: Settings) -> Identity:
    """Make a cluster of this node and its buckets; go on if that was begun.

    Raises:
        ConditionError: `other_cluster`, `has_map`.
        UnavailableError: the coordination service does not answer.
    """
    buckets = own.buckets()
    _refuse_spread(buckets)
    async with own.connect(SESSION_S) as client:
        await make_namespace(client)
        state = await read_state(client)
        if state.cluster is None:
            revision = max((one.map_revision for one in buckets), default=0)
            now_ms = time.time_ns() // 1_000_000
            cluster = Cluster(secrets.token_hex(16), name, 2 + revision, now_ms)
            record = _record(own, state, version, "in")
            if not await execute(client, found_cluster(cluster, own.uuid, record, settings)):
                raise UnavailableError("another node makes a cluster now; try again", code="busy")
            state = await read_state(client)
        assert state.cluster is not None
        if state.cluster.name != name or own.uuid not in state.nodes:
            raise ConditionError(
                f"this node coordinates with cluster {state.cluster.name!r}: join that one, or "
                "begin with an empty directory",
                code="other_cluster",
            )
        await _bring_buckets(own, client, buckets)
    return Identity(state.cluster.uuid, name)


def _refuse_spread(buckets: Sequence[OwnBucket]) -> None:
    """Refuse buckets of which a partition is not served here."""
    for bucket in buckets:
        away = [s.partition for s in bucket.standings if s.state is not PartitionState.ACTIVE]
        if bucket.problem or away:
            why = bucket.problem or f"partition {away[0]} is not active here"
            raise ConditionError(
                f"bucket {bucket.name!r} cannot become one of a cluster: {why}", code="has_map"
            )


async def _bring_buckets(own: OwnNode, client: AsyncClient, buckets: Sequence[OwnBucket]) -> None:
    """Give each bucket its maps, in which this node has everything."""
    election = client.election(ORCHESTRATOR)
    await election.acquire(SESSION_S * 2)
    try:
        for bucket in buckets:
            state = await read_state(client)
            if bucket.uuid in state.buckets:
                continue
            assert state.cluster is not None
            made = _maps(own, bucket, MapKey(state.cluster.generation, 1))
            if not await execute(client, create_bucket(state, bucket.uuid, *made)):
                raise UnavailableError("another node changes the cluster; try again", code="busy")
    finally:
        await election.release()


def _maps(own: OwnNode, bucket: OwnBucket, key: MapKey) -> tuple[Bucket, DataMap, IndexMap]:
    owner = own.uuid if "index" in own.roles else None
    records = tuple(
        DataRecord(key, own.uuid, one.branch if one.branch <= BRANCH_MAX else 0, ((own.uuid,),))
        for one in bucket.standings
    )
    parts = tuple(IndexRecord(key, owner) for _ in records)
    made = Bucket(bucket.name, len(records), 0, int(bucket.index_replicas))
    return made, DataMap(key, bucket.uuid, records), IndexMap(key, bucket.uuid, parts)


# ---- joining


async def join(
    own: OwnNode,
    identity: Identity | None,
    place: tuple[str, int],
    *,
    version: str,
    zone: str,
    roles: tuple[Role, ...],
) -> tuple[Identity, list[str]]:
    """Make this node a member of the cluster of which another node is one.

    Returns:
        What it keeps, and warnings.

    Args:
        own: this node.
        identity: what it keeps already.
        place: host and HTTP port of the member.
        version: of this program.
        zone: of this node, if it was started with none.
        roles: of this node; empty: all that it was started with.

    Raises:
        ConditionError: `other_cluster`, `has_data`, `address_taken`, `clock`, `version`.
        UnavailableError: the member, or the coordination service, does not answer.
    """
    told, apart_ms = await _ask(own, place)
    if identity is not None and identity.cluster != told.cluster:
        raise ConditionError(
            f"this node is of cluster {identity.name!r} ({identity.cluster[:8]}), and not "
            f"of {told.name!r} ({told.cluster[:8]}): empty its directory to join another one; a "
            "machine with several engines is then started with --join",
            code="other_cluster",
        )
    if own.uuid not in told.nodes:
        _refuse(own, told, version)
        if identity is None:
            _refuse_data(own)
    kept = identity or Identity(told.cluster, told.name, told.peer)
    if kept != identity:
        await own.keep_identity(kept)
    await own.join_pool(told.peer)
    async with own.connect(SESSION_S) as client:
        await _become_member(own, client, kept, version, zone, roles)
    for bucket in own.buckets():
        if bucket.name == EMPTY_BUCKET and not bucket.changes and not bucket.map_revision:
            await own.delete_bucket(bucket.name)
    warnings = []
    if apart_ms > CLOCK_MS_WARNED:
        warnings.append(f"the clocks of the two nodes differ by {apart_ms} ms: set them")
    return kept, warnings


async def _ask(own: OwnNode, place: tuple[str, int]) -> tuple[Told, int]:
    """Ask a member; return what it tells, and by how many ms the clocks differ at least."""
    sent_ms = time.time_ns() // 1_000_000
    content = await own.ask(*place, "GET", MEMBER_PATH)
    heard_ms = time.time_ns() // 1_000_000
    told = msgspec.json.decode(content, type=Told)
    apart_ms = max(sent_ms - told.unix_ms, told.unix_ms - heard_ms, 0)
    if apart_ms > CLOCK_MS_MAX:
        raise ConditionError(
            f"the clocks of the two nodes differ by {apart_ms} ms: set them, and try again",
            code="clock",
        )
    return told, apart_ms


def _refuse(own: OwnNode, told: Told, version: str) -> None:
    if told.version != version:
        raise ConditionError(
            f"this node has version {version}, the cluster {told.version}: use the same",
            code="version",
        )
    host, ports = own.addresses()
    for node in told.nodes.values():
        taken = set(node.ports.items()) & set(ports.items())
        is_free = node.state == "out" or node.is_given_up  # a new machine may have its address
        if not is_free and node.host == host and taken:
            name, port = min(taken)
            raise ConditionError(
                f"{node.name} has the address {host}:{port} ({name}): give this node another one",
                code="address_taken",
            )


def _refuse_data(own: OwnNode) -> None:
    for bucket in own.buckets():
        if bucket.name != EMPTY_BUCKET or bucket.changes or bucket.problem:
            raise ConditionError(
                f"this node has the bucket {bucket.name!r} with {bucket.changes} changes: join "
                "with an empty directory; replicate the documents afterwards",
                code="has_data",
            )


async def _become_member(
    own: OwnNode,
    client: AsyncClient,
    identity: Identity,
    version: str,
    zone: str,
    roles: tuple[Role, ...],
) -> None:
    """Make the record of this node, once the pool shows the state of the cluster."""
    until_s = time.monotonic() + POOL_S
    while True:
        try:
            state = await read_state(client)
            if state.cluster is None or state.cluster.uuid != identity.cluster:
                raise UnavailableError("the state of the cluster is not there yet", code="busy")
            if own.uuid in state.nodes and await _has_own_name(own, client, state):
                return
            if own.uuid not in state.nodes:
                record = _record(own, state, version, "joining", zone, roles)
                await execute(client, join_node(own.uuid, record))
            continue
        except MillstreamError as error:
            if time.monotonic() > until_s:
                raise UnavailableError(f"joining: {error}", code="no_quorum") from error
        await asyncio.sleep(PAUSE_S)


async def _has_own_name(own: OwnNode, client: AsyncClient, state: ClusterState) -> bool:
    """Return whether no other node has the name; of two that joined together one is renamed."""
    mine = state.nodes[own.uuid]
    rivals = [one for one, node in state.nodes.items() if node.name == mine.name]
    if min(rivals) == own.uuid:
        return True
    renamed = msgspec.structs.replace(mine, name=_free_name(state))
    await execute(client, put_node(state, own.uuid, renamed))
    return False


def _free_name(state: ClusterState) -> str:
    names = {node.name for node in state.nodes.values()}
    return next(free for n in range(1, len(names) + 2) if (free := f"n{n}") not in names)


def _record(
    own: OwnNode,
    state: ClusterState,
    version: str,
    node_state: NodeState,
    zone: str = "",
    roles: tuple[Role, ...] = (),
) -> NodeRecord:
    host, ports = own.addresses()
    name = _free_name(state)
    wanted = tuple(role for role in own.roles if not roles or role in roles)
    now_ms = time.time_ns() // 1_000_000
    return NodeRecord(
        name,
        host,
        dict(ports),
        wanted,
        own.zone or zone,
        node_state,
        version=version,
        since_ms=now_ms,
    )
