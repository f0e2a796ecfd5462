"""The kv and memcached listeners: sockets around `kv.core.session.session`.

Invariants:
1. A streaming connection closes an older one of the same name in the same bucket.
2. The node's own processes need no password, and may only read: they are identified by the file
   permissions of their socket.

Elsewhere: one socket (`kv.aio.connection`), every decision (`kv.core`), the streams themselves
(`upr`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from millstream import accelerated
from millstream.access.users import NODE_USER, User
from millstream.errors import (
    MillstreamError,
    UsageError,
)
from millstream.kv.aio.connection import COMMANDS, KvConnection, Streamer
from millstream.kv.aio.map_notices import MapNotices
from millstream.kv.aio.measuring import Asked, measure
from millstream.kv.aio.pushed_streams import FeedSession
from millstream.kv.core.bucket import Bucket
from millstream.kv.core.copies.cluster_config import cluster_config
from millstream.kv.core.measuring import Piece
from millstream.kv.core.partition.blobs import BlobPiece
from millstream.kv.core.session.handshake import VERSION
from millstream.kv.core.session.host import StreamPort
from millstream.kv.core.session.session import KvSession
from millstream.kv.core.statistics import as_text
from millstream.runtime.guests import Guests
from millstream.runtime.shares import LoopShares
from millstream.wire.mcbp import Feature, Status

if TYPE_CHECKING:
    from millstream.access.users import UserStore
    from millstream.model.cluster_maps import DataRecord
    from millstream.model.partitions import PartitionState

__all__ = [
    "COMMANDS", "DURABLE_TICK_S", "OWN_USER", "KvConnection", "KvServer", "StreamFactory",
    "Streamer",
]  # fmt: skip

_LOG = logging.getLogger(__name__)
DURABLE_TICK_S: Final = 0.1
"""How long a durable write may still wait after its timeout."""
OWN_USER: Final = User(NODE_USER, ("read:*", "stream:*"), {})
"""User of connections on the socket of the node's own processes: may only stream and read."""
StreamFactory = Callable[..., Streamer]
"""(connection, bucket, name, flags, *, is_extended, has_json, may_take_over,
config) -> stream session."""


class KvServer:
    """Shared by all connections of a node: buckets, users, map, open streams."""

    def __init__(
        self,
        buckets: Mapping[str, Bucket],
        users: UserStore,
        stream_factory: StreamFactory,
        *,
        advertise: str = "127.0.0.1",
        now_ns: Callable[[], int] = time.time_ns,
        guests: Guests | None = None,
        shares: LoopShares | None = None,
    ) -> None:
        self.buckets = buckets
        self.users = users
        self.now_ns = now_ns
        self.advertise = advertise
        self.kv_port = 0
        self.http_port = self.coord_port = 0
        self.map_revision = 1
        self.connections: set[KvConnection] = set()
        self.is_closed = False
        self.waiting: set[KvConnection] = set()
        """Those with replies that wait for the disk."""
        self._waiting_timer: asyncio.TimerHandle | None = None
        self.connection_total = 0
        self.started_ns = now_ns()
        self.node_figures: Callable[[], Mapping[str, float]] = dict
        """Statistics of the node as a whole, for STAT."""
        self._stream_factory = stream_factory
        self._streams: dict[tuple[str, str], KvConnection] = {}
        self._configs = WeakKeyDictionary[Bucket, tuple[int, bytes]]()
        """Maps as last sent, with their revisions."""
        self._checks: set[asyncio.Task[None]] = set()
        self._measuring = asyncio.Semaphore(1)
        self.loop = asyncio.get_running_loop()
        self.guests = guests or Guests(lambda: not users.is_empty, self.loop)
        self.shares = shares or LoopShares(self.loop)
        self.notices = MapNotices(self.loop, self.config)

    def kv_protocol(self) -> KvConnection:
        """Make the protocol of one kv connection (SASL, buckets, streams)."""
        return KvConnection(self, default_bucket=None)

    def own_protocol(self) -> KvConnection:
        """Make the protocol of one connection of the node's own processes: no login."""
        return KvConnection(self, default_bucket=None, user=OWN_USER)

    def memcached_protocol(self) -> KvConnection:
        """Make the protocol of one plain memcached connection: bucket `default`, no login."""
        return KvConnection(self, default_bucket="default")

    # -- the Host of the sessions

    def config(self, bucket: Bucket | None) -> bytes:
        """Return the cluster map as JSON: cached while nothing in it changes.

        With 1,024 partitions it takes a millisecond to encode, and after a promotion many clients
        are answered with it.
        """
        revision = self.map_revision + (bucket.map_changes if bucket is not None else 0)
        known = self._configs.get(bucket) if bucket is not None else None
        if known is not None and known[0] == revision:
            return known[1]
        config = cluster_config(
            bucket, host=self.advertise, kv_port=self.kv_port, http_port=self.http_port,
            revision=revision, others=self.buckets.values() if bucket is None else (),
        )  # fmt: skip
        if bucket is not None:
            self._configs[bucket] = revision, config
        return config

    def open_stream(self, session: KvSession, name: str, flags: int) -> StreamPort:
        """Make a connection a producer; an older one of the same name is closed."""
        connection = next(c for c in self.connections if c.session is session)
        assert session.bucket is not None
        older = self._streams.get((session.bucket.name, name))
        if older is not None:
            older.close()
        self._streams[session.bucket.name, name] = connection
        connection.streamed = session.bucket, name
        session.bucket.streams.by_name[name] = connection.streamer = self._stream_factory(
            connection, session.bucket, name, flags,
            is_extended=Feature.MILLSTREAM in session.features,
            has_json=Feature.JSON in session.features,
            may_take_over=session.may("admin"),
            config=partial(self.config, session.bucket),
        )  # fmt: skip
        return connection.streamer

    def open_feed(self, session: KvSession, name: str) -> StreamPort:
        """Make a connection one that feeds copies; an older one of the same name is closed."""
        connection = next(c for c in self.connections if c.session is session)
        assert session.bucket is not None
        older = self._streams.get((session.bucket.name, name))
        if older is not None:
            older.close()
        self._streams[session.bucket.name, name] = connection
        connection.feeder = FeedSession(
            connection, session.bucket, name, session.refusal,
            is_extended=Feature.MILLSTREAM in session.features,
            now_s=lambda: self.now_ns() // 1_000_000_000,
        )  # fmt: skip
        return connection.feeder

    def check_password(self, session: KvSession, name: str, password: str) -> None:
        """Check a plain password off the loop (it is slow on purpose)."""
        connection = next(c for c in self.connections if c.session is session)
        self._start(self._check(connection, name, password), "kv password check")

    def later(self, session: KvSession, seconds: float, done: Callable[[], None]) -> None:
        """Call back after some seconds, if the connection is still open."""
        connection = next(c for c in self.connections if c.session is session)

        def go_on() -> None:
            if connection in self.connections:
                done()
                connection.advance()

        self.loop.call_later(seconds, go_on)

    def change_state(
        self,
        session: KvSession,
        partition_id: int,
        state: PartitionState,
        done: Callable[[Status], None],
    ) -> None:
        """Set the state of a copy; the connection's requests wait meanwhile."""
        connection = next(c for c in self.connections if c.session is session)
        assert session.bucket is not None
        work = session.bucket.copies.set_state(partition_id, state)
        what = f"partition {partition_id} of {session.bucket.name}"
        self._start(self._change(connection, work, what, done), "kv change of state")

    def adopt(
        self,
        session: KvSession,
        records: Mapping[int, DataRecord],
        done: Callable[[Status], None],
    ) -> None:
        """Adopt records; the connection's requests wait meanwhile."""
        connection = next(c for c in self.connections if c.session is session)
        bucket = session.bucket
        assert bucket is not None
        assert bucket.adopt is not None
        what = f"records of {bucket.name}"
        self._start(self._change(connection, bucket.adopt(records), what, done), "kv adopt")

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = self.loop.create_task(work, name=name)
        self._checks.add(task)
        task.add_done_callback(self._checks.discard)

    async def _change(
        self,
        connection: KvConnection,
        work: Awaitable[Any],
        what: str,
        done: Callable[[Any], None],
        failure: Status = Status.ETMPFAIL,
    ) -> None:
        """Give what the work returns, or the status that refuses it, to `done`."""
        try:
            result = await work
            found: Any = Status.SUCCESS if result is None else result
        except UsageError:
            found = Status.EINVAL
        except (MillstreamError, OSError) as error:
            _LOG.error("%s: %s", what, error)
            found = failure
        if connection in self.connections:
            done(found)
            connection.advance()
        else:
            connection.drop_upload()

    def read_blob(
        self,
        session: KvSession,
        name: bytes,
        offset: int,
        size: int,
        done: Callable[[BlobPiece | None], None],
    ) -> None:
        """Read a piece of an attachment in a thread; the connection's requests wait meanwhile."""
        connection = next(c for c in self.connections if c.session is session)
        assert session.bucket is not None
        read = partial(session.bucket.attachments.read, name, offset, size)
        self._start(self._read_blob(connection, read, done), "kv read blob")

    async def _read_blob(
        self,
        connection: KvConnection,
        read: Callable[[], BlobPiece | None],
        done: Callable[[BlobPiece | None], None],
    ) -> None:
        piece = await asyncio.to_thread(read)
        if connection in self.connections:
            done(piece)
            connection.advance()

    def put_blob(
        self,
        session: KvSession,
        name: bytes,
        offset: int,
        total: int,
        data: bytes,
        done: Callable[[int | Status], None],
    ) -> None:
        """Store a piece of an attachment; the connection's requests wait meanwhile."""
        connection = next(c for c in self.connections if c.session is session)
        assert session.bucket is not None
        upload = connection.upload_for(session.bucket)
        take = upload.take(name, offset, total, data)
        what = f"an attachment from {session.peer}"
        work = self._change(connection, take, what, done, failure=Status.ENOMEM)
        self._start(work, "kv put blob")

    def measure(
        self,
        session: KvSession,
        asked: Sequence[Asked],
        limits: tuple[int, int, int],
        done: Callable[[Mapping[int, Sequence[Piece]] | Status], None],
    ) -> None:
        """Measure what a lease shows; the connection's requests wait meanwhile."""
        connection = next(c for c in self.connections if c.session is session)
        work = measure(asked, limits, self._measuring)
        self._start(self._change(connection, work, "measuring a lease", done), "kv measure")

    def wipe(self, session: KvSession, at_ns: int, done: Callable[[], None]) -> None:
        """Delete all documents of the session's bucket; its requests wait meanwhile."""
        connection = next(c for c in self.connections if c.session is session)
        assert session.bucket is not None

        def go_on() -> None:
            done()
            connection.advance()

        session.bucket.wipe(at_ns, go_on)

    async def _check(self, connection: KvConnection, name: str, password: str) -> None:
        user = await self.users.log_in(name, password, connection.session.source)
        if connection in self.connections:
            connection.session.on_password_checked(user)
            connection.advance()

    def statistics(self) -> list[tuple[str, str]]:
        """Return the server's own statistics."""
        now_ns = self.now_ns()
        return [
            ("pid", str(os.getpid())),
            ("version", VERSION),
            ("time", str(now_ns // 1_000_000_000)),
            ("uptime", str((now_ns - self.started_ns) // 1_000_000_000)),
            ("curr_connections", str(len(self.connections))),
            ("total_connections", str(self.connection_total)),
            ("buckets", str(len(self.buckets))),
            ("http_port", str(self.http_port)),
            ("coord_port", str(self.coord_port)),
            ("hot_functions", accelerated.state()),
            *as_text(dict(self.node_figures())),
        ]

    # -- connections

    def streaming(self, bucket: str) -> list[tuple[str, KvConnection]]:
        """Return the connections that stream a bucket, with the names of their streams."""
        return [(name, one) for (of, name), one in self._streams.items() if of == bucket]

    def tell_changed(self, bucket: Bucket) -> None:
        """Notify a bucket's subscribers of changes, in the next turn of the loop."""
        bucket.is_told_soon = True
        self.loop.call_soon(bucket.changed)

    def forget(self, connection: KvConnection) -> None:
        """A connection has closed."""
        self.guests.leave(connection)
        self.connections.discard(connection)
        self.waiting.discard(connection)
        self.notices.forget(connection)
        for key in [k for k, c in self._streams.items() if c is connection]:
            del self._streams[key]

    def wait(self, connection: KvConnection) -> None:
        """Replies of a connection wait: check them, since their time is bounded."""
        self.waiting.add(connection)
        if self._waiting_timer is None:
            self._waiting_timer = self.loop.call_later(DURABLE_TICK_S, self._look_at_waiting)

    def _look_at_waiting(self) -> None:
        self._waiting_timer = None
        self.on_persisted()

    def on_persisted(self) -> None:
        """A group commit is durable, or copies have more: release the waiting replies."""
        waiting, self.waiting = self.waiting, set()
        for connection in waiting:
            connection.on_persisted()

    def drop_bucket(self, bucket: Bucket) -> None:
        """Close the connections that use a bucket which is being removed."""
        streams = {c for (name, _), c in self._streams.items() if name == bucket.name}
        for connection in list(self.connections):
            if connection.session.bucket is bucket or connection in streams:
                connection.close()

    def drop_user(self, name: str) -> None:
        """Close the connections of a user whose rights changed: they log in again."""
        for connection in list(self.connections):
            user = connection.session.user
            if user is not None and user.name == name:
                connection.close()

    def drop_plain(self) -> None:
        """Close the connections of the plain memcached port."""
        for connection in list(self.connections):
            if connection.session.hashes_keys:
                connection.close()

    def close(self) -> None:
        """Close all connections, and those that are still being accepted."""
        self.is_closed = True
        self.notices.close()
        if self._waiting_timer is not None:
            self._waiting_timer.cancel()
            self._waiting_timer = None
        for connection in list(self.connections):
            connection.close()
