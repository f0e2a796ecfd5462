import gzip

import pytest

PATH = "/orders/doc/folder/name.bin"
BINARY = {"Content-Type": "application/octet-stream"}
TEXT = {"Content-Type": "text/plain"}


async def test_an_attachment_lives(client, body):
    made = await body(await client.put(PATH, data=b"0123456789", headers=BINARY), 201)
    found = await client.get(PATH)
    assert await found.read() == b"0123456789"
    assert found.content_type == "application/octet-stream"
    assert found.headers["Accept-Ranges"] == "bytes"
    etag = found.headers["ETag"]
    assert (await client.get(PATH, headers={"If-None-Match": etag})).status == 304
    head = await client.head(PATH)
    assert head.headers["Content-Length"] == "10"
    await body(await client.put(PATH, data=b"x", headers=BINARY), 409)
    next_rev = (
        await body(await client.put(f"{PATH}?rev={made['rev']}", data=b"x", headers=BINARY), 201)
    )["rev"]
    assert await (await client.get(PATH)).read() == b"x"
    other = await body(
        await client.put(f"/orders/doc/more?rev={next_rev}", data=b"m", headers=BINARY), 201
    )
    shown = (await body(await client.get("/orders/doc")))["_attachments"]
    assert {name: one["revpos"] for name, one in shown.items()} == {
        "folder/name.bin": 2, "more": 3,
    }  # fmt: skip
    await body(await client.delete(PATH), 409)
    await body(await client.delete(f"{PATH}?rev={other['rev']}"))
    await body(await client.get(PATH), 404)
    assert list((await body(await client.get("/orders/doc")))["_attachments"]) == ["more"]


@pytest.mark.parametrize(
    ("asked", "status", "found", "shown"),
    [
        ("bytes=0-3", 206, b"0123", "bytes 0-3/10"), ("bytes=7-", 206, b"789", "bytes 7-9/10"),
        ("bytes=-2", 206, b"89", "bytes 8-9/10"), ("bytes=1-2,4-5", 200, b"0123456789", None),
    ],
)  # fmt: skip
async def test_parts(client, body, asked, status, found, shown):
    await body(await client.put(PATH, data=b"0123456789", headers=BINARY), 201)
    part = await client.get(PATH, headers={"Range": asked})
    assert part.status == status
    assert await part.read() == found
    assert part.headers.get("Content-Range") == shown
    await body(await client.get(PATH, headers={"Range": "bytes=10-"}), 416)


async def test_texts_are_compressed_for_who_can_read_that(client, body):
    path = "/orders/doc/t.txt"
    await body(await client.put(path, data=b"hello " * 100, headers=TEXT), 201)
    plain = await client.get(path, headers={"Accept-Encoding": "identity"})
    assert "Content-Encoding" not in plain.headers
    assert plain.headers["Content-Length"] == "600"
    assert await plain.read() == b"hello " * 100
    coded = await client.get(path, headers={"Accept-Encoding": "gzip"})
    assert coded.headers["Content-Encoding"] == "gzip"
    assert int(coded.headers["Content-Length"]) < 100
    stub = (await body(await client.get("/orders/doc")))["_attachments"]["t.txt"]
    assert stub["length"] == 600


async def test_what_comes_compressed_is_kept_so(client, body):
    path = "/orders/doc/x"
    coded = {**BINARY, "Content-Encoding": "gzip"}
    await body(await client.put(path, data=gzip.compress(b"abc"), headers=coded), 201)
    assert await (await client.get(path, headers={"Accept-Encoding": ""})).read() == b"abc"
    broken = gzip.compress(b"abc")[:-9]
    await body(await client.put("/orders/other/x", data=broken, headers=coded), 400)
    await body(await client.put("/orders/other/x", data=b"nonsense", headers=coded), 400)
    await body(await client.get("/orders/other"), 404)
    await body(await client.put(path, data=b"", headers={**BINARY, "Content-Encoding": "br"}), 415)


async def test_what_is_missing(client, body):
    await body(await client.get(PATH), 404)
    await body(await client.delete(PATH), 404)
    await body(await client.put("/orders/doc", json={}), 201)
    error = await body(await client.get(PATH), 404)
    assert error["reason"] == "Document is missing attachment"


async def test_rights(guarded, body, ada, bob):
    await body(await guarded.put(PATH, data=b"x", headers=BINARY | bob), 403)
    await body(await guarded.put(PATH, data=b"x", headers=BINARY | ada), 201)
    assert (await guarded.get(PATH, headers=bob)).status == 200
    await body(await guarded.get(PATH), 401)
