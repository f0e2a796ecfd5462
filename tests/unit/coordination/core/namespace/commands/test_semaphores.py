"""SEMAPHORE, as the reference has it."""

from __future__ import annotations

import pytest

from millstream.vsr.core.values import items
from simulators.namespace_clients import Client, Group, word

PATH = "/ns/s"


@pytest.fixture
def group() -> Group:
    made = Group()
    made.do("CREATENAMESPACE", "/ns", session=0)
    made.do("CREATE", "BINARY", PATH, session=0)
    return made


@pytest.fixture
def clients(group: Group) -> list[Client]:
    return [Client(group, number) for number in range(10, 16)]


def test_example_of_the_paper(group: Group, clients: list[Client]) -> None:
    late = clients[3]
    assert clients[0].do("SEMAPHORE", "INIT", "3", PATH) == b"+OK"
    for client in clients[:3]:
        assert client.do("SEMAPHORE", "ACQUIRE", PATH) == b"+OK"
    assert late.do("SEMAPHORE", "ACQUIRE", PATH) == b"+PENDING"
    assert clients[0].do("SEMAPHORE", "RELEASE", PATH) == b"+OK"
    assert group.retried == [(13, b"/ns/s", b"SEMAPHORE ACQUIRE")]
    assert late.do("SEMAPHORE", "ACQUIRE", PATH) == b"+OK"
    assert late.do("SEMAPHORE", "RELEASE", PATH) == b"+OK"
    assert late.do("SEMAPHORE", "DESTROY", PATH) == b"+PENDING"


def test_one_unit_each_and_its_token(clients: list[Client]) -> None:
    one, two, *_ = clients
    one.do("SEMAPHORE", "INIT", "1", PATH)
    first = one.do("SEMAPHORE", "ACQUIRE", PATH, "TOKEN")
    assert items(first)[0] == b"=OK"
    assert one.do("SEMAPHORE", "ACQUIRE", PATH, "TOKEN") == first
    assert two.do("PUT", PATH, "x", "IFLOCK", items(first)[1][1:]) == b"+OK"
    assert word(two.do("SEMAPHORE", "ACQUIRE", PATH, "NOWAIT")) == "LOCKED"
    two.do("SEMAPHORE", "ACQUIRE", PATH, "TOKEN")
    one.do("SEMAPHORE", "RELEASE", PATH)
    assert word(one.do("SEMAPHORE", "ACQUIRE", PATH, "NOWAIT")) == "LOCKED"  # it is offered
    assert items(two.repeat(3))[1] == b"=1:2:%d" % two.group.lsn
    assert word(one.do("SEMAPHORE", "RELEASE", PATH)) == "NOTHELD"


def test_units_come_in_the_order_of_waiting(group: Group, clients: list[Client]) -> None:
    clients[0].do("SEMAPHORE", "INIT", "1", PATH)
    for client in clients:
        client.do("SEMAPHORE", "ACQUIRE", PATH)
    assert clients[2].do("SEMAPHORE", "CANCEL", PATH) == b"+OK"
    assert word(clients[2].final(1)) == "NOTHELD"
    assert word(clients[2].do("SEMAPHORE", "CANCEL", PATH)) == "NOTHELD"
    group.end(10)  # the end of a session gives its unit back
    group.lapse("/ns/s", 11, group.lsn)
    assert clients[3].repeat(1) == b"+OK"
    assert [notice[0] for notice in group.retried] == [11, 13]


def test_destroying_waits_for_those_who_are_there(group: Group, clients: list[Client]) -> None:
    holder, waiter, destroyer, other, *_ = clients
    holder.do("SEMAPHORE", "INIT", "1", PATH)
    holder.do("SEMAPHORE", "ACQUIRE", PATH)
    waiter.do("SEMAPHORE", "ACQUIRE", PATH)
    for _ in range(2):
        assert destroyer.do("SEMAPHORE", "DESTROY", PATH) == b"+PENDING"
    assert word(other.do("SEMAPHORE", "ACQUIRE", PATH)) == "DESTROYING"
    assert word(other.do("SEMAPHORE", "INIT", "1", PATH)) == "DESTROYING"
    assert b"ending" in group.read("GET", PATH, "ATTR")
    holder.do("SEMAPHORE", "RELEASE", PATH)
    assert waiter.repeat(1) == b"+OK"
    assert destroyer.final(1) == b""
    waiter.do("SEMAPHORE", "RELEASE", PATH)
    assert destroyer.final(1) == destroyer.final(2) == b"+OK"
    assert group.retried[-1] == (12, b"/ns/s", b"SEMAPHORE DESTROY")
    assert other.do("BARRIER", "INIT", "2", PATH) == b"+OK"


def test_it_goes_though_its_destroyer_has_gone(group: Group, clients: list[Client]) -> None:
    holder, destroyer, other, *_ = clients
    holder.do("SEMAPHORE", "INIT", "1", PATH)
    holder.do("SEMAPHORE", "ACQUIRE", PATH)
    destroyer.do("SEMAPHORE", "DESTROY", PATH)
    group.end(11)
    group.end(10)
    assert other.do("LOCK", PATH) == b"+OK"


def test_destroying_what_is_not_there_is_done(clients: list[Client]) -> None:
    one = clients[0]
    for path in (PATH, "/ns/none"):
        assert one.do("SEMAPHORE", "DESTROY", path) == b"+OK"
    one.do("SEMAPHORE", "INIT", "1", PATH)
    assert one.do("SEMAPHORE", "DESTROY", PATH) == b"+OK"
    assert word(one.do("SEMAPHORE", "ACQUIRE", PATH)) == "SYNCTYPE"


def test_its_element_stays_while_another_has_a_unit(clients: list[Client]) -> None:
    one, two, *_ = clients
    one.do("SEMAPHORE", "INIT", "2", PATH)
    one.do("SEMAPHORE", "ACQUIRE", PATH)
    assert two.do("PUT", PATH, "anybody may") == b"+OK"
    assert two.do("DELETE", PATH).startswith(b"-LOCKED /ns/s UNIT ")
    assert one.do("DELETE", PATH) == b"+OK"
    assert word(one.do("SEMAPHORE", "RELEASE", PATH)) == "NOTHELD"


def test_what_is_shown(group: Group, clients: list[Client]) -> None:
    one, two, *_ = clients
    one.do("SEMAPHORE", "INIT", "1", PATH)
    for client in (one, two):
        client.do("SEMAPHORE", "ACQUIRE", PATH)
    flat = items(group.read("LOCK", "INFO", PATH))
    found = dict(zip(flat[::2], flat[1::2], strict=True))
    assert found[b"=kind"] == b"=semaphore"
    assert found[b"=size"] == b":1"
    assert items(found[b"=waiting"]) == [b"=" + two.name]
    assert one.name in found[b"=holders"]


def test_errors(group: Group, clients: list[Client]) -> None:
    one, two, *_ = clients
    assert word(one.do("SEMAPHORE", "INIT", "0", PATH)) == "BADARG"
    assert word(one.do("SEMAPHORE", "INIT", str(1 << 31), PATH)) == "BADARG"
    assert word(one.do("SEMAPHORE", "ACQUIRE", PATH, "SOON")) == "BADARG"
    assert word(one.do("SEMAPHORE", "ACQUIRE", "/ns/none")) == "ERROR_DOES_NOT_EXISTS"
    assert word(one.do("SEMAPHORE", "INIT", "1", "/ns/none")) == "ERROR_DOES_NOT_EXISTS"
    assert word(one.do("SEMAPHORE", "RELEASE", "/ns/none")) == "NOTHELD"
    assert word(group.do("SEMAPHORE", "DESTROY", PATH, session=0)) == "ERR"
    two.do("LOCK", PATH)
    assert word(one.do("SEMAPHORE", "INIT", "1", PATH)) == "SYNCTYPE"
    two.do("LOCK", "RELEASE", PATH)
    assert one.do("SEMAPHORE", "INIT", "2", PATH) == b"+OK"
    assert one.do("SEMAPHORE", "INIT", "2", PATH) == b"+EXISTS"
    assert word(one.do("SEMAPHORE", "INIT", "3", PATH)) == "SYNCTYPE"
    assert word(one.do("BARRIER", "INIT", "2", PATH)) == "SYNCTYPE"
    assert word(one.do("BARRIER", "WAIT", PATH)) == "SYNCTYPE"
