"""What engine and index process say to each other: frames of bytes, errors as JSON.

A frame is its length (u32) and so many bytes. A request is one frame: a JSON object
`{"call": .., ...}`. Its answer is a frame with a JSON object, the head, then pieces of the body as
a frame each, then the end: a length of 0. Where it fails, instead of what would come next: the
length `FAILED` and a frame with the error as JSON; nothing follows.

Invariants:
1. A frame longer than the reader's bound is refused before any of it is kept.
2. An error arrives as the class, code, retry and sentence with which it left.

Elsewhere: sockets (`views.aio.serving.index_server`, `views.aio.serving.index_link`).
"""

from __future__ import annotations

from struct import Struct
from typing import Any, Final

import msgspec

from millstream.errors import (
    MillstreamError,
    RemoteProtocolError,
    RoutingError,
    kind_named,
    name_of_kind,
)

__all__ = [
    "CHUNK_BYTES_MAX",
    "END",
    "FAILED",
    "REQUEST_BYTES_MAX",
    "FrameCutter",
    "error_from",
    "failure",
    "frame",
    "message",
    "told_of",
]

REQUEST_BYTES_MAX: Final = 16 * 1024 * 1024
"""A request: all design documents of a bucket, or a query with many keys."""
CHUNK_BYTES_MAX: Final = 64 * 1024 * 1024
"""A head, or one piece of a body."""
FAILED: Final = 0xFFFF_FFFF
"""Stands where a length would: an error follows."""
_LENGTH: Final = Struct(">I")
END: Final = _LENGTH.pack(0)
_ENCODER: Final = msgspec.json.Encoder()


def frame(data: bytes) -> bytes:
    """Return a frame; `data` must not be empty."""
    assert data, "an empty frame is the end"
    return _LENGTH.pack(len(data)) + data


def message(content: Any) -> bytes:
    """Return a JSON value as a frame."""
    return frame(_ENCODER.encode(content))


def failure(error: MillstreamError) -> bytes:
    """Return what ends an answer with an error."""
    return _LENGTH.pack(FAILED) + message(told_of(error))


def told_of(error: MillstreamError) -> dict[str, Any]:
    """Return an error as a JSON value."""
    kind, reason = name_of_kind(error), str(error)
    told = {"kind": kind, "code": error.code, "retry": error.retry, "reason": reason}
    records = error.records if isinstance(error, RoutingError) else None
    return {**told, "records": records} if records else told


def error_from(data: bytes) -> MillstreamError:
    """Return the error that `failure` sent; an unknown kind is a plain `MillstreamError`."""
    content: dict[str, Any] = msgspec.json.decode(data, type=dict[str, Any])
    kind = kind_named(content["kind"]) or MillstreamError
    error = kind(content["reason"], code=content["code"], retry=content["retry"])
    if isinstance(error, RoutingError):
        error.records = content.get("records", {})
    return error


class FrameCutter:
    """Cuts received bytes into frames: `b""` for the end, None announces an error.

    Args:
        bytes_max: longest frame that is accepted.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._rest = bytearray()

    @property
    def pending_bytes(self) -> int:
        """Received and not yet a whole frame."""
        return len(self._rest)

    def receive(self, data: bytes) -> list[bytes | None]:
        """Return the frames that are complete with `data`.

        Raises:
            RemoteProtocolError: `bad_frame`, it is too long.
        """
        rest = self._rest
        rest += data
        frames: list[bytes | None] = []
        at = 0
        while len(rest) - at >= 4:
            (size,) = _LENGTH.unpack_from(rest, at)
            if size == FAILED:
                frames.append(None)
                at += 4
                continue
            if size > self._bytes_max:
                raise RemoteProtocolError(
                    f"a frame of {size} bytes is longer than {self._bytes_max}", code="bad_frame"
                )
            if len(rest) - at - 4 < size:
                break
            frames.append(bytes(rest[at + 4 : at + 4 + size]))
            at += 4 + size
        del rest[:at]
        return frames
