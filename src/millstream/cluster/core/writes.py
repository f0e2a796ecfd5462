"""Changes of the cluster's state, as guarded transactions of the coordination service.

    put_data_map(state, data_map).words()   # what to send between MULTI and EXEC

Guards:

| change | by | guard |
| --- | --- | --- |
| all of a new cluster | the first node | absent |
| a member, a session | the node | absent |
| what a member says of itself | the node | the version read |
| maps, plan, states of members, buckets | the orchestrator | its lock, and the version read |
| the end of a session | the orchestrator | its lock, and the version read |
| settings, the end of a plan | an administrator | the version read |
| all of a cluster that is rebuilt | an administrator | absent, or the version read |

Invariants:
1. A change of what exists names the version that was read. A write whose answer was lost may be
   executed later; without the version it would overwrite what came between.
2. What the orchestrator writes also requires its lock, so that one that was replaced writes
   nothing.
3. `CREATE` answers EXISTS without an error, so a creation always checks that nothing is there.

Elsewhere: what is written (`cluster.core.elements`, `model.cluster_maps`), and why
(`cluster.core.deciding`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from millstream.cluster.core.elements import (
    CLUSTER,
    FAILOVER_COUNT,
    FAILOVERS,
    FAILOVERS_KEPT_MAX,
    ORCHESTRATOR,
    PLAN,
    REQUESTS,
    SETTINGS,
    Bucket,
    Cluster,
    ClusterState,
    FailOver,
    Live,
    NodeRecord,
    Plan,
    boots_path,
    bucket_path,
    index_map_path,
    live_path,
    map_path,
    name_path,
    node_path,
    to_json,
)
from millstream.cluster.core.settings import Settings, settings_to_json
from millstream.errors import ConditionError, UsageError
from millstream.model.cluster_maps import (
    DataMap,
    IndexMap,
    data_map_to_json,
    index_map_to_json,
)
from millstream.vsr.core.versions import NEVER, Version

__all__ = [
    "Txn",
    "cancel_plan",
    "create_bucket",
    "drop_bucket",
    "end_session",
    "forget_bucket",
    "found_cluster",
    "join_node",
    "open_session",
    "put_bucket",
    "put_data_map",
    "put_index_map",
    "put_members",
    "put_node",
    "put_rebuilt",
    "put_settings",
    "reset_failovers",
]

Words = tuple[bytes, ...]
_COMMANDS_MAX: Final = 128
_NODES_PER_TXN: Final = 30


class Txn(NamedTuple):
    """One transaction: all of it is done, or nothing."""

    why: str
    checks: tuple[Words, ...]
    changes: tuple[Words, ...]

    def words(self) -> tuple[Words, ...]:
        """Return the commands, conditions first."""
        found = (*self.checks, *self.changes)
        assert len(found) <= _COMMANDS_MAX, f"{len(found)} commands"
        return found


def found_cluster(cluster: Cluster, node: str, record: NodeRecord, settings: Settings) -> Txn:
    """Return the transaction that makes a cluster of one node."""
    made = {
        CLUSTER: to_json(cluster),
        SETTINGS: settings_to_json(settings),
        node_path(node): to_json(record),
        ORCHESTRATOR: b"",
        PLAN: b"",
    }
    return Txn(
        "found the cluster",
        tuple(_absent(path) for path in made),
        (
            *(_create(b"BINARY", path, data) for path, data in made.items()),
            _create(b"COUNTER", boots_path(node)),
            _create(b"COUNTER", FAILOVER_COUNT),
            _create(b"LIST", FAILOVERS),
            _create(b"QUEUE", REQUESTS),
        ),
    )


def join_node(node: str, record: NodeRecord) -> Txn:
    """Return the transaction that makes a node a member."""
    return Txn(
        f"{record.name} joins",
        (_exists(CLUSTER), _absent(node_path(node))),
        (
            _create(b"BINARY", node_path(node), to_json(record)),
            _create(b"COUNTER", boots_path(node)),
        ),
    )


def open_session(node: str, live: Live, counted: Version) -> Txn:
    """Return the transaction by which a node says that its session is open.

    It fails while an earlier session of the node lasts.

    Args:
        node: id.
        live: with `boots` one more than the counter had.
        counted: version of the counter `boots_path(node)` then.
    """
    return Txn(
        f"session {live.boots} of {node}",
        (_absent(live_path(node)), _version(boots_path(node), counted)),
        (
            (b"COUNTER", b"INC", boots_path(node).encode()),
            (
                b"CREATE",
                b"BINARY",
                b"EPHEMERAL",
                b"PARENTS",
                live_path(node).encode(),
                to_json(live),
            ),
        ),
    )


def end_session(state: ClusterState, node: str) -> Txn:
    """Return the transaction that marks a node's session as ending.

    The node gives up its lease when it reads the mark. If it does not, its lease has ended before
    the session runs out.
    """
    path = live_path(node)
    ending = msgspec.structs.replace(state.live[node], is_ending=True)
    return Txn(
        f"end session {ending.boots} of {node}",
        (_held(state), _version(path, state.version(path))),
        (_put(path, to_json(ending)),),
    )


def put_node(state: ClusterState, node: str, record: NodeRecord) -> Txn:
    """Return the transaction by which a node replaces what its record says of addresses."""
    path = node_path(node)
    return Txn(
        f"addresses of {record.name}",
        (_version(path, state.version(path)),),
        (_put(path, to_json(record)),),
    )


def put_data_map(state: ClusterState, data_map: DataMap) -> Txn:
    """Return the transaction that replaces the data map of a bucket."""
    path = map_path(data_map.bucket)
    assert data_map.key == state.data[data_map.bucket].key.next(), "a revision is left out"
    return _put_map(state, path, data_map_to_json(data_map), (), "data map")


def put_index_map(state: ClusterState, index_map: IndexMap, lost: Iterable[str] = ()) -> Txn:
    """Return the transaction that replaces the index map of a bucket.

    Args:
        state: as read.
        index_map: the next one.
        lost: owners that are replaced because they have no session. They must have had none since
            the state was read.
    """
    assert index_map.key == state.index[index_map.bucket].key.next(), "a revision is left out"
    checks: list[Words] = []
    for name in sorted(lost):
        boots = boots_path(name)
        checks += [_absent(live_path(name)), _version(boots, state.version(boots))]
    path = index_map_path(index_map.bucket)
    return _put_map(state, path, index_map_to_json(index_map), tuple(checks), "index map")


def put_members(
    state: ClusterState,
    plan: Plan | None,
    nodes: Mapping[str, NodeRecord],
    why: str,
    failovers: Sequence[FailOver] = (),
    *,
    resets: bool = False,
) -> Txn:
    """Return the transaction that replaces the plan and members.

    Args:
        state: as read.
        plan: the next one; None: none.
        nodes: the members that change.
        why: for the log.
        failovers: automatic ones, which are counted and listed.
        resets: whether the count begins anew.
    """
    changes = [
        (*_put(node_path(name), to_json(record)), b"CAS", state.version(node_path(name)).text)
        for name, record in sorted(nodes.items())
    ]
    if failovers:
        path, last = FAILOVERS.encode(), b"%d" % -FAILOVERS_KEPT_MAX
        changes.append((b"LIST", b"APPEND", path, *map(to_json, failovers)))
        changes.append((b"LIST", b"TRIM", path, last, b"-1"))
    if count := sum(one.is_counted for one in failovers):
        changes.append((b"COUNTER", b"INC", b"%d" % count, FAILOVER_COUNT.encode()))
    if resets:
        changes.append((b"COUNTER", b"RESET", FAILOVER_COUNT.encode()))
    if plan != state.plan:
        changes.append(_put(PLAN, to_json(plan)))
    return Txn(why, (_held(state), _version(PLAN, state.version(PLAN))), tuple(changes))


def reset_failovers(state: ClusterState) -> Txn:
    """Return the transaction that sets the count of fail-overs to 0."""
    change = (b"COUNTER", b"RESET", FAILOVER_COUNT.encode())
    return Txn("reset the count of fail-overs", (_held(state),), (change,))


def create_bucket(
    state: ClusterState, uuid: str, bucket: Bucket, data_map: DataMap, index_map: IndexMap
) -> Txn:
    """Return the transaction that makes a bucket with its maps.

    Raises:
        ConditionError: `bucket_exists`: the name is taken.
    """
    if state.version(name_path(bucket.name)) != NEVER:
        raise ConditionError(f"bucket {bucket.name!r} exists already", code="bucket_exists")
    made = {
        name_path(bucket.name): uuid.encode(),
        bucket_path(uuid): to_json(bucket),
        map_path(uuid): data_map_to_json(data_map),
        index_map_path(uuid): index_map_to_json(index_map),
    }
    return Txn(
        f"create bucket {bucket.name}",
        (_held(state), *(_absent(path) for path in made)),
        tuple(_create(b"BINARY", path, data) for path, data in made.items()),
    )


def put_bucket(state: ClusterState, uuid: str, bucket: Bucket, plan: Plan | None) -> Txn:
    """Return the transaction that changes what is wanted of a bucket, and the plan.

    Args:
        state: as read.
        uuid: of the bucket.
        bucket: the next description; the name and the number of partitions stay.
        plan: the next one; None: none.
    """
    before, path = state.buckets[uuid], bucket_path(uuid)
    assert (before.name, before.partitions) == (bucket.name, bucket.partitions)
    checks = [_held(state), _version(path, state.version(path))]
    changes = [_put(path, to_json(bucket))]
    if plan != state.plan:
        checks.append(_version(PLAN, state.version(PLAN)))
        changes.append(_put(PLAN, to_json(plan)))
    return Txn(f"bucket {bucket.name}", tuple(checks), tuple(changes))


def drop_bucket(state: ClusterState, uuid: str) -> Txn:
    """Return the transaction that begins to drop a bucket: nodes remove what they have of it."""
    path = bucket_path(uuid)
    dropping = msgspec.structs.replace(state.buckets[uuid], state="dropping")
    return Txn(
        f"drop bucket {dropping.name}",
        (_held(state), _version(path, state.version(path))),
        (_put(path, to_json(dropping)),),
    )


def forget_bucket(state: ClusterState, uuid: str) -> Txn:
    """Return the transaction that removes a dropped bucket; its name is free again."""
    name = state.buckets[uuid].name
    paths = (map_path(uuid), index_map_path(uuid), bucket_path(uuid), name_path(name))
    return Txn(
        f"bucket {name} is dropped",
        (_held(state), *(_version(path, state.version(path)) for path in paths)),
        tuple((b"DELETE", path.encode()) for path in paths),
    )


def put_settings(state: ClusterState, settings: Settings) -> Txn:
    """Return an administrator's transaction that replaces the settings."""
    check = _version(SETTINGS, state.version(SETTINGS))
    return Txn("settings", (check,), (_put(SETTINGS, settings_to_json(settings)),))


def cancel_plan(state: ClusterState) -> Txn:
    """Return an administrator's transaction that cancels the plan.

    Raises:
        UsageError: `no_plan`: there is none.
    """
    plan = state.plan
    if plan is None:
        raise UsageError("no rebalance is running, so there is nothing to cancel", code="no_plan")
    cancelled = msgspec.structs.replace(plan, is_cancelled=True)
    return Txn(
        "cancel the plan",
        (_version(PLAN, state.version(PLAN)),),
        (_put(PLAN, to_json(cancelled)),),
    )


def put_rebuilt(state: ClusterState, after: ClusterState) -> list[Txn]:
    """Return the transactions that replace all of the state by another, in their order.

    Until the last one is executed nobody acts by the state (`ClusterState.is_forked`). If it comes
    to that, all can be rebuilt again.
    """
    assert after.cluster is not None, "it is of a cluster"
    found = [_put_rebuilt_bucket(state, after, uuid) for uuid in after.buckets]
    for uuid in state.buckets.keys() - after.buckets.keys():
        name = state.buckets[uuid].name
        is_taken = any(one.name == name for one in after.buckets.values())
        paths = [map_path(uuid), index_map_path(uuid), bucket_path(uuid)]
        paths += [] if is_taken else [name_path(name)]
        found.append(_txn(f"bucket {name} was dropped", [_delete(state, path) for path in paths]))
    every = sorted(after.nodes.items())
    for at in range(0, len(every), _NODES_PER_TXN):
        some = every[at : at + _NODES_PER_TXN]
        changes = [_set(state, node_path(name), to_json(record)) for name, record in some]
        changes += [_make(state, b"COUNTER", boots_path(name)) for name, _ in some]
        found.append(_txn("members", changes))
    final = [
        _make(state, b"BINARY", ORCHESTRATOR),
        _make(state, b"COUNTER", FAILOVER_COUNT),
        _make(state, b"LIST", FAILOVERS),
        _set(state, PLAN, b""),
        _set(state, SETTINGS, settings_to_json(after.settings)),
        ((), ((b"DELETE", REQUESTS.encode()),) if _has(state, REQUESTS) else ()),
        ((), (_create(b"QUEUE", REQUESTS),)),
        _set(state, CLUSTER, to_json(after.cluster)),
    ]
    found.append(_txn(f"the cluster is rebuilt, generation {after.cluster.generation}", final))
    return found


def _put_rebuilt_bucket(state: ClusterState, after: ClusterState, uuid: str) -> Txn:
    bucket = after.buckets[uuid]
    changes = [
        _set(state, name_path(bucket.name), uuid.encode()),
        _set(state, bucket_path(uuid), to_json(bucket)),
        _set(state, map_path(uuid), data_map_to_json(after.data[uuid])),
        _set(state, index_map_path(uuid), index_map_to_json(after.index[uuid])),
    ]
    return _txn(f"maps of bucket {bucket.name}", changes)


_Guarded = tuple[tuple[Words, ...], tuple[Words, ...]]
"""Checks and changes."""


def _txn(why: str, parts: Sequence[_Guarded]) -> Txn:
    checks = tuple(check for part, _ in parts for check in part)
    return Txn(why, checks, tuple(change for _, part in parts for change in part))


def _has(state: ClusterState, path: str) -> bool:
    return state.version(path) != NEVER


def _set(state: ClusterState, path: str, data: bytes) -> _Guarded:
    """Replace the data of an element, or make it."""
    if _has(state, path):
        return (_version(path, state.version(path)),), (_put(path, data),)
    return (_absent(path),), (_create(b"BINARY", path, data),)


def _make(state: ClusterState, kind: bytes, path: str) -> _Guarded:
    """Make an element, unless it is there."""
    return ((), ()) if _has(state, path) else ((_absent(path),), (_create(kind, path),))


def _delete(state: ClusterState, path: str) -> _Guarded:
    if not _has(state, path):
        return (), ()
    return (_version(path, state.version(path)),), ((b"DELETE", path.encode()),)


def _put_map(
    state: ClusterState, path: str, data: bytes, checks: tuple[Words, ...], what: str
) -> Txn:
    guards = (_held(state), *checks, _version(path, state.version(path)))
    return Txn(what, guards, (_put(path, data),))


def _held(state: ClusterState) -> Words:
    assert state.token > NEVER, "nobody holds the lock"
    return (b"CHECK", ORCHESTRATOR.encode(), b"IFLOCK", state.token.text)


def _version(path: str, version: Version) -> Words:
    return (b"CHECK", path.encode(), b"CAS", version.text)


def _absent(path: str) -> Words:
    return (b"CHECK", path.encode(), b"ABSENT")


def _exists(path: str) -> Words:
    return (b"CHECK", path.encode(), b"EXISTS")


def _put(path: str, data: bytes) -> Words:
    return (b"PUT", path.encode(), data)


def _create(kind: bytes, path: str, *data: bytes) -> Words:
    return (b"CREATE", kind, b"PARENTS", path.encode(), *data)
