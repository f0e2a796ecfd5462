"""The files `map.json` and `records.json` of a bucket: which nodes have copies of its partitions.

`map.json` has the newest map that was made by hand, and the name of this node in it:
{"format", "crc32", "map": {"this", "revision", "nodes", "rows"}}; the checksum is that of the map
as compact JSON in this order.

`records.json` is that of a bucket in a managed cluster. It has the newest whole map, the addresses
of nodes, and the adopted records that are newer than the map:
{"format", "crc32", "adopted": {"cluster", "this", "nodes", "map", "newer"}}; the checksum is that
of the bytes of "adopted". With this file `map.json` counts no more.

Invariants:
1. A map or a record is durable here before the bucket uses it.
2. An altered file is damage; it never counts as a missing one. A bucket that wrongly believes to
   be on one node only would make its copies active by itself.
3. No adopted record is older than that of the whole map beside it.

Elsewhere: the content of maps (`model.bucket_map`, `model.cluster_maps`), whether a file is
required (`databases.buckets`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, NamedTuple
from zlib import crc32

import msgspec

from millstream.errors import ConditionError, CorruptionError, MillstreamError, UsageError
from millstream.model.bucket_map import (
    BucketMap,
    NodeAddress,
    bucket_map_from_json,
    bucket_map_to_json,
)
from millstream.model.cluster_maps import (
    DataMap,
    DataRecord,
    bucket_map_of,
    data_map_from_json,
    data_map_to_json,
)
from millstream.runtime.files import write_atomically

__all__ = [
    "MAP_FILE",
    "RECORDS_FILE",
    "AdoptedMap",
    "PlacedMap",
    "damaged",
    "is_newer",
    "read_adopted",
    "read_map",
    "refuse_managed",
    "write_adopted",
    "write_map",
]

MAP_FILE: Final = "map.json"
RECORDS_FILE: Final = "records.json"
_FORMAT: Final = 1


class PlacedMap(NamedTuple):
    """A map and the name of this node in it."""

    bucket_map: BucketMap
    node_name: str


class AdoptedMap(NamedTuple):
    """What a node has adopted of a bucket in a managed cluster."""

    cluster: str
    """Uuid of the cluster."""
    node_name: str
    """Id of this node."""
    nodes: tuple[NodeAddress, ...]
    """Named by id."""
    data_map: DataMap
    """The newest whole map."""
    records: tuple[DataRecord, ...]
    """By partition, none older than that of the map."""

    @property
    def bucket_map(self) -> BucketMap:
        """Return the map that clients are shown, made anew."""
        return bucket_map_of(self.data_map, {node.name: node for node in self.nodes})


class _AdoptedForm(msgspec.Struct, frozen=True):
    cluster: str
    this: str
    nodes: tuple[NodeAddress, ...]
    map: msgspec.Raw
    newer: dict[int, DataRecord]


class _AdoptedFile(msgspec.Struct, frozen=True):
    format: int
    crc32: int
    adopted: msgspec.Raw


def write_map(directory: Path, placed: PlacedMap) -> None:
    """Replace a bucket's map durably. Blocks; raises OSError."""
    content = {"this": placed.node_name, **bucket_map_to_json(placed.bucket_map)}
    file = {"format": _FORMAT, "crc32": _checksum(content), "map": content}
    write_atomically(directory / MAP_FILE, msgspec.json.encode(file) + b"\n")


def read_map(directory: Path, partition_count: int) -> PlacedMap | None:
    """Return a bucket's map; None if there is no file. Blocks.

    Raises:
        CorruptionError: `bad_map_file`.
        UsageError: `newer_format`.
        OSError: it cannot be read.
    """
    path = directory / MAP_FILE
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        file: Any = msgspec.json.decode(data)
        _refuse_newer_format(path, file["format"])
        content = file["map"]
        is_whole = isinstance(content, dict) and file["crc32"] == _checksum(content)
        if not is_whole or file["format"] != _FORMAT:
            raise ValueError("its checksum is another")
        placed = PlacedMap(bucket_map_from_json(content), content["this"])
        if len(placed.bucket_map.rows) != partition_count:
            raise ValueError(f"it has {len(placed.bucket_map.rows)} rows")
        if not placed.bucket_map.has_node(placed.node_name):
            raise ValueError(f"it does not list this node, {placed.node_name!r}")
    except (msgspec.DecodeError, KeyError, TypeError, ValueError, MillstreamError) as error:
        if isinstance(error, UsageError) and error.code == "newer_format":
            raise
        raise damaged(directory, str(error)) from error
    return placed


def write_adopted(directory: Path, adopted: AdoptedMap) -> None:
    """Replace what a bucket has adopted, durably. Blocks; raises OSError."""
    pairs = zip(adopted.data_map.records, adopted.records, strict=True)
    newer = {p: record for p, (mapped, record) in enumerate(pairs) if record.at > mapped.at}
    form = _AdoptedForm(
        adopted.cluster, adopted.node_name, adopted.nodes,
        msgspec.Raw(data_map_to_json(adopted.data_map)), newer,
    )  # fmt: skip
    content = msgspec.json.encode(form)
    file = _AdoptedFile(_FORMAT, crc32(content), msgspec.Raw(content))
    write_atomically(directory / RECORDS_FILE, msgspec.json.encode(file) + b"\n")


def read_adopted(directory: Path, partition_count: int) -> AdoptedMap | None:
    """Return what a bucket has adopted; None if there is no file. Blocks.

    Raises:
        CorruptionError: `bad_map_file`.
        UsageError: `newer_format`.
        OSError: it cannot be read.
    """
    path = directory / RECORDS_FILE
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        _refuse_newer_format(path, msgspec.json.decode(data)["format"])
        file = msgspec.json.decode(data, type=_AdoptedFile)
        if file.crc32 != crc32(bytes(file.adopted)) or file.format != _FORMAT:
            raise ValueError("its checksum is another")
        form = msgspec.json.decode(file.adopted, type=_AdoptedForm)
        data_map = data_map_from_json(bytes(form.map))
        if len(data_map.records) != partition_count:
            raise ValueError(f"it has {len(data_map.records)} records")
        records = list(data_map.records)
        for partition, record in form.newer.items():
            records[partition] = record
    except (msgspec.MsgspecError, LookupError, TypeError, ValueError, CorruptionError) as error:
        raise damaged(directory, str(error), RECORDS_FILE) from error
    return AdoptedMap(form.cluster, form.this, form.nodes, data_map, tuple(records))


def _refuse_newer_format(path: Path, found: int) -> None:
    if found > _FORMAT:
        raise UsageError(
            f"{path} has format {found}; this Millstream knows formats up to {_FORMAT}: use the "
            "newer Millstream that wrote it",
            code="newer_format",
        )


def damaged(directory: Path, reason: str, file: str = MAP_FILE) -> CorruptionError:
    """Return the error of a bucket whose map or records cannot be read."""
    if file == RECORDS_FILE:
        way = "the node takes the map of the cluster again once it reaches the cluster's nodes"
    else:
        way = "PUT the bucket's map again"
    return CorruptionError(
        f"{directory / file} is damaged: {reason}; whether other nodes have copies is not known: "
        f"{way}",
        code="bad_map_file",
    )


def _checksum(content: object) -> int:
    return crc32(msgspec.json.encode(content))


def refuse_managed(name: str) -> ConditionError:
    """Return the error of a map made by hand for a bucket of a managed cluster."""
    return ConditionError(
        f"bucket {name!r} belongs to a managed cluster, which makes its maps: use `millstream "
        "cluster rebalance` or `millstream cluster failover`",
        code="managed",
    )


def is_newer(present: BucketMap, node_name: str, placed: PlacedMap) -> bool:
    """Return False for the same map; reject a map that must not replace the current one.

    Raises:
        ConditionError: `other_node_name`, `older_map`, `other_map`.
    """
    given = placed.bucket_map
    if placed.node_name != node_name:
        raise ConditionError(
            f"the map calls this node {placed.node_name}, until now it was {node_name}: a node "
            "keeps its name",
            code="other_node_name",
        )
    if given.revision < present.revision:
        raise ConditionError(
            f"the map has revision {given.revision}, here is {present.revision} already",
            code="older_map",
        )
    if given.revision == present.revision and given != present:
        raise ConditionError(
            f"here is another map of revision {present.revision}: give yours a larger one",
            code="other_map",
        )
    return given.revision > present.revision
