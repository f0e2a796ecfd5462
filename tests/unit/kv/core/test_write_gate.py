"""`kv.core.write_gate`: which writes are taken."""

from __future__ import annotations

from support.kv.log_double import new_bucket


def test_writes_are_open_again_once_every_reason_is_withdrawn() -> None:
    gate = new_bucket(2).writes
    first = gate.open_partitions[0]
    assert first is not None
    gate.refuse("memory")
    gate.refuse("disk_full")
    assert gate.open_partitions == [None, None]
    gate.accept("memory")
    assert gate.refuses(0)
    gate.accept("disk_full")
    assert not gate.refuses(0)
    assert gate.open_partitions[0] is first


def test_writes_that_are_held_back_are_those_of_one_partition() -> None:
    gate = new_bucket(2).writes
    gate.hold_back(1)
    assert (gate.refuses(0), gate.refuses(1)) == (False, True)
    assert [one is None for one in gate.open_partitions] == [False, True]
    gate.accept_again(1)
    gate.accept_again(1)
    assert not gate.refuses(1)


def test_who_waits_for_room_is_woken_in_turn_and_not_while_writes_are_delayed() -> None:
    gate, woken = new_bucket(1).writes, list[int]()
    gate.delay()
    assert gate.open_partitions == [None]
    for number in range(3):
        gate.when_room(lambda number=number: woken.append(number))  # type: ignore[misc]
    assert not gate.wake_waiting(3)
    assert woken == []
    gate.end_delay()
    assert gate.wake_waiting(2)
    assert not gate.wake_waiting(2)
    assert woken == [0, 1, 2]
