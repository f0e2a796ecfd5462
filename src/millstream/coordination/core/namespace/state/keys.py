"""Configuration keys: their names, scopes, accepted values and defaults.

A value is stored, shown and accepted in one form: times as `3000 ms`, sizes as bytes, `true`,
`false`.

Invariants:
1. Only values that `Key.read` returned are stored. So code that reads a number finds one.
2. `NODE` keys are not replicated: a node takes them from its file when it starts.

Elsewhere: where values are stored and which one is in force (`configuration`).

Source: V2R2, "Nomenclature", the four configuration sets.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum
from typing import Final, NamedTuple

from millstream.vsr.core.client_table import TIME_OUT_MS_MIN

__all__ = [
    "BEATS_MIN",
    "FIXED",
    "KEYS",
    "MEANINGS",
    "VALUE_BYTES_MAX",
    "Key",
    "Owner",
    "in_key_pattern",
    "is_true",
    "number_of",
]

VALUE_BYTES_MAX: Final = 1024
"""Most bytes of one value of a key."""
_DIGITS_MAX: Final = 19
_KIB: Final = 1024
_MIB: Final = 1024 * _KIB
_NUMBER: Final = re.compile(rb"(\d{1,%d})\s*([A-Za-z]*)\Z" % _DIGITS_MAX)
_RANGE: Final = re.compile(rb"(\d{1,9})\s*-\s*(\d{1,9})\s*([A-Za-z]*)\Z")
_TIMES_MS: Final = {
    b"": 1, b"MS": 1, b"S": 1000, b"SECOND": 1000, b"SECONDS": 1000,
    b"MINUTE": 60_000, b"MINUTES": 60_000, b"HOUR": 3_600_000, b"HOURS": 3_600_000,
}  # fmt: skip
_SIZES: Final = {b"": 1, b"KB": _KIB, b"MB": _MIB}
HOUR_MS: Final = 3_600_000


class Owner(Enum):
    """Which set a key belongs to, and so where it may be set."""

    ELEMENT = "namespace, element"
    NAMESPACE = "namespace"
    GROUP = "group"
    GLOBAL = "global"
    NODE = "node"


class Key(NamedTuple):
    """One key. `read` takes what was written and returns the value as it is kept, or None."""

    name: bytes
    owner: Owner
    default: bytes
    read: Callable[[bytes], bytes | None]
    range: str
    """The allowed range, for people."""


def number_of(value: bytes) -> int:
    """Return the number that a kept value begins with."""
    return int(value.split(b" ", 1)[0])


def is_true(value: bytes) -> bool:
    """Return whether a kept value says so."""
    return value == b"true"


# ---- kinds of values


def _scaled(text: bytes, units: dict[bytes, int], least: int, most: int) -> int | None:
    found = _NUMBER.match(text)
    unit = units.get(found[2].upper()) if found else None
    if found is None or unit is None:
        return None
    number = int(found[1]) * unit
    return number if least <= number <= most else None


def _time(name: bytes, owner: Owner, default_ms: int, least_ms: int, most_ms: int) -> Key:
    def read(text: bytes) -> bytes | None:
        number = _scaled(text, _TIMES_MS, least_ms, most_ms)
        return None if number is None else b"%d ms" % number

    return Key(name, owner, b"%d ms" % default_ms, read, f"{least_ms} ms to {most_ms} ms")


def _count(name: bytes, owner: Owner, default: int, least: int, most: int) -> Key:
    def read(text: bytes) -> bytes | None:
        number = _scaled(text, {b"": 1}, least, most)
        return None if number is None else b"%d" % number

    return Key(name, owner, b"%d" % default, read, f"{least} to {most}")


def _size(name: bytes, owner: Owner, default: int, least: int, most: int) -> Key:
    def read(text: bytes) -> bytes | None:
        number = _scaled(text, _SIZES, least, most)
        return None if number is None else b"%d" % number

    return Key(name, owner, b"%d" % default, read, f"{least} to {most} bytes")


_TRUTHS: Final = {b"TRUE": b"true", b"YES": b"true", b"FALSE": b"false", b"NO": b"false"}


def _truth(name: bytes, owner: Owner) -> Key:
    return Key(name, owner, b"false", lambda text: _TRUTHS.get(text.upper()), "true or false")


def _words(name: bytes, owner: Owner, default: bytes = b"") -> Key:
    def read(text: bytes) -> bytes | None:
        return (
            text if len(text) <= VALUE_BYTES_MAX and text.isascii() and _is_plain(text) else None
        )

    return Key(name, owner, default, read, f"text of at most {VALUE_BYTES_MAX} bytes")


def _is_plain(text: bytes) -> bool:
    return all(32 <= letter < 127 for letter in text)


def _view_time_out(text: bytes) -> bytes | None:
    found = _RANGE.match(text)
    unit = _TIMES_MS.get(found[3].upper()) if found else None
    if found is None or unit is None:
        return None
    least, most = int(found[1]) * unit, int(found[2]) * unit
    return b"%d-%d ms" % (least, most) if 100 <= least <= most <= 60_000 else None


def _journal(text: bytes) -> bytes | None:
    return text.lower() if text.lower() in (b"fsync", b"none") else None


_ALL: Final = (
    _time(
        b"NAMESPACE.SESSION.HEARTBEAT.DURATION", Owner.ELEMENT, 10_000, TIME_OUT_MS_MIN, HOUR_MS
    ),
    _count(b"SUBS.MIN.HISTORY", Owner.ELEMENT, 128, 0, 65_536),
    _truth(b"LOCK.READ.OPEN", Owner.ELEMENT),
    _size(b"LIMIT.DATA", Owner.ELEMENT, _MIB, 0, _MIB),
    _count(b"LIMIT.ITEMS", Owner.ELEMENT, 100_000, 0, 1_000_000),
    _count(b"LIMIT.CHILDREN", Owner.ELEMENT, 100_000, 0, 1_000_000),
    _count(b"LIMIT.ELEMENTS", Owner.NAMESPACE, 1_000_000, 0, 100_000_000),
    _size(b"LIMIT.BYTES", Owner.NAMESPACE, 1024 * _MIB, 0, 1024 * 1024 * _MIB),
    Key(b"GROUP.JOURNAL", Owner.GROUP, b"fsync", _journal, "fsync or none, at creation only"),
    _time(b"GROUP.HEARTBEAT", Owner.GROUP, 100, 10, 10_000),
    Key(
        b"GROUP.VIEW.TIMEOUT",
        Owner.GROUP,
        b"600-900 ms",
        _view_time_out,
        "two times, low-high, 100 ms to 60000 ms",
    ),
    _count(b"GROUP.SNAPSHOT.ENTRIES", Owner.GROUP, 10_000, 100, 10_000_000),
    _count(b"GROUP.LOG.RETAIN", Owner.GROUP, 100_000, 1000, 10_000_000),
    _count(b"GROUP.BATCH.MAX", Owner.GROUP, 512, 1, 4096),
    _count(b"GROUP.PIPELINE", Owner.GROUP, 4, 1, 64),
    _truth(b"GLOBAL.AUTH.REQUIRED", Owner.GLOBAL),
    _words(b"GLOBAL.AUTH.ADMINS", Owner.GLOBAL, b"admins"),
    _words(b"GLOBAL.AUTH.JWKS", Owner.GLOBAL),
    _words(b"GLOBAL.AUTH.ISSUER", Owner.GLOBAL),
    _words(b"GLOBAL.AUTH.AUDIENCE", Owner.GLOBAL),
    _words(b"GLOBAL.AUTH.GROUPS", Owner.GLOBAL, b"groups"),
    _time(b"GLOBAL.VDS.INTERVAL", Owner.GLOBAL, 500, 100, 60_000),
    _words(b"NODE.LISTEN", Owner.NODE),
    _words(b"NODE.ADVERTISE", Owner.NODE),
    _words(b"NODE.DATA", Owner.NODE),
    _words(b"NODE.TLS.CERTIFICATE", Owner.NODE),
    _words(b"NODE.TLS.KEY", Owner.NODE),
    _words(b"NODE.TLS.CA", Owner.NODE),
)
KEYS: Final = {key.name: key for key in sorted(_ALL)}
FIXED: Final = frozenset((b"GROUP.JOURNAL",))
"""Keys that cannot be set: the journal is chosen when a group is founded."""
BEATS_MIN: Final = 3
"""Signs of life of a primary that may get lost before a member asks for another one."""


MEANINGS: Final = {
    b"NAMESPACE.SESSION.HEARTBEAT.DURATION": "how long who holds something there may be silent",
    b"SUBS.MIN.HISTORY": "updates that a mark keeps for subscribers that come back",
    b"LOCK.READ.OPEN": "whether others may read under a READ lock",
    b"LIMIT.DATA": "bytes of a binary element",
    b"LIMIT.ITEMS": "items of a list, set or queue",
    b"LIMIT.CHILDREN": "children of an element",
    b"LIMIT.ELEMENTS": "elements of the whole namespace",
    b"LIMIT.BYTES": "bytes in all elements of a namespace, attributes of users among them",
    b"GROUP.JOURNAL": "chosen by ADMIN GROUP CREATE; not to be set",
    b"GROUP.HEARTBEAT": "between two signs of life of a primary",
    b"GROUP.VIEW.TIMEOUT": "after such a silence members ask for another; three beats at least",
    b"GROUP.SNAPSHOT.ENTRIES": "entries after which the primary asks for a snapshot",
    b"GROUP.LOG.RETAIN": "entries that are kept behind a snapshot, for members that lag",
    b"GROUP.BATCH.MAX": "entries in one message to the others",
    b"GROUP.PIPELINE": "batches under way before entries wait for company",
    b"GLOBAL.AUTH.REQUIRED": "whether everybody has to log in",
    b"GLOBAL.AUTH.ADMINS": "the group of administrators; none is, before it is set",
    b"GLOBAL.AUTH.JWKS": "where the keys of tokens are; `ISSUER` and `AUDIENCE` are wanted, too",
    b"GLOBAL.AUTH.ISSUER": "who issues tokens, exactly their `iss`",
    b"GLOBAL.AUTH.AUDIENCE": "for whom tokens are, one of their `aud`",
    b"GLOBAL.AUTH.GROUPS": "the claim of a token that names groups",
    b"GLOBAL.VDS.INTERVAL": "between two rounds of gossip, in which nodes tell where groups are",
    b"NODE.LISTEN": "`--coord`, `--peer`",
    b"NODE.ADVERTISE": "what others are told to connect to",
    b"NODE.DATA": "`--data`",
    b"NODE.TLS.CERTIFICATE": "`--tls-cert`",
    b"NODE.TLS.KEY": "the certificate's key",
    b"NODE.TLS.CA": "`--tls-ca`",
}
"""Descriptions for people, by key."""


def in_key_pattern(name: bytes, pattern: bytes) -> bool:
    """Return whether a key's name matches a pattern: `*` any letters, `?` one letter.

    Case does not matter. The work is bounded by the product of both lengths.
    """
    places = {0}
    letters = pattern.upper()
    for at, letter in enumerate(letters):
        if letter == 42:  # *
            if at and letters[at - 1] == 42:
                continue
            places = set(range(min(places), len(name) + 1)) if places else places
        else:
            places = {p + 1 for p in places if p < len(name) and letter in (63, name[p])}
        if not places:
            return False
    return len(name) in places
