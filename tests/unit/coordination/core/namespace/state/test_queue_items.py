"""Items of queues: their order, who has them, and who is told that there are some."""

from __future__ import annotations

import pytest

from millstream.coordination.core.namespace.state.elements import Elements
from millstream.coordination.core.namespace.state.queue_items import Item, Queues
from millstream.coordination.core.namespace.tables import Tables
from millstream.errors import CorruptionError
from millstream.vsr.core.snapshots import Pieces


def item(number: int, priority: int = 0) -> Item:
    return Item(1, 2, 3, number, priority, 0, b"%d" % number)


@pytest.fixture
def queues() -> Queues:
    return Queues(Tables(), Elements(Tables()))


def test_waiting_clients_are_notified_of_ready_items(queues: Queues) -> None:
    told: list[int] = []
    queues.freed = told.append
    queue = queues.of(5)
    queue.push([item(0), item(1)])
    assert told == [5]
    (taken, _) = queue.take(7, 2, 100)
    queue.pop(1, 100)
    queue.acknowledge(7, [b"no"])
    queue.give_back(7, [b"no"])
    assert told == [5]
    queue.give_back(7, [taken.name])
    assert told == [5, 5]
    queue.give_all_back(7)
    assert told == [5, 5, 5]
    assert queues.ready(5) == 2


def test_it_knows_what_a_session_has_of_each_queue(queues: Queues) -> None:
    for element in (5, 6):
        queues.of(element).push([item(number) for number in range(4)])
    queues.of(5).take(7, 3, 100)
    queues.of(6).take(7, 1, 100)
    queues.of(6).take(8, 1, 100)
    assert queues.taken_by(7) == [(5, 3), (6, 1)]
    queues.of(5).acknowledge(7, [item(0).name])
    queues.of(6).give_all_back(7)
    assert queues.taken_by(7) == [(5, 2)]
    queues.of(5).drop()
    assert queues.taken_by(7) == []
    assert queues.taken_by(8) == [(6, 1)]
    assert queues.of(5).count == 0


@pytest.mark.parametrize("table", [0, 1, 2, 3])
def test_invalid_records_are_not_read(table: int) -> None:
    tables = Tables()
    Queues(tables, Elements(Tables()))
    one = (1).to_bytes(8, "big")
    record = one + (8).to_bytes(4, "big") + (3).to_bytes(4, "big") + one + b"abc"
    with pytest.raises(CorruptionError):
        for _ in tables.restore(Pieces([bytes(8) * table + record])):
            pass
