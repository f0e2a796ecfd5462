"""What writers of indexes outside the node say over HTTP."""

import asyncio

import pytest

from millstream.errors import ConditionError
from millstream.gateway.aio.queries import index_pages

INDEX = "/_millstream/indexes/orders/d"
LOAD = {"fence": 3, "parts": {}, "back": [], "trees": [[]]}


@pytest.mark.parametrize(
    ("page", "said", "call", "arguments"),
    [
        ("writer", {"writer": "w"}, "take_over", {"writer": "w"}),
        ("judge", {"fence": 3}, "judge", {"fence": 3}),
        ("keep", {"fence": 3}, "keep", {"fence": 3}),
        ("load", LOAD, "load", {"fence": 3, "said": LOAD}),
        ("publish", {"fence": 3}, "publish", {"fence": 3, "said": {"fence": 3}}),
    ],
)
async def test_calls_are_passed_on(client, open_node, body, page, said, call, arguments):
    assert await body(await client.post(f"{INDEX}/{page}", json=said)) == {"call": call}
    assert open_node.indexes.written == [("orders", "d", call, arguments)]


async def test_where_an_index_stands(client, open_node, body):
    assert await body(await client.get(INDEX)) == {"call": "index"}
    assert open_node.indexes.written == [("orders", "d", "index", {})]


async def test_which_builds_are_offered(client, open_node, body):
    said = {"building": ["e"]}
    answered = await body(await client.post("/_millstream/offers/orders", json=said))
    assert answered == {"offers": ["orders", "e"]}
    for wrong in ({}, {"building": "e"}, {"building": [1]}):
        await body(await client.post("/_millstream/offers/orders", json=wrong), 400)


async def test_a_run_is_staged_as_it_comes(client, open_node, body):
    data = bytes(range(256)) * 3000
    response = await client.put(f"{INDEX}/runs/r1?fence=7", data=data)
    assert await body(response, 201) == {"ok": True}
    assert open_node.indexes.staged == [("orders", "d", 7, "r1", data)]


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ("writer", b"{}"), ("writer", b'{"writer": 1}'), ("judge", b'{"fence": "x"}'),
        ("load", b"{}"), ("publish", b"[1]"), ("publish", b"{"), ("publish", b"\xff"),
        ("judge", b""),
    ],
)  # fmt: skip
async def test_what_says_nothing_is_refused(client, open_node, body, page, said):
    await body(await client.post(f"{INDEX}/{page}", data=said), 400)
    assert open_node.indexes.written == []


async def test_a_run_names_its_writer(client, body):
    for fence in ("", "?fence=", "?fence=-1", "?fence=x"):
        await body(await client.put(f"{INDEX}/runs/r1{fence}", data=b"x"), 400)


async def test_refusals_are_told(client, open_node, body):
    open_node.indexes.refusal = ConditionError("taken over", code="index_fenced")
    answered = await body(await client.post(f"{INDEX}/judge", json={"fence": 1}), 409)
    assert answered == {"error": "index_fenced", "reason": "taken over"}


async def test_a_body_that_does_not_come_is_given_up(client, body, monkeypatch):
    monkeypatch.setattr(index_pages, "BODY_SECONDS", 0.01)

    async def slow():
        yield b"x"
        await asyncio.Event().wait()

    answered = await body(await client.put(f"{INDEX}/runs/r1?fence=1", data=slow()), 408)
    assert answered["error"] == "body_timeout"


async def test_writers_need_the_right_to_write_designs(guarded, body, ada, bob, cleo):
    calls = [
        (guarded.post, "/writer", {"json": {"writer": "w"}}),
        (guarded.post, "/judge", {"json": {"fence": 1}}),
        (guarded.post, "/keep", {"json": {"fence": 1}}),
        (guarded.post, "/load", {"json": LOAD}),
        (guarded.post, "/publish", {"json": {"fence": 1}}),
        (guarded.put, "/runs/r?fence=1", {"data": b"x"}),
    ]
    for ask, page, said in calls:
        await body(await ask(INDEX + page, **said), 401)
        await body(await ask(INDEX + page, headers=bob, **said), 403)
        assert (await ask(INDEX + page, headers=ada, **said)).status < 300
    asked = {"json": {"building": []}}
    await body(await guarded.post("/_millstream/offers/orders", headers=bob, **asked), 403)
    assert (await guarded.get(INDEX)).status == 401
    assert (await guarded.get(INDEX, headers=ada)).status == 200
