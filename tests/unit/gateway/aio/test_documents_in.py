import json

import pytest

RELATED = {"Content-Type": 'multipart/related; boundary="b"'}


def related(document, *parts, end=b"--b--"):
    text = b"--b\r\nContent-Type: application/json\r\n\r\n" + json.dumps(document).encode()
    for head, data in parts:
        text += b"\r\n--b\r\n" + head + b"\r\n\r\n" + data
    return text + b"\r\n" + end


def following(**names):
    return {
        "_attachments": {
            name: {"follows": True, "content_type": "a/b", "length": size}
            for name, size in names.items()
        }
    }


async def test_attachments_follow_their_document(client, body):
    text = related(
        following(x=3, y=2),
        (b'Content-Disposition: attachment; filename="x"', b"abc"),
        (b"X: y", b"\r\n"),
    )
    await body(await client.put("/orders/d", data=text, headers=RELATED), 201)
    assert await (await client.get("/orders/d/x")).read() == b"abc"
    assert await (await client.get("/orders/d/y")).read() == b"\r\n"


async def test_what_a_node_sends_it_takes_again(client, body):
    sent = {"n": 1, "_attachments": {
        "t": {"content_type": "text/plain", "data": "aGVsbG8="},
        "b": {"content_type": "image/png", "data": "AAEC"},
    }}  # fmt: skip
    await body(await client.put("/orders/d", json=sent), 201)
    parts = await client.get(
        "/orders/d?attachments=true&revs=true", headers={"Accept": "multipart/related"}
    )
    whole = await parts.read()
    headers = {"Content-Type": parts.headers["Content-Type"]}
    await body(await client.put("/other", data=b""), 201)
    text = whole.replace(b'"_id":"d"', b'"_id":"e"')
    await body(await client.put("/other/e?new_edits=false", data=text, headers=headers), 201)
    one = await body(await client.get("/orders/d?attachments=true"))
    two = await body(await client.get("/other/e?attachments=true"))
    assert one | {"_id": "e"} == two


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"nonsense",
        related({}, end=b""),
        related({"_attachments": {"x": {"follows": True}}}),
        related({}, (b"X: y", b"too many")),
        related(following(x=1), (b'Content-Disposition: attachment; filename="y"', b"a")),
        related(following(x=9), (b"Content-Length: 9", b"a"), end=b""),
        related(following(x=1), (b"Content-Encoding: gzip", b"no gzip")),
    ],
)
async def test_what_cannot_be_read(client, body, text):
    response = await client.put("/orders/d", data=text, headers=RELATED)
    assert (await body(response, 400))["error"] == "bad_request"
    await body(await client.get("/orders/d"), 404)


async def test_a_body_without_boundary(client, body):
    headers = {"Content-Type": "multipart/related"}
    await body(await client.put("/orders/d", data=b"x", headers=headers), 400)
