"""The tree against a dict of paths: what is there, after whatever was done."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from millstream.coordination.core.namespace.commands.transactions import pack_command
from millstream.coordination.core.namespace.paths import DEPTH_MAX
from millstream.coordination.core.namespace.state import elements
from millstream.vsr.core.values import items
from support.budget import budget
from support.coordination.namespace_machine import Tree

NAMES = ("a", "b", "c")
PATHS = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map(
    lambda names: "/ns/" + "/".join(names)
)
SESSIONS = st.integers(1, 3)


class TreeMachine(RuleBasedStateMachine):
    """The model: path -> data and, if it is ephemeral, the session."""

    @initialize()
    def begin(self) -> None:
        self.tree = Tree()
        self.tree.do("CREATENAMESPACE", "/ns")
        self.there: dict[str, tuple[str, int]] = {"/ns": ("", 0)}

    def below(self, path: str) -> list[str]:
        return [other for other in self.there if other.startswith(path + "/")]

    def check(self, reply: bytes, expected: bytes, before: bytes) -> None:
        assert reply.startswith(expected), (reply, expected)
        if expected.startswith(b"-"):
            assert self.tree.bytes == before

    def parent_refusal(self, path: str) -> bytes:
        parent = path.rpartition("/")[0]
        if parent not in self.there:
            return b"-ERROR_DOES_NOT_EXISTS"
        return b"-EPHEMERAL_PARENT" if self.there[parent][1] else b""

    @rule(path=PATHS, data=st.text("xyz", max_size=2), session=SESSIONS, ephemeral=st.booleans())
    def create(self, path: str, data: str, session: int, ephemeral: bool) -> None:
        before = self.tree.bytes
        words = ["CREATE", "BINARY", *(["EPHEMERAL"] if ephemeral else []), path, data]
        reply = self.tree.do(*words, session=session)
        if path in self.there:
            return self.check(reply, b"+EXISTS", before)
        refusal = self.parent_refusal(path)
        self.check(reply, refusal or b"+OK", before)
        if not refusal:
            self.there[path] = (data, session if ephemeral else 0)
        return None

    @rule(path=PATHS, recursive=st.booleans())
    def delete(self, path: str, recursive: bool) -> None:
        before, below = self.tree.bytes, self.below(path)
        reply = self.tree.do("DELETE", path, *(["RECURSIVE"] if recursive else []))
        if path not in self.there:
            return self.check(reply, b"-ERROR_DOES_NOT_EXISTS", before)
        if below and not recursive:
            return self.check(reply, b"-NOTEMPTY", before)
        self.check(reply, b"+OK", before)
        for gone in [path, *below]:
            del self.there[gone]
        return None

    @rule(source=PATHS, goal=PATHS, force=st.booleans())
    def move(self, source: str, goal: str, force: bool) -> None:
        before = self.tree.bytes
        reply = self.tree.do("MOVE", source, goal, *(["FORCE_MOVE"] if force else []))
        refusal = self.move_refusal(source, goal, force)
        self.check(reply, refusal or b"+OK", before)
        if refusal or source == goal:
            return
        for gone in [goal, *self.below(goal)] if goal in self.there else []:
            del self.there[gone]
        for moved in [source, *self.below(source)]:
            self.there[goal + moved[len(source) :]] = self.there.pop(moved)

    def move_refusal(self, source: str, target: str, force: bool) -> bytes:
        if source not in self.there:
            return b"-ERROR_DOES_NOT_EXISTS"
        if source == target:
            return b""
        if target.startswith(source + "/"):
            return b"-LOOP"
        if refusal := self.parent_refusal(target):
            return refusal
        if target in self.there and not force:
            return b"-NAME_CONFLICT"
        return b"-LOOP" if source.startswith(target + "/") else b""

    @rule(path=PATHS, data=st.text("xyz", max_size=2))
    def put(self, path: str, data: str) -> None:
        before = self.tree.bytes
        reply = self.tree.do("PUT", path, data)
        self.check(reply, b"+OK" if path in self.there else b"-ERROR_DOES_NOT_EXISTS", before)
        if path in self.there:
            self.there[path] = (data, self.there[path][1])

    @rule(session=SESSIONS)
    def end(self, session: int) -> None:
        told = self.tree.end(session)
        gone = sorted(path for path, (_, owner) in self.there.items() if owner == session)
        assert [each.path.decode() for each in told.happened] == gone
        for path in gone:
            del self.there[path]

    @rule()
    def snapshot(self) -> None:
        self.tree.again()

    @invariant()
    def everything_is_where_it_should_be(self) -> None:
        if not hasattr(self, "tree"):
            return
        for path, (data, _) in self.there.items():
            assert self.tree.read("GET", path) == b"=" + data.encode()
            _, names = items(self.tree.read("LIST", path))
            below = {other[len(path) + 1 :].partition("/")[0] for other in self.below(path)}
            assert [name[1:].decode() for name in items(names)] == sorted(below)
        assert len(self.tree.machine.state.elements) == len(self.there)


TestTree = TreeMachine.TestCase
TestTree.settings = settings(max_examples=budget(60), stateful_step_count=30, deadline=None)


def test_no_number_is_given_twice() -> None:
    tree = Tree()
    tree.do("CREATENAMESPACE", "/ns")
    tree.do("CREATE", "BINARY", "/ns/a")
    first = tree.machine.state.elements.at((b"ns", b"a"))
    tree.do("DELETE", "/ns/a")
    tree.do("CREATE", "BINARY", "/ns/a")
    assert tree.machine.state.elements.at((b"ns", b"a")) > first


def test_too_many_elements_are_not_deleted_at_once(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(elements, "WORK_MAX", 5)
    tree = Tree()
    tree.do("CREATENAMESPACE", "/ns")
    for n in range(5):
        tree.do("CREATE", "BINARY", "PARENTS", f"/ns/a/{n}")
    before = tree.bytes
    assert tree.do("DELETE", "/ns/a", "RECURSIVE").startswith(b"-TOOBIG")
    assert tree.bytes == before
    tree.do("DELETE", "/ns/a/0")
    assert tree.do("DELETE", "/ns/a", "RECURSIVE") == b"+OK"


def test_the_commands_of_a_transaction_delete_no_more_than_one_would(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(elements, "WORK_MAX", 5)
    tree = Tree()
    tree.do("CREATENAMESPACE", "/ns")
    for path in ("/ns/a/1/2", "/ns/b/1/2"):
        tree.do("CREATE", "BINARY", "PARENTS", path)
    both = [pack_command((b"DELETE", path, b"RECURSIVE")) for path in (b"/ns/a", b"/ns/b")]
    before = tree.bytes
    assert tree.do("EXEC", *both).startswith(b"-EXECABORT 1 TOOBIG")
    assert tree.bytes == before
    assert tree.do("EXEC", both[0]).startswith(b"*")
    assert tree.do("EXEC", both[1]).startswith(b"*")


def test_no_path_becomes_too_long_by_a_move(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = Tree()
    tree.do("CREATENAMESPACE", "/ns")
    half = "/a" * (DEPTH_MAX // 2)
    assert tree.do("CREATE", "BINARY", "PARENTS", "/ns" + half) == b"+OK"
    assert tree.do("CREATE", "BINARY", "PARENTS", "/ns/b" + half) == b"+OK"
    before = tree.bytes
    assert tree.do("MOVE", "/ns/b", "/ns" + half + "/b").startswith(b"-BADPATH")
    assert tree.bytes == before
    assert tree.do("DELETE", "/ns/b" + half) == b"+OK"
    assert tree.do("DELETE", "/ns/b" + half[:-2]) == b"+OK"
    assert tree.do("MOVE", "/ns/b", "/ns" + half + "/b") == b"+OK"
    assert tree.read("LOOKUP", "/ns" + half + "/b" + half[:-4]) == b"+OK"
    monkeypatch.setattr(elements, "MOVED_MAX", 3)
    assert tree.do("MOVE", "/ns/a", "/ns/c") == b"+OK"
    tree.do("CREATE", "BINARY", "/ns/d")
    assert tree.do("MOVE", "/ns/c", "/ns/d/c").startswith(b"-TOOBIG")


def test_no_more_ends_with_a_session_than_one_entry_can_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(elements, "OWNED_MAX", 3)
    tree = Tree()
    tree.do("CREATENAMESPACE", "/ns")
    for name in "abc":
        assert tree.do("CREATE", "BINARY", "EPHEMERAL", f"/ns/{name}", session=5) == b"+OK"
    before = tree.bytes
    create = "CREATE", "BINARY", "EPHEMERAL", "/ns/d"
    assert tree.do(*create, session=5).startswith(b"-QUOTA a session has 3 ephemeral elements")
    assert tree.bytes == before
    assert tree.do("CREATE", "BINARY", "/ns/e", session=5) == b"+OK"
    assert tree.do("CREATE", "BINARY", "EPHEMERAL", "/ns/f", session=6) == b"+OK"
    assert tree.machine.weight(5) == 3
    tree.do("DELETE", "/ns/a", session=5)
    assert tree.do(*create, session=5) == b"+OK"
    tree.end(5)
    assert tree.machine.weight(5) == 0
