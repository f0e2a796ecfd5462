"""Requests for the partitions that a node has active, and the answers.

They are a part of the requests between nodes (`gateway.core.api.stored`). Short answers are one
message of those. Changes and documents are a stream of messages, each its length (u32) and a
msgpack array that begins with its kind:

    [0, partition, uuid, snap_start, snap_end, purge seqno, covered, branch, purges, [change, ..]]
    [1, [[partition, position], ..], purges]   all that there was at the beginning was sent
    [2, [change, ..]]                          documents by id, as changes
    [3, error code, sentence]                  it failed
    [4]                                        all documents were sent

A change is a frame with metadata (`wire.frames`): everything that is stored of its document.

Invariants:
1. A stream that ends without message 1, 3 or 4 was cut off.
2. Received data is not trusted: a message matches the request, or it is rejected.

Elsewhere: the answering side (`databases.documents.local_node`), the requesting side
(`databases.remote_node`), the page (`gateway.aio.peers.stored_pages`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from struct import Struct
from typing import Any, Final, NamedTuple

import msgspec

from millstream.documents.tokens import is_position
from millstream.errors import RemoteProtocolError
from millstream.kv.core.revisions.changes_feed import Piece, Snapshot
from millstream.model.position import FailoverLog, Position
from millstream.wire.frames import description_bytes, seqno_of
from millstream.wire.mcbp import HEADER_BYTES, Opcode

__all__ = [
    "MESSAGE_BYTES_MAX",
    "Ended",
    "Failed",
    "Figures",
    "Form",
    "Found",
    "Histories",
    "PartChanges",
    "PartCutter",
    "PartHistory",
    "PartMessage",
    "Reached",
    "ReceivedChanges",
    "ReceivedPiece",
    "WantedChanges",
    "WantedDocuments",
    "WantedFigures",
    "WantedHistories",
    "WantedPart",
    "bad_part",
    "framed",
    "is_change",
]  # fmt: skip

MESSAGE_BYTES_MAX: Final = 64 * 1024 * 1024
"""A step of changes, or one large document."""
_LENGTH: Final = Struct(">I")
_LINEAGE: Final = Struct(">32xH")
_LINEAGE_END: Final = 34
_FIELDS: Final = Struct(">xBHB3xI")
_CHANGES: Final = (Opcode.DCP_MUTATION, Opcode.DCP_DELETION, Opcode.DCP_EXPIRATION)
_EXTRAS_BYTES_MIN: Final = 16


class Form(msgspec.Struct, array_like=True, frozen=True, gc=False, tag=True):
    """A request or an answer; the name in front tells them apart."""


# ---- requests


class WantedPart(Form, frozen=True):
    """Some partitions of one bucket."""

    uuid: str
    partitions: list[int]


class WantedHistories(WantedPart, frozen=True):
    """Return the state of partitions: `Histories`; if `positions` are given, once there is more.

    Waits at most `wait_s` seconds.
    """

    positions: list[Position] = []
    """The position of each partition; empty: now."""
    wait_s: float = 0.0


class WantedFigures(WantedPart, frozen=True):
    """Return the document counts of partitions: `Figures`."""


class WantedChanges(WantedPart, frozen=True):
    """Send the changes of partitions after `positions`, one for each: `PartChanges`, `Reached`."""

    positions: list[Position]
    restarts: bool
    """See `documents.tokens.judged_position`."""


class WantedDocuments(WantedPart, frozen=True):
    """Send the documents of partitions by id: `Found`, `Ended`."""

    start: bytes
    end: bytes
    descending: bool = False
    after: bytes | None = None
    """The last received id."""
    of_kv: bool = False
    """Include documents whose keys are no ids."""


# ---- short answers


class PartHistory(msgspec.Struct, array_like=True, frozen=True):
    """One partition."""

    partition: int
    log: FailoverLog
    high_seqno: int
    purge_seqno: int
    mark: int
    """Seqno up to which it is durable."""


class Histories(Form, frozen=True):
    """The state of partitions; `purges` changes with each purge there."""

    purges: str
    partitions: list[PartHistory]


class Figures(Form, frozen=True):
    """Document counts of partitions, and the size of the bucket on the node."""

    live: int
    deleted: int
    purge_seqno: int
    """The sum."""
    file_bytes: int
    active_bytes: int
    """The part of it that is not superseded."""
    is_compacting: bool


# ---- messages


class PartChanges(msgspec.Struct, array_like=True, tag=0, frozen=True):
    """Changes of one partition: see `kv.core.revisions.changes_feed.Piece`."""

    partition: int
    uuid: int
    snap_start: int
    snap_end: int
    purge_seqno: int | None
    covered: int
    branch: int
    """The newest branch of the partition."""
    purges: str
    frames: list[bytes]


class Reached(msgspec.Struct, array_like=True, tag=1, frozen=True):
    """The reader's position in each partition; all changes were sent."""

    positions: list[tuple[int, Position]]
    purges: str


class Found(msgspec.Struct, array_like=True, tag=2, frozen=True):
    """Documents by id."""

    changes: list[bytes]


class Failed(msgspec.Struct, array_like=True, tag=3, frozen=True):
    """The stream ends with an error."""

    code: str
    reason: str


class Ended(msgspec.Struct, array_like=True, tag=4, frozen=True):
    """All documents were sent."""


PartMessage = PartChanges | Reached | Found | Failed | Ended
_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(PartMessage)


def framed(message: PartMessage) -> bytes:
    """Encode a message."""
    body = _ENCODER.encode(message)
    return _LENGTH.pack(len(body)) + body


def bad_part(what: str) -> RemoteProtocolError:
    """Return the error for an invalid answer: `bad_part`."""
    return RemoteProtocolError(f"another node sent an unexpected answer: {what}", code="bad_part")


class PartCutter:
    """Splits received bytes into messages; never trusts a length."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def receive(self, data: bytes) -> Iterator[PartMessage]:
        """Yield the messages that are complete with `data`.

        Raises:
            RemoteProtocolError: `bad_part`.
        """
        rest = self._rest
        rest += data
        at = 0
        while len(rest) - at >= _LENGTH.size:
            size: int = _LENGTH.unpack_from(rest, at)[0]
            if size > MESSAGE_BYTES_MAX:
                raise bad_part(f"a message of {size} bytes")
            end = at + _LENGTH.size + size
            if end > len(rest):
                break
            try:
                message: Any = _DECODER.decode(memoryview(rest)[at + _LENGTH.size : end])
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise bad_part(str(error)) from error
            at = end
            yield message
        del rest[:at]


class ReceivedPiece(NamedTuple):
    """Changes of a partition, and the owner's state when they were read."""

    piece: Piece
    branch: int
    purges: str


class ReceivedChanges:
    """Checks that received changes match the request.

    Args:
        asked: partition -> position of the reader.
    """

    def __init__(self, asked: Mapping[int, Position]) -> None:
        self._reached: dict[int, int | None] = dict.fromkeys(asked)

    def piece(self, message: PartChanges) -> ReceivedPiece:
        """Decode and check a message.

        Raises:
            RemoteProtocolError: `bad_part`.
        """
        number, start, covered = message.partition, message.snap_start, message.covered
        if number not in self._reached:
            raise bad_part(f"changes of partition {number}")
        before = self._reached[number]
        snapshot = Snapshot(number, message.uuid, start, message.snap_end, message.purge_seqno)
        inside = Position(message.uuid, covered, start, message.snap_end, message.purge_seqno)
        if not is_position(inside) or covered < (before or 0):
            raise bad_part(f"a snapshot from {start} to {message.snap_end} at {covered}")
        last = start if before is None else max(start, before)
        for frame in message.frames:
            if not is_change(frame) or not last < (seqno := seqno_of(frame)) <= covered:
                raise bad_part(f"a change of partition {number} behind {last}")
            last = seqno
        self._reached[number] = covered
        return ReceivedPiece(
            Piece(snapshot, message.frames, covered), message.branch, message.purges
        )

    def positions(self, message: Reached) -> dict[int, Position]:
        """Return the reader's final positions; raises as `piece`."""
        found = dict(message.positions)
        if found.keys() != self._reached.keys():
            raise bad_part("the ends of other partitions")
        if not all(map(is_position, found.values())):
            raise bad_part("ends where nobody can stand")
        return found


def is_change(frame: bytes) -> bool:
    """Return whether bytes are exactly one change with metadata. Hot path."""
    if len(frame) < _LINEAGE_END or frame[1] != Opcode.DOC_META:
        return False
    at = description_bytes(frame)
    if _LINEAGE_END + _LINEAGE.unpack_from(frame)[0] > at or len(frame) < at + HEADER_BYTES:
        return False
    opcode, key_bytes, extras_bytes, body = _FIELDS.unpack_from(frame, at)
    return (
        opcode in _CHANGES
        and extras_bytes >= _EXTRAS_BYTES_MIN
        and key_bytes + extras_bytes <= body
        and at + HEADER_BYTES + body == len(frame)
    )
