from millstream.storage.core.compaction_plan import SegmentCounts
from millstream.storage.core.reclaiming import PartitionCounts
from support.kv.compacting import compact, mark


def counted(store):
    for _ in mark(store):
        pass
    return store.reclaiming.counts


def test_segments_and_partitions_are_counted(directory):
    store = directory.open()
    directory.write(0, (b"a", b"1" * 200), (b"b", b"1" * 200))
    directory.write(0, (b"a", b"2" * 200), (b"b", None))
    store._log.roll()
    directory.write(1, (b"x", None))
    store._log.roll()
    directory.write(2, (b"y", b"1"))
    sizes = [path.stat().st_size for path in directory.segments()]
    assert counted(store) == [
        SegmentCounts(1, sizes[0], 0, 4, 0, 1), SegmentCounts(2, sizes[1], 0, 1, 0, 1),
    ]  # fmt: skip
    assert store.reclaiming.partition_counts(0) == PartitionCounts(4, 0, 1)
    assert store.reclaiming.partition_counts(3) == PartitionCounts(0, 0, 0)
    assert store.reclaiming.live_bytes == sum(sizes[:2]) + store._log.end
    store.set_low_points({0: (4, 4)})
    first = counted(store)[0]
    assert store.reclaiming.live_bytes == sum(sizes[:2]) - first.dead_bytes + store._log.end
    assert (first.changes, first.dead, first.tombstones) == (4, 3, 0)
    assert first.dead_bytes == sizes[0] * 3 // 4
    assert store.reclaiming.partition_counts(0) == PartitionCounts(4, 3, 0)
    compact(store)
    (left,) = counted(store)
    assert (left.number, left.changes, left.dead, left.tombstones) == (2, 2, 0, 1)
    assert left.bytes < sizes[0]
    assert store.reclaiming.partition_counts(0) == PartitionCounts(1, 0, 0)


def test_what_rollbacks_killed_is_dead(directory):
    store = directory.open()
    for n in range(4):
        directory.write(0, (b"a%d" % n, b"1" * 100))
    store._log.roll()
    directory.write(0, (b"b", b"1" * 500))
    store.roll_back(0, 2)
    store._log.roll()
    first, second = counted(store)
    assert (first.changes, first.dead) == (4, 2)
    assert (second.changes, second.dead) == (0, 0)
    assert second.dead_bytes > 500, "no index has it any more"
    store.roll_back(0, 0)
    assert counted(store)[0].dead == 2, "counted already"
    store.reclaiming.recount()
    assert counted(store)[0].dead == 4


def test_only_what_by_id_has_passed_may_be_rewritten(directory):
    store = directory.open()
    directory.write(0, (b"a", b"1"))
    store._log.roll()
    directory.write(0, (b"b", b"1"))
    store.commit_by_id()
    store._log.roll()
    directory.write(0, (b"c", b"1"))
    assert len(counted(store)) == 2
    assert [counts.number for counts in store.reclaiming.may_rewrite()] == [1]
    store.commit_by_id()
    assert [counts.number for counts in store.reclaiming.may_rewrite()] == [1, 2]
