import json
from base64 import b64encode

import pytest

from millstream.errors import AccessError, UnavailableError

BULK, GET = "/orders/_bulk_docs", "/orders/_bulk_get"


async def bulk(client, body, docs, status=201, **more):
    return await body(await client.post(BULK, json={"docs": docs, **more}), status)


async def get(client, body, docs, options="", status=200):
    return await body(await client.post(GET + options, json={"docs": docs}), status)


async def test_answers_are_in_order(client, open_node, body):
    docs = [
        {"_id": "a"},
        {},
        {"_id": "a", "n": 1},
        {"_id": "c", "_rev": "1-a"},
        7,
    ]
    first, second, *refused = await bulk(client, body, docs)
    assert first == {"ok": True, "id": "a", "rev": "1-967a00dff5e02add41819138abb3284d"}
    assert second["ok"]
    assert len(second["id"]) == 32
    told = [(one.get("id"), one.get("rev"), one["error"]) for one in refused]
    assert told == [
        ("a", None, "conflict"),
        ("c", None, "conflict"),
        (None, None, "bad_request"),
    ]
    assert set(open_node.documents.database("orders").documents) == {"a", second["id"]}
    assert open_node.documents.durable_waits == 1
    await body(await client.post(BULK + "?batch=ok", json={"docs": [{}]}), 201)
    assert open_node.documents.durable_waits == 1


@pytest.mark.parametrize("bad", ["", "_x", "_local", "_design/", "x" * 251, 7, None])
async def test_an_illegal_id(client, open_node, body, bad):
    docs = [{"_id": "a", "_rev": "1-a"}, {"_id": bad, "_rev": "1-a"}, {"_id": "b", "_rev": "1-b"}]
    assert (await bulk(client, body, docs, 400))["error"] == "illegal_docid"
    assert open_node.documents.database("orders").documents == {}
    [refused] = await bulk(client, body, docs, new_edits=False)
    assert refused["error"] == "forbidden"
    assert set(open_node.documents.database("orders").documents) == {"a", "b"}


async def test_a_special_member_that_nobody_knows(client, open_node, body):
    docs = [{"_id": "_local/a"}, {"_id": "a", "_rev": "1-a"}, {"_id": "b", "_rev": "1-b", "_x": 1}]
    assert (await bulk(client, body, docs, 400))["error"] == "doc_validation"
    assert open_node.documents.database("orders").documents == {}
    await body(await client.get("/orders/_local/a"), 404)
    [refused] = await bulk(client, body, docs, new_edits=False)
    assert refused["error"] == "doc_validation"
    assert set(open_node.documents.database("orders").documents) == {"a"}
    await body(await client.get("/orders/_local/a"))


async def test_local_documents_among_others(client, body, monkeypatch):
    monkeypatch.setattr("millstream.gateway.aio.documents.bulk_pages.LOCAL_BYTES_MAX", 1000)
    docs = [{"_id": "_local/a", "n": 1}, {"_id": "a"}, {"_id": "_local/b"}]
    told = await bulk(client, body, docs)
    assert [(one["id"], one["rev"][:2]) for one in told] == [
        ("_local/a", "0-"),
        ("a", "1-"),
        ("_local/b", "0-"),
    ]
    assert (await body(await client.get("/orders/_local/a")))["n"] == 1
    again = [
        {"_id": "_local/a", "_rev": "0-1", "_deleted": True},
        {"_id": "_local/b", "_rev": "0-7"},
        {"_id": "_local/c", "_rev": "1-a"},
        {"_id": "_local/d", "x": "x" * 1000},
    ]
    deleted, *refused = await bulk(client, body, again)
    assert (deleted["ok"], deleted["rev"]) == (True, "0-0")
    assert [(one["id"], one["error"]) for one in refused] == [
        ("_local/b", "conflict"),
        ("_local/c", "bad_request"),
        ("_local/d", "too_large"),
    ]
    await body(await client.get("/orders/_local/a"), 404)


async def test_only_refusals_of_a_peers_revisions_are_told(client, body):
    docs = [
        {"_id": "a", "_rev": "1-a"},
        {"_id": "b"},
        {"_rev": "1-a"},
        {"_id": "a", "_rev": "1-b"},
    ]
    await body(await client.post(BULK, json={"docs": docs, "new_edits": False}), 400)
    third = (await bulk(client, body, [docs[0], *docs[2:]], new_edits=False))[0]
    assert third["error"] == "forbidden"
    found = await body(await client.get("/orders/a?conflicts=true"))
    assert (found["_rev"], found["_conflicts"]) == ("1-b", ["1-a"])


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{", b"[]", b"7", b"{}", b'{"docs":7}', b'{"docs":{}}', b"\xff",
        b'{"docs":[],"new_edits":7}', b'{"docs":[' + b"[" * 100_000, b"[" * 100_000,
    ],
)  # fmt: skip
async def test_bad_bodies(client, body, data):
    headers = {"Content-Type": "application/json"}
    await body(await client.post(BULK, data=data, headers=headers), 400)
    if b'"docs":[]' not in data:
        await body(await client.post(GET, data=data, headers=headers), 400)
    if data != b"{}":
        for name in ("_revs_diff", "_missing_revs", "_purge"):
            await body(await client.post(f"/orders/{name}", data=data, headers=headers), 400)


async def test_bad_heads(client, body):
    await body(await client.post(BULK, data=b'{"docs":[]}'), 415)
    assert (await bulk(client, body, [], 201)) == []
    missing = {"error": "not_found", "reason": "Database does not exist."}
    for name in ("_bulk_docs", "_bulk_get"):
        asked = {"docs": [{"id": "a", "_id": "a"}]}
        if name == "_bulk_docs":
            assert await body(await client.post(f"/none/{name}", json=asked), 404) == missing


@pytest.mark.parametrize("depth", [257, 400, 1_000, 5_000, 100_000])
@pytest.mark.parametrize("is_replicated", [False, True])
async def test_deep_documents_are_refused_alone_and_by_name(client, body, depth, is_replicated):
    deep = (
        b'{"docs":[{"_id":"a","_rev":"1-a"},{"_id":"b","x":'
        + (b"[" * depth + b"]" * depth)
        + b',"_rev":"1-b"},{"_id":"c","_rev":"1-c"}],"new_edits":false}'
    )
    if not is_replicated:
        deep = deep.replace(b',"new_edits":false', b"").replace(b',"_rev":"1-', b',"y":"1-')
    headers = {"Content-Type": "application/json"}
    told = await body(await client.post(BULK, data=deep, headers=headers), 201)
    [refused] = [one for one in told if "error" in one]
    assert (refused["id"], refused["error"]) == ("b", "bad_request")
    assert refused.get("rev") == ("1-b" if is_replicated else None)
    assert len(told) == (1 if is_replicated else 3)
    for name in "ac":
        await body(await client.get(f"/orders/{name}"))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('{"_id":"b","_rev":"1-b","x":1e999}', {"id": "b", "rev": "1-b"}),
        ('{"_id":"b","_rev":7}', {"id": "b"}),
        ('{"_id":"b","_revisions":{"start":2,"ids":["b"]},"_attachments":{"":{"data":"x"}}}',
         {"id": "b", "rev": "2-b"}),
        ('{"_id":null,"_rev":"1-b"}', {"rev": "1-b"}), ('{"_rev":"1-b"}', {"rev": "1-b"}),
        ("7", {}),
    ],
)  # fmt: skip
async def test_a_refusal_names_what_can_be_read_and_nothing_else(client, body, text, named):
    data = f'{{"new_edits":false,"docs":[{{"_id":"a","_rev":"1-a"}},{text}]}}'
    headers = {"Content-Type": "application/json"}
    [refused] = await body(await client.post(BULK, data=data, headers=headers), 201)
    assert refused.pop("error")
    assert refused.pop("reason")
    assert refused == named
    await body(await client.get("/orders/a"))


async def test_a_validator_refuses_some(client, open_node, body):
    def judge(new, old):
        return AccessError("no", code="forbidden") if json.loads(new).get("bad") else None

    open_node.functions.judge = judge
    first, second = await bulk(client, body, [{"_id": "a"}, {"_id": "b", "bad": 1}])
    assert first["ok"]
    assert second == {"id": "b", "error": "forbidden", "reason": "no"}


async def test_revisions_are_read(client, open_node, body, forked):
    asked = [
        {"id": "d"}, {"id": "d", "rev": "3-b"}, {"id": "none"}, {"id": "none", "rev": "1-a"},
        {"id": "d", "rev": "x"}, {"id": "d", "rev": 7}, {"id": "", "rev": "1-a"}, {"id": "gone"},
        {"id": "x" * 300, "rev": "1-a"},
    ]  # fmt: skip
    results = (await get(client, body, asked, "?revs=true"))["results"]
    assert [one["id"] for one in results] == [one["id"] for one in asked]
    both, one, none, unknown, bad, number, empty, gone, long = [one["docs"] for one in results]
    assert [doc["ok"]["_rev"] for doc in both] == ["3-c", "3-b"]
    assert one[0]["ok"]["_revisions"] == {"start": 3, "ids": ["b", "a", "r"]}
    assert none[0]["error"]["reason"] == "missing"
    missing = {"id": "none", "rev": "1-a", "error": "not_found", "reason": "missing"}
    assert unknown == [{"error": missing}]
    assert bad[0]["error"]["error"] == number[0]["error"]["error"] == "bad_request"
    assert empty[0]["error"]["error"] == long[0]["error"]["error"] == "not_found"
    assert gone[0]["ok"] == {
        "_id": "gone", "_rev": "1-z", "_deleted": True, "_revisions": {"start": 1, "ids": ["z"]},
    }  # fmt: skip
    assert await get(client, body, []) == {"results": []}


async def test_latest_and_options_in_the_body(client, body, forked):
    asked = {"docs": [{"id": "d", "rev": "2-a"}], "latest": True, "revs": True}
    [one] = (await body(await client.post(GET, json=asked)))["results"]
    assert [doc["ok"]["_rev"] for doc in one["docs"]] == ["3-c", "3-b"]
    assert "_revisions" in one["docs"][0]["ok"]
    [one] = (await body(await client.post(GET + "?latest=false", json=asked)))["results"]
    assert one["docs"][0]["error"]["error"] == "not_found"
    await get(client, body, [], "?revs=x", 400)


async def test_attachments_are_read_inside(client, open_node, body):
    data = b64encode(b"abc").decode()
    await bulk(client, body, [{"_id": "a", "_attachments": {"x": {"data": data}}}])
    [one] = (await get(client, body, [{"id": "a"}]))["results"]
    assert one["docs"][0]["ok"]["_attachments"]["x"]["stub"]
    [one] = (await get(client, body, [{"id": "a"}], "?attachments=true"))["results"]
    found = one["docs"][0]["ok"]
    assert found["_attachments"]["x"]["data"] == data
    asked = [{"id": "a", "atts_since": [found["_rev"]]}]
    [one] = (await get(client, body, asked, "?attachments=true"))["results"]
    assert one["docs"][0]["ok"]["_attachments"]["x"]["stub"]
    open_node.documents.blobs.clear()
    [one] = (await get(client, body, [{"id": "a"}], "?attachments=true"))["results"]
    assert one["docs"][0]["error"]["error"] == "blob_missing"


@pytest.mark.parametrize("kind", ["mixed", "related"])
async def test_revisions_as_parts(client, forked, kind):
    asked = {"docs": [{"id": "d", "rev": "3-b"}, {"id": "d", "rev": "x"}]}
    response = await client.post(GET, json=asked, headers={"Accept": f"multipart/{kind}"})
    assert response.content_type == f"multipart/{kind}"
    boundary = response.headers["Content-Type"].split('"')[1]
    first, second, rest = (await response.text()).split(f"--{boundary}")[1:]
    assert json.loads(first.partition("\r\n\r\n")[2])["_rev"] == "3-b"
    assert json.loads(second.partition("\r\n\r\n")[2])["error"] == "bad_request"
    assert rest == "--"


async def test_revisions_are_compared(client, body, forked):
    asked = {"d": ["3-b", "2-a", "4-z", "1-q"], "new": ["1-a"], "": ["1-a"], "gone": ["1-z"]}
    found = await body(await client.post("/orders/_revs_diff", json=asked))
    assert found["d"]["missing"] == ["4-z", "1-q"]
    assert sorted(found["d"]["possible_ancestors"]) == ["3-b", "3-c"]
    assert found["new"] == found[""] == {"missing": ["1-a"]}
    assert "gone" not in found
    found = await body(await client.post("/orders/_missing_revs", json=asked))
    assert found["missing_revs"] == {"d": ["4-z", "1-q"], "new": ["1-a"], "": ["1-a"]}
    for bad in ({"d": 7}, {"d": [7]}, {"d": ["x"]}, {"d": "3-b"}):
        await body(await client.post("/orders/_revs_diff", json=bad), 400)


@pytest.mark.parametrize("page", ["_revs_diff", "_missing_revs"])
async def test_a_revision_is_there_once_it_can_no_longer_be_lost(
    client, open_node, body, forked, monkeypatch, page
):
    before = open_node.documents.durable_waits
    assert await body(await client.post(f"/orders/{page}", json={"d": ["3-b"]})) in (
        {}, {"missing_revs": {}},
    )  # fmt: skip
    assert open_node.documents.durable_waits == before + 1

    async def read_all(bucket, doc_ids, *, is_durable=False):
        for _ in doc_ids:
            yield UnavailableError("it may be lost", code="ambiguous")

    monkeypatch.setattr(open_node.documents, "read_all", read_all)
    answered = await client.post(f"/orders/{page}", json={"d": ["3-b"]})
    assert (await body(answered, 503))["error"] == "ambiguous"


@pytest.mark.parametrize("accept", ["application/json", "multipart/mixed"])
async def test_no_document_that_cannot_be_read_now_is_answered_as_a_missing_one(
    client, open_node, body, monkeypatch, accept
):
    async def read_all(bucket, doc_ids, *, is_durable=False):
        for _ in doc_ids:
            yield UnavailableError("its node may not serve now", code="isolated")

    monkeypatch.setattr(open_node.documents, "read_all", read_all)
    asked = {"docs": [{"id": "a", "rev": "1-a"}, {"id": "b"}]}
    answered = await client.post(GET, json=asked, headers={"Accept": accept})
    assert (await body(answered, 503))["error"] == "isolated"


async def test_all_is_committed(client, open_node, body):
    made = await body(await client.post("/orders/_ensure_full_commit", json={}), 201)
    assert made == {"ok": True, "instance_start_time": "1700000000"}
    assert open_node.documents.durable_waits == 1
    open_node.documents.failure = UnavailableError("no", code="disk_failed")
    await body(await client.post("/orders/_ensure_full_commit", json={}), 503)


async def test_who_may_what(guarded, body, ada, bob, cleo):
    docs = {"docs": [{"_id": "bulk"}, {"_id": "_design/bulk"}]}
    await body(await guarded.post(BULK, json=docs), 401)
    await body(await guarded.post(BULK, json=docs, headers=bob), 403)
    first, second = await body(await guarded.post(BULK, json=docs, headers=cleo), 201)
    assert (first["id"], first["error"], second["ok"]) == ("bulk", "forbidden", True)
    first, second = await body(await guarded.post(BULK, json=docs, headers=ada), 201)
    assert (first["ok"], second["error"]) == (True, "conflict")
    for name, asked in (("_bulk_get", {"docs": []}), ("_revs_diff", {}), ("_missing_revs", {})):
        path = f"/orders/{name}"
        await body(await guarded.post(path, json=asked), 401)
        await body(await guarded.post(path, json=asked, headers=cleo), 403)
        await body(await guarded.post(path, json=asked, headers=bob))
    for name in ("_purge", "_ensure_full_commit"):
        await body(await guarded.post(f"/orders/{name}", json={}, headers=bob), 403)
        await body(await guarded.post(f"/orders/{name}", json={}, headers=ada), 201)


async def test_a_replicated_document_without_revision_refuses_the_whole_request(client, body):
    docs = [{"_id": "a", "_rev": "1-a"}, {"_id": "b"}]
    sent = {"docs": docs, "new_edits": False}
    found = await body(await client.post("/orders/_bulk_docs", json=sent), 400)
    assert (found["error"], "needs `_rev`" in found["reason"]) == ("bad_request", True)
    await body(await client.get("/orders/a"), 404)


@pytest.mark.parametrize(("entry", "shown"), [
    ({}, None), ("x", None), (None, None), ({"id": 5}, None), ({"id": ""}, ""),
    ({"rev": "1-a"}, None), ({"id": "a", "rev": "zz"}, "a"),
    ({"id": "a", "atts_since": "zz"}, "a"), ({"id": "a", "atts_since": ["zz"]}, "a"),
])  # fmt: skip
async def test_an_entry_that_asks_for_nothing_does_not_keep_back_the_others(
    client, body, entry, shown
):
    await client.put("/orders/a", json={"n": 1})
    asked = {"docs": [entry, {"id": "a"}]}
    first, second = (await body(await client.post(GET, json=asked)))["results"]
    assert first["id"] == shown
    error = first["docs"][0]["error"]
    assert error["id"] == shown
    assert error["error"] in ("bad_request", "not_found")
    assert second["docs"][0]["ok"]["n"] == 1
    accept = {"Accept": "multipart/mixed"}
    text = await (await client.post(GET, json=asked, headers=accept)).text()
    assert '"n":1' in text
    assert "application/json; error" in text
