"""`_purge`, `_purged_infos` and `_purged_infos_limit`."""

from millstream.errors import UnavailableError


async def test_leaves_are_purged(client, open_node, body, forked):
    path = "/orders/_purge"
    await body(await client.post(path, json={}), 201)
    assert open_node.changes.purges == []
    purged = await body(await client.post(path, json={"d": ["3-c", "2-a"], "none": ["1-a"]}), 201)
    assert purged == {"purge_seq": None, "purged": {"d": ["3-c"], "none": []}}
    assert open_node.changes.purges == ["begun", "made"]
    assert (await body(await client.get("/orders/d")))["_rev"] == "3-b"
    await body(await client.post(path, json={"d": ["3-b"]}), 201)
    assert (await body(await client.get("/orders/d"), 404))["reason"] == "missing"
    assert (await body(await client.put("/orders/d", json={}), 201))["rev"].startswith("1-")
    await body(await client.post(path, json={"_x": ["1-a"]}), 400)


async def test_the_limit_of_purges_is_kept(client, body):
    path = "/orders/_purged_infos_limit"
    assert await body(await client.get(path)) == 1000
    assert await body(await client.put(path, data=b"7")) == {"ok": True}
    assert await body(await client.get(path)) == 7
    for bad in (b"", b"0", b"-1", b"1.5", b'"5"', b"{}", b"100001"):
        assert (await body(await client.put(path, data=bad), 400))["error"] == "bad_request"
    await body(await client.get("/none/_purged_infos_limit"), 404)
    await body(await client.put("/none/_purged_infos_limit", data=b"1000"), 404)


async def test_purges_are_listed_with_the_revisions_that_went(client, body):
    path = "/orders/_purged_infos"
    assert await body(await client.get(path)) == {"purged_infos": []}
    revs = {}
    for name in "abc":
        revs[name] = [(await body(await client.put(f"/orders/{name}", json={}), 201))["rev"]]
    purged = {"b": revs["b"], "none": ["1-" + "0" * 32], "a": ["1-" + "0" * 32]}
    await body(await client.post("/orders/_purge", json=purged), 201)
    await body(await client.post("/orders/_purge", json={"a": revs["a"]}), 201)
    told = [{"id": name, "revs": revs[name]} for name in "ba"]
    assert await body(await client.get(path)) == {"purged_infos": told}
    await body(await client.put("/orders/_purged_infos_limit", data=b"1"))
    assert await body(await client.get(path)) == {"purged_infos": told[1:]}
    await body(await client.get("/none/_purged_infos"), 404)


async def test_old_contents_are_forgotten_though_the_purge_cannot_be_noted(
    client, open_node, body, monkeypatch
):
    first = (await body(await client.put("/orders/d", json={"secret": 1}), 201))["rev"]
    second = (await body(await client.put(f"/orders/d?rev={first}", json={}), 201))["rev"]
    assert (await body(await client.get(f"/orders/d?rev={first}")))["secret"] == 1

    async def full(*_):
        raise UnavailableError("the disk is full", code="disk_full")

    monkeypatch.setattr(open_node.documents, "note_purges", full)
    await body(await client.post("/orders/_purge", json={"d": [second]}), 503)
    path = {"start": 2, "ids": [second[2:], first[2:]]}
    again = {"docs": [{"_id": "d", "_revisions": path}], "new_edits": False}
    assert await body(await client.post("/orders/_bulk_docs", json=again), 201) == []
    await body(await client.get(f"/orders/d?rev={first}"), 404)
