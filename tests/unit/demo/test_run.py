"""The work directory of the demonstration; the whole of it runs in tests/e2e."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from rich.console import Console

from millstream.demo import run
from millstream.demo.run import _Demo, clean, prepare
from millstream.errors import UsageError
from millstream.model.position import Position


def test_what_an_interrupted_run_left_is_removed(tmp_path):
    prepare(tmp_path / "new")
    (tmp_path / "new" / "node").mkdir()
    prepare(tmp_path / "new")
    assert not (tmp_path / "new" / "node").exists()
    clean(tmp_path / "new")
    assert list((tmp_path / "new").iterdir()) == []


def test_a_kept_run_is_not_touched(tmp_path):
    (tmp_path / "node").mkdir()
    with pytest.raises(UsageError) as caught:
        prepare(tmp_path)
    assert caught.value.code == "not_empty"
    assert (tmp_path / "node").exists()


class Reader(list):
    """A replay of (key, value) pairs whose pause is after the third."""

    def changes(self, start, stop):
        return iter(self[start:stop])

    def pause_point(self):
        return 3


def test_changes_of_what_was_written_before_the_pause_are_counted(tmp_path):
    demo = _Demo(Console(), tmp_path)
    replay = [("a", 1), ("b", 1), ("c", 1), ("a", 2), ("d", 1), ("b", None), ("d", 2), ("a", 3)]
    demo._count_late_changes(Reader(replay))
    assert (demo._outcome.updates, demo._outcome.deletes) == (2, 1)


@pytest.mark.parametrize(
    ("ends", "is_reached"),
    [((4, 1), False), ((5, 0), True), ((6, 2), True), ((5, 1), True)],
)
def test_an_index_has_reached_seqnos(ends, is_reached, tmp_path, monkeypatch):
    where = {p: Position(1, end, end, end) for p, end in enumerate(ends)}
    state = SimpleNamespace(where=where)
    monkeypatch.setattr(run, "index_state_of", lambda source, ddoc: state)
    demo = _Demo(Console(), tmp_path)
    assert demo._has_reached("d", {0: 5, 1: 0}) is is_reached
    where[0] = Position(1, 9, 2, 12)
    assert not demo._has_reached("d", {0: 5, 1: 0}), "inside a snapshot nothing is sure"
