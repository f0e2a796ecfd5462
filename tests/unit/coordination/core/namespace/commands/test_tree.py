"""Commands of all elements, one after the other, on one state machine."""

from __future__ import annotations

import pytest

from millstream.coordination.core.namespace.commands.transactions import pack_command
from millstream.vsr.core.values import bulk, items
from support.coordination.namespace_machine import Tree


@pytest.fixture
def tree() -> Tree:
    made = Tree()
    assert made.do("CREATENAMESPACE", "/ns", "root data") == b"+OK"
    return made


def code(value: bytes) -> bytes:
    assert value.startswith(b"-"), value
    return value[1:].split(b" ")[0]


def names(value: bytes) -> list[bytes]:
    return [name[1:] for name in items(items(value)[1])]


def attributes(tree: Tree, path: str, *more: str) -> dict[bytes, bytes]:
    flat = items(tree.read("GET", path, "ATTR", *more))
    return {name[1:]: value for name, value in zip(flat[::2], flat[1::2], strict=True)}


def test_written_elements_are_found(tree: Tree) -> None:
    assert tree.do("CREATE", "binary", "/ns/a", "one") == b"+OK"
    assert tree.read("GET", "/ns/a") == b"=one"
    assert tree.do("PUT", "/ns/a", "two") == b"+OK"
    assert tree.read("GET", "/ns/a") == b"=two"
    version, data = items(tree.read("GET", "/ns/a", "CAS"))
    assert (version, data) == (b"=1:2:3", b"=two")
    assert tree.do("PUT", "/ns/a", "three", "CAS", version[1:]) == b"+OK"
    assert tree.do("PUT", "/ns/a", "four", "CAS", version[1:]) == b"-CAS_MISMATCH 1:2:4"
    assert tree.read("GET", "/ns/a") == b"=three"
    assert tree.read("GET", "/ns") == b"=root data"


def test_creating_what_is_there_changes_nothing(tree: Tree) -> None:
    tree.do("CREATE", "BINARY", "/ns/a", "one")
    before = tree.bytes
    assert tree.do("CREATE", "BINARY", "/ns/a", "two") == b"+EXISTS"
    assert tree.do("CREATENAMESPACE", "/ns") == b"+EXISTS"
    for kind in ("LIST", "SET", "QUEUE", "COUNTER"):  # of another type it is no repeat
        assert tree.do("CREATE", kind, "/ns/a") == b"-WRONGTYPE /ns/a is a BINARY"
    assert tree.bytes == before
    tree.do("CREATE", "LIST", "/ns/list")
    assert tree.do("CREATE", "BINARY", "/ns/list", "x") == b"-WRONGTYPE /ns/list is a LIST"


def test_missing_parents_are_made_if_asked_for(tree: Tree) -> None:
    assert code(tree.do("CREATE", "BINARY", "/ns/a/b/c")) == b"ERROR_DOES_NOT_EXISTS"
    assert tree.do("CREATE", "BINARY", "PARENTS", "/ns/a/b/c", "x") == b"+OK"
    assert tree.read("GET", "/ns/a/b") == b"="
    assert tree.read("LOOKUP", "/ns/a/b/c/d/e") == b"*" + items_of(b"=NOTFOUND", b"=/ns/a/b/c")
    assert tree.read("LOOKUP", "/other") == b"*" + items_of(b"=NOTFOUND", b"=")
    assert tree.read("LOOKUP", "/ns/a/b/c") == b"+OK"
    assert code(tree.do("CREATE", "BINARY", "PARENTS", "/no/a")) == b"ERROR_DOES_NOT_EXISTS"


def items_of(*values: bytes) -> bytes:
    return len(values).to_bytes(4, "big") + b"".join(
        len(value).to_bytes(4, "big") + value for value in values
    )


def test_sequential_names_are_never_given_twice(tree: Tree) -> None:
    made = [tree.do("CREATE", "BINARY", "SEQUENTIAL", "/ns/job-") for _ in range(3)]
    assert made == [bulk(b"/ns/job-%010d" % n) for n in range(3)]
    assert tree.do("DELETE", "/ns/job-0000000002") == b"+OK"
    assert tree.do("CREATE", "BINARY", "/ns/job-0000000003") == b"+OK"
    assert tree.do("CREATE", "BINARY", "SEQUENTIAL", "/ns/job-") == b"=/ns/job-0000000004"


def test_deleting_takes_a_tree_only_if_told(tree: Tree) -> None:
    tree.do("CREATE", "BINARY", "PARENTS", "/ns/a/b/c", "x")
    before = tree.bytes
    assert code(tree.do("DELETE", "/ns/a")) == b"NOTEMPTY"
    assert code(tree.do("DELETE", "/ns/a", "RECURSIVE", "CAS", "9:9:9")) == b"CAS_MISMATCH"
    assert code(tree.do("DELETE", "/ns/x")) == b"ERROR_DOES_NOT_EXISTS"
    assert code(tree.do("DELETE", "/ns")) == b"ISROOT"
    assert tree.bytes == before
    assert tree.do("DELETE", "/ns/a", "RECURSIVE") == b"+OK"
    assert names(tree.read("LIST", "/ns")) == []
    assert [each.path for each in tree.last.happened] == [b"/ns/a/b/c", b"/ns/a/b", b"/ns/a"]
    assert tree.do("DELETENAMESPACE", "/ns") == b"+OK"
    assert names(tree.read("LIST", "/")) == []


def test_a_namespace_with_elements_goes_by_force(tree: Tree) -> None:
    tree.do("CREATE", "BINARY", "/ns/a")
    assert code(tree.do("DELETENAMESPACE", "/ns")) == b"NOTEMPTY"
    assert tree.do("DELETENAMESPACE", "/ns", "FORCE") == b"+OK"


def test_moving_takes_all_that_is_below(tree: Tree) -> None:
    tree.do("CREATE", "BINARY", "PARENTS", "/ns/a/b/c", "x")
    tree.do("CREATE", "BINARY", "/ns/z", "z")
    assert tree.do("MOVE", "/ns/a", "/ns/z/y") == b"+OK"
    assert tree.read("GET", "/ns/z/y/b/c") == b"=x"
    [told] = tree.last.happened
    assert (told.op, told.path, told.to) == (b"move", b"/ns/a", b"/ns/z/y")
    assert told.line[1:] != told.to_line[1:]
    before = tree.bytes
    assert code(tree.do("MOVE", "/ns/z", "/ns/z/y/w")) == b"LOOP"
    assert code(tree.do("MOVE", "/ns/z/y/b", "/ns/z/y")) == b"NAME_CONFLICT"
    assert code(tree.do("MOVE", "/ns/z/y/b", "/ns/z/y", "FORCE_MOVE")) == b"LOOP"
    assert code(tree.do("MOVE", "/ns/none", "/ns/n")) == b"ERROR_DOES_NOT_EXISTS"
    assert code(tree.do("MOVE", "/ns/z", "/ns/none/n")) == b"ERROR_DOES_NOT_EXISTS"
    assert code(tree.do("MOVE", "/ns/z", "/other/z")) == b"CROSS_NAMESPACE"
    assert code(tree.do("MOVE", "/ns", "/ns/z")) == b"ISROOT"
    assert tree.do("MOVE", "/ns/z", "/ns/z") == b"+OK"
    assert tree.bytes == before
    tree.do("CREATE", "BINARY", "/ns/t", "old")
    assert tree.do("MOVE", "/ns/z/y/b/c", "/ns/t", "FORCE_MOVE") == b"+OK"
    assert tree.read("GET", "/ns/t") == b"=x"


def test_ephemeral_elements_end_with_their_session(tree: Tree) -> None:
    assert code(tree.do("CREATE", "BINARY", "EPHEMERAL", "/ns/e", session=0)) == b"ERR"
    assert tree.do("CREATE", "BINARY", "EPHEMERAL", "/ns/e", "here", session=8) == b"+OK"
    assert code(tree.do("CREATE", "BINARY", "/ns/e/child")) == b"EPHEMERAL_PARENT"
    found = attributes(tree, "/ns/e", "NODATA")
    assert found[b"owner_session"] == b"=" + b"69" * 16 + b"-8"
    assert b"data" not in found
    tree.do("MOVE", "/ns/e", "/ns/f", session=9)
    tree.end(9)
    assert tree.read("GET", "/ns/f") == b"=here"
    tree.again()
    told = tree.end(8)
    assert [each.path for each in told.happened] == [b"/ns/f"]
    assert code(tree.read("GET", "/ns/f")) == b"ERROR_DOES_NOT_EXISTS"


def test_attributes_say_who_changed_what_when(tree: Tree) -> None:
    tree.do("CREATE", "BINARY", "/ns/a", "one")
    tree.do("PUT", "/ns/a", "three", session=9)
    tree.do("CREATE", "BINARY", "/ns/a/b")
    found = attributes(tree, "/ns/a", "CHILDREN")
    assert found[b"type"] == b"=BINARY"
    assert found[b"created_version"] == b"=1:2:2"
    assert found[b"version"] == b"=1:2:3"
    assert found[b"child_version"] == b"=1:2:4"
    assert (found[b"created_ts"], found[b"ts"]) == (b":1002", b":1004")
    assert found[b"cts"] == b":5"
    assert found[b"nchildren"] == b":1"
    assert found[b"data_len"] == b":5"
    assert found[b"data"] == b"=three"
    assert names(found[b"children"]) == [b"b"]


def test_users_have_attributes_of_their_own(tree: Tree) -> None:
    tree.do("CREATE", "BINARY", "/ns/a", "one")
    assert tree.do("PUT", "/ns/a", "ATTR", "u.color", "red", "u.size", "9") == b"+OK"
    assert attributes(tree, "/ns/a")[b"u.color"] == b"=red"
    assert tree.do("PUT", "/ns/a", "ATTR", "u.color", "") == b"+OK"
    assert b"u.color" not in attributes(tree, "/ns/a")
    before = tree.bytes
    assert code(tree.do("PUT", "/ns/a", "ATTR", "u.color")) == b"BADARG"
    assert code(tree.do("PUT", "/ns/a", "ATTR", "u.big", "x" * 4096)) == b"TOOBIG"
    assert tree.bytes == before
    assert tree.do("PUT", "/ns/a", "ATTR") == b"+OK"
    assert tree.read("GET", "/ns/a") == b"=ATTR"


def test_pages_follow_one_another(tree: Tree) -> None:
    for n in range(25):
        tree.do("CREATE", "BINARY", f"/ns/n{n:02}")
    seen: list[bytes] = []
    token: list[str] = []
    while True:
        page = tree.read("LIST", "/ns/", "COUNT", "10", *token)
        seen += names(page)
        following = items(page)[0]
        if following == b"_":
            break
        token = ["TOKEN", following[1:].decode()]
    assert seen == [b"n%02d" % n for n in range(25)]
    assert code(tree.read("LIST", "/ns", "TOKEN", "!")) == b"BADTOKEN"
    assert names(tree.read("LIST", "/")) == [b"ns"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("PUT", "ns/a", "x"), b"BADPATH"),
        (("PUT", "/ns//a", "x"), b"BADPATH"),
        (("PUT", "/ns/../a", "x"), b"BADPATH"),
        (("PUT", "/ns/a/", "x"), b"BADPATH"),
        (("PUT", b"/ns/\xff", "x"), b"BADPATH"),
        (("PUT", "/ns/" + "n" * 256, "x"), b"BADPATH"),
        (("PUT", "/ns/a\x7f", "x"), b"BADPATH"),
        (("PUT", "/ns", "x"), b"ISROOT"),
        (("PUT", "/ns/none", "x"), b"ERROR_DOES_NOT_EXISTS"),
        (("PUT", "/ns/a", b"x" * (1024 * 1024 + 1)), b"TOOBIG"),
        (("PUT", "/ns/a", "x", "CAS", "1"), b"BADARG"),
        (("PUT", "/ns/a"), b"BADARG"),
        (("CREATE", "TABLE", "/ns/a"), b"BADARG"),
        (("CREATE", "BINARY", "/new"), b"BADPATH"),
        (("CREATE", "BINARY", "/ns/b", "x", "y"), b"BADARG"),
        (("CREATENAMESPACE", "/a/b"), b"BADPATH"),
        (("GET", "/ns"), b"BADARG"),
        (("SING",), b"UNKNOWN_COMMAND"),
        ((), b"UNKNOWN_COMMAND"),
    ],
)
def test_invalid_commands_are_refused(
    tree: Tree, words: tuple[bytes | str, ...], expected: bytes
) -> None:
    before = tree.bytes
    assert code(tree.do(*words)) == expected
    assert tree.bytes == before


def test_changes_are_not_reads(tree: Tree) -> None:
    assert code(tree.read("PUT", "/ns/a", "x")) == b"BADARG"


def test_a_tree_is_shown_as_of_one_moment_with_what_may_be_read(tree: Tree) -> None:
    tree.do("CREATE", "BINARY", "PARENTS", "/ns/a/b", "one")
    tree.do("CREATE", "COUNTER", "/ns/n")
    tree.do("CREATE", "QUEUE", "/ns/q", "item")
    tree.do("CREATE", "BINARY", "/ns/locked", "hidden")
    tree.do("LOCK", "WRITE", "/ns/locked", session=9)
    rows = {items(row)[0]: items(row)[1:] for row in items(tree.read("TREE", "/ns"))}
    assert list(rows) == [b"=/ns", b"=/ns/a", b"=/ns/a/b", b"=/ns/locked", b"=/ns/n", b"=/ns/q"]
    assert rows[b"=/ns/a/b"] == [b"=1:2:2", b"=one"]
    assert rows[b"=/ns/n"] == [b"=1:2:3", b":0"]
    assert {rows[name][1] for name in (b"=/ns/q", b"=/ns/locked")} == {b"_"}
    mine = {items(row)[0]: items(row)[2] for row in items(tree.read("TREE", "/ns", session=9))}
    assert mine[b"=/ns/locked"] == b"=hidden"
    assert code(tree.read("TREE", "/ns/none")) == b"ERROR_DOES_NOT_EXISTS"
    assert code(tree.read("TREE", "/ns", "x")) == b"BADARG"


def test_a_tree_with_too_much_data_is_refused(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.coordination.core.namespace.commands.tree.TREE_BYTES_MAX", 12)
    assert tree.do("CREATE", "BINARY", "/ns/a", "12345678") == b"+OK"
    assert len(items(tree.read("TREE", "/ns/a"))) == 1
    tree.do("CREATE", "BINARY", "/ns/a/b", "12345")
    assert code(tree.read("TREE", "/ns/a")) == b"TOOBIG"


def test_a_transaction_reads_no_tree(tree: Tree) -> None:
    assert tree.do("EXEC", pack_command([b"TREE", b"/ns"])) == (
        b"-UNKNOWN_COMMAND there is no command TREE"
    )
