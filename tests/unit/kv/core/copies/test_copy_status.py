from __future__ import annotations

from millstream.kv.core.copies import moves
from millstream.kv.core.copies.copy_status import standing_of
from millstream.kv.core.partition.replica import Replica
from millstream.model.partitions import PartitionState
from millstream.model.position import FailoverEntry
from millstream.storage.core.records import Owed
from millstream.wire.frames import mutation
from support.kv.log_double import BRANCH, NOW, new_partition

LOG = (FailoverEntry(0xB, 5, BRANCH + 2), FailoverEntry(0xA, 0, BRANCH + 1))


def test_an_active_copy_has_all_there_is() -> None:
    partition = new_partition()
    partition.put(b"k", b"v", 0, 0, 0, 0, NOW)
    found = standing_of(partition)
    assert (found.state, found.complete_end, found.persisted_end) == (PartitionState.ACTIVE, 1, 0)
    assert (found.is_intact, found.is_whole) == (True, True)
    assert found.branch == found.branch_at_end == found.last_branch == BRANCH


def test_a_copy_stands_at_its_complete_end_in_the_history_of_that() -> None:
    partition = new_partition()
    moves.rename(partition, PartitionState.REPLICA)
    assert partition.replica is not None
    partition.replica.on_opened(LOG, 0)
    replica = partition.replica
    replica.apply_marker(1, 5)
    replica.apply_change(mutation(0, b"a", b"", 4, 1, 9, 0, 0, 0), b"\1\2")
    found = standing_of(partition)
    assert (found.complete_end, found.branch_at_end) == (0, BRANCH + 1)
    replica.apply_advance(5)
    assert standing_of(partition)[4:7] == (5, 0, BRANCH + 1)
    replica.apply_marker(6, 6)
    replica.apply_change(mutation(0, b"b", b"", 6, 1, 9, 0, 0, 0), b"\1\2")
    assert standing_of(partition)[4:7] == (6, 0, BRANCH + 2)
    partition.last_branch = BRANCH + 7
    found = standing_of(partition)
    assert (found.branch, found.last_branch) == (BRANCH + 2, BRANCH + 7)
    assert found.state is PartitionState.REPLICA


def test_a_copy_says_what_it_lost() -> None:
    partition = new_partition()
    moves.rename(partition, PartitionState.REPLICA)
    assert standing_of(partition)[-2:] == (True, True)
    partition.replica = Replica(partition, 0, owed=Owed(5, 0))
    assert standing_of(partition)[-2:] == (False, True)
    partition.replica = Replica(partition, 0, owed=Owed(5, 5))
    assert standing_of(partition)[-2:] == (False, False)
