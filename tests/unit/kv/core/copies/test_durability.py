from __future__ import annotations

import pytest

from millstream.kv.core.copies.durability import (
    MAJORITY,
    MAJORITY_AND_PERSISTED,
    PERSISTED_ON_MAJORITY,
    Waiting,
    answer_of,
    refusal_of,
    waits_for_copies_or_disk,
)
from millstream.kv.core.partition.acknowledgement import AWAITED_NS_MAX, Acknowledged
from millstream.kv.core.partition.partition import Partition
from millstream.wire.mcbp import Opcode, Status, response
from support.kv.log_double import NOW, new_partition, persist

REPLY = response(Opcode.SET, 0, 7, cas=9)
AMBIGUOUS = response(Opcode.SET, Status.SYNC_WRITE_AMBIGUOUS, 7)
LEVELS = (MAJORITY, MAJORITY_AND_PERSISTED, PERSISTED_ON_MAJORITY)


def written(*row: str) -> Partition:
    partition = new_partition()
    partition.put(b"k", b"v", 0, 0, 0, 0, NOW)
    if row:
        partition.acknowledged = Acknowledged(partition)
        partition.acknowledged.set_rows((row,), "a")
    return partition


def waiting(partition: Partition, level: int) -> Waiting:
    return Waiting(partition, 1, REPLY, partition.epoch, level, NOW, NOW + 5)


def test_alone_only_the_disk_is_waited_for() -> None:
    for partition in (written(), written("a")):
        assert [refusal_of(partition, level, NOW) for level in (0, *LEVELS)] == [None] * 4
        waits = [waits_for_copies_or_disk(partition, level) for level in (0, *LEVELS)]
        assert waits == [False, False, True, True]
        found = [answer_of(waiting(partition, level), NOW) for level in LEVELS]
        assert found == [REPLY, None, None]
        persist(partition)
        assert [answer_of(waiting(partition, level), NOW) for level in LEVELS] == [REPLY] * 3


def test_with_copies_every_level_waits_or_is_refused() -> None:
    partition = written("a", "b")
    for now, refusal in (
        (NOW, Status.ETMPFAIL),
        (NOW + AWAITED_NS_MAX - 1, Status.ETMPFAIL),
        (NOW + AWAITED_NS_MAX, Status.DURABILITY_IMPOSSIBLE),
        (NOW - 1, Status.DURABILITY_IMPOSSIBLE),  # a clock that was set back
    ):
        found = [refusal_of(partition, level, now) for level in (0, *LEVELS)]
        assert found == [None, *[refusal] * 3]
    assert partition.acknowledged is not None
    partition.acknowledged.join("b", 1)
    late = NOW + 9 * AWAITED_NS_MAX
    assert [refusal_of(partition, level, late) for level in (0, *LEVELS)] == [None] * 4
    waits = [waits_for_copies_or_disk(partition, level) for level in (0, *LEVELS)]
    assert waits == [False, True, True, True]


@pytest.mark.parametrize("level", LEVELS)
def test_what_is_not_reached_in_time_or_in_its_history_is_ambiguous(level: int) -> None:
    partition = written("a", "b")
    wait = waiting(partition, level)
    assert answer_of(wait, NOW + 4) is None
    assert answer_of(wait, NOW + 5) == answer_of(wait, NOW - 1) == AMBIGUOUS
    partition.doubtful_seqno = 1
    assert answer_of(wait, NOW) == AMBIGUOUS
    persist(partition)
    assert partition.acknowledged is not None
    partition.acknowledged.join("b", 1)
    partition.acknowledged.acknowledge("b", 1, 1, 1)
    assert answer_of(wait, NOW + 9) == REPLY, "it is reached, however late that was seen"
    partition.epoch += 1
    assert answer_of(wait, NOW) == AMBIGUOUS


def test_what_waits_for_the_disk_alone_has_no_time() -> None:
    partition = written()
    wait = partition, 1, REPLY, partition.epoch
    assert answer_of(wait, NOW * 2) is None
    partition.doubtful_seqno = 1
    assert answer_of(wait, NOW) == AMBIGUOUS
    persist(partition)
    assert answer_of(wait, NOW) == REPLY
