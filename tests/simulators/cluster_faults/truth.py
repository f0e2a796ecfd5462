"""What may be seen of documents, by what their writers were told.

Each document has the number of the write that made it. An answer may show any write from the last
acknowledged one on, up to the last that was tried.

Invariants:
1. One writer at a time writes a key, one write at a time.
2. A write of unknown outcome may still happen, however late. So its key is not written again.
3. Floors are taken before a question is asked: later acknowledgements do not count for it.
"""

from __future__ import annotations

import threading
import traceback
from abc import abstractmethod
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["Client", "Stop", "Truth", "content_of", "repeated"]

SHOWN_MAX = 5
"""Differences of one answer that are told."""


class _Key:
    def __init__(self) -> None:
        self.tried = self.acknowledged = 0
        self.deletions: list[int] = []

    def may_be(self, floor: int, seen: int | None) -> bool:
        """Whether a document of this number may be seen; None: whether it may be missing."""
        if seen is not None:
            return floor <= seen <= self.tried and seen not in self.deletions
        return not floor or bisect_left(self.deletions, floor) < len(self.deletions)


class Truth:
    """Of all keys of a run; any thread may ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._keys: dict[str, _Key] = {}
        self.acknowledged = 0
        """Writes that were acknowledged."""

    def tries(self, key: str, *, deletes: bool = False) -> int:
        """Tell that a key is about to be written; return the number of the write."""
        with self._lock:
            one = self._keys.setdefault(key, _Key())
            one.tried += 1
            if deletes:
                one.deletions.append(one.tried)
            return one.tried

    def acknowledges(self, key: str, number: int) -> None:
        """Tell that a write was acknowledged."""
        with self._lock:
            self._keys[key].acknowledged = number
            self.acknowledged += 1

    def takes_back(self, key: str, number: int) -> None:
        """Tell that the last write of a key surely did nothing."""
        with self._lock:
            one = self._keys[key]
            assert one.tried == number, "one write at a time"
            one.tried -= 1
            one.deletions = [deletion for deletion in one.deletions if deletion != number]

    def floors(self) -> dict[str, int]:
        """Return the last acknowledged write of each key; 0: of none."""
        with self._lock:
            return {key: one.acknowledged for key, one in self._keys.items()}

    def floor(self, key: str) -> int:
        """Return the last acknowledged write of a key."""
        with self._lock:
            return self._keys[key].acknowledged if key in self._keys else 0

    def judge(self, floors: Mapping[str, int], seen: Mapping[str, int | None]) -> list[str]:
        """Return what is wrong with an answer about all keys; a missing key was not shown."""
        with self._lock:
            wrong = [
                f"{key} is {seen.get(key)}: {floor} was acknowledged before, "
                f"{self._keys[key].tried} tried, deletions {self._keys[key].deletions[-3:]}"
                for key, floor in floors.items()
                if not self._keys[key].may_be(floor, seen.get(key))
            ]
            wrong += [f"{key} was never written" for key in seen if key not in self._keys]
        return _shortened(wrong)


def content_of(key: str, number: int) -> dict[str, Any]:
    """Return the document of a write."""
    return {"k": key, "n": number, "pad": "x" * (number % 200)}


class Stop:
    """What all clients of a run have in common: when they stop, what they count and found."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._lock = threading.Lock()

    def count(self, what: str) -> None:
        """Count something."""
        with self._lock:
            self.counts[what] += 1

    def tell(self, what: str, wrong: list[str]) -> None:
        """Tell what is wrong with an answer, if anything is."""
        if wrong:
            with self._lock:
                self.wrong.append(f"{what}: {'; '.join(wrong)}")


class Client(threading.Thread):
    """A client of a run. The run is wrong if it fails by itself: it would see nothing any more."""

    def __init__(self, name: str, stop: Stop) -> None:
        super().__init__(daemon=True, name=name)
        self._stop_all = stop

    def run(self) -> None:
        """Work, and tell if that fails."""
        try:
            self.work()
        except Exception:  # noqa: BLE001 - it is told
            self._stop_all.tell(f"{self.name} failed", [traceback.format_exc()])

    @abstractmethod
    def work(self) -> None:
        """Work until all have to stop."""


def repeated(keys: Iterable[str]) -> list[str]:
    """Return what is wrong with an answer that should have each key once."""
    return _shortened([f"{k} is there {n} times" for k, n in Counter(keys).items() if n > 1])


def _shortened(wrong: list[str]) -> list[str]:
    more = len(wrong) - SHOWN_MAX
    return [*wrong[:SHOWN_MAX], f"and {more} more"] if more > 0 else wrong
