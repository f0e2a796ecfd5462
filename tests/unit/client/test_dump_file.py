"""The file of a dump."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.client import dump_file
from millstream.client.dump_file import DumpFile, DumpWriter
from millstream.client.dump_lines import AttachmentLine, HeaderLine, encode_line
from millstream.errors import CorruptionError, MillstreamError, UsageError

HEADER = HeaderLine("millstream-dump", 1, "b", "aa", 4, "2026-01-01T00:00:00+00:00")


def piece(number: int) -> AttachmentLine:
    return AttachmentLine("k", "ab" * 32, 10, number, bytes(number))


def written(path: Path, count: int = 5) -> bytes:
    with DumpWriter(path, overwrites=False) as writer:
        writer.write(HEADER)
        for number in range(count):
            writer.write(piece(number))
        writer.finish()
    return path.read_bytes()


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "d"
    written(path)
    with DumpFile(path) as dump:
        assert dump.header == HEADER
        assert list(dump.lines()) == list(map(piece, range(5)))
        assert list(dump.lines()) == list(map(piece, range(5)))
        assert dump.done == dump.end.bytes


def test_a_file_that_is_cut_anywhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "d"
    whole = written(path)
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(MillstreamError) as failed:
            DumpFile(path)
        assert failed.value.code in ("dump_incomplete", "not_a_dump")


def test_a_file_that_was_changed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "d"
    whole = written(path)
    lines = whole.splitlines(keepends=True)
    changed = [
        whole.replace(b'"offset":3', b'"offset":4'),
        b"".join([*lines[:2], *lines[3:]]),
        whole + whole,
        b"".join([*lines, lines[2]]),
    ]
    for data in changed:
        path.write_bytes(data)
        with pytest.raises(CorruptionError) as failed:
            DumpFile(path)
        assert failed.value.code in ("bad_dump", "dump_incomplete")


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b'{"id":1}\n', "not_a_dump"),
        (b"", "not_a_dump"),
        (encode_line(HEADER).replace(b'"version":1', b'"version":2'), "dump_version"),
        (encode_line(HEADER).replace(b"millstream-dump", b"other"), "not_a_dump"),
    ],
)
def test_what_is_no_dump_that_can_be_read_is_the_users_error(
    tmp_path: Path, data: bytes, code: str
) -> None:
    path = tmp_path / "d"
    path.write_bytes(data)
    with pytest.raises(UsageError) as failed:
        DumpFile(path)
    assert failed.value.code == code


def test_a_file_has_its_name_only_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "d"
    with DumpWriter(path, overwrites=False) as writer:
        writer.write(HEADER)
        assert not path.exists()
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_there_is_replaced_only_if_that_is_wanted(tmp_path: Path) -> None:
    path = tmp_path / "d"
    whole = written(path)
    with pytest.raises(UsageError) as failed:
        DumpWriter(path, overwrites=False)
    assert failed.value.code == "file_exists"
    with DumpWriter(path, overwrites=True) as writer:
        assert path.read_bytes() == whole
        writer.write(HEADER)
        writer.finish()
    with DumpFile(path) as dump:
        assert list(dump.lines()) == []


def test_what_a_killed_dump_left_is_no_harm_and_two_dumps_are_not_mingled(tmp_path: Path) -> None:
    path = tmp_path / "d"
    (tmp_path / ".d.part").write_bytes(b"x" * 10_000)
    with DumpWriter(path, overwrites=False) as writer:
        writer.write(HEADER)
        with pytest.raises(UsageError) as failed:
            DumpWriter(path, overwrites=True)
        assert failed.value.code == "file_exists"
        writer.finish()
    with DumpFile(path) as dump:
        assert list(dump.lines()) == []
    assert list(tmp_path.iterdir()) == [path]


def test_what_was_written_after_a_mark_can_be_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "d"
    with DumpWriter(path, overwrites=False) as writer:
        writer.write(HEADER)
        writer.write(piece(1))
        mark = writer.mark()
        for _ in range(2):
            writer.write(piece(2))
            writer.counts["documents"] += 1
            writer.rewind(mark)
        writer.write(piece(3))
        assert writer.finish().documents == 0
    with DumpFile(path) as dump:
        assert list(dump.lines()) == [piece(1), piece(3)]


def test_a_line_that_is_too_long_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "d"
    written(path)
    monkeypatch.setattr(dump_file, "LINE_BYTES_MAX", 100)
    with DumpFile(path) as dump, pytest.raises(CorruptionError):
        list(dump.lines())


def test_what_cannot_be_opened_is_the_users_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        DumpFile(tmp_path / "none")
    with pytest.raises(UsageError):
        DumpWriter(tmp_path / "none" / "d", overwrites=False)
