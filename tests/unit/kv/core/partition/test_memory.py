from millstream.kv.core.partition.memory import Memory


def test_marks_and_quota() -> None:
    memory = Memory(1000)
    assert (memory.low_bytes, memory.high_bytes) == (750, 850)
    memory.table_bytes, memory.other_bytes = 800, 50
    assert memory.used_bytes == 850
    assert not memory.is_high
    memory.other_bytes += 1
    assert memory.is_high
    assert not memory.is_exhausted
    memory.table_bytes = 949
    assert not memory.is_exhausted
    memory.table_bytes = 950
    assert memory.is_exhausted


def test_without_a_quota_nothing_is_too_much() -> None:
    memory = Memory()
    memory.table_bytes = 1 << 50
    assert not memory.is_high
