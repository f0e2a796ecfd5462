"""Records of the document log: the envelope, its kinds, and how a run of records is walked.

    checksum 4 | length 4 | kind 1 | partition 2 | previous seqno 8 | lineage length 2 |
    sidecar length 4 | lineage | sidecar | payload

`checksum` is the crc32 of everything after it; `length` counts the whole record, envelope
included. The payload of a change is its canonical stream frame.

Invariants:
1. A record that does not reach its length, or whose checksum differs, is no record.
2. `previous seqno` names the key's previous record in the log, never one that a queue dropped.
3. Bit 0x80 of the kind is the mark bit: the record's seqno is a mark of its partition.
4. Every group commit begins with the log's commit record, the same bytes each time, so that a
   commit after a damaged place is found without trusting any length.

Elsewhere: segments and their index (`segment`), the meaning of the kinds (`summary`).

Source: docs/reference/file-format.md.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import IntEnum
from itertools import accumulate, chain, repeat
from operator import add, itemgetter
from struct import Struct
from typing import Final, NamedTuple
from zlib import crc32

from millstream import accelerated
from millstream.model.partitions import PartitionState
from millstream.model.position import FailoverEntry, FailoverLog

__all__ = [
    "ENVELOPE",
    "ENVELOPE_BYTES",
    "FRAME_BYTES_MIN",
    "FRAME_ENVELOPE",
    "FRAME_IN_BODY",
    "MARK_BIT",
    "MUTATION",
    "NOTHING_OWED",
    "NO_PARTITION",
    "WALK_BYTES",
    "ChangeColumns",
    "CopyNews",
    "Kind",
    "LowPoints",
    "Owed",
    "Record",
    "StoredChange",
    "branch_record",
    "change_of_record",
    "change_record",
    "clean_stop_record",
    "commit_record",
    "cut_changes",
    "cut_frames",
    "cut_records",
    "encode_changes",
    "encode_many",
    "entry_of",
    "entry_record",
    "has_tombstones",
    "history_of",
    "history_record",
    "is_tombstone",
    "key_of",
    "low_points_of",
    "low_points_record",
    "mark_record",
    "named_change",
    "owed_of",
    "owed_record",
    "range_record",
    "record",
    "record_head",
    "rollback_record",
    "seqno_payload",
    "state_of",
    "state_record",
    "tombstones_of",
    "walk",
]

ENVELOPE: Final = Struct(">IIBHQHI")
_unpack: Final = ENVELOPE.unpack_from
ENVELOPE_BYTES: Final = 25
FRAME_ENVELOPE: Final = Struct(">I15xHI")
"""Checksum, and the lengths of lineage and sidecar: what it takes to find the frame."""
FRAME_IN_BODY: Final = ENVELOPE_BYTES - 4
"""Offset of a frame after the checksum of a record, without lineage and sidecar."""
_CHECKED: Final = Struct(">IBHQHI")
_SEQNO: Final = Struct(">Q")
_frame_seqno: Final = Struct(">24xQ").unpack_from
_CHECKSUM: Final = Struct(">I")
_ENTRY: Final = Struct(">QQQ")
_LOW_POINTS: Final = Struct(">QQ")
MARK_BIT: Final = 0x80
NO_PARTITION: Final = 0xFFFF
"""Partition of records that concern the whole log."""
WALK_BYTES: Final = 1024 * 1024
"""Read at once while walking; a longer record is read alone."""
_CHANGE: Final = 1
_MARKED_CHANGE: Final = 1 | MARK_BIT
MUTATION: Final = 0x57
FRAME_BYTES_MIN: Final = 32
"""Header and seqno of a change's frame."""
_opcode_of = itemgetter(1)
_MUTATION_BYTE: Final = bytes([MUTATION])


class Kind(IntEnum):
    """What a record says; a kind not listed here is of a newer format."""

    CHANGE = 1
    ENTRY = 2
    ROLLBACK = 3
    MARK = 4
    LOW_POINTS = 5
    CLEAN_STOP = 6
    COMMIT = 7
    INDEX = 8
    BRANCH = 9
    STATE = 10
    HISTORY = 11
    RANGE = 12
    OWED = 13


class StoredChange(NamedTuple):
    """One change to append, or one read back."""

    frame: bytes
    previous_seqno: int
    lineage: bytes
    sidecar: bytes = b""


class CopyNews(NamedTuple):
    """What a replica must make durable together with changes; nothing of it if they are torn off.

    `range_end`: where the snapshot ends that the changes are of, 0: as it was. `owed`: None: as
    it was.
    """

    failover_log: FailoverLog = ()
    low_points: LowPoints | None = None
    range_end: int = 0
    owed: Owed | None = None


class ChangeColumns(NamedTuple):
    """The changes of one partition that a flush takes, column by column, seqno ascending.

    `sidecars` is None where no change has one. `mark`: the seqno that becomes a mark, 0 for none;
    by default that of the last change. A mark above every earlier one that is no change's seqno
    gets a record of its own.
    """

    partition_id: int
    seqnos: Sequence[int]
    keys: Sequence[bytes]
    frames: Sequence[bytes]
    previous_seqnos: Sequence[int]
    lineages: Sequence[bytes]
    sidecars: Sequence[bytes] | None = None
    mark: int | None = None
    news: CopyNews | None = None

    @classmethod
    def of(cls, partition_id: int, changes: Sequence[StoredChange]) -> ChangeColumns:
        """Return whole changes as columns."""
        return cls(
            partition_id,
            [_SEQNO.unpack_from(change.frame, 24)[0] for change in changes],
            [key_of(change.frame) for change in changes],
            [change.frame for change in changes],
            [change.previous_seqno for change in changes],
            [change.lineage for change in changes],
            [change.sidecar for change in changes],
        )

    def part(self, begin: int, end: int) -> ChangeColumns:
        """Return the changes of a range of indexes."""
        if begin == 0 and end == len(self.frames):
            return self
        return self._replace(
            seqnos=self.seqnos[begin:end],
            keys=self.keys[begin:end],
            frames=self.frames[begin:end],
            previous_seqnos=self.previous_seqnos[begin:end],
            lineages=self.lineages[begin:end],
            sidecars=self.sidecars and self.sidecars[begin:end],
        )


class LowPoints(NamedTuple):
    """History at or below the first may be gone, tombstones below the second."""

    history_seqno: int
    purge_seqno: int


class Owed(NamedTuple):
    """Where a copy must come to again before it has all that it ever acknowledged.

    `memory`: what it said to have in memory, `disk`: on disk. 2^64-1: nobody has said yet.
    """

    memory: int
    disk: int


NOTHING_OWED: Final = Owed(0, 0)


class Record(NamedTuple):
    """One record found by `walk`: its place, its envelope, and the buffer that holds it."""

    offset: int
    length: int
    kind: int
    is_mark: bool
    partition_id: int
    previous_seqno: int
    lineage_bytes: int
    sidecar_bytes: int
    buffer: bytes
    at: int

    @property
    def sidecar(self) -> bytes:
        """The bytes between lineage and payload."""
        begin = self.at + ENVELOPE_BYTES + self.lineage_bytes
        return self.buffer[begin : begin + self.sidecar_bytes]

    @property
    def payload(self) -> bytes:
        """What follows lineage and sidecar."""
        begin = self.at + ENVELOPE_BYTES + self.lineage_bytes + self.sidecar_bytes
        return self.buffer[begin : self.at + self.length]


# -- writing


def encode_changes(
    batch: ChangeColumns, parts: list[bytes], *, is_marked: bool = True
) -> list[int]:
    """Append the records of a flush batch to `parts`; return their lengths.

    The last one bears the mark bit. Hot path: column by column, so that all loops are in C.
    """
    count = len(batch.frames)
    middles = batch.lineages
    lineage_sizes = list(map(len, batch.lineages))
    sidecar_sizes: Iterable[int] = repeat(0)
    if batch.sidecars is not None:
        middles = list(map(add, batch.lineages, batch.sidecars))
        sidecar_sizes = list(map(len, batch.sidecars))
    kinds = chain(repeat(_CHANGE, count - 1), (_MARKED_CHANGE if is_marked else _CHANGE,))
    return _encode(
        kinds, repeat(batch.partition_id), batch.previous_seqnos, lineage_sizes, sidecar_sizes,
        middles, batch.frames, parts,
    )  # fmt: skip


def encode_many(batches: Sequence[ChangeColumns], parts: list[bytes]) -> list[list[int]]:
    """Do what `encode_changes` does, for batches that are marked and have no sidecars.

    In one pass: a commit often has few changes each of many partitions.
    """
    frames = list(chain.from_iterable(batch.frames for batch in batches))
    lineages = list(chain.from_iterable(batch.lineages for batch in batches))
    counts = [len(batch.frames) for batch in batches]
    stops = list(accumulate(counts))
    kinds = [_CHANGE] * len(frames)
    for stop in stops:
        kinds[stop - 1] = _MARKED_CHANGE
    partition_ids = chain.from_iterable(map(repeat, [b.partition_id for b in batches], counts))
    previous_seqnos = chain.from_iterable(batch.previous_seqnos for batch in batches)
    lengths = _encode(
        kinds, partition_ids, previous_seqnos, list(map(len, lineages)), repeat(0),
        lineages, frames, parts,
    )  # fmt: skip
    return [lengths[begin:stop] for begin, stop in zip([0, *stops], stops, strict=False)]


def _encode(
    kinds: Iterable[int],
    partition_ids: Iterable[int],
    previous_seqnos: Iterable[int],
    lineage_sizes: Iterable[int],
    sidecar_sizes: Iterable[int],
    middles: Sequence[bytes],
    frames: Sequence[bytes],
    parts: list[bytes],
) -> list[int]:
    lengths = [
        size + middle + ENVELOPE_BYTES
        for size, middle in zip(map(len, frames), map(len, middles), strict=True)
    ]
    heads = map(
        _CHECKED.pack, lengths, kinds, partition_ids, previous_seqnos, lineage_sizes, sidecar_sizes
    )
    fronts = list(map(add, heads, middles))
    checksums = map(_CHECKSUM.pack, map(crc32, frames, map(crc32, fronts)))
    parts.extend(chain.from_iterable(zip(checksums, fronts, frames, strict=True)))
    return lengths


def change_record(partition_id: int, change: StoredChange, *, is_mark: bool) -> bytes:
    """Return one change as a record."""
    frame, previous_seqno, lineage, sidecar = change
    kind = _MARKED_CHANGE if is_mark else _CHANGE
    return record(kind, partition_id, frame, previous_seqno, lineage, sidecar)


def record(
    kind: int,
    partition_id: int,
    payload: bytes,
    previous_seqno: int = 0,
    lineage: bytes = b"",
    sidecar: bytes = b"",
) -> bytes:
    """Return a record of any kind."""
    body = lineage + sidecar + payload
    head = _CHECKED.pack(
        ENVELOPE_BYTES + len(body), kind, partition_id, previous_seqno, len(lineage), len(sidecar)
    )
    return crc32(body, crc32(head)).to_bytes(4, "big") + head + body


def record_head(kind: int, partition_id: int, payload: Iterable[bytes]) -> bytes:
    """Return the envelope of a record whose payload follows in pieces."""
    pieces = tuple(payload)
    length = ENVELOPE_BYTES + sum(map(len, pieces))
    head = _CHECKED.pack(length, kind, partition_id, 0, 0, 0)
    checksum = crc32(head)
    for piece in pieces:
        checksum = crc32(piece, checksum)
    return checksum.to_bytes(4, "big") + head


def entry_record(partition_id: int, entry: FailoverEntry) -> bytes:
    """Return the record of a new failover entry."""
    return record(Kind.ENTRY, partition_id, _ENTRY.pack(*entry))


def rollback_record(partition_id: int, seqno: int) -> bytes:
    """Return the record that kills everything of the partition before it and above `seqno`."""
    return record(Kind.ROLLBACK, partition_id, _SEQNO.pack(seqno))


def mark_record(partition_id: int, seqno: int) -> bytes:
    """Return the record that keeps a mark whose change was dropped."""
    return record(Kind.MARK | MARK_BIT, partition_id, _SEQNO.pack(seqno))


def low_points_record(partition_id: int, points: LowPoints) -> bytes:
    """Return the record that moves a partition's low points."""
    return record(Kind.LOW_POINTS, partition_id, _LOW_POINTS.pack(*points))


def branch_record(partition_id: int, branch: int) -> bytes:
    """Return the record that raises a partition's last branch without beginning one."""
    return record(Kind.BRANCH, partition_id, _SEQNO.pack(branch))


def state_record(partition_id: int, state: PartitionState) -> bytes:
    """Return the record of what part this copy of the partition plays from now on."""
    return record(Kind.STATE, partition_id, bytes([state]))


def history_record(partition_id: int, log: FailoverLog) -> bytes:
    """Return the record of a failover log taken over as a whole, newest entry first."""
    return record(Kind.HISTORY, partition_id, b"".join(_ENTRY.pack(*entry) for entry in log))


def owed_record(partition_id: int, owed: Owed) -> bytes:
    """Return the record that a copy has lost what it acknowledged, until it is there again."""
    return record(Kind.OWED, partition_id, _LOW_POINTS.pack(*owed))


def range_record(partition_id: int, end: int) -> bytes:
    """Return the record of where the snapshot ends that a replica is receiving."""
    return record(Kind.RANGE, partition_id, _SEQNO.pack(end))


def clean_stop_record(receipt: bytes) -> bytes:
    """Return the last record of a log that was stopped cleanly; `receipt`: 16 random bytes."""
    return record(Kind.CLEAN_STOP, NO_PARTITION, receipt)


def commit_record(log_id: bytes) -> bytes:
    """Return the record that begins every group commit of the log."""
    return record(Kind.COMMIT, NO_PARTITION, log_id)


# -- reading


def entry_of(payload: bytes) -> FailoverEntry:
    """Return the entry in an ENTRY record."""
    return FailoverEntry(*_ENTRY.unpack(payload))


def history_of(payload: bytes) -> FailoverLog:
    """Return the failover log in a HISTORY record."""
    return tuple(map(FailoverEntry._make, _ENTRY.iter_unpack(payload)))


def state_of(payload: bytes) -> PartitionState:
    """Return the state in a STATE record."""
    return PartitionState(payload[0])


def seqno_payload(payload: bytes) -> int:
    """Return the number in a ROLLBACK, MARK, BRANCH or RANGE record."""
    seqno: int = _SEQNO.unpack(payload)[0]
    return seqno


def owed_of(payload: bytes) -> Owed:
    """Return what an OWED record says."""
    return Owed(*_LOW_POINTS.unpack(payload))


def low_points_of(payload: bytes) -> LowPoints:
    """Return the points in a LOW_POINTS record."""
    return LowPoints(*_LOW_POINTS.unpack(payload))


def key_of(frame: bytes) -> bytes:
    """Return the key of a canonical frame. Header: key length at 2, extras length at 4."""
    begin = 24 + frame[4]
    return frame[begin : begin + (frame[2] << 8 | frame[3])]


def is_tombstone(frame: bytes) -> bool:
    """Return whether a canonical frame is a deletion or expiration."""
    return frame[1] != MUTATION


def tombstones_of(batch: ChangeColumns) -> list[int]:
    """Return the seqnos of the deletions and expirations in a batch."""
    return [
        seqno for seqno, frame in zip(batch.seqnos, batch.frames, strict=True)
        if frame[1] != MUTATION
    ]  # fmt: skip


def has_tombstones(batches: Iterable[ChangeColumns]) -> bool:
    """Return whether there is a deletion or expiration in any of them. Hot path."""
    frames = chain.from_iterable([batch.frames for batch in batches])
    return bool(bytes(map(_opcode_of, frames)).strip(_MUTATION_BYTE))


def change_of_record(data: bytes) -> tuple[int, StoredChange] | None:
    """Return (partition, change) of the record `data` begins with; None if it is not valid."""
    if len(data) < ENVELOPE_BYTES:
        return None
    checksum, length, kind, partition_id, previous, lineage_bytes, sidecar_bytes = (
        ENVELOPE.unpack_from(data)
    )
    body = data[4:length]
    if crc32(body) != checksum or length > len(data) or kind & 0x7F != _CHANGE:
        return None
    middle = FRAME_IN_BODY + lineage_bytes
    begin = middle + sidecar_bytes
    if len(body) < begin + FRAME_BYTES_MIN:  # zeros, too, have the checksum that they name
        return None
    lineage, sidecar = body[FRAME_IN_BODY:middle], body[middle:begin]
    return partition_id, StoredChange(body[begin:], previous, lineage, sidecar)


def named_change(data: bytes, partition_id: int, key: bytes, seqno: int) -> StoredChange | None:
    """Return the change of the record that `data` begins with, None if it is not this one.

    Hot path of reading back.
    """
    if len(data) < ENVELOPE_BYTES:
        return None
    checksum, length, kind, owner, previous, lineage_bytes, sidecar_bytes = _unpack(data)
    body = data[4:length]
    if crc32(body) != checksum or owner != partition_id or kind & 0x7F != _CHANGE:
        return None
    middle = FRAME_IN_BODY + lineage_bytes
    begin = middle + sidecar_bytes
    frame = body[begin:]
    if (
        len(frame) < FRAME_BYTES_MIN
        or _frame_seqno(frame)[0] != seqno
        or not frame.startswith(key, 24 + frame[4])
        or frame[2] << 8 | frame[3] != len(key)
        or length > len(data)
    ):
        return None
    return StoredChange(frame, previous, body[FRAME_IN_BODY:middle], body[middle:begin])


def cut_changes(
    data: bytes, start: int, offsets: list[int], stops: list[int]
) -> list[StoredChange]:
    """Return the changes in one read of a segment, up to the first that is not what was written.

    Args:
        data: what was read.
        start: offset of its first byte.
        offsets: of the records, ascending, none before `start`.
        stops: where they end.
    """
    cut: list[StoredChange] = []
    for offset, stop in zip(offsets, stops, strict=True):
        found = change_of_record(data[offset - start : stop - start])
        if found is None or len(data) < stop - start:
            break
        cut.append(found[1])
    return cut


def cut_records(data: bytes, start: int, offsets: list[int], stops: list[int]) -> list[bytes]:
    """Cut whole records out of one read, up to the first that is not what was written."""
    found: list[bytes] = []
    for offset, stop in zip(offsets, stops, strict=True):
        one = data[offset - start : stop - start]
        is_whole = len(one) == stop - offset and int.from_bytes(one[4:8], "big") == len(one)
        if not is_whole or crc32(one[4:]).to_bytes(4, "big") != one[:4] or one[8] & 0x7F != 1:
            break
        found.append(one)
    return found


def cut_frames(data: bytes, start: int, offsets: list[int], stops: list[int]) -> list[bytes]:
    """Do what `cut_changes` does, for the frames alone. Hot path of reading the log."""
    cut: list[bytes] = []
    add, unpack, check = cut.append, FRAME_ENVELOPE.unpack_from, crc32
    if start + len(data) < stops[-1]:
        stops = stops[: bisect_right(stops, start + len(data))]
    for offset, stop in zip(offsets, stops, strict=False):
        at = offset - start
        checksum, lineage_bytes, sidecar_bytes = unpack(data, at)
        body = data[at + 4 : stop - start]
        if check(body) != checksum:
            break
        add(body[FRAME_IN_BODY + lineage_bytes + sidecar_bytes :])
    return cut


def walk(read_at: Callable[[int, int], bytes], offset: int, end: int) -> Iterator[Record]:
    """Yield the records that stand back to back from `offset`, up to the first invalid one.

    The caller knows where it ended: at the offset + length of the last one. Reads `WALK_BYTES`
    at once.
    """
    unpack, minimum = ENVELOPE.unpack_from, ENVELOPE_BYTES
    while end - offset >= minimum:
        window = read_at(offset, min(WALK_BYTES, end - offset))
        at, size, view = 0, len(window), memoryview(window)
        if size < minimum:
            return
        while size - at >= minimum:
            checksum, length, kind, partition_id, previous, lineage_bytes, sidecar_bytes = unpack(
                window, at
            )
            if length < minimum + lineage_bytes + sidecar_bytes or length > end - offset - at:
                return
            stop = at + length
            if stop > size:
                break
            if crc32(view[at + 4 : stop]) != checksum:
                return
            yield Record(
                offset + at, length, kind & 0x7F, kind > 0x7F, partition_id, previous,
                lineage_bytes, sidecar_bytes, window, at,
            )  # fmt: skip
            at = stop
        if at == 0:
            whole = read_at(offset, length)
            if len(whole) < length or crc32(memoryview(whole)[4:]) != checksum:
                return
            yield Record(
                offset, length, kind & 0x7F, kind > 0x7F, partition_id, previous,
                lineage_bytes, sidecar_bytes, whole, 0,
            )  # fmt: skip
            at = length
        offset += at


accelerated.bind(sys.modules[__name__], "encode_many", also=(_encode,))
accelerated.bind(sys.modules[__name__], "cut_frames")
