"""What a majority has, against a model that goes through all copies each time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from millstream.kv.core.partition.acknowledgement import AWAITED_NS_MAX, Acknowledged
from millstream.model.rows import Row
from support.budget import budget

NAMES = ("a", "b", "c", "d", "x")
"""`a` is this node; `x` is in no row."""


@dataclass
class Own:
    epoch: int = 0
    high_seqno: int = 0
    persisted_seqno: int = 0


def following(*row: str | None, high: int = 50, persisted: int = 0) -> tuple[Own, Acknowledged]:
    own = Own(high_seqno=high, persisted_seqno=persisted)
    acknowledged = Acknowledged(own)
    acknowledged.set_rows((row,), "a")
    return own, acknowledged


def test_alone_a_majority_is_this_copy() -> None:
    own = Own(high_seqno=7, persisted_seqno=5)
    acknowledged = Acknowledged(own)
    for _ in range(2):
        assert acknowledged.is_alone
        assert acknowledged.is_possible
        assert (acknowledged.majority_seqno, acknowledged.durable_seqno) == (7, 5)
        acknowledged.set_rows((("a",),), "a")


def test_of_two_both_are_a_majority() -> None:
    own, acknowledged = following("a", "b", persisted=20)
    assert not acknowledged.is_possible
    acknowledged.join("b", 1)
    assert acknowledged.is_possible
    assert (acknowledged.majority_seqno, acknowledged.durable_seqno) == (0, 0)
    assert acknowledged.acknowledge("b", 1, 30, 25)
    assert (acknowledged.majority_seqno, acknowledged.durable_seqno) == (30, 20)
    own.persisted_seqno = 40
    assert acknowledged.durable_seqno == 25
    assert not acknowledged.acknowledge("b", 1, 30, 25)


def test_missing_copies_are_awaited_for_some_seconds_from_the_first_missing_write_on() -> None:
    own, acknowledged = following("a", "b")
    now = 1_000
    for begin in (
        lambda: acknowledged.leave("b", 1),
        lambda: setattr(own, "epoch", own.epoch + 1),
        lambda: acknowledged.set_rows((("a", "c"),), "a"),
    ):
        assert acknowledged.are_awaited(now)
        assert acknowledged.are_awaited(now + AWAITED_NS_MAX - 1)
        assert not acknowledged.are_awaited(now + AWAITED_NS_MAX)
        now += 10 * AWAITED_NS_MAX
        assert not acknowledged.are_awaited(now), "not once more"
        acknowledged.join("b", 1)
        assert not acknowledged.are_awaited(now)
        begin()
    assert acknowledged.are_awaited(now)


def test_two_others_of_three_make_a_change_durable_before_this_copy_does() -> None:
    _, acknowledged = following("a", "b", "c", persisted=5)
    acknowledged.join("b", 1)
    acknowledged.join("c", 2)
    acknowledged.acknowledge("b", 1, 40, 40)
    assert (acknowledged.majority_seqno, acknowledged.durable_seqno) == (40, 5)
    acknowledged.acknowledge("c", 2, 30, 30)
    assert (acknowledged.majority_seqno, acknowledged.durable_seqno) == (40, 30)


def test_an_empty_place_never_answers_and_strangers_do_not_count() -> None:
    _, acknowledged = following("a", None, "b")
    acknowledged.join("x", 1)
    acknowledged.acknowledge("x", 1, 50, 50)
    assert not acknowledged.is_possible
    assert acknowledged.majority_seqno == 0
    acknowledged.join("b", 2)
    assert acknowledged.is_possible
    acknowledged.set_rows((("a", None, "x"),), "a")  # its end is known, the row is not the same
    assert acknowledged.majority_seqno == 50


def test_an_older_stream_of_the_same_name_is_not_heard_any_more() -> None:
    _, acknowledged = following("a", "b")
    acknowledged.join("b", 1)
    acknowledged.join("b", 2)
    assert not acknowledged.acknowledge("b", 1, 40, 40)
    acknowledged.leave("b", 1)
    assert acknowledged.is_possible
    assert acknowledged.majority_seqno == 0
    acknowledged.leave("b", 2)
    acknowledged.leave("b", 2)
    assert not acknowledged.is_possible


def test_what_a_majority_had_stays_reached_until_the_history_is_another() -> None:
    own, acknowledged = following("a", "b", persisted=10)
    acknowledged.join("b", 1)
    acknowledged.acknowledge("b", 1, 30, 30)
    acknowledged.leave("b", 1)
    own.persisted_seqno = 20
    assert (acknowledged.majority_seqno, acknowledged.durable_seqno) == (30, 20)
    acknowledged.join("b", 2)
    own.epoch += 1
    assert not acknowledged.is_possible
    assert (acknowledged.majority_seqno, acknowledged.durable_seqno) == (0, 0)
    assert not acknowledged.acknowledge("b", 2, 40, 40)


@pytest.mark.parametrize(("row", "majority"), [(1, 1), (2, 2), (3, 2), (4, 3)])
def test_more_than_half_is_a_majority(row: int, majority: int) -> None:
    assert following(*NAMES[:row])[1].majority == majority


def both(*rows: Row, high: int = 50, persisted: int = 50) -> Acknowledged:
    acknowledged = Acknowledged(Own(high_seqno=high, persisted_seqno=persisted))
    acknowledged.set_rows(rows, "a")
    for stream, name in enumerate(acknowledged.row):
        acknowledged.join(name, stream)
    return acknowledged


def test_with_two_rows_in_force_a_majority_is_one_of_each() -> None:
    acknowledged = both(("a", "b"), ("c", "d", "a"))
    assert acknowledged.row == ("b", "c", "d")
    acknowledged.acknowledge("b", 0, 40, 35)
    assert (acknowledged.majority_seqno, acknowledged.durable_seqno) == (0, 0)
    assert acknowledged.acknowledge("c", 1, 30, 25)
    assert (acknowledged.majority_seqno, acknowledged.durable_seqno) == (30, 25)
    assert acknowledged.is_possible
    acknowledged.leave("b", 0)
    assert not acknowledged.is_possible
    acknowledged.join("b", 5)
    acknowledged.leave("c", 1)
    assert acknowledged.is_possible, "a and d are a majority of the second row"
    acknowledged.leave("d", 2)
    assert not acknowledged.is_possible


def test_a_copy_that_leaves_the_second_row_is_no_majority_of_it() -> None:
    assert both(("a",)).is_alone
    acknowledged = both(("a",), ("b",))
    assert not acknowledged.is_alone
    assert acknowledged.majority_seqno == 0
    acknowledged.acknowledge("b", 0, 50, 20)
    assert (acknowledged.majority_seqno, acknowledged.durable_seqno) == (50, 20)


def test_what_was_durable_before_a_row_was_added_is_kept() -> None:
    own, acknowledged = following("a", "b")
    own.persisted_seqno = 50
    acknowledged.join("b", 0)
    acknowledged.acknowledge("b", 0, 40, 40)
    acknowledged.set_rows((("a", "b"), ("c",)), "a")
    assert (acknowledged.durable_seqno, acknowledged.kept_seqno) == (0, 40)


def test_the_last_row_is_confirmed_with_what_was_there_as_it_came_into_force_on_disk_too() -> None:
    acknowledged = both(("a", "b"), ("c", "d", "a"), high=50, persisted=30)
    acknowledged.confirm_from_now()
    acknowledged.acknowledge("c", 1, 50, 49)
    acknowledged.acknowledge("b", 0, 50, 50)
    assert not acknowledged.is_confirmed
    acknowledged.acknowledge("d", 2, 50, 50)
    assert not acknowledged.is_confirmed, "on the disk of one copy of three only"
    acknowledged.acknowledge("c", 1, 50, 50)
    assert acknowledged.is_confirmed
    acknowledged.confirm_from_now()
    assert acknowledged.is_confirmed


def test_a_row_that_names_fewer_than_a_majority_is_confirmed_by_all_that_it_names() -> None:
    acknowledged = both(("a", "b"), ("b", None, None, None))
    acknowledged.confirm_from_now()
    assert not acknowledged.is_confirmed
    acknowledged.acknowledge("b", 0, 50, 50)
    assert acknowledged.is_confirmed


def test_a_new_history_has_to_be_confirmed_from_its_beginning() -> None:
    own = Own(high_seqno=10, persisted_seqno=10)
    acknowledged = Acknowledged(own)
    acknowledged.set_rows((("a",), ("b",)), "a")
    acknowledged.join("b", 1)
    acknowledged.acknowledge("b", 1, 10, 10)
    acknowledged.confirm_from_now()
    own.epoch, own.high_seqno, own.persisted_seqno = 1, 20, 20
    acknowledged.join("b", 2)
    acknowledged.acknowledge("b", 2, 19, 19)
    assert not acknowledged.is_confirmed
    acknowledged.acknowledge("b", 2, 20, 20)
    assert acknowledged.is_confirmed


@dataclass
class Known:
    stream: int
    complete: int = 0
    persisted: int = 0


@dataclass
class Model:
    """Every end that was acknowledged, and all copies gone through for each question."""

    rows: tuple[Row, ...] = (("a",),)
    following: dict[str, Known] = field(default_factory=dict)
    complete: list[int] = field(default_factory=list)
    """Per row."""
    beside: list[dict[str, int]] = field(default_factory=list)
    """What the other copies had on disk at each moment."""

    @staticmethod
    def reached(row: Row, ends: dict[str, int]) -> int:
        counted = sorted((ends[name] for name in row if name in ends), reverse=True)
        majority = len(row) // 2 + 1
        return counted[majority - 1] if len(counted) >= majority else 0

    def note(self, high: int) -> None:
        complete = {name: known.complete for name, known in self.following.items()} | {"a": high}
        before = self.complete or [0] * len(self.rows)
        now = [self.reached(row, complete) for row in self.rows]
        self.complete = list(map(max, before, now))
        self.beside.append({name: known.persisted for name, known in self.following.items()})

    def durable(self, persisted: int) -> int:
        own = {"a": persisted}
        return min(max(self.reached(row, ends | own) for ends in self.beside) for row in self.rows)


class Copies(RuleBasedStateMachine):
    @initialize(row=st.permutations(NAMES[1:4]), places=st.integers(0, 3), has_own=st.booleans())
    def begin(self, row: list[str | None], places: int, has_own: bool) -> None:
        self.own, self.model, self.streams = Own(), Model(), 0
        self.acknowledged = Acknowledged(self.own)
        self.give_row(row[:places], has_own)

    def give_row(self, others: list[str | None], has_own: bool) -> None:
        self.give_rows(((*(["a"] if has_own or not others else []), *others),))

    def give_rows(self, rows: tuple[Row, ...]) -> None:
        self.acknowledged.set_rows(rows, "a")
        self.model = Model(rows, self.model.following)

    @rule(others=st.lists(st.sampled_from(["b", "c", "d"]), unique=True), own=st.booleans(),
          hole=st.booleans())  # fmt: skip
    def another_row(self, others: list[Any], own: bool, hole: bool) -> None:
        self.give_row([*others, None] if hole else others, own)

    @rule(row=st.permutations(["a", "b", "c", "d", None]), places=st.integers(1, 4))
    def one_more_row(self, row: list[Any], places: int) -> None:
        self.give_rows((*self.model.rows, tuple(row[:places]))[-3:])

    @rule(changes=st.integers(1, 5), persists=st.booleans())
    def write(self, changes: int, persists: bool) -> None:
        self.own.high_seqno += changes
        if persists:
            self.own.persisted_seqno = self.own.high_seqno

    @rule(name=st.sampled_from(NAMES[1:]))
    def join(self, name: str) -> None:
        self.streams += 1
        self.acknowledged.join(name, self.streams)
        self.model.following[name] = Known(self.streams)

    @rule(name=st.sampled_from(NAMES[1:]), data=st.data(), is_late=st.booleans())
    def acknowledge(self, name: str, data: st.DataObject, is_late: bool) -> None:
        known = self.model.following.get(name)
        least = known.complete if known else 0
        complete = data.draw(st.integers(least, max(least, self.own.high_seqno)))
        persisted = data.draw(st.integers(known.persisted if known else 0, complete))
        stream = -1 if known is None or is_late else known.stream
        before = self.acknowledged.majority_seqno, self.acknowledged.durable_seqno
        moved = self.acknowledged.acknowledge(name, stream, complete, persisted)
        after = self.acknowledged.majority_seqno, self.acknowledged.durable_seqno
        assert moved or before == after
        if known is not None and not is_late:
            known.complete, known.persisted = complete, persisted

    @rule(name=st.sampled_from(NAMES[1:]), is_late=st.booleans())
    def leave(self, name: str, is_late: bool) -> None:
        known = self.model.following.get(name)
        if known is not None:
            self.acknowledged.leave(name, -1 if is_late else known.stream)
            if not is_late:
                del self.model.following[name]

    @rule(high=st.integers(0, 20))
    def another_history(self, high: int) -> None:
        self.own.epoch += 1
        self.own.high_seqno = self.own.persisted_seqno = high
        self.model = Model(self.model.rows)

    @invariant()
    def says_what_the_model_says(self) -> None:
        model, own = self.model, self.own
        model.note(own.high_seqno)
        acknowledged = self.acknowledged
        assert acknowledged.majority_seqno == min(model.complete)
        assert acknowledged.durable_seqno == model.durable(own.persisted_seqno)
        there = {"a", *model.following}
        assert acknowledged.is_possible == all(
            sum(name in there for name in row) >= len(row) // 2 + 1 for row in model.rows
        )
        others = {name for row in model.rows for name in row} - {"a"}
        assert acknowledged.following == len(others & model.following.keys())
        ends = [known.complete for known in model.following.values()]
        assert acknowledged.slowest_end == min(ends, default=None)


TestCopies = Copies.TestCase
TestCopies.settings = settings(max_examples=budget(60), stateful_step_count=40, deadline=None)
