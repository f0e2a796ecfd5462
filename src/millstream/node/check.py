"""Offline verification of a data directory: every record of every log is read and checked.

Invariants:
1. Nothing in the directory is changed but the process id in its lock file; a torn tail is
   reported and left for the next start to cut.
2. A directory that a server has open is not checked.

Elsewhere: what is checked in a log (`storage.core.segment_log`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from millstream.access.users import UserStore
from millstream.errors import CorruptionError, MillstreamError, UsageError
from millstream.node.buckets import BucketRecord, find_records
from millstream.node.data_directory import read_toml
from millstream.ports.disk import FileIdentity
from millstream.runtime.process import DirectoryLock
from millstream.storage.core.records import Kind
from millstream.storage.core.segment_log import LogSizes, SegmentLog

__all__ = ["BucketCheck", "DirectoryCheck", "check_directory"]

_SEGMENT: Final = re.compile(r"[0-9]{8}\.seg")


@dataclass(slots=True)
class BucketCheck:
    """What was found in one bucket."""

    name: str
    uuid: str
    partitions: int
    segments: int = 0
    bytes: int = 0
    records: int = 0
    changes: int = 0
    torn_bytes: int = 0
    """Behind the last whole record; the next start cuts them. Nothing acknowledged is in them."""
    damage: str = ""
    """Empty if all is well."""


@dataclass(frozen=True, slots=True)
class DirectoryCheck:
    """What was found in a data directory."""

    uuid: str
    format: int
    users: int
    buckets: list[BucketCheck]

    @property
    def is_sound(self) -> bool:
        """Whether no damage was found."""
        return not any(bucket.damage for bucket in self.buckets)


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
                _check_bucket(path / "buckets" / record.uuid / "log", record, found)
            buckets.append(found)
        return DirectoryCheck(
            str(node.get("uuid")), int(str(node["format"])), len(users.names), buckets
        )
    finally:
        lock.release()


def _check_bucket(path: Path, record: BucketRecord, found: BucketCheck) -> None:
    try:
        disk = _UnchangedDisk(path)
        if not any(_SEGMENT.fullmatch(name) for name in disk.names()):
            return  # created, and never started
        log = SegmentLog(disk, LogSizes())
        try:
            _read_all(log, record, found)
        finally:
            log.close()
    except (MillstreamError, OSError) as error:
        found.damage = str(error)


def _read_all(log: SegmentLog, record: BucketRecord, found: BucketCheck) -> None:
    found.torn_bytes = log.cut_bytes
    found.segments = len(log.numbers)
    for number in log.numbers:
        if not log.is_open(number):
            log.verify(number)
        found.bytes += log.end_of(number)
        for one in log.walk(number):
            found.records += 1
            if one.kind == Kind.CHANGE:
                found.changes += 1
                if one.partition_id >= record.partitions:
                    raise CorruptionError(
                        f"segment {number} holds a change of partition {one.partition_id}; "
                        f"the bucket has {record.partitions}"
                    )


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
        pass

    def sync_directory(self) -> None:
        pass

    def boot_id(self) -> str:
        return ""

    def random_bytes(self, size: int) -> bytes:
        return os.urandom(size)
