"""The directories of buckets: found, made and removed, and what their small files say.

A bucket is a directory named by its uuid, with `bucket.toml` (format, name, uuid, partitions,
created, perhaps purge_age_s, memory_quota_bytes, has_map and index_replicas) beside what the
engine keeps there, and with `map.json` if it has a map. A directory that is being made ends in
`.creating`, one that is going away in `.deleted`; the next start removes both.

Invariants:
1. A directory under its final name is whole, and durable once `make_directory` returns.
2. Whether there must be a map is said after there is one, and before a new bucket is there.

Elsewhere: which buckets there are (`node.buckets`), the map's file (`node.map_file`), the log
(`storage`).
"""

from __future__ import annotations

import logging
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from millstream.errors import CorruptionError, MillstreamError
from millstream.kv.core.low_points import PURGE_AGE_S
from millstream.node.bucket_names import (
    checked_bucket_name,
    checked_memory_quota,
    checked_partition_count,
)
from millstream.node.data_directory import FORMAT, as_text, read_toml
from millstream.node.map_file import PlacedMap, damaged, read_map, write_map
from millstream.runtime.files import sync_directory, write_atomically

__all__ = [
    "BucketRecord",
    "clean_and_find",
    "find_map",
    "find_records",
    "make_directory",
    "remove_directory",
    "store_map",
    "store_record",
    "take_back_directory",
]

_LOG = logging.getLogger(__name__)
_BUCKET_FILE: Final = "bucket.toml"
_UNFINISHED: Final = (".creating", ".deleted")


class BucketRecord(NamedTuple):
    """What bucket.toml says; if it is damaged, the uuid stands for the name too."""

    name: str
    uuid: str
    partitions: int
    created: str
    damage: str = ""
    purge_age_s: int = PURGE_AGE_S
    memory_quota_bytes: int | None = None
    """None: that of the node."""
    has_map: bool = False
    """Whether there must be a map; there may be one if not."""
    index_replicas: bool = False
    """Whether copies that are not active are indexed too."""


def find_map(directory: Path, record: BucketRecord) -> PlacedMap | None:
    """Return the map of a bucket, None if it never had one. Blocks.

    Raises:
        CorruptionError: `bad_map_file`: it is damaged, or was there once.
        UsageError: `newer_format`.
        OSError: it cannot be read.
    """
    placed = read_map(directory, record.partitions)
    if placed is None and record.has_map:
        raise damaged(directory, "the file is missing")
    return placed


def find_records(path: Path) -> list[BucketRecord]:
    """Return the buckets in a directory, in the order of their uuids; changes nothing.

    One whose bucket.toml cannot be read comes with its damage.

    Raises:
        UsageError: `newer_format`.
        OSError: the directory cannot be read.
    """
    records = []
    for directory in sorted(path.iterdir()):
        if directory.suffix in _UNFINISHED:
            continue
        if (directory / _BUCKET_FILE).is_file():
            try:
                records.append(_read_record(directory))
            except (CorruptionError, OSError) as error:
                records.append(BucketRecord(directory.name, directory.name, 0, "", str(error)))
        else:
            _LOG.warning("%s is no bucket and is left alone", directory)
    return records


def clean_and_find(path: Path) -> list[BucketRecord]:
    """Do what `find_records` does, once what was being made or removed is gone. Blocks."""
    path.mkdir(exist_ok=True)
    for directory in path.iterdir():
        if directory.suffix in _UNFINISHED:
            shutil.rmtree(directory)
    return find_records(path)


def _read_record(directory: Path) -> BucketRecord:
    content = read_toml(directory / _BUCKET_FILE)
    try:
        name, partitions = str(content["name"]), int(str(content["partitions"]))
        purge_age_s = int(str(content.get("purge_age_s", PURGE_AGE_S)))
        created = as_text(content["created"])
        quota = content.get("memory_quota_bytes")
        record = BucketRecord(
            name, str(content["uuid"]), partitions, created, "", purge_age_s,
            None if quota is None else checked_memory_quota(int(str(quota))),
            content.get("has_map") is True, content.get("index_replicas") is True,
        )  # fmt: skip
        if purge_age_s < 0:
            raise ValueError(f"purge_age_s is {purge_age_s}")
        checked_bucket_name(record.name)
        checked_partition_count(record.partitions)
    except (KeyError, ValueError, MillstreamError) as error:
        raise CorruptionError(
            f"{directory / _BUCKET_FILE} is damaged: {error}", code="bad_file"
        ) from error
    if record.uuid != directory.name:
        raise CorruptionError(
            f"{directory} holds the bucket {record.uuid}: a copied directory keeps its name",
            code="bad_file",
        )
    return record


def make_directory(path: Path, record: BucketRecord, placed: PlacedMap | None) -> None:
    """Make a bucket's directory, durably; with a map `record.has_map` is true. Blocks."""
    assert record.has_map == (placed is not None)
    directory = path / f"{record.uuid}.creating"
    directory.mkdir()
    if placed is not None:
        write_map(directory, placed)
    write_atomically(directory / _BUCKET_FILE, _record_as_toml(record))
    directory.rename(path / record.uuid)
    sync_directory(path)


def _record_as_toml(record: BucketRecord) -> bytes:
    content = (
        f'format = {FORMAT}\nname = "{record.name}"\nuuid = "{record.uuid}"\n'
        f"partitions = {record.partitions}\ncreated = {record.created}\n"
    )
    if record.purge_age_s != PURGE_AGE_S:
        content += f"purge_age_s = {record.purge_age_s}\n"
    if record.memory_quota_bytes is not None:
        content += f"memory_quota_bytes = {record.memory_quota_bytes}\n"
    if record.has_map:
        content += "has_map = true\n"
    if record.index_replicas:
        content += "index_replicas = true\n"
    return content.encode()


def store_map(directory: Path, record: BucketRecord, placed: PlacedMap) -> None:
    """Write a bucket's map, durably. Blocks; raises OSError."""
    write_map(directory, placed)
    if not record.has_map:
        write_atomically(directory / _BUCKET_FILE, _record_as_toml(record._replace(has_map=True)))


def store_record(path: Path, record: BucketRecord) -> None:
    """Write what bucket.toml says anew, durably. Blocks; raises OSError."""
    write_atomically(path / record.uuid / _BUCKET_FILE, _record_as_toml(record))


def take_back_directory(path: Path, record: BucketRecord) -> None:
    """Remove what was made of a bucket; what cannot be removed now is at the next start."""
    made = path / record.uuid
    if made.is_dir():
        with suppress(OSError):
            made.rename(path / f"{record.uuid}.deleted")
    for suffix in _UNFINISHED:
        shutil.rmtree(path / f"{record.uuid}{suffix}", ignore_errors=True)


def remove_directory(path: Path, record: BucketRecord) -> None:
    """Remove a bucket, also one whose removal failed half way. Blocks; raises OSError."""
    doomed = path / f"{record.uuid}.deleted"
    if (path / record.uuid).is_dir():
        (path / record.uuid).rename(doomed)
    sync_directory(path)
    if doomed.is_dir():
        shutil.rmtree(doomed)
