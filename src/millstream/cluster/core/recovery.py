"""Rebuilds the state of a cluster from what its nodes hold, after coordination has lost it.

    known = known_nodes(state, held)               # ask each of them, until none is new
    after = rebuild(state, held, without, identity, unix_ms)
    for txn in put_rebuilt(state, after): ...      # `cluster.core.writes`

`state` is what coordination still knows: an old backup, what a survivor had, or nothing. `held` is
what nodes have durably adopted.

Invariants:
1. A record is the newest one that anybody has. What no node has adopted had no effect, or only
   demanded more.
2. The generation is larger than any that anybody knows, so no key is used twice.
3. Every node that anybody knows has answered, or the operator said that it never comes back. Its
   copies are given up then, as by a forced fail-over.
4. Nobody is made to serve here: promises decide that afterwards (`cluster.core.fail_over`).

Elsewhere: what is asked and written (`cluster.aio.recovering`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from millstream.cluster.core.elements import Bucket, Cluster, ClusterState, NodeRecord
from millstream.cluster.core.identity import Identity
from millstream.cluster.core.members import failed_record
from millstream.cluster.core.promotion import Level
from millstream.cluster.core.quorums import judge_rows
from millstream.cluster.core.settings import Settings
from millstream.errors import ConditionError
from millstream.model.bucket_map import NodeAddress
from millstream.model.cluster_maps import (
    NO_KEY,
    DataMap,
    DataRecord,
    IndexMap,
    IndexRecord,
    MapKey,
)
from millstream.model.partitions import PartitionState
from millstream.model.standing import Standing
from millstream.vsr.core.versions import NEVER, Version

__all__ = ["Held", "HeldBucket", "Loss", "known_nodes", "losses", "rebuild"]


class HeldBucket(msgspec.Struct, frozen=True):
    """What a node has durably adopted of a bucket."""

    name: str
    nodes: tuple[NodeAddress, ...]
    """Named by id."""
    key: MapKey
    """Of the newest whole map."""
    records: tuple[DataRecord, ...]
    """By partition."""
    index: dict[int, IndexRecord] = {}
    """By partition, as far as there are any."""
    standings: tuple[Standing, ...] = ()
    """Of the copies that are here."""
    has_index_replicas: bool = False


class Held(msgspec.Struct, frozen=True):
    """What a node tells when its cluster is rebuilt."""

    node: str
    cluster: str
    record: NodeRecord
    """Its present addresses and roles, without a name."""
    is_in_step: bool
    """It has a session, so the coordination service is there for it."""
    buckets: dict[str, HeldBucket]
    """By uuid."""
    kept_lsn: int | None = None
    """How far it has the log of the group that coordinates; None: the group cannot go on here."""
    not_kept: str = ""
    """The code of why it cannot."""
    failed: dict[str, str] = {}
    """Buckets that are not served, by name, and why."""
    nodes: dict[str, NodeRecord] = {}
    """Members, as this process was last told; empty: not since it started."""
    settings: Settings | None = None
    described: dict[str, Bucket] = {}
    """Buckets, as this process was last told."""
    version: Version = NEVER
    """Of what it was last told."""


def known_nodes(state: ClusterState, held: Mapping[str, Held]) -> dict[str, NodeRecord]:
    """Return every node that may hold something, by id, with the best that is known of it."""
    found = {
        name: node
        for name, node in state.nodes.items()
        if node.state != "out" or name in state.live or name in held
    }
    for one in sorted(held.values(), key=lambda one: one.version, reverse=True):
        for name, node in one.nodes.items():
            if node.state != "out" or name in held:
                found.setdefault(name, replace(node, boots=0))
    addresses = {
        place.name: place
        for one in held.values()
        for bucket in one.buckets.values()
        for place in bucket.nodes
    }
    for name in sorted(_named(state, held)):
        if name not in found and name in addresses:
            place = addresses[name]
            ports = {"kv": place.kv, "http": place.http}
            found[name] = NodeRecord("", place.host, ports, (), state="in")
    for name, one in held.items():
        node = found.get(name, replace(one.record, state="in"))
        own = one.record
        found[name] = replace(
            node, host=own.host, ports=own.ports, roles=node.roles or own.roles,
            version=own.version,
        )  # fmt: skip
    return _with_names(found)


def _named(state: ClusterState, held: Mapping[str, Held]) -> set[str]:
    """Return the nodes that a record names, old or new."""
    names = {*state.live, *held}
    for data_map in state.data.values():
        names |= data_map.names()
    for index_map in state.index.values():
        names |= index_map.names()
    for one in held.values():
        for bucket in one.buckets.values():
            names |= {name for record in bucket.records for name in record.placed}
            names |= {name for part in bucket.index.values() for name in part.placed}
    return names


def _with_names(nodes: Mapping[str, NodeRecord]) -> dict[str, NodeRecord]:
    """Name those whose name nobody remembers."""
    taken = {node.name for node in nodes.values()}
    free = (name for n in range(1, 2 * len(nodes) + 2) if (name := f"n{n}") not in taken)
    return {
        one: node if node.name else replace(node, name=next(free))
        for one, node in sorted(nodes.items())
    }


def rebuild(
    state: ClusterState,
    held: Mapping[str, Held],
    without: frozenset[str],
    identity: Identity,
    unix_ms: int,
) -> ClusterState:
    """Return the new state: without buckets that were dropped after the old one was made.

    Args:
        state: what coordination still knows; without a cluster: nothing.
        held: of every known node, but those that are given up.
        without: nodes that never come back.
        identity: of the cluster.
        unix_ms: now.

    Raises:
        ConditionError: `two_buckets`: two buckets of one name are held.
    """
    nodes = known_nodes(state, held)
    assert set(nodes) <= {*held, *without}, "a node was not asked"
    generation = 1 + max((key.generation for key in _keys(state, held)), default=1)
    if state.cluster is None:
        cluster = Cluster(identity.cluster, identity.name, generation, unix_ms)
    else:
        cluster = replace(state.cluster, generation=generation)
    buckets = _buckets(state, held, without)
    newest = max(held.values(), key=lambda one: one.version, default=None)
    settings = state.settings
    if state.cluster is None and newest is not None and newest.settings is not None:
        settings = newest.settings
    data = {uuid: _data_map(uuid, generation, state, held) for uuid in buckets}
    owners = [name for name, one in nodes.items() if name in held and "index" in one.roles]
    return ClusterState(
        cluster=cluster,
        settings=settings,
        nodes=_members(state, nodes, held, without, unix_ms),
        buckets=buckets,
        data=data,
        index={uuid: _index_map(one, owners, state, held) for uuid, one in data.items()},
    )


def _members(
    state: ClusterState,
    nodes: Mapping[str, NodeRecord],
    held: Mapping[str, Held],
    without: frozenset[str],
    unix_ms: int,
) -> dict[str, NodeRecord]:
    known = dataclasses.replace(state, nodes=nodes)
    found = dict(nodes)
    for name, node in nodes.items():
        if name in without:
            found[name] = failed_record(known, name, "force", unix_ms)
        elif name in held and node.state == "out":
            found[name] = replace(node, state="in", since_ms=unix_ms)
    return found


def _keys(state: ClusterState, held: Mapping[str, Held]) -> Iterable[MapKey]:
    if state.cluster is not None:
        yield MapKey(state.cluster.generation, 0)
    yield from (one.key for one in state.data.values())
    yield from (one.key for one in state.index.values())
    for node in held.values():
        for bucket in node.buckets.values():
            yield bucket.key
            yield from (record.at for record in bucket.records)
            yield from (part.at for part in bucket.index.values())


# ---- buckets


def _buckets(
    state: ClusterState, held: Mapping[str, Held], without: frozenset[str]
) -> dict[str, Bucket]:
    """Return the buckets. One that no node has was dropped, unless those given up may have it."""
    found = {
        uuid: _bucket(uuid, held)
        for uuid in sorted({uuid for one in held.values() for uuid in one.buckets})
    }
    found |= {uuid: state.buckets[uuid] for uuid in found if uuid in state.buckets}
    names: dict[str, str] = {}
    for uuid, bucket in found.items():
        if bucket.name in names:
            raise _two_buckets(bucket.name, (names[bucket.name], uuid), held)
        names[bucket.name] = uuid
    if without:
        found |= {uuid: one for uuid, one in state.buckets.items() if one.name not in names}
    return found


def _two_buckets(name: str, uuids: tuple[str, str], held: Mapping[str, Held]) -> ConditionError:
    where = (
        f"{uuid} at {', '.join(sorted(node for node, one in held.items() if uuid in one.buckets))}"
        for uuid in uuids
    )
    return ConditionError(
        f"there are two buckets of the name {name!r}: {'; '.join(where)}; one was dropped while a "
        "node was away: stop the nodes that have it, and name them with --without",
        code="two_buckets",
    )


def _bucket(uuid: str, held: Mapping[str, Held]) -> Bucket:
    told = [one for one in held.values() if uuid in one.described]
    if told:
        return max(told, key=lambda one: one.version).described[uuid]
    holding = [one.buckets[uuid] for one in held.values() if uuid in one.buckets]
    newest = max(holding, key=lambda one: one.key)
    width = max(len(record.row) for record in newest.records)
    has_replicas = any(one.has_index_replicas for one in holding)
    return Bucket(newest.name, len(newest.records), width - 1, int(has_replicas))


def _data_map(
    uuid: str, generation: int, state: ClusterState, held: Mapping[str, Held]
) -> DataMap:
    known = [one.buckets[uuid] for one in held.values() if uuid in one.buckets]
    every = [one.records for one in known]
    if uuid in state.data:
        every.append(state.data[uuid].records)
    newest = [max(records, key=lambda one: one.at) for records in zip(*every, strict=True)]
    revision = max(
        [
            *(one.key.revision for one in known),
            *(record.at.revision for records in every for record in records),
            state.data[uuid].key.revision if uuid in state.data else 0,
        ]
    )
    key = MapKey(generation, revision + 1)
    return DataMap(
        key,
        uuid,
        tuple(
            replace(record, at=key, since=key if record.is_moving else NO_KEY) for record in newest
        ),
    )


def _index_map(
    data_map: DataMap, owners: Sequence[str], state: ClusterState, held: Mapping[str, Held]
) -> IndexMap:
    """Return the index map: of parts that are being made nothing is known any more."""
    uuid = data_map.bucket
    parts = [one.buckets[uuid].index for one in held.values() if uuid in one.buckets]
    if uuid in state.index:
        parts.append(dict(enumerate(state.index[uuid].records)))
    revision = max(
        [
            state.index[uuid].key.revision if uuid in state.index else 0,
            *(part.at.revision for own in parts for part in own.values()),
        ]
    )
    key = MapKey(data_map.key.generation, revision + 1)
    records = []
    for partition, data in enumerate(data_map.records):
        known = [own[partition] for own in parts if partition in own]
        if known:
            newest = max(known, key=lambda one: one.at)
            records.append(replace(newest, at=key, building=None))
        else:
            near = data.active if data.active in owners else None
            records.append(IndexRecord(key, near or next(iter(owners), None)))
    return IndexMap(key, uuid, tuple(records))


# ---- what may be lost


class Loss(NamedTuple):
    """What may be lost of a bucket."""

    bucket: str
    """Its name."""
    at_risk: Mapping[Level, int]
    """Number of partitions in which writes acknowledged at this level may be lost."""
    gone: tuple[int, ...]
    """Partitions of which no copy that counts is left."""


def losses(rebuilt: ClusterState, held: Mapping[str, Held]) -> list[Loss]:
    """Return what may be lost by giving nodes up, of the buckets of which anything may."""
    found = []
    for uuid, data_map in rebuilt.data.items():
        at_risk: dict[Level, int] = {}
        gone = []
        for partition, record in enumerate(data_map.records):
            answers = _answers(uuid, partition, record, held)
            if not answers:
                gone.append(partition)
                continue
            for level in judge_rows(record.rows, answers).at_risk:
                at_risk[level] = at_risk.get(level, 0) + 1
        if at_risk or gone:
            found.append(Loss(rebuilt.buckets[uuid].name, at_risk, tuple(gone)))
    return found


def _answers(
    uuid: str, partition: int, record: DataRecord, held: Mapping[str, Held]
) -> dict[str, Standing]:
    found = {}
    for name in record.voters:
        bucket = held[name].buckets.get(uuid) if name in held else None
        for standing in () if bucket is None else bucket.standings:
            if standing.partition == partition and standing.state is not PartitionState.ABSENT:
                found[name] = standing
    return found
