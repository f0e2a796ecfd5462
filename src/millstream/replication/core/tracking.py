"""How far a run is, though its batches end in any order.

Invariants:
1. The place moves over a batch only when that and all before it have ended.
2. It stays behind a batch whose place has to be recorded, until it was.
3. A document leaves the list of exceptions only by a batch that is not before the one that put it
   there. Beyond `REFUSED_MAX` documents, refusals are only counted.

Elsewhere: what a batch does (`batches`), when a place is recorded (`running`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from millstream.replication.core.batches import Done
from millstream.replication.core.coverage import Record
from millstream.replication.core.logs import REFUSED_MAX
from millstream.replication.core.places import Place

__all__ = ["Mark", "Tracker"]


class Mark(NamedTuple):
    """Where a batch ends."""

    place: Place
    is_closed: bool = False
    records: tuple[Record, ...] = ()
    """What its place proves about others: it has to be recorded."""


class Tracker:
    """The batches of a run.

    Args:
        place: where the run begins.
        exceptions: documents that the target does not have as the source had them there.
        leaves: by id, the leaves that these had there, where they are known.
    """

    def __init__(
        self,
        place: Place,
        exceptions: Iterable[str] = (),
        leaves: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        self.at = Mark(place)
        self._opened = 0
        self._open: dict[int, tuple[Mark, bool]] = {}
        self._exceptions = dict.fromkeys(exceptions, 0)
        self._leaves = dict(leaves or {})
        self.dropped = 0
        """Refusals of documents that there was no room for among the exceptions."""
        self.is_held = False

    @property
    def pending(self) -> int:
        """Batches that the place did not move over yet."""
        return len(self._open)

    @property
    def newest(self) -> int:
        """The number of the batch that was opened last."""
        return self._opened

    @property
    def exceptions(self) -> frozenset[str]:
        """Ids of documents that the target refused, or never got."""
        return frozenset(self._exceptions)

    @property
    def leaves(self) -> Mapping[str, tuple[str, ...]]:
        """By id, what was refused of these documents; not of those of which it is not known."""
        return self._leaves

    def opened(self, mark: Mark) -> int:
        """Take in a batch behind all others; return its number."""
        self._opened += 1
        self._open[self._opened] = mark, False
        return self._opened

    def ended(self, number: int, done: Done) -> None:
        """A batch is over."""
        self.settle(number, done)
        self._open[number] = self._open[number][0], True
        self._move()

    def settle(self, number: int, done: Done) -> None:
        """Note what a target has by now; number 0 is before all batches."""
        for name in done.accepted:
            if self._exceptions.get(name, number + 1) <= number:
                del self._exceptions[name]
                self._leaves.pop(name, None)
        for name in done.refused:
            if name in self._exceptions or len(self._exceptions) < REFUSED_MAX:
                self._refused(name, number, done.leaves.get(name))
            else:
                self.dropped += 1

    def _refused(self, name: str, number: int, leaves: tuple[str, ...] | None) -> None:
        if number < self._exceptions.get(name, 0):
            return
        self._exceptions[name] = number
        self._leaves.pop(name, None)
        if leaves is not None:
            self._leaves[name] = leaves

    def recorded(self, place: Place) -> None:
        """A place is in both logs."""
        if self.at.place == place:
            self.is_held = False
            self._move()

    def _move(self) -> None:
        while self._open and not self.is_held:
            number = next(iter(self._open))
            mark, is_over = self._open[number]
            if not is_over:
                return
            del self._open[number]
            self.at = mark
            self.is_held = bool(mark.records)
