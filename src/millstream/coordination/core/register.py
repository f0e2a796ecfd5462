"""The smallest state machine: registers that are set, compared and set, and read.

Invariants:
1. The same entries in the same order give the same answers and the same state on every member:
   no clock, no chance, no order of hashing.
2. What it does not understand it answers with an error, and changes nothing.

Elsewhere: which entries it is given (`member`), sessions (`client_table`), how clients write
these commands (`register_commands`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from millstream.coordination.core.entries import Body, Entry
from millstream.coordination.core.values import array
from millstream.coordination.core.versions import NEVER, Version, version_of

__all__ = ["Registers", "StateMachine"]


class StateMachine(Protocol):
    """What a group replicates. Replies are `values`."""

    def apply(self, entry: Entry) -> bytes:
        """Execute a committed request and return its reply."""

    def read(self, body: Body) -> bytes:
        """Return what is asked for, changing nothing."""


class Registers:
    """SET key value, CAS key expected value; GET key, GET key META."""

    def __init__(self) -> None:
        self.values: dict[bytes, tuple[bytes, Version]] = {}

    def apply(self, entry: Entry) -> bytes:
        """Execute SET or CAS."""
        match entry.content.argv:
            case (b"SET", key, value):
                self.values[key] = (value, version_of(entry.header))
                return b"+OK"
            case (b"CAS", key, expected, value):
                if self.values.get(key, (b"",))[0] != expected:
                    return b"-CAS_MISMATCH"
                self.values[key] = (value, version_of(entry.header))
                return b"+OK"
        return _not_understood(entry.content.argv)

    def read(self, body: Body) -> bytes:
        """Execute GET; a register that was never set is empty."""
        match body.argv:
            case (b"GET", key):
                return b"=" + self.values.get(key, (b"",))[0]
            case (b"GET", key, b"META"):
                value, version = self.values.get(key, (b"", NEVER))
                return array((b"=" + value, b"=" + version.text))
        return _not_understood(body.argv)


def _not_understood(argv: Sequence[bytes]) -> bytes:
    return b"-BADARG " + (argv[0][:16] if argv else b"nothing")
