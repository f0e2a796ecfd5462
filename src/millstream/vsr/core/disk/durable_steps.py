"""What a member of a replication group keeps on disk, as bytes and as what a restart finds.

    superblock          two copies, 64 KiB apart: the hard state, and which files are in force
    journal-<number>    entries, one behind the other
    headers-<number>    a slot of 160 bytes for each entry: its header, and where the entry stands
    snapshot-<number>   state of the group at one LSN

Invariants:
1. The two copies of the superblock are written one after the other, each synced, and only both
   make a write done. So after a crash at any moment one is whole, and later damage to either one
   brings back no older promise. Both bad means the promises of this node are lost, and the node
   with them.
2. A slot is written after its entry is durable, and synced before the entry counts as durable. So
   a slot that is there says "this entry may have been acknowledged", and an entry that is not
   whole is *torn* only if no slot names it; else it is *faulty*, to be fetched from another
   member, never cut.
3. Nothing names a file but the superblock, so one superblock write replaces log, header file and
   snapshot together.
4. A number is never given to two files that were both in force.

Elsewhere: reading it all at a start (`startup`), writing it (`journal`).

Source: Liskov and Cowling 2012; Alagappan et al. 2018 on telling torn from damaged.
docs/reference/coordination-format.md.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from struct import Struct
from typing import Final, NamedTuple

import msgspec

from millstream import accelerated
from millstream.errors import CorruptionError
from millstream.vsr.core.effects import Damaged, Image
from millstream.vsr.core.entries import (
    GENESIS,
    HASH_BYTES,
    HEADER_BYTES,
    Entry,
    Header,
    Link,
    decode_header,
    hash_of,
)
from millstream.vsr.core.hard_state import HardState
from millstream.vsr.core.snapshots import Snapshot, SnapshotId, snapshot_of

__all__ = [
    "COPY_BYTES",
    "SLOT_BYTES",
    "SNAPSHOT_HEAD_BYTES",
    "SUPERBLOCK",
    "SUPERBLOCK_BYTES",
    "DurableImage",
    "Extent",
    "Layout",
    "Place",
    "Root",
    "Slot",
    "decode_root",
    "decode_slot",
    "decode_snapshot",
    "encode_log",
    "encode_root",
    "encode_slot",
    "encode_snapshot_head",
    "header_file_name",
    "is_of_one",
    "newest_root",
    "segment_name",
    "snapshot_name",
]

SUPERBLOCK: Final = "superblock"
COPY_BYTES: Final = 64 * 1024
"""Room of one copy of the superblock, so that no sector or page has parts of both."""
SUPERBLOCK_BYTES: Final = 2 * COPY_BYTES
_MAGIC: Final = b"MSTRMGRP"
_SNAPSHOT_MAGIC: Final = b"MSTRMSNP"
_VERSION: Final = 1
_ROOT_HEAD: Final = Struct(">8sHHIQ")
_PLACE: Final = Struct(">QQ")
_SNAPSHOT_HEAD: Final = Struct(">8sHHIQQ16sQQ32s")
SNAPSHOT_HEAD_BYTES: Final = _SNAPSHOT_HEAD.size + HASH_BYTES
SLOT_BYTES: Final = HEADER_BYTES + _PLACE.size + HASH_BYTES


# ---- files in force


class Extent(NamedTuple):
    """A segment and the LSNs that count in it; entries of it beyond them were replaced."""

    segment: int
    first_lsn: int
    last_lsn: int
    """0 in the last one, which is still written."""


class Layout(NamedTuple):
    """The files in force. `base` is the entry before the first one that is kept."""

    base: Link
    headers: int
    segments: tuple[Extent, ...]

    def segment_of(self, lsn: int) -> int | None:
        """Return the number of the segment that holds an LSN."""
        for extent in reversed(self.segments):
            if extent.first_lsn <= lsn:
                return extent.segment if not extent.last_lsn or lsn <= extent.last_lsn else None
        return None


class Root(NamedTuple):
    """One superblock write; `sequence` grows by one with each."""

    sequence: int
    hard_state: HardState
    snapshot: SnapshotId | None
    """The stable one: what the log may be cut for."""
    layout: Layout


_root_decoder = msgspec.msgpack.Decoder(tuple[HardState, SnapshotId | None, Layout])


def encode_root(root: Root, copy: int) -> bytes:
    """Return copy 0 or 1 of the superblock, at most `COPY_BYTES`."""
    payload = msgspec.msgpack.encode(root[1:])
    head = _ROOT_HEAD.pack(_MAGIC, _VERSION, copy, len(payload), root.sequence)
    data = head + payload
    data += hash_of(data)
    assert len(data) <= COPY_BYTES, "more segments than a superblock can name"
    return data


def decode_root(data: bytes, copy: int) -> Root | None:
    """Return copy 0 or 1 of the superblock. None if it is damaged, or is the other copy.

    Raises:
        CorruptionError: `newer_superblock`: whole, but of a version that is not known.
    """
    if len(data) < _ROOT_HEAD.size:
        return None
    magic, version, number, length, sequence = _ROOT_HEAD.unpack_from(data)
    end = _ROOT_HEAD.size + length
    if magic != _MAGIC or data[end : end + HASH_BYTES] != hash_of(data[:end]):
        return None
    if version != _VERSION:
        raise CorruptionError(
            f"the superblock is of version {version}; start the version of Millstream that wrote "
            "it, or a newer one",
            code="newer_superblock",
        )
    if number != copy:
        return None
    return Root(sequence, *_root_decoder.decode(data[_ROOT_HEAD.size : end]))


def newest_root(data: bytes) -> tuple[Root | None, tuple[int, ...]]:
    """Return the root in force of a superblock file, and which of its copies do not say so."""
    found = [decode_root(data[i * COPY_BYTES : (i + 1) * COPY_BYTES], i) for i in (0, 1)]
    whole = [root for root in found if root is not None]
    newest = max(whole, key=lambda root: root.sequence, default=None)
    return newest, tuple(i for i in (0, 1) if newest is None or found[i] != newest)


def segment_name(number: int) -> str:
    """Return the file name of a segment."""
    return f"journal-{number:08}"


def header_file_name(number: int) -> str:
    """Return the file name of a header file."""
    return f"headers-{number:08}"


def snapshot_name(number: int) -> str:
    """Return the file name of a snapshot."""
    return f"snapshot-{number:08}"


# ---- slots of the header file


class Place(NamedTuple):
    """Where an entry begins."""

    segment: int
    offset: int


class Slot(NamedTuple):
    """The header and place of an entry that may have been acknowledged."""

    header: Header
    place: Place


def encode_slot(header: bytes, place: tuple[int, int]) -> bytes:
    """Return the `SLOT_BYTES` bytes of an entry with this encoded header."""
    data = header + _PLACE.pack(*place)
    return data + hash_of(data)


def encode_log(entries: Iterable[Entry], segment: int, offset: int) -> tuple[bytes, bytes]:
    """Return the bytes of entries in a segment from `offset` on, and their slots."""
    data, slots = bytearray(), bytearray()
    for header, body in entries:
        slots += encode_slot(header.encoded, (segment, offset + len(data)))
        data += header.encoded
        data += body
    return bytes(data), bytes(slots)


def decode_slot(data: bytes) -> Slot | None:
    """Return the slot, None if the bytes are not those of a slot."""
    body = data[:-HASH_BYTES]
    if len(data) != SLOT_BYTES or data[-HASH_BYTES:] != hash_of(body):
        return None
    return Slot(decode_header(body), Place(*_PLACE.unpack_from(body, HEADER_BYTES)))


# ---- snapshots


def encode_snapshot_head(snapshot: Snapshot, *, is_of_one: bool = False) -> bytes:
    """Return the beginning of a snapshot's file. The snapshot's parts follow."""
    number, link, digest = snapshot.id
    head = _SNAPSHOT_HEAD.pack(
        _SNAPSHOT_MAGIC, _VERSION, is_of_one, 0, number, *link, snapshot.size, digest
    )
    return head + hash_of(head)


def is_of_one(content: bytes) -> bool:
    """Return whether the file of a snapshot says that no quorum has agreed on it."""
    return bool(_SNAPSHOT_HEAD.unpack_from(content)[2])


def decode_snapshot(content: bytes) -> Snapshot | None:
    """Return the snapshot, None if the bytes are not those that were written."""
    head = content[: _SNAPSHOT_HEAD.size]
    if content[_SNAPSHOT_HEAD.size : SNAPSHOT_HEAD_BYTES] != hash_of(head):
        return None
    magic, version, _, _, number, lsn, link_hash, ts_ms, length, digest = _SNAPSHOT_HEAD.unpack(
        head
    )
    data = content[SNAPSHOT_HEAD_BYTES:]
    is_whole = (magic, version, length) == (_SNAPSHOT_MAGIC, _VERSION, len(data))
    found = snapshot_of(number, Link(lsn, link_hash, ts_ms), data)
    return found if is_whole and found.id.hash == digest else None


# ---- what a restart finds


@dataclass(frozen=True, slots=True)
class DurableImage:
    """What a restart finds; it has been made durable, and the journal goes on behind it."""

    hard_state: HardState | None
    """None: lost. This node id is dead; its member must be replaced by a new one."""
    base: Link = GENESIS
    """The entry before the first one of the log."""
    headers: tuple[Header, ...] = ()
    """The headers of all entries after `base`."""
    bodies: tuple[bytes | None, ...] = ()
    """The bodies of the same entries. None: damaged; it may have been acknowledged and is fetched.
    """
    snapshot: Snapshot | None = None
    """The stable one; `snapshot_id` without it: it must be fetched."""
    snapshot_id: SnapshotId | None = None
    """What the superblock names."""
    is_journal_lost: bool = False
    """The log cannot be read, so nothing is known about it. The hard state is valid."""

    @property
    def link(self) -> Link:
        """The end of the log."""
        return self.headers[-1].link if self.headers else self.base

    @property
    def op_lsn(self) -> int:
        """The last LSN, whole or faulty."""
        return self.base.lsn + len(self.headers)

    def entry(self, lsn: int) -> Entry | None:
        """Return an entry behind `base`; None if it is faulty."""
        index = lsn - self.base.lsn - 1
        assert index >= 0
        body = self.bodies[index]
        return None if body is None else Entry(self.headers[index], body)

    @property
    def for_replica(self) -> Image:
        """The same, as a replica takes it; the hard state must be there."""
        assert self.hard_state is not None
        if self.is_journal_lost:
            return Image(self.hard_state, lost=True)
        return Image(self.hard_state, self.log, False, self.base, self.snapshot_id, self.snapshot)

    @property
    def log(self) -> tuple[Entry | Damaged, ...]:
        """The entries behind `base`, as a replica takes them."""
        return tuple(
            Damaged(header) if body is None else Entry(header, body)
            for header, body in zip(self.headers, self.bodies, strict=True)
        )

    def faulty(self) -> Iterator[int]:
        """Yield the LSNs that must be fetched, ascending."""
        for index, body in enumerate(self.bodies):
            if body is None:
                yield self.base.lsn + 1 + index


accelerated.bind(sys.modules[__name__], "encode_log", also=(encode_slot, hash_of))
