"""Parsing of one request from received bytes, and of its framing extras.

For all commands except those that the request loop answers itself.

Invariants:
1. A frame whose parts do not fit into it is refused.
2. Unknown framing extras are refused, never ignored.
3. Only requests that store something may have a value above `ASKED_BYTES_MAX`: to look through
   20 MiB of names would hold up the loop.

Elsewhere: the loop (`kv.core.session.session`), the layout (`wire.mcbp`).
"""

from __future__ import annotations

from typing import Final

from millstream.errors import RemoteProtocolError
from millstream.model.limits import (
    ASKED_BYTES_MAX,
    FRAME_BYTES_MAX,
    LOGIN_BYTES_MAX,
    SKIPPED_BYTES_MAX,
)
from millstream.wire.mcbp import (
    ALT_REQUEST,
    ALT_RESPONSE,
    HEADER,
    HEADER_BYTES,
    REQUEST,
    RESPONSE,
    FrameInfo,
    Opcode,
    Packet,
    Status,
    parse_frame_infos,
)

__all__ = [
    "MAGICS",
    "ORDINARY",
    "STORING",
    "cut_request",
    "durability_of",
    "http_refusal",
    "is_too_large",
    "is_waited_for",
    "not_binary",
]

_HTTP_STARTS: Final = (
    b"GET ", b"HEAD ", b"POST ", b"PUT ", b"DELETE ", b"OPTIONS ", b"PATCH ", b"COPY ", b"PRI * ",
)  # fmt: skip
"""Beginnings of HTTP requests."""

MAGICS: Final = (REQUEST, ALT_REQUEST, RESPONSE)
"""First bytes of a client's frames."""
ORDINARY: Final = frozenset(
    {Status.KEY_ENOENT, Status.KEY_EEXISTS, Status.NOT_STORED, Status.DELTA_BADVAL,
     Status.UNKNOWN_COMMAND}
)  # fmt: skip
"""Answers that are no refusals: misses, unmet conditions, probes of old clients."""

_LEVELS: Final = (1, 2, 3)
_KNOWN: Final = frozenset(
    {FrameInfo.BARRIER, FrameInfo.DURABILITY, FrameInfo.STREAM_ID, FrameInfo.PRESERVE_TTL}
)
_DURABLE: Final = frozenset(
    {Opcode.SET, Opcode.ADD, Opcode.REPLACE, Opcode.DELETE, Opcode.INCREMENT, Opcode.DECREMENT,
     Opcode.APPEND, Opcode.PREPEND}
)  # fmt: skip
STORING: Final = frozenset(
    {Opcode.SET, Opcode.SETQ, Opcode.ADD, Opcode.ADDQ, Opcode.REPLACE, Opcode.REPLACEQ,
     Opcode.APPEND, Opcode.APPENDQ, Opcode.PREPEND, Opcode.PREPENDQ,
     Opcode.SET_WITH_META, Opcode.SETQ_WITH_META, Opcode.ADD_WITH_META, Opcode.ADDQ_WITH_META,
     Opcode.DEL_WITH_META, Opcode.DELQ_WITH_META, Opcode.PUT_BLOB, Opcode.EXCHANGE_RECORDS,
     Opcode.DCP_MUTATION, Opcode.DCP_DELETION, Opcode.DCP_EXPIRATION}
)  # fmt: skip
"""Requests whose value may be as large as a document."""


def is_too_large(packet: Packet) -> bool:
    """Return whether a request has a larger value than its kind may have."""
    return len(packet.value) > ASKED_BYTES_MAX and packet.opcode not in STORING


def cut_request(data: bytes, at: int, stop: int) -> Packet:
    """Return the frame in `data` from `at` to `stop`.

    Raises:
        RemoteProtocolError: `bad_frame`, its parts are longer than the frame.
    """
    magic, opcode, key_bytes, extras_bytes, datatype, vbucket, _, opaque, cas = HEADER.unpack_from(
        data, at
    )
    framing_bytes = 0
    if magic in (ALT_REQUEST, ALT_RESPONSE):
        framing_bytes, key_bytes = key_bytes >> 8, key_bytes & 0xFF
    at += HEADER_BYTES
    if stop - at < framing_bytes + extras_bytes + key_bytes:
        raise RemoteProtocolError("body is shorter than its extras and key", code="bad_frame")
    extras_at = at + framing_bytes
    key_at = extras_at + extras_bytes
    value_at = key_at + key_bytes
    return Packet(
        magic, opcode, datatype, vbucket, opaque, cas, data[at:extras_at],
        data[extras_at:key_at], data[key_at:value_at], data[value_at:stop],
    )  # fmt: skip


def not_binary(magic: int) -> RemoteProtocolError:
    """Return the error for bytes that do not begin a frame."""
    return RemoteProtocolError(
        f"magic 0x{magic:02x}: this port speaks memcached's binary protocol only; a client that "
        "speaks text, HTTP or TLS needs another port, or another setting",
        code="bad_magic",
    )


def http_refusal(data: bytes) -> bytes:
    """Return the answer to a client that speaks HTTP to this port; empty if `data` is not HTTP."""
    if not data.startswith(_HTTP_STARTS):
        return b""
    text = (
        b'{"error":"wrong_port","reason":"this port speaks the binary protocol of memcached (kv), '
        b'not HTTP: take the HTTP port of the node, 5984 unless it was told another"}\n'
    )
    return (
        b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nConnection: close\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(text), text)
    )


def is_waited_for(magic: int, body_bytes: int, *, is_logged_in: bool) -> bool:
    """Return whether to wait for the rest of a frame; False: it is skipped.

    Raises:
        RemoteProtocolError: `bad_magic`; `too_large`: longer than what is skipped, or than what is
            accepted before a log-in.
    """
    if magic not in MAGICS:
        raise not_binary(magic)
    if body_bytes <= (FRAME_BYTES_MAX if is_logged_in else LOGIN_BYTES_MAX):
        return True
    if magic != RESPONSE and is_logged_in and body_bytes <= SKIPPED_BYTES_MAX:
        return False
    raise RemoteProtocolError(f"body of {body_bytes} bytes", code="too_large")


def durability_of(packet: Packet) -> tuple[Status | None, int, int]:
    """Return (why framing extras are refused, their durability level, timeout in ms, 0: any)."""
    infos = parse_frame_infos(packet.framing)
    if not _KNOWN.issuperset(infos):
        return Status.UNKNOWN_FRAME_INFO, 0, 0
    durability = infos.get(FrameInfo.DURABILITY)
    if durability is None:
        return None, 0, 0
    if len(durability) not in (1, 3) or durability[1:] in (b"\0\0", b"\xff\xff"):
        return Status.EINVAL, 0, 0
    if durability[0] not in _LEVELS:
        return Status.DURABILITY_INVALID_LEVEL, 0, 0
    if packet.opcode not in _DURABLE:
        return Status.NOT_SUPPORTED, 0, 0
    return None, durability[0], int.from_bytes(durability[1:], "big")
