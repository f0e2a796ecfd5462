"""A mark keeps the last updates of its place, whole, and knows from where on."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.coordination.core.namespace.refused import Refused
from millstream.coordination.core.namespace.state.marks import KEPT_BYTES_MAX, NAMES_MAX, Mark
from millstream.coordination.core.namespace.state.updates import Place, Scope, Update
from support.budget import budget
from support.coordination.namespace_machine import Tree

TREE = Place(7, Scope.TREE)
OTHER = Place(7, Scope.ELEMENT)


def update(lsn: int, data: bytes = b"") -> Update:
    return Update(lsn, 1, 1, 0, b"put", b"/a", b"", b"BINARY", b"", data, False)


class World:
    def __init__(self) -> None:
        self.marks = Tree().machine.state.marks

    @property
    def is_empty(self) -> bool:
        return not len(self.marks._marks)

    @property
    def chunks(self) -> list[tuple[Update, ...]]:
        return [chunk for _, chunk in self.marks._history.after(b"")]

    def lsns(self, after: int) -> list[int] | None:
        found = self.marks.kept(TREE, after)
        return None if found is None else [kept.lsn for kept in found]


def test_nothing_is_kept_before_there_is_a_mark() -> None:
    world = World()
    world.marks.record(TREE, [update(1)], 128)
    assert world.is_empty
    assert world.lsns(0) is None
    world.marks.begin(TREE, 1)
    assert world.lsns(0) is None
    assert world.lsns(1) == []
    world.marks.record(TREE, [update(2)], 128)
    world.marks.begin(TREE, 3)
    assert world.lsns(1) == [2]


def test_requested_history_is_complete_or_refused() -> None:
    world = World()
    world.marks.begin(TREE, 0)
    for lsn in range(1, 200):
        world.marks.record(TREE, [update(lsn)], 128)
    assert world.lsns(71) == list(range(72, 200))
    assert world.lsns(70) is None
    assert world.lsns(500) == []


def test_parts_of_an_entry_that_was_cut_are_not_given() -> None:
    world = World()
    world.marks.begin(TREE, 0)
    world.marks.record(TREE, [update(1), update(1), update(1)], 2)
    world.marks.record(TREE, [update(2)], 2)
    assert world.lsns(0) is None
    assert world.lsns(1) == [2]


def test_a_mark_ends_with_all_that_it_kept() -> None:
    world = World()
    world.marks.begin(TREE, 0)
    world.marks.begin(OTHER, 0)
    for lsn in range(1, 100):
        world.marks.record(TREE, [update(lsn)], 128)
    world.marks.record(TREE, [update(100)], 0)
    assert world.marks.at(TREE) is None
    assert world.marks.at(OTHER) == Mark(0)
    assert not world.chunks
    world.marks.end_of(7)
    assert world.is_empty
    world.marks.end(TREE)


def test_data_has_a_bound_too() -> None:
    world = World()
    world.marks.begin(TREE, 0)
    half = b"x" * (KEPT_BYTES_MAX // 2 - 1000)
    for lsn in (1, 2, 3):
        world.marks.record(TREE, [update(lsn, half)], 128)
    assert world.lsns(0) is None
    assert world.lsns(1) == [2, 3]
    world.marks.record(TREE, [update(4, b"x" * KEPT_BYTES_MAX)], 128)
    assert world.lsns(3) is None
    assert world.lsns(4) == []
    assert not world.chunks


@settings(max_examples=budget(200))
@given(
    st.lists(
        st.tuples(st.integers(1, 3), st.integers(0, 70), st.sampled_from([1, 2, 40, 70])),
        max_size=60,
    )
)
def test_it_keeps_what_a_list_would(entries: list[tuple[int, int, int]]) -> None:
    world, lsn, floor = World(), 0, 0
    plain: list[Update] = []
    world.marks.begin(TREE, 0)
    for gap, count, keep in entries:
        lsn += gap
        world.marks.record(TREE, [update(lsn)] * count, keep)
        plain += [update(lsn)] * count
        while len(plain) > keep:
            floor = plain.pop(0).lsn
        for after in range(lsn + 1):
            expected = [kept.lsn for kept in plain if kept.lsn > after]
            assert world.lsns(after) == (None if after < floor else expected)
        mark = world.marks.at(TREE)
        assert mark is not None
        assert sum(map(len, world.chunks)) == mark.kept == len(plain)


def test_how_far_a_session_has_heard_is_known_until_it_ends() -> None:
    tree = Tree()
    tree.do("CREATENAMESPACE", "/ns")
    assert tree.do("MARK", "/ns", "DURABLE", "mine") == b"+OK"
    assert tree.do("MARK", "/ns", "DURABLE", "mine", session=8) == b"+OK"
    marks = tree.machine.state.marks
    assert (marks.heard(7, b"mine"), marks.heard(8, b"mine")) == (2, 3)
    assert tree.do("MARK", "/ns", "DURABLE", "mine") == b"+OK"
    assert marks.heard(7, b"mine") == 2
    assert tree.do("SUBACK", "mine", "4") == b"+OK"
    assert tree.do("SUBACK", "mine", "1:2:3") == b"+OK"
    assert marks.heard(7, b"mine") == 4
    assert tree.do("SUBACK", "mine", "1000") == b"+OK"
    assert marks.heard(7, b"mine") == tree.lsn
    tree.again()
    assert tree.machine.state.marks.heard(7, b"mine") == tree.lsn
    tree.end(7)
    marks = tree.machine.state.marks
    assert (marks.heard(7, b"mine"), marks.heard(8, b"mine")) == (None, 3)
    assert tree.do("SUBACK", "mine", "9").startswith(b"-ERROR_DOES_NOT_EXISTS ")
    assert tree.do("SUBACK", "mine", "9", session=0).startswith(b"-ERR ")
    assert tree.do("MARK", "/ns", "DURABLE", "x", session=0).startswith(b"-ERR ")


def test_a_session_has_so_many_names() -> None:
    marks = Tree().machine.state.marks
    for n in range(NAMES_MAX):
        marks.begin_hearing(7, b"%d" % n, 1)
    marks.begin_hearing(7, b"0", 2)
    with pytest.raises(Refused, match="QUOTA"):
        marks.begin_hearing(7, b"more", 1)
    marks.begin_hearing(8, b"more", 1)


def test_a_state_with_marks_is_read_as_it_was_written() -> None:
    tree = Tree()
    tree.do("CREATENAMESPACE", "/ns")
    tree.do("MARK", "/ns", "TREE")
    for n in range(40):
        tree.do("CREATE", "BINARY", f"/ns/{n}", str(n))
    before = tree.machine.state.marks.kept(Place(1, Scope.TREE), 2)
    tree.again()
    assert tree.machine.state.marks.kept(Place(1, Scope.TREE), 2) == before
