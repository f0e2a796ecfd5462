"""The real disk behind `ports.disk`: one directory of a local file system.

Invariants:
1. A file's descriptor lives as long as somebody refers to the file, so that a cache may forget a
   file while another thread still reads it.
2. `sync` is fdatasync, but fsync after the length was changed by `truncate`.
3. `read_resident` never waits for the disk; a file system that cannot promise that says so by
   BlockingIOError, and is read by threads.

Elsewhere: what is written and in which order (`storage.core`).
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

from millstream.ports.disk import FileIdentity
from millstream.runtime.files import sync_directory

__all__ = ["OsDisk", "OsFile", "boot_id"]

_fdatasync = getattr(os, "fdatasync", os.fsync)  # not every system has it
_preadv = os.preadv
_NOWAIT: Final = getattr(os, "RWF_NOWAIT", -1)  # -1: refused, as by file systems without it
_CANNOT_SAY: Final = (errno.EOPNOTSUPP, errno.EINVAL)
_forget = getattr(os, "posix_fadvise", None)
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """Return an id that changes with every start of the machine; empty if there is none."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


class OsFile:
    """One open file."""

    __slots__ = ("_descriptor", "_is_resized")

    def __init__(self, path: Path, flags: int) -> None:
        self._descriptor = -1
        self._descriptor = os.open(path, flags | os.O_RDWR | os.O_CLOEXEC, 0o600)
        self._is_resized = False

    def write_at(self, offset: int, data: bytes) -> None:
        """Write all of `data`; raises OSError."""
        written = os.pwrite(self._descriptor, data, offset)
        if written < len(data):
            view = memoryview(data)
            while written < len(data):
                written += os.pwrite(self._descriptor, view[written:], offset + written)

    def read_at(self, offset: int, size: int) -> bytes:
        """Read up to `size` bytes; fewer only at the end of the file."""
        data = os.pread(self._descriptor, size, offset)
        if len(data) < size and data:
            while more := os.pread(self._descriptor, size - len(data), offset + len(data)):
                data += more
        return data

    def read_resident(self, offset: int, size: int) -> bytes:
        """Read what the page cache has; BlockingIOError where a read would wait for the disk."""
        data = bytearray(size)
        try:
            count = _preadv(self._descriptor, [data], offset, _NOWAIT)
        except OSError as error:
            if error.errno in _CANNOT_SAY:
                raise BlockingIOError(error.errno, error.strerror) from error
            raise
        return bytes(data) if count == size else bytes(data[:count])

    def truncate(self, size: int) -> None:
        """Cut or extend with zeros."""
        os.ftruncate(self._descriptor, size)
        self._is_resized = True

    def sync(self) -> None:
        """Make contents and length durable."""
        if self._is_resized:
            os.fsync(self._descriptor)
            self._is_resized = False
        else:
            _fdatasync(self._descriptor)

    def forget_cache(self) -> None:
        """Drop the clean pages of the page cache, as far as the system lets us."""
        if _forget is not None:
            _forget(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def size(self) -> int:
        """Return the length in bytes."""
        return os.fstat(self._descriptor).st_size

    def identity(self) -> FileIdentity:
        """Return (inode, ctime in ns)."""
        status = os.fstat(self._descriptor)
        return status.st_ino, status.st_ctime_ns

    def close(self) -> None:
        """Release the descriptor; harmless if it is."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()


class OsDisk:
    """One directory, made if it is missing."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if not self.path.is_dir():
            self.path.mkdir(mode=0o700, parents=True)
            sync_directory(self.path.parent)

    def names(self) -> list[str]:
        """Return the names in the directory, sorted."""
        return sorted(os.listdir(self.path))

    def describe(self, name: str) -> str:
        """Return the absolute path of a file."""
        return os.fspath(self.path.absolute() / name)

    def open(self, name: str, *, create: bool = False) -> OsFile:
        """Open for reading and writing; FileNotFoundError unless `create`."""
        return OsFile(self.path / name, os.O_CREAT if create else 0)

    def rename(self, source: str, target: str) -> None:
        """Replace `target` by `source`, atomically."""
        os.replace(self.path / source, self.path / target)

    def remove(self, name: str) -> None:
        """Unlink; FileNotFoundError if absent."""
        os.unlink(self.path / name)

    def sync_directory(self) -> None:
        """Make creations, renames and removals durable."""
        sync_directory(self.path)

    def boot_id(self) -> str:
        """Return the machine's boot id."""
        return boot_id()

    def random_bytes(self, size: int) -> bytes:
        """Return unpredictable bytes."""
        return os.urandom(size)
