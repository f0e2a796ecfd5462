"""The disk as the document store sees it: one flat directory of files, every step an effect.

A simulated disk that fails or loses power before any effect implements the same Protocol.
Names are plain file names; all calls block and may run in a worker thread.
"""

from __future__ import annotations

from typing import Protocol

__all__ = ["Disk", "File", "FileIdentity"]

FileIdentity = tuple[int, int]
"""(inode, ctime in ns): changes whenever the file is written, copied or restored."""


class File(Protocol):
    """One open file."""

    def write_at(self, offset: int, data: bytes) -> None:
        """Write all of `data`; raises OSError."""

    def read_at(self, offset: int, size: int) -> bytes:
        """Read up to `size` bytes; fewer only at the end of the file."""

    def read_resident(self, offset: int, size: int) -> bytes:
        """Read without waiting for the disk, up to the first byte that is not in memory.

        Raises:
            BlockingIOError: the first byte is not in memory, or nobody can say.
        """

    def truncate(self, size: int) -> None:
        """Cut or extend with zeros."""

    def sync(self) -> None:
        """Make contents and length durable."""

    def forget_cache(self) -> None:
        """Read what was synced from the disk again: memory may hold what a failed sync lost."""

    def size(self) -> int:
        """Return the length in bytes."""

    def identity(self) -> FileIdentity:
        """Return what tells this file from a copy of it."""

    def close(self) -> None:
        """Release the descriptor; a file that nobody refers to any more is closed by itself."""


class Disk(Protocol):
    """One directory."""

    def names(self) -> list[str]:
        """Return the names in the directory, sorted."""

    def describe(self, name: str) -> str:
        """Return what people find the file by, for messages."""

    def open(self, name: str, *, create: bool = False) -> File:
        """Open for reading and writing; FileNotFoundError unless `create`."""

    def rename(self, source: str, target: str) -> None:
        """Replace `target` by `source`, atomically."""

    def remove(self, name: str) -> None:
        """Unlink; FileNotFoundError if absent."""

    def sync_directory(self) -> None:
        """Make creations, renames and removals durable."""

    def boot_id(self) -> str:
        """Return an id that changes whenever the machine starts anew."""

    def random_bytes(self, size: int) -> bytes:
        """Return unpredictable bytes, for ids that must never meet again."""
