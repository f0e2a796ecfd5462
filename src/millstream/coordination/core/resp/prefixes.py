"""Prefixes of a command: CSN number, CTS ms, SEEN version, GROUP gid, FORCE.

Invariants:
1. If one prefix is invalid, the command is refused and none of them counts.

Elsewhere: their effect (`session`).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from millstream.vsr.core.versions import parse_version

__all__ = ["CSN_MAX", "NO_PREFIXES", "PREFIXES", "Prefixes", "prefixes_of"]

CSN_MAX: Final = (1 << 63) - 1
"""The highest number that a request may have; a session that has come so far is at its end."""
_U64: Final = 1 << 64
_DIGITS_MAX: Final = 20
_FIELDS: Final = {b"CSN": "csn", b"CTS": "stamp", b"SEEN": "seen", b"GROUP": "gid"}
_FORCE: Final = b"FORCE"
"""The one without a value."""
PREFIXES: Final = frozenset((*_FIELDS, _FORCE))


class Prefixes(NamedTuple):
    """What was said before a command."""

    csn: int | None = None
    stamp: int = 0
    seen: int = 0
    gid: int | None = None
    passes_locks: bool = False


NO_PREFIXES: Final = Prefixes()


def prefixes_of(argv: list[bytes]) -> tuple[Prefixes, int] | None:
    """Return the prefixes of a command and where they end. None if they make no sense."""
    known: dict[str, int] = {}
    at, passes_locks = 0, False
    while at < len(argv) and (name := argv[at].upper()) in PREFIXES:
        if name == _FORCE:
            passes_locks, at = True, at + 1
            continue
        value = _value(name, argv[at + 1]) if at + 1 < len(argv) else None
        if value is None:
            return None
        known[_FIELDS[name]] = value
        at += 2
    if at == len(argv):
        return None
    csn, gid = known.get("csn"), known.get("gid")
    stamp, seen = known.get("stamp", 0), known.get("seen", 0)
    return Prefixes(csn, stamp, seen, gid, passes_locks), at


def _value(name: bytes, text: bytes) -> int | None:
    if name == b"SEEN":
        version = parse_version(text)
        return version.lsn if version else None
    if not text.isdigit() or len(text) > _DIGITS_MAX:
        return None
    number = int(text)
    if name == b"CSN":
        return number if 0 < number <= CSN_MAX else None
    return number if number < _U64 else None
