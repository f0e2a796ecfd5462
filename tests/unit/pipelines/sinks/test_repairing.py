"""The rules one by one; schedules of all of them are in `tests/crash/test_planner_schedules`."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from millstream.errors import UsageError
from millstream.pipelines.sinks.repairing import (
    OP_ROLLBACK,
    OP_SWEEP,
    WHOLE,
    Applied,
    RepairingSink,
    Row,
)
from millstream.upr.core.repair import LoadState
from support.pipelines.node_double import FalseNode
from support.streams.keyed_double import DictTarget, FalseOrigin, false_row


class Rig:
    """One partition with the changes 1: a=1, 2: b=2, 3: a deleted, and a sink that has them."""

    def __init__(self) -> None:
        self.node = FalseNode(1)
        for key, value in ((1, 1), (2, 2), (1, None)):
            self.node.write(0, key, value)
        self.target, self.origin = DictTarget(), FalseOrigin(self.node)
        self.sink = RepairingSink(self.target, self.origin)
        self.branch = self.node.partitions[0].branch
        self.sink.apply([self.put(2, 2, 2), self.put(3, 1, None)])

    def put(self, seqno: int, key: int, value: int | None) -> Row:
        return false_row(0, self.branch, seqno, key, value)

    def mark(self, op: str, seqno: int, load: int = 1) -> Row:
        return Row(op, 0, self.node.partitions[0].branch, seqno, rev=load)

    def live(self) -> dict[str, bytes | None]:
        return self.target.live(0)


def test_the_higher_version_wins_in_any_order() -> None:
    rig = Rig()
    assert rig.live() == {"2": b"2"}
    rows = [rig.put(5, 2, 5), rig.put(4, 2, 4), rig.put(1, 1, 1)]
    assert rig.sink.apply(rows, 7) == Applied(puts=3)
    assert rig.live() == {"2": b"5"}
    assert rig.target.committed == [0, 7]
    higher_branch = rig.put(2, 2, 9)._replace(branch=rig.branch + 1)
    rig.sink.apply([higher_branch])
    assert rig.live() == {"2": b"9"}


def test_rolled_back_documents_are_fetched_in_any_order_of_the_batch() -> None:
    rig = Rig()
    rig.node.partitions[0].fail_over(1)
    rig.node.write(0, 3, 3)
    done = rig.sink.apply([rig.put(2, 3, 3)._replace(branch=2), rig.mark(OP_ROLLBACK, 1)])
    # 1 is alive again; 2 is unknown to the source: a tombstone at the rollback's seqno.
    assert rig.live() == {"1": b"1", "3": b"3"}
    assert rig.target.rows[0]["1"][0].version == (2, 1)
    assert rig.target.rows[0]["2"][0].version == (2, 1)
    assert done == Applied(puts=1, rollbacks=1, fetched=2)
    rig.origin.fetched.clear()
    rig.sink.apply([rig.mark(OP_ROLLBACK, 1)])
    assert rig.origin.fetched == []


def test_a_rollback_below_a_dropped_tombstone_reads_the_partition_anew() -> None:
    rig = Rig()
    rig.origin.durable[0] = 3
    rig.sink.apply([rig.put(2, 2, 2)])
    assert rig.target.states[0] == LoadState(floor=3)
    assert "1" not in rig.target.rows[0]
    rig.node.partitions[0].fail_over(2)
    rig.sink.apply([rig.mark(OP_ROLLBACK, 2)])
    assert rig.live() == {"1": b"1", "2": b"2"}
    assert rig.origin.fetched == []


def test_nothing_is_dropped_for_a_branch_that_is_not_the_newest() -> None:
    rig = Rig()
    rig.node.partitions[0].fail_over(2)
    rig.origin.durable[0] = 9
    rig.sink.apply([rig.put(2, 2, 2)])
    assert rig.target.states[0].floor == 0
    assert "1" in rig.target.rows[0]


def test_a_load_is_swept_by_its_number_and_tombstones_are_kept_until_then() -> None:
    rig = Rig()
    rig.origin.durable[0] = 9
    rig.sink.apply([rig.mark(OP_ROLLBACK, 0, load=2), rig.put(3, 1, None)])
    assert rig.target.states[0] == LoadState(load=2, is_loading=True)
    assert rig.live() == {"2": b"2"}
    rig.sink.apply([rig.mark(OP_SWEEP, 3, load=2)])
    assert rig.live() == {}
    assert list(rig.target.rows[0]) == ["1"]
    assert rig.target.states[0] == LoadState(load=2)


def test_the_purge_point_of_a_first_load_is_a_bound() -> None:
    node = FalseNode(1)
    for key, value in ((1, 1), (2, 2), (1, None), (3, 3)):
        node.write(0, key, value)
    node.partitions[0].purge(3)
    target, origin = DictTarget(), FalseOrigin(node)
    RepairingSink(target, origin).apply([false_row(0, 1, 2, 2, 2), false_row(0, 1, 4, 3, 3)])
    assert target.states[0].floor == 3


def test_a_deletion_that_was_purged_before_the_first_load_can_be_undone() -> None:
    node = FalseNode(1)
    part = node.partitions[0]
    node.write(0, 1, 1)
    part.keep_copy()
    node.write(0, 1, None)
    node.write(0, 3, 3)
    part.purge(2)
    target, origin = DictTarget(), FalseOrigin(node)
    sink = RepairingSink(target, origin)
    sink.apply([false_row(0, 1, 3, 3, 3)])
    part.promote_copy(1)
    sink.apply([Row(OP_ROLLBACK, 0, part.branch, 1, rev=1)])
    assert target.live(0) == {"1": b"1"}


def test_a_target_that_another_checkpoint_filled_is_refused() -> None:
    rig = Rig()
    rig.sink.apply([rig.mark(OP_ROLLBACK, 0, load=3), rig.mark(OP_SWEEP, 0, load=3)])
    with pytest.raises(UsageError, match="another checkpoint"):
        rig.sink.apply([rig.mark(OP_ROLLBACK, 0, load=2)])


def test_an_empty_batch_does_nothing() -> None:
    rig = Rig()
    assert rig.sink.apply([], 3) == Applied()


def test_a_target_that_lost_what_was_written_is_refused() -> None:
    """Also if the first batch was empty; a batch 0 that comes again is none of these."""
    rig = Rig()
    rig.sink.apply([rig.put(4, 2, 4)], 1)
    rig.target.__init__()  # type: ignore[misc]
    for rows in ([rig.put(5, 2, 5)], []):
        with pytest.raises(UsageError, match="this is batch 2, but the target has") as refused:
            rig.sink.apply(rows, 2)
        assert refused.value.code == "other_checkpoint"
    assert rig.live() == {}
    rig.sink.apply([], 0)
    rig.sink.apply([rig.put(5, 2, 5)], 1)
    assert rig.live() == {"2": b"5"}


class BegunTarget(DictTarget):
    """Knows of the partitions that the batch has begun with, no others; notes those."""

    begun: tuple[int, ...] = ()

    def begin(self, partitions: Collection[int], partition_count: int = 1) -> None:
        super().begin(partitions, partition_count)
        self.begun = tuple(partitions)

    def state(self, partition: int) -> LoadState | None:
        return super().state(partition) if partition in self.begun else None


def test_a_target_that_was_filled_before_there_was_a_state_of_the_whole_goes_on() -> None:
    """Its batch may be empty, or of partitions that it has nothing of."""
    for rows in ([], [false_row(2, 1, 1, 1, 1, 3)]):
        target, origin = BegunTarget(), FalseOrigin(FalseNode(3))
        target.states[1] = LoadState()
        RepairingSink(target, origin).apply(rows, 7)
        assert target.begun == (WHOLE, *(row.partition for row in rows))
        assert target.states[WHOLE] == LoadState()
        assert target.committed == [7]
