"""Short ways of the session's loop, as methods of a session.

GET, GETQ, GETK and GETKQ of documents in memory, DELETE and DELETEQ of a document in memory, SET
and SETQ, SETs that wait for the disk, and the reply to a change. Any other request is left to the
table of commands, with nothing changed.

Elsewhere: the loop (`kv.core.session.session`), the commands
(`kv.core.session.document_commands`), their compiled twin (`accelerated`).

Source: memcached binary protocol; docs/reference/wire/documents.md.
"""

from __future__ import annotations

from collections.abc import Callable
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
    "PLAIN_WAYS", "READS", "SECOND_NS", "Head", "Plain", "delete_plain", "read_plain",
    "store_durably", "store_plain", "stored_reply",
]  # fmt: skip

_cut_found = Struct(">16x8s16x4sI").unpack_from
"""CAS, flags, expiry of a mutation's frame."""
_cut_flags_expiry = Struct(">II").unpack_from
_found_reply = Struct(">HHHHI4s8s4s").pack
_plain_reply = Struct(">HHHHI4s8s").pack
_cut_durable_head = Struct(">HBBBBHI4sQHII").unpack_from
"""A SET's head with two bytes of framing extras, which follow, and eight of extras behind them."""
_token_reply = Struct(">HHHHI4s8sQ8s").pack
_QUIET_READS: Final = (REQUEST << 8 | Opcode.GETQ, REQUEST << 8 | Opcode.GETKQ)
_READS_WITH_KEY: Final = (REQUEST << 8 | Opcode.GETK, REQUEST << 8 | Opcode.GETKQ)
_REQUEST_SETQ: Final = REQUEST << 8 | Opcode.SETQ
_REQUEST_DELETEQ: Final = REQUEST << 8 | Opcode.DELETEQ
_RESPONSE_SET: Final = RESPONSE << 8 | Opcode.SET
_RESPONSE_DELETE: Final = RESPONSE << 8 | Opcode.DELETE
_TO_RESPONSE: Final = (REQUEST ^ RESPONSE) << 8
_SET_EXTRAS: Final = 8 << 8
_FLAGS_EXTRAS: Final = 4 << 8
_TOKEN_EXTRAS: Final = 16 << 8
_MUTATION: Final = 0x57
SECOND_NS: Final = 1_000_000_000
_PERSISTED_FRAMING: Final = (0x1102, 0x1103)
_DURABLE_SET: Final = (ALT_REQUEST << 8 | Opcode.SET).to_bytes(2, "big")
_DURABLE_SET_BYTES_MIN: Final = HEADER_BYTES + 2 + 8
_UNDERSCORE: Final = ord("_")
"""Keys that begin with it may be reserved and take the slow path."""


Head = tuple[int, int, int, int, int, bytes, int]
"""Magic and opcode, key length, extras length and datatype, partition, body, opaque, CAS."""


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


def read_plain(session: Plain, data: bytes, at: int, head: Head, now_ns: int) -> bytes | None:
    """Answer GET, GETQ, GETK or GETKQ of what is in memory."""
    kind, key_bytes, extras, vbucket, body, opaque, _ = head
    tables = session._open_tables
    if extras or body != key_bytes or not body:
        return None
    at += HEADER_BYTES
    key = data[at : at + body]
    if session.hashes_keys and tables:
        vbucket = (crc32(key) >> 16 & 0x7FFF) % len(tables)
    if vbucket >= len(tables) or data[at] == _UNDERSCORE:
        return None
    entry = tables[vbucket].get(key)
    if entry is None:
        is_quiet = kind in _QUIET_READS
        return b"" if is_quiet and _is_missing(session, vbucket, key) else None
    frame = entry.frame
    if frame[1] != _MUTATION:
        return None
    stored_cas, flags, expiry = _cut_found(frame)
    if expiry and expiry <= now_ns // SECOND_NS:
        return None
    entry.is_used = True
    shown = key if kind in _READS_WITH_KEY else b""
    value = frame[55 + body :]
    return _found_reply(
        kind ^ _TO_RESPONSE, len(shown), _FLAGS_EXTRAS | frame[5] & session.datatype_mask, 0,
        4 + len(shown) + len(value), opaque, stored_cas, flags,
    ) + shown + value  # fmt: skip


def _is_missing(session: Plain, vbucket: int, key: bytes) -> bool:
    """Return whether a key that is not in a table does not exist, and may be said to."""
    partition = session._read_partitions[vbucket]
    return (
        session._open_tables[vbucket] is partition.table
        and len(key) <= KEY_BYTES_MAX
        and partition.residents.lacks(key)
    )


def delete_plain(session: Plain, data: bytes, at: int, head: Head, now_ns: int) -> bytes | None:
    """Answer DELETE or DELETEQ of a document in memory."""
    kind, key_bytes, extras, vbucket, body, opaque, cas = head
    if extras or cas or body != key_bytes or not body:
        return None
    key = data[at + HEADER_BYTES : at + HEADER_BYTES + body]
    partition = _writer(session, vbucket, key)
    if partition is None or (session.hashes_keys and session.wants_tokens):
        return None
    entry = partition.table.get(key)
    if entry is None or entry.frame[1] != _MUTATION:
        return None
    _, _, expiry = _cut_found(entry.frame)
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


def store_plain(session: Plain, data: bytes, at: int, head: Head, now_ns: int) -> bytes | None:
    """Answer SET or SETQ.

    Raises:
        NotInMemory: the document that it replaces is on the disk.
    """
    kind, key_bytes, extras, vbucket, body, opaque, cas = head
    if (
        cas
        or extras & ~session.datatype_mask != _SET_EXTRAS
        or not 0 < key_bytes <= KEY_BYTES_MAX
        or not key_bytes + 8 <= body <= key_bytes + 8 + VALUE_BYTES_MAX
    ):
        return None
    at += HEADER_BYTES
    key = data[at + 8 : at + 8 + key_bytes]
    partition = _writer(session, vbucket, key)
    if partition is None:
        return None
    flags, expiry = _cut_flags_expiry(data, at)
    if expiry:
        expiry = absolute_expiry(expiry, now_ns)
    frame = partition.store(key, data[at + 8 : at + body], flags, expiry, extras & 0xFF, now_ns)
    if not session.bucket.is_told_soon:  # type: ignore[union-attr]
        session.has_changes = True
    if kind == _REQUEST_SETQ:
        return b""
    return stored_reply(session, _RESPONSE_SET, opaque, partition, frame)


def _writer(session: Plain, vbucket: int, key: bytes) -> Partition | None:
    """Return the partition that takes a plain write of a key."""
    partitions = session._open_partitions
    if session.hashes_keys and partitions:
        vbucket = (crc32(key) >> 16 & 0x7FFF) % len(partitions)
    return partitions[vbucket] if vbucket < len(partitions) and key[0] != _UNDERSCORE else None


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

    The short way for what single persisted writes do, as `store_plain` is for other SETs.
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
        or data[key_at] == _UNDERSCORE
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
    reply = stored_reply(session, _RESPONSE_SET, opaque, partition, frame)
    session._deferred.append((partition, partition.queue.high_seqno, reply, partition.epoch))
    bucket.hurry()
    return True


PLAIN_WAYS: Final[dict[int, Callable[[Plain, bytes, int, Head, int], bytes | None]]] = {
    REQUEST << 8 | Opcode.GET: read_plain,
    **dict.fromkeys((*_QUIET_READS, *_READS_WITH_KEY), read_plain),
    REQUEST << 8 | Opcode.SET: store_plain,
    _REQUEST_SETQ: store_plain,
    REQUEST << 8 | Opcode.DELETE: delete_plain,
    _REQUEST_DELETEQ: delete_plain,
}
"""Magic and opcode -> what answers the request that begins at a place of the bytes.

b"": no reply is due; None: it is not plain, and nothing was changed.
"""
READS: Final = frozenset((
    Opcode.GET, Opcode.GETQ, Opcode.GETK, Opcode.GETKQ, Opcode.GAT, Opcode.GATQ,
    Opcode.GET_LOCKED, Opcode.GET_REPLICA,
))  # fmt: skip
"""What counts as a read of a document."""
