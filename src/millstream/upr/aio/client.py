"""The asynchronous consumer: follows partitions of a bucket and survives what happens to them.

    async with Consumer("127.0.0.1:11210", bucket="orders", checkpoints=store) as consumer:
        async for event in consumer:
            ...apply it...
            await consumer.save()

Invariants:
1. Events of a partition come in order; `standing` names what holds once the event in hand is
   applied, so `save` belongs after applying it.
2. A rollback is told once, when the source has accepted the point gone back to: the newest one
   not above the source's answer that a reader can restore exactly who kept every change it was
   sent. Everything of that partition above the seqno told is void.
3. A lost connection is opened again with growing pauses, from the standing; a bucket that was
   re-created, lost rights and a broken protocol are errors.
4. A slow reader slows the source down: bytes are acknowledged when their events were taken.

Elsewhere: the protocol (`upr.core.consumer`), log-in (`access.kv_login`), what is kept between
runs (`upr.core.checkpoint`).
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import ssl
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from struct import Struct
from types import TracebackType
from typing import Final, Literal, NamedTuple, Self

import msgspec

from millstream.access.kv_login import Login
from millstream.errors import (
    MillstreamError,
    RemoteProtocolError,
    StreamError,
    UnavailableError,
    UsageError,
)
from millstream.model.addresses import parse_address
from millstream.model.position import Position, position_at
from millstream.upr.aio.checkpoints import CheckpointStore
from millstream.upr.aio.link import TIMEOUT_S, Link
from millstream.upr.core.checkpoint import Checkpoint, Standing
from millstream.upr.core.consumer import (
    WINDOW_BYTES,
    BarrierReached,
    ChangesReceived,
    ConsumerCore,
    Event,
    RollbackRequired,
    SnapshotCompleted,
    SnapshotStarted,
    StreamEnded,
    StreamOpened,
    StreamRefused,
)
from millstream.upr.core.follower import StreamOptions
from millstream.upr.core.messages import COOKIE_BYTES_MAX, decode_failover_log
from millstream.wire.mcbp import (
    Feature,
    Opcode,
    Status,
    StreamEndReason,
    StreamFlag,
    request,
)
from millstream.wire.replies import error_of_status

__all__ = [
    "BarrierReached",
    "Changes",
    "ConnectionLost",
    "Consumer",
    "ConsumerEvent",
    "RolledBack",
]

PORT_DEFAULT: Final = 11210
PAUSE_S_MIN: Final = 0.05
PAUSE_S_MAX: Final = 5.0
_SEQNO: Final = Struct(">HQ")


class Changes(NamedTuple):
    """Changes of one partition, in order; `wire.frames.change_of` cuts a frame.

    `uuid` and `branch` name the history they were read from. The reader's state is consistent
    once `position` is closed.
    """

    partition_id: int
    uuid: int
    branch: int
    position: Position
    frames: list[bytes]


class RolledBack(NamedTuple):
    """History diverged: everything of the partition above `seqno` never happened."""

    partition_id: int
    seqno: int
    uuid: int
    branch: int
    position: Position


class ConnectionLost(NamedTuple):
    """The connection is being opened again; nothing is to be done."""

    reason: str


ConsumerEvent = Changes | SnapshotCompleted | RolledBack | BarrierReached | ConnectionLost


class _Config(msgspec.Struct):
    uuid: str = ""
    vBucketServerMap: dict[str, msgspec.Raw] = {}


class Consumer:
    """Follows partitions of one bucket.

    Args:
        address: `HOST:PORT` of the node's kv port.
        bucket: its name.
        user: user name; None on a node without users.
        password: that user's.
        partitions: which to follow; all by default.
        checkpoints: where standings are loaded from at the start and saved by `save`.
        start: where to begin a partition without a checkpoint: the `beginning`, or `now`.
        until_now: end when everything that was there at the start has been read.
        tls: context of an encrypted connection; None for plain.
        window_bytes: bytes that may be under way or unhandled.
        timeout_s: longest wait for a connection and for each answer, in seconds.
    """

    def __init__(
        self,
        address: str,
        *,
        bucket: str,
        user: str | None = None,
        password: str | None = None,
        partitions: Sequence[int] | None = None,
        checkpoints: CheckpointStore | None = None,
        start: Literal["beginning", "now"] = "beginning",
        until_now: bool = False,
        tls: ssl.SSLContext | None = None,
        window_bytes: int = WINDOW_BYTES,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._host, self._port = parse_address(address, default_port=PORT_DEFAULT)
        self._address = f"{self._host}:{self._port}"
        self._login = Login(self._address, user, password or "", bucket, tls is not None)
        self._bucket = bucket
        self._partitions = partitions
        self._checkpoints = checkpoints
        self._start = start
        self._options = StreamOptions(flags=StreamFlag.TO_LATEST if until_now else 0)
        self._tls = tls
        self._window_bytes = window_bytes
        self._timeout_s = timeout_s
        self._name = f"millstream-consumer-{secrets.token_hex(8)}".encode()
        self._link = self._new_link()
        self._core = ConsumerCore()
        self._bucket_uuid = ""
        self._standings: dict[int, Standing] = {}
        self._received: deque[Event] = deque()
        self._undone: dict[int, int] = {}  # partition -> point gone back to, not told yet
        self._unfinished: dict[int, None] = {}
        self._opening: set[int] = set()
        self._cookies: dict[bytes, bool] = {}  # cookie -> whether it was sent on this connection
        self._pause_s = PAUSE_S_MIN
        self._saving: asyncio.Future[None] | None = None

    async def __aenter__(self) -> Self:
        """Connect and log in.

        Raises:
            UnavailableError: `unreachable`, `timeout`, `connection_closed`.
            AccessError: `bad_credentials`, `unknown_bucket`.
            UsageError: the checkpoint belongs to another bucket.
            StreamError: `bucket_recreated`.
        """
        if self._checkpoints is not None:
            self._take(await asyncio.to_thread(self._checkpoints.load))
        try:
            await self._connect()
        except BaseException:  # also when cancelled: connections are closed
            await self.close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection; nothing is saved."""
        await self._link.close()

    def _new_link(self) -> Link:
        return Link(self._login, self._host, self._port, tls=self._tls, timeout_s=self._timeout_s)

    def standing(self, partition_id: int) -> Standing:
        """Return where the reader stands once the event in hand is applied."""
        return self._standings[partition_id]

    @property
    def checkpoint(self) -> Checkpoint:
        """All standings, for a reader that keeps them with its own state."""
        return Checkpoint(self._bucket, self._bucket_uuid, dict(self._standings))

    async def save(self) -> None:
        """Save the checkpoint durably; call it when the event in hand is applied."""
        assert self._checkpoints is not None, "the consumer was given no place for checkpoints"
        checkpoint = self.checkpoint
        # A caller that is cancelled leaves the thread writing: the next one waits for it.
        while self._saving is not None and not self._saving.done():
            await asyncio.wait([self._saving])
        self._saving = asyncio.get_running_loop().run_in_executor(
            None, self._checkpoints.save, checkpoint
        )
        await asyncio.shield(self._saving)

    def barrier(self, cookie: bytes) -> None:
        """Have `BarrierReached` come once everything was yielded that there is now, or more.

        To be called by whoever iterates. On a lost connection the cookie is sent again.

        Args:
            cookie: 1 to 64 bytes, none that waits already.

        Raises:
            UsageError: `bad_cookie`.
        """
        if cookie in self._cookies or not 1 <= len(cookie) <= COOKIE_BYTES_MAX:
            message = f"a cookie has 1 to {COOKIE_BYTES_MAX} bytes and waits once"
            raise UsageError(message, code="bad_cookie")
        self._cookies[cookie] = False
        self._send_cookies()

    def _send_cookies(self) -> None:
        """Send what waits, once all streams are open: those opened later would take no part."""
        if not self._opening:
            for cookie, is_sent in self._cookies.items():
                if not is_sent:
                    self._core.ask_barrier(cookie)
                    self._cookies[cookie] = True

    async def __aiter__(self) -> AsyncIterator[ConsumerEvent]:
        """Yield events; ends only with `until_now`, once no cookie waits, or by an error.

        Raises:
            StreamError: `bucket_recreated`.
            AccessError: a right was lost.
            RemoteProtocolError: the node broke the protocol.
        """
        while self._unfinished or self._cookies:
            try:
                event = await self._next_event()
            except UnavailableError as error:
                yield ConnectionLost(str(error))
                await self._reconnect()
            else:
                if event is not None:
                    yield event

    async def _next_event(self) -> ConsumerEvent | None:
        """Return the next event of this connection, None if the message at hand tells nothing."""
        while not self._received:
            await self._link.write(self._core.take_bytes())
            self._received.extend(self._core.receive_data(await self._link.read()))
        return self._on_event(self._received.popleft())

    # -- events ------------------------------------------------------------------------------

    def _on_event(self, event: Event) -> ConsumerEvent | None:
        """Keep the standings; return what the reader is to know."""
        match event:
            case ChangesReceived(partition_id, position, frames):
                standing = self._standings[partition_id]
                self._standings[partition_id] = standing._replace(position=position)
                newest = standing.failover_log[0]
                return Changes(partition_id, newest.uuid, newest.branch, position, frames)
            case SnapshotCompleted(partition_id, position):
                self._standings[partition_id] = self._standings[partition_id].with_end(position)
                return event
            case SnapshotStarted(partition_id, position):
                standing = self._standings[partition_id]
                self._standings[partition_id] = standing._replace(position=position)
            case StreamOpened():
                self._opening.discard(event.partition_id)
                self._send_cookies()
                return self._on_opened(event)
            case BarrierReached(cookie):
                del self._cookies[cookie]
                return event
            case RollbackRequired(partition_id, seqno):
                point = self._standings[partition_id].undo_point(seqno)
                self._core.undone_to(partition_id, point)
                self._undone[partition_id] = point
            case StreamEnded(partition_id, _, reason):
                self._on_ended(partition_id, reason)
            case StreamRefused(partition_id, status):
                raise self._refusal(partition_id, status)
        return None

    def _on_opened(self, event: StreamOpened) -> RolledBack | None:
        partition_id, position, log, _ = event
        self._pause_s = PAUSE_S_MIN
        standing = self._standings[partition_id]._replace(failover_log=log)
        point = self._undone.pop(partition_id, None)
        if point is None:
            self._standings[partition_id] = standing._replace(position=position)
            return None
        self._standings[partition_id] = standing.undone_to(position)
        return RolledBack(partition_id, point, log[0].uuid, log[0].branch, position)

    def _on_ended(self, partition_id: int, reason: int) -> None:
        if reason == StreamEndReason.OK:
            del self._unfinished[partition_id]
        elif reason == StreamEndReason.LOST_PRIVILEGES:
            raise error_of_status(
                Status.EACCESS, address=self._address, what=self._what(partition_id)
            )
        else:
            # Closed, moved or rolled back there: a new connection asks again from the standing.
            raise UnavailableError(
                f"{self._what(partition_id)} was ended by {self._address} (reason {reason})",
                code="stream_ended",
            )

    def _refusal(self, partition_id: int, status: int) -> MillstreamError:
        # A partition that moves away comes to rest somewhere: ask again.
        status = Status.ETMPFAIL if status == Status.NOT_MY_VBUCKET else status
        return error_of_status(status, address=self._address, what=self._what(partition_id))

    def _what(self, partition_id: int) -> str:
        return f"stream of partition {partition_id} of bucket {self._bucket!r}"

    # -- connection --------------------------------------------------------------------------

    async def _reconnect(self) -> None:
        """Connect again; pauses grow until a stream is open, then begin anew."""
        while True:
            await self.close()
            await asyncio.sleep(self._pause_s)
            self._pause_s = min(self._pause_s * 2, PAUSE_S_MAX)
            with contextlib.suppress(UnavailableError):
                await self._connect()
                return

    async def _connect(self) -> None:
        """Open the connection and ask for all streams not yet finished."""
        self._link = self._new_link()
        features = await self._link.open()
        partition_ids = await self._check_bucket()
        if not self._unfinished:
            await self._stand(partition_ids)
        self._received.clear()
        self._undone.clear()
        self._core = ConsumerCore(
            window_bytes=self._window_bytes, has_extensions=Feature.MILLSTREAM in features
        )
        self._core.start(self._name)
        for partition_id in self._unfinished:
            position, log, _, _ = self._standings[partition_id]
            self._core.follow(partition_id, position, log, self._options)
        self._opening = set(self._unfinished)
        self._cookies = dict.fromkeys(self._cookies, False)
        self._send_cookies()
        await self._link.write(self._core.take_bytes())

    async def _check_bucket(self) -> Iterable[int]:
        """Return the partitions; refuse a bucket that is not the one read so far."""
        packet = await self._link.demand(request(Opcode.GET_CLUSTER_CONFIG), "the partition map")
        try:
            config = msgspec.json.decode(packet.value, type=_Config)
            owners = msgspec.json.decode(
                config.vBucketServerMap["vBucketMap"], type=list[list[int]]
            )
        except (msgspec.MsgspecError, KeyError) as error:
            message = f"{self._address} sent an invalid map: {error}"
            raise RemoteProtocolError(message, code="bad_map") from error
        if self._bucket_uuid not in ("", config.uuid):
            raise StreamError(
                f"bucket {self._bucket!r} at {self._address} was deleted and created again: "
                f"changes read from the old one are invalid; start again without the checkpoint",
                code="bucket_recreated",
            )
        self._bucket_uuid = config.uuid
        found = range(len(owners))
        wanted = found if self._partitions is None else self._partitions
        unknown = [number for number in (*wanted, *self._standings) if number not in found]
        if unknown:
            raise UsageError(
                f"bucket {self._bucket!r} has partitions 0 to {len(owners) - 1}, not {unknown[0]}",
                code="unknown_partition",
            )
        return wanted

    async def _stand(self, partition_ids: Iterable[int]) -> None:
        """Give every partition a standing at the first connection."""
        self._unfinished = dict.fromkeys(partition_ids)
        new = [number for number in self._unfinished if number not in self._standings]
        if self._start == "beginning":
            self._standings.update((number, Standing()) for number in new)
            return
        packet = await self._link.demand(request(Opcode.GET_ALL_VB_SEQNOS), "the newest seqnos")
        highs = dict(_SEQNO.iter_unpack(packet.value))
        for number in new:
            ask = request(Opcode.GET_FAILOVER_LOG, vbucket=number)
            packet = await self._link.demand(ask, f"failover log of partition {number}")
            log = decode_failover_log(packet.value)
            high = highs.get(number, 0)
            position = position_at(log, high, high, high) if high else Position()
            self._standings[number] = Standing(position, log, (high,) if high else (), high)

    def _take(self, checkpoint: Checkpoint | None) -> None:
        if checkpoint is None:
            return
        if checkpoint.bucket != self._bucket:
            raise UsageError(
                f"the checkpoint is of bucket {checkpoint.bucket!r}, not {self._bucket!r}; "
                "use another one",
                code="wrong_checkpoint",
            )
        self._bucket_uuid = checkpoint.bucket_uuid
        self._standings = dict(checkpoint.standings)
