import asyncio

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from millstream.errors import UnavailableError
from millstream.gateway.aio.room import ROOM, Room, hold, hold_in_room


def application(room, page):
    app = web.Application(middlewares=[hold_in_room])
    app[ROOM] = room
    app.add_routes([web.get("/{size}", page)])
    return app


async def test_what_a_request_holds_is_given_back_when_it_ends():
    room, seen, comes, goes_on = Room(100), [], asyncio.Event(), asyncio.Event()

    async def page(request):
        try:
            for size in (10, int(request.match_info["size"]), 20):  # it holds the most of these
                hold(size)
        except UnavailableError as error:
            return web.Response(status=503, text=error.code)
        seen.append(room.left)
        comes.set()
        await goes_on.wait()
        return web.Response()

    async with TestClient(TestServer(application(room, page))) as client:
        first = asyncio.ensure_future(client.get("/60"))
        await comes.wait()
        assert seen == [40]
        refused = await client.get("/41")
        assert (refused.status, await refused.text()) == (503, "temporarily_unavailable")
        assert room.left == 40
        comes.clear()
        second = asyncio.ensure_future(client.get("/40"))
        await comes.wait()
        assert room.left == 0
        goes_on.set()
        assert {(await first).status, (await second).status} == {200}
        assert room.left == 100


async def test_a_page_that_fails_gives_back_too():
    room = Room(100)

    async def page(_):
        hold(100)
        raise web.HTTPConflict

    async with TestClient(TestServer(application(room, page))) as client:
        for _ in range(3):
            assert (await client.get("/1")).status == 409
    assert room.left == 100


async def test_outside_of_requests_there_is_no_bound():
    hold(10**18)


@pytest.mark.parametrize(
    ("method", "path"), [("PUT", "/orders/x"), ("POST", "/orders/_bulk_docs")]
)
async def test_bodies_hold_room(client, body, method, path):
    client.app[ROOM].left = 60
    text, kind = b'{"a":"%b"}' % (b"x" * 100), {"Content-Type": "application/json"}
    refused = await body(await client.request(method, path, data=text, headers=kind), 503)
    assert refused["error"] == "temporarily_unavailable"
    assert client.app[ROOM].left == 60


async def test_attachments_inside_answers_hold_room(client, body):
    data = {"_attachments": {"a": {"data": "YWFhYWFhYWFh" * 10, "content_type": "image/png"}}}
    await body(await client.put("/orders/x", json=data), 201)
    client.app[ROOM].left = 60
    refused = await body(await client.get("/orders/x?attachments=true"), 503)
    assert refused["error"] == "temporarily_unavailable"
    assert client.app[ROOM].left == 60
    client.app[ROOM].left = 10_000
    shown = await body(await client.get("/orders/x?attachments=true"))
    assert shown["_attachments"]["a"]["data"] == "YWFhYWFhYWFh" * 10
    assert client.app[ROOM].left == 10_000
