"""Changes of documents that have a sidecar: revision trees, and the bodies of losing leaves.

The frame of such a document is its winning revision, as any kv client reads it; the sidecar has
the rest. A write over HTTP provides both (`write_document`). A kv write, a deletion or an
expiration knows no revisions: a write extends the winner and leaves the other leaves alone, and
the other two delete every leaf.

Invariants:
1. A change gives the document that it replaces to the queue before its entry has the new side:
   readers that hold an older state find the matching side.
2. Every change of such a document has a sidecar again. Its lineage continues as any other.
3. A change that supersedes a purge before the log has it, is marked as that purge.
4. A change that keeps the winner's value (a losing leaf was added or removed) keeps flags, expiry
   and datatype.

Elsewhere: other changes (`kv.core.partition.partition`), the content of a sidecar
(`documents.stored`), which documents are written this way (`kv.core.revisions.revision_store`).
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Final

from millstream.documents.stored import by_kv
from millstream.documents.updating import keep_purged
from millstream.kv.core.partition.changing import ChangingPartition
from millstream.kv.core.queue.entry import Entry
from millstream.model.lineage import born, decode, with_run
from millstream.model.partitions import DESIGN_PREFIX
from millstream.model.sides import lineage_of, side_of
from millstream.wire.frames import deletion, is_put, mutation, value_bytes
from millstream.wire.mcbp import Datatype, Status

__all__ = ["bury", "put_over", "write_document"]

_cas_seqno_rev: Final = Struct(">16xQQQ").unpack_from
_flags_expiry: Final = Struct(">40xII").unpack_from
_DATATYPE_AT: Final = 5
_SECOND_NS: Final = 1_000_000_000


def put_over(
    partition: ChangingPartition,
    entry: Entry,
    value: bytes,
    flags: int,
    expiry: int,
    datatype: int,
    now_ns: int,
) -> bytes:
    """Set a document that has a sidecar: the value becomes the successor of its winner."""
    _, seqno, rev, cas = _next(partition, entry, now_ns)
    frame = mutation(
        partition.partition_id, entry.key, value, seqno, rev, cas, flags, expiry, datatype
    )
    _change(partition, entry, frame, _side_by_kv(partition, entry, seqno, rev, is_deleted=False))
    if expiry:
        partition.expiries.add(entry.key, expiry)
    return frame


def bury(
    partition: ChangingPartition,
    entry: Entry,
    time_s: int,
    now_ns: int,
    encode: Callable[[int, bytes, int, int, int, int], bytes],
) -> bytes:
    """Delete a document that has a sidecar, with all its leaves; `encode` makes the frame."""
    _, seqno, rev, cas = _next(partition, entry, now_ns)
    frame = encode(partition.partition_id, entry.key, seqno, rev, cas, time_s)
    _change(partition, entry, frame, _side_by_kv(partition, entry, seqno, rev, is_deleted=True))
    return frame


def write_document(
    partition: ChangingPartition, key: bytes, value: bytes | None, sidecar: bytes, now_ns: int
) -> bytes | Status:
    """Set a document to the content of its winning revision, and its sidecar; return the frame.

    A document that is due must be turned into an expiration before the sidecar is computed.

    Args:
        partition: that owns the key.
        key: of the document.
        value: None: every leaf is deleted.
        sidecar: of the new document, not empty.
        now_ns: Unix time.

    Returns:
        LOCKED if a kv client has locked it.
    """
    if partition.locks and partition.locks.cas_of(key, now_ns):
        return Status.LOCKED
    entry = partition.entry(key)
    if entry is None:
        branch, seqno = partition.failover_log[0].branch, partition.queue.high_seqno + 1
        entry = partition.residents.add(key, b"", born(branch, seqno))
        if key.startswith(DESIGN_PREFIX):
            partition.design_keys.add(key)
    _, seqno, rev, cas = _next(partition, entry, now_ns)
    if value is None:
        frame = deletion(partition.partition_id, key, seqno, rev, cas, now_ns // _SECOND_NS)
    else:
        flags, expiry, datatype = _kept_fields(entry.frame, value)
        frame = mutation(
            partition.partition_id, key, value, seqno, rev, cas, flags, expiry, datatype
        )
    partition.residents.expect_sidecars()
    _change(partition, entry, frame, side_of(_lineage(partition, entry, rev), sidecar))
    return frame


def _next(partition: ChangingPartition, entry: Entry, now_ns: int) -> tuple[int, int, int, int]:
    """Return the seqno of an entry's change, 0 for none; seqno, rev and CAS of the next one."""
    seqno = partition.queue.high_seqno + 1
    if not entry.frame:
        return 0, seqno, 1, partition.next_cas(now_ns)
    old_cas, old_seqno, old_rev = _cas_seqno_rev(entry.frame)
    return old_seqno, seqno, old_rev + 1, partition.next_cas(now_ns, old_cas)


def _change(partition: ChangingPartition, entry: Entry, frame: bytes, side: bytes) -> None:
    old = entry.frame
    old_seqno: int = _cas_seqno_rev(old)[1] if old else 0
    side = keep_purged(entry.side, side, is_stored=old_seqno <= partition.persisted_seqno)
    partition.queue.append(entry, frame, old_seqno, old)
    partition.residents.replace(entry, frame, side)


def _lineage(partition: ChangingPartition, entry: Entry, rev: int) -> bytes:
    """Return the lineage of the next change, with the given rev."""
    lineage, branch = lineage_of(entry.side), partition.failover_log[0].branch
    if decode(lineage).runs[-1][0] == branch:
        return lineage
    return with_run(lineage, branch, rev)


def _side_by_kv(
    partition: ChangingPartition, entry: Entry, seqno: int, rev: int, *, is_deleted: bool
) -> bytes:
    sidecar = by_kv(
        partition.bucket_uuid, entry.key, entry.side, is_deleted,
        partition.failover_log[0].branch, seqno, rev,
    )  # fmt: skip
    return side_of(_lineage(partition, entry, rev), sidecar)


def _kept_fields(old: bytes, value: bytes) -> tuple[int, int, int]:
    """Return flags, expiry and datatype of a document's frame."""
    if old and is_put(old) and value_bytes(old) == len(value) and old.endswith(value):
        flags, expiry = _flags_expiry(old)
        return flags, expiry, old[_DATATYPE_AT]
    return 0, 0, Datatype.JSON
