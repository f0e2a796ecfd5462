"""Configuration is set by those who may, where it belongs, to what the key takes."""

from __future__ import annotations

import pytest

from millstream.coordination.core.namespace.state.access_lists import ADMINS
from millstream.vsr.core.values import items
from support.coordination.namespace_machine import Tree

BEAT = "NAMESPACE.SESSION.HEARTBEAT.DURATION"


@pytest.fixture
def tree() -> Tree:
    made = Tree()
    made.do("CREATENAMESPACE", "/myroot")
    made.do("CREATE", "BINARY", "PARENTS", "/myroot/a/b")
    return made


def shown(value: bytes) -> dict[bytes, bytes]:
    assert value[:1] == b"%", value
    flat = [word[1:] for word in items(value)]
    return dict(zip(flat[::2], flat[1::2], strict=True))


def code(value: bytes) -> bytes:
    assert value.startswith(b"-"), value
    return value[1:].split(b" ")[0]


def test_the_papers_example(tree: Tree) -> None:
    assert shown(tree.read("CONFIG", "GET", "/myroot", BEAT)) == {BEAT.encode(): b"10000 ms"}
    assert tree.do("CONFIG", "SET", "/myroot", BEAT, "3", "seconds") == b"+OK"
    assert shown(tree.read("CONFIG", "GET", "/myroot", BEAT)) == {BEAT.encode(): b"3000 ms"}


def test_what_is_set_above_counts_below_and_is_said_to_be_from_there(tree: Tree) -> None:
    tree.do("CONFIG", "SET", "/myroot/a", "subs.min.history", "7")
    get = ("CONFIG", "GET", "/myroot/a/b", "SUBS.MIN.HISTORY")
    assert shown(tree.read(*get)) == {b"SUBS.MIN.HISTORY": b"7"}
    assert items(tree.read(*get, "SOURCE")) == [b"=7", b"=/myroot/a"]
    assert items(tree.read(*get, "SOURCE", "STALEREAD")) == [b"=7", b"=/myroot/a"]
    assert tree.do("CONFIG", "UNSET", "/myroot/a", "SUBS.MIN.HISTORY") == b"+OK"
    assert items(tree.read(*get, "SOURCE")) == [b"=128", b"=DEFAULT"]
    tree.do("CONFIG", "SET", "GROUP", "SUBS.MIN.HISTORY", "8")
    assert items(tree.read(*get, "SOURCE")) == [b"=8", b"=GROUP"]


def test_patterns_find_keys(tree: Tree) -> None:
    assert list(shown(tree.read("CONFIG", "GET", "/myroot", "limit.*"))) == [
        b"LIMIT.BYTES", b"LIMIT.CHILDREN", b"LIMIT.DATA", b"LIMIT.ELEMENTS", b"LIMIT.ITEMS",
    ]  # fmt: skip
    assert shown(tree.read("CONFIG", "GET", "/myroot", "NOTHING")) == {}
    assert shown(tree.read("CONFIG", "GET", "GROUP", "GROUP.PIPE*")) == {b"GROUP.PIPELINE": b"4"}
    assert shown(tree.read("CONFIG", "GET", "GLOBAL", "GLOBAL.AUTH.REQUIRED")) == {
        b"GLOBAL.AUTH.REQUIRED": b"false"
    }


def test_a_change_is_an_update_of_the_element(tree: Tree) -> None:
    tree.do("CONFIG", "SET", "/myroot/a", "LOCK.READ.OPEN", "true")
    (happened,) = tree.last.happened
    assert (happened.op, happened.path) == (b"attr", b"/myroot/a")
    _, version = items(tree.read("GET", "/myroot/a", "CAS")), tree.last.version.text
    assert items(tree.read("GET", "/myroot/a", "CAS"))[0] == b"=" + version


def test_other_sets_are_for_administrators(tree: Tree) -> None:
    for name in ("GROUP", "GLOBAL"):
        key = f"{name}.*"
        assert code(tree.read("CONFIG", "GET", name, key, user=b"eve")) == b"NOPERM"
        assert shown(tree.read("CONFIG", "GET", name, key, user=b"eve", groups=(ADMINS,)))
    change = ("CONFIG", "SET", "GLOBAL", "GLOBAL.AUTH.REQUIRED", "yes")
    assert code(tree.do(*change, user=b"eve")) == b"NOPERM"
    assert tree.do(*change, user=b"eve", groups=(ADMINS,)) == b"+OK"
    assert tree.last.happened == []
    get = ("CONFIG", "GET", "GLOBAL", "GLOBAL.AUTH.REQUIRED", "SOURCE")
    assert items(tree.read(*get)) == [b"=true", b"=GLOBAL"]
    assert tree.do("CONFIG", "UNSET", "GLOBAL", "GLOBAL.AUTH.REQUIRED") == b"+OK"


@pytest.mark.parametrize(
    "command",
    [
        "CONFIG",
        "CONFIG GET /myroot",
        "CONFIG SET GROUP GROUP.HEARTBEAT 9 ms",
        "CONFIG SET GROUP GROUP.VIEW.TIMEOUT 900",
        "CONFIG SET /myroot GROUP.HEARTBEAT 200 ms",
        "CONFIG SET GROUP GROUP.JOURNAL none",
        "CONFIG SET GROUP GROUP.BATCH.MAX 4097",
        "CONFIG SET GLOBAL GLOBAL.VDS.INTERVAL 2 minutes",
        "CONFIG GET /myroot SUBS.MIN.HISTORY more",
        "CONFIG GET /myroot SUBS.* SOURCE",
        "CONFIG GET /myroot GROUP.PIPELINE SOURCE",
        "CONFIG GET /myroot " + "x" * 65,
        "CONFIG GET NODE NODE.LISTEN",
        "CONFIG SET NODE NODE.LISTEN here",
        "CONFIG SET /myroot NO.SUCH.KEY 1",
        "CONFIG SET /myroot SUBS.MIN.HISTORY",
        "CONFIG SET /myroot SUBS.MIN.HISTORY many",
        "CONFIG SET /myroot SUBS.MIN.HISTORY 1 s more",
        "CONFIG SET /myroot GROUP.PIPELINE 4",
        "CONFIG SET /myroot/a LIMIT.ELEMENTS 4",
        "CONFIG SET GROUP GLOBAL.AUTH.REQUIRED yes",
        "CONFIG SET GLOBAL SUBS.MIN.HISTORY 4",
        "CONFIG UNSET /myroot NO.SUCH.KEY",
        "CONFIG UNSET /myroot",
    ],
)
def test_an_unknown_command_is_refused(tree: Tree, command: str) -> None:
    before = tree.bytes
    assert code(tree.do(*command.split())) == b"BADARG"
    assert tree.bytes == before


def test_times_of_a_group_have_to_go_together(tree: Tree) -> None:
    def change(words: str) -> bytes:
        return tree.do("CONFIG", *words.split())

    assert change("SET GROUP GROUP.HEARTBEAT 200 ms") == b"+OK"
    before = tree.bytes
    for refused in (
        "SET GROUP GROUP.HEARTBEAT 201 ms", "SET GROUP GROUP.VIEW.TIMEOUT 599-900 ms"
    ):  # fmt: skip
        assert code(change(refused)) == b"BADCONFIG"
        assert tree.bytes == before
    assert change("SET GROUP GROUP.VIEW.TIMEOUT 3-4 s") == b"+OK"
    assert change("SET GROUP GROUP.HEARTBEAT 1 s") == b"+OK"
    assert change("UNSET GROUP GROUP.VIEW.TIMEOUT") == (
        b"-BADCONFIG GROUP.VIEW.TIMEOUT would be 600 ms, and has to be 3 times GROUP.HEARTBEAT, "
        b"1000 ms, at least: set the other one first"
    )
    assert change("UNSET GROUP GROUP.HEARTBEAT") == b"+OK"
    assert change("UNSET GROUP GROUP.VIEW.TIMEOUT") == b"+OK"
    assert change("SET GLOBAL GLOBAL.VDS.INTERVAL 2 s") == b"+OK"


def test_what_is_not_there_has_no_configuration(tree: Tree) -> None:
    assert code(tree.read("CONFIG", "GET", "/myroot/no", "*")) == b"ERROR_DOES_NOT_EXISTS"
    assert code(tree.read("CONFIG", "GET", "/no", "*")) == b"ERROR_DOES_NOT_EXISTS"
    assert code(tree.read("CONFIG", "GET", "//", "*")) == b"BADPATH"
