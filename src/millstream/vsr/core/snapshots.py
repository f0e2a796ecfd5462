"""Snapshots of a group's state: what names one, and the bytes it is made of.

Invariants:
1. Equal states give equal bytes: sorted keys, fixed widths, lengths before what varies, no floats.
2. A snapshot is in parts of equal size, the last one may be shorter; there is one at least.
   So it is made, sent, received and read a part at a time, and no step handles all of it.

Elsewhere: when one is taken and what makes it stable (`snapshot_taking`), how a member gets one
from another (`state_transfer`), its file (`durable_steps`).

Source: Liskov and Cowling 2012, section 5.1; Castro and Liskov 1999, section 4.3, on agreeing on
a digest of the state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import Final, NamedTuple

from millstream.errors import CorruptionError
from millstream.vsr.core.entries import Link

__all__ = [
    "PART_BYTES",
    "SHA_BYTES",
    "SLICE_BYTES_MAX",
    "SLICE_STEPS_MAX",
    "Making",
    "Pieces",
    "Snapshot",
    "SnapshotId",
    "cut_into_parts",
    "snapshot_of",
    "unknown_state",
]

PART_BYTES: Final = 256 * 1024
"""Bytes of one part of a snapshot, and of the message with it."""
SHA_BYTES: Final = 32
SLICE_BYTES_MAX: Final = 64 * 1024
"""Bytes of a snapshot that are made in one go. Other events are handled in between."""
SLICE_STEPS_MAX: Final = 512
"""Bytes of a state that are restored in one go."""
_PIECE_BYTES: Final = 64
"""What handling a piece costs, expressed in bytes."""


class SnapshotId(NamedTuple):
    """The name of one snapshot.

    `link` is that of the entry that asked for it, `hash` is SHA-256 of its bytes.
    """

    number: int
    link: Link
    hash: bytes

    @property
    def lsn(self) -> int:
        """The state is that after this entry."""
        return self.link.lsn


class Snapshot(NamedTuple):
    """A snapshot with its bytes."""

    id: SnapshotId
    parts: tuple[bytes, ...]

    @property
    def size(self) -> int:
        """How many bytes it has."""
        return len(self.parts[0]) * (len(self.parts) - 1) + len(self.parts[-1])

    def part_at(self, offset: int) -> bytes:
        """Return the bytes from there to the end of that part. Empty at the snapshot's end."""
        index, skipped = divmod(offset, len(self.parts[0]) or 1)
        return self.parts[index][skipped:] if index < len(self.parts) else b""


def cut_into_parts(data: bytes) -> tuple[bytes, ...]:
    """Return the parts of these bytes."""
    return tuple(data[at : at + PART_BYTES] for at in range(0, len(data) or 1, PART_BYTES))


def snapshot_of(number: int, link: Link, data: bytes) -> Snapshot:
    """Return the snapshot that has these bytes."""
    return Snapshot(SnapshotId(number, link, sha256(data).digest()), cut_into_parts(data))


class Making:
    """A snapshot being made: from the pieces of a frozen state to parts and a hash."""

    def __init__(
        self, number: int, link: Link, pieces: Iterator[bytes], part_bytes: int = PART_BYTES
    ) -> None:
        self._number, self._link, self._pieces = number, link, pieces
        self._part_bytes = part_bytes
        self._parts: list[bytes] = []
        self._open = bytearray()
        self._hash = sha256()

    def go_on(self) -> Snapshot | None:
        """Do one slice of the work. Return the snapshot once it is whole."""
        cost = 0
        for piece in self._pieces:
            self._open += piece
            cost += len(piece) + _PIECE_BYTES
            if cost >= SLICE_BYTES_MAX:
                self._close_parts()
                return None
        self._close_parts()
        if self._open or not self._parts:
            self._close_part()
        return Snapshot(
            SnapshotId(self._number, self._link, self._hash.digest()), tuple(self._parts)
        )

    def _close_parts(self) -> None:
        while len(self._open) >= self._part_bytes:
            self._close_part()

    def _close_part(self) -> None:
        part = bytes(self._open[: self._part_bytes])
        del self._open[: self._part_bytes]
        self._hash.update(part)
        self._parts.append(part)


class Pieces:
    """Reads the bytes of a state in the order in which they were written."""

    def __init__(self, parts: Iterable[bytes]) -> None:
        self._parts: Iterator[bytes] = iter(parts)
        self._part, self._at = b"", 0

    @property
    def is_at_end(self) -> bool:
        """Whether nothing is left."""
        if self._at == len(self._part):
            self._part, self._at = next(self._parts, b""), 0
        return self._at == len(self._part)

    def take(self, size: int) -> bytes:
        """Return the next bytes.

        Raises:
            CorruptionError: `unknown_state`: there are fewer, so another version wrote them.
        """
        end = self._at + size
        while end > len(self._part):
            following = next(self._parts, None)
            if following is None:
                raise unknown_state("it ends too early")
            self._part, self._at = self._part[self._at :] + following, 0
            end = size
        found = self._part[self._at : end]
        self._at = end
        return found

    def number(self, size: int = 8) -> int:
        """Return the next number, of this many bytes."""
        return int.from_bytes(self.take(size), "big")

    def text(self) -> bytes:
        """Return the next bytes behind their length."""
        return self.take(self.number(4))


def unknown_state(reason: str) -> CorruptionError:
    """Return the error for bytes that are no state of this version."""
    return CorruptionError(
        f"a snapshot of the group cannot be read: {reason}; a newer version wrote it, start "
        "that one",
        code="unknown_state",
    )
