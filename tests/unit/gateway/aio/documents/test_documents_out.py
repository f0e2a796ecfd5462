import logging
from base64 import b64encode

import pytest
from aiohttp import ClientConnectionResetError

from millstream.gateway.aio.documents import documents_out

NAMES = ["plain.png", "é \"'.txt", "deep/er.json"]
KINDS = ["image/png", "text/plain", "application/json"]


@pytest.fixture
async def filled(client, body):
    """A document with three attachments, two of them stored compressed; the last is newer."""
    table = {
        name: {"data": b64encode(name.encode() * 50).decode(), "content_type": kind}
        for name, kind in zip(NAMES, KINDS, strict=True)
    }
    first = dict(list(table.items())[:2])
    made = await body(await client.put("/orders/d", json={"_attachments": first}), 201)
    stubs = {name: {"stub": True} for name in first}
    newer = {NAMES[2]: table[NAMES[2]]}
    content = {"_rev": made["rev"], "n": 1, "_attachments": stubs | newer}
    second = await body(await client.put("/orders/d", json=content), 201)
    return made["rev"], second["rev"], table


async def arrived(client, body, path):
    found = await body(await client.get(path + "?attachments=true"))
    return {name: one["data"] for name, one in found["_attachments"].items()}


async def test_what_is_sent_in_parts_is_taken_in_parts(client, open_node, body, filled):
    _, rev, table = filled
    response = await client.get(
        "/orders/d?attachments=true&revs=true", headers={"Accept": "multipart/related"}
    )
    assert (response.content_type, response.headers["ETag"]) == ("multipart/related", f'"{rev}"')
    sent = (await response.read()).replace(b'"_id":"d"', b'"_id":"e"', 1)
    blobs = dict(open_node.documents.blobs)
    kind = {"Content-Type": response.headers["Content-Type"]}
    made = await client.put("/orders/e?new_edits=false", data=sent, headers=kind)
    assert (await body(made, 201))["rev"] == rev
    assert open_node.documents.blobs == blobs
    assert await arrived(client, body, "/orders/e") == {n: one["data"] for n, one in table.items()}
    first = await body(await client.get("/orders/d?revs=true"))
    assert await body(await client.get("/orders/e?revs=true")) == first | {"_id": "e"}


async def test_revisions_with_attachments_as_parts(client, body, filled):
    older, rev, _ = filled
    response = await client.get(f'/orders/d?open_revs=["{rev}"]&atts_since=["{older}"]')
    sent = await response.read()
    outer = response.headers["Content-Type"].split('"')[1].encode()
    assert sent.startswith(b"--" + outer + b"\r\nContent-Type: multipart/related; boundary=")
    assert sent.endswith(b"--\r\n--" + outer + b"--")
    inner = sent.partition(b"multipart/related; ")[2].partition(b"\r\n\r\n")
    nested, _, _ = inner[2].rpartition(b"\r\n--" + outer)
    assert nested.count(b"Content-Disposition") == 1
    assert b'filename="deep/er.json"' in nested
    assert nested.count(b'"stub":true') == 2


async def test_only_newer_attachments_are_inside(client, body, filled):
    older, rev, _ = filled
    found = await body(await client.get(f'/orders/d?atts_since=["{older}"]'))
    assert [("data" in one) for one in found["_attachments"].values()] == [False, False, True]
    found = await body(await client.get(f'/orders/d?atts_since=["{rev}"]'))
    assert all(one["stub"] for one in found["_attachments"].values())
    headers = {"Accept": "application/json"}
    [one] = await body(
        await client.get("/orders/d?open_revs=all&attachments=true", headers=headers)
    )
    assert all("data" in att for att in one["ok"]["_attachments"].values())


async def test_too_much_for_one_text(client, body, filled, monkeypatch):
    monkeypatch.setattr(documents_out, "INLINE_BYTES_MAX", 10)
    assert (await body(await client.get("/orders/d?attachments=true"), 413))[
        "error"
    ] == "too_large"
    response = await client.get("/orders/d?attachments=true", headers={"Accept": "multipart/*"})
    assert (response.status, response.content_type) == (200, "multipart/related")


async def test_a_client_that_leaves_in_the_middle_is_no_fault_of_the_node(
    client, filled, monkeypatch, caplog
):
    async def left(*_):
        raise ClientConnectionResetError("Cannot write to closing transport")

    monkeypatch.setattr("aiohttp.web.StreamResponse.write", left)
    accepted = {"Accept": "multipart/mixed"}
    (await client.get("/orders/d?attachments=true", headers=accepted)).close()
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []
