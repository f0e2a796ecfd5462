"""Another node over HTTP, one that is whatever it should not be."""

from __future__ import annotations

from base64 import b64encode

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from millstream.errors import (
    ConditionError,
    OutcomeUnknownError,
    RoutingError,
    UnavailableError,
)
from millstream.views.aio.serving.node_link import HttpNodeLink, NodeAccess

REQUEST = {"bucket": "a/b", "design": "d", "view": "v", "options": {}, "partitions": [1],
           "form": "part"}  # fmt: skip


class Node:
    def __init__(self):
        self.asked = []
        self.answer = lambda request: web.Response(body=b"12345", headers={"ETag": '"e"'})

    async def page(self, request):
        self.asked.append((request.raw_path, await request.json(), request.headers))
        answer = self.answer(request)
        return answer if isinstance(answer, web.StreamResponse) else await answer


@pytest.fixture
async def node():
    return Node()


@pytest.fixture
async def link(node):
    application = web.Application()
    application.router.add_post("/{path:.*}", node.page)
    async with TestServer(application) as server, aiohttp.ClientSession() as session:
        access = NodeAccess("@node", "secret", None)
        yield HttpNodeLink(session, "x", "127.0.0.1", server.port, access)


async def test_an_answer_is_streamed(node, link):
    stream = await link.query(REQUEST)
    assert stream.head == {"etag": "e"}
    assert b"".join([chunk async for chunk in stream]) == b"12345"
    await stream.close()
    ((path, body, headers),) = node.asked
    assert path == "/_millstream/buckets/a%2Fb/part"
    assert body == {name: value for name, value in REQUEST.items() if name != "bucket"}
    assert headers["Authorization"] == "Basic " + b64encode(b"@node:secret").decode()


async def test_an_answer_without_an_etag(node, link):
    node.answer = lambda _: web.Response(body=b"1")
    stream = await link.query(REQUEST)
    assert stream.head == {}
    await stream.close()


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (503, "not_my_partition", RoutingError),
        (503, "design_differs", RoutingError),
        (503, "index_unavailable", UnavailableError),
        (504, "timeout", UnavailableError),
        (412, "seq_unreachable", ConditionError),
    ],
)
async def test_errors_arrive_with_their_code(node, link, status, code, kind):
    node.answer = lambda _: web.json_response({"error": code, "reason": "why"}, status=status)
    with pytest.raises(kind, match="node x: why") as caught:
        await link.query(REQUEST)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("status", "said", "code"),
    [
        (404, "missing", "design_differs"),
        (404, "missing_named_view", "design_differs"),
        (404, "bucket_not_found", "not_my_partition"),
    ],
)
async def test_a_node_that_does_not_know_yet_is_asked_again(node, link, status, said, code):
    node.answer = lambda _: web.json_response({"error": said, "reason": "why"}, status=status)
    with pytest.raises(RoutingError) as caught:
        await link.query(REQUEST)
    assert caught.value.code == code


async def test_an_error_of_another_server_at_that_address(node, link):
    node.answer = lambda _: web.Response(body=b"<html>", status=502)
    with pytest.raises(UnavailableError, match="HTTP status 502") as caught:
        await link.query(REQUEST)
    assert caught.value.code == "node_failed"


async def test_an_answer_that_is_cut_off(node, link):
    async def cut(request):
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        await response.write(b"x" * 1000)
        request.transport.abort()
        return response

    node.answer = cut
    stream = await link.query(REQUEST)
    with pytest.raises(UnavailableError, match="broke off"):
        [chunk async for chunk in stream]
    await stream.close()


async def test_a_request_that_may_have_arrived(node, link):
    def cut(request):
        request.transport.abort()
        return web.Response()

    node.answer = cut
    with pytest.raises(OutcomeUnknownError) as caught:
        await link.ask("POST", "/x", {})
    assert (caught.value.code, caught.value.retry) == ("node_failed", "backoff")


async def test_an_unreachable_node():
    async with aiohttp.ClientSession() as session:
        link = HttpNodeLink(session, "x", "127.0.0.1", 1, NodeAccess("@node", "", None))
        with pytest.raises(UnavailableError, match="cannot be reached") as caught:
            await link.query(REQUEST)
    assert caught.value.code == "node_failed"
