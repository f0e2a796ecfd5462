"""The standing of a copy, as reported to those who compare copies.

Elsewhere: the use of standings (`cluster.core.promotion`).
"""

from __future__ import annotations

from millstream.kv.core.partition.partition import Partition
from millstream.model.position import entry_below
from millstream.model.standing import Standing

__all__ = ["standing_of"]


def standing_of(partition: Partition) -> Standing:
    """Return the current standing of a copy. An active one is always complete."""
    log, end, replica = partition.failover_log, partition.high_seqno, partition.replica
    return Standing(
        partition=partition.partition_id,
        state=partition.state,
        last_branch=partition.last_branch,
        branch=log[0].branch,
        complete_end=end,
        persisted_end=min(partition.persisted_seqno, end),
        branch_at_end=entry_below(log, end).branch,
        is_intact=replica is None or replica.is_intact,
        is_whole=replica is None or replica.is_whole,
    )
