from __future__ import annotations

import pytest

from millstream.errors import UnavailableError
from millstream.kv.core.copies import moves
from millstream.kv.core.partition.acknowledgement import AWAITED_NS_MAX, Acknowledged
from millstream.kv.core.partition.partition import Partition
from millstream.model.partitions import PartitionState
from millstream.storage.core.summary import RecoveredPartition
from millstream.wire.frames import mutation
from support.kv.log_double import BRANCH, NOW, LogDouble, new_partition


def filled(log: LogDouble | None = None) -> Partition:
    partition = new_partition(log=log)
    for number in range(4):
        partition.put(b"k%d" % number, b"", 0, 0, 0, 0, NOW)
    partition.freeze()
    partition.persisted(4)
    return partition


@pytest.mark.parametrize("state", PartitionState)
def test_only_active_copies_and_replicas_are_read(state: PartitionState) -> None:
    partition = filled()
    if state is not PartitionState.ACTIVE:
        moves.rename(partition, state)
    hold = partition.open_hold()
    assert (hold is not None) == (state in (PartitionState.ACTIVE, PartitionState.REPLICA))
    if hold is not None:
        assert (hold.at, hold.is_logged) == (4, False)
        partition.suspend()
        assert partition.open_hold() is None
        assert partition.is_held(hold)


def test_a_replica_inside_a_snapshot_is_read_as_of_its_last_end() -> None:
    log = LogDouble()
    partition = filled(log)
    moves.rename(partition, PartitionState.REPLICA)
    assert partition.replica is not None
    partition.replica.apply_marker(5, 9)
    partition.replica.apply_change(mutation(0, b"k0", b"", 6, 2, 9, 0, 0, 0), b"\1\1")
    assert (partition.high_seqno, partition.history_limit()) == (4, 4)
    hold = partition.open_hold(start=4)
    assert hold is not None
    assert (hold.at, hold.is_logged) == (4, False)
    partition.release_hold(hold)
    partition.queue.holds.lose_all()  # memory was needed
    assert partition.open_hold() is None
    log.marks.append(4)
    hold = partition.open_hold()
    assert hold is not None
    assert (hold.at, hold.is_logged) == (4, True)


def test_what_a_replica_keeps_readable_holds_no_tombstone_back() -> None:
    partition = filled()
    moves.rename(partition, PartitionState.REPLICA)
    assert partition.purge_limit() == 4
    hold = partition.open_hold()
    assert hold is not None
    assert partition.purge_limit() == 0


class ReaderDouble:
    """A stream that waits for what comes next: it holds no snapshot."""

    sent = memory_after = 3


def test_a_stream_between_two_snapshots_holds_tombstones_back() -> None:
    partition = filled()
    reader = ReaderDouble()
    partition.add_reader(reader)
    assert (partition.history_limit(), partition.purge_limit()) == (4, 3)
    partition.remove_reader(reader)
    assert partition.purge_limit() == 4


def test_only_the_active_of_several_copies_knows_what_is_durable() -> None:
    log = LogDouble()
    partition = new_partition(log=log)
    partition.put(b"k", b"", 0, 0, 0, 0, NOW)
    log.take(partition)
    partition.acknowledged = Acknowledged(partition)
    assert partition.durable_mark() == 1
    partition.acknowledged.set_rows((("a", "b"),), "a")
    partition.acknowledged.join("b", 1)
    partition.acknowledged.acknowledge("b", 1, 1, 1)
    assert partition.durable_mark() == 1
    moves.rename(partition, PartitionState.REPLICA)
    assert (partition.durable_seqno, partition.durable_mark()) == (0, 0)


def test_what_a_majority_has_may_be_known_soon_only_while_copies_follow_or_are_awaited() -> None:
    log = LogDouble()
    partition = new_partition(log=log)
    partition.put(b"k", b"", 0, 0, 0, 0, NOW)
    log.take(partition)
    assert not partition.may_be_known(NOW)
    row = partition.acknowledged = Acknowledged(partition)
    assert not partition.may_be_known(NOW), "it is known"
    row.set_rows((("a", "b"),), "a")
    moves.rename(partition, PartitionState.REPLICA)
    moves.rename(partition, PartitionState.ACTIVE)
    assert partition.may_be_known(NOW)
    assert not partition.may_be_known(NOW + AWAITED_NS_MAX), "nobody comes"
    row.join("b", 1)
    assert partition.may_be_known(NOW + AWAITED_NS_MAX)
    row.acknowledge("b", 1, 1, 1)
    assert partition.is_durable_known
    assert not partition.may_be_known(NOW)


@pytest.mark.parametrize("activated", [0, 4])
def test_after_an_active_copy_went_back_it_is_known_once_a_majority_has_what_is_left(
    activated: int,
) -> None:
    partition = filled()
    partition.activated_seqno = activated
    row = partition.acknowledged = Acknowledged(partition)
    row.set_rows((("a", "b"),), "a")
    state = RecoveredPartition(
        partition.failover_log, high_seqno=2, purge_seqno=0, history_seqno=0, last_branch=BRANCH,
        state=PartitionState.ACTIVE, top_seqno=2, range_end=0,
    )  # fmt: skip
    moves.restore(partition, state)
    row.join("b", 1)
    row.acknowledge("b", 1, 1, 1)
    assert not partition.is_durable_known
    with pytest.raises(UnavailableError):
        partition.check_durable()
    row.acknowledge("b", 1, 2, 2)
    assert partition.is_durable_known


def test_deletions_are_not_forgotten_before_a_majority_has_them() -> None:
    log = LogDouble()
    partition = filled(log)
    assert partition.purge_limit() == 4
    partition.acknowledged = Acknowledged(partition)
    partition.acknowledged.set_rows((("a", "b"),), "a")
    assert (partition.history_limit(), partition.purge_limit()) == (4, 0)
    partition.acknowledged.join("b", 1)
    partition.acknowledged.acknowledge("b", 1, 4, 3)
    assert partition.purge_limit() == 3
    moves.rename(partition, PartitionState.REPLICA)
    assert partition.purge_limit() == 4, "what its source may still need is its source's business"
