"""Messages between nodes over real sockets: delivered, lost, refused, never waited for."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from millstream.access.failed_logins import FAILED_LOGINS_MAX
from millstream.access.scram_client import ScramClient
from millstream.access.users import NODE_USER, UserStore
from millstream.coordination.aio import peers as module
from millstream.coordination.aio.peers import Peers
from millstream.coordination.core.pool.messages import Address
from millstream.errors import RemoteProtocolError
from millstream.vsr.core.messages import (
    FRAME_BYTES_MAX,
    LENGTH,
    Envelope,
    QuorumCheck,
    decode,
    encode,
)
from support.coordination.coordinators import GROUP, WAIT_S, bound, until

NODE = b"n" * 16
SECRET = "a secret of sixteen"


def message(number: int) -> Envelope:
    return Envelope(GROUP, NODE, 1, 0, 0, QuorumCheck(number))


class Ends:
    """One who listens and one who dials."""

    def __init__(self, listener: dict[str, Any], dialler: dict[str, Any]) -> None:
        self.got: list[int] = []
        self.listener = Peers(self.take, **listener)
        self.dialler = Peers(lambda _: None, **dialler)
        self.place = Address("127.0.0.1", 0)

    def take(self, frame: bytes) -> None:
        check = decode(frame).payload
        assert isinstance(check, QuorumCheck)
        self.got.append(check.nonce)

    def send(self, *numbers: int) -> None:
        for number in numbers:
            self.dialler.send(self.place, encode(message(number)))

    async def listen(self) -> None:
        listening = bound(self.place.port or None)
        self.place = Address(*listening.getsockname())
        await self.listener.listen(listening)


@asynccontextmanager
async def ends(
    listener: dict[str, Any] | None = None, dialler: dict[str, Any] | None = None
) -> AsyncIterator[Ends]:
    pair = Ends(listener or {}, dialler or {})
    await pair.listen()
    try:
        yield pair
    finally:
        await pair.dialler.close()
        await pair.listener.close()


async def talk(place: Address, data: bytes) -> bytes:
    """Say something; return all that is answered until the connection is closed."""
    reader, writer = await asyncio.open_connection(*place)
    try:
        writer.write(data)
        return await asyncio.wait_for(reader.read(), 60)
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


async def test_messages_arrive_in_order_the_greeting_first() -> None:
    async with ends(dialler={"greeting": lambda _: encode(message(0))}) as pair:
        pair.send(*range(1, 500))
        await until(lambda: len(pair.got) == 500)
        assert pair.got == list(range(500))
        assert pair.dialler.connected == 1
        assert pair.dialler.dropped_total == 0


async def test_a_node_that_comes_back_is_reached_again() -> None:
    async with ends() as pair:
        pair.send(1)
        await until(lambda: pair.got == [1])
        await pair.listener.close()
        await until(lambda: pair.dialler.connected == 0)
        pair.send(2)
        pair.listener = Peers(pair.take)
        await pair.listen()

        def arrived() -> bool:
            pair.send(3)
            return 3 in pair.got

        await until(arrived)


async def test_a_node_that_hangs_up_at_once_is_dialled_as_rarely_as_a_lost_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a copy of another node's directory does, which stands at this node's address."""
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def slept(delay_s: float) -> None:
        if delay_s >= module.BACKOFF_S / 2:
            pauses.append(delay_s)
        await sleep(min(delay_s, 0.001))

    def hang_up(_: bytes) -> None:
        raise RemoteProtocolError("it takes this node for another one", code="bad_greeting")

    async with ends(dialler={"greeting": lambda _: encode(message(0))}) as pair:
        pair.listener._on_frame = hang_up
        with monkeypatch.context() as patched:
            patched.setattr(module.random, "uniform", lambda _, most: most)
            patched.setattr(module.asyncio, "sleep", slept)
            pair.send(1)
            async with asyncio.timeout(WAIT_S):
                while len(pauses) < 6:
                    await sleep(0.001)
    assert pauses[:4] == [0.05, 0.1, 0.2, 0.4]
    assert set(pauses[4:]) == {module.BACKOFF_S_MAX}


async def test_why_connections_of_a_host_are_closed_is_logged_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TOLD_MAX", 2)
    async with ends() as pair:
        for _ in range(3):
            assert (await talk(pair.place, b"GET / HTTP/1.1\r\n\r\n")).startswith(b"e=")
        told = [one for one in caplog.records if one.levelname == "WARNING"]
        said = "a connection of a node at 127.0.0.1 is closed: it does not speak the protocol"
        assert [one.getMessage() for one in told] == [f"{said} of nodes"]
        monkeypatch.setattr(module, "TOLD_S", 0.0)
        await talk(pair.place, b"GET / HTTP/1.1\r\n\r\n")
        assert len([one for one in caplog.records if one.levelname == "WARNING"]) == 2


async def test_it_is_told_if_nobody_listens_at_an_address() -> None:
    refused: list[Address] = []
    async with ends(dialler={"on_refused": refused.append}) as pair:
        pair.send(1)
        await until(lambda: pair.got == [1])
        assert refused == []
        await pair.listener.close()
        await until(lambda: refused)
        assert set(refused) == {pair.place}


async def test_a_connection_that_the_system_gives_up_is_made_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    readers: list[asyncio.StreamReader] = []
    connect = asyncio.open_connection

    async def connected(*args: Any, **options: Any) -> Any:
        reader, writer = await connect(*args, **options)
        readers.append(reader)
        return reader, writer

    async with ends() as pair:
        monkeypatch.setattr(asyncio, "open_connection", connected)
        pair.send(1)
        await until(lambda: pair.got == [1])
        readers[0].set_exception(TimeoutError(110, "Connection timed out"))

        def arrived() -> bool:
            pair.send(2)
            return len(readers) == 2 and 2 in pair.got

        await until(arrived)


async def test_a_node_that_does_not_read_loses_messages_and_delays_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "OUTGOING_BYTES_MAX", 100_000)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        dialler = Peers(lambda _: None)
        place = Address(*silent.getsockname())
        for number in range(2000):
            dialler.send(place, encode(message(number)))
        assert dialler.dropped_total > 0
        assert dialler.sent_total + dialler.dropped_total == 2000
        await dialler.close()


async def test_no_more_nodes_are_dialled_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OUTGOING_MAX", 1)
    async with ends() as pair:
        pair.send(1)
        await until(lambda: pair.got == [1])
        pair.dialler.send(Address("127.0.0.1", 1), encode(message(2)))
        assert pair.dialler.dropped_total == 1


async def test_a_connection_over_which_nothing_is_sent_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "IDLE_S", 0.05)
    async with ends() as pair:
        pair.send(1)
        await until(lambda: pair.got == [1])
        await until(lambda: len(pair.dialler.tasks) == 0)
        pair.send(2)
        await until(lambda: pair.got == [1, 2])


async def test_a_loop_that_raises_at_lost_connections_costs_no_link(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    raised = []

    async def open_connection(*args: Any, **options: Any) -> Any:
        if not raised:
            raised.append(True)
            raise RuntimeError("the handler is closed")
        return await connect(*args, **options)

    connect = asyncio.open_connection
    async with ends() as pair:
        monkeypatch.setattr(asyncio, "open_connection", open_connection)

        def arrived() -> bool:
            pair.send(1)
            return bool(pair.got)

        await until(arrived)
        assert raised


async def test_nothing_is_written_to_a_connection_that_is_closing() -> None:
    async with ends() as pair:
        pair.send(1)
        await until(lambda: pair.got == [1])
        [link] = pair.dialler._links.values()
        assert link._writer is not None
        written: list[bytes] = []
        link._writer.write = written.append  # type: ignore[method-assign]
        link._writer.transport.abort()
        pair.send(2)
        assert written == []


async def test_a_connection_is_closed_when_its_node_is_there_no_more() -> None:
    async with ends() as pair:
        pair.send(1)
        await until(lambda: pair.got == [1])
        pair.dialler.hang_up(pair.place)
        await until(lambda: len(pair.dialler.tasks) == 0)
        assert pair.dialler.connected == 0


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"x" * 10_000_000,
        b"millstream-peer 1\n" + LENGTH.pack(FRAME_BYTES_MAX + 1),
        b"millstream-peer 1\n" + encode(message(1))[:-1] + b"\0",
        b"millstream-peer 2\n",
    ],
    ids=["http", "flood", "too long", "bad checksum", "version"],
)
async def test_invalid_bytes_end_their_connection(data: bytes) -> None:
    async with ends() as pair:
        assert await talk(pair.place, data) in (b"", b"ok\n", b"e=this port is for other nodes\n")
        assert pair.got == []
        pair.send(1)
        await until(lambda: pair.got == [1])


async def test_a_frame_may_come_in_pieces() -> None:
    async with ends() as pair:
        _, writer = await asyncio.open_connection(*pair.place)
        for byte in b"millstream-peer 1\n" + encode(message(7)) + encode(message(8)):
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0)
        await until(lambda: pair.got == [7, 8])
        writer.close()


async def test_nodes_with_the_same_secret_log_in() -> None:
    users = UserStore(node_secret=SECRET)
    async with ends({"users": users}, {"secret": SECRET}) as pair:
        pair.send(1)
        await until(lambda: pair.got == [1])


@pytest.mark.parametrize("secret", ["", "another one of sixteen"])
async def test_nothing_is_received_without_the_secret(secret: str) -> None:
    users = UserStore(node_secret=SECRET)
    async with ends({"users": users}, {"secret": secret}) as pair:
        pair.send(1)
        hung_up = await talk(pair.place, b"millstream-peer 1\n" + encode(message(2)))
        assert hung_up.startswith(b"e=")
        assert pair.dialler.connected == 0
        assert pair.got == []


async def test_wrong_secrets_from_a_member_s_address_do_not_keep_the_member_out() -> None:
    """A stranger behind the same address guesses under the name that the members share."""
    users = UserStore(node_secret=SECRET)
    async with ends({"users": users}, {"secret": SECRET}) as pair:
        for _ in range(FAILED_LOGINS_MAX + 2):
            client = ScramClient("SCRAM-SHA256", NODE_USER, "a guess of sixteen")
            reader, writer = await asyncio.open_connection(*pair.place)
            writer.write(b"millstream-peer 1 " + client.first() + b"\n")
            writer.write(client.next((await reader.readline())[:-1]) + b"\n")
            assert (await reader.read()).startswith(b"e=")
            writer.close()
        pair.send(1)
        await until(lambda: pair.got == [1])


async def test_users_without_a_secret_let_no_node_in() -> None:
    users = UserStore()
    users.put("admin", "password")
    async with ends({"users": users}) as pair:
        assert (await talk(pair.place, b"millstream-peer 1\n")).startswith(b"e=")


async def test_a_client_that_does_not_log_in_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOGIN_S_MAX", 0.05)
    async with ends() as pair:
        assert await talk(pair.place, b"millstream-peer") == b""


async def test_nodes_talk_over_tls() -> None:
    listener, dialler = (
        ssl.SSLContext(kind) for kind in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT)
    )
    listener.load_cert_chain(Path(__file__).parents[3] / "e2e" / "tls" / "node.pem")
    dialler.check_hostname, dialler.verify_mode = False, ssl.CERT_NONE
    tls = (listener, dialler)
    async with ends({"tls": tls}, {"tls": tls}) as pair:
        pair.send(*range(50))
        await until(lambda: len(pair.got) == 50)
        assert pair.got == list(range(50))
        assert len(pair.listener._incoming) == 1


async def test_too_many_connections_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "INCOMING_MAX", 1)
    async with ends() as pair:
        pair.send(1)
        await until(lambda: pair.got == [1])
        assert await talk(pair.place, b"millstream-peer 1\n") == b""


async def test_a_connection_that_was_accepted_before_the_end_is_not_served_after_it() -> None:
    """Its node would take what it sends for delivered, and never dial the next process."""
    accepted: asyncio.Queue[Any] = asyncio.Queue()
    server = await asyncio.start_server(
        lambda *streams: accepted.put_nowait(streams), "127.0.0.1", 0
    )
    async with server, ends() as pair:
        dialled = asyncio.ensure_future(
            talk(Address(*server.sockets[0].getsockname()), b"millstream-peer 1\n")
        )
        reader, writer = await accepted.get()
        await pair.listener.close()
        pair.listener._serve(reader, writer)
        assert await dialled == b""
        assert len(pair.listener.tasks) == 0


async def test_no_node_is_dialled_after_the_end() -> None:
    async with ends() as pair:
        await pair.dialler.close()
        pair.send(1)
        assert len(pair.dialler.tasks) == 0


async def test_connections_without_login_make_room_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "STRANGERS_MAX", 1)
    users = UserStore(node_secret=SECRET)
    async with ends({"users": users}, {"secret": SECRET}) as pair:
        reader, writer = await asyncio.open_connection(*pair.place)
        await until(lambda: len(pair.listener._strangers) == 1)
        pair.send(1)
        await until(lambda: pair.got == [1])
        with suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), 60) == b""
        writer.close()
        assert not pair.listener._strangers


async def test_a_user_whose_rights_change_logs_in_again() -> None:
    users = UserStore(node_secret=SECRET)
    async with ends({"users": users}, {"secret": SECRET}) as pair:
        pair.send(1)
        await until(lambda: pair.got == [1])
        (known,) = pair.listener._incoming
        pair.listener.drop_user("ada")
        pair.listener.drop_user(NODE_USER)
        await until(lambda: known not in pair.listener._incoming)
        pair.send(2)


async def test_a_login_under_way_does_not_outlive_the_users_rights() -> None:
    users = UserStore()
    users.put("ada", "pw")
    async with ends({"users": users}) as pair:
        reader, writer = await asyncio.open_connection(*pair.place)
        client = ScramClient("SCRAM-SHA256", "ada", "pw")
        writer.write(b"millstream-peer 1 " + client.first() + b"\n")
        challenge = await reader.readline()
        users.put("ada", "another")
        writer.write(client.next(challenge[:-1]) + b"\n" + encode(message(1)))
        with suppress(ConnectionResetError):
            assert (await asyncio.wait_for(reader.read(), 60)).startswith(b"e=")
        writer.close()
        assert pair.got == []


@pytest.mark.parametrize("host", ["x..y", "a\0b"])
async def test_a_name_that_is_none_is_tried_as_rarely_as_any(
    host: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "BACKOFF_S", 600.0)
    caplog.set_level("INFO", module.__name__)
    peers = Peers(lambda _: None)
    peers.send(Address(host, 7), encode(message(1)))
    (link,) = peers._links.values()
    await until(lambda: link._task.done() or "cannot be reached" in caplog.text)
    assert not link._task.done()
    await peers.close()
