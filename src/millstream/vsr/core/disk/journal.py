"""The journal of one group over the disk port: every durable step of a member, in order.

Invariants:
1. When a call returns, what it says is durable; when it raises, nothing that it says counts.
2. An append syncs the entries before it writes their slots, and these before it returns.
3. Install, a new base and a cut prefix write new files, sync them and the directory, and then
   take effect by one superblock write; the files they replace are removed only after it. An
   install that takes nothing away, and adds only what the view itself has brought, is a hard
   state and an append: in between, the log is the one that the view began with, or more.
   An install that finds many segments writes the entries of the last small ones into its new one,
   too: so there are never more than `SEGMENTS_FEW` and what large ones hold the log.
4. What the superblock's commit hint covers is never cut, and promises never go back.
5. Lack of space passes: nothing counts, and the same call may be made again. After any other
   error, and after any error of a sync or of the superblock, nothing is written any more.
6. At a start what was found is made durable before it is believed.

Elsewhere: what is found at a start (`startup`), errors (`careful_files`), the thread that calls
this (`vsr.aio.journal`).

Source: Liskov and Cowling 2012. docs/reference/coordination-format.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from millstream.errors import CorruptionError, UnavailableError
from millstream.ports.disk import Disk
from millstream.vsr.core import entries as log_entries
from millstream.vsr.core.disk import durable_steps as durable
from millstream.vsr.core.disk.careful_files import CarefulFiles
from millstream.vsr.core.disk.durable_steps import (
    COPY_BYTES,
    SLOT_BYTES,
    SNAPSHOT_HEAD_BYTES,
    SUPERBLOCK,
    DurableImage,
    Extent,
    Layout,
    Place,
    Root,
    Slot,
    decode_slot,
    encode_root,
    encode_snapshot_head,
    header_file_name,
    segment_name,
    snapshot_name,
)
from millstream.vsr.core.disk.reached_file import SET_BACK, ReachedPoint
from millstream.vsr.core.disk.startup import Survey, survey
from millstream.vsr.core.effects import (
    AdoptSnapshot,
    Append,
    DiskEffect,
    Install,
    InstallSnapshot,
    WriteHardState,
    WriteSnapshot,
)
from millstream.vsr.core.entries import GENESIS, HEADER_BYTES, Entry, Link
from millstream.vsr.core.hard_state import HardState
from millstream.vsr.core.snapshots import Snapshot, SnapshotId

__all__ = [
    "AHEAD_SHARE",
    "MOVED_ENTRIES_MAX",
    "SEGMENTS_FEW",
    "SEGMENT_BYTES_MAX",
    "Journal",
    "format_group",
    "is_formatted",
    "is_of_the_view",
    "older_than",
]

SEGMENT_BYTES_MAX: Final = 16 * 1024 * 1024
"""A segment that has reached it is followed by a new one; only whole ones are removed."""
AHEAD_SHARE: Final = 16
"""At most this part of a segment is filled with zeros ahead.

The header file is not filled: there, one damaged bit after the last slot would look like a damaged
slot.
"""
SEGMENTS_FEW: Final = 64
"""If a log has so many, an end of it that is replaced takes small ones before it along."""
MOVED_ENTRIES_MAX: Final = 4096
"""Most entries of small segments that are merged into one; also at most the bytes of one segment.
"""
_MOVED_AT_ONCE: Final = 64
_NUMBERED: Final = re.compile(r"(?:journal|headers)-([0-9]+)")
_SNAPSHOT: Final = re.compile(r"snapshot-([0-9]+)")


def is_formatted(disk: Disk) -> bool:
    """Return whether this directory has, or had, a member of a group."""
    return SUPERBLOCK in disk.names()


def format_group(disk: Disk, hard_state: HardState) -> None:
    """Make the files of a group that this node is a member of from now on; once.

    Raises:
        UnavailableError: `disk_full`, `disk_failed`: it is not formatted.
    """
    assert not is_formatted(disk), "a second time would deny what the first one promised"
    files = CarefulFiles(disk)
    files.replace(header_file_name(1), b"")
    root = Root(1, hard_state._replace(commit_hint=0), None, Layout(GENESIS, 1, ()))
    copies = [encode_root(root, copy).ljust(COPY_BYTES, b"\0") for copy in (0, 1)]
    files.replace(SUPERBLOCK + ".new", b"".join(copies))
    files.rename(SUPERBLOCK + ".new", SUPERBLOCK)
    files.close()


class Journal:
    """The files of a formatted group; all calls block."""

    segments_few = SEGMENTS_FEW

    def __init__(
        self,
        disk: Disk,
        segment_bytes_max: int = SEGMENT_BYTES_MAX,
        reached: ReachedPoint | None = None,
    ) -> None:
        """Make durable what a crash left, read it and heal it.

        `reached`: how far the files had got at least, if that is known from elsewhere.

        Raises:
            CorruptionError: a newer version wrote the files; `set_back`: they are older than
                `reached`.
            UnavailableError: `disk_full`, `disk_failed`.
        """
        self._files, self._segment_bytes_max = CarefulFiles(disk), segment_bytes_max
        self._ahead_max = segment_bytes_max // AHEAD_SHARE
        self._files.settle()
        found = survey(disk)
        if why := older_than(disk, found, reached):
            raise CorruptionError(why, code=SET_BACK)
        self.image: DurableImage = found.image
        self.torn_bytes = found.torn_bytes
        """What this start has cut: begun, and never acknowledged."""
        self.op_lsn = found.image.op_lsn
        """The last LSN that is durable, or faulty."""
        self._is_lost = found.image.is_journal_lost
        self._end = found.end
        self._link = found.image.link
        self._root = found.root
        self._number = max(self._numbers(), default=0)
        if found.root is not None:
            self._heal(found, found.root)

    @property
    def root(self) -> Root:
        """What the superblock says; there must be one."""
        assert self._root is not None, "the superblock is lost"
        return self._root

    @property
    def reached(self) -> ReachedPoint:
        """How far all that is durable has got."""
        return ReachedPoint(self.root.sequence, 0 if self._is_lost else self.op_lsn)

    @property
    def has_failed(self) -> bool:
        """The disk failed: nothing is written any more."""
        return self._files.has_failed

    def _numbers(self) -> Iterable[int]:
        for name in self._files.names():
            if found := _NUMBERED.fullmatch(name):
                yield int(found[1])

    def _heal(self, found: Survey, root: Root) -> None:
        for copy in found.stale_copies:
            self._write_copy(root, copy)
        if self._is_lost:
            return
        layout = root.layout
        for place, data in found.heads.items():
            self._files.write(segment_name(place.segment), [(place.offset, data)])
        if found.torn_bytes and found.end is not None:
            self._files.cut(segment_name(found.end.segment), found.end.offset)
        if found.is_header_file_lost:
            slots = b"".join(data for _, data in sorted(found.slots.items()))
            headers = self._new_file(header_file_name, slots)
            self._files.sync_directory()
            self._flip(
                root.hard_state, layout._replace(headers=headers), root.snapshot, self.op_lsn
            )
        elif found.slots:
            parts = [(index * SLOT_BYTES, data) for index, data in found.slots.items()]
            self._files.write(header_file_name(layout.headers), parts)
        self._files.remove(found.leftovers)

    # ---- steps

    def carry_out(self, effect: DiskEffect) -> None:
        """Do what a replica wants done."""
        match effect:
            case Append(_, entries):
                self.append(entries)
            case Install(_, keep_lsn, suffix, hard_state):
                self.install(keep_lsn, suffix, hard_state)
            case WriteHardState(_, hard_state):
                self.write_hard_state(hard_state)
            case WriteSnapshot(_, snapshot):
                self.write_snapshot(snapshot)
            case AdoptSnapshot(_, snapshot_id, cut_lsn):
                self.adopt_snapshot(snapshot_id)
                self.truncate_prefix(cut_lsn)
            case InstallSnapshot(_, snapshot, suffix, hard_state):
                self.write_snapshot(snapshot)
                self.begin_anew(snapshot.id, suffix, hard_state)

    def append(self, entries: Sequence[Entry]) -> None:
        """Make entries durable behind the last one.

        Raises:
            UnavailableError: `disk_full`: none of them counts; `disk_failed`.
        """
        assert entries
        assert not self._is_lost
        link = log_entries.check_chain(self._link, self.root.hard_state.group_id, entries)
        end = self._end
        if end is None or end.offset >= self._segment_bytes_max:
            end = self._open_segment()
        slots, end = self._write_entries(end, entries)
        index = self.op_lsn - self.root.layout.base.lsn
        headers = header_file_name(self.root.layout.headers)
        self._files.write(headers, [(index * SLOT_BYTES, slots)])
        self.op_lsn, self._link, self._end = link.lsn, link, end

    def _open_segment(self) -> Place:
        layout = self.root.layout
        with self._begun():
            number = self._new_file(segment_name, b"")
            self._files.sync_directory()
        segments = (*_closed_at(layout.segments, self.op_lsn), Extent(number, self.op_lsn + 1, 0))
        self._change(layout._replace(segments=segments))
        self._end = Place(number, 0)
        return self._end

    def _write_entries(self, place: Place, entries: Iterable[Entry]) -> tuple[bytes, Place]:
        """Write entries one behind the other, durably; return their slots and where they end."""
        segment, begin = place
        data, slots = durable.encode_log(entries, segment, begin)
        self._files.append(segment_name(segment), begin, data, self._ahead_max)
        return slots, Place(segment, begin + len(data))

    def write_hard_state(self, hard_state: HardState) -> None:
        """Make promises durable."""
        self._flip(hard_state, self.root.layout, self.root.snapshot, self.op_lsn)

    def install(self, keep_lsn: int, suffix: Sequence[Entry], hard_state: HardState) -> None:
        """Replace the log: its own entries up to `keep_lsn`, then `suffix`.

        Takes effect, with the hard state, as a whole or not at all. Nothing of a lost log is kept.
        If everything is kept and the entries after it were created in this view, the hard state
        may become durable before them: these entries are lost if the process ends in between.
        """
        if self._is_lost:
            assert keep_lsn == 0
            self.begin_anew(None, suffix, hard_state)
            return
        layout = self.root.layout
        assert layout.base.lsn <= keep_lsn <= self.op_lsn
        if keep_lsn == self.op_lsn and (not suffix or is_of_the_view(suffix, hard_state)):
            self.write_hard_state(hard_state)
            if suffix:
                self.append(suffix)
            return
        size = (keep_lsn - layout.base.lsn) * SLOT_BYTES
        kept = self._files.read(header_file_name(layout.headers), 0, size)
        if moved := self._small_segments_up_to(keep_lsn, kept):
            keep_lsn, suffix = keep_lsn - len(moved), (*moved, *suffix)
            kept = kept[: -len(moved) * SLOT_BYTES]
        link = _slot_at(kept, keep_lsn - layout.base.lsn - 1).header.link if kept else layout.base
        self._replace_log(
            layout.base, kept, keep_lsn, link, suffix, hard_state, self.root.snapshot
        )

    def _small_segments_up_to(self, lsn: int, slots: bytes) -> list[Entry]:
        """Return what the last segments up to an LSN hold, of too many; what is whole of it."""
        base, segments = self.root.layout.base.lsn, _closed_at(self.root.layout.segments, lsn)
        moved: list[Entry] = []
        left = self._segment_bytes_max if len(segments) >= self.segments_few else 0
        for extent in reversed(segments):
            begin, end = extent.first_lsn - base - 1, extent.last_lsn - base
            part = slots[begin * SLOT_BYTES : end * SLOT_BYTES]
            last = decode_slot(part[-SLOT_BYTES:])
            size = last.place.offset + HEADER_BYTES + last.header.body_length if last else left + 1
            if size > left or len(moved) + end - begin > MOVED_ENTRIES_MAX:
                break
            content = self._files.peek(segment_name(extent.segment), size)
            found = list(_whole_entries(content, part))
            is_next_whole = begin == 0 or decode_slot(
                slots[(begin - 1) * SLOT_BYTES : begin * SLOT_BYTES]
            )
            if len(found) < end - begin or not is_next_whole:
                break
            moved, left = found + moved, left - size
        return moved

    def begin_anew(
        self, snapshot: SnapshotId | None, suffix: Sequence[Entry], hard_state: HardState
    ) -> None:
        """Replace the log by `suffix` after a snapshot, or after the very beginning."""
        base = GENESIS if snapshot is None else snapshot.link
        self._replace_log(base, b"", base.lsn, base, suffix, hard_state, snapshot)

    def _replace_log(
        self,
        base: Link,
        kept: bytes,
        keep_lsn: int,
        link: Link,
        suffix: Sequence[Entry],
        hard_state: HardState,
        snapshot: SnapshotId | None,
    ) -> None:
        segments = _closed_at(self.root.layout.segments, keep_lsn) if kept else ()
        slots, end = kept, None
        with self._begun():
            if suffix:
                link = log_entries.check_chain(link, hard_state.group_id, suffix)
                number = self._new_file(segment_name, b"")
                new, end = self._write_entries(Place(number, 0), suffix)
                slots, segments = kept + new, (*segments, Extent(number, keep_lsn + 1, 0))
            headers = self._new_file(header_file_name, slots)
            self._files.sync_directory()
        op_lsn = keep_lsn + len(suffix)
        if not hard_state.is_voting:
            self._is_lost = False  # and with it goes what it had committed
        self._flip(hard_state, Layout(base, headers, segments), snapshot, op_lsn)
        self.op_lsn, self._link, self._end, self._is_lost = op_lsn, link, end, False
        self._remove_old()

    def write_snapshot(self, snapshot: Snapshot) -> None:
        """Make a snapshot durable; it counts once it is adopted, or the log begins behind it.

        Raises:
            UnavailableError: `disk_full`: the space that it took is free again; `disk_failed`.
        """
        name = snapshot_name(snapshot.id.number)
        try:
            self._write_snapshot(name, snapshot)
        except UnavailableError:
            if not self.has_failed:
                self._files.remove([name + ".new"])
            raise

    def _write_snapshot(self, name: str, snapshot: Snapshot) -> None:
        self._files.cut(name + ".new", 0)
        parts, offset = [(0, encode_snapshot_head(snapshot))], SNAPSHOT_HEAD_BYTES
        for part in snapshot.parts:
            parts.append((offset, part))
            offset += len(part)
        self._files.write(name + ".new", parts)
        self._files.rename(name + ".new", name)

    def adopt_snapshot(self, snapshot: SnapshotId) -> None:
        """Make a written snapshot the stable one, from which a start begins."""
        assert snapshot_name(snapshot.number) in self._files.names()
        self._flip(self.root.hard_state, self.root.layout, snapshot, self.op_lsn)
        self._remove_old()

    def truncate_prefix(self, lsn: int) -> None:
        """Remove whole segments in which nothing is above `lsn`; the snapshot covers them."""
        layout, snapshot = self.root.layout, self.root.snapshot
        assert snapshot is not None
        assert lsn <= snapshot.lsn, "a log cut above the snapshot"
        gone = [extent for extent in layout.segments if 0 < extent.last_lsn <= lsn]
        if not gone:
            return
        begin, end = gone[-1].last_lsn - layout.base.lsn, self.op_lsn - layout.base.lsn
        slots = self._files.read(header_file_name(layout.headers), 0, end * SLOT_BYTES)
        base = _slot_at(slots, begin - 1).header.link
        with self._begun():
            headers = self._new_file(header_file_name, slots[begin * SLOT_BYTES :])
            self._files.sync_directory()
        self._change(Layout(base, headers, layout.segments[len(gone) :]))
        self._remove_old()

    def close(self) -> None:
        """Close all files."""
        self._files.close()

    # ---- files

    @contextmanager
    def _begun(self) -> Iterator[None]:
        """If space is lacking, give free again what was begun, and what nothing names."""
        try:
            yield
        except UnavailableError:
            if not self.has_failed:
                self._remove_old()
            raise

    def _new_file(self, name_of: Callable[[int], str], content: bytes) -> int:
        self._number += 1
        self._files.replace(name_of(self._number), content)
        return self._number

    def _flip(
        self, hard_state: HardState, layout: Layout, snapshot: SnapshotId | None, op_lsn: int
    ) -> None:
        """Write the superblock, both copies: from here on this is what a start finds."""
        sequence, old, _, _ = self.root
        assert (hard_state.group_id, hard_state.node_id) == (old.group_id, old.node_id)
        assert hard_state.incarnation >= old.incarnation
        assert hard_state.last_normal >= old.last_normal
        assert _epoch_and_view(hard_state) >= _epoch_and_view(old)
        hint = max(old.commit_hint, min(hard_state.commit_hint, op_lsn))
        if hint > op_lsn and not self._is_lost:
            assert not hard_state.is_voting, "a new log is shorter than what is committed"
            hint = op_lsn
        root = Root(sequence + 1, hard_state._replace(commit_hint=hint), snapshot, layout)
        for copy in (0, 1):
            self._write_copy(root, copy)
        self._root = root

    def _change(self, layout: Layout) -> None:
        self._flip(self.root.hard_state, layout, self.root.snapshot, self.op_lsn)

    def _write_copy(self, root: Root, copy: int) -> None:
        data = encode_root(root, copy)
        self._files.write(SUPERBLOCK, [(copy * COPY_BYTES, data)], is_final=True)

    def _remove_old(self) -> None:
        """Remove what the superblock has replaced; of snapshots only those before the stable.

        Where no descriptor is left to see what there is, the next time or the next start does it.
        """
        try:
            names = self._files.names()
        except UnavailableError:
            if self.has_failed:
                raise
            return
        layout, stable = self.root.layout, self.root.snapshot
        used = {extent.segment for extent in layout.segments} | {layout.headers}
        old: list[str] = []
        for name in names:
            if found := _NUMBERED.fullmatch(name):
                old += [name] if int(found[1]) not in used else []
            elif (found := _SNAPSHOT.fullmatch(name)) and stable is not None:
                old += [name] if int(found[1]) < stable.number else []
        self._files.remove(old)


def older_than(disk: Disk, found: Survey, reached: ReachedPoint | None) -> str:
    """Return why files are older than they were; empty if they are not, as far as is known."""
    root, image = found.root, found.image
    if root is None or reached is None or root.sequence > reached.sequence:
        return ""
    is_shorter = not image.is_journal_lost and image.op_lsn < reached.op_lsn
    if root.sequence == reached.sequence and not is_shorter:
        return ""
    return (
        f"{disk.describe('')} is an older copy of itself, or has lost its end: it has "
        f"superblock {root.sequence} and entries up to {image.op_lsn}, and had superblock "
        f"{reached.sequence} and entries up to {reached.op_lsn}. What its member has promised "
        "since is not known: put the newest copy back, or move the directory that it is in "
        "aside, start the node anew with --join, and let it take the lost one's place "
        "(ADMIN GROUP REPLACE)"
    )


def _epoch_and_view(hard_state: HardState) -> tuple[int, int]:
    return hard_state.configuration.epoch, hard_state.view


def is_of_the_view(entries: Iterable[Entry], hard_state: HardState) -> bool:
    """Return whether all were born in the epoch and view whose log this is from now on."""
    view = _epoch_and_view(hard_state)
    return hard_state.last_normal == view and all(
        (entry.header.epoch, entry.header.view) == view for entry in entries
    )


def _whole_entries(content: bytes, slots: bytes) -> Iterator[Entry]:
    """Yield the entries that a segment begins with, as far as they are whole and as slots say."""
    at, index, count = 0, 0, len(slots) // SLOT_BYTES
    while index < count:
        try:
            found, at = log_entries.decode_entries(content, at, min(_MOVED_AT_ONCE, count - index))
        except CorruptionError:
            return
        for entry in found:
            begin = index * SLOT_BYTES
            if entry.header.encoded != slots[begin : begin + HEADER_BYTES]:
                return
            index += 1
            yield entry


def _slot_at(slots: bytes, index: int) -> Slot:
    slot = decode_slot(slots[index * SLOT_BYTES : (index + 1) * SLOT_BYTES])
    if slot is None:
        raise CorruptionError(
            f"slot {index} of the header file was damaged while it was in use; restart the node, "
            "which then repairs it",
            code="damaged_slot",
        )
    return slot


def _closed_at(segments: Iterable[Extent], lsn: int) -> tuple[Extent, ...]:
    """Return the extents of a log that ends at `lsn`, the last one closed there."""
    return tuple(
        extent._replace(last_lsn=min(extent.last_lsn or lsn, lsn))
        for extent in segments
        if extent.first_lsn <= lsn
    )
