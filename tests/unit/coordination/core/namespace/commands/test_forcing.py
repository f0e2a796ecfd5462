"""FORCE passes the locks of other sessions, for administrators, and takes none away."""

from __future__ import annotations

import pytest

from millstream.coordination.core.namespace.commands.forcing import without_force
from millstream.coordination.core.namespace.commands.transactions import pack_command
from millstream.vsr.core.values import items
from simulators.namespace_clients import Client, Group, word

ADMIN = (b"admins",)
CHANGES = (
    "PUT /ns/a/x y", "DELETE /ns/a/x", "CREATE BINARY /ns/a/new", "MOVE /ns/a/x /ns/b/x",
    "MOVE /ns/b/z /ns/a/z", "DELETE /ns/a RECURSIVE", "PUT /ns/a/x y IFLOCK TOKEN",
)  # fmt: skip


@pytest.fixture
def group() -> Group:
    group = Group()
    group.do("CREATENAMESPACE", "/ns")
    for path in ("/ns/a", "/ns/a/x", "/ns/b", "/ns/b/z"):
        group.do("CREATE", "BINARY", path, "data")
    return group


@pytest.fixture
def ann(group: Group) -> Client:
    return Client(group, 11)


@pytest.fixture
def bob(group: Group) -> Client:
    return Client(group, 12)


def token_of(reply: bytes) -> str:
    return items(reply)[1][1:].decode()


@pytest.mark.parametrize("command", CHANGES)
def test_an_administrator_passes_a_lock(
    group: Group, ann: Client, bob: Client, command: str
) -> None:
    token = token_of(ann.do("LOCK", "/ns/a", "TOKEN"))
    words = command.replace("TOKEN", token).split()
    assert word(bob.do(*words)) == "LOCKED"
    assert bob.do("FORCE", *words) == b"+OK"
    if command.startswith("DELETE /ns/a REC"):
        assert word(ann.do("LOCK", "RELEASE", "/ns/a")) == "NOTHELD", "it ended with its element"
    else:
        assert ann.do("LOCK", "RELEASE", "/ns/a") == b"+OK", "nobody took it away"


def test_offers_and_units_are_passed_too(ann: Client, bob: Client) -> None:
    ann.do("LOCK", "/ns/a")
    Client(ann.group, 13).do("LOCK", "/ns/a")
    ann.do("LOCK", "RELEASE", "/ns/a")
    assert word(bob.do("DELETE", "/ns/a", "RECURSIVE")) == "LOCKED"
    ann.do("SEMAPHORE", "INIT", "1", "/ns/b/z")
    ann.do("SEMAPHORE", "ACQUIRE", "/ns/b/z")
    assert word(bob.do("DELETE", "/ns/b", "RECURSIVE")) == "LOCKED"
    for path in ("/ns/a", "/ns/b"):
        assert bob.do("FORCE", "DELETE", path, "RECURSIVE") == b"+OK"


def test_force_also_applies_to_reads(group: Group, ann: Client) -> None:
    ann.do("LOCK", "/ns/a")
    assert word(group.read("GET", "/ns/a/x", session=12)) == "LOCKED"
    assert group.read("FORCE", "GET", "/ns/a/x", session=12) == b"=data"
    for users, answer in ((ADMIN, b"=data"), ((b"ops",), b"-NOPERM FORCE w: it is for admini")):
        read = group.read("FORCE", "GET", "/ns/a/x", session=12, user=b"bob", groups=users)
        assert read.startswith(answer)


def test_force_of_other_users_is_refused(group: Group, ann: Client) -> None:
    group.do("ACL", "SET", "/ns/a/x", "MODE", "777", user=b"root", groups=ADMIN)
    before = group.bytes
    for words in (
        ("PUT", "/ns/a/x", "y"),
        ("LOCK", "/ns/a/x"),
        ("DELETENAMESPACE", "/ns", "FORCE"),
    ):
        reply = group.do("FORCE", *words, session=12, user=b"bob", groups=(b"ops",))
        assert word(reply) == "NOPERM"
    assert group.bytes == before
    done = group.do("FORCE", "PUT", "/ns/a/x", "y", session=12, user=b"bob", groups=ADMIN)
    assert done == b"+OK"


def test_a_transaction_passes_as_a_whole(ann: Client, bob: Client) -> None:
    ann.do("LOCK", "/ns/a")
    commands = [
        pack_command(words) for words in ((b"PUT", b"/ns/a/x", b"1"), (b"GET", b"/ns/a/x"))
    ]
    assert word(bob.do("EXEC", *commands)) == "EXECABORT"
    assert items(bob.do("FORCE", "EXEC", *commands)) == [b"+OK", b"=1"]
    inner = pack_command((b"FORCE", b"PUT", b"/ns/a/x", b"1"))
    assert word(bob.do("EXEC", inner)) == "UNKNOWN_COMMAND"


def test_it_is_for_its_command_alone(ann: Client, bob: Client) -> None:
    ann.do("LOCK", "/ns/a")
    assert bob.do("FORCE", "PUT", "/ns/a/x", "y") == b"+OK"
    assert word(bob.do("PUT", "/ns/a/x", "z")) == "LOCKED"


def test_force_does_not_grant_locks(ann: Client, bob: Client) -> None:
    ann.do("LOCK", "/ns/a")
    assert word(bob.do("FORCE", "LOCK", "/ns/a")) == "PENDING"
    assert word(bob.do("FORCE", "LOCK", "/ns/a/x", "NOWAIT")) == "LOCKED"


@pytest.mark.parametrize(("above", "below", "meets"), [
    ("WRITE", "WRITE", True), ("WRITE", "READ", True), ("READ", "WRITE", True),
    ("READ", "READ", False),
])  # fmt: skip
def test_locks_that_forbid_each_other_do_not_meet_by_a_move(
    ann: Client, bob: Client, above: str, below: str, meets: bool
) -> None:
    ann.do("LOCK", above, "/ns/a")
    other = Client(ann.group, 13)
    other.do("LOCK", below, "/ns/b/z")
    before = ann.group.bytes
    reply = bob.do("FORCE", "MOVE", "/ns/b", "/ns/a/b")
    assert reply == (b"-LOCKED /ns/a " + above.encode() + b" " + ann.name + b" 1:2:6"
                     if meets else b"+OK")  # fmt: skip
    assert (ann.group.bytes == before) is meets


def test_the_locks_of_one_session_may_meet(ann: Client, bob: Client) -> None:
    ann.do("LOCK", "/ns/a")
    ann.do("LOCK", "READ", "/ns/b/z")
    assert bob.do("FORCE", "MOVE", "/ns/b", "/ns/a/b") == b"+OK"
    assert ann.do("LOCK", "RELEASE", "/ns/a", "/ns/a/b/z") == b"+OK"


def test_an_offer_does_not_meet_a_lock_either(ann: Client, bob: Client) -> None:
    ann.do("LOCK", "/ns/b/z")
    bob.do("LOCK", "/ns/b/z")
    ann.do("LOCK", "RELEASE", "/ns/b/z")
    ann.do("LOCK", "/ns/a")
    other = Client(ann.group, 13)
    assert word(other.do("FORCE", "MOVE", "/ns/b", "/ns/a/b")) == "LOCKED"


def test_a_namespace_goes_with_its_locks(ann: Client, bob: Client) -> None:
    ann.do("LOCK", "/ns/a/x")
    assert word(bob.do("FORCE", "DELETENAMESPACE", "/ns")) == "NOTEMPTY"
    assert word(bob.do("DELETENAMESPACE", "/ns", "FORCE")) == "LOCKED"
    assert bob.do("FORCE", "DELETENAMESPACE", "/ns", "FORCE") == b"+OK"
    assert word(ann.do("LOCK", "RELEASE", "/ns/a/x")) == "NOTHELD"


def test_an_unknown_command_stays_unknown_after_force(bob: Client) -> None:
    for words in (
        (),
        ("NONE",),
        ("FORCE", "PUT", "/ns/a", "x"),
        ("NAMESPACE", "FREE", "/ns", "1:1:1"),
    ):
        assert word(bob.do("FORCE", *words)) == "UNKNOWN_COMMAND"
    assert word(bob.do("FORCE", "PUT", "/ns/a")) == "BADARG"


def test_the_name_of_a_command_is_found_behind_it() -> None:
    assert without_force((b"FORCE", b"PUT", b"/a")) == (b"PUT", b"/a")
    assert without_force([b"PUT", b"FORCE"]) == (b"PUT", b"FORCE")
    assert without_force(()) == ()
