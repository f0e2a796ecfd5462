"""A kv server without sockets: transports, streams and users that a test looks at."""

from __future__ import annotations

import asyncio
from typing import Any

from millstream.kv.aio.server import KvConnection, KvServer
from millstream.model.limits import FRAME_BYTES_MAX
from millstream.upr.core.producer import StreamFigures
from millstream.wire.mcbp import Opcode, Packet, cut_packets, request
from support.kv.log_double import NOW, new_bucket
from support.kv.session_double import UserDouble, UsersDouble


class TransportDouble(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.data = b""
        self.writes = 0
        self.is_reading_now = True
        self.is_closed = False
        self.is_aborted = False
        self.buffered = 0

    def write(self, data: Any) -> None:
        self.data += data
        self.writes += 1

    def close(self) -> None:
        self.is_closed = True

    def get_write_buffer_size(self) -> int:
        return self.buffered

    def abort(self) -> None:
        self.is_closed = self.is_aborted = True

    def is_closing(self) -> bool:
        return self.is_closed

    def pause_reading(self) -> None:
        self.is_reading_now = False

    def resume_reading(self) -> None:
        self.is_reading_now = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def take(self) -> list[Packet]:
        packets, rest = cut_packets(self.data, FRAME_BYTES_MAX)
        self.data = rest
        return packets


class StreamerDouble:
    def __init__(self, connection: KvConnection, *_: object, **__: object) -> None:
        self.connection = connection
        self.calls: list[str] = []
        self.last_rollback = None

    def on_packet(self, packet: Packet) -> None:
        self.connection.write(request(Opcode.DCP_NOOP))

    def on_resume(self) -> None:
        self.calls.append("resume")

    def close(self) -> None:
        self.calls.append("close")

    def statistics(self) -> list[tuple[str, str]]:
        return [("name:unacked_bytes", "0")]

    def progress(self, partition_id: int) -> tuple[str, int] | None:
        return None

    def figures(self) -> StreamFigures:
        return StreamFigures(streams=1, backfilling=0, lag=7, unacked_bytes=0, sent_bytes=10,
                             is_stuck=True, is_dead=False)  # fmt: skip


class SlowUsers(UsersDouble):
    is_empty = False

    async def log_in(self, name: str, password: str, source: str) -> UserDouble | None:
        return await asyncio.to_thread(self.check_password, name, password, source)

    def check_password(self, name: str, password: str, source: str = "") -> UserDouble | None:
        return UserDouble("read") if password == "right" else None


def new_server(users: UsersDouble | None = None) -> KvServer:
    bucket = new_bucket(4, "default")
    return KvServer(
        {"default": bucket},
        users or UsersDouble(),
        StreamerDouble,
        now_ns=lambda: NOW,  # type: ignore[arg-type]
    )


def connect(server: KvServer, *, plain: bool = True) -> tuple[KvConnection, TransportDouble]:
    connection = server.memcached_protocol() if plain else server.kv_protocol()
    transport = TransportDouble()
    connection.connection_made(transport)
    return connection, transport
