"""Access lists are shown, changed by those who may, and looked at by every command."""

from __future__ import annotations

import pytest

from millstream.coordination.core.namespace.state.access_lists import ADMINS, ENTRIES_MAX
from millstream.vsr.core.values import integer, items
from support.coordination.namespace_machine import Tree


@pytest.fixture
def tree() -> Tree:
    made = Tree()
    made.do("CREATENAMESPACE", "/ns", user=b"root", groups=(ADMINS,))
    made.do("ACL", "SET", "/ns", "MODE", "777", "GROUP", "staff", user=b"root")
    assert made.do("CREATE", "BINARY", "/ns/a", "x", user=b"ann") == b"+OK"
    return made


def shown(value: bytes) -> dict[bytes, bytes | list[bytes]]:
    assert value[:1] == b"%", value
    flat = items(value)
    return {
        name[1:]: [each[1:] for each in items(found)] if found[:1] == b"*" else found[1:]
        for name, found in zip(flat[::2], flat[1::2], strict=True)
    }


def code(value: bytes) -> bytes:
    assert value.startswith(b"-"), value
    return value[1:].split(b" ")[0]


def test_a_new_element_is_its_creators_with_the_parents_group(tree: Tree) -> None:
    assert shown(tree.read("ACL", "GET", "/ns/a", user=b"ann")) == {
        b"owner": b"ann",
        b"group": b"staff",
        b"mode": b"0755",
        b"entries": [],
        b"default_mode": b"0755",
        b"default_entries": [],
    }


def test_what_is_set_is_shown_and_children_begin_with_the_defaults(tree: Tree) -> None:
    assert tree.do(
        "ACL", "SET", "/ns/a", "OWNER", "ann", "GROUP", "ops", "MODE", "0770", "ENTRY",
        "user:bob:rw-", "ENTRY", "default:group:guests:r--", "DEFAULT", "MODE", "640", user=b"ann",
    ) == b"+OK"  # fmt: skip
    assert shown(tree.read("ACL", "GET", "/ns/a", user=b"ann")) == {
        b"owner": b"ann",
        b"group": b"ops",
        b"mode": b"0770",
        b"entries": [b"user:bob:rw-"],
        b"default_mode": b"0640",
        b"default_entries": [b"group:guests:r--"],
    }
    assert tree.do("CREATE", "BINARY", "/ns/a/b", user=b"bob") == b"+OK"
    child = shown(tree.read("ACL", "GET", "/ns/a/b", user=b"bob"))
    assert (child[b"owner"], child[b"mode"]) == (b"bob", b"0640")
    assert child[b"entries"] == [b"group:guests:r--"]
    assert tree.do("ACL", "SET", "/ns/a", "REMOVE", "user:bob", user=b"ann") == b"+OK"
    assert code(tree.do("CREATE", "BINARY", "/ns/a/c", user=b"bob")) == b"NOPERM"
    tree.again()
    assert shown(tree.read("ACL", "GET", "/ns/a", user=b"ann"))[b"entries"] == []


@pytest.mark.parametrize(
    ("command", "wanted"),
    [
        ("GET /ns/a", "r"),
        ("GET /ns/a ATTR NODATA", "r"),
        ("LIST /ns/a", "r"),
        ("ACL GET /ns/a", "r"),
        ("CONFIG GET /ns/a *", "r"),
        ("CHECK /ns/a CAS 1:2:3", "r"),
        ("PUT /ns/a y", "w"),
        ("CREATE BINARY /ns/a/b", "w"),
        ("ACL SET /ns/a MODE 777", "w"),
        ("CONFIG SET /ns/a LOCK.READ.OPEN true", "w"),
        ("CONFIG UNSET /ns/a LOCK.READ.OPEN", "w"),
        ("ACL CHECK /ns/a r ann", "w"),
    ],
)
def test_a_refusal_names_the_missing_right(tree: Tree, command: str, wanted: str) -> None:
    tree.do("ACL", "SET", "/ns/a", "MODE", "700", user=b"ann")
    words = command.split()
    change = wanted == "w" and words[:2] != ["ACL", "CHECK"]
    do = tree.do if change else tree.read
    before = tree.bytes
    assert do(*words, user=b"eve") == f"-NOPERM /ns/a {wanted}".encode()
    assert tree.bytes == before
    assert not do(*words, user=b"ann").startswith(b"-NOPERM")
    assert not do(*words, user=b"eve", groups=(ADMINS,)).startswith(b"-NOPERM")


def test_to_delete_and_to_look_whether_it_is_there_the_element_is_not_asked(tree: Tree) -> None:
    tree.do("ACL", "SET", "/ns/a", "MODE", "000", user=b"ann")
    assert tree.read("LOOKUP", "/ns/a", user=b"eve") == b"+OK"
    assert tree.read("CHECK", "/ns/a", "EXISTS", user=b"eve") == b"+OK"
    assert tree.do("DELETE", "/ns/a", user=b"eve") == b"+OK"


def test_the_path_to_an_element_is_not_looked_at(tree: Tree) -> None:
    tree.do("CREATE", "BINARY", "/ns/a/b", "y", user=b"ann")
    tree.do("ACL", "SET", "/ns/a", "MODE", "000", user=b"ann")
    assert tree.read("GET", "/ns/a/b", user=b"eve") == b"=y"


def test_one_who_gave_an_element_away_has_it_no_more(tree: Tree) -> None:
    tree.do("ACL", "SET", "/ns/a", "OWNER", "bob", user=b"ann")
    assert code(tree.do("ACL", "SET", "/ns/a", "OWNER", "ann", user=b"ann")) == b"NOPERM"
    assert tree.do("ACL", "SET", "/ns/a", "MODE", "000", user=b"bob") == b"+OK"
    assert shown(tree.read("ACL", "GET", "/ns/a", user=b"bob"))[b"mode"] == b"0000"


def test_all_below_is_changed_or_nothing(tree: Tree) -> None:
    tree.do("CREATE", "BINARY", "/ns/a/b", user=b"ann")
    tree.do("CREATE", "BINARY", "/ns/a/b/c", user=b"ann")
    assert tree.do("ACL", "SET", "/ns/a", "MODE", "777", "RECURSIVE", user=b"ann") == b"+OK"
    assert [happened.op for happened in tree.last.happened] == [b"attr"] * 3
    assert tree.do("CREATE", "BINARY", "/ns/a/b/c/d", user=b"eve") == b"+OK"
    before = tree.bytes
    words = ("ACL", "SET", "/ns/a", "MODE", "700", "RECURSIVE")
    assert tree.do(*words, user=b"ann") == b"-NOPERM /ns/a/b/c/d w"
    assert tree.bytes == before


def test_whoami_names_the_user(tree: Tree) -> None:
    assert shown(tree.read("ACL", "WHOAMI", user=b"ann", groups=(b"staff",))) == {
        b"principal": b"ann",
        b"groups": [b"staff"],
        b"admin": b"f",
    }
    assert shown(tree.read("ACL", "WHOAMI"))[b"principal"] == b"anonymous"
    assert shown(tree.read("ACL", "WHOAMI", user=b"x", groups=(ADMINS,)))[b"admin"] == b"t"


def test_check_tells_what_a_user_may_do(tree: Tree) -> None:
    tree.do("ACL", "SET", "/ns/a", "MODE", "740", "ENTRY", "user:bob:rw-", user=b"ann")
    check = ("ACL", "CHECK", "/ns/a")
    assert tree.read(*check, "w", user=b"ann") == integer(1)
    assert tree.read(*check, "R", user=b"eve") == integer(0)
    assert tree.read(*check, "r", user=b"eve", groups=(b"staff",)) == integer(1)
    assert tree.read(*check, "w", "bob", user=b"ann") == integer(1)
    assert tree.read(*check, "r", "eve", user=b"ann") == integer(0)
    assert tree.read(*check, "w", "bob", user=b"bob") == integer(1)


def test_a_list_has_an_end(tree: Tree) -> None:
    for n in range(ENTRIES_MAX):
        assert tree.do("ACL", "SET", "/ns/a", "ENTRY", f"user:u{n}:r--", user=b"ann") == b"+OK"
    full = ("ACL", "SET", "/ns/a", "ENTRY", "group:more:r--")
    assert code(tree.do(*full, user=b"ann")) == b"QUOTA"
    assert tree.do(*full, "REMOVE", "user:u0:rwx", user=b"ann") == b"+OK"
    assert tree.do("ACL", "SET", "/ns/a", "ENTRY", "user:u1:rwx", user=b"ann") == b"+OK"


@pytest.mark.parametrize(
    "command",
    [
        "ACL",
        "ACL LOSE /ns/a",
        "ACL GET",
        "ACL GET /ns/a more",
        "ACL SET /ns/a",
        "ACL SET /ns/a RECURSIVE",
        "ACL SET /ns/a MODE 888",
        "ACL SET /ns/a MODE",
        "ACL SET /ns/a ENTRY bob:rw-",
        "ACL SET /ns/a REMOVE bob",
        "ACL SET /ns/a DEFAULT ENTRY user:x:rw-",
        "ACL SET /ns/a COLOUR blue",
        "ACL SET /ns/a OWNER " + "x" * 256,
        "ACL SET /ns/a" + " ENTRY user:x:rw-" * 129,
        "ACL WHOAMI me",
        "ACL CHECK /ns/a",
        "ACL CHECK /ns/a x",
        "ACL CHECK /ns/a r bob more",
    ],
)
def test_an_unknown_command_is_refused(tree: Tree, command: str) -> None:
    assert code(tree.do(*command.split())) == b"BADARG"


def test_a_missing_element_has_no_list(tree: Tree) -> None:
    assert code(tree.read("ACL", "GET", "/ns/no")) == b"ERROR_DOES_NOT_EXISTS"
    assert code(tree.do("ACL", "SET", "/ns/no", "MODE", "777")) == b"ERROR_DOES_NOT_EXISTS"
    assert code(tree.read("ACL", "GET", "ns")) == b"BADPATH"
    assert b"acl" in shown_names(tree.read("GET", "/ns/a", "ATTR"))


def shown_names(value: bytes) -> list[bytes]:
    return [name[1:] for name in items(value)[::2]]
