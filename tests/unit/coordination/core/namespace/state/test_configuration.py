"""What was set nearest upwards counts."""

from __future__ import annotations

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from millstream.coordination.core.namespace.state.configuration import (
    GLOBAL,
    GROUP,
    Setting,
    may_be_set,
)
from millstream.coordination.core.namespace.state.keys import KEYS, Owner
from millstream.vsr.core.values import items
from support.budget import budget
from support.coordination.namespace_machine import Tree

HISTORY = KEYS[b"SUBS.MIN.HISTORY"]
OPEN = KEYS[b"LOCK.READ.OPEN"]
ELEMENTS = KEYS[b"LIMIT.ELEMENTS"]
PIPELINE = KEYS[b"GROUP.PIPELINE"]
REQUIRED = KEYS[b"GLOBAL.AUTH.REQUIRED"]
NODE = KEYS[b"NODE.LISTEN"]


def test_an_unset_key_has_its_default() -> None:
    tree = Tree()
    tree.do("CREATENAMESPACE", "/ns")
    found = tree.machine.state.settings
    assert found.find(1, HISTORY) == Setting(HISTORY, b"128", None)
    assert found.number(1, b"SUBS.MIN.HISTORY") == 128
    assert not found.truth(1, b"LOCK.READ.OPEN")


def test_group_and_all_groups_are_asked_last_and_alone() -> None:
    tree = Tree()
    tree.do("CREATENAMESPACE", "/ns")
    found = tree.machine.state.settings
    found.put(GROUP, HISTORY, b"5")
    found.put(GLOBAL, REQUIRED, b"true")
    assert found.find(1, HISTORY) == Setting(HISTORY, b"5", GROUP)
    assert found.find(GLOBAL, REQUIRED) == Setting(REQUIRED, b"true", GLOBAL)
    assert found.find(GROUP, REQUIRED) == Setting(REQUIRED, b"false", None)
    found.put(1, OPEN, b"true")
    assert found.truth(1, b"LOCK.READ.OPEN")


def test_keys_that_fit_are_given_in_order() -> None:
    tree = Tree()
    tree.do("CREATENAMESPACE", "/ns")
    found = tree.machine.state.settings
    found.put(1, HISTORY, b"5")
    assert found.matching(1, b"*.[a-z]*", (Owner.ELEMENT,)) == []
    fitting = found.matching(1, b"*m*", (Owner.ELEMENT, Owner.NODE))
    assert [(setting.key.name, setting.value, setting.where) for setting in fitting] == [
        (b"LIMIT.CHILDREN", b"100000", None),
        (b"LIMIT.DATA", b"1048576", None),
        (b"LIMIT.ITEMS", b"100000", None),
        (b"NAMESPACE.SESSION.HEARTBEAT.DURATION", b"10000 ms", None),
        (HISTORY.name, b"5", 1),
    ]


def test_a_key_is_set_where_it_belongs() -> None:
    places = {"root": (1, True), "element": (2, False), "group": (GROUP, False)}
    places["global"] = (GLOBAL, False)
    fits = {
        key.name: [
            name for name, (where, is_root) in places.items()
            if may_be_set(key, where, is_root=is_root)
        ]
        for key in (HISTORY, ELEMENTS, PIPELINE, REQUIRED, NODE)
    }  # fmt: skip
    assert fits == {
        HISTORY.name: ["root", "element", "group"],
        ELEMENTS.name: ["root", "group"],
        PIPELINE.name: ["group"],
        REQUIRED.name: ["global"],
        NODE.name: [],
    }


def test_an_element_shows_what_is_its_own_and_takes_it_along() -> None:
    tree = Tree()
    tree.do("CREATENAMESPACE", "/ns")
    tree.do("CREATE", "BINARY", "/ns/a")
    tree.do("CONFIG", "SET", "/ns/a", HISTORY.name, "5")
    tree.do("CONFIG", "SET", "/ns", OPEN.name, "true")
    tree.do("MOVE", "/ns/a", "/ns/b")
    flat = items(tree.read("GET", "/ns/b", "ATTR"))
    own = items(flat[flat.index(b"=config") + 1])
    assert own == [b"=" + HISTORY.name, b"=5"]
    tree.do("DELETE", "/ns/b")
    assert list(tree.machine.state.settings.own(2)) == []


NAMES = st.sampled_from(["a", "b", "c"])
PATHS = st.lists(NAMES, max_size=3).map(lambda names: "/".join(("/ns", *names)))
VALUES = st.integers(0, 9)


class Inheritance(RuleBasedStateMachine):
    """Set, unset, move and delete against a plain mapping from paths to values."""

    @initialize()
    def begin(self) -> None:
        self.tree = Tree()
        self.tree.do("CREATENAMESPACE", "/ns")
        self.there = {"/ns"}
        self.plain: dict[str, int] = {}

    @rule(path=PATHS)
    def create(self, path: str) -> None:
        if self.tree.do("CREATE", "BINARY", path) == b"+OK":
            self.there.add(path)

    @rule(path=PATHS, value=VALUES)
    def set(self, path: str, value: int) -> None:
        reply = self.tree.do("CONFIG", "SET", path, HISTORY.name, str(value))
        assert (reply == b"+OK") == (path in self.there)
        if path in self.there:
            self.plain[path] = value

    @rule(path=PATHS)
    def unset(self, path: str) -> None:
        self.tree.do("CONFIG", "UNSET", path, HISTORY.name)
        self.plain.pop(path, None)

    @rule(value=VALUES | st.none())
    def group(self, value: int | None) -> None:
        if value is None:
            self.tree.do("CONFIG", "UNSET", "GROUP", HISTORY.name)
            self.plain.pop("", None)
        else:
            self.tree.do("CONFIG", "SET", "GROUP", HISTORY.name, str(value))
            self.plain[""] = value

    @rule(path=PATHS)
    def delete(self, path: str) -> None:
        if self.tree.do("DELETE", path, "RECURSIVE") == b"+OK":
            gone = {each for each in self.there if (each + "/").startswith(path + "/")}
            self.there -= gone
            self.plain = {each: n for each, n in self.plain.items() if each not in gone}

    @rule(source=PATHS, destination=PATHS)
    def move(self, source: str, destination: str) -> None:
        if source != destination and self.tree.do("MOVE", source, destination) == b"+OK":

            def moved(each: str) -> str:
                is_below = (each + "/").startswith(source + "/")
                return destination + each[len(source) :] if is_below else each

            self.there = {moved(each) for each in self.there}
            self.plain = {moved(each): n for each, n in self.plain.items()}

    @rule()
    def go_on_from_a_snapshot(self) -> None:
        self.tree.again()

    @invariant()
    def the_nearest_counts(self) -> None:
        for path in self.there:
            at, where = path, "DEFAULT"
            while at and at not in self.plain:
                at = at.rpartition("/")[0]
            if at in self.plain:
                where = at or "GROUP"
            value, source = items(self.tree.read("CONFIG", "GET", path, HISTORY.name, "SOURCE"))
            assert value == b"=%d" % self.plain.get(at, 128)
            assert source == b"=" + where.encode()


TestInheritance = Inheritance.TestCase
TestInheritance.settings = hypothesis_settings(max_examples=budget(60), stateful_step_count=25)
