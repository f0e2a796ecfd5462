"""Moves of a partition's copy in memory: to another state, or to another point of history.

The caller has suspended the partition, no commit is running, and the new state is already durable.

Invariants:
1. After a move nothing reads or waits for the former state: streams, leases and waiting replies
   check `epoch`.
2. CAS and epochs keep growing.

Elsewhere: which moves are legal (`kv.core.partition.states`), making them durable
(`kv.aio.copies`).
"""

from __future__ import annotations

from millstream.kv.core.partition.partition import Partition
from millstream.kv.core.partition.replica import Replica
from millstream.model.partitions import PartitionState
from millstream.storage.core.summary import RecoveredPartition

__all__ = ["activate", "rename", "restore"]


def rename(partition: Partition, state: PartitionState) -> None:
    """Change to a state other than active."""
    if partition.state is PartitionState.ACTIVE:
        assert not partition.is_dirty
        partition.locks.clear()
        partition.replica = Replica(partition, partition.queue.high_seqno)
    partition.state = state
    partition.epoch += 1


def activate(partition: Partition, recovered: RecoveredPartition) -> None:
    """Become active. What it holds of an unfinished snapshot counts."""
    assert not partition.is_dirty
    partition.queue.settle_all()
    _take_over(partition, recovered)
    partition.activated_seqno = partition.high_seqno


def restore(partition: Partition, recovered: RecoveredPartition) -> None:
    """Take the state to which the log was rolled back; all data in memory is dropped."""
    partition.residents.forget(is_complete=recovered.top_seqno == 0)
    partition.table = partition.residents.table
    partition.queue.restart(recovered.top_seqno)
    partition.locks.clear()
    partition.expiries.forget()
    _take_over(partition, recovered)


def _take_over(partition: Partition, recovered: RecoveredPartition) -> None:
    partition.state = recovered.state
    partition.epoch += 1
    partition.failover_log = recovered.failover_log
    partition.last_branch = recovered.last_branch
    partition.purge_seqno = recovered.purge_seqno
    partition.persisted_seqno = recovered.high_seqno
    partition.awaited_seqno = 0
    is_active = recovered.state is PartitionState.ACTIVE
    partition.replica = (
        None
        if is_active
        else Replica(partition, recovered.high_seqno, recovered.range_end, recovered.owed)
    )
    partition.begin_branch()
