"""Offline verification of a data directory: every record of every log is read and checked.

Records against checksums and indexes, indexes against records, the versions of each key against
each other and the low points, by-id against the log, a bucket's map against its checksum, the
nodes of its view indexes and what these say of each other; of a node that only indexes, those. Of
each coordination group whatever its superblock names.

Invariants:
1. Nothing in the directory is changed but the process id in its lock file; a torn tail is
   reported and left for the next start to cut.
2. A directory that a server has open is not checked.

Elsewhere: what is checked in a log (`storage.core.log_check`), in an index
(`views.core.index_check`), in a coordination group (`coordination.core.group_check`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from millstream.access.users import UserStore
from millstream.coordination.aio.node_files_check import NodeFilesCheck, check_node_files
from millstream.coordination.core.entries import ID_BYTES
from millstream.coordination.core.group_check import (
    GROUPS_FOLDER,
    REMOVED,
    RESTORED,
    GroupCheck,
    Known,
    check_group,
)
from millstream.coordination.core.pool_file import Phase
from millstream.errors import MillstreamError, UsageError
from millstream.node.bucket_files import BucketRecord, find_map, find_records
from millstream.node.learned_files import FOLLOWED, find_learned
from millstream.node.small_files import read_toml
from millstream.ports.disk import FileIdentity
from millstream.runtime.process import DirectoryLock
from millstream.storage.aio.by_id import LmdbByIdMap
from millstream.storage.core.by_id import ById
from millstream.storage.core.log_check import LogCheck, check_log
from millstream.storage.core.segment_log import LogSizes, SegmentLog
from millstream.views.aio.index_check import check_indexes
from millstream.views.core.index_check import IndexCheck

__all__ = ["BucketCheck", "DirectoryCheck", "check_directory"]

_GROUP: Final = re.compile(f"[0-9a-f]{{{2 * ID_BYTES}}}(?:{REMOVED}|{RESTORED})*")
_SEGMENT: Final = re.compile(r"[0-9]{8}\.seg")


@dataclass(slots=True)
class BucketCheck:
    """What was found in one bucket."""

    name: str
    uuid: str
    partitions: int
    log: LogCheck = field(default_factory=LogCheck)
    torn_bytes: int = 0
    """Behind the last whole record; the next start cuts them. Nothing acknowledged is in them."""
    leftover_files: int = 0
    """What a compaction had no time to remove; the next start does."""
    map_revision: int = 0
    """0: it has no map, this node is alone."""
    node_name: str = ""
    """What the map calls this node."""
    indexes: list[IndexCheck] = field(default_factory=list)
    is_followed: bool = False
    """Its documents are on other nodes, this one only indexes it."""
    damage: str = ""
    """Of its documents; empty if all is well."""

    @property
    def is_sound(self) -> bool:
        """Whether neither documents nor indexes are damaged."""
        return not self.damage and not any(index.damage for index in self.indexes)

    def total(self, name: str) -> int:
        """Return the sum of a figure over all partitions."""
        return sum(getattr(partition, name) for partition in self.log.partitions)


@dataclass(frozen=True, slots=True)
class DirectoryCheck:
    """What was found in a data directory."""

    uuid: str
    format: int
    users: int
    buckets: list[BucketCheck]
    groups: list[GroupCheck] = field(default_factory=list)
    coordination: NodeFilesCheck | None = None
    """None: it has never coordinated."""

    @property
    def is_sound(self) -> bool:
        """Whether no damage was found."""
        if self.coordination is not None and not self.coordination.is_sound:
            return False
        are_buckets = all(bucket.is_sound for bucket in self.buckets)
        return are_buckets and all(group.is_sound for group in self.groups)


def check_directory(
    path: Path, progress: Callable[[BucketCheck], None] = lambda _: None
) -> DirectoryCheck:
    """Check a data directory that no server uses; reads all of it.

    Args:
        path: the data directory.
        progress: called before each bucket.

    Raises:
        UsageError: `no_data_directory`, `newer_format`.
        UnavailableError: `directory_in_use`.
        CorruptionError: files of the node itself are damaged.
        OSError: it cannot be read.
    """
    if not (path / "node.toml").is_file():
        raise UsageError(f"{path} is no data directory of Millstream", code="no_data_directory")
    lock = DirectoryLock(path / "lock", patience_s=0)
    try:
        node = read_toml(path / "node.toml")
        users = UserStore(path / "users.json")
        buckets = []
        for record in find_records(path / "buckets"):
            found = BucketCheck(record.name, record.uuid, record.partitions, damage=record.damage)
            progress(found)
            if not record.damage:
                _check_bucket(path / "buckets" / record.uuid, record, found)
                found.indexes = check_indexes(path / "buckets" / record.uuid / "indexes")
            buckets.append(found)
        for folder, learned in find_learned(path / FOLLOWED):
            found = BucketCheck(learned.name, learned.uuid, learned.partitions, is_followed=True)
            progress(found)
            found.indexes = check_indexes(folder / "indexes")
            buckets.append(found)
        coordination, groups = _check_coordination(path / GROUPS_FOLDER)
        return DirectoryCheck(
            str(node.get("uuid")), int(str(node["format"])), len(users.names), buckets, groups,
            coordination,
        )  # fmt: skip
    finally:
        lock.release()


def _check_bucket(path: Path, record: BucketRecord, found: BucketCheck) -> None:
    try:
        placed = find_map(path, record)
        if placed is not None:
            found.map_revision, found.node_name = placed.bucket_map.revision, placed.node_name
        disk = _UnchangedDisk(path / "log")
        if not any(_SEGMENT.fullmatch(name) for name in disk.names()):
            return  # created, and never started
        log = SegmentLog(disk, LogSizes())
        try:
            found.torn_bytes, found.leftover_files = log.cut_bytes, len(disk.leftovers)
            with _unchanged_by_id(path / "byid") as by_id:
                found.log = check_log(log, found.partitions, by_id)
        finally:
            log.close()
    except (MillstreamError, OSError) as error:
        found.damage = str(error)


def _check_coordination(path: Path) -> tuple[NodeFilesCheck | None, list[GroupCheck]]:
    if not path.is_dir():
        return None, []
    own, known = check_node_files(path)
    folders = [one for one in sorted(path.iterdir()) if _GROUP.fullmatch(one.name)]
    found = [check_group(_UnchangedDisk(one), one.name, known) for one in folders if one.is_dir()]
    return own, found + _missing(known, {one.name.removesuffix(RESTORED) for one in folders})


def _missing(known: Known | None, names: set[str]) -> list[GroupCheck]:
    """Return the groups that the node had, and of which there is nothing."""
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
    """Open a by-id map that a start would open, None if there is none."""
    opened = LmdbByIdMap.unchanged(path)
    try:
        yield None if opened is None else ById(opened)
    finally:
        if opened is not None:
            opened.close(is_durable=False)


class _UnchangedFile:
    """A file opened for reading; a cut is remembered, not made."""

    def __init__(self, path: Path, sizes: dict[str, int]) -> None:
        self._file = path.open("rb")
        self._name = path.name
        self._sizes = sizes

    def write_at(self, offset: int, data: bytes) -> None:
        raise AssertionError(f"a check writes {len(data)} bytes at {offset} of {self._name}")

    def read_at(self, offset: int, size: int) -> bytes:
        left = max(0, self.size() - offset)
        return os.pread(self._file.fileno(), min(size, left), offset)

    def read_resident(self, offset: int, size: int) -> bytes:
        return self.read_at(offset, size)

    def truncate(self, size: int) -> None:
        self._sizes[self._name] = size

    def sync(self) -> None:
        pass

    def forget_cache(self) -> None:
        pass

    def size(self) -> int:
        actual = os.fstat(self._file.fileno()).st_size
        return self._sizes.get(self._name, actual)

    def identity(self) -> FileIdentity:
        status = os.fstat(self._file.fileno())
        return status.st_ino, status.st_ctime_ns

    def close(self) -> None:
        self._file.close()

    def __del__(self) -> None:
        self._file.close()


class _UnchangedDisk:
    """A directory as it is; what the log would tidy up is left."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._sizes: dict[str, int] = {}
        self.leftovers: list[str] = []

    def names(self) -> list[str]:
        return sorted(os.listdir(self._path))

    def describe(self, name: str) -> str:
        return os.fspath(self._path.absolute() / name)

    def open(self, name: str, *, create: bool = False) -> _UnchangedFile:
        assert not create, "a check creates nothing"
        return _UnchangedFile(self._path / name, self._sizes)

    def rename(self, source: str, target: str) -> None:
        raise AssertionError(f"a check renames {source} to {target}")

    def remove(self, name: str) -> None:
        self.leftovers.append(name)

    def sync_directory(self) -> None:
        pass

    def boot_id(self) -> str:
        return ""

    def random_bytes(self, size: int) -> bytes:
        return os.urandom(size)
