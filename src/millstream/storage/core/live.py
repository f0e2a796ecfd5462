"""Reading what is live: records that no rollback killed, by partition and seqno.

Invariants:
1. A record is live iff its seqno is not above the limit of its segment (`summary`) and it is in
   its segment's columns.
2. Live records of a partition are ascending by seqno along the log.
3. A record marked superseded is never yielded or found, but it hides older ones of its key.
4. A reader in another thread may find segments replaced by compacted ones under way: it goes on
   behind what it has, in those that there are now. Columns it has keep their file.

Elsewhere: files (`segment_log`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import partial
from operator import sub
from typing import NamedTuple

from millstream.model.limits import UINT64_MAX
from millstream.storage.core.records import StoredChange, key_of
from millstream.storage.core.segment import Columns
from millstream.storage.core.segment_files import Place, Sizes, live_records
from millstream.storage.core.segment_log import SegmentLog
from millstream.storage.core.summary import Kill, PartitionSummary

__all__ = ["LiveLog"]


class _KnownMark(NamedTuple):
    """The newest mark at or below a seqno, and what it depends on."""

    seqno: int
    swaps: int
    newest: int
    """The newest mark of the partition."""
    kills: list[Kill]
    mark: int


class LiveLog:
    """The log as its partitions see it."""

    def __init__(self, log: SegmentLog, summaries: list[PartitionSummary]) -> None:
        self.log = log
        self.summaries = summaries
        self._marks: dict[int, _KnownMark] = {}
        """What `newest_mark` found last in a sealed segment, by partition."""

    def ranges(
        self, partition_id: int, after: int, upto: int, before: int = UINT64_MAX
    ) -> Iterator[tuple[int, Columns, int, int]]:
        """Yield (segment, columns, begin, end) of live records in (after, upto], log order.

        `before`: only of segments with smaller numbers, as if there were no others.
        """
        log = self.log
        while True:
            swaps = log.swaps
            try:
                for number, limit in self._segments(partition_id, after, upto, before):
                    columns = log.columns(number, partition_id)
                    if log.swaps != swaps:
                        break
                    begin, end = columns.between(after, limit) if columns else (0, 0)
                    if columns and begin < end:
                        last = columns.seqnos[end - 1]
                        yield number, columns, begin, end
                        after = last
                else:
                    return
            except FileNotFoundError:
                if log.swaps == swaps:
                    raise

    def _segments(
        self, partition_id: int, after: int, upto: int, before: int
    ) -> list[tuple[int, int]]:
        """Return (segment, newest seqno wanted) where something of (after, upto] may be.

        From the newest back: before a segment that begins at or below `after` all is older.
        """
        summary, found = self.summaries[partition_id], list[tuple[int, int]]()
        for number in reversed(self.log.numbers):
            span = self.log.span(number, partition_id) if number < before else None
            if span is not None:
                (first, last), limit = span, min(upto, summary.limit(number))
                if max(first - 1, after) < min(last, limit):
                    found.append((number, limit))
                if first <= after:
                    break
        found.reverse()
        return found

    def scan(
        self, partition_id: int, after: int, upto: int, skip: Collection[int] = ()
    ) -> Iterator[list[StoredChange]]:
        """Yield live records in (after, upto] but those in `skip`, in bounded chunks."""
        for number, columns, begin, end in self.ranges(partition_id, after, upto):
            yield from self.log.changes(number, columns, begin, end, skip)

    def scan_frames(
        self,
        partition_id: int,
        after: int,
        upto: int,
        skip: Collection[int] = (),
        *,
        is_described: bool = False,
    ) -> Iterator[tuple[list[bytes], int]]:
        """Yield the frames of the same records, each chunk with its last seqno."""
        read = partial(self.log.frames, is_described=is_described)
        for number, columns, begin, end in self.ranges(partition_id, after, upto):
            yield from read(number, columns, begin, end, skip)

    def sizes(
        self, partition_id: int, after: int, upto: int, skip: Collection[int] = ()
    ) -> Iterator[Sizes]:
        """Yield seqnos and lengths of the same records, and the last seqno; reads indexes only."""
        for _, columns, begin, end in self.ranges(partition_id, after, upto):
            seqnos, offsets, stops = live_records(columns, begin, end, skip)
            yield seqnos, list(map(sub, stops, offsets)), columns.seqnos[end - 1]

    def superseded(self, partition_id: int, after: int, at: int) -> set[int]:
        """Return seqnos that live records in (after, at] replaced; reads indexes only."""
        found: set[int] = set()
        for _, columns, begin, end in self.ranges(partition_id, after, at):
            previous = columns.previous[begin:end]
            if previous.tobytes().strip(b"\0"):  # where all documents are new nothing is counted
                found.update(previous)
        found.discard(0)
        return found

    def newest_mark(self, partition_id: int, seqno: int) -> int:
        """Return the newest live mark at or below `seqno`, 0 if none.

        A sealed segment's columns are read once: until the seqno, or what counts, is another one.
        """
        summary, log = self.summaries[partition_id], self.log
        now = (seqno, log.swaps, summary.mark)
        known = self._marks.get(partition_id)
        if known is not None and known[:3] == now and known.kills is summary.kills:
            return known.mark
        for number in reversed(log.numbers):
            columns = log.columns(number, partition_id)
            if columns is not None:
                limit = min(seqno, summary.limit(number))
                found = next((mark for mark in reversed(columns.marks) if mark <= limit), 0)
                if found:
                    if not log.is_open(number):
                        self._marks[partition_id] = _KnownMark(*now, summary.kills, found)
                    return found
        return 0

    def newest_change(self, partition_id: int) -> StoredChange | None:
        """Return the newest live record, None if there is none; while nothing is compacted.

        From the newest segment back: a start asks for it of every partition.
        """
        summary, log = self.summaries[partition_id], self.log
        for number in reversed(log.numbers):
            span, limit = log.span(number, partition_id), summary.limit(number)
            columns = log.columns(number, partition_id) if span and span[0] <= limit else None
            if columns:
                begin, end = columns.between(0, limit)
                for index in range(end - 1, begin - 1, -1):
                    for chunk in log.changes(number, columns, index, index + 1):
                        return chunk[0]
        return None

    def places_of(self, partition_id: int, seqnos: set[int]) -> dict[int, Place]:
        """Return where live records stand; what is gone or superseded is left out."""
        summary, found = self.summaries[partition_id], dict[int, Place]()
        wanted = set(seqnos)
        for number in reversed(self.log.numbers):
            if not wanted:
                break
            columns = self.log.columns(number, partition_id)
            if columns is None or not columns.seqnos:
                continue
            limit = summary.limit(number)
            for seqno in sorted(wanted):
                index = columns.find(seqno) if seqno <= limit else -1
                if index >= 0:
                    wanted.discard(seqno)
                    if not columns.is_superseded(index):
                        found[seqno] = Place(number, columns.offsets[index])
        return found

    def versions(self, partition_id: int, key: bytes, seqno: int) -> Iterator[StoredChange]:
        """Yield the changes of a key from a live one back, newest first, as far as they are there.

        A change names the one that it replaced, so this reads nothing of other keys. It ends where
        a change was never in the log, or is superseded or gone. Blocks.

        Raises:
            CorruptionError: a record or an index is damaged.
        """
        log, wanted = self.log, seqno
        while True:
            swaps = log.swaps
            try:
                for number in reversed(log.numbers):
                    columns = self._columns_with(number, partition_id, wanted)
                    while columns is not None and (at := columns.find(wanted)) >= 0:
                        chunk = next(log.changes(number, columns, at, at + 1), [])
                        if not chunk or key_of(chunk[0].frame) != key:
                            return
                        yield chunk[0]
                        wanted = chunk[0].previous_seqno
                    if log.swaps != swaps:
                        break
                else:
                    return
            except FileNotFoundError:
                if log.swaps == swaps:
                    raise

    def _columns_with(self, number: int, partition_id: int, seqno: int) -> Columns | None:
        """Return the columns of a segment if a live seqno may be in it."""
        span = self.log.span(number, partition_id)
        limit = self.summaries[partition_id].limit(number)
        if span is None or not span[0] <= seqno <= min(span[1], limit):
            return None
        return self.log.columns(number, partition_id)

    def dead_keys(
        self, partition_id: int, seqno: int, segment: int, killed: Columns | None
    ) -> Iterator[tuple[bytes, int]]:
        """Yield (key, previous seqno) of all that a rollback to `seqno` in `segment` kills.

        Before the summary knows of it; superseded records too. `killed`: what it kills in its own
        segment.
        """
        log = self.log
        for number, columns, begin, end in self.ranges(partition_id, seqno, UINT64_MAX, segment):
            yield from zip(
                log.keys(number, columns, begin, end), columns.previous[begin:end], strict=True
            )
        if killed is not None:
            yield from zip(
                log.keys(segment, killed, 0, len(killed.seqnos)), killed.previous, strict=True
            )
