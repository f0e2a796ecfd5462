"""Checkpoints, answered by hand; what they are worth is tested over whole runs."""

import pytest

from millstream.documents.tokens import Vector
from millstream.errors import ConditionError, UnavailableError
from millstream.model.position import Position
from millstream.replication.core import logs
from millstream.replication.core.asking import (
    Flush,
    Info,
    ReadInfo,
    ReadLocal,
    StoreRecords,
    WriteLocal,
)
from millstream.replication.core.checkpointing import Checkpoint, checkpoint
from millstream.replication.core.coverage import Record
from millstream.replication.core.logs import EXCEPTIONS_MAX, parse_log
from millstream.replication.core.places import Place
from millstream.replication.core.starting import Chain, Pair
from millstream.replication.core.tracking import Mark

END = Vector(1, (Position(1, 5, 5, 5),))
SOURCE = Info("s", "s", branches=(1,))
TARGET = Info("t", "t", end=END, branches=(1,))
RECORD = Record("o", "l", "c", Place("1-x"), END)


class Sides:
    def __init__(self):
        self.source, self.target, self.logs, self.asked = SOURCE, TARGET, {}, []
        self.conflicts = self.silent = 0

    def answer(self, step):
        side, request = step
        self.asked.append((side, type(request)))
        if isinstance(request, ReadInfo | Flush):
            return self.source if side == "source" else self.target
        if isinstance(request, ReadLocal):
            return self.logs.get(side)
        if isinstance(request, WriteLocal):
            if self.conflicts > 0:
                self.conflicts -= 1
                if self.silent:  # the earlier attempt had gone well
                    self.logs[side] = {**request.body, "_rev": "0-1"}
                raise ConditionError("no", code="conflict")
            self.logs[side] = {**request.body, "_rev": "0-1"}
            return None
        assert isinstance(request, StoreRecords)
        self.stored = request.records
        return None

    def run(self, chain=None, **mark):
        wanted = Checkpoint(
            "new", Mark(Place("9-x"), True, **mark), chain or Chain(True, 0), {"n": 1}, 0
        )
        steps = checkpoint(Pair(SOURCE, TARGET, "log", None), wanted)
        step = next(steps)
        while True:
            try:
                answer = self.answer(step)
            except ConditionError as error:
                step = steps.throw(error)
                continue
            try:
                step = steps.send(answer)
            except StopIteration as end:
                return end.value


@pytest.fixture
def sides():
    return Sides()


def test_the_target_is_flushed_then_both_logs_are_written_the_sources_first(sides):
    entry = sides.run()
    assert entry.is_complete
    assert entry.target_vec == END
    assert sides.asked[0] == ("target", Flush)
    assert [side for side, kind in sides.asked if kind is WriteLocal] == ["source", "target"]
    assert parse_log(sides.logs["source"]).entries == parse_log(sides.logs["target"]).entries
    assert sides.logs["source"]["source_uuid"] == "s"


@pytest.mark.parametrize(("side", "other"), [
    ("target", {"branches": (2,)}), ("target", {"uuid": "new"}), ("source", {"uuid": "new"}),
])  # fmt: skip
def test_nothing_is_recorded_if_writes_may_be_lost(sides, side, other):
    setattr(sides, side, getattr(sides, side)._replace(**other))
    assert sides.run() is None
    assert sides.logs == {}


def test_a_source_may_go_back(sides):
    sides.source = SOURCE._replace(branches=(7,))
    assert sides.run() is not None


def test_a_purge_at_the_target_and_too_many_exceptions_end_completeness(sides):
    sides.target = TARGET._replace(purge_epoch=1)
    assert not sides.run().is_complete
    assert sides.run(Chain(True, 1)).is_complete
    many = Chain(True, 1, frozenset(map(str, range(EXCEPTIONS_MAX + 1))))
    entry = sides.run(many)
    assert not entry.is_complete
    assert len(entry.exceptions) == EXCEPTIONS_MAX + 1
    assert entry.dropped == 0


def test_refused_documents_are_remembered_up_to_a_bound_and_counted_beyond(sides, monkeypatch):
    names = frozenset(f"n{n:05}" for n in range(logs.REFUSED_MAX + 7))
    entry = sides.run(Chain(True, 0, names, dropped=5))
    assert entry.exceptions == tuple(sorted(names)[: logs.REFUSED_MAX])
    assert entry.dropped == 12
    assert parse_log(sides.logs["target"]).entries[0] == parse_log(sides.logs["source"]).entries[0]
    assert parse_log(sides.logs["target"]).entries[0].dropped == 12
    monkeypatch.setattr(logs, "REFUSED_BYTES_MAX", 60)
    assert sides.run(Chain(True, 0, names)).exceptions == tuple(sorted(names)[:10])


def test_a_conflict_is_read_again(sides):
    sides.conflicts = 2
    assert sides.run() is not None
    assert set(sides.logs) == {"source", "target"}


def test_an_earlier_attempt_may_have_gone_well(sides):
    sides.conflicts = sides.silent = 1
    sides.run()
    assert [kind for side, kind in sides.asked if side == "source"].count(WriteLocal) == 1


def test_a_log_that_changes_all_the_time_is_given_up(sides):
    sides.conflicts = 99
    with pytest.raises(UnavailableError, match="run twice"):
        sides.run()


def test_records_are_stored_last(sides):
    sides.run(records=(RECORD,))
    assert sides.asked[-1] == ("target", StoreRecords)
    assert sides.stored[0].stamp == END
    assert sides.stored[0].via == ("s",)
