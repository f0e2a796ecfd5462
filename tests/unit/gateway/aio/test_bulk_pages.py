import pytest

ONE = "1-967a00dff5e02add41819138abb3284d"


async def bulk(client, body, docs, status=201, **more):
    return await body(await client.post("/orders/_bulk_docs", json={"docs": docs, **more}), status)


async def test_answers_come_in_order_and_refusals_alone(client, body):
    first = await bulk(client, body, [{"_id": "a"}, {"n": 1}, {"_id": "b"}])
    assert [one["ok"] for one in first] == [True] * 3
    assert first[0] == {"ok": True, "id": "a", "rev": ONE}
    again = await bulk(
        client, body, [{"_id": "a"}, {"_id": "c"}, {"_id": "b", "_rev": ONE}, {"_odd": 1}]
    )
    assert again[0] == {"id": "a", "error": "conflict", "reason": "Document update conflict."}
    assert [one.get("ok") for one in again] == [None, True, True, None]
    assert again[3]["error"] == "doc_validation"
    assert await bulk(client, body, []) == []


async def test_peers_are_told_of_refusals_alone(client, body):
    docs = [
        {"_id": "a", "_rev": "3-x", "_revisions": {"start": 3, "ids": ["x", "y"]}},
        {"_id": "_bad", "_rev": "1-x"},
        {"_id": "a" * 251, "_rev": "1-x"},
        {"_id": "c"},
        {"_id": "d", "_rev": "2-q", "_deleted": True},
    ]
    told = await bulk(client, body, docs, new_edits=False)
    assert [one["error"] for one in told] == ["forbidden", "forbidden", "bad_request"]
    assert (await body(await client.get("/orders/a")))["_rev"] == "3-x"
    assert await bulk(client, body, docs[:1], new_edits=False) == []


@pytest.mark.parametrize(
    ("text", "kind", "status"),
    [
        ("{", "application/json", 400), ("{}", "application/json", 400),
        ('{"docs": 7}', "application/json", 400), ('{"docs": [7]}', "application/json", 201),
        ('{"docs": [{"_id": "_a"}]}', "application/json", 400),
        ('{"docs": [{"_id": 7}]}', "application/json", 400),
        ('{"docs": []}', "text/plain", 415),
    ],
)  # fmt: skip
async def test_requests_that_make_no_sense(client, body, text, kind, status):
    response = await client.post("/orders/_bulk_docs", data=text, headers={"Content-Type": kind})
    await body(response, status)


async def test_what_is_not_known(client, body):
    await bulk(client, body, [{"_id": "a", "_rev": "2-x"}], new_edits=False)
    asked = {"a": ["2-x", "3-y"], "b": ["1-a"], "_odd": ["1-a"]}
    found = await body(await client.post("/orders/_revs_diff", json=asked))
    assert found == {
        "a": {"missing": ["3-y"], "possible_ancestors": ["2-x"]},
        "b": {"missing": ["1-a"]},
        "_odd": {"missing": ["1-a"]},
    }
    assert await body(await client.post("/orders/_revs_diff", json={"a": ["2-x"]})) == {}
    missing = await body(await client.post("/orders/_missing_revs", json=asked))
    assert missing["missing_revs"]["a"] == ["3-y"]
    await body(await client.post("/orders/_revs_diff", json={"a": ["nonsense"]}), 400)
    await body(await client.post("/orders/_revs_diff", json=[]), 400)


async def test_documents_by_revision(client, body):
    await bulk(client, body, [{"_id": "a"}, {"_id": "b", "n": 1}])
    asked = {"docs": [{"id": "b"}, {"id": "a", "rev": ONE}, {"id": "a", "rev": "9-z"},
                      {"id": "none"}, {"id": "a", "rev": "nonsense"}]}  # fmt: skip
    found = await body(await client.post("/orders/_bulk_get?revs=true", json=asked))
    results = found["results"]
    assert [one["id"] for one in results] == ["b", "a", "a", "none", "a"]
    assert results[0]["docs"][0]["ok"]["n"] == 1
    assert results[1]["docs"][0]["ok"]["_revisions"]["start"] == 1
    errors = [one["docs"][0]["error"]["error"] for one in results[2:]]
    assert errors == ["not_found", "not_found", "bad_request"]
    assert await body(await client.post("/orders/_bulk_get", json={"docs": []})) == {"results": []}
    in_body = {"docs": [{"id": "a"}], "revs": True}
    found = await body(await client.post("/orders/_bulk_get", json=in_body))
    assert "_revisions" in found["results"][0]["docs"][0]["ok"]
    parts = await client.post(
        "/orders/_bulk_get", json=asked, headers={"Accept": "multipart/mixed"}
    )
    assert parts.content_type == "multipart/mixed"
    text = await parts.text()
    assert text.count("Content-Type") == 5
    for bad in ({}, {"docs": [7]}, {"docs": [{"rev": "1-a"}]}):
        await body(await client.post("/orders/_bulk_get", json=bad), 400)


async def test_attachments_that_are_newer_come_with_it(client, body):
    sent = {"_id": "a", "_attachments": {"x": {"data": "YQ=="}}}
    [made] = await bulk(client, body, [sent])
    asked = {"docs": [{"id": "a", "atts_since": []}, {"id": "a", "atts_since": [made["rev"]]}]}
    found = await body(await client.post("/orders/_bulk_get", json=asked))
    new, old = (one["docs"][0]["ok"]["_attachments"]["x"] for one in found["results"])
    assert new["data"] == "YQ=="
    assert old["stub"] is True


async def test_a_purge_leaves_no_trace(client, body):
    await bulk(client, body, [{"_id": "a", "_rev": "1-x"}, {"_id": "a", "_rev": "1-y"}],
               new_edits=False)  # fmt: skip
    purged = await body(
        await client.post("/orders/_purge", json={"a": ["1-y", "7-q"], "b": ["1-a"]}), 201
    )
    assert purged == {"purge_seq": None, "purged": {"a": ["1-y"], "b": []}}
    assert (await body(await client.get("/orders/a")))["_rev"] == "1-x"
    await body(await client.post("/orders/_purge", json={"a": ["1-x"]}), 201)
    assert (await body(await client.get("/orders/a"), 404))["reason"] == "missing"


async def test_everything_is_made_durable(client, open_host, body):
    before = open_host.documents.durable_waits
    answer = await body(await client.post("/orders/_ensure_full_commit", json={}), 201)
    assert answer == {"ok": True, "instance_start_time": "1700000000"}
    assert open_host.documents.durable_waits == before + 1


async def test_rights(guarded, body, ada, bob, cleo):
    docs = {"docs": [{"_id": "a"}, {"_id": "_design/d"}]}
    await body(await guarded.post("/orders/_bulk_docs", json=docs, headers=bob), 403)
    told = await body(await guarded.post("/orders/_bulk_docs", json=docs, headers=cleo), 201)
    assert [one.get("error") for one in told] == ["forbidden", None]
    await body(await guarded.post("/orders/_bulk_docs", json=docs, headers=ada), 201)
    await body(await guarded.post("/orders/_revs_diff", json={}, headers=bob))
    await body(await guarded.post("/orders/_purge", json={}, headers=cleo), 403)
