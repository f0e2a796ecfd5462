from __future__ import annotations

from millstream.kv.core.copies import moves
from millstream.kv.core.partition.partition import Partition
from millstream.model.lineage import decode
from millstream.model.partitions import PartitionState
from millstream.model.position import FailoverEntry
from millstream.storage.core.store import RecoveredPartition
from millstream.wire.frames import mutation
from support.kv.log_double import BRANCH, NOW, new_bucket, new_partition

NEW = FailoverEntry(0xDEF, 2, BRANCH + 5)


def flushed(partition: Partition) -> None:
    partition.freeze()
    partition.persisted(partition.queue.frozen_seqno)


def recovered(
    partition: Partition, seqno: int, state: PartitionState = PartitionState.ACTIVE
) -> RecoveredPartition:
    log = (NEW, *partition.failover_log)
    return RecoveredPartition(log, seqno, 0, 0, NEW.branch, state, seqno, 0)


def test_an_active_copy_stands_down_at_its_high() -> None:
    partition = new_partition()
    partition.put(b"k", b"v", 0, 0, 0, 0, NOW)
    flushed(partition)
    assert partition.lock(b"k", 15, NOW)
    epoch = partition.epoch
    moves.rename(partition, PartitionState.REPLICA)
    assert partition.replica is not None
    assert partition.replica.position[1:4] == (1, 1, 1)
    assert (partition.high_seqno, len(partition.locks)) == (1, 0)
    assert partition.epoch == epoch + 1
    before = partition.replica
    moves.rename(partition, PartitionState.DEAD)
    assert partition.replica is before
    assert partition.epoch == epoch + 2


def test_what_a_promoted_copy_holds_above_its_end_counts() -> None:
    partition = new_partition()
    moves.rename(partition, PartitionState.REPLICA)
    replica = partition.replica
    assert replica is not None
    replica.apply_marker(1, 2)
    replica.apply_change(mutation(0, b"a", b"", 2, 1, 50, 0, 0, 0), b"\1\2")
    replica.apply_marker(3, 9)
    replica.apply_change(mutation(0, b"b", b"", 5, 1, 60, 0, 0, 0), b"\1\5")
    flushed(partition)
    moves.activate(partition, recovered(partition, 5))
    assert partition.replica is None
    assert (partition.state, partition.high_seqno) == (PartitionState.ACTIVE, 5)
    assert (partition.persisted_seqno, partition.last_branch) == (5, NEW.branch)
    frame = partition.put(b"b", b"new", 0, 0, 0, 0, 55)
    assert isinstance(frame, bytes)
    entry = partition.entry(b"b")
    assert entry is not None
    assert decode(entry.side).runs == ((1, 1), (NEW.branch, 2))
    assert partition.last_cas > 60
    partition.put(b"new", b"", 0, 0, 0, 0, NOW)
    entry = partition.entry(b"new")
    assert entry is not None
    assert decode(entry.side).birth_branch == NEW.branch
    hold = partition.open_hold()
    assert hold is not None
    assert hold.at == 7


def test_a_rollback_leaves_nothing_in_memory() -> None:
    bucket = new_bucket()
    partition = bucket.partitions[1]
    for number in range(5):
        partition.put(b"k%d" % number, b"v", 0, 0, 0, 0, NOW)
    hold = partition.open_hold()
    opened = bucket.leases.open([(1, None), (2, None)], 10)
    assert hold is not None
    assert opened is not None
    cas = partition.last_cas
    partition.suspend()
    assert bucket.open_partitions[1] is None
    moves.restore(partition, recovered(partition, 3))
    partition.resume()
    assert bucket.open_partitions[1] is partition
    assert bucket.open_tables[1] is partition.table == {}
    assert (partition.high_seqno, partition.persisted_seqno) == (3, 3)
    assert (partition.memory_floor, partition.is_dirty) == (3, False)
    assert not partition.residents.is_complete
    assert not partition.is_held(hold)
    assert bucket.lease_hold(opened[0], 1) is None
    assert bucket.lease_hold(opened[0], 2) is not None
    again = partition.open_hold()
    assert again is not None
    assert again.hold_id != hold.hold_id
    assert partition.last_cas == cas
    assert partition.failover_log[0] == NEW
    partition.queue.check()


def test_an_emptied_partition_is_resident() -> None:
    partition = new_partition()
    partition.put(b"k", b"v", 0, 0, 0, 0, NOW)
    moves.restore(partition, recovered(partition, 0, PartitionState.REPLICA))
    assert partition.residents.is_complete
    assert partition.replica is not None
    assert partition.replica.position.seqno == 0
