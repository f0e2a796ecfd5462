"""Finds unused attachments: names that a sweep has found nowhere.

    unnamed = UnnamedBlobs(names of old files)   # from now on it is told what is relied on
    unnamed.found_beside(sides)                  # of every record and every change a hold keeps
    ends = high_ends(partitions)                 # then copies are waited for: `have_reached`
    unnamed.take(100, busy)                      # these may go

Invariants:
1. A writer of a change that names a blob first calls `keep`, in the same step of the loop. So a
   remaining name was named by no change since the sweep began. Once all older changes have been
   searched, it is named by no readable change.
2. A copy that has a complete state at or above the ends requests nothing that older changes named.

Elsewhere: the files (`kv.aio.documents.blobs`), the steps of a sweep
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
    """The part of a partition that is read here."""

    acknowledged: Acknowledged | None

    @property
    def high_seqno(self) -> int:
        """Return the seqno of its newest change."""


class UnnamedBlobs:
    """The names that a sweep has not found in use so far. Names are only removed."""

    def __init__(self, names: Iterable[bytes]) -> None:
        self._names = dict.fromkeys(names)

    def __len__(self) -> int:
        return len(self._names)

    def keep(self, names: Iterable[bytes]) -> None:
        """These are in use, or about to be."""
        for name in names:
            self._names.pop(name, None)

    def found_beside(self, sides: Iterable[bytes]) -> None:
        """Remove the names in the sides of readable changes.

        Raises:
            CorruptionError: `bad_sidecar`: its names are unknown, so nothing may be removed.
        """
        for side in sides:
            if has_sidecar(side):
                self.keep(blobs_of(sidecar_of(side)))

    def found_in(self, sidecars: Iterable[bytes]) -> None:
        """Remove the names in these sidecars; raises the same."""
        for sidecar in sidecars:
            if sidecar:
                self.keep(blobs_of(sidecar))

    def take(self, count: int, busy: Collection[bytes]) -> list[bytes]:
        """Remove and return the first `count` unused names; empty: none are left.

        Args:
            count: upper bound.
            busy: names that are being uploaded now: they stay.
        """
        self.keep(busy)
        taken = list(islice(self._names, count))
        self.keep(taken)
        return taken


def high_ends(partitions: Iterable[CopiedPartition]) -> list[int]:
    """Return the newest seqno of each partition."""
    return [partition.high_seqno for partition in partitions]


def have_reached(partitions: Sequence[CopiedPartition], ends: Sequence[int]) -> bool:
    """Return whether every copy that follows a partition here is complete at or above its end."""
    for partition, end in zip(partitions, ends, strict=True):
        known = partition.acknowledged
        slowest = None if known is None else known.slowest_end
        if slowest is not None and slowest < min(end, partition.high_seqno):
            return False
    return True
