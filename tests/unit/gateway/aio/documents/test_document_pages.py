import json
from base64 import b64encode

import pytest

from millstream.errors import UsageError

PATH = "/orders/d"
CONFLICT = {"error": "conflict", "reason": "Document update conflict."}


async def put(client, body, content, path=PATH, status=201, **options):
    return await body(await client.put(path, json=content, **options), status)


async def put_leaf(client, body, rev, *older, path=PATH, **content):
    number, _, signature = rev.partition("-")
    content["_revisions"] = {"start": int(number), "ids": [signature, *older]}
    return await put(client, body, content, f"{path}?new_edits=false")


@pytest.fixture
async def forked(client, body):
    """A document with leaves 3-c, 3-b and the deleted 2-x."""
    await put_leaf(client, body, "3-b", "a", "r", n="b")
    await put_leaf(client, body, "3-c", "a", "r", n="c")
    await put_leaf(client, body, "2-x", "r", _deleted=True)


async def test_a_document_comes_changes_and_goes(client, open_node, body):
    assert await body(await client.get(PATH), 404) == {"error": "not_found", "reason": "missing"}
    response = await client.put(PATH, json={"n": 1})
    made = await body(response, 201)
    assert made["rev"].startswith("1-")
    assert response.headers["ETag"] == f'"{made["rev"]}"'
    assert response.headers["Location"] == PATH
    response = await client.get(PATH)
    assert response.headers["ETag"] == f'"{made["rev"]}"'
    assert await response.text() == f'{{"_id":"d","_rev":"{made["rev"]}","n":1}}\n'
    second = await put(client, body, {"_id": "d", "_rev": made["rev"]})
    third = await put(client, body, {}, f"{PATH}?rev={second['rev']}")
    fourth = await put(client, body, {}, headers={"If-Match": f'"{third["rev"]}"'})
    gone = await body(await client.delete(f"{PATH}?rev={fourth['rev']}"))
    assert gone["rev"].startswith("5-")
    assert (await body(await client.get(PATH), 404))["reason"] == "deleted"
    assert (await body(await client.delete(PATH), 404))["reason"] == "deleted"
    tomb = await body(await client.get(f"{PATH}?rev={gone['rev']}"))
    assert tomb == {"_id": "d", "_rev": gone["rev"], "_deleted": True}
    assert (await put(client, body, {}))["rev"].startswith("6-")
    assert open_node.documents.durable_waits == 8


async def test_the_same_edit_gives_couchdbs_revision(client, body):
    made = await put(client, body, {"a": 1})
    assert made["rev"] == "1-23202479633c2b380f79507a776743d5"


async def test_conflicts(client, body):
    assert await put(client, body, {"_rev": "1-a"}, status=409) == CONFLICT
    made = await put(client, body, {})
    assert await put(client, body, {}, status=409) == CONFLICT
    assert await body(await client.delete(PATH), 409) == CONFLICT
    assert await body(await client.delete(PATH + "?rev=1-a"), 409) == CONFLICT
    twice = {"_rev": made["rev"]}
    error = await put(client, body, twice, f"{PATH}?rev=1-a", 400)
    assert error["error"] == "bad_request"


async def test_accepted_is_not_durable(client, open_node, body):
    made = await put(client, body, {}, f"{PATH}?batch=ok", 202)
    await body(await client.delete(f"{PATH}?batch=ok&rev={made['rev']}"), 202)
    await body(await client.post("/orders?batch=ok", json={}), 202)
    assert open_node.documents.durable_waits == 0


async def test_one_that_did_not_change_is_not_sent_again(client, body):
    etag = f'"{(await put(client, body, {}))["rev"]}"'
    response = await client.get(PATH, headers={"If-None-Match": etag})
    assert (response.status, await response.read(), response.headers["ETag"]) == (304, b"", etag)
    await body(await client.get(PATH, headers={"If-None-Match": '"1-a"'}))
    response = await client.head(PATH)
    assert (response.status, response.headers["ETag"], await response.read()) == (200, etag, b"")


async def test_an_answer_that_other_leaves_change_has_no_tag(client, forked, body):
    """Else a client would be told that nothing has changed when there is a new conflict."""
    tag = {"If-None-Match": '"3-c"'}
    assert (await client.get(PATH + "?revs=true", headers=tag)).status == 304
    for option in ("meta", "conflicts", "deleted_conflicts", "revs_info", "local_seq"):
        response = await client.get(f"{PATH}?{option}=true", headers=tag)
        await body(response)
        assert "ETag" not in response.headers


async def test_an_id_is_made(client, body):
    response = await client.post("/orders", json={"n": 1})
    made = await body(response, 201)
    assert response.headers["Location"] == f"/orders/{made['id']}"
    assert (await body(await client.get(f"/orders/{made['id']}")))["n"] == 1
    named = await body(await client.post("/orders/", json={"_id": "a/b"}), 201)
    assert named["id"] == "a/b"
    await body(await client.get("/orders/a%2Fb"))
    await body(await client.post("/orders", data=b"{}"), 415)
    for bad in ("", "_x", "_design/", "_local/x", "x" * 251, 7):
        error = await body(await client.post("/orders", json={"_id": bad}), 400)
        assert error["error"] == "illegal_docid"


async def test_a_peers_revision_is_taken_as_it_is(client, forked, body):
    found = await body(await client.get(PATH + "?meta=true&revs=true"))
    assert (found["_rev"], found["n"]) == ("3-c", "c")
    assert found["_conflicts"] == ["3-b"]
    assert found["_deleted_conflicts"] == ["2-x"]
    assert found["_revisions"] == {"start": 3, "ids": ["c", "a", "r"]}
    assert found["_revs_info"] == [
        {"rev": "3-c", "status": "available"},
        {"rev": "2-a", "status": "missing"},
        {"rev": "1-r", "status": "missing"},
    ]
    assert await put_leaf(client, body, "3-b", "a", "r") == {"ok": True, "id": "d", "rev": "3-b"}
    assert (await body(await client.get(PATH + "?rev=3-b")))["n"] == "b"
    assert (await body(await client.get(PATH + "?rev=2-a"), 404))["reason"] == "missing"
    latest = await body(await client.get(PATH + "?rev=2-a&latest=true"))
    assert latest["_rev"] == "3-c"
    await put(client, body, {"_rev": "7-odd text"}, "/orders/e?new_edits=false")
    assert (await body(await client.get("/orders/e")))["_rev"] == "7-odd text"
    await put(client, body, {"n": 1}, "/orders/f?new_edits=false", 400)


async def test_open_revisions_as_json(client, forked, body, open_node):
    headers = {"Accept": "application/json"}

    async def several(options, path=PATH):
        response = await client.get(f"{path}?open_revs={options}", headers=headers)
        return [one.get("ok", {}).get("_rev", one.get("missing")) for one in await body(response)]

    assert await several("all") == ["3-c", "3-b", "2-x"]
    assert await several('["3-b","9-z","2-a"]') == ["3-b", "9-z", "2-a"]
    assert await several('["1-r","3-b"]&latest=true') == ["3-c", "3-b", "2-x"]
    assert await several('["1-a"]', "/orders/none") == ["1-a"]
    assert await several("[]", "/orders/d") == ["3-c", "3-b", "2-x"]
    assert open_node.documents.durable_waits == 3 + 5
    await body(await client.get("/orders/none?open_revs=all", headers=headers), 404)


async def test_open_revisions_as_parts(client, forked):
    response = await client.get(PATH + '?open_revs=["3-b","9-z"]&revs=true')
    assert response.content_type == "multipart/mixed"
    boundary = response.headers["Content-Type"].split('"')[1]
    first, second = (await response.text()).split(f"--{boundary}")[1:3]
    assert json.loads(first.partition("\r\n\r\n")[2])["_revisions"]["ids"] == ["b", "a", "r"]
    assert 'error="true"' in second
    assert json.loads(second.partition("\r\n\r\n")[2]) == {"missing": "9-z"}


async def test_the_number_of_the_change(client, forked, body):
    first = await body(await client.get(PATH + "?local_seq=true"))
    assert first["_local_seq"] == 3
    assert "_local_seq" not in await body(await client.get(PATH + "?local_seq=false"))
    await put(client, body, first)
    assert (await body(await client.get(PATH + "?local_seq=true")))["_local_seq"] == 4
    headers = {"Accept": "application/json"}
    response = await client.get(PATH + "?open_revs=all&local_seq=true", headers=headers)
    assert {one["ok"]["_local_seq"] for one in await body(response)} == {4}
    await body(await client.get("/orders/none?local_seq=true"), 404)


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{", b"[]", b"7", b"\xff", b'{"a":NaN}', b'{"a":"\\ud800"}', b'{"_x":1}',
        b'{"_id":7}', b'{"_rev":7}', b'{"_rev":"x"}', b'{"_rev":"0-a"}',
        b'{"_rev":"1-"}', b'{"_rev":"-1-a"}', b'{"_rev":"1-a,b"}', b'{"_deleted":1}',
        b'{"_revisions":7}', b'{"_revisions":{"start":1,"ids":[]}}',
        b'{"_revisions":{"start":1,"ids":["a","b"]}}', b'{"_revisions":{"start":1,"ids":[7]}}',
        b'{"_attachments":[]}', b'{"_attachments":{"a":7}}', b'{"_attachments":{"a":{}}}',
        b'{"_attachments":{"_a":{"data":""}}}', b'{"_attachments":{"a":{"data":"*"}}}',
        b'{"_attachments":{"a":{"data":7}}}', b'{"_attachments":{"a":{"follows":true}}}',
        b'{"_attachments":{"a":{"data":"","content_type":7}}}',
        b'{"_attachments":{"a":{"data":"AAAA","encoding":"gzip"}}}',
        b'{"a":' + b"[" * 300 + b"]" * 300 + b"}", b'{"a":' * 5000, b"[" * 100_000,
        b'{"a":1e999}',
    ],
)  # fmt: skip
async def test_bad_documents(client, body, data):
    for path in (PATH, PATH + "?new_edits=false"):
        await body(await client.put(path, data=data), 400)
    headers = {"Content-Type": "application/json"}
    await body(await client.post("/orders", data=data, headers=headers), 400)
    await body(await client.get(PATH), 404)


@pytest.mark.parametrize("options", ["", "?new_edits=false"])
async def test_the_address_names_a_document_whatever_id_is_in_it(client, body, options):
    sent = {"_id": "other", "n": 1} | ({"_rev": "1-a"} if options else {})
    assert (await put(client, body, sent, PATH + options))["id"] == "d"
    assert (await body(await client.get(PATH)))["_id"] == "d"
    await body(await client.get("/orders/other"), 404)
    for illegal in ("", "_x", "x" * 251):
        await put(client, body, sent | {"_id": illegal}, PATH + options, 400)


@pytest.mark.parametrize(
    "options",
    [
        "rev=x", "revs=1", "latest=yes", "open_revs=7", "open_revs=x", 'open_revs="all"',
        'open_revs=["x"]', "open_revs=[7]", "open_revs=" + "[" * 2000, "atts_since=1-a",
        "open_revs=%ff", "rev=1-%ff%00",
    ],
)  # fmt: skip
async def test_bad_options(client, body, options):
    await put(client, body, {})
    await body(await client.get(f"{PATH}?{options}"), 400)


async def test_bad_addresses(client, body):
    for path in (
        "/orders/" + "x" * 251,
        "/orders/_design/" + "é" * 122,
        "/orders/%00" + "a" * 250,
    ):
        assert (await put(client, body, {}, path, 400))["error"] == "illegal_docid"
        await body(await client.get(path), 400)
    await put(client, body, {}, "/orders/" + "é" * 125)
    missing = {"error": "not_found", "reason": "Database does not exist."}
    assert await put(client, body, {}, "/none/d", 404) == missing
    assert await body(await client.get("/none/d"), 404) == missing
    await body(await client.delete(f"{PATH}?rev=x"), 400)
    await body(await client.put(PATH, json={}, headers={"If-Match": "*"}), 400)


async def test_copies(client, open_node, body):
    data = b64encode(b"text").decode()
    made = await put(client, body, {"n": 1, "_attachments": {"a": {"data": data}}})

    async def copy(destination, status=201, path=PATH):
        headers = {"Destination": destination} if destination else {}
        return await body(await client.request("COPY", path, headers=headers), status)

    copied = await copy("e%2Ff")
    assert copied["id"] == "e/f"
    found = await body(await client.get("/orders/e%2Ff?attachments=true"))
    assert (found["n"], found["_attachments"]["a"]["data"]) == (1, data)
    assert await copy("e%2Ff", 409) == CONFLICT
    assert (await copy(f"e%2Ff?rev={copied['rev']}"))["rev"].startswith("2-")
    assert (await copy("g", path=f"{PATH}?rev={made['rev']}"))["id"] == "g"
    await copy("g2", 404, f"{PATH}?rev=1-a")
    await copy("g2", 404, "/orders/none")
    for bad in ("", "_x", "x" * 251, "g2?x=1", "g2?rev=x", "HTTP://127.0.0.1/orders/g2"):
        await copy(bad, 400)


async def test_design_documents_compile(client, open_node, body):
    path = "/orders/_design/x"
    made = await put(client, body, {"views": {}}, path)
    assert (await body(await client.get("/orders/_design%2Fx")))["_rev"] == made["rev"]
    open_node.designs.refusal = UsageError("no", code="compilation_error")
    refused = {"error": "compilation_error", "reason": "no"}
    assert await put(client, body, {"_rev": made["rev"]}, path, 400) == refused
    await body(await client.delete(f"{path}?rev={made['rev']}"))


async def test_a_peers_design_document_is_stored_whatever_is_in_it(client, open_node, body):
    open_node.designs.refusal = UsageError("no", code="compilation_error")
    content = {"language": "erlang", "views": [], "_rev": "1-a"}
    await put(client, body, content, "/orders/_design/x?new_edits=false", 201)
    content["_id"] = "_design/" + "y" * 200
    docs = {"docs": [content], "new_edits": False}
    assert await body(await client.post("/orders/_bulk_docs", json=docs), 201) == []
    for doc_id in ("_design/x", content["_id"]):
        found = await body(await client.get(f"/orders/{doc_id}"))
        assert (found["language"], found["views"], found["_rev"]) == ("erlang", [], "1-a")


async def test_a_peers_attachments_are_stored_whatever_their_names_are(client, body):
    names = ["", "\0", "x" * 7000, *(str(n) for n in range(1100))]
    data = {"data": "Zmlyc3Q="}
    content = {"_rev": "1-a", "_attachments": dict.fromkeys(names, data)}
    await put(client, body, content, PATH + "?new_edits=false", 201)
    docs = {"docs": [content | {"_id": "e"}], "new_edits": False}
    assert await body(await client.post("/orders/_bulk_docs", json=docs), 201) == []
    for path in (PATH, "/orders/e"):
        found = await body(await client.get(path))
        assert list(found["_attachments"]) == names
    for name in ("", "\0", "x" * 7000):
        await put(client, body, {"_attachments": {name: data}}, "/orders/f", 400)


async def test_thousands_of_conflicts(client, body):
    leaves = [f"1-{n:032x}" for n in range(3000)]
    docs = [{"_id": "d", "_rev": rev} for rev in leaves]
    response = await client.post("/orders/_bulk_docs", json={"docs": docs, "new_edits": False})
    assert await body(response, 201) == []
    found = await body(await client.get(PATH + "?conflicts=true"))
    assert [found["_rev"], *found["_conflicts"]] == leaves[::-1]
    headers = {"Accept": "application/json"}
    assert len(await body(await client.get(PATH + "?open_revs=all", headers=headers))) == 3000


async def test_who_may_what(guarded, body, ada, bob, cleo):
    path = "/orders/who"
    for headers, status in (({}, 401), (bob, 403), (cleo, 403)):
        await body(await guarded.put(path, json={}, headers=headers), status)
        await body(await guarded.post("/orders", json={}, headers=headers), status)
        await body(await guarded.delete(path, headers=headers), status)
    made = await body(await guarded.put(path, json={}, headers=ada), 201)
    await body(await guarded.get(path), 401)
    await body(await guarded.get(path, headers=cleo), 403)
    await body(await guarded.get(path, headers=bob))
    to = {"Destination": "who2"}
    await body(await guarded.request("COPY", path, headers=bob | to), 403)
    await body(await guarded.request("COPY", path, headers=ada | to), 201)
    await body(await guarded.delete(f"{path}?rev={made['rev']}", headers=ada))
    design = "/orders/_design/who"
    await body(await guarded.put(design, json={}, headers=bob), 403)
    await body(await guarded.put(design, json={}, headers=cleo), 201)
    for who in (bob, cleo):
        await body(await guarded.get(design, headers=who))


async def test_old_revisions_are_readable_until_the_compaction(client, body):
    revs = []
    for n in range(1, 4):
        sent = {"n": n} | ({"_rev": revs[-1]} if revs else {})
        if n == 2:
            sent["_attachments"] = {"a": {"content_type": "text/plain", "data": "eA=="}}
        revs.append((await body(await client.put(PATH, json=sent), 201))["rev"])
    revs.append((await body(await client.delete(f"{PATH}?rev={revs[-1]}")))["rev"])

    found = await body(await client.get(f"{PATH}?rev={revs[1]}&attachments=true&revs=true"))
    assert (found["_rev"], found["n"]) == (revs[1], 2)
    assert found["_attachments"]["a"]["data"] == "eA=="
    assert found["_revisions"]["start"] == 2
    assert await (await client.get(f"{PATH}/a?rev={revs[1]}")).read() == b"x"
    found = await body(await client.get(f"{PATH}?rev={revs[3]}&revs_info=true"))
    assert [one["status"] for one in found["_revs_info"]] == [
        "deleted", "available", "available", "available"
    ]  # fmt: skip
    accept = {"Accept": "application/json"}
    asked = json.dumps(revs)
    found = await body(await client.get(f"{PATH}?open_revs={asked}", headers=accept))
    assert [one["ok"]["_rev"] for one in found] == revs
    found = await body(await client.get(f"{PATH}?open_revs=all", headers=accept))
    assert [one["ok"]["_rev"] for one in found] == revs[3:]
    found = await body(await client.get(f"{PATH}?rev={revs[0]}&latest=true"))
    assert found["_rev"] == revs[3]
    asked = {"docs": [{"id": "d", "rev": rev} for rev in revs]}
    bulk = await body(await client.post("/orders/_bulk_get", json=asked))
    assert [one["docs"][0]["ok"]["_rev"] for one in bulk["results"]] == revs

    headers = {"Content-Type": "application/json"}
    await body(await client.post("/orders/_compact", headers=headers), 202)
    await body(await client.get(f"{PATH}?rev={revs[1]}"), 404)
    found = await body(await client.get(f"{PATH}?rev={revs[3]}&revs_info=true"))
    assert [one["status"] for one in found["_revs_info"]] == ["deleted"] + ["missing"] * 3
