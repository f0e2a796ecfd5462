"""Another node over HTTP, one that is whatever it should not be."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from millstream.cluster.cluster_state import NodeAt
from millstream.databases.documents import remote_nodes as document_nodes
from millstream.databases.documents.remote_nodes import DocumentNodes
from millstream.errors import (
    ConditionError,
    MillstreamError,
    OutcomeUnknownError,
    UnavailableError,
)
from millstream.gateway.core.api.stored import (
    Commit,
    Done,
    LocalList,
    StoredList,
    decode_asked,
    encode,
    refused,
)
from millstream.views.aio.serving.node_link import HttpNode, NodeAccess

NAME = bytes(range(32))


class Server:
    """A node whose page is `answer`."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, bytes]] = []
        self.answer: Callable[[web.Request], Any] = lambda _: web.Response(body=encode(Done(3)))

    async def page(self, request: web.Request) -> web.StreamResponse:
        self.asked.append((request.method, request.raw_path, await request.read()))
        answer = self.answer(request)
        found: web.StreamResponse = await answer if asyncio.iscoroutine(answer) else answer
        return found


class ClusterPeers:
    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    def node(self, node: NodeAt) -> HttpNode:
        access = NodeAccess("@node", "secret", None)
        return HttpNode(self._session, str(node), node.host, node.http, access)


@pytest.fixture
async def server() -> Server:
    return Server()


@pytest.fixture
async def there(server: Server) -> AsyncIterator[tuple[DocumentNodes, NodeAt]]:
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", server.page)
    async with TestServer(application) as listening, aiohttp.ClientSession() as session:
        nodes = DocumentNodes(ClusterPeers(session))  # type: ignore[arg-type]
        assert listening.port is not None
        yield nodes, NodeAt("127.0.0.1", listening.port)


There = tuple[DocumentNodes, NodeAt]


async def ask(there: There) -> Done:
    nodes, node = there
    return await nodes.ask(node, "a/b", Commit("u"), Done)


async def test_a_request_and_its_answer(server: Server, there: There) -> None:
    assert await ask(there) == Done(3)
    [(method, path, body)] = server.asked
    assert (method, path) == ("POST", "/_millstream/buckets/a%2Fb/stored")
    assert decode_asked(body) == Commit("u")


async def test_what_it_refuses_is_the_error_that_it_is_there(server: Server, there: There) -> None:
    refusal = ConditionError("Document update conflict.", code="conflict")
    server.answer = lambda _: web.Response(body=encode(refused(refusal)))
    with pytest.raises(ConditionError, match=r"^Document update conflict\.$") as caught:
        await ask(there)
    assert caught.value.code == "conflict"


@pytest.mark.parametrize(
    "body", [b"", b"\xc1", b"<html>", encode(LocalList([])), encode(StoredList([])), b"\x90"]
)
async def test_answers_that_make_no_sense(server: Server, there: There, body: bytes) -> None:
    server.answer = lambda _: web.Response(body=body)
    with pytest.raises(OutcomeUnknownError) as caught:
        await ask(there)
    assert caught.value.code == "node_failed"


@pytest.mark.parametrize(
    ("status", "code", "is_unknown"),
    [
        (401, "unauthorized", False), (403, "forbidden", False), (404, "not_found", False),
        (400, "bad_request", False), (413, "too_large", False), (503, "not_my_partition", False),
        (500, "internal_error", True),
    ],
)  # fmt: skip
async def test_a_page_that_refuses_the_request_itself(
    server: Server, there: There, status: int, code: str, is_unknown: bool
) -> None:
    server.answer = lambda _: web.json_response({"error": code, "reason": "why"}, status=status)
    with pytest.raises(UnavailableError, match="why") as caught:
        await ask(there)
    if code != "too_large":
        assert caught.value.code == "node_failed"
    assert isinstance(caught.value, OutcomeUnknownError) is is_unknown


async def test_a_connection_that_is_lost(server: Server, there: There) -> None:
    def cut(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    server.answer = cut
    with pytest.raises(OutcomeUnknownError) as caught:
        await ask(there)
    assert caught.value.code == "node_failed"


async def test_a_node_that_is_not_there(there: There) -> None:
    with pytest.raises(UnavailableError, match="cannot be reached") as caught:
        await ask((there[0], NodeAt("127.0.0.1", 1)))
    assert caught.value.code == "node_failed"
    assert not isinstance(caught.value, OutcomeUnknownError), "it never got the request"


async def test_a_node_that_hangs(
    server: Server, there: There, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(request: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        return web.Response()

    server.answer = hang
    monkeypatch.setattr(document_nodes, "ANSWER_S_MAX", 0.05)
    with pytest.raises(OutcomeUnknownError, match="in time"):
        await ask(there)
    monkeypatch.setattr(document_nodes, "BLOB_S_MAX", 0.05)
    with pytest.raises(OutcomeUnknownError, match="in time"):
        await there[0].give_blob(there[1], "b", NAME, pieces(b"x"))


async def pieces(*data: bytes) -> AsyncIterator[bytes]:
    for piece in data:
        yield piece


async def test_bytes_are_given_and_fetched(server: Server, there: There) -> None:
    nodes, node = there
    await nodes.give_blob(node, "b", NAME, pieces(b"ab", b"cd"))
    assert server.asked == [("PUT", f"/_millstream/buckets/b/blobs/{NAME.hex()}", b"abcd")]
    server.answer = lambda request: web.Response(body=b"abcd")
    got = [piece async for piece in nodes.open_blob(node, "b", NAME, 10, 14)]
    assert b"".join(got) == b"abcd"
    assert server.asked[1][1].endswith("?begin=10&end=14")
    with pytest.raises(OutcomeUnknownError, match="another number of bytes"):
        [piece async for piece in nodes.open_blob(node, "b", NAME, 0, 5)]


async def test_bytes_that_break_off_or_are_not_there(server: Server, there: There) -> None:
    nodes, node = there

    async def cut(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        await response.write(b"abc")
        assert request.transport is not None
        request.transport.abort()
        return response

    server.answer = cut
    with pytest.raises(MillstreamError, match="broke off"):
        [piece async for piece in nodes.open_blob(node, "b", NAME, 0, 9)]
    missing = {"error": "blob_missing", "reason": "not here"}
    server.answer = lambda _: web.json_response(missing, status=503)
    with pytest.raises(UnavailableError) as caught:
        [piece async for piece in nodes.open_blob(node, "b", NAME, 0, 9)]
    assert caught.value.code == "blob_missing"
