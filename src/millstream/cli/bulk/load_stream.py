"""Rows of standard input as they come: JSON lines, or one array of objects.

Invariants:
1. What has come is given out also while more is awaited: None among the rows says that nothing
   more is there yet.
2. At most `CHUNKS_MAX` pieces of `CHUNK_BYTES` and one line, or one element, are held.

Elsewhere: rows of files (`cli.bulk.load_rows`), who writes them (`cli.bulk.load`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from queue import Empty, Queue
from typing import BinaryIO, Final

from millstream.cli.bulk.json_array import is_array
from millstream.cli.bulk.load_rows import (
    LINE_BYTES_MAX,
    Place,
    Row,
    RowError,
    array_rows,
    json_row,
)

__all__ = ["IDLE_S", "STDIN", "StreamReader"]

STDIN: Final = Path("-")
IDLE_S: Final = 0.2
"""How long nothing comes before what has come is written."""
CHUNK_BYTES: Final = 64 * 1024
CHUNKS_MAX: Final = 16


class StreamReader:
    """Rows of a stream, which a thread reads; there is no going on in it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._chunks: Queue[bytes] = Queue(CHUNKS_MAX)
        self._held = b""
        self._line = 0
        self._failure: OSError | None = None
        self.done = 0
        threading.Thread(target=self._read, name="stdin", daemon=True).start()

    @property
    def size(self) -> int:
        """The bytes so far: the total of a stream is not known."""
        return self.done

    @property
    def place(self) -> Place:
        """The beginning."""
        return Place()

    def close(self) -> None:
        """Leave the stream to its thread, which ends with the process."""

    def rows(self) -> Iterator[Row | None]:
        """Yield rows, and None while nothing comes.

        Raises:
            RowError: what comes is no JSON object.
        """
        while not self._held.strip():
            chunk = self._awaited()
            if not chunk:
                return
            self._held += chunk
            if len(self._held) > LINE_BYTES_MAX:
                raise RowError(f"standard input: more than {LINE_BYTES_MAX} spaces")
        if is_array(self._held):
            for row, _ in array_rows("standard input", self._take, is_begun=False, line=1):
                yield row
        else:
            yield from self._of_lines()

    def _of_lines(self) -> Iterator[Row | None]:
        for line in self._lines():
            if line is None:
                yield None
                continue
            self._line += 1
            row = json_row("standard input", line, self._line)
            if row is not None:
                yield row

    def _lines(self) -> Iterator[bytes | None]:
        rest = bytearray()
        while True:
            chunk = self._held or self._next()
            self._held = b""
            if chunk is None:
                yield None
                continue
            first, *others = chunk.split(b"\n")
            rest += first
            if len(rest) > LINE_BYTES_MAX:
                raise RowError(
                    f"standard input, line {self._line + 1}: longer than {LINE_BYTES_MAX} bytes"
                )
            for other in others:
                yield bytes(rest)
                rest[:] = other
            if not chunk:
                yield bytes(rest)
                return

    def _take(self, _: int = 0) -> bytes:
        """Return what is held, else what comes next; nothing at the end."""
        held, self._held = self._held, b""
        return held or self._awaited()

    def _awaited(self) -> bytes:
        """Wait for the next piece, empty at the end."""
        while (found := self._next()) is None:
            pass
        return found

    def _next(self) -> bytes | None:
        """Return the next piece, empty at the end, None if nothing comes for a while."""
        try:
            chunk = self._chunks.get(timeout=IDLE_S)
        except Empty:
            return None
        if self._failure is not None:
            raise RowError(f"standard input: {self._failure}") from self._failure
        self.done += len(chunk)
        return chunk

    def _read(self) -> None:
        try:
            while chunk := self._file.read1(CHUNK_BYTES):  # type: ignore[attr-defined]
                self._chunks.put(chunk)
        except OSError as error:
            self._failure = error
        self._chunks.put(b"")
