"""Bytes of attachments as files, named by their SHA-256: `blobs/ab/cdef...`.

Invariants:
1. A file gets its name once all of it is on the disk, and the directories are synced before `put`
   returns, also if another call has just put the same bytes. After that a document that names it
   can be written.
2. A file never changes. The same bytes are stored once.
3. Unfinished files are under `blobs/new`, which is emptied at a start.
4. A file that is being removed counts as missing, and is put again only once it is gone. Neither
   bytes that are being put are removed, nor bytes put less than `UNNAMED_SECONDS_MIN` ago.

Elsewhere: which documents name them (`documents.stored`), those of other nodes
(`kv.aio.documents.blob_fetching`), which are removed (`kv.aio.documents.blob_sweeping`).
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from millstream.errors import UnavailableError, UsageError
from millstream.kv.core.partition.blobs import BlobPiece
from millstream.kv.core.revisions.unused_blobs import UnnamedBlobs
from millstream.runtime.files import sync_directory

__all__ = [
    "READ_BYTES",
    "UNNAMED_SECONDS_MIN",
    "BlobFiles",
    "BlobUpload",
    "BlobWriting",
    "PutBlob",
    "damaged_blobs",
]

READ_BYTES: Final = 256 * 1024
"""Bytes per read."""
UNNAMED_SECONDS_MIN: Final = 3600
"""How long bytes are kept after their last put for a document that will name them."""
_NEW: Final = "new"
_NAME_BYTES: Final = 32


class PutBlob(NamedTuple):
    """Stored bytes."""

    sha256: bytes
    md5: bytes
    length: int


class BlobFiles:
    """The attachments of one bucket; its directory is created on first use."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._synced = set[Path]()
        """Directories whose own entries are durable, as synced by this process."""
        self._unsynced = set[bytes]()
        """Files that have their name, but not durably yet."""
        self._putting = Counter[bytes]()
        """Files that are being given their name, or relied on because they have it."""
        self._removing = frozenset[bytes]()
        self._has_removed = asyncio.Event()
        self._unnamed: UnnamedBlobs | None = None
        """Names that the running sweep has not found in use."""
        self._counting = threading.Lock()
        self.count = self.bytes = 0
        """Number of files, and their bytes."""
        self.removed_count = self.removed_bytes = 0
        """Removed since the start."""
        self.put_ns = 0
        """Time of the last put, by a monotonic clock."""

    def prepare(self) -> None:
        """Remove unfinished files, and make files durable that a kill left readable; blocks."""
        for left in self._path.glob(f"{_NEW}/*"):
            left.unlink()
        self.count = self.bytes = 0
        for directory in self._path.glob("??"):
            sync_directory(directory)
            sizes = [one.stat().st_size for one in os.scandir(directory)]
            self.count += len(sizes)
            self.bytes += sum(sizes)
        if self._path.exists():
            sync_directory(self._path)
            sync_directory(self._path.parent)

    def _file(self, sha256: bytes) -> Path:
        name = sha256.hex()
        return self._path / name[:2] / name[2:]

    def has(self, sha256: bytes) -> bool:
        """Return whether the bytes are here, durably."""
        is_in_doubt = sha256 in self._unsynced or sha256 in self._removing
        return not is_in_doubt and self._file(sha256).exists()

    async def put(self, pieces: AsyncIterator[bytes]) -> PutBlob:
        """Store bytes durably.

        Raises:
            UnavailableError: `disk_full`; whatever the pieces raise, and nothing is stored.
        """
        writing = self.begin()
        try:
            async for piece in pieces:
                await writing.write(piece)
            return await writing.finish()
        except OSError as error:
            raise _cannot_be_kept(error) from error
        finally:
            writing.abandon()

    def begin(self) -> BlobWriting:
        """Return a writer for bytes; nothing is visible before it has finished."""
        return BlobWriting(self, self._path / _NEW / secrets.token_hex(16))

    async def touch(self, sha256: bytes) -> bool:
        """Renew the time of bytes as if they were just put, if they are here."""
        async with self._relied_on(sha256):
            if not self.has(sha256):
                return False
            await asyncio.to_thread(os.utime, self._file(sha256))
            return True

    async def keep_as(self, file: BinaryIO, temporary: Path, sha256: bytes) -> None:
        """Give a complete file its name durably; for `BlobWriting`."""
        async with self._relied_on(sha256):
            await asyncio.to_thread(self._finish, file, temporary, sha256)

    @asynccontextmanager
    async def _relied_on(self, sha256: bytes) -> AsyncIterator[None]:
        """Within this context no sweep removes these bytes; first wait for running removals."""
        while sha256 in self._removing:
            await self._has_removed.wait()
        self._putting[sha256] += 1
        try:
            yield
            self.keep([sha256])
        finally:
            self._putting[sha256] -= 1
            if not self._putting[sha256]:
                del self._putting[sha256]
        self.put_ns = time.monotonic_ns()

    def _finish(self, file: BinaryIO, temporary: Path, sha256: bytes) -> None:
        target = self._file(sha256)
        if target.exists():
            os.utime(target)
        else:
            file.flush()
            os.fsync(file.fileno())
            target.parent.mkdir(mode=0o700, exist_ok=True)
            self._unsynced.add(sha256)
            temporary.rename(target)
            self._counted(1, target.stat().st_size)
        sync_directory(target.parent)  # its existence does not mean that its name is durable
        if target.parent not in self._synced:
            sync_directory(self._path)
            sync_directory(self._path.parent)
            self._synced.add(target.parent)
        self._unsynced.discard(sha256)

    async def read(self, sha256: bytes, begin: int, end: int) -> AsyncGenerator[bytes, None]:
        """Yield the bytes in [begin, end); the last ones of a whole file only after verification.

        Raises:
            UnavailableError: `blob_missing`: also if its content is damaged.
        """
        digest = hashlib.sha256()
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
                if not begin:
                    await asyncio.to_thread(digest.update, piece)
                    is_whole = not left and end == os.fstat(file.fileno()).st_size
                    if is_whole and digest.digest() != sha256:
                        raise UnavailableError(
                            f"the file of attachment {sha256.hex()} is damaged; restore it from "
                            f"a replica or a backup",
                            code="blob_missing",
                        )
                yield piece

    def piece(self, sha256: bytes, offset: int, size: int) -> BlobPiece | None:
        """Return at most `size` bytes from an offset on; None if it is not here; blocks."""
        try:
            with self._file(sha256).open("rb") as file:
                length = os.fstat(file.fileno()).st_size
                file.seek(min(offset, length))
                return BlobPiece(length, file.read(size))
        except OSError:
            return None

    # -- removing unused files

    @contextmanager
    def telling(self, unnamed: UnnamedBlobs) -> Iterator[None]:
        """Within this context, a sweep is told which of its names are relied on."""
        self._unnamed = unnamed
        try:
            yield
        finally:
            self._unnamed = None

    def keep(self, names: Iterable[bytes]) -> None:
        """These are about to be relied on, if they are here: a sweep lets them stay."""
        if self._unnamed is not None:
            self._unnamed.keep(names)

    @property
    def putting(self) -> Collection[bytes]:
        """Return the files that are being given their name now."""
        return self._putting.keys()

    def old(
        self, put_before_s: float, after: bytes, count_max: int, found: list[bytes]
    ) -> Iterator[None]:
        """Find files that were put before a time; blocks, one directory per step.

        Args:
            put_before_s: Unix time.
            after: only names above this one.
            count_max: it ends once so many are found.
            found: takes the names, ascending.
        """
        for number in range(after[0] if after else 0, 256):
            directory = self._path / f"{number:02x}"
            if not directory.exists():
                continue
            names = map(bytes.fromhex, sorted(_old_files(directory, put_before_s)))
            found += [name for name in names if name > after]
            if len(found) >= count_max:
                del found[count_max:]
                return
            yield

    @contextmanager
    def removing(self, names: Collection[bytes]) -> Iterator[None]:
        """Within this context these files count as missing; one sweep at a time."""
        assert not self._removing
        self._removing = frozenset(names)
        try:
            yield
        finally:
            self._removing = frozenset()
            self._has_removed.set()
            self._has_removed = asyncio.Event()

    def remove(self, names: Iterable[bytes], put_before_s: float) -> Iterator[None]:
        """Remove files, except those put since a given time; blocks, one file per step.

        Raises:
            OSError: the file system refuses.
        """
        for name in names:
            file = self._file(name)
            with suppress(FileNotFoundError):
                status = file.stat()
                if status.st_mtime < put_before_s:
                    file.unlink()
                    self._counted(-1, -status.st_size)
            yield

    def _counted(self, count: int, size: int) -> None:
        with self._counting:
            self.count += count
            self.bytes += size
            self.removed_count -= min(count, 0)
            self.removed_bytes -= min(size, 0)


def _old_files(directory: Path, put_before_s: float) -> Iterator[str]:
    """Yield the names, in hex, of files of a directory that were put before a given time."""
    for entry in os.scandir(directory):
        name = directory.name + entry.name
        if len(name) == 2 * _NAME_BYTES and entry.stat().st_mtime < put_before_s:
            yield name


class BlobWriting:
    """A file being written. `abandon` ends it in any case, also after `finish`."""

    def __init__(self, files: BlobFiles, temporary: Path) -> None:
        self._files = files
        self._temporary = temporary
        self._file: BinaryIO | None = None
        self._sha256, self._md5 = hashlib.sha256(), hashlib.md5(usedforsecurity=False)
        self.length = 0
        """Bytes written."""

    async def write(self, piece: bytes) -> None:
        """Write more bytes; raises OSError."""
        await asyncio.to_thread(self._opened().write, piece)
        self._sha256.update(piece)
        self._md5.update(piece)
        self.length += len(piece)

    async def finish(self, name: bytes | None = None) -> PutBlob:
        """Store the bytes durably; raises OSError.

        Args:
            name: expected hash.

        Raises:
            UsageError: `bad_blob`, they have another hash.
        """
        sha256 = self._sha256.digest()
        if name is not None and name != sha256:
            raise UsageError(
                f"the bytes sent as {name.hex()} are {sha256.hex()}; send them again",
                code="bad_blob",
            )
        await self._files.keep_as(self._opened(), self._temporary, sha256)
        return PutBlob(sha256, self._md5.digest(), self.length)

    def abandon(self) -> None:
        """Remove an unfinished file."""
        if self._file is not None:
            self._temporary.unlink(missing_ok=True)
            _close(self._file)
            self._file = None

    def _opened(self) -> BinaryIO:
        if self._file is None:
            self._temporary.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = self._temporary.open("xb")
        return self._file


class BlobUpload:
    """The blobs that one connection sends by PUT_BLOB, one at a time."""

    def __init__(self, files: BlobFiles) -> None:
        self._files = files
        self._writing: BlobWriting | None = None
        self._name = b""

    async def take(self, name: bytes, offset: int, total: int, data: bytes) -> int:
        """Take a piece; return how many of its bytes are here; `total` means all, durably.

        If the bytes are here already, no piece is needed: a first piece without bytes asks for
        that.

        Raises:
            UsageError: `bad_blob`: not the next bytes, or not the bytes that have this name.
            UnavailableError: `disk_full`.
        """
        if not offset:
            self.abandon()
            if await self._files.touch(name):
                return total
            self._writing, self._name = self._files.begin(), name
        writing = self._writing
        end = offset + len(data)
        if writing is None or (name, offset) != (self._name, writing.length) or end > total:
            self.abandon()
            raise UsageError("these bytes do not come next", code="bad_blob")
        try:
            await writing.write(data)
            if end == total and (data or not total):
                await writing.finish(name)
                self.abandon()
        except OSError as error:
            self.abandon()
            raise _cannot_be_kept(error) from error
        except UsageError:
            self.abandon()
            raise
        return end

    def abandon(self) -> None:
        """Discard an unfinished upload."""
        if self._writing is not None:
            self._writing.abandon()
            self._writing = None


def _cannot_be_kept(error: OSError) -> UnavailableError:
    return UnavailableError(f"the attachment cannot be kept: {error}", code="disk_full")


def _close(file: BinaryIO) -> None:
    """Close a file, ignoring unwritten data in its buffer."""
    try:
        file.close()
    except OSError:  # the disk is full; the unwritten data is of a removed file
        return


def damaged_blobs(path: Path) -> int:
    """Return how many files below a directory of blobs do not match their names.

    Changes nothing. Blocks; raises OSError.
    """
    damaged = 0
    for file in path.glob("??/*"):
        name = file.parent.name + file.name
        if len(name) == 2 * _NAME_BYTES:
            with file.open("rb") as content:
                damaged += hashlib.file_digest(content, "sha256").hexdigest() != name
    return damaged
