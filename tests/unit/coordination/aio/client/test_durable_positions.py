"""Durable subscriptions of the client: what was worked off is not told again, the rest is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

import pytest

from millstream.coordination import AsyncClient, BlockingClient, Client
from millstream.coordination.aio.client import subscription
from millstream.coordination.core.client.errors import MissingError
from support.coordination.coordinators import WAIT_S
from support.coordination.namespace_node import namespace_client, one_node


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[AsyncClient]:
    async with one_node(tmp_path) as address, namespace_client(address) as made:
        await made.create("/app/x")
        yield made


async def put(client: AsyncClient, *numbers: int) -> None:
    for number in numbers:
        await client.put("/app/x", b"%d" % number)


async def read(client: AsyncClient, most: int, *, fails: bool = False) -> list[bytes | None]:
    """Return the data of so many changes, and leave as a reader does that is done, or fails."""
    found: list[bytes | None] = []
    async with asyncio.timeout(WAIT_S):
        try:
            async with client.subscribe("/app/x", with_data=True, durable="job") as changes:
                async for change in changes:
                    found.append(change.data)
                    if len(found) == most:
                        if fails:
                            raise LookupError
                        break
        except LookupError:
            pass
    return found


async def heard(client: AsyncClient, lsn: int) -> None:
    """Fail unless the group knows the name, in the session of the client."""
    raw = await client.at("/app")
    assert await raw.execute(b"SUBACK", b"job", b"%d" % lsn, is_change=True) == b"OK"


async def test_a_durable_subscription_resumes_after_processed_changes(client: AsyncClient) -> None:
    with pytest.raises(MissingError):
        await heard(client, 0)
    async with client.subscribe("/app/x", durable="job"):
        await put(client, 1, 2, 3, 4, 5)
    await heard(client, 0)
    async with client.subscribe("/app/x", durable="other", with_data=True) as changes:
        await put(client, 6)
        assert (await anext(changes)).data == b"6"
    async with client.subscribe("/app/x", durable="job") as changes:
        await put(client, 7, 8, 9)
        await anext(changes)
    assert await read(client, 1, fails=True) == [b"8"]
    assert await read(client, 1, fails=True) == [b"8"], "who failed did not work it off"
    assert await read(client, 2, fails=True) == [b"8", b"9"]
    assert await read(client, 1) == [b"9"], "who asked for the next one had"
    await put(client, 10)
    assert await read(client, 1) == [b"10"]


async def test_ready_changes_are_acknowledged_together(
    client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscription, "ACKNOWLEDGED_MAX", 4)
    told: list[int] = []
    async with client.subscribe("/app/x", with_data=True, durable="job") as changes:
        place = changes._durable
        assert place is not None
        acknowledge = place.acknowledge

        async def noted(lsn: int) -> None:
            told.append(lsn)
            await acknowledge(lsn)

        monkeypatch.setattr(place, "acknowledge", noted)
        await put(client, *range(10))
        lsns = []
        async with asyncio.timeout(WAIT_S):
            while len(lsns) < 10:
                lsns.append((await anext(changes)).lsn)
    assert told[-1] == lsns[-1]
    assert set(told) <= set(lsns)
    assert all(later - one <= 4 for one, later in pairwise(told))


async def end_session(client: Client) -> None:
    """Take a session over, on another connection, and end it."""
    async with Client([client._caller._addresses[0]]) as other:
        secret = client._caller.client_id, client._caller._secret
        await other.execute(b"SESSION", b"RESUME", *filter(None, secret), is_change=False)
        await other.execute(b"SESSION", b"CLOSE", is_change=False)


async def test_the_next_session_is_told_anew(client: AsyncClient) -> None:
    async with client.subscribe("/app/x", with_data=True, durable="job") as changes:
        await put(client, 1)
        await anext(changes)
        raw = await client.at("/app")
        before = raw.client_id
        await end_session(raw)
        async with asyncio.timeout(WAIT_S), AsyncClient(client.addresses) as writer:
            for number in range(2, 6):
                await put(writer, number)
                assert (await anext(changes)).data == b"%d" % number
    assert raw.client_id != before
    await heard(client, 0)
    await put(client, 6)
    assert await read(client, 1) == [b"6"]


async def test_acknowledging_after_the_end_of_an_element(client: AsyncClient) -> None:
    async with asyncio.timeout(WAIT_S):
        async with client.subscribe("/app/x", durable="job") as changes:
            await client.delete("/app/x")
            assert [change.op async for change in changes] == ["delete"]
        with pytest.raises(MissingError):
            async with client.subscribe("/app/x", durable="job"):
                pass


def follow(address: str) -> list[bytes | None]:
    found: list[bytes | None] = []
    with BlockingClient([address]) as client:
        client.create_namespace("/app")
        client.create("/app/x")
        for number in range(3):
            with client.subscribe("/app/x", durable="job", with_data=True) as changes:
                client.put("/app/x", b"%d" % number)
                client.put("/app/x", b"%d again" % number)
                for change in changes:
                    found.append(change.data)
                    if len(found) % 2 == 0 or number == 1:
                        break
    return found


async def test_a_plain_loop_does_the_same(tmp_path: Path) -> None:
    async with one_node(tmp_path) as address:
        found = await asyncio.to_thread(follow, address)
    assert found == [b"0", b"0 again", b"1", b"1 again"]
