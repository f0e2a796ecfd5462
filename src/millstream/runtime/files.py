"""Small files written as a whole: durable, atomic, readable by their owner only.

Invariants:
1. After a crash at any moment the file holds either its old or its new content.
2. When `write_atomically` returns, content and name are durable.

Elsewhere: the document log (`runtime.disk`).
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["alone_in", "sync_directory", "write_atomically"]


def write_atomically(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Replace a file's content, durably; raises OSError."""
    beside = path.with_name(path.name + ".new")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    with open(descriptor, "wb") as file:
        os.fchmod(file.fileno(), mode)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make creations, renames and removals in a directory durable; raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def alone_in(path: Path) -> Iterator[None]:
    """Let no other process, nor another call, into this part for a directory; raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
