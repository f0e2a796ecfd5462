"""Registers: names with a value each, which are set, compared and set, and read.

They are beside the namespaces of a group, and cost less than an element
(docs/design/0025-coordination-namespace.md).

Invariants:
1. A command that is not understood gets an error as its reply and changes nothing.
2. What is logged is bounded, and understood: nothing else gets into the log.

Elsewhere: the state machine that they are a part of (`group_state`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from struct import Struct
from typing import Final

from millstream.coordination.core import sorted_map
from millstream.coordination.core.namespace.admission import ClientRequest, Parser
from millstream.coordination.core.sorted_map import SortedMap
from millstream.vsr.core.entries import Body, Entry
from millstream.vsr.core.snapshots import Pieces
from millstream.vsr.core.values import array, error
from millstream.vsr.core.versions import NEVER, Version, version_of

__all__ = ["KEY_BYTES_MAX", "REGISTER_COMMANDS", "VALUE_BYTES_MAX", "Registers"]

KEY_BYTES_MAX: Final = 1024
"""Most bytes of the name of a register."""
VALUE_BYTES_MAX: Final = 1024 * 1024
"""Most bytes of the value of a register."""

_LENGTH: Final = Struct(">I")
_VERSION: Final = Struct(">IIQ")


class Registers:
    """SET key value, CAS key expected value; GET key, GET key META."""

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

    def _at(self, key: bytes) -> tuple[bytes, Version]:
        return self.values.get(key) or (b"", NEVER)

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


# ---- how clients write the commands


def _set(argv: Sequence[bytes], _stamp: int) -> ClientRequest | bytes:
    if len(argv) != 3:
        return error("BADARG", "SET key value")
    _, key, value = argv
    if len(key) > KEY_BYTES_MAX or len(value) > VALUE_BYTES_MAX:
        return _too_big()
    return ClientRequest(True, (b"SET", key, value), key)


def _cas(argv: Sequence[bytes], _stamp: int) -> ClientRequest | bytes:
    if len(argv) != 4:
        return error("BADARG", "CAS key expected value")
    _, key, expected, value = argv
    if len(key) > KEY_BYTES_MAX or max(len(expected), len(value)) > VALUE_BYTES_MAX:
        return _too_big()
    return ClientRequest(True, (b"CAS", key, expected, value), key)


def _get(argv: Sequence[bytes], _stamp: int) -> ClientRequest | bytes:
    if len(argv) == 2:
        key = argv[1]
        return _too_big() if len(key) > KEY_BYTES_MAX else ClientRequest(False, (b"GET", key), key)
    options = [word.upper() for word in argv[2:]]
    is_stale = options[-1:] == [b"STALEREAD"]
    wanted = options[: len(options) - is_stale]
    if len(argv) < 2 or wanted not in ([], [b"META"]):
        return error("BADARG", "GET key [META] [STALEREAD]")
    key = argv[1]
    if len(key) > KEY_BYTES_MAX:
        return _too_big()
    return ClientRequest(False, (b"GET", key, *wanted), key, is_stale)


def _too_big() -> bytes:
    return error("TOOBIG", f"a name has {KEY_BYTES_MAX} bytes at most, a value {VALUE_BYTES_MAX}")


REGISTER_COMMANDS: Final[Mapping[bytes, Parser]] = {b"SET": _set, b"GET": _get, b"CAS": _cas}
