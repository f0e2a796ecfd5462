"""Clients that asked for it are told of new maps."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from msgspec import json

from millstream.kv.aio import map_notices
from millstream.kv.aio.server import KvServer
from millstream.wire.mcbp import HEADER, Feature, Opcode, request
from support.kv.server_double import SlowUsers, connect, new_server

SERVER_REQUEST = 0x82
BOTH = (Feature.DUPLEX, Feature.MAP_NOTICE)


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(map_notices, "LOOK_SECONDS", 0.001)


def hello(*features: Feature) -> bytes:
    return request(Opcode.HELLO, value=struct.pack(f">{len(features)}H", *features))


def client(server: KvServer, *features: Feature, bucket: bytes = b"default") -> Any:
    """Return a connection with these features that has selected a bucket, and its transport."""
    connection, transport = connect(server, plain=False)
    connection.data_received(hello(*features))
    if bucket:
        connection.data_received(request(Opcode.SELECT_BUCKET, key=bucket))
    transport.take()
    return connection, transport


class Notice(NamedTuple):
    """What a server sends unasked."""

    magic: int
    opcode: int
    key: bytes
    extras: bytes
    value: bytes


async def until(is_so: Callable[[], Any]) -> None:
    for _ in range(30_000):
        if is_so():
            return
        await asyncio.sleep(0.002)
    raise AssertionError("it did not come")


async def told(transport: Any) -> Notice:
    """Return the one packet that comes."""
    await until(lambda: transport.data)
    data, transport.data = transport.data, b""
    magic, opcode, key_bytes, extras_bytes, _, _, body_bytes, _, _ = HEADER.unpack(data[:24])
    assert len(data) == 24 + body_bytes
    extras, rest = data[24 : 24 + extras_bytes], data[24 + extras_bytes :]
    return Notice(magic, opcode, rest[:key_bytes], extras, rest[key_bytes:])


async def looked(server: KvServer) -> None:
    """Wait until the server has looked at all connections, whatever it told them."""
    _, bystander = client(server, *BOTH)
    await told(bystander)


def version_of(server: KvServer, name: str | None) -> bytes:
    config = json.decode(server.config(server.buckets[name] if name else None))
    return struct.pack(">qq", config["revEpoch"], config["rev"])


async def test_a_client_is_told_of_the_map_it_has_and_of_each_new_one() -> None:
    server = new_server()
    _, transport = client(server, *BOTH)
    first = await told(transport)
    assert (first.magic, first.opcode, first.key) == (SERVER_REQUEST, 0x01, b"default")
    assert first.extras == version_of(server, "default")
    assert first.value == b""
    await looked(server)
    assert not transport.data
    server.map_revision += 1
    second = await told(transport)
    assert second.extras == version_of(server, "default") != first.extras
    server.close()


async def test_a_client_without_a_bucket_is_told_of_the_nodes_until_it_selects_one() -> None:
    server = new_server()
    connection, transport = client(server, *BOTH, bucket=b"")
    notice = await told(transport)
    assert (notice.key, notice.extras) == (b"", version_of(server, None))
    connection.data_received(request(Opcode.SELECT_BUCKET, key=b"default"))
    transport.take()
    assert (await told(transport)).key == b"default"
    server.close()


async def test_a_map_that_a_client_has_already_is_not_sent_again() -> None:
    server = new_server()
    server.map_revision = 5
    connection, transport = client(server, Feature.MAP_KNOWN)
    config = server.config(server.buckets["default"])
    epoch, revision = struct.unpack(">qq", version_of(server, "default"))

    def answer(*known: int) -> bytes:
        extras = struct.pack(">qq", *known) if known else b""
        connection.data_received(request(Opcode.GET_CLUSTER_CONFIG, extras=extras))
        (reply,) = transport.take()
        assert reply.status == 0
        return bytes(reply.value)

    assert answer() == answer(epoch, revision - 1) == answer(epoch - 1, revision + 1) == config
    assert answer(epoch, revision) == answer(epoch, revision + 1) == answer(epoch + 1, 0) == b""
    connection, transport = client(server, *BOTH)
    assert answer(epoch, revision) == config
    server.close()


@pytest.mark.parametrize("features", [(), (Feature.DUPLEX,), (Feature.MAP_NOTICE,)])
async def test_who_did_not_ask_for_both_features_is_told_nothing(
    features: tuple[Feature, ...],
) -> None:
    server = new_server()
    _, transport = client(server, *features)
    await looked(server)
    assert not transport.data
    server.close()


async def test_strangers_are_told_nothing() -> None:
    server = new_server(SlowUsers())
    assert not server.users.is_empty
    _, transport = client(server, *BOTH, bucket=b"")
    known, other_transport = connect(new_server(), plain=False)
    known.data_received(hello(*BOTH))
    other_transport.take()
    server.notices.add(known)
    await told(other_transport)
    assert not transport.data
    server.close()


async def test_a_client_that_does_not_read_is_told_of_the_newest_map_once_it_reads() -> None:
    server = new_server()
    connection, transport = client(server, *BOTH)
    await told(transport)
    connection.pause_writing()
    for _ in range(3):
        server.map_revision += 1
        await looked(server)
    assert not transport.data
    connection.resume_writing()
    assert (await told(transport)).extras == version_of(server, "default")
    server.close()


async def test_nobody_is_looked_at_once_the_server_is_closed() -> None:
    server, other = new_server(), new_server()
    _, transport = client(server, *BOTH)
    server.close()
    await looked(other)  # which began to look later
    assert not transport.data
    other.close()


async def test_only_who_asked_for_notices_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    server, other = new_server(), new_server()
    looks = list[bool]()
    monkeypatch.setattr(server.notices, "_look", lambda: looks.append(True))
    connection, _ = client(server, Feature.DUPLEX)
    await looked(other)
    assert not looks
    connection.data_received(hello(*BOTH))
    await until(lambda: looks)
    server.close()
    other.close()


async def test_who_has_gone_or_asks_for_notices_no_more_is_not_looked_at() -> None:
    server = new_server()
    connection, transport = client(server, *BOTH)
    gone, _ = client(server, *BOTH)
    await told(transport)
    gone.connection_lost(None)
    connection.data_received(hello(Feature.DUPLEX))
    transport.take()
    server.map_revision += 1
    await looked(server)
    assert not transport.data
    assert server.notices._connections.isdisjoint({connection, gone})
    server.close()


async def test_a_map_that_is_worded_anew_is_not_told_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = new_server()
    _, transport = client(server, *BOTH)
    await told(transport)
    config = server.config(server.buckets["default"])
    monkeypatch.setattr(server.notices, "_config", lambda _: config + b" ")
    await looked(server)
    assert not transport.data
    server.close()
