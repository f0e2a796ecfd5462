"""Statistics, positions, branches, leases and versioned reads.

Invariants:
1. Our own commands (positions, branch log, leases, versioned reads) are unknown to connections
   that did not request them at HELLO.
2. Every answer about a partition is one consistent snapshot, taken in one step of the loop.

Source: docs/reference/wire/extensions.md; statistics as in the memcached binary protocol.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from struct import Struct, iter_unpack, unpack
from typing import Final

from millstream.errors import UnavailableError
from millstream.kv.core.bucket import Bucket
from millstream.kv.core.measuring import Piece
from millstream.kv.core.partition.partition import Partition, value_of
from millstream.kv.core.session.session import Command, KvSession
from millstream.kv.core.statistics import Histogram, as_text
from millstream.model.limits import UINT64_MAX, VALUE_BYTES_MAX
from millstream.model.partitions import PartitionState
from millstream.upr.core.source import Hold
from millstream.wire.frames import head_of
from millstream.wire.mcbp import Feature, Opcode, Packet, Status, response

__all__ = ["INTROSPECTION_COMMANDS", "PIECES_MAX", "STAT_ROWS_STEP"]

_POSITION: Final = Struct(">HBB4x8Q")
_ENTRY: Final = Struct(">QQ")
_BRANCH: Final = Struct(">QQQ")
_LEASE: Final = Struct(">BQH")
_LEASE_REPLY: Final = Struct(">QH")
_HELD: Final = Struct(">HQQQQ")
_VERSIONED: Final = Struct(">IQQQQIB")
_SEQNO: Final = Struct(">HQ")
_OBSERVED: Final = Struct(">BHQQQ")
_PIECE: Final = Struct(">HQQQ")
_LIMITS: Final = Struct(">QQ")
_OPEN, _RENEW, _RELEASE, _MEASURE = 1, 2, 3, 4
PIECES_MAX: Final = 16_384
"""Pieces in the reply to a LEASE request that measures, shared by its partitions."""
STAT_ROWS_STEP: Final = 512
"""Rows of STAT after which others have a turn of the loop; a partition's rows go together."""
_DURABLE_MARK: Final = UINT64_MAX - 1
"""In a lease instead of a seqno: the newest mark whose changes cannot be lost."""
_ALIVE: Final = (PartitionState.ACTIVE, PartitionState.REPLICA, PartitionState.PENDING)
_NAMES: Final = {state: state.name.lower() for state in PartitionState}


def _reply(packet: Packet, value: bytes = b"", extras: bytes = b"") -> bytes:
    return response(packet.opcode, Status.SUCCESS, packet.opaque, value=value, extras=extras)


def _bucket(session: KvSession, right: str = "read") -> Bucket | Status:
    if session.bucket is None:
        return Status.NO_BUCKET
    return session.bucket if session.may(right) or session.may("stream") else Status.EACCESS


def _own(command: Command) -> Command:
    """Hide an extension from connections that did not request it."""

    def hidden(session: KvSession, packet: Packet, now_ns: int) -> bytes | None:
        if Feature.MILLSTREAM not in session.features:
            return session.refusal(packet, Status.UNKNOWN_COMMAND)
        return command(session, packet, now_ns)

    return hidden


def _partition(session: KvSession, packet: Packet) -> Partition | Status:
    bucket = _bucket(session)
    if isinstance(bucket, Status):
        return bucket
    partition = bucket.partition(packet.vbucket)
    is_here = partition is not None and partition.state is not PartitionState.ABSENT
    return partition if partition is not None and is_here else Status.NOT_MY_VBUCKET


# -- positions and histories


def _positions(session: KvSession, packet: Packet, _: int) -> bytes | None:
    bucket = _bucket(session)
    if isinstance(bucket, Status):
        return session.refusal(packet, bucket)
    if len(packet.value) % 2:
        return session.refusal(packet, Status.EINVAL)
    named = unpack(f">{len(packet.value) // 2}H", packet.value)
    if len(named) > bucket.partition_count:
        return session.refusal(packet, Status.EINVAL)
    if any(partition_id >= bucket.partition_count for partition_id in named):
        return session.refusal(packet, Status.NOT_MY_VBUCKET)
    wanted = [bucket.partitions[p] for p in named] if named else bucket.partitions
    return _reply(packet, b"".join(map(_position, wanted)))


def _position(partition: Partition) -> bytes:
    newest, high = partition.failover_log[0], partition.high_seqno
    durable = partition.durable_seqno
    end = high if partition.replica is None else partition.replica.range_end
    return _POSITION.pack(
        partition.partition_id, partition.state, partition.unserved == "all",
        newest.uuid, newest.branch,
        high, high, end, partition.persisted_seqno, durable, partition.purge_seqno,
    )  # fmt: skip


def _branch_log(session: KvSession, packet: Packet, _: int) -> bytes | None:
    partition = _partition(session, packet)
    if isinstance(partition, Status):
        return session.refusal(packet, partition)
    return _reply(packet, b"".join(_BRANCH.pack(*entry) for entry in partition.failover_log))


def _failover_log(session: KvSession, packet: Packet, _: int) -> bytes | None:
    partition = _partition(session, packet)
    if isinstance(partition, Status):
        return session.refusal(packet, partition)
    return _reply(packet, b"".join(_ENTRY.pack(*entry[:2]) for entry in partition.failover_log))


def _all_seqnos(session: KvSession, packet: Packet, _: int) -> bytes | None:
    bucket = _bucket(session)
    if isinstance(bucket, Status):
        return session.refusal(packet, bucket)
    if len(packet.extras) not in (0, 4, 8):
        return session.refusal(packet, Status.EINVAL)
    state = int.from_bytes(packet.extras[:4], "big")
    if any(packet.extras[4:]):  # the default collection's id is 0
        return session.refusal(packet, Status.UNKNOWN_COLLECTION)
    if state > PartitionState.DEAD:
        return session.refusal(packet, Status.EINVAL)
    wanted = (state,) if state else _ALIVE
    if PartitionState.ACTIVE in wanted and any(one.unserved == "all" for one in bucket.partitions):
        return session.refusal(packet, Status.ETMPFAIL)
    return _reply(
        packet,
        b"".join(
            _SEQNO.pack(partition.partition_id, partition.high_seqno)
            for partition in bucket.partitions
            if partition.state in wanted
        ),
    )


def _observe_seqno(session: KvSession, packet: Packet, _: int) -> bytes | None:
    partition = _partition(session, packet)
    if isinstance(partition, Status):
        return session.refusal(packet, partition)
    if len(packet.value) != 8:
        return session.refusal(packet, Status.EINVAL)
    asked = int.from_bytes(packet.value, "big")
    newest = partition.failover_log[0]
    form, more = 0, b""
    if asked != newest.uuid:
        upper = next(
            (newer.seqno for newer, older in _neighbours(partition) if older.uuid == asked), None
        )
        if upper is None:
            return session.refusal(packet, Status.KEY_ENOENT)
        form, more = 1, _ENTRY.pack(asked, upper)
    value = _OBSERVED.pack(
        form, partition.partition_id, newest.uuid, partition.persisted_seqno, partition.high_seqno
    )
    return _reply(packet, value + more)


def _neighbours(partition: Partition) -> Iterable[tuple]:  # type: ignore[type-arg]
    return zip(partition.failover_log, partition.failover_log[1:], strict=False)


# -- leases and versioned reads


def _lease(session: KvSession, packet: Packet, _: int) -> bytes | None:
    bucket = _bucket(session)
    if isinstance(bucket, Status):
        return session.refusal(packet, bucket)
    if len(packet.extras) != _LEASE.size:
        return session.refusal(packet, Status.EINVAL)
    op, lease_id, seconds = _LEASE.unpack(packet.extras)
    begin = _LIMITS.size if op == _MEASURE else 0
    if len(packet.value) < begin or (len(packet.value) - begin) % _SEQNO.size:
        return session.refusal(packet, Status.EINVAL)
    named = list(iter_unpack(">HQ", packet.value[begin:]))
    if len(named) > bucket.partition_count:
        return session.refusal(packet, Status.EINVAL)
    if any(partition_id >= bucket.partition_count for partition_id, _ in named):
        return session.refusal(packet, Status.NOT_MY_VBUCKET)
    if op == _RELEASE:
        bucket.leases.release(lease_id, [partition_id for partition_id, _ in named])
        return _reply(packet, extras=_LEASE_REPLY.pack(lease_id, 0))
    if op == _OPEN and lease_id == 0 and named:
        return _open_lease(session, packet, bucket, named, seconds)
    if op == _RENEW:
        renewed = bucket.leases.renew(lease_id, seconds, [p for p, _ in named])
        if renewed is None:
            return session.refusal(packet, Status.LEASE_LOST)
        return _leased(packet, bucket, lease_id, *renewed)
    if op == _MEASURE and named:
        _measure(session, packet, bucket, lease_id, named)
        return None
    return session.refusal(packet, Status.EINVAL)


def _measure(
    session: KvSession,
    packet: Packet,
    bucket: Bucket,
    lease_id: int,
    named: list[tuple[int, int]],
) -> None:
    """Answer where what a lease shows reaches the limits of the request."""
    rows_max, bytes_max = (max(1, limit) for limit in _LIMITS.unpack_from(packet.value))
    pieces_max = max(1, PIECES_MAX // len(named))
    holds = bucket.leases.holds(lease_id)
    asked = [(bucket.partitions[p], holds[p], at) for p, at in dict(named).items() if p in holds]

    def answered(found: Mapping[int, Sequence[Piece]] | Status) -> bytes:
        if isinstance(found, Status):
            return session.refusal(packet, found)
        items = (_PIECE.pack(p, *piece) for p, pieces in found.items() for piece in pieces)
        return _reply(packet, b"".join(items), _LEASE_REPLY.pack(lease_id, 0))

    session.wait_for_reply(
        lambda done: session.host.measure(
            session, asked, (rows_max, bytes_max, pieces_max), lambda found: done(answered(found))
        )
    )


def _open_lease(
    session: KvSession,
    packet: Packet,
    bucket: Bucket,
    named: list[tuple[int, int]],
    seconds: int,
) -> bytes:
    wanted = [(p, _lease_at(bucket, p, at)) for p, at in named]
    wanted = [(p, at) for p, at in wanted if at != 0 or (p, 0) in named]
    if not wanted:
        return _reply(packet, extras=_LEASE_REPLY.pack(0, 0))
    try:
        opened = bucket.leases.open(wanted, seconds)
    except UnavailableError:
        return session.refusal(packet, Status.ETMPFAIL)
    if opened is None:
        return session.refusal(packet, Status.LEASE_LOST)
    lease_id, granted, holds = opened
    return _leased(packet, bucket, lease_id, granted, holds)


def _lease_at(bucket: Bucket, partition_id: int, at: int) -> int | None:
    """Return the seqno to hold, None for the present high; 0 if no mark is durable."""
    if at == _DURABLE_MARK:
        return bucket.partitions[partition_id].durable_mark()
    return None if at == UINT64_MAX else at


def _leased(
    packet: Packet, bucket: Bucket, lease_id: int, granted: int, holds: dict[int, Hold]
) -> bytes:
    value = bytearray()
    for partition_id, hold in holds.items():
        partition = bucket.partitions[partition_id]
        newest = partition.failover_log[0]
        value += _HELD.pack(
            partition_id, hold.at, newest.uuid, newest.branch, partition.purge_seqno
        )
    return _reply(packet, bytes(value), _LEASE_REPLY.pack(lease_id, granted))


def _get_versioned(session: KvSession, packet: Packet, now_ns: int) -> bytes | None:
    partition = session.partition_of(packet)
    if isinstance(partition, Status):
        return session.refusal(packet, partition)
    before = partition.high_seqno
    partition.live(packet.key, now_ns)
    session.has_changes |= partition.high_seqno != before
    frame = partition.newest(packet.key)
    if frame is None:
        return session.refusal(packet, Status.KEY_ENOENT)
    change, newest = head_of(frame), partition.failover_log[0]
    extras = _VERSIONED.pack(
        change.flags, newest.uuid, newest.branch, change.seqno, change.rev,
        change.expiry, change.is_deleted,
    )  # fmt: skip
    return response(
        packet.opcode, Status.SUCCESS, packet.opaque, cas=change.cas,
        datatype=change.datatype & session.datatype_mask, extras=extras,
        value=b"" if change.is_deleted else value_of(frame),
    )  # fmt: skip


# -- statistics


def _stat(session: KvSession, packet: Packet, _: int) -> bytes | None:
    words = packet.key.decode(errors="replace").split()
    group, arguments = (words[0], words[1:]) if words else ("", [])
    if group == "":
        items: Iterable[tuple[str, str]] = session.host.statistics()
        if session.bucket is not None and session.may("read"):
            items = [*items, *as_text(session.bucket.published.read())]
    elif group in _PLAIN and session.hashes_keys:
        bucket = _bucket(session)
        if isinstance(bucket, Status):
            return session.refusal(packet, bucket)
        items = _PLAIN[group](bucket)
    elif group in _GROUPS:
        bucket = _bucket(session)
        if isinstance(bucket, Status):
            return session.refusal(packet, bucket)
        partitions = bucket.partitions
        if arguments:
            if not arguments[0].isdigit() or int(arguments[0]) >= len(partitions):
                return session.refusal(packet, Status.NOT_MY_VBUCKET)
            partitions = [partitions[int(arguments[0])]]
        _tell(session, packet, (list(_GROUPS[group](bucket, one)) for one in partitions))
        return None
    else:
        bucket = _bucket(session)
        if isinstance(bucket, Status):
            return session.refusal(packet, bucket)
        if group == "dcp-vbtakeover":
            found = _take_over_stats(bucket, arguments)
        else:
            found = _bucket_stats(bucket, group)
        if found is None:
            is_about_one = group == "dcp-vbtakeover"
            status = Status.NOT_MY_VBUCKET if is_about_one else Status.KEY_ENOENT
            return session.refusal(packet, status)
        items = found
    return _rows(packet, [*items, ("", "")])


def _rows(packet: Packet, items: Iterable[tuple[str, str]]) -> bytes:
    return b"".join(
        response(packet.opcode, 0, packet.opaque, key=name.encode(), value=text.encode())
        for name, text in items
    )


def _tell(session: KvSession, packet: Packet, groups: Iterator[list[tuple[str, str]]]) -> None:
    """Reply with the rows of some partitions, and with the rest once others have had a turn."""

    def go_on() -> None:
        session.is_waiting = False
        _tell(session, packet, groups)

    items: list[tuple[str, str]] = []
    for group in groups:
        items += group
        if len(items) >= STAT_ROWS_STEP:
            session.emit(_rows(packet, items))
            session.is_waiting = True
            session.host.later(session, 0.0, go_on)
            return
    session.emit(_rows(packet, [*items, ("", "")]))


def _bucket_stats(bucket: Bucket, group: str) -> Iterable[tuple[str, str]] | None:
    """Return the items of a group about the whole bucket; None if there is none."""
    if group == "dcp":
        return [item for stream in bucket.streams.by_name.values() for item in stream.statistics()]
    if group == "timings":
        every = bucket.published.read()
        histograms = {n: value for n, value in every.items() if isinstance(value, Histogram)}
        return as_text(histograms, with_classes=True)
    return as_text(bucket.published.read(group)) if group in bucket.published else None


def _take_over_stats(bucket: Bucket, arguments: list[str]) -> Iterable[tuple[str, str]] | None:
    """Return how much a take-over stream has still to send; None if there is no partition.

    Counted in seqnos, and never too low. Without a stream it is all that a new one would send.
    """
    number = arguments[0] if arguments else ""
    if not number.isdigit() or int(number) >= bucket.partition_count:
        return None
    partition = bucket.partitions[int(number)]
    stream = bucket.streams.by_name.get(arguments[1]) if len(arguments) > 1 else None
    progress = stream.progress(partition.partition_id) if stream is not None else None
    status, sent = progress or ("does_not_exist", 0)
    floor = partition.memory_floor
    in_memory = max(0, partition.high_seqno - max(sent, floor))
    in_log = max(0, min(floor, partition.high_seqno) - sent)
    return [
        ("status", status),
        ("estimate", str(in_memory + in_log)),
        ("chk_items", str(in_memory)),
        ("vb_items", str(len(partition.table))),
        ("on_disk_deletes", "0"),  # they are not counted separately
        ("backfillRemaining", str(in_log)),
    ]


def _seqno_stats(_: Bucket, partition: Partition) -> Iterator[tuple[str, str]]:
    name = f"vb_{partition.partition_id}"
    yield f"{name}:high_seqno", str(partition.high_seqno)
    yield f"{name}:uuid", str(partition.failover_log[0].uuid)
    yield f"{name}:purge_seqno", str(partition.purge_seqno)
    yield f"{name}:last_persisted_seqno", str(partition.persisted_seqno)


def _failover_stats(_: Bucket, partition: Partition) -> Iterator[tuple[str, str]]:
    name = f"vb_{partition.partition_id}"
    yield f"{name}:num_entries", str(len(partition.failover_log))
    for index, entry in enumerate(partition.failover_log):
        yield f"{name}:{index}:id", str(entry.uuid)
        yield f"{name}:{index}:seq", str(entry.seqno)


def _state_stats(_: Bucket, partition: Partition) -> Iterator[tuple[str, str]]:
    yield f"vb_{partition.partition_id}", _NAMES[partition.state]


def _detail_stats(bucket: Bucket, partition: Partition) -> Iterator[tuple[str, str]]:
    name = f"vb_{partition.partition_id}"
    yield name, _NAMES[partition.state]
    yield f"{name}:entries_in_memory", str(len(partition.table))
    yield f"{name}:queue_bytes", str(partition.queue.bytes_held)
    yield f"{name}:retained_bytes", str(partition.queue.holds.bytes_kept)
    yield from _seqno_stats(bucket, partition)
    if bucket.map is not None:
        row = bucket.map.rows[partition.partition_id]
        yield f"{name}:places", ",".join(place or "-" for place in row)


def _settings_stats(bucket: Bucket) -> Iterator[tuple[str, str]]:
    yield "maxbytes", str(bucket.partitions[0].residents.memory.quota_bytes)
    yield "item_size_max", str(VALUE_BYTES_MAX)
    yield "evictions", "off"  # evicted documents are read back from the log
    yield "cas_enabled", "yes"
    yield "flush_enabled", "yes"
    yield "binding_protocol", "binary"


def _slab_stats(_: Bucket) -> Iterator[tuple[str, str]]:
    """Return no items: documents are objects of the process, not in slabs."""
    yield "active_slabs", "0"


def _item_stats(bucket: Bucket) -> Iterator[tuple[str, str]]:
    """Return all documents in memory, tombstones included, as one class."""
    yield "items:1:number", str(sum(len(one.table) for one in bucket.partitions))


_PLAIN: Final = {"settings": _settings_stats, "slabs": _slab_stats, "items": _item_stats}
"""Statistics groups of plain memcached, on its port."""
_GROUPS: Final = {
    "vbucket": _state_stats,
    "vbucket-details": _detail_stats,
    "vbucket-seqno": _seqno_stats,
    "failovers": _failover_stats,
}

INTROSPECTION_COMMANDS: Final[dict[int, Command]] = {
    Opcode.POSITIONS: _own(_positions),
    Opcode.BRANCH_LOG: _own(_branch_log),
    Opcode.LEASE: _own(_lease),
    Opcode.GET_VERSIONED: _own(_get_versioned),
    Opcode.GET_FAILOVER_LOG: _failover_log,
    Opcode.DCP_GET_FAILOVER_LOG: _failover_log,
    Opcode.GET_ALL_VB_SEQNOS: _all_seqnos,
    Opcode.OBSERVE_SEQNO: _observe_seqno,
    Opcode.STAT: _stat,
}
