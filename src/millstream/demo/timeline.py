"""What happened when in the demonstration's cluster: moments, and errors that clients had.

Invariants:
1. Each error of a client is counted; the text of a kind is kept once.

Elsewhere: who notes it (`cluster`), how it is shown (`report`).
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from millstream.errors import MillstreamError

__all__ = ["Moment", "Timeline"]


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment of the run.

    Seconds since its start, changes acknowledged, rows that Spark read, rollbacks that it met,
    errors that clients had so far, and by node how many partitions it has active.
    """

    seconds: float
    written: int
    streamed: int
    rollbacks: int
    errors: int
    active: Mapping[str, int]


@dataclass(slots=True)
class Timeline:
    """Moments in order, marks of what was done, and errors by who had them and why."""

    began: float = field(default_factory=time.monotonic)
    moments: list[Moment] = field(default_factory=list)
    marks: list[tuple[float, str]] = field(default_factory=list)
    errors: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(who, code) -> how often."""
    texts: dict[tuple[str, str], str] = field(default_factory=dict)
    """The first text of each."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.began

    def mark(self, text: str) -> None:
        """Note that something is done now."""
        self.marks.append((self.seconds, text))

    def note(
        self, *, written: int, streamed: int, rollbacks: int, active: Mapping[str, int]
    ) -> None:
        """Note a moment."""
        errors = self.errors.total()
        moment = Moment(self.seconds, written, streamed, rollbacks, errors, dict(active))
        self.moments.append(moment)

    def failed(self, who: str, error: MillstreamError) -> None:
        """Count an error; may be called from any thread."""
        with self._lock:
            self.errors[who, error.code] += 1
            self.texts.setdefault((who, error.code), str(error))
