"""Connections with TLS are counted when they are accepted: who says nothing holds nobody up."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import cast

import pytest

from millstream.coordination.aio import coordinator, handshakes
from millstream.coordination.aio.coordinator import Coordinator, Listening
from millstream.coordination.aio.handshakes import Handshakes
from millstream.coordination.core.pool.effects import FIRST_GROUP
from support.coordination.coordinators import WAIT_S, bound, until

TLS = Path(__file__).parents[3] / "e2e" / "tls"


class Echo(asyncio.Protocol):
    """Says what it hears."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.WriteTransport", transport)

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


def server_tls() -> ssl.SSLContext:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(TLS / "node.pem")
    return tls


def client_tls() -> ssl.SSLContext:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    return tls


@asynccontextmanager
async def door(most: int) -> AsyncIterator[tuple[Handshakes, tuple[str, int]]]:
    listening = bound()
    place = listening.getsockname()
    door = Handshakes(listening, 16, Echo, server_tls(), timeout_s=WAIT_S, most=most)
    try:
        yield door, place
    finally:
        await door.close()


async def heard(place: tuple[str, int], said: bytes) -> bytes:
    async with asyncio.timeout(WAIT_S):
        reader, writer = await asyncio.open_connection(*place, ssl=client_tls())
        writer.write(said)
        try:
            return await reader.readexactly(len(said))
        finally:
            writer.close()


async def test_a_finished_handshake_is_admitted_and_no_longer_counted() -> None:
    async with door(2) as (handshakes, place):
        assert [await heard(place, b"%d" % number) for number in range(5)] == [
            b"0", b"1", b"2", b"3", b"4",
        ]  # fmt: skip
        await until(lambda: not handshakes.under_way)


async def test_the_oldest_of_too_many_handshakes_is_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(handshakes, "HANDSHAKE_S_MIN", 0.01)
    async with door(2) as (there, place), AsyncExitStack() as stack:
        silent = []
        for _ in range(5):
            reader, writer = await asyncio.open_connection(*place)
            stack.callback(writer.close)
            silent.append(reader)
        assert await heard(place, b"here") == b"here"
        assert there.under_way <= 2
        for reader in silent[:3]:
            with suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(), WAIT_S) == b""


async def test_a_rush_of_those_who_go_on_costs_nobody() -> None:
    async with door(2) as (_, place):
        rush = [heard(place, b"%d" % number) for number in range(12)]
        assert await asyncio.gather(*rush) == [b"%d" % number for number in range(12)]


async def test_where_no_descriptor_is_left_the_oldest_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(handshakes, "HANDSHAKE_S_MIN", 0.01)
    async with door(9) as (there, place):
        reader, writer = await asyncio.open_connection(*place)
        await until(lambda: there.under_way == 1)
        loop = asyncio.get_running_loop()
        accept = loop.sock_accept

        async def refuse(listening: socket.socket) -> object:
            if there.under_way and not reader.at_eof():
                raise OSError(errno.EMFILE, "Too many open files")
            return await accept(listening)

        monkeypatch.setattr(loop, "sock_accept", refuse)
        assert await heard(place, b"one") == b"one"  # it was waited for before
        with suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), WAIT_S) == b""
        await until(lambda: not there.under_way)
        assert await heard(place, b"two") == b"two"
        writer.close()


async def test_clients_of_a_node_get_in_while_strangers_say_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator, "HANDSHAKES_MAX", 2)
    monkeypatch.setattr(handshakes, "HANDSHAKE_S_MIN", 0.01)
    listening = bound()
    place = listening.getsockname()
    node = await Coordinator.start(tmp_path, Listening(coord=listening, tls=server_tls()))
    await until(lambda: node.groups.numbered[FIRST_GROUP].replica.leading)
    strangers = [await asyncio.open_connection(*place) for _ in range(6)]
    reader, writer = await asyncio.open_connection(*place, ssl=client_tls())
    writer.write(b"PING\r\n")
    assert await asyncio.wait_for(reader.readexactly(7), WAIT_S) == b"+PONG\r\n"
    with suppress(ConnectionResetError):
        assert await asyncio.wait_for(strangers[0][0].read(), WAIT_S) == b""
    for _, one in [*strangers, (reader, writer)]:
        one.close()
    await node.stop()
