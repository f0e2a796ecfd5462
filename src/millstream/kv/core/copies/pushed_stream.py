"""The consumer's side of a connection that a client has opened, and over which it feeds copies.

An administrator (or a proxy) opens a connection without the producer flag, and names by ADD_STREAM
the partitions to be fed. The node then requests their streams on that connection, as a feed does
on its own connection, and the other end sends them.

    feed.on_packet(packet, now_s)           # whatever comes; replies are effects, too

Invariants:
1. ADD_STREAM is answered once its stream was accepted, or with the reason for refusal. Nothing is
   requested again automatically.
2. Only one connection feeds a copy, and none feeds a copy that follows a node by the bucket's map.
3. A message of a stream that is not open, or a change out of order, is answered with an error,
   changes nothing and counts in flow control. A message that only consumers send closes the
   connection, and so does a peer that exceeds twice the window.
4. Changes are converted to canonical frames. Their lineage begins here, since other servers send
   none. Such servers send no branch numbers either: the newest history of one is taken as later
   than any known here.

Elsewhere: applying changes (`kv.core.copies.replica_stream`), take-overs
(`kv.core.copies.takeover_stream`), the socket (`kv.aio.pushed_streams`).

Source: the released protocol's consumer connections; docs/reference/wire/streams.md.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Final

from millstream.errors import RemoteProtocolError
from millstream.kv.core.bucket import Bucket
from millstream.kv.core.copies.feed_effects import Send
from millstream.kv.core.copies.replica_stream import Line, Stage
from millstream.kv.core.copies.takeover_stream import TakingFeed
from millstream.kv.core.partition.partition import Partition
from millstream.kv.core.partition.states import FOLLOWING
from millstream.model.limits import KEY_BYTES_MAX, VALUE_BYTES_MAX
from millstream.model.lineage import born
from millstream.model.position import FailoverLog, entry_below
from millstream.upr.core.consumer import (
    WINDOW_BYTES,
    ChangesReceived,
    ConsumerCore,
    Event,
    StreamOpened,
    StreamRefused,
)
from millstream.upr.core.follower import StreamOptions
from millstream.wire import mcbp
from millstream.wire.frames import deletion, expiration, mutation, seqno_of, snapshot_marker
from millstream.wire.mcbp import (
    HEADER_BYTES,
    REQUEST,
    RESPONSE,
    Datatype,
    Opcode,
    Packet,
    Status,
    StreamFlag,
    response,
)

__all__ = ["AddedFeed"]

_FLAGS: Final = int(
    StreamFlag.TAKEOVER
    | StreamFlag.DISK_ONLY
    | StreamFlag.TO_LATEST
    | StreamFlag.ACTIVE_ONLY
    | StreamFlag.STRICT_UUID
)
_MESSAGES: Final = frozenset(
    {
        Opcode.DCP_STREAM_END,
        Opcode.DCP_SNAPSHOT_MARKER,
        Opcode.DCP_MUTATION,
        Opcode.DCP_DELETION,
        Opcode.DCP_EXPIRATION,
        Opcode.DCP_SET_VBUCKET_STATE,
        Opcode.DCP_SEQNO_ADVANCED,
    }
)
_CHANGES: Final = (Opcode.DCP_MUTATION, Opcode.DCP_DELETION, Opcode.DCP_EXPIRATION)
_U32: Final = Struct(">I")
_PUT: Final = Struct(">QQIIIHB")
_DELETION_V1: Final = Struct(">QQH")
_DELETION_V2: Final = Struct(">QQIB")
_EXPIRATION: Final = Struct(">QQI")
_MARKER_V2: Final = Struct(">QQI")
_MARKER_V2_BYTES: Final = (36, 52)

Refuse = Callable[[Packet, Status], bytes]
"""Creates an error reply."""


class _Added:
    """The ADD_STREAM request of a stream."""

    __slots__ = ("flags", "packet", "status")

    def __init__(self, packet: Packet, flags: int) -> None:
        self.packet: Packet | None = packet
        """The unanswered request; None once it was answered."""
        self.flags = flags
        self.status: Status | None = None
        """Status with which the source refused the stream."""


class AddedFeed(TakingFeed):
    """The streams added to one connection.

    Args:
        bucket: of the copies.
        refuse: creates error replies.
        is_extended: HELLO granted our own feature: the other end knows branch numbers.
        window_bytes: flow control window.
    """

    def __init__(
        self,
        bucket: Bucket,
        refuse: Refuse,
        *,
        is_extended: bool,
        window_bytes: int = WINDOW_BYTES,
    ) -> None:
        self._is_extended = is_extended
        self._refuse = refuse
        self._window_bytes = window_bytes
        self._added: dict[int, _Added] = {}
        super().__init__(bucket, b"", bucket.node_name, window_bytes=window_bytes)

    def _new_core(self, name: bytes, node_name: bytes, window_bytes: int) -> ConsumerCore:
        core = ConsumerCore(window_bytes=window_bytes, has_extensions=self._is_extended)
        core.configure(consumer_name=node_name if self._is_extended else b"")
        return core

    # -- incoming packets

    def on_packet(self, packet: Packet, now_s: int) -> None:
        """Take a request or a response; `step` applies its data.

        Raises:
            RemoteProtocolError: the connection must be closed.
        """
        if packet.magic == RESPONSE or packet.opcode == Opcode.DCP_NOOP:
            self.receive(_frame(packet))
        elif packet.opcode in _MESSAGES:
            self._on_message(packet, now_s)
        elif packet.opcode == Opcode.DCP_ADD_STREAM:
            self._on_add(packet)
        elif packet.opcode == Opcode.DCP_CLOSE_STREAM:
            self._on_close(packet)
        elif packet.opcode == Opcode.DCP_CONTROL:
            self._reply(self._refuse(packet, Status.EINVAL))  # there is nothing to set
        else:
            message = f"opcode 0x{packet.opcode:02x} on a connection that feeds copies"
            raise RemoteProtocolError(message, code="unexpected_message")

    def _reply(self, data: bytes) -> None:
        self._effects.append(Send(data))

    def _on_add(self, packet: Packet) -> None:
        self.step()  # the end of an older stream may have just arrived
        status = self._why_not(packet)
        if status is not None:
            self._reply(self._refuse(packet, status))
            return
        partition_id, flags = packet.vbucket, _U32.unpack(packet.extras)[0]
        self._added[partition_id] = _Added(packet, flags)
        if flags & StreamFlag.TAKEOVER:
            self._begin_taking(partition_id)
        self.follow(partition_id)

    def _why_not(self, packet: Packet) -> Status | None:
        partition = self._bucket.partition(packet.vbucket)
        if len(packet.extras) != _U32.size or packet.key or packet.value:
            return Status.EINVAL
        if _U32.unpack(packet.extras)[0] & ~_FLAGS:
            return Status.EINVAL
        if partition is None or partition.state not in FOLLOWING:
            return Status.NOT_MY_VBUCKET
        if packet.vbucket in self._lines:
            return Status.KEY_EEXISTS
        if partition.is_suspended:
            return Status.ETMPFAIL
        return None if self._bucket.begin_feeding(packet.vbucket) else Status.EBUSY

    def _on_close(self, packet: Packet) -> None:
        line = self._lines.get(packet.vbucket)
        if packet.extras or packet.key or packet.value:
            self._reply(self._refuse(packet, Status.EINVAL))
        elif line is None or not line.is_wanted:
            self._reply(self._refuse(packet, Status.KEY_ENOENT))
        else:
            self._reply(response(packet.opcode, Status.SUCCESS, packet.opaque))
            self.leave(packet.vbucket)

    # -- stream messages

    def _on_message(self, packet: Packet, now_s: int) -> None:
        partition_id, size = packet.vbucket, _size(packet)
        line = self._lines.get(partition_id)
        if self._core.unacked_bytes + size > 2 * self._window_bytes + VALUE_BYTES_MAX:
            message = f"more than twice the window of {self._window_bytes} bytes at once"
            raise RemoteProtocolError(message, code="too_large")
        if line is None or packet.opaque != partition_id:
            self._refuse_message(packet, Status.KEY_ENOENT)
        elif self._core.is_open(partition_id):
            self._take_message(packet, now_s)
        elif line.stage is Stage.CLOSING:  # it was sent before the source knew of the close
            self._core.count(size)
        else:
            self._refuse_message(packet, Status.KEY_ENOENT)

    def _take_message(self, packet: Packet, now_s: int) -> None:
        frame: bytes | None = _frame(packet)
        if packet.opcode in _CHANGES:
            position = self._core.position(packet.vbucket)
            frame = _canonical(packet, now_s)
            if frame is not None and not position.seqno < seqno_of(frame) <= position.snap_end:
                self._refuse_message(packet, Status.ERANGE)
                return
        elif packet.opcode == Opcode.DCP_SNAPSHOT_MARKER and len(packet.extras) == 1:
            frame = _marker_of_version_1(packet)
        if frame is None:
            self._refuse_message(packet, Status.EINVAL)
            return
        self._core.count(_size(packet) - len(frame))
        self.receive(frame)

    def _refuse_message(self, packet: Packet, status: Status) -> None:
        self._core.count(_size(packet))
        self._reply(self._refuse(packet, status))

    # -- streams

    def _options(self, line: Line) -> StreamOptions:
        partition_id = line.partition.partition_id
        if partition_id in self._takings:
            super()._options(line)
        return StreamOptions(flags=self._added[partition_id].flags)

    def _on_event(self, event: Event) -> None:
        if isinstance(event, StreamRefused) and event.partition_id in self._added:
            self._added[event.partition_id].status = _known(event.status)
        super()._on_event(event)

    def _on_opened(self, event: StreamOpened) -> None:
        partition_id = event.partition_id
        if not self._is_extended:
            log = _numbered(event.failover_log, self._lines[partition_id].partition)
            event = event._replace(failover_log=log)
        super()._on_opened(event)
        added, line = self._added[partition_id], self._lines[partition_id]
        if line.stage is Stage.OPEN and added.packet is not None:
            packet, added.packet = added.packet, None
            extras = _U32.pack(partition_id)
            self._reply(response(packet.opcode, Status.SUCCESS, packet.opaque, extras=extras))

    def _on_rollback(self, line: Line, seqno: int, branch: int) -> None:
        known = branch if self._is_extended else line.partition.last_branch
        super()._on_rollback(line, seqno, known)

    def _take_changes(self, event: ChangesReceived, most: int) -> bool:
        if not event.sides:
            log = self._lines[event.partition_id].partition.failover_log
            seqnos = map(seqno_of, event.frames)
            sides = [born(entry_below(log, seqno).branch, seqno) for seqno in seqnos]
            event = self._events[0] = event._replace(sides=sides)
        return super()._take_changes(event, most)

    def _rest(self, line: Line) -> None:
        """The stream has ended, or was not opened: it is not requested again."""
        partition_id = line.partition.partition_id
        added = self._added.pop(partition_id)
        if added.packet is not None:
            is_fenced = bool(line.failure)  # the copy was promised to a later history
            status = added.status or (Status.EACCESS if is_fenced else Status.ETMPFAIL)
            self._reply(self._refuse(added.packet, status))
        line.is_wanted = False
        super()._rest(line)
        self._bucket.end_feeding(partition_id)

    def _acknowledge(self, line: Line) -> None:
        if self._is_extended:
            super()._acknowledge(line)

    def close(self) -> None:
        """The connection is closed."""
        for partition_id in self._added:
            self._bucket.end_feeding(partition_id)
        self._added.clear()


def _numbered(log: FailoverLog, partition: Partition) -> FailoverLog:
    """Return a log without branch numbers, with the known numbers and a new one in front.

    The client that adds the stream of such a server is responsible for it: its newest history is
    taken as later than any that the copy knows. Nothing is acknowledged to such a server.
    """
    known = {entry.uuid: entry.branch for entry in partition.failover_log if entry.branch}
    branch, found = 0, []
    for entry in reversed(log):
        branch = max(branch, known.get(entry.uuid, 0))
        found.append(entry._replace(branch=branch))
    if log[0].uuid not in known:
        found[-1] = found[-1]._replace(branch=partition.last_branch + 1)
    return tuple(reversed(found))


def _known(status: int) -> Status:
    """Map a status of the source to one for the reply."""
    return Status(status) if status in set(Status) else Status.EINTERNAL


def _size(packet: Packet) -> int:
    parts = (packet.framing, packet.extras, packet.key, packet.value)
    return HEADER_BYTES + sum(map(len, parts))


def _frame(packet: Packet) -> bytes:
    """Return the frame without framing extras."""
    return mcbp.packet(
        RESPONSE if packet.magic == RESPONSE else REQUEST, packet.opcode, vbucket=packet.vbucket,
        opaque=packet.opaque, cas=packet.cas, datatype=packet.datatype, extras=packet.extras,
        key=packet.key, value=packet.value,
    )  # fmt: skip


def _canonical(packet: Packet, now_s: int) -> bytes | None:
    """Return a change as a canonical frame; None if it cannot be stored."""
    p, extras, key, cas = packet.vbucket, packet.extras, packet.key, packet.cas
    is_put = packet.opcode == Opcode.DCP_MUTATION
    if not 1 <= len(key) <= KEY_BYTES_MAX or len(packet.value) > VALUE_BYTES_MAX:
        return None
    if packet.datatype & ~Datatype.JSON or (packet.value and not is_put):
        return None
    if is_put and len(extras) == _PUT.size:
        seqno, rev, flags, expiry, _, meta_bytes, _ = _PUT.unpack(extras)
        if meta_bytes:
            return None
        return mutation(p, key, packet.value, seqno, rev, cas, flags, expiry, packet.datatype)
    if packet.opcode == Opcode.DCP_EXPIRATION and len(extras) == _EXPIRATION.size:
        seqno, rev, time_s = _EXPIRATION.unpack(extras)
        return expiration(p, key, seqno, rev, cas, time_s)
    if packet.opcode == Opcode.DCP_DELETION and len(extras) == _DELETION_V2.size:
        seqno, rev, time_s, _ = _DELETION_V2.unpack(extras)
        return deletion(p, key, seqno, rev, cas, time_s)
    if packet.opcode == Opcode.DCP_DELETION and len(extras) == _DELETION_V1.size:
        seqno, rev, meta_bytes = _DELETION_V1.unpack(extras)
        return None if meta_bytes else deletion(p, key, seqno, rev, cas, now_s)
    return None


def _marker_of_version_1(packet: Packet) -> bytes | None:
    """Convert a marker of version 2 to version 1; None if it is malformed."""
    if packet.extras[0] not in (0, 2) or len(packet.value) not in _MARKER_V2_BYTES:
        return None
    start, end, flags = _MARKER_V2.unpack_from(packet.value)
    return snapshot_marker(packet.vbucket, packet.opaque, start, end, flags)
