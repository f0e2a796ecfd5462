"""Commands of counters, against a number that is moved as it is defined."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from support.budget import budget
from support.coordination.namespace_machine import Tree
from support.coordination.structured_models import (
    BADARG,
    OK,
    CounterModel,
    Error,
    Status,
    check_undone,
    looked_up,
    seen,
    shown,
)

NOWRAP = Status(b"NOWRAP")
counts = st.one_of(st.integers(0, 300), st.integers(2**62, 2**66), st.just(2**2048 - 1))


@pytest.fixture
def tree() -> Tree:
    made = Tree()
    made.do("CREATENAMESPACE", "/ns")
    return made


def test_the_examples_of_the_paper(tree: Tree) -> None:
    assert seen(tree, "CREATE", "COUNTER", "/ns/counter") == OK
    assert seen(tree, "CREATE", "COUNTER", "UNSIGNED", "BIT", "2048", "/ns/unsigned") == OK
    assert seen(tree, "COUNTER", "INC", "/ns/unsigned") == 1
    assert seen(tree, "COUNTER", "DEC", "/ns/unsigned") == 0
    assert seen(tree, "COUNTER", "DEC", "/ns/unsigned") == [0, NOWRAP]
    assert seen(tree, "COUNTER", "INC", "/ns/counter") == 1
    assert seen(tree, "COUNTER", "DEC", "/ns/counter") == 0
    assert seen(tree, "COUNTER", "INC", "13", "/ns/counter") == 13
    assert seen(tree, "COUNTER", "INC", "13", "/ns/counter") == 26
    assert seen(tree, "COUNTER", "RESET", "/ns/counter") == 0


@pytest.mark.parametrize(
    ("options", "low", "high"),
    [
        ("", -(2**63), 2**63 - 1),
        ("BIT 8", -128, 127),
        ("UNSIGNED BIT 8", 0, 255),
        ("BIT 2048", -(2**2047), 2**2047 - 1),
        ("BIT 2048 UNSIGNED", 0, 2**2048 - 1),
    ],
)
def test_a_counter_stops_at_its_ends_or_goes_round(
    tree: Tree, options: str, low: int, high: int
) -> None:
    tree.do("CREATE", "COUNTER", *options.split(), "/ns/stops")
    assert seen(tree, "COUNTER", "INC", str(high), "/ns/stops") == high
    assert seen(tree, "COUNTER", "INC", "/ns/stops") == [high, NOWRAP]
    assert seen(tree, "COUNTER", "INC", "0", "/ns/stops") == high
    assert seen(tree, "COUNTER", "INC", "/ns/stops", "WRAP") == low
    assert seen(tree, "COUNTER", "DEC", "5", "/ns/stops") == [low, NOWRAP]
    tree.do("CREATE", "COUNTER", "WRAP", *options.split(), "/ns/goes")
    assert seen(tree, "COUNTER", "DEC", str(-low), "/ns/goes") == low
    assert seen(tree, "COUNTER", "DEC", "/ns/goes") == high
    assert looked_up(tree, "GET", "/ns/goes") == high


@pytest.mark.parametrize(
    "words",
    [
        "CREATE COUNTER BIT 7 /ns/b", "CREATE COUNTER BIT 12 /ns/b", "CREATE COUNTER BIT /ns/b",
        "CREATE COUNTER BIT 2056 /ns/b", "CREATE COUNTER WRAP WRAP /ns/b",
        "CREATE COUNTER /ns/b 5", "COUNTER", "COUNTER MORE /ns/a", "COUNTER INC",
        "COUNTER INC -1 /ns/a", "COUNTER INC x /ns/a", "COUNTER INC 1 /ns/a NOWRAP",
        f"COUNTER INC {2**2048} /ns/a", "COUNTER INC 1 2 /ns/a", "COUNTER RESET /ns/a 1",
        "COUNTER DEC 1 /ns/a WRAP WRAP",
    ],
)  # fmt: skip
def test_an_invalid_command_changes_nothing(tree: Tree, words: str) -> None:
    tree.do("CREATE", "COUNTER", "/ns/a")
    assert seen(tree, *words.split()) in (BADARG, Error(b"BADPATH"))


def test_other_errors(tree: Tree) -> None:
    tree.do("CREATE", "LIST", "/ns/list")
    for words in ("COUNTER INC", "COUNTER DEC 2", "COUNTER RESET"):
        assert seen(tree, *words.split(), "/ns/no") == Error(b"ERROR_DOES_NOT_EXISTS")
        assert seen(tree, *words.split(), "/ns/list") == Error(b"WRONGTYPE")
        assert seen(tree, *words.split(), "/ns//a") == Error(b"BADPATH")
    assert looked_up(tree, "COUNTER", "GET", "/ns/no") == Error(b"ERROR_DOES_NOT_EXISTS")
    assert looked_up(tree, "COUNTER", "GET", "/ns/list", "STALEREAD") == Error(b"WRONGTYPE")
    tree.do("CREATE", "COUNTER", "/ns/a")
    assert seen(tree, "PUT", "/ns/a", "5") == Error(b"WRONGTYPE")
    assert looked_up(tree, "COUNTER", "GET", "/ns/a", "NOW") == BADARG


def test_attributes_and_what_subscribers_hear(tree: Tree) -> None:
    tree.do("CREATE", "COUNTER", "BIT", "16", "/ns/a")
    tree.do("COUNTER", "INC", "7", "/ns/a")
    (happened,) = tree.last.happened
    assert (happened.op, happened.path, happened.data) == (b"counter", b"/ns/a", b"7")
    found = looked_up(tree, "GET", "/ns/a", "ATTR")
    assert isinstance(found, dict)
    assert (found[b"data_len"], found[b"version"], found[b"data"]) == (2, b"1:2:3", 7)
    tree.do("DELETE", "/ns/a")
    tree.do("CREATE", "COUNTER", "/ns/a")
    assert looked_up(tree, "COUNTER", "GET", "/ns/a") == 0


class Counting(RuleBasedStateMachine):
    @initialize(
        bits=st.sampled_from([8, 16, 64, 2048]),
        is_unsigned=st.booleans(),
        is_wrapping=st.booleans(),
    )
    def create(self, bits: int, is_unsigned: bool, is_wrapping: bool) -> None:
        self.tree, self.model = Tree(), CounterModel(bits, is_unsigned, is_wrapping)
        self.tree.do("CREATENAMESPACE", "/ns")
        options = ["UNSIGNED"] * is_unsigned + ["BIT", str(bits)] + ["WRAP"] * is_wrapping
        assert shown(self.tree.do("CREATE", "COUNTER", *options, "/ns/a")) == OK

    @rule(count=counts, is_down=st.booleans(), is_wrapping=st.booleans())
    def move(self, count: int, is_down: bool, is_wrapping: bool) -> None:
        words = ["COUNTER", "DEC" if is_down else "INC", str(count), "/ns/a"]
        words += ["WRAP"] * is_wrapping
        check_undone(self.tree, *(word.encode() for word in words))
        expected = self.model.add(-count if is_down else count, is_wrapping)
        assert seen(self.tree, *words) == expected

    @rule()
    def reset(self) -> None:
        assert seen(self.tree, "COUNTER", "RESET", "/ns/a") == self.model.reset()

    @rule()
    def go_on_from_a_snapshot(self) -> None:
        self.tree.again()

    @invariant()
    def it_shows_its_value(self) -> None:
        if hasattr(self, "tree"):
            assert looked_up(self.tree, "COUNTER", "GET", "/ns/a") == self.model.value


TestCounting = Counting.TestCase
TestCounting.settings = settings(max_examples=budget(60), stateful_step_count=15, deadline=None)
