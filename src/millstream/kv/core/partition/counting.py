"""Counters: documents whose value is a number as decimal text, INCR and DECR.

A counter's change is stored in a map of the queue, apart from the documents: however often it
changes, the queue has it once. A document with a sidecar that is counted stays among the
documents.

Elsewhere: the other changes (`kv.core.partition.partition`), the commands
(`kv.core.session.document_commands`).
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from millstream.kv.core.partition.changing import ChangingPartition
from millstream.kv.core.partition.expiry import absolute_expiry
from millstream.kv.core.partition.revision_changes import put_over
from millstream.kv.core.queue.entry import Entry, value_of
from millstream.model.lineage import born
from millstream.model.sides import has_sidecar
from millstream.wire.frames import mutation
from millstream.wire.mcbp import Status

__all__ = ["count"]

_FLAGS_EXPIRY: Final = Struct(">40xII")
_COUNTER_MODULUS: Final = 1 << 64
_DIGITS_MAX: Final = 20
_NO_CREATE: Final = 0xFFFFFFFF


def count(
    partition: ChangingPartition,
    key: bytes,
    delta: int,
    initial: int,
    expiry: int,
    cas: int,
    now_ns: int,
) -> tuple[bytes, int] | Status:
    """Add `delta` to a counter; return the frame and the new value.

    A sum wraps at 2**64; a negative delta stops at 0. On a miss the counter is created with
    `initial`, unless `expiry` is 0xffffffff (KEY_ENOENT). DELTA_BADVAL: not a number.
    """
    frame = partition.live(key, now_ns)
    if frame is None:
        if expiry == _NO_CREATE:
            return Status.KEY_ENOENT
        if cas:
            return Status.KEY_ENOENT
        number, flags, expiry = initial, 0, absolute_expiry(expiry, now_ns)
    else:
        text = value_of(frame)
        if not text.isdigit() or len(text) > _DIGITS_MAX or int(text) >= _COUNTER_MODULUS:
            return Status.DELTA_BADVAL
        number = int(text) + delta
        number = number % _COUNTER_MODULUS if delta >= 0 else max(0, number)
        flags, expiry = _FLAGS_EXPIRY.unpack_from(frame)
    if cas or partition.locks:
        status = partition.check_cas(key, cas, now_ns)
        if status is not None:
            return status
    return _store(partition, key, b"%d" % number, flags, expiry, now_ns), number


def _store(
    partition: ChangingPartition, key: bytes, value: bytes, flags: int, expiry: int, now_ns: int
) -> bytes:
    """As `Partition.store`, for the counters of the queue."""
    entry = partition.entry(key)
    if entry is None:
        branch, seqno = partition.failover_log[0].branch, partition.queue.high_seqno + 1
        entry = partition.residents.add(key, b"", born(branch, seqno))
    if has_sidecar(entry.side):
        frame = put_over(partition, entry, value, flags, expiry, 0, now_ns)
    else:
        frame = _count_on(partition, entry, value, flags, expiry, now_ns)
    if partition.locks:
        partition.drop_lock(key)
    return frame


def _count_on(
    partition: ChangingPartition, entry: Entry, value: bytes, flags: int, expiry: int, now_ns: int
) -> bytes:
    queue, old = partition.queue, entry.frame
    old_seqno, rev, cas = (
        partition.succeed(entry, now_ns) if old else (0, 1, partition.next_cas(now_ns))
    )
    frame = mutation(
        partition.partition_id, entry.key, value, queue.high_seqno + 1, rev, cas, flags, expiry, 0
    )
    partition.residents.replace(entry, frame, entry.side)
    queue.append_counter(entry, frame, old_seqno, old)
    if expiry:
        partition.expiries.add(entry.key, expiry)
    return frame
