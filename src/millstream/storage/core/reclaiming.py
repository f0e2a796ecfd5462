"""What compaction knows of one log between its steps.

    count -> look for old tombstones -> mark -> a run: write, forget, swap, install, move -> ...

Invariants:
1. Nothing here is durable: after a restart everything is counted and marked again.
2. What is known to be marked in a partition is forgotten down to the target of a rollback.
3. A run ends before the place that by-id has reached: what by-id has not is looked up elsewhere.

Elsewhere: marking (`marking`), one run (`compaction`), which run (`compaction_plan`). The loop
decides, a thread does the work (`kv.aio.compactor`); each method says whose it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from millstream.model.limits import UINT64_MAX
from millstream.ports.disk import Disk
from millstream.storage.core.by_id import ById
from millstream.storage.core.compaction import Compaction, KeyBatch
from millstream.storage.core.compaction_plan import SegmentCounts
from millstream.storage.core.controls import ControlRecord
from millstream.storage.core.live import LiveLog
from millstream.storage.core.marking import Marking, PurgeScan, limit_of
from millstream.storage.core.records import Kind
from millstream.storage.core.segment import HEADER_BYTES, SUPERSEDED, TOMBSTONE
from millstream.storage.core.summary import Kill

__all__ = ["PartitionCounts", "Reclaiming"]

_LOW_BITS: Final = bytes(flag & (SUPERSEDED | TOMBSTONE) for flag in range(256))


class PartitionCounts(NamedTuple):
    """Changes of a partition in sealed segments: all, those known to be dead, other deletions."""

    changes: int
    dead: int
    tombstones: int


class _Known(NamedTuple):
    marked: int
    kills: list[Kill]


class Reclaiming:
    """The compaction of one log. `changed` takes the partitions whose summaries by-id lacks."""

    def __init__(self, disk: Disk, live: LiveLog, by_id: ById, changed: set[int]) -> None:
        self._disk = disk
        self._live = live
        self._log = live.log
        self.sizes = live.log.sizes
        self._by_id = by_id
        self._changed = changed
        self._known = [_Known(0, summary.kills) for summary in live.summaries]
        self._rollbacks: list[tuple[int, int]] = []
        self._controls: dict[int, list[ControlRecord]] = {}
        self._counts: dict[int, SegmentCounts] = {}
        self._by_partition: dict[int, dict[int, PartitionCounts]] = {}

    # -- counting

    @property
    def counts(self) -> list[SegmentCounts]:
        """What was counted of the sealed segments, in log order. In the loop."""
        return [self._counts[n] for n in self._log.numbers[:-1] if n in self._counts]

    @property
    def live_bytes(self) -> int:
        """Return the bytes of the log but those that were counted as dead. In the loop."""
        log = self._log
        return max(0, log.sealed_bytes + log.end - sum(one.dead_bytes for one in self.counts))

    def partition_counts(self, partition_id: int) -> PartitionCounts:
        """Return the sum over what was counted. In the loop."""
        found = [
            some[partition_id] for some in self._by_partition.values() if partition_id in some
        ]
        return PartitionCounts(*map(sum, zip(*found, strict=True))) if found else _NOTHING

    def recount(self, numbers: Sequence[int] | None = None) -> None:
        """Forget what was counted of some segments, or of all. In the loop."""
        for number in list(self._counts) if numbers is None else numbers:
            self._counts.pop(number, None)
            self._by_partition.pop(number, None)

    def count_steps(self) -> Iterator[None]:
        """Count what is not counted yet. In a thread.

        Raises:
            CorruptionError: an index is damaged.
        """
        kills = [summary.kills for summary in self._live.summaries]
        for number in self._log.numbers[:-1]:
            if number not in self._counts:
                found = {}
                for entry, flags in self._log.flags_of(number):
                    p, bits = entry.partition_id, flags.translate(_LOW_BITS)
                    dead = bits.count(SUPERSEDED) + bits.count(SUPERSEDED | TOMBSTONE)
                    limit = limit_of(kills[p], number)
                    if entry.last_seqno > limit:
                        dead += self._count_above(number, p, limit)
                    found[p] = PartitionCounts(
                        entry.records, min(dead, entry.records), bits.count(TOMBSTONE)
                    )
                    yield
                self._by_partition[number] = found
                self._counts[number] = self._total(number, found)

    def _count_above(self, number: int, p: int, limit: int) -> int:
        columns = self._log.columns(number, p)
        begin, end = columns.between(limit, UINT64_MAX) if columns else (0, 0)
        return end - begin

    def _total(self, number: int, found: dict[int, PartitionCounts]) -> SegmentCounts:
        changes, dead, tombstones = (sum(some[at] for some in found.values()) for at in range(3))
        size, outside = self._log.size_of(number), self._count_outside(number, list(found))
        dead_bytes = outside + ((size - outside) * dead // changes if changes else 0)
        return SegmentCounts(number, size, dead_bytes, changes, dead, tombstones)

    def _count_outside(self, number: int, partitions: list[int]) -> int:
        """Return the bytes of what a rollback killed in its own segment: no index has it."""
        log = self._log
        offsets = () if number in log.firsts else log.controls_in(number)
        if not any(log.record_at(number, offset).kind == Kind.ROLLBACK for offset in offsets):
            return 0
        inside = sum(
            sum(columns.lengths) for p in partitions if (columns := log.columns(number, p))
        )
        return log.end_of(number) - HEADER_BYTES - inside

    def count_superseded(self) -> int:
        """Return about how many records are replaced but not counted as dead. In the loop."""
        return max(0, sum(some.changes - some.dead for some in self.counts) - self._by_id.count())

    def superseded_by_partition(self) -> list[int]:
        """Return about the same by partition, as if each had as many keys. In the loop."""
        partitions = range(len(self._live.summaries))
        keys = self._by_id.count() // len(partitions)
        found = map(self.partition_counts, partitions)
        return [max(0, some.changes - some.dead - keys) for some in found]

    def is_counted(self) -> bool:
        """Return whether all sealed segments are counted. In the loop."""
        return all(number in self._counts for number in self._log.numbers[:-1])

    # -- low points and marks

    def newest_marks(self) -> list[int]:
        """Return the newest mark of each partition. In the loop."""
        return [summary.mark for summary in self._live.summaries]

    def take_rollbacks(self) -> list[tuple[int, int]]:
        """Return (partition, seqno) of rollbacks since the last time. In the loop."""
        self._marked()
        rollbacks, self._rollbacks = self._rollbacks, []
        return rollbacks

    def purge_scan(self, limits: Sequence[int], cutoff_ns: int) -> PurgeScan:
        """Look for tombstones from before a time, at or below a seqno each. In the loop."""
        return PurgeScan(self._live, limits, cutoff_ns)

    def begin_marking(self) -> Marking:
        """Mark by the low points there are now. In the loop."""
        return Marking(self._live, self._marked(), self._has_tombstones)

    def end_marking(self, marking: Marking) -> None:
        """What was marked is durable. In the loop."""
        self._known = [
            known._replace(marked=seqno)
            for known, seqno in zip(self._known, marking.marked, strict=True)
        ]
        self.recount(sorted(marking.touched))

    def _has_tombstones(self, number: int, p: int) -> bool:
        found = self._by_partition.get(number)
        return found is None or found.get(p, _NOTHING).tombstones > 0

    def _marked(self) -> list[int]:
        """Return what is marked, by partition; a rollback since takes back what is above it."""
        for p, (known, summary) in enumerate(zip(self._known, self._live.summaries, strict=True)):
            if summary.kills is not known.kills:
                since = [kill.seqno for kill in summary.kills if kill not in known.kills]
                self._known[p] = _Known(min([known.marked, *since]), summary.kills)
                self._rollbacks += ((p, seqno) for seqno in since)
        return [known.marked for known in self._known]

    # -- a run

    def may_rewrite(self) -> list[SegmentCounts]:
        """Return the sealed segments that by-id has passed. In the loop."""
        reached = self._by_id.reached().segment
        return [counts for counts in self.counts if counts.number < reached]

    def begin_run(self, run: Sequence[int]) -> Compaction:
        """Begin to rewrite neighbours among them. In the loop."""
        place, partitions = self._by_id.reached(), range(len(self._live.summaries))
        kills = [self._by_id.summary(p).kills for p in partitions]
        return Compaction(
            self._disk, self._live, run, self._marked(), place, kills, self._controls
        )

    def forget(self, compaction: Compaction, batch: KeyBatch) -> None:
        """Take tombstones that go out of by-id, before the swap. In the loop."""
        nowhere = [0] * len(batch.keys)
        self._by_id.amend(
            batch.partition_id, batch.keys, batch.seqnos, nowhere, compaction.numbers
        )

    def install(self, compaction: Compaction) -> None:
        """Read what was swapped. In the loop, while nothing is appended."""
        self._marked()
        self.recount(compaction.run)
        for p in compaction.install():
            self._known[p] = self._known[p]._replace(kills=self._live.summaries[p].kills)
            self._changed.add(p)

    def move(self, compaction: Compaction, batch: KeyBatch) -> None:
        """Tell by-id where records stand now. In the loop."""
        self._by_id.amend(*batch, compaction.numbers)


_NOTHING: Final = PartitionCounts(0, 0, 0)
