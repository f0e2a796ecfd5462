import gzip
from base64 import b64decode, b64encode
from hashlib import md5

import pytest

DOC, PATH = "/orders/d", "/orders/d/a.bin"
PLAIN = {"Accept-Encoding": "identity"}
TYPE = {"Content-Type": "image/png"}


async def put(client, body, data=b"0123456789", path=PATH, status=201, headers=TYPE):
    return await body(await client.put(path, data=data, headers=headers), status)


async def test_one_comes_changes_and_goes(client, open_node, body):
    made = await put(client, body)
    response = await client.get(PATH)
    assert (response.status, await response.read()) == (200, b"0123456789")
    assert (response.content_type, response.headers["Accept-Ranges"]) == ("image/png", "bytes")
    digest = b64encode(md5(b"0123456789").digest()).decode()
    assert response.headers["ETag"] == f'"{digest}"'
    [stub] = (await body(await client.get(DOC)))["_attachments"].items()
    assert stub == ("a.bin", {
        "content_type": "image/png", "revpos": 1, "digest": f"md5-{digest}", "length": 10,
        "stub": True,
    })  # fmt: skip
    assert (await put(client, body, status=409))["error"] == "conflict"
    second = await put(client, body, b"new", f"{PATH}?rev={made['rev']}")
    assert (await body(await client.get(DOC)))["_attachments"]["a.bin"]["revpos"] == 2
    assert await (await client.get(f"{PATH}?rev={made['rev']}")).read() == b"0123456789"
    third = await put(client, body, b"x", f"/orders/d/b/c?rev={second['rev']}")
    assert await (await client.get("/orders/d/b/c")).read() == b"x"
    found = (await body(await client.get(DOC)))["_attachments"]
    assert {name: one["revpos"] for name, one in found.items()} == {"a.bin": 2, "b/c": 3}
    await body(await client.delete(f"/orders/d/none?rev={third['rev']}"), 404)
    await body(await client.delete(PATH), 409)
    fourth = await body(await client.delete(f"{PATH}?rev={third['rev']}"))
    assert await body(await client.get(PATH), 404) == {
        "error": "not_found", "reason": "Document is missing attachment",
    }  # fmt: skip
    fifth = await body(await client.delete(f"{DOC}?rev={fourth['rev']}"))
    await body(await client.get("/orders/d/b/c"), 404)
    await body(await client.delete(f"/orders/none/a?rev={fifth['rev']}"), 404)
    waits = open_node.documents.durable_waits
    await put(client, body, path="/orders/later/a?batch=ok", status=202)
    assert open_node.documents.durable_waits == waits


async def test_revisions_are_those_that_couchdb_makes(client, body):
    revs = []
    for path, data in (("a", b"first"), ("b", b"second"), ("a", b"second")):
        named = f"?rev={revs[-1]}" if revs else ""
        revs.append((await put(client, body, data, f"{DOC}/{path}{named}"))["rev"])
    revs.append((await body(await client.delete(f"{DOC}?rev={revs[-1]}")))["rev"])
    revs.append((await put(client, body, b"any", f"{DOC}/a"))["rev"])
    assert revs == [
        "1-1ae430d0d7c73d9ecb564857a01fb81f", "2-6ae937a4bf8a6bed98995b670da80a8d",
        "3-8faffcf694b0c48de1ec8a76bfdd56b6", "4-d5889645621161c62b9c6493fbe0199e",
        "5-80e15c837beab813017fe41b2bb19630",
    ]  # fmt: skip


async def test_a_deleted_document_with_members_begins_anew_with_the_attachment_alone(client, body):
    made = await body(await client.put(DOC, json={"a": 1}), 201)
    gone = {"_rev": made["rev"], "_deleted": True, "why": 1}
    await body(await client.put(DOC, json=gone), 201)
    await put(client, body)
    assert "why" not in await body(await client.get(DOC))


async def test_one_that_is_there_already_is_not_sent(client, body):
    await put(client, body)
    etag = (await client.get(PATH)).headers["ETag"]
    response = await client.get(PATH, headers={"If-None-Match": etag})
    assert (response.status, await response.read()) == (304, b"")
    response = await client.head(PATH)
    assert (response.status, response.headers["Content-Length"]) == (200, "10")


@pytest.mark.parametrize(
    ("asked", "status", "part", "told"),
    [
        ("bytes=0-3", 206, b"0123", "bytes 0-3/10"),
        ("bytes=7-", 206, b"789", "bytes 7-9/10"),
        ("bytes=-2", 206, b"89", "bytes 8-9/10"),
        ("bytes=5-99", 206, b"56789", "bytes 5-9/10"),
        ("bytes=0-1,3-4", 200, b"0123456789", None),
        ("lines=1-2", 200, b"0123456789", None),
    ],
)
async def test_parts(client, body, asked, status, part, told):
    await put(client, body)
    response = await client.get(PATH, headers={"Range": asked})
    assert (response.status, await response.read()) == (status, part)
    assert response.headers.get("Content-Range") == told


@pytest.mark.parametrize("asked", ["bytes=10-", "bytes=5-4", "bytes=-0"])
async def test_parts_that_are_not_there(client, body, asked):
    await put(client, body)
    error = await body(await client.get(PATH, headers={"Range": asked}), 416)
    assert error["error"] == "requested_range_not_satisfiable"


async def test_texts_are_stored_compressed(client, body, open_node):
    text = b"a" * 1000
    await put(client, body, text, headers={"Content-Type": "text/plain"})
    [stored] = open_node.documents.blobs.values()
    assert gzip.decompress(stored) == text
    one = (await body(await client.get(DOC + "?att_encoding_info=true")))["_attachments"]["a.bin"]
    assert (one["length"], one["encoding"], one["encoded_length"]) == (1000, "gzip", len(stored))
    assert one["digest"] == "md5-" + b64encode(md5(stored).digest()).decode()
    response = await client.get(PATH, headers=PLAIN | {"Range": "bytes=0-3"})
    assert (response.status, await response.read()) == (200, text)
    assert response.headers["Accept-Ranges"] == "none"
    response = await client.get(PATH, headers={"Accept-Encoding": "gzip"})
    assert response.headers["Content-Encoding"] == "gzip"
    assert response.headers["Content-Length"] == str(len(stored))
    assert await response.read() == text
    found = await body(await client.get(DOC + "?attachments=true"))
    assert b64decode(found["_attachments"]["a.bin"]["data"]) == text


async def test_a_checksum_is_that_of_the_bytes_that_are_sent(client, body):
    text = {"Content-Type": "text/plain"}
    await put(client, body, b"first")
    await put(client, body, b"first", "/orders/e/a", headers=text)
    for path, more, is_told in (
        (PATH, PLAIN, True), (PATH, {"Range": "bytes=0-2"}, False),
        ("/orders/e/a", {"Accept-Encoding": "gzip"}, True), ("/orders/e/a", PLAIN, False),
    ):  # fmt: skip
        response = await client.get(path, headers=more)
        stored = response.headers["ETag"].strip('"')
        assert response.headers.get("Content-MD5") == (stored if is_told else None)


async def test_what_comes_compressed_is_what_it_was(client, body):
    headers = {"Content-Type": "image/png", "Content-Encoding": "gzip"}
    await put(client, body, gzip.compress(b"text" * 9), headers=headers)
    response = await client.get(PATH, headers=PLAIN)
    assert await response.read() == b"text" * 9
    assert (await body(await client.get(DOC)))["_attachments"]["a.bin"]["length"] == 36
    await put(client, body, b"x", "/orders/e/a", 415, {"Content-Encoding": "compress"})
    await body(await client.get("/orders/e"), 404)
    await put(client, body, b"no gzip", "/orders/e/a", 400, headers)


async def test_types_cannot_end_a_head(client, body):
    entry = {"data": "", "content_type": "a/b\r\nX-Bad: y"}
    await body(await client.put(DOC, json={"_attachments": {"a.bin": entry}}), 201)
    response = await client.get(PATH)
    assert (response.status, await response.read()) == (200, b"")
    assert "X-Bad" not in response.headers


async def test_stubs_keep_what_is_there(client, body):
    made = await put(client, body)
    stub = {"a.bin": {"stub": True}}
    kept = await body(await client.put(DOC, json={"_rev": made["rev"], "_attachments": stub}), 201)
    assert (await body(await client.get(DOC)))["_attachments"]["a.bin"]["revpos"] == 1
    unknown = {"_rev": kept["rev"], "_attachments": {"none": {"stub": True}}}
    assert (await body(await client.put(DOC, json=unknown), 412))["error"] == "missing_stub"
    await body(await client.put(DOC, json={"_rev": kept["rev"]}), 201)
    await body(await client.get(PATH), 404)


@pytest.mark.parametrize("name", ["_a", "%00a", "x" * 1025])
async def test_bad_names(client, body, name):
    response = await client.put(f"/orders/d/{name}", data=b"x", headers=TYPE)
    assert response.status in (400, 404), await response.text()
    await body(await client.get(DOC), 404)


async def test_a_kept_value_that_is_lost(client, open_node, body):
    await put(client, body)
    open_node.documents.blobs.clear()
    error = await body(await client.get(PATH), 503)
    assert error["error"] == "blob_missing"


async def test_who_may_what(guarded, body, ada, bob, cleo):
    path = "/orders/att/a"
    for headers, status in (({}, 401), (bob, 403), (cleo, 403)):
        await put(guarded, body, path=path, status=status, headers=TYPE | headers)
    made = await put(guarded, body, path=path, headers=TYPE | ada)
    await body(await guarded.get(path, headers=cleo), 403)
    assert (await guarded.get(path, headers=bob)).status == 200
    await body(await guarded.delete(f"{path}?rev={made['rev']}", headers=bob), 403)
    await body(await guarded.delete(f"{path}?rev={made['rev']}", headers=ada))


@pytest.mark.parametrize(
    ("kind", "disposition"),
    [
        ("text/html", "attachment"), ("image/svg+xml", "attachment"),
        ("TEXT/HTML; x=y", "attachment"),
        ("application/xhtml+xml", "attachment"), ("text/xml", "attachment"),
        ("application/javascript", "attachment"), ("application/pdf", "attachment"),
        ("image/png", "inline"), ("text/plain; charset=utf-8", "inline"), ("video/mp4", "inline"),
    ],
)  # fmt: skip
async def test_nothing_that_users_stored_runs_in_a_browser(client, body, kind, disposition):
    path = "/orders/d/%22a%22.html"
    await put(client, body, b"<script>alert(1)</script>", path, headers={"Content-Type": kind})
    response = await client.get(path)
    assert response.headers["Content-Security-Policy"] == "sandbox"
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert response.headers["Content-Disposition"].split(";") == [
        disposition, " filename*=UTF-8''%22a%22.html",
    ]  # fmt: skip


@pytest.mark.parametrize("path", [DOC, "/orders/_all_docs", "/orders/_changes", "/", "/orders/no"])
async def test_no_answer_is_taken_for_what_it_is_not(client, body, path):
    await put(client, body)
    response = await client.get(path)
    assert response.headers["Content-Security-Policy"] == "sandbox"
    assert response.headers["X-Content-Type-Options"] == "nosniff"
