"""Verification of a whole log at rest: every byte, every index, and what the records say together.

Invariants:
1. Nothing is written.
2. What is told as damage is something that a reader would be told wrongly, or could not be told.

Elsewhere: opening the log (`segment_log`), the directory around it (`data_directory.check`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain

from millstream.errors import CorruptionError
from millstream.storage.core.by_id import ById, partition_prefix
from millstream.storage.core.live import LiveLog
from millstream.storage.core.marking import points_in_force
from millstream.storage.core.records import Kind, is_tombstone, key_of
from millstream.storage.core.recovery import (
    is_by_id_of,
    load_summaries,
    refuse_foreign,
    refuse_shorter,
)
from millstream.storage.core.segment import Columns
from millstream.storage.core.segment_files import Place
from millstream.storage.core.segment_log import SegmentLog
from millstream.storage.core.summary import PartitionSummary

__all__ = ["LogCheck", "PartitionCheck", "check_log"]

_COLUMNS = ("seqnos", "previous", "offsets", "lengths")


_Sidecar = bytes


@dataclass(slots=True)
class PartitionCheck:
    """What the log has of one partition."""

    partition: int
    changes: int = 0
    """All records of changes: the sum of the next four."""
    documents: int = 0
    tombstones: int = 0
    """Deletions that are the newest of their keys."""
    replaced: int = 0
    """Older versions; `marked` of them are kept from readers already."""
    dead: int = 0
    """Killed by rollbacks."""
    marked: int = 0
    marks: int = 0
    high_seqno: int = 0
    history_seqno: int = 0
    purge_seqno: int = 0


@dataclass(slots=True)
class LogCheck:
    """What was found in one log."""

    segments: int = 0
    compacted_segments: int = 0
    bytes: int = 0
    records: int = 0
    by_id: str = ""
    """Whether a start uses the by-id map: `current`, `behind` or `rebuilt`."""
    by_id_keys: int = 0
    sidecars: dict[Place, _Sidecar] = field(default_factory=dict)
    """The sidecars of the newest records of their keys, by the places of the records."""
    partitions: list[PartitionCheck] = field(default_factory=list)


class _Newest:
    """The newest live record of a key, while a partition is read."""

    __slots__ = ("is_marked", "is_tombstone", "place", "seqno")

    def __init__(self, seqno: int, place: Place, *, is_tombstone: bool, is_marked: bool) -> None:
        self.seqno = seqno
        self.place = place
        self.is_tombstone = is_tombstone
        self.is_marked = is_marked


def check_log(
    log: SegmentLog,
    partition_count: int,
    by_id: ById | None,
    tell: Callable[[float], None] = lambda _: None,
    is_wanted: Callable[[bytes], bool] = lambda _: False,
) -> LogCheck:
    """Read everything; `by_id` is None if a start would not trust its file.

    `tell` is called with the share that was read, 0 to 1; `is_wanted` says which sidecars are
    wanted.

    Raises:
        CorruptionError: something is damaged; names segment and offset, or partition and seqno.
    """
    found = LogCheck(len(log.numbers), len(log.firsts))
    found.partitions = [PartitionCheck(p) for p in range(partition_count)]
    total = sum(map(log.end_of, log.numbers))
    for number in log.numbers:
        _check_segment(log, number, found, is_wanted)
        tell(found.bytes / total / 2)  # the other half is what the records say together
    live = LiveLog(log, [PartitionSummary() for _ in range(partition_count)])
    load_summaries(live)
    if by_id is not None:
        refuse_shorter(log, by_id)
    applied = by_id.applied() if by_id is not None and is_by_id_of(log, by_id) else None
    found.by_id = "rebuilt"
    if applied is not None:
        found.by_id = "current" if applied.place == log.place else "behind"
    sidecars, found.sidecars = found.sidecars, {}
    for p, partition in enumerate(found.partitions):
        newest = _check_partition(live, p, partition)
        places = (one.place for one in newest.values() if not one.is_marked)
        found.sidecars |= {place: sidecars[place] for place in places if place in sidecars}
        if (
            by_id is not None
            and applied is not None
            and not _rolls_back_behind(log, applied.place)
        ):
            found.by_id_keys += _check_by_id(by_id, p, newest, applied.place)
        tell(0.5 + (p + 1) / partition_count / 2)
    return found


def _check_segment(
    log: SegmentLog, number: int, found: LogCheck, is_wanted: Callable[[bytes], bool]
) -> None:
    """Read a segment from end to end; compare it with its index."""
    if not log.is_open(number):
        log.verify(number)
    found.bytes += log.end_of(number)
    for record in log.walk(number):
        found.records += 1
        p = record.partition_id
        if record.kind == Kind.CHANGE:
            refuse_foreign(log, number, p, len(found.partitions))
            found.partitions[p].changes += 1
            if record.sidecar_bytes and is_wanted(record.sidecar):
                found.sidecars[Place(number, record.offset)] = record.sidecar
    if log.is_open(number):
        return
    walked, _, _ = log.index_of(number)
    for p in {*log.partitions_in(number), *walked.partitions}:
        sealed, right = log.columns(number, p) or Columns(), walked.of(p)
        is_same = all(getattr(sealed, name) == getattr(right, name) for name in _COLUMNS)
        if not is_same or list(sealed.marks) != sorted(right.marks):
            raise CorruptionError(
                f"{log.describe(number)}: its index of partition {p} is not what is in it; "
                "restore it from a replica or a backup"
            )


def _check_partition(live: LiveLog, p: int, found: PartitionCheck) -> dict[bytes, _Newest]:
    """Follow the live records of a partition; return the newest of each key."""
    log, summary = live.log, live.summaries[p]
    found.high_seqno = summary.mark
    found.history_seqno, found.purge_seqno = summary.low_points
    history_seqno, purge_seqno = points_in_force(summary)
    newest: dict[bytes, _Newest] = {}
    count = last = 0
    for number in log.numbers:
        columns = log.columns(number, p)
        if columns is None:
            continue
        limit = summary.limit(number)
        end = columns.between(0, limit)[1]
        found.marks += sum(mark <= limit for mark in columns.marks)
        frames = chain.from_iterable(_frames(log, number, columns, end))
        for index, frame in enumerate(frames):
            seqno, previous = columns.seqnos[index], columns.previous[index]
            where = f"{log.describe(number)}, partition {p}, seqno {seqno}"
            if seqno <= last:
                raise CorruptionError(f"{where}: it follows seqno {last}")
            last, count = seqno, count + 1
            is_marked = columns.is_superseded(index)
            found.marked += is_marked
            if is_marked and seqno >= history_seqno and seqno > purge_seqno:
                raise CorruptionError(f"{where}: it is marked, but not below {history_seqno}")
            key = key_of(frame)
            before = newest.get(key)
            if before is not None and previous != before.seqno and not before.is_marked:
                raise CorruptionError(f"{where}: it does not know of seqno {before.seqno}")
            if previous >= seqno:
                raise CorruptionError(f"{where}: it replaces seqno {previous}")
            newest[key] = _Newest(
                seqno, Place(number, columns.offsets[index]),
                is_tombstone=is_tombstone(frame), is_marked=is_marked,
            )  # fmt: skip
    kept = [one for one in newest.values() if not one.is_marked]
    found.tombstones = sum(one.is_tombstone for one in kept)
    found.documents = len(kept) - found.tombstones
    found.replaced = count - len(kept)
    found.dead = found.changes - count
    return newest


def _frames(log: SegmentLog, number: int, columns: Columns, end: int) -> Iterator[list[bytes]]:
    """Yield the frames of the first records, marked ones too."""
    part = columns.select(0, end, b"\1" * end)
    for frames, _ in log.frames(number, part, 0, end):
        yield frames


def _rolls_back_behind(log: SegmentLog, place: Place) -> bool:
    """Return whether a start has more to do to by-id than to add what is newer."""
    for number in log.numbers:
        if number >= place.segment:
            is_open = log.is_open(number)
            for offset in log.open_index.controls if is_open else log.controls_in(number):
                is_behind = Place(number, offset) >= place
                if is_behind and log.record_at(number, offset).kind == Kind.ROLLBACK:
                    return True
    return False


def _check_by_id(by_id: ById, p: int, newest: dict[bytes, _Newest], applied: Place) -> int:
    """Compare the map with the newest records before the place it has reached."""
    prefix, count = partition_prefix(p), 0
    for key, one in newest.items():
        if one.place < applied and not one.is_marked:
            value = by_id.get(prefix + key)
            count += 1
            if value is None or value[0] != one.seqno:
                raise CorruptionError(
                    f"by-id does not name seqno {one.seqno} of partition {p}, key {key!r}; "
                    "remove the directory byid, it is rebuilt",
                    code="by_id_damaged",
                )
    return count
