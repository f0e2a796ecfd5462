"""One group commit as bytes, and what its records mean once they are durable.

A commit is the log's commit record and then pieces: the changes of a partition, or a record that
is no change (a *control*).

Invariants:
1. What a copy must know before it may believe changes (range, failover log and low points of its
   source) stands before them: wherever a crash cuts the commit, what is left makes sense.
2. The mark of a batch stands behind every change at or below it, and before those above.

Elsewhere: the records' layout (`records`), appending and absorbing commits (`store`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from millstream.storage.core import records
from millstream.storage.core.records import (
    ChangeColumns,
    CopyNews,
    Kind,
    branch_record,
    entry_record,
    has_tombstones,
    history_record,
    low_points_record,
    mark_record,
    owed_record,
    range_record,
    rollback_record,
    state_record,
    tombstones_of,
)
from millstream.storage.core.segment_files import Place

__all__ = [
    "PART_BYTES", "Changes", "Control", "EncodedCommit", "control", "encode_batches",
    "encode_controls",
]  # fmt: skip

PART_BYTES: Final = 512 * 1024
"""What a commit holds up to here is joined, so that it is written at once."""


class Changes(NamedTuple):
    """Changes of one partition that stand back to back; their frames are not kept."""

    partition_id: int
    seqnos: Sequence[int]
    keys: Sequence[bytes]
    previous_seqnos: Sequence[int]
    tombstones: Sequence[int]
    lengths: list[int]
    is_marked: bool
    """The last one is a mark."""

    def new_keys(self, purge_seqno: int) -> Sequence[bytes]:
        """Return the keys that had no record before, or only one that may have been purged.

        Args:
            purge_seqno: records up to it may have been.
        """
        keys, previous_seqnos = self.keys, self.previous_seqnos
        new_count = previous_seqnos.count(0)
        if new_count == len(keys):
            return keys
        if not new_count and not purge_seqno:
            return ()
        pairs = zip(keys, previous_seqnos, strict=True)
        return [key for key, previous in pairs if previous <= purge_seqno]


class Control(NamedTuple):
    """A record that is no change, and the partition it concerns; `content` as in its payload."""

    kind: Kind
    partition_id: int
    data: bytes
    content: Any = None


class EncodedCommit:
    """One group commit as bytes, in parts; `place` is where it begins, once appended."""

    __slots__ = ("checksum", "end", "parts", "pieces", "place", "size")

    def __init__(self, parts: Sequence[bytes], pieces: Sequence[Changes | Control]) -> None:
        self.parts = parts
        self.size = sum(map(len, parts))
        self.pieces = pieces
        self.place = Place(0, 0)
        self.end = Place(0, 0)
        self.checksum = 0


_ENCODERS: Final[Mapping[Kind, Callable[[int, Any], bytes]]] = {
    Kind.ENTRY: entry_record,
    Kind.ROLLBACK: rollback_record,
    Kind.MARK: mark_record,
    Kind.LOW_POINTS: low_points_record,
    Kind.BRANCH: branch_record,
    Kind.STATE: state_record,
    Kind.HISTORY: history_record,
    Kind.RANGE: range_record,
    Kind.OWED: owed_record,
}


def control(kind: Kind, partition_id: int, content: Any) -> Control:
    """Return the record of a kind that says `content` of a partition."""
    return Control(kind, partition_id, _ENCODERS[kind](partition_id, content), content)


def encode_controls(head: bytes, controls: Sequence[Control]) -> EncodedCommit:
    """Return a commit without changes; `head` is the log's commit record."""
    return EncodedCommit([b"".join((head, *(piece.data for piece in controls)))], controls)


def encode_batches(head: bytes, batches: Sequence[ChangeColumns]) -> EncodedCommit:
    """Return the commit of flush batches; those that say nothing are left out."""
    parts, pieces = [head], list[Changes | Control]()
    plain = [
        batch
        for batch in batches
        if batch.mark is None and batch.news is None and batch.sidecars is None and batch.frames
    ]
    lengths_of_all = records.encode_many(plain, parts)
    find = tombstones_of if has_tombstones(plain) else _no_tombstones
    for batch, lengths in zip(plain, lengths_of_all, strict=True):
        pieces.append(_encoded(batch, find(batch), lengths, is_marked=True))
    for batch in batches:
        if batch.mark is None and batch.news is None and batch.sidecars is None:
            continue
        for piece in _pieces_of_copy(batch):
            if isinstance(piece, Control):
                parts.append(piece.data)
                pieces.append(piece)
            else:
                part, is_marked = piece
                lengths = records.encode_changes(part, parts, is_marked=is_marked)
                pieces.append(_encoded(part, tombstones_of(part), lengths, is_marked=is_marked))
    size = sum(sum(piece.lengths) for piece in pieces if isinstance(piece, Changes))
    return EncodedCommit([b"".join(parts)] if size <= PART_BYTES else _joined(parts), pieces)


def _joined(parts: Sequence[bytes]) -> list[bytes]:
    """Join what is small, up to `PART_BYTES` at a time; what is large is not copied."""
    found, small, size = list[bytes](), list[bytes](), 0
    for part in parts:
        if small and size + len(part) > PART_BYTES:
            found.append(b"".join(small))
            small, size = [], 0
        small.append(part)
        size += len(part)
    return [*found, b"".join(small)]


def _encoded(
    batch: ChangeColumns, tombstones: Sequence[int], lengths: list[int], *, is_marked: bool
) -> Changes:
    return Changes(
        batch.partition_id, batch.seqnos, batch.keys, batch.previous_seqnos, tombstones, lengths,
        is_marked,
    )  # fmt: skip


def _no_tombstones(_: ChangeColumns) -> Sequence[int]:
    return ()


def _pieces_of_copy(batch: ChangeColumns) -> list[Control | tuple[ChangeColumns, bool]]:
    """Return what a replica's batch is made of; of changes with whether the last is a mark."""
    p, news = batch.partition_id, batch.news or CopyNews()
    pieces: list[Control | tuple[ChangeColumns, bool]] = []
    if news.failover_log:
        pieces.append(control(Kind.HISTORY, p, news.failover_log))
    if news.low_points is not None:
        pieces.append(control(Kind.LOW_POINTS, p, news.low_points))
    if news.owed is not None:
        pieces.append(control(Kind.OWED, p, news.owed))
    if news.range_end:
        pieces.append(control(Kind.RANGE, p, news.range_end))
    mark, total = batch.mark, len(batch.frames)
    if mark is None:
        mark = batch.seqnos[-1] if total else 0
    count = bisect_right(batch.seqnos, mark)
    is_marked = count > 0 and batch.seqnos[count - 1] == mark
    if count:
        pieces.append((batch.part(0, count), is_marked))
    if mark and not is_marked:
        pieces.append(control(Kind.MARK, p, mark))
    if count < total:
        pieces.append((batch.part(count, total), False))
    return pieces
