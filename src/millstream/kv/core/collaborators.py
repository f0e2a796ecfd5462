"""What a bucket asks of the engine that runs it, as one object that it gets at construction.

Without an engine, as in most tests, a bucket is in memory alone: nothing is flushed, copies do not
change, and no attachments are kept.

Elsewhere: the engine's side (`kv.aio.engine`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from millstream.kv.core.partition.blobs import NOT_KEPT, BlobPiece, Blobs, Upload
from millstream.model.partitions import PartitionState

__all__ = ["Attachments", "Collaborators", "CopyMoves"]


class CopyMoves(Protocol):
    """Gives copies of partitions another state, durably; errors as `kv.aio.copies.Copies`."""

    async def set_state(self, partition_id: int, state: PartitionState) -> None:
        """Give a copy another state."""

    async def stop(self, partition_id: int, epoch: int) -> None:
        """Make an active copy dead that is in that epoch, to hand it over."""

    async def undo(self, partition_id: int, seqno: int, epoch: int, branch: int) -> int:
        """Roll a copy back for its source; return the seqno it is at then."""

    async def take_over(self, partition_id: int, state: PartitionState, epoch: int) -> None:
        """Give a copy the state that a take-over wants."""

    async def stand_back(self, partition_id: int) -> None:
        """Let a copy follow again that waited in vain to take over."""


class _FixedCopies:
    """Copies that stay as they are."""

    async def set_state(self, partition_id: int, state: PartitionState) -> None: ...

    async def stop(self, partition_id: int, epoch: int) -> None: ...

    async def undo(self, partition_id: int, seqno: int, epoch: int, branch: int) -> int:
        return 0

    async def take_over(self, partition_id: int, state: PartitionState, epoch: int) -> None: ...

    async def stand_back(self, partition_id: int) -> None: ...


def _nobody_has(name: bytes, offset: int, size: int) -> BlobPiece | None: ...


def _nobody_waits() -> None: ...


@dataclass(frozen=True, slots=True)
class Attachments:
    """The attachments that are kept on this node."""

    blobs: Blobs = NOT_KEPT
    """Copies that follow bring what they lack by it."""
    read: Callable[[bytes, int, int], BlobPiece | None] = _nobody_has
    """Returns the piece (name, offset, length) of a blob, None if it is not here; blocks."""
    new_upload: Callable[[], Upload] | None = None
    """Returns what takes the blobs of one connection; None: none are kept."""


@dataclass(frozen=True, slots=True)
class Collaborators:
    """All of them."""

    hurry: Callable[[], None] = _nobody_waits
    """Asks the flusher not to wait: somebody waits for the disk."""
    tell_reached: Callable[[], None] = _nobody_waits
    """Called when a majority of copies has more of a partition than before, or no majority is left
    that could: it must only schedule work."""
    wipe: Callable[[int, Callable[[], None]], None] | None = None
    """Deletes all documents at a time (Unix ns), and calls back once they are gone, or will be
    later, in steps (`kv.aio.pager`). None: at once."""
    copies: CopyMoves = field(default_factory=_FixedCopies)
    attachments: Attachments = field(default_factory=Attachments)
