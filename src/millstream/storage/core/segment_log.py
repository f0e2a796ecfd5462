"""The segment files of one log: where it ends, and appending to it.

Invariants:
1. A segment is sealed (index, flags, footer) and synced before the next one is created; a new one
   has a durable header and name before a record is written to it. So only the last segment can be
   torn, and its tail is cut, durably, before anything is appended.
2. At start the directory and the last segment are synced before anything is read: what a killed
   process left readable need not be durable.
3. A damaged place with a commit record behind it is corruption, never a torn tail: that commit was
   begun after everything before it was durable.
4. A group commit stands in one segment, which it may make larger than its size.
5. After an error in `sync`, or one that is no lack of space, nothing is appended any more. What a
   failed sync left in memory is not believed after a restart: the last segment is read from the
   disk again.
6. Reads may run in any thread beside one appending thread: of the open segment they read what its
   index names, whose columns only grow while nothing is rolled back.
7. The segments stand for every number from 1 to the last one, each for its own or, once compacted,
   for a run that ends in it. A file whose number another one stands for is what a compaction had
   not yet removed; a number that none stands for is a lost file.
8. `swaps` grows after compaction changed `numbers`, and before a file is removed.
9. The receipt names a begun segment, durably, before a record is written to it; `reached` names
   the end of each commit once it is durable. A log that holds less than either of them says is
   damaged, and nothing in it is changed.

Elsewhere: reading (`segment_files`), rewriting (`compaction`), what records mean (`summary`,
`store`), the layout of a segment (`segment`).

Source: docs/reference/file-format.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple
from zlib import crc32

from millstream.errors import CorruptionError, UnavailableError, UsageError
from millstream.ports.disk import Disk, File
from millstream.storage.core.disk_errors import disk_error, is_full
from millstream.storage.core.reached import REACHED_NAME, Reached, read_reached
from millstream.storage.core.receipt import (
    RECEIPT_NAME,
    Extent,
    Receipt,
    read_receipt,
    write_receipt,
)
from millstream.storage.core.records import (
    Kind,
    Record,
    commit_record,
    seqno_payload,
    walk,
)
from millstream.storage.core.segment import (
    FORMAT_VERSION,
    HEADER_BYTES,
    MAGIC,
    OFFSET_MAX,
    Columns,
    Header,
    OpenIndex,
    Rewriting,
    decode_header,
    encode_header,
)
from millstream.storage.core.segment_files import CHECK_BYTES, Place, SegmentFiles, segment_name

__all__ = ["LogSizes", "SegmentLog"]

_NAME: Final = re.compile(r"[0-9]{8}\.seg")
_TEMPORARY: Final = ".new"


class LogSizes(NamedTuple):
    """Sizes in bytes. A segment is sealed at a quarter of what the sealed ones have together.

    So what is superseded in the one that is written is never much of the whole.
    """

    segment_bytes_min: int = 256 * 1024
    segment_bytes_max: int = 64 * 1024 * 1024
    fill_from_bytes: int = 4 * 1024 * 1024
    """Segments at least this large are filled with zeros ahead of the end."""
    fill_bytes: int = 1024 * 1024
    """Zeros written at a time."""


class SegmentLog(SegmentFiles):
    """The log as files. `open_index` belongs to segment `numbers[-1]` unless that is sealed."""

    def __init__(self, disk: Disk, sizes: LogSizes, *, known_id: bytes | None = None) -> None:
        """Open the log, or begin one.

        Args:
            disk: the directory.
            sizes: of segments.
            known_id: the id that the log must have, empty if it is not known; None if the log was
                never opened by a program that writes receipts of version 2. A log that was, and
                is without segments or without a receipt, has lost them.

        Raises:
            CorruptionError: something is damaged or missing, or the log is another one.
            UsageError: `foreign_format`, `newer_format`.
        """
        super().__init__(disk)
        self.sizes = sizes
        self._last: File
        self._is_failed = False
        self._kept: dict[int, OpenIndex] = {}
        """Indexes of sealed segments that `forget_indexes` did not name yet."""
        self.is_sealed = False
        """Whether the last segment is sealed; the next append begins another."""
        self.sealed_bytes = 0
        """Sizes of all sealed segments."""
        self.firsts: dict[int, int] = {}
        """Compacted segment -> the first number it stands for."""
        self.by_id_place = Place(0, 0)
        """A by-id map that has not reached it may name records that compaction took away."""
        self.swaps = 0
        self._filled = 0
        self.cut_bytes = 0
        self.checksum = 0
        """crc32 of the last segment up to `end`."""
        self.end = 0
        self.last_record: Record | None = None
        disk.sync_directory()
        self.numbers = self._clean_up()
        self.receipt = read_receipt(disk)
        """What the file beside the log said when the log was opened."""
        self._found_reached = read_reached(disk)
        self._reached: Reached | None = None
        self.is_new = not self.numbers
        self._refuse_lost_files(is_begun=known_id is not None)
        if self.is_new:
            self.log_id = disk.random_bytes(16)
            self.commit_record = commit_record(self.log_id)
            self._begin(1)
            return
        last = disk.open(segment_name(self.numbers[-1]))
        last.sync()
        last.forget_cache()
        last.close()
        self._check_headers(known_id)
        self._open_last()

    @property
    def extent(self) -> Extent:
        """How far the log reaches."""
        return Extent(self.log_id, self.place, self.checksum)

    def write_receipt(self, receipt: Receipt | None = None) -> None:
        """Write down durably how far the log reaches; with a receipt after a clean stop only."""
        has_reached = self._reached is not None or self._found_reached.is_there
        write_receipt(self._disk, self.extent, receipt, has_reached=has_reached)

    # -- start

    def _refuse_lost_files(self, *, is_begun: bool) -> None:
        """Refuse a log whose segments are all gone, or whose receipt cannot be believed."""
        receipt, reached = self.receipt, self._found_reached
        if self.is_new and (is_begun or receipt.is_there or reached.is_there):
            raise self._lost("", "all segments of the log are missing")
        damage = receipt.damage if receipt.is_there else "it is missing" if is_begun else ""
        if damage:
            raise self._lost(RECEIPT_NAME, f"{damage}: nobody knows how far the log reached")
        damage = reached.damage if reached.is_there else "it is missing"
        if damage and (reached.is_there or receipt.has_reached):
            raise self._lost(REACHED_NAME, f"{damage}: nobody knows how far the log reached")

    def _refuse_shorter(self) -> None:
        """Refuse a log that holds less than was durable; reads up to one segment."""
        reached = self._found_reached
        extents = [one for one in (self.receipt.extent, reached.extent) if one is not None]
        extent = max(extents, key=lambda one: one.place, default=None)
        if extent is None:
            return
        (number, end), name = extent.place, segment_name(extent.place.segment)
        if number > self.numbers[-1]:
            raise self._lost(name, "it is missing: the log reached it")
        if number not in self.numbers:  # another one stands for it by now
            return
        size = self._file(number).size()
        if size < end:
            raise self._lost(name, f"it has {size} bytes, of {end} that were durable")
        if extent.log_id != self.log_id:
            raise self._lost(name, "it belongs to another log")
        if reached.log_id not in (b"", self.log_id):
            raise self._lost(REACHED_NAME, "it belongs to another log")
        if self.checksum_of(number, end) != extent.checksum:
            whole = HEADER_BYTES
            for found in walk(self._file(number).read_at, HEADER_BYTES, end):
                whole = found.offset + found.length
            raise self._corrupt(number, whole, "a record is not what was written")

    def _lost(self, name: str, reason: str) -> CorruptionError:
        return CorruptionError(
            f"{self._disk.describe(name)}: {reason}; restore it from a replica or a backup",
            code="log_lost",
        )

    def _clean_up(self) -> list[int]:
        names = self._disk.names()
        for name in names:
            if name.endswith(_TEMPORARY):
                self._disk.remove(name)
        return [int(name[:8]) for name in names if _NAME.fullmatch(name)]

    def _check_headers(self, known_id: bytes | None) -> None:
        headers = {number: self._header(number) for number in self.numbers}
        log_id = next((header.log_id for header in headers.values() if header), None)
        for number, header in headers.items():
            if header and (header.number, header.log_id) != (number, log_id):
                raise self._corrupt(number, 0, "it belongs to another log or place")
        if known_id and log_id and log_id != known_id:
            raise self._lost("", "this is the log of another bucket or of another node")
        self.log_id = log_id or self._disk.random_bytes(16)
        self.commit_record = commit_record(self.log_id)
        self._take_in_runs(headers)
        self._refuse_shorter()
        last = self.numbers[-1]
        if headers[last] is None:
            self._write_header(self._file(last), last, self.log_id)
        for number in self.numbers[:-1]:
            file = self._file(number)
            if self._footer(file) is None:
                raise self._corrupt(number, file.size(), "its footer is damaged")
            self.sealed_bytes += file.size()

    def _take_in_runs(self, headers: Mapping[int, Header | None]) -> None:
        """Leave out what compacted segments stand for; every number must have one segment."""
        kept, missing = list[int](), self.numbers[-1]
        for number in reversed(self.numbers):
            header = headers[number]
            if number > missing:
                self._disk.remove(segment_name(number))
                continue
            if number < missing:
                break
            kept.append(number)
            missing = header.first - 1 if header else number - 1
            if header and header.rewriting.first:
                _, segment, offset, generation = header.rewriting
                self.firsts[number], self.generations[number] = header.first, generation
                self.by_id_place = max(self.by_id_place, Place(segment, offset))
        if missing:
            raise self._corrupt(missing, 0, "it is missing")
        self.numbers = kept[::-1]

    def _header(self, number: int) -> Header | None:
        """None: the last segment, whose header was never made durable."""
        file = self._file(number)
        data = file.read_at(0, HEADER_BYTES + 1)
        header = decode_header(data[:HEADER_BYTES])
        if header is None:
            if number == self.numbers[-1] and len(data) <= HEADER_BYTES:
                return None
            if not data.strip(b"\0"):
                raise self._corrupt(number, 0, "it is empty")
            if data[: len(MAGIC)] != MAGIC:
                raise UsageError(
                    f"{self.describe(number)} is no segment of a document log; move it away",
                    code="foreign_format",
                )
            raise self._corrupt(number, 0, "its header is damaged")
        if header.version > FORMAT_VERSION:
            raise UsageError(
                f"{self.describe(number)} has format {header.version}, "
                f"this program knows up to {FORMAT_VERSION}; use a newer one",
                code="newer_format",
            )
        return header

    def _open_last(self) -> None:
        number = self.numbers[-1]
        file = self._last = self._file(number)
        index, end, self.last_record = self.index_of(number)
        if self.last_record is not None and self.last_record.kind == Kind.INDEX:
            footer = self._footer(file)
            if footer is not None and footer.index_offset == self.last_record.offset:
                self.is_sealed = True
                self.sealed_bytes += file.size()
                self.end, self.checksum = footer.index_offset, footer.data_checksum
                self._open = (-1, index)
                return
            end = self.last_record.offset
        self._cut_tail(number, file, end)
        file.sync()
        self.end, self._filled = end, file.size()
        self.checksum = self.checksum_of(number, end)
        self._open = (number, index)

    def _cut_tail(self, number: int, file: File, end: int) -> None:
        size = file.size()
        overlap = b""
        is_torn = False
        for offset in range(end, size, CHECK_BYTES):
            data = file.read_at(offset, min(CHECK_BYTES, size - offset))
            if not is_torn and data == bytes(len(data)):
                continue
            is_torn = True
            if self.commit_record in overlap + data:
                raise self._corrupt(number, end, "records written later follow")
            overlap = data[-len(self.commit_record) :]
        if is_torn:
            self.cut_bytes = size - end
            file.truncate(end)

    def index_of(self, number: int) -> tuple[OpenIndex, int, Record | None]:
        """Walk a segment; return its index (what each rollback killed apart), end, last record."""
        file = self._file(number)
        index, end, last = OpenIndex(file), HEADER_BYTES, None
        for found in walk(file.read_at, HEADER_BYTES, file.size()):
            kind = found.kind
            if kind == Kind.CHANGE:
                index.add_walked(found)
            elif kind == Kind.MARK:
                index.of(found.partition_id).marks.append(seqno_payload(found.payload))
            elif kind == Kind.INDEX:
                return index, end, found
            elif kind != Kind.COMMIT:
                index.controls.append(found.offset)
                if kind == Kind.ROLLBACK:
                    target = seqno_payload(found.payload)
                    index.of(found.partition_id)
                    killed = index.cut(found.partition_id, target)
                    assert killed is not None
                    index.killed[found.offset] = killed
            end, last = found.offset + found.length, found
        return index, end, last

    # -- appending

    @property
    def place(self) -> Place:
        """The end of the log."""
        return Place(self.numbers[-1], self.end)

    @property
    def open_index(self) -> OpenIndex:
        """The index of the segment that is written."""
        return self._open[1]

    def append(self, *parts: bytes) -> Place:
        """Write one group commit and make it durable; return where it begins.

        Raises:
            UnavailableError: `disk_full`: nothing was appended, the same may succeed later;
                `disk_failed`: nothing can be appended until the log is opened anew.
        """
        if self._is_failed:
            raise UnavailableError("the disk failed earlier; restart", code="disk_failed")
        size = sum(map(len, parts))
        assert HEADER_BYTES + size < OFFSET_MAX
        if self.is_sealed or self._is_full(size):
            self.roll()
        reached = self._reached or self._begin_reached()
        file, begin = self._last, self.end
        try:
            self._fill(file, begin + size)
            at = begin
            for part in parts:
                file.write_at(at, part)
                at += len(part)
        except OSError as error:
            raise self._undo(file, error) from error
        self._sync(file.sync)
        self.end = begin + size
        for part in parts:
            self.checksum = crc32(part, self.checksum)
        reached.note(self.extent)
        return Place(self.numbers[-1], begin)

    def is_quick(self, size: int) -> bool:
        """Return whether appending `size` bytes neither seals a segment nor fills one ahead."""
        if self.is_sealed or self._is_full(size):
            return False
        return self.end + size <= self._filled or self._capacity() < self.sizes.fill_from_bytes

    def _is_full(self, size: int) -> bool:
        return self.end + size > self._capacity() and self.end > HEADER_BYTES

    def _capacity(self) -> int:
        sizes = self.sizes
        return min(max(sizes.segment_bytes_min, self.sealed_bytes // 4), sizes.segment_bytes_max)

    def _fill(self, file: File, end: int) -> None:
        if self._filled < end and self._capacity() >= self.sizes.fill_from_bytes:
            begin = max(self._filled, end)
            size = min(self.sizes.fill_bytes, self._capacity() - begin)
            if size > 0:
                file.write_at(begin, bytes(size))
            self._filled = begin + size

    def _undo(self, file: File, error: OSError) -> UnavailableError:
        """Take back what a write for which there was no space left; all else is final."""
        if is_full(error):
            try:
                file.truncate(self.end)
                file.sync()
            except OSError as undone:
                return self._failed(undone)
            self._filled = self.end
            return disk_error(error, self.describe(self.numbers[-1]))
        return self._failed(error)

    def _failed(self, error: OSError) -> UnavailableError:
        self._is_failed = True
        where = self.describe(self.numbers[-1] if self.numbers else 1)
        return disk_error(error, where, is_final=True)

    def _sync(self, sync: Callable[[], None]) -> None:
        try:
            sync()
        except OSError as error:
            raise self._failed(error) from error

    def roll(self) -> None:
        """Seal the last segment and begin the next; raises as `append` does."""
        number = self.numbers[-1]
        if not self.is_sealed:
            file = self._last
            trailer = self.open_index.encode(self.end, self.checksum)
            try:
                file.truncate(self.end)
                file.write_at(self.end, trailer)
            except OSError as error:
                raise self._undo(file, error) from error
            self._sync(file.sync)
            self.is_sealed = True
            self.sealed_bytes += self.end + len(trailer)
        try:
            self._begin(number + 1)
        except OSError as error:
            if is_full(error):
                raise disk_error(error, self.describe(number + 1)) from error
            raise self._failed(error) from error

    def _begin(self, number: int) -> None:
        file = self._disk.open(segment_name(number), create=True)
        self._write_header(file, number, self.log_id)
        self._sync(self._disk.sync_directory)
        checksum = crc32(encode_header(number, self.log_id))
        extent = Extent(self.log_id, Place(number, HEADER_BYTES), checksum)
        has_reached = self._reached is not None or self._found_reached.is_there
        write_receipt(self._disk, extent, has_reached=has_reached)
        self._last = file
        if self.numbers and self.is_open(self.numbers[-1]):
            self._kept[self.numbers[-1]] = self.open_index
        self.end = self._filled = HEADER_BYTES
        self.checksum = checksum
        self.numbers = [*self.numbers, number]
        self._open = (number, OpenIndex(file))
        self.is_sealed = False

    def _begin_reached(self) -> Reached:
        try:
            self._reached = Reached(self._disk, self.extent)
        except OSError as error:
            if is_full(error):
                raise disk_error(error, self._disk.describe(REACHED_NAME)) from error
            raise self._failed(error) from error
        return self._reached

    def _write_header(self, file: File, number: int, log_id: bytes) -> None:
        file.truncate(0)
        file.write_at(0, encode_header(number, log_id))
        self._sync(file.sync)

    def replace(self, run: Sequence[int], rewriting: Rewriting, size: int) -> None:
        """Let the last segment of a run stand for all of it: its file was replaced, durably.

        In the loop, while nothing is appended. The other files may be removed afterwards.
        """
        number = run[-1]
        replaced_bytes = sum(self._sealed(old)[1].end for old in run)
        first, segment, offset, generation = rewriting
        self.firsts[number], self.generations[number] = first, generation
        self.forget(run)  # before a reader can learn that there are other segments now
        self.numbers = [one for one in self.numbers if one == number or one not in run]
        self.swaps += 1
        for old in run[:-1]:
            self.firsts.pop(old, None)
            self.generations.pop(old, None)
        self.by_id_place = max(self.by_id_place, Place(segment, offset))
        self.sealed_bytes += size - replaced_bytes

    # -- reading

    def columns(self, number: int, partition_id: int) -> Columns | None:
        """Return what a segment holds of a partition, None if nothing.

        Raises:
            CorruptionError: the index is damaged.
        """
        open_number, index = self._open
        if number == open_number:
            return index.partitions.get(partition_id)
        return self.sealed_columns(number, partition_id)

    def recent_columns(self, number: int, partition_id: int) -> Columns | None:
        """Return the same, perhaps without flags: from memory, until `forget_indexes` is called.

        What by-id does not know yet is looked up in them.
        """
        if self.is_open(number):
            return self.columns(number, partition_id)
        kept = self._kept.setdefault(number, OpenIndex()).partitions
        if partition_id not in kept:
            kept[partition_id] = self.columns(number, partition_id) or Columns()
        return kept[partition_id]

    def forget_indexes(self, before: int) -> None:
        """Keep no longer in memory what indexes of sealed segments below a number say."""
        for number in [number for number in self._kept if number < before]:
            del self._kept[number]

    def span(self, number: int, partition_id: int) -> tuple[int, int] | None:
        """Return the first and last seqno a segment holds of a partition, None if it has none.

        Raises:
            CorruptionError: the directory is damaged.
        """
        open_number, index = self._open
        if number != open_number:
            return self.sealed_span(number, partition_id)
        columns = index.partitions.get(partition_id)
        seqnos = columns.seqnos if columns is not None else ()
        return (seqnos[0], seqnos[-1]) if seqnos else None

    def partitions_in(self, number: int) -> list[int]:
        """Return the partitions a segment holds something of."""
        open_number, index = self._open
        return (
            sorted(index.partitions) if number == open_number else self.sealed_partitions(number)
        )

    def is_open(self, number: int) -> bool:
        """Return whether the segment is the one that is written."""
        return number == self._open[0]

    def walk(self, number: int, offset: int = HEADER_BYTES) -> Iterator[Record]:
        """Yield the records of a segment from an offset, its index record excluded."""
        file = self._file(number)
        if self.is_open(number) or (self.is_sealed and number == self.numbers[-1]):
            end = self.end
        else:
            end = self._sealed(number)[1].index_offset
        for found in walk(file.read_at, offset, end):
            yield found
            offset = found.offset + found.length
        if offset < end:
            raise self._corrupt(number, offset, "a record is not what was written")

    def verify(self, number: int) -> int:
        """Read a whole sealed segment; return its bytes.

        Raises:
            CorruptionError: it is not what was written; names the first damaged place.
        """
        footer = self._sealed(number)[1]
        if self.checksum_of(number, footer.index_offset) != footer.data_checksum:
            for _ in self.walk(number):
                pass
            raise self._corrupt(number, 0, "its checksum differs")
        return footer.index_offset

    def end_of(self, number: int) -> int:
        """Return where the records of a segment end."""
        return self.end if number == self.numbers[-1] else self._sealed(number)[1].index_offset

    # -- files

    def identity(self) -> tuple[int, int]:
        """Return what tells the last segment from a copy of it."""
        return self._last.identity()

    def close(self) -> None:
        """Close all files. The log must not be used any more."""
        self._is_failed = True
        self._last.close()
        if self._reached is not None:
            self._reached.close()
        while self._files:
            self._files.popitem()[1].file.close()
