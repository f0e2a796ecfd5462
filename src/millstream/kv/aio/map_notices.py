"""Tells clients that asked for it of new cluster maps: they fetch them then, and do not poll.

Invariants:
1. A client with the feature is told (epoch, revision) of the map of its bucket, or of the nodes
   while it has none selected: soon after it has logged in, and within `LOOK_SECONDS` of a change.
2. A client that does not read is told once it reads again, of the newest map alone.

It looks instead of being told, since maps change in many places and no change may be missed: SDKs
that are granted the feature ask for maps at no other time.

Elsewhere: the maps (`kv.core.copies.cluster_config`).
Source: Couchbase's binary protocol, "Cluster map change notification" in its brief form.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from struct import Struct
from typing import Final, Protocol

from millstream.kv.core.bucket import Bucket
from millstream.kv.core.copies.cluster_config import version_of
from millstream.kv.core.session.session import KvSession
from millstream.wire.mcbp import SERVER_REQUEST, Feature, ServerOpcode, packet

__all__ = ["LOOK_SECONDS", "MapNotices", "NoticedConnection"]

LOOK_SECONDS: Final = 0.5
_VERSION: Final = Struct(">qq")


class NoticedConnection(Protocol):
    """A connection that can be sent notices of maps."""

    session: KvSession
    is_paused: bool
    told_map: bytes | None

    def write(self, data: bytes) -> None:
        """Send bytes in their turn among the replies."""


class MapNotices:
    """Looks after the connections of a node that asked for notices, while there are any.

    Args:
        config: returns the map of a bucket as JSON; without a bucket the nodes.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        config: Callable[[Bucket | None], bytes],
    ) -> None:
        self._loop = loop
        self._connections: set[NoticedConnection] = set()
        self._config = config
        self._timer: asyncio.TimerHandle | None = None

    def add(self, connection: NoticedConnection) -> None:
        """A connection was granted the feature: look at it from now on."""
        self._connections.add(connection)
        self._begin()

    def forget(self, connection: NoticedConnection) -> None:
        """A connection has closed; does nothing if it was not looked at."""
        self._connections.discard(connection)

    def _begin(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(LOOK_SECONDS, self._look)

    def close(self) -> None:
        """Look no more."""
        self._connections.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        notices: dict[Bucket | None, bytes] = {}
        for connection in list(self._connections):
            session = connection.session
            if Feature.MAP_NOTICE not in session.features:  # it asked for others since
                self._connections.discard(connection)
                continue
            if connection.is_paused or not session.is_logged_in:
                continue
            bucket = session.bucket
            if bucket not in notices:
                notices[bucket] = _notice(bucket, self._config(bucket))
            if notices[bucket] != connection.told_map:
                connection.told_map = notices[bucket]
                connection.write(notices[bucket])
        if self._connections:
            self._begin()


def _notice(bucket: Bucket | None, config: bytes) -> bytes:
    return packet(
        SERVER_REQUEST,
        ServerOpcode.MAP_CHANGED,
        extras=_VERSION.pack(*version_of(config)),
        key=bucket.name.encode() if bucket is not None else b"",
    )
