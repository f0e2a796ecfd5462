from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.kv.core.partition.memory import Memory
from millstream.kv.core.partition.partition import Partition
from millstream.kv.core.partition.residents import NotInMemory, Residents
from millstream.kv.core.queue.entry import size_of
from millstream.wire.frames import change_of
from support.budget import budget
from support.kv.log_double import NOW, LogDouble, new_partition, persist


def evict(residents: Residents, key: bytes) -> None:
    residents.evict(next(i for i, entry in enumerate(residents.ring) if entry.key == key))


def stored(*keys: bytes) -> Partition:
    partition = new_partition()
    for key in keys:
        partition.store(key, key + b"v-" + key, 0, 0, 0, NOW)
    persist(partition)
    return partition


def test_an_evicted_document_comes_back_whole() -> None:
    partition = stored(b"a", b"b", b"c")
    residents = partition.residents
    before = partition.table[b"a"]
    evict(residents, b"a")
    residents.check()
    assert set(partition.table) == {b"b", b"c"}
    after = residents.find(b"a")
    assert after == before
    assert after is partition.table[b"a"]
    assert residents.read_back_total == 1
    residents.check()


def test_the_log_is_asked_only_where_it_may_have_more() -> None:
    partition = stored(b"a")
    residents = partition.residents
    assert residents.find(b"none") is None
    assert partition._log.finds == 0
    evict(residents, b"a")
    assert residents.find(b"none") is None
    assert partition._log.finds == 0  # it is known what has left
    assert residents.lacks(b"none")
    assert not residents.lacks(b"a")
    assert residents.find(b"a") is not None
    assert partition._log.finds == 1
    assert residents.keys() == [b"a"]
    evict(residents, b"a")
    residents.departed = None  # as after a start
    assert not residents.lacks(b"none")
    assert residents.find(b"none") is None
    assert partition._log.finds == 2


def test_another_history_knows_nothing_of_what_has_left() -> None:
    residents = stored(b"a").residents
    evict(residents, b"a")
    assert residents.departed_bytes > 0
    residents.forget(is_complete=False)
    assert residents.departed_bytes == 0
    assert not residents.lacks(b"none")


def test_what_would_wait_is_fetched_first() -> None:
    partition = stored(b"a", b"b")
    residents, log = partition.residents, partition._log
    for key in (b"a", b"b"):
        evict(residents, key)
    log.is_cold = True
    told: list[Exception | None] = []

    def retry(error: Exception | None) -> None:
        told.append(error)
        assert change_of(residents.find(b"a").frame).value == b"v-a"

    with pytest.raises(NotInMemory) as raised:
        residents.find(b"a")
    assert raised.value.fetch(retry)
    log.bring()
    assert told == [None]
    with pytest.raises(NotInMemory):
        residents.find(b"b")
    log.fetching_max = 0
    assert not raised.value.fetch(retry)


def test_what_is_newer_in_memory_wins_over_what_a_thread_brings() -> None:
    partition = stored(b"a")
    evict(partition.residents, b"a")
    log = partition._log
    log.is_cold = True
    with pytest.raises(NotInMemory) as raised:
        partition.newest(b"a")
    raised.value.fetch(lambda _: None)
    log.is_cold = False
    partition.store(b"a", b"anew", 0, 0, 0, NOW)
    log.bring()
    assert change_of(partition.newest(b"a")).value == b"new"
    assert change_of(partition.newest(b"a")).rev == 2
    partition.residents.check()


def test_reading_marks_an_entry_as_used() -> None:
    partition = stored(b"a")
    assert not partition.table[b"a"].is_used
    assert partition.newest(b"a") is not None
    assert partition.table[b"a"].is_used


def test_reading_back_above_the_high_mark_is_told() -> None:
    partition = stored(b"a")
    memory, told = partition.residents.memory, []
    memory.on_high = lambda: told.append(memory.is_high)
    evict(partition.residents, b"a")
    partition.newest(b"a")
    assert told == []
    evict(partition.residents, b"a")
    memory.high_bytes = 0
    partition.newest(b"a")
    assert told == [True]


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["set", "count", "delete", "expire", "evict", "persist", "get", "forget"]),
        st.integers(0, 4),
        st.binary(max_size=30),
    )
)


@settings(max_examples=budget(60), deadline=None)
@given(OPERATIONS)
def test_bytes_are_counted_exactly(operations: list[tuple[str, int, bytes]]) -> None:
    memory = Memory()
    partitions = [new_partition(i, memory=memory) for i in range(2)]
    for name, number, value in operations:
        partition, key = partitions[number % 2], b"key%d" % number
        residents = partition.residents
        if name == "set":
            partition.store(key, key + value, 0, 0, 0, NOW)
        elif name == "count":
            partition.count(key, 1, len(value), 0, 0, NOW)
        elif name == "delete":
            partition.delete(key, 0, NOW)
        elif name == "expire":
            partition.store(key, key + value, 0, 1, 0, NOW)
            partition.live(key, NOW)
        elif name == "persist":
            persist(partition)
        elif name == "get":
            partition.newest(key)
        elif name == "evict":
            partition.queue.release()
            entry = partition.table.get(key)
            if entry is not None and int.from_bytes(entry.frame[24:32]) <= partition.queue.floor:
                evict(residents, key)
        elif name == "forget" and number == 0:
            residents.forget(is_complete=True)
            partition.table = residents.table
            partition.queue.restart(0)
            partition.persisted_seqno = 0
            partition._log.items.clear()
        for one in partitions:
            one.residents.check()
        assert memory.table_bytes == sum(
            size_of(entry) for one in partitions for entry in one.table.values()
        )


def test_a_forgotten_table_is_another_object() -> None:
    """Sessions that still hold the old one find nothing that is not there any more."""
    partition = stored(b"a")
    before = partition.table
    partition.residents.forget(is_complete=False)
    assert partition.residents.table is not before
    assert partition.residents.memory.table_bytes == 0
    assert isinstance(partition._log, LogDouble)
