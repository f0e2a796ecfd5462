"""The state of a cluster as people and programs are shown it.

Invariants:
1. What nobody has reported is None, or is counted as not known; it is never shown as nothing.
2. A partition counts as served only if its active copy says that it may serve.
3. The result is JSON; new members may be added, none is renamed.

Elsewhere: how far a plan is (`cluster.core.progress`), the table that is printed
(`cli.serving.cluster_output`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from millstream.cluster.core.elements import Bucket, ClusterState, FailOver, NodeRecord
from millstream.cluster.core.memory import Memory
from millstream.cluster.core.orders import Place
from millstream.cluster.core.progress import Sample, left_s, progress_of
from millstream.cluster.core.quorums import serving_copy
from millstream.model.cluster_maps import DataRecord
from millstream.model.partitions import PartitionState
from millstream.model.rows import named
from millstream.vsr.core.versions import NEVER

__all__ = ["status_of"]


def status_of(
    state: ClusterState,
    memory: Memory,
    *,
    coordinators: Sequence[str] | None = None,
    failovers: Iterable[FailOver] = (),
    notes: Iterable[str] = (),
    stalled: Mapping[Place, str] | None = None,
    samples: Sequence[Sample] = (),
) -> dict[str, Any]:
    """Return the status.

    Args:
        state: as read.
        memory: the last reports of the nodes.
        coordinators: ids of the members of the group that has the state; None: not known.
        failovers: the last ones.
        notes: why something that is wanted is not done.
        stalled: partitions of the plan without progress; None: not known.
        samples: progress at earlier times, the last one now.
    """
    assert state.cluster is not None, "a status without a cluster"
    return {
        "cluster": {
            "uuid": state.cluster.uuid,
            "name": state.cluster.name,
            "generation": state.cluster.generation,
        },
        "orchestrator": _orchestrator(state),
        "coordination": _coordination(state, coordinators),
        "nodes": [_node(state, memory, name) for name in sorted(state.nodes, key=_by_name(state))],
        "buckets": [
            _bucket(state, memory, uuid, bucket)
            for uuid, bucket in sorted(state.buckets.items(), key=lambda one: one[1].name)
        ],
        "plan": _plan(state, memory, stalled, samples),
        "failovers": {
            "count": state.failover_count,
            "max": state.settings.auto_failover_max,
            "last": [msgspec.json.decode(msgspec.json.encode(one)) for one in failovers],
        },
        "settings": msgspec.to_builtins(state.settings),
        "notes": list(notes),
    }


def _by_name(state: ClusterState) -> Any:
    return lambda name: (state.nodes[name].name, name)


def _orchestrator(state: ClusterState) -> dict[str, str] | None:
    leader = state.leader
    if leader is None or state.token == NEVER:
        return None
    node = state.nodes.get(leader.node)
    return {
        "node": leader.node,
        "name": leader.node if node is None else node.name,
        "token": state.token.text.decode(),
    }


def _coordination(
    state: ClusterState, coordinators: Sequence[str] | None
) -> dict[str, Any] | None:
    if coordinators is None:
        return None
    known = state.nodes
    return {
        "members": [known[one].name if one in known else one for one in coordinators],
        "may_fail": max(0, (len(coordinators) - 1) // 2),
    }


def _node(state: ClusterState, memory: Memory, name: str) -> dict[str, Any]:
    node, report = state.nodes[name], memory.nodes.get(name)
    states = [copy.standing.state for copy in memory.copies.get(name, {}).values()]
    return {
        "id": name,
        "name": node.name,
        "host": node.host,
        "ports": node.ports,
        "roles": list(node.roles),
        "zone": node.zone,
        "state": node.state,
        "by": node.by,
        "leaves": node.state == "leaving" or node.leaves,
        "since_ms": node.since_ms,
        "version": node.version,
        "has_session": name in state.live,
        "answers": report is not None,
        "is_admitted": None if report is None else report.is_admitted,
        "has_space": None if report is None else report.has_space,
        "active": None if report is None else states.count(PartitionState.ACTIVE),
        "replica": None if report is None else states.count(PartitionState.REPLICA),
        "index": None if report is None else _parts(memory, name),
        "note": _note(state, name, node),
    }


def _parts(memory: Memory, name: str) -> int:
    parts = memory.parts.get(name, {})
    return sum(part.state == "active" for part in parts.values())


def _note(state: ClusterState, name: str, node: NodeRecord) -> str:
    if node.state == "failed" and node.is_given_up:
        return "given up"
    if node.state == "failed" and node.leaves:
        return "failed while it was leaving"
    if node.state == "leaving":
        return "not yet: it still has copies"
    if node.state == "in" and name not in state.live:
        return "it has no session"
    return ""


def _bucket(state: ClusterState, memory: Memory, uuid: str, bucket: Bucket) -> dict[str, Any]:
    data_map = state.data[uuid]
    owned = dict[str, list[int]]()
    for partition, part in enumerate(state.index[uuid].records):
        if part.owner is not None:
            owned.setdefault(part.owner, []).append(partition)
    served = whole = moving = 0
    unserved, unknown = list[int](), list[int]()
    for partition, record in enumerate(data_map.records):
        place = Place(uuid, partition)
        is_served = _is_served(memory, place, record)
        served += is_served is True
        if is_served is None:
            unknown.append(partition)
        elif not is_served:
            unserved.append(partition)
        whole += _has_all_copies(memory, place, record, bucket)
        moving += record.is_moving or bool(record.building)
    return {
        "uuid": uuid,
        "name": bucket.name,
        "state": bucket.state,
        "partitions": bucket.partitions,
        "replicas": bucket.replicas,
        "index_replicas": bucket.index_replicas,
        "settings": bucket.settings,
        "generation": data_map.key.generation,
        "revision": data_map.key.revision,
        "served": served,
        "unserved": unserved,
        "unknown": unknown,
        "whole": whole,
        "moving": moving,
        "indexed": sum(map(len, owned.values())),
        "indexed_by": owned,
    }


def _is_served(memory: Memory, place: Place, record: DataRecord) -> bool | None:
    """Return whether a copy serves; None: the node that the map names did not report."""
    chosen = serving_copy(record, memory.answers(place, record.voters))
    copy = None if chosen is None else memory.copy(chosen, place)
    if copy is not None:
        return copy.may_serve
    if record.active is not None and record.active not in memory.nodes:
        return None
    return False


def _has_all_copies(memory: Memory, place: Place, record: DataRecord, bucket: Bucket) -> bool:
    """Return whether all wanted copies are there and follow who serves."""
    if record.is_moving or named(record.row) < bucket.replicas + 1:
        return False
    copies = [memory.copy(name, place) for name in record.voters]
    return all(
        copy is not None and copy.is_there and copy.standing.branch == record.branch != 0
        for copy in copies
    )


def _plan(
    state: ClusterState,
    memory: Memory,
    stalled: Mapping[Place, str] | None,
    samples: Sequence[Sample],
) -> dict[str, Any] | None:
    plan = state.plan
    if plan is None:
        return None
    progress = progress_of(state, plan, memory)
    waiting = None
    if stalled is not None:
        waiting = [
            {"bucket": state.buckets[place.bucket].name, "partition": place.partition, "why": why}
            for place, why in sorted(stalled.items())
            if place.bucket in state.buckets
        ]
    return {
        "id": plan.id,
        "kind": plan.kind,
        "by": plan.by,
        "started_ms": plan.started_ms,
        "is_cancelled": plan.is_cancelled,
        **progress._asdict(),
        "left_s": left_s(samples) if samples else None,
        "stalled": waiting,
    }
