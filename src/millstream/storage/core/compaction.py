"""Rewriting a run of sealed segments as one, without what no reader may ask for.

    write beside -> sync -> rename over the run's last -> sync the directory -> remove the others

In the new segment the controls stand first, then the records of one partition after the other,
then marks whose change is gone.

Invariants:
1. What goes: records that a rollback killed, and marked ones at or below what `Marking` says is
   marked durably. So the previous record of what goes is gone, or is marked, before it.
2. A mark not below the history seqno, and the newest one, stays: as a record of its own if its
   change goes.
3. A rollback stays while an older segment holds something that it killed.
4. What goes was decided from one state of the log, taken in the loop. A rollback that comes
   meanwhile stands in a later segment and finds its records here like any others.
5. The run is replaced by one rename: its last number, under which it stands from then on, says in
   its header which numbers it stands for. Rollbacks of the run get that number, too; whatever they
   killed in it is gone.
6. by-id has been applied past the run before it is replaced, and past the rollbacks by which
   records go, since it finds out from these records what a rollback changed; the header says how
   far.
7. A step takes at most some milliseconds, but for syncs of `SYNC_BYTES`.

Elsewhere: what is marked (`marking`), which run (`compaction_plan`), the order in which the engine
does all this beside reads and writes (`kv.aio.compactor`).
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from itertools import accumulate, compress
from operator import itemgetter
from typing import Final, NamedTuple
from zlib import crc32

from millstream.ports.disk import Disk, File
from millstream.storage.core.controls import ControlRecord, control_of, kept_controls
from millstream.storage.core.disk_errors import disk_error
from millstream.storage.core.live import LiveLog
from millstream.storage.core.marking import limit_of, points_in_force
from millstream.storage.core.records import MARK_BIT, Kind, mark_record
from millstream.storage.core.segment import (
    OFFSET_MAX,
    SUPERSEDED,
    TOMBSTONE,
    Columns,
    OpenIndex,
    Rewriting,
    encode_header,
)
from millstream.storage.core.segment_files import Place, segment_name
from millstream.storage.core.summary import Kill

__all__ = ["STEP_RECORDS_MAX", "SYNC_BYTES", "Compaction", "KeyBatch"]

STEP_RECORDS_MAX: Final = 1024
"""Records copied, or keys read, in one step."""
STEP_CONTROLS_MAX: Final = 256
"""Records that are no changes read in one step."""
SYNC_BYTES: Final = 8 * 1024 * 1024
"""Written between two syncs, so that none of the flusher's waits for much."""
_IS_KEPT: Final = bytes(not flag & SUPERSEDED for flag in range(256))
_IS_GONE_TOMBSTONE: Final = bytes(flag & 3 == SUPERSEDED | TOMBSTONE for flag in range(256))
_TEMPORARY: Final = ".new"
_kind_of = itemgetter(8)


class KeyBatch(NamedTuple):
    """Keys of one partition, ascending, with the seqno of their record and its new offset."""

    partition_id: int
    keys: list[bytes]
    seqnos: list[int]
    offsets: list[int]


class _Partition(NamedTuple):
    """What of a partition may go."""

    marked: int
    history: int
    newest_mark: int
    kills: list[Kill]


class _Writer:
    """The new file, written from its beginning to its end."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._synced = 0
        self.offset = 0
        self.checksum = 0

    def write(self, data: bytes) -> None:
        if not data:
            return
        self._file.write_at(self.offset, data)
        self.offset += len(data)
        self.checksum = crc32(data, self.checksum)
        if self.offset - self._synced >= SYNC_BYTES:
            self.sync()

    def sync(self) -> None:
        self._file.sync()
        self._synced = self.offset


class Compaction:
    """One run. Made and installed in the loop, while nothing is appended; the rest in a thread.

    Args:
        disk: the directory of the log.
        live: the log.
        run: neighbours among its sealed segments.
        marked: by partition, what is marked durably.
        by_id_place: a place behind the run up to which by-id has been applied.
        kills: by partition, what rollbacks before that place killed.
        controls: records that are no changes, by sealed segment, as far as they were read already.
    """

    def __init__(
        self,
        disk: Disk,
        live: LiveLog,
        run: Sequence[int],
        marked: Sequence[int],
        by_id_place: Place,
        kills: Sequence[list[Kill]],
        controls: dict[int, list[ControlRecord]],
    ) -> None:
        log = live.log
        begin = log.numbers.index(run[0])
        assert log.numbers[begin : begin + len(run)] == list(run)
        assert run[-1] < min(by_id_place.segment, log.numbers[-1])
        self._disk = disk
        self._live = live
        self._log = log
        self.run = list(run)
        self._older, self._numbers = log.numbers[:begin], log.numbers
        self._open_controls = list(log.open_index.controls)
        self._controls = controls
        self._partitions = [
            _Partition(seqno, points_in_force(summary)[0], summary.mark, known)
            for seqno, summary, known in zip(marked, live.summaries, kills, strict=True)
        ]
        first = log.firsts.get(run[0], run[0])
        generation = 1 + max(log.generations.get(number, 0) for number in run)
        self.numbers = range(first, run[-1] + 1)
        """All numbers that the new segment stands for."""
        self._rewriting = Rewriting(first, *by_id_place, generation)
        self._name = segment_name(run[-1])
        self._index = OpenIndex()
        self._kept: list[ControlRecord] = []
        self._gone: list[tuple[int, int, int, int]] = []
        """Records among which tombstones go: partition, segment, begin, stop."""
        self.size = 0
        """Length of the new file in bytes."""

    # -- in a thread

    def steps(self) -> Iterator[None]:
        """Write the new segment beside the old ones, durably.

        Raises:
            CorruptionError: an index or a record is damaged.
            OSError: the disk is full or failed; `abandon` then.
        """
        yield from self._choose_controls()
        file = self._disk.open(self._name + _TEMPORARY, create=True)
        file.truncate(0)
        writer = _Writer(file)
        writer.write(encode_header(self.run[-1], self._log.log_id, self._rewriting))
        for control in self._kept:
            self._index.controls.append(writer.offset)
            writer.write(control.data)
        lone_marks: list[bytes] = []
        for p in range(len(self._partitions)):
            yield from self._copy(p, writer, lone_marks)
        writer.write(b"".join(lone_marks))
        assert writer.offset < OFFSET_MAX
        for piece in self._index.encode_pieces(writer.offset, writer.checksum):
            writer.write(piece)
            yield
        writer.sync()
        self.size = writer.offset

    def gone_keys(self) -> Iterator[KeyBatch]:
        """Yield the tombstones that go: by-id must forget them before `swap`.

        That they are marked is made durable first: a write that finds no tombstone does not name
        it as its previous record.
        """
        for number in self.run:
            self._log.sync_segment(number)
        for p, number, begin, stop in self._gone:
            columns = self._log.columns(number, p) or Columns()
            mask = columns.flags[begin:stop].translate(_IS_GONE_TOMBSTONE)
            yield self._keys(p, number, columns.select(begin, stop, mask))

    def swap(self) -> None:
        """Let the new segment take the place of the last of the run, durably.

        Raises:
            OSError: nothing happened.
            UnavailableError: `disk_failed`: it has taken its place, but perhaps not for ever. As
                the log is not read by it, nothing may go on, whatever the reason.
        """
        self._disk.rename(self._name + _TEMPORARY, self._name)
        try:
            self._disk.sync_directory()
        except OSError as error:
            raise disk_error(error, self._disk.describe(self._name), is_final=True) from error

    def remove_old(self) -> None:
        """Remove the files that the new segment replaces, once it is installed."""
        for number in self.run[:-1]:
            self._disk.remove(segment_name(number))
        self._log.forget(self.run[:-1])

    def moved_keys(self) -> Iterator[KeyBatch]:
        """Yield where the records stand from now on; once it is installed."""
        number = self.run[-1]
        for p in range(len(self._partitions)):
            columns = self._log.columns(number, p)
            if columns is not None:
                for begin, stop in _pieces(len(columns.seqnos)):
                    part = columns.select(begin, stop, bytes([1]) * (stop - begin))
                    yield self._keys(p, number, part)

    def abandon(self) -> None:
        """Leave everything as it was."""
        with suppress(OSError):
            self._disk.remove(self._name + _TEMPORARY)

    # -- in the loop

    def install(self) -> list[int]:
        """Read the new segment from now on; return the partitions whose summaries changed."""
        number = self.run[-1]
        self._log.replace(self.run, self._rewriting, self.size)
        for old in self.run:
            self._controls.pop(old, None)
        targets = {(c.partition_id, c.content) for c in self._kept if c.kind == Kind.ROLLBACK}
        changed = []
        for p, summary in enumerate(self._live.summaries):
            kills = [
                Kill(number, kill.seqno) if kill.segment in self.numbers else kill
                for kill in summary.kills
                if kill.segment not in self.numbers or (p, kill.seqno) in targets
            ]
            if kills != summary.kills:
                summary.kills = kills
                changed.append(p)
        return changed

    # -- inside

    def _choose_controls(self) -> Iterator[None]:
        """Find the controls of all partitions, and which of the run stay."""
        found: dict[int, list[ControlRecord]] = {}
        for number in self._numbers:
            controls = self._controls.get(number)
            if controls is None:
                controls = yield from self._read_controls(number)
                if number != self._numbers[-1]:  # the segment that is written gets more
                    self._controls[number] = controls
            for control in controls:
                found.setdefault(control.partition_id, []).append(control)
        for p, controls in sorted(found.items()):
            spans = [self._log.span(number, p) for number in self._older]
            older_top = max((span[1] for span in spans if span), default=0)
            self._kept += kept_controls(controls, self.run, older_top)
            yield

    def _read_controls(self, number: int) -> Generator[None, None, list[ControlRecord]]:
        log = self._log
        is_open = number == self._numbers[-1]
        offsets = self._open_controls if is_open else log.controls_in(number)
        found: list[ControlRecord] = []
        for at in range(0, len(offsets), STEP_CONTROLS_MAX):
            found += (
                control_of(number, log.record_at(number, offset))
                for offset in offsets[at : at + STEP_CONTROLS_MAX]
            )
            yield
        return found

    def _copy(self, p: int, writer: _Writer, lone_marks: list[bytes]) -> Iterator[None]:
        """Copy what stays of a partition; add the records of marks that lose their change."""
        state, out = self._partitions[p], self._index.of(p)
        lone: list[int] = []
        for number in self.run:
            columns = self._log.columns(number, p)
            if columns is None:
                continue
            limit = limit_of(state.kills, number)
            end = bisect_right(columns.seqnos, limit)
            marks = columns.marks[: bisect_right(columns.marks, limit)]
            for begin, stop in _pieces(end):
                marked_changes = yield from self._copy_piece(
                    p, number, columns, begin, stop, writer
                )
                upto = columns.seqnos[stop - 1] if stop < end else limit
                passed = bisect_right(marks, upto)
                lone += (
                    mark
                    for mark in marks[:passed]
                    if mark not in marked_changes
                    and (mark >= state.history or mark == state.newest_mark)
                )
                del marks[:passed]
        lone_marks += (mark_record(p, mark) for mark in lone)
        out.marks = array("Q", sorted((*out.marks, *lone)))

    def _copy_piece(
        self, p: int, number: int, columns: Columns, begin: int, stop: int, writer: _Writer
    ) -> Generator[None, None, set[int]]:
        """Copy what stays of the records begin .. stop-1; return those that are marks."""
        state, out = self._partitions[p], self._index.of(p)
        flags = columns.flags[begin:stop] or bytes(stop - begin)
        sure = bisect_right(columns.seqnos, state.marked, begin, stop) - begin
        mask = flags[:sure].translate(_IS_KEPT) + b"\1" * (stop - begin - sure)
        if 1 in flags[:sure].translate(_IS_GONE_TOMBSTONE):
            self._gone.append((p, number, begin, begin + sure))
        part = columns.select(begin, stop, mask)
        kinds = bytearray()
        for records, _ in self._log.records(number, part):
            out.offsets.extend(accumulate(map(len, records[:-1]), initial=writer.offset))
            kinds += bytes(map(_kind_of, records))
            writer.write(b"".join(records))
            yield
        out.lengths.extend(part.lengths)
        out.previous.extend(part.previous)
        out.seqnos.extend(part.seqnos)
        out.flags += bytes(compress(flags, mask))
        marked = set(compress(part.seqnos, map(MARK_BIT.__and__, kinds)))
        out.marks.extend(sorted(marked))
        return marked

    def _keys(self, p: int, number: int, part: Columns) -> KeyBatch:
        keys = self._log.keys(number, part, 0, len(part.seqnos))
        seqnos, offsets = part.seqnos, part.offsets
        order = sorted(range(len(keys)), key=keys.__getitem__)
        return KeyBatch(
            p, [keys[i] for i in order], [seqnos[i] for i in order], [offsets[i] for i in order]
        )


def _pieces(end: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of records that one step takes, at least an empty one."""
    for begin in range(0, max(end, 1), STEP_RECORDS_MAX):
        yield begin, min(begin + STEP_RECORDS_MAX, end)
