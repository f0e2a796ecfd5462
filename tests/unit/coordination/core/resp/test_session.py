"""A connection answers in order, asks the right group the right thing, and stays bounded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.coordination.core.group_state import GROUP_COMMANDS, GroupState
from millstream.coordination.core.namespace.state.access_lists import ADMINS
from millstream.coordination.core.resp.session import (
    _BEFORE_LOGIN,
    OUT_BYTES_MAX,
    OUTSTANDING_MAX,
    READS_FIRST,
    REPLIES_BYTES_MAX,
    TURN_REQUESTS_MAX,
)
from millstream.vsr.core.effects import Code
from millstream.vsr.core.entries import Kind
from millstream.vsr.core.versions import NEVER
from support.coordination.coordination_backend import FakeGuard, RegisterBackend
from support.coordination.coordination_backend import FrontClient as Client


def test_registers_over_the_wire() -> None:
    client = Client()
    assert client.say("set k v", "GET k", "cas k v w", "CAS k v w", "get k meta", "GET new") == (
        "+OK\r\n$1\r\nv\r\n+OK\r\n-CAS_MISMATCH\r\n*2\r\n$1\r\nw\r\n$5\r\n0:1:2\r\n$0\r\n\r\n"
    )


def test_replies_leave_in_order_and_together() -> None:
    client = Client()
    client.backend.holds = True
    assert client.say("SET k 1", "CAS k 0 2", "PING", "SET k 2") == ""
    client.backend.release(2)
    client.backend.release(1)
    assert (client.told, client.heard()) == (0, "")
    client.backend.release(0)
    assert client.told == 1
    assert client.heard() == "+OK\r\n-CAS_MISMATCH\r\n+PONG\r\n+OK\r\n"


def test_reads_wait_for_changes_before_them_and_changes_for_reads() -> None:
    client = Client()
    client.backend.holds = True
    assert client.say("SET k 1", "SET k 2", "GET k", "GET k", "SET k 3", "GET k") == ""
    heard, asked = "", []
    while client.backend.held:
        asked.append(len(client.backend.held))
        client.backend.release(0)
        while client.resp.advance():
            pass
        heard += client.heard()
    assert asked == [2, 1, 2, 1, 1, 1]
    assert heard == "+OK\r\n+OK\r\n$1\r\n2\r\n$1\r\n2\r\n+OK\r\n$1\r\n3\r\n"


@given(st.lists(st.sampled_from(["SET k 1", "GET k", "PING", "ECHO x"]), max_size=8), st.data())
def test_any_order_of_answers_gives_the_order_of_requests(
    lines: list[str], data: st.DataObject
) -> None:
    client = Client()
    client.backend.holds = True
    heard = client.say(*lines)
    while client.backend.held:
        client.backend.release(data.draw(st.integers(0, len(client.backend.held) - 1)))
        client.resp.advance()
        heard += client.heard()
    kinds = {"SET k 1": "+OK", "PING": "+PONG", "ECHO x": "$1"}
    shown = [line for line in heard.split("\r\n") if line and line not in ("x", "1", "2")]
    assert len(shown) == len(lines)
    for line, reply in zip(lines, shown, strict=True):
        assert reply == kinds.get(line, reply)


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        (Code.NOTPRIMARY, "-NOTPRIMARY 0 3:7 127.0.0.1:7379"), (Code.NOQUORUM, "-NOQUORUM "),
        (Code.BUSY, "-BUSY "), (Code.UNKNOWN, "-UNKNOWN "), (Code.CSNGONE, "-CSNGONE "),
        (Code.SESSIONEXPIRED, "-SESSIONEXPIRED "), (Code.BEHIND, "-BEHIND 3:7:0"),
    ],
)  # fmt: skip
def test_refusals(code: Code, wanted: str) -> None:
    client = Client()
    client.backend.code = code
    assert client.say("SET k v").startswith(wanted)
    assert client.say("CSN 1 SET k v").startswith(wanted)


def test_a_group_that_is_nowhere() -> None:
    client = Client()
    client.backend.code = Code.NOTPRIMARY
    assert client.say("GROUP 5 GET k") == "-NOTPRIMARY 5 0:0 ?\r\n"


# ---- numbers and sessions


def test_without_a_session_requests_have_no_number() -> None:
    client = Client()
    client.say("SET k v")
    assert [asked[3:] for asked in client.backend.asked] == [(0, 0)]


def test_a_number_opens_a_session_and_what_follows_is_numbered() -> None:
    client = Client()
    assert client.say("CSN 7 SET k v", "SET k w", "csn 7 cts 5 set k x", "GET k") == (
        "+OK\r\n+OK\r\n+OK\r\n$1\r\nw\r\n"
    )
    assert [(asked[1], *asked[3:]) for asked in client.backend.asked] == [
        (Kind.SESSION_OPEN, 0, 0), (Kind.REQUEST, 1, 7), (Kind.REQUEST, 1, 8),
        (Kind.REQUEST, 1, 7), ("read", None, 1),
    ]  # fmt: skip


def test_while_a_session_is_opened_the_rest_waits() -> None:
    client = Client()
    client.backend.holds = True
    assert client.say("SET k 0", "CSN 1 SET k v", "PING") == ""
    assert len(client.backend.asked) == 2
    assert client.resp.is_clogged
    client.backend.release(1)
    assert client.told == 1
    client.resp.advance()
    assert len(client.backend.asked) == 3
    client.backend.release(0)
    client.backend.release(0)
    assert client.heard() == "+OK\r\n+OK\r\n+PONG\r\n"


def test_what_waits_for_two_things_waits_for_both() -> None:
    client = Client()
    client.backend.holds = True
    client.say("GET k", "CSN 1 SET k v", "PING")
    client.backend.release(1)
    assert (len(client.backend.asked), client.told, client.resp.is_clogged) == (2, 0, True)
    client.backend.release(0)
    client.resp.advance()
    client.backend.release(0)
    assert client.heard() == "$0\r\n\r\n+OK\r\n+PONG\r\n"


def test_a_session_that_cannot_be_opened_is_the_commands_error() -> None:
    client = Client()
    client.backend.code = Code.NOQUORUM
    assert client.say("CSN 1 SET k v", "PING").startswith("-NOQUORUM")
    client.backend.code = Code.OK
    assert client.say("CSN 1 SET k v") == "+OK\r\n"


@pytest.mark.parametrize(
    "line",
    [
        "CSN", "CSN 1", "CSN x GET k", "CSN 0 GET k", "CSN -1 GET k", "CTS GET k", "SEEN 1 GET k",
        "CSN 9223372036854775808 GET k", "CTS 18446744073709551616 GET k", "GROUP x GET k",
        "CSN 111111111111111111111 GET k",
    ],
)  # fmt: skip
def test_prefixes_that_make_no_sense(line: str) -> None:
    assert Client().say(line).startswith("-BADARG")


def test_numbers_end_before_the_log_has_no_place_for_them() -> None:
    client = Client()
    assert client.say("CSN 9223372036854775807 SET k v") == "+OK\r\n"
    assert client.say("SET k w", "GET k").startswith("-BADARG the session has no numbers left")
    assert client.backend.executed[-1].argv == (b"SET", b"k", b"v")


def test_stale_reads_are_never_older_than_what_was_shown() -> None:
    client = Client()
    client.say("GET k STALEREAD", "SEEN 0:1:5 GET k STALEREAD", "SET k v", "GET k STALEREAD")
    seen = [asked[3] for asked in client.backend.asked if asked[1] == "read"]
    assert seen == [0, 5, 1]


# ---- users


def test_without_a_login_little_is_allowed() -> None:
    client = Client(guard=FakeGuard({"ada": ("pw", True)}))
    assert client.say("GET k").startswith("-NOAUTH")
    assert client.say("CSN 1 SET k v").startswith("-NOAUTH")
    assert client.say("PING", "VDS").startswith("+PONG\r\n-NOAUTH")
    assert client.say("AUTH ada wrong").startswith("-NOAUTH")
    assert client.say("AUTH ada pw", "SET k v") == "+OK\r\n+OK\r\n"
    assert client.say("RESET", "SET k v").startswith("+RESET\r\n-NOAUTH")


def test_what_a_stranger_may_say_is_no_command_of_the_groups() -> None:
    assert not _BEFORE_LOGIN & GROUP_COMMANDS.keys()


def test_who_is_no_administrator_leaves_registers_alone() -> None:
    client = Client(guard=FakeGuard({"bob": ("pw", False)}))
    client.say("AUTH bob pw")
    assert client.say("SET k v") == "-NOPERM k w\r\n"
    assert client.say("GET k") == "-NOPERM k r\r\n"
    assert client.say("ADMIN STATUS").startswith("-NOPERM")


def test_a_login_under_way_holds_the_rest() -> None:
    client = Client(guard=FakeGuard({"ada": ("pw", True)}))
    client.guard.holds = True
    assert client.say("AUTH ada pw", "SET k v") == ""
    client.guard.held.pop()()
    assert client.told == 1
    client.resp.advance()
    assert client.heard() == "+OK\r\n+OK\r\n"


def test_a_principal_is_in_the_log() -> None:
    client = Client(guard=FakeGuard({"ada": ("pw", True)}))
    client.say("AUTH ada pw", "SET k v")
    asked = client.backend.asked[0][2]  # type: ignore[attr-defined]
    assert (asked.principal, asked.groups) == (b"ada", (ADMINS,))


def test_administrators_pass_the_locks_of_others_by_force() -> None:
    backend = RegisterBackend(GroupState())
    users = FakeGuard({"ada": ("pw", True), "bob": ("pw", False)})
    holder, ada, bob = (Client(backend, users, vocabulary=GROUP_COMMANDS) for _ in range(3))
    for name, client in (("ada", holder), ("ada", ada), ("bob", bob)):
        client.say(f"AUTH {name} pw")
    holder.say("CREATENAMESPACE /n", "CREATE BINARY /n/a", "ACL SET /n/a MODE 777", "LOCK /n/a")
    assert ada.say("CSN 1 PUT /n/a x").startswith("-LOCKED /n/a WRITE")
    assert ada.say("FORCE CSN 2 PUT /n/a x", "csn 3 force cts 9 put /n/a y") == "+OK\r\n+OK\r\n"
    assert backend.asked[-1][2].argv == (b"9", b"FORCE", b"PUT", b"/n/a", b"y")  # type: ignore[attr-defined]
    assert ada.say("FORCE GET /n/a") == "$1\r\ny\r\n"
    assert bob.say("FORCE PUT /n/a z").startswith("-NOPERM FORCE w")
    assert bob.say("FORCE GET /n/a").startswith("-NOPERM FORCE w")
    assert ada.say("FORCE PING", "FORCE SET k v", "FORCE GET k") == "+PONG\r\n+OK\r\n$1\r\nv\r\n"
    assert ada.say("FORCE", "FORCE CSN 5").startswith("-BADARG CSN number, CTS ms")
    assert ada.say("GET /n/a").startswith("-LOCKED"), "it was for one command"


def test_a_transaction_passes_locks_by_force_before_exec() -> None:
    backend = RegisterBackend(GroupState())
    holder, ada = (Client(backend, vocabulary=GROUP_COMMANDS) for _ in range(2))
    holder.say("CREATENAMESPACE /n", "CREATE BINARY /n/a", "LOCK /n/a")
    ada.say("MULTI", "PUT /n/a x")
    assert ada.say("EXEC").startswith("-EXECABORT 0 LOCKED")
    ada.say("MULTI", "PUT /n/a x")
    assert ada.say("FORCE EXEC") == "*1\r\n+OK\r\n"
    ada.say("MULTI")
    assert ada.say("FORCE PUT /n/a x").startswith("-BADARG in a transaction only EXEC")
    assert ada.say("EXEC").startswith("-EXECABORT")


# ---- bounds and ends


def test_a_turn_is_bounded() -> None:
    client = Client()
    client.resp.feed(b"PING\r\n" * (TURN_REQUESTS_MAX + 1))
    assert client.resp.advance()
    assert client.heard() == "+PONG\r\n" * TURN_REQUESTS_MAX
    assert not client.resp.advance()
    assert client.heard() == "+PONG\r\n"


@pytest.mark.parametrize("nothing", [b"\n", b"*0\r\n", b"\nPING\r\n"])
def test_requests_that_ask_for_nothing_take_turns_too(nothing: bytes) -> None:
    client = Client()
    number = 3 * TURN_REQUESTS_MAX
    client.resp.feed(nothing * number + b"ECHO end\r\n")
    turns = 1
    while client.resp.advance():
        turns += 1
    assert turns >= 3
    assert client.heard().endswith("$3\r\nend\r\n")


def test_so_many_wait_and_no_more() -> None:
    client = Client()
    client.backend.holds = True
    client.say(*["SET k v"] * (OUTSTANDING_MAX + 5))
    assert len(client.backend.asked) == OUTSTANDING_MAX
    assert client.resp.is_clogged
    client.backend.release(0)
    assert not client.resp.is_clogged
    client.resp.advance()
    assert len(client.backend.asked) == OUTSTANDING_MAX + 1


def test_replies_that_are_not_sent_hold_the_rest() -> None:
    client = Client()
    client.say(f"SET k {'v' * 60_000}")
    client.resp.feed(b"GET k\r\n" * 20)
    assert client.resp.advance()
    assert client.resp.is_clogged
    assert client.heard().count("$60000") == 18
    assert not client.resp.advance()
    assert client.heard().count("$60000") == 2


def flow(client: Client, reads: int) -> int:
    """Ask for so many reads and have them answered; return the most that were under way."""
    client.resp.feed(b"GET k\r\n" * reads)
    most = 0
    while client.resp.advance() or client.backend.held:
        most = max(most, len(client.backend.held))
        while client.backend.held:
            client.backend.release(0)
        assert client.resp.waiting_bytes < 2 * OUT_BYTES_MAX
        client.heard()
    return most


def test_so_many_reads_are_under_way_as_their_replies_allow() -> None:
    client = Client()
    assert client.say(f"SET k {'v' * 60_000}") == "+OK\r\n"
    client.backend.holds = True
    assert READS_FIRST <= flow(client, 300) <= OUT_BYTES_MAX // 60_000 + 1
    client.backend.holds = False
    client.say("SET k v")
    client.backend.holds = True
    assert flow(client, 1000) == TURN_REQUESTS_MAX


def test_replies_that_wait_behind_another_one_are_counted_at_once() -> None:
    client = Client()
    first, second, third = (client.resp.slot() for _ in range(3))
    told = client.told
    second.text = b"+x\r\n"
    client.resp.filled(second)
    assert client.told == told  # little waits: the first reply will say so
    third.text = b"x" * OUT_BYTES_MAX
    client.resp.filled(third)
    assert client.told == told + 1
    first.text = b"+x\r\n"
    client.resp.filled(first)
    assert len(client.heard()) == OUT_BYTES_MAX + 8


def test_what_is_read_and_cannot_be_kept_is_refused() -> None:
    client = Client()
    client.backend.holds = True
    flow(client, 1000)
    client.resp.feed(b"GET k\r\n" * 100)
    client.resp.advance()
    assert len(client.backend.held) == 100
    client.backend.machine.registers.values.put(b"k", (b"v" * 1_000_000, NEVER))
    for _ in range(100):
        client.backend.release(0)
    assert client.resp.waiting_bytes < REPLIES_BYTES_MAX + 1_000_100
    heard = client.heard()
    assert (heard.count("$1000000"), heard.count("-BUSY")) == (17, 83)
    assert client.resp.waiting_bytes == 0


def test_replies_behind_one_that_is_not_known_count() -> None:
    client = Client()
    assert client.say(f"SET k {'v' * 60_000}") == "+OK\r\n"
    client.backend.holds = True
    client.resp.feed(b"GET k\r\n" * 40)
    client.resp.advance()
    while len(client.backend.held) > 1:
        client.backend.release(1)
        client.resp.advance()
    assert client.resp.waiting_bytes < 2 * OUT_BYTES_MAX
    assert not client.resp.advance()


def test_no_request_ends_the_connection_after_what_was_asked() -> None:
    client = Client()
    client.backend.holds = True
    assert client.say("GET k", "*1\r\n:5", "PING") == ""
    assert not client.resp.is_done
    client.backend.release(0)
    assert client.heard().startswith("$0\r\n\r\n-ERR Protocol error")
    assert client.resp.is_done


@pytest.mark.parametrize("head", ["POST / HTTP/1.1", "GET / HTTP/1.1\r\nHost: 127.0.0.1:7379"])
def test_what_a_browser_is_made_to_say_is_not_done(head: str) -> None:
    client = Client()
    said = client.say(head, "", "SET owned 1", "ADMIN STATUS")
    assert said.endswith("-ERR this port does not speak HTTP; the connection is closed\r\n")
    assert client.resp.is_done
    assert client.backend.executed == []


def test_a_node_says_what_it_was_started_with() -> None:
    client = Client()
    assert "/data" in client.say("CONFIG GET NODE node.data")
    assert "7379" in client.say("CONFIG GET node NODE.*")
    assert "7379" not in client.say("CONFIG GET NODE *.data")
    assert client.say("CONFIG GET NODE NODE.NOTHING", "CONFIG GET save") == "*0\r\n*0\r\n"
    for line in ("CONFIG GET NODE", "CONFIG GET NODE a b", "CONFIG GET NODE " + "x" * 65):
        assert client.say(line).startswith(("-BADARG", "*0"))
    stranger = Client(guard=FakeGuard({"bob": ("pw", False)}))
    assert stranger.say("CONFIG GET NODE NODE.DATA").startswith("-NOAUTH")
    stranger.say("AUTH bob pw")
    assert stranger.say("CONFIG GET NODE NODE.DATA").startswith("-NOPERM")
    assert client.backend.executed == []


def test_too_much_is_said_to_be() -> None:
    assert Client().say("*5000").startswith("-TOOBIG")


def test_replies_to_a_connection_that_is_gone_are_nobodys() -> None:
    client = Client()
    client.backend.holds = True
    client.say("GET k", "CSN 1 SET k v")
    client.resp.close()
    client.backend.release(0)
    client.backend.release(0)
    assert (client.told, client.heard(), client.resp.sessions) == (0, "", {})


# ---- signs of life


def test_whatever_comes_shows_that_the_client_of_each_session_lives() -> None:
    client = Client()
    client.say("PING")
    assert client.backend.touched == []
    client.say("SESSION OPEN")
    for line in ("PING", "INFO", "VDS", "ADMIN STATUS", "GROUP 3 GET k"):
        client.backend.touched.clear()
        client.say(line)
        assert client.backend.touched == [(0, 1)], line
    client.say("GROUP 3 SESSION OPEN")
    client.backend.touched.clear()
    client.say("GROUP 3 SET k v")
    assert client.backend.touched == [(0, 1), (3, 2)]


def test_a_request_that_is_on_its_way_is_a_sign_of_life() -> None:
    client = Client()
    client.say("SESSION OPEN")
    client.backend.touched.clear()
    for part in (b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$9\r\n", b"123", b"456"):
        client.resp.feed(part)
        client.resp.advance()
    assert client.backend.touched == [(0, 1)] * 3


def test_what_names_its_session_says_no_more_and_an_answer_is_no_sign_of_life() -> None:
    client = Client()
    client.say("SESSION OPEN")
    client.backend.touched.clear()
    client.backend.holds = True
    client.say("SET k v")
    client.backend.release(0)
    client.resp.advance()
    assert client.backend.touched == []


def test_who_has_lost_its_session_to_another_connection_keeps_it_no_more() -> None:
    client, attached = Client(), {}
    client.resp.attached = attached
    client.say("SESSION OPEN")
    client.resp.note_moved(0)
    client.backend.touched.clear()
    client.say("PING")
    assert client.backend.touched == []


# ---- before a log-in


@pytest.mark.parametrize("data", [b"*2\r\n$4\r\nECHO\r\n$65537\r\n", b"x" * 65_000 + b"y" * 600])
def test_before_a_login_no_long_request_is_waited_for(data: bytes) -> None:
    client = Client(guard=FakeGuard({"ada": ("pw", True)}))
    client.resp.feed(data)
    client.resp.advance()
    assert client.heard().startswith("-TOOBIG ")
    assert client.resp.is_done
    known = Client(guard=client.guard)
    known.say("AUTH ada pw")
    known.resp.feed(data[:65_500])
    known.resp.advance()
    assert (known.heard(), known.resp.is_closing) == ("", False)


def test_what_follows_a_login_may_be_long() -> None:
    client = Client(guard=FakeGuard({"ada": ("pw", True)}))
    client.guard.holds = True
    client.resp.feed(b"AUTH ada pw\r\n*2\r\n$4\r\nECHO\r\n$70000\r\n")
    client.resp.advance()
    client.guard.held.pop()()
    client.resp.feed(b"x" * 70_000 + b"\r\n")
    client.resp.advance()
    assert len(client.heard()) > 70_000
