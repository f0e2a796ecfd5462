"""Waits: their requests, their order, and what ends them."""

from __future__ import annotations

import pytest

from millstream.coordination.core.namespace.claims import Mode
from millstream.coordination.core.namespace.refused import Refused
from millstream.coordination.core.namespace.run import Asker
from millstream.coordination.core.namespace.state import Job
from millstream.coordination.core.namespace.waits import OPEN_MAX, PENDING, Wait
from millstream.coordination.core.versions import Version
from namespace_clients import Client, Group, word


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
    """A queue calls `queue_wait`, and `free` when there are items."""
    sync = group.machine.state.synchronisation
    group.do("CREATE", "BINARY", "/n/q", session=0)
    element = group.machine.state.elements.at((b"n", b"q"))
    clients = [Client(group, n) for n in (1, 2, 3)]
    ready = 0
    sync.ready = lambda number: ready if number == element else 0

    def wait(client: Client) -> bytes:
        client.csn += 1
        group.lsn += 1
        asker = Asker(client.session, client.csn)
        group.last = Job(group.machine.state, asker, Version(1, 2, group.lsn), 0)
        return sync.queue_wait(group.last, element)

    assert [wait(client) for client in clients] == [PENDING] * 3
    assert wait(clients[0]) == PENDING
    ready = 1
    sync.waits.free(element)
    group.lapse()
    assert group.retried == [(1, b"/n/q", b"QUEUE WAIT")]
    assert wait(clients[0]) == b"+OK"
    group.lapse()
    assert [notice[0] for notice in group.retried] == [1, 2]
    group.lapse("/n/q", 2, group.lsn)
    assert [notice[0] for notice in group.retried] == [1, 2, 3]
    assert wait(clients[1]) == b"+OK"  # there is one, for whoever is quicker
    assert word(clients[2].group.read("LOCK", "INFO", "/n/q")) == ""
