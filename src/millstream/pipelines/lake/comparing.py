"""Compares the documents of a backup with those of a bucket, key by key, without their values.

Invariants:
1. What changed in the bucket after the backup's position is counted, and compared with nothing.
2. Documents whose expiry is over, or nearly, are on neither side: whether they are there yet is
   the pager's affair.

Elsewhere: where both sides come from (`verify`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from millstream.client.columns import OP_PUT

__all__ = ["Compared", "Comparison"]

SAMPLES_MAX: Final = 5
EXPIRY_MARGIN_S: Final = 60


class Compared(NamedTuple):
    """What a comparison found; `samples` are keys of what is wrong.

    `incomparable`: partitions whose history is not the one that was backed up any more.
    """

    equal: int = 0
    changed: int = 0
    missing: int = 0
    extra: int = 0
    different: int = 0
    incomparable: int = 0
    samples: tuple[str, ...] = ()

    @property
    def is_equal(self) -> bool:
        """Whether the bucket has what the backup has, as far as it can be compared."""
        return not (self.missing or self.extra or self.different)

    def plus(self, other: Compared) -> Compared:
        """Return both together."""
        return Compared(
            self.equal + other.equal, self.changed + other.changed, self.missing + other.missing,
            self.extra + other.extra, self.different + other.different,
            self.incomparable + other.incomparable, (self.samples + other.samples)[:SAMPLES_MAX],
        )  # fmt: skip


class Comparison:
    """Compares one group of keys.

    Args:
        now_s: Unix seconds.
        is_same_bucket: whether design documents, whose CAS no restore keeps, are compared.
    """

    def __init__(self, now_s: int, *, is_same_bucket: bool) -> None:
        self._over_s = now_s + EXPIRY_MARGIN_S
        self._is_same_bucket = is_same_bucket
        self._expected: dict[str, int] = {}
        self._equal = self._changed = self._extra = self._different = 0
        self._samples: list[str] = []

    def expect(self, rows: Iterable[tuple[str, str, int, int]]) -> None:
        """Take rows of the backup that count: (op, key, cas, expiry)."""
        for op, key, cas, expiry in rows:
            if op == OP_PUT and self._counts(key, expiry):
                self._expected[key] = cas

    def find(self, rows: Iterable[tuple[str, str, int, int]], *, are_newer: bool) -> None:
        """Take rows of the bucket, each key once; `are_newer`: than the backup's position."""
        expected = self._expected
        for op, key, cas, expiry in rows:
            if are_newer:
                expected.pop(key, None)
                self._changed += 1
            elif op == OP_PUT and self._counts(key, expiry):
                held = expected.pop(key, None)
                if held == cas:
                    self._equal += 1
                else:
                    self._extra += held is None
                    self._different += held is not None
                    self._sample(key)

    def result(self) -> Compared:
        """Return what was found, when both sides were shown."""
        for key in self._expected:
            self._sample(key)
        return Compared(
            self._equal, self._changed, len(self._expected), self._extra, self._different,
            samples=tuple(self._samples),
        )  # fmt: skip

    def _counts(self, key: str, expiry: int) -> bool:
        if not self._is_same_bucket and key.startswith("_design/"):
            return False
        return not 0 < expiry <= self._over_s

    def _sample(self, key: str) -> None:
        if len(self._samples) < SAMPLES_MAX:
            self._samples.append(key)
