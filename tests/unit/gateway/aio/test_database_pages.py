import pytest

DESIGN = {"views": {"by": {"map": "function (doc) { emit(1) }"}}}


async def test_a_bucket_is_a_database(client, open_host, body):
    response = await client.put("/a%2Fb")
    assert await body(response, 201) == {"ok": True}
    assert response.headers["Location"] == "/a%2Fb"
    assert open_host.buckets["a/b"].partitions == 16
    assert (await body(await client.put("/a%2Fb"), 412))["error"] == "file_exists"
    await body(await client.put("/small?q=4"), 201)
    assert open_host.buckets["small"].partitions == 4
    await body(await client.put("/odd?q=5"), 201)
    assert open_host.buckets["odd"].partitions == 8
    info = await body(await client.get("/orders"))
    assert (info["db_name"], info["update_seq"], info["cluster"]["q"]) == ("orders", "0-x", 64)
    assert (await client.head("/orders")).status == 200
    assert await body(await client.delete("/small/")) == {"ok": True}
    assert (await body(await client.get("/orders/")))["db_name"] == "orders"
    missing = {"error": "not_found", "reason": "Database does not exist."}
    assert await body(await client.get("/small"), 404) == missing
    assert await body(await client.delete("/small"), 404) == missing


@pytest.mark.parametrize(
    "path", ["/a?q=x", "/a?q=0", "/a?q=1025", "/a?q=9999999999", "/a?partitioned=true"]
)
async def test_bad_databases(client, body, path):
    await body(await client.put(path), 400)


async def test_names_are_those_of_buckets(client, body):
    error = await body(await client.put("/a%20b"), 400)
    assert error["error"] == "illegal_database_name"
    await body(await client.put("/_a"), 404)


async def test_only_administrators_make_databases(guarded, body, ada, bob):
    await body(await guarded.put("/mine", headers=bob), 403)
    await body(await guarded.put("/mine", headers=ada), 201)
    await body(await guarded.delete("/mine", headers=bob), 403)
    await body(await guarded.delete("/mine", headers=ada))
    await body(await guarded.get("/orders"), 401)
    await body(await guarded.get("/orders", headers=bob))
    await body(await guarded.get("/other", headers=bob), 403)


async def test_design_documents_are_listed(client, dataless, body):
    path = "/orders/_design_docs"
    assert await body(await client.get(path)) == {"total_rows": 0, "offset": 0, "rows": []}
    for name in ("b", "a", "c"):
        made = await body(await dataless.put(f"/orders/_design/{name}", json=DESIGN), 201)
    await body(await dataless.delete(f"/orders/_design/c?rev={made['rev']}"))
    answer = await body(await client.get(path))
    assert [row["id"] for row in answer["rows"]] == ["_design/a", "_design/b"]
    answer = await body(await client.get(path + '?startkey="_design/b"&include_docs=true'))
    assert answer["rows"][0]["doc"]["views"] == DESIGN["views"]
    answer = await body(await client.post(path, json={"keys": ["_design/b", "x"]}))
    assert answer["rows"][1]["error"] == "not_found"
    error = await body(await client.get(path + "?limit=-1"), 400)
    assert error["error"] == "query_parse_error"
    await body(await client.get(path + "?startkey=b"), 400)
    await body(await client.get("/none/_design_docs"), 404)


async def test_who_may_list(guarded, body, bob, cleo):
    await body(await guarded.get("/orders/_design_docs", headers=bob))
    await body(await guarded.get("/orders/_design_docs", headers=cleo))
    await body(await guarded.get("/orders/_design_docs"), 401)


async def test_settings(client, guarded, body, ada, bob):
    assert await body(await client.get("/orders/_revs_limit")) == 1000
    await body(await client.put("/orders/_revs_limit", data="7"))
    assert await body(await client.get("/orders/_revs_limit")) == 7
    for bad in ("0", "x", "-1", "1.5"):
        await body(await client.put("/orders/_revs_limit", data=bad), 400)
    security = {"admins": {"names": ["ada"]}, "more": 1}
    await body(await client.put("/orders/_security", json=security))
    assert await body(await client.get("/orders/_security")) == security
    for bad in ([], {"admins": 7}, {"members": {"roles": [7]}}):
        await body(await client.put("/orders/_security", json=bad), 400)
    await body(await guarded.put("/orders/_security", json={}, headers=bob), 403)
    await body(await guarded.put("/orders/_revs_limit", data="7", headers=bob), 403)
    await body(await guarded.put("/orders/_revs_limit", data="7", headers=ada))


async def test_all_databases(client, guarded, body, ada, bob):
    for name in ("b", "a"):
        await body(await client.put(f"/{name}"), 201)
    assert await body(await client.get("/_all_dbs")) == ["a", "b", "orders"]
    assert await body(await client.get("/_all_dbs?limit=1&skip=1")) == ["b"]
    assert await body(await client.get('/_all_dbs?startkey="b"&descending=true')) == ["b", "a"]
    infos = await body(await client.post("/_dbs_info", json={"keys": ["a", "none"]}))
    assert infos[0]["info"]["db_name"] == "a"
    assert infos[1] == {"key": "none", "error": "not_found"}
    assert len(await body(await client.get("/_dbs_info"))) == 3
    await body(await client.post("/_dbs_info", json={}), 400)
    await body(await client.get("/_all_dbs?limit=x"), 400)
    await body(await guarded.get("/_all_dbs"), 401)
    await body(await guarded.put("/mine", headers=ada), 201)
    assert await body(await guarded.get("/_all_dbs", headers=bob)) == ["orders"]


async def test_compaction_and_ids(client, open_host, body):
    await body(await client.post("/orders/_compact", json={}), 202)
    assert open_host.compacted == ["orders"]
    assert len(set((await body(await client.get("/_uuids?count=5")))["uuids"])) == 5
    assert len((await body(await client.get("/_uuids")))["uuids"]) == 1
    await body(await client.get("/_uuids?count=1001"), 400)
    await body(await client.delete("/orders?rev=1-a"), 400)
