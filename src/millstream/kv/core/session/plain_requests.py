"""Fast paths of the session's loop beside GET and SET, as methods of a session.

GETQ, GETK and GETKQ of documents in memory, DELETE and DELETEQ of a document in memory, SETs that
wait for the disk, and the reply to a change. Any other request is left to the table of commands,
with nothing changed.

Elsewhere: the loop (`kv.core.session.session`), the commands
(`kv.core.session.document_commands`), their compiled twin (`accelerated`).

Source: memcached binary protocol; docs/reference/wire/documents.md.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final, Protocol
from zlib import crc32

from millstream.kv.core.partition.expiry import absolute_expiry
from millstream.model.limits import KEY_BYTES_MAX, VALUE_BYTES_MAX
from millstream.wire.mcbp import ALT_REQUEST, HEADER_BYTES, REQUEST, RESPONSE, Opcode

if TYPE_CHECKING:
    from collections import deque

    from millstream.kv.core.bucket import Bucket
    from millstream.kv.core.copies.durability import PersistedWait, Waiting
    from millstream.kv.core.partition.partition import Partition
    from millstream.kv.core.queue.entry import Entry

__all__ = [
    "DELETES", "FLAGS_EXTRAS", "MUTATION", "OTHER_READS", "RESPONSE_SET", "SECOND_NS",
    "UNDERSCORE", "Plain", "cut_found", "delete_plain", "found_reply", "read_plain",
    "store_durably", "stored_reply",
]  # fmt: skip

cut_found = Struct(">16x8s16x4sI").unpack_from
"""CAS, flags, expiry of a mutation's frame."""
found_reply = Struct(">HHHHI4s8s4s").pack
_plain_reply = Struct(">HHHHI4s8s").pack
_cut_durable_head = Struct(">HBBBBHI4sQHII").unpack_from
"""A SET's head with two bytes of framing extras, which follow, and eight of extras behind them."""
_token_reply = Struct(">HHHHI4s8sQ8s").pack
_QUIET_READS: Final = (REQUEST << 8 | Opcode.GETQ, REQUEST << 8 | Opcode.GETKQ)
_READS_WITH_KEY: Final = (REQUEST << 8 | Opcode.GETK, REQUEST << 8 | Opcode.GETKQ)
OTHER_READS: Final = frozenset({*_QUIET_READS, *_READS_WITH_KEY})
_REQUEST_DELETEQ: Final = REQUEST << 8 | Opcode.DELETEQ
DELETES: Final = (REQUEST << 8 | Opcode.DELETE, _REQUEST_DELETEQ)
RESPONSE_SET: Final = RESPONSE << 8 | Opcode.SET
_RESPONSE_DELETE: Final = RESPONSE << 8 | Opcode.DELETE
_TO_RESPONSE: Final = (REQUEST ^ RESPONSE) << 8
FLAGS_EXTRAS: Final = 4 << 8
_TOKEN_EXTRAS: Final = 16 << 8
MUTATION: Final = 0x57
SECOND_NS: Final = 1_000_000_000
_PERSISTED_FRAMING: Final = (0x1102, 0x1103)
_DURABLE_SET: Final = (ALT_REQUEST << 8 | Opcode.SET).to_bytes(2, "big")
_DURABLE_SET_BYTES_MIN: Final = HEADER_BYTES + 2 + 8
UNDERSCORE: Final = ord("_")
"""Keys that begin with it may be reserved and take the slow path."""


class Plain(Protocol):
    """The part of the session that is used here."""

    bucket: Bucket | None
    hashes_keys: bool
    wants_tokens: bool
    has_changes: bool
    datatype_mask: int
    _deferred: deque[bytes | PersistedWait | Waiting]
    _open_tables: list[dict[bytes, Entry]]
    _open_partitions: list[Partition | None]
    _read_partitions: list[Partition]


def read_plain(
    session: Plain, kind: int, key: bytes, vbucket: int, opaque: bytes, now_ns: int
) -> bytes | None:
    """Answer GETQ, GETK or GETKQ of what is in memory; None: it is not that plain."""
    partitions = session._read_partitions
    if session.hashes_keys and partitions:
        vbucket = (crc32(key) >> 16 & 0x7FFF) % len(partitions)
    if vbucket >= len(partitions) or key[0] == UNDERSCORE:
        return None
    partition, table = partitions[vbucket], session._open_tables[vbucket]
    if table is not partition.table:
        return None
    entry = table.get(key)
    if entry is None:
        is_missing = len(key) <= KEY_BYTES_MAX and partition.residents.lacks(key)
        return b"" if is_missing and kind in _QUIET_READS else None
    frame = entry.frame
    if frame[1] != MUTATION:
        return None
    stored_cas, flags, expiry = cut_found(frame)
    if expiry and expiry <= now_ns // SECOND_NS:
        return None
    entry.is_used = True
    shown = key if kind in _READS_WITH_KEY else b""
    value = frame[55 + len(key) :]
    head = found_reply(
        kind ^ _TO_RESPONSE, len(shown), FLAGS_EXTRAS | frame[5] & session.datatype_mask, 0,
        4 + len(shown) + len(value), opaque, stored_cas, flags,
    )  # fmt: skip
    return head + shown + value


def delete_plain(
    session: Plain, kind: int, key: bytes, vbucket: int, opaque: bytes, now_ns: int
) -> bytes | None:
    """Answer DELETE or DELETEQ of a document in memory; None: it is not that plain."""
    partitions = session._open_partitions
    if session.hashes_keys and partitions:
        vbucket = (crc32(key) >> 16 & 0x7FFF) % len(partitions)
    partition = partitions[vbucket] if vbucket < len(partitions) else None
    if partition is None or key[0] == UNDERSCORE or (session.hashes_keys and session.wants_tokens):
        return None
    entry = partition.table.get(key)
    if entry is None or entry.frame[1] != MUTATION:
        return None
    _, _, expiry = cut_found(entry.frame)
    if expiry and expiry <= now_ns // SECOND_NS:
        return None
    frame = partition.delete(key, 0, now_ns)
    assert isinstance(frame, bytes)
    if not session.bucket.is_told_soon:  # type: ignore[union-attr]
        session.has_changes = True
    if kind == _REQUEST_DELETEQ:
        return b""
    if session.hashes_keys:  # as plain memcached answers
        return _plain_reply(_RESPONSE_DELETE, 0, 0, 0, 0, opaque, bytes(8))
    return stored_reply(session, _RESPONSE_DELETE, opaque, partition, frame)


def stored_reply(
    session: Plain, kind: int, opaque: bytes, partition: Partition, frame: bytes
) -> bytes:
    """Return the reply to a change."""
    if session.wants_tokens:
        return _token_reply(
            kind, 0, _TOKEN_EXTRAS, 0, 16, opaque, frame[16:24],
            partition.failover_log[0].uuid, frame[24:32],
        )  # fmt: skip
    return _plain_reply(kind, 0, 0, 0, 0, opaque, frame[16:24])


def store_durably(session: Plain, data: bytes, at: int, stop: int, now_ns: int) -> bool:
    """Take a plain SET that waits for the disk; False: it is not one, or may be refused.

    The short way for what single persisted writes do, as `_answer` has for other SETs.
    """
    if data[at : at + 2] != _DURABLE_SET or stop - at < _DURABLE_SET_BYTES_MIN:
        return False
    (
        _, framing_bytes, key_bytes, extras_bytes, datatype, vbucket, _, opaque, cas, framing,
        flags, expiry,
    ) = _cut_durable_head(data, at)  # fmt: skip
    writers = session._open_partitions
    key_at = at + _DURABLE_SET_BYTES_MIN
    value_bytes = stop - key_at - key_bytes
    if (
        framing_bytes != 2
        or framing not in _PERSISTED_FRAMING
        or extras_bytes != 8
        or cas
        or datatype & ~session.datatype_mask
        or not 0 < key_bytes <= KEY_BYTES_MAX
        or not 0 <= value_bytes <= VALUE_BYTES_MAX
        or vbucket >= len(writers)
        or session.hashes_keys
        or data[key_at] == UNDERSCORE
    ):
        return False
    partition, bucket = writers[vbucket], session.bucket
    if partition is None or bucket is None or partition.acknowledged is not None:
        return False
    if expiry:
        expiry = absolute_expiry(expiry, now_ns)
    frame = partition.store(
        data[key_at : key_at + key_bytes], data[key_at:stop], flags, expiry, datatype, now_ns
    )
    session.has_changes = True
    reply = stored_reply(session, RESPONSE_SET, opaque, partition, frame)
    session._deferred.append((partition, partition.queue.high_seqno, reply, partition.epoch))
    bucket.hurry()
    return True
