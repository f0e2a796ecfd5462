"""Changes as an iterator: on a real node, and over one that breaks off where it likes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from millstream.coordination import AsyncClient
from millstream.coordination.aio.client.subscription import Subscription
from millstream.coordination.core.client.errors import MissingError
from millstream.coordination.core.client.resumed_subscription import Change, Following
from millstream.errors import ConditionError
from support.coordination.coordinators import WAIT_S, Nodes
from support.coordination.namespace_node import namespace_client, one_node


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[AsyncClient]:
    async with one_node(tmp_path) as address, namespace_client(address) as made:
        yield made


async def some(changes: Subscription, number: int) -> list[Change]:
    async with asyncio.timeout(WAIT_S):
        return [await anext(changes) for _ in range(number)]


async def test_a_tree_is_followed_until_it_is_deleted(client: AsyncClient) -> None:
    await client.create("/app/x", b"0")
    async with client.subscribe("/app/x", "TREE", with_data=True) as changes:
        await client.put("/app/x", b"1")
        await client.put("/app/x", b"2")
        (change,) = await some(changes, 1)
        assert (change.op, change.path) == ("put", "/app/x")
        await client.create("/app/x/y", b"below")
        await client.move("/app/x", "/app/z")
        await client.delete("/app/z", recursive=True)
        async with asyncio.timeout(WAIT_S):
            rest = [change async for change in changes]
    puts = [one.data for one in [change, *rest] if one.op == "put"]
    assert puts == [b"1", b"2"]
    last = [(one.op, one.path, one.to) for one in rest if one.op not in ("put", "child")]
    assert ("create", "/app/x/y", "") in last
    assert ("move", "/app/x", "/app/z") in last
    assert last[-1] == ("delete", "/app/z", "")
    assert [one.lsn for one in rest] == sorted(one.lsn for one in rest)


async def test_a_later_subscriber_resumes_at_its_position(client: AsyncClient) -> None:
    await client.create("/app/x")
    async with client.subscribe("/app/x") as changes:
        await client.put("/app/x", b"")
        (change,) = await some(changes, 1)
    assert changes.lsn == change.lsn
    version = (await client.attributes("/app/x")).version
    await client.put("/app/x", b"later")
    async with client.subscribe("/app/x", with_data=True, after=version.lsn) as changes:
        (change,) = await some(changes, 1)
    assert (change.data, change.lsn) == (b"later", changes.lsn)


async def test_missing_history_and_missing_elements_are_errors(
    client: AsyncClient,
) -> None:
    with pytest.raises(MissingError):
        async with client.subscribe("/app/none"):
            pass
    await client.create("/app/x")
    for _ in range(3):
        await client.put("/app/x", b"")
    with pytest.raises(ConditionError, match="HISTORY_LOST") as caught:
        await some(client.subscribe("/app/x", after=1), 1)
    assert caught.value.code == "history_lost"


async def test_a_subscription_that_is_cancelled_as_it_begins_leaves_no_connection() -> None:
    accepted, closed = asyncio.Event(), asyncio.Event()

    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.set()
        while await reader.read(1000):
            pass
        writer.close()
        closed.set()

    server = await asyncio.start_server(mute, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    following = Following("/app/x", "ELEMENT", with_data=False, after=None)
    beginning = asyncio.ensure_future(
        Subscription([f"{host}:{port}"], (b"HELLO", b"3"), None, following).__aenter__()
    )
    async with asyncio.timeout(WAIT_S):
        await accepted.wait()
        beginning.cancel()
        with suppress(ConnectionResetError):
            await closed.wait()
    server.close()


async def test_it_outlives_its_node(tmp_path: Path) -> None:
    async with one_node(tmp_path) as address, namespace_client(address) as made:
        await made.create("/app/x")
        changes = made.subscribe("/app/x")
        first = asyncio.ensure_future(some(changes, 1))
        while not first.done():
            await made.put("/app/x", b"")
        before = (await first)[0].lsn
        waiting = asyncio.ensure_future(some(changes, 1))
    nodes = Nodes(tmp_path, 1)
    nodes.coord_ports[0] = int(address.rpartition(":")[2])
    await nodes.start(0)
    try:
        async with AsyncClient([address], deadline_s=WAIT_S) as again:
            await again.put("/app/x", b"")
            assert (await waiting)[0].lsn > before
            changes.close()
    finally:
        await nodes.stop(0)


def message(lsn: int, **more: object) -> bytes:
    told = {
        "lsn": lsn, "version": f"0:1:{lsn}", "op": "put", "path": "/a", "type": "BINARY", "ts": 5,
        **more,
    }  # fmt: skip
    text = json.dumps(told).encode()
    return b">3\r\n$7\r\nmessage\r\n$2\r\n/a\r\n$%d\r\n%s\r\n" % (len(text), text)


async def test_connections_break_anywhere_and_nothing_is_told_twice_or_left_out() -> None:
    log = [message(n, part=part, parts=2) for n in range(1, 9) for part in (0, 1)]
    whole = b"".join(log)
    asked: list[int] = []
    cut = 1

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal cut
        while b"SUBSCRIBE" not in (data := await reader.read(4096)):
            pass
        rest = data.split(b"SUBSCRIBE")[1].split()
        after = int(rest[-1].split(b":")[-1]) if b"FROM" in rest else 0
        asked.append(after)
        sent = b"%0\r\n" + b"".join(log[2 * after :])
        cut += 97
        writer.write(sent[:cut])
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        changes = Subscription([address], (b"HELLO", b"3"), None, Following("/a", after=0))
        found = await some(changes, 16)
        changes.close()
    assert [(one.lsn, one.part) for one in found] == [(n, p) for n in range(1, 9) for p in (0, 1)]
    assert len(asked) > 4
    assert asked == sorted(asked)
    assert len(whole) > 97 * 4
