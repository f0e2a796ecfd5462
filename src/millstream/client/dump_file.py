"""The file of a dump: written beside its name, recognised when it is cut.

Invariants:
1. A file has its name only when it is whole and durable.
2. A file without its end line, or with other bytes before it than were written, is refused before
   anything is taken from it.
3. No line is longer than `LINE_BYTES_MAX`, and one at a time is held.

Elsewhere: what lines say (`client.dump_lines`).
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, Self

from millstream.client.dump_lines import (
    FORMAT,
    VERSION,
    EndLine,
    HeaderLine,
    Line,
    decode_line,
    encode_line,
)
from millstream.errors import CorruptionError, UsageError
from millstream.runtime.files import sync_directory

__all__ = ["LINE_BYTES_MAX", "DumpFile", "DumpWriter", "Mark"]

LINE_BYTES_MAX: Final = 256 * 1024 * 1024
"""A value and a sidecar of 20 MiB each, or a design document with its attachments."""
END_BYTES_MAX: Final = 4096
READ_BYTES: Final = 1024 * 1024
MODE: Final = 0o600


class Mark(NamedTuple):
    """A place in a file that is being written."""

    offset: int
    digest: Any
    counts: dict[str, int]


class DumpWriter:
    """Writes a dump; what is left without `finish` is removed.

    Args:
        path: of the file.
        overwrites: replace a file that is there.

    Raises:
        UsageError: `file_exists`, `bad_file`.
    """

    def __init__(self, path: Path, *, overwrites: bool) -> None:
        self.path = path
        self.counts = {
            "documents": 0, "deletions": 0, "designs": 0, "attachments": 0,
            "missing_attachments": 0,
        }  # fmt: skip
        self._overwrites = overwrites
        self._beside = path.with_name(f".{path.name}.part")
        self._offset, self._digest = 0, sha256()
        self._is_finished = False
        self._check_free()
        self._file = self._opened()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._is_finished:
            self._beside.unlink(missing_ok=True)
        self._file.close()

    def write(self, line: Line) -> None:
        """Write a line."""
        self.write_encoded(encode_line(line))

    def write_encoded(self, data: bytes) -> None:
        """Write a whole line that was encoded before."""
        assert len(data) <= LINE_BYTES_MAX, "what a line is made of is bounded"
        self._file.write(data)
        self._digest.update(data)
        self._offset += len(data)

    def mark(self) -> Mark:
        """Return the present place."""
        return Mark(self._offset, self._digest.copy(), dict(self.counts))

    def rewind(self, mark: Mark) -> None:
        """Forget what was written after a place."""
        self._file.seek(mark.offset)
        self._file.truncate()
        self._offset, self._digest = mark.offset, mark.digest.copy()
        self.counts = dict(mark.counts)

    def finish(self) -> EndLine:
        """Write the end line, and give the file its name; return the line.

        Raises:
            UsageError: `file_exists`.
        """
        end = EndLine(self._offset, self._digest.hexdigest(), **self.counts)
        self._file.write(encode_line(end))
        self._file.flush()
        os.fsync(self._file.fileno())
        self._check_free()
        self._beside.rename(self.path)
        self._is_finished = True
        sync_directory(self.path.parent)
        return end

    def _opened(self) -> BinaryIO:
        """Open the file beside, which a dump that was killed may have left."""
        try:
            descriptor = os.open(self._beside, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, MODE)
        except OSError as error:
            raise UsageError(
                f"cannot write {self.path}: {error.strerror}", code="bad_file"
            ) from error
        file = open(descriptor, "wb")  # noqa: SIM115  # closed by __exit__
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_mine = os.path.samestat(os.fstat(descriptor), self._beside.stat())
        except (BlockingIOError, FileNotFoundError):
            is_mine = False
        if not is_mine:
            file.close()
            raise UsageError(f"another dump writes {self.path}", code="file_exists")
        file.truncate()
        return file

    def _check_free(self) -> None:
        if self.path.exists() and not self._overwrites:
            raise UsageError(
                f"{self.path} exists already; give another name, or --overwrite to replace it",
                code="file_exists",
            )


class DumpFile:
    """A dump that is whole.

    Args:
        path: of the file.

    Raises:
        UsageError: `bad_file`: it cannot be read; `not_a_dump`; `dump_version`.
        CorruptionError: `dump_incomplete`: it was cut; `bad_dump`: its bytes are other ones.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = path.open("rb")
            self.size = os.fstat(self._file.fileno()).st_size
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror}", code="bad_file") from error
        try:
            self.header = self._read_header()
            self.end = self._read_end()
            self._check()
        except BaseException:  # also when interrupted: nobody else closes the file
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def done(self) -> int:
        """Bytes of the lines taken so far."""
        return self._file.tell()

    def lines(self) -> Iterator[Line]:
        """Yield the lines between the first and the last.

        Raises:
            CorruptionError: `bad_dump`.
        """
        self._file.seek(0)
        self._line()
        while self._file.tell() < self.end.bytes:
            at = self._file.tell()
            try:
                line = decode_line(self._line())
            except CorruptionError as error:
                raise CorruptionError(
                    f"{self.path}, at byte {at}: {error}", code=error.code
                ) from error
            yield line

    def _line(self) -> bytes:
        line = self._file.readline(LINE_BYTES_MAX + 1)
        if len(line) > LINE_BYTES_MAX:
            raise CorruptionError(
                f"{self.path}: a line is longer than {LINE_BYTES_MAX} bytes", code="bad_dump"
            )
        return line

    def _read_header(self) -> HeaderLine:
        try:
            found = decode_line(self._file.readline(END_BYTES_MAX))
        except CorruptionError:
            found = None
        if not isinstance(found, HeaderLine) or found.format != FORMAT:
            raise UsageError(f"{self.path} is no dump of a bucket", code="not_a_dump")
        if found.version != VERSION:
            raise UsageError(
                f"{self.path} is a dump of version {found.version}, known is {VERSION}: restore "
                "it with a newer release",
                code="dump_version",
            )
        return found

    def _read_end(self) -> EndLine:
        self._file.seek(max(0, self.size - END_BYTES_MAX))
        tail = self._file.read(END_BYTES_MAX)
        line = tail[tail.rfind(b"\n", 0, -1) + 1 :]
        try:
            found = decode_line(line) if line.endswith(b"\n") else None
        except CorruptionError:
            found = None
        if not isinstance(found, EndLine) or found.bytes != self.size - len(line):
            raise CorruptionError(
                f"{self.path} has no end: the dump was cut short, or the file was; nothing was "
                "restored. Take another dump or copy it again",
                code="dump_incomplete",
            )
        return found

    def _check(self) -> None:
        digest, left = sha256(), self.end.bytes
        self._file.seek(0)
        while left:
            piece = self._file.read(min(left, READ_BYTES))
            if not piece:
                break
            digest.update(piece)
            left -= len(piece)
        if digest.hexdigest() != self.end.sha256:
            raise CorruptionError(
                f"{self.path} is damaged: its bytes are not those that were written; nothing was "
                "restored. Take another dump or copy it again",
                code="bad_dump",
            )
