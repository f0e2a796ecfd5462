"""A read-only disk: changes that a start would make are recorded, not made.

Elsewhere: its users (`data_directory.check`, `data_directory.acceptance`).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from io import BufferedReader
from pathlib import Path

from millstream.ports.disk import FileIdentity

__all__ = ["UnchangedDisk"]


class _UnchangedFile:
    """A file opened for reading; truncation is recorded, not made."""

    def __init__(
        self, file: BufferedReader, name: str, sizes: dict[str, int], heads: dict[str, bytes]
    ) -> None:
        self._file = file
        self._name = name
        self._sizes = sizes
        self._heads = heads

    def write_at(self, offset: int, data: bytes) -> None:
        """Record the header of a segment that was being created; nothing else is written."""
        assert not offset, f"a check writes {len(data)} bytes at {offset} of {self._name}"
        self._heads[self._name] = data
        self._sizes[self._name] = len(data)

    def read_at(self, offset: int, size: int) -> bytes:
        if self._name in self._heads:
            return self._heads[self._name][offset : offset + size]
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


class UnchangedDisk:
    """A directory without changes: the cleanup that a log would do is only recorded.

    Args:
        path: of the directory.
        hidden: names of files that are not visible.
        sizes: lengths that override the real lengths of files.
    """

    def __init__(
        self, path: Path, hidden: Collection[str] = (), sizes: Mapping[str, int] = {}
    ) -> None:
        self._path = path
        self._hidden = frozenset(hidden)
        self._sizes = dict(sizes)
        self._heads: dict[str, bytes] = {}
        self.leftovers: list[str] = []

    def names(self) -> list[str]:
        """Return the visible names, sorted; none of a directory that a start would make."""
        names = os.listdir(self._path) if self._path.is_dir() else []
        return sorted(name for name in names if name not in self._hidden)

    def describe(self, name: str) -> str:
        """Return the absolute path of a file."""
        return os.fspath(self._path.absolute() / name)

    def open(self, name: str, *, create: bool = False) -> _UnchangedFile:
        """Open for reading."""
        assert not create, "a check creates nothing"
        file = (self._path / name).open("rb")
        return _UnchangedFile(file, name, self._sizes, self._heads)

    def rename(self, source: str, target: str) -> None:
        """Rename nothing."""
        raise AssertionError(f"a check renames {source} to {target}")

    def remove(self, name: str) -> None:
        """Record the removal that a start would make."""
        self.leftovers.append(name)

    def sync_directory(self) -> None:
        """Do nothing."""

    def boot_id(self) -> str:
        """Return that the boot is unknown."""
        return ""

    def random_bytes(self, size: int) -> bytes:
        """Return unpredictable bytes."""
        return os.urandom(size)
