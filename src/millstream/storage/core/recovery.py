"""Bringing summaries and by-id up to the end of the log, and by-id through a rollback.

Two ways to start: by-id belongs to the log, then only the records behind its applied place are
read, column by column, and wait for by-id as those of a commit do; or it is lost or damaged, then
summaries come from the segments' indexes and control records, and by-id from the live records
(never by replaying dead ones, whose previous records may be gone).

Invariants:
1. by-id belongs to the log iff the log id is the same, the applied place is not behind the end nor
   before the one that compacted segments ask for, and the applied segment has the same crc32 up to
   that place.
2. After a rollback a key has its newest live record: the one that the oldest dead record of the
   key names as previous, if it is still there and not dead, too. (That number may have been given
   to another key's record since.)

Elsewhere: the segments (`segment_log`), what a start writes (`store`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from itertools import repeat
from typing import Any, Final

from millstream.errors import CorruptionError
from millstream.model.limits import UINT64_MAX
from millstream.storage.core.by_id import BY_ID_DAMAGED, ById, ByIdValue, partition_prefix
from millstream.storage.core.live import LiveLog
from millstream.storage.core.records import (
    Kind,
    Record,
    entry_of,
    history_of,
    key_of,
    low_points_of,
    owed_of,
    seqno_payload,
    state_of,
)
from millstream.storage.core.segment import HEADER_BYTES, SUPERSEDED, Columns
from millstream.storage.core.segment_files import Place
from millstream.storage.core.segment_log import SegmentLog
from millstream.storage.core.summary import PartitionSummary

__all__ = [
    "apply_rollback",
    "bring_up",
    "build_by_id",
    "content_of",
    "is_by_id_of",
    "load_summaries",
    "note",
    "refuse_foreign",
    "refuse_shorter",
    "replay",
    "take_in",
]

BUILD_KEYS_MAX: Final = 100_000
"""Keys applied at once while by-id is built anew."""


def bring_up(live: LiveLog, by_id: ById) -> bool:
    """Fill summaries and by-id up to the end of the log; return whether by-id was built anew.

    Raises:
        CorruptionError: records or indexes of the log are damaged; by-id may be.
    """
    partition_count = len(live.summaries)
    try:
        if is_by_id_of(live.log, by_id):
            applied = by_id.applied()
            assert applied is not None
            live.summaries[:] = [by_id.summary(p) for p in range(partition_count)]
            by_id.begin_at(applied.place.segment)
            replay(live, by_id, applied.place)
            return False
    except CorruptionError as error:
        if error.code != BY_ID_DAMAGED:
            raise
    live.summaries[:] = [PartitionSummary() for _ in range(partition_count)]
    load_summaries(live)
    by_id.begin_at(live.log.place.segment)
    build_by_id(live, by_id)
    return True


def refuse_shorter(log: SegmentLog, by_id: ById) -> None:
    """Refuse a log that lacks what by-id has taken from it: that was durable.

    Raises:
        CorruptionError: `log_lost`.
    """
    try:
        applied = by_id.applied()
    except CorruptionError:  # damaged: it proves nothing, and is built anew
        return
    if applied is None:
        return
    if applied.log_id != log.log_id:
        raise CorruptionError(
            f"{log.describe(log.numbers[-1])}: the map of keys in byid belongs to another log "
            "than this one; restore the log from a replica or a backup",
            code="log_lost",
        )
    if applied.place > log.place:
        raise CorruptionError(
            f"{log.describe(applied.place.segment)}: the log ends at segment {log.place.segment}, "
            f"offset {log.place.offset}; the map of keys in byid has records up to segment "
            f"{applied.place.segment}, offset {applied.place.offset}; restore the log from a "
            "replica or a backup",
            code="log_lost",
        )


def is_by_id_of(log: SegmentLog, by_id: ById) -> bool:
    """Return whether by-id belongs to this log and is not ahead of it."""
    applied = by_id.applied()
    if applied is None or applied.log_id != log.log_id or applied.place > log.place:
        return False
    segment, offset = applied.place
    if applied.place < log.by_id_place:  # it may not know what compaction took away
        return False
    if segment not in log.numbers or offset > log.end_of(segment):
        return False
    return log.checksum_of(segment, offset) == applied.checksum


def note(summary: PartitionSummary, record: Record, segment: int) -> None:
    """Take a record that is no change into its partition's summary."""
    kind, content = record.kind, content_of(record.kind, record.payload)
    if kind == Kind.ROLLBACK:
        summary.on_rollback(segment, content)
    elif content is not None:
        take_in(summary, kind, content)


_CONTENTS: Final[Mapping[int, Callable[[bytes], Any]]] = {
    Kind.ENTRY: entry_of,
    Kind.ROLLBACK: seqno_payload,
    Kind.MARK: seqno_payload,
    Kind.LOW_POINTS: low_points_of,
    Kind.BRANCH: seqno_payload,
    Kind.STATE: state_of,
    Kind.HISTORY: history_of,
    Kind.RANGE: seqno_payload,
    Kind.OWED: owed_of,
}


def content_of(kind: int, payload: bytes) -> Any:
    """Return what a record that is no change says; None if that concerns no partition."""
    decode = _CONTENTS.get(kind)
    return None if decode is None else decode(payload)


def take_in(summary: PartitionSummary, kind: int, content: Any) -> None:
    """Take what a record says, but for changes and rollbacks, into a summary."""
    if kind == Kind.ENTRY:
        summary.on_entry(content)
    elif kind == Kind.MARK:
        summary.on_mark(content)
    elif kind == Kind.LOW_POINTS:
        summary.on_low_points(content)
    elif kind == Kind.BRANCH:
        summary.on_branch(content)
    elif kind == Kind.STATE:
        summary.state = content
    elif kind == Kind.HISTORY:
        summary.on_history(content)
    elif kind == Kind.RANGE:
        summary.range_end = content
    elif kind == Kind.OWED:
        summary.owed = content


def replay(live: LiveLog, by_id: ById, applied: Place) -> None:
    """Read the records behind the applied place into summaries and by-id."""
    log = live.log
    tail = [
        (number, applied.offset if number == applied.segment else HEADER_BYTES)
        for number in log.numbers
        if number >= applied.segment
    ]
    controls = {number: _controls_from(log, number, begin) for number, begin in tail}
    if any(found.kind == Kind.ROLLBACK for some in controls.values() for found in some):
        _replay_in_order(live, by_id, tail)
        return
    for number, begin in tail:
        for found in controls[number]:
            if found.kind != Kind.CLEAN_STOP:
                note(live.summaries[found.partition_id], found, number)
        for partition_id in log.partitions_in(number):
            _replay_columns(live, by_id, number, begin, partition_id)


def _controls_from(log: SegmentLog, number: int, begin: int) -> list[Record]:
    offsets = log.open_index.controls if log.is_open(number) else log.controls_in(number)
    return [log.record_at(number, offset) for offset in offsets if offset >= begin]


def _replay_columns(
    live: LiveLog, by_id: ById, number: int, begin: int, partition_id: int
) -> None:
    """Read one partition's records of a segment from an offset on; none was rolled back."""
    columns, summary = live.log.recent_columns(number, partition_id), live.summaries[partition_id]
    assert columns is not None
    first = bisect_left(columns.offsets, begin)
    if first < len(columns.seqnos):
        seqnos = columns.seqnos[first:].tolist()
        keys = live.log.keys(number, columns, first, len(columns.seqnos))
        by_id.note(partition_id, keys, seqnos, keys)
        summary.top = max(summary.top, seqnos[-1])
    if columns.marks:
        summary.on_mark(columns.marks[-1])


def _replay_in_order(live: LiveLog, by_id: ById, tail: list[tuple[int, int]]) -> None:
    """Replay record by record: a rollback voids records before it."""
    log = live.log
    for number, begin in tail:
        index = log.open_index if log.is_open(number) else log.index_of(number)[0]
        for found in log.walk(number, begin):
            kind, partition_id = found.kind, found.partition_id
            if kind == Kind.CHANGE:
                frame = found.payload
                seqno = int.from_bytes(frame[24:32], "big")
                live.summaries[partition_id].on_change(seqno, is_mark=found.is_mark)
                key = partition_prefix(partition_id) + key_of(frame)
                by_id.pending[key] = (seqno, number, found.offset)
            elif kind == Kind.ROLLBACK:
                killed = index.killed.get(found.offset)
                target = seqno_payload(found.payload)
                apply_rollback(live, by_id, partition_id, target, number, killed)
            elif kind not in (Kind.COMMIT, Kind.CLEAN_STOP):
                note(live.summaries[partition_id], found, number)


def apply_rollback(
    live: LiveLog, by_id: ById, partition_id: int, seqno: int, segment: int, killed: Columns | None
) -> None:
    """Take a rollback record into the summary, and give by-id what was newest below it."""
    prefix, previous = partition_prefix(partition_id), dict[bytes, int]()
    for key, before in live.dead_keys(partition_id, seqno, segment, killed):
        previous.setdefault(key, before)
    live.summaries[partition_id].on_rollback(segment, seqno)
    places = live.places_of(partition_id, {found for found in previous.values() if found <= seqno})
    for key, found in previous.items():
        place = places.get(found)
        by_id.pending[prefix + key] = None if place is None else (found, *place)


def load_summaries(live: LiveLog) -> None:
    """Fill summaries from indexes and control records; changes are not read.

    Raises:
        CorruptionError: an index or a record is damaged, or of a partition that the bucket lacks.
    """
    log = live.log
    for number in log.numbers:
        is_open = log.is_open(number)
        for offset in log.open_index.controls if is_open else log.controls_in(number):
            found = log.record_at(number, offset)
            if found.kind != Kind.CLEAN_STOP:
                refuse_foreign(log, number, found.partition_id, len(live.summaries))
                note(live.summaries[found.partition_id], found, number)
        for partition_id in log.partitions_in(number):
            refuse_foreign(log, number, partition_id, len(live.summaries))
            columns = log.columns(number, partition_id)
            assert columns is not None
            summary = live.summaries[partition_id]
            if columns.marks:
                summary.on_mark(columns.marks[-1])
            if columns.seqnos:
                summary.top = max(summary.top, columns.seqnos[-1])


def refuse_foreign(log: SegmentLog, number: int, partition_id: int, partition_count: int) -> None:
    """Refuse the log of another bucket, which has more partitions.

    Raises:
        CorruptionError: the segment has something of a partition that the bucket lacks.
    """
    if partition_id >= partition_count:
        raise CorruptionError(
            f"{log.describe(number)} has records of partition {partition_id}; the bucket has "
            f"{partition_count}: this is the log of another bucket; restore its own"
        )


def build_by_id(live: LiveLog, by_id: ById) -> None:
    """Build by-id anew from the live records."""
    log = live.log
    by_id.clear()
    values: dict[bytes, ByIdValue | None] = {}
    for number in log.numbers:
        for partition_id in log.partitions_in(number):
            columns = log.columns(number, partition_id)
            assert columns is not None
            limit = live.summaries[partition_id].limit(number)
            begin, end = columns.between(0, min(limit, UINT64_MAX))
            keys = map(
                partition_prefix(partition_id).__add__, log.keys(number, columns, begin, end)
            )
            places = zip(columns.seqnos[begin:end], repeat(number), columns.offsets[begin:end])
            values.update(zip(keys, _unless_hidden(places, columns.flags[begin:end]), strict=True))
            if len(values) >= BUILD_KEYS_MAX:
                by_id.fill(values)
                values = {}
    by_id.fill(values)


def _unless_hidden(places: Iterable[ByIdValue], flags: bytes) -> Iterable[ByIdValue | None]:
    """Return places, None for those of superseded records."""
    if not flags:
        return places
    return (
        None if flag & SUPERSEDED else place for place, flag in zip(places, flags, strict=True)
    )
