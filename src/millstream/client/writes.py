"""Writes of documents that differ in kind, and the frames that make them: for sinks and restores.

Invariants:
1. A frame is built once, with its opaque; value, flags and datatype are as given.
2. The reply to a write is told as one of: where it is stored now, or the error.

Elsewhere: sending and replies (`client.kv`, `client.pipeline`); writes of one kind
(`client.documents`).
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any, Final, NamedTuple, TypeVar

from millstream.client.documents import FLAGS_JSON, change_packer, key_bytes_of
from millstream.errors import MillstreamError
from millstream.model.limits import FRAME_BYTES_MAX
from millstream.model.partitions import partition_of
from millstream.wire.mcbp import HEADER, REQUEST, Datatype, Opcode, Packet, Status

__all__ = [
    "WRITE_BYTES_MAX",
    "BulkResult",
    "Failure",
    "GivenWrite",
    "OneWrite",
    "Write",
    "each_encoder",
    "is_done",
    "is_one_request",
    "live_cas",
    "meta_encoder",
]

WRITE_BYTES_MAX: Final = FRAME_BYTES_MAX - 16 * 1024
"""Value and sidecar of one write; a key, a lineage and numbers go with them."""
_GIVEN: Final = Struct(">IIQQIH")
"""Flags, expiry, rev, CAS, options, length of the extended metadata."""
_NO_CONFLICTS: Final = 0x08
_SIDECAR: Final = 0x80000000
_META_VERSION: Final = b"\1"
_SECTION: Final = Struct(">BH")
_LINEAGE: Final = 0x80
_DELETED: Final = Struct(">I")


class Write(NamedTuple):
    """One document to be written, or deleted where `value` is None.

    `cas`: only if this is still the document's, 0 for always. `is_insert`: only if there is no
    document (then `cas` is 0). `expiry`: absolute Unix seconds or at most 30 days, 0 for never.
    """

    key: bytes
    value: bytes | None
    flags: int = FLAGS_JSON
    datatype: int = int(Datatype.JSON)
    expiry: int = 0
    cas: int = 0
    is_insert: bool = False


class GivenWrite(NamedTuple):
    """A document to be put back as it was elsewhere, whatever is newer here.

    It is acknowledged from memory. `cas`, `rev` and `lineage` (see `model.lineage`) are those it
    had and is to have; `expiry` is in Unix seconds, 0 for never. `is_insert`: only if there is no
    document. `value` None is a deletion, and `expiry` its time; with `is_insert` it is refused
    where something as new is there, also a deletion.
    """

    key: bytes
    value: bytes | None
    flags: int
    datatype: int
    expiry: int
    cas: int
    rev: int
    lineage: bytes
    is_insert: bool = False
    sidecar: bytes = b""
    """See `documents.stored`; empty: the document has none."""


class Failure(NamedTuple):
    """One item of a bulk write that was not done, as it was given, and why."""

    item: tuple[Any, ...]
    error: MillstreamError


class BulkResult(NamedTuple):
    """What a bulk write did: number of items done, and the others."""

    done: int
    failures: list[Failure]

    def raise_first(self) -> None:
        """Raise the first failure, if there is one."""
        if self.failures:
            raise self.failures[0].error


OneWrite = TypeVar("OneWrite", Write, GivenWrite)


def each_encoder(
    partition_count: int, *, framing: bytes, keep_json: bool
) -> Callable[[Write | GivenWrite, int], tuple[int, bytes]]:
    """Return a function (write, opaque) -> (partition, SET, ADD or DELETE frame)."""
    pack = change_packer(partition_count, framing=framing, keep_json=keep_json)
    datatype_mask = 0xFF if keep_json else 0

    def encode(write: Write | GivenWrite, opaque: int) -> tuple[int, bytes]:
        if isinstance(write, GivenWrite):
            return _given_frame(write, partition_count, datatype_mask, opaque)
        key_bytes_of(write.key)
        return pack(*write, opaque)

    return encode


def _given_frame(
    write: GivenWrite, partition_count: int, datatype_mask: int, opaque: int
) -> tuple[int, bytes]:
    """Return the partition, and a SET_WITH_META, ADD_WITH_META or DEL_WITH_META frame."""
    partition_id = partition_of(key_bytes_of(write.key), partition_count)
    meta = _META_VERSION + _SECTION.pack(_LINEAGE, len(write.lineage)) + write.lineage
    is_deletion, sidecar = write.value is None, write.sidecar
    options = 0 if is_deletion and write.is_insert else _NO_CONFLICTS
    if sidecar:
        options, sidecar = options | _SIDECAR, sidecar + len(sidecar).to_bytes(4, "big")
    extras = _GIVEN.pack(write.flags, write.expiry, write.rev, write.cas, options, len(meta))
    body = b"".join((extras, write.key, write.value or b"", sidecar, meta))
    opcode = Opcode.ADD_WITH_META if write.is_insert else Opcode.SET_WITH_META
    if is_deletion:
        opcode = Opcode.DEL_WITH_META
    head = HEADER.pack(
        REQUEST, opcode, len(write.key), len(extras), write.datatype & datatype_mask,
        partition_id, len(body), opaque, 0,
    )  # fmt: skip
    return partition_id, head + body


def is_one_request(write: GivenWrite) -> bool:
    """Return whether a write fits into one request: value and sidecar together may not."""
    return len(write.value or b"") + len(write.sidecar) <= WRITE_BYTES_MAX


def is_done(write: Write | GivenWrite, packet: Packet) -> bool:
    """Whether a reply says that the document is as the write wants it.

    What is not there is deleted already.
    """
    if packet.status == Status.SUCCESS:
        return True
    return write.value is None and not write.cas and packet.status == Status.KEY_ENOENT


def meta_encoder(partition_count: int) -> Callable[[tuple[bytes], int], tuple[int, bytes]]:
    """Return a function (item, opaque) -> (partition, GET_META frame)."""

    def encode(item: tuple[bytes], opaque: int) -> tuple[int, bytes]:
        key = item[0]
        partition_id = partition_of(key_bytes_of(key), partition_count)
        size = len(key)
        head = HEADER.pack(REQUEST, Opcode.GET_META, size, 0, 0, partition_id, size, opaque, 0)
        return partition_id, head + key

    return encode


def live_cas(packet: Packet) -> int:
    """Return the CAS of a document by a successful reply to GET_META; 0 of a tombstone."""
    return 0 if _DELETED.unpack_from(packet.extras)[0] else packet.cas
