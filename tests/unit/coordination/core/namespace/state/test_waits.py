"""Waits: their requests, their order, and what ends them."""

from __future__ import annotations

import pytest

from millstream.coordination.core.namespace.refused import Refused
from millstream.coordination.core.namespace.state.claims import Mode
from millstream.coordination.core.namespace.state.run import Asker
from millstream.coordination.core.namespace.state.state import Job
from millstream.coordination.core.namespace.state.waits import OPEN_MAX, PENDING, Wait
from millstream.vsr.core.versions import Version
from simulators.namespace_clients import Client, Group


@pytest.fixture
def group() -> Group:
    made = Group()
    made.do("CREATENAMESPACE", "/n", session=0)
    return made


def job(group: Group, csn: int, lsn: int = 50) -> Job:
    return Job(group.machine.state, Asker(1, csn), Version(1, 1, lsn), 0)


def test_a_wait_keeps_its_first_and_its_newest_request(group: Group) -> None:
    waits = group.machine.state.synchronisation.waits
    wait = Wait(Mode.WRITE, 1, b"client", (1,), data=b"data")
    runs = [job(group, csn) for csn in (3, 4, 5)]
    assert waits.begin(runs[0], wait, token=True) == PENDING
    (name,) = waits.names_of(1)
    for run in runs[1:]:
        assert waits.join(run, name) == PENDING
    assert [answer[1:] for run in runs for answer in run.answers] == [(4, PENDING)]
    assert waits.there(name).csns == ((3, True), (5, False))
    assert [waits.opened(1, csn) for csn in (3, 4, 5)] == [name, None, name]
    group.again()
    kept = group.machine.state.synchronisation.waits
    assert kept.there(name) == wait._replace(csns=((3, True), (5, False)))


def test_requests_of_one_session_that_wait_are_bounded(group: Group) -> None:
    waits = group.machine.state.synchronisation.waits
    for number in range(OPEN_MAX):
        waits.begin(job(group, number, number), Wait(Mode.ITEM, 1, b"", (1,)))
    with pytest.raises(Refused, match="QUOTA"):
        waits.begin(job(group, 999, 999), Wait(Mode.ITEM, 1, b"", (1,)))
    with pytest.raises(Refused, match="QUOTA"):
        waits.join(job(group, 1000), waits.names_of(1)[0])


def test_a_transaction_does_not_wait(group: Group) -> None:
    run = job(group, 1)
    run.is_in_transaction = True
    with pytest.raises(Refused, match="WOULDBLOCK"):
        group.machine.state.synchronisation.waits.begin(run, Wait(Mode.WRITE, 1, b"", (1,)))


def test_items_are_told_of_one_by_one(group: Group) -> None:
    group.do("CREATE", "QUEUE", "/n/q", session=0)
    one, two, three = (Client(group, n) for n in (1, 2, 3))
    for client in (one, two, three, one):
        assert client.do("QUEUE", "WAIT", "/n/q") == PENDING
    one.do("QUEUE", "PUSH", "/n/q", "item")
    assert group.retried == [(1, b"/n/q", b"QUEUE WAIT")]
    assert one.do("QUEUE", "WAIT", "/n/q") == b"+OK"
    assert one.final(1) == b"+OK"
    assert [notice[0] for notice in group.retried] == [1, 2]  # one has not taken it so far
    group.lapse("/n/q", 2, group.lsn)
    assert [notice[0] for notice in group.retried] == [1, 2, 3]
    assert two.do("QUEUE", "WAIT", "/n/q") == b"+OK"  # it is for whoever is quicker
    two.do("QUEUE", "POP", "/n/q")
    assert three.repeat(1) == PENDING
    assert three.do("QUEUE", "WAIT", "/n/q") == PENDING
    one.do("QUEUE", "PUSH", "/n/q", "item")
    assert three.repeat(2) == b"+OK"
    assert three.final(1) == b"+OK"
