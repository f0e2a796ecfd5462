"""Requests that wait, in a group: PENDING is no final reply, and who comes gets its offer."""

from __future__ import annotations

from functools import partial

import pytest

from millstream.coordination.core.group_state import GroupState
from millstream.vsr.core.client_table import WINDOW_MAX
from millstream.vsr.core.effects import Code, Reply, Request, Resume
from millstream.vsr.core.entries import Body, Kind
from millstream.vsr.core.messages import QuorumCheckOk
from millstream.vsr.core.snapshots import Pieces
from support.coordination.coordination_group import Group

ME = b"i" * 16
PENDING = b"+PENDING"


class Clients:
    """Sessions of a group of three, whose requests are numbered by the tests."""

    def __init__(self) -> None:
        self.group = Group(3, machine=GroupState)
        self.tickets = 0
        self.ask(Body(argv=(b"0", b"CREATENAMESPACE", b"/n")))
        for name in (b"/n/a", b"/n/b"):
            self.ask(Body(argv=(b"0", b"CREATE", b"BINARY", name)))

    def ask(self, body: Body, **of_request: object) -> Reply | None:
        """Have a request answered; None if it is not."""
        self.tickets += 1
        request = partial(Request, self.tickets, body, **of_request)  # type: ignore[arg-type]
        self.group.step(self.group.leader, request())
        self.group.settle()
        return self.group.replies.get(self.tickets)

    def open(self) -> int:
        reply = self.ask(Body(argv=(b"10000", b"s")), instance=ME, kind=Kind.SESSION_OPEN)
        assert reply is not None
        return int(reply.value)

    def do(self, session: int, csn: int, *words: bytes) -> bytes:
        reply = self.ask(Body(argv=(b"0", *words)), instance=ME, session=session, csn=csn)
        assert reply is not None
        assert reply.code is Code.OK, reply
        return reply.value

    @property
    def op_lsn(self) -> int:
        return self.group.replicas[self.group.leader].log.op_lsn

    def digest(self, number: int) -> bytes:
        return b"".join(self.group.replicas[number].parts.execution.freeze())


@pytest.fixture
def clients() -> Clients:
    return Clients()


def test_a_waiting_request_is_answered_like_a_read(clients: Clients) -> None:
    one, two = clients.open(), clients.open()
    assert clients.do(one, 1, b"LOCK", b"/n/a") == b"+OK"
    assert clients.do(two, 1, b"LOCK", b"/n/a") == PENDING
    logged, sent = clients.op_lsn, len(clients.group.sent)
    assert clients.do(two, 1, b"LOCK", b"/n/a") == PENDING
    assert clients.op_lsn == logged
    asked = [envelope.payload for _, _, envelope in clients.group.sent[sent:]]
    assert any(isinstance(payload, QuorumCheckOk) for payload in asked)


def test_who_comes_for_its_offer_has_it_and_all_its_requests_end(clients: Clients) -> None:
    one, two = clients.open(), clients.open()
    clients.do(one, 1, b"LOCK", b"/n/a")
    for csn in (1, 2, 3):
        assert clients.do(two, csn, b"LOCK", b"/n/a") == PENDING
    clients.do(one, 2, b"LOCK", b"RELEASE", b"/n/a")
    logged = clients.op_lsn
    assert clients.do(two, 3, b"LOCK", b"/n/a") == b"+OK"
    assert clients.op_lsn == logged + 1
    claimed = clients.group.replicas[0].log.entry_at(logged + 1)
    assert claimed is not None
    assert claimed.header.claim
    finals = [clients.do(two, csn, b"LOCK", b"/n/a") for csn in (1, 2, 3)]
    assert finals == [b"+OK", PENDING, b"+OK"]
    assert clients.op_lsn == logged + 1
    clients.group.tick()
    assert len({clients.digest(number) for number in range(3)}) == 1


def test_what_waits_is_known_however_many_requests_follow(clients: Clients) -> None:
    one, two = clients.open(), clients.open()
    clients.do(one, 1, b"LOCK", b"/n/a")
    clients.do(two, 1, b"LOCK", b"/n/a")
    for csn in range(2, WINDOW_MAX + 20):
        clients.do(two, csn, b"PUT", b"/n/b", b"x")
    assert clients.do(two, 1, b"LOCK", b"/n/a") == PENDING
    clients.do(one, 2, b"LOCK", b"RELEASE", b"/n/a")
    assert clients.do(two, 1, b"LOCK", b"/n/a") == b"+OK"


def test_another_command_under_the_number_of_a_wait_does_nothing(clients: Clients) -> None:
    one, two = clients.open(), clients.open()
    clients.do(one, 1, b"LOCK", b"/n/a")
    clients.do(two, 1, b"LOCK", b"/n/a")
    assert clients.do(two, 1, b"PUT", b"/n/b", b"x") == PENDING
    clients.do(one, 2, b"LOCK", b"RELEASE", b"/n/a")
    reply = clients.ask(Body(argv=(b"SET", b"k", b"v")), instance=ME, session=two, csn=1)
    assert reply is not None
    assert reply.value == b"+OK"  # of the lock
    for replica in clients.group.replicas:
        assert isinstance(replica.machine, GroupState)
        assert len(replica.machine.registers.values) == 0


def test_the_highest_number_is_that_of_a_wait_too(clients: Clients) -> None:
    one, two = clients.open(), clients.open()
    clients.do(one, 1, b"LOCK", b"/n/a")
    clients.do(two, 7, b"LOCK", b"/n/a")
    clients.tickets += 1
    clients.group.step(clients.group.leader, Resume(clients.tickets, ME, two, b"s"))
    clients.group.settle()
    assert clients.group.replies[clients.tickets].value == b"10000 7"


def test_an_offer_that_nobody_comes_for_goes_to_the_next(clients: Clients) -> None:
    one, two, three = clients.open(), clients.open(), clients.open()
    for session in (one, two, three):
        clients.do(session, 1, b"LOCK", b"/n/a")
    clients.do(one, 2, b"LOCK", b"RELEASE", b"/n/a")
    logged = clients.op_lsn
    for beat in range(110):
        clients.group.tick()
        for session in (one, two, three):  # all live
            clients.do(session, 100 + beat, b"PUT", b"/n/b", b"x")
    entries = [
        clients.group.replicas[0].log.entry_at(n) for n in range(logged + 1, clients.op_lsn)
    ]
    ticks = [entry for entry in entries if entry is not None and entry.header.kind is Kind.TICK]
    assert ticks[0].content.argv == (b"/n/a", b"%d" % two, b"%d" % logged)
    assert clients.do(two, 500, b"LOCK", b"/n/a") == PENDING
    assert clients.do(three, 500, b"LOCK", b"/n/a") == b"+OK"


def test_a_new_primary_counts_offers_anew(clients: Clients) -> None:
    one, two = clients.open(), clients.open()
    for session in (one, two):
        clients.do(session, 1, b"LOCK", b"/n/a")
    clients.do(one, 2, b"LOCK", b"RELEASE", b"/n/a")

    def beat(times: int) -> None:
        for _ in range(times):
            clients.group.tick()
            clients.do(two, 1_000 + clients.tickets, b"PUT", b"/n/b", b"x")

    beat(60)
    before = clients.group.leader
    clients.group.without(before)
    others = [number for number in range(3) if number != before]
    while clients.group.leader == before:
        clients.group.tick(*others)
    clients.group.whole()
    beat(60)
    assert clients.do(two, 1, b"LOCK", b"/n/a") == b"+OK"


def test_waits_outlive_a_snapshot(clients: Clients) -> None:
    one, two = clients.open(), clients.open()
    for session in (one, two):
        clients.do(session, 1, b"LOCK", b"/n/a")
    state = clients.digest(clients.group.leader)
    other = Group(1, machine=GroupState).replicas[0]
    for _ in other.parts.execution.restore(Pieces([state])):
        pass
    assert b"".join(other.parts.execution.freeze()) == state
    assert other.parts.execution.judge(ME, two, 1).value == PENDING
