"""One answer of several nodes, whatever they do meanwhile."""

from __future__ import annotations

import asyncio
import random
from contextlib import aclosing
from dataclasses import replace

import msgspec
import pytest

from millstream.errors import MillstreamError, RoutingError, UnavailableError
from millstream.model.position import Position
from millstream.views.aio.serving import gathering
from millstream.views.aio.serving.answering import AskedView
from millstream.views.aio.serving.gathering import QUERY_TRIES_MAX, Gatherer, NodePart
from millstream.views.core.collation import encode_key
from millstream.views.core.query.executor import find_groups, find_rows, wanted_partitions
from millstream.views.core.query.parameters import Query, parse_query
from millstream.views.core.query.partial_answers import group_part, part_failure, row_part
from millstream.views.core.query.rendering import render_groups, render_rows
from millstream.views.core.query.wait_for import Wanted
from support.budget import budget
from support.views.view_rows import Emit, SumAndCount, answer_of, groups_of, view_of

EMITS = [Emit(f"{n:04}", n % 6, [n % 3, n], n) for n in range(60)]
OWNERS = {"x": [0, 1], "y": [2], "z": [3, 4, 5]}


class Reducer(SumAndCount):
    """As a `ViewReducer`: 0 is the sum."""

    def only(self, number):
        return self


VIEW = AskedView(0, 0, Reducer(), 1, encode_key)


class Stream:
    def __init__(self, node, chunks):
        self.head = {"etag": "e-" + node.name}
        self._node, self._chunks = node, chunks

    async def __aiter__(self):
        for at, chunk in enumerate(self._chunks):
            if self._node.hangs_after == at:
                await asyncio.Event().wait()
            if self._node.ends_after == at:
                return
            if self._node.fails_after == at:
                yield part_failure(UnavailableError("cut off", code="snapshot_expired"))
                return
            self._node.sent += 1
            if chunk:
                yield chunk

    async def close(self):
        self._node.open_streams -= 1


class Node:
    """Answers from a list of rows; every message is a chunk."""

    def __init__(self, name, signature="s"):
        self.name, self.signature = name, signature
        self.requests, self.refusals = [], []
        self.emits = EMITS
        self.open_streams = self.sent = 0
        self.hangs_after = self.ends_after = self.fails_after = None

    async def query(self, request):
        self.requests.append(request)
        await asyncio.sleep(0)
        if self.refusals:
            raise self.refusals.pop()
        query = parse_query(request["options"])
        mask = sum(1 << p for p in request["partitions"])
        view = view_of(self.emits)
        is_reduced = query.is_reduced(has_reduce=True)
        if request["form"] == "json" and is_reduced:
            chunks = render_groups(find_groups(view, query, mask), Reducer(), 0)
        elif request["form"] == "json":
            chunks = render_rows(find_rows(view, query, mask))
        elif is_reduced:
            chunks = group_part(find_groups(view, query, mask), self.signature)
        else:
            chunks = row_part(find_rows(view, query, mask), self.signature)
        self.open_streams += 1
        return Stream(self, chunks)


class Nodes:
    def __init__(self, owners=OWNERS):
        self.nodes = {name: Node(name) for name in "xyz"}
        self.owners = owners
        self.looked = []
        self.view = VIEW

    async def parts_of(self, refusal):
        self.looked.append(refusal)
        return [NodePart(name, self.nodes[name], owned) for name, owned in self.owners.items()]

    async def ask(self, query, *, waits=False):
        gatherer = Gatherer("b", self.parts_of, waits=waits)
        answered = await gatherer.query("d", "v", query, self.view)
        text = b"".join([chunk async for chunk in answered.chunks])
        return msgspec.json.decode(text)

    @property
    def open_streams(self):
        return sum(node.open_streams for node in self.nodes.values())


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(gathering, "QUERY_PAUSES_S", (0.0,) * len(gathering.QUERY_PAUSES_S))


@pytest.mark.parametrize(
    "query",
    [
        Query(reduce=False),
        Query(reduce=False, descending=True, skip=5, limit=20),
        Query(reduce=False, keys=([1, 1], [2, 2], [1, 1])),
    ],
)
async def test_rows(query):
    nodes = Nodes()
    assert await nodes.ask(query) == answer_of(EMITS, query)
    assert nodes.open_streams == 0


@pytest.mark.parametrize("query", [Query(), Query(group_level=1), Query(group=True, limit=7)])
@pytest.mark.parametrize("is_own_reduce", [False, True])
async def test_groups(query, is_own_reduce):
    nodes = Nodes()
    nodes.view = VIEW._replace(is_own_reduce=is_own_reduce)
    expected = [{"key": key, "value": value[0]} for key, value in groups_of(EMITS, query)]
    assert await nodes.ask(query) == {"rows": expected}
    assert nodes.open_streams == 0


async def test_each_node_is_asked_for_its_partitions_and_for_enough_rows():
    nodes = Nodes()
    at = {p: Wanted(Position(7, 1, 1, 1)) for p in (0, 4)}
    await nodes.ask(Query(reduce=False, skip=2, limit=3, at=at))
    (request,) = nodes.nodes["z"].requests
    assert request == {
        "bucket": "b", "design": "d", "view": "v", "partitions": [3, 4, 5], "form": "part",
        "options": {"reduce": False, "limit": 5, "at": {"4": ["000000000007", 1, 1, 1]}},
    }  # fmt: skip
    assert "at" not in nodes.nodes["y"].requests[0]["options"]


async def test_one_node_with_everything_answers_by_itself():
    nodes = Nodes({"y": range(6)})
    query = Query(reduce=False, skip=2, limit=3)
    assert await nodes.ask(query) == answer_of(EMITS, query)
    (request,) = nodes.nodes["y"].requests
    assert (request["form"], parse_query(request["options"])) == ("json", query)
    assert nodes.open_streams == 0


async def test_a_moved_partition_restarts_the_query_with_a_newer_map():
    nodes = Nodes()
    nodes.nodes["y"].refusals = [RoutingError("moved"), RoutingError("moved")]
    query = Query(reduce=False)
    assert await nodes.ask(query) == answer_of(EMITS, query)
    assert [refusal is not None for refusal in nodes.looked] == [False, True, True]
    assert [len(node.requests) for node in nodes.nodes.values()] == [3, 3, 3]
    assert nodes.open_streams == 0


async def test_a_query_fails_if_nodes_never_agree_on_the_map():
    nodes = Nodes()
    nodes.nodes["y"].refusals = [RoutingError("moved")] * 99
    with pytest.raises(RoutingError, match="moved"):
        await nodes.ask(Query())
    assert len(nodes.looked) == QUERY_TRIES_MAX
    assert nodes.open_streams == 0


async def test_nodes_with_different_versions_of_the_design_are_asked_again():
    nodes = Nodes()
    nodes.nodes["y"].signature = "t"
    with pytest.raises(RoutingError) as caught:
        await nodes.ask(Query())
    assert caught.value.code == "design_differs"
    assert len(nodes.looked) == QUERY_TRIES_MAX
    assert nodes.open_streams == 0


@pytest.mark.parametrize("fault", ["refuses", "hangs", "ends", "fails", "hangs later",
                                   "ends later", "fails later"])  # fmt: skip
@pytest.mark.parametrize("query", [Query(reduce=False), Query(group=True)])
async def test_a_failed_node_is_an_error_or_is_reported_in_the_answer(fault, query, monkeypatch):
    monkeypatch.setattr(gathering, "NODE_CHUNK_S_MAX", 0.1)

    def broken():
        nodes = Nodes()
        node = nodes.nodes["z"]
        kind, _, later = fault.partition(" ")
        at = 1 if later else 0
        if kind == "refuses":
            node.refusals = [UnavailableError("node z is down", code="node_failed")]
        else:
            setattr(node, f"{kind}_after", at)
        return nodes

    nodes = broken()
    with pytest.raises(UnavailableError) as caught:
        await nodes.ask(query)
    code = "snapshot_expired" if "fails" in fault else "node_failed"
    assert caught.value.code == code
    assert nodes.open_streams == 0

    nodes = broken()
    found = await nodes.ask(replace(query, on_error="continue"))
    assert [error["from"] for error in found["errors"]] == ["z"]
    assert found["errors"][0]["error"] == code
    others = 0b000111
    if query.reduce is False:
        rows = answer_of(EMITS, query, others)["rows"]
        assert [row for row in found["rows"] if row["value"] % 6 < 3] == rows
    else:
        assert len(found["rows"]) == len(groups_of(EMITS, query, others))
    assert nodes.open_streams == 0


async def test_a_query_fails_if_all_nodes_fail():
    nodes = Nodes()
    for node in nodes.nodes.values():
        node.refusals = [UnavailableError("down", code="node_failed")]
    with pytest.raises(UnavailableError, match="down"):
        await nodes.ask(Query(on_error="continue"))


async def test_an_abandoned_answer_closes_all_streams():
    nodes = Nodes()
    gatherer = Gatherer("b", nodes.parts_of)
    answered = await gatherer.query("d", "v", Query(reduce=False), VIEW)
    assert nodes.open_streams == 3
    async with aclosing(answered.chunks) as chunks:
        await anext(chunks)
        await anext(chunks)
    assert nodes.open_streams == 0
    assert sum(node.sent for node in nodes.nodes.values()) <= 6


async def test_the_etag_covers_all_nodes():
    async def etag(nodes, **options):
        answered = await Gatherer("b", nodes.parts_of).query("d", "v", Query(**options), VIEW)
        [chunk async for chunk in answered.chunks]
        return answered.head.get("etag")

    first = await etag(Nodes())
    assert first == await etag(Nodes())
    assert len(first) == 32
    nodes = Nodes()
    nodes.nodes["x"].name = "other"
    assert await etag(nodes) != first
    nodes.nodes["y"].refusals = [MillstreamError("down")]
    assert await etag(nodes, on_error="continue") is None


# ---- a managed cluster


class OwnedNodes(Nodes):
    async def parts_of(self, refusal):
        parts = await super().parts_of(refusal)
        return [part._replace(keys=dict.fromkeys(part.partitions, (2, 1))) for part in parts]


async def test_owners_that_never_answer_are_reported():
    nodes = OwnedNodes()
    nodes.nodes["y"].refusals = [RoutingError("partition 3 moves")] * gathering.QUERY_TRIES_MAX
    with pytest.raises(UnavailableError, match="partition 3 moves") as raised:
        await nodes.ask(Query(reduce=False))
    assert raised.value.code == "index_moving"
    assert len(nodes.looked) == gathering.QUERY_TRIES_MAX
    assert nodes.open_streams == 0


async def test_where_owners_change_by_themselves_a_query_waits_for_one_that_answers():
    nodes, tries = OwnedNodes(), 3 * QUERY_TRIES_MAX
    nodes.nodes["y"].refusals = [RoutingError("it moves")] * tries
    assert await nodes.ask(Query(reduce=False), waits=True) == answer_of(
        EMITS, Query(reduce=False)
    )
    assert len(nodes.looked) == tries + 1
    down = UnavailableError("it is down", code="node_failed")
    nodes.nodes["y"].refusals = [down] * tries
    assert await nodes.ask(Query(), waits=True) == {"rows": [{"key": None, "value": 1770}]}
    nodes.nodes["y"].refusals = [down]
    with pytest.raises(UnavailableError, match="it is down"):
        await nodes.ask(Query())
    nodes.nodes["y"].refusals = [MillstreamError("no")]
    with pytest.raises(MillstreamError, match="no"):
        await nodes.ask(Query(), waits=True)
    assert nodes.open_streams == 0


@pytest.mark.parametrize("code", ["not_my_partition", "node_failed"])
@pytest.mark.parametrize(("wait_s", "timeout_ms"), [(0.0, 60_000), (60.0, 0)])
async def test_the_wait_for_an_owner_is_bounded(monkeypatch, code, wait_s, timeout_ms):
    monkeypatch.setattr(gathering, "MOVE_WAIT_S_MAX", wait_s)
    nodes = OwnedNodes()
    kind = RoutingError if code == "not_my_partition" else UnavailableError
    nodes.nodes["y"].refusals = [kind("it is away", code=code)] * 1000
    with pytest.raises(UnavailableError, match="it is away"):
        await nodes.ask(Query(reduce=False, timeout=timeout_ms), waits=True)
    assert len(nodes.looked) <= QUERY_TRIES_MAX


async def test_the_last_try_leaves_out_owners_only_on_request():
    nodes = OwnedNodes()
    nodes.nodes["y"].refusals = [RoutingError("it moves")] * gathering.QUERY_TRIES_MAX
    found = await nodes.ask(Query(reduce=False, on_error="continue"))
    assert found["errors"] == [
        {"from": "y", "error": "index_moving", "reason": "it moves",
         "partitions": list(OWNERS["y"])}
    ]  # fmt: skip
    assert {row["value"] for row in found["rows"]} == {
        emit.value for emit in EMITS if emit.partition not in OWNERS["y"]
    }
    nodes.nodes["y"].refusals = [RoutingError("it moves")] * (gathering.QUERY_TRIES_MAX - 1)
    assert "errors" not in await nodes.ask(Query(reduce=False, on_error="continue"))


async def test_records_in_refusals_are_used_in_the_next_try():
    nodes = OwnedNodes()
    for name, partition in (("x", 0), ("y", 1)):
        refusal = RoutingError("it moves")
        refusal.records = {partition: name}
        nodes.nodes[name].refusals = [refusal]
    await nodes.ask(Query(reduce=False))
    first, second = nodes.looked
    assert first is None
    assert second.records == {0: "x", 1: "y"}


# ---- partitions that move while queries are under way


class Moving:
    """Three nodes and a map that lags behind; each step of a query may find another state.

    A node answers for the partitions that are active there when it is asked, from the rows as they
    were then, and refuses the others: it may have lost their rows, or not have them yet.
    """

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.active = {name: set(owned) for name, owned in OWNERS.items()}
        self.map = {name: list(owned) for name, owned in OWNERS.items()}
        self.moves = self.refused = 0

    def disturb(self):
        match self.rng.randrange(6):
            case 0:  # the only owner of a partition changes, in one step
                source = self.rng.choice([name for name in "xyz" if self.active[name]])
                partition = self.rng.choice(sorted(self.active[source]))
                self.active[source].discard(partition)
                self.active[self.rng.choice("xyz")].add(partition)
                self.moves += 1
            case 1 | 2:  # the map is told
                self.map = {name: sorted(owned) for name, owned in self.active.items() if owned}

    async def parts_of(self, refusal):
        if refusal is not None and self.rng.random() < 0.7:
            self.map = {name: sorted(owned) for name, owned in self.active.items() if owned}
        self.disturb()
        return [NodePart(name, MovingNode(self, name), owned) for name, owned in self.map.items()]


class MovingNode(Node):
    def __init__(self, moving, name):
        super().__init__(name)
        self.moving = moving

    async def query(self, request):
        for _ in range(self.moving.rng.randrange(3)):
            await asyncio.sleep(0)
            self.moving.disturb()
        here = frozenset(self.moving.active[self.name])
        self.emits = [emit for emit in EMITS if emit.partition in here]
        active = sum(1 << p for p in here)
        asked = sum(1 << p for p in request["partitions"])
        try:
            wanted_partitions(active, asked=asked)
        except RoutingError:
            self.moving.refused += 1
            raise
        return await super().query(request)


async def test_rows_are_complete_and_unique_while_partitions_move():
    expected_rows = answer_of(EMITS, Query(reduce=False))
    expected_groups = [
        {"key": key, "value": value[0]} for key, value in groups_of(EMITS, Query(group_level=1))
    ]
    answered = refused = moves = 0
    for seed in range(budget(300)):
        moving = Moving(seed)
        query = Query(group_level=1) if seed % 2 else Query(reduce=False)
        try:
            found = await Gatherer("b", moving.parts_of).query("d", "v", query, VIEW)
        except RoutingError:
            refused += 1
            continue
        text = b""
        async for chunk in found.chunks:
            text += chunk
            moving.disturb()
        answer = msgspec.json.decode(text)
        assert answer == ({"rows": expected_groups} if seed % 2 else expected_rows), seed
        answered += 1
        moves += moving.moves
    assert answered > budget(300) * 0.8, "nearly all come to an end"
    assert moves > budget(300)
