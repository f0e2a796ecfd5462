from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.errors import LocalProtocolError
from millstream.kv.core.copies import moves
from millstream.kv.core.partition.partition import Partition
from millstream.kv.core.partition.replica import SPARSE_SEQNOS, Replica
from millstream.kv.core.session.session import KvSession
from millstream.model.limits import UINT64_MAX
from millstream.model.lineage import born
from millstream.model.partitions import PartitionState
from millstream.model.position import FailoverEntry, Position
from millstream.storage.core.records import CopyNews, LowPoints, Owed
from millstream.upr.core.consumer import (
    ChangesReceived,
    ConsumerCore,
    Event,
    SnapshotCompleted,
    SnapshotStarted,
    StreamEnded,
    StreamOpened,
)
from millstream.upr.core.producer import Producer
from millstream.wire.frames import deletion, mutation, seqno_of
from millstream.wire.mcbp import Opcode, Packet, request
from support.kv.log_double import BRANCH, NOW, LogDouble, items_of, new_partition
from support.kv.session_double import HostDouble, StreamDouble, ask, new_session

LOG = (FailoverEntry(0xB, 5, BRANCH + 2), FailoverEntry(0xA, 0, BRANCH + 1))


def new_replica(*, opened: bool = True, purge_seqno: int = 0) -> tuple[Partition, Replica]:
    partition = new_partition()
    moves.rename(partition, PartitionState.REPLICA)
    assert partition.replica is not None
    if opened:
        partition.replica.on_opened(LOG, purge_seqno)
    return partition, partition.replica


def frame(seqno: int, key: bytes, *, cas: int = 0, expiry: int = 0) -> bytes:
    return mutation(0, key, b"v%d" % seqno, seqno, seqno + 3, cas or 1000 + seqno, 1, expiry, 0)


def feed(replica: Replica, seqnos: str) -> None:
    """`a3 b7 ...`: key and seqno of changes; `!9`: an advance."""
    for word in seqnos.split():
        key, seqno = word[:1].encode(), int(word[1:])
        if key == b"!":
            replica.apply_advance(seqno)
        else:
            replica.apply_change(frame(seqno, key), b"lineage %d" % seqno)


def seen(partition: Partition) -> list[int]:
    """What a reader of now gets from memory."""
    hold = partition.open_hold()
    assert hold is not None
    found: list[int] = []
    after = partition.memory_floor
    while after < hold.at:
        taken = partition.memory_slice(after, hold.at, 1 << 20, 100)
        assert taken is not None
        frames, after = taken
        found += map(seqno_of, frames)
    partition.release_hold(hold)
    return found


def test_changes_are_taken_as_they_are() -> None:
    partition, replica = new_replica()
    replica.apply_marker(1, 9)
    replica.apply_change(frame(7, b"k", cas=77, expiry=4000000000), born(3, 7))
    entry = partition.entry(b"k")
    assert entry is not None
    assert (entry.frame, entry.side) == (frame(7, b"k", cas=77, expiry=4000000000), born(3, 7))
    replica.apply_change(deletion(0, b"k", 9, 11, 80, 5), born(3, 8))
    entry = partition.entry(b"k")
    assert entry is not None
    assert (seqno_of(entry.frame), entry.side) == (9, born(3, 8))
    assert (partition.high_seqno, partition.last_cas) == (9, 80)
    partition.queue.check()


def test_others_see_complete_snapshots_only() -> None:
    partition, replica = new_replica()
    assert partition.high_seqno == 0
    replica.apply_marker(1, 4)
    feed(replica, "a1 b3")
    assert partition.high_seqno == 0
    feed(replica, "c4")
    assert (partition.high_seqno, seen(partition)) == (4, [1, 3, 4])
    replica.apply_marker(6, 9)
    feed(replica, "a6 d7")
    assert (partition.high_seqno, seen(partition)) == (4, [1, 3, 4])
    feed(replica, "!9")
    assert (partition.high_seqno, seen(partition)) == (9, [3, 4, 6, 7])
    partition.queue.check()


def test_the_position_is_that_of_a_reader() -> None:
    _, replica = new_replica(purge_seqno=2)
    assert replica.position == Position()
    replica.apply_marker(1, 4)
    feed(replica, "a1")
    assert replica.position == Position(0xA, 1, 0, 4, 2)
    feed(replica, "!4")
    assert replica.position == Position(0xA, 4, 4, 4)
    replica.apply_marker(5, 9)
    assert replica.position == Position(0xB, 4, 4, 9)
    feed(replica, "a7")
    assert replica.position == Position(0xB, 7, 4, 9)
    replica.apply_marker(5, 12)  # the same snapshot, with a later end
    assert replica.position == Position(0xB, 7, 4, 12)
    feed(replica, "b12")
    assert replica.position == Position(0xB, 12, 12, 12)


@pytest.mark.parametrize(("start", "end"), [(9, 8), (5, 7), (8, 11), (13, 20), (11, 20), (1, 10)])
def test_markers_out_of_order_are_refused(start: int, end: int) -> None:
    _, replica = new_replica()
    replica.apply_marker(1, 12)
    feed(replica, "a10")
    if start > 10 or end < 12:
        with pytest.raises(LocalProtocolError, match="cannot follow") as caught:
            replica.apply_marker(start, end)
        assert caught.value.code == "bad_order"


@pytest.mark.parametrize("word", ["a4", "a3", "!4", "a13", "!13"])
def test_changes_out_of_order_are_refused_and_change_nothing(word: str) -> None:
    partition, replica = new_replica()
    replica.apply_marker(1, 12)
    feed(replica, "b4")
    with pytest.raises(LocalProtocolError, match="cannot follow"):
        feed(replica, word)
    assert partition.queue.high_seqno == 4
    assert partition.entry(b"a") is None


@pytest.mark.parametrize("state", [PartitionState.DEAD, PartitionState.ABSENT])
def test_only_replicas_and_pending_copies_follow(state: PartitionState) -> None:
    partition, replica = new_replica()
    replica.apply_marker(1, 3)
    moves.rename(partition, PartitionState.PENDING)
    feed(replica, "a1")
    partition.suspend()
    with pytest.raises(LocalProtocolError, match="follows no node"):
        feed(replica, "a2")
    partition.resume()
    moves.rename(partition, state)
    for call in (
        lambda: feed(replica, "a2"),
        lambda: feed(replica, "!2"),
        lambda: replica.apply_marker(4, 9),
        lambda: replica.on_opened(LOG, 0),
    ):
        with pytest.raises(LocalProtocolError) as caught:
            call()
        assert caught.value.code == "bad_state"


def test_a_source_of_an_older_branch_is_not_followed() -> None:
    partition, replica = new_replica()
    partition.last_branch = BRANCH + 3
    assert not replica.accepts(LOG)
    with pytest.raises(LocalProtocolError, match="follow the newest") as caught:
        replica.on_opened(LOG, 0)
    assert caught.value.code == "stale_source"
    newer = (FailoverEntry(0xC, 5, BRANCH + 3), *LOG)
    replica.on_opened(newer, 0)
    assert partition.failover_log == newer


def test_readers_must_ask_anew_when_the_newest_history_is_another() -> None:
    partition, replica = new_replica()
    before = partition.epoch
    replica.on_opened(LOG, 0)
    assert partition.epoch == before
    replica.on_opened((FailoverEntry(0xC, 5, BRANCH + 3), *LOG), 0)
    assert partition.epoch == before + 1


def test_an_unfinished_snapshot_of_which_nothing_came_is_forgotten() -> None:
    _, replica = new_replica()
    replica.apply_marker(1, 3)
    feed(replica, "a3")
    replica.apply_marker(4, 9)
    replica.on_opened(LOG, 0)
    assert replica.range_end == 3
    replica.apply_marker(4, 6)
    feed(replica, "a5")
    replica.on_opened(LOG, 0)
    assert replica.range_end == 6


# -- for the log


def test_the_first_batch_says_whose_it_is() -> None:
    partition, replica = new_replica(purge_seqno=6)
    assert partition.purge_seqno == 6
    replica.apply_marker(1, 9)
    feed(replica, "a7 b8")
    batch = partition.freeze()
    assert (batch.seqnos, batch.mark) == ([7, 8], 0)
    assert batch.news == CopyNews(LOG, LowPoints(6, 6), 9)
    assert not partition.is_dirty
    partition.persisted(8)
    assert (partition.persisted_seqno, partition.high_seqno) == (0, 0)
    feed(replica, "a9")
    assert partition.is_dirty
    batch = partition.freeze()
    assert (batch.seqnos, batch.previous_seqnos, batch.mark) == ([9], [7], 9)
    assert batch.news == CopyNews()
    assert list(batch.lineages) == [b"lineage 9"]
    partition.persisted(9)
    assert partition.persisted_seqno == 9


def test_a_load_that_did_not_begin_at_0_keeps_its_low_points() -> None:
    partition, replica = new_replica(purge_seqno=6)
    replica.apply_marker(1, 9)
    feed(replica, "a9")
    partition.freeze()
    replica.on_opened(LOG, 8)
    assert partition.purge_seqno == 6
    replica.apply_marker(10, 10)
    feed(replica, "a10")
    news = partition.freeze().news
    assert news is not None
    assert news.low_points is None


def test_a_new_history_is_written_though_nothing_comes_in_it() -> None:
    partition, replica = new_replica()
    replica.apply_marker(1, 2)
    feed(replica, "a2")
    partition.freeze()
    partition.persisted(2)
    newer = (FailoverEntry(0xC, 2, BRANCH + 3), *LOG[1:])
    replica.on_opened(newer, 0)
    assert partition.is_dirty
    batch = partition.freeze()
    assert (batch.seqnos, batch.mark, batch.news) == ([], 0, CopyNews(newer))
    assert not partition.is_dirty


def test_an_end_without_a_change_becomes_a_mark() -> None:
    partition, replica = new_replica()
    replica.apply_marker(1, 9)
    feed(replica, "a3")
    partition.freeze()
    feed(replica, "!9")
    batch = partition.freeze()
    assert (batch.seqnos, batch.mark) == ([], 9)
    partition.persisted(9)
    assert partition.persisted_seqno == 9


def test_a_version_below_the_end_is_not_dropped_for_one_above() -> None:
    partition, replica = new_replica()
    replica.apply_marker(1, 5)
    feed(replica, "a2 b4 a5")
    replica.apply_marker(6, 9)
    feed(replica, "a7 b8")
    batch = partition.freeze()
    assert list(batch.seqnos) == [4, 5, 7, 8]
    assert list(batch.previous_seqnos) == [0, 0, 5, 4]
    assert [bytes(lineage) for lineage in batch.lineages] == [
        b"lineage 4", b"lineage 5", b"lineage 7", b"lineage 8"
    ]  # fmt: skip
    assert batch.mark == 5
    assert seen(partition) == [4, 5]
    feed(replica, "!9")
    assert seen(partition) == [7, 8]
    partition.queue.check()


def test_within_a_snapshot_the_newest_version_is_enough() -> None:
    partition, replica = new_replica()
    for end in (3, 6, 9):
        replica.apply_marker(end - 2, end)
        feed(replica, f"a{end - 2} a{end - 1} a{end}")
    batch = partition.freeze()
    assert (list(batch.seqnos), list(batch.previous_seqnos)) == ([3, 6, 9], [0, 3, 6])


def test_changes_far_apart_take_no_slots() -> None:
    partition, replica = new_replica()
    replica.apply_marker(1, 1 << 40)
    feed(replica, f"a1 b{2 + SPARSE_SEQNOS} c{1 << 30} d{(1 << 30) + 1} a{1 << 40}")
    assert len(partition.queue.blocks) <= 2
    assert seen(partition) == [2 + SPARSE_SEQNOS, 1 << 30, (1 << 30) + 1, 1 << 40]
    batch = partition.freeze()
    assert list(batch.seqnos) == seen(partition)
    partition.persisted(1 << 40)
    partition.queue.check()


# -- starts


def test_a_copy_comes_back_inside_its_snapshot() -> None:
    log = LogDouble()
    partition = Partition(
        0, failover_log=LOG, high_seqno=4, purge_seqno=0, is_resident=False, log=log,
        state=PartitionState.REPLICA, top_seqno=7, range_end=9,
    )  # fmt: skip
    replica = partition.replica
    assert replica is not None
    assert replica.position == Position(0xB, 7, 4, 9)
    assert (partition.high_seqno, partition.persisted_seqno) == (4, 4)
    assert partition.last_branch == LOG[0].branch
    replica.on_opened(LOG, 3)
    replica.apply_marker(5, 9)
    feed(replica, "a9")
    assert (partition.high_seqno, partition.purge_seqno) == (9, 0)
    batch = partition.freeze()
    assert (batch.seqnos, batch.mark, batch.news) == ([9], 9, CopyNews())


def test_what_the_log_has_of_a_key_is_not_read_for_its_successor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = LogDouble()
    log.items = [(frame(3, b"a"), 0, b"\1\1"), (frame(4, b"b"), 0, b"\1\1")]
    partition = Partition(
        0, failover_log=LOG, high_seqno=4, purge_seqno=0, is_resident=False, log=log,
        state=PartitionState.REPLICA,
    )  # fmt: skip
    replica = partition.replica
    assert replica is not None
    monkeypatch.setattr(log, "newest_seqno", lambda _, key: {b"a": 3, b"b": 4}.get(key, 0))
    monkeypatch.setattr(log, "find", None)
    replica.apply_marker(5, 9)
    feed(replica, "a5 c6 a7 b9")
    batch = partition.freeze()
    assert (list(batch.seqnos), list(batch.previous_seqnos)) == ([6, 7, 9], [0, 3, 4])


# -- driven by a consumer, over the wire


class SourceHost(HostDouble):
    """Serves streams of its bucket from real producers."""

    def open_stream(self, session: KvSession, name: str, flags: int) -> StreamDouble:
        host = self

        class Port(StreamDouble):
            producer = Producer(host.buckets["b"], flags, is_extended=True, has_json=True)

            def on_packet(self, packet: Packet) -> None:
                self.producer.on_packet(packet)
                session.emit(self.producer.take_replies())

        self.stream = Port()
        return self.stream


class Wire:
    """A consumer of one partition, its source's session, and the copy that follows."""

    def __init__(self, source: Partition, copy: Partition, window_bytes: int = 1 << 20) -> None:
        self.host = SourceHost()
        self.bucket = self.host.buckets["b"]
        self.bucket.partitions[0] = source
        self.bucket.writes.reopen(0)
        assert copy.replica is not None
        self.copy, self.replica = copy, copy.replica
        self.session = new_session(self.host)
        ask(self.session, request(Opcode.HELLO, value=b"\xff\x00\x00\x0b"))
        self.core = ConsumerCore(document_meta=True, window_bytes=window_bytes)
        self.core.start(b"copy")
        self.core.follow(0, self.replica.position, copy.failover_log)

    def run(self, turns: int = 1 << 20) -> list[Event]:
        """Hand bytes over both ways until nothing is said any more."""
        seen: list[Event] = []
        for _ in range(turns):
            data = self.session.receive(self.core.take_bytes(), NOW)
            producer = getattr(self.host.stream, "producer", None)
            if producer is not None:
                producer.on_news()
                data += b"".join(iter(producer.produce, None))
                while reads := producer.take_reads():
                    producer.on_chunk(reads[0], next(reads[0].chunks, None))
                    data += b"".join(iter(producer.produce, None))
            if not data and not self.session.out:
                return seen
            seen += self.take(data + self.session.take_output())
        return seen

    def take(self, data: bytes) -> list[Event]:
        events = self.core.receive_data(data) if data else []
        for event in events:
            self.apply(event)
        return events

    def apply(self, event: Event) -> None:
        replica = self.replica
        if isinstance(event, StreamOpened):
            replica.on_opened(event.failover_log, event.position.purge_seqno or 0)
        elif isinstance(event, SnapshotStarted):
            replica.apply_marker(event.position.snap_start + 1, event.position.snap_end)
        elif isinstance(event, ChangesReceived):
            for one, lineage in zip(event.frames, event.sides, strict=True):
                replica.apply_change(one, lineage)
        elif isinstance(event, SnapshotCompleted) and replica.position != event.position:
            replica.apply_advance(event.position.seqno)
        is_move = isinstance(event, SnapshotStarted | ChangesReceived | SnapshotCompleted)
        if is_move and event.position.seqno:
            assert replica.position == event.position


def test_a_consumer_drives_it() -> None:
    source = new_partition()

    def put(*keys: bytes) -> None:
        for key in keys:
            source.put(key, b"v", 0, 0, 0, 0, NOW)

    put(b"a", b"b", b"a", b"c")
    source.purge_seqno = 2
    copy = new_partition()
    moves.rename(copy, PartitionState.REPLICA)
    wire = Wire(source, copy)
    events = wire.run()
    assert [type(event).__name__ for event in events] == [
        "StreamOpened", "SnapshotStarted", "ChangesReceived", "SnapshotCompleted"
    ]  # fmt: skip
    assert (copy.high_seqno, copy.purge_seqno) == (4, 2)
    assert copy.failover_log == source.failover_log
    put(b"b", b"d", b"d")
    source.delete(b"d", 0, NOW)
    wire.run()
    assert copy.high_seqno == source.high_seqno == 8
    assert {key: (e.frame, e.side) for key, e in copy.table.items()} == {
        key: (e.frame, e.side) for key, e in source.table.items()
    }
    assert copy.replica is not None
    again = Wire(source, copy)
    assert [type(event).__name__ for event in again.run()] == ["StreamOpened"]
    assert copy.replica.position == again.core.position(0)


def test_a_copy_that_lost_something_is_whole_where_its_source_was_when_it_came_back() -> None:
    everything = Owed(UINT64_MAX, UINT64_MAX)
    partition = new_partition()
    moves.rename(partition, PartitionState.REPLICA)
    partition.replica = replica = Replica(partition, 0, owed=everything)
    replica.on_opened(LOG, 0)
    assert replica.freeze().news == CopyNews(LOG, LowPoints(0, 0)), "nobody said how far"
    replica.on_opened(LOG, 0, 6)
    assert (replica.is_intact, replica.is_whole) == (False, False)
    assert replica.is_dirty
    assert replica.freeze().news == CopyNews(low_points=LowPoints(0, 0), owed=Owed(6, 6))
    assert not replica.is_dirty
    replica.apply_marker(1, 5)
    feed(replica, "a5")
    replica.on_opened(LOG, 0, 8)
    replica.apply_marker(6, 9)
    feed(replica, "b8")
    assert not replica.is_intact, "it is inside of a snapshot"
    feed(replica, "c9")
    assert (replica.is_intact, replica.is_whole) == (True, False)
    partition.freeze()
    partition.persisted(9)
    assert replica.is_whole
    replica.on_opened(LOG, 0, 20)
    assert (replica.is_intact, replica.is_whole, replica.is_dirty) == (True, True, False)


def test_a_copy_is_filled_once_it_has_on_disk_what_its_source_had() -> None:
    partition, replica = new_replica(opened=False)
    assert not replica.is_filled, "nobody has said what there is"
    replica.on_opened(LOG, 0, 6)
    replica.apply_marker(1, 9)
    feed(replica, "a6 !9")
    assert not replica.is_filled
    partition.freeze()
    partition.persisted(9)
    assert replica.is_filled
    replica.on_opened(LOG, 0, 20)
    assert not replica.is_filled, "it was away"
    replica.on_opened(LOG, 0)
    assert not replica.is_filled, "the source does not say"


def test_a_copy_that_stands_down_has_everything() -> None:
    _, replica = new_replica()
    assert (replica.is_intact, replica.is_whole) == (True, True)


class Chain:
    """A partition, a copy that follows it, and one that follows the copy; each with its log."""

    def __init__(self, window_bytes: int) -> None:
        self.window_bytes = window_bytes
        self.lineages: dict[bytes, bytes] = {}
        self.wires: dict[int, Wire] = {}
        self.logs = [LogDouble() for _ in range(3)]
        self.copies = [new_partition(log=log) for log in self.logs]
        for copy in self.copies[1:]:
            moves.rename(copy, PartitionState.REPLICA)

    def write(self, key: bytes, kind: int) -> None:
        source = self.copies[0]
        if kind == 0:
            source.delete(key, 0, NOW)
        elif kind == 1:
            source.count(key, 1, 0, 0, 0, NOW)
        else:
            source.put(key, b"1" * kind, 0, 0, 0, 0, NOW)
        entry = source.entry(key)
        if entry is not None:
            self.lineages.setdefault(entry.frame, entry.side)

    def write_in_a_new_branch(self, keys: list[bytes]) -> None:
        source = self.copies[0]
        newest = source.failover_log[0]
        entry = FailoverEntry(newest.uuid + 1, source.high_seqno, newest.branch + 1)
        source.replace_log((entry, *source.failover_log))
        source.begin_branch()
        for key in keys:
            self.write(key, 3)

    def follow(self, number: int, turns: int = 1 << 20) -> None:
        wire = self.wires.get(number)
        if wire is None:
            source, copy = self.copies[number - 1], self.copies[number]
            wire = self.wires[number] = Wire(source, copy, self.window_bytes)
        if any(isinstance(event, StreamEnded) for event in wire.run(turns)):
            self.drop(number)

    def drop(self, number: int) -> None:
        wire = self.wires.pop(number, None)
        if wire is not None and hasattr(wire.host.stream, "producer"):
            wire.host.stream.producer.close()

    def flush(self, number: int) -> None:
        copy, log = self.copies[number], self.logs[number]
        batch = copy.freeze()
        log.items += items_of(batch)
        mark = batch.mark if batch.mark is not None else copy.queue.frozen_seqno
        if mark:
            log.marks.append(mark)
        copy.persisted(copy.queue.frozen_seqno)

    def shrink(self, number: int) -> None:
        copy = self.copies[number]
        copy.queue.collect(0)
        ring = copy.residents.ring
        for at in reversed(range(len(ring))):
            if seqno_of(ring[at].frame) <= copy.queue.floor:
                copy.residents.evict(at)

    def restart(self, number: int) -> None:
        """Cleanly: everything is durable, nothing is in memory."""
        self.flush(number)
        for link in (number, number + 1):
            self.drop(link)
        old = self.copies[number]
        assert old.replica is not None
        self.copies[number] = Partition(
            0, failover_log=old.failover_log, high_seqno=old.persisted_seqno,
            purge_seqno=old.purge_seqno, is_resident=False, log=self.logs[number],
            state=PartitionState.REPLICA, top_seqno=old.queue.high_seqno,
            range_end=old.replica.range_end,
        )  # fmt: skip

    def check(self) -> None:
        for copy, log in zip(self.copies, self.logs, strict=True):
            found = [(entry.frame, entry.side) for entry in copy.table.values()]
            found += [(item[0], item[2]) for item in log.items]
            assert all(self.lineages[frame] == lineage for frame, lineage in found)
            copy.queue.check()

    def newest(self, number: int) -> dict[bytes, tuple[bytes, bytes]]:
        copy = self.copies[number]
        entries = [copy.entry(key) for key in copy.known_keys()]
        return {entry.key: (entry.frame, entry.side) for entry in entries if entry}


NUMBER = st.sampled_from([1, 2])
KEY = st.sampled_from([b"a", b"b", b"c"])
STEPS = st.one_of(
    st.tuples(st.just("write"), KEY, st.integers(0, 4)),
    st.tuples(st.just("write"), KEY, st.integers(0, 4)),
    st.tuples(st.just("follow"), NUMBER, st.integers(1, 3)),
    st.tuples(st.just("follow"), NUMBER),
    st.tuples(st.just("write_in_a_new_branch"), st.lists(KEY, min_size=1, max_size=4)),
    st.tuples(st.just("flush"), st.integers(0, 2)),
    st.tuples(st.just("shrink"), st.integers(0, 2)),
    st.tuples(st.just("drop"), NUMBER),
    st.tuples(st.just("restart"), NUMBER),
)


@settings(deadline=None)
@given(st.lists(STEPS, max_size=40), st.sampled_from([1, 300, 1 << 20]))
def test_lineages_are_the_same_on_every_copy(
    steps: list[tuple[Any, ...]], window_bytes: int
) -> None:
    chain = Chain(window_bytes)
    for name, *arguments in [*steps, ("write_in_a_new_branch", [b"a"])]:
        getattr(chain, name)(*arguments)
        chain.check()
    for name, *arguments in [("follow", 1), ("follow", 2)] * 4:  # streams end where histories do
        getattr(chain, name)(*arguments)
    chain.check()
    right = chain.newest(0)
    assert right
    assert right == chain.newest(1) == chain.newest(2)
    for number in (1, 2):
        chain.restart(number)
        assert chain.newest(number) == right
