"""The smallest state machine: registers that are set, compared and set, and read.

Invariants:
1. The same entries in the same order give the same answers and the same state on every member:
   no clock, no chance, no order of hashing.
2. What it does not understand it answers with an error, and changes nothing.

Elsewhere: which entries it is given (`member`), sessions (`client_table`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from millstream.coordination.core.entries import Body, Entry

__all__ = ["Registers", "StateMachine"]


class StateMachine(Protocol):
    """What a group replicates."""

    def apply(self, entry: Entry) -> bytes:
        """Execute a committed request and return its reply."""

    def read(self, body: Body) -> bytes:
        """Return what is asked for, changing nothing."""


class Registers:
    """SET key value, CAS key expected value; GET key."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}

    def apply(self, entry: Entry) -> bytes:
        """Execute SET or CAS."""
        match entry.content.argv:
            case (b"SET", key, value):
                self.values[key] = value
                return b"+OK"
            case (b"CAS", key, expected, value):
                return self._compare_and_set(key, expected, value)
        return _not_understood(entry.content.argv)

    def _compare_and_set(self, key: bytes, expected: bytes, value: bytes) -> bytes:
        if self.values.get(key, b"") != expected:
            return b"-CAS_MISMATCH"
        self.values[key] = value
        return b"+OK"

    def read(self, body: Body) -> bytes:
        """Execute GET; a register that was never set is empty."""
        match body.argv:
            case (b"GET", key):
                return b"=" + self.values.get(key, b"")
        return _not_understood(body.argv)


def _not_understood(argv: Sequence[bytes]) -> bytes:
    return b"-BADARG " + (argv[0][:16] if argv else b"nothing")
