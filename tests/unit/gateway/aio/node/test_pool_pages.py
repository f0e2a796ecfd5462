"""The pages that Couchbase SDKs begin, wait and ping by."""

import asyncio

import msgspec
import pytest

from millstream.gateway.aio.node import pool_pages


async def test_the_nodes_of_a_bucket_are_shown_with_their_health(client, open_node, body):
    found = await body(await client.get("/pools/default/buckets/orders"), 200)
    assert [node["status"] for node in found["nodes"]] == ["healthy", "healthy"]
    assert [node.get("thisNode", False) for node in found["nodes"]] == [True, False]
    assert (found["bucketType"], found["replicaNumber"]) == ("membase", 1)
    open_node.silent = {"[fd00::2]:4"}
    found = await body(await client.get("/pools/default"), 200)
    assert [node["status"] for node in found["nodes"]] == ["healthy", "unhealthy"]


async def test_the_ways_to_buckets_and_maps_are_those_of_the_sdks(client, open_node, body):
    assert (await body(await client.get("/pools"), 200))["pools"][0]["uri"] == "/pools/default"
    listed = await body(await client.get("/pools/default/buckets"), 200)
    assert await body(await client.get("/pools/default/buckets/"), 200) == listed
    assert [one["name"] for one in listed] == ["orders"]
    terse = await body(await client.get("/pools/default/b/orders"), 200)
    assert terse == msgspec.json.decode(open_node.cluster_config("orders"))
    services = await body(await client.get("/pools/default/nodeServices"), 200)
    assert [node["services"]["kv"] for node in services["nodesExt"]] == [1, 3]


@pytest.mark.parametrize("kind", ["buckets", "b", "bs", "bucketsStreaming"])
async def test_a_bucket_that_is_not_there_is_not_found(client, kind):
    answer = await client.get(f"/pools/default/{kind}/none")
    assert answer.status == 404
    assert "Requested resource not found" in await answer.text()


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/orders/x/y"), ("GET", "/orders/scopes"), ("POST", "/orders/scopes/s"),
        ("PUT", "/"), ("PUT", "/orders"), ("GET", "/orders/ddocs"),
        ("POST", "/orders/controller/compactBucket"),
    ],
)  # fmt: skip
async def test_management_that_is_not_here_is_told_from_a_missing_bucket(client, method, path):
    answer = await client.request(method, f"/pools/default/buckets{path}")
    told = (answer.status, await answer.text())
    assert told == (400, "Not allowed on this version of cluster")
    if "orders" in path:
        path = path.replace("orders", "none")
        answer = await client.request(method, f"/pools/default/buckets{path}")
        assert answer.status == 404
        assert "Requested resource not found" in await answer.text()


async def test_a_flush_is_refused_as_that_of_a_bucket_that_may_not_be_flushed(client):
    path = "/pools/default/buckets/{}/controller/doFlush"
    answer = await client.post(path.format("orders"))
    assert answer.status == 400
    assert "Flush is disabled" in await answer.text()
    assert (await client.post(path.format("none"))).status == 404


async def test_other_management_is_not_here(client):
    for method in ("GET", "POST", "PUT", "DELETE"):
        answer = await client.request(method, "/pools/default/users")
        assert (answer.status, await answer.text()) == (404, "Not found.")


async def test_a_stream_sends_a_map_again_when_it_has_changed_and_ends_with_its_bucket(
    client, open_node, monkeypatch
):
    monkeypatch.setattr(pool_pages, "_LOOK_SECONDS", 0.01)
    async with client.get("/pools/default/bs/orders") as answer, asyncio.timeout(60):
        first = await answer.content.readuntil(b"\n\n\n\n")
        assert msgspec.json.decode(first)["rev"] == 1
        open_node.map_revision = 2
        second = await answer.content.readuntil(b"\n\n\n\n")
        assert msgspec.json.decode(second)["rev"] == 2
        await open_node.delete_bucket("orders")
        assert await answer.content.read() == b""


async def test_strangers_are_told_nothing(guarded, body):
    for path in ("/pools", "/pools/default", "/pools/default/buckets", "/whoami",
                 "/pools/default/b/orders", "/pools/default/bs/orders",
                 "/pools/default/nodeServices"):  # fmt: skip
        await body(await guarded.get(path), 401)


async def test_a_user_is_told_who_it_is(client, body):
    assert (await body(await client.get("/whoami"), 200))["domain"] == "anonymous"


async def test_the_rust_sdk_is_told_by_a_status_that_a_feature_is_not_here(client):
    headers = {"User-Agent": "rust/1.1.0 (linux x86_64)"}
    answer = await client.get("/pools/default/buckets/orders/scopes", headers=headers)
    assert (answer.status, await answer.text()) == (404, "Not allowed on this version of cluster")


async def test_collections_are_said_to_be_unknown_and_not_the_bucket(client):
    for method, path in (("GET", ""), ("POST", ""), ("DELETE", "/x"), ("POST", "/x/collections")):
        answer = await client.request(method, f"/pools/default/buckets/orders/scopes{path}")
        said = "Not allowed on this version of cluster"
        assert (answer.status, await answer.text()) == (400, said)
