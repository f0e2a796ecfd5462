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
from millstream.databases import remote_node
from millstream.databases.documents.distributed_reads import read_stored
from millstream.databases.remote_node import NotServedError, RemoteNode
from millstream.errors import (
    AccessError,
    ConditionError,
    MillstreamError,
    OutcomeUnknownError,
    UnavailableError,
)
from millstream.gateway.core.api.stored import (
    Commit,
    Done,
    LocalList,
    ReadStored,
    StoredList,
    decode_asked,
    encode,
    refused,
)
from millstream.gateway.core.bucket_parts import (
    Ended,
    Failed,
    Found,
    Histories,
    WantedChanges,
    WantedDocuments,
    WantedHistories,
    framed,
)
from millstream.model.position import Position
from millstream.views.aio.serving.node_link import HttpNode, NodeAccess

NAME = bytes(range(32))
CHANGES = WantedChanges("u1", [0], [Position()], False)
DOCUMENTS = WantedDocuments("u1", [0], b"", b"\xff")


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


@pytest.fixture
async def server() -> Server:
    return Server()


@pytest.fixture
async def there(server: Server) -> AsyncIterator[RemoteNode]:
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", server.page)
    async with TestServer(application) as listening, aiohttp.ClientSession() as session:
        assert listening.port is not None
        yield at("127.0.0.1", listening.port, session)


def at(host: str, port: int, session: aiohttp.ClientSession) -> RemoteNode:
    http = HttpNode(session, host, host, port, NodeAccess("@node", "secret", None))
    return RemoteNode("a/b", NodeAt(host, port), http)


async def ask(there: RemoteNode) -> Done:
    return await there.ask(Commit("u"), Done)


async def test_a_request_and_its_answer(server: Server, there: RemoteNode) -> None:
    assert await ask(there) == Done(3)
    [(method, path, body)] = server.asked
    assert (method, path) == ("POST", "/_millstream/buckets/a%2Fb/stored")
    assert decode_asked(body) == Commit("u")


async def test_what_it_refuses_is_the_error_that_it_is_there(
    server: Server, there: RemoteNode
) -> None:
    refusal = ConditionError("Document update conflict.", code="conflict")
    server.answer = lambda _: web.Response(body=encode(refused(refusal)))
    with pytest.raises(ConditionError, match=r"^Document update conflict\.$") as caught:
        await ask(there)
    assert caught.value.code == "conflict"


async def test_a_node_without_the_bucket_does_not_have_the_partition(
    server: Server, there: RemoteNode
) -> None:
    refusal = ConditionError("none", code="bucket_not_found")
    server.answer = lambda _: web.Response(body=encode(refused(refusal)))
    with pytest.raises(NotServedError) as caught:
        await ask(there)
    assert caught.value.code == "not_my_partition"


@pytest.mark.parametrize(
    "body", [b"", b"\xc1", b"<html>", encode(LocalList([])), encode(StoredList([])), b"\x90"]
)
async def test_answers_that_make_no_sense(server: Server, there: RemoteNode, body: bytes) -> None:
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
    server: Server, there: RemoteNode, status: int, code: str, is_unknown: bool
) -> None:
    server.answer = lambda _: web.json_response({"error": code, "reason": "why"}, status=status)
    with pytest.raises(UnavailableError, match="why") as caught:
        await ask(there)
    if code != "too_large":
        assert caught.value.code == "node_failed"
    assert isinstance(caught.value, OutcomeUnknownError) is is_unknown


async def test_a_connection_that_is_lost(server: Server, there: RemoteNode) -> None:
    def cut(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    server.answer = cut
    with pytest.raises(OutcomeUnknownError) as caught:
        await ask(there)
    assert caught.value.code == "node_failed"


async def test_a_node_that_is_not_there() -> None:
    async with aiohttp.ClientSession() as session:
        with pytest.raises(UnavailableError, match="cannot be reached") as caught:
            await ask(at("127.0.0.1", 1, session))
    assert caught.value.code == "node_failed"
    assert not isinstance(caught.value, OutcomeUnknownError), "it never got the request"


async def test_a_node_that_hangs(
    server: Server, there: RemoteNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(request: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        return web.Response()

    server.answer = hang
    monkeypatch.setattr(remote_node, "ANSWER_S_MAX", 0.05)
    with pytest.raises(OutcomeUnknownError, match="in time"):
        await ask(there)
    monkeypatch.setattr(remote_node, "BLOB_S_MAX", 0.05)
    with pytest.raises(OutcomeUnknownError, match="in time"):
        await there.give_blob(NAME, pieces(b"x"))


async def pieces(*data: bytes) -> AsyncIterator[bytes]:
    for piece in data:
        yield piece


async def test_bytes_are_given_and_fetched(server: Server, there: RemoteNode) -> None:
    await there.give_blob(NAME, pieces(b"ab", b"cd"))
    assert server.asked == [("PUT", f"/_millstream/buckets/a%2Fb/blobs/{NAME.hex()}", b"abcd")]
    server.answer = lambda request: web.Response(body=b"abcd")
    got = [piece async for piece in there.open_blob(NAME, 10, 14)]
    assert b"".join(got) == b"abcd"
    assert server.asked[1][1].endswith("?begin=10&end=14")
    with pytest.raises(OutcomeUnknownError, match="another number of bytes"):
        [piece async for piece in there.open_blob(NAME, 0, 5)]


async def test_bytes_that_break_off_or_are_not_there(server: Server, there: RemoteNode) -> None:

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
        [piece async for piece in there.open_blob(NAME, 0, 9)]
    missing = {"error": "blob_missing", "reason": "not here"}
    server.answer = lambda _: web.json_response(missing, status=503)
    with pytest.raises(UnavailableError) as caught:
        [piece async for piece in there.open_blob(NAME, 0, 9)]
    assert caught.value.code == "blob_missing"


class Answering:
    """A node that answers `data`, raises `error`, or never ends."""

    def __init__(self, data: bytes = b"", error: MillstreamError | None = None) -> None:
        self.data, self.error = data, error
        self.hangs = False
        self.paths: list[str] = []
        self.headers: dict[str, str] = {}
        self.content = self
        self.is_closed = False

    async def _begin(self, path: str) -> None:
        self.paths.append(path)
        if self.hangs:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error

    async def ask(self, method: str, path: str, *, data: bytes) -> bytes:
        await self._begin(path)
        return self.data

    async def opened(self, method: str, path: str, *, data: bytes) -> Answering:
        await self._begin(path)
        return self

    async def iter_chunked(self, size: int) -> Any:
        if self.data:
            yield self.data

    def close(self) -> None:
        self.is_closed = True


def link_to(node: Answering) -> RemoteNode:
    return RemoteNode("a/b", NodeAt("b", 2), node)  # type: ignore[arg-type]


async def failure(node: Answering) -> MillstreamError:
    """What both streams fail with."""
    with pytest.raises(MillstreamError) as caught:
        [one async for one in link_to(node).changes(CHANGES)]
    with pytest.raises(MillstreamError) as other:
        [one async for one in link_to(node).documents(DOCUMENTS)]
    assert other.value.code == caught.value.code
    return caught.value


@pytest.mark.parametrize("data", [b"", framed(Found([b"x"])), b"\xff" * 8, b"\0\0\0\1\xc0"])
async def test_streams_that_are_none(data: bytes) -> None:
    node = Answering(data)
    assert (await failure(node)).code == "node_failed"
    assert node.is_closed
    assert set(node.paths) == {"/_millstream/buckets/a%2Fb/stored"}


@pytest.mark.parametrize("answer", [Done(), Histories("0.1", []), StoredList([])])
async def test_answers_about_something_else(answer: Any) -> None:
    node = link_to(Answering(encode(answer)))
    for call in (
        node.histories(WantedHistories("u1", [0])),
        read_stored(node, ReadStored("u1", ["x"], False)),
    ):
        with pytest.raises(UnavailableError) as caught:
            await call
        assert caught.value.code == "node_failed"


async def test_nothing_but_the_end_is_an_answer_for_documents_alone() -> None:
    node = Answering(framed(Ended()))
    assert [one async for one in link_to(node).documents(DOCUMENTS)] == []
    with pytest.raises(UnavailableError):
        [one async for one in link_to(node).changes(CHANGES)]


async def test_failures_arrive_with_their_codes() -> None:
    for code in ("not_my_partition", "bucket_not_found"):
        error = await failure(Answering(framed(Failed(code, "why"))))
        assert error.code == "not_my_partition"
    error = await failure(Answering(framed(Failed("bucket_failed", "why"))))
    assert (error.code, str(error)) == ("bucket_failed", "node b:2: why")
    error = await failure(Answering(error=AccessError("no", code="forbidden")))
    assert error.code == "node_failed", "a node that refuses us is not the client's fault"


async def test_a_stream_of_a_node_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_node, "ANSWER_S_MAX", 0.001)
    node = Answering()
    node.hangs = True
    assert (await failure(node)).code == "node_failed"
    with pytest.raises(UnavailableError, match="in time"):
        await link_to(node).histories(WantedHistories("u1", [0]))
