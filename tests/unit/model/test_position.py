"""The one rule that judges positions: every worked case, and properties over random histories."""

import itertools
import random
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.model.limits import FAILOVER_ENTRIES_MAX
from millstream.model.position import (
    FailoverEntry,
    FailoverLog,
    Position,
    common_end,
    entry_below,
    position_at,
    position_from_json,
    position_to_json,
    rollback_seqno,
    upper_of,
    with_new_entry,
)
from support.budget import budget

A, B, C, Z = 0xA, 0xB, 0xC, 0xFF
LOG: FailoverLog = (FailoverEntry(C, 300, 3), FailoverEntry(B, 200, 2), FailoverEntry(A, 0, 1))
HIGH = 450


@pytest.mark.parametrize(
    ("position", "options", "answer"),
    [
        (Position(0, 0, 0, 0), {}, None),  # from the start
        (Position(C, 400, 400, 400), {}, None),
        (Position(B, 250, 250, 250), {}, None),
        (Position(B, 320, 320, 320), {}, 300),  # a complete snapshot beyond the branch
        (Position(B, 300, 300, 300), {}, None),  # and its second try
        (Position(B, 280, 260, 310), {}, 260),  # inside a snapshot that crosses the branch
        (Position(A, 210, 150, 210), {}, 200),  # complete, though its start is far below
        (Position(A, 150, 150, 260), {}, None),  # only the marker was received
        (Position(A, 150, 120, 180), {}, None),
        (Position(C, 430, 420, 460), {}, 420),  # the server lost 451 to 460
        (Position(C, 500, 500, 500), {}, HIGH),  # the reader is ahead
        (Position(Z, 5, 5, 5), {}, 0),  # no common history
        (Position(C, 320, 320, 320), {"purge_seqno": 350}, 0),
        (Position(C, 320, 320, 320), {"purge_seqno": 350, "ignore_purge": True}, None),
        (Position(C, 320, 320, 320, 350), {"purge_seqno": 350}, None),
        (Position(C, 320, 320, 320, 340), {"purge_seqno": 350}, 0),
        (Position(C, 360, 340, 400), {"purge_seqno": 350}, None),
        (Position(Z, 0, 0, 0), {}, None),
        (Position(Z, 0, 0, 0), {"strict_uuid": True}, 0),
        (Position(0, 0, 0, 0), {"strict_uuid": True}, None),
    ],
)
def test_worked_cases(
    position: Position, options: dict[str, int | bool], answer: int | None
) -> None:
    rules = {"purge_seqno": 0, **options}
    assert rollback_seqno(position, log=LOG, high_seqno=HIGH, **rules) == answer  # type: ignore[arg-type]


@st.composite
def histories(draw: st.DrawFn) -> tuple[FailoverLog, int]:
    starts = draw(st.lists(st.integers(1, 300), max_size=5, unique=True))
    log: FailoverLog = (FailoverEntry(1, 0, 1),)
    for number, seqno in enumerate(sorted(starts), 2):
        log = with_new_entry(log, FailoverEntry(number, seqno, number))
    return log, draw(st.integers(log[0].seqno, 400))


@st.composite
def positions(draw: st.DrawFn) -> Position:
    start, seqno, end = sorted(draw(st.lists(st.integers(0, 450), min_size=3, max_size=3)))
    return Position(draw(st.integers(0, 7)), seqno, start, end)


@given(histories(), positions(), st.integers(0, 200))
def test_an_answer_never_sends_a_reader_forward(
    history: tuple[FailoverLog, int], position: Position, purge_seqno: int
) -> None:
    log, high = history
    answer = rollback_seqno(position, log=log, high_seqno=high, purge_seqno=purge_seqno)
    assert answer is None or 0 <= answer <= min(position.seqno, high)


@given(histories(), positions())
def test_undoing_as_told_is_accepted_in_the_end(
    history: tuple[FailoverLog, int], position: Position
) -> None:
    log, high = history
    for _ in range(3):
        answer = rollback_seqno(position, log=log, high_seqno=high, purge_seqno=0)
        if answer is None:
            return
        position = position_at(log, answer, answer, answer)
    pytest.fail(f"still told to undo at {position}")


@given(histories(), st.integers(0, 400))
def test_a_complete_position_of_this_history_is_accepted(
    history: tuple[FailoverLog, int], seqno: int
) -> None:
    log, high = history
    seqno = min(seqno, high)
    position = position_at(log, seqno, seqno, seqno)
    assert position.is_closed
    assert rollback_seqno(position, log=log, high_seqno=high, purge_seqno=0) is None


class Bookmark(NamedTuple):
    """A position, and every write of the history it was read from, up to its snapshot's end."""

    position: Position
    writes: list[int]


class Server:
    """A partition that knows which writes it really holds: number of the write by seqno."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.numbers = itertools.count(1)
        self.writes: list[int] = []
        self.log: FailoverLog = (FailoverEntry(1, 0, 1),)

    def write(self) -> None:
        self.writes += [next(self.numbers) for _ in range(self.rng.randint(1, 9))]

    def fail_over(self) -> None:
        kept = self.rng.randint(max(0, len(self.writes) - 15), len(self.writes))
        del self.writes[kept:]
        branch = next(self.numbers) + 1
        self.log = with_new_entry(self.log, FailoverEntry(branch, kept, branch))

    def bookmark(self) -> Bookmark:
        """A reader stands somewhere inside a snapshot that ends where this history does or did."""
        end = self.rng.randint(0, len(self.writes))
        start = self.rng.randint(0, end)
        seqno = self.rng.choice([start, end, self.rng.randint(start, end)])
        if seqno == end:
            start = end
        return Bookmark(position_at(self.log, seqno, start, end), self.writes[:end])

    def common_seqno(self, writes: list[int]) -> int:
        """How far two histories are the same, write by write."""
        pairs = zip(writes, self.writes, strict=False)
        return len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))

    def expected(self, bookmark: Bookmark) -> int | None:
        """What must be undone, from the writes alone."""
        position, common = bookmark.position, self.common_seqno(bookmark.writes)
        if all(entry.uuid != position.uuid for entry in self.log) and position.seqno:
            return 0  # the server cannot know, so the failover logs must be compared
        is_inside = position.snap_start < position.seqno < position.snap_end
        needed = position.snap_end if is_inside else position.seqno
        if common >= needed:
            return None
        return min(common, position.snap_start if is_inside else position.seqno)


@pytest.mark.parametrize("first_seed", range(0, budget(4000), 1000))
def test_the_answer_is_where_histories_really_part(first_seed: int) -> None:
    answers: set[type] = set()
    for seed in range(first_seed, first_seed + 1000):
        rng = random.Random(seed)
        server = Server(rng)
        bookmarks: list[Bookmark] = []
        for _ in range(rng.randint(1, 12)):
            rng.choice([server.write, server.write, server.fail_over])()
            bookmarks += [server.bookmark() for _ in range(rng.randint(0, 2))]
        for bookmark in bookmarks:
            answer = rollback_seqno(
                bookmark.position, log=server.log, high_seqno=len(server.writes), purge_seqno=0
            )
            assert answer == server.expected(bookmark), f"seed {seed}: {bookmark} {server.log}"
            answers.add(type(answer))
    assert answers == {int, type(None)}


def test_uuid_is_that_of_the_history_the_snapshot_end_lies_in() -> None:
    assert entry_below(LOG, 301).uuid == C
    assert entry_below(LOG, 300).uuid == B
    assert entry_below(LOG, 0).uuid == A
    assert position_at(LOG, 250, 240, 310) == Position(C, 250, 240, 310)


def test_upper_end_of_a_history() -> None:
    assert [upper_of(LOG, uuid, HIGH) for uuid in (C, B, A, Z)] == [HIGH, 300, 200, None]
    assert upper_of(LOG, A, 150) == 150


@pytest.mark.parametrize(
    ("own", "own_high", "common"),
    [
        (LOG, 400, 400),
        (LOG, 500, 450),
        (LOG[1:], 280, 280),
        (LOG[1:], 350, 300),
        ((FailoverEntry(Z, 250, 9), *LOG[1:]), 400, 250),
        ((FailoverEntry(Z, 350, 9), *LOG), 400, 350),
        ((FailoverEntry(Z, 0, 9),), 400, 0),
    ],
)
def test_two_copies_have_the_same_up_to_where_their_histories_part(
    own: FailoverLog, own_high: int, common: int
) -> None:
    assert common_end(own, own_high, LOG, HIGH) == common


def test_a_new_entry_drops_those_above_it_and_the_oldest() -> None:
    assert with_new_entry(LOG, FailoverEntry(9, 250, 9)) == (FailoverEntry(9, 250, 9), *LOG[1:])
    log = LOG
    for number in range(40):
        log = with_new_entry(log, FailoverEntry(100 + number, 400 + number, 100 + number))
    assert len(log) == FAILOVER_ENTRIES_MAX
    assert log[0].uuid == 139


@given(positions(), st.none() | st.integers(0, 2**48))
def test_json_form_can_be_read_back(position: Position, purge_seqno: int | None) -> None:
    position = position._replace(purge_seqno=purge_seqno)
    assert position_from_json(position_to_json(position)) == position


def test_json_form_is_the_documented_one() -> None:
    assert position_to_json(Position(0xABC, 5, 3, 9)) == ["000000000abc", 5, 3, 9]


@pytest.mark.parametrize(
    "form",
    [[], ["00", 1, 2], ["00", 1, 2, 3, 4, 5], [0, 1, 2, 3], ["xy", 1, 1, 1], ["0", -1, 0, 0]],
)
def test_other_json_is_refused(form: list[str | int]) -> None:
    with pytest.raises(ValueError, match=r"position|invalid literal"):
        position_from_json(form)
