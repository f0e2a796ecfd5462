"""Sinks one by one: what a kill or a failing disk leaves, and what is found afterwards."""

import json
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from millstream.errors import CorruptionError, UnavailableError
from millstream.model.position import FailoverEntry, Position
from millstream.upr.aio import sinks
from millstream.upr.aio.sinks import CallbackSink, JsonLinesSink, SqliteSink
from millstream.upr.core.bookkeeper import (
    Apply,
    Document,
    Effect,
    Forget,
    Keep,
    Remember,
    Restore,
    Rewind,
    Sweep,
)
from millstream.upr.core.kept import Kept, Recent
from millstream.upr.core.repair import LoadState
from millstream.wire.frames import change_of, deletion, mutation

LOG = (FailoverEntry(0xA, 0, 1),)
KEPT = Kept(Position(0xA, 2, 2, 2), LOG, LoadState())
ENTRIES = [Recent(1, b"a"), Recent(2, b"b")]


def apply(*frames: bytes, load: int = 1) -> Apply:
    return Apply(3, load, 0xA, 1, [change_of(frame) for frame in frames])


def put(seqno: int, key: bytes, value: bytes = b"1", cas: int = 7) -> bytes:
    return mutation(3, key, value, seqno, 1, cas, 5, 0, 1)


FIRST: list[Effect] = [
    Remember(3, ENTRIES), apply(put(1, b"a"), put(2, b"b", b"\xff")), Keep(3, KEPT)
]  # fmt: skip


def rows(path: Path) -> list[Any]:
    database = sqlite3.connect(path)
    try:
        return list(database.execute("SELECT * FROM documents ORDER BY key"))
    finally:
        database.close()


def test_sqlite_holds_documents_with_their_load(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    sink = SqliteSink(path)
    sink.write(FIRST)
    assert rows(path) == [(b"a", b"1", 3, 1, 7, 5, 1, 1), (b"b", b"\xff", 3, 2, 7, 5, 1, 1)]
    restored = [Document(b"a", None, 9), Document(b"c", b"x", 4, 8, 6, 0)]
    sink.write([apply(put(3, b"d", cas=(1 << 64) - 1)), Restore(3, 2, restored)])
    sink.write([Sweep(3, 2), Sweep(2, 9), Forget(3, ENTRIES[:1]), Rewind(3, 1, 2, 3)])
    assert rows(path) == [(b"c", b"x", 3, 4, 8, 6, 0, 2)]
    sink.write([apply(put(5, b"d", cas=(1 << 64) - 1), deletion(3, b"c", 6, 1, 9, 0), load=2)])
    assert rows(path) == [(b"d", b"1", 3, 5, -1, 5, 1, 2)]
    sink.close()
    again = SqliteSink(path)
    assert again.load() == {3: (KEPT, (ENTRIES[1],))}
    again.close()


def test_sqlite_takes_all_effects_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = SqliteSink(tmp_path / "s.db")
    sink.write(FIRST[:1])
    perform = sink._perform

    def fail(effect: Effect) -> None:
        perform(effect)
        if isinstance(effect, Keep):
            raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(sink, "_perform", fail)
    with pytest.raises(UnavailableError, match="cannot be written"):
        sink.write([*FIRST, Forget(3, ENTRIES)])
    assert sink.load() == {3: (Kept(), tuple(ENTRIES))}
    assert rows(tmp_path / "s.db") == []
    monkeypatch.undo()
    sink.write(FIRST)
    assert len(rows(tmp_path / "s.db")) == 2
    sink.close()


def test_lines_that_were_not_counted_are_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    sink = JsonLinesSink(path)
    sink.write(FIRST)
    sink.write([Restore(3, 1, [Document(b"a", b"{}", 4)]), Sweep(3, 2), Rewind(3, 1, 0xB, 2)])
    sink.close()
    before = path.read_bytes()
    assert [json.loads(line).get("event", "change") for line in before.splitlines()] == [
        "change", "change", "restore", "sweep", "rollback",
    ]  # fmt: skip
    with path.open("ab") as file:
        file.write(b'{"partition":3,"torn')
    again = JsonLinesSink(path)
    assert path.read_bytes() == before
    assert again.load() == {3: (KEPT, tuple(ENTRIES))}
    again.write([apply(put(3, b"c"))])
    again.close()
    assert path.read_bytes().startswith(before)
    assert len(path.read_bytes().splitlines()) == 6
    path.write_bytes(before[:-1])
    with pytest.raises(CorruptionError, match="were written to it"):
        JsonLinesSink(path)


def test_lines_of_a_failed_write_are_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = JsonLinesSink(tmp_path / "lines")
    sink.write(FIRST)
    before = (tmp_path / "lines").read_bytes()

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("millstream.upr.aio.sinks.os.fdatasync", fail)
    with pytest.raises(UnavailableError, match="No space left"):
        sink.write([apply(put(3, b"c")), Forget(3, ENTRIES)])
    monkeypatch.undo()
    assert sink.load() == {3: (KEPT, tuple(ENTRIES))}
    sink.write([apply(put(3, b"d"))])
    sink.close()
    lines = (tmp_path / "lines").read_bytes()
    assert lines.startswith(before)
    assert [json.loads(line)["key"] for line in lines[len(before) :].splitlines()] == ["d"]


def test_the_ring_is_durable_before_a_call_and_the_place_after_it(tmp_path: Path) -> None:
    path = tmp_path / "place.db"
    seen: list[Any] = []

    def look(effect: Effect) -> None:
        database = sqlite3.connect(path)
        counts = [
            database.execute(f"SELECT count(*) FROM millstream_{table}").fetchone()[0]
            for table in ("ring", "place")
        ]
        database.close()
        seen.append((type(effect).__name__, counts))
        if len(seen) == 1:
            raise KeyboardInterrupt

    sink = CallbackSink(path, look)
    with pytest.raises(KeyboardInterrupt):
        sink.write(FIRST)
    assert sink.load() == {3: (Kept(), tuple(ENTRIES))}
    sink.write([*FIRST, Sweep(3, 1), Forget(3, ENTRIES)])
    assert seen == [("Apply", [2, 0]), ("Apply", [2, 0]), ("Sweep", [2, 1])]
    assert sink.load() == {3: (KEPT, ())}
    sink.close()


@pytest.mark.parametrize("make", [SqliteSink, JsonLinesSink])
def test_what_cannot_be_opened_is_an_error(tmp_path: Path, make: Any) -> None:
    with pytest.raises(UnavailableError):
        make(tmp_path / "nowhere" / "file")
    (tmp_path / "file").write_bytes(b"no database at all" * 100)
    (tmp_path / "file.place").write_bytes(b"no database at all" * 100)
    with pytest.raises(CorruptionError):
        make(tmp_path / "file")


@pytest.mark.parametrize("kind", ["SqliteSink", "JsonLinesSink"])
def test_a_sink_has_one_process_which_takes_its_right_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(sinks, "LOCK_PATIENCE_S", 0.0)
    path, make = tmp_path / "sink", getattr(sinks, kind)
    code = f"import sys; from millstream.upr.aio.sinks import {kind} as make\n"
    code += "sink = make(sys.argv[1]); print('open', flush=True); sys.stdin.read()"
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"open\n"
        if kind == "JsonLinesSink":
            path.write_bytes(b"being written")
        before = {one: one.read_bytes() for one in tmp_path.iterdir()}
        with pytest.raises(
            UnavailableError, match=rf"process {child.pid}\) follows into"
        ) as caught:
            make(path)
        assert caught.value.code == "sink_in_use"
        assert {one: one.read_bytes() for one in tmp_path.iterdir()} == before
        child.send_signal(signal.SIGKILL)
    monkeypatch.undo()
    sink = make(path)
    sink.write(FIRST)
    sink.close()
    make(path).close()


def test_a_sink_that_cannot_be_opened_is_nobodys(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"no database at all" * 100)
    for _ in range(2):
        with pytest.raises(CorruptionError):
            CallbackSink(tmp_path / "file", print)
