"""Repair after a rollback: the rules of every reader that keeps a state of its own.

A reader that is told to go back to seqno R replaces what it may have above R by the newest
documents of the source. For that it must know which keys it may have changed above R, deleted ones
included.

Invariants:
1. At or above `floor` the reader knows these keys: it can undo by fetching. `floor` never falls
   within a load.
2. Below `floor` it reads the partition from the beginning: a new load. Every document that it
   writes carries the number of the load. At the first complete snapshot of a load it sweeps: it
   deletes what carries a smaller number.
3. Deletions that the source had purged when a load began, or that the reader forgot, are at or
   below `floor`.

Elsewhere: which keys a reader knows and how it fetches (`upr.core.bookkeeper`,
`pipelines.sinks.repairing`).

Source: docs/concepts/rollback.md.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["LoadState"]


class LoadState(NamedTuple):
    """The load of one partition, and how far back it can be undone by fetching.

    `load` counts from 1. `is_loading`: the load has begun, and its sweep has not come yet.
    """

    load: int = 1
    floor: int = 0
    is_loading: bool = False

    def undo_point(self, seqno: int) -> int:
        """Return where to go back to, told to go back to `seqno`: there, or 0 for a new load."""
        return seqno if seqno >= self.floor else 0

    def begun(self, load: int, floor: int) -> LoadState:
        """Return the state of a new load."""
        assert load > self.load, "loads count up"
        return LoadState(load, floor, is_loading=True)

    def forgot(self, seqno: int) -> LoadState:
        """Return the state of a reader that no longer knows keys at or below `seqno`."""
        return self._replace(floor=max(self.floor, seqno))

    def is_swept_by(self, load: int) -> bool:
        """Return whether the sweep of that load is due."""
        return self.is_loading and load == self.load

    def swept(self) -> LoadState:
        """Return the state after the sweep."""
        return self._replace(is_loading=False)
