import shutil
import sys

import msgspec
import pytest

from millstream.errors import CorruptionError
from millstream.views.aio.indexing.index_check import (
    UNCLOSED_OPENS_MAX,
    check_indexes,
    main,
    note_close,
    note_open,
)
from millstream.views.core.index.index_check import IndexCheck
from support.views.filled_index import SHAPE, filled_index

PAGE_BYTES, LOWER = 4096, 12


def contents(path):
    return {each: each.read_bytes() for each in path.rglob("*") if each.is_file()}


def test_all_indexes_of_a_directory_are_checked_and_left_as_they_are(tmp_path):
    assert check_indexes(tmp_path / "none") == []
    filled_index(tmp_path / SHAPE.signature).close()
    (tmp_path / "begun").mkdir()
    (tmp_path / "0123abcd.damaged" / "1").mkdir(parents=True)
    (tmp_path / "0123abcd.damaged" / "1" / "data.mdb").write_bytes(b"rubbish")
    before = contents(tmp_path)
    begun, found = tmp_path / "begun", tmp_path / SHAPE.signature
    checks = {check.signature: check for check in check_indexes(tmp_path)}
    assert checks.keys() == {begun.name, found.name}
    assert contents(tmp_path) == before
    assert not any(check.damage for check in checks.values())
    assert (checks[begun.name].commit, checks[begun.name].rows) == (0, [])
    assert checks[found.name].rows == [200, 100]
    assert checks[found.name].documents == 200
    assert checks[found.name].kept_roots == 6


def test_a_flipped_bit_is_found(tmp_path):
    folder = tmp_path / SHAPE.signature
    store = filled_index(folder)
    store.close()
    file = folder / "1" / "data.mdb"
    data = bytearray(file.read_bytes())
    at = data.index(b"document-00100")
    while at >= 0:
        data[at + 5] ^= 1
        at = data.find(b"document-00100", at + 1)
    file.write_bytes(data)
    (found,) = check_indexes(tmp_path)
    assert "checksum" in found.damage


def test_an_index_of_another_signature_is_reported(tmp_path):
    filled_index(tmp_path / "else").close()
    (found,) = check_indexes(tmp_path)
    assert "is of 0123abcd" in found.damage
    (tmp_path / "else" / "1" / "data.mdb").write_bytes(b"rubbish" * 2000)
    (found,) = check_indexes(tmp_path)
    assert "is damaged" in found.damage


def test_a_page_that_crashes_the_reader_is_damage(tmp_path):
    folder = tmp_path / SHAPE.signature
    filled_index(folder).close()
    file = folder / "1" / "data.mdb"
    data = bytearray(file.read_bytes())
    for page in range(2 * PAGE_BYTES, len(data), PAGE_BYTES):
        data[page + LOWER : page + LOWER + 2] = b"\x00\x00"  # no keys, says its header
    file.write_bytes(data)
    (found,) = check_indexes(tmp_path)
    assert "remove that directory" in found.damage
    assert str(folder) in found.damage


def test_a_child_that_is_killed_is_damage(tmp_path, monkeypatch):
    filled_index(tmp_path / SHAPE.signature).close()
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    (found,) = check_indexes(tmp_path)
    assert (found.signature, "ended with 1;" in found.damage) == (SHAPE.signature, True)


def test_an_index_that_crashed_its_readers_is_checked_before_reopening(tmp_path):
    folder = tmp_path / SHAPE.signature
    note_open(folder)
    filled_index(folder).close()
    for _ in range(2 * UNCLOSED_OPENS_MAX):
        note_open(folder)  # checked in between, and found to be sound
    note_close(folder)
    note_close(folder)
    (folder / "1" / "data.mdb").write_bytes(b"rubbish" * 2000)
    for _ in range(UNCLOSED_OPENS_MAX):
        note_open(folder)
    with pytest.raises(CorruptionError, match="remove that directory") as raised:
        note_open(folder)
    assert raised.value.code == "index_damaged"
    (folder / "opens").write_text("rubbish")
    note_open(folder)


def test_the_child_prints_its_findings(tmp_path, capfdbinary):
    folder = tmp_path / SHAPE.signature
    filled_index(folder).close()
    main(str(folder))
    printed = msgspec.json.decode(capfdbinary.readouterr().out, type=IndexCheck)
    assert [printed] == check_indexes(tmp_path)
