"""The file `map.json` of a bucket: its newest map, and the name of this node in it.

Content: {"format", "crc32", "map": {"this", "revision", "nodes", "rows"}}; the checksum is that of
the map as compact JSON in this order.

Invariants:
1. A map is durable here before the bucket uses it.
2. An altered file is damage; it never counts as a missing map. A bucket that wrongly believes to
   be on one node only would make its copies active by itself.

Elsewhere: the content of a map (`model.bucket_map`), whether a file is required
(`databases.buckets`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, NamedTuple
from zlib import crc32

import msgspec

from millstream.errors import ConditionError, CorruptionError, MillstreamError, UsageError
from millstream.model.bucket_map import BucketMap, bucket_map_from_json, bucket_map_to_json
from millstream.runtime.files import write_atomically

__all__ = ["MAP_FILE", "PlacedMap", "damaged", "is_newer", "read_map", "write_map"]

MAP_FILE: Final = "map.json"
_FORMAT: Final = 1


class PlacedMap(NamedTuple):
    """A map and the name of this node in it."""

    bucket_map: BucketMap
    node_name: str


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
        if file["format"] > _FORMAT:
            raise UsageError(
                f"{path} has format {file['format']}; this Millstream knows formats up to "
                f"{_FORMAT}: use the newer Millstream that wrote it",
                code="newer_format",
            )
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


def damaged(directory: Path, reason: str) -> CorruptionError:
    """Return the error of a bucket whose map cannot be read."""
    return CorruptionError(
        f"{directory / MAP_FILE} is damaged: {reason}; whether other nodes have copies is not "
        "known: PUT the bucket's map again",
        code="bad_map_file",
    )


def _checksum(content: object) -> int:
    return crc32(msgspec.json.encode(content))


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
