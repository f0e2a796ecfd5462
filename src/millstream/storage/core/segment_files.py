"""Reading segment files by number: descriptors, indexes of sealed segments, runs of changes.

Invariants:
1. Every record and index block is checked before it is believed.
2. Reads may run in any thread: the caches may be raced for, at worst a file is opened twice.
3. A segment's directory, columns and records are read from one file: columns name it, and go on
   reading it when another one takes its name. What is opened once `generations` names a newer file
   is that one.

Elsewhere: where the log ends, and appending (`segment_log`); what is live (`live`).

Source: docs/reference/file-format.md.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import compress
from operator import add, and_, not_, sub
from typing import Final, NamedTuple, TypeVar
from zlib import crc32

from millstream.errors import CorruptionError
from millstream.model.limits import STREAM_STEP_BYTES_MAX, STREAM_STEP_ITEMS_MAX
from millstream.ports.disk import Disk, File
from millstream.storage.core import records
from millstream.storage.core.records import (
    ENVELOPE_BYTES,
    FRAME_BYTES_MIN,
    FRAME_ENVELOPE,
    FRAME_IN_BODY,
    Record,
    StoredChange,
    cut_changes,
    cut_records,
    key_of,
    walk,
)
from millstream.storage.core.segment import (
    DIRECTORY_ENTRY_BYTES,
    FOOTER_BYTES,
    HEADER_BYTES,
    SUPERSEDED,
    Columns,
    DirectoryEntry,
    Footer,
    decode_columns,
    decode_controls,
    decode_footer,
    decode_header,
    directory_entries,
    find_entry,
)
from millstream.wire.frames import describe_kept

__all__ = ["Place", "SegmentFiles", "Sizes", "live_records", "segment_name"]

OPEN_FILES_MAX: Final = 64
"""Descriptors a log keeps for reading, one a segment: enough for 4 GiB without opening again."""
DIRECTORIES_MAX: Final = 256
"""Directories of sealed segments a log keeps in memory, some 40 bytes per partition each."""
GAP_BYTES_MAX: Final = 8192
"""Records nearer than this are read at once, with what stands between them."""
FIRST_READ_BYTES: Final = 1024
"""Read of a record whose length is not known; a longer one takes a second read."""
LOOP_READ_BYTES_MAX: Final = 256 * 1024
"""Longer records are read and checked by threads even if they are in memory."""
CHECK_BYTES: Final = 256 * 1024
"""Read at once while a checksum is computed: more costs fresh pages of memory each time."""
COPIED_BYTES_MAX: Final = 64 * 1024
"""A larger record is copied once, with its description; slices cost less for a small one."""


_Cut = TypeVar("_Cut")
Sizes = tuple[Sequence[int], Sequence[int], int]
"""Seqnos of records, their lengths in bytes, and the seqno that they cover up to."""
_IS_LIVE: Final = bytes(not flags & SUPERSEDED for flags in range(256))


class Place(NamedTuple):
    """A place in the log; ordered as the log is."""

    segment: int
    offset: int


def segment_name(number: int) -> str:
    """Return the file name of a segment."""
    return f"{number:08d}.seg"


def live_records(
    columns: Columns, begin: int, end: int, skip: Collection[int]
) -> tuple[Sequence[int], list[int], list[int]]:
    """Return (seqnos, offsets, ends) of records begin .. end-1 but those skipped or superseded."""
    seqnos: Sequence[int] = columns.seqnos[begin:end]
    offsets = columns.offsets[begin:end].tolist()
    stops = list(map(add, offsets, columns.lengths[begin:end]))
    kept = columns.flags[begin:end].translate(_IS_LIVE)
    if skip and any(map(skip.__contains__, seqnos)):
        unskipped = bytes(map(not_, map(skip.__contains__, seqnos)))
        kept = bytes(map(and_, kept, unskipped)) if kept else unskipped
    if 0 in kept:
        seqnos = list(compress(seqnos, kept))
        offsets, stops = list(compress(offsets, kept)), list(compress(stops, kept))
    return seqnos, offsets, stops


def _runs(offsets: list[int], stops: list[int]) -> Iterator[tuple[int, int]]:
    """Yield ranges of records that are read at once: none too large, no gap within too wide."""
    first, count = 0, len(offsets)
    gaps = map(sub, offsets[1:], stops)
    ends = compress(range(1, count), map(GAP_BYTES_MAX.__lt__, gaps))
    for end in (*ends, count):
        while first < end:
            most = min(end, first + STREAM_STEP_ITEMS_MAX)
            last = most
            if stops[most - 1] - offsets[first] > STREAM_STEP_BYTES_MAX:
                limit = offsets[first] + STREAM_STEP_BYTES_MAX
                last = bisect_right(stops, limit, first + 1, most)
            yield first, last
            first = last


class _Opened(NamedTuple):
    file: File
    generation: int


class _Directory(NamedTuple):
    generation: int
    footer: Footer
    entries: bytes


def _read_on(file: File, offset: int, data: bytes, *, may_wait: bool) -> bytes:
    """Return the whole record that `data` is the beginning of; empty if the file ends in it."""
    read = file.read_at if may_wait else file.read_resident
    if len(data) < ENVELOPE_BYTES:
        data += read(offset + len(data), ENVELOPE_BYTES)
    length = int.from_bytes(data[4:8], "big")
    if len(data) < ENVELOPE_BYTES or offset + length > file.size():
        return b""
    if length > LOOP_READ_BYTES_MAX and not may_wait:
        raise BlockingIOError(f"a record of {length} bytes")
    while len(data) < length:
        more = read(offset + len(data), length - len(data))
        if not more:
            return b""
        data += more
    return data


class SegmentFiles:
    """The segments of one directory."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._files: dict[int, _Opened] = {}
        self._directories: dict[int, _Directory] = {}
        self.generations: dict[int, int] = {}
        """Number -> generation of the file that counts; of those that were never rewritten 0."""

    # -- sealed segments

    def sealed_columns(self, number: int, partition_id: int) -> Columns | None:
        """Return what a sealed segment holds of a partition, None if nothing.

        Raises:
            CorruptionError: the index is damaged.
        """
        file, footer, directory = self._sealed(number)
        entry = find_entry(directory, partition_id)
        if entry is None:
            return None
        flags = file.read_at(footer.flags_offset + entry.flag_index, entry.records)
        columns = decode_columns(file.read_at(entry.offset, entry.size), entry, flags)
        if columns is None:
            raise self._corrupt(number, entry.offset, "its index is damaged")
        columns.file = file
        return columns

    def sealed_span(self, number: int, partition_id: int) -> tuple[int, int] | None:
        """Return the first and last seqno a sealed segment holds of a partition, None if nothing.

        Costs no reading but that of the segment's directory, once.
        """
        entry = find_entry(self._sealed(number)[2], partition_id)
        return None if entry is None else (entry.first_seqno, entry.last_seqno)

    def sealed_partitions(self, number: int) -> list[int]:
        """Return the partitions a sealed segment holds something of."""
        directory = self._sealed(number)[2]
        return [
            directory[at] << 8 | directory[at + 1]
            for at in range(0, len(directory), DIRECTORY_ENTRY_BYTES)
        ]

    def controls_in(self, number: int) -> list[int]:
        """Return the offsets of the records of a sealed segment that are no changes."""
        file, footer, _ = self._sealed(number)
        data = file.read_at(footer.controls_offset, footer.controls * 4)
        controls = decode_controls(data, footer)
        if controls is None:
            raise self._corrupt(number, footer.controls_offset, "its index is damaged")
        return controls

    # -- flags of sealed segments, for compaction

    def flags_of(self, number: int) -> Iterator[tuple[DirectoryEntry, bytes]]:
        """Yield the directory of a sealed segment with the flags of each partition."""
        file, footer, directory = self._sealed(number)
        flags = file.read_at(footer.flags_offset, footer.records)
        for entry in directory_entries(directory):
            yield entry, flags[entry.flag_index : entry.flag_index + entry.records]

    def write_flags(self, number: int, partition_id: int, index: int, flags: bytes) -> None:
        """Write the flags of a partition's records from an index on, in place; not durable yet."""
        file, footer, directory = self._sealed(number)
        entry = find_entry(directory, partition_id)
        assert entry is not None
        file.write_at(footer.flags_offset + entry.flag_index + index, flags)

    def sync_segment(self, number: int) -> None:
        """Make the flags of a sealed segment durable, also what an earlier sync failed to write.

        What a failed sync left counts as written: flags that are there already are written again.
        """
        file, footer, _ = self._sealed(number)
        file.write_at(footer.flags_offset, file.read_at(footer.flags_offset, footer.records))
        file.sync()

    def size_of(self, number: int) -> int:
        """Return the length of a sealed segment's file in bytes."""
        return self._sealed(number)[1].end

    # -- records

    def records(self, number: int, columns: Columns) -> Iterator[tuple[list[bytes], int]]:
        """Yield the whole records of columns, as checked, each chunk with its last seqno.

        Raises:
            CorruptionError: a record is not what was written.
        """
        return self._chunks(number, columns, 0, len(columns.seqnos), (), cut_records)

    def changes(
        self, number: int, columns: Columns, begin: int, end: int, skip: Collection[int] = ()
    ) -> Iterator[list[StoredChange]]:
        """Yield records begin .. end-1 of `columns` but those in `skip`, in bounded chunks.

        Adjacent records are read at once.

        Raises:
            CorruptionError: a record is not what was written.
        """
        for chunk, _ in self._chunks(number, columns, begin, end, skip, cut_changes):
            yield chunk

    def frames(
        self,
        number: int,
        columns: Columns,
        begin: int,
        end: int,
        skip: Collection[int] = (),
        *,
        is_described: bool = False,
    ) -> Iterator[tuple[list[bytes], int]]:
        """Yield the frames of the same records, as checked, each chunk with its last seqno.

        `is_described`: each with its description in front.
        """
        cut = _cut_described if is_described else records.cut_frames
        return self._chunks(number, columns, begin, end, skip, cut)

    def keys(self, number: int, columns: Columns, begin: int, end: int) -> list[bytes]:
        """Return the keys of the records begin .. end-1, superseded ones included.

        Raises:
            CorruptionError: a record is not what was written.
        """
        flags, columns.flags = columns.flags, b""
        found: list[bytes] = []
        for frames, _ in self.frames(number, columns, begin, end):
            found.extend(map(key_of, frames))
        columns.flags = flags
        return found

    def _chunks(
        self,
        number: int,
        columns: Columns,
        begin: int,
        end: int,
        skip: Collection[int],
        cut: Callable[[bytes, int, list[int], list[int]], list[_Cut]],
    ) -> Iterator[tuple[list[_Cut], int]]:
        seqnos, offsets, stops = live_records(columns, begin, end, skip)
        file = columns.file or self._file(number)
        chunk: list[_Cut] = []
        chunk_bytes = 0
        for first, last in _runs(offsets, stops):
            start = offsets[first]
            size = stops[last - 1] - start
            if chunk and (
                chunk_bytes + size > STREAM_STEP_BYTES_MAX
                or len(chunk) + last - first > STREAM_STEP_ITEMS_MAX
            ):
                yield chunk, seqnos[first - 1]
                chunk, chunk_bytes = [], 0
            found = cut(file.read_at(start, size), start, offsets[first:last], stops[first:last])
            if len(found) != last - first:
                damaged = offsets[first + len(found)]
                raise self._corrupt(number, damaged, "a record is not what was written")
            chunk += found
            chunk_bytes += size
        if chunk:
            yield chunk, seqnos[-1]

    def read_record(self, segment: int, offset: int, *, may_wait: bool = True) -> bytes:
        """Return bytes that begin with the whole record at a place; empty: there is none.

        Nothing is checked. Hot path of reading back.

        Raises:
            BlockingIOError: with `may_wait` False, if it takes a read that waits for the disk.
        """
        try:
            file = self._file(segment)
        except FileNotFoundError:
            return b""
        read = file.read_at if may_wait else file.read_resident
        data = read(offset, FIRST_READ_BYTES)
        if int.from_bytes(data[4:8], "big") > len(data) or len(data) < ENVELOPE_BYTES:
            return _read_on(file, offset, data, may_wait=may_wait)
        return data

    def record_at(self, number: int, offset: int) -> Record:
        """Return the record at an offset that an index names.

        Raises:
            CorruptionError: there is none.
        """
        file = self._file(number)
        head = file.read_at(offset, ENVELOPE_BYTES)
        end = offset + int.from_bytes(head[4:8], "big")  # else a megabyte would be read
        found = next(walk(file.read_at, offset, min(end, file.size())), None)
        if found is None:
            raise self._corrupt(number, offset, "a record is not what was written")
        return found

    def checksum_of(self, number: int, end: int) -> int:
        """Return the crc32 of a segment's bytes before `end`."""
        file, checksum = self._file(number), 0
        for offset in range(0, end, CHECK_BYTES):
            checksum = crc32(file.read_at(offset, min(CHECK_BYTES, end - offset)), checksum)
        return checksum

    # -- files

    def describe(self, number: int) -> str:
        """Return what people find a segment by."""
        return self._disk.describe(segment_name(number))

    def forget_files(self) -> None:
        """Drop the descriptors kept for reading."""
        self._files.clear()

    def forget(self, numbers: Iterable[int]) -> None:
        """Drop what is kept of some segments: the name belongs to another file now, or to none."""
        for number in numbers:
            self._files.pop(number, None)
            self._directories.pop(number, None)

    def _file(self, number: int) -> File:
        """Return the open file; another thread may drop it from the cache while it is used."""
        opened = self._files.get(number)
        return self._open_file(number).file if opened is None else opened.file

    def _open_file(self, number: int) -> _Opened:
        while True:
            file = self._disk.open(segment_name(number))
            header = decode_header(file.read_at(0, HEADER_BYTES))
            opened = _Opened(file, header.rewriting.generation if header else 0)
            self._files[number] = opened
            if opened.generation >= self.generations.get(number, 0):
                break
            self._files.pop(number, None)  # it was replaced between these lines
        for old in list(self._files)[:-OPEN_FILES_MAX]:
            self._files.pop(old, None)
        return opened

    def _footer(self, file: File) -> Footer | None:
        size = file.size()
        footer = decode_footer(file.read_at(max(0, size - FOOTER_BYTES), FOOTER_BYTES))
        return footer if footer is not None and footer.end == size else None

    def _sealed(self, number: int) -> tuple[File, Footer, bytes]:
        """Return the file of a sealed segment, its footer and its directory."""
        file, generation = self._files.get(number) or self._open_file(number)
        cached = self._directories.get(number)
        if cached is not None and cached.generation == generation:
            return file, cached.footer, cached.entries
        footer = self._footer(file)
        if footer is None:
            raise self._corrupt(number, file.size(), "its footer is damaged")
        size = footer.controls_offset - footer.directory_offset
        directory = file.read_at(footer.directory_offset, size)
        if len(directory) != size or crc32(directory) != footer.directory_checksum:
            raise self._corrupt(number, footer.directory_offset, "its index is damaged")
        self._directories[number] = _Directory(generation, footer, directory)
        for old in list(self._directories)[:-DIRECTORIES_MAX]:
            self._directories.pop(old, None)
        return file, footer, directory

    def _corrupt(self, number: int, offset: int, reason: str) -> CorruptionError:
        return CorruptionError(
            f"{self.describe(number)} is damaged at offset {offset}: {reason}; "
            "restore it from a replica or a backup"
        )


def _cut_described(data: bytes, start: int, offsets: list[int], stops: list[int]) -> list[bytes]:
    """Do what `records.cut_frames` does, for described frames (`wire.frames`). Hot path.

    Lineage, sidecar and frame stand side by side in a record as behind a description's head.
    """
    cut: list[bytes] = []
    add, unpack, check, describe = cut.append, FRAME_ENVELOPE.unpack_from, crc32, describe_kept
    if start + len(data) < stops[-1]:
        stops = stops[: bisect_right(stops, start + len(data))]
    for offset, stop in zip(offsets, stops, strict=False):
        at = offset - start
        checksum, lineage_bytes, sidecar_bytes = unpack(data, at)
        body: bytes | memoryview = data
        if stop - offset > COPIED_BYTES_MAX:
            body = memoryview(data)
        body = body[at + 4 : stop - start]
        kept = body[FRAME_IN_BODY:]
        if check(body) != checksum or len(kept) < lineage_bytes + sidecar_bytes + FRAME_BYTES_MIN:
            break
        add(describe(kept, lineage_bytes, sidecar_bytes))
    return cut
