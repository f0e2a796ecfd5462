"""Rows of standard input."""

from __future__ import annotations

import os
from collections.abc import Callable
from io import BytesIO
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.cli.bulk import load_stream
from millstream.cli.bulk.load_rows import Place, Row, RowError
from millstream.cli.bulk.load_stream import StreamReader


class Pieces(BytesIO):
    """A stream that gives at most so many bytes at a time."""

    def __init__(self, data: bytes, size: int) -> None:
        super().__init__(data)
        self._size = size

    def read1(self, size: int | None = -1, /) -> bytes:
        return super().read1(self._size)


def rows_of(data: bytes, size: int = 7) -> list[Row]:
    return [row for row in StreamReader(Pieces(data, size)).rows() if row is not None]


@given(
    st.lists(st.sampled_from([b'{"id":"a"}', b"", b"  ", b'{"id":"b\\n"} \r'])), st.integers(1, 30)
)
def test_lines_come_whole_however_they_arrive(lines: list[bytes], size: int) -> None:
    found = rows_of(b"\n".join(lines), size)
    wanted = [(number, line.strip()) for number, line in enumerate(lines, 1) if line.strip()]
    assert [(row.line, bytes(row.value)) for row in found] == wanted


@pytest.mark.parametrize("size", [1, 5, 1000])
def test_an_array_comes_element_by_element(size: int) -> None:
    found = rows_of(b' \n [{"id": "a"},\n {"id":"b"} ] \n', size)
    assert [(row.line, row.fields["id"]) for row in found] == [(2, "a"), (3, "b")]


@pytest.mark.parametrize("data", [b"", b" \n \n"])
def test_nothing_has_no_rows(data: bytes) -> None:
    assert rows_of(data) == []


@pytest.mark.parametrize(
    ("data", "where"), [(b"{}\nnope\n", "line 2"), (b"[{}, 5]", "line 1"), (b"\xff", "line 1")]
)
def test_what_is_no_row_is_named(data: bytes, where: str) -> None:
    with pytest.raises(RowError, match=f"standard input, {where}"):
        rows_of(data)


@pytest.mark.parametrize("data", [b'{"a":"' + b"x" * 200 + b'"}', b" " * 200 + b"{}"])
def test_no_line_is_longer_than_the_limit(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_stream, "LINE_BYTES_MAX", 100)
    with pytest.raises(RowError, match="100"):
        rows_of(data)


def test_what_has_come_is_given_out_while_more_is_awaited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(load_stream, "IDLE_S", 0.01)
    read_end, write_end = os.pipe()
    with open(read_end, "rb") as file, open(write_end, "wb", buffering=0) as writer:
        reader = StreamReader(file)
        rows = reader.rows()
        writer.write(b'{"id":"a"}\n{"id":')
        first: Any = _next_but(rows, lambda row: row is None)
        assert first.fields == {"id": "a"}
        assert next(rows) is None
        writer.write(b'"b"}')
        writer.close()
        second: Any = _next_but(rows, lambda row: row is None)
        assert (second.fields, second.line) == ({"id": "b"}, 2)
        assert list(rows) == []
        assert reader.done == reader.size == 21
        assert reader.place == Place()


def _next_but(rows: Any, is_passed: Callable[[Any], bool]) -> Any:
    return next(row for row in rows if not is_passed(row))


def test_a_stream_that_cannot_be_read_is_an_error() -> None:
    class Broken(BytesIO):
        def read1(self, _: int | None = -1, /) -> bytes:
            raise OSError("it is gone")

    with pytest.raises(RowError, match="it is gone"):
        list(StreamReader(Broken()).rows())
