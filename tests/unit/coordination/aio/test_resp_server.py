"""Sockets around connections: bytes in and out, bounded, closed when they should be."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import NamedTuple

import pytest

from millstream.access import token_keys
from millstream.access.token_keys import TokenKeys
from millstream.access.tokens import LEEWAY_S
from millstream.access.users import User, UserStore
from millstream.coordination.aio import resp_server, user_guard
from millstream.coordination.aio.resp_server import RespServer
from millstream.coordination.aio.user_guard import UserGuard
from millstream.coordination.core.backend import Guard
from millstream.vsr.core.entries import Body
from support.coordination.coordination_backend import FakeGuard, RegisterBackend
from support.node.token_issuer import NOW_S, RULES, jwks, token

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Running(NamedTuple):
    server: RespServer
    backend: RegisterBackend
    port: int

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Streams]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            yield reader, writer
        finally:
            writer.close()
            await writer.wait_closed()


@asynccontextmanager
async def serving(guard: Guard) -> AsyncIterator[Running]:
    backend = RegisterBackend()
    server = RespServer(backend, guard)
    listener = await asyncio.get_running_loop().create_server(server.connection, "127.0.0.1", 0)
    yield Running(server, backend, listener.sockets[0].getsockname()[1])
    listener.close()
    server.close()
    await listener.wait_closed()
    await turns(lambda: not server.connections)


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    async with serving(FakeGuard()) as running:
        yield running


async def turns(is_so: Callable[[], bool]) -> None:
    """Let the loop turn until it is so."""
    async with asyncio.timeout(60):
        while not is_so():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0)


async def test_requests_are_answered(running: Running) -> None:
    async with running.client() as (reader, writer):
        writer.write(b"SET k v\r\nGET k\r\n")
        assert await reader.readexactly(12) == b"+OK\r\n$1\r\nv\r\n"


async def test_a_pipeline_longer_than_a_turn(running: Running) -> None:
    async with running.client() as (reader, writer):
        writer.write(b"PING\r\n" * 3000)
        assert await reader.readexactly(21_000) == b"+PONG\r\n" * 3000


async def test_late_replies_leave_together(running: Running) -> None:
    running.backend.holds = True
    async with running.client() as (reader, writer):
        writer.write(b"SET k v\r\n" * 5)
        await turns(lambda: len(running.backend.held) == 5)
        for _ in range(5):
            running.backend.release(0)
        assert await reader.read(1000) == b"+OK\r\n" * 5


async def test_a_client_that_does_not_read_is_not_read_from(running: Running) -> None:
    value, number = b"v" * 500_000, 60
    async with running.client() as (reader, writer):
        writer.write(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$500000\r\n" + value + b"\r\n")
        assert await reader.readexactly(5) == b"+OK\r\n"
        writer.write(b"GET k\r\n" * number)
        asked = -1
        while asked != len(running.backend.asked):
            asked = len(running.backend.asked)
            for _ in range(100):
                await asyncio.sleep(0)
        assert asked < number
        answer = b"$500000\r\n" + value + b"\r\n"
        for _ in range(number):
            assert await reader.readexactly(len(answer)) == answer


@pytest.mark.parametrize(
    ("data", "said"), [(b"QUIT\r\n", b"+OK\r\n"), (b"*x\r\n", b"-ERR Protocol error")]
)
async def test_the_end_of_a_connection(running: Running, data: bytes, said: bytes) -> None:
    async with running.client() as (reader, writer):
        writer.write(data)
        assert (await reader.read()).startswith(said)
        assert running.server.connections_total == 1


async def test_one_connection_too_many(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resp_server, "CONNECTIONS_MAX", 1)
    async with running.client() as (reader, writer):
        writer.write(b"PING\r\n")
        assert await reader.readexactly(7) == b"+PONG\r\n"
        async with running.client() as (second, _):
            assert (await second.read()).startswith(b"-BUSY")


async def test_users_log_in_and_are_dropped() -> None:
    users = UserStore()
    users.put("ada", "pw")
    guard = UserGuard(users)
    async with serving(guard) as running, running.client() as (reader, writer):
        writer.write(b"GET k\r\nAUTH ada no\r\nAUTH ada pw\r\nGET k\r\n")
        for said in (b"-NOAUTH", b"-NOAUTH", b"+OK", b"$0", b""):
            assert (await reader.readline()).strip().startswith(said)
        running.server.drop_user("bob")
        writer.write(b"PING\r\n")
        assert await reader.readexactly(7) == b"+PONG\r\n"
        running.server.drop_user("ada")
        assert await reader.read() == b""
    await guard.close()


async def test_a_client_is_logged_out_when_its_token_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resp_server, "LOOK_S", 0.01)
    monkeypatch.setattr(token_keys, "RETRY_S", 0.0)
    now_s, keys = NOW_S, [jwks()]

    async def fetch() -> bytes:
        return keys[0]

    tokens = TokenKeys(RULES, "", now_s=lambda: now_s, fetch=fetch)
    guard = UserGuard(UserStore(), tokens)
    async with serving(guard) as running, running.client() as (reader, writer):
        running.server._now_s = lambda: now_s
        writer.write(b"GET k\r\nAUTH TOKEN x\r\nAUTH TOKEN " + token() + b"\r\nCLIENT INFO\r\n")
        for said in (b"-NOAUTH log in", b"-NOAUTH the token", b"+OK", b"$", b"id=1 user=ada"):
            assert (await reader.readline()).strip().startswith(said)
        await turns(lambda: not running.server._strangers)
        now_s += 600 + LEEWAY_S
        await turns(lambda: bool(running.server._strangers))
        writer.write(b"SET k v\r\nAUTH TOKEN " + token() + b"\r\n")
        assert (await reader.readline()).startswith(b"-NOAUTH")
        assert b"expired" in await reader.readline()
        monkeypatch.setattr(resp_server, "LOGIN_S_MAX", 0.0)
        assert await reader.read() == b""
    await guard.close()
    await tokens.close()


async def test_tokens_where_none_are_taken() -> None:
    guard = UserGuard(UserStore())
    async with serving(guard) as running, running.client() as (reader, writer):
        writer.write(b"AUTH TOKEN abc\r\nPING\r\n")
        assert (await reader.readline()).startswith(b"-NOAUTH this node takes names")
        assert await reader.readline() == b"+PONG\r\n"
    await guard.close()


async def test_a_login_under_way_does_not_outlive_the_users_rights() -> None:
    users, found = UserStore(), []
    users.put("ada", "pw")
    guard = UserGuard(users)
    check = users.judge_password

    def check_slowly(name: str, password: str, source: str) -> tuple[User | None, float]:
        judged = check(name, password, source)
        users.put("ada", "another")
        return judged

    users.judge_password = check_slowly  # type: ignore[method-assign]
    guard.check("ada", "pw", found.append)
    await turns(lambda: bool(found))
    assert found == ["there is no such user with this password"]
    await guard.close()


async def test_checks_of_who_is_gone_are_given_up_and_of_more_than_enough_none_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    users, go_on = UserStore(), threading.Event()
    users.put("ada", "pw")
    guard, check = UserGuard(users), users.judge_password

    def check_slowly(name: str, password: str, source: str) -> tuple[User | None, float]:
        go_on.wait(60)
        return check(name, password, source)

    users.judge_password = check_slowly  # type: ignore[method-assign]
    monkeypatch.setattr(user_guard, "CHECKS_WAITING_MAX", 5)
    monkeypatch.setattr(resp_server, "LOOK_S", 0.01)
    async with serving(guard) as running:
        async with AsyncExitStack() as stack:
            for _ in range(5):
                _, asks = await stack.enter_async_context(running.client())
                asks.write(b"AUTH ada pw\r\n")
            await turns(lambda: len(guard._tasks) == 5)
            async with running.client() as (reader, writer):
                writer.write(b"AUTH ada pw\r\nPING\r\n")
                assert (await reader.readline()).startswith(b"-BUSY")
                assert await reader.readline() == b"+PONG\r\n"
        with monkeypatch.context() as later:
            later.setattr(resp_server, "LOGIN_S_MAX", 0.02)
            await turns(lambda: not len(guard._tasks))
        go_on.set()
        async with running.client() as (reader, writer):
            writer.write(b"AUTH ada pw\r\n")
            assert await reader.readline() == b"+OK\r\n"
    await guard.close()


@pytest.mark.parametrize(("most", "places"), [(1024, 512), (600, 300), (8192, 7680)])
async def test_clients_leave_descriptors_for_files(
    monkeypatch: pytest.MonkeyPatch, most: int, places: int
) -> None:
    monkeypatch.setattr(resp_server.resource, "getrlimit", lambda _: (most, most))
    assert RespServer(RegisterBackend(), FakeGuard())._places == places
    unlimited = resp_server.resource.RLIM_INFINITY
    monkeypatch.setattr(resp_server.resource, "getrlimit", lambda _: (unlimited, unlimited))
    assert resp_server._places() == resp_server.CONNECTIONS_MAX


async def test_nothing_is_open_after_the_end(running: Running) -> None:
    async with running.client() as (reader, writer):
        writer.write(b"PING\r\n")
        await reader.readexactly(7)
        running.server.close()
        assert await reader.read() == b""
    async with running.client() as (reader, _):
        assert (await reader.read()).startswith(b"-BUSY")


class ClosingTransport(asyncio.Transport):
    """As one is between the peer's reset and the report of it: some loops raise on a write."""

    def is_closing(self) -> bool:
        return True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: object) -> None:
        raise RuntimeError("the handler is closed")


async def test_nothing_is_written_to_a_connection_that_was_just_reset(running: Running) -> None:
    connection = running.server.connection()
    connection.connection_made(ClosingTransport())
    assert isinstance(connection, asyncio.Protocol)
    connection.data_received(b"PING\r\n")
    assert running.server.connections == 1
    connection.connection_lost(None)
    assert running.server.connections == 0


# ---- who has not logged in


async def test_a_client_that_does_not_log_in_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resp_server, "LOOK_S", 0.01)
    async with serving(FakeGuard({"ada": ("pw", True)})) as running, running.client() as ada:
        ada[1].write(b"AUTH ada pw\r\n")
        assert await ada[0].readexactly(5) == b"+OK\r\n"
        async with running.client() as stranger:
            stranger[1].write(b"PING\r\n")
            assert await stranger[0].readexactly(7) == b"+PONG\r\n"
            monkeypatch.setattr(resp_server, "LOGIN_S_MAX", 0.02)
            with suppress(ConnectionResetError):
                assert await stranger[0].read() == b""
        ada[1].write(b"PING\r\n")
        assert await ada[0].readexactly(7) == b"+PONG\r\n"


async def test_without_users_nobody_has_to_log_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resp_server, "LOOK_S", 0.01)
    monkeypatch.setattr(resp_server, "LOGIN_S_MAX", 0.0)
    monkeypatch.setattr(resp_server, "STRANGERS_MAX", 1)
    async with serving(FakeGuard()) as running, running.client() as one, running.client() as two:
        looks = running.server._timer
        await turns(lambda: running.server._timer is not looks)
        for reader, writer in (one, two):
            writer.write(b"PING\r\n")
            assert await reader.readexactly(7) == b"+PONG\r\n"


async def test_the_oldest_of_too_many_clients_without_login_is_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resp_server, "STRANGERS_MAX", 1)
    async with serving(FakeGuard({"ada": ("pw", True)})) as running, running.client() as ada:
        ada[1].write(b"AUTH ada pw\r\n")
        assert await ada[0].readexactly(5) == b"+OK\r\n"
        async with running.client() as first:
            first[1].write(b"PING\r\n")
            assert await first[0].readexactly(7) == b"+PONG\r\n"
            async with running.client() as second:
                second[1].write(b"AUTH ada pw\r\n")
                assert await second[0].readexactly(5) == b"+OK\r\n"
                with suppress(ConnectionResetError):
                    assert await first[0].read() == b""
                ada[1].write(b"PING\r\n")
                assert await ada[0].readexactly(7) == b"+PONG\r\n"


async def test_clients_without_login_take_half_of_the_places_at_most() -> None:
    async with serving(FakeGuard({"ada": ("pw", True)})) as running, AsyncExitStack() as stack:
        running.server._places = 4
        for _ in range(6):
            reader, writer = await stack.enter_async_context(running.client())
            writer.write(b"PING\r\n")
            assert await reader.readexactly(7) == b"+PONG\r\n"
        reader, writer = await stack.enter_async_context(running.client())
        writer.write(b"AUTH ada pw\r\n")
        assert await reader.readexactly(5) == b"+OK\r\n"


# ---- who does not take what waits


def big_value(running: Running) -> bytes:
    """Have a register of half a megabyte; return what a GET of it answers."""
    value = b"v" * 500_000
    body = Body(argv=(b"SET", b"k", value))
    running.backend.request(0, body, lambda _: None)
    return b"$500000\r\n" + value + b"\r\n"


async def test_when_too_much_waits_in_all_the_slowest_is_cut_off(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resp_server, "WAITING_BYTES_MAX", 8_000_000)
    answer = big_value(running)
    async with running.client() as (slow, asks_slow), running.client() as (fast, asks_fast):
        asks_slow.write(b"GET k\r\n" * 200)
        await turns(lambda: running.server.waiting_bytes > 1_000_000)
        monkeypatch.setattr(resp_server, "WAITING_BYTES_MAX", 1_000_000)
        for _ in range(10):
            asks_fast.write(b"GET k\r\n" * 10)
            for _ in range(10):
                assert await fast.readexactly(len(answer)) == answer
        await turns(lambda: running.server.connections == 1)
        assert running.server.cut_total == 1
        assert running.server.waiting_bytes <= 1_000_000
        with suppress(ConnectionResetError):
            assert len(await slow.read()) < 200 * len(answer)


async def test_half_sent_requests_count_and_the_idlest_is_cut_off(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resp_server, "WAITING_BYTES_MAX", 1_500_000)
    half = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1000000\r\n" + b"v" * 900_000
    async with running.client() as (first, sends), running.client() as (_, sends_too):
        sends.write(half)
        await turns(lambda: running.server.waiting_bytes >= 900_000)
        sends_too.write(half)
        await turns(lambda: running.server.connections == 1)
        with suppress(ConnectionResetError):
            assert await first.read() == b""
        assert 900_000 <= running.server.waiting_bytes <= 1_500_000


class FakeTransport(asyncio.Transport):
    """Remembers how much was written at once, and says how much of it waits."""

    def __init__(self) -> None:
        super().__init__({"sslcontext": "one"})
        self.sizes: list[int] = []
        self.waiting = 0

    def is_closing(self) -> bool:
        return False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return self.waiting

    def write(self, data: object) -> None:
        assert isinstance(data, bytes)
        self.sizes.append(len(data))


async def test_encrypted_output_is_written_in_pieces(running: Running) -> None:
    answer = big_value(running)
    connection, transport = running.server.connection(), FakeTransport()
    connection.connection_made(transport)
    assert isinstance(connection, asyncio.Protocol)
    connection.data_received(b"GET k\r\n")
    assert sum(transport.sizes) == len(answer)
    assert max(transport.sizes) == resp_server._TLS_BYTES
    connection.connection_lost(None)


async def test_a_slow_client_that_reads_is_not_cut_off(running: Running) -> None:
    connection, transport = running.server.connection(), FakeTransport()
    connection.connection_made(transport)
    assert isinstance(connection, resp_server._Connection)
    connection.data_received(b"SESSION OPEN\r\n")
    touched = running.backend.touched
    touched.clear()
    transport.waiting = 900_000
    connection.pause_writing()
    connection.look()
    assert touched == []
    transport.waiting -= 1
    connection.look()
    assert touched == [(0, 1)]
    connection.look()
    assert touched == [(0, 1)]
    connection.resume_writing()
    assert touched == [(0, 1)] * 2
    connection.connection_lost(None)


async def test_a_client_of_the_kv_port_is_told_at_once_what_is_spoken_here(
    running: Running,
) -> None:
    async with running.client() as (reader, writer):
        writer.write(b"\x80\x1f" + bytes(22))
        said = await asyncio.wait_for(reader.read(), 60)
        assert said.startswith(b"-ERR this port speaks RESP")
