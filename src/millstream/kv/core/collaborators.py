"""What a bucket needs from the engine that runs it, as one object given at construction.

Without an engine, as in most tests, a bucket is only in memory: nothing is flushed, copies do not
change state, and no attachments are stored.

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
    """Changes the states of copies durably; raises as `kv.aio.copies.Copies`."""

    async def set_state(self, partition_id: int, state: PartitionState) -> None:
        """Set the state of a copy."""

    async def stop(self, partition_id: int, epoch: int) -> None:
        """Make an active copy of that epoch dead, to hand it over."""

    async def undo(self, partition_id: int, seqno: int, epoch: int, branch: int) -> int:
        """Roll a copy back for its source; return its seqno after that."""

    async def take_over(self, partition_id: int, state: PartitionState, epoch: int) -> None:
        """Set a copy to the state that a take-over requires."""

    async def stand_back(self, partition_id: int) -> None:
        """Make a copy a follower again whose take-over failed."""


class _FixedCopies:
    """Copies whose states never change."""

    async def set_state(self, partition_id: int, state: PartitionState) -> None: ...

    async def stop(self, partition_id: int, epoch: int) -> None: ...

    async def undo(self, partition_id: int, seqno: int, epoch: int, branch: int) -> int:
        return 0

    async def take_over(self, partition_id: int, state: PartitionState, epoch: int) -> None: ...

    async def stand_back(self, partition_id: int) -> None: ...


def _at_once(_: float, callback: Callable[[], None]) -> None:
    callback()


def _nobody_has(name: bytes, offset: int, size: int) -> BlobPiece | None: ...


def _nobody_waits() -> None: ...


@dataclass(frozen=True, slots=True)
class Attachments:
    """The attachments stored on this node."""

    blobs: Blobs = NOT_KEPT
    """Used by following copies to fetch attachments that they lack."""
    read: Callable[[bytes, int, int], BlobPiece | None] = _nobody_has
    """Returns the piece (name, offset, length) of a blob; None if it is not here; blocks."""
    new_upload: Callable[[], Upload] | None = None
    """Returns the receiver for blobs of one connection; None: no blobs are stored."""


@dataclass(frozen=True, slots=True)
class Collaborators:
    """All parts of the engine that a bucket uses."""

    hurry: Callable[[], None] = _nobody_waits
    """Asks the flusher not to wait: a write waits for the disk."""
    tell_reached: Callable[[], None] = _nobody_waits
    """Called when a majority of copies has more of a partition than before, or when a majority has
    become impossible: it must only schedule work."""
    later: Callable[[float, Callable[[], None]], object] = _at_once
    """Calls back after so many seconds."""
    wipe: Callable[[int, Callable[[], None]], None] | None = None
    """Deletes all documents at a time (Unix ns), and calls back once they are gone, or will be
    later, in steps (`kv.aio.pager`). None: at once."""
    copies: CopyMoves = field(default_factory=_FixedCopies)
    attachments: Attachments = field(default_factory=Attachments)
