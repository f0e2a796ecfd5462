"""Limits are kept, and the sums of a namespace are those of what is in it."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from millstream.coordination.core.namespace.state.limits import Sums
from support.budget import budget
from support.coordination.namespace_machine import Tree


@pytest.fixture
def tree() -> Tree:
    made = Tree()
    made.do("CREATENAMESPACE", "/ns", "four")
    return made


def limit(tree: Tree, path: str, key: str, value: int) -> None:
    assert tree.do("CONFIG", "SET", path, key, str(value)) == b"+OK"


def test_data_of_an_element(tree: Tree) -> None:
    limit(tree, "/ns", "LIMIT.DATA", 3)
    assert tree.do("CREATE", "BINARY", "/ns/a", "xxxx") == (
        b"-QUOTA /ns/a: LIMIT.DATA is 3; delete some, or raise it"
    )
    assert tree.do("CREATE", "BINARY", "/ns/a", "xxx") == b"+OK"
    assert tree.do("PUT", "/ns/a", "xxxx").startswith(b"-QUOTA ")
    limit(tree, "/ns/a", "LIMIT.DATA", 4)
    assert tree.do("PUT", "/ns/a", "xxxx") == b"+OK"
    limit(tree, "/ns/a", "LIMIT.DATA", 1)
    assert tree.do("PUT", "/ns/a", "xxx") == b"+OK"
    assert tree.do("PUT", "/ns/a", "xxxx").startswith(b"-QUOTA ")


def test_children_of_an_element_made_or_moved_there(tree: Tree) -> None:
    limit(tree, "/ns", "LIMIT.CHILDREN", 2)
    for path in ("/ns/a", "/ns/b", "/ns/a/c"):
        assert tree.do("CREATE", "BINARY", path) == b"+OK"
    assert tree.do("CREATE", "BINARY", "/ns/d").startswith(b"-QUOTA /ns: LIMIT.CHILDREN is 2;")
    before = tree.bytes
    assert tree.do("MOVE", "/ns/a/c", "/ns/c").startswith(b"-QUOTA /ns: LIMIT.CHILDREN")
    assert tree.bytes == before
    assert tree.do("MOVE", "/ns/a", "/ns/b/a") == b"+OK"


def test_elements_and_bytes_of_a_namespace(tree: Tree) -> None:
    limit(tree, "/ns", "LIMIT.ELEMENTS", 3)
    limit(tree, "/ns", "LIMIT.BYTES", 10)
    assert tree.do("CREATE", "BINARY", "PARENTS", "/ns/a/b/c").startswith(b"-QUOTA ")
    assert tree.do("CREATE", "BINARY", "PARENTS", "/ns/a/b", "123456") == b"+OK"
    assert tree.do("CREATE", "BINARY", "/ns/c").startswith(b"-QUOTA /ns: LIMIT.ELEMENTS is 3;")
    assert tree.do("PUT", "/ns/a", "x").startswith(b"-QUOTA /ns: LIMIT.BYTES is 10;")
    assert tree.do("PUT", "/ns/a/b", "12345") == b"+OK"
    assert tree.do("PUT", "/ns/a", "x") == b"+OK"
    assert tree.machine.state.limits.sums(1) == Sums(3, 10)
    assert tree.do("DELETE", "/ns/a", "RECURSIVE") == b"+OK"
    assert tree.machine.state.limits.sums(1) == Sums(1, 4)
    tree.do("CREATENAMESPACE", "/other")
    assert tree.do("CREATE", "BINARY", "PARENTS", "/other/a/b/c", "1234567890a") == b"+OK"


def test_items_of_an_element(tree: Tree) -> None:
    assert tree.machine.state.items_max(1) == 100_000
    limit(tree, "/ns", "LIMIT.ITEMS", 5)
    assert tree.machine.state.items_max(1) == 5


def test_nothing_is_left_of_a_namespace_that_is_gone(tree: Tree) -> None:
    tree.do("CREATE", "BINARY", "/ns/a", "data")
    assert tree.do("DELETENAMESPACE", "/ns", "FORCE") == b"+OK"
    assert tree.machine.state.limits.sums(1) == Sums()


PATHS = st.lists(st.sampled_from(["a", "b"]), min_size=1, max_size=3).map(
    lambda names: "/".join(("/ns", *names))
)
SIZES = st.integers(0, 5)


class Counting(RuleBasedStateMachine):
    """Whatever is done, a namespace has what one finds when counting."""

    @initialize()
    def begin(self) -> None:
        self.tree = Tree()
        self.tree.do("CREATENAMESPACE", "/ns")
        limit(self.tree, "/ns", "LIMIT.ELEMENTS", 6)
        limit(self.tree, "/ns", "LIMIT.BYTES", 12)

    @rule(path=PATHS, size=SIZES, flags=st.sampled_from(["EPHEMERAL", "SEQUENTIAL", "PARENTS"]))
    def create(self, path: str, size: int, flags: str) -> None:
        self.tree.do("CREATE", "BINARY", flags, path, "x" * size)

    @rule(path=PATHS, size=SIZES)
    def put(self, path: str, size: int) -> None:
        self.tree.do("PUT", path, "x" * size)

    @rule(path=PATHS, size=SIZES)
    def put_attribute(self, path: str, size: int) -> None:
        self.tree.do("PUT", path, "ATTR", "u.a", "x" * size)

    @rule(path=PATHS)
    def delete(self, path: str) -> None:
        self.tree.do("DELETE", path, "RECURSIVE")

    @rule(source=PATHS, destination=PATHS)
    def move(self, source: str, destination: str) -> None:
        self.tree.do("MOVE", source, destination, "FORCE_MOVE")

    @rule()
    def end_the_session(self) -> None:
        self.tree.end(7)

    @invariant()
    def sums_are_those_of_the_elements(self) -> None:
        state = self.tree.machine.state
        all_of_it = [state.elements.there(number) for number in state.elements.tree(1)]
        of_users = sum(
            len(b"u.a") + len(value) - 1
            for number in state.elements.tree(1)
            for _, value in state.data.attributes(self.tree.last, number)
        )
        size = sum(one.data_len for one in all_of_it) + of_users
        counted = Sums(len(all_of_it), size)
        assert state.limits.sums(1) == counted
        assert counted.elements <= 6
        assert counted.bytes <= 12


TestCounting = Counting.TestCase
TestCounting.settings = settings(max_examples=budget(60), stateful_step_count=30)
