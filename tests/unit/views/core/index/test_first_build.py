"""The first reading of partitions: once each, whole or not at all."""

import pytest

from millstream.model.position import Position
from millstream.views.core.index import first_build
from millstream.views.core.index.first_build import BATCH_CHANGES, STREAMS_MAX, FirstBuild
from millstream.wire.frames import change_of
from support.streams.fake_source import FakeBucket, FakePartition
from support.streams.feed_line import FeedLine

PARTITIONS = 6


@pytest.fixture
def bucket() -> FakeBucket:
    bucket = FakeBucket([FakePartition(number) for number in range(PARTITIONS)])
    for partition in bucket.partitions[:-1]:
        partition.fill("abcBd")
    return bucket


class Reader:
    def __init__(self, bucket: FakeBucket) -> None:
        self.bucket = bucket
        self.build = FirstBuild(range(len(bucket.partitions)))
        self.rows: dict[int, dict[bytes, bytes]] = {}
        self.seen: list[tuple[int, bytes]] = []
        self.connect()

    def connect(self) -> None:
        self.line = FeedLine(self.bucket)
        self.line.send(self.build.connect(b"index"))

    def read(self, steps: int = 1, bytes_max: int = 1 << 20) -> None:
        for _ in range(steps):
            self.build.receive_data(self.line.receive(bytes_max))
            self.line.send(self.build.take_bytes())

    def take(self) -> None:
        while (batch := self.build.take_batch()) is not None:
            for frame, _ in zip(batch.frames, batch.sides, strict=True):
                change = change_of(frame)
                self.seen.append((change.partition_id, change.key))
                if not change.is_deleted:
                    self.rows.setdefault(change.partition_id, {})[change.key] = change.value

    def check(self) -> None:
        """Each document came once, and what is whole is as the source was at that seqno."""
        whole = [each for each in self.seen if each[0] in self.build.whole]
        assert len(whole) == len(set(whole))
        for partition, place in self.build.whole.items():
            assert place.position.is_closed
            right = self.bucket.partitions[partition].state_at(place.position.seqno)
            assert self.rows.get(partition, {}) == right


def test_every_partition_is_read_once_and_empty_ones_stay_at_the_beginning(
    bucket: FakeBucket,
) -> None:
    reader = Reader(bucket)
    reader.read(60)
    reader.take()

    assert reader.build.is_read
    assert set(reader.build.whole) == set(range(PARTITIONS - 1))
    assert reader.build.left_out == set()
    assert reader.build.whole[2].position == Position(0xA001, 5, 5, 5)
    assert reader.build.whole[2].failover_log == bucket.partitions[2].failover_log
    assert reader.build.positions[2] == 5
    reader.check()


def test_few_partitions_are_under_way_at_a_time(bucket: FakeBucket) -> None:
    reader = Reader(bucket)
    for _ in range(60):
        reader.read()
        assert sum(bool(partition.readers) for partition in bucket.partitions) <= STREAMS_MAX
    assert reader.build.is_read


def test_a_snapshot_that_is_begun_anew_is_left_out(bucket: FakeBucket) -> None:
    """Its view was lost: what was read may come again as another version."""
    partition = bucket.partitions[0]
    partition.forget_memory(5)
    reader = Reader(bucket)
    while 0 not in reader.build.positions:
        reader.read(1, 50)
    assert 0 not in reader.build.whole
    partition.lose_holds()
    partition.fill("aaa")
    reader.read(60)
    reader.take()

    assert reader.build.is_read
    assert reader.build.left_out == {0}
    assert set(reader.build.whole) == {1, 2, 3, 4}
    reader.check()


def test_a_lost_connection_loses_only_the_open_snapshot(bucket: FakeBucket) -> None:
    bucket.partitions[1].forget_memory(5)
    reader = Reader(bucket)
    while 1 not in reader.build.positions:
        reader.read(1, 50)
    assert 1 not in reader.build.whole
    reader.connect()
    reader.read(60)
    reader.take()

    assert reader.build.is_read
    assert 1 in reader.build.left_out
    assert reader.build.left_out | set(reader.build.whole) == {0, 1, 2, 3, 4}
    assert 4 in reader.build.whole
    reader.check()


def test_a_partition_that_is_refused_is_left_out(bucket: FakeBucket) -> None:
    bucket.partitions[3].is_suspended = True
    reader = Reader(bucket)
    reader.read(60)
    reader.take()

    assert reader.build.left_out == {3}
    assert set(reader.build.whole) == {0, 1, 2, 4}


def test_changes_made_meanwhile_do_not_make_a_second_snapshot(bucket: FakeBucket) -> None:
    reader = Reader(bucket)
    for _ in range(60):
        for partition in bucket.partitions:
            partition.fill("ab")
        reader.read()
    reader.take()

    assert reader.build.is_read
    reader.check()
    assert len(reader.build.whole) == PARTITIONS


def test_batches_have_a_size_and_what_waits_is_bounded(
    bucket: FakeBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_build, "BATCH_CHANGES", 3)
    monkeypatch.setattr(first_build, "GATHERED_BYTES_MAX", 600)
    reader = Reader(bucket)
    while not reader.build.is_full:
        reader.read(1, 200)
    batches = []
    while (batch := reader.build.take_batch()) is not None:
        batches.append(batch)

    assert not reader.build.is_full
    assert all(len(batch.frames) >= 3 for batch in batches)
    assert len(batches) > 1
    assert BATCH_CHANGES > 3
