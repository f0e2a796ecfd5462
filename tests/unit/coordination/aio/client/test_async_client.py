"""The client of namespaces, on a real node of one and on real nodes of three."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from millstream.coordination import AsyncClient
from millstream.coordination.core.client.errors import AbortedError, MissingError, VersionError
from millstream.coordination.core.client.replies import Created, Found
from millstream.errors import ConditionError
from support.coordination.coordinators import WAIT_S, Nodes, until
from support.coordination.namespace_node import addresses, namespace_client, one_node


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[AsyncClient]:
    async with one_node(tmp_path) as address, namespace_client(address) as client:
        yield client


async def test_elements(client: AsyncClient) -> None:
    assert not await client.create_namespace("/app")
    assert await client.create("/app/a", b"1") == Created("/app/a", True)
    assert await client.create("/app/a", b"2") == Created("/app/a", False)
    data, version = await client.get("/app/a")
    assert data == b"1"
    await client.put("/app/a", b"2", version=version)
    with pytest.raises(VersionError) as caught:
        await client.put("/app/a", b"3", version=version)
    assert caught.value.code == "cas_mismatch"
    assert caught.value.current == (await client.get("/app/a", stale=True)).version
    await client.put_attributes("/app/a", colour=b"red")
    found = await client.attributes("/app/a")
    assert (found.type, found.user, found.data_len) == ("BINARY", {"u.colour": b"red"}, 1)
    await client.move("/app/a", "/app/b")
    assert await client.lookup("/app/a/x") == Found(False, "/app")
    assert await client.lookup("/app/b") == Found(True, "/app/b")
    with pytest.raises(MissingError):
        await client.get("/app/a")
    await client.delete("/app/b")


async def test_children(client: AsyncClient) -> None:
    made = await client.create("/app/jobs/j", ephemeral=True, sequential=True, parents=True)
    assert made == Created("/app/jobs/j0000000000", True)
    assert (await client.attributes(made.path)).owner_session == client.client_id
    for name in "cab":
        await client.create(f"/app/{name}")
    assert [name async for name in client.list("/app", page=2)] == ["a", "b", "c", "jobs"]
    with pytest.raises(ConditionError) as caught:
        await client.delete("/app/jobs")
    assert caught.value.code == "notempty"
    await client.delete("/app/jobs", recursive=True)


async def test_transactions(client: AsyncClient) -> None:
    async with client.transaction() as transaction:
        transaction.check("/app/a", "ABSENT").create("/app/a", b"1").create("/app/b")
    assert transaction.replies == [b"OK", b"OK", b"OK"]
    again = client.transaction().put("/app/a", b"2").check("/app/b", "ABSENT")
    with pytest.raises(AbortedError) as caught:
        await again.commit()
    assert (caught.value.index, caught.value.reason) == (1, "CHECK_FAILED")
    assert (await client.get("/app/a")).data == b"1"


async def test_settings(client: AsyncClient) -> None:
    await client.set_config("/app", "LIMIT.DATA", "2 KB")
    assert await client.get_config("/app", "LIMIT.DATA") == {"LIMIT.DATA": b"2048"}
    await client.unset_config("/app", "LIMIT.DATA")
    await client.set_acl("/app", "MODE", "750")
    assert (await client.get_acl("/app"))["mode"] == b"0750"
    assert await client.execute("GET", "/app", is_change=False) == b""


async def test_a_primary_that_stops_while_much_is_in_use(tmp_path: Path) -> None:
    async with Nodes(tmp_path) as nodes, namespace_client(*addresses(nodes)) as one:
        await one.create("/app/lock")
        await one.create("/app/count", type="COUNTER")
        await one.create("/app/queue", b"job", type="QUEUE")
        async with namespace_client(*addresses(nodes)) as two:
            lock, other = one.lock("/app/lock"), two.lock("/app/lock")
            await lock.acquire()
            first = lock.token
            (item,) = await one.queue("/app/queue").take()
            waiting = asyncio.ensure_future(other.acquire(WAIT_S))
            counting = [asyncio.ensure_future(two.counter("/app/count").add()) for _ in range(20)]
            primary = await until(lambda: [nodes.primary()] if nodes.primary() is not None else 0)
            await nodes.stop(primary[0])
            values = [(await task).value for task in counting]
            assert sorted(values) == list(range(1, 21)), "each once"
            await until(lambda: lock.is_held)
            assert not waiting.done()
            assert await one.queue("/app/queue").ack(item.id) == 1
            await lock.release()
            await waiting
            assert first is not None
            assert other.token is not None
            assert other.token > first
            await other.release()
