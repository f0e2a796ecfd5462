"""How far a bucket's history may be forgotten: by the history window, and by its readers.

Samples of the newest marks are taken from time to time. The history before a sample ends once the
sample is older than the window's time, or more than the window's bytes were written since.

Invariants:
1. A history seqno never passes the newest mark, the seqno as of which anybody reads, or the start
   of the window. A purge seqno never passes the history seqno or changes that a reader has still
   to read, and stays below the newest mark, so that the newest change of all keeps its CAS on the
   disk.
2. Low points only grow, except for a rollback below them.
3. After a rollback the samples have no seqno above its target, since changes written there later
   are not old.

Elsewhere: readers (`kv.core.partition.partition`), the age of tombstones (`storage.core.marking`),
the calls (`kv.aio.compactor`).

Source: docs/design/0004-compaction.md.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

__all__ = [
    "HISTORY_BYTES",
    "HISTORY_S",
    "PURGE_AGE_S",
    "HistoryWindow",
    "Sample",
    "allowed_points",
]

HISTORY_S: Final = 600
"""How long a replaced version stays readable without a lease on it ..."""
HISTORY_BYTES: Final = 128 * 1024 * 1024
"""... unless this much was written to the bucket since. In that case as much again may be dead
before a compaction starts, so that a pass pays."""
PURGE_AGE_S: Final = 3 * 24 * 3600
"""Age at which a deletion may be forgotten: consumers away for longer begin anew."""
SAMPLES_PER_WINDOW: Final = 16
_SECOND_NS: Final = 1_000_000_000


class Sample(NamedTuple):
    """State of a bucket: time, bytes and replaced records so far, newest marks."""

    now_ns: int
    written_bytes: int
    replaced_total: int
    marks: array[int]


class HistoryWindow:
    """The samples of one bucket."""

    def __init__(self, seconds: float = HISTORY_S, bytes_max: int = HISTORY_BYTES) -> None:
        self._window_ns = int(seconds * _SECOND_NS)
        self._bytes_max = bytes_max
        self._samples: deque[Sample] = deque()

    def is_sample_due(self, now_ns: int, written_bytes: int) -> bool:
        """Return whether a sample should be taken: `SAMPLES_PER_WINDOW` fit into the window.

        After the clock was set back, one is due at once: `take` then makes the others no younger
        than that.
        """
        if not self._samples:
            return True
        last = self._samples[-1]
        return (
            now_ns < last.now_ns
            or now_ns - last.now_ns >= self._window_ns // SAMPLES_PER_WINDOW
            or written_bytes - last.written_bytes >= self._bytes_max // SAMPLES_PER_WINDOW
        )

    def take(
        self, now_ns: int, written_bytes: int, replaced_total: int, marks: Sequence[int]
    ) -> None:
        """Take a sample of the newest marks, by partition."""
        sample = Sample(now_ns, written_bytes, replaced_total, array("Q", marks))
        if self._samples and now_ns < self._samples[-1].now_ns:
            self._samples = deque(s._replace(now_ns=min(s.now_ns, now_ns)) for s in self._samples)
        self._samples.append(sample)

    def over(self, now_ns: int, written_bytes: int) -> Sample | None:
        """Return the newest sample before which history has ended; None if there is none."""
        found = None
        while self._samples:
            first = self._samples[0]
            is_old = now_ns - first.now_ns >= self._window_ns
            if not is_old and written_bytes - first.written_bytes < self._bytes_max:
                break
            found = self._samples.popleft()
        if found is not None:
            self._samples.appendleft(found)
        return found

    def slack_bytes(self, now_ns: int, over: Sample | None) -> int:
        """Return how many dead bytes are tolerated to make passes rarer, by the result of `over`.

        0 where time ends history: so little is written then that passes are rare anyway.
        """
        is_by_bytes = over is not None and now_ns - over.now_ns < self._window_ns
        return self._bytes_max if is_by_bytes else 0

    def rolled_back(self, partition_id: int, seqno: int) -> None:
        """A partition was rolled back to a seqno."""
        for sample in self._samples:
            sample.marks[partition_id] = min(sample.marks[partition_id], seqno)


def allowed_points(
    present: tuple[int, int], wanted: tuple[int, int], mark: int, limits: tuple[int, int]
) -> tuple[int, int]:
    """Return the (history seqno, purge seqno) that a partition may have now.

    Args:
        present: its current low points.
        wanted: by window and age.
        mark: its newest mark, durable.
        limits: what no reader needs: versions replaced at or below the first, deletions at or
            below the second.
    """
    history = max(present[0], min(wanted[0], mark, limits[0]))
    purge = max(present[1], min(wanted[1], history, mark - 1, limits[1]))
    return history, purge
