from __future__ import annotations

from msgspec.structs import replace

from millstream.kv.core.bucket import Bucket
from millstream.kv.core.collaborators import Collaborators
from millstream.kv.core.copies import moves
from millstream.model.bucket_map import BucketMap, NodeAddress
from millstream.model.cluster_maps import DataRecord, MapKey
from millstream.model.partitions import PartitionState, partition_of
from support.kv.log_double import NOW, LogDouble, new_bucket, persist


def test_one_stream_takes_a_partition_over_and_writes_are_accepted_when_it_ends() -> None:
    bucket = new_bucket(2)
    assert bucket.begin_take_over(0)
    assert not bucket.begin_take_over(0)
    assert bucket.begin_take_over(1)
    bucket.hold_back_writes(0)
    assert bucket.writes.refuses(0)
    assert not bucket.writes.refuses(1)
    assert (bucket.open_partitions[0], bucket.open_partitions[1]) == (None, bucket.partitions[1])
    bucket.end_take_over(0)
    assert bucket.open_partitions[0] is bucket.partitions[0]
    assert bucket.begin_take_over(0)


def test_one_connection_feeds_a_copy_and_none_that_follows_a_node() -> None:
    bucket = new_bucket(2)
    assert bucket.begin_feeding(0)
    assert not bucket.begin_feeding(0)
    bucket.end_feeding(0)
    assert bucket.begin_feeding(0)
    nodes = tuple(NodeAddress(name, "h", 1, 2) for name in "ab")
    bucket.set_map(BucketMap(1, nodes, (("b", "a"), ("a", "b"))), "b")
    assert not bucket.begin_feeding(1), "it follows node a"


def test_keys_find_their_partition() -> None:
    bucket = new_bucket(8)
    assert bucket.partition_for(b"a").partition_id == partition_of(b"a", 8) == 7
    assert bucket.partition(8) is None


def test_a_map_is_in_force_when_those_who_want_to_know_are_told() -> None:
    bucket, told = new_bucket(2), []
    nodes = (NodeAddress("a", "h", 1, 2), NodeAddress("b", "h", 3, 4))
    maps = [BucketMap(n, nodes, (("a", "b"), ("b", "a"))) for n in (1, 5)]
    assert (bucket.map, bucket.node_name) == (None, "")

    def subscriber() -> None:
        told.append((bucket.map, bucket.node_name))

    bucket.subscribe_map(subscriber)
    for one in maps:
        before = bucket.map_changes
        bucket.set_map(one, "b")
        assert bucket.map_changes == before + 1
    bucket.unsubscribe(subscriber)
    bucket.set_map(BucketMap(6, nodes, (("a", "b"), ("b", "a"))), "b")
    assert told == [(maps[0], "b"), (maps[1], "b")]


def read_majority(bucket: Bucket) -> tuple[object, ...]:
    figures = bucket.published.read("majority")
    return tuple(figures[f"majority_{name}"] for name in ("following", "impossible", "lag"))


def test_what_copies_acknowledge_is_counted_by_the_row_and_told() -> None:
    told: list[int] = []
    bucket = new_bucket(2, collaborators=Collaborators(tell_reached=lambda: told.append(1)))
    for partition in bucket.partitions:
        partition.put(b"k", b"v", 0, 0, 0, 0, NOW)
    bucket.on_joined("b", 0, 1)  # knows the map already
    assert read_majority(bucket) == (0, 0, 0)
    nodes = (NodeAddress("a", "h", 1, 2), NodeAddress("b", "h", 3, 4))
    bucket.set_map(BucketMap(1, nodes, (("a", "b"), ("a", "b"))), "a")
    told.clear()
    assert read_majority(bucket) == (1, 1, 1)
    first, second = bucket.partitions
    assert [p.has_copies for p in (first, second)] == [True, True]
    bucket.on_acknowledged("b", 1, 1, 1, 1)  # it has no stream there
    bucket.on_acknowledged("b", 0, 1, 1, 1)
    bucket.on_acknowledged("b", 0, 1, 1, 1)
    assert told == [1]
    assert read_majority(bucket) == (1, 1, 1)
    log = first._log
    assert isinstance(log, LogDouble)
    assert (first.durable_seqno, first.durable_mark()) == (0, 0)
    log.take(first)
    assert (first.durable_seqno, first.durable_mark()) == (1, 1)
    assert second.durable_mark() == 0
    first.put(b"k", b"v", 0, 0, 0, 0, NOW)
    bucket.on_left("b", 0, 2)
    assert first.doubtful_seqno == 0
    bucket.on_left("b", 0, 1)
    assert (first.doubtful_seqno, told) == (2, [1, 1])
    assert read_majority(bucket) == (0, 2, 1)
    persist(second)
    moves.rename(second, PartitionState.REPLICA)
    assert read_majority(bucket) == (0, 1, 1), "of what is active here"


def test_a_map_of_one_copy_each_changes_nothing() -> None:
    bucket = new_bucket(1)
    partition = bucket.partitions[0]
    bucket.on_acknowledged("b", 0, 1, 0, 0)
    bucket.on_left("b", 0, 1)
    bucket.set_map(BucketMap(1, (NodeAddress("a", "h", 1, 2),), (("a",),)), "a")
    assert not partition.has_copies
    partition.put(b"k", b"v", 0, 0, 0, 0, NOW)
    log = partition._log
    assert isinstance(log, LogDouble)
    log.take(partition)
    assert (partition.durable_seqno, partition.durable_mark()) == (1, 1)
    bucket.on_joined("b", 0, 1)
    bucket.on_left("b", 0, 1)
    assert (partition.durable_mark(), partition.doubtful_seqno) == (1, 0)


def test_wiping_deletes_what_there_was_locked_or_not() -> None:
    bucket, keys = new_bucket(), (b"a", b"b", b"c")
    for key in keys:
        bucket.partition_for(key).put(key, b"", 0, 0, 0, 0, NOW)
    bucket.partition_for(b"b").lock(b"b", 15, NOW)
    steps = bucket.wiping()
    next(steps)()
    late = next(k for k in keys if bucket.partition_for(k).live(k, NOW) is not None)
    bucket.partition_for(late).wipe(late, 0, NOW)
    assert bucket.partition_for(late).live(late, NOW) is not None, "changed after seqno 0"
    bucket.partition_for(b"new").put(b"new", b"", 0, 0, 0, 0, NOW)
    for delete in steps:
        delete()
    assert all(bucket.partition_for(k).live(k, NOW) is None for k in keys)
    assert bucket.partition_for(b"new").live(b"new", NOW) is not None


def test_without_an_engine_everything_is_wiped_at_once() -> None:
    bucket, told = new_bucket(), list[str]()
    bucket.partition_for(b"a").put(b"a", b"", 0, 0, 0, 0, NOW)
    bucket.subscribe(lambda: told.append("changed"))
    bucket.wipe(NOW, lambda: told.append("done"))
    assert bucket.partition_for(b"a").live(b"a", NOW) is None
    assert told == ["changed", "done"]


def test_time_passes_for_all_queues() -> None:
    bucket = new_bucket()
    for partition in bucket.partitions:
        partition.queue.readers.append(Behind())
        partition.put(b"k", b"x" * 50, 0, 0, 0, 0, NOW)
        partition.queue.bytes_max = 800
        log = partition._log
        assert isinstance(log, LogDouble)
        log.take(partition)
    for turn in range(2):
        assert [partition.queue.floor for partition in bucket.partitions] == [0] * 4
        bucket.age_queues((turn + 1) * 1000.0)
    assert [partition.queue.floor for partition in bucket.partitions] == [1] * 4


class Behind:
    """A reader that stands at the beginning."""

    sent = memory_after = 0


# ---- records of a managed cluster

RECORD = DataRecord(MapKey(2, 5), "b", 1, (("a", "b"),))


def managed(*records: DataRecord) -> Bucket:
    bucket = new_bucket(len(records))
    nodes = (NodeAddress("a", "h", 1, 2), NodeAddress("b", "h", 3, 4))
    bucket.set_records(records, "a")
    bucket.set_map(BucketMap(5, nodes, (("a", "b"),) * len(records), 2), "a")
    return bucket


def test_records_decide_which_copies_count_whatever_the_map_shows() -> None:
    alone = replace(RECORD, rows=(("a",),), active="a")
    elsewhere = replace(RECORD, rows=(("b",),))
    bucket = managed(RECORD, alone, elsewhere)
    first, second, third = (partition.acknowledged for partition in bucket.partitions)
    assert first is not None
    assert first.rows == (("a", "b"),)
    assert second is None, "the copy is a majority by itself"
    assert third is not None
    assert not third.is_alone
    assert [bucket.active_node(number) for number in range(3)] == ["b", "a", "b"]
    assert [bucket.is_placed(number) for number in range(3)] == [True, True, False]
    assert bucket.is_managed
    assert not new_bucket(1).is_managed


def test_a_copy_follows_by_its_record_and_one_that_is_not_placed_follows_nobody() -> None:
    bucket = managed(
        RECORD, replace(RECORD, rows=(("b",),)), replace(RECORD, rows=(("b",),), building=("a",)),
        replace(RECORD, active="c", rows=(("a", "c"),)), replace(RECORD, active=None),
    )  # fmt: skip
    found = [bucket.source(number) for number in range(5)]
    assert [node and node.name for node in found] == ["b", None, "b", None, None]
    assert not bucket.begin_feeding(4), "nobody feeds copies of a managed cluster"


def test_a_newer_record_is_in_force_at_once_and_its_new_row_has_to_be_confirmed() -> None:
    bucket = managed(RECORD)
    told: list[object] = []
    bucket.subscribe_map(lambda: told.append(bucket.record(0)))
    partition = bucket.partitions[0]
    partition.put(b"k", b"1", 0, 0, 0, 0, NOW)
    rows = (("a", "b"), ("b", None))
    joint = replace(RECORD, at=MapKey(2, 6), rows=rows, since=MapKey(2, 6))
    bucket.use_records({0: joint})
    assert told == [joint]
    acknowledged = partition.acknowledged
    assert acknowledged is not None
    assert acknowledged.rows == rows
    assert not acknowledged.is_confirmed
    partition.put(b"k", b"2", 0, 0, 0, 0, NOW)
    bucket.use_records({0: replace(joint, at=MapKey(2, 7), active="a")})
    bucket.on_joined("b", 0, self := object())
    bucket.on_acknowledged("b", 0, self, 1, 1)
    assert acknowledged.is_confirmed, "the row is the same: what came later need not be there"
