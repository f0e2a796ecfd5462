"""Documents as a client sees them, and the frames that read and write them.

Values: `bytes` are stored as they are; anything else is stored as JSON (`msgspec.Raw` holds JSON
text that is ready). The top byte of the flags says which, as Couchbase SDKs have it.

Invariants:
1. A key is 1..250 bytes, a value at most 20 MiB; what is longer is refused before it is sent.
2. A frame is built once, with its opaque.

Elsewhere: sending and replies (`client.kv`, `client.pipeline`).
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any, Final, Literal, NamedTuple

import msgspec

from millstream.errors import UsageError
from millstream.model.limits import KEY_BYTES_MAX, VALUE_BYTES_MAX
from millstream.model.partitions import partition_of
from millstream.wire.mcbp import (
    ALT_REQUEST,
    HEADER,
    REQUEST,
    Datatype,
    FrameInfo,
    Opcode,
    Packet,
)

__all__ = [
    "FLAGS_BINARY",
    "FLAGS_JSON",
    "Document",
    "Durability",
    "Key",
    "Stored",
    "change_packer",
    "content_of",
    "document_from",
    "durability_framing",
    "get_encoder",
    "key_bytes_of",
    "stored_from",
    "write_encoder",
]

FLAGS_JSON: Final = 0x02000000
FLAGS_BINARY: Final = 0x03000000
_FORMAT_MASK: Final = 0xFF000000
_FLAGS: Final = Struct(">I")
_TOKEN: Final = Struct(">QQ")
_SET: Final = Struct(">BBHBBHIIQII")
_DURABILITY: Final = Struct(">BBH")
_TIMEOUT_MS_MAX: Final = 0xFFFE

Key = str | bytes
"""A document's key; text is encoded as UTF-8."""

Durability = Literal[
    "memory", "majority", "majority_and_active_persisted", "persisted", "majority_persisted"
]
"""When a write is acknowledged. On one node `persisted` and `majority_persisted` are the same."""

_LEVELS: Final[dict[str, int]] = {
    "majority": 1,
    "majority_and_active_persisted": 2,
    "persisted": 3,
    "majority_persisted": 3,
}


class Document(NamedTuple):
    """A document as stored: its bytes, CAS, client flags and datatype bits."""

    data: bytes
    cas: int
    flags: int
    datatype: int

    @property
    def is_json(self) -> bool:
        """Whether the writer or the node marked it as JSON."""
        return bool(self.datatype & Datatype.JSON) or self.flags & _FORMAT_MASK == FLAGS_JSON

    @property
    def value(self) -> Any:
        """The decoded JSON, or the bytes if they are not JSON."""
        if not self.is_json:
            return self.data
        try:
            return msgspec.json.decode(self.data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return self.data


class Stored(NamedTuple):
    """What a write returns: the new CAS, and its place in the partition's history."""

    cas: int
    partition_id: int
    uuid: int
    seqno: int


def key_bytes_of(key: Key) -> bytes:
    """Return the bytes of a key.

    Raises:
        UsageError: `bad_key`: empty, or longer than 250 bytes.
    """
    data = key.encode() if isinstance(key, str) else key
    if not 0 < len(data) <= KEY_BYTES_MAX:
        raise UsageError(
            f"a key has 1 to {KEY_BYTES_MAX} bytes, {key[:40]!r} has {len(data)}", code="bad_key"
        )
    return data


def content_of(value: Any) -> tuple[bytes, int, int]:
    """Return bytes, flags and datatype bits of a value to be stored.

    Raises:
        UsageError: `bad_value`: cannot be JSON; `too_large`.
    """
    if type(value) is bytes:
        data, flags, datatype = value, FLAGS_BINARY, 0
    else:
        try:
            data, flags, datatype = msgspec.json.encode(value), FLAGS_JSON, int(Datatype.JSON)
        except (TypeError, ValueError, RecursionError) as error:
            raise UsageError(
                f"a value cannot be stored as JSON: {error}", code="bad_value"
            ) from error
    if len(data) > VALUE_BYTES_MAX:
        raise UsageError(
            f"a value has at most {VALUE_BYTES_MAX} bytes, this one {len(data)}", code="too_large"
        )
    return data, flags, datatype


def durability_framing(durability: Durability, timeout_s: float) -> bytes:
    """Return the framing extras that ask for a durability level; empty for memory.

    Raises:
        UsageError: `durability_level`.
    """
    if durability == "memory":
        return b""
    level = _LEVELS.get(durability)
    if level is None:
        raise UsageError(
            f"unknown durability {durability!r}; one of memory, {', '.join(_LEVELS)}",
            code="durability_level",
        )
    # The node gives up shortly before we do, so that its answer arrives.
    timeout_ms = min(max(int(timeout_s * 900), 1), _TIMEOUT_MS_MAX)
    return _DURABILITY.pack(FrameInfo.DURABILITY << 4 | 3, level, timeout_ms)


def document_from(packet: Packet) -> Document:
    """Return the document of a successful read."""
    flags = _FLAGS.unpack(packet.extras[:4])[0] if len(packet.extras) >= 4 else 0
    return Document(packet.value, packet.cas, flags, packet.datatype)


def stored_from(packet: Packet, partition_id: int) -> Stored:
    """Return what a successful write says; uuid and seqno are 0 if the node sent none."""
    uuid, seqno = _TOKEN.unpack(packet.extras) if len(packet.extras) == _TOKEN.size else (0, 0)
    return Stored(packet.cas, partition_id, uuid, seqno)


def get_encoder(
    partition_count: int, opcode: int = Opcode.GET
) -> Callable[[tuple[Key], int], tuple[int, bytes]]:
    """Return a function (item, opaque) -> (partition, GET frame) for `pipeline.exchange`.

    `opcode`: of another request that is a key and nothing else.
    """

    def encode(item: tuple[Key], opaque: int) -> tuple[int, bytes]:
        key = key_bytes_of(item[0])
        partition_id = partition_of(key, partition_count)
        size = len(key)
        head = HEADER.pack(REQUEST, opcode, size, 0, 0, partition_id, size, opaque, 0)
        return partition_id, head + key

    return encode


def change_packer(
    partition_count: int, *, framing: bytes, keep_json: bool
) -> Callable[[bytes, bytes | None, int, int, int, int, bool, int], tuple[int, bytes]]:
    """Return a function that packs one change into its partition and its frame.

    Its arguments: key, value (None deletes), flags, datatype, expiry, CAS, whether it is an
    insert, opaque. Hot path: one pack a frame, locals bound.
    """
    magic = ALT_REQUEST if framing else REQUEST
    high, framing_bytes = len(framing) << 8, len(framing)
    pack_set, pack_head = _SET.pack, HEADER.pack
    set_code, add_code, delete_code = int(Opcode.SET), int(Opcode.ADD), int(Opcode.DELETE)
    datatype_mask = 0xFF if keep_json else 0

    def pack(
        key: bytes, value: bytes | None, flags: int, datatype: int, expiry: int, cas: int,
        is_insert: bool, opaque: int,
    ) -> tuple[int, bytes]:  # fmt: skip
        size = len(key)
        partition_id = partition_of(key, partition_count)
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
        if framing:
            return partition_id, frame[:24] + framing + frame[24:] + key + value
        return partition_id, frame + key + value

    return pack


def write_encoder(
    partition_count: int, *, expiry: int, framing: bytes, keep_json: bool
) -> Callable[[tuple[Key, Any], int], tuple[int, bytes]]:
    """Return a function (item, opaque) -> (partition, SET or DELETE frame).

    An item is (key, value); value None deletes.
    """
    pack = change_packer(partition_count, framing=framing, keep_json=keep_json)

    def encode(item: tuple[Key, Any], opaque: int) -> tuple[int, bytes]:
        key = key_bytes_of(item[0])
        if item[1] is None:
            return pack(key, None, 0, 0, 0, 0, False, opaque)
        data, flags, datatype = content_of(item[1])
        return pack(key, data, flags, datatype, expiry, 0, False, opaque)

    return encode
