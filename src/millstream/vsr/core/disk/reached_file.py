"""The progress of a group's member, noted outside of its directory.

A group's folder, or the whole directory of coordination, may be replaced by an older copy of
itself. All files in it agree then, and still the member has forgotten promises. So the progress of
each member is kept in a small file elsewhere. It is written after each step was made durable, and
is never synced itself. It was true when it was written. After a loss of power it may be old.

    magic 8 | node 16 | group 16 | superblock's number 8 | last LSN 8 | BLAKE2b of all that 8

Such a note stands at offsets 0 and 512, written in turn, so that a process that is killed within a
write leaves the other.

Invariants:
1. Only notes of the same node and group count: a new node may take over an old node's directory.
2. A note that cannot be written, or is missing, stops nothing.

Elsewhere: who notes (`aio.journal`), who compares (`journal`), whose folders these are
(`coordination.aio.groups`).
"""

from __future__ import annotations

from contextlib import suppress
from hashlib import blake2b
from struct import Struct
from typing import Final, NamedTuple

from millstream.ports.disk import Disk, File

__all__ = ["SET_BACK", "ReachedFile", "ReachedPoint"]

SET_BACK: Final = "set_back"
"""Error code: a member's files are older than they once were."""
_MAGIC: Final = b"MSREACH1"
_NOTE: Final = Struct(">8s16s16sQQ")
_HASH_BYTES: Final = 8
_PLACES: Final = (0, 512)
"""Offsets of the notes: each in a sector of its own, which a disk writes whole."""


class ReachedPoint(NamedTuple):
    """The number of the superblock in force, and the last LSN of the log at that time."""

    sequence: int
    op_lsn: int


class ReachedFile:
    """The notes of one member."""

    def __init__(self, disk: Disk, node_id: bytes, group_id: bytes) -> None:
        self._disk, self._node_id, self._group_id = disk, node_id, group_id
        self._name = group_id.hex()
        self._file: File | None = None
        self._turn = 0

    def found(self) -> ReachedPoint | None:
        """Return the farthest point that was noted, None if none is known."""
        try:
            file = self._disk.open(self._name)
            data = file.read_at(0, _PLACES[-1] + _NOTE.size + _HASH_BYTES)
            file.close()
        except OSError:
            return None
        points = [self._point(data[place:]) for place in _PLACES]
        return max((point for point in points if point is not None), default=None)

    def note(self, point: ReachedPoint) -> None:
        """Note that this point is durable."""
        head = _NOTE.pack(_MAGIC, self._node_id, self._group_id, *point)
        self._turn = 1 - self._turn
        with suppress(OSError):
            self._opened().write_at(_PLACES[self._turn], head + _hash_of(head))

    def forget(self) -> None:
        """Forget all points; raises OSError."""
        self.close()
        with suppress(FileNotFoundError):
            self._disk.remove(self._name)

    def close(self) -> None:
        """Close the file; the next note opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _opened(self) -> File:
        if self._file is None:
            self._file = self._disk.open(self._name, create=True)
        return self._file

    def _point(self, data: bytes) -> ReachedPoint | None:
        head = data[: _NOTE.size]
        if len(head) < _NOTE.size or data[_NOTE.size :][:_HASH_BYTES] != _hash_of(head):
            return None
        magic, node_id, group_id, *point = _NOTE.unpack(head)
        if (magic, node_id, group_id) != (_MAGIC, self._node_id, self._group_id):
            return None
        return ReachedPoint(*point)


def _hash_of(head: bytes) -> bytes:
    return blake2b(head, digest_size=_HASH_BYTES).digest()
