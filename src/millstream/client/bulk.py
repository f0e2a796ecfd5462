"""Ranges of the change stream in bulk, for readers that cut columns: Spark executors, backups.

    ranges = BucketRanges(client.router)
    for chunk in ranges.read(wanted):
        cut_columns(chunk, columns)

Invariants:
1. A chunk holds whole frames, as sent: changes, snapshot markers, advances; canonical profile
   (opaque = partition id, deletions with their time, expirations apart). With `with_meta` each
   change stands behind its description, and the two are never in different chunks.
2. Each range is asked for once; `STREAMS_MAX` are under way, so that the next begins before the
   last one ends. Ranges of one partition are not under way together.
3. Bytes are acknowledged when the caller asks for the next chunk; at most `WINDOW_BYTES` are
   unhandled.
4. The connection serves nothing else. It stays usable if a range is refused or ends early while
   no other is under way, else an error (or a caller that stops reading) closes it.
5. `BucketRanges` reads at one node after the other. It waits for nodes that are away, and for
   partitions that move, only before a node has sent anything.

Elsewhere: frames into columns (`client.columns`), following without end (`upr.aio.client`).
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from struct import Struct
from typing import Final, NamedTuple, Protocol

from millstream.client.connection import Connection
from millstream.client.routing import Router
from millstream.errors import (
    MillstreamError,
    RemoteProtocolError,
    RollbackRequiredError,
    RoutingError,
    StreamError,
    UnavailableError,
    UsageError,
)
from millstream.model.limits import FRAME_BYTES_MAX
from millstream.model.position import Position
from millstream.upr.core.descriptions import needed_bytes
from millstream.upr.core.messages import StreamRequest, encode_stream_request
from millstream.wire.cluster_map import NodeAddress
from millstream.wire.mcbp import (
    HEADER,
    HEADER_BYTES,
    REQUEST,
    RESPONSE,
    Opcode,
    OpenFlag,
    Status,
    StreamEndReason,
    request,
    response,
)
from millstream.wire.replies import error_of_status

__all__ = ["FETCH_BYTES", "WINDOW_BYTES", "BucketRanges", "BulkReader", "Range", "Waiting"]

WINDOW_BYTES: Final = 8 * 1024 * 1024
FETCH_BYTES: Final = 512 * 1024
STREAMS_MAX: Final = 4
PAIR_BYTES_MAX: Final = 2 * (HEADER_BYTES + FRAME_BYTES_MAX)
"""A change and its description."""
IDLE_TIMEOUT_S: Final = 60.0
"""Longest silence of the node, which says it is alive every 20 s."""
_OPEN: Final = Struct(">II")
_U32: Final = Struct(">I")
_U64: Final = Struct(">Q")
_KIND_AND_BODY: Final = Struct(">H6xI")
_CHANGES: Final = frozenset(
    REQUEST << 8 | opcode
    for opcode in (
        Opcode.DCP_MUTATION,
        Opcode.DCP_DELETION,
        Opcode.DCP_EXPIRATION,
        Opcode.DCP_SNAPSHOT_MARKER,
        Opcode.DCP_SEQNO_ADVANCED,
    )
)
_DESCRIPTION: Final = REQUEST << 8 | Opcode.DOC_META
_STREAM_END: Final = REQUEST << 8 | Opcode.DCP_STREAM_END
_NOOP: Final = REQUEST << 8 | Opcode.DCP_NOOP
_STREAM_REPLY: Final = RESPONSE << 8 | Opcode.DCP_STREAM_REQ
_ACK_REPLY: Final = RESPONSE << 8 | Opcode.DCP_BUFFER_ACK


class Range(NamedTuple):
    """What to read of one partition: (position.seqno, end_seqno].

    With `lease_id` the partition is read as of that lease's seqno and the stream ends exactly
    after `end_seqno`; without, the snapshot that holds `end_seqno` is sent to its end. With
    `end_uuid` the range is refused as a lost lease if that history is not the newest.
    """

    partition_id: int
    position: Position
    end_seqno: int
    lease_id: int | None = None
    end_uuid: int | None = None


class BulkReader:
    """Reads ranges over one connection.

    Args:
        connection: fresh, logged in, bucket selected; given up to this reader.
        with_values: False leaves values out, for readers of keys and versions.
        with_meta: True has each change come behind its lineage and sidecar.
        selector: text of a Mango selector. The node leaves out documents that do not match, where
            that is quick to see, unless it is of an earlier release. Empty: none.
        fetch_bytes: size of the receive buffer, so about the largest chunk, in bytes.
        window_bytes: bytes the node may send ahead.

    Raises:
        AccessError: the user may not stream the bucket.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        with_values: bool = True,
        with_meta: bool = False,
        selector: str = "",
        fetch_bytes: int = FETCH_BYTES,
        window_bytes: int = WINDOW_BYTES,
    ) -> None:
        self._connection = connection
        self._skip = _skip_pairs if with_meta else _skip_changes
        self._window_bytes = window_bytes
        self._unacked_bytes = 0
        self._waiting: deque[Range] = deque()
        self._under_way: dict[int, Range] = {}
        self._buffer = bytearray(max(fetch_bytes, HEADER_BYTES))
        self._held = 0
        connection.set_timeout(IDLE_TIMEOUT_S)
        self._open(with_values, with_meta, selector)

    def _open(self, with_values: bool, with_meta: bool, selector: str) -> None:
        flags = OpenFlag.PRODUCER | OpenFlag.INCLUDE_DELETE_TIMES
        if not with_values:
            flags |= OpenFlag.NO_VALUE_KEEP_DATATYPE
        name = f"millstream-bulk-{secrets.token_hex(8)}".encode()
        self._connection.ask(
            Opcode.DCP_OPEN, "opening streams", extras=_OPEN.pack(0, flags), key=name
        )
        settings = [
            (b"enable_noop", b"true"),
            (b"set_noop_interval", b"20"),
            (b"connection_buffer_size", b"%d" % self._window_bytes),
            (b"enable_expiry_opcode", b"true"),
        ]
        if with_meta:
            settings.append((b"document_meta", b"true"))
        for key, value in settings:
            what = f"stream option {key.decode()}"
            self._connection.ask(Opcode.DCP_CONTROL, what, key=key, value=value)
        if selector:
            self._select(selector)
        early = self._connection.take_buffered()
        if early:
            self._buffer[: len(early)] = early  # grows if it must
            self._held = len(early)

    def _select(self, selector: str) -> None:
        what, value = "stream option selector", selector.encode()
        with suppress(UsageError):  # not known there: all documents come
            self._connection.ask(Opcode.DCP_CONTROL, what, key=b"selector", value=value)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def read(self, ranges: Iterable[Range]) -> Iterator[bytes]:
        """Yield the frames of some ranges in chunks; may be called again when it has ended.

        Args:
            ranges: what to read; frames of different partitions may mingle, those of one are in
                order.

        Raises:
            RollbackRequiredError: a position is no longer part of the history; says which
                partition and the seqno to undo to.
            StreamError: `lease_lost`, or the end of a stream for another reason than its end.
            RoutingError: `not_my_partition`.
            UnavailableError: `timeout`, `connection_closed`.
        """
        self._waiting = deque(ranges)
        try:
            self._ask_for_more()
            yield from self._chunks()
        finally:
            if self._under_way:
                self._connection.close()

    def _chunks(self) -> Iterator[bytes]:
        while self._under_way:
            at = 0
            while True:
                stop, has_more = self._skip(self._buffer, at, self._held)
                if stop > at:
                    yield bytes(memoryview(self._buffer)[at:stop])
                    self._acknowledge(stop - at)
                at = stop
                if not has_more:
                    break
                at = self._take_message(at)
            self._forget(at)
            if self._under_way:
                self._receive()

    def _forget(self, at: int) -> None:
        """Drop what was handled, all bytes before `at`."""
        self._buffer[: self._held - at] = self._buffer[at : self._held]
        self._held -= at

    def _receive(self) -> None:
        if self._held == len(self._buffer):
            self._make_room()
        with memoryview(self._buffer) as view:
            self._held += self._connection.receive_into(view[self._held :])

    def _make_room(self) -> None:
        """Grow the buffer to the frame, or to the change behind its description, that fills it."""
        needed = needed_bytes(self._buffer)
        if needed > PAIR_BYTES_MAX:
            raise RemoteProtocolError(f"a frame of {needed} bytes is too long", code="too_large")
        self._buffer.extend(bytes(max(0, needed - len(self._buffer))))

    # -- messages that are no changes --------------------------------------------------------

    def _take_message(self, at: int) -> int:
        """Handle the whole message at `at`; return where it ends."""
        magic, opcode, _, extras_bytes, _, vbucket, body_bytes, opaque, _ = HEADER.unpack_from(
            self._buffer, at
        )
        kind = magic << 8 | opcode
        stop: int = at + HEADER_BYTES + body_bytes
        body = bytes(self._buffer[at + HEADER_BYTES : stop])
        if kind == _STREAM_REPLY:
            if vbucket != Status.SUCCESS:
                self._under_way.pop(opaque, None)
                self._forget(stop)
                raise self._refusal(opaque, vbucket, body[extras_bytes:])
        elif kind == _STREAM_END:
            self._acknowledge(HEADER_BYTES + body_bytes)
            self._end_stream(opaque, _U32.unpack(body[:4])[0], stop)
        elif kind == _NOOP:
            self._connection.send(response(Opcode.DCP_NOOP, Status.SUCCESS, opaque))
        elif kind != _ACK_REPLY:
            raise RemoteProtocolError(
                f"unexpected message 0x{opcode:02x} in a stream", code="unexpected_message"
            )
        return stop

    def _refusal(self, partition_id: int, status: int, value: bytes) -> MillstreamError:
        what = f"stream of partition {partition_id} of bucket {self._connection.bucket!r}"
        if status == Status.ROLLBACK and len(value) == _U64.size:
            seqno: int = _U64.unpack(value)[0]
            return RollbackRequiredError(
                f"{what}: its history diverged from what this reader has; undo partition "
                f"{partition_id} to seqno {seqno} and read again from there",
                partition_id=partition_id,
                seqno=seqno,
            )
        return error_of_status(status, address=self._connection.address, what=what)

    def _end_stream(self, partition_id: int, reason: int, stop: int) -> None:
        if self._under_way.pop(partition_id, None) is None:
            raise RemoteProtocolError(
                f"end of a stream of partition {partition_id}, which has none",
                code="unexpected_message",
            )
        if reason != StreamEndReason.OK:
            self._forget(stop)
            names = {int(member): member.name.lower() for member in StreamEndReason}
            said = names.get(reason, str(reason))
            raise StreamError(
                f"stream of partition {partition_id} ended early at {self._connection.address}: "
                f"{said.replace('_', ' ')}; read it again",
                code=said if reason == StreamEndReason.ROLLED_BACK else "stream_ended",
            )
        self._ask_for_more()

    def _ask_for_more(self) -> None:
        """Keep `STREAMS_MAX` streams under way; a partition has one at a time."""
        later: list[Range] = []
        frames: list[bytes] = []
        while self._waiting and len(self._under_way) < STREAMS_MAX:
            wanted = self._waiting.popleft()
            if wanted.partition_id in self._under_way:
                later.append(wanted)
                continue
            self._under_way[wanted.partition_id] = wanted
            frames.append(_request_for(wanted))
        self._waiting.extendleft(reversed(later))
        if frames:
            self._connection.send(b"".join(frames))

    def _acknowledge(self, size: int) -> None:
        self._unacked_bytes += size
        if self._unacked_bytes * 2 >= self._window_bytes:
            extras = _U32.pack(self._unacked_bytes)
            self._connection.send(request(Opcode.DCP_BUFFER_ACK, extras=extras))
            self._unacked_bytes = 0


class Waiting(Protocol):
    """Pauses between attempts, for a limited time."""

    def pause(self, failure: MillstreamError) -> None:
        """Pause before the next attempt; raise the failure if the time is over."""
        ...

    def end(self) -> None:
        """Note that an attempt was successful."""
        ...


class BucketRanges:
    """Reads ranges of a bucket from the nodes that have their partitions.

    Args:
        router: of a client of the bucket; its connections are taken over.
        with_values: as for `BulkReader`.
        with_meta: as for `BulkReader`.
        selector: as for `BulkReader`.
        waiting: how nodes that are away and partitions that move are waited for. None: not at all.
    """

    def __init__(
        self,
        router: Router,
        *,
        with_values: bool = True,
        with_meta: bool = False,
        selector: str = "",
        waiting: Waiting | None = None,
    ) -> None:
        self._router = router
        self._with_values, self._with_meta = with_values, with_meta
        self._selector = selector
        self._waiting = waiting
        self._reader: tuple[NodeAddress, BulkReader] | None = None
        """The reader of the node that was read from last."""

    def close(self) -> None:
        """Close the connection that ranges come over; the next read opens one."""
        if self._reader is not None:
            self._reader[1].close()
            self._reader = None

    def read(self, ranges: Iterable[Range]) -> Iterator[bytes]:
        """Yield the frames of ranges in chunks; see `BulkReader.read`.

        Raises:
            RoutingError: partitions moved while they were read, or for too long.
            UnavailableError: a node went while it was read from, or is away for too long.
        """
        left = list(ranges)
        while left:
            has_given = is_read = False
            mine: Sequence[Range] = ()
            try:
                reader, mine = self._reader_for(left)
                for chunk in reader.read(mine):
                    has_given = True
                    yield chunk
                is_read = True
            except (RoutingError, UnavailableError) as error:
                if has_given or self._waiting is None:
                    raise
                self._waiting.pause(error)
                with suppress(UnavailableError):  # the next try says so
                    self._router.refresh_map()
            finally:
                if not is_read:
                    self.close()
            if is_read:
                if self._waiting is not None:
                    self._waiting.end()
                left = [wanted for wanted in left if wanted not in mine]

    def _reader_for(self, ranges: Sequence[Range]) -> tuple[BulkReader, Sequence[Range]]:
        """Return a reader at the node that has the first range, and the ranges that it has."""
        node = self._router.node_of(ranges[0].partition_id)
        if self._reader is None or self._reader[0] != node:
            self.close()
            reader = BulkReader(
                self._router.take(node),
                with_values=self._with_values,
                with_meta=self._with_meta,
                selector=self._selector,
            )
            self._reader = node, reader
        groups = self._router.groups([wanted.partition_id for wanted in ranges])
        return self._reader[1], [one for one in ranges if one.partition_id in groups[node]]


def _request_for(wanted: Range) -> bytes:
    asked = StreamRequest(
        wanted.partition_id,
        wanted.position,
        wanted.end_seqno,
        lease=wanted.lease_id,
        end_uuid=wanted.end_uuid,
    )
    return encode_stream_request(asked, wanted.partition_id)


def _skip_changes(buffer: bytearray, at: int, end: int) -> tuple[int, bool]:
    """Return where the frames of changes end, and whether a whole other message stands there.

    Hot path: one unpack a frame.
    """
    unpack, changes = _KIND_AND_BODY.unpack_from, _CHANGES
    last_head = end - HEADER_BYTES
    while at <= last_head:
        kind, body_bytes = unpack(buffer, at)
        stop = at + HEADER_BYTES + body_bytes
        if stop > end:
            break
        if kind not in changes:
            return at, True
        at = stop
    return at, False


def _skip_pairs(buffer: bytearray, at: int, end: int) -> tuple[int, bool]:
    """Do what `_skip_changes` does where each change follows its description."""
    unpack, changes = _KIND_AND_BODY.unpack_from, _CHANGES
    last_head = end - HEADER_BYTES
    whole = at
    while at <= last_head:
        kind, body_bytes = unpack(buffer, at)
        at += HEADER_BYTES + body_bytes
        if at > end:
            break
        if kind in changes:
            whole = at
        elif kind != _DESCRIPTION:
            return whole, True
    return whole, False
