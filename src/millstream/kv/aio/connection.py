"""One socket of the kv and memcached listeners, around a `kv.core.session.session`.

Invariants:
1. All replies of one wake-up are one write.
2. Nothing is read from a client while its replies are not drained (`CONNECTION_OUT_BYTES_MAX`),
   while its log-in is being checked, while it waits to write and memory is full, or while
   `LATE_BYTES_MAX` wait for a turn of the loop (`runtime.shares`). Streams wait for no turn.
3. The memory held for a client, requests and replies, is reported to `runtime.guests`, which cuts
   off clients without log-in, and clients for which too much is held.

Elsewhere: what all connections share (`kv.aio.server`), every decision (`kv.core`), the streams
themselves (`upr`).
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, Protocol, cast

from millstream.access.users import User
from millstream.errors import CorruptionError, RemoteProtocolError
from millstream.kv.aio.pushed_streams import FeedSession
from millstream.kv.core.bucket import Bucket
from millstream.kv.core.partition.blobs import Upload
from millstream.kv.core.session.administration import ADMINISTRATION_COMMANDS
from millstream.kv.core.session.blob_commands import BLOB_COMMANDS
from millstream.kv.core.session.document_commands import DOCUMENT_COMMANDS
from millstream.kv.core.session.handshake import BEFORE_LOGIN, SESSION_COMMANDS
from millstream.kv.core.session.host import Host, StreamPort
from millstream.kv.core.session.introspection import INTROSPECTION_COMMANDS
from millstream.kv.core.session.record_commands import RECORD_COMMANDS
from millstream.kv.core.session.requests import http_refusal
from millstream.kv.core.session.session import Command, KvSession
from millstream.kv.core.streams import Streaming
from millstream.model.limits import (
    CONNECTION_OUT_BYTES_MAX,
    NOTED_BYTES_MIN,
    STREAM_OUT_BYTES_MAX,
)
from millstream.wire.mcbp import Feature

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.kv.aio.map_notices import MapNotices
    from millstream.runtime.guests import Guests
    from millstream.runtime.shares import LoopShares

__all__ = ["COMMANDS", "LATE_BYTES_MAX", "KvConnection", "Server", "Streamer"]

_LOG = logging.getLogger(__name__)
LATE_BYTES_MAX: Final = 256 * 1024
"""Bytes of a client that wait for a turn of the loop above which no more is read from it."""
COMMANDS: dict[int, Command] = {
    **SESSION_COMMANDS, **INTROSPECTION_COMMANDS, **DOCUMENT_COMMANDS,
    **ADMINISTRATION_COMMANDS,
    **BLOB_COMMANDS,
    **RECORD_COMMANDS,
}  # fmt: skip


class Streamer(StreamPort, Streaming, Protocol):
    """A stream session as the shell calls it."""

    def on_resume(self) -> None:
        """The socket can take more."""


class Server(Host["KvSession"], Protocol):
    """What all connections share, and their calls to it."""

    now_ns: Callable[[], int]
    loop: asyncio.AbstractEventLoop
    guests: Guests
    shares: LoopShares
    connections: set[KvConnection]
    connection_total: int
    is_closed: bool
    notices: MapNotices

    def wait(self, connection: KvConnection) -> None:
        """Replies of a connection wait: check them, since their time is bounded."""

    def forget(self, connection: KvConnection) -> None:
        """A connection has closed."""


class KvConnection(asyncio.Protocol):
    """One socket. Also the connection that a stream session writes to."""

    def __init__(
        self, server: Server, *, default_bucket: str | None, user: User | None = None
    ) -> None:
        self._server = server
        self._default_bucket = default_bucket
        self._user = user
        self._transport: asyncio.Transport | None = None
        self._now_ns = server.now_ns
        self._loop = server.loop
        self._shares = server.shares
        self._late = b""
        """What has come and waits for a turn of the loop."""
        self._waits_for_turn = False
        self._is_scheduled = False
        self._is_reading = True
        self.streamer: Streamer | None = None
        self.feeder: FeedSession | None = None
        self.streamed: tuple[Bucket, str] | None = None
        """The streamed bucket, and the name of the stream."""
        self._upload: tuple[Bucket, Upload] | None = None
        """The attachment being uploaded."""
        self.is_paused = False
        """The socket's send buffer is full: a stream should wait for `on_resume`."""
        self.is_active = True
        """See `Guest`."""
        self.told_map: bytes | None = None
        """The last notice of a map that the client was sent (`kv.aio.map_notices`)."""
        self._held_bytes = 0
        """The value last reported to `Guests`."""
        self._known: User | None = user
        self.session: KvSession

    def __str__(self) -> str:
        return self.session.peer

    @property
    def is_busy(self) -> bool:
        """Return whether a request of it is being answered, or it streams."""
        return self.streamer is not None or self.feeder is not None or self.session.is_waiting

    def upload_for(self, bucket: Bucket) -> Upload:
        """Return the receiver of this connection's attachments of a bucket."""
        if self._upload is None or self._upload[0] is not bucket:
            self.drop_upload()
            assert bucket.attachments.new_upload is not None
            self._upload = bucket, bucket.attachments.new_upload()
        return self._upload[1]

    def drop_upload(self) -> None:
        """Discard an unfinished upload."""
        if self._upload is not None:
            self._upload[1].abandon()
            self._upload = None

    # -- the transport's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a new connection."""
        transport = cast("asyncio.Transport", transport)  # other loops have their own classes
        self._transport = transport
        transport.set_write_buffer_limits(high=CONNECTION_OUT_BYTES_MAX)
        peer = transport.get_extra_info("peername")
        is_plain = self._default_bucket is not None
        self.session = KvSession(
            self._server, COMMANDS, open_commands=BEFORE_LOGIN, hashes_keys=is_plain,
            peer=str(peer) if self._user is None else "the node's own process",
            source=str(peer[0]) if isinstance(peer, tuple) else "",
        )  # fmt: skip
        self.session.user = self._user
        if self._default_bucket is not None:
            self.session.select(self._server.buckets.get(self._default_bucket))
        if self._server.is_closed:  # accepted in the last round of a closing listener
            transport.abort()
            return
        if self._user is None and not self._server.guests.enter(self):
            _LOG.warning("refused %s: too many connections", self.session.peer)
            transport.abort()
            return
        if is_plain:
            self._server.guests.recognise(self, "")
        self._server.connections.add(self)
        self._server.connection_total += 1

    def connection_lost(self, exc: Exception | None) -> None:
        """The peer has closed, or we have."""
        self._transport = None
        self._server.forget(self)
        if self._waits_for_turn:
            self._shares.forget(self)
            self._waits_for_turn = False
        if not self.session.is_waiting:  # else the reader of the piece discards the rest
            self.drop_upload()
        if self.feeder is not None:
            self.feeder.close()
            self.feeder = None
            self.session.stream = None
        if self.streamer is not None:
            assert self.streamed is not None
            bucket, name = self.streamed
            bucket.streams.ended(name, self.streamer)
            self.streamer.close()
            self.streamer = None
            self.session.stream = None

    def eof_received(self) -> None:
        """The peer sends nothing more: answer what waits for a turn, then it is closed."""
        if self._late:
            self._go_on()

    def data_received(self, data: bytes) -> None:
        """Answer received requests, or have them wait for a turn of the loop."""
        if self._late or (self._shares.is_shared and self._must_wait()):
            self._late += data
            if len(self._late) >= NOTED_BYTES_MIN:
                self._tell_held()
            if len(self._late) >= LATE_BYTES_MAX:
                self._read(False)
        else:
            self._answer(data)

    def _answer(self, data: bytes) -> None:
        """Answer received requests; hot path."""
        session = self.session
        self.is_active = True
        bucket = session.bucket
        if bucket is not None:
            bucket.received_bytes += len(data)
            if bucket.is_managed:
                bucket.look_at_rights()
        try:
            out = session.receive(data, self._now_ns())
        except RemoteProtocolError as error:
            self._refuse(error, http_refusal(data) if error.code == "bad_magic" else b"")
            return
        except CorruptionError:
            self.close()  # the damage is already reported; the bucket is being stopped
            return
        except OSError as error:
            _LOG.error("closed %s: a document cannot be read: %s", session.peer, error)
            self.close()
            return
        transport = self._transport
        if out and transport is not None:
            if bucket is not None:
                bucket.sent_bytes += len(out)
            transport.write(out)
            if self.is_paused:
                self._tell_held()
                if transport.get_write_buffer_size() > STREAM_OUT_BYTES_MAX:
                    self._read(False)
        if session.needs_care or self._held_bytes:
            session.needs_care = False
            self._care()

    def pause_writing(self) -> None:
        """The client does not read: stop reading from it; from a stream a little later.

        A paused stream must still receive acknowledgements.
        """
        self.is_paused = True
        self._tell_held()
        if self.streamer is None:
            self._read(False)

    def resume_writing(self) -> None:
        """The client has caught up."""
        self.is_paused, self.is_active = False, True
        self._tell_held()
        if self.streamer is not None:
            self.streamer.on_resume()
        self.advance()

    # -- for the server and the streams

    def write(self, data: bytes) -> None:
        """Send bytes in their turn among the replies."""
        self.session.emit(data)
        self._flush()

    def advance(self) -> None:
        """An event for which a request waited has happened: continue."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._advance)

    def on_persisted(self) -> None:
        """Writes became durable: send the replies that waited for them, and continue."""
        session = self.session
        session.on_persisted(self._now_ns())
        self._flush()
        if self._held_bytes:
            self._tell_held()
        if session.waits_for_disk:
            self._server.wait(self)
        if session.has_request or not self._is_reading:
            self.advance()

    def close(self) -> None:
        """Close once all written data has left; at once if the peer does not take it."""
        if self._transport is not None:
            (self._transport.abort if self.is_paused else self._transport.close)()

    def cut(self) -> None:
        """Close at once, whatever waits."""
        if self._transport is not None:
            self._transport.abort()

    # -- inside

    def _tell_held(self) -> None:
        """Report how much is held for the client, if it has changed enough."""
        transport, session = self._transport, self.session
        if transport is None or self._user is not None:
            return
        held = session.held_bytes + len(self._late)
        held += transport.get_write_buffer_size() if self.is_paused else 0
        if held < NOTED_BYTES_MIN:
            held = 0
        if held != self._held_bytes:
            self._held_bytes = held
            self._server.guests.hold(self, held)

    def _advance(self) -> None:
        self._is_scheduled = False
        if not (self._shares.is_shared and self._must_wait()):
            self._go_on()

    def _must_wait(self) -> bool:
        """Return whether requests have to wait until `take_turn` is called."""
        if self._waits_for_turn:
            return True
        if self.streamer is not None or self.feeder is not None or not self._shares.is_over():
            return False
        self._waits_for_turn = True
        self._shares.wait(self)
        return True

    def take_turn(self) -> None:
        """Answer what waits for a turn."""
        self._waits_for_turn = False
        self._go_on()

    def _go_on(self) -> None:
        """Answer what was received and is not answered yet."""
        if self._transport is not None and not self._transport.is_closing():
            self._flush()
            if not self.is_paused or self.streamer is not None:
                data, self._late = self._late, b""
                self._read(True)
                self._answer(data)

    def _care(self) -> None:
        """Do what a wake-up leaves to do besides its replies."""
        session = self.session
        self._tell_held()
        if session.user is not self._known and session.user is not None:
            self._known = session.user
            self._server.guests.recognise(self, session.user.name)
        if Feature.MAP_NOTICE in session.features and self._transport is not None:
            self._server.notices.add(self)
        if session.waits_for_disk:
            self._server.wait(self)
        if session.is_closing:
            self.close()
        elif session.is_clogged:
            self._read(False)
            if session.waits_for_room:
                assert session.bucket is not None
                session.bucket.writes.when_room(self._room_made)
            absent, session.absent = session.absent, None
            if absent is not None and not absent.fetch(self._fetched):
                session.on_fetch_refused()
                self.advance()
        elif session.has_request and not self.is_paused:
            self.advance()

    def _room_made(self) -> None:
        """Memory is no longer full, or writes are refused from now on."""
        self.session.on_room()
        self.advance()

    def _fetched(self, error: Exception | None) -> None:
        """A document for which a request waited was read, and is available during this call."""
        if self._transport is None:
            return
        if error is None:
            self.session.on_fetched()
            self._go_on()
        else:
            _LOG.error("closed %s: a document cannot be read: %s", self.session.peer, error)
            self.close()

    def _flush(self) -> None:
        if self.session.out and self._transport is not None:
            data, bucket = self.session.take_output(), self.session.bucket
            if bucket is not None and self.streamer is None:
                bucket.sent_bytes += len(data)
            self._transport.write(data)

    def _read(self, wanted: bool) -> None:
        transport = self._transport
        if wanted == self._is_reading or transport is None or transport.is_closing():
            return
        self._is_reading = wanted
        if wanted:
            transport.resume_reading()
        else:
            transport.pause_reading()

    def _refuse(self, error: RemoteProtocolError, answer: bytes = b"") -> None:
        _LOG.warning("closed %s: %s", self.session.peer, error)
        self.session.is_closing = True
        self._flush()
        if answer and self._transport is not None:
            self._transport.write(answer)
        self.close()
