"""Reading a group's files at a start: what is whole, what is torn, what is faulty.

Invariants:
1. Nothing is written here; who opens the journal heals what `Survey` lists.
2. Torn, and cut, is only what no slot names, no closed extent holds and no commit hint covers,
   from the first entry on that is not whole. What any of them names is kept, whole or faulty.
3. An entry of which either the slot or the record is whole has its header; the entry behind it
   tells, by `prev_hash`, whether that is the right one.
4. The journal counts as lost if an entry that is kept has neither slot nor record; and, if the
   header file is gone, unless the segments hold the log to their last byte: else nobody could tell
   a torn end from a damaged one.

Elsewhere: the bytes (`durable_steps`, `entries`), healing and writing (`journal`).

Source: Alagappan et al. 2018. docs/reference/coordination-format.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from millstream.errors import CorruptionError
from millstream.ports.disk import Disk
from millstream.vsr.core.disk.durable_steps import (
    SLOT_BYTES,
    SUPERBLOCK,
    DurableImage,
    Layout,
    Place,
    Root,
    Slot,
    decode_slot,
    decode_snapshot,
    encode_slot,
    header_file_name,
    newest_root,
    segment_name,
    snapshot_name,
)
from millstream.vsr.core.entries import (
    HEADER_BYTES,
    Header,
    decode_header,
    is_body_of,
)
from millstream.vsr.core.snapshots import Snapshot

__all__ = ["Survey", "read_whole", "survey"]

_BLOCK_BYTES: Final = 4096
_UNREADABLE: Final = b"\xff" * _BLOCK_BYTES
"""Marks a block that the disk cannot read. It is not zeros, which would mean "never written"."""


@dataclass(slots=True)
class Survey:
    """What was found, and what has to be written before the journal may go on."""

    root: Root | None
    image: DurableImage
    stale_copies: tuple[int, ...] = ()
    """Copies of the superblock that are damaged, or older than the one in force."""
    slots: dict[int, bytes] = field(default_factory=dict)
    """Index -> what the header file should have there."""
    heads: dict[Place, bytes] = field(default_factory=dict)
    """Headers of entries whose header alone was damaged, by their place in a segment."""
    is_header_file_lost: bool = False
    end: Place | None = None
    """Behind the last entry of the open segment; None: the next entry needs a new segment."""
    torn_bytes: int = 0
    """Behind `end`: begun and never acknowledged."""
    leftovers: list[str] = field(default_factory=list)
    """Files that are not in force."""


def survey(disk: Disk) -> Survey:
    """Read all files of a group.

    Raises:
        CorruptionError: `newer_superblock`, `unknown_entry`: a newer version wrote them.
        OSError: the disk cannot be read at all.
    """
    root, stale = newest_root(read_whole(disk, SUPERBLOCK) or b"")
    if root is None:
        return Survey(None, DurableImage(None))
    reading = _Reading(disk, root)
    found = reading.survey()
    found.stale_copies = stale
    in_force = set(_files_in_force(root))
    found.leftovers = [name for name in disk.names() if name not in in_force]
    return found


def _files_in_force(root: Root) -> Iterator[str]:
    yield SUPERBLOCK
    yield header_file_name(root.layout.headers)
    for extent in root.layout.segments:
        yield segment_name(extent.segment)
    if root.snapshot is not None:
        yield snapshot_name(root.snapshot.number)


def read_whole(disk: Disk, name: str) -> bytes | None:
    """Return a file's content, None if it is missing. Unreadable blocks are not shown as zeros."""
    try:
        file = disk.open(name)
    except FileNotFoundError:
        return None
    try:
        size = file.size()
        try:
            return file.read_at(0, size)
        except OSError:
            return b"".join(_blocks(file.read_at, size))
    finally:
        file.close()


def _blocks(read_at: Callable[[int, int], bytes], size: int) -> Iterator[bytes]:
    for offset in range(0, size, _BLOCK_BYTES):
        wanted = min(_BLOCK_BYTES, size - offset)
        try:
            yield read_at(offset, wanted)
        except OSError:
            yield _UNREADABLE[:wanted]


class _Reading:
    """One pass over the entries of a layout, in order."""

    def __init__(self, disk: Disk, root: Root) -> None:
        self._disk, self._root, self._layout = disk, root, root.layout
        self._group_id = root.hard_state.group_id
        self._segment, self._content = -1, b""
        raw = read_whole(disk, header_file_name(root.layout.headers))
        self._is_header_file_lost = raw is None
        self._slots = _believed(_cut_slots(raw or b""), self._layout, self._group_id)
        self._places: list[Place | None] = []
        self._headers: list[Header | None] = []
        self._bodies: list[bytes | None] = []
        self._heads: dict[Place, bytes] = {}

    def survey(self) -> Survey:
        root, base = self._root, self._layout.base
        closed = max((extent.last_lsn for extent in self._layout.segments), default=0)
        named = max(closed, root.hard_state.commit_hint) - base.lsn
        named = max(named, len(self._slots))
        self._slots += [None] * (named - len(self._slots))
        for index in range(named):
            self._read(index, self._slots[index])
        while self._read_unnamed():
            pass
        self._doubt_broken_links()
        end, torn_bytes = self._find_end()
        snapshot = self._snapshot()
        headers = [header for header in self._headers if header is not None]
        is_doubtful = self._is_header_file_lost and (torn_bytes or None in self._bodies)
        if is_doubtful or len(headers) < len(self._headers):
            return Survey(root, DurableImage(
                root.hard_state, snapshot=snapshot, snapshot_id=root.snapshot, is_journal_lost=True
            ))  # fmt: skip
        image = DurableImage(
            root.hard_state, base, tuple(headers), tuple(self._bodies), snapshot, root.snapshot
        )
        return Survey(
            root, image, (), self._slots_to_write(), self._heads, self._is_header_file_lost, end,
            torn_bytes,
        )  # fmt: skip

    def _read(self, index: int, slot: Slot | None) -> None:
        """Add an entry that a slot or an extent names, whole or faulty."""
        place = self._expected_place() if slot is None else slot.place
        header = None if slot is None else slot.header
        written = self._header_at(place, header)
        if header is None and written is not None and self._fits(index, written):
            header = written
        body = None
        if header is not None and place is not None:
            begin = place.offset + HEADER_BYTES
            body = self._segment_content(place.segment)[begin : begin + header.body_length]
            if not is_body_of(header, body):
                body = None
            elif written != header:
                self._heads[place] = header.encoded
        self._add(place, header, body)

    def _add(self, place: Place | None, header: Header | None, body: bytes | None) -> None:
        self._places.append(place)
        self._headers.append(header)
        self._bodies.append(body)

    def _read_unnamed(self) -> bool:
        """Add the entry behind the last one if it is whole.

        No slot names it, so it may be kept or cut.
        """
        place = self._expected_place()
        header = self._header_at(place)
        if place is None or header is None or not self._fits(len(self._headers), header):
            return False
        begin = place.offset + HEADER_BYTES
        body = self._segment_content(place.segment)[begin : begin + header.body_length]
        if not is_body_of(header, body):
            return False
        self._add(place, header, body)
        return True

    def _fits(self, index: int, header: Header) -> bool:
        """Return whether a header without slot belongs to this index, judged by its neighbours."""
        if (header.group_id, header.lsn) != (self._group_id, self._layout.base.lsn + 1 + index):
            return False
        following = self._slots[index + 1] if index + 1 < len(self._slots) else None
        if following is not None:
            return header.hash == following.header.prev_hash
        if index == 0:
            return header.follows(self._layout.base)
        before = self._headers[index - 1]
        return before is None or header.follows(before.link)

    def _expected_place(self) -> Place | None:
        """Return where the next entry must begin, None if the last one's length is not known."""
        lsn = self._layout.base.lsn + 1 + len(self._headers)
        segment = self._layout.segment_of(lsn)
        if segment is None:
            return None
        if any(extent.first_lsn == lsn for extent in self._layout.segments):
            return Place(segment, 0)
        return _behind(self._places[-1], self._headers[-1])

    def _header_at(self, place: Place | None, slot: Header | None = None) -> Header | None:
        """Return the header there. If it says the same as a whole slot, it is that one."""
        if place is None:
            return None
        content = self._segment_content(place.segment)
        if slot is not None and content.startswith(slot.encoded, place.offset):
            return slot
        try:
            return decode_header(content, place.offset)
        except CorruptionError as error:
            if error.code == "unknown_entry":
                raise
            return None

    def _segment_content(self, number: int) -> bytes:
        if number != self._segment:
            self._segment = number
            self._content = read_whole(self._disk, segment_name(number)) or b""
        return self._content

    def _doubt_broken_links(self) -> None:
        """Check from the end that each entry names the one before it: those were acknowledged."""
        for index in range(len(self._headers) - 1, -1, -1):
            header = self._headers[index]
            before = self._headers[index - 1] if index else None
            if header is None or (index and before is None):
                continue
            if header.follows(self._layout.base if before is None else before.link):
                continue
            wrong = index - 1 if index else 0
            self._headers[wrong] = self._bodies[wrong] = self._places[wrong] = None

    def _find_end(self) -> tuple[Place | None, int]:
        place, segments = self._expected_place(), self._layout.segments
        if place is None or not segments or segments[-1].segment != place.segment:
            return None, 0
        behind = self._segment_content(place.segment)[place.offset :]
        return place, len(behind.rstrip(b"\0"))

    def _slots_to_write(self) -> dict[int, bytes]:
        wanted: dict[int, bytes] = {}
        for index, (header, place) in enumerate(zip(self._headers, self._places, strict=True)):
            assert header is not None
            assert place is not None
            if index >= len(self._slots) or self._slots[index] != (header, place):
                wanted[index] = encode_slot(header.encoded, place)
        return wanted

    def _snapshot(self) -> Snapshot | None:
        wanted = self._root.snapshot
        if wanted is None:
            return None
        found = decode_snapshot(read_whole(self._disk, snapshot_name(wanted.number)) or b"")
        return found if found is not None and found.id == wanted else None


def _behind(place: Place | None, header: Header | None) -> Place | None:
    if place is None or header is None:
        return None
    return Place(place.segment, place.offset + HEADER_BYTES + header.body_length)


def _cut_slots(raw: bytes) -> list[bytes]:
    """Return the slots up to the last one that is not all zeros. A part of one counts."""
    count = -(-len(raw.rstrip(b"\0")) // SLOT_BYTES)
    return [raw[i * SLOT_BYTES : (i + 1) * SLOT_BYTES] for i in range(count)]


def _believed(raw: list[bytes], layout: Layout, group_id: bytes) -> list[Slot | None]:
    """Return the slots that are whole, are in their place and are named by the next slot."""
    slots: list[Slot | None] = []
    for index, data in enumerate(raw):
        slot = decode_slot(data)
        lsn = layout.base.lsn + 1 + index
        if slot is not None and (slot.header.group_id, slot.header.lsn) != (group_id, lsn):
            slot = None
        if slot is not None and slot.place.segment != layout.segment_of(lsn):
            slot = None
        slots.append(slot)
    for index in range(len(slots) - 1, 0, -1):
        slot, before = slots[index], slots[index - 1]
        if slot is not None and before is not None and not slot.header.follows(before.header.link):
            slots[index - 1] = None
    return slots
