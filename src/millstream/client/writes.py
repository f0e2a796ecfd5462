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
from typing import Final, NamedTuple

from millstream.client.documents import FLAGS_JSON, key_bytes_of
from millstream.model.partitions import partition_of
from millstream.wire.mcbp import ALT_REQUEST, HEADER, REQUEST, Datatype, Opcode, Packet, Status

__all__ = ["Write", "each_encoder", "is_done", "live_cas", "meta_encoder"]

_SET: Final = Struct(">BBHBBHIIQII")
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


def each_encoder(
    partition_count: int, *, framing: bytes, keep_json: bool
) -> Callable[[Write, int], tuple[int, bytes]]:
    """Return a function (write, opaque) -> (partition, SET, ADD or DELETE frame). Hot path."""
    magic = ALT_REQUEST if framing else REQUEST
    high, framing_bytes = len(framing) << 8, len(framing)
    pack_set, pack_head = _SET.pack, HEADER.pack
    set_code, add_code, delete_code = int(Opcode.SET), int(Opcode.ADD), int(Opcode.DELETE)
    datatype_mask = 0xFF if keep_json else 0

    def encode(write: Write, opaque: int) -> tuple[int, bytes]:
        key, value, flags, datatype, expiry, cas, is_insert = write
        size = len(key)
        partition_id = partition_of(key_bytes_of(key), partition_count)
        if value is None:
            head = pack_head(
                magic, delete_code, high | size, 0, 0, partition_id, framing_bytes + size, opaque,
                cas,
            )  # fmt: skip
            return partition_id, head + framing + key
        frame = pack_set(
            magic, add_code if is_insert else set_code, high | size, 8, datatype & datatype_mask,
            partition_id, framing_bytes + 8 + size + len(value), opaque, cas, flags, expiry,
        )  # fmt: skip
        return partition_id, frame[:24] + framing + frame[24:] + key + value

    return encode


def is_done(write: Write, packet: Packet) -> bool:
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
