"""Other nodes, played by pages that say what a test wants."""

import asyncio
import logging

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from millstream.cluster import peers as neighbours
from millstream.cluster.cluster_state import ListedBucket, NodeAt, SharedBucket, SharedList
from millstream.cluster.peers import ClusterPeers
from millstream.views.aio.serving.gathering import NodeAccess


class SaidNode:
    def __init__(self):
        self.revisions = {"u1": "r1"}
        self.failing = ""
        self.garbage = b""
        self.asked = []

    async def page(self, request):
        self.asked.append(request.path)
        if self.failing:
            body = {"error": "unauthorized", "reason": self.failing}
            return web.json_response(body, status=401)
        if self.garbage:
            return web.Response(body=self.garbage)
        if request.path == "/_millstream/shared":
            listed = [ListedBucket(f"b{u}", u, 4, r) for u, r in self.revisions.items()]
            return web.Response(body=msgspec.json.encode(SharedList("n", 7, listed)))
        uuid = request.path.split("/")[3].removeprefix("b")
        told = SharedBucket(f"b{uuid}", uuid, 4, self.revisions[uuid], "", None, [0, 1, 2, 3], [])
        return web.Response(body=msgspec.json.encode(told))


@pytest.fixture
async def node(monkeypatch):
    monkeypatch.setattr(neighbours, "NODE_ASK_S", 0.005)
    return SaidNode()


@pytest.fixture
async def at(node):
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", node.page)
    async with TestServer(application) as server:
        yield NodeAt("127.0.0.1", server.port)


class Watching:
    def __init__(self, at, wants=lambda _: True):
        self.news = asyncio.Event()
        self.count = 0
        self.neighbours = ClusterPeers(NodeAccess("@node", "s", None), wants, self._heard)
        self.at = at

    def _heard(self):
        self.count += 1
        self.news.set()

    async def __aenter__(self):
        self.neighbours.watch([self.at])
        return self

    async def __aexit__(self, *_):
        await self.neighbours.stop()

    async def until(self, condition):
        async with asyncio.timeout(60):
            while not condition():
                self.news.clear()
                await self.news.wait()


async def rounds(node, count=3):
    """Wait until the node was asked so many times more."""
    wanted = node.asked.count("/_millstream/shared") + count
    async with asyncio.timeout(60):
        while node.asked.count("/_millstream/shared") < wanted:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.002)


async def test_what_changed_is_asked_for_and_no_more(node, at):
    async with Watching(at) as watching:
        known = watching.neighbours
        assert known.silent()[at] == "it has not answered yet"
        assert not known.is_gone("u2")
        await watching.until(lambda: known.told_of("u1"))
        ((who, kv, bucket),) = known.told_of("u1")
        assert (who, kv, bucket.revision) == (at, 7, "r1")
        assert (known.uuids(), known.is_gone("u1"), known.silent()) == ({"u1"}, False, {})
        count = watching.count
        await rounds(node)
        assert node.asked.count("/_millstream/buckets/bu1/shared") == 1
        assert watching.count == count
        node.revisions = {"u1": "r2", "u2": "r1", "failed": ""}
        await watching.until(lambda: known.told_of("u1")[0].bucket.revision == "r2")
        assert known.uuids() == {"u1", "u2"}
        node.revisions = {"u1": ""}  # it is not served now: what is known stays
        await watching.until(lambda: known.is_gone("u2"))
        assert known.told_of("u1")[0].bucket.revision == "r2"
        known.watch([])
        assert known.told_of("u1") == []


async def test_a_bucket_that_is_listed_is_not_gone_though_it_was_never_served(node, at):
    node.revisions = {"u1": ""}
    async with Watching(at) as watching:
        known = watching.neighbours
        await watching.until(lambda: not known.silent())
        assert known.uuids() == set()
        assert not known.is_gone("u1")
        node.revisions = {}
        await watching.until(lambda: known.is_gone("u1"))


async def test_silence_costs_nothing_that_is_known(node, at, caplog):
    caplog.set_level(logging.INFO)
    async with Watching(at) as watching:
        known = watching.neighbours
        await watching.until(lambda: known.told_of("u1"))
        node.failing = "wrong password"
        await rounds(node, 5)
        assert "wrong password" in known.silent()[at]
        assert not known.is_gone("none")
        assert known.told_of("u1")
        assert len([r for r in caplog.records if "wrong password" in r.getMessage()]) == 1
        node.failing, node.garbage = "", b"<html>"
        await rounds(node, 2)
        assert "no HTTP port of a Millstream node" in known.silent()[at]
        node.garbage = b""
        await watching.until(lambda: not known.silent())
        assert known.is_gone("none")


async def test_one_that_hangs_is_given_up(at, node, monkeypatch):
    monkeypatch.setattr(neighbours, "NODE_SAYS_S_MAX", 0.01)
    hanging = asyncio.Event()

    async def hang(_):
        await hanging.wait()

    application = web.Application()
    application.router.add_get("/_millstream/shared", hang)
    async with TestServer(application) as server:
        there = NodeAt("127.0.0.1", server.port)
        async with Watching(at) as watching:
            watching.neighbours.watch([there, at])
            await watching.until(lambda: watching.neighbours.told_of("u1"))
            await rounds(node, 10)
            assert "did not answer in time" in watching.neighbours.silent()[there]
            hanging.set()


async def test_what_nobody_wants_is_not_asked_for(node, at):
    node.revisions = {"u1": "r1", "u2": "r1"}
    async with Watching(at, lambda uuid: uuid == "u2") as watching:
        await watching.until(lambda: watching.neighbours.told_of("u2"))
        assert watching.neighbours.uuids() == {"u2"}
