"""The client over real sockets: what people call, and what they are told."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import pytest

from millstream.coordination import Client
from millstream.coordination.aio.resp_server import RespServer
from millstream.coordination.core.client.caller import (
    ATTEMPT_MS,
)
from millstream.errors import (
    AccessError,
    OutcomeUnknownError,
    UnavailableError,
    UsageError,
)
from millstream.vsr.core.effects import Code
from millstream.vsr.core.versions import NEVER, Version
from support.coordination.coordination_backend import FakeGuard, RegisterBackend


class Node(NamedTuple):
    backend: RegisterBackend
    server: RespServer
    address: str


@asynccontextmanager
async def serving(
    backend: RegisterBackend | None = None, guard: FakeGuard | None = None
) -> AsyncIterator[Node]:
    backend = backend or RegisterBackend()
    server = RespServer(backend, guard or FakeGuard())
    listener = await asyncio.get_running_loop().create_server(server.connection, "127.0.0.1", 0)
    host, port = listener.sockets[0].getsockname()
    backend.address = f"{host}:{port}"
    yield Node(backend, server, f"{host}:{port}")
    listener.close()
    server.close()
    await listener.wait_closed()
    async with asyncio.timeout(60):
        while server.connections:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0)


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    async with serving() as node:
        yield node


async def test_registers(node: Node) -> None:
    async with Client([node.address]) as client:
        assert await client.get("k") == b""
        await client.set("k", b"1\r\n")
        assert await client.get_with_version(b"k") == (b"1\r\n", Version(0, 1, 2))
        assert await client.cas("k", b"1\r\n", b"2")
        assert not await client.cas("k", b"1\r\n", b"3")
        assert await client.get_with_version("new") == (b"", NEVER)
        assert (client.client_id or "").endswith("-1")
    assert node.backend.sessions == {}, "the session is closed with the client"


async def test_many_at_once(node: Node) -> None:
    async with Client([node.address]) as client:
        await asyncio.gather(*(client.set(f"k{number}", b"v") for number in range(500)))
    assert len(node.backend.executed) == 500


async def test_a_broken_connection_is_not_noticed(node: Node) -> None:
    async with Client([node.address]) as client:
        await client.set("k", b"1")
        node.server.close()
        node.server._is_closed = False
        await client.set("k", b"2")
        assert await client.get("k") == b"2"
    assert len(node.backend.executed) == 2


async def test_the_primary_is_found(node: Node) -> None:
    async with serving() as other:
        other.backend.code, other.backend.address = Code.NOTPRIMARY, node.address
        async with Client([other.address]) as client:
            await client.set("k", b"v")
    assert len(node.backend.executed) == 1


async def test_failed_and_unknown_outcomes_are_told_apart(node: Node) -> None:
    async with Client([node.address]) as client:
        await client.set("k", b"1")
        node.backend.code = Code.UNKNOWN
        with pytest.raises(OutcomeUnknownError) as unknown:
            await client.set("k", b"3", deadline_s=1)
        assert unknown.value.code == "outcome_unknown"
        node.backend.code = Code.NOQUORUM
        with pytest.raises(UnavailableError) as caught:
            await client.set("k", b"2", deadline_s=1)
        assert caught.value.code == "noquorum"
        node.backend.code = Code.OK
        assert await client.get("k") == b"3"


async def test_no_node_answers() -> None:
    async with Client(["127.0.0.1:1"], deadline_s=0.1) as client:
        with pytest.raises(UnavailableError, match="no node answered") as caught:
            await client.get("k")
        assert caught.value.code == "timeout"


async def test_bad_arguments(node: Node) -> None:
    with pytest.raises(UsageError):
        Client(["no:port"])
    async with Client([node.address]) as client:
        with pytest.raises(UsageError) as caught:
            await client.execute(b"SET", b"k", is_change=True)
        assert caught.value.code == "badarg"


async def test_users() -> None:
    async with serving(guard=FakeGuard({"ada": ("pw", True)})) as node:
        async with Client([node.address], user="ada", password="pw") as client:
            await client.set("k", b"v")
        async with Client([node.address], user="ada", password="no") as client:
            with pytest.raises(AccessError):
                await client.get("k")


async def test_a_lost_session_is_told_of(node: Node) -> None:
    lost: list[str] = []
    async with Client([node.address], on_session_lost=lambda: lost.append("it")) as client:
        await client.set("k", b"1")
        node.backend.sessions.clear()
        with pytest.raises(OutcomeUnknownError):
            await client.set("k", b"2")
        assert lost == ["it"]
        await client.set("k", b"3")
    assert len(node.backend.executed) == 2


async def test_an_error_in_a_callback_delays_no_call(node: Node) -> None:
    raised: list[str] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: raised.append(str(context["exception"]))
    )

    def lost() -> None:
        raise ValueError("mine")

    async with asyncio.timeout(60), Client([node.address], on_session_lost=lost) as client:
        await client.set("k", b"1")
        node.backend.sessions.clear()
        several = [client.set("k", b"%d" % number) for number in range(3)]
        await asyncio.gather(*several, return_exceptions=True)
        await client.set("k", b"3")
    assert raised == ["mine"]


async def test_calls_that_wait_end_with_the_client(node: Node) -> None:
    client = Client([node.address])
    async with client:
        await client.set("k", b"1")
        node.backend.holds = True
        waiting = asyncio.ensure_future(client.set("k", b"2"))
        async with asyncio.timeout(60):
            while not node.backend.held:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0)
        node.server.close()
    with pytest.raises(OutcomeUnknownError):
        await waiting
    await client.close()


async def test_a_node_that_shows_progress_is_not_left(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    late_ms = [0.0]
    now_ms = Client._now_ms
    monkeypatch.setattr(Client, "_now_ms", lambda self: now_ms(self) + late_ms[0])
    async with Client([node.address], deadline_s=60) as client:
        await client.get("k")
        node.backend.holds = True
        call = asyncio.gather(client.get("k"))
        async with asyncio.timeout(60):
            while not node.backend.held:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0)
        link = client._link
        assert link is not None
        for sign in (lambda: link.data_received(b"*2\r\n$3\r\n"), client._tick, client._tick):
            monkeypatch.setattr(link, "has_moved", lambda: True)
            late_ms[0] += 0.9 * ATTEMPT_MS
            sign()
            assert client._link is link
        link.data_received(b"abc\r\n$5\r\n0:1:2\r\n")
        assert await call == [b"abc"]
        client._disconnect()
        node.backend.holds = False
