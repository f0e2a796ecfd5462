"""Where partitions begin for the option `startingTimestamp`: at the first change since a time.

Invariants:
1. The time of a change is the clock in its CAS. A partition begins in front of the first change,
   in the order of the stream, whose time is not before the one asked for. So no change since then
   is left out. Older ones may follow it: replication and restores keep the CAS of a document.
2. Deletions count as changes. Where one behind that place may have been purged, the partition
   begins at its beginning: a reader cannot tell what it lacks.
3. Keys and versions are read once, without values, in chunks; nothing of them is kept.

Elsewhere: the options (`options`), streams (`query`), batches (`batch_plan`).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from millstream.client.columns import Columns, cut_columns
from millstream.client.extensions import LeaseHold
from millstream.model.limits import UINT64_MAX
from millstream.pipelines.change_stream.options import SourceOptions
from millstream.pipelines.change_stream.ranges import RangeRead
from millstream.pipelines.change_stream.reading import pinned_chunks

__all__ = ["seqnos_before"]


def seqnos_before(
    options: SourceOptions, leases: Mapping[int, LeaseHold], time_ns: int
) -> dict[int, int]:
    """Return the seqno above which each leased partition begins (invariants 1, 2).

    Args:
        options: of the source.
        leases: what is held, by partition.
        time_ns: Unix time in nanoseconds.

    Raises:
        UnavailableError, RoutingError, StreamError: as `reading.pinned_chunks`.
    """
    reads = [
        RangeRead(p, 0, held.at, 0, 0, 0, held.branch, lease_id=held.lease_id)
        for p, held in leases.items()
    ]
    first: dict[int, int] = {}
    clock = np.uint64(min(time_ns, UINT64_MAX))
    for chunk in pinned_chunks(options, reads, with_values=False) if reads else ():
        columns = Columns()
        cut_columns(chunk, columns)
        since = np.array(columns.cas, np.int64).view(np.uint64) >= clock
        partitions = np.array(columns.partition, np.int32)[since]
        seqnos = np.array(columns.seqno, np.int64)[since]
        for p in np.unique(partitions):
            found = int(seqnos[partitions == p].min())
            first[int(p)] = min(found, first.get(int(p), found))
    found_at = {p: min(first.get(p, held.at + 1) - 1, held.at) for p, held in leases.items()}
    return {p: 0 if at < leases[p].purge_seqno else at for p, at in found_at.items()}
