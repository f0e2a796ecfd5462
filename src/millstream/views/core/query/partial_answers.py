"""Parts of an answer as one node gives them to another: rows with their keys, groups not final.

A part is a stream of messages, each its length (u32) and a msgpack array that begins with its
kind: [0, signature, total_rows, offset, update_seq] first; [1, part, row keys, row values];
[2, groups]; [3, error code, sentence] where it fails; [4] at the end. A group is [part, name, row
key of its first row, JSON key, partial result]. Counts are null in the answer of a reduce,
update_seq where it was not asked for.

Invariants:
1. Rows and groups come in the order of the query; rows before the node's own skip are not there.
2. A stream that ends without an end or a failure was cut off.

Elsewhere: what is found (`views.core.query.executor`), merging (`views.core.query.merging`).
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Any, Final

import msgspec

from millstream.errors import MillstreamError, RemoteProtocolError
from millstream.views.core.query.executor import FoundRows, Group

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = [
    "PART_MESSAGE_BYTES_MAX",
    "Counts",
    "End",
    "Failure",
    "Groups",
    "PartCutter",
    "PartMessage",
    "Rows",
    "group_part",
    "part_failure",
    "row_part",
]

PART_MESSAGE_BYTES_MAX: Final = 64 * 1024 * 1024
"""One message: a leaf's rows, or the rows of one long document."""
_LENGTH: Final = Struct(">I")
_ENCODER: Final = msgspec.msgpack.Encoder()


class Counts(msgspec.Struct, array_like=True, tag=0, frozen=True):
    """Before everything else; `signature` is that of the index."""

    signature: str
    total_rows: int | None = None
    offset: int | None = None
    update_seq: str | None = None


class Rows(msgspec.Struct, array_like=True, tag=1, frozen=True):
    """Rows of one range, `part`, one after the other."""

    part: int
    keys: list[bytes]
    values: list[bytes]


class Groups(msgspec.Struct, array_like=True, tag=2, frozen=True):
    """Groups one after the other."""

    groups: list[Group]


class Failure(msgspec.Struct, array_like=True, tag=3, frozen=True):
    """Nothing more comes."""

    code: str
    reason: str


class End(msgspec.Struct, array_like=True, tag=4, frozen=True):
    """All has come."""


PartMessage = Counts | Rows | Groups | Failure | End
_DECODER: Final = msgspec.msgpack.Decoder(PartMessage)


def _framed(message: Any) -> bytes:
    body = _ENCODER.encode(message)
    return _LENGTH.pack(len(body)) + body


def row_part(found: FoundRows, signature: str, update_seq: str | None = None) -> Iterator[bytes]:
    """Yield what a node found as messages, the end included."""
    yield _framed(Counts(signature, found.total_rows, found.offset, update_seq))
    for part, keys, values in found.pieces:
        yield _framed(Rows(part, list(keys), list(values))) if keys else b""
    yield _framed(End())


def group_part(
    pieces: Iterable[Sequence[Group]], signature: str, update_seq: str | None = None
) -> Iterator[bytes]:
    """Yield the groups that a node found as messages, the end included."""
    yield _framed(Counts(signature, update_seq=update_seq))
    for groups in pieces:
        yield _framed(Groups(list(groups))) if groups else b""
    yield _framed(End())


def part_failure(error: MillstreamError) -> bytes:
    """Return the message that ends a part with an error."""
    return _framed(Failure(error.code, str(error)))


class PartCutter:
    """Cuts received bytes into messages; never trusts a length."""

    def __init__(self) -> None:
        self._rest = bytearray()

    @property
    def held_bytes(self) -> int:
        """Received and not yet a whole message."""
        return len(self._rest)

    def receive(self, data: bytes) -> list[PartMessage]:
        """Return the messages that are complete with `data`.

        Raises:
            RemoteProtocolError: `bad_part`.
        """
        rest = self._rest
        rest += data
        messages: list[PartMessage] = []
        at = 0
        while len(rest) - at >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(rest, at)
            if size > PART_MESSAGE_BYTES_MAX:
                raise _bad_part(f"a message of {size} bytes")
            end = at + _LENGTH.size + size
            if end > len(rest):
                break
            messages.append(_decoded(bytes(rest[at + _LENGTH.size : end])))
            at = end
        del rest[:at]
        return messages


def _decoded(body: bytes) -> PartMessage:
    try:
        message: PartMessage = _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _bad_part(str(error)) from error
    if isinstance(message, Rows) and not len(message.keys) == len(message.values) > 0:
        raise _bad_part("rows whose keys and values differ in number")
    return message


def _bad_part(why: str) -> RemoteProtocolError:
    return RemoteProtocolError(
        f"another node sent an invalid part of an answer: {why}", code="bad_part"
    )
