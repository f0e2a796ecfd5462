"""`/_db_updates`: what happens to databases, for administrators."""

import asyncio

import msgspec
import pytest

from millstream.errors import UnavailableError
from millstream.gateway.aio.databases import database_updates_pages


@pytest.fixture(autouse=True)
def _often(monkeypatch):
    monkeypatch.setattr(database_updates_pages, "LOOK_S", 0.01)


async def rows(client, body, query=""):
    found = await body(await client.get(f"/_db_updates{query}"))
    return [(one["db_name"], one["type"]) for one in found["results"]], found["last_seq"]


async def test_what_happened_since_a_position_is_told(client, open_node, body):
    found, last = await rows(client, body)
    assert ("orders", "created") in found
    assert await rows(client, body, f"?since={last}") == ([], last)
    assert await rows(client, body, "?since=now") == ([], last)
    assert await rows(client, body, "?since=5-elsewhere") == (found, last)
    open_node.changing.write(0, "a")
    assert (await rows(client, body, f"?since={last}"))[0] == [("orders", "updated")]
    assert (await rows(client, body, "?descending=true&limit=1"))[0] == [("orders", "updated")]
    first, position = await rows(client, body, "?limit=1")
    assert first == found[:1]
    assert len((await rows(client, body, f"?since={position}"))[0]) == len(found) - 1
    del open_node.buckets["orders"]
    assert ("orders", "deleted") in (await rows(client, body, f"?since={last}"))[0]


async def test_a_database_that_cannot_be_asked_is_not_told_as_deleted(
    client, open_node, body, monkeypatch
):
    _, last = await rows(client, body)

    async def fail(bucket):
        raise UnavailableError("its node is gone", code="node_failed")

    monkeypatch.setattr(open_node.changes, "whole", fail)
    assert await rows(client, body, f"?since={last}") == ([], last)


@pytest.mark.parametrize("feed", ["longpoll", "continuous", "eventsource"])
async def test_who_waits_is_told_of_the_next_event(client, open_node, body, feed):
    _, last = await rows(client, body)
    asyncio.get_running_loop().call_later(0.05, open_node.changing.write, 0, "a")
    response = await client.get(f"/_db_updates?feed={feed}&since={last}&limit=1&timeout=20000")
    text = (await response.read()).decode()
    if feed == "longpoll":
        [event] = msgspec.json.decode(text)["results"]
    else:
        event = msgspec.json.decode(text.removeprefix("data: ").splitlines()[0])
    assert (event["db_name"], event["type"]) == ("orders", "updated")
    assert response.content_type.startswith("text/" if feed == "eventsource" else "application/")


async def test_who_waits_in_vain_is_answered_in_time_or_with_heartbeats(client, body):
    found, last = await rows(client, body, "?feed=longpoll&since=now&timeout=30")
    assert found == []
    beating = await client.get(f"/_db_updates?feed=continuous&since={last}&heartbeat=100")
    assert await beating.content.readline() == b"\n"
    beating.close()
    await body(await client.get("/_db_updates?feed=none"), 400)


async def test_only_administrators_are_told(guarded, body, ada, bob):
    await body(await guarded.get("/_db_updates"), 401)
    await body(await guarded.get("/_db_updates", headers=bob), 403)
    await body(await guarded.get("/_db_updates", headers=ada))
