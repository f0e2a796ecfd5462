"""Requests to make, change and drop buckets.

Invariants:
1. A bucket gets its rows, its owners of the index and its name in one transaction.
2. A bucket has at most as many replicas as there are other data nodes: empty places would count
   for majorities that nobody can reach. With `strict` it is refused, otherwise the number is
   lowered, and the answer says so.
3. Names, numbers of partitions and quotas are checked here, before any node has to refuse them.

Elsewhere: the other requests (`cluster.core.requests`), how a dropped bucket ends
(`cluster.core.dropping`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from millstream.cluster.core import writes
from millstream.cluster.core.elements import Bucket, ClusterState, Request, name_path
from millstream.cluster.core.members import is_done, make_plan
from millstream.cluster.core.memory import Memory
from millstream.cluster.core.planner import plan_index, plan_rows
from millstream.cluster.core.progress import moves_of
from millstream.cluster.core.writes import Txn
from millstream.errors import ConditionError, UsageError
from millstream.model.bucket_map import COPIES_MAX
from millstream.model.bucket_names import (
    checked_bucket_name,
    checked_memory_quota,
    checked_partition_count,
)
from millstream.model.cluster_maps import DataMap, DataRecord, IndexMap, IndexRecord, MapKey
from millstream.model.limits import PARTITIONS_DEFAULT
from millstream.vsr.core.versions import NEVER

__all__ = [
    "REPLICAS_DEFAULT",
    "BucketSettings",
    "CreateBucketArgs",
    "DropBucketArgs",
    "SetBucketArgs",
    "create_bucket",
    "drop_bucket",
    "set_bucket",
]

REPLICAS_DEFAULT: Final = 1
"""Copies besides the active one, of a bucket that is made without a number."""
_UUID: Final = re.compile(r"[0-9a-f]{32}")


class BucketSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of a bucket, the same on all nodes."""

    memory_quota_bytes: int | None = None
    """On each node; None: the node's own."""

    def __post_init__(self) -> None:
        if self.memory_quota_bytes is not None:
            checked_memory_quota(self.memory_quota_bytes)


class CreateBucketArgs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of `create_bucket`."""

    name: str
    partitions: int = PARTITIONS_DEFAULT
    replicas: int = REPLICAS_DEFAULT
    index_replicas: int = 0
    settings: BucketSettings = BucketSettings()
    uuid: str = ""
    """32 hex digits; empty: made from the id of the request."""
    strict: bool = False


class SetBucketArgs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of `set_bucket`; what is missing stays."""

    name: str
    replicas: int | None = None
    index_replicas: int | None = None
    settings: BucketSettings | None = None
    strict: bool = False


class DropBucketArgs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of `drop_bucket`: one of them."""

    name: str = ""
    uuid: str = ""


def create_bucket(
    state: ClusterState, request: Request, args: CreateBucketArgs
) -> tuple[Txn | None, dict[str, Any]]:
    """Return the change and the answer of `create_bucket`.

    Raises:
        UsageError: `bad_bucket_name`, `bad_partitions`, `bad_memory_quota`, `bad_request`,
            `too_few_nodes`.
        ConditionError: `bucket_exists`, `bucket_dropping`.
    """
    name, uuid = checked_bucket_name(args.name), args.uuid or _uuid_of(request.id)
    if not _UUID.fullmatch(uuid):
        raise UsageError(f"{uuid!r} is no uuid: 32 hex digits are wanted", code="bad_bucket_uuid")
    checked_partition_count(args.partitions)
    _check_copies(args.replicas, args.index_replicas)
    if uuid in state.buckets and state.buckets[uuid].name == name:
        return None, _described(uuid, state.buckets[uuid], args.replicas)
    if uuid in state.buckets:
        raise ConditionError(f"there is a bucket of uuid {uuid}", code="bucket_exists")
    if state.version(name_path(name)) != NEVER:
        _refuse_name(state, name)
    replicas = _replicas(state, args.replicas, is_strict=args.strict)
    settings = _plain(args.settings)
    bucket = Bucket(name, args.partitions, replicas, args.index_replicas, settings)
    data_map, index_map = _first_maps(state, uuid, bucket)
    txn = writes.create_bucket(state, uuid, bucket, data_map, index_map)
    return txn, _described(uuid, bucket, args.replicas)


def _refuse_name(state: ClusterState, name: str) -> None:
    found = state.bucket_named(name)
    if found is not None and state.buckets[found].state == "dropping":
        raise ConditionError(
            f"bucket {name!r} is being dropped: its name is free once no node has any of it",
            code="bucket_dropping",
        )
    raise ConditionError(f"bucket {name!r} exists already", code="bucket_exists")


def _first_maps(state: ClusterState, uuid: str, bucket: Bucket) -> tuple[DataMap, IndexMap]:
    """Return the maps of a new bucket, in which nobody serves yet.

    Raises:
        UsageError: `too_few_nodes`: there is no data node.
    """
    zones, owners = state.members("data"), sorted(state.members("index"))
    if not zones:
        raise UsageError("the cluster has no data node: add one", code="too_few_nodes")
    assert state.cluster is not None, "a bucket without a cluster"
    key = MapKey(state.cluster.generation, 1)
    rows = plan_rows([()] * bucket.partitions, zones, bucket.replicas)
    is_near = set(zones) <= set(owners)
    actives = tuple(row[0] for row in rows) if is_near else ()
    parts = plan_index([None] * bucket.partitions, owners, actives)
    return (
        DataMap(key, uuid, tuple(DataRecord(key, None, 0, (row,)) for row in rows)),
        IndexMap(key, uuid, tuple(IndexRecord(key, owner) for owner in parts)),
    )


def set_bucket(
    state: ClusterState,
    request: Request,
    args: SetBucketArgs,
    number: int,
    unix_ms: int,
    memory: Memory | None = None,
) -> tuple[Txn | None, dict[str, Any]]:
    """Return the change and the answer of `set_bucket`: also a plan, if copies have to move.

    Args:
        state: as read, without buckets that are being dropped.
        request: for who asked.
        args: of it.
        number: id of a new plan.
        unix_ms: now.
        memory: with the last reports.

    Raises:
        UsageError: `bad_request`, `too_few_nodes`, `bad_memory_quota`.
        ConditionError: `bucket_not_found`.
    """
    uuid = state.bucket_named(args.name)
    if uuid is None:
        raise ConditionError(f"no bucket {args.name!r}", code="bucket_not_found")
    before = state.buckets[uuid]
    wanted = before.replicas if args.replicas is None else args.replicas
    parts = before.index_replicas if args.index_replicas is None else args.index_replicas
    _check_copies(wanted, parts)
    replicas = wanted
    if args.replicas is not None:
        replicas = _replicas(state, wanted, is_strict=args.strict)
    settings = before.settings
    if args.settings is not None:
        settings = before.settings | _plain(args.settings)
    bucket = replace(before, replicas=replicas, index_replicas=parts, settings=settings)
    after = dataclasses.replace(state, buckets={**state.buckets, uuid: bucket})
    plan = make_plan(after, "rebalance", number, unix_ms, request.by)
    answer = _described(uuid, bucket, wanted)
    if plan is not None:
        answer["moves"] = moves_of(after, plan, memory)
    if bucket == before:
        return None, answer
    is_moved = bucket.replicas != before.replicas and plan is not None
    if plan is None or not is_moved or (state.plan is None and is_done(after, plan)):
        plan = state.plan
    return writes.put_bucket(state, uuid, bucket, plan), answer


def drop_bucket(state: ClusterState, args: DropBucketArgs) -> tuple[Txn | None, dict[str, Any]]:
    """Return the change and the answer of `drop_bucket`.

    Raises:
        UsageError: `bad_request`: neither a name nor a uuid is given.
        ConditionError: `bucket_not_found`; a bucket that is named by its uuid is dropped already.
    """
    if bool(args.name) == bool(args.uuid):
        raise UsageError("name the bucket, or give its uuid", code="bad_request")
    uuid = args.uuid or state.bucket_named(args.name)
    if uuid is None:
        raise ConditionError(f"no bucket {args.name!r}", code="bucket_not_found")
    bucket = state.buckets.get(uuid)
    answer = {"uuid": uuid, "name": args.name if bucket is None else bucket.name}
    if bucket is None or bucket.state == "dropping":
        return None, answer
    return writes.drop_bucket(state, uuid), answer


def _uuid_of(request: str) -> str:
    """Return the uuid of the bucket that a request makes, however often it is repeated."""
    if _UUID.fullmatch(request):
        return request
    return hashlib.sha256(request.encode()).hexdigest()[:32]


def _check_copies(replicas: int, index_replicas: int) -> None:
    if not 0 <= replicas < COPIES_MAX:
        raise UsageError(
            f"{replicas} replicas: 0 to {COPIES_MAX - 1} are possible", code="bad_request"
        )
    if not 0 <= index_replicas <= 1:
        raise UsageError(f"{index_replicas} index replicas: 0 or 1", code="bad_request")


def _replicas(state: ClusterState, wanted: int, *, is_strict: bool) -> int:
    """Return how many replicas the data nodes allow.

    Raises:
        UsageError: `too_few_nodes`: fewer than wanted, and `is_strict`.
    """
    most = max(0, len(state.members("data")) - 1)
    if is_strict and wanted > most:
        raise UsageError(
            f"{wanted} replicas need {wanted + 1} data nodes, there are {most + 1}: add nodes, or "
            f"ask for {most}",
            code="too_few_nodes",
        )
    return min(wanted, most)


def _plain(settings: BucketSettings) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(settings)
    return {name: value for name, value in plain.items() if value is not None}


def _described(uuid: str, bucket: Bucket, wanted: int) -> dict[str, Any]:
    return {
        "uuid": uuid,
        "name": bucket.name,
        "partitions": bucket.partitions,
        "replicas": bucket.replicas,
        "replicas_wanted": wanted,
        "index_replicas": bucket.index_replicas,
        "settings": bucket.settings,
    }
