"""Staged files of one index: rows or documents that an outside writer uploads before a commit.

    FOLDER/staged/<fencing number>/<name>.part      while it is being written
    FOLDER/staged/<fencing number>/<name>           complete

The engine's process writes the bytes, because they arrive at its HTTP port. The index process
chooses the path, and is told when a file is complete.

Invariants:
1. Only the writer with the fencing number of the directory can commit its files.
2. Files are removed with the commit that used them, when their writer begins another cycle
   (complete files of tasks that failed or ran twice), when another writer takes over, and when
   their writer was silent for `STAGED_LEASE_S`.
3. One writer stages at most `STAGED_FILES_MAX` files.

Elsewhere: their bytes (`views.core.index.staged`), commits of them
(`views.aio.serving.outside_writer`).
"""

from __future__ import annotations

import asyncio
import errno
import re
import shutil
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import IO, Final

from millstream.errors import ConditionError, UnavailableError, UsageError
from millstream.views.aio.indexing.sorting import merged
from millstream.views.core.index.header import DocumentRows
from millstream.views.core.index.staged import Row, read_documents, read_rows

__all__ = [
    "PART", "RUN_BYTES_MAX", "STAGED", "STAGED_FILES_MAX", "STAGED_LEASE_S", "Staging", "receive",
]  # fmt: skip

STAGED: Final = "staged"
PART: Final = ".part"
STAGED_LEASE_S: Final = 3600.0
"""Staged files are removed after this time without a message of their writer."""
STAGED_FILES_MAX: Final = 4096
RUN_BYTES_MAX: Final = 4 * 1024 * 1024 * 1024
"""Most bytes of one file."""
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")


async def receive(place: Path, pieces: AsyncIterator[bytes]) -> None:
    """Write a file as it comes; what is cut off leaves nothing.

    Raises:
        UsageError: `too_large`; what `pieces` raises.
        UnavailableError: `disk_full`.
    """
    size = 0
    try:
        with _created(place) as file:
            async for piece in pieces:
                size += len(piece)
                if size > RUN_BYTES_MAX:
                    raise UsageError(
                        f"a run has at most {RUN_BYTES_MAX} bytes: read in more tasks",
                        code="too_large",
                    )
                await asyncio.to_thread(file.write, piece)
            await asyncio.to_thread(file.flush)
    except BaseException as error:
        _unlinked(place)
        if isinstance(error, OSError) and error.errno in _FULL:
            raise UnavailableError("no space for staged files", code="disk_full") from error
        raise


def _created(place: Path) -> IO[bytes]:
    return place.open("wb")


def _unlinked(place: Path) -> None:
    place.unlink(missing_ok=True)


class Staging:
    """Blocking, but for what looks at memory alone.

    Args:
        folder: of the index.
    """

    def __init__(self, folder: Path) -> None:
        self._root = folder / STAGED
        self._heard_at = time.monotonic()

    def heard(self) -> None:
        """The writer has said something."""
        self._heard_at = time.monotonic()

    @property
    def silent_s(self) -> float:
        """Seconds since the writer has said something, or since this was made."""
        return time.monotonic() - self._heard_at

    def place(self, fence: int, name: str) -> Path:
        """Return where a file is to be written.

        Raises:
            UsageError: `bad_run_name`.
            UnavailableError: `too_many_runs`.
        """
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"run name {name[:100]!r}: 1 to 100 of letters, digits, - and _",
                code="bad_run_name",
            )
        folder = self._root / str(fence)
        folder.mkdir(parents=True, exist_ok=True)
        if sum(1 for _ in folder.iterdir()) >= STAGED_FILES_MAX:
            raise UnavailableError(
                f"{STAGED_FILES_MAX} files are staged: read in fewer tasks", code="too_many_runs"
            )
        return folder / (name + PART)

    def finish(self, fence: int, name: str) -> None:
        """A file is whole.

        Raises:
            ConditionError: `run_missing`.
        """
        path = self._root / str(fence) / name
        try:
            path.with_name(name + PART).rename(path)
        except FileNotFoundError as error:
            raise _missing(name) from error

    def names(self, fence: int) -> list[str]:
        """Return the files that are whole."""
        folder = self._root / str(fence)
        found = folder.iterdir() if folder.is_dir() else ()
        return sorted(path.name for path in found if path.suffix != PART)

    def rows(
        self, fence: int, names: Sequence[str], check: Callable[[], None]
    ) -> Iterator[list[Row]]:
        """Yield the rows of sorted files in one order.

        Args:
            fence: under which they were staged.
            names: of the files.
            check: called now and then, may raise.
        """
        files = [self._open(fence, name) for name in names]
        try:
            runs = [read_rows(file, name) for file, name in zip(files, names, strict=True)]
            for portion in merged(runs):
                check()
                yield portion
        finally:
            for file in files:
                file.close()

    def documents(self, fence: int, names: Iterable[str]) -> Iterator[DocumentRows]:
        """Yield the documents of files."""
        for name in names:
            with self._open(fence, name) as file:
                yield from chain.from_iterable(read_documents(file, name))

    def remove(self, fence: int, names: Iterable[str]) -> None:
        """Remove files that were taken in."""
        for name in names:
            (self._root / str(fence) / name).unlink(missing_ok=True)

    def remove_whole(self, fence: int) -> None:
        """Remove files that a writer staged and no commit took in; what still comes stays."""
        folder = self._root / str(fence)
        if folder.is_dir():
            for path in folder.iterdir():
                if path.suffix != PART:
                    path.unlink(missing_ok=True)

    def keep_only(self, fence: int) -> None:
        """Remove what other writers left."""
        if self._root.is_dir():
            for folder in self._root.iterdir():
                if folder.name != str(fence):
                    shutil.rmtree(folder, ignore_errors=True)

    def expire(self) -> bool:
        """Remove what a writer left of which nothing was heard; return whether there was any."""
        if time.monotonic() - self._heard_at < STAGED_LEASE_S or not self._root.is_dir():
            return False
        shutil.rmtree(self._root, ignore_errors=True)
        return True

    def _open(self, fence: int, name: str) -> IO[bytes]:
        if not _NAME.fullmatch(name):
            raise _missing(name)
        try:
            return (self._root / str(fence) / name).open("rb")
        except FileNotFoundError as error:
            raise _missing(name) from error


def _missing(name: str) -> ConditionError:
    return ConditionError(f"no file {name[:100]!r} is staged now: read again", code="run_missing")
