import asyncio
import gzip
import json

import pytest

HEADERS = {"Content-Type": 'multipart/related; boundary="b"'}


def follows(kind="image/png", **more):
    return {"follows": True, "content_type": kind, **more}


def related(document, *parts, tail="--b--"):
    pieces = [("Content-Type: application/json", json.dumps(document).encode()), *parts]
    lines = [
        b"--b\r\n" + (head + "\r\n" if head else "").encode() + b"\r\n" + data + b"\r\n"
        for head, data in pieces
    ]
    return b"".join(lines) + tail.encode()


async def put(client, body, data, status=201, path="/orders/d", headers=HEADERS):
    async with asyncio.timeout(60):
        return await body(await client.put(path, data=data, headers=headers), status)


TWO = {"n": 1, "_attachments": {"x": follows(), "y/z": follows("text/plain", length=4)}}


@pytest.mark.parametrize("has_heads", [True, False])
@pytest.mark.parametrize("boundary", ['"b"', "b"])
async def test_parts_follow_their_document(client, body, has_heads, boundary):
    heads = ["", ""]
    if has_heads:
        heads = [
            'Content-Disposition: attachment; filename="x"\r\nContent-Length: 3',
            'Content-Disposition: attachment; filename="y/z"\r\nContent-Length: 4',
        ]
    data = related(TWO, (heads[0], b"abc"), (heads[1], b"\r\n--"))
    headers = {"Content-Type": f"multipart/related; boundary={boundary}"}
    await put(client, body, data, headers=headers)
    assert await (await client.get("/orders/d/x")).read() == b"abc"
    assert await (await client.get("/orders/d/y/z")).read() == b"\r\n--"
    found = await body(await client.get("/orders/d"))
    assert (found["n"], found["_attachments"]["y/z"]["length"]) == (1, 4)


async def test_tiny_pieces(client, body):
    data = related(TWO, ("", b"abc"), ("", b"defg"))

    async def pieces():
        for at in range(len(data)):
            yield data[at : at + 1]

    await put(client, body, pieces())
    assert await (await client.get("/orders/d/y/z")).read() == b"defg"


async def test_compressed_parts_stay_so(client, open_node, body):
    data = gzip.compress(b"text")
    entry = follows("text/plain", encoding="gzip", encoded_length=len(data))
    content = {"_rev": "3-c", "_attachments": {"x": entry | {"revpos": 2}}}
    part = ("Content-Encoding: gzip\r\nContent-Length: " + str(len(data)), data)
    await put(client, body, related(content, part), path="/orders/d?new_edits=false")
    assert data in open_node.documents.blobs.values()
    found = (await body(await client.get("/orders/d?att_encoding_info=true")))["_attachments"]["x"]
    assert (found["length"], found["encoding"], found["revpos"]) == (4, "gzip", 2)
    assert await (await client.get("/orders/d/x")).read() == b"text"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"nothing of it",
        b"--b--",
        b"--b\r\n\r\n{",
        b"--b\r\n\r\n{}",
        b"--b\r\nno head\r\n\r\n{}\r\n--b--",
        b"--b\r\nX: " + b"x" * 100_000 + b"\r\n\r\n{}\r\n--b--",
        b"--b\r\n" + b"X: y\r\n" * 10_000 + b"\r\n{}\r\n--b--",
        b"--b\r\nContent-Length: x\r\n\r\n{}\r\n--b--",
        b"--b\r\nContent-Length: -5\r\n\r\n{}\r\n--b--",
        b"--b\r\nContent-Length: 1\r\n\r\n{}\r\n--b--",
        b"--b\r\nContent-Length: 999\r\n\r\n{}\r\n--b--",
        b"--b\r\nContent-Type: multipart/mixed; boundary=c\r\n\r\n--c\r\n\r\n{}\r\n--c--\r\n--b--",
        related(TWO),
        related(TWO, ("", b"abc")),
        related(TWO, ("", b"abc"), ("", b"abc"), ("", b"abc")),
        related(TWO, ("", b"abc"), ("", b"abc"), tail=""),
        related(TWO, ("Content-Length: 99", b"abc"), ("", b"abc")),
        related(TWO, ("Content-Length: 1", b"abc"), ("", b"abc")),
        related(TWO, ('Content-Disposition: attachment; filename="q"', b"abc"), ("", b"abc")),
        related({"_attachments": {"x": follows()}}, ("Content-Encoding: gzip", b"no gzip")),
        related({"_x": 1}),
        related([]),
    ],
)
async def test_bad_bodies(client, body, data):
    await put(client, body, data, 400)
    await put(client, body, data, 400, path="/orders/d?new_edits=false&rev=1-a")
    await body(await client.get("/orders/d"), 404)


@pytest.mark.parametrize(
    "kind",
    [
        "multipart/related",
        "multipart/related; boundary=",
        "multipart/related; boundary=" + "x" * 71,
    ],
)
async def test_bad_boundaries(client, body, kind):
    await put(client, body, related({}), 400, headers={"Content-Type": kind})
