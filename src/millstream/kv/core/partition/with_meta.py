"""Stores documents and deletions with given metadata: CAS, rev, expiry and lineage.

    SET_WITH_META, ADD_WITH_META, DEL_WITH_META, and their quiet twins
    extras  flags u32, expiry u32 (of a deletion its time), rev u64, CAS u64,
            then options u32 if they have 28 or 30 bytes,
            then the length of extended metadata u16 if they have 26 or 30
    value   the document's, then, with option 0x80000000, which is ours, a sidecar and its length
            u32, then the extended metadata: version u8 (1), {id u8, length u16, data}*

Invariants:
1. It requires the rights to write and to stream: a user may store documents with metadata only if
   it may read them with metadata.
2. Of two versions of a key the one with the larger (rev, CAS, expiry, flags) stays, unless
   conflict resolution is off. A change that loses is refused and changes nothing.
3. The next change is this node's own: it has a CAS larger than that of the partition's newest
   change, the next rev, and a run of the lineage if another history than the present one wrote
   last.
4. No revision id names two bodies. A forced write over the same or a higher rev counts as a write
   of this node: it gets the next rev and the existing lineage. Only an identical version keeps its
   rev. A version that wins with the same rev is born anew: its rev stays as given, since otherwise
   the final result would depend on the order of arrival. Where deletions were forgotten, the same
   holds for a write that finds nothing, or a key of another birth: the key may have had later revs
   of that lineage here.
5. A document with a sidecar still has one afterwards: the given one, else the one that a kv write
   makes. An unreadable sidecar is not stored, nor one that belongs to no such value. The value is
   judged when it is read, like any other one that kv wrote, whatever a given sidecar says of it.

Elsewhere: the other changes (`kv.core.partition.partition`), their commands
(`kv.core.session.document_commands`). The protocol is that of the released servers; the section
with the lineage is ours.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from millstream.documents.stored import blobs_of, by_kv, checked_sidecar
from millstream.documents.updating import keep_purged
from millstream.kv.core.partition.partition import Partition
from millstream.model.lineage import born, decode, is_lineage, with_run
from millstream.model.sides import has_sidecar, lineage_of, side_of, sidecar_of
from millstream.wire.frames import deletion, expiration, head_of, mutation
from millstream.wire.mcbp import Packet, Status

__all__ = ["EXTRAS_BYTES", "GivenChange", "given_change", "store_given"]

EXTRAS_BYTES: Final = (24, 26, 28, 30)
NUMBER_MAX: Final = 2**63 - 1
"""Largest CAS and rev accepted, since others follow them."""
LINEAGE_BYTES_MAX: Final = 4096
LINEAGE_SECTION: Final = 0x80
_FIELDS: Final = Struct(">IIQQ")
_SECTION: Final = Struct(">BH")
_VERSION: Final = 1
_FORCE: Final = 0x01 | 0x08
_ACCEPT: Final = 0x02
_NEW_CAS: Final = 0x04
_EXPIRED: Final = 0x10
_SIDECAR: Final = 0x80000000
_OPTIONS: Final = _FORCE | _ACCEPT | _NEW_CAS | _EXPIRED | _SIDECAR
_SIZE: Final = Struct(">I")
_SECOND_NS: Final = 1_000_000_000


class GivenChange(NamedTuple):
    """A change with its given metadata; `expiry` of a deletion is its time, 0 for now.

    `options` are those of the request; `lineage` is None where none came, `sidecar` empty.
    """

    flags: int
    expiry: int
    rev: int
    cas: int
    options: int
    value: bytes
    lineage: bytes | None
    sidecar: bytes


def given_change(packet: Packet, *, knows_lineage: bool) -> GivenChange | Status:
    """Parse a request whose extras have one of the lengths `EXTRAS_BYTES`.

    Args:
        packet: the request.
        knows_lineage: the connection has our extensions.
    """
    extras, value = packet.extras, packet.value
    flags, expiry, rev, cas = _FIELDS.unpack_from(extras)
    rest = extras[_FIELDS.size :]
    options = int.from_bytes(rest[:4], "big") if len(rest) >= 4 else 0
    meta_bytes = int.from_bytes(rest[-2:], "big") if len(rest) in (2, 6) else 0
    is_forced, has_new_cas = options & _FORCE, options & _NEW_CAS
    if (
        options & ~_OPTIONS
        or (has_new_cas and not is_forced)
        or meta_bytes > len(value)
        or not 1 <= rev <= NUMBER_MAX
        or not (1 <= cas <= NUMBER_MAX or has_new_cas)
    ):
        return Status.EINVAL
    lineage = _lineage_in(value[len(value) - meta_bytes :]) if meta_bytes else b""
    if lineage is None or (lineage and not knows_lineage):
        return Status.EINVAL
    value, sidecar = value[: len(value) - meta_bytes], b""
    if options & _SIDECAR:
        found = _sidecar_in(value) if knows_lineage else None
        if found is None:
            return Status.EINVAL
        value, sidecar = found
    return GivenChange(flags, expiry, rev, cas, options, value, lineage or None, sidecar)


def _sidecar_in(value: bytes) -> tuple[bytes, bytes] | None:
    """Split the sidecar off the end of a value; None: there is none."""
    end = len(value) - _SIZE.size
    begin = end - _SIZE.unpack_from(value, end)[0] if end >= 0 else -1
    return (value[:begin], value[begin:end]) if 0 <= begin < end else None


def _lineage_in(meta: bytes) -> bytes | None:
    """Return the lineage in extended metadata, empty if there is none; None: it is malformed.

    Sections of other kinds are ignored.
    """
    if meta[0] != _VERSION:
        return None
    found, at = b"", 1
    while at < len(meta):
        if at + _SECTION.size > len(meta):
            return None
        kind, size = _SECTION.unpack_from(meta, at)
        data = meta[at + _SECTION.size : at + _SECTION.size + size]
        if len(data) != size:
            return None
        if kind == LINEAGE_SECTION:
            found = data
            if not is_lineage(found) or len(found) > LINEAGE_BYTES_MAX:
                return None
        at += _SECTION.size + size
    return found


def store_given(
    partition: Partition,
    packet: Packet,
    change: GivenChange,
    now_ns: int,
    *,
    is_deletion: bool = False,
    is_insert: bool = False,
) -> bytes | Status:
    """Store a change under the key of a request; return its frame.

    KEY_EEXISTS: invariant 2, the given CAS is not the document's, or, for an insert, there is a
    document. KEY_ENOENT: a CAS is given and there is no document. LOCKED: it is locked. EINVAL:
    the sidecar is invalid.
    """
    key = packet.key
    sidecar = change.sidecar and checked_sidecar(change.sidecar, is_deletion=is_deletion)
    if sidecar is None:
        return Status.EINVAL
    change = change._replace(sidecar=sidecar)
    live = partition.live(key, now_ns)
    if is_insert and live is not None:
        return Status.KEY_EEXISTS
    if packet.cas and live is None:
        return Status.KEY_ENOENT
    if partition.locks and partition.locks.cas_of(key, now_ns):
        return Status.LOCKED
    entry = partition.entry(key)
    old, old_side = (entry.frame, entry.side) if entry else (b"", b"")
    old_lineage = lineage_of(old_side)
    old_seqno = 0
    if old:
        former = head_of(old)
        old_seqno = former.seqno
        if packet.cas and packet.cas != former.cas:
            return Status.KEY_EEXISTS
        held = former.rev, former.cas, former.expiry, former.flags
        if not change.options & _FORCE and _rank(change, is_deletion=is_deletion) <= held:
            return Status.KEY_EEXISTS
    if change.options & _NEW_CAS:
        change = change._replace(cas=max(now_ns, partition.last_cas + 1))
    partition.last_cas = max(partition.last_cas, change.cas)
    seqno = partition.queue.high_seqno + 1

    def framed(seqno: int) -> bytes:
        return _frame(
            partition.partition_id, packet, change, seqno, now_ns, is_deletion=is_deletion
        )

    is_there = old and framed(old_seqno) == old
    if is_there:
        change = change._replace(
            lineage=old_lineage, sidecar=change.sidecar or sidecar_of(old_side)
        )
    else:
        former_rev = former.rev if old else 0
        change = _with_ids_of_its_own(partition, change, seqno, former_rev, old_lineage)
    frame = framed(seqno)
    lineage = _lineage_from_here(partition, change, seqno, old_lineage)
    sidecar = change.sidecar or _sidecar_by_kv(
        partition, key, old_side, seqno, change.rev, is_deletion=is_deletion
    )
    if sidecar:
        partition.residents.expect_sidecars()
        partition.blobs.missing(blobs_of(sidecar))  # those that are here stay
    is_stored = old_seqno <= partition.persisted_seqno
    side = keep_purged(old_side, side_of(lineage, sidecar), is_stored=is_stored)
    if entry is None:
        entry = partition.residents.add(key, b"", side)
    partition.queue.append(entry, frame, old_seqno, old)
    partition.residents.replace(entry, frame, side)  # the queue may owe the log the old
    if change.expiry and not is_deletion:
        partition.expiries.add(entry.key, change.expiry)
    return frame


def _sidecar_by_kv(
    partition: Partition, key: bytes, old_side: bytes, seqno: int, rev: int, *, is_deletion: bool
) -> bytes:
    """Return the next sidecar of a document that has one, when none is given."""
    if not has_sidecar(old_side):
        return b""
    branch = partition.failover_log[0].branch
    return by_kv(partition.bucket_uuid, key, old_side, is_deletion, branch, seqno, rev)


def _with_ids_of_its_own(
    partition: Partition, change: GivenChange, seqno: int, former_rev: int, former: bytes
) -> GivenChange:
    """Return the change as invariant 4 requires it.

    Args:
        partition: of the key.
        change: as it came.
        seqno: of the change.
        former_rev: of the existing version, 0 for a key that is unknown.
        former: lineage of the existing version.
    """
    if former_rev >= change.rev:
        if change.options & _FORCE:
            return change._replace(rev=former_rev + 1, lineage=None)
    elif not partition.purge_seqno or not change.lineage or _is_same_birth(change.lineage, former):
        return change
    return change._replace(lineage=born(partition.failover_log[0].branch, seqno))


def _is_same_birth(lineage: bytes, other: bytes) -> bool:
    return bool(other) and decode(lineage)[:2] == decode(other)[:2]


def _rank(change: GivenChange, *, is_deletion: bool) -> tuple[int, int, int, int]:
    flags = 0 if is_deletion else change.flags
    return change.rev, change.cas, change.expiry, flags


def _frame(
    partition_id: int,
    packet: Packet,
    change: GivenChange,
    seqno: int,
    now_ns: int,
    *,
    is_deletion: bool,
) -> bytes:
    if not is_deletion:
        return mutation(
            partition_id, packet.key, change.value, seqno, change.rev, change.cas, change.flags,
            change.expiry, packet.datatype,
        )  # fmt: skip
    encode = expiration if change.options & _EXPIRED else deletion
    time_s = change.expiry or now_ns // _SECOND_NS
    return encode(partition_id, packet.key, seqno, change.rev, change.cas, time_s)


def _lineage_from_here(
    partition: Partition, change: GivenChange, seqno: int, former: bytes
) -> bytes:
    """Return the lineage to store: the given one, and the writer of the next generation.

    Later writes add a run only if they find a change of an older history; this one counts as one
    of the present history.
    """
    branch = partition.failover_log[0].branch
    lineage = change.lineage or former or born(branch, seqno)
    if decode(lineage).runs[-1][0] == branch:
        return lineage
    first = change.rev + 1 if change.lineage else change.rev
    return with_run(lineage, branch, first)
