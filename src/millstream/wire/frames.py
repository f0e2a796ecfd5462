"""Stream frames in the canonical profile, and the patches that turn them into other profiles.

A change is encoded once, when it is accepted; the same bytes object serves every stream, the log
and replicas. Canonical profile: opaque = partition id, datatype as stored, deletion with time
(21 bytes of extras), expiry opcode.

    mutation    head 24, by_seqno 8, rev_seqno 8, flags 4, expiry 4, lock time 4, nmeta 2, nru 1
    deletion    head 24, by_seqno 8, rev_seqno 8, delete time 4, zero 1
    expiration  head 24, by_seqno 8, rev_seqno 8, delete time 4

A *described* frame has the message in front that says what the log keeps beside it:

    DOC_META    head 24, by_seqno 8, lineage length 2, lineage, sidecar

Invariants:
1. Key and value of a change are slices of its frame; CAS is in the header.
2. A frame is immutable; a patch makes a copy.
3. The seqno is in one place, described or not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from struct import Struct
from typing import Final, NamedTuple

from millstream.wire.mcbp import HEADER, HEADER_BYTES, REQUEST, Opcode, request

__all__ = [
    "Change",
    "change_of",
    "deletion",
    "describe_kept",
    "described",
    "described_all",
    "description_bytes",
    "expiration",
    "head_of",
    "is_put",
    "item_end",
    "iter_frames",
    "iter_items",
    "mutation",
    "pack_mutation",
    "seqno_of",
    "snapshot_marker",
    "snapshot_marker_2",
    "stream_end",
    "value_bytes",
    "value_in",
    "with_profile",
]

pack_mutation = Struct(">HHHHIIQQQII7x").pack
"""Head and extras of a put, for the one hot path: magic and opcode, key length, extras length and
datatype, partition, body, opaque, CAS, seqno, rev, flags, expiry."""
_DELETION: Final = Struct(">BBHBBHIIQQQIB")
_EXPIRATION: Final = Struct(">BBHBBHIIQQQI")
_EXPIRATION_EXTRAS: Final = 20
_MARKER: Final = Struct(">BBHBBHIIQQQI")
_MARKER_2: Final = Struct(">QQIQQ")
_MARKER_2_2: Final = Struct(">QQ")
_END: Final = Struct(">BBHBBHIIQI")
_SEQNO: Final = Struct(">Q")
_DESCRIPTION: Final = Struct(">HHHHIIQQH")
_DESCRIPTION_HEAD: Final = 0x806F
_DESCRIPTION_EXTRAS: Final = 8 << 8
_PARTITION_SEQNO: Final = Struct(">6xH16xQ")
_BODY: Final = Struct(">8xI")
_FIELDS: Final = Struct(">xBHBBHIIQQQ")
_FLAGS: Final = Struct(">II")
_TIME: Final = Struct(">I")


def mutation(
    partition_id: int,
    key: bytes,
    value: bytes,
    seqno: int,
    rev: int,
    cas: int,
    flags: int,
    expiry: int,
    datatype: int,
) -> bytes:
    """Return the canonical frame of a put."""
    key_bytes = len(key)
    head = pack_mutation(
        0x8057, key_bytes, 31 << 8 | datatype, partition_id, 31 + key_bytes + len(value),
        partition_id, cas, seqno, rev, flags, expiry,
    )  # fmt: skip
    return head + key + value


def deletion(
    partition_id: int, key: bytes, seqno: int, rev: int, cas: int, delete_time: int
) -> bytes:
    """Return the canonical frame of a delete; `delete_time` in Unix seconds."""
    size = len(key)
    return (
        _DELETION.pack(
            0x80, 0x58, size, 21, 0, partition_id, 21 + size,
            partition_id, cas, seqno, rev, delete_time, 0,
        )
        + key
    )  # fmt: skip


def expiration(
    partition_id: int, key: bytes, seqno: int, rev: int, cas: int, delete_time: int
) -> bytes:
    """Return the canonical frame of an expiration."""
    size = len(key)
    return (
        _EXPIRATION.pack(
            0x80, 0x59, size, 20, 0, partition_id, 20 + size,
            partition_id, cas, seqno, rev, delete_time,
        )
        + key
    )  # fmt: skip


def seqno_of(frame: bytes | memoryview) -> int:
    """Return the seqno of a change's frame."""
    seqno: int = _SEQNO.unpack_from(frame, HEADER_BYTES)[0]
    return seqno


class Change(NamedTuple):
    """A frame cut into its fields. `opcode` is DCP_MUTATION, DCP_DELETION or DCP_EXPIRATION."""

    opcode: int
    partition_id: int
    seqno: int
    rev: int
    cas: int
    flags: int
    expiry: int
    datatype: int
    key: bytes
    value: bytes

    @property
    def is_deleted(self) -> bool:
        """Whether the change is a deletion or an expiration."""
        return self.opcode != Opcode.DCP_MUTATION


def change_of(frame: bytes) -> Change:
    """Cut a whole frame of any profile; a deletion has its time as `expiry`, 0 if absent."""
    opcode, key_bytes, extras_bytes, datatype, partition_id, body, _, cas, seqno, rev = (
        _FIELDS.unpack_from(frame)
    )
    at = HEADER_BYTES + extras_bytes
    key = frame[at : at + key_bytes]
    if opcode == Opcode.DCP_MUTATION:
        flags, expiry = _FLAGS.unpack_from(frame, 40)
        value = frame[at + key_bytes : HEADER_BYTES + body]
        return Change(opcode, partition_id, seqno, rev, cas, flags, expiry, datatype, key, value)
    expiry = _TIME.unpack_from(frame, 40)[0] if extras_bytes >= _EXPIRATION_EXTRAS else 0
    return Change(opcode, partition_id, seqno, rev, cas, 0, expiry, datatype, key, b"")


def head_of(frame: bytes) -> Change:
    """Do what `change_of` does, but for the value, which is empty: a large one is not copied."""
    _, key_bytes, extras_bytes, _, _, _, _, _, _, _ = _FIELDS.unpack_from(frame)
    return change_of(frame[: HEADER_BYTES + extras_bytes + key_bytes])


def value_in(frame: bytes | memoryview) -> bytes:
    """Return the value of a change, a copy; empty of a deletion."""
    if frame[1] != Opcode.DCP_MUTATION:
        return b""
    _, key_bytes, extras_bytes, _, _, body, *_ = _FIELDS.unpack_from(frame)
    return bytes(frame[HEADER_BYTES + extras_bytes + key_bytes : HEADER_BYTES + body])


def value_bytes(frame: bytes) -> int:
    """Return the length of a put's value."""
    _, key_bytes, extras_bytes, _, _, body, *_ = _FIELDS.unpack_from(frame)
    size: int = body - extras_bytes - key_bytes
    return size


def snapshot_marker(
    partition_id: int, opaque: int, start_seqno: int, end_seqno: int, flags: int
) -> bytes:
    """Return a snapshot marker of version 1."""
    return _MARKER.pack(
        REQUEST, Opcode.DCP_SNAPSHOT_MARKER, 0, 20, 0, partition_id, 20, opaque, 0,
        start_seqno, end_seqno, flags,
    )  # fmt: skip


def snapshot_marker_2(
    partition_id: int,
    opaque: int,
    start_seqno: int,
    end_seqno: int,
    flags: int,
    purge_seqno: int | None = None,
) -> bytes:
    """Return a snapshot marker of version 2.0, or of 2.2, which has the purge seqno.

    There are no prepared writes: what would be said of them is 0, and everything is visible.
    """
    value = _MARKER_2.pack(start_seqno, end_seqno, flags, end_seqno, 0)
    if purge_seqno is not None:
        value += _MARKER_2_2.pack(purge_seqno, 0)
    return request(
        Opcode.DCP_SNAPSHOT_MARKER, vbucket=partition_id, opaque=opaque,
        extras=b"\0" if purge_seqno is None else b"\2", value=value,
    )  # fmt: skip


def stream_end(partition_id: int, opaque: int, reason: int) -> bytes:
    """Return the message that ends a stream."""
    return _END.pack(
        REQUEST, Opcode.DCP_STREAM_END, 0, 4, 0, partition_id, 4, opaque, 0, reason
    )  # fmt: skip


def described(frame: bytes, lineage: bytes, sidecar: bytes = b"") -> bytes:
    """Return a canonical frame with its DOC_META in front, opaque = partition id. Hot path."""
    partition_id, seqno = _PARTITION_SEQNO.unpack_from(frame)
    size = len(lineage) + len(sidecar)
    head = _DESCRIPTION.pack(
        _DESCRIPTION_HEAD, 0, _DESCRIPTION_EXTRAS, partition_id, 10 + size, partition_id, 0,
        seqno, len(lineage),
    )  # fmt: skip
    return b"".join((head, lineage, sidecar, frame))  # the one copy of a large frame


def described_all(frames: Sequence[bytes], lineages: Iterable[bytes]) -> list[bytes]:
    """Do what `described` does with many changes of one partition, without sidecars. Hot path."""
    found: list[bytes] = []
    add, sides = found.append, dict[int, tuple[bytes, bytes]]()
    for frame, lineage in zip(frames, lineages, strict=True):
        side = sides.get(len(lineage))
        if side is None:  # what is in front of the seqno, and between it and the lineage
            head = described(frame, lineage)[: _DESCRIPTION.size]
            side = sides[len(lineage)] = head[:HEADER_BYTES], head[-2:]
        add(b"".join((side[0], frame[HEADER_BYTES:32], side[1], lineage, frame)))
    return found


def describe_kept(kept: bytes | memoryview, lineage_bytes: int, sidecar_bytes: int) -> bytes:
    """Do what `described` does where lineage, sidecar and frame stand side by side. Hot path."""
    size = lineage_bytes + sidecar_bytes
    partition_id, seqno = _PARTITION_SEQNO.unpack_from(kept, size)
    head = _DESCRIPTION.pack(
        _DESCRIPTION_HEAD, 0, _DESCRIPTION_EXTRAS, partition_id, 10 + size, partition_id, 0,
        seqno, lineage_bytes,
    )  # fmt: skip
    return head + kept


def description_bytes(frame: bytes | memoryview) -> int:
    """Return the length of the DOC_META in front of a frame, 0 if it is not described."""
    if frame[1] != Opcode.DOC_META:
        return 0
    body: int = _BODY.unpack_from(frame)[0]
    return HEADER_BYTES + body


def is_put(frame: bytes | memoryview) -> bool:
    """Return whether a change, described or not, is neither a deletion nor an expiration."""
    return frame[description_bytes(frame) + 1] == Opcode.DCP_MUTATION


def iter_frames(data: bytes) -> Iterator[bytes]:
    """Yield the whole frames that stand back to back in `data`."""
    at, end = 0, len(data)
    while at < end:
        stop = at + HEADER_BYTES + HEADER.unpack_from(data, at)[6]
        yield data[at:stop]
        at = stop


def item_end(data: bytes, at: int) -> int:
    """Return where the message at an offset ends, behind a DOC_META also the change after it."""
    stop: int = at + HEADER_BYTES + HEADER.unpack_from(data, at)[6]
    return item_end(data, stop) if data[at + 1] == Opcode.DOC_META else stop


def iter_items(data: bytes) -> Iterator[bytes]:
    """Do what `iter_frames` does; the DOC_META of a change and the change come as one."""
    at, end = 0, len(data)
    while at < end:
        stop = item_end(data, at)
        yield data[at:stop]
        at = stop


def with_profile(
    frames: Iterable[bytes],
    *,
    opaque: int,
    keep_json: bool,
    delete_times: bool,
    expiry_opcode: bool,
    with_values: bool,
    keep_datatype: bool,
) -> list[bytes]:
    """Return copies of canonical frames as another kind of consumer asked for them."""
    return [
        _patched(frame, opaque, keep_json, delete_times, expiry_opcode, with_values, keep_datatype)
        for frame in frames
    ]


def _patched(
    frame: bytes,
    opaque: int,
    keep_json: bool,
    delete_times: bool,
    expiry_opcode: bool,
    with_values: bool,
    keep_datatype: bool,
) -> bytes:
    change = change_of(frame)
    datatype = change.datatype if keep_json else change.datatype & ~1
    if not change.is_deleted:
        value = change.value if with_values else b""
        if not with_values and not keep_datatype:
            datatype = 0
        key_bytes = len(change.key)
        head = HEADER.pack(
            REQUEST, Opcode.DCP_MUTATION, key_bytes, 31, datatype, change.partition_id,
            31 + key_bytes + len(value), opaque, change.cas,
        )  # fmt: skip
        return head + frame[HEADER_BYTES : HEADER_BYTES + 31] + change.key + value
    if change.opcode == Opcode.DCP_EXPIRATION and expiry_opcode:
        opcode, extras = Opcode.DCP_EXPIRATION, frame[24:44]
    elif delete_times:
        opcode, extras = Opcode.DCP_DELETION, frame[24:44] + b"\0"
    else:
        opcode, extras = Opcode.DCP_DELETION, frame[24:40] + b"\0\0"
    body = len(extras) + len(change.key)
    head = HEADER.pack(
        REQUEST, opcode, len(change.key), len(extras), 0, change.partition_id, body, opaque,
        change.cas,
    )  # fmt: skip
    return head + extras + change.key
