"""A connection against a scripted peer; the log-in as a whole is in test_client."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import uvloop

from millstream.access.kv_login import Login
from millstream.errors import AccessError, RemoteProtocolError, UnavailableError
from millstream.upr.aio.link import UNIX, Link
from millstream.wire.mcbp import Opcode, Status, cut_packets, request, response


class Peer:
    """Answers everything; GET by its key, in two pieces."""

    def __init__(self) -> None:
        self.is_silent = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        rest = b""
        while data := await reader.read(65536):
            packets, rest = cut_packets(rest + data, 100_000)
            for packet in packets:
                if packet.opcode == Opcode.QUIT:
                    writer.close()
                    return
                status = Status.EACCESS if packet.key == b"secret" else Status.SUCCESS
                value = b"" if packet.opcode == Opcode.HELLO else packet.key
                reply = response(packet.opcode, status, packet.opaque, value=value)
                writer.write(b"" if self.is_silent else reply[:10])
                await writer.drain()
                writer.write(b"" if self.is_silent else reply[10:])
        writer.close()


@pytest.fixture
async def peer() -> AsyncIterator[tuple[Peer, Link]]:
    made = Peer()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    link = Link(Login("peer", bucket="b"), "127.0.0.1", port, tls=None, timeout_s=60)
    await link.open()
    yield made, link
    await link.close()
    server.close()
    await server.wait_closed()


async def test_requests_sent_together_are_answered_in_order(peer: tuple[Peer, Link]) -> None:
    _, link = peer
    keys = [b"%d" % number for number in range(50)]
    replies = await link.ask_all([request(Opcode.GET, key=key) for key in keys])
    assert [packet.value for packet in replies] == keys


async def test_a_refusal_names_what_was_asked(peer: tuple[Peer, Link]) -> None:
    _, link = peer
    with pytest.raises(AccessError, match="the secret"):
        await link.demand(request(Opcode.GET, key=b"secret"), "the secret")


async def test_silence_a_cut_and_a_closed_link_are_told_apart(peer: tuple[Peer, Link]) -> None:
    made, link = peer
    made.is_silent = True
    link._timeout_s = 0.05
    with pytest.raises(UnavailableError) as silent:
        await link.ask(request(Opcode.GET, key=b"x"))
    assert silent.value.code == "timeout"
    await link.write(request(Opcode.QUIT))
    with pytest.raises(UnavailableError) as cut:
        await link.read()
    assert cut.value.code == "connection_closed"
    await link.close()
    await link.close()
    for work in (link.read(), link.write(b"x")):
        with pytest.raises(UnavailableError, match="was closed"):
            await work


def test_a_write_after_the_end_is_a_lost_connection() -> None:
    async def write() -> None:
        async def end(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.transport.abort()

        server = await asyncio.start_server(end, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        link = Link(Login("peer", bucket="b"), "127.0.0.1", port, tls=None, timeout_s=60)
        link._reader, link._writer = await asyncio.open_connection("127.0.0.1", port)
        server.close()
        await link._reader.read()
        link._writer.transport.abort()
        await asyncio.sleep(0)  # the transport closes its handle
        with pytest.raises(UnavailableError) as lost:
            await link.write(b"x")
        assert lost.value.code == "connection_closed"

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(write())


async def test_a_socket_of_this_machine_is_reached_by_its_path(tmp_path: Path) -> None:
    made = Peer()
    path = tmp_path / "k.sock"
    server = await asyncio.start_unix_server(made.serve, path)
    address = f"{UNIX}{path}"
    link = Link(Login(address, bucket="b"), address, 0, tls=None, timeout_s=60)
    await link.open()
    assert (await link.ask(request(Opcode.GET, key=b"k"))).value == b"k"
    await link.close()
    server.close()
    await server.wait_closed()
    path.unlink(missing_ok=True)
    with pytest.raises(UnavailableError, match=r"k\.sock"):
        await link.open()


async def test_a_bucket_is_opened_at_nodes_of_ours_only(peer: tuple[Peer, Link]) -> None:
    await peer[1].close()
    with pytest.raises(RemoteProtocolError, match="not a Millstream node"):
        await peer[1].open_bucket("ff")
