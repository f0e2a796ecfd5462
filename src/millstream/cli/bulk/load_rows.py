r"""Rows of JSON lines, JSON arrays, CSV and Parquet files, each with the place that follows it.

Invariants:
1. Reading from the place of a row gives exactly the rows after it.
2. A place in a text file covers whole bytes of it: its digest is that of the bytes before it, so
   that a file whose read part was changed is noticed.
3. An error names file and line (of Parquet: row).

CSV cells: plain integers and decimals become numbers, `true` and `false` truth values, empty cells
null; everything else, `007` and `1e5` too, stays text. Parquet types become JSON: times as ISO
text, decimals as text, bytes as base64.

Elsewhere: where places are kept (`cli.bulk.load_state`), the load itself (`cli.bulk.load`).
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from millstream.cli.bulk.json_array import Element, elements, is_array
from millstream.errors import MillstreamError, UsageError

__all__ = [
    "Place", "Row", "RowError", "RowReader", "array_rows", "format_of", "json_row", "open_rows",
]  # fmt: skip

LINE_BYTES_MAX: Final = 32 * 1024 * 1024
CSV_FIELD_BYTES_MAX: Final = 20 * 1024 * 1024
READ_BYTES: Final = 1024 * 1024
PARQUET_BATCH_ROWS: Final = 4096
_NUMBER: Final = re.compile(r"-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,17})?")
_decode: Final = msgspec.json.Decoder(dict[str, Any]).decode
_TRUTHS: Final = {"true": True, "false": False}
_FORMATS: Final = {
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
}


class Place(NamedTuple):
    """After `line` lines (or Parquet rows) and `offset` bytes of text.

    `digest` is that of the bytes before `offset`; of a Parquet file, its size and time.
    """

    line: int = 0
    offset: int = 0
    digest: str = ""


class Row(NamedTuple):
    """One document: `value` is what the client stores, `fields` what its key is taken from."""

    fields: dict[str, Any]
    value: Any
    line: int


class RowError(MillstreamError):
    """A row that cannot be loaded; the message names file and line."""

    default_code = "bad_row"


class RowReader(Protocol):
    """Rows of one file after a place."""

    @property
    def size(self) -> int:
        """Bytes of a text file, rows of a Parquet file: what `done` grows to."""

    @property
    def done(self) -> int:
        """How much of `size` has been read."""

    @property
    def place(self) -> Place:
        """The place after the row taken last."""

    def rows(self) -> Iterator[Row | None]:
        """Yield the rows that follow, and None where no more is there yet; raises RowError."""

    def close(self) -> None:
        """Close the file."""


def format_of(path: Path) -> str:
    """Return json, csv or parquet, by the file's name.

    Raises:
        UsageError: `unknown_format`.
    """
    found = _FORMATS.get(path.suffix.lower())
    if found is None:
        raise UsageError(
            f"{path}: its format is unknown; name it .jsonl, .csv, .tsv or .parquet",
            code="unknown_format",
        )
    return found


def open_rows(path: Path, place: Place, *, keeps_text: bool = False) -> RowReader:
    """Open a file after a place reached before.

    Args:
        path: the file.
        place: what has been read; the default is nothing.
        keeps_text: CSV cells stay text.

    Raises:
        UsageError: `bad_file`, `unknown_format`, `file_changed`, `no_parquet`.
    """
    kind = format_of(path)
    try:
        if kind == "parquet":
            return _ParquetReader(path, place)
        if kind == "csv":
            return _CsvReader(path, place, keeps_text=keeps_text)
        return _ArrayReader(path, place) if _is_array(path) else _JsonReader(path, place)
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror or error}", code="bad_file"
        ) from error


class _TextReader:
    """Lines of a text file, counted and digested."""

    def __init__(self, path: Path, place: Place) -> None:
        self._path = path
        self._file = path.open("rb")
        self.size = path.stat().st_size
        self._line, self._offset = place.line, place.offset
        self._digest = blake2b(digest_size=16)
        left = place.offset
        while left > 0:
            piece = self._file.read(min(left, READ_BYTES))
            if not piece:
                break
            self._digest.update(piece)
            left -= len(piece)
        if place.digest and self._digest.hexdigest() != place.digest:
            self.close()
            raise _changed(path)

    @property
    def done(self) -> int:
        return self._offset

    @property
    def place(self) -> Place:
        return Place(self._line, self._offset, self._digest.hexdigest())

    def close(self) -> None:
        self._file.close()

    def _lines(self) -> Iterator[bytes]:
        while True:
            line = self._file.readline(LINE_BYTES_MAX + 1)
            if not line:
                return
            self._line += 1
            if len(line) > LINE_BYTES_MAX:
                raise self._bad(f"longer than {LINE_BYTES_MAX} bytes")
            self._offset += len(line)
            self._digest.update(line)
            yield line

    def _bad(self, why: str) -> RowError:
        return RowError(f"{self._path}, line {self._line}: {why}")


class _JsonReader(_TextReader):
    def rows(self) -> Iterator[Row]:
        for line in self._lines():
            row = json_row(self._path, line, self._line)
            if row is not None:
                yield row


def json_row(where: object, line: bytes, number: int) -> Row | None:
    """Return the row of a line, None if it is empty.

    Raises:
        RowError: it is no JSON object; names `where`, the file, and the number of the line.
    """
    text = line.strip()
    if not text:
        return None
    try:
        fields = _decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RowError(
            f"{where}, line {number}: one JSON object a line is expected: {error}"
        ) from error
    return Row(fields, msgspec.Raw(text), number)


class _ArrayReader(_TextReader):
    """Objects of one JSON array."""

    def rows(self) -> Iterator[Row]:
        is_begun, line = self._offset > 0, max(self._line, 1)
        for row, element in array_rows(self._path, self._file.read, is_begun=is_begun, line=line):
            for piece in element:
                self._offset += len(piece)
                self._digest.update(piece)
            self._line = row.line + element.text.count(b"\n")
            yield row


def array_rows(
    where: object, read: Callable[[int], bytes], *, is_begun: bool, line: int
) -> Iterator[tuple[Row, Element]]:
    """Yield the rows of an array, each with what was read for it.

    Args:
        where: the file, for errors.
        read: as of `json_array.elements`.
        is_begun: it is read from behind an element on.
        line: that is read, from 1.

    Raises:
        RowError: it is no array of objects.
    """
    found = elements(read, is_begun=is_begun)
    while True:
        try:
            element = next(found, None)
            if element is None:
                return
            line += element.before.count(b"\n")
            fields = _decode(element.text)
        except (ValueError, msgspec.MsgspecError, RecursionError) as error:
            raise RowError(
                f"{where}, line {line}: an array of JSON objects is expected: {error}"
            ) from error
        yield Row(fields, msgspec.Raw(element.text), line), element
        line += element.text.count(b"\n")


def _is_array(path: Path) -> bool:
    with path.open("rb") as file:
        return is_array(file.read(READ_BYTES))


class _CsvReader(_TextReader):
    def __init__(self, path: Path, place: Place, *, keeps_text: bool) -> None:
        super().__init__(path, Place())
        self._convert: Callable[[str], Any] = str if keeps_text else _cell_value
        self._delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
        csv.field_size_limit(CSV_FIELD_BYTES_MAX)
        try:
            self._header = self._read_header()
        except RowError:
            self.close()
            raise
        if place.offset > self._offset:
            self.close()
            super().__init__(path, place)

    def _read_header(self) -> list[str]:
        cells = next(self._cells(), [])
        if not cells or len(set(cells)) < len(cells) or not all(cells):
            raise self._bad("the first line of a CSV file names its columns, each once")
        return cells

    def _cells(self) -> Iterator[list[str]]:
        """Yield the cells of each row; nothing is read ahead of the row taken."""
        found = csv.reader(self._texts(), delimiter=self._delimiter, strict=True)
        while True:
            try:
                cells = next(found, None)
            except (csv.Error, UnicodeDecodeError) as error:
                raise self._bad(str(error)) from error
            if cells is None:
                return
            if cells:
                yield cells

    def _texts(self) -> Iterator[str]:
        for line in self._lines():
            yield line.decode("utf-8-sig" if self._line == 1 else "utf-8")

    def rows(self) -> Iterator[Row]:
        header, convert = self._header, self._convert
        for cells in self._cells():
            if len(cells) != len(header):
                raise self._bad(f"{len(cells)} cells, the first line names {len(header)} columns")
            fields = dict(zip(header, map(convert, cells), strict=True))
            yield Row(fields, fields, self._line)


class _ParquetReader:
    def __init__(self, path: Path, place: Place) -> None:
        try:
            from pyarrow import ArrowInvalid
            from pyarrow.parquet import ParquetFile
        except ImportError as error:
            raise UsageError(
                "Parquet files need pyarrow; install millstream[spark]", code="no_parquet"
            ) from error
        status = path.stat()
        self._identity = f"{status.st_size}:{status.st_mtime_ns}"
        if place.digest not in ("", self._identity):
            raise _changed(path)
        try:
            self._file = ParquetFile(path)
        except ArrowInvalid as error:
            raise UsageError(f"{path} is no Parquet file: {error}", code="bad_file") from error
        self._line = place.line
        self.size = int(self._file.metadata.num_rows)

    @property
    def done(self) -> int:
        return self._line

    @property
    def place(self) -> Place:
        return Place(self._line, 0, self._identity)

    def close(self) -> None:
        self._file.close()

    def rows(self) -> Iterator[Row]:
        skip = self._line
        for batch in self._file.iter_batches(PARQUET_BATCH_ROWS):
            if skip >= batch.num_rows:
                skip -= batch.num_rows
                continue
            for fields in batch.slice(skip).to_pylist():
                self._line += 1
                yield Row(fields, fields, self._line)
            skip = 0


def _cell_value(text: str) -> str | int | float | bool | None:
    if not text:
        return None
    if _NUMBER.fullmatch(text):
        return float(text) if "." in text else int(text)
    return _TRUTHS.get(text, text)


def _changed(path: Path) -> UsageError:
    return UsageError(
        f"{path} has changed in the part that was loaded before; remove the file that keeps the "
        "place to load it from its beginning",
        code="file_changed",
    )
