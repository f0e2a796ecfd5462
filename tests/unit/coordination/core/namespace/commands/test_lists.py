"""Commands of lists, against a list of Python's."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from millstream.coordination.core.namespace.commands.items import ITEM_BYTES_MAX
from millstream.coordination.core.namespace.state import list_items
from millstream.coordination.core.namespace.state.state import State
from support.budget import budget
from support.coordination.namespace_machine import Tree
from support.coordination.structured_models import (
    BADARG,
    OK,
    Error,
    ListModel,
    check_undone,
    looked_up,
    seen,
    shown,
)

GONE = Error(b"ERROR_DOES_NOT_EXISTS")
item = st.sampled_from([b"a", b"b", b"", b"longer than that", b"/x", b"STALEREAD"])
some = st.lists(item, min_size=1, max_size=7)
index = st.integers(-14, 14)


@pytest.fixture
def tree() -> Tree:
    made = Tree()
    made.do("CREATENAMESPACE", "/ns")
    made.do("CREATE", "LIST", "/ns/a", "one", "two", "three")
    return made


def test_what_each_command_answers(tree: Tree) -> None:
    assert seen(tree, "LIST", "APPEND", "/ns/a", "four", "five") == 5
    assert seen(tree, "LIST", "PREPEND", "/ns/a", "minus", "zero") == 7
    assert looked_up(tree, "GET", "/ns/a") == [
        b"minus", b"zero", b"one", b"two", b"three", b"four", b"five"
    ]  # fmt: skip
    assert seen(tree, "LIST", "INSERT", "/ns/a", "1", "x") == 8
    assert seen(tree, "LIST", "INSERT", "/ns/a", "8", "last") == 9
    assert seen(tree, "LIST", "INSERT", "/ns/a", "-1", "x") == 10
    assert seen(tree, "LIST", "SET", "/ns/a", "-2", "y") == OK
    assert seen(tree, "LIST", "REMOVE", "/ns/a", "-2") == [b"y"]
    assert seen(tree, "LIST", "REMOVE", "/ns/a", "7", "9") == [b"five", b"last"]
    assert seen(tree, "LIST", "REMOVE", "/ns/a", "7") == []
    assert seen(tree, "LIST", "REMVAL", "/ns/a", "x") == 1
    assert looked_up(tree, "LIST", "RANGE", "/ns/a", "1", "-3") == [b"zero", b"one", b"two"]
    assert seen(tree, "LIST", "TRIM", "/ns/a", "1", "2") == 2
    assert looked_up(tree, "LIST", "INDEX", "/ns/a", "-1", "STALEREAD") == b"one"
    assert looked_up(tree, "LIST", "INDEX", "/ns/a", "2") is None
    assert looked_up(tree, "LIST", "FIND", "/ns/a", "one") == 1
    assert looked_up(tree, "LIST", "FIND", "/ns/a", "STALEREAD") is None
    assert looked_up(tree, "LIST", "LEN", "/ns/a", "staleread") == 2
    assert looked_up(tree, "LIST", "/ns") == [None, [b"a"]]


@pytest.mark.parametrize(
    "words",
    [
        "LIST", "LIST MORE /ns/a", "LIST APPEND /ns/a", "LIST PREPEND", "LIST INSERT /ns/a x v",
        "LIST INSERT /ns/a 4 v", "LIST INSERT /ns/a -4 v", "LIST INSERT /ns/a 0",
        "LIST SET /ns/a 3 v", "LIST SET /ns/a -4 v", "LIST SET /ns/a 1", "LIST SET /ns/a 1 v w",
        "LIST REMOVE /ns/a",
        "LIST REMOVE /ns/a 0 0", "LIST REMOVE /ns/a 0 -1", "LIST REMVAL /ns/a v 0",
        "LIST REMVAL /ns/a v 1 1", "LIST TRIM /ns/a 1", "LIST TRIM /ns/a 1 2 3",
        "LIST REMOVE /ns/a " + "9" * 30,
    ],
)  # fmt: skip
def test_an_invalid_command_changes_nothing(tree: Tree, words: str) -> None:
    assert seen(tree, *words.split()) == BADARG


@pytest.mark.parametrize(
    "words",
    [
        "LIST INDEX /ns/a", "LIST INDEX /ns/a x", "LIST RANGE /ns/a 1", "LIST LEN /ns/a STALE",
        "LIST FIND /ns/a", "LIST RANGE /ns/a 1 2 3",
    ],
)  # fmt: skip
def test_invalid_reads_are_refused(tree: Tree, words: str) -> None:
    assert looked_up(tree, *words.split()) == BADARG


def test_other_types_are_no_lists(tree: Tree) -> None:
    tree.do("CREATE", "SET", "/ns/set")
    changes = (
        "APPEND {} v", "PREPEND {} v", "INSERT {} 0 v", "SET {} 0 v", "REMOVE {} 0", "REMVAL {} v",
        "TRIM {} 0 1",
    )  # fmt: skip
    for change in changes:
        assert seen(tree, "LIST", *change.format("/ns/set").split()) == Error(b"WRONGTYPE")
        assert seen(tree, "LIST", *change.format("/ns/no").split()) == GONE
    for read in ("INDEX {} 0", "RANGE {} 0 1", "LEN {}", "FIND {} v"):
        assert looked_up(tree, "LIST", *read.format("/ns/set").split()) == Error(b"WRONGTYPE")
        assert looked_up(tree, "LIST", *read.format("/ns/no").split()) == GONE


def test_a_list_has_so_many_items_of_such_a_size(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(State, "items_max", lambda self, element: 4)
    assert seen(tree, "LIST", "APPEND", "/ns/a", "v", "w") == Error(b"QUOTA")
    assert seen(tree, "LIST", "PREPEND", "/ns/a", "v", "w") == Error(b"QUOTA")
    assert seen(tree, "CREATE", "LIST", "/ns/b", *"abcde") == Error(b"QUOTA")
    assert seen(tree, "LIST", "APPEND", "/ns/a", "v") == 4
    assert seen(tree, "LIST", "INSERT", "/ns/a", "0", "w") == Error(b"QUOTA")
    assert seen(tree, "LIST", "SET", "/ns/a", "0", b"x" * ITEM_BYTES_MAX) == OK
    assert seen(tree, "LIST", "SET", "/ns/a", "0", b"x" * (ITEM_BYTES_MAX + 1)) == Error(b"TOOBIG")
    assert seen(tree, "CREATE", "LIST", "/ns/b", b"x" * (ITEM_BYTES_MAX + 1)) == Error(b"TOOBIG")


def test_a_reply_has_so_many_bytes(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.do("LIST", "TRIM", "/ns/a", "0", "-2")
    monkeypatch.setattr("millstream.coordination.core.namespace.commands.lists.GIVEN_BYTES_MAX", 5)
    monkeypatch.setattr("millstream.coordination.core.namespace.commands.lists.SHOWN_BYTES_MAX", 5)
    assert seen(tree, "LIST", "REMOVE", "/ns/a", "0", "2") == Error(b"TOOBIG")
    assert looked_up(tree, "GET", "/ns/a") == Error(b"TOOBIG")
    assert looked_up(tree, "LIST", "RANGE", "/ns/a", "0", "1") == Error(b"TOOBIG")
    assert seen(tree, "LIST", "REMOVE", "/ns/a", "0") == [b"one"]


def test_attributes_and_what_subscribers_hear(tree: Tree) -> None:
    changes = (
        ("APPEND", "v"), ("PREPEND", "v"), ("INSERT", "1", "v"), ("SET", "0", "v"),
        ("REMOVE", "0"), ("REMVAL", "v"), ("TRIM", "1", "2"),
    )  # fmt: skip
    for name, *rest in changes:
        tree.do("LIST", name, "/ns/a", *rest)
        assert [(each.op, each.path) for each in tree.last.happened] == [(b"list", b"/ns/a")]
        found = looked_up(tree, "GET", "/ns/a", "ATTR", "NODATA")
        assert isinstance(found, dict)
        assert found[b"version"] == b"1:2:%d" % tree.lsn
    assert found[b"data_len"] == len("twothree")


@pytest.mark.parametrize(
    "words", ["LIST REMOVE /ns/a 9", "LIST REMVAL /ns/a no", "LIST TRIM /ns/a 0 -1"]
)
def test_a_list_that_is_as_it_was_has_no_new_version(tree: Tree, words: str) -> None:
    before = tree.bytes
    tree.do(*words.split())
    assert tree.bytes == before
    assert not tree.last.happened


def test_items_end_with_their_list(tree: Tree) -> None:
    tree.do("DELETE", "/ns/a")
    empty = len(tree.bytes)
    tree.do("CREATE", "LIST", "/ns/a", *"abcdefgh")
    check_undone(tree, b"DELETE", b"/ns/a")
    tree.do("DELETE", "/ns/a")
    assert len(tree.bytes) == empty
    tree.do("CREATE", "LIST", "/ns/a")
    assert looked_up(tree, "LIST", "LEN", "/ns/a") == 0


class Listing(RuleBasedStateMachine):
    @initialize(first=st.lists(item, max_size=7))
    def create(self, first: list[bytes]) -> None:
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(list_items, "CHUNK_ITEMS_MAX", 4)
        self.patch.setattr(list_items, "CHUNK_BYTES_MAX", 20)
        self.tree, self.model = Tree(), ListModel(first)
        self.tree.do("CREATENAMESPACE", "/ns")
        self.tree.do("CREATE", "LIST", "/ns/other", "other")
        assert shown(self.tree.do("CREATE", "LIST", "/ns/a", *first)) == OK

    def teardown(self) -> None:
        self.patch.undo()

    def change(self, name: str, *rest: object) -> object:
        words = [b"LIST", name.encode(), b"/ns/a"]
        words += [word if isinstance(word, bytes) else b"%d" % word for word in rest]
        check_undone(self.tree, *words)
        return seen(self.tree, *words)

    @rule(values=some)
    def append(self, values: list[bytes]) -> None:
        assert self.change("APPEND", *values) == self.model.append(values)

    @rule(values=some)
    def prepend(self, values: list[bytes]) -> None:
        assert self.change("PREPEND", *values) == self.model.prepend(values)

    @rule(at=index, value=item)
    def insert(self, at: int, value: bytes) -> None:
        assert self.change("INSERT", at, value) == self.model.insert(at, value)

    @rule(at=index, value=item)
    def set(self, at: int, value: bytes) -> None:
        assert self.change("SET", at, value) == self.model.set(at, value)

    @rule(at=index, count=st.integers(1, 9))
    def remove(self, at: int, count: int) -> None:
        assert self.change("REMOVE", at, count) == self.model.remove(at, count)

    @rule(value=item, most=st.one_of(st.none(), st.integers(1, 3)))
    def remove_value(self, value: bytes, most: int | None) -> None:
        rest = () if most is None else (most,)
        assert self.change("REMVAL", value, *rest) == self.model.remove_value(value, most)

    @rule(first=st.integers(-14, 3), last=st.integers(-3, 14))
    def trim(self, first: int, last: int) -> None:
        assert self.change("TRIM", first, last) == self.model.trim(first, last)

    @rule(first=index, last=index, value=item)
    def look(self, first: int, last: int, value: bytes) -> None:
        look, model = self.tree, self.model
        spans = (str(first), str(last))
        assert looked_up(look, "LIST", "RANGE", "/ns/a", *spans) == model.range(first, last)
        assert looked_up(look, "LIST", "INDEX", "/ns/a", str(first)) == model.index(first)
        assert looked_up(look, "LIST", "FIND", "/ns/a", value) == model.find(value)
        assert looked_up(look, "LIST", "LEN", "/ns/a") == len(model.items)

    @rule()
    def go_on_from_a_snapshot(self) -> None:
        self.tree.again()

    @invariant()
    def it_shows_all_items(self) -> None:
        if hasattr(self, "tree"):
            assert looked_up(self.tree, "GET", "/ns/a") == self.model.items
            assert looked_up(self.tree, "GET", "/ns/other") == [b"other"]
            found = looked_up(self.tree, "GET", "/ns/a", "ATTR", "NODATA")
            assert isinstance(found, dict)
            assert found[b"data_len"] == sum(map(len, self.model.items))


TestListing = Listing.TestCase
TestListing.settings = settings(max_examples=budget(60), stateful_step_count=20, deadline=None)
