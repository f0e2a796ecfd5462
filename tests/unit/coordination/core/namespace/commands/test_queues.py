"""Commands of queues, against two lists: what is ready, and who has taken what."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from millstream.coordination.core.namespace.commands import queues
from millstream.coordination.core.namespace.commands.items import ITEM_BYTES_MAX
from millstream.coordination.core.namespace.state.run import Run
from millstream.coordination.core.namespace.state.state import State
from support.budget import budget
from support.coordination.namespace_machine import Tree
from support.coordination.structured_models import (
    BADARG,
    OK,
    Error,
    QueueModel,
    check_undone,
    looked_up,
    seen,
    shown,
)

GONE = Error(b"ERROR_DOES_NOT_EXISTS")
PRIORITIES = (-(2**31) + 1, -1, 0, 0, 0, 5, 2**31 - 1)


@pytest.fixture
def tree() -> Tree:
    made = Tree()
    made.do("CREATENAMESPACE", "/ns")
    made.do("CREATE", "QUEUE", "/ns/q", "one", "two")
    return made


def test_what_each_command_answers(tree: Tree) -> None:
    assert seen(tree, "QUEUE", "PUSH", "/ns/q", "three", "four") == [b"1:2:3:0", b"1:2:3:1"]
    assert seen(tree, "QUEUE", "PUSH", "/ns/q", "first", "PRIORITY", "1") == [b"1:2:4:0"]
    assert looked_up(tree, "QUEUE", "PEEK", "/ns/q", "2") == [b"first", b"one"]
    assert looked_up(tree, "GET", "/ns/q") == [b"first", b"one", b"two", b"three", b"four"]
    assert seen(tree, "QUEUE", "POP", "/ns/q") == [b"first"]
    taken = [[b"1:2:2:0", b"one", 1], [b"1:2:2:1", b"two", 1]]
    assert seen(tree, "QUEUE", "TAKE", "/ns/q", "2") == taken
    assert looked_up(tree, "QUEUE", "LEN", "/ns/q") == [2, 2]
    assert looked_up(tree, "GET", "/ns/q") == [b"three", b"four"]
    assert seen(tree, "QUEUE", "ACK", "/ns/q", "1:2:2:0", "1:2:2:0", "1:2:3:0") == 1
    assert seen(tree, "QUEUE", "NACK", "/ns/q", "1:02:002:1") == 1
    assert seen(tree, "QUEUE", "NACK", "/ns/q", "1:2:2:1") == 0
    assert seen(tree, "QUEUE", "TAKE", "/ns/q") == [[b"1:2:2:1", b"two", 2]]
    assert looked_up(tree, "QUEUE", "PEEK", "/ns/q", "STALEREAD") == [b"three"]
    assert seen(tree, "QUEUE", "PURGE", "/ns/q") == 2
    assert looked_up(tree, "QUEUE", "LEN", "/ns/q", "STALEREAD") == [0, 1]
    assert seen(tree, "QUEUE", "ACK", "/ns/q", "1:2:2:1") == 1
    assert seen(tree, "QUEUE", "POP", "/ns/q", "3") == []
    assert seen(tree, "QUEUE", "TAKE", "/ns/q") == []


def test_only_who_has_an_item_ends_it(tree: Tree) -> None:
    tree.do("QUEUE", "TAKE", "/ns/q", session=8)
    assert seen(tree, "QUEUE", "ACK", "/ns/q", "1:2:2:0") == 0
    assert seen(tree, "QUEUE", "NACK", "/ns/q", "1:2:2:0") == 0
    assert seen(tree, "QUEUE", "ACK", "/ns/q", "1:2:2:0", session=8) == 1


def test_items_of_a_session_return_when_it_ends(tree: Tree) -> None:
    tree.do("CREATE", "QUEUE", "/ns/other", "x")
    tree.do("QUEUE", "TAKE", "/ns/q", "2", session=8)
    tree.do("QUEUE", "TAKE", "/ns/other", session=8)
    tree.do("QUEUE", "PUSH", "/ns/q", "three")
    tree.do("QUEUE", "TAKE", "/ns/q", session=9)
    tree.end(8)
    assert [(each.op, each.path) for each in tree.last.happened] == [
        (b"queue", b"/ns/q"), (b"queue", b"/ns/other")
    ]  # fmt: skip
    assert looked_up(tree, "GET", "/ns/other") == [b"x"]
    assert seen(tree, "QUEUE", "TAKE", "/ns/q", "5") == [
        [b"1:2:2:0", b"one", 2], [b"1:2:2:1", b"two", 2]
    ]  # fmt: skip
    assert looked_up(tree, "QUEUE", "LEN", "/ns/q") == [0, 3]
    found = looked_up(tree, "GET", "/ns/other", "ATTR", "NODATA")
    assert isinstance(found, dict)
    assert found[b"version"] == b"1:2:8"


def test_newly_returned_items_come_before_earlier_ones(tree: Tree) -> None:
    ids = [item[0] for item in seen(tree, "QUEUE", "TAKE", "/ns/q", "2")]
    tree.do("QUEUE", "PUSH", "/ns/q", "low", "PRIORITY", "-1")
    tree.do("QUEUE", "PUSH", "/ns/q", "high", "PRIORITY", "1")
    tree.do("QUEUE", "NACK", "/ns/q", ids[0])
    tree.do("QUEUE", "NACK", "/ns/q", ids[1])
    assert looked_up(tree, "GET", "/ns/q") == [b"high", b"two", b"one", b"low"]


def test_a_priority_is_the_last_two_words_behind_a_value(tree: Tree) -> None:
    tree.do("QUEUE", "PURGE", "/ns/q")
    assert len(seen(tree, "QUEUE", "PUSH", "/ns/q", "PRIORITY", "5")) == 2
    assert len(seen(tree, "QUEUE", "PUSH", "/ns/q", "priority", "x", "PRIORITY", "0")) == 2
    assert seen(tree, "QUEUE", "PUSH", "/ns/q", "v", "PRIORITY", "x") == BADARG
    assert seen(tree, "QUEUE", "PUSH", "/ns/q", "v", "PRIORITY", str(2**31)) == BADARG
    assert looked_up(tree, "GET", "/ns/q") == [b"PRIORITY", b"5", b"priority", b"x"]


@pytest.mark.parametrize(
    "words",
    [
        "QUEUE", "QUEUE MORE /ns/q", "QUEUE PUSH /ns/q", "QUEUE POP", "QUEUE POP /ns/q 0",
        "QUEUE POP /ns/q 1 1", "QUEUE TAKE /ns/q x", "QUEUE ACK /ns/q", "QUEUE ACK /ns/q 1:2:3",
        "QUEUE NACK /ns/q 1:2:3:x", "QUEUE ACK /ns/q 4294967296:0:0:0", "QUEUE PURGE /ns/q 1",
        "QUEUE WAIT", "QUEUE WAIT /ns/q 1",
    ],
)  # fmt: skip
def test_an_invalid_command_changes_nothing(tree: Tree, words: str) -> None:
    assert seen(tree, *words.split()) == BADARG


@pytest.mark.parametrize("words", ["QUEUE LEN", "QUEUE LEN /ns/q 1", "QUEUE PEEK /ns/q -1"])
def test_invalid_reads_are_refused(tree: Tree, words: str) -> None:
    assert looked_up(tree, *words.split()) == BADARG


def test_other_types_are_no_queues(tree: Tree) -> None:
    tree.do("CREATE", "SET", "/ns/set")
    changes = (
        "PUSH {} v", "POP {}", "TAKE {}", "ACK {} 1:1:1:1", "NACK {} 1:1:1:1", "PURGE {}",
        "WAIT {}",
    )  # fmt: skip
    for change in changes:
        assert seen(tree, "QUEUE", *change.format("/ns/set").split()) == Error(b"WRONGTYPE")
        assert seen(tree, "QUEUE", *change.format("/ns/no").split()) == GONE
    for read in ("PEEK {}", "LEN {}"):
        assert looked_up(tree, "QUEUE", *read.format("/ns/set").split()) == Error(b"WRONGTYPE")
        assert looked_up(tree, "QUEUE", *read.format("/ns/no").split()) == GONE


def test_taken_items_belong_to_a_session(tree: Tree) -> None:
    for words in ("TAKE /ns/q", "ACK /ns/q 1:2:2:0", "NACK /ns/q 1:2:2:0", "WAIT /ns/q"):
        assert seen(tree, "QUEUE", *words.split(), session=0) == Error(b"ERR")


def test_waiting_at_a_queue_with_items_ends_at_once(tree: Tree) -> None:
    assert seen(tree, "QUEUE", "WAIT", "/ns/q") == OK


def test_waiting_for_unknown_members(tree: Tree) -> None:
    tree.do("QUEUE", "PURGE", "/ns/q")
    queues_of_all = tree.machine.state.queues
    asked: list[tuple[int, int]] = []

    def wait(run: Run, element: int) -> bytes:
        asked.append((run.asker.session, element))
        return b"+PENDING"

    queues_of_all.wait = wait
    assert tree.do("QUEUE", "WAIT", "/ns/q", session=9) == b"+PENDING"
    assert asked == [(9, tree.machine.state.elements.at((b"ns", b"q")))]


def test_bounds(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    assert seen(tree, "QUEUE", "PUSH", "/ns/q", b"x" * (ITEM_BYTES_MAX + 1)) == Error(b"TOOBIG")
    monkeypatch.setattr(State, "items_max", lambda self, element: 4)
    tree.do("QUEUE", "TAKE", "/ns/q")
    assert seen(tree, "QUEUE", "PUSH", "/ns/q", *"abc") == Error(b"QUOTA")
    assert seen(tree, "CREATE", "QUEUE", "/ns/p", *"abcde") == Error(b"QUOTA")
    assert len(seen(tree, "QUEUE", "PUSH", "/ns/q", "a", "b")) == 2
    monkeypatch.setattr(queues, "SHOWN_BYTES_MAX", 4)
    assert looked_up(tree, "GET", "/ns/q") == Error(b"TOOBIG")
    assert looked_up(tree, "QUEUE", "PEEK", "/ns/q", "3") == Error(b"TOOBIG")


def test_a_session_has_so_many_items(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "TAKEN_MAX", 3)
    tree.do("QUEUE", "PUSH", "/ns/q", "three", "four")
    tree.do("CREATE", "QUEUE", "/ns/p", "x")
    tree.do("QUEUE", "TAKE", "/ns/p")
    assert len(seen(tree, "QUEUE", "TAKE", "/ns/q", "9")) == 2
    assert seen(tree, "QUEUE", "TAKE", "/ns/q", "9") == Error(b"QUOTA")
    assert seen(tree, "QUEUE", "ACK", "/ns/q", "1:2:2:0") == 1
    assert len(seen(tree, "QUEUE", "TAKE", "/ns/q", "9")) == 1


def test_a_reply_has_so_many_bytes_but_one_item(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "GIVEN_BYTES_MAX", 2)
    tree.do("QUEUE", "PUSH", "/ns/q", "a", "b", "c")
    assert seen(tree, "QUEUE", "POP", "/ns/q", "9") == [b"one"]
    assert len(seen(tree, "QUEUE", "TAKE", "/ns/q", "9")) == 1
    assert seen(tree, "QUEUE", "POP", "/ns/q", "9") == [b"a", b"b"]


def test_attributes_and_what_subscribers_hear(tree: Tree) -> None:
    changes = ("PUSH /ns/q x", "TAKE /ns/q 2", "NACK /ns/q 1:2:2:0", "ACK /ns/q 1:2:2:1")
    lengths = (7, 7, 7, 4)
    for words, length in zip(
        (*changes, "POP /ns/q", "PURGE /ns/q"), (*lengths, 1, 0), strict=True
    ):
        tree.do("QUEUE", *words.split())
        assert [(each.op, each.path) for each in tree.last.happened] == [(b"queue", b"/ns/q")]
        found = looked_up(tree, "GET", "/ns/q", "ATTR", "NODATA")
        assert isinstance(found, dict)
        assert (found[b"version"], found[b"data_len"]) == (b"1:2:%d" % tree.lsn, length)


@pytest.mark.parametrize(
    "words", ["POP /ns/p", "TAKE /ns/p", "ACK /ns/p 1:1:1:1", "NACK /ns/p 1:1:1:1", "PURGE /ns/p"]
)
def test_a_queue_that_is_as_it_was_has_no_new_version(tree: Tree, words: str) -> None:
    tree.do("CREATE", "QUEUE", "/ns/p")
    before = looked_up(tree, "GET", "/ns/p", "ATTR")
    tree.do("QUEUE", *words.split())
    assert looked_up(tree, "GET", "/ns/p", "ATTR") == before
    assert not tree.last.happened


def test_items_end_with_their_queue(tree: Tree) -> None:
    tree.do("DELETE", "/ns/q")
    empty = len(tree.bytes)
    tree.do("CREATE", "QUEUE", "/ns/q", *"abcdefgh")
    tree.do("CREATE", "QUEUE", "/ns/p", "x")
    for session in (8, 9, 2**64 - 2):
        tree.do("QUEUE", "TAKE", "/ns/q", "2", session=session)
    tree.do("QUEUE", "TAKE", "/ns/p", session=9)
    check_undone(tree, b"DELETE", b"/ns/q")
    tree.do("DELETE", "/ns/q")
    tree.end(8, 9)
    assert looked_up(tree, "GET", "/ns/p") == [b"x"]
    tree.do("DELETE", "/ns/p")
    assert len(tree.bytes) == empty


class Queueing(RuleBasedStateMachine):
    @initialize(first=st.lists(st.binary(max_size=2), max_size=4))
    def create(self, first: list[bytes]) -> None:
        self.tree, self.model = Tree(), QueueModel()
        self.tree.do("CREATENAMESPACE", "/ns")
        assert shown(self.tree.do("CREATE", "QUEUE", "/ns/q", *first)) == OK
        self.model.push([b"1:2:2:%d" % number for number in range(len(first))], first, 0)

    def change(self, name: bytes, *rest: bytes, session: int = 7) -> object:
        check_undone(self.tree, b"QUEUE", name, b"/ns/q", *rest)
        return seen(self.tree, b"QUEUE", name, b"/ns/q", *rest, session=session)

    sessions = st.sampled_from([7, 8])
    values = st.lists(st.binary(max_size=3), min_size=1, max_size=3)

    @rule(values=values, priority=st.sampled_from(PRIORITIES))
    def push(self, values: list[bytes], priority: int) -> None:
        lsn = self.tree.lsn + 1
        ids = [b"1:2:%d:%d" % (lsn, number) for number in range(len(values))]
        found = self.change(b"PUSH", *values, b"PRIORITY", b"%d" % priority)
        assert found == self.model.push(ids, values, priority)

    @rule(count=st.integers(1, 4))
    def pop(self, count: int) -> None:
        assert self.change(b"POP", b"%d" % count) == self.model.pop(count)

    @rule(session=sessions, count=st.integers(1, 4))
    def take(self, session: int, count: int) -> None:
        found = self.change(b"TAKE", b"%d" % count, session=session)
        assert found == self.model.take(session, count)

    @rule(session=sessions, data=st.data(), is_done=st.booleans())
    def end_taking(self, session: int, data: st.DataObject, is_done: bool) -> None:
        known = [item.id for _, item in self.model.taken] + [b"1:2:3:99"]
        ids = data.draw(st.lists(st.sampled_from(known), min_size=1, max_size=3))
        found = self.change(b"ACK" if is_done else b"NACK", *ids, session=session)
        end = self.model.acknowledge if is_done else self.model.refuse
        assert found == end(session, ids)

    @rule(session=sessions)
    def end_session(self, session: int) -> None:
        self.tree.end(session)
        self.model.end_session(session)

    @rule()
    def purge(self) -> None:
        assert self.change(b"PURGE") == self.model.purge()

    @rule()
    def go_on_from_a_snapshot(self) -> None:
        self.tree.again()

    @invariant()
    def it_shows_what_is_ready(self) -> None:
        if not hasattr(self, "tree"):
            return
        ready, taken = self.model.ready, [item for _, item in self.model.taken]
        assert looked_up(self.tree, "GET", "/ns/q") == [item.value for item in ready]
        assert looked_up(self.tree, "QUEUE", "LEN", "/ns/q") == [len(ready), len(taken)]
        found = looked_up(self.tree, "GET", "/ns/q", "ATTR", "NODATA")
        assert isinstance(found, dict)
        assert found[b"data_len"] == sum(len(item.value) for item in ready + taken)


TestQueueing = Queueing.TestCase
TestQueueing.settings = settings(max_examples=budget(80), stateful_step_count=25, deadline=None)
