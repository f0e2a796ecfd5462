from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.client.bulk import Range
from millstream.errors import RollbackRequiredError, StreamError, UnavailableError
from millstream.pipelines.change_stream.offsets import Offset, OffsetEntry
from millstream.pipelines.change_stream.ranges import (
    RangeRead,
    range_between,
    ranges_between,
    read_committed,
    spread,
)
from millstream.wire.frames import described, iter_frames, seqno_of
from millstream.wire.mcbp import Opcode
from support.pipelines.node_double import FalseNode, FalseRanges

A = OffsetEntry(uuid=1, seqno=4, snap_start=2, snap_end=9, branch=3, lease_id=7)


def test_a_partition_that_did_not_move_has_no_range() -> None:
    assert range_between(0, A, A) is None
    marked = A._replace(rollback_to=2)
    assert range_between(0, marked, marked) is None


def test_inside_a_snapshot_reading_goes_on_from_the_start() -> None:
    read = range_between(0, A, A._replace(seqno=6))
    assert read is not None
    assert (read.begin, read.end, read.rollback_to, read.sweep_seqno) == (4, 6, None, None)
    assert read.request == Range(0, (1, 4, 2, 9, None), 6, 7)


def test_another_lease_means_reading_from_the_snapshot_start_again() -> None:
    read = range_between(0, A, A._replace(seqno=6, lease_id=8))
    assert read is not None
    assert (read.begin, read.end) == (2, 6)


def test_a_new_branch_begins_with_a_rollback_row() -> None:
    end = OffsetEntry(
        uuid=2, seqno=5, snap_start=3, snap_end=5, branch=4, lease_id=9, rollback_to=3
    )
    read = range_between(0, A, end)
    assert read is not None
    assert (read.rollback_to, read.begin, read.end, read.branch) == (3, 3, 5, 4)
    later = range_between(0, end, end._replace(seqno=6, snap_end=6, rollback_to=3))
    assert later is not None
    assert later.rollback_to is None  # the branch did not change between these two


def test_the_first_snapshot_is_swept_when_it_is_confirmed() -> None:
    start = OffsetEntry(uuid=1, seqno=9, snap_start=0, snap_end=9, branch=3, lease_id=7)
    closed = OffsetEntry(1, 9, 9, 9, 3)
    read = range_between(0, start, closed)
    assert read is not None
    assert (read.sweep_seqno, read.row_count_max) == (9, 0)


def test_a_load_of_an_empty_partition_is_swept_at_once() -> None:
    read = range_between(0, A, OffsetEntry(5, 0, 0, 0, 4, None, 2, None, 0))
    assert read is not None
    assert (read.rollback_to, read.sweep_seqno, read.load) == (0, 0, 2)


def test_all_partitions_of_two_offsets() -> None:
    start, end = Offset("b", "1", {0: A}), Offset("b", "1", {0: A, 1: A})
    assert [read.partition_id for read in ranges_between(start, end)] == [1]


READS = st.lists(st.integers(0, 1000), max_size=30).map(
    lambda sizes: [RangeRead(p, 0, size, 0, 0, 0, 1) for p, size in enumerate(sizes)]
)


@given(READS, st.integers(1, 8))
def test_ranges_are_spread_evenly(reads: list[RangeRead], task_count: int) -> None:
    tasks = spread(reads, task_count)
    assert sorted(read for task in tasks for read in task) == sorted(reads)
    assert len(tasks) == min(task_count, len(reads))
    weights = [sum(read.end for read in task) for task in tasks]
    longest = max((read.end for read in reads), default=0)
    assert max(weights, default=0) - min(weights, default=0) <= longest


@pytest.fixture
def node() -> FalseNode:
    node = FalseNode(2)
    for p in (0, 1):
        for key in range(10):
            node.write(p, key, key)
    return node


def pinned(node: FalseNode) -> list[RangeRead]:
    return [
        RangeRead(p, 0, hold.at, hold.uuid, 0, hold.at, hold.branch, lease_id=hold.lease_id)
        for p, hold in node.open_lease([0, 1]).items()
    ]


def seqnos(chunks: Iterator[bytes]) -> list[int]:
    frames = (frame for chunk in chunks for frame in iter_frames(chunk))
    return [seqno_of(frame) for frame in frames if frame[1] != 0x56]


def test_a_held_range_is_read_as_of_its_lease(node: FalseNode) -> None:
    reads = pinned(node)
    for key in range(5):
        node.write(0, key, 99)
    assert seqnos(read_committed(reads, FalseRanges(node))) == [*range(1, 11)] * 2


def test_a_lost_lease_delivers_what_there_is_up_to_the_end(node: FalseNode) -> None:
    reads = pinned(node)
    node.partitions[0].leases.clear()
    for key in range(5):
        node.write(0, key, 99)  # these are above the end, and hide 1 to 5
    found = seqnos(read_committed(reads[:1], FalseRanges(node)))
    assert found == [6, 7, 8, 9, 10]


def test_a_lost_lease_leaves_each_change_behind_its_description(node: FalseNode) -> None:
    class Described(FalseRanges):
        def stream(self, ranges: Sequence[Range]) -> Iterator[bytes]:
            for frame in super().stream(ranges):
                yield frame if frame[1] == Opcode.DCP_SNAPSHOT_MARKER else described(frame, b"")

    reads = pinned(node)
    node.partitions[0].leases.clear()
    node.write(0, 0, 99)
    frames = list(iter_frames(b"".join(read_committed(reads[:1], Described(node)))))
    assert [frame[1] for frame in frames] == [Opcode.DOC_META, Opcode.DCP_MUTATION] * 9
    assert [seqno_of(frame) for frame in frames] == [n for n in range(2, 11) for _ in range(2)]


def test_a_lost_history_delivers_the_common_part(node: FalseNode) -> None:
    reads = pinned(node)
    node.partitions[0].fail_over(4)
    node.write(0, 7, 1)
    assert seqnos(read_committed(reads[:1], FalseRanges(node))) == [1, 2, 3, 4]
    assert seqnos(read_committed([reads[0]._replace(begin=6)], FalseRanges(node))) == []
    assert seqnos(read_committed([reads[0]._replace(uuid=5)], FalseRanges(node))) == []


def test_a_purged_range_delivers_nothing(node: FalseNode) -> None:
    reads = [read._replace(begin=2) for read in pinned(node)]
    node.partitions[0].leases.clear()
    node.partitions[0].purge(5)
    assert seqnos(read_committed(reads[:1], FalseRanges(node))) == []


def test_a_shortened_range_has_no_lease(node: FalseNode) -> None:
    reads = pinned(node)

    class Refusing(FalseRanges):
        def stream(self, ranges: Sequence[Range]) -> Iterator[bytes]:
            if any(wanted.partition_id == 0 and wanted.lease_id for wanted in ranges):
                raise RollbackRequiredError("", partition_id=0, seqno=0)
            yield from super().stream(ranges)

    assert seqnos(read_committed(reads, Refusing(node))) == [*range(1, 11)] * 2
    assert not node.partitions[0].leases
    assert node.partitions[1].leases


def test_an_error_that_is_no_answer_is_raised(node: FalseNode) -> None:
    class Broken(FalseRanges):
        def stream(self, ranges: Sequence[Range]) -> Iterator[bytes]:
            raise UnavailableError("gone")
            yield b""

    with pytest.raises(UnavailableError):
        list(read_committed(pinned(node), Broken(node)))

    class Ending(FalseRanges):
        def stream(self, ranges: Sequence[Range]) -> Iterator[bytes]:
            raise StreamError("ended")
            yield b""

    with pytest.raises(StreamError):
        list(read_committed(pinned(node), Ending(node)))


def test_empty_ranges_send_no_request(node: FalseNode) -> None:
    read = pinned(node)[0]._replace(begin=10)
    assert list(read_committed([read], FalseRanges(node))) == []
