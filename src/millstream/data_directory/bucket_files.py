"""The directories of buckets: found, created and removed, and the content of their small files.

A bucket is a directory named by its uuid. It has `bucket.toml` (format, name, uuid, partitions,
created, perhaps purge_age_s, memory_quota_bytes, has_map, has_records and index_replicas), the
files of the engine, `map.json` if it was given a map, and `records.json` if it belongs to a
managed cluster. The name of a directory that is being created ends in `.creating`, of one that is
being removed in `.deleted`. The next start removes both.

Invariants:
1. A directory under its final name is complete, and durable once `make_directory` returns.
2. That a map, or records, are required is written after these, and before a new bucket gets its
   final name.
3. `bucket.toml` has a checksum and agrees with the inventory. A bucket that the inventory names is
   listed with its damage, whatever happened to its directory.

Elsewhere: the set of buckets (`databases.buckets`), the map's file (`data_directory.map_file`),
the log (`storage`).
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from millstream.data_directory.inventory import (
    LOCAL,
    LOG,
    MAP,
    RECORDS,
    Contents,
    Entry,
    accept_hint,
)
from millstream.data_directory.map_file import (
    MAP_FILE,
    RECORDS_FILE,
    AdoptedMap,
    PlacedMap,
    damaged,
    read_adopted,
    read_map,
    write_adopted,
    write_map,
)
from millstream.data_directory.small_files import FORMAT, as_text, read_toml, sealed
from millstream.errors import ConditionError, CorruptionError, MillstreamError
from millstream.kv.core.queue.low_points import PURGE_AGE_S
from millstream.model.bucket_names import (
    checked_bucket_name,
    checked_memory_quota,
    checked_partition_count,
)
from millstream.runtime.files import sync_directory, write_atomically
from millstream.storage.core.by_id import BY_ID_DAMAGED

__all__ = [
    "BUCKET_FILE",
    "BucketRecord",
    "clean_and_find",
    "find_adopted",
    "find_map",
    "find_records",
    "make_directory",
    "record_of",
    "refuse_other",
    "remove_directory",
    "store_adopted",
    "store_map",
    "store_record",
    "take_back_directory",
    "way_out",
]

_LOG = logging.getLogger(__name__)
BUCKET_FILE: Final = "bucket.toml"
_PARTS: Final = {"bad_map_file": MAP_FILE, "local_lost": LOCAL}
_UNFINISHED: Final = (".creating", ".deleted")


class BucketRecord(NamedTuple):
    """Content of bucket.toml; if damaged, from the inventory, else with the uuid as the name."""

    name: str
    uuid: str
    partitions: int
    created: str
    damage: str = ""
    purge_age_s: int = PURGE_AGE_S
    memory_quota_bytes: int | None = None
    """The quota of the bucket. None: the quota of the node."""
    has_map: bool = False
    """Whether a map is required; without this a map may exist."""
    index_replicas: bool = False
    """Whether copies that are not active are indexed too."""
    is_sealed: bool = True
    """Whether the file has a checksum; files of older versions have none."""
    has_records: bool = False
    """Whether adopted records of a managed cluster are required; without this they may exist."""

    @property
    def entry(self) -> Entry:
        """Return the inventory entry of a bucket without any parts."""
        return Entry(self.name, self.partitions, self.created)


def find_map(directory: Path, record: BucketRecord) -> PlacedMap | None:
    """Return the map of a bucket; None if it never had one. Blocks.

    Raises:
        CorruptionError: `bad_map_file`: it is damaged, or is missing.
        UsageError: `newer_format`.
        OSError: it cannot be read.
    """
    placed = read_map(directory, record.partitions)
    if placed is None and record.has_map:
        raise damaged(directory, "the file is missing")
    return placed


def find_adopted(directory: Path, record: BucketRecord) -> AdoptedMap | None:
    """Return what a bucket has adopted; None if it belongs to no managed cluster. Blocks.

    Raises as `find_map`.
    """
    adopted = read_adopted(directory, record.partitions)
    if adopted is None and record.has_records:
        raise damaged(directory, "the file is missing", RECORDS_FILE)
    return adopted


def find_records(path: Path, contents: Contents = Contents()) -> list[BucketRecord]:  # noqa: B008 - immutable
    """Return the buckets in a directory, ordered by uuid; changes nothing.

    A bucket that the inventory names and that is missing, or whose bucket.toml is invalid, is
    returned with its damage.

    Raises:
        UsageError: `newer_format`.
        OSError: the directory cannot be read.
    """
    there = path.iterdir() if path.is_dir() else ()
    found = {one.name for one in there if one.suffix not in _UNFINISHED}
    records = []
    for uuid in sorted(found | contents.buckets.keys()):
        entry, directory = contents.buckets.get(uuid), path / uuid
        if entry is None and not (directory / BUCKET_FILE).is_file():
            _LOG.warning("%s is not a bucket and is ignored", directory)
            continue
        try:
            record = _read_record(directory, is_known=entry is not None)
            if entry is not None:
                _refuse_altered(directory, record, entry)
                record = record._replace(
                    has_map=record.has_map or MAP in entry.parts,
                    has_records=record.has_records or RECORDS in entry.parts,
                )
            records.append(record)
        except (CorruptionError, OSError) as error:
            name, partitions, created, *_ = entry or Entry(uuid, 0, "")
            records.append(BucketRecord(name, uuid, partitions, created, str(error)))
    return records


def clean_and_find(path: Path, contents: Contents = Contents()) -> list[BucketRecord]:  # noqa: B008 - immutable
    """Remove unfinished creations and removals, then do what `find_records` does. Blocks."""
    path.mkdir(exist_ok=True)
    for directory in path.iterdir():
        if directory.suffix in _UNFINISHED:
            shutil.rmtree(directory)
    return find_records(path, contents)


def way_out(directory: Path, error: Exception) -> str:
    """Return the hint how to continue after an error of a bucket's files, to end its message."""
    if not isinstance(error, CorruptionError) or error.code in ("bad_file", BY_ID_DAMAGED):
        return ""  # the error has the hint
    part = directory / _PARTS.get(error.code, LOG)
    return accept_hint(part, directory.parent.parent)


def _refuse_altered(directory: Path, record: BucketRecord, entry: Entry) -> None:
    """Reject a valid file that contradicts the inventory."""
    if record.entry != entry._replace(parts=frozenset(), log_id=""):
        raise CorruptionError(
            f"{directory / BUCKET_FILE} says {record.name!r}, {record.partitions} partitions, "
            f"made {record.created}; the inventory says {entry.name!r}, {entry.partitions}, "
            f"{entry.created}{_hint(directory / BUCKET_FILE)}",
            code="bad_file",
        )


def _hint(path: Path) -> str:
    """Return the hint for damage of a bucket's directory or its file."""
    above = path.parent if path.name != BUCKET_FILE else path.parent.parent
    return accept_hint(path, above.parent)


def _read_record(directory: Path, *, is_known: bool) -> BucketRecord:
    file = directory / BUCKET_FILE
    if is_known and not directory.is_dir():
        raise CorruptionError(
            f"{directory} is missing, and with it all of the bucket; restore it from a backup or "
            f"a replica{_hint(directory)}",
            code="bad_file",
        )
    if is_known and not file.is_file():
        raise CorruptionError(f"{file} is missing{_hint(file)}", code="bad_file")
    content = read_toml(file, _hint(file))
    if is_known and content.get("sealed") is not True:
        raise CorruptionError(f"{file} has lost its checksum{_hint(file)}", code="bad_file")
    try:
        record = record_of(content)
    except (KeyError, ValueError, MillstreamError) as error:
        raise CorruptionError(
            f"{file} is damaged: {error}{_hint(file)}", code="bad_file"
        ) from error
    if record.uuid != directory.name:
        raise CorruptionError(
            f"{directory} holds the bucket {record.uuid}: a copied directory keeps its name",
            code="bad_file",
        )
    return record


def record_of(content: Mapping[str, object]) -> BucketRecord:
    """Return the content of the file; raises KeyError, ValueError or MillstreamError if bad."""
    purge_age_s = int(str(content.get("purge_age_s", PURGE_AGE_S)))
    if purge_age_s < 0:
        raise ValueError(f"purge_age_s is {purge_age_s}")
    quota = content.get("memory_quota_bytes")
    return BucketRecord(
        checked_bucket_name(str(content["name"])),
        str(content["uuid"]),
        checked_partition_count(int(str(content["partitions"]))),
        as_text(content["created"]),
        "",
        purge_age_s,
        None if quota is None else checked_memory_quota(int(str(quota))),
        content.get("has_map") is True,
        content.get("index_replicas") is True,
        content.get("sealed") is True,
        content.get("has_records") is True,
    )


def make_directory(
    path: Path, record: BucketRecord, placed: PlacedMap | AdoptedMap | None
) -> None:
    """Create a bucket's directory durably; `record` says whether it has a map. Blocks."""
    assert record.has_map == isinstance(placed, PlacedMap)
    assert record.has_records == isinstance(placed, AdoptedMap)
    directory = path / f"{record.uuid}.creating"
    directory.mkdir()
    if isinstance(placed, AdoptedMap):
        write_adopted(directory, placed)
    elif placed is not None:
        write_map(directory, placed)
    write_atomically(directory / BUCKET_FILE, _record_as_toml(record))
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
    if record.has_records:
        content += "has_records = true\n"
    if record.index_replicas:
        content += "index_replicas = true\n"
    return sealed(content)


def store_map(directory: Path, record: BucketRecord, placed: PlacedMap) -> None:
    """Write a bucket's map durably. Blocks; raises OSError."""
    write_map(directory, placed)
    if not record.has_map:
        write_atomically(directory / BUCKET_FILE, _record_as_toml(record._replace(has_map=True)))


def store_adopted(directory: Path, record: BucketRecord, adopted: AdoptedMap) -> None:
    """Write what a bucket has adopted durably. Blocks; raises OSError."""
    write_adopted(directory, adopted)
    if not record.has_records:
        content = _record_as_toml(record._replace(has_records=True))
        write_atomically(directory / BUCKET_FILE, content)


def store_record(path: Path, record: BucketRecord) -> None:
    """Write bucket.toml again durably. Blocks; raises OSError."""
    write_atomically(path / record.uuid / BUCKET_FILE, _record_as_toml(record))


def take_back_directory(path: Path, record: BucketRecord) -> None:
    """Undo a bucket's creation; what cannot be removed now is removed at the next start."""
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


def refuse_other(record: BucketRecord, bucket_uuid: str, partitions: int) -> None:
    """Reject a map of another bucket.

    Raises:
        ConditionError: `other_uuid`, `other_partitions`.
    """
    if record.uuid != bucket_uuid:
        raise ConditionError(
            f"bucket {record.name!r} has the uuid {record.uuid} here, not {bucket_uuid}: copies "
            "are of one bucket; delete it here if it may go",
            code="other_uuid",
        )
    if record.partitions != partitions:
        raise ConditionError(
            f"bucket {record.name!r} has {record.partitions} partitions here, not {partitions}",
            code="other_partitions",
        )
