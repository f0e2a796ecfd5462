"""Commands of sets, against a set of Python's."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from millstream.coordination.core.namespace.commands import sets
from millstream.coordination.core.namespace.commands.items import ITEM_BYTES_MAX
from millstream.coordination.core.namespace.commands.transactions import pack_command
from millstream.coordination.core.namespace.state.state import State
from support.budget import budget
from support.coordination.namespace_machine import Tree
from support.coordination.structured_models import (
    BADARG,
    OK,
    Error,
    SetModel,
    check_undone,
    looked_up,
    seen,
    shown,
)

GONE = Error(b"ERROR_DOES_NOT_EXISTS")
member = st.one_of(
    st.binary(max_size=1), st.sampled_from([b"a", b"ab", b"\xff\xff", b"STALEREAD"])
)


@pytest.fixture
def tree() -> Tree:
    made = Tree()
    made.do("CREATENAMESPACE", "/ns")
    made.do("CREATE", "SET", "/ns/a", "x", "y", "x", "z")
    made.do("CREATE", "SET", "/ns/b", "y", "w")
    return made


def test_what_each_command_answers(tree: Tree) -> None:
    assert seen(tree, "SET", "ADD", "/ns/a", "v", "x", "v") == 1
    assert seen(tree, "SET", "REM", "/ns/a", "v", "no", "v") == 1
    assert looked_up(tree, "GET", "/ns/a") == {b"x", b"y", b"z"}
    assert looked_up(tree, "SET", "HAS", "/ns/a", "x") == 1
    assert looked_up(tree, "SET", "HAS", "/ns/a", "STALEREAD", "STALEREAD") == 0
    assert looked_up(tree, "SET", "LEN", "/ns/a", "STALEREAD") == 3
    assert looked_up(tree, "SET", "MEMBERS", "/ns/a") == [None, [b"x", b"y", b"z"]]
    assert looked_up(tree, "SET", "UNION", "/ns/a", "/ns/b") == {b"w", b"x", b"y", b"z"}
    assert looked_up(tree, "SET", "INTER", "/ns/a", "/ns/b", "STALEREAD") == {b"y"}
    assert looked_up(tree, "SET", "DIFF", "/ns/a", "/ns/b") == {b"x", b"z"}
    assert looked_up(tree, "SET", "DIFF", "/ns/b") == {b"w", b"y"}
    assert tree.read("SET", "UNION", "/ns/b", "/ns/b") == tree.read("GET", "/ns/b")
    assert seen(tree, "SET", "POP", "/ns/b") == b"w"
    assert seen(tree, "SET", "POP", "/ns/b") == b"y"
    assert seen(tree, "SET", "POP", "/ns/b") is None


def test_members_come_in_pages(tree: Tree) -> None:
    token, first = looked_up(tree, "SET", "MEMBERS", "/ns/a", "COUNT", "2")
    assert first == [b"x", b"y"]
    rest = looked_up(tree, "SET", "MEMBERS", "/ns/a", "TOKEN", token, "COUNT", "1", "STALEREAD")
    assert rest == [None, [b"z"]]
    wrong = looked_up(tree, "SET", "MEMBERS", "/ns/a", "TOKEN", "no token")
    assert wrong == Error(b"BADTOKEN")


def test_a_page_has_so_many_bytes(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sets, "GIVEN_BYTES_MAX", 2)
    token, first = looked_up(tree, "SET", "MEMBERS", "/ns/a")
    assert first == [b"x", b"y"]
    assert looked_up(tree, "SET", "MEMBERS", "/ns/a", "TOKEN", token) == [None, [b"z"]]


@pytest.mark.parametrize(
    "words",
    ["SET", "SET ADD /ns/a", "SET REM /ns/a", "SET POP", "SET POP /ns/a 2", "SET MORE /ns/a"],
)
def test_an_invalid_command_changes_nothing(tree: Tree, words: str) -> None:
    assert seen(tree, *words.split()) == BADARG


@pytest.mark.parametrize(
    "words",
    [
        "SET HAS /ns/a", "SET HAS /ns/a x y", "SET LEN", "SET MEMBERS /ns/a COUNT 0",
        "SET MEMBERS /ns/a COUNT 10001", "SET MEMBERS /ns/a TOKEN", "SET MEMBERS /ns/a x y",
        "SET UNION", "SET INTER STALEREAD", "SET LEN /ns/a /ns/b",
    ],
)  # fmt: skip
def test_invalid_reads_are_refused(tree: Tree, words: str) -> None:
    assert looked_up(tree, *words.split()) == BADARG


def test_other_types_are_no_sets(tree: Tree) -> None:
    tree.do("CREATE", "LIST", "/ns/list")
    for change in ("ADD {} v", "REM {} v", "POP {}"):
        assert seen(tree, "SET", *change.format("/ns/list").split()) == Error(b"WRONGTYPE")
        assert seen(tree, "SET", *change.format("/ns/no").split()) == GONE
    reads = ("HAS {} v", "LEN {}", "MEMBERS {}", "UNION {}", "INTER /ns/a {}", "DIFF {} /ns/a")
    for read in reads:
        assert looked_up(tree, "SET", *read.format("/ns/list").split()) == Error(b"WRONGTYPE")
        assert looked_up(tree, "SET", *read.format("/ns/no").split()) == GONE
        assert looked_up(tree, "SET", *read.format("/ns/").split()) == Error(b"BADPATH")


def test_bounds(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    assert seen(tree, "SET", "ADD", "/ns/a", b"x" * (ITEM_BYTES_MAX + 1)) == Error(b"TOOBIG")
    monkeypatch.setattr(State, "items_max", lambda self, element: 4)
    assert seen(tree, "SET", "ADD", "/ns/a", "v", "w") == Error(b"QUOTA")
    assert seen(tree, "SET", "ADD", "/ns/a", "v", "x", "y", "z", "v") == 1
    assert seen(tree, "CREATE", "SET", "/ns/c", *"abcde") == Error(b"QUOTA")
    monkeypatch.setattr(sets, "LOOKED_AT_MAX", 5)
    assert looked_up(tree, "SET", "UNION", "/ns/a", "/ns/b") == Error(b"TOOBIG")
    monkeypatch.setattr(sets, "SHOWN_BYTES_MAX", 3)
    assert looked_up(tree, "GET", "/ns/a") == Error(b"TOOBIG")
    assert looked_up(tree, "SET", "DIFF", "/ns/a") == Error(b"TOOBIG")


def test_attributes_and_what_subscribers_hear(tree: Tree) -> None:
    for words in ("ADD /ns/a long", "REM /ns/a x", "POP /ns/a"):
        tree.do("SET", *words.split())
        assert [(each.op, each.path) for each in tree.last.happened] == [(b"set", b"/ns/a")]
        found = looked_up(tree, "GET", "/ns/a", "ATTR", "NODATA")
        assert isinstance(found, dict)
        assert found[b"version"] == b"1:2:%d" % tree.lsn
    assert found[b"data_len"] == 2


@pytest.mark.parametrize("words", ["SET ADD /ns/a x", "SET REM /ns/a no", "SET POP /ns/empty"])
def test_a_set_that_is_as_it_was_has_no_new_version(tree: Tree, words: str) -> None:
    tree.do("CREATE", "SET", "/ns/empty")
    before = tree.bytes
    tree.do(*words.split())
    assert tree.bytes == before
    assert not tree.last.happened


def test_members_end_with_their_set(tree: Tree) -> None:
    tree.do("DELETE", "/ns/a")
    empty = len(tree.bytes)
    tree.do("CREATE", "SET", "/ns/a", *"abcdefgh")
    check_undone(tree, b"DELETE", b"/ns/a")
    tree.do("DELETE", "/ns/a")
    assert len(tree.bytes) == empty
    assert looked_up(tree, "GET", "/ns/b") == {b"w", b"y"}


class Gathering(RuleBasedStateMachine):
    @initialize(first=st.lists(member, max_size=5))
    def create(self, first: list[bytes]) -> None:
        self.tree = Tree()
        self.models = {b"/ns/a": SetModel(set(first)), b"/ns/b": SetModel(set())}
        self.tree.do("CREATENAMESPACE", "/ns")
        assert shown(self.tree.do("CREATE", "SET", "/ns/a", *first)) == OK
        assert shown(self.tree.do("CREATE", "SET", "/ns/b")) == OK

    def change(self, name: bytes, path: bytes, *found: bytes) -> object:
        check_undone(self.tree, b"SET", name, path, *found)
        return seen(self.tree, b"SET", name, path, *found)

    paths = st.sampled_from([b"/ns/a", b"/ns/b"])
    some = st.lists(member, min_size=1, max_size=5)

    @rule(path=paths, found=some)
    def add(self, path: bytes, found: list[bytes]) -> None:
        assert self.change(b"ADD", path, *found) == self.models[path].add(found)

    @rule(path=paths, found=some)
    def remove(self, path: bytes, found: list[bytes]) -> None:
        assert self.change(b"REM", path, *found) == self.models[path].remove(found)

    @rule(path=paths)
    def pop(self, path: bytes) -> None:
        assert self.change(b"POP", path) == self.models[path].pop()

    @rule(count=st.integers(1, 4))
    def page_through(self, count: int) -> None:
        found, token, more = [], None, ["COUNT", str(count)]
        while True:
            token, page = looked_up(self.tree, "SET", "MEMBERS", "/ns/a", *more)
            found += page
            assert len(page) == count or token is None
            if token is None:
                break
            more = ["TOKEN", token, "COUNT", str(count)]
        assert found == sorted(self.models[b"/ns/a"].members)

    @rule()
    def combine(self) -> None:
        one, other = (model.members for model in self.models.values())
        for name, expected in (
            ("UNION", one | other),
            ("INTER", one & other),
            ("DIFF", one - other),
        ):
            assert looked_up(self.tree, "SET", name, "/ns/a", "/ns/b") == expected

    @rule()
    def go_on_from_a_snapshot(self) -> None:
        self.tree.again()

    @invariant()
    def they_show_all_members(self) -> None:
        for path, model in getattr(self, "models", {}).items():
            assert looked_up(self.tree, "GET", path) == model.members
            assert looked_up(self.tree, "SET", "LEN", path) == len(model.members)
            found = looked_up(self.tree, "GET", path, "ATTR", "NODATA")
            assert isinstance(found, dict)
            assert found[b"data_len"] == sum(map(len, model.members))


TestGathering = Gathering.TestCase
TestGathering.settings = settings(max_examples=budget(60), stateful_step_count=20, deadline=None)


def test_a_transaction_looks_at_no_more_members_than_one_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sets, "LOOKED_AT_MAX", 5)
    tree = Tree()
    tree.do("CREATENAMESPACE", "/n")
    tree.do("CREATE", "SET", "/n/s", "a", "b", "c")
    once = pack_command((b"SET", b"UNION", b"/n/s"))
    assert tree.do("EXEC", once).startswith(b"*")
    assert tree.do("EXEC", once, once).startswith(b"-EXECABORT 1 TOOBIG")
