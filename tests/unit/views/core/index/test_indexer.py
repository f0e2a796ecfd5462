"""What indexers read for together, and what is committed when; the source is one in lists."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.model.position import FailoverEntry, Position
from millstream.views.core.index import indexer
from millstream.views.core.index.indexer import (
    BUILD_CHANGES_MIN,
    BUILD_SHARE,
    COMMIT_CHANGES,
    COMMIT_S,
    Feed,
    Member,
    Part,
    Place,
    gap,
    is_worth_building,
    plan,
)
from millstream.wire.frames import change_of
from support.streams.fake_source import FakeBucket, FakePartition, lineage_of
from support.streams.feed_line import FeedLine

LOG = (FailoverEntry(0xA, 0, 1),)


def at(seqno: int) -> Place:
    return Place(Position(0xA, seqno, seqno, seqno), LOG)


def inside(seqno: int, snap_start: int, snap_end: int) -> Place:
    return Place(Position(0xA, seqno, snap_start, snap_end), LOG)


# -- groups


def test_indexes_near_each_other_are_read_for_from_the_lowest_place_of_each_partition() -> None:
    groups = plan(
        [Member("a", {0: at(50), 1: at(7)}), Member("b", {0: at(45), 1: at(9)})], gap_max=7
    )

    assert [group.signatures for group in groups] == [("a", "b")]
    assert groups[0].starts == {0: at(45), 1: at(7)}
    assert not groups[0].is_first


def test_an_index_far_behind_is_read_alone_until_it_is_near() -> None:
    members = [Member("a", {0: at(50)}), Member("b", {0: at(45)}), Member("c", {0: at(9)})]

    assert [g.signatures for g in plan(members, gap_max=7)] == [("a", "b"), ("c",)]

    members[2] = Member("c", {0: at(43)})
    assert [g.signatures for g in plan(members, gap_max=7)] == [("a", "b", "c")]


def test_new_indexes_are_built_together() -> None:
    members = [Member(name, {0: Place(), 1: Place()}, is_new=True) for name in "ab"]
    groups = plan([*members, Member("c", {0: at(3), 1: Place()})], gap_max=7)

    assert [(g.signatures, g.is_first) for g in groups] == [(("c",), False), (("a", "b"), True)]


@pytest.mark.parametrize(
    ("has", "highs", "is_worth"),
    [
        ([0, 0], {0: BUILD_CHANGES_MIN, 1: 0}, True),
        ([0, 0], {0: BUILD_CHANGES_MIN - 1, 1: 0}, False),
        ([0, 0], {}, False),
        ([10**6, 0], {0: 10**6, 1: BUILD_SHARE * 10**6}, True),
        (
            [BUILD_CHANGES_MIN, 9],
            {0: BUILD_CHANGES_MIN, 1: BUILD_SHARE * BUILD_CHANGES_MIN},
            False,
        ),
        ([9, 0], {1: 10**9}, False),  # the first one cannot be read now
        ([0, 10**6], {0: 10**9, 1: 5}, True),  # the second one is ahead, and counts for nothing
    ],
)
def test_an_index_that_lacks_most_changes_is_rebuilt(
    has: list[int], highs: dict[int, int], is_worth: bool
) -> None:
    places = {p: Place(Position(1, seqno, seqno, seqno)) for p, seqno in enumerate(has)}
    assert is_worth_building(places, highs) == is_worth


def test_indexes_of_one_group_stay_together() -> None:
    members = [Member("a", {0: at(50)}, "one"), Member("b", {0: at(2)}, "one")]

    assert [g.signatures for g in plan(members, gap_max=7)] == [("a", "b")]


def test_inside_a_snapshot_only_what_is_complete_counts_for_others() -> None:
    together = plan([Member("a", {0: inside(8, 3, 9)}), Member("b", {0: at(6)})])
    alone = plan([Member("a", {0: inside(8, 3, 9)})])

    assert together[0].starts == {0: at(3)}
    assert alone[0].starts == {0: inside(8, 3, 9)}
    assert plan([Member("a", {0: inside(8, 0, 9)}), Member("b", {0: at(6)})])[0].starts == {
        0: Place()
    }


@given(
    st.lists(
        st.dictionaries(st.integers(0, 3), st.integers(0, 30).map(at), min_size=1), max_size=6
    )
)
def test_every_index_reads_every_change(places: list[dict[int, Place]]) -> None:
    members = [Member(str(number), each) for number, each in enumerate(places)]

    groups = plan(members, gap_max=9)

    named = sorted(signature for group in groups for signature in group.signatures)
    assert named == sorted(member.signature for member in members)
    for group in groups:
        for signature in group.signatures:
            for partition, place in members[int(signature)].places.items():
                assert group.starts[partition].complete <= place.complete


def test_the_gap_counts_partitions_that_one_lacks() -> None:
    assert gap({0: at(5)}, {0: at(3), 1: at(4)}) == 6


# -- feeds


class Reader:
    """A feed, its line, and an index that is a dictionary."""

    def __init__(self, bucket: FakeBucket, places: Mapping[int, Place] | None = None) -> None:
        self.now = 0.0
        self.places = dict(places or {p.partition_id: Place() for p in bucket.partitions})
        self.rows: dict[int, dict[bytes, bytes]] = {partition: {} for partition in self.places}
        self.connect(bucket)

    def connect(self, bucket: FakeBucket) -> None:
        self.line = FeedLine(bucket)
        self.feed = Feed(self.places)
        self.line.send(self.feed.open(b"index"))

    def read(self, steps: int = 30, bytes_max: int = 1 << 20) -> None:
        for _ in range(steps):
            self.feed.receive_data(self.line.receive(bytes_max), self.now)
            self.line.send(self.feed.take_bytes())

    def commit(self) -> dict[int, Part]:
        parts = self.feed.take_parts(self.now)
        for partition, part in parts.items():
            assert part.start == self.places[partition].position
            self.places[partition] = Place(part.end, part.failover_log)
            for frame, lineage in zip(part.frames, part.sides, strict=True):
                change = change_of(frame)
                assert lineage == lineage_of(partition, change.seqno)
                if change.is_deleted:
                    self.rows[partition].pop(change.key, None)
                else:
                    self.rows[partition][change.key] = change.value
        return parts

    def due(self, *, is_awaited: bool = False) -> float | None:
        return self.feed.due_in(self.now, is_awaited=is_awaited)


@pytest.fixture
def bucket() -> FakeBucket:
    return FakeBucket([FakePartition(number) for number in range(2)])


def test_complete_snapshots_are_taken_when_old_or_awaited(bucket: FakeBucket) -> None:
    bucket.partitions[0].fill("abc")
    bucket.partitions[1].fill("xXy")
    reader = Reader(bucket)
    reader.read()

    assert reader.due() == COMMIT_S
    reader.now = COMMIT_S - 0.5
    assert reader.due() == 0.5
    assert reader.due(is_awaited=True) == 0
    reader.now = COMMIT_S + 1
    assert reader.due() == 0
    reader.commit()

    assert reader.rows == {number: bucket.partitions[number].state_at(99) for number in (0, 1)}
    assert reader.places[0].position == Position(0xA001, 3, 3, 3)
    assert reader.due(is_awaited=True) is None
    assert reader.feed.gathered_bytes == 0


def test_many_changes_are_committed_without_a_waiting_query(
    bucket: FakeBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexer, "COMMIT_CHANGES", 3)
    bucket.partitions[0].fill("ab")
    reader = Reader(bucket)
    reader.read()
    assert reader.due() == COMMIT_S

    bucket.partitions[1].fill("c")
    reader.read()
    assert reader.due() == 0
    assert COMMIT_CHANGES > 3


def test_parts_continue_where_the_previous_ended(bucket: FakeBucket) -> None:
    bucket.partitions[0].fill("ab")
    reader = Reader(bucket)
    reader.read()
    reader.commit()

    bucket.partitions[0].fill("cAd")
    bucket.partitions[1].fill("z")
    reader.read()
    parts = reader.commit()

    assert parts[0].start.seqno == 2
    assert parts[1].start == Position()
    assert reader.rows == {number: bucket.partitions[number].state_at(99) for number in (0, 1)}


def test_half_a_snapshot_is_not_taken(bucket: FakeBucket) -> None:
    bucket.partitions[0].fill("abcdef")
    bucket.partitions[0].forget_memory(6)
    reader = Reader(bucket, {0: Place()})
    while not reader.feed.gathered_bytes:
        reader.read(1, 50)

    assert reader.due(is_awaited=True) is None
    assert reader.commit() == {}
    reader.read()
    assert reader.commit()[0].end == Position(0xA001, 6, 6, 6)


def test_a_snapshot_that_fills_the_buffer_is_taken_in_pieces(
    bucket: FakeBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.partitions[0].fill("abcdef")
    bucket.partitions[0].forget_memory(6)
    monkeypatch.setattr(indexer, "GATHERED_BYTES_MAX", 100)
    reader = Reader(bucket, {0: Place()})
    ends = []
    for _ in range(80):
        reader.read(1, 50)
        if reader.feed.is_full:
            assert reader.due() == 0
            ends += [part.end for part in reader.commit().values()]

    assert ends[0].snap_start == 0
    assert 0 < ends[0].seqno < ends[0].snap_end == 6
    assert not ends[0].is_closed
    if reader.feed.gathered_bytes:
        reader.commit()
    assert reader.places[0].position.is_closed
    assert reader.rows[0] == bucket.partitions[0].state_at(6)


def test_a_feed_goes_on_inside_a_snapshot(bucket: FakeBucket) -> None:
    """After a kill between two pieces."""
    partition = bucket.partitions[0]
    partition.fill("abcdef")
    reader = Reader(bucket, {0: Place()})
    reader.places = {0: Place(Position(0xA001, 4, 0, 6, 0), partition.failover_log)}
    reader.rows = {0: partition.state_at(4)}
    reader.connect(bucket)
    reader.read()

    assert reader.commit()[0].start == Position(0xA001, 4, 0, 6, 0)
    assert reader.rows[0] == partition.state_at(6)


def test_a_full_buffer_acknowledges_nothing(
    bucket: FakeBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.partitions[0].fill("abcdef")
    monkeypatch.setattr(indexer, "GATHERED_BYTES_MAX", 100)
    line, feed = FeedLine(bucket), Feed({0: Place()}, window_bytes=50)
    line.send(feed.open(b"index"))
    while not feed.is_full:
        feed.receive_data(line.receive(50), 0.0)
        if not feed.is_full:
            line.send(feed.take_bytes())

    assert feed.take_bytes() == b""
    feed.take_parts(0.0)
    assert feed.take_bytes() != b""


def test_a_changed_history_ends_the_feed(bucket: FakeBucket) -> None:
    bucket.partitions[0].fill("abc")
    reader = Reader(bucket)
    reader.read()
    reader.commit()
    bucket.partitions[0].fail_over(1)
    reader.read()
    assert "ended" in reader.feed.ended

    reader.connect(bucket)
    reader.read()
    assert reader.feed.ended == "the history of partition 0 changed"


def test_a_refused_stream_ends_the_feed(bucket: FakeBucket) -> None:
    bucket.partitions[1].is_suspended = True
    reader = Reader(bucket)
    reader.read()

    assert "partition 1 was refused" in reader.feed.ended
    assert not reader.feed.is_denied


def test_separate_indexes_share_no_group():
    members = [
        Member("a", {0: at(5)}, "g"),
        Member("b", {0: at(5)}, "g"),
        Member("slow", {0: at(5)}, is_apart=True),
        Member("slow and new", {0: Place()}, is_new=True, is_apart=True),
        Member("new", {0: Place()}, is_new=True),
    ]
    groups = {g.signatures: g.is_first for g in plan(members)}
    assert groups == {
        ("a", "b"): False,
        ("slow",): False,
        ("slow and new",): True,
        ("new",): True,
    }
