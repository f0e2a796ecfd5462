"""Elements with items, on a real node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from millstream.coordination import AsyncClient
from millstream.coordination.core.client.replies import Count, Taken
from support.coordination.namespace_node import namespace_client, one_node


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[AsyncClient]:
    async with one_node(tmp_path) as address, namespace_client(address) as client:
        yield client


async def test_a_counter(client: AsyncClient) -> None:
    await client.create("/app/c", type="COUNTER", options=("UNSIGNED", "BIT", "8"))
    counter = client.counter("/app/c")
    assert await counter.add(250) == Count(250, False)
    assert await counter.add(10) == Count(255, True)
    assert await counter.add(-5) == Count(250, False)
    await counter.reset()
    assert await counter.get() == 0


async def test_a_list(client: AsyncClient) -> None:
    await client.create("/app/l", b"b", type="LIST")
    items = client.items("/app/l")
    assert [await items.append(b"c", b"e"), await items.prepend(b"a")] == [3, 4]
    assert await items.insert(3, b"d") == 5
    await items.set(-1, b"z")
    assert await items.range() == [b"a", b"b", b"c", b"d", b"z"]
    assert await items.remove(1, 2) == [b"b", b"c"]
    assert await items.length() == 3


async def test_a_set(client: AsyncClient) -> None:
    await client.create("/app/s", type="SET")
    members = client.members("/app/s")
    assert await members.add(b"b", b"a", b"b") == 2
    assert [await members.has(b"a"), await members.has(b"x")] == [True, False]
    assert [member async for member in members.all()] == [b"a", b"b"]
    assert await members.pop() == b"a"
    assert [await members.remove(b"b"), await members.length(), await members.pop()] == [
        1,
        0,
        None,
    ]


async def test_a_queue(client: AsyncClient) -> None:
    await client.create("/app/q", type="QUEUE")
    queue = client.queue("/app/q")
    first, _ = await queue.push(b"1", b"2")
    await queue.push(b"0", priority=1)
    assert await queue.pop() == [b"0"]
    assert await queue.take() == [Taken(first, b"1", 1)]
    assert await queue.length() == (1, 1)
    assert await queue.nack(first) == 1
    assert [item.deliveries for item in await queue.take(2)] == [2, 1]
    assert await queue.ack(first) == 1


async def test_a_worker_handles_all_and_stops_in_good_order(client: AsyncClient) -> None:
    await client.create("/app/q", type="QUEUE")
    queue, done, stop = client.queue("/app/q"), [], asyncio.Event()

    async def handle(item: Taken) -> None:
        done.append(item.value)
        if len(done) == 20:
            stop.set()

    working = asyncio.ensure_future(queue.work(handle, at_once=3, stop=stop))
    for number in range(20):
        await queue.push(b"%d" % number)
    async with asyncio.timeout(60):
        await working
    assert sorted(done, key=int) == [b"%d" % number for number in range(20)]
    assert await queue.length() == (0, 0)


async def test_an_item_that_a_worker_cannot_handle_is_returned(client: AsyncClient) -> None:
    await client.create("/app/q", b"1", type="QUEUE")

    async def handle(item: Taken) -> None:
        raise ValueError(item.value)

    with pytest.raises(ValueError, match="1"):
        await client.queue("/app/q").work(handle)
    assert await client.queue("/app/q").length() == (1, 0)
