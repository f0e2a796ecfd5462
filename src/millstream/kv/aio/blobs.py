"""Bytes of attachments as files, named by their SHA-256: `blobs/ab/cdef...`.

Invariants:
1. A file has its name once all of it is on the disk, and the directories are synced before
   `put` returns, also where somebody else has just put the same bytes: a document that names it
   can be written then.
2. A file never changes. The same bytes are there once.
3. What was begun and not finished lies under `blobs/new`, which is emptied at a start.

They are kept as long as their bucket: that no record names one is not found out.

Elsewhere: which documents name them (`documents.stored`), those of other nodes
(`kv.aio.blob_fetching`).
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from millstream.errors import UnavailableError
from millstream.kv.core.blobs import BlobPiece
from millstream.runtime.files import sync_directory

__all__ = ["READ_BYTES", "BlobFiles", "PutBlob"]

READ_BYTES: Final = 256 * 1024
"""Read at once."""
_NEW: Final = "new"


class PutBlob(NamedTuple):
    """Bytes that are kept."""

    sha256: bytes
    md5: bytes
    length: int


class BlobFiles:
    """The attachments of one bucket; its directory is made when it is first needed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._synced = set[Path]()
        """Directories whose own names are durable, since this process looked."""
        self._unsynced = set[bytes]()
        """What has its name already, but not yet for ever."""

    def prepare(self) -> None:
        """Remove what was not finished, and make durable what a kill left readable; blocks."""
        for left in self._path.glob(f"{_NEW}/*"):
            left.unlink()
        for directory in self._path.glob("??"):
            sync_directory(directory)
        if self._path.exists():
            sync_directory(self._path)
            sync_directory(self._path.parent)

    def _file(self, sha256: bytes) -> Path:
        name = sha256.hex()
        return self._path / name[:2] / name[2:]

    def has(self, sha256: bytes) -> bool:
        """Return whether the bytes are here, durably."""
        return sha256 not in self._unsynced and self._file(sha256).exists()

    async def put(self, pieces: AsyncIterator[bytes]) -> PutBlob:
        """Keep bytes, durably.

        Raises:
            UnavailableError: `disk_full`; whatever the pieces raise, and nothing is kept.
        """
        sha256, md5, length = hashlib.sha256(), hashlib.md5(usedforsecurity=False), 0
        temporary = self._path / _NEW / secrets.token_hex(16)
        file: BinaryIO | None = None
        try:
            file = await asyncio.to_thread(self._create, temporary)
            async for piece in pieces:
                sha256.update(piece)
                md5.update(piece)
                length += len(piece)
                await asyncio.to_thread(file.write, piece)
            await asyncio.to_thread(self._finish, file, temporary, sha256.digest())
        except OSError as error:
            raise UnavailableError(
                f"the attachment cannot be kept: {error}", code="disk_full"
            ) from error
        finally:
            if file is not None:
                temporary.unlink(missing_ok=True)
                _close(file)
        return PutBlob(sha256.digest(), md5.digest(), length)

    def _create(self, temporary: Path) -> BinaryIO:
        temporary.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return temporary.open("xb")

    def _finish(self, file: BinaryIO, temporary: Path, sha256: bytes) -> None:
        target = self._file(sha256)
        if not target.exists():
            file.flush()
            os.fsync(file.fileno())
            target.parent.mkdir(mode=0o700, exist_ok=True)
            self._unsynced.add(sha256)
            temporary.rename(target)
        sync_directory(target.parent)  # that it is there does not say that its name lasts
        if target.parent not in self._synced:
            sync_directory(self._path)
            sync_directory(self._path.parent)
            self._synced.add(target.parent)
        self._unsynced.discard(sha256)

    async def read(self, sha256: bytes, begin: int, end: int) -> AsyncIterator[bytes]:
        """Yield the bytes in [begin, end).

        Raises:
            UnavailableError: `blob_missing`.
        """
        try:
            file = await asyncio.to_thread(self._file(sha256).open, "rb")
        except FileNotFoundError as error:
            raise UnavailableError(
                f"the bytes {sha256.hex()} of an attachment are not on this node; restore them "
                "from a replica or a backup",
                code="blob_missing",
            ) from error
        with file:
            file.seek(begin)
            left = end - begin
            while left > 0:
                piece = await asyncio.to_thread(file.read, min(left, READ_BYTES))
                if not piece:
                    raise UnavailableError(
                        f"the file of attachment {sha256.hex()} is too short", code="blob_missing"
                    )
                left -= len(piece)
                yield piece

    def piece(self, sha256: bytes, offset: int, size: int) -> BlobPiece | None:
        """Return at most `size` bytes from an offset on, None if it is not here; blocks."""
        try:
            with self._file(sha256).open("rb") as file:
                length = os.fstat(file.fileno()).st_size
                file.seek(min(offset, length))
                return BlobPiece(length, file.read(size))
        except OSError:
            return None

    def size(self) -> int:
        """Return the bytes of all files; blocks."""
        return sum(file.stat().st_size for file in self._path.glob("??/*") if file.is_file())


def _close(file: BinaryIO) -> None:
    """Close a file, whatever is left in its buffer."""
    try:
        file.close()
    except OSError:  # the disk is full: what was not written is of a file that is gone
        return
