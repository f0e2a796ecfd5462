"""Marking what no reader may ask for any more, before compaction takes it away.

A record is marked superseded, in the flags of its sealed segment, once the record that replaced it
is at or below the history seqno, or once it is a tombstone at or below the purge seqno. From then
on it is not sent or looked up; it still hides older records of its key.

Invariants:
1. Low points are durable before anything is marked by them.
2. What `marked` says of a partition is durable: of every live record at or below that seqno the
   previous one is gone, or marked. So a marked record at or below it may go without a further
   look at other segments.
3. Nothing is remembered over a restart: a mark that a killed process left need not be durable, so
   the first pass syncs every segment in which it finds one.
4. Only sealed segments are marked, so `marked` stays below what the one that is written holds:
   what was replaced there is marked by a later pass.
5. A step takes at most some milliseconds.

Elsewhere: rewriting segments (`compaction`), when (`kv.aio.compactor`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from struct import Struct
from typing import Final, NamedTuple

from millstream.model.limits import UINT64_MAX
from millstream.storage.core.live import LiveLog
from millstream.storage.core.records import is_tombstone
from millstream.storage.core.segment import SUPERSEDED, TOMBSTONE, Columns
from millstream.storage.core.summary import Kill, PartitionSummary

__all__ = [
    "MARKED_AT_ONCE_MAX",
    "STEP_RECORDS_MAX",
    "STEP_TOMBSTONES_MAX",
    "Marking",
    "PurgeScan",
    "limit_of",
    "points_in_force",
]

STEP_RECORDS_MAX: Final = 8192
"""Records of an index looked at in one step."""
STEP_TOMBSTONES_MAX: Final = 1024
"""Records of which those that are tombstones are read in one step."""
MARKED_AT_ONCE_MAX: Final = 256 * 1024
"""Seqnos of one partition collected before their segments are marked, some 100 bytes each."""
_GROUP_BITS: Final = 13
_cas_seqno: Final = Struct(">16xQQ").unpack_from
_LOW_BITS: Final = bytes(flag & (SUPERSEDED | TOMBSTONE) for flag in range(256))


class _Points(NamedTuple):
    known: int
    history: int
    purge: int
    kills: list[Kill]


def points_in_force(summary: PartitionSummary) -> tuple[int, int]:
    """Return (history seqno, purge seqno) by which records may go: none is above the mark."""
    history, purge = summary.low_points
    history = min(history, summary.mark)
    return history, min(purge, history)


def limit_of(kills: list[Kill], segment: int) -> int:
    """Return the newest seqno that is live in a segment, given the kills of a partition."""
    summary = PartitionSummary()
    summary.kills = kills
    return summary.limit(segment)


class Marking:
    """One pass over all partitions; begun in the loop, its steps in any one thread.

    Args:
        live: the log.
        known: what is marked already, by partition: `marked` of an earlier pass of this process.
        has_tombstones: whether a segment may hold deletions of a partition that are not marked.
    """

    def __init__(
        self, live: LiveLog, known: list[int], has_tombstones: Callable[[int, int], bool]
    ) -> None:
        self._live = live
        self._log = live.log
        self._has_tombstones = has_tombstones
        self._sealed = live.log.numbers[:-1]
        self._points = [
            _Points(seqno, *points_in_force(summary), summary.kills)
            for seqno, summary in zip(known, live.summaries, strict=True)
        ]
        spans = (live.log.span(live.log.numbers[-1], p) for p in range(len(known)))
        self._sealed_below = [span[0] if span is not None else UINT64_MAX for span in spans]
        """The first seqno that is in no sealed segment, by partition."""
        self.touched: set[int] = set()
        """The segments in which something is marked, perhaps since long ago."""
        self.marked = list(known)
        """What is marked durably now, by partition."""

    def steps(self) -> Iterator[None]:
        """Do it; whoever runs it may do other things between two steps.

        Raises:
            CorruptionError: an index or a record is damaged.
            OSError: the disk failed.
        """
        for p, points in enumerate(self._points):
            if points.history > points.known:
                yield from self._mark_previous(p, points)
            if points.purge:
                yield from self._mark_tombstones(p, points)
        for number in sorted(self.touched):
            self._log.sync_segment(number)
            yield
        for p, points in enumerate(self._points):
            self.marked[p] = max(points.known, min(points.history, self._sealed_below[p] - 1))

    # -- replaced records

    def _mark_previous(self, p: int, points: _Points) -> Iterator[None]:
        wanted: dict[int, set[int]] = {}
        count = 0
        for _, columns, begin, end in self._live.ranges(p, points.known, points.history):
            for at in range(begin, end, STEP_RECORDS_MAX):
                previous = sorted(columns.previous[at : min(at + STEP_RECORDS_MAX, end)])
                count += _group(previous, wanted)
                yield
                if count > MARKED_AT_ONCE_MAX:
                    yield from self._mark(p, points, wanted)
                    wanted, count = {}, 0
        if wanted:
            yield from self._mark(p, points, wanted)

    def _mark(self, p: int, points: _Points, wanted: dict[int, set[int]]) -> Iterator[None]:
        lowest, highest = min(wanted) << _GROUP_BITS, (max(wanted) + 1) << _GROUP_BITS
        for number in self._sealed:
            span = self._log.span(number, p)
            if span is None or span[0] >= highest or span[1] < lowest:
                continue
            columns = self._log.columns(number, p)
            assert columns is not None
            limit = limit_of(points.kills, number)
            for group in sorted(wanted):
                begin, end = columns.between((group << _GROUP_BITS) - 1, _last_of(group, limit))
                if begin < end:
                    is_replaced = wanted[group].__contains__
                    self._set(
                        number,
                        p,
                        columns,
                        begin,
                        bytes(map(is_replaced, columns.seqnos[begin:end])),
                    )
                    yield

    def _set(self, number: int, p: int, columns: Columns, begin: int, marks: bytes) -> None:
        """Set the superseded bit of records from `begin` on where `marks` has one."""
        if SUPERSEDED not in marks:
            return
        self.touched.add(number)
        before = columns.flags[begin : begin + len(marks)] or bytes(len(marks))
        after = _or(before, marks)
        if after != before:
            self._log.write_flags(number, p, begin, after)

    # -- tombstones

    def _mark_tombstones(self, p: int, points: _Points) -> Iterator[None]:
        for number in self._sealed:
            span = self._log.span(number, p)
            if span is None or span[0] > points.purge or not self._has_tombstones(number, p):
                continue
            columns = self._log.columns(number, p)
            assert columns is not None
            end = bisect_right(columns.seqnos, min(points.purge, limit_of(points.kills, number)))
            for part in _tombstones_in(columns, 0, end if columns.flags else 0):
                found = self._tombstones(number, part)
                begin, stop = columns.find(part.seqnos[0]), columns.find(part.seqnos[-1]) + 1
                is_found = map(found.__contains__, columns.seqnos[begin:stop])
                self._set(number, p, columns, begin, bytes(is_found))
                yield

    def _tombstones(self, number: int, columns: Columns) -> set[int]:
        """Return which of the records are deletions: the flags, which say so, have no checksum."""
        frames = [
            frame
            for some, _ in self._log.frames(number, columns, 0, len(columns.seqnos))
            for frame in some
        ]
        return {
            seqno
            for seqno, frame in zip(columns.seqnos, frames, strict=True)
            if is_tombstone(frame)
        }


class PurgeScan:
    """Looks for the newest tombstone that may be purged: it and all before it are old enough.

    Args:
        live: the log.
        limits: by partition, the seqno above which nothing may be purged.
        cutoff_ns: Unix time; the CAS of a change is the time at which it was made.
    """

    def __init__(self, live: LiveLog, limits: Sequence[int], cutoff_ns: int) -> None:
        self._live = live
        self._sealed = live.log.numbers[:-1]
        self._limits = limits
        self._cutoff_ns = cutoff_ns
        self._begins = [points_in_force(summary)[1] for summary in live.summaries]
        self.seqnos = list(self._begins)
        """What was found, by partition; the present purge seqno where there is nothing new."""

    def steps(self) -> Iterator[None]:
        """Do it, in a thread.

        Raises:
            CorruptionError: an index or a record is damaged.
        """
        for p, (begin, limit) in enumerate(zip(self._begins, self._limits, strict=True)):
            if limit > begin:
                yield from self._scan(p, begin, limit)

    def _scan(self, p: int, after: int, upto: int) -> Iterator[None]:
        log = self._live.log
        for number, columns, first, last in self._live.ranges(p, after, upto):
            if number in self._sealed and columns.flags:
                for part in _tombstones_in(columns, first, last):
                    for frames, _ in log.frames(number, part, 0, len(part.seqnos)):
                        for frame in frames:
                            cas, seqno = _cas_seqno(frame)
                            if cas > self._cutoff_ns:
                                return
                            if is_tombstone(frame):
                                self.seqnos[p] = seqno
                    yield


def _tombstones_in(columns: Columns, first: int, last: int) -> Iterator[Columns]:
    """Yield the deletions not yet marked among the records first .. last-1, piece by piece."""
    for begin in range(first, last, STEP_TOMBSTONES_MAX):
        flags = columns.flags[begin : min(begin + STEP_TOMBSTONES_MAX, last)].translate(_LOW_BITS)
        if TOMBSTONE in flags:
            yield columns.select(begin, begin + len(flags), map(TOMBSTONE.__eq__, flags))


def _group(previous: list[int], wanted: dict[int, set[int]]) -> int:
    """Sort ascending seqnos into groups; return how many there are, 0 left out."""
    at = first = bisect_right(previous, 0)
    while at < len(previous):
        group = previous[at] >> _GROUP_BITS
        end = bisect_left(previous, (group + 1) << _GROUP_BITS, at)
        wanted.setdefault(group, set()).update(previous[at:end])
        at = end
    return len(previous) - first


def _last_of(group: int, limit: int) -> int:
    return min(((group + 1) << _GROUP_BITS) - 1, limit)


def _or(one: bytes, other: bytes) -> bytes:
    return (int.from_bytes(one, "big") | int.from_bytes(other, "big")).to_bytes(len(one), "big")
