"""Stock clients get the answers they expect when they connect."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.coordination.core.backend import Principal
from millstream.coordination.core.client.wire import Replies, packed
from millstream.coordination.core.group_state import GROUP_COMMANDS, GroupState
from millstream.coordination.core.registers import REGISTER_COMMANDS
from millstream.coordination.core.resp.common_commands import CONNECTION_COMMANDS
from support.coordination.coordination_backend import FakeGuard, FrontClient, RegisterBackend

SAID = [
    ("PING", "+PONG\r\n"),
    ("ping x", "$1\r\nx\r\n"),
    ("ECHO 'a b'", "$3\r\na b\r\n"),
    ("SELECT 0", "+OK\r\n"),
    ("CLIENT SETINFO LIB-NAME x", "+OK\r\n"),
    ("CLIENT SETNAME x", "+OK\r\n"),
    ("CLIENT GETNAME", "$-1\r\n"),
    ("CLIENT ID", ":1\r\n"),
    ("CLIENT INFO", "$32\r\nid=1 user=anonymous resp=2 name=\r\n"),
    ("COMMAND", "*0\r\n"),
    ("COMMAND COUNT", ":0\r\n"),
    ("COMMAND DOCS GET", "*0\r\n"),
    ("COMMAND INFO get", "*0\r\n"),
    ("CONFIG GET save", "*0\r\n"),
    ("INFO groups", "$20\r\n# Groups\r\ngroups:1\r\n\r\n"),
    ("RESET", "+RESET\r\n"),
    ("VDS x", "*2\r\n$1\r\n/\r\n:2\r\n"),
    ("admin status 0", "-BADARG admin status 0\r\n"),
]


@pytest.mark.parametrize(("line", "wanted"), SAID)
def test_what_is_answered(line: str, wanted: str) -> None:
    assert FrontClient().say(line) == wanted


@pytest.mark.parametrize(
    "line",
    [
        "PING a b", "ECHO", "SELECT 1", "CLIENT", "CLIENT MAINT_NOTIFICATIONS ON", "AUTH x",
        "CLIENT SETNAME 'a b'", "COMMAND X", "CONFIG SET a b", "CONFIG", "HELLO 3 SETNAME",
        "HELLO 3 SETNAME 'a b'", "HELLO 3 AUTH x",
    ],
)  # fmt: skip
def test_what_is_refused(line: str) -> None:
    assert FrontClient().say(line).startswith("-BADARG")


def test_an_unknown_command_does_not_end_the_connection() -> None:
    client = FrontClient()
    assert client.say("MGET a b").startswith("-UNKNOWN_COMMAND there is no command MGET")
    assert not client.resp.is_closing


def test_hello_changes_the_protocol_and_greets() -> None:
    client = FrontClient()
    assert client.say("HELLO").startswith("*12\r\n$6\r\nserver\r\n$10\r\nmillstream\r\n")
    assert client.say("HELLO 3 SETNAME me").startswith("%6\r\n")
    assert client.say("CLIENT GETNAME", "COMMAND DOCS") == "$2\r\nme\r\n%0\r\n"
    assert client.say("HELLO 2", "COMMAND DOCS").endswith("*0\r\n")
    assert client.say("HELLO 4").startswith("-NOPROTO")


def test_replies_that_are_on_their_way_keep_their_protocol() -> None:
    client = FrontClient()
    client.backend.holds = True
    client.say("ADMIN x", "HELLO 3", "COMMAND DOCS")
    client.backend.release(0)
    assert client.heard().endswith("%0\r\n")


def test_hello_logs_in() -> None:
    client = FrontClient(guard=FakeGuard({"ada": ("pw", True)}))
    assert client.say("HELLO 3 AUTH ada no").startswith("-NOAUTH")
    assert client.resp.protocol == 2
    assert client.say("HELLO 3 AUTH ada pw SETNAME x").startswith("%6")
    assert client.say("CLIENT INFO").endswith("user=ada resp=3 name=x\r\n")


def test_a_token_logs_in() -> None:
    bearers = {b"jwt": Principal("ada", is_admin=False, groups=("staff",))}
    for words in ("AUTH TOKEN jwt", "AUTH token jwt", "HELLO 3 AUTH token jwt"):
        client = FrontClient(guard=FakeGuard(bearers=bearers))
        assert client.say("AUTH token no") == "-NOAUTH the token is a bad one\r\n"
        assert client.say("AUTH jwt token").startswith("-NOAUTH")
        assert not client.say(words).startswith("-")
        assert "user=ada " in client.say("CLIENT INFO")


def who(client: FrontClient) -> str:
    return client.say("ACL WHOAMI").replace("\r\n", " ")


def test_groups_are_of_who_is_logged_in() -> None:
    bearers = {
        b"admins": Principal("eve", is_admin=False, groups=("admins", "staff")),
        b"root": Principal("root", is_admin=True, groups=("ops",)),
        b"bob": Principal("bob", is_admin=False),
    }
    client = FrontClient(
        RegisterBackend(GroupState()), FakeGuard(bearers=bearers), vocabulary=GROUP_COMMANDS
    )
    assert client.say("ACL WHOAMI").startswith("-NOAUTH")
    client.say("AUTH TOKEN admins")
    assert "*1 $5 staff " in who(client)
    assert who(client).endswith(":0 ")
    assert client.say("CREATENAMESPACE /ns").startswith("-NOPERM")
    client.say("AUTH TOKEN root")
    assert "*2 $3 ops $6 admins " in who(client)
    client.say("CREATENAMESPACE /ns", "ACL SET /ns ENTRY group:staff:rw-")
    client.say("AUTH TOKEN bob")
    assert client.say("CREATE BINARY /ns/a") == "-NOPERM /ns w\r\n"
    client.say("AUTH TOKEN admins")
    assert client.say("ACL CHECK /ns w", "CREATE BINARY /ns/a") == ":1\r\n+OK\r\n"


def test_another_user_has_other_sessions() -> None:
    bearers = {
        b"a": Principal("ada", is_admin=True), b"a2": Principal("ada", is_admin=True),
        b"b": Principal("bob", is_admin=True),
    }  # fmt: skip
    client = FrontClient(guard=FakeGuard(bearers=bearers))
    client.say("AUTH TOKEN a", "SESSION OPEN", "AUTH TOKEN a2")
    assert client.say("SESSION INFO").startswith("*8")
    client.say("MULTI", "DISCARD", "AUTH TOKEN b")
    assert client.say("SESSION INFO").startswith("-SESSIONEXPIRED")


def test_who_is_nobody_any_more_gets_nothing_done() -> None:
    """Whatever waited for something when the end came, too: nobody is asked for as nobody."""
    bearers = {b"a": Principal("ada", is_admin=True)}
    client = FrontClient(guard=FakeGuard(bearers=bearers))
    client.say("AUTH TOKEN a", "SET k v", "SESSION OPEN")
    client.backend.holds = True
    client.say("SET k w", "GET k", "SET k x")
    client.resp.log_in(None)
    assert not client.resp.sessions
    client.backend.release(0)
    assert client.heard().startswith("+OK\r\n-NOAUTH")
    assert client.say("SET k y", "SESSION PING").count("-NOAUTH") >= 2
    client.backend.holds = False
    assert client.say("AUTH TOKEN a", "GET k").endswith("$1\r\nw\r\n")


@pytest.mark.parametrize("words", ["SESSION OPEN", "CSN 1 SET k v"])
def test_a_session_that_comes_too_late_is_nobodys(words: str) -> None:
    bearers = {b"a": Principal("ada", is_admin=True)}
    client = FrontClient(guard=FakeGuard(bearers=bearers))
    client.say("AUTH TOKEN a")
    client.backend.holds = True
    client.say(words)
    client.resp.log_in(None)
    client.backend.release(0)
    assert client.heard().startswith("-NOAUTH")
    assert not client.resp.sessions


def test_a_login_on_a_connection_that_is_gone() -> None:
    client = FrontClient(guard=FakeGuard({"ada": ("pw", True)}))
    client.guard.holds = True
    client.say("AUTH ada pw")
    client.resp.close()
    client.guard.held.pop()()
    assert (client.resp.principal, client.heard()) == (None, "")


def test_quit_ends_it() -> None:
    client = FrontClient()
    assert client.say("QUIT", "PING") == "+OK\r\n"
    assert client.resp.is_done


def test_all_figures() -> None:
    shown = FrontClient().say("INFO")
    assert "# Server\r\nserver_name:millstream\r\nversion:" in shown
    assert shown.endswith("# Groups\r\ngroups:1\r\n\r\n")


# ---- namespaces


@pytest.fixture
def tree() -> FrontClient:
    made = FrontClient(RegisterBackend(GroupState()), vocabulary=GROUP_COMMANDS)
    assert made.say("CREATENAMESPACE /ns", "CREATE BINARY /ns/a one") == "+OK\r\n" * 2
    return made


def test_commands_between_multi_and_exec_are_one_entry(tree: FrontClient) -> None:
    before = len(tree.backend.executed)
    said = tree.say("MULTI", "PUT /ns/a two", "GET /ns/a", "CHECK /ns/b ABSENT", "EXEC")
    assert said == "+OK\r\n" + "+QUEUED\r\n" * 3 + "*3\r\n+OK\r\n$3\r\ntwo\r\n+OK\r\n"
    assert len(tree.backend.executed) == before + 1
    assert tree.say("GET /ns/a") == "$3\r\ntwo\r\n"


def test_the_first_error_takes_all_of_them_back(tree: FrontClient) -> None:
    tree.say("MULTI", "PUT /ns/a two", "CHECK /ns/b EXISTS")
    assert tree.say("EXEC").startswith("-EXECABORT 1 CHECK_FAILED")
    assert tree.say("GET /ns/a") == "$3\r\none\r\n"


def test_what_makes_no_sense_is_said_at_once_and_spoils_all(tree: FrontClient) -> None:
    before = len(tree.backend.executed)
    assert tree.say("MULTI", "PUT /ns/a").startswith("+OK\r\n-BADARG")
    assert tree.say("PUT /ns/a two") == "+QUEUED\r\n"
    assert tree.say("EXEC").startswith("-EXECABORT 0 BADARG")
    assert len(tree.backend.executed) == before


def test_a_transaction_may_have_a_number(tree: FrontClient) -> None:
    tree.say("MULTI", "PUT /ns/a two")
    assert tree.say("CSN 1 CTS 77 EXEC") == "*1\r\n+OK\r\n"
    tree.say("MULTI", "PUT /ns/a three")
    assert tree.say("CSN 1 EXEC") == "*1\r\n+OK\r\n"
    assert tree.say("GET /ns/a") == "$3\r\ntwo\r\n"
    assert ":77\r\n" in tree.say("GET /ns/a ATTR NODATA")


def test_a_command_in_a_transaction_has_none(tree: FrontClient) -> None:
    tree.say("MULTI")
    assert tree.say("CSN 1 PUT /ns/a two").startswith("-BADARG")
    assert tree.say("EXEC").startswith("-EXECABORT 0 BADARG")


def test_transactions_begin_and_end_once(tree: FrontClient) -> None:
    assert tree.say("EXEC").startswith("-ERR EXEC without MULTI")
    assert tree.say("DISCARD").startswith("-ERR DISCARD without MULTI")
    assert tree.say("MULTI", "EXEC") == "+OK\r\n*0\r\n"
    assert tree.say("MULTI", "MULTI").startswith("+OK\r\n-ERR MULTI within MULTI")
    assert tree.say("PUT /ns/a two", "RESET") == "+QUEUED\r\n+RESET\r\n"
    assert tree.say("GET /ns/a") == "$3\r\none\r\n"


def test_what_is_ephemeral_opens_a_session(tree: FrontClient) -> None:
    assert tree.say("CREATE BINARY EPHEMERAL /ns/e") == "+OK\r\n"
    assert len(tree.backend.sessions) == 1


def test_access_lists_decide_who_may_what_in_a_namespace() -> None:
    guard = FakeGuard({"ada": ("pw", True), "bob": ("pw", False)})
    backend = RegisterBackend(GroupState())
    ada, bob = (FrontClient(backend, guard, vocabulary=GROUP_COMMANDS) for _ in range(2))
    ada.say("AUTH ada pw")
    bob.say("AUTH bob pw")
    assert bob.say("CREATENAMESPACE /ns").startswith("-NOPERM")
    ada.say("CREATENAMESPACE /ns", "CREATE BINARY /ns/a one")
    assert bob.say("GET /ns/a") == "$3\r\none\r\n"
    assert bob.say("PUT /ns/a two").startswith("-NOPERM /ns/a w")
    assert ada.say("ACL SET /ns/a ENTRY user:bob:rw-") == "+OK\r\n"
    assert bob.say("PUT /ns/a two") == "+OK\r\n"
    assert ada.say("PUT /ns/a three") == "+OK\r\n"
    assert bob.say("SESSION OPEN").startswith("*8")
    assert bob.say("SESSION LIST").startswith("-NOPERM")


def test_configuration_is_of_elements_or_of_nothing(tree: FrontClient) -> None:
    assert tree.say("CONFIG GET save") == "*0\r\n"
    assert "SUBS.MIN.HISTORY" in tree.say("CONFIG GET /ns/a *")


WORDS = [
    b"CSN", b"SEEN", b"CTS", b"GROUP", b"0", b"1", b"3", b"1:2:3", b"META", b"STALEREAD", b"OPEN",
    b"RESUME", b"PING", b"CLOSE", b"INFO", b"TTL", b"INSTANCE", b"ab" * 16, b"ab" * 16 + b"-1",
    b"AUTH", b"SETNAME", b"TOKEN", b"GET", b"ada", b"pw", b"\xff\r\n", b"", b"9" * 30, b"\xb2",
]  # fmt: skip
NAMES = sorted(
    {*CONNECTION_COMMANDS, *REGISTER_COMMANDS, b"CSN", b"GROUP", b"NO"} - {b"QUIT", b"UNSUBSCRIBE"}
)
REQUESTS = st.lists(
    st.builds(
        lambda name, words: [name, *words],
        st.sampled_from(NAMES),
        st.lists(st.sampled_from(WORDS), max_size=5),
    ),
    max_size=8,
)


@given(REQUESTS, st.booleans(), st.booleans())
def test_whatever_is_asked_has_one_reply(
    requests: list[list[bytes]], has_users: bool, is_slow: bool
) -> None:
    client = FrontClient(guard=FakeGuard({"ada": ("pw", True)} if has_users else {}))
    client.backend.holds = is_slow
    for argv in requests:
        client.resp.feed(packed(argv))
    while client.resp.advance() or client.backend.held:
        if client.backend.held:
            client.backend.release(0)
    client.resp.advance()
    replies = list(Replies().feed(client.resp.take_output()))
    assert len(replies) == len(requests)
