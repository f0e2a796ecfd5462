"""Log entries of a replication group, with the same bytes on every member.

    header 112 | hash of the header 16 | body

Invariants:
1. One entry has one encoding: decoding and encoding again gives the same bytes.
2. A header's hash covers the whole header. By `body_hash` it covers the body, and by `prev_hash`
   every entry before. So members whose logs have the same hash at an LSN have the same log up to
   it.
3. `view` is the view that first proposed the entry. A later view that commits it does not change
   it.
4. LSNs begin at 1 and grow by 1. `ts_ms` never falls. Neither starts again in a view or an epoch.
5. `ts_ms` is information for people. No decision depends on it.

Elsewhere: what is durable and where (`durable_steps`), what a body asks for (the state machine).

Source: Liskov and Cowling 2012; V2R2, "Nomenclature". docs/reference/coordination-format.md.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from enum import IntEnum
from functools import lru_cache
from hashlib import blake2b
from struct import Struct
from typing import Final, NamedTuple

from millstream import accelerated
from millstream.errors import CorruptionError

__all__ = [
    "BODY_BYTES_MAX",
    "BODY_ITEMS_MAX",
    "GENESIS",
    "HASH_BYTES",
    "HEADER_BYTES",
    "ID_BYTES",
    "NOBODY",
    "NOTHING",
    "Body",
    "Entry",
    "Header",
    "Kind",
    "Link",
    "argv_of",
    "chain",
    "check_chain",
    "decode_body",
    "decode_entries",
    "decode_entry",
    "decode_header",
    "encode_body",
    "encode_entry",
    "hash_of",
    "is_body_of",
    "number_in",
]

HASH_BYTES: Final = 16
ID_BYTES: Final = 16
BODY_BYTES_MAX: Final = 8 * 1024 * 1024
"""Most bytes of one entry. What clients may send is bounded below it, where it is received."""
BODY_ITEMS_MAX: Final = 65535
"""Most groups, and most arguments, of one entry."""
NOBODY: Final = bytes(ID_BYTES)
"""The client instance of an entry that no client asked for."""
_VERSION: Final = 1
_CLAIM: Final = 1
"""Flag: the request was logged before, its wait is over, and this entry holds its outcome."""
_FIELDS: Final = Struct(">BBHI16sIIQ16sQ16sQQ16s")
HEADER_BYTES: Final = _FIELDS.size + HASH_BYTES
"""A header and its hash."""
_COUNTS: Final = Struct(">HHH")
_DIGITS_MAX: Final = 19


class Kind(IntEnum):
    """The purpose of an entry."""

    REQUEST = 1
    NOOP = 2
    TICK = 3
    SESSION_OPEN = 4
    SESSION_EXPIRE = 5
    SESSION_CLOSE = 6
    SNAPSHOT = 7
    SNAPSHOT_STABLE = 8
    RECONFIG = 9
    RAISE = 10


class Link(NamedTuple):
    """The end of a log, to which the next entry is linked."""

    lsn: int
    hash: bytes
    ts_ms: int


GENESIS: Final = Link(0, bytes(HASH_BYTES), 0)
"""What the first entry of every group is linked to."""


class Header(NamedTuple):
    """Everything about an entry but its body. Made by `chain` and `decode_header`."""

    group_id: bytes
    epoch: int
    view: int
    lsn: int
    prev_hash: bytes
    kind: Kind
    ts_ms: int
    instance: bytes
    session: int
    csn: int
    claim: bool
    body_length: int
    body_hash: bytes
    encoded: bytes
    """The header as `HEADER_BYTES` bytes, the same in every file and message."""

    @property
    def hash(self) -> bytes:
        """Identifies this entry and all before it."""
        return self.encoded[-HASH_BYTES:]

    @property
    def link(self) -> Link:
        """What the next entry is linked to."""
        return Link(self.lsn, self.encoded[-HASH_BYTES:], self.ts_ms)

    def follows(self, link: Link) -> bool:
        """Return whether this entry directly follows `link`."""
        lsn, digest, ts_ms = link
        return self.lsn == lsn + 1 and self.prev_hash == digest and self.ts_ms >= ts_ms


class Body(NamedTuple):
    """Who asks for what. Principal and groups are empty if the group itself asked."""

    principal: bytes = b""
    groups: tuple[bytes, ...] = ()
    argv: tuple[bytes, ...] = ()


NOTHING: Final = Body()


class Entry(NamedTuple):
    """One entry; `body` is encoded."""

    header: Header
    body: bytes

    @property
    def lsn(self) -> int:
        """The LSN of the entry."""
        return self.header.lsn

    @property
    def content(self) -> Body:
        """The decoded body. Raises CorruptionError as `decode_body`."""
        return decode_body(self.body)


def argv_of(entry: Entry) -> tuple[bytes, ...]:
    """Return the words of its body. Empty if the body is invalid, by a fault of its proposer.

    All members have the same bytes, so all find the same.
    """
    try:
        return entry.content.argv
    except CorruptionError:
        return ()


def number_in(text: bytes) -> int | None:
    """Return the number of at most 8 bytes that an entry holds as digits, None if it has none."""
    return int(text) if text.isdigit() and len(text) <= _DIGITS_MAX else None


def hash_of(data: bytes) -> bytes:
    """Return the hash that headers name things by: BLAKE2b of 128 bits."""
    return blake2b(data, digest_size=HASH_BYTES).digest()


def chain(
    link: Link,
    *,
    group_id: bytes,
    epoch: int,
    view: int,
    kind: Kind,
    ts_ms: int,
    body: Body = NOTHING,
    instance: bytes = NOBODY,
    session: int = 0,
    csn: int = 0,
    claim: bool = False,
) -> Entry:
    """Return the entry behind `link`. Its time is at least that of the entry before."""
    data = encode_body(body)
    lsn, prev_hash, last_ms = link
    assert len(group_id) == len(instance) == ID_BYTES
    assert len(prev_hash) == HASH_BYTES
    ts_ms, length, digest = max(ts_ms, last_ms), len(data), hash_of(data)
    packed = _FIELDS.pack(
        _VERSION, kind, claim, length, group_id, epoch, view, lsn + 1, prev_hash, ts_ms, instance,
        session, csn, digest,
    )  # fmt: skip
    header = Header(
        group_id, epoch, view, lsn + 1, prev_hash, kind, ts_ms, instance, session, csn, claim,
        length, digest, packed + hash_of(packed),
    )  # fmt: skip
    return Entry(header, data)


def check_chain(link: Link, group_id: bytes, entries: Iterable[Entry]) -> Link:
    """Return the end of the log with the entries behind `link`.

    Raises:
        CorruptionError: `broken_chain`: one does not follow the one before it.
    """
    for header, _ in entries:
        if header.group_id != group_id or not header.follows(link):
            raise CorruptionError(
                f"the entry said to be LSN {header.lsn} does not follow LSN {link.lsn} of its "
                "group; fetch it again from another member",
                code="broken_chain",
            )
        link = header.link
    return link


# ---- encoding


def decode_header(data: bytes, offset: int = 0) -> Header:
    """Return the header that was encoded at `offset`.

    Raises:
        CorruptionError: `damaged_entry`: too short or not what was written; `unknown_entry`:
            whole, but of a kind that this version does not know.
    """
    encoded = bytes(data[offset : offset + HEADER_BYTES])
    packed = encoded[:-HASH_BYTES]
    if len(encoded) < HEADER_BYTES or encoded[-HASH_BYTES:] != hash_of(packed):
        raise _damaged("its header is not what was written")
    (
        version, kind, flags, body_length, group_id, epoch, view, lsn, prev_hash, ts_ms,
        instance, session, csn, body_hash,
    ) = _FIELDS.unpack(packed)  # fmt: skip
    known = _KINDS.get(kind)
    if version != _VERSION or known is None or flags & ~_CLAIM:
        raise CorruptionError(
            f"entry {lsn} is of version {version}, kind {kind}, flags {flags}, which this version "
            "of Millstream does not know; a newer one wrote it",
            code="unknown_entry",
        )
    if body_length > BODY_BYTES_MAX:
        raise _damaged(f"a body of {body_length} bytes is longer than {BODY_BYTES_MAX}")
    return Header(
        group_id, epoch, view, lsn, prev_hash, known, ts_ms, instance, session, csn,
        bool(flags & _CLAIM), body_length, body_hash, encoded,
    )  # fmt: skip


_KINDS: Final = {int(kind): kind for kind in Kind}


def encode_entry(entry: Entry) -> bytes:
    """Return the bytes of an entry, for the journal and for peers."""
    assert len(entry.body) == entry.header.body_length
    return entry.header.encoded + entry.body


def decode_entry(data: bytes, offset: int = 0) -> Entry:
    """Return the entry that `encode_entry` wrote at `offset`; more may follow it.

    Raises:
        CorruptionError: as `decode_header`; also if the body is not the one of the header.
    """
    header = decode_header(data, offset)
    begin = offset + HEADER_BYTES
    body = bytes(data[begin : begin + header.body_length])
    if not is_body_of(header, body):
        raise _damaged(f"the body of LSN {header.lsn} is not what was written")
    return Entry(header, body)


def decode_entries(data: bytes, offset: int, count: int) -> tuple[tuple[Entry, ...], int]:
    """Return this many entries, one behind the other, and where they end.

    Raises the same errors.
    """
    found = []
    for _ in range(count):
        entry = decode_entry(data, offset)
        offset += HEADER_BYTES + len(entry.body)
        found.append(entry)
    return tuple(found), offset


def is_body_of(header: Header, body: bytes) -> bool:
    """Return whether this is the body that the header was made for."""
    return len(body) == header.body_length and hash_of(body) == header.body_hash


def encode_body(body: Body) -> bytes:
    """Return the bytes of a body. The caller has refused bodies that are too long."""
    assert len(body.groups) <= BODY_ITEMS_MAX
    assert len(body.argv) <= BODY_ITEMS_MAX
    parts = [_COUNTS.pack(len(body.principal), len(body.groups), len(body.argv)), body.principal]
    for group in body.groups:
        parts += (len(group).to_bytes(2, "big"), group)
    for argument in body.argv:
        parts += (len(argument).to_bytes(4, "big"), argument)
    data = b"".join(parts)
    assert len(data) <= BODY_BYTES_MAX
    return data


@lru_cache(maxsize=1)  # who executes an entry asks for it more than once
def decode_body(data: bytes) -> Body:
    """Return the body that `encode_body` wrote.

    Raises:
        CorruptionError: `damaged_entry`: lengths and bytes do not fit.
    """
    if len(data) < _COUNTS.size:
        raise _damaged(f"{len(data)} bytes are no body")
    principal_length, group_count, argument_count = _COUNTS.unpack_from(data)
    at = _COUNTS.size + principal_length
    principal = bytes(data[_COUNTS.size : at])
    groups, at = _decode_items(data, at, 2, group_count) if group_count else ((), at)
    argv, at = _decode_items(data, at, 4, argument_count)
    if at != len(data):
        raise _damaged("its body has a wrong length than its parts")
    return Body(principal, groups, argv)


def _decode_items(data: bytes, at: int, width: int, count: int) -> tuple[tuple[bytes, ...], int]:
    items = []
    size = len(data)
    for _ in range(count):
        begin = at + width
        at = begin + int.from_bytes(data[at:begin], "big")
        items.append(bytes(data[begin:at]))
        if at > size:
            raise _damaged("its body ends within an argument")
    return tuple(items), at


def _damaged(reason: str) -> CorruptionError:
    return CorruptionError(
        f"this is not a whole log entry: {reason}; fetch it from another member",
        code="damaged_entry",
    )


accelerated.bind(
    sys.modules[__name__], "decode_entries", Entry, Header, _KINDS, BODY_BYTES_MAX,
    also=(decode_entry, decode_header, is_body_of, hash_of),
)  # fmt: skip
accelerated.bind(sys.modules[__name__], "check_chain", Link, also=(Header.follows,))
accelerated.bind(sys.modules[__name__], "chain", Body, also=(encode_body, hash_of))
accelerated.bind(sys.modules[__name__], "decode_body", Body, also=(_decode_items,))
