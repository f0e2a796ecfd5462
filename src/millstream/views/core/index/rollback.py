"""Rollback of an index: a new commit of an older root, or partitions that are refilled from 0.

Invariants:
1. The older header is the newest one in which the rollback rule accepts the positions of all
   partitions that are active or passive now.
2. A header without such a partition, or with it in cleanup, is not used.
3. The older header gives roots, positions, failover logs, purge seqnos and void partitions. The
   newest one gives states, fencing number, writer and next node number. Partitions that the newest
   header dropped, or has in cleanup, are in cleanup, because the older trees have their rows.
4. If no kept header can be used, only the refused partitions become void: position 0, and their
   rows count for nothing and are removed in the tree pass that fills them again.

Partitions whose source was not asked (missing in `judged`) keep their position in the older
header: that is harmless, and their next stream request judges it.

Elsewhere: which nodes are freed (`views.core.index.index`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from millstream.model.position import Position
from millstream.views.core.index.header import Header, Judged, PartitionState, bitmap_of

__all__ = ["again", "emptied", "refused_partitions", "serving_header"]


def refused_partitions(header: Header, judged: Mapping[int, Judged]) -> list[int]:
    """Return the partitions whose position the source refuses."""
    return [
        partition
        for partition, position in header.positions.items()
        if partition in judged and not judged[partition].accepts(position)
    ]


def serving_header(kept: Sequence[Header], judged: Mapping[int, Judged]) -> Header | None:
    """Return the newest kept header below the newest that can be gone back to.

    Args:
        kept: oldest first; the last one is in force.
        judged: as the sources judge now.
    """
    newest = kept[-1]
    return next((older for older in reversed(kept[:-1]) if _serves(older, newest, judged)), None)


def _serves(older: Header, newest: Header, judged: Mapping[int, Judged]) -> bool:
    for partition in newest.positions:
        position = older.positions.get(partition)
        if position is None:  # not there yet, or in cleanup
            return False
        if partition in judged and not judged[partition].accepts(position):
            return False
    return True


def again(older: Header, newest: Header) -> Header:
    """Return the header that brings an older one's trees back; commit and times as in `newest`."""
    states: dict[int, PartitionState] = dict.fromkeys(older.states, "cleanup")
    states.update(newest.states)
    here = newest.positions
    return msgspec.structs.replace(
        newest,
        states=states,
        positions={p: older.positions[p] for p in here},
        failover_logs={p: older.failover_logs[p] for p in here},
        purge_seqnos={p: older.purge_seqnos[p] for p in here},
        void=older.void & bitmap_of(here),
        back=older.back,
        trees=older.trees,
        nodes=older.nodes,
    )


def emptied(header: Header, partitions: Sequence[int]) -> Header:
    """Return the header in which these partitions are void and stand at 0."""
    return msgspec.structs.replace(
        header,
        positions={**header.positions, **dict.fromkeys(partitions, Position())},
        failover_logs={**header.failover_logs, **dict.fromkeys(partitions, ())},
        purge_seqnos={**header.purge_seqnos, **dict.fromkeys(partitions, 0)},
        void=header.void | bitmap_of(partitions),
    )
