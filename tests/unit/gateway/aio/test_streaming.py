import asyncio
import json

import aiohttp
import pytest

from millstream.errors import UnavailableError
from millstream.gateway.aio import streaming
from millstream.gateway.aio.streaming import Turns
from millstream.runtime import pace

VIEW = "/orders/_design/sales/_view/by"
ROW = b'{"id":"a","key":1,"value":"' + b"x" * 1000 + b'"}'


def pieces(count):
    return [b'{"rows":[', ROW, *[b"," + ROW] * (count - 1), b"]}\n"]


async def test_a_short_answer_has_its_length_and_a_long_one_leaves_in_pieces(client, open_node):
    open_node.indexes.pieces = pieces(3)
    response = await client.get(VIEW)
    assert int(response.headers["Content-Length"]) == len(await response.read())
    open_node.indexes.pieces = pieces(500)
    response = await client.get(VIEW)
    assert response.headers["Transfer-Encoding"] == "chunked"
    assert response.headers["ETag"] == '"e1"'
    assert response.content_type == "application/json"
    assert len(json.loads(await response.read())["rows"]) == 500
    assert all(answer.is_closed for answer in open_node.indexes.answers)


async def test_an_error_before_the_first_byte_is_answered(client, open_node, body):
    open_node.indexes.failure = UnavailableError("no", code="index_unavailable")
    open_node.indexes.pieces = pieces(3)
    assert (await body(await client.get(VIEW), 503))["error"] == "index_unavailable"


async def test_an_error_in_the_middle_cuts_the_connection(client, open_node):
    open_node.indexes.failure = UnavailableError("no", code="index_unavailable")
    open_node.indexes.pieces = pieces(500)
    response = await client.get(VIEW)
    assert response.status == 200
    with pytest.raises(aiohttp.ClientError):
        await response.read()
    assert open_node.indexes.answers[0].is_closed


class Endless:
    """An answer without end."""

    def __init__(self):
        self.head = {"etag": "e"}
        self.given = 0
        self.closed = asyncio.Event()

    async def __aiter__(self):
        while True:
            self.given += 1
            yield b"x" * 65536
            await asyncio.sleep(0)

    async def close(self):
        self.closed.set()


async def test_no_more_is_made_than_the_client_takes(client, open_node):
    answer = Endless()

    async def query(*_):
        return answer

    open_node.indexes.query = query
    response = await client.get(VIEW)
    before = -1
    while answer.given != before:  # until everything between here and there is full
        before = answer.given
        for _ in range(2000):
            await asyncio.sleep(0)
    assert answer.given * 65536 < 32 * 1024 * 1024
    response.close()
    async with asyncio.timeout(60):
        await answer.closed.wait()


async def test_a_client_that_leaves_while_it_waits_cancels_its_query(
    client, open_node, monkeypatch
):
    monkeypatch.setattr(streaming, "GONE_CHECK_S", 0.01)
    look, looks = streaming.WhileThere._look, asyncio.Queue()

    def looked(self):
        look(self)
        looks.put_nowait(None)

    monkeypatch.setattr(streaming.WhileThere, "_look", looked)
    waits, is_cancelled = asyncio.Event(), asyncio.Event()

    async def query(*_):
        waits.set()
        try:
            await asyncio.Event().wait()
        finally:
            is_cancelled.set()

    open_node.indexes.query = query
    asking = asyncio.ensure_future(client.get(VIEW))
    await waits.wait()
    for _ in range(3):
        await looks.get()
    assert not is_cancelled.is_set()
    asking.cancel()
    async with asyncio.timeout(60):
        await is_cancelled.wait()


async def test_others_have_turns(monkeypatch):
    others = []
    asyncio.get_running_loop().call_soon(others.append, 1)
    turns = Turns()
    await turns.give()
    assert others == []
    monkeypatch.setattr(pace, "STEP_S", 0.0)
    turns = Turns()
    await turns.give()
    assert others == [1]
