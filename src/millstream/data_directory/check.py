"""Offline check of a data directory: every record of every log is read and verified.

The check compares records with checksums and indexes, indexes with records, the versions of each
key with each other and with the low points, by-id with the log, and the log with its receipt. It
verifies the checksums of small files, local documents and attachments, and compares all of them
with the inventory. It verifies the nodes of view indexes and their consistency; on a node that
only indexes, this is all. For each coordination group it verifies what the superblock names.

Invariants:
1. Nothing in the directory is changed except the process id in its lock file. A torn tail is
   reported and left for the next start to cut.
2. A directory that a server has open is not checked.
3. Damage of one part does not stop the check of the others. Its report says how to continue with
   what is left.

Elsewhere: continuing (`data_directory.acceptance`), checks of a log (`storage.core.log_check`), of
an index (`views.core.index.index_check`), of a coordination group
(`coordination.core.pool.group_check`).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import lmdb

from millstream.access.users import UserStore
from millstream.cluster.cluster_state_files import FOLLOWED, find_learned
from millstream.coordination.aio.node_files_check import NodeFilesCheck, check_node_files
from millstream.coordination.core.pool.file_format import Phase
from millstream.coordination.core.pool.group_check import (
    GROUPS_FOLDER,
    REACHED,
    REMOVED,
    RESTORED,
    GroupCheck,
    Known,
    check_group,
)
from millstream.data_directory.bucket_files import (
    BucketRecord,
    find_adopted,
    find_map,
    find_records,
    way_out,
)
from millstream.data_directory.inventory import LOCAL, Contents, Entry, Inventory
from millstream.data_directory.ownership import (
    holds_a_node,
    other_node,
    read_node_file,
    refuse_lost_coordination,
)
from millstream.data_directory.small_files import FORMAT
from millstream.data_directory.unchanged_disk import UnchangedDisk
from millstream.documents.stored import blobs_of
from millstream.errors import CorruptionError, MillstreamError, UsageError
from millstream.kv.aio.documents.blobs import damaged_blobs
from millstream.kv.aio.documents.local_store import check_local
from millstream.runtime.process import DirectoryLock
from millstream.storage.aio.by_id import LmdbByIdMap
from millstream.storage.core.by_id import ById
from millstream.storage.core.log_check import LogCheck, check_log
from millstream.storage.core.receipt import RECEIPT_NAME
from millstream.storage.core.segment_log import LogSizes, SegmentLog
from millstream.views.aio.indexing.index_check import check_indexes
from millstream.views.core.index.index_check import IndexCheck
from millstream.vsr.core.entries import ID_BYTES

__all__ = ["BucketCheck", "DirectoryCheck", "check_directory"]

_GROUP: Final = re.compile(f"[0-9a-f]{{{2 * ID_BYTES}}}(?:{REMOVED}|{RESTORED})*")
_SEGMENT: Final = re.compile(r"[0-9]{8}\.seg")
_UNREADABLE: Final = (AssertionError, ValueError, LookupError, TypeError, struct.error, lmdb.Error)
"""Errors that reading altered files may raise."""


@dataclass(slots=True)
class BucketCheck:
    """Result for one bucket."""

    name: str
    uuid: str
    partitions: int
    log: LogCheck = field(default_factory=LogCheck)
    torn_bytes: int = 0
    """Bytes after the last whole record. The next start cuts them; no acknowledged data is in
    them."""
    leftover_files: int = 0
    """Files that a compaction could not remove; the next start does."""
    map_revision: int = 0
    """0: it has no map, this node is alone."""
    node_name: str = ""
    """Name of this node in the map."""
    indexes: list[IndexCheck] = field(default_factory=list)
    is_followed: bool = False
    """The documents are on other nodes; this node only indexes the bucket."""
    damage: str = ""
    """Damage of its documents; empty if there is none."""
    damaged_attachments: int = 0
    """Files that are missing, or whose bytes do not match their name."""

    @property
    def is_sound(self) -> bool:
        """Return whether neither documents nor indexes are damaged."""
        is_whole = not self.damage and not self.damaged_attachments
        return is_whole and not any(index.damage for index in self.indexes)

    def total(self, name: str) -> int:
        """Return the sum of a value over all partitions."""
        return sum(getattr(partition, name) for partition in self.log.partitions)


@dataclass(slots=True)
class DirectoryCheck:
    """Result for a data directory."""

    uuid: str
    format: int
    users: int
    buckets: list[BucketCheck]
    groups: list[GroupCheck] = field(default_factory=list)
    coordination: NodeFilesCheck | None = None
    """None: the node has never taken part in coordination."""
    damage: list[str] = field(default_factory=list)
    """Damage of the node's own files, which belong to no part."""

    @property
    def is_sound(self) -> bool:
        """Return whether no damage was found."""
        is_one_sound = self.coordination is None or self.coordination.is_sound
        if self.damage or not is_one_sound:
            return False
        are_buckets = all(bucket.is_sound for bucket in self.buckets)
        return are_buckets and all(group.is_sound for group in self.groups)


def check_directory(
    path: Path, progress: Callable[[BucketCheck, float], None] = lambda *_: None
) -> DirectoryCheck:
    """Check a data directory that no server uses; reads all of it.

    Args:
        path: the data directory.
        progress: called with the current bucket and the share of its log that was checked, 0 to 1.

    Raises:
        UsageError: `no_data_directory`, `newer_format`.
        UnavailableError: `directory_in_use`.
        OSError: it cannot be read.
    """
    if not path.is_dir() or not holds_a_node(path):
        raise UsageError(f"{path} is no data directory of Millstream", code="no_data_directory")
    lock = DirectoryLock(path / "lock", patience_s=0)
    try:
        found = DirectoryCheck("", FORMAT, 0, [])
        contents = _check_own_files(path, found)
        for record in find_records(path / "buckets", contents):
            bucket = BucketCheck(record.name, record.uuid, record.partitions, damage=record.damage)
            progress(bucket, 0.0)
            directory, entry = path / "buckets" / record.uuid, contents.buckets.get(record.uuid)
            if not record.damage:
                entry = entry or record.entry
                _check_bucket(directory, record, entry, bucket, partial(progress, bucket))
            bucket.indexes = check_indexes(directory / "indexes")
            found.buckets.append(bucket)
        for folder, learned in find_learned(path / FOLLOWED):
            bucket = BucketCheck(learned.name, learned.uuid, learned.partitions, is_followed=True)
            progress(bucket, 0.0)
            bucket.indexes = check_indexes(folder / "indexes")
            found.buckets.append(bucket)
        found.coordination, found.groups = _check_coordination(path / GROUPS_FOLDER)
        return found
    finally:
        lock.release()


def _check_own_files(path: Path, found: DirectoryCheck) -> Contents:
    """Check the files that belong to the node itself; return the inventory."""
    contents, has_inventory = Contents(), False
    try:
        found.uuid, has_inventory = read_node_file(path)
    except (CorruptionError, OSError) as error:
        found.damage.append(str(error))
        has_inventory = Inventory.is_begun_in(path)
    inventory = Inventory(path)
    try:
        contents = inventory.read(is_expected=has_inventory)
        if found.uuid and has_inventory and contents.uuid != found.uuid:
            found.damage.append(other_node(path, found.uuid))
        refuse_lost_coordination(path, contents)
    except (CorruptionError, OSError) as error:
        found.damage.append(str(error))
    try:
        note = inventory if contents != Contents() else None
        found.users = len(UserStore(path / "users.json", note=note).names)
    except (CorruptionError, OSError) as error:
        found.damage.append(str(error))
    return contents


def _check_bucket(
    path: Path,
    record: BucketRecord,
    entry: Entry,
    found: BucketCheck,
    tell: Callable[[float], None],
) -> None:
    try:
        placed = find_adopted(path, record) or find_map(path, record)
        if placed is not None:
            found.map_revision, found.node_name = placed.bucket_map.revision, placed.node_name
        check_local(path / LOCAL, must_be_there=LOCAL in entry.parts, owner=record.uuid)
        found.damaged_attachments = damaged_blobs(path / "blobs")
        _check_log(path, found, tell, entry.log)
    except MillstreamError as error:
        found.damage = f"{error}{way_out(path, error)}"
    except (OSError, *_UNREADABLE) as error:
        found.damage = f"{path}: it cannot be read: {type(error).__name__} {error}"


def _check_log(
    path: Path, found: BucketCheck, tell: Callable[[float], None], log_id: bytes | None
) -> None:
    is_begun = log_id is not None
    if not is_begun and not (path / "log").is_dir():
        return  # created, and never started
    disk = UnchangedDisk(path / "log")
    has_segments = any(_SEGMENT.fullmatch(name) for name in disk.names())
    if not has_segments and not is_begun and RECEIPT_NAME not in disk.names():
        return
    log = SegmentLog(disk, LogSizes(), known_id=log_id)
    try:
        found.torn_bytes, found.leftover_files = log.cut_bytes, len(disk.leftovers)
        with _unchanged_by_id(path / "byid") as by_id:
            found.log = check_log(
                log, found.partitions, by_id, tell, lambda sidecar: bool(blobs_of(sidecar))
            )
        sidecars, found.log.sidecars = found.log.sidecars.values(), {}
        named = {name.hex() for sidecar in sidecars for name in blobs_of(sidecar)}
        blobs = path / "blobs"
        found.damaged_attachments += sum(not (blobs / n[:2] / n[2:]).exists() for n in named)
        if log.receipt.is_cut:
            raise CorruptionError(
                f"{disk.describe(RECEIPT_NAME)}: what says that the last stop was clean is not "
                "what was written; nothing else is lost, the next start begins a new history"
            )
    finally:
        log.close()


def _check_coordination(path: Path) -> tuple[NodeFilesCheck | None, list[GroupCheck]]:
    if not path.is_dir():
        return None, []
    own, known = check_node_files(path)
    folders = [one for one in sorted(path.iterdir()) if _GROUP.fullmatch(one.name)]
    noted = path.with_name(path.name + REACHED)
    reached = UnchangedDisk(noted) if noted.is_dir() else None
    found = [
        check_group(UnchangedDisk(one), one.name, known, reached)
        for one in folders
        if one.is_dir()
    ]
    return own, found + _missing(known, {one.name.removesuffix(RESTORED) for one in folders})


def _missing(known: Known | None, names: set[str]) -> list[GroupCheck]:
    """Return the groups that the node had and whose files are missing."""
    damage = (
        "its folder is gone, and with it what this member has promised: replace it in its group "
        "by a new one"
    )
    return [
        GroupCheck(group_id.hex(), damage=damage)
        for group_id, phase in (known.phases if known is not None else {}).items()
        if phase is not Phase.FORMATTING and group_id.hex() not in names
    ]


@contextmanager
def _unchanged_by_id(path: Path) -> Iterator[ById | None]:
    """Open a by-id map that a start would open; None if there is none."""
    opened = LmdbByIdMap.unchanged(path)
    try:
        yield None if opened is None else ById(opened)
    finally:
        if opened is not None:
            opened.close(is_durable=False)
