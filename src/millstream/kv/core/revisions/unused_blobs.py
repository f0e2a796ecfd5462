"""Which attachments nothing needs: names that a sweep has not found anywhere yet.

    unnamed = UnnamedBlobs(names of old files)   # from now on it is told what is relied on
    unnamed.found_beside(sides)                  # of every record and every change a hold keeps
    ends = high_ends(partitions)                 # then copies are waited for: `have_reached`
    unnamed.take(100, busy)                      # these may go

Invariants:
1. Who is about to write a change that names a blob says so first (`keep`), in the same step of the
   loop. So a name that is left was named by no change since the sweep began, and, where all that
   was there before has been looked through, by none that anybody can read.
2. A copy that has a complete state at or above the ends asks for nothing that older changes named.

Elsewhere: the files (`kv.aio.documents.blobs`), the order of all this
(`kv.aio.documents.blob_sweeping`).

Source: docs/design/0034-unused-attachments.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from typing import Protocol

from millstream.documents.stored import blobs_of
from millstream.kv.core.partition.acknowledgement import Acknowledged
from millstream.model.sides import has_sidecar, sidecar_of

__all__ = ["CopiedPartition", "UnnamedBlobs", "have_reached", "high_ends"]


class CopiedPartition(Protocol):
    """What of a partition is asked."""

    acknowledged: Acknowledged | None

    @property
    def high_seqno(self) -> int:
        """Of its newest change."""


class UnnamedBlobs:
    """The names that a sweep has found no need of so far. Names go, they never come back."""

    def __init__(self, names: Iterable[bytes]) -> None:
        self._names = dict.fromkeys(names)

    def __len__(self) -> int:
        return len(self._names)

    def keep(self, names: Iterable[bytes]) -> None:
        """Somebody relies on these, or is about to."""
        for name in names:
            self._names.pop(name, None)

    def found_beside(self, sides: Iterable[bytes]) -> None:
        """These sides are of changes that can be read.

        Raises:
            CorruptionError: `bad_sidecar`: nobody knows what it names; nothing may go.
        """
        for side in sides:
            if has_sidecar(side):
                self.keep(blobs_of(sidecar_of(side)))

    def found_in(self, sidecars: Iterable[bytes]) -> None:
        """So are these sidecars; raises the same."""
        for sidecar in sidecars:
            if sidecar:
                self.keep(blobs_of(sidecar))

    def take(self, count: int, busy: Collection[bytes]) -> list[bytes]:
        """Return the first `count` names that may go, and forget them; empty: none are left.

        Args:
            count: at most so many.
            busy: names that are being put at this moment: they stay.
        """
        self.keep(busy)
        taken = list(islice(self._names, count))
        self.keep(taken)
        return taken


def high_ends(partitions: Iterable[CopiedPartition]) -> list[int]:
    """Return the newest seqno of each partition."""
    return [partition.high_seqno for partition in partitions]


def have_reached(partitions: Sequence[CopiedPartition], ends: Sequence[int]) -> bool:
    """Return whether every copy that follows a partition here is complete at its end, or above."""
    for partition, end in zip(partitions, ends, strict=True):
        known = partition.acknowledged
        slowest = None if known is None else known.slowest_end
        if slowest is not None and slowest < min(end, partition.high_seqno):
            return False
    return True
