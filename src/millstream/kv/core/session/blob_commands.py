"""GET_BLOB and PUT_BLOB: pieces of attachments, for other nodes, backups and restores.

    GET_BLOB
    key    SHA-256 of the bytes           extras  offset u64, length u32
    reply  extras: u64 length of all, value: as much of that range as there is, `PIECE_BYTES_MAX`
           at most; KEY_ENOENT: the bytes are not on this node

    PUT_BLOB
    key    SHA-256 of the bytes           extras  offset u64, length of all u64
    value  the next bytes; empty at offset 0: asks whether the bytes are here
    reply  extras: u64 number of bytes that are here: the length of all once all are durable, also
           if they were before; EINVAL: not the next bytes, or not the bytes of this name

Elsewhere: the files (`kv.aio.documents.blobs`), fetching (`kv.aio.documents.blob_fetching`).

Source: docs/reference/wire/extensions.md.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from millstream.kv.core.partition.blobs import BlobPiece
from millstream.kv.core.session.session import Command, KvSession
from millstream.wire.mcbp import Feature, Opcode, Packet, Status, request, response

__all__ = ["BLOB_COMMANDS", "PIECE_BYTES_MAX", "blob_request", "piece_of", "put_extras"]

PIECE_BYTES_MAX: Final = 1024 * 1024
"""Bytes of one reply to GET_BLOB."""
_NAME_BYTES: Final = 32
_RANGE: Final = Struct(">QI")
_LENGTH: Final = Struct(">Q")
_PLACE: Final = Struct(">QQ")


def blob_request(name: bytes, offset: int) -> bytes:
    """Return the request for the piece of a blob that begins at an offset."""
    extras = _RANGE.pack(offset, PIECE_BYTES_MAX)
    return request(Opcode.GET_BLOB, key=name, extras=extras)


def put_extras(offset: int, length: int) -> bytes:
    """Return the extras of a PUT_BLOB."""
    return _PLACE.pack(offset, length)


def piece_of(packet: Packet) -> BlobPiece | None:
    """Return the content of a successful reply; None: it is malformed."""
    if len(packet.extras) != _LENGTH.size or len(packet.value) > PIECE_BYTES_MAX:
        return None
    return BlobPiece(int.from_bytes(packet.extras, "big"), packet.value)


def _get_blob(session: KvSession, packet: Packet, _: int) -> bytes | None:
    if Feature.MILLSTREAM not in session.features:
        return session.refusal(packet, Status.UNKNOWN_COMMAND)
    if session.bucket is None:
        return session.refusal(packet, Status.NO_BUCKET)
    if not session.may("stream"):
        return session.refusal(packet, Status.EACCESS)
    is_whole = len(packet.extras) == _RANGE.size and len(packet.key) == _NAME_BYTES
    if not is_whole or packet.value:
        return session.refusal(packet, Status.EINVAL)
    offset, size = _RANGE.unpack(packet.extras)

    def answered(piece: BlobPiece | None) -> bytes:
        if piece is None:
            return session.refusal(packet, Status.KEY_ENOENT)
        return response(
            packet.opcode, Status.SUCCESS, packet.opaque,
            extras=_LENGTH.pack(piece.length), value=piece.data,
        )  # fmt: skip

    session.wait_for_reply(
        lambda done: session.host.read_blob(
            session, packet.key, offset, min(size, PIECE_BYTES_MAX),
            lambda piece: done(answered(piece)),
        )
    )  # fmt: skip
    return None


def _put_blob(session: KvSession, packet: Packet, _: int) -> bytes | None:
    if Feature.MILLSTREAM not in session.features:
        return session.refusal(packet, Status.UNKNOWN_COMMAND)
    if session.bucket is None:
        return session.refusal(packet, Status.NO_BUCKET)
    if not (session.may("write") and session.may("stream")):
        return session.refusal(packet, Status.EACCESS)
    is_whole = len(packet.extras) == _PLACE.size and len(packet.key) == _NAME_BYTES
    if not is_whole or len(packet.value) > PIECE_BYTES_MAX:
        return session.refusal(packet, Status.EINVAL)
    offset, total = _PLACE.unpack(packet.extras)

    def answered(found: int | Status) -> bytes:
        if isinstance(found, Status):
            return session.refusal(packet, found)
        return response(
            packet.opcode, Status.SUCCESS, packet.opaque, extras=_LENGTH.pack(found)
        )  # fmt: skip

    session.wait_for_reply(
        lambda done: session.host.put_blob(
            session, packet.key, offset, total, packet.value,
            lambda found: done(answered(found)),
        )
    )  # fmt: skip
    return None


BLOB_COMMANDS: Final[dict[int, Command]] = {
    Opcode.GET_BLOB: _get_blob,
    Opcode.PUT_BLOB: _put_blob,
}
