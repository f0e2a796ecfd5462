"""A bucket on two nodes, one of them behind HTTP."""

from __future__ import annotations

from contextlib import contextmanager

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from millstream.errors import RoutingError, UnavailableError, UsageError
from millstream.model.cluster_maps import IndexRecord, MapKey
from millstream.views.aio.serving import gathering
from millstream.views.aio.serving.answering import AskedView
from millstream.views.aio.serving.bucket_order import BucketOrder, Member, NodeShare, OwnedParts
from millstream.views.aio.serving.distributed_queries import DistributedQueries
from millstream.views.aio.serving.index_server import Answer
from millstream.views.aio.serving.node_link import NOBODY
from millstream.views.core.collation import encode_key
from millstream.views.core.query.executor import find_groups, find_rows
from millstream.views.core.query.parameters import Query, parse_query
from millstream.views.core.query.partial_answers import group_part, row_part
from millstream.views.core.query.rendering import render_groups, render_rows
from support.views.view_rows import TREE_REDUCER, Emit, answer_of, groups_of, tree_view_of

EMITS = [Emit(f"{n:03}", n % 4, [n % 3, n], n) for n in range(40)]
HERE, THERE = [0, 3], [1, 2]


class Bucket:
    """Has the shape of a hosted one."""

    name, uuid = "b", "u"

    def __init__(self, nodes=()):
        self.order = BucketOrder("u", "b", 4, HERE, [], [], {}, list(nodes))
        self.asked, self.keys = [], []
        self.newer = {}
        self.users = 0

    @contextmanager
    def asked_view(self, name, view):
        if (name, view) != ("d", "v"):
            raise UsageError("no such view", code="missing_named_view")
        self.users += 1
        yield AskedView(0, 1, TREE_REDUCER, 0, encode_key)
        self.users -= 1

    async def query(self, name, view, options, partitions, form, keys=None):
        self.asked.append((name, view, options, list(partitions), form))
        self.keys.append(keys)
        query = parse_query(options)
        mask = sum(1 << p for p in partitions)
        rows = tree_view_of(EMITS)
        if query.is_reduced(has_reduce=True):
            groups = find_groups(rows, query, mask)
            if form == "part":
                return Answer({"etag": "e"}, tuple(group_part(groups, "s")))
            return Answer({"etag": "e"}, tuple(render_groups(groups, TREE_REDUCER, 1)))
        found = find_rows(rows, query, mask)
        if form == "part":
            return Answer({"etag": "e"}, self._later(row_part(found, "s")))
        return Answer({"etag": "e"}, tuple(render_rows(found)))

    async def _later(self, chunks):
        for chunk in chunks:
            yield chunk


@pytest.fixture
async def other():
    """The other node: its bucket, and the port that its pages are at."""
    bucket = Bucket()

    async def page(request):
        asked = await request.json()
        if moved := bucket.newer.keys() & set(asked["partitions"]):
            told = {str(p): msgspec.to_builtins(bucket.newer[p]) for p in moved}
            body = {"error": "not_my_partition", "reason": "moved", "records": told}
            return web.json_response(body, status=503)
        answer = await bucket.query(
            asked["design"], asked["view"], asked["options"], asked["partitions"], asked["form"],
            asked.get("keys"),
        )  # fmt: skip
        body = answer.body
        if not isinstance(body, tuple):
            body = [chunk async for chunk in body]
        return web.Response(body=b"".join(body), headers={"ETag": '"e"'})

    application = web.Application()
    application.router.add_post("/_millstream/buckets/b/part", page)
    async with TestServer(application) as server:
        yield bucket, server.port


@pytest.fixture
async def distributed():
    made = DistributedQueries(NOBODY)
    yield made
    await made.close()


def shares(port, here=HERE, there=THERE):
    return [
        NodeShare("x", "127.0.0.1", 1, here, True),
        NodeShare("y", "127.0.0.1", port, there, False),
    ]


async def ask(distributed, bucket, **options):
    answer = await distributed.query(bucket, "d", "v", options)
    return msgspec.json.decode(b"".join([chunk async for chunk in answer.body]))


async def test_rows_and_groups_of_both(distributed, other):
    there, port = other
    here = Bucket(shares(port))
    found = await ask(distributed, here, reduce=False, descending=True, limit=15)
    assert found == answer_of(EMITS, Query(reduce=False, descending=True, limit=15))
    expected = groups_of(EMITS, Query(group_level=1))
    assert await ask(distributed, here, group_level=1) == {
        "rows": [{"key": key, "value": value[0]} for key, value in expected]
    }
    assert [asked[3] for asked in here.asked + there.asked] == [HERE, HERE, THERE, THERE]


async def test_an_answer_of_one_other_node_passes_through(distributed, other):
    there, port = other
    here = Bucket(shares(port, [], [0, 1, 2, 3])[1:])
    assert await ask(distributed, here, reduce=False) == answer_of(EMITS, Query(reduce=False))
    assert here.asked == []
    assert there.asked[0][4] == "json"


async def test_a_partition_without_owner_is_an_error(distributed, other, monkeypatch):
    monkeypatch.setattr(gathering, "QUERY_PAUSES_S", (0.0,))
    _, port = other
    with pytest.raises(RoutingError) as caught:
        await ask(distributed, Bucket(shares(port, [0])))
    assert caught.value.code == "not_my_partition"


def owned(records, port, members="xy"):
    places = {"x": Member("x", "127.0.0.1", 1), "y": Member("y", "127.0.0.1", port)}
    return OwnedParts("x", records, {name: places[name] for name in members}, [])


def by(key, owners):
    return {p: IndexRecord(key, owner) for p, owner in enumerate(owners) if owner}


async def test_owners_by_the_index_map_are_asked_with_the_keys_of_their_records(
    distributed, other
):
    there, port = other
    here = Bucket()
    parts = owned(by(MapKey(2, 1), "xyyx"), port)
    here.order = msgspec.structs.replace(here.order, owned=parts)
    assert await ask(distributed, here, reduce=False) == answer_of(EMITS, Query(reduce=False))
    assert here.keys == [dict.fromkeys(HERE, MapKey(2, 1))]
    assert there.keys == [{"1": [2, 1], "2": [2, 1]}]
    answer = await distributed.query(here, "d", "v", {})
    assert answer.head["is_here"] is True
    assert [chunk async for chunk in answer.body]


@pytest.mark.parametrize(("owners", "members"), [("xyy", "xy"), ("xyyx", "x")])
async def test_without_a_known_owner_there_is_no_short_answer(
    distributed, other, monkeypatch, owners, members
):
    monkeypatch.setattr(gathering, "QUERY_PAUSES_S", (0.0,))
    monkeypatch.setattr(gathering, "MOVE_WAIT_S_MAX", 0.0)
    here = Bucket()
    parts = owned(by(MapKey(2, 1), owners), other[1], members)
    here.order = msgspec.structs.replace(here.order, owned=parts)
    with pytest.raises(UnavailableError) as caught:
        await ask(distributed, here)
    assert caught.value.code == "index_moving"


async def test_a_node_out_of_step_does_not_ask_itself(distributed, other, monkeypatch):
    monkeypatch.setattr(gathering, "QUERY_PAUSES_S", (0.0,))
    here = Bucket()
    parts = owned(by(MapKey(2, 1), "xyyx"), other[1])
    here.order = msgspec.structs.replace(here.order, owned=parts)
    with pytest.raises(UnavailableError) as caught:
        await distributed.query(here, "d", "v", {}, is_in_step=False)
    assert caught.value.code == "index_moving"
    assert here.asked == []


async def test_a_newer_record_from_a_node_is_used_in_the_next_try(distributed, other, monkeypatch):
    monkeypatch.setattr(gathering, "QUERY_PAUSES_S", (0.0,))
    there, port = other
    here = Bucket()
    parts = owned(by(MapKey(2, 1), "xyyy"), port)
    here.order = msgspec.structs.replace(here.order, owned=parts)
    there.newer = {3: IndexRecord(MapKey(2, 2), "x")}
    assert await ask(distributed, here, reduce=False) == answer_of(EMITS, Query(reduce=False))
    assert [asked[3] for asked in there.asked] == [[1, 2]]
    assert here.keys[-1] == {0: MapKey(2, 1), 3: MapKey(2, 2)}
    newest = owned(by(MapKey(2, 3), "xyyx"), port)
    here.order = msgspec.structs.replace(here.order, owned=newest)
    await ask(distributed, here, reduce=False)
    assert distributed._learned == {"u": {}}


async def test_mistakes_are_found_here(distributed, other):
    there, port = other
    here = Bucket(shares(port))
    with pytest.raises(UsageError):
        await distributed.query(here, "d", "other", {})
    with pytest.raises(UsageError):
        await ask(distributed, here, startkey=2, endkey=1)
    assert there.asked == here.asked == []


async def test_the_index_here_stays_open_while_its_answer_is_merged(distributed, other):
    _, port = other
    here = Bucket(shares(port))
    answer = await distributed.query(here, "d", "v", {"group_level": 1})
    assert here.users == 1
    assert [chunk async for chunk in answer.body]
    assert here.users == 0
