"""Writing files of a directory so that an error leaves no doubt about what is durable.

Invariants:
1. A call that returns has synced what it wrote. Names are durable after `sync_directory`.
2. A lack of space before a sync is `disk_full`, and the same call may be repeated. Every other
   error, and each error of a sync, is `disk_failed`. Nothing is written after it, and no sync is
   repeated, since data that the first sync did not write may be lost.
3. The bytes that `append` fills ahead are zeros up to the file's end.

Elsewhere: which files there are and their order of writing (`journal`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress

from millstream.ports.disk import Disk, File
from millstream.storage.core.disk_errors import disk_error, is_full

__all__ = ["CarefulFiles"]


class CarefulFiles:
    """The files of one directory. Files that were written stay open."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.has_failed = False
        self._open: dict[str, File] = {}
        self._filled: dict[str, int] = {}

    def settle(self) -> None:
        """Sync what is readable, and make unreadable what is not durable.

        Data of a killed process may still be in memory only. Data that a failed sync left there
        never reaches the disk by itself.
        """
        for name in self.names():
            self._try(self._settle, name)
        self.sync_directory()

    def _settle(self, name: str) -> None:
        file = self._file(name)
        file.sync()
        file.forget_cache()

    def names(self) -> list[str]:
        """Return the names in the directory. This takes a descriptor."""
        found: list[str] = []
        self._try(lambda _: found.extend(self.disk.names()), "")
        return found

    def write(
        self, name: str, parts: Iterable[tuple[int, bytes]], *, is_final: bool = False
    ) -> None:
        """Write (offset, bytes) to a file, made if it is missing, and sync it.

        `is_final`: a lack of space is treated as any other error.
        """
        self._try(self._write, name, parts, is_final=is_final)
        self._try(self._sync, name, is_final=True)

    def _write(self, name: str, parts: Iterable[tuple[int, bytes]]) -> None:
        file = self._file(name)
        for offset, data in parts:
            file.write_at(offset, data)

    def append(self, name: str, offset: int, data: bytes, ahead_max: int) -> None:
        """Write behind the valid bytes of a file, and sync it.

        Beyond the file's end zeros are written, too: as many as the file has bytes, up to
        `ahead_max`. A sync that does not change the length costs half as much.
        """
        self._try(self._fill, name, offset + len(data))
        filled = self._filled[name]
        if (end := offset + len(data)) > filled:
            filled = end + min(end, ahead_max)
            data = data.ljust(filled - offset, b"\0")
        self.write(name, [(offset, data)])
        self._filled[name] = filled

    def _fill(self, name: str, end: int) -> None:
        """Find out the length of the file if it is not known to be long enough."""
        if end > self._filled.get(name, 0):
            self._filled[name] = self._file(name).size()

    def replace(self, name: str, content: bytes) -> None:
        """Give this content to a file that nothing refers to yet, and sync it."""
        self.cut(name, 0)
        self.write(name, [(0, content)])

    def cut(self, name: str, size: int) -> None:
        """Cut a file, made if it is missing, and sync it."""
        self._filled.pop(name, None)
        self._try(lambda name: self._file(name).truncate(size), name)
        self._try(self._sync, name, is_final=True)

    def _sync(self, name: str) -> None:
        self._file(name).sync()

    def read(self, name: str, offset: int, size: int) -> bytes:
        """Return bytes of a file. A disk that opens a file and cannot read it has failed."""
        data = b""

        def read(name: str) -> None:
            nonlocal data
            data = self._file(name).read_at(offset, size)

        self._try(self._file, name)
        self._try(read, name, is_final=True)
        return data

    def peek(self, name: str, size: int) -> bytes:
        """Return the readable beginning of a file. Errors here are not errors of the disk.

        The next start finds and repairs what could not be read.
        """
        try:
            return self._file(name).read_at(0, size)
        except OSError:
            return b""

    def rename(self, source: str, target: str) -> None:
        """Rename a file durably."""
        self._forget(source)
        self._forget(target)
        self._try(lambda _: self.disk.rename(source, target), target)
        self.sync_directory()

    def remove(self, names: Iterable[str]) -> None:
        """Remove files that nothing refers to. Missing files are no error."""
        for name in names:
            self._forget(name)
            with suppress(FileNotFoundError):
                self._try(self.disk.remove, name)

    def sync_directory(self) -> None:
        """Make the names in the directory durable."""
        self._try(lambda _: self.disk.sync_directory(), "", is_final=True)

    def close(self) -> None:
        """Close all files."""
        for name in list(self._open):
            self._forget(name)

    def _file(self, name: str) -> File:
        if name not in self._open:
            self._open[name] = self.disk.open(name, create=True)
        return self._open[name]

    def _forget(self, name: str) -> None:
        self._filled.pop(name, None)
        if (file := self._open.pop(name, None)) is not None:
            file.close()

    def _try(
        self, call: Callable[..., object], name: str, *args: object, is_final: bool = False
    ) -> None:
        assert not self.has_failed, "the disk failed before"
        try:
            call(name, *args)
        except FileNotFoundError:
            raise
        except OSError as error:
            self.has_failed = is_final or not is_full(error)
            raise disk_error(error, self.disk.describe(name), is_final=is_final) from error
