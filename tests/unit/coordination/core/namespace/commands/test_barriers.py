"""BARRIER, as the reference has it."""

from __future__ import annotations

import pytest

from millstream.vsr.core.values import items
from simulators.namespace_clients import Client, Group, word

PATH = "/ns/b"


@pytest.fixture
def group() -> Group:
    made = Group()
    made.do("CREATENAMESPACE", "/ns", session=0)
    made.do("CREATE", "BINARY", PATH, session=0)
    made.do("BARRIER", "INIT", "3", PATH)
    return made


@pytest.fixture
def clients(group: Group) -> list[Client]:
    return [Client(group, number) for number in range(10, 16)]


def arrive(*clients: Client) -> list[str]:
    return [word(client.do("BARRIER", "WAIT", PATH)) for client in clients]


def test_example_of_the_paper(group: Group, clients: list[Client]) -> None:
    assert arrive(*clients[:3]) == ["PENDING", "PENDING", "GO"]
    assert group.retried == [(n, b"/ns/b", b"BARRIER WAIT") for n in (10, 11)]
    assert clients[0].repeat(1) == b"+OK"
    assert arrive(clients[1]) == ["OK"]  # under a new number: it comes for what was released
    assert clients[1].final(1) == b"+OK"
    assert arrive(*clients[:3]) == ["PENDING", "PENDING", "GO"]  # as after INIT
    assert clients[0].do("BARRIER", "DESTROY", PATH) == b"+OK"


def test_a_session_counts_once(clients: list[Client]) -> None:
    one, two, three, *_ = clients
    assert arrive(one, one, one, two) == ["PENDING"] * 4
    assert one.final(2) == b"+PENDING"
    assert arrive(three) == ["GO"]


def test_who_ends_or_cancels_before_does_not_count(group: Group, clients: list[Client]) -> None:
    one, two, three, four, five, _ = clients
    arrive(one, two)
    group.end(10)
    assert two.do("BARRIER", "CANCEL", PATH) == b"+OK"
    assert word(two.final(1)) == "NOTHELD"
    assert arrive(three, four, five) == ["PENDING", "PENDING", "GO"]
    group.end(14)
    assert word(three.do("BARRIER", "CANCEL", PATH)) == "NOTHELD"  # it is released
    assert three.repeat(1) == b"+OK"
    assert group.offers() == []  # a release does not lapse


def test_the_next_set_is_another_one(clients: list[Client]) -> None:
    one, two, three, four, five, six = clients
    arrive(one, two, three)
    assert arrive(four, five, six) == ["PENDING", "PENDING", "GO"]
    assert arrive(one, two, four, five) == ["OK"] * 4


def test_a_barrier_for_one(clients: list[Client]) -> None:
    one = clients[0]
    one.do("BARRIER", "DESTROY", PATH)
    one.do("BARRIER", "INIT", "1", PATH)
    assert arrive(one, one) == ["GO", "GO"]


def test_destroying_tells_those_who_wait(group: Group, clients: list[Client]) -> None:
    one, two, *_ = clients
    arrive(one)
    assert two.do("BARRIER", "DESTROY", PATH) == b"+OK"
    assert word(one.final(1)) == "DESTROYED"
    assert group.retried == [(10, b"/ns/b", b"BARRIER WAIT")]
    assert two.do("BARRIER", "DESTROY", PATH) == b"+OK"
    assert two.do("BARRIER", "DESTROY", "/ns/none") == b"+OK"


def test_it_ends_with_its_element(clients: list[Client]) -> None:
    one, two, *_ = clients
    arrive(one)
    assert two.do("DELETE", PATH) == b"+OK"
    assert word(one.final(1)) == "ERROR_DOES_NOT_EXISTS"
    assert arrive(one) == ["ERROR_DOES_NOT_EXISTS"]


def test_what_is_shown(group: Group, clients: list[Client]) -> None:
    arrive(*clients[:4])
    flat = items(group.read("LOCK", "INFO", PATH))
    found = dict(zip(flat[::2], flat[1::2], strict=True))
    assert [found[b"=kind"], found[b"=size"], found[b"=generation"]] == [b"=barrier", b":3", b":1"]
    assert items(found[b"=waiting"]) == [b"=" + clients[3].name]


def test_errors(group: Group, clients: list[Client]) -> None:
    one = clients[0]
    assert word(one.do("BARRIER", "INIT", "0", PATH)) == "BADARG"
    assert word(one.do("BARRIER", "WAIT", PATH, "NOW")) == "BADARG"
    assert one.do("BARRIER", "INIT", "3", PATH) == b"+EXISTS"
    assert word(one.do("BARRIER", "INIT", "4", PATH)) == "SYNCTYPE"
    assert word(one.do("SEMAPHORE", "INIT", "3", PATH)) == "SYNCTYPE"
    assert word(one.do("SEMAPHORE", "ACQUIRE", PATH)) == "SYNCTYPE"
    assert word(one.do("LOCK", PATH)) == "SYNCTYPE"
    assert word(one.do("BARRIER", "CANCEL", PATH)) == "NOTHELD"
    assert word(group.do("BARRIER", "WAIT", PATH, session=0)) == "ERR"
