import pytest

EMPTY = "1-967a00dff5e02add41819138abb3284d"
DELETED = "2-eec205a9d413992850a6e32678485900"
DESIGN = {"views": {"by": {"map": "function (doc) { emit(1) }"}}}


async def test_a_document_lives(client, body):
    made = await client.put("/orders/a%2Fb", json={})
    assert await body(made, 201) == {"ok": True, "id": "a/b", "rev": EMPTY}
    assert made.headers["ETag"] == f'"{EMPTY}"'
    assert made.headers["Location"] == "/orders/a%2Fb"
    found = await client.get("/orders/a%2Fb")
    assert await body(found) == {"_id": "a/b", "_rev": EMPTY}
    same = await client.get("/orders/a%2Fb", headers={"If-None-Match": f'"{EMPTY}"'})
    assert same.status == 304
    await body(await client.put("/orders/a%2Fb", json={}), 409)
    await body(await client.delete("/orders/a%2Fb"), 409)
    gone = await body(await client.delete(f"/orders/a%2Fb?rev={EMPTY}"))
    assert gone["rev"] == DELETED
    assert (await body(await client.get("/orders/a%2Fb"), 404))["reason"] == "deleted"
    shown = await body(await client.get(f"/orders/a%2Fb?rev={DELETED}"))
    assert shown["_deleted"] is True
    assert (await body(await client.delete("/orders/a%2Fb"), 404))["reason"] == "deleted"
    again = await body(await client.put("/orders/a%2Fb", json={}), 201)
    assert again["rev"].startswith("3-")


async def test_what_is_missing(client, body):
    missing = {"error": "not_found", "reason": "missing"}
    assert await body(await client.get("/orders/x"), 404) == missing
    assert await body(await client.delete("/orders/x?rev=1-a"), 404) == missing
    assert await body(await client.get("/orders/x?open_revs=all"), 404) == missing
    error = await body(await client.get("/none/x"), 404)
    assert error["reason"] == "Database does not exist."


@pytest.mark.parametrize(
    ("path", "text", "status", "error"),
    [
        ("x", "{", 400, "bad_request"),
        ("x", "[]", 400, "bad_request"),
        ("x", '{"_odd": 1}', 400, "doc_validation"),
        ("x", '{"_id": "y"}', 400, "bad_request"),
        ("x", '{"_rev": "nonsense"}', 400, "bad_request"),
        ("x?rev=1-a", '{"_rev": "1-b"}', 400, "bad_request"),
        ("x", '{"a": NaN}', 400, "bad_request"),
        ("x", "[" * 100_000, 400, "bad_request"),
        ("x", '{"_attachments": {"a": {"stub": true}}}', 412, "missing_stub"),
        ("x", '{"_attachments": {"a": {"data": "???"}}}', 400, "bad_request"),
        ("x", '{"_attachments": {"_a": {"data": ""}}}', 400, "bad_request"),
        ("x" * 251, "{}", 400, "illegal_docid"),
        ("x?new_edits=false", "{}", 400, "bad_request"),
    ],
)
async def test_what_is_refused(client, body, path, text, status, error):
    answer = await body(await client.put(f"/orders/{path}", data=text), status)
    assert answer["error"] == error


async def test_revisions_of_a_peer_become_conflicts(client, body):
    await body(await client.put("/orders/x", json={"n": 1}), 201)
    for signature in ("b", "a"):
        sent = {"_rev": f"2-{signature}", "_revisions": {"start": 2, "ids": [signature, "q"]}}
        await body(await client.put("/orders/x?new_edits=false", json=sent), 201)
    shown = await body(
        await client.get("/orders/x?conflicts=true&revs=true&revs_info=true&meta=true")
    )
    assert shown["_rev"] == "2-b"
    assert shown["_conflicts"][0] == "2-a"
    assert shown["_revisions"] == {"start": 2, "ids": ["b", "q"]}
    assert shown["_revs_info"][1] == {"rev": "1-q", "status": "missing"}
    json = {"Accept": "application/json"}
    leaves = await body(await client.get("/orders/x?open_revs=all", headers=json))
    assert [one["ok"]["_rev"] for one in leaves][:2] == ["2-b", "2-a"]
    asked = await body(
        await client.get('/orders/x?open_revs=["2-a","9-z"]&revs=true', headers=json)
    )
    assert asked[0]["ok"]["_revisions"]["start"] == 2
    assert asked[1] == {"missing": "9-z"}
    latest = await body(await client.get('/orders/x?open_revs=["1-q"]&latest=true', headers=json))
    assert {one["ok"]["_rev"] for one in latest} == {"2-a", "2-b"}
    assert await body(await client.get("/orders/x?rev=1-q&latest=true"))
    await body(await client.get("/orders/x?rev=1-q"), 404)
    parts = await client.get("/orders/x?open_revs=all")
    assert parts.content_type == "multipart/mixed"
    await body(await client.get("/orders/x?conflicts=maybe"), 400)
    await body(await client.get("/orders/x?open_revs=7"), 400)


async def test_durability_is_what_was_asked_for(client, open_host, body):
    documents = open_host.documents
    await body(await client.put("/orders/x?batch=ok", json={}), 202)
    assert documents.durable_waits == 0
    await body(await client.put("/orders/y", json={}), 201)
    assert documents.durable_waits == 1
    await body(await client.get("/orders/y"))
    assert documents.durable_waits == 1
    await body(await client.get(f"/orders/y?rev={EMPTY}"))
    assert documents.durable_waits == 2


async def test_a_document_may_get_its_id(client, body):
    made = await body(await client.post("/orders", json={"n": 1}), 201)
    assert (await body(await client.get(f"/orders/{made['id']}")))["n"] == 1
    named = await body(await client.post("/orders/", json={"_id": "mine"}), 201)
    assert named["id"] == "mine"
    await body(await client.post("/orders", data="{}"), 415)
    await body(await client.post("/orders", json={"_id": "_mine"}), 400)


async def test_copies(client, body):
    await body(await client.put("/orders/x", json={"n": 1}), 201)
    to = {"Destination": "y"}
    made = await body(await client.request("COPY", "/orders/x", headers=to), 201)
    assert (await body(await client.get("/orders/y")))["n"] == 1
    await body(await client.request("COPY", "/orders/x", headers=to), 409)
    over = {"Destination": f"y?rev={made['rev']}"}
    again = await body(await client.request("COPY", "/orders/x", headers=over), 201)
    assert again["rev"].startswith("2-")
    await body(await client.request("COPY", "/orders/x"), 400)
    await body(await client.request("COPY", "/orders/none", headers=to), 404)


async def test_attachments_stand_in_the_document_or_beside_it(client, body):
    sent = {"_attachments": {"t.txt": {"content_type": "text/plain", "data": "aGVsbG8="}}}
    await body(await client.put("/orders/x", json=sent), 201)
    stub = (await body(await client.get("/orders/x")))["_attachments"]["t.txt"]
    assert (stub["stub"], stub["length"], stub["revpos"]) == (True, 5, 1)
    coded = await body(await client.get("/orders/x?att_encoding_info=true"))
    assert coded["_attachments"]["t.txt"]["encoding"] == "gzip"
    whole = await body(await client.get("/orders/x?attachments=true"))
    assert whole["_attachments"]["t.txt"]["data"] == "aGVsbG8="
    parts = await client.get("/orders/x?attachments=true", headers={"Accept": "multipart/related"})
    assert parts.content_type == "multipart/related"
    rev = whole["_rev"]
    since = await body(await client.get(f'/orders/x?atts_since=["{rev}"]'))
    assert since["_attachments"]["t.txt"]["stub"] is True
    kept = {"_rev": rev, "_attachments": {"t.txt": {"stub": True}}}
    next_rev = (await body(await client.put("/orders/x", json=kept), 201))["rev"]
    later = await body(await client.get("/orders/x"))
    assert later["_attachments"]["t.txt"]["revpos"] == 1
    bare = await body(await client.put("/orders/x", json={"_rev": next_rev}), 201)
    assert "_attachments" not in await body(await client.get(f"/orders/x?rev={bare['rev']}"))


async def test_design_documents_are_documents(client, open_host, body):
    made = await body(await client.put("/orders/_design/d", json=DESIGN), 201)
    assert made["id"] == "_design/d"
    shown = await body(await client.get("/orders/_design%2Fd"))
    assert shown["views"] == DESIGN["views"]
    await body(await client.delete(f"/orders/_design/d?rev={made['rev']}"))


async def test_rights(guarded, body, ada, bob, cleo):
    await body(await guarded.put("/orders/x", json={}), 401)
    await body(await guarded.put("/orders/x", json={}, headers=bob), 403)
    await body(await guarded.put("/orders/x", json={}, headers=ada), 201)
    await body(await guarded.get("/orders/x", headers=bob))
    await body(await guarded.get("/orders/x", headers=cleo), 403)
    await body(await guarded.put("/orders/_design/d", json=DESIGN, headers=bob), 403)
    await body(await guarded.put("/orders/_design/d", json=DESIGN, headers=cleo), 201)
    await body(await guarded.get("/orders/_design/d", headers=cleo))
