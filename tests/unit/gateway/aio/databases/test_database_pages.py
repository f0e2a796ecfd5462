import pytest

from millstream.errors import UnavailableError
from millstream.gateway.aio.databases.database_pages import DATABASES_ASKED_MAX, UUIDS_MAX


async def test_a_bucket_is_a_database(client, open_node, body):
    response = await client.put("/a%2Fb")
    assert await body(response, 201) == {"ok": True}
    assert response.headers["Location"] == "/a%2Fb"
    assert open_node.buckets["a/b"].partitions == 16
    assert (await body(await client.put("/a%2Fb"), 412))["error"] == "file_exists"
    await body(await client.put("/small?q=4"), 201)
    assert open_node.buckets["small"].partitions == 4
    info = await body(await client.get("/orders"))
    assert (info["db_name"], info["update_seq"]) == ("orders", "0-x")
    assert info["cluster"] == {"q": 64, "n": 1, "w": 1, "r": 1}
    assert info["sizes"] == {"file": 10, "active": 9, "external": 8}
    assert (await client.head("/orders")).status == 200
    assert await body(await client.delete("/small/")) == {"ok": True}
    assert (await body(await client.get("/orders/")))["db_name"] == "orders"
    missing = {"error": "not_found", "reason": "Database does not exist."}
    assert await body(await client.get("/small"), 404) == missing
    assert await body(await client.delete("/small"), 404) == missing


@pytest.mark.parametrize("path", ["/a?q=x", "/a?q=0", "/a?q=9999999999", "/a?partitioned=true"])
async def test_bad_databases(client, body, path):
    await body(await client.put(path), 400)


async def test_names_are_those_of_buckets(client, body):
    error = await body(await client.put("/a%20b"), 400)
    assert error["error"] == "illegal_database_name"
    assert (await body(await client.put("/_a"), 400))["error"] == "illegal_database_name"
    assert (await body(await client.get("/_a"), 404))["error"] == "not_found"


async def test_a_failed_bucket_is_not_described(client, open_node, body):
    open_node.documents.failure = UnavailableError("broken", code="bucket_failed")
    assert "broken" in (await body(await client.get("/orders"), 503))["reason"]


async def test_only_administrators_make_databases(guarded, body, ada, bob):
    await body(await guarded.put("/mine", headers=bob), 403)
    await body(await guarded.put("/mine", headers=ada), 201)
    await body(await guarded.delete("/mine", headers=bob), 403)
    await body(await guarded.delete("/mine", headers=ada))
    await body(await guarded.get("/orders"), 401)
    await body(await guarded.get("/orders", headers=bob))
    await body(await guarded.get("/other", headers=bob), 403)


@pytest.mark.parametrize(("q", "partitions"), [(1, 1), (3, 4), (8, 8), (513, 1024)])
async def test_partitions_are_a_power_of_two(client, open_node, body, q, partitions):
    await body(await client.put(f"/some?q={q}"), 201)
    assert open_node.buckets["some"].partitions == partitions


async def test_a_database_is_not_deleted_like_a_document(client, open_node, body):
    await body(await client.delete("/orders?rev=1-a"), 400)
    assert "orders" in open_node.buckets


async def test_security_is_kept_as_it_was_given(client, body):
    path = "/orders/_security"
    assert await body(await client.get(path)) == {}
    given = {"admins": {"names": ["a"]}, "members": {"roles": []}, "other": 1}
    assert await body(await client.put(path, json=given)) == {"ok": True}
    assert await body(await client.get(path)) == given


@pytest.mark.parametrize(
    "data",
    [
        b"{", b"[]", b"7", b"", b"\xff", b"[" * 60_000, b'{"a":' * 2000 + b"1" + b"}" * 2000,
        b'{"admins":7}', b'{"members":{"names":"a"}}', b'{"members":{"roles":[1]}}',
    ],
)  # fmt: skip
async def test_bad_security(client, body, data):
    await body(await client.put("/orders/_security", data=data), 400)
    await body(await client.post("/_dbs_info", data=data), 400)
    assert await body(await client.get("/orders/_security")) == {}


async def test_revisions_that_are_kept(client, body):
    path = "/orders/_revs_limit"
    assert await body(await client.get(path)) == 1000
    assert await body(await client.put(path, data=b"5\n")) == {"ok": True}
    assert await body(await client.get(path)) == 5
    for bad in (b"", b"0", b"-1", b"1.5", b'"5"', b"{}", b"1000001", "²".encode()):
        await body(await client.put(path, data=bad), 400)
    await body(await client.put(path, data=b"1" * 65), 413)
    await body(await client.put("/none/_revs_limit", data=b"5"), 404)


async def test_ids_that_are_the_nodes(client, body):
    refused = await body(await client.put("/orders/_mine", json={}), 400)
    assert refused["error"] == "illegal_docid"
    await body(await client.get("/orders/_mine"), 404)
    await body(await client.put("/orders/_changes", json={}), 405)


async def test_no_answer_is_used_again_without_asking(client):
    for path in ("/orders", "/orders/none", "/nothing/there/is", "/_up"):
        response = await client.get(path)
        assert response.headers["Cache-Control"] == "must-revalidate"
    assert "no-store" in (await client.get("/_uuids")).headers["Cache-Control"]


async def test_settings_are_the_administrators(guarded, body, ada, bob):
    for path, data in (("/orders/_security", b"{}"), ("/orders/_revs_limit", b"1000")):
        await body(await guarded.put(path, data=data), 401)
        await body(await guarded.put(path, data=data, headers=bob), 403)
        await body(await guarded.put(path, data=data, headers=ada))
        await body(await guarded.get(path), 401)
        await body(await guarded.get(path, headers=bob))
    await body(await guarded.post("/orders/_compact", headers=bob), 403)
    assert await body(await guarded.post("/orders/_compact", headers=ada), 202) == {"ok": True}


async def test_databases_that_the_cluster_has_yet_to_tell_are_not_shown_as_missing(
    client, open_node, body
):
    open_node.unknown = UnavailableError("not read yet", code="buckets_unknown")
    for path in (
        "/_all_dbs",
        "/_db_updates",
        "/_millstream/buckets",
        "/_millstream/buckets/new",
        "/pools/default/buckets",
    ):
        assert (await body(await client.get(path), 503))["error"] == "buckets_unknown"
    assert (await body(await client.get("/_millstream/buckets/orders")))["name"] == "orders"


async def test_all_databases(client, body):
    for name in ("a", "b", "c"):
        await body(await client.put(f"/{name}"), 201)

    async def names(options):
        return await body(await client.get(f"/_all_dbs{options}"))

    assert await names("") == ["a", "b", "c", "orders"]
    assert await names("?skip=1&limit=2") == ["b", "c"]
    assert await names('?startkey="b"&end_key="c"') == ["b", "c"]
    assert await names('?descending=true&startkey="c"&endkey="b"') == ["c", "b"]
    for bad in ("?limit=-1", "?skip=x", "?startkey=a", "?endkey=" + "[" * 2000):
        await body(await client.get("/_all_dbs" + bad), 400)


async def test_databases_are_described(client, open_node, body):
    [one] = await body(await client.get("/_dbs_info"))
    assert (one["key"], one["info"]["db_name"]) == ("orders", "orders")
    asked = {"keys": ["none", "orders"]}
    first, second = await body(await client.post("/_dbs_info", json=asked))
    assert first == {"key": "none", "error": "not_found"}
    assert second == one
    many = {"keys": ["orders"] * (DATABASES_ASKED_MAX + 1)}
    for bad in ({}, {"keys": 1}, {"keys": [1]}, many):
        await body(await client.post("/_dbs_info", json=bad), 400)
    open_node.documents.failure = UnavailableError("broken", code="bucket_failed")
    assert await body(await client.get("/_dbs_info")) == [
        {"key": "orders", "error": "unavailable"}
    ]


async def test_a_range_of_databases_is_described_however_many_there_are(client, body, monkeypatch):
    monkeypatch.setattr("millstream.gateway.aio.databases.database_pages.DATABASES_ASKED_MAX", 2)
    for name in ("a", "b", "c"):
        await body(await client.put(f"/{name}"), 201)

    async def names(options):
        told = await body(await client.get(f"/_dbs_info{options}"))
        assert all(one["info"]["db_name"] == one["key"] for one in told)
        return [one["key"] for one in told]

    assert await names("") == ["a", "b", "c", "orders"]
    assert await names("?skip=1&limit=2") == ["b", "c"]
    assert await names('?startkey="b"&end_key="c"') == ["b", "c"]
    assert await names('?descending=true&startkey="c"&endkey="b"') == ["c", "b"]
    assert await names("?limit=0") == []


async def test_who_is_told_of_databases(guarded, body, ada, bob, cleo):
    await body(await guarded.get("/_all_dbs"), 401)
    assert await body(await guarded.get("/_all_dbs", headers=cleo)) == []
    assert await body(await guarded.get("/_all_dbs", headers=bob)) == ["orders"]
    asked = {"keys": ["orders"]}
    [told] = await body(await guarded.post("/_dbs_info", json=asked, headers=ada))
    [untold] = await body(await guarded.post("/_dbs_info", json=asked, headers=cleo))
    assert ("info" in told, untold) == (True, {"key": "orders", "error": "not_found"})


async def test_ids_are_made(client, body):
    [one] = (await body(await client.get("/_uuids")))["uuids"]
    assert len(bytes.fromhex(one)) == 16
    many = (await body(await client.get(f"/_uuids?count={UUIDS_MAX}")))["uuids"]
    assert len(set(many)) == UUIDS_MAX
    assert (await body(await client.get("/_uuids?count=0")))["uuids"] == []
    for bad in (UUIDS_MAX + 1, "x", -1):
        await body(await client.get(f"/_uuids?count={bad}"), 400)
