"""The smallest state machine: registers that are set, compared and set, and read.

Invariants:
1. The same entries in the same order give the same answers and the same state on every member:
   no clock, no chance, no order of hashing.
2. What it does not understand it answers with an error, and changes nothing.

Elsewhere: which entries it is given (`vsr.core.replica.execution`), sessions
(`client_table`), how clients write these commands (`register_commands`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from struct import Struct
from typing import Final

from millstream.coordination.core import sorted_map
from millstream.coordination.core.sorted_map import SortedMap
from millstream.vsr.core.client_table import Verdict
from millstream.vsr.core.entries import Body, Entry
from millstream.vsr.core.snapshots import Pieces
from millstream.vsr.core.state_machine import Answer, Offer
from millstream.vsr.core.values import array
from millstream.vsr.core.versions import NEVER, Version, version_of

__all__ = ["Registers"]

_LENGTH: Final = Struct(">I")
_VERSION: Final = Struct(">IIQ")


class Registers:
    """SET key value, CAS key expected value; GET key, GET key META."""

    format_max = 1

    def __init__(self) -> None:
        self.values: SortedMap[tuple[bytes, Version]] = sorted_map.SortedMap()

    def apply(self, entry: Entry) -> bytes:
        """Execute SET or CAS."""
        match entry.content.argv:
            case (b"SET", key, value):
                self.values.put(key, (value, version_of(entry.header)))
                return b"+OK"
            case (b"CAS", key, expected, value):
                if self._at(key)[0] != expected:
                    return b"-CAS_MISMATCH"
                self.values.put(key, (value, version_of(entry.header)))
                return b"+OK"
        return _not_understood(entry.content.argv)

    def use_format(self, number: int) -> None:
        """Do nothing: there is only one."""

    def _at(self, key: bytes) -> tuple[bytes, Version]:
        return self.values.get(key) or (b"", NEVER)

    def weight(self, session: int) -> int:
        """Return 0: registers are nobody's."""
        return 0

    def silence_ms(self, session: int) -> int | None:
        """Return nothing: registers have no settings."""
        return None

    def end_sessions(self, entry: Entry, sessions: Sequence[int]) -> None:
        """Do nothing: registers are nobody's."""

    def end_offers(self, entry: Entry) -> None:
        """Do nothing: nobody waits for a register."""

    def take_settings(self) -> Mapping[bytes, bytes] | None:
        """Return nothing: registers have no settings."""
        return None

    def waiting(self, session: int, csn: int) -> Verdict | None:
        """Return None: nobody waits."""

    def take_answers(self) -> list[Answer]:
        """Return nothing: nobody waits."""
        return []

    def offers(self, start: bytes = b"") -> Iterator[Offer]:
        """Yield nothing: nobody waits."""
        return iter(())

    def read(self, body: Body, session: int = 0) -> bytes:
        """Execute GET; a register that was never set is empty."""
        match body.argv:
            case (b"GET", key):
                return b"=" + self._at(key)[0]
            case (b"GET", key, b"META"):
                value, version = self._at(key)
                return array((b"=" + value, b"=" + version.text))
        return _not_understood(body.argv)

    def freeze(self) -> Iterator[bytes]:
        """Return count, then of each register: key and value behind lengths, version."""
        return _pieces(len(self.values), self.values.items())

    def restore(self, pieces: Pieces) -> Iterator[None]:
        """Read what `freeze` wrote."""
        self.values = sorted_map.SortedMap()
        for _ in range(pieces.number()):
            key, value = pieces.text(), pieces.text()
            version = Version(pieces.number(4), pieces.number(4), pieces.number())
            self.values.put(key, (value, version))
            yield


def _pieces(count: int, items: Iterator[tuple[bytes, tuple[bytes, Version]]]) -> Iterator[bytes]:
    yield count.to_bytes(8, "big")
    for key, (value, version) in items:
        yield b"".join(
            (_LENGTH.pack(len(key)), key, _LENGTH.pack(len(value)), value, _VERSION.pack(*version))
        )


def _not_understood(argv: Sequence[bytes]) -> bytes:
    return b"-BADARG " + (argv[0][:16] if argv else b"nothing")
