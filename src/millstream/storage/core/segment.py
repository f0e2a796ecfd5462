"""One segment file: its header, and the index that ends it once it is sealed.

    header 64 | records ... | index record | flags, one byte a record | footer 48

The index record holds, per partition with live changes or marks, four columns (seqnos, previous
seqnos, offsets, lengths) and the marks, and the offsets of all records that are no changes.
A segment that is still written has the same columns in memory.

Invariants:
1. Columns of a partition are ascending by seqno and by offset: what a rollback in the same segment
   killed is not in them; what a later segment's rollback killed is (`summary` knows the limit).
2. Bit 0 of a flag says "superseded". It is the only thing that changes after sealing, in place,
   one byte at a time, so no checksum covers it. Bit 1 says "tombstone", from sealing on.
3. All integers are big-endian.
4. A compacted segment stands for all numbers from `first` to its own; together the segments of a
   log stand for every number from 1 on, each for its own.

Elsewhere: files and caches (`segment_log`), records (`records`).

Source: docs/reference/file-format.md.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, compress, repeat
from struct import Struct
from typing import Final, NamedTuple
from zlib import crc32

from millstream.ports.disk import File
from millstream.storage.core.records import (
    ENVELOPE_BYTES,
    MUTATION,
    NO_PARTITION,
    Kind,
    Record,
    record_head,
)

__all__ = [
    "DIRECTORY_ENTRY_BYTES",
    "FOOTER_BYTES",
    "FORMAT_VERSION",
    "HEADER_BYTES",
    "MAGIC",
    "OFFSET_MAX",
    "SUPERSEDED",
    "TOMBSTONE",
    "Columns",
    "DirectoryEntry",
    "Footer",
    "Header",
    "OpenIndex",
    "Rewriting",
    "decode_columns",
    "decode_controls",
    "decode_footer",
    "decode_header",
    "directory_entries",
    "encode_header",
    "find_entry",
]

MAGIC: Final = b"MSTRMLOG"
FORMAT_VERSION: Final = 1
HEADER_BYTES: Final = 64
_HEADER: Final = Struct(">8sHHI16sIIII12xI")
_FOOTER_MAGIC: Final = b"MSTRMEND"
_FOOTER: Final = Struct(">8sIIIIIIIIII")
FOOTER_BYTES: Final = 48
SUPERSEDED: Final = 1
TOMBSTONE: Final = 2
OFFSET_MAX: Final = 2**32 - 1
_COUNTS: Final = Struct(">II")
_DIRECTORY: Final = Struct(">HIIIIIQQ")
DIRECTORY_ENTRY_BYTES: Final = 38
_FLAG_OF: Final = (0, TOMBSTONE)
_opcode_and_seqno = Struct(">xB22xQ").unpack_from
"""Opcode and seqno of a frame."""
_IS_SWAPPED: Final = sys.byteorder == "little"


class Rewriting(NamedTuple):
    """What the header of a compacted segment says; all 0 in one that was never rewritten.

    `first`: the first number it stands for; `by_id_segment`, `by_id_offset`: the place in the log
    that a by-id map must have reached to be believed; `generation` tells it from the files of the
    same name before it.
    """

    first: int = 0
    by_id_segment: int = 0
    by_id_offset: int = 0
    generation: int = 0


class Header(NamedTuple):
    """`log_id` is the same in all segments of a log, random."""

    version: int
    number: int
    log_id: bytes
    rewriting: Rewriting

    @property
    def first(self) -> int:
        """The first number that the segment represents."""
        return self.rewriting.first or self.number


def encode_header(number: int, log_id: bytes, rewriting: Rewriting = Rewriting()) -> bytes:  # noqa: B008 - immutable
    """Return the first 64 bytes of a segment."""
    fields = (MAGIC, FORMAT_VERSION, HEADER_BYTES, number, log_id, *rewriting, 0)
    body = _HEADER.pack(*fields)[:-4]
    return body + crc32(body).to_bytes(4, "big")


def decode_header(data: bytes) -> Header | None:
    """Return the header; None if these are not 64 bytes with magic and checksum of one.

    The first 16 bytes and the checksum of the first 60 stay as they are in all versions.
    """
    if len(data) < HEADER_BYTES:
        return None
    magic, version, _, number, log_id, *rewriting, checksum = _HEADER.unpack_from(data)
    if magic != MAGIC or crc32(data[: HEADER_BYTES - 4]) != checksum:
        return None
    return Header(version, number, log_id, Rewriting(*rewriting))


DENSE_RATIO: Final = 4
"""Up to so many records for each that is wanted all are taken: faster than to look each up."""


class Columns:
    """What a segment holds of one partition; offsets and lengths in bytes of the file."""

    __slots__ = (
        "file", "flags", "lengths", "marks", "offsets", "previous", "seqnos", "tombstones",
    )  # fmt: skip

    def __init__(self, file: File | None = None) -> None:
        self.file = file
        """The file with the records; it stays valid if the segment of that number is replaced."""
        self.seqnos = array("Q")
        self.previous = array("Q")
        self.offsets = array("I")
        self.lengths = array("I")
        self.marks = array("Q")
        self.tombstones = array("Q")
        """Seqnos of deletions; of a sealed segment the flags say it."""
        self.flags = b""
        """One byte a record; empty: nothing is superseded or a tombstone."""

    def add(
        self,
        seqnos: Iterable[int],
        previous: Iterable[int],
        offsets: Iterable[int],
        lengths: Iterable[int],
    ) -> None:
        """Append records; a reader in another thread goes by `seqnos`, which grow last."""
        self.lengths.extend(lengths)
        self.offsets.extend(offsets)
        self.previous.extend(previous)
        self.seqnos.extend(seqnos)

    def split(self, seqno: int) -> tuple[Columns, Columns]:
        """Return what is at or below `seqno` and what is above; a reader keeps its own."""
        count, marks = bisect_right(self.seqnos, seqno), bisect_right(self.marks, seqno)
        return self._part(slice(count), slice(marks)), self._part(
            slice(count, None), slice(marks, None)
        )

    def _part(self, records: slice, marks: slice) -> Columns:
        part = Columns(self.file)
        part.seqnos, part.previous = self.seqnos[records], self.previous[records]
        part.offsets, part.lengths = self.offsets[records], self.lengths[records]
        part.marks = self.marks[marks]
        inside = set(part.seqnos) if self.tombstones else ()
        part.tombstones.extend(filter(inside.__contains__, self.tombstones))
        return part

    def select(self, begin: int, end: int, wanted: Iterable[int]) -> Columns:
        """Return the records begin .. end-1 that are wanted, without marks and flags."""
        part, mask = Columns(self.file), list(wanted)
        part.seqnos = array("Q", compress(self.seqnos[begin:end], mask))
        part.previous = array("Q", compress(self.previous[begin:end], mask))
        part.offsets = array("I", compress(self.offsets[begin:end], mask))
        part.lengths = array("I", compress(self.lengths[begin:end], mask))
        return part

    def places(self, number: int, seqnos: list[int]) -> Iterable[tuple[int, tuple[int, int]]]:
        """Return seqno and place of sorted seqnos that are here, in the segment of that number.

        And of others between them, where that is cheaper than to leave them out.
        """
        begin, end = bisect_left(seqnos, self.seqnos[0]), bisect_right(seqnos, self.seqnos[-1])
        if begin == end:
            return ()
        low = bisect_left(self.seqnos, seqnos[begin])
        high = bisect_right(self.seqnos, seqnos[end - 1])
        if high - low <= DENSE_RATIO * (end - begin):
            found = zip(repeat(number), self.offsets[low:high], strict=False)
            return zip(self.seqnos[low:high], found, strict=True)
        indexes = ((seqno, self.find(seqno)) for seqno in seqnos[begin:end])
        return ((seqno, (number, self.offsets[at])) for seqno, at in indexes if at >= 0)

    def find(self, seqno: int) -> int:
        """Return the index of a seqno, -1 if absent. O(log n)."""
        index = bisect_right(self.seqnos, seqno) - 1
        return index if index >= 0 and self.seqnos[index] == seqno else -1

    def between(self, after: int, upto: int) -> tuple[int, int]:
        """Return the range of indexes with after < seqno <= upto. O(log n)."""
        return bisect_right(self.seqnos, after), bisect_right(self.seqnos, upto)

    def is_superseded(self, index: int) -> bool:
        """Return whether compaction marked the record as superseded."""
        return bool(self.flags and self.flags[index] & SUPERSEDED)

    def sealed_flags(self) -> bytes:
        """Return the flags with which a segment is sealed."""
        if self.flags or not self.tombstones:
            return self.flags or bytes(len(self.seqnos))
        return bytes(
            map(_FLAG_OF.__getitem__, map(set(self.tombstones).__contains__, self.seqnos))
        )


class DirectoryEntry(NamedTuple):
    """Where the columns of one partition stand in a sealed segment."""

    partition_id: int
    records: int
    marks: int
    offset: int
    flag_index: int
    checksum: int
    first_seqno: int
    last_seqno: int

    @property
    def size(self) -> int:
        """Length of the columns in bytes."""
        return self.records * 24 + self.marks * 8


class Footer(NamedTuple):
    """The last 48 bytes of a sealed segment; all offsets from the file's beginning.

    `data_checksum` is the crc32 of everything before the index record.
    """

    index_offset: int
    directory_offset: int
    directory_entries: int
    controls: int
    flags_offset: int
    records: int
    data_checksum: int
    directory_checksum: int
    controls_checksum: int

    @property
    def controls_offset(self) -> int:
        """Where the offsets of control records stand: behind the directory."""
        return self.directory_offset + self.directory_entries * DIRECTORY_ENTRY_BYTES

    @property
    def end(self) -> int:
        """Length of the whole file."""
        return self.flags_offset + self.records + FOOTER_BYTES


def _encode_footer(footer: Footer) -> bytes:
    body = _FOOTER.pack(_FOOTER_MAGIC, *footer, 0)[:-4]
    return body + crc32(body).to_bytes(4, "big")


def decode_footer(data: bytes) -> Footer | None:
    """Return the footer in the last 48 bytes of a file; None if there is none."""
    if len(data) != FOOTER_BYTES:
        return None
    magic, *fields, checksum = _FOOTER.unpack(data)
    if magic != _FOOTER_MAGIC or crc32(data[:-4]) != checksum:
        return None
    return Footer(*fields)


class OpenIndex:
    """The index of the segment that is written."""

    __slots__ = ("_file", "controls", "killed", "partitions")

    def __init__(self, file: File | None = None) -> None:
        self._file = file
        self.partitions: dict[int, Columns] = {}
        self.controls = array("I")
        self.killed: dict[int, Columns] = {}
        """Offset of a rollback record -> what it killed in this segment; only while starting."""

    def of(self, partition_id: int) -> Columns:
        """Return the partition's columns, empty ones if it has none yet."""
        columns = self.partitions.get(partition_id)
        if columns is None:
            columns = self.partitions[partition_id] = Columns(self._file)
        return columns

    def add_walked(self, change: Record) -> None:
        """Add a change that was walked over. Hot path of a start."""
        offset, length, _, is_mark, partition_id, previous, lineage, sidecar, buffer, at = change
        columns = self.of(partition_id)
        opcode, seqno = _opcode_and_seqno(buffer, at + ENVELOPE_BYTES + lineage + sidecar)
        if opcode != MUTATION:
            columns.tombstones.append(seqno)
        columns.lengths.append(length)
        columns.offsets.append(offset)
        columns.previous.append(previous)
        columns.seqnos.append(seqno)
        if is_mark:
            columns.marks.append(seqno)

    def add_batch(
        self,
        partition_id: int,
        seqnos: Sequence[int],
        previous: Sequence[int],
        offset: int,
        lengths: Sequence[int],
        *,
        is_marked: bool = True,
        tombstones: Iterable[int] = (),
    ) -> None:
        """Add records that stand back to back from `offset`; the last one may be a mark.

        `tombstones`: the seqnos among them that are deletions.
        """
        columns = self.of(partition_id)
        offsets = accumulate(lengths[:-1], initial=offset)
        columns.add(seqnos, previous, offsets, lengths)
        columns.tombstones.extend(tombstones)
        if is_marked:
            columns.marks.append(seqnos[-1])

    def cut(self, partition_id: int, seqno: int) -> Columns | None:
        """Forget what is above `seqno`; return it. Readers of the columns are not disturbed."""
        columns = self.partitions.get(partition_id)
        if columns is None:
            return None
        self.partitions[partition_id], killed = columns.split(seqno)
        return killed

    def encode(self, index_offset: int, data_checksum: int) -> bytes:
        """Return index record, flags and footer, to stand at `index_offset`."""
        return b"".join(self.encode_pieces(index_offset, data_checksum))

    def encode_pieces(self, index_offset: int, data_checksum: int) -> Iterator[bytes]:
        """Yield the same, partition by partition; while it is thought about, empty pieces."""
        base = index_offset + ENVELOPE_BYTES + _COUNTS.size
        held = [(p, self.partitions[p]) for p in sorted(self.partitions)]
        held = [(p, columns) for p, columns in held if columns.seqnos or columns.marks]
        blocks, directory = list[bytes](), list[bytes]()
        size = records = 0
        for partition_id, columns in held:
            block = _block(columns)
            ends = [*columns.seqnos[:1], *columns.marks[:1], *columns.seqnos[-1:]]
            ends += columns.marks[-1:]
            directory.append(
                _DIRECTORY.pack(
                    partition_id, len(columns.seqnos), len(columns.marks), base + size, records,
                    crc32(block), min(ends), max(ends),
                )
            )  # fmt: skip
            blocks.append(block)
            size += len(block)
            records += len(columns.seqnos)
            yield b""
        directory_bytes, controls = b"".join(directory), _big_endian(self.controls)
        counts = _COUNTS.pack(len(directory), len(self.controls))
        body = (counts, *blocks, directory_bytes, controls)
        yield record_head(Kind.INDEX, NO_PARTITION, body)
        yield from body
        yield from (columns.sealed_flags() for _, columns in held)
        index_bytes = ENVELOPE_BYTES + sum(map(len, body))
        yield _encode_footer(
            Footer(
                index_offset,
                base + size,
                len(directory),
                len(self.controls),
                index_offset + index_bytes,
                records,
                data_checksum,
                crc32(directory_bytes),
                crc32(controls),
            )
        )


def _block(columns: Columns) -> bytes:
    return b"".join(
        _big_endian(column)
        for column in (
            columns.seqnos, columns.previous, columns.offsets, columns.lengths, columns.marks,
        )
    )  # fmt: skip


def _big_endian(column: array[int]) -> bytes:
    if _IS_SWAPPED:
        column = column[:]
        column.byteswap()
    return column.tobytes()


def _column(kind: str, data: bytes) -> array[int]:
    column = array(kind, data)
    if _IS_SWAPPED:
        column.byteswap()
    return column


def decode_columns(block: bytes, entry: DirectoryEntry, flags: bytes) -> Columns | None:
    """Return the columns that a directory entry names; None if their checksum differs."""
    if len(block) != entry.size or crc32(block) != entry.checksum or len(flags) != entry.records:
        return None
    columns, count = Columns(), entry.records
    columns.seqnos = _column("Q", block[: count * 8])
    columns.previous = _column("Q", block[count * 8 : count * 16])
    columns.offsets = _column("I", block[count * 16 : count * 20])
    columns.lengths = _column("I", block[count * 20 : count * 24])
    columns.marks = _column("Q", block[count * 24 :])
    columns.flags = flags if flags.count(0) < len(flags) else b""
    return columns


def decode_controls(data: bytes, footer: Footer) -> list[int] | None:
    """Return the offsets of the records that are no changes; None if damaged."""
    if len(data) != footer.controls * 4 or crc32(data) != footer.controls_checksum:
        return None
    return list(_column("I", data))


def directory_entries(directory: bytes) -> Iterator[DirectoryEntry]:
    """Yield all entries, ascending by partition."""
    return map(DirectoryEntry._make, _DIRECTORY.iter_unpack(directory))


def find_entry(directory: bytes, partition_id: int) -> DirectoryEntry | None:
    """Return the entry of a partition, None if the segment holds nothing of it. O(log n)."""
    low, high = 0, len(directory) // DIRECTORY_ENTRY_BYTES
    while low < high:
        middle = (low + high) // 2
        at = middle * DIRECTORY_ENTRY_BYTES
        found = directory[at] << 8 | directory[at + 1]
        if found == partition_id:
            return DirectoryEntry._make(_DIRECTORY.unpack_from(directory, at))
        if found < partition_id:
            low = middle + 1
        else:
            high = middle
    return None
