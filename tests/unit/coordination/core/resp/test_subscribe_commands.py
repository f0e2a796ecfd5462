"""A connection is told what happens, in its turn, until it does not want it or may not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from millstream.coordination.core.backend import Principal
from millstream.coordination.core.group_state import GROUP_COMMANDS, GroupState
from millstream.coordination.core.namespace import audience as audience_module
from millstream.coordination.core.namespace.audience import PROGRESS_MS
from millstream.coordination.core.namespace.state.run import Notice
from millstream.coordination.core.resp import session as session_module
from millstream.coordination.core.resp.pushes import NOTICE_PATH_BYTES_MAX, NOTICES_MAX
from millstream.vsr.core.effects import Code
from support.coordination.coordination_backend import FakeGuard, FrontClient, RegisterBackend

QUEUED_MAX = 50


def values(text: str) -> list[Any]:
    """Return the values of RESP; a push begins with `>`."""
    lines = iter(text.split("\r\n"))
    return [_value(line, lines) for line in lines if line]


def _value(line: str, lines: Any) -> Any:
    sign, rest = line[0], line[1:]
    if sign in "*>":
        items = [_value(next(lines), lines) for _ in range(int(rest))]
        return [">", *items] if sign == ">" else items
    if sign == "$":
        return None if rest == "-1" else next(lines)
    if sign == ":":
        return int(rest)
    return None if sign == "_" else line


def told(found: list[Any]) -> list[tuple[str, str, int]]:
    """Return path, op and LSN of messages, which nothing else is among."""
    shown = []
    for *_, kind, path, payload in found:
        assert kind == "message"
        text = json.loads(payload)
        shown.append((path, text["op"], text["lsn"]))
    return shown


class Client(FrontClient):
    def drained(self, most: int) -> list[Any]:
        """Return all that waits, as a socket takes it: no more than so much at once."""
        found = []
        for _ in range(100):
            has_more = self.resp.advance()
            text = self.heard()
            assert len(text) <= most
            found += values(text)
            if not has_more:
                return found
        raise AssertionError("there is no end of it")

    def ask(self, *lines: str) -> list[Any]:
        return values(self.say(*lines))


class World:
    """Two connections to one group, with a namespace that has /ns/a."""

    def __init__(self, guard: FakeGuard | None = None) -> None:
        self.state = GroupState()
        self.backend = RegisterBackend(self.state)
        self.guard = guard
        self.one, self.other = self.client(), self.client()
        if guard is None:
            self.other.say("CREATENAMESPACE /ns", "CREATE BINARY /ns/a")

    def client(self) -> Client:
        return Client(self.backend, self.guard, vocabulary=GROUP_COMMANDS)

    @property
    def lsn(self) -> int:
        return self.backend.link.lsn


@pytest.fixture
def world() -> World:
    return World()


def test_resp3(world: World) -> None:
    world.one.say("HELLO 3")
    assert world.one.ask("SUBSCRIBE /ns/a MODE DATA") == [
        [">", "subscribe", "/ns/a", 1],
        [">", "message", "/ns/a", f'{{"op":"start","lsn":{world.lsn}}}'],
    ]
    before = world.one.told
    world.other.say("PUT /ns/a new")
    assert world.one.told == before + 1
    (message,) = world.one.ask()
    assert message[:3] == [">", "message", "/ns/a"]
    text = json.loads(message[3])
    assert (text["op"], text["lsn"], text["data"]) == ("put", world.lsn, "bmV3")
    assert world.one.ask("GET /ns/a", "PING") == ["new", "+PONG"]
    assert world.one.ask("UNSUBSCRIBE /ns/a") == [[">", "unsubscribe", "/ns/a", 0]]
    world.other.say("PUT /ns/a newer")
    assert world.one.ask() == []


def test_resp2_is_a_mode(world: World) -> None:
    assert world.one.ask("SUBSCRIBE /ns/a /ns")[:2] == [
        ["subscribe", "/ns/a", 1], ["subscribe", "/ns", 2],
    ]  # fmt: skip
    for line in ("GET /ns/a", "CSN 3 GET /ns/a", "MULTI", "VDS", "HELLO 3"):
        (refused,) = world.one.ask(line)
        assert refused.startswith("-ERR in RESP2")
    assert world.one.ask("PING", "PING hi") == [["pong", ""], ["pong", "hi"]]
    assert len(world.one.ask("SESSION OPEN")[0]) == 8
    assert world.one.ask("SUBSCRIBE /ns/a")[0] == ["subscribe", "/ns/a", 2]
    assert world.one.ask("UNSUBSCRIBE /ns/a") == [["unsubscribe", "/ns/a", 1]]
    assert world.one.ask("UNSUBSCRIBE") == [["unsubscribe", "/ns", 0]]
    assert world.one.ask("PING", "UNSUBSCRIBE") == ["+PONG", ["unsubscribe", None, 0]]
    world.one.say("SUBSCRIBE /ns/a")
    assert world.one.ask("RESET", "GET /ns/a") == ["+RESET", ""]
    world.one.say("SUBSCRIBE /ns/a")
    assert world.one.ask("QUIT") == ["+OK"]
    assert world.state.audience.is_empty
    assert world.one.resp.is_done


def test_the_mode_outlives_what_ended(world: World) -> None:
    world.one.say("SUBSCRIBE /ns/a")
    world.other.say("DELETE /ns/a")
    assert told(world.one.ask()) == [("/ns/a", "delete", world.lsn)]
    assert world.one.ask("PING") == [["pong", ""]]
    assert world.one.ask("UNSUBSCRIBE /ns/a", "PING") == [["unsubscribe", "/ns/a", 0], "+PONG"]


def test_the_mark_is_logged_once(world: World) -> None:
    world.one.say("HELLO 3", "SUBSCRIBE /ns/a")
    assert world.backend.executed[-1].argv == (b"0", b"MARK", b"/ns/a")
    first = world.lsn
    world.one.say("SUBSCRIBE /ns/a TREE", "CTS 9 SUBSCRIBE /ns/a CHILDREN")
    assert world.backend.executed[-1].argv == (b"9", b"MARK", b"/ns/a", b"CHILDREN")
    assert world.lsn == first + 2
    world.other.say("SUBSCRIBE /ns/a", "UNSUBSCRIBE", "SUBSCRIBE /ns/a TREE")
    assert world.lsn == first + 2


def test_the_mark_has_the_number_of_the_request(world: World) -> None:
    world.one.say("HELLO 3", "SESSION OPEN", "CSN 5 SUBSCRIBE /ns/a")
    *_, (_, _, body, session, csn) = (a for a in world.backend.asked if a[1] != "read")
    assert (body.argv[1], bool(session), csn) == (b"MARK", True, 5)  # type: ignore[attr-defined]
    assert world.one.ask("CSN 6 SUBSCRIBE /ns/a")[0] == [">", "subscribe", "/ns/a", 1]
    fresh = world.client()
    assert fresh.ask("CSN 2 SUBSCRIBE /ns/a", "SESSION INFO")[0] == ["subscribe", "/ns/a", 1]
    assert fresh.resp.sessions


def test_what_makes_no_sense_or_is_refused(world: World) -> None:
    for line, error in (
        ("SUBSCRIBE", "-BADARG SUBSCRIBE path"), ("SUBSCRIBE ns", "-BADPATH"),
        ("SUBSCRIBE /ns/a MODE X", "-BADARG"), ("SUBSCRIBE /ns/x", "-ERROR_DOES_NOT_EXISTS"),
        ("MARK /ns/a", "-UNKNOWN_COMMAND"), ("SUBACK x", "-BADARG"),
        ("SUBACK x 3 NAMESPACE ns", "-BADARG"), ("SUBSCRIBE /ns/a FROM 1", "-HISTORY_LOST "),
    ):  # fmt: skip
        (refused,) = world.one.ask(line)
        assert refused.startswith(error), line
    assert not world.one.resp.listener.is_on
    assert world.one.ask("MULTI", "SUBSCRIBE /ns/a")[1].startswith("-UNKNOWN_COMMAND")
    world.one.say("DISCARD")
    world.backend.code = Code.NOQUORUM
    assert world.one.ask("SUBSCRIBE /ns/a")[0].startswith("-NOQUORUM")


def test_replies_before_it_come_first(world: World) -> None:
    world.one.say("HELLO 3")
    world.backend.holds = True
    assert world.one.ask("GET /ns/a", "SUBSCRIBE /ns/a", "PING", "GET /ns/a") == []
    assert len(world.backend.held) == 1
    world.backend.release(0)
    assert world.one.ask() == [""]
    world.backend.release(0)
    world.backend.release(0)
    subscribed, pong, start = world.one.ask()
    assert (subscribed[1], start[1], pong) == ("subscribe", "message", "+PONG")
    world.backend.holds = False
    world.other.say("PUT /ns/a new")
    assert [m[-1] for m in told(world.one.ask())] == [world.lsn]
    world.backend.release(0)
    assert world.one.ask() == ["new"]


def test_resume_and_lost_history(world: World) -> None:
    world.one.say("HELLO 3", "SUBSCRIBE /ns/a", "UNSUBSCRIBE")
    seen = world.lsn
    for number in range(3):
        world.other.say(f"PUT /ns/a {number}")
    subscribed, *messages = world.one.ask(f"SUBSCRIBE /ns/a FROM {seen + 1}")
    assert subscribed[1] == "subscribe"
    assert told(messages) == [("/ns/a", "put", seen + 2), ("/ns/a", "put", seen + 3)]
    world.other.say("CONFIG SET /ns/a SUBS.MIN.HISTORY 1", "PUT /ns/a last")
    assert world.client().ask(f"SUBSCRIBE /ns/a FROM {seen}") == [f"-HISTORY_LOST {world.lsn}"]


def test_durable(world: World) -> None:
    world.one.say("HELLO 3")
    (subscribed,) = world.one.ask("SUBSCRIBE /ns/a DURABLE mine")
    assert subscribed == [">", "subscribe", "/ns/a", 1]
    assert world.one.resp.sessions
    first = world.lsn
    world.other.say("PUT /ns/a 1", "PUT /ns/a 2")
    assert world.one.ask(f"SUBACK mine {first + 1}")[0] == "+OK"
    world.one.ask()
    world.one.say("UNSUBSCRIBE")
    assert world.one.ask("SUBACK other 3 NAMESPACE /ns")[0].startswith("-ERROR_DOES_NOT_EXISTS")
    subscribed, *messages = world.one.ask("SUBSCRIBE /ns/a DURABLE mine")
    assert [lsn for _, _, lsn in told(messages)] == [first + 2]


def test_on_a_backup(world: World) -> None:
    world.backend.leads = False
    (refused,) = world.one.ask("SUBSCRIBE /ns/a")
    assert refused == "-NOTPRIMARY 0 3:7 127.0.0.1:7379"
    world.backend.leads = True
    world.other.say("SUBSCRIBE /ns/a", "UNSUBSCRIBE")
    world.backend.leads = False
    assert world.one.ask("SEEN 3:7:4 SUBSCRIBE /ns/a")[0] == ["subscribe", "/ns/a", 1]
    assert world.backend.asked[-1][3] == 4
    assert world.one.ask("SEEN 3:7:4 SUBSCRIBE /ns/a FROM 5") == ["-HISTORY_LOST 3"]
    assert world.backend.asked[-1][3] == 5, "a member that is behind has to say so"
    assert world.other.ask("SUBSCRIBE /ns/a DURABLE x")[0].startswith("-NOTPRIMARY")


def test_another_connection_has_the_session(world: World) -> None:
    attached: dict[tuple[int, int], Any] = {}
    one, two = (
        Client(world.backend, attached=attached, vocabulary=GROUP_COMMANDS) for _ in range(2)
    )
    _, client_id, _, secret, *_ = one.ask("SESSION OPEN")[0]
    two.say(f"SESSION RESUME {client_id} {secret}")
    assert one.ask("SUBSCRIBE /ns/a")[0].startswith("-SESSIONMOVED")


# ---- slow, denied, gone


def test_messages_wait_where_they_are_bounded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "OUT_BYTES_MAX", 2000)
    world.one.say("HELLO 3", "SUBSCRIBE /ns/a")
    resp = world.one.resp
    for number in range(100):
        world.other.say(f"PUT /ns/a {number}")
    last = world.lsn
    assert resp.waiting_bytes > 7000
    found = told(world.one.drained(3500))
    assert [lsn for _, _, lsn in found] == list(range(last - 99, last + 1))
    assert resp.waiting_bytes == 0


def test_who_does_not_read_is_told_where_to_resume(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audience_module, "QUEUED_MAX", QUEUED_MAX)
    world.one.say("HELLO 3", "SUBSCRIBE /ns/a")
    first = world.lsn
    for number in range(QUEUED_MAX + 5):
        world.other.say(f"PUT /ns/a {number}")
    found = told(world.one.ask())
    assert found[-1] == ("/ns/a", "overrun", first + QUEUED_MAX)
    assert [lsn for _, _, lsn in found[:-1]] == list(range(first + 1, first + QUEUED_MAX + 1))
    assert world.state.audience.is_empty


def test_progress(world: World) -> None:
    world.one.say("HELLO 3", "SUBSCRIBE /ns/a")
    world.other.say("CREATE BINARY /ns/b")
    for now_ms in (0.0, PROGRESS_MS - 1, PROGRESS_MS):
        world.backend.tick(now_ms)
    assert told(world.one.ask()) == [("/ns/a", "progress", world.lsn)]


def test_a_state_from_a_snapshot_ends_it(world: World) -> None:
    world.one.say("HELLO 3", "SUBSCRIBE /ns/a")
    last = world.lsn
    world.state.audience.skip()
    assert told(world.one.ask()) == [("/ns/a", "overrun", last)]


def test_the_end_of_a_connection_ends_its_subscriptions(world: World) -> None:
    world.one.say("SUBSCRIBE /ns/a /ns")
    assert not world.state.audience.is_empty
    world.one.resp.close()
    assert world.state.audience.is_empty
    world.other.say("PUT /ns/a x")
    assert world.one.heard() == ""
    late = world.client()
    world.backend.holds = True
    late.say("SUBSCRIBE /ns/a")
    late.resp.close()
    world.backend.release(0)
    assert world.state.audience.is_empty


USERS = {
    b"root": Principal("root", is_admin=True),
    b"ann": Principal("ann", is_admin=False),
    b"bob": Principal("bob", is_admin=False),
}


def test_who_may_not_read_hears_nothing() -> None:
    world = World(FakeGuard(bearers=USERS))
    world.other.say("AUTH TOKEN root", "CREATENAMESPACE /ns", "ACL SET /ns MODE 700")
    world.other.say("ACL SET /ns ENTRY user:ann:r--")
    assert world.one.ask("SUBSCRIBE /ns")[0].startswith("-NOAUTH")
    world.one.say("HELLO 3 AUTH TOKEN ann")
    world.one.say("AUTH TOKEN ann")
    assert world.one.ask("SUBSCRIBE /ns")[0] == [">", "subscribe", "/ns", 1]
    world.other.say("ACL SET /ns ENTRY user:ann:---")
    assert [op for _, op, _ in told(world.one.ask())][-1] == "denied"
    assert world.one.ask("SUBSCRIBE /ns")[0].startswith("-NOPERM")
    world.other.say("ACL SET /ns ENTRY user:ann:r--")
    assert world.one.ask("SUBSCRIBE /ns")[0][1] == "subscribe"
    world.one.resp.log_in(USERS[b"bob"])
    assert told(world.one.ask()) == [("/ns", "denied", world.lsn)]


def test_nobody_hears_nothing() -> None:
    """A token's time is over; nobody is no user without bounds."""
    world = World(FakeGuard(bearers=USERS))
    world.other.say("AUTH TOKEN root", "CREATENAMESPACE /ns")
    world.one.say("HELLO 3")
    world.one.say("AUTH TOKEN root", "SUBSCRIBE /ns")
    world.one.resp.log_in(None)
    assert [op for _, op, _ in told(world.one.ask())] == ["denied"]
    world.one.say("AUTH TOKEN root")
    world.backend.holds = True
    world.one.say("SUBSCRIBE /ns")
    world.one.resp.log_in(None)
    world.backend.release(0)
    assert world.one.ask()[0].startswith("-NOAUTH")
    assert world.state.audience.is_empty


# ---- notices


@pytest.fixture
def waiting() -> World:
    """One waits for a lock that the other has; the primary's notices reach who waits."""
    world = World()
    attached: dict[tuple[int, int], Any] = {}
    world.one.resp.attached = world.other.resp.attached = attached

    def notify(notice: Notice) -> None:
        attached[0, notice.session].listener.notify(0, notice)

    world.state.audience.on_notice = notify
    world.other.say("LOCK /ns/a")
    assert world.one.ask("LOCK /ns/a") == ["+PENDING"]
    return world


def test_a_notice_is_a_push(waiting: World) -> None:
    waiting.one.say("HELLO 3")
    waiting.other.say("LOCK RELEASE /ns/a")
    assert waiting.one.ask() == [[">", "retry", "/ns/a", "LOCK"]]
    assert waiting.one.ask("NOTIFY NEXT", "LOCK /ns/a") == [None, "+OK"]


def test_the_next_notice(waiting: World) -> None:
    assert waiting.one.ask("NOTIFY NEXT") == [None]
    waiting.other.say("LOCK RELEASE /ns/a")
    assert waiting.one.ask("NOTIFY NEXT NAMESPACE /ns") == [["retry", "/ns/a", "LOCK"]]
    assert waiting.one.ask("NOTIFY NEXT") == [None]


def test_the_next_notice_is_waited_for(waiting: World) -> None:
    assert waiting.one.ask("NOTIFY NEXT BLOCK 20", "NOTIFY NEXT BLOCK 900000") == []
    (short, over), (long, _) = waiting.one.timers
    assert (short, long) == (20, 10_000 // 3)
    over()
    assert waiting.one.ask() == [None]
    waiting.other.say("LOCK RELEASE /ns/a")
    assert waiting.one.ask() == [["retry", "/ns/a", "LOCK"]]
    for _, over in waiting.one.timers:
        over()
    assert waiting.one.ask() == []


def test_notices_are_bounded_and_go_with_the_session(waiting: World) -> None:
    listener = waiting.one.resp.listener
    for number in range(NOTICES_MAX + 2):
        listener.notify(0, Notice(1, b"/%d" % number, b"LOCK"))
    assert waiting.one.ask("NOTIFY NEXT") == [["retry", "/2", "LOCK"]]
    waiting.one.say("SESSION CLOSE")
    assert listener.next_notice(0) is None
    listener.notify(0, Notice(1, b"/" * (NOTICE_PATH_BYTES_MAX + 1), b"LOCK"))
    assert listener.next_notice(0) is None
    assert waiting.one.ask("NOTIFY NEXT")[0].startswith("-SESSIONEXPIRED")
    assert waiting.one.ask("NOTIFY")[0].startswith("-BADARG")


def test_notices_come_from_the_primary_only(waiting: World) -> None:
    waiting.backend.code = Code.NOTPRIMARY
    assert waiting.one.ask("NOTIFY NEXT BLOCK 1000")[0].startswith("-NOTPRIMARY 0 3:7 ")
    waiting.backend.code = Code.OK
    assert not waiting.one.timers


def test_who_waits_for_a_notice_is_answered_when_the_session_ends(waiting: World) -> None:
    assert waiting.one.ask("NOTIFY NEXT BLOCK 1000") == []
    assert waiting.one.ask("SESSION CLOSE") == [None, "+OK"]
    ((_, over),) = waiting.one.timers
    over()
    assert waiting.one.ask() == []
    assert waiting.one.ask("NOTIFY NEXT")[0].startswith("-SESSIONEXPIRED")
    waiting.one.say("SESSION OPEN")
    assert waiting.one.ask("NOTIFY NEXT BLOCK 1000") == []
    waiting.one.resp.close()
    assert waiting.one.ask() == []
