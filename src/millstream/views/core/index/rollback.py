"""Rollback of an index: a new commit of an older root, or partitions filled anew from 0.

Invariants:
1. The older header taken is the newest one in which every partition that is active or passive now
   has a position that the rollback rule accepts.
2. A header that lacks such a partition, or has it in cleanup, does not serve.
3. From the older header come roots, positions, failover logs, purge seqnos and void partitions;
   from the newest one states, fencing number, writer and next node number. Partitions that the
   newest header had dropped, or has in cleanup, are in cleanup: the older trees have their rows.
4. Where no kept header serves, the partitions concerned alone are void: position 0, their rows
   count for nothing and are cleaned in the tree pass that fills them again.

Partitions whose source is not asked (`judged` lacks them) stand where they are: going back is
harmless for them, and their next stream request judges them.

Elsewhere: which nodes that lets go (`views.core.index.index`).
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
