"""Commands are collected, and logged only if all of them were understood."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.coordination.core.namespace.commands.command import Call, Words
from millstream.coordination.core.namespace.commands.transactions import (
    COMMANDS_MAX,
    QUEUED_BYTES_MAX,
    Transaction,
    exec_of,
    pack_command,
    unpack_command,
)
from millstream.coordination.core.namespace.machine import COMMANDS
from millstream.coordination.core.namespace.refused import Refused
from millstream.vsr.core.values import array, bulk, items, status
from support.coordination.namespace_machine import Tree

QUEUED = b"+QUEUED"


def look_at(argv: Sequence[bytes]) -> bytes:
    return b"-BADARG no" if argv[0] == b"BAD" else b""


def test_a_transaction_is_one_entry() -> None:
    group = Transaction(look_at)
    assert group.queue([b"PUT", b"/a", b"1"]) == QUEUED
    assert group.queue([b"GET", b"/a"]) == QUEUED
    assert group.words() == (
        b"EXEC",
        pack_command([b"PUT", b"/a", b"1"]),
        pack_command([b"GET", b"/a"]),
    )


def test_nothing_is_logged_as_nothing() -> None:
    assert Transaction(look_at).words() == (b"EXEC",)


def test_one_that_was_not_understood_spoils_all() -> None:
    group = Transaction(look_at)
    assert group.queue([b"PUT"]) == QUEUED
    assert group.queue([b"BAD"]) == b"-BADARG no"
    assert group.queue([b"BAD"]) == b"-BADARG no"
    assert group.queue([b"PUT"]) == QUEUED
    assert group.words() == b"-EXECABORT 1 BADARG no"


def test_there_is_an_end_to_it() -> None:
    group = Transaction(look_at)
    for _ in range(COMMANDS_MAX):
        assert group.queue([b"PUT"]) == QUEUED
    assert len(group.words()) == 1 + COMMANDS_MAX
    assert group.queue([b"PUT"]).startswith(b"-TOOBIG ")
    assert group.words()[:19] == b"-EXECABORT 128 TOOB"
    wide = Transaction(look_at)
    assert wide.queue([b"x" * QUEUED_BYTES_MAX]).startswith(b"-TOOBIG ")
    assert wide.words()[:19] == b"-EXECABORT 0 TOOBIG"


@given(st.lists(st.binary(max_size=5), max_size=5))
def test_words_are_found_again(words: list[bytes]) -> None:
    assert unpack_command(pack_command(words)) == tuple(words)


@given(st.binary(max_size=20))
def test_an_unknown_command_is_an_error(packed: bytes) -> None:
    words = unpack_command(packed)
    assert words is None or pack_command(words) == packed


# ---- the entry


@pytest.fixture
def tree() -> Tree:
    made = Tree()
    made.do("CREATENAMESPACE", "/ns")
    made.do("CREATE", "BINARY", "/ns/a", "one")
    return made


def execute(tree: Tree, *commands: str, user: bytes = b"") -> bytes:
    packed = [pack_command([word.encode() for word in command.split()]) for command in commands]
    return tree.do("EXEC", *packed, user=user)


def version_of(tree: Tree, path: str) -> str:
    return items(tree.read("GET", path, "CAS"))[0][1:].decode()


def child_version_of(tree: Tree, path: str) -> str:
    flat = items(tree.read("GET", path, "ATTR"))
    return flat[flat.index(b"=child_version") + 1][1:].decode()


def test_all_is_done_in_one_entry_and_later_commands_see_earlier_ones(tree: Tree) -> None:
    reply = execute(
        tree, "CREATE BINARY /ns/b two", "GET /ns/b", "PUT /ns/a three", "GET /ns/a",
        "CREATE BINARY SEQUENTIAL /ns/s", "LOOKUP /ns/b",
    )  # fmt: skip
    assert items(reply) == [b"+OK", b"=two", b"+OK", b"=three", b"=/ns/s0000000000", b"+OK"]
    assert (
        version_of(tree, "/ns/a") == version_of(tree, "/ns/b") == tree.last.version.text.decode()
    )
    assert [happened.op for happened in tree.last.happened] == [b"create", b"put", b"create"]


def test_nothing_is_done_if_one_is_refused(tree: Tree) -> None:
    before = tree.bytes
    assert execute(tree, "PUT /ns/a two", "CREATE BINARY /ns/b", "DELETE /ns/no") == (
        b"-EXECABORT 2 ERROR_DOES_NOT_EXISTS /ns/no"
    )
    assert tree.bytes == before
    assert tree.last.happened == []


def test_a_transaction_of_nothing_does_nothing(tree: Tree) -> None:
    assert items(execute(tree)) == []


def test_conditions_hold_or_nothing_is_done(tree: Tree) -> None:
    version, children = version_of(tree, "/ns/a"), child_version_of(tree, "/ns")
    met = [
        "CHECK /ns/a EXISTS",
        "CHECK /ns/b ABSENT",
        f"CHECK /ns/a CAS {version}",
        f"CHECK /ns CHILDREN {children}",
    ]
    assert items(execute(tree, *met, "PUT /ns/a two")) == [b"+OK"] * 5
    before = tree.bytes
    for failing in (
        "CHECK /ns/a ABSENT",
        "CHECK /ns/b EXISTS",
        f"CHECK /ns/a CAS {version}",
        "CHECK /ns CHILDREN 9:9:9",
        "CHECK /ns/b CAS 1:2:3",
    ):
        kind = " ".join(failing.split()[1:3])
        assert execute(tree, "PUT /ns/a three", failing) == (
            f"-EXECABORT 1 CHECK_FAILED {kind}".encode()
        )
    assert tree.bytes == before
    assert tree.read("CHECK", "/ns/a", "EXISTS") == b"+OK"
    assert tree.read("CHECK", "/ns/a", "ABSENT") == b"-CHECK_FAILED /ns/a ABSENT"


def test_a_condition_on_a_lock_asks_the_lock(tree: Tree) -> None:
    status_and_token = items(tree.do("LOCK", "/ns/a", "TOKEN", session=8))
    token = status_and_token[1][1:].decode()
    assert tree.read("CHECK", "/ns/a", "IFLOCK", token) == b"+OK"
    tree.do("CREATE", "BINARY", "/ns/else")
    assert tree.read("CHECK", "/ns/else", "IFLOCK", token, session=9) == b"+OK"
    assert tree.read("CHECK", "/ns/a", "IFLOCK", "1:2:9") == b"-CHECK_FAILED /ns/a IFLOCK"
    tree.do("LOCK", "RELEASE", "/ns/a", session=8)
    assert tree.read("CHECK", "/ns/a", "IFLOCK", token) == b"-CHECK_FAILED /ns/a IFLOCK"


def test_a_lock_that_would_have_to_be_waited_for_ends_it(tree: Tree) -> None:
    tree.do("LOCK", "/ns/a", session=8)
    before = tree.bytes
    reply = execute(tree, "CREATE BINARY /ns/b", "LOCK /ns/a")
    assert reply.startswith(b"-EXECABORT 1 WOULDBLOCK ")
    assert tree.bytes == before
    assert execute(tree, "PUT /ns/a x").startswith(b"-EXECABORT 0 LOCKED /ns/a WRITE ")


@pytest.mark.parametrize(
    "reply", [status(b"PENDING"), array((status(b"PENDING"), bulk(b"/ns/a")))]
)
def test_nothing_waits_in_a_transaction(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, reply: bytes
) -> None:
    def waits(words: Words) -> Call:
        words.rest()
        return Call(lambda job: reply, ((b"ns",),), needs_session=True)

    usage, command = exec_of({**COMMANDS, b"WAIT": ("WAIT", waits)})
    packed = pack_command([b"WAIT"])
    call = command(Words([packed], usage))
    assert call.needs_session
    assert call.paths == ((b"ns",),)
    with pytest.raises(Refused) as refused:
        call.execute(tree.last)
    assert refused.value.value == b"-EXECABORT 0 WOULDBLOCK a command cannot wait in a transaction"


def test_data_that_reads_like_waiting_is_data(tree: Tree) -> None:
    assert items(execute(tree, "PUT /ns/a +PENDING", "GET /ns/a CAS"))[1].endswith(b"=+PENDING")
    assert items(execute(tree, "GET /ns/a")) == [b"=+PENDING"]


def test_a_refused_transaction_names_the_command(tree: Tree) -> None:
    tree.do("ACL", "SET", "/ns/a", "MODE", "700", "OWNER", "ann")
    assert execute(tree, "LOOKUP /ns/a", "GET /ns/a", user=b"eve") == (
        b"-EXECABORT 1 NOPERM /ns/a r"
    )


def test_answers_have_an_end(tree: Tree) -> None:
    tree.do("PUT", "/ns/a", "x" * 1024 * 1024)
    assert len(items(execute(tree, *["GET /ns/a"] * 7))) == 7
    assert execute(tree, *["GET /ns/a"] * 9).startswith(b"-EXECABORT 7 TOOBIG ")


@pytest.mark.parametrize(
    ("packed", "code"),
    [
        ([b"\x00"], b"UNKNOWN_COMMAND"),
        ([pack_command([b"EXEC"])], b"UNKNOWN_COMMAND"),
        ([pack_command([b"CREATENAMESPACE", b"/x"])], b"BADARG"),
        ([pack_command([b"deletenamespace", b"/ns"])], b"BADARG"),
        ([pack_command([b"GET"])], b"BADARG"),
        ([pack_command([b"LOOKUP", b"/ns"])] * 129, b"TOOBIG"),
    ],
)
def test_an_invalid_logged_transaction_is_refused(
    tree: Tree, packed: list[bytes], code: bytes
) -> None:
    before = tree.bytes
    assert tree.do("EXEC", *packed)[1:].split(b" ")[0] == code
    assert tree.bytes == before


COMMANDS_DONE = st.sampled_from(
    [
        "CREATE BINARY /ns/b x", "CREATE BINARY SEQUENTIAL /ns/s", "CREATE BINARY /ns/b/c",
        "CREATE BINARY EPHEMERAL /ns/e", "DELETE /ns/b RECURSIVE", "DELETE /ns/a",
        "MOVE /ns/a /ns/b/a", "MOVE /ns/b /ns/a FORCE_MOVE", "PUT /ns/a y", "PUT /ns/a ATTR u.x 1",
        "CONFIG SET /ns/a SUBS.MIN.HISTORY 5", "CONFIG UNSET /ns/a SUBS.MIN.HISTORY",
        "CONFIG SET /ns LIMIT.ELEMENTS 3", "ACL SET /ns/a MODE 700 ENTRY user:x:rw-",
        "GET /ns/a", "LIST /ns", "CHECK /ns/a EXISTS", "CHECK /ns/b ABSENT",
    ]
)  # fmt: skip


@given(st.lists(COMMANDS_DONE, max_size=6), st.lists(COMMANDS_DONE, max_size=8))
def test_a_transaction_is_as_its_commands_or_as_nothing(
    before: list[str], group: list[str]
) -> None:
    one, other = Tree(), Tree()
    for tree in (one, other):
        tree.do("CREATENAMESPACE", "/ns")
        tree.do("CREATE", "BINARY", "/ns/a", "one")
        for command in before:
            tree.do(*command.split())
    state = one.bytes
    reply = execute(one, *group)
    if reply.startswith(b"-"):
        assert reply.startswith(b"-EXECABORT ")
        assert one.bytes == state
        assert one.last.happened == []
        assert one.machine.state.elements.line(1) == (1,)
        return
    happened, replies = [], []
    other.lsn += 1
    for command in group:
        other.lsn -= 1
        words = command.split()
        is_read = words[0] in ("GET", "LIST", "CHECK")
        replies.append(other.read(*words) if is_read else other.do(*words))
        if is_read:
            other.lsn += 1
        else:
            happened += other.last.happened
    assert items(reply) == replies
    assert one.bytes == other.bytes
    assert one.last.happened == happened
