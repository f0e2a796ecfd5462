"""LMDB environments on file systems that may be full.

LMDB maps its lock file and writes to the mapped pages. Where the file system has no room for such
a page the kernel kills the process, by SIGBUS.

Invariants:
1. Every page of the lock file has its place before the file is mapped; without room opening fails.
2. An environment that was never there is not left behind in parts when opening fails.

Elsewhere: who keeps what in them (`storage.aio.by_id`, `kv.aio.documents.local_store`,
`views.aio.indexing.index_store`).
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any, Final

import lmdb

__all__ = ["FREE_BYTES_MIN", "lacked_space", "open_environment"]

FREE_BYTES_MIN: Final = 1024 * 1024
"""While less is free a failed write is one that lacked space."""
_DATA: Final = "data.mdb"
_LOCK: Final = "lock.mdb"
_READER_BYTES: Final = 64
_OTHER_READERS: Final = 2
"""What stands before the readers in the lock file takes the place of so many."""
_PAGE_BYTES: Final = 4096
_READERS_DEFAULT: Final = 126


def open_environment(
    folder: Path, *, max_readers: int = _READERS_DEFAULT, **options: Any
) -> lmdb.Environment:
    """Open or create an environment for writing; the other options are those of `lmdb.open`.

    Raises:
        lmdb.DiskError: there is no space.
        lmdb.Error: as `lmdb.open`.
        OSError: the lock file cannot be opened.
    """
    data, lock = folder / _DATA, folder / _LOCK
    is_new = not data.exists() or not data.stat().st_size
    try:
        _allot(lock, max_readers)
        return lmdb.open(os.fspath(folder), max_readers=max_readers, **options)
    except (lmdb.Error, OSError):
        if is_new:
            data.unlink(missing_ok=True)
            lock.unlink(missing_ok=True)
        raise


def _allot(lock: Path, max_readers: int) -> None:
    wanted = (max_readers + _OTHER_READERS) * _READER_BYTES
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, -(-wanted // _PAGE_BYTES) * _PAGE_BYTES)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise lmdb.DiskError(f"{lock}: {error.strerror}") from error
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise
    finally:
        os.close(descriptor)


def lacked_space(folder: Path, error: lmdb.Error) -> bool:
    """Return whether a write failed for want of space; LMDB calls one cut short an I/O error."""
    if isinstance(error, lmdb.MapFullError | lmdb.DiskError):
        return True
    free = os.statvfs(folder)
    return free.f_bavail * free.f_frsize < FREE_BYTES_MIN
