"""The document commands, except the GET and SET that the request loop answers itself.

Invariants:
1. A command checks lengths first, then rights and partition, then the document.
2. A quiet command answers only errors of writes and hits of reads.
3. Readers of a locked document do not see its CAS.
4. Keys `_local/...` are refused. So are `_design/...`, except for reading by our own clients:
   design documents are checked before they are stored (`kv.core.revisions.design_documents`).

Source: memcached binary protocol; docs/reference/wire/documents.md.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, islice
from struct import Struct
from typing import Final
from zlib import crc32

from millstream.kv.core.partition.locks import granted_seconds
from millstream.kv.core.partition.partition import Partition, absolute_expiry, value_of
from millstream.kv.core.partition.with_meta import EXTRAS_BYTES, given_change, store_given
from millstream.kv.core.session.session import Command, KvSession
from millstream.model.limits import KEY_BYTES_MAX, VALUE_BYTES_MAX
from millstream.model.partitions import DESIGN_PREFIX, PartitionState
from millstream.wire.frames import head_of
from millstream.wire.mcbp import (
    Feature,
    FrameInfo,
    Opcode,
    Packet,
    Status,
    parse_frame_infos,
    response,
)

__all__ = ["DOCUMENT_COMMANDS", "OBSERVED_MAX"]

_FLAGS_EXPIRY: Final = Struct(">II")
_EXPIRY: Final = Struct(">I")
_COUNTER: Final = Struct(">QQI")
_META: Final = Struct(">IIIQ")
_TOKEN: Final = Struct(">Q8s")
_OBSERVE: Final = Struct(">HH")
_SECOND_NS: Final = 1_000_000_000
RANDOM_TRIES_MAX: Final = 1000
"""Documents in memory that GET_RANDOM_KEY tries; if none of them will do it answers ETMPFAIL."""
OBSERVED_MAX: Final = 500
"""Keys of an OBSERVE request."""
_RESERVED: Final = (DESIGN_PREFIX, b"_local/")


def _checked(
    session: KvSession, packet: Packet, *, extras: tuple[int, ...], for_write: bool
) -> Partition | Status:
    """Return the partition, or the status that refuses the command."""
    if not packet.key or len(packet.extras) not in extras:
        return Status.EINVAL
    if len(packet.key) > KEY_BYTES_MAX:
        return Status.EINVAL
    if len(packet.value) > VALUE_BYTES_MAX:
        return Status.E2BIG
    if for_write and packet.datatype & ~session.datatype_mask:
        return Status.EINVAL
    if packet.key.startswith(_RESERVED) and (for_write or not _may_read_designs(session, packet)):
        return Status.EINVAL
    return session.partition_of(packet, for_write=for_write)


def _checked_for_both(
    session: KvSession, packet: Packet, *, extras: tuple[int, ...]
) -> Partition | Status:
    """The same for a command that both reads and changes: it needs both rights."""
    partition = _checked(session, packet, extras=extras, for_write=True)
    if isinstance(partition, Status):
        return partition
    return session.partition_of(packet)


def _may_read_designs(session: KvSession, packet: Packet) -> bool:
    return Feature.MILLSTREAM in session.features and packet.key.startswith(DESIGN_PREFIX)


def _written(session: KvSession, packet: Packet, partition: Partition, frame: bytes) -> bytes:
    """Return the reply of a successful change."""
    session.has_changes = True
    is_touch = packet.opcode == Opcode.TOUCH  # clients expect no token in its replies
    extras = b"" if is_touch else _token(session, partition, frame)
    cas = int.from_bytes(frame[16:24], "big")
    if session.hashes_keys and packet.opcode == Opcode.DELETE:
        cas = 0  # as plain memcached answers
    return response(packet.opcode, Status.SUCCESS, packet.opaque, cas=cas, extras=extras)


def _token(session: KvSession, partition: Partition, frame: bytes) -> bytes:
    if not session.wants_tokens:
        return b""
    return _TOKEN.pack(partition.failover_log[0].uuid, frame[24:32])


Change = Callable[[KvSession, Packet, Partition, int], bytes | Status]


def _change(extras: tuple[int, ...], change: Change, *, quiet: bool) -> Command:
    """Make a command of a function that changes a document."""

    def command(session: KvSession, packet: Packet, now_ns: int) -> bytes | None:
        partition = _checked(session, packet, extras=extras, for_write=True)
        if isinstance(partition, Status):
            return session.refusal(packet, partition)
        before = partition.high_seqno
        result = change(session, packet, partition, now_ns)
        if partition.high_seqno != before:
            session.has_changes = True
        if isinstance(result, Status):
            return session.refusal(packet, result)
        return None if quiet else _written(session, packet, partition, result)

    return command


def _stored_fields(packet: Packet, partition: Partition, now_ns: int) -> tuple[int, int]:
    """Return flags and absolute expiry of a SET, ADD or REPLACE."""
    flags, expiry = _FLAGS_EXPIRY.unpack(packet.extras)
    if packet.framing and FrameInfo.PRESERVE_TTL in parse_frame_infos(packet.framing):
        frame = partition.live(packet.key, now_ns)
        if frame is not None:
            return flags, _EXPIRY.unpack_from(frame, 44)[0]
    return flags, absolute_expiry(expiry, now_ns)


def _set(_: KvSession, packet: Packet, partition: Partition, now_ns: int) -> bytes | Status:
    flags, expiry = _stored_fields(packet, partition, now_ns)
    return partition.put(
        packet.key, packet.value, flags, expiry, packet.cas, packet.datatype, now_ns
    )


def _add(_: KvSession, packet: Packet, partition: Partition, now_ns: int) -> bytes | Status:
    if packet.cas:
        return Status.EINVAL
    flags, expiry = _stored_fields(packet, partition, now_ns)
    return partition.add(packet.key, packet.value, flags, expiry, packet.datatype, now_ns)


def _replace(_: KvSession, packet: Packet, partition: Partition, now_ns: int) -> bytes | Status:
    flags, expiry = _stored_fields(packet, partition, now_ns)
    return partition.replace(
        packet.key, packet.value, flags, expiry, packet.cas, packet.datatype, now_ns
    )


def _delete(_: KvSession, packet: Packet, partition: Partition, now_ns: int) -> bytes | Status:
    return partition.delete(packet.key, packet.cas, now_ns)


def _append(_: KvSession, packet: Packet, partition: Partition, now_ns: int) -> bytes | Status:
    return partition.extend(packet.key, b"", packet.value, packet.cas, VALUE_BYTES_MAX, now_ns)


def _prepend(_: KvSession, packet: Packet, partition: Partition, now_ns: int) -> bytes | Status:
    return partition.extend(packet.key, packet.value, b"", packet.cas, VALUE_BYTES_MAX, now_ns)


def _touch(_: KvSession, packet: Packet, partition: Partition, now_ns: int) -> bytes | Status:
    expiry = absolute_expiry(_EXPIRY.unpack(packet.extras)[0], now_ns)
    return partition.touch(packet.key, expiry, now_ns)


def _with_meta(*, is_deletion: bool = False, is_insert: bool = False, quiet: bool) -> Command:
    def command(session: KvSession, packet: Packet, now_ns: int) -> bytes | None:
        if len(packet.extras) not in EXTRAS_BYTES:
            return session.refusal(packet, Status.EINVAL)
        knows_lineage = Feature.MILLSTREAM in session.features
        given = given_change(packet, knows_lineage=knows_lineage)
        if isinstance(given, Status) or (is_deletion and given.value):
            return session.refusal(packet, Status.EINVAL)
        if not session.may("stream"):
            return session.refusal(packet, Status.EACCESS)

        def change(_: KvSession, bare: Packet, partition: Partition, now: int) -> bytes | Status:
            return store_given(
                partition, bare, given, now, is_deletion=is_deletion, is_insert=is_insert
            )

        bare = packet._replace(value=given.value)
        return _change(EXTRAS_BYTES, change, quiet=quiet)(session, bare, now_ns)

    return command


def _counter(sign: int, *, quiet: bool) -> Command:
    def command(session: KvSession, packet: Packet, now_ns: int) -> bytes | None:
        partition = _checked(session, packet, extras=(20,), for_write=True)
        if isinstance(partition, Status):
            return session.refusal(packet, partition)
        delta, initial, expiry = _COUNTER.unpack(packet.extras)
        before = partition.high_seqno
        result = partition.count(packet.key, sign * delta, initial, expiry, packet.cas, now_ns)
        if partition.high_seqno != before:
            session.has_changes = True
        if isinstance(result, Status):
            return session.refusal(packet, result)
        frame, number = result
        if quiet:
            return None
        return response(
            packet.opcode, Status.SUCCESS, packet.opaque,
            cas=int.from_bytes(frame[16:24], "big"),
            extras=_token(session, partition, frame), value=number.to_bytes(8, "big"),
        )  # fmt: skip

    return command


def _found(
    session: KvSession, packet: Packet, frame: bytes, cas: int, *, with_key: bool = False
) -> bytes:
    return response(
        packet.opcode, Status.SUCCESS, packet.opaque,
        cas=cas, datatype=frame[5] & session.datatype_mask,
        extras=frame[40:44], key=packet.key if with_key else b"", value=value_of(frame),
    )  # fmt: skip


def _get(*, quiet: bool, with_key: bool) -> Command:
    def command(session: KvSession, packet: Packet, now_ns: int) -> bytes | None:
        partition = _checked(session, packet, extras=(0,), for_write=False)
        if isinstance(partition, Status):
            return session.refusal(packet, partition)
        before = partition.high_seqno
        frame = partition.live(packet.key, now_ns)
        session.has_changes |= partition.high_seqno != before
        if frame is None:
            return None if quiet else session.refusal(packet, Status.KEY_ENOENT)
        cas = partition.shown_cas(frame, packet.key, now_ns)
        return _found(session, packet, frame, cas, with_key=with_key)

    return command


def _get_replica(session: KvSession, packet: Packet, now_ns: int) -> bytes | None:
    """GET_REPLICA: a replica's version of a document, as of its last complete snapshot."""
    partition = _replica(session, packet)
    if isinstance(partition, Status):
        return session.refusal(packet, partition)
    frame = partition.newest(packet.key)
    if frame is None:
        return session.refusal(packet, Status.KEY_ENOENT)
    change = head_of(frame)
    if change.seqno > partition.high_seqno:
        return session.refusal(packet, Status.ETMPFAIL)  # it is of the snapshot being received
    if change.is_deleted or 0 < change.expiry <= now_ns // _SECOND_NS:
        return session.refusal(packet, Status.KEY_ENOENT)
    return _found(session, packet, frame, change.cas)


def _replica(session: KvSession, packet: Packet) -> Partition | Status:
    if session.hashes_keys:
        return Status.UNKNOWN_COMMAND
    found = _checked(session, packet, extras=(0,), for_write=False)
    if isinstance(found, Partition):
        return Status.NOT_MY_VBUCKET  # the active copy answers GET
    return _observable(session, packet) if found == Status.NOT_MY_VBUCKET else found


def _get_and_touch(*, quiet: bool) -> Command:
    def command(session: KvSession, packet: Packet, now_ns: int) -> bytes | None:
        partition = _checked_for_both(session, packet, extras=(4,))
        if isinstance(partition, Status):
            return session.refusal(packet, partition)
        before = partition.high_seqno
        expiry = absolute_expiry(_EXPIRY.unpack(packet.extras)[0], now_ns)
        frame = partition.touch(packet.key, expiry, now_ns)
        session.has_changes |= partition.high_seqno != before
        if isinstance(frame, Status):
            missing = quiet and frame == Status.KEY_ENOENT
            return None if missing else session.refusal(packet, frame)
        return _found(session, packet, frame, int.from_bytes(frame[16:24], "big"))

    return command


def _get_locked(session: KvSession, packet: Packet, now_ns: int) -> bytes | None:
    """GET_LOCKED: return the document and lock it for some seconds."""
    partition = _checked_for_both(session, packet, extras=(0, 4))
    if isinstance(partition, Status):
        return session.refusal(packet, partition)
    seconds = granted_seconds(int.from_bytes(packet.extras, "big"))
    before = partition.high_seqno
    locked = partition.lock(packet.key, seconds, now_ns)
    session.has_changes |= partition.high_seqno != before
    if isinstance(locked, Status):
        return session.refusal(packet, locked)
    return _found(session, packet, *locked)


def _unlock(session: KvSession, packet: Packet, now_ns: int) -> bytes | None:
    """UNLOCK: by the CAS that GET_LOCKED returned."""
    partition = _checked(session, packet, extras=(0,), for_write=True)
    if not packet.cas:
        partition = Status.EINVAL
    if isinstance(partition, Status):
        return session.refusal(packet, partition)
    before = partition.high_seqno
    status = partition.unlock(packet.key, packet.cas, now_ns)
    session.has_changes |= partition.high_seqno != before
    if status is not None:
        return session.refusal(packet, status)
    return response(packet.opcode, Status.SUCCESS, packet.opaque)


def _get_meta(session: KvSession, packet: Packet, now_ns: int) -> bytes | None:
    """GET_META: metadata of a key, tombstones included."""
    partition = _checked(session, packet, extras=(0, 1), for_write=False)
    if isinstance(partition, Status):
        return session.refusal(packet, partition)
    before = partition.high_seqno
    partition.live(packet.key, now_ns)
    session.has_changes |= partition.high_seqno != before
    frame = partition.newest(packet.key)
    if frame is None:
        return session.refusal(packet, Status.KEY_ENOENT)
    change = head_of(frame)
    extras = _META.pack(change.is_deleted, change.flags, change.expiry, change.rev)
    if packet.extras == b"\x02":
        extras += bytes([change.datatype])
    cas = partition.shown_cas(frame, packet.key, now_ns)
    return response(packet.opcode, Status.SUCCESS, packet.opaque, cas=cas, extras=extras)


def _observe(session: KvSession, packet: Packet, now_ns: int) -> bytes | None:
    """OBSERVE: whether keys are known and persisted."""
    found, at, value, count = bytearray(), 0, packet.value, 0
    while at < len(value):
        count += 1
        if count > OBSERVED_MAX:
            return session.refusal(packet, Status.E2BIG)
        if at + 4 > len(value):
            return session.refusal(packet, Status.EINVAL)
        vbucket, size = _OBSERVE.unpack_from(value, at)
        key = value[at + 4 : at + 4 + size]
        at += 4 + size
        if len(key) != size or not key or key.startswith(_RESERVED):
            return session.refusal(packet, Status.EINVAL)
        partition = _observable(session, packet._replace(vbucket=vbucket, key=key))
        if isinstance(partition, Status):
            return session.refusal(packet, partition)
        before = partition.high_seqno
        state, cas = _observed(partition, key, now_ns)
        session.has_changes |= partition.high_seqno != before
        found += _OBSERVE.pack(vbucket, size) + key + bytes([state]) + cas.to_bytes(8, "big")
    return response(packet.opcode, Status.SUCCESS, packet.opaque, value=bytes(found))


def _observable(session: KvSession, packet: Packet) -> Partition | Status:
    """Return the partition if its copy here is active or a replica: both can answer."""
    found = session.partition_of(packet)
    if found == Status.NOT_MY_VBUCKET and session.bucket is not None:
        partition = session.bucket.partition(packet.vbucket)
        if partition is not None and partition.state is PartitionState.REPLICA:
            return partition
    return found


def _observed(partition: Partition, key: bytes, now_ns: int) -> tuple[int, int]:
    if partition.state is PartitionState.ACTIVE:
        partition.live(key, now_ns)  # only the active copy makes expirations
    frame = partition.newest(key)
    if frame is None:
        return 0x80, 0
    change = head_of(frame)
    is_persisted = change.seqno <= partition.persisted_seqno
    if change.is_deleted:
        return (0x80 if is_persisted else 0x81), change.cas
    return int(is_persisted), change.cas


def _random_key(session: KvSession, packet: Packet, now_ns: int) -> bytes | None:
    """GET_RANDOM_KEY: some document, chosen by the time. Looks at `RANDOM_TRIES_MAX`."""
    if packet.key or packet.value or len(packet.extras) not in (0, 4):
        return session.refusal(packet, Status.EINVAL)
    bucket = session.bucket
    if bucket is None:
        return session.refusal(packet, Status.NO_BUCKET)
    if not session.may("read"):
        return session.refusal(packet, Status.EACCESS)
    draw = crc32(now_ns.to_bytes(8, "big"), packet.opaque)
    count, left = bucket.partition_count, RANDOM_TRIES_MAX
    for at in range(count):
        partition = bucket.partitions[(draw + at) % count]
        if partition.refusal is not None or not partition.table:
            continue
        skipped = (draw >> 8) % min(len(partition.table), RANDOM_TRIES_MAX)
        keys = islice(partition.table, skipped, None)
        for key in islice(chain(keys, islice(partition.table, skipped)), left):
            left -= 1
            frame = partition.table[key].frame
            if key.startswith(_RESERVED) or not _is_document(frame, now_ns):
                continue
            cas = partition.shown_cas(frame, key, now_ns)
            return _found(session, packet._replace(key=key), frame, cas, with_key=True)
        if not left:
            break
    is_all_seen = left and not any(one.unserved == "all" for one in bucket.partitions)
    return session.refusal(packet, Status.KEY_ENOENT if is_all_seen else Status.ETMPFAIL)


def _is_document(frame: bytes, now_ns: int) -> bool:
    change = head_of(frame)
    return not change.is_deleted and not 0 < change.expiry <= now_ns // _SECOND_NS


def _flush(*, quiet: bool) -> Command:
    def command(session: KvSession, packet: Packet, now_ns: int) -> bytes | None:
        """FLUSH: delete all documents, now or later, on the plain memcached port only."""
        if not session.hashes_keys:
            return session.refusal(packet, Status.NOT_SUPPORTED)
        if packet.key or packet.value or len(packet.extras) not in (0, 4):
            return session.refusal(packet, Status.EINVAL)
        if session.bucket is None:
            return session.refusal(packet, Status.NO_BUCKET)
        if any(partition.unserved for partition in session.bucket.partitions):
            return session.refusal(packet, Status.ETMPFAIL)
        at_s = absolute_expiry(int.from_bytes(packet.extras, "big"), now_ns)
        reply = b"" if quiet else response(packet.opcode, Status.SUCCESS, packet.opaque)
        session.wait_for_reply(
            lambda done: session.host.wipe(session, at_s * _SECOND_NS, lambda: done(reply))
        )
        return None

    return command


def _pair(
    loud: Opcode, quiet: Opcode, extras: tuple[int, ...], change: Change
) -> dict[int, Command]:
    return {
        loud: _change(extras, change, quiet=False),
        quiet: _change(extras, change, quiet=True),
    }


DOCUMENT_COMMANDS: Final[dict[int, Command]] = {
    **_pair(Opcode.SET, Opcode.SETQ, (8,), _set),
    **_pair(Opcode.ADD, Opcode.ADDQ, (8,), _add),
    **_pair(Opcode.REPLACE, Opcode.REPLACEQ, (8,), _replace),
    **_pair(Opcode.DELETE, Opcode.DELETEQ, (0,), _delete),
    **_pair(Opcode.APPEND, Opcode.APPENDQ, (0,), _append),
    **_pair(Opcode.PREPEND, Opcode.PREPENDQ, (0,), _prepend),
    Opcode.INCREMENT: _counter(1, quiet=False),
    Opcode.INCREMENTQ: _counter(1, quiet=True),
    Opcode.DECREMENT: _counter(-1, quiet=False),
    Opcode.DECREMENTQ: _counter(-1, quiet=True),
    Opcode.GET: _get(quiet=False, with_key=False),
    Opcode.GETQ: _get(quiet=True, with_key=False),
    Opcode.GETK: _get(quiet=False, with_key=True),
    Opcode.GETKQ: _get(quiet=True, with_key=True),
    Opcode.TOUCH: _change((4,), _touch, quiet=False),
    Opcode.GAT: _get_and_touch(quiet=False),
    Opcode.GATQ: _get_and_touch(quiet=True),
    Opcode.GET_LOCKED: _get_locked,
    Opcode.UNLOCK: _unlock,
    Opcode.GET_META: _get_meta,
    Opcode.SET_WITH_META: _with_meta(quiet=False),
    Opcode.SETQ_WITH_META: _with_meta(quiet=True),
    Opcode.ADD_WITH_META: _with_meta(is_insert=True, quiet=False),
    Opcode.ADDQ_WITH_META: _with_meta(is_insert=True, quiet=True),
    Opcode.DEL_WITH_META: _with_meta(is_deletion=True, quiet=False),
    Opcode.DELQ_WITH_META: _with_meta(is_deletion=True, quiet=True),
    Opcode.GET_REPLICA: _get_replica,
    Opcode.OBSERVE: _observe,
    Opcode.GET_RANDOM_KEY: _random_key,
    Opcode.FLUSH: _flush(quiet=False),
    Opcode.FLUSHQ: _flush(quiet=True),
}
