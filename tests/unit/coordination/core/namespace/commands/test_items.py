"""Items among words, and replies of bounded length."""

from __future__ import annotations

import pytest

from millstream.coordination.core.namespace.commands.command import Words, parse
from millstream.coordination.core.namespace.commands.items import (
    ITEM_BYTES_MAX,
    bounded,
    taken_count,
    taken_item,
    taken_items,
)
from millstream.coordination.core.namespace.machine import COMMANDS
from millstream.coordination.core.namespace.refused import Refused
from millstream.coordination.core.namespace.state.family import Want
from millstream.coordination.core.namespace.state.run import Run
from millstream.coordination.core.namespace.state.state import State
from support.coordination.namespace_machine import Tree


def words(*given: bytes) -> Words:
    return Words(given, "usage")


def test_items_are_taken_from_words() -> None:
    assert taken_items(words(b"a", b"")) == (b"a", b"")
    assert taken_item(words(b"x" * ITEM_BYTES_MAX, b"b")) == b"x" * ITEM_BYTES_MAX
    assert taken_count(words(), 3) == 3
    assert taken_count(words(b"2"), 3) == 2


@pytest.mark.parametrize("given", [(b"0",), (b"-1",), (b"x",), (b"1", b"1"), (b"9" * 19,)])
def test_what_is_no_count(given: tuple[bytes, ...]) -> None:
    with pytest.raises(Refused, match="BADARG"):
        taken_count(words(*given), 1)


def test_an_item_has_a_length() -> None:
    for take in (taken_item, taken_items):
        with pytest.raises(Refused, match="TOOBIG"):
            take(words(b"x" * (ITEM_BYTES_MAX + 1)))
        with pytest.raises(Refused, match="BADARG"):
            take(words())


def test_a_reply_has_a_length() -> None:
    assert bounded([b"ab", b"c"], 3) == [b"=ab", b"=c"]
    with pytest.raises(Refused, match="TOOBIG"):
        bounded([b"ab", b"cd"], 3)


CHANGES = (
    "COUNTER INC /ns/c", "COUNTER DEC /ns/c", "COUNTER RESET /ns/c", "LIST APPEND /ns/l v",
    "LIST PREPEND /ns/l v", "LIST INSERT /ns/l 0 v", "LIST SET /ns/l 0 v", "LIST REMOVE /ns/l 0",
    "LIST REMVAL /ns/l v", "LIST TRIM /ns/l 0 1", "SET ADD /ns/s m", "SET REM /ns/s m",
    "SET POP /ns/s", "QUEUE PUSH /ns/q v", "QUEUE POP /ns/q", "QUEUE TAKE /ns/q",
    "QUEUE ACK /ns/q 1:1:1:1", "QUEUE NACK /ns/q 1:1:1:1", "QUEUE PURGE /ns/q", "QUEUE WAIT /ns/q",
)  # fmt: skip
READS = (
    "COUNTER GET /ns/c", "LIST INDEX /ns/l 0", "LIST RANGE /ns/l 0 1", "LIST LEN /ns/l",
    "LIST FIND /ns/l v", "SET HAS /ns/s m", "SET MEMBERS /ns/s", "SET LEN /ns/s",
    "SET UNION /ns/s", "SET INTER /ns/s", "SET DIFF /ns/s", "QUEUE PEEK /ns/q", "QUEUE LEN /ns/q",
)  # fmt: skip


@pytest.fixture
def tree() -> Tree:
    made = Tree()
    for words in (
        "CREATENAMESPACE /ns", "CREATE COUNTER /ns/c", "CREATE LIST /ns/l v",
        "CREATE SET /ns/s m", "CREATE QUEUE /ns/q v",
    ):  # fmt: skip
        assert made.do(*words.split()) == b"+OK"
    return made


def forbid(tree: Tree, forbidden: Want, monkeypatch: pytest.MonkeyPatch) -> None:
    def guard(_state: State, _run: Run, _element: int, want: Want) -> None:
        if want is forbidden:
            raise Refused("NOPERM", "a test says so")

    monkeypatch.setattr(State, "guard", guard)


@pytest.mark.parametrize("words", CHANGES)
def test_a_change_is_a_write(tree: Tree, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    forbid(tree, Want.READ, monkeypatch)
    assert not tree.do(*words.split()).startswith(b"-")
    monkeypatch.undo()
    forbid(tree, Want.WRITE, monkeypatch)
    before = tree.bytes
    assert tree.do(*words.split()).startswith(b"-NOPERM")
    assert tree.bytes == before


@pytest.mark.parametrize("words", READS)
def test_a_look_is_a_read(tree: Tree, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    forbid(tree, Want.WRITE, monkeypatch)
    assert not tree.read(*words.split()).startswith(b"-")
    assert not tree.read(*words.split(), "STALEREAD").startswith(b"-")
    monkeypatch.undo()
    forbid(tree, Want.READ, monkeypatch)
    assert tree.read(*words.split()).startswith(b"-NOPERM")


@pytest.mark.parametrize("words", READS)
def test_what_changes_nothing_is_not_logged(tree: Tree, words: str) -> None:
    assert tree.do(*words.split()).startswith(b"-BADARG")
    assert parse([word.encode() for word in (*words.split(), "STALEREAD")], COMMANDS).is_stale
