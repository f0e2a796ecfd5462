import pytest

from millstream.errors import UnavailableError


async def test_buckets_come_and_go(client, body):
    listed = await body(await client.get("/_millstream/buckets"))
    assert [bucket["name"] for bucket in listed["buckets"]] == ["orders"]
    made = await body(
        await client.post("/_millstream/buckets", json={"name": "a/b", "partitions": 8}), 201
    )
    assert (made["partitions"], made["memory_quota_bytes"]) == (8, 7)
    small = {"name": "small", "memory_quota_bytes": 1 << 30}
    made = await body(await client.post("/_millstream/buckets", json=small), 201)
    assert made["memory_quota_bytes"] == 1 << 30
    assert (await body(await client.get("/_millstream/buckets/a%2Fb")))["name"] == "a/b"
    await body(await client.put("/_millstream/buckets/q%25"), 201)
    assert (await body(await client.get("/_millstream/buckets/q%25")))["name"] == "q%"
    await body(await client.delete("/_millstream/buckets/a%2Fb"))
    error = await body(await client.get("/_millstream/buckets/a%2Fb"), 404)
    assert error["error"] == "bucket_not_found"
    error = await body(await client.put("/_millstream/buckets/orders"), 412)
    assert error["error"] == "bucket_exists"


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"name": 1},
        {"name": "_a"},
        {"name": "a", "partitions": 3},
        {"name": "a", "partitions": "8"},
        {"name": "a", "memory_quota_bytes": "1GiB"},
        {"name": "a", "memory_quota_bytes": True},
    ],
)
async def test_bad_buckets_are_refused(client, content, body):
    await body(await client.post("/_millstream/buckets", json=content), 400)


async def test_keys_come_in_pages(client, body):
    path = "/_millstream/buckets/orders/keys"
    for name in ("b", "a", "ab"):
        await body(await client.put(f"/orders/{name}", json={}), 201)
    assert await body(await client.get(path)) == {"keys": ["a", "ab", "b"]}
    assert await body(await client.get(f"{path}?limit=2")) == {"keys": ["a", "ab"]}
    assert await body(await client.get(f"{path}?after=ab")) == {"keys": ["b"]}
    assert await body(await client.get(f"{path}?prefix=a&after=a")) == {"keys": ["ab"]}
    assert await body(await client.get(path, params={"prefix": r"\x6162"})) == {"keys": ["ab"]}
    limits = ("limit=0", "limit=1001", "limit=x", "limit=" + "9" * 5000)
    for bad in (*limits, r"after=\xg", r"prefix=\x0"):
        await body(await client.get(f"{path}?{bad}"), 400)
    await body(await client.get("/_millstream/buckets/none/keys"), 404)


async def test_who_may_read_may_list_keys(guarded, body, ada, bob, cleo):
    path = "/_millstream/buckets/orders/keys"
    await body(await guarded.get(path), 401)
    await body(await guarded.get(path, headers=bob))
    await body(await guarded.get(path, headers=cleo), 403)


async def test_a_bucket_is_compacted_when_asked(client, open_node, body):
    assert await body(await client.post("/_millstream/buckets/orders/compact"), 202) == {
        "ok": True
    }
    assert open_node.documents.compacted == ["orders"]
    error = await body(await client.post("/_millstream/buckets/none/compact"), 404)
    assert error["error"] == "bucket_not_found"


async def test_only_administrators_compact(guarded, guarded_node, body, ada, bob):
    path = "/_millstream/buckets/orders/compact"
    await body(await guarded.post(path, headers=bob), 403)
    assert guarded_node.documents.compacted == []
    await body(await guarded.post(path, headers=ada), 202)
    assert guarded_node.documents.compacted == ["orders"]


async def test_replicas_are_indexed_when_an_administrator_says_so(client, open_node, body):
    path = "/_millstream/buckets/orders/index_replicas"
    assert await body(await client.put(path, json={"wanted": True})) == {"ok": True}
    assert open_node.indexes.replicas is True
    error = await body(await client.put(path, json={"wanted": 1}), 400)
    assert error["error"] == "bad_request"
    path = "/_millstream/buckets/none/index_replicas"
    error = await body(await client.put(path, json={"wanted": True}), 404)
    assert error["error"] == "bucket_not_found"


async def test_only_administrators_have_replicas_indexed(guarded, guarded_node, body, ada, bob):
    path = "/_millstream/buckets/orders/index_replicas"
    await body(await guarded.put(path, json={"wanted": True}, headers=bob), 403)
    await body(await guarded.put(path, json={"wanted": True}, headers=ada))


@pytest.mark.parametrize("path", ["/_millstream/buckets/orders", "/orders"])
async def test_a_bucket_that_is_not_served_can_be_deleted(client, open_node, body, path):
    open_node.documents.failure = UnavailableError("it did not open", code="bucket_failed")
    assert await body(await client.delete(path)) == {"ok": True}
    assert open_node.buckets == {}
