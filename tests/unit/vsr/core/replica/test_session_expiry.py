"""A session ends by an entry, after its client was silent for its whole time."""

import pytest

from millstream.coordination.core.group_state import GroupState
from millstream.vsr.core.client_table import ClientTable
from millstream.vsr.core.effects import Code, Message, Read, Request, Resume, Timer, Touch
from millstream.vsr.core.entries import GENESIS, Body, Kind
from millstream.vsr.core.messages import GetState
from millstream.vsr.core.replica import session_expiry as sessions
from millstream.vsr.core.replica.session_expiry import Silence
from support.coordination.coordination_group import Group

ME = b"i" * 16


def opened(group: Group, *arguments: bytes, ticket: int = 900) -> int:
    group.step(group.leader, Request(ticket, Body(argv=arguments), ME, kind=Kind.SESSION_OPEN))
    group.settle()
    return int(group.replies[ticket].value)


def lives(group: Group, session: int) -> bool:
    return session in group.replicas[group.leader].table


def test_a_silent_client_loses_its_session_on_every_member() -> None:
    group = Group(3)
    session = opened(group, b"1000")
    group.tick(times=9)
    assert lives(group, session)
    group.tick(times=3)
    assert not any(session in replica.table for replica in group.replicas)
    group.step(group.leader, Request(1, Body(argv=(b"SET", b"k", b"v")), ME, session, 1))
    group.settle()
    assert group.replies[1].code is Code.SESSIONEXPIRED


def test_who_does_not_know_the_secret_keeps_no_session() -> None:
    group = Group(3)
    session = opened(group, b"1000", b"s")
    for ticket in range(6):
        group.tick(times=2)
        group.step(group.leader, Resume(ticket, ME, session, b"another"))
        group.settle()
    assert group.replies[0].code is Code.NOPERM
    assert not lives(group, session)


def test_any_sign_of_life_keeps_a_session() -> None:
    group = Group(3)
    session = opened(group, b"1000", b"s")
    for ticket, event in enumerate([
        Touch(session),
        Read(1, Body(argv=(b"GET", b"k")), session=session),
        Request(2, Body(argv=(b"SET", b"k", b"v")), ME, session, 1),
        Resume(3, ME, session, b"s"),
    ]):  # fmt: skip
        group.tick(times=9)
        assert lives(group, session), ticket
        group.step(group.leader, event)
    group.tick(times=9)
    assert lives(group, session)


def test_a_pause_of_the_primary_is_nobodys_silence() -> None:
    group = Group(3)
    session = opened(group, b"1000")
    leader = group.leader
    group.tick(times=5)
    group.now += 400
    for number in range(3):
        group.step(number, Timer())
        group.settle()
    group.tick(times=2)
    assert group.leader == leader
    assert lives(group, session)


def test_a_new_primary_gives_every_session_its_full_time() -> None:
    group = Group(3)
    session = opened(group, b"1500")
    old = group.leader
    rest = [number for number in range(3) if number != old]
    group.tick(times=13)
    group.without(old)
    while group.leader == old:
        group.tick(*rest)
    group.tick(*rest, times=13)
    assert lives(group, session)
    group.tick(*rest, times=4)
    assert not lives(group, session)


def test_without_a_quorum_no_time_passes() -> None:
    group = Group(3)
    session = opened(group, b"1000")
    leader = group.leader
    group.without(leader)
    group.tick(leader, times=30)
    assert group.replicas[leader].log.last is not None
    assert group.replicas[leader].log.last.kind is Kind.SESSION_OPEN
    assert session in group.replicas[leader].table


def test_no_time_passes_while_a_quorum_is_only_fetching() -> None:
    group = Group(3)
    session = opened(group, b"1000", b"s")
    leader = group.leader
    fetching = group.replicas[(leader + 1) % 3]
    group.passes = lambda sender, receiver, envelope: False
    asked = Message(fetching.state.sealed(GetState(0, GENESIS.hash)))
    for ticket in range(40):  # a client that gets no answer, nor can have one
        group.step(leader, asked, Resume(ticket, ME, session, b"s"))
        group.tick(leader)
    assert group.replicas[leader].state.is_short
    assert not group.replicas[leader].suspended
    group.whole()
    group.tick(times=5)
    assert lives(group, session)


def test_a_client_goes_on_with_its_session_and_its_secret() -> None:
    group = Group(3)
    session = opened(group, b"3000", b"secret")
    group.step(group.leader, Request(1, Body(argv=(b"SET", b"k", b"v")), ME, session, 7))
    group.step(group.leader, Resume(2, ME, session, b"secret"))
    assert 2 not in group.replies
    group.settle()
    assert group.replies[2][1:3] == (Code.OK, b"3000 7")
    group.step(group.leader, Resume(3, ME, session, b"another"))
    group.step(group.leader, Resume(4, b"o" * 16, session, b"secret"))
    group.settle()
    assert group.replies[3].code is Code.NOPERM
    assert group.replies[4].code is Code.SESSIONEXPIRED


def test_what_is_no_time_out_is_the_longest_there_is() -> None:
    table = ClientTable()
    for session, asked in enumerate((b"", b"x", b"1", b"700", b"99999", b"9" * 5000), 1):
        assert table.open(session, ME, asked)
    times = [table.time_out_ms(session) for session in table]
    assert times == [10_000, 10_000, 500, 700, 10_000, 10_000]


def test_only_its_owner_closes_a_session() -> None:
    group = Group(1)
    session = opened(group)
    for ticket, instance in ((1, b"o" * 16), (2, ME)):
        group.step(0, Request(ticket, instance=instance, session=session, kind=Kind.SESSION_CLOSE))
    assert [group.replies[ticket].code for ticket in (1, 2)] == [Code.SESSIONEXPIRED, Code.OK]
    assert not lives(group, session)


def test_many_sessions_are_looked_at_in_turns(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(sessions, "SWEEP_MAX", 10)
    monkeypatch.setattr(sessions, "EXPIRED_MAX", 4)
    table, silence, found = ClientTable(), Silence(), list[int]()
    for session in range(1, 26):
        table.open(session, ME, b"500")
    for beat in range(1, 13):
        silence.pass_time(beat * 100.0, works=True)
        silence.hear(25, beat * 100.0)
        found += silence.silent(table, table.time_out_ms, lambda _: 0)
    assert len(found) == len(set(found))
    for beat in range(13, 40):
        silence.pass_time(beat * 100.0, works=True)
        silence.hear(25, beat * 100.0)
        found += silence.silent(table, table.time_out_ms, lambda _: 0)
    assert sorted(found) == list(range(1, 25))


def test_one_entry_ends_no_more_than_can_be_ended_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "EXPIRED_WEIGHT_MAX", 10)
    weights = {1: 4, 2: 6, 3: 1, 4: 11, 5: 0, 6: 10}
    table, silence, found = ClientTable(), Silence(), list[list[int]]()
    for session in weights:
        table.open(session, ME, b"500")
    for beat in range(1, 12):
        silence.pass_time(beat * 100.0, works=True)
        found.append(silence.silent(table, table.time_out_ms, weights.__getitem__))
    assert [each for each in found if each] == [[1, 2], [3], [4], [5, 6]]


def test_a_primary_shows_its_sessions_and_how_long_they_were_silent() -> None:
    group = Group(3)
    first, second = opened(group, b"1000"), opened(group, b"9999", ticket=901)
    group.tick(times=2)
    leader = group.replicas[group.leader]
    group.step(group.leader, Touch(second))
    shown = leader.sessions_after(0)
    assert [one[:4] for one in shown] == [(first, ME, 1000, 0), (second, ME, 9999, 0)]
    assert shown[0].silent_ms > shown[1].silent_ms
    assert leader.sessions_after(first) == shown[1:]
    group.step(group.leader, Request(1, Body(argv=(b"SET", b"k", b"v")), ME, first, 7))
    group.settle()
    assert leader.sessions_after(0)[0].highest == 7


def test_so_many_sessions_are_shown_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "LIST_MAX", 2)
    group = Group(1)
    numbers = [opened(group, ticket=900 + number) for number in range(3)]
    leader = group.replicas[group.leader]
    assert [one.number for one in leader.sessions_after(0)] == numbers[:2]
    assert [one.number for one in leader.sessions_after(numbers[1])] == numbers[2:]


HEARTBEAT = b"NAMESPACE.SESSION.HEARTBEAT.DURATION"


def locked(*arguments: bytes, duration: bytes) -> tuple[Group, int]:
    """Return a group with a session that holds a lock below what has this time-out."""
    group = Group(3, machine=GroupState)
    session = opened(group, *arguments)
    for csn, words in enumerate((
        b"CREATENAMESPACE /ns", b"CREATE BINARY /ns/a", b"CREATE BINARY /ns/a/b",
        b"CONFIG SET /ns/a %b %b" % (HEARTBEAT, duration), b"LOCK WRITE /ns/a/b",
    ), 1):  # fmt: skip
        argv = (b"1000", *words.split())
        group.step(group.leader, Request(csn, Body(argv=argv), ME, session, csn))
        group.settle()
        assert not group.replies[csn].value.startswith(b"-"), group.replies[csn]
    return group, session


@pytest.mark.parametrize(
    ("arguments", "duration", "beats"),
    [
        ((b"10000", b"s"), b"1000", 10),
        ((b"10000", b"s"), b"12000", 120),
        ((b"2000", b"s"), b"12000", 20),
        ((b"2000", b"s"), b"1000", 10),
    ],
)
def test_what_is_set_for_what_a_session_holds_is_its_time(
    arguments: tuple[bytes, ...], duration: bytes, beats: int
) -> None:
    group, session = locked(*arguments, duration=duration)
    assert [one.time_out_ms for one in group.replicas[group.leader].sessions_after(0)] == [
        beats * 100
    ]
    group.step(group.leader, Resume(99, ME, session, b"s"))
    group.settle()
    assert group.replies[99].value == b"%d 5" % (beats * 100), "it is told"
    group.tick(times=beats - 1)
    assert lives(group, session)
    group.tick(times=3)
    assert not lives(group, session)
    assert not any(session in replica.table for replica in group.replicas)


def test_a_time_that_is_set_while_a_session_is_silent_counts_within_a_second() -> None:
    group, session = locked(duration=b"9000")
    other = opened(group, ticket=901)
    group.tick(times=20)
    words = (b"1000", b"CONFIG", b"SET", b"/ns/a", HEARTBEAT, b"1000")
    group.step(group.leader, Request(50, Body(argv=words), ME, other, 1))
    group.settle()
    group.tick(times=12)
    assert not lives(group, session)
    assert lives(group, other)


class Line:
    """Sessions that hold and await one lock; beats are heartbeats of 100 ms."""

    def __init__(self, *times_ms: int, size: int = 3) -> None:
        self.group = Group(size, machine=GroupState)
        self.sessions = [
            opened(self.group, b"%d" % time_ms, ticket=900 + number)
            for number, time_ms in enumerate(times_ms)
        ]
        self.csns = dict.fromkeys(self.sessions, 0)
        self.replies: dict[tuple[int, int], int] = {}
        self.tickets = iter(range(1, 100_000))
        self.alive = set(self.sessions)
        self.say(0, b"CREATENAMESPACE /ns")
        self.say(0, b"CREATE BINARY /ns/a")
        self.say(0, b"CREATE BINARY /ns/b")

    def say(self, number: int, words: bytes) -> bytes:
        session, ticket = self.sessions[number], next(self.tickets)
        self.csns[session] += 1
        body = Body(argv=(b"1000", *words.split()))
        request = Request(ticket, body, ME, session, self.csns[session])
        self.group.step(self.group.leader, request)
        self.group.settle()
        return self.group.replies[ticket].value

    def beat(self) -> None:
        self.group.tick()
        for session in self.alive:
            self.group.step(self.group.leader, Touch(session))

    def beats_until_held(self, number: int, words: bytes = b"LOCK /ns/a") -> int:
        """Have it come for the lock after each beat, as a client that is told to."""
        session = self.sessions[number]
        for beats in range(400):
            sync = self.group.replicas[self.group.leader].machine.state.synchronisation
            names = sync.waits.names_of(session)
            if any(sync.waits.there(name).offer for name in names):
                self.say(number, words)
            if any(sync.claims.held_by(session, one) for one in sync.claims.elements_of(session)):
                return beats
            self.beat()
        raise AssertionError("it is never offered")


def waiting_line(*times_ms: int) -> Line:
    """The first session holds the lock; the others wait for it, in order."""
    line = Line(*times_ms)
    assert not line.say(0, b"LOCK /ns/a").startswith(b"-")
    for number in range(1, len(times_ms)):
        assert line.say(number, b"LOCK /ns/a") == b"+PENDING"
    line.beat()
    return line


SLACK = 3
"""Beats until an entry is made and committed, at each of several steps."""


def test_a_holder_and_a_first_waiter_that_crash_together_cost_one_session_time() -> None:
    line = waiting_line(1000, 1000, 1000, 1000)
    line.alive -= set(line.sessions[:2])
    assert 10 <= line.beats_until_held(2) <= 10 + SLACK


def test_a_crashed_first_waiter_costs_its_session_time_at_most_once() -> None:
    line = waiting_line(1000, 2000, 1000, 1000)
    line.alive.discard(line.sessions[1])
    for _ in range(5):
        line.beat()
    assert line.say(0, b"LOCK RELEASE /ns/a") == b"+OK"
    assert line.beats_until_held(2) <= 20 - 5 + SLACK
    assert line.say(2, b"LOCK RELEASE /ns/a") == b"+OK"
    assert line.beats_until_held(3) <= 1, "who comes next pays nothing for it"


def test_waiters_that_crash_one_after_the_other_cost_the_longest_of_their_times() -> None:
    line = waiting_line(1000, 1000, 1500, 1000)
    line.alive.discard(line.sessions[0])
    for _ in range(5):
        line.beat()
    line.alive -= set(line.sessions[1:3])
    assert line.beats_until_held(3) <= 15 + 2 * SLACK


def test_a_first_waiter_that_hangs_and_shows_life_costs_its_session_time_once() -> None:
    """Its connection lives; nobody comes for what it is offered."""
    line = waiting_line(1000, 1000, 1000, 1000)
    assert line.say(0, b"LOCK RELEASE /ns/a") == b"+OK"
    assert line.beats_until_held(2) <= 10 + SLACK
    assert line.say(2, b"LOCK RELEASE /ns/a") == b"+OK"
    assert line.beats_until_held(3) <= 1


def test_a_first_waiter_that_hangs_costs_its_time_once_however_often_it_waits() -> None:
    line = Line(1000, 1000, 1000)
    line.say(0, b"LOCK /ns/a")
    for words in (b"LOCK READ /ns/a", b"LOCK /ns/a", b"LOCK GROUP /ns/a /ns/b"):
        assert b"PENDING" in line.say(1, words)
    assert line.say(2, b"LOCK /ns/a") == b"+PENDING"
    assert line.say(0, b"LOCK RELEASE /ns/a") == b"+OK"
    assert line.beats_until_held(2) <= 10 + SLACK


def test_offers_that_nobody_comes_for_cost_their_time_once_however_many_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sessions, "ENDED_MAX", 2)
    line = Line(*[1000] * 8)
    for number in range(7):
        line.say(0, b"CREATE BINARY /ns/%d" % number)
        line.say(0, b"LOCK /ns/%d" % number)
        assert line.say(number + 1, b"LOCK /ns/%d" % number) == b"+PENDING"
    for number in range(7):
        line.say(0, b"LOCK RELEASE /ns/%d" % number)
    for _ in range(10 + 3 * SLACK):
        line.beat()
    sync = line.group.replicas[line.group.leader].machine.state.synchronisation
    assert not list(sync.waits.offers())
