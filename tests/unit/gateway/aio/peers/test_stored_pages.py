from __future__ import annotations

from hashlib import sha256

import pytest

from millstream.errors import ConditionError
from millstream.gateway.core.api.stored import Commit, Done, ListLocals, decode_answer, encode
from millstream.gateway.core.bucket_parts import Ended, WantedDocuments, framed

STORED = "/_millstream/buckets/orders/stored"
DATA = b"bytes of an attachment" * 10
BLOB = f"/_millstream/buckets/orders/blobs/{sha256(DATA).hexdigest()}"


async def test_a_request_is_answered(client, open_node):
    response = await client.post(STORED, data=encode(Commit("u")))
    assert (response.status, decode_answer(await response.read())) == (200, Done(7))
    assert open_node.stored.asked == [("orders", Commit("u"))]


async def test_a_refusal_is_an_answer(client, open_node):
    open_node.stored.refusal = ConditionError("none", code="bucket_not_found")
    response = await client.post(STORED, data=encode(ListLocals("u", "")))
    found = decode_answer(await response.read())
    assert (response.status, found.kind, found.code) == (200, "ConditionError", "bucket_not_found")


async def test_a_stream_is_its_messages(client, open_node):
    wanted = WantedDocuments("u", [0], b"", b"\xff")
    response = await client.post(STORED, data=encode(wanted))
    assert (response.status, await response.read()) == (200, framed(Ended()))
    assert open_node.stored.asked == [("orders", wanted)]


async def test_what_is_no_request(client, body):
    answered = await client.post(STORED, data=b"rubbish")
    assert (await body(answered, 400))["error"] == "bad_request"


async def test_bytes_are_kept_and_sent_in_part(client, body):
    assert (await body(await client.put(BLOB, data=DATA)))["ok"]
    response = await client.get(BLOB + f"?begin=6&end={len(DATA)}")
    assert (response.status, await response.read()) == (200, DATA[6:])
    response = await client.get(BLOB + "?begin=0&end=0")
    assert (response.status, await response.read()) == (200, b"")
    other = BLOB[:-2] + ("00" if BLOB[-2:] != "00" else "11")
    assert (await body(await client.put(other, data=DATA), 400))["error"] == "bad_blob"
    missing = await client.get(other + "?begin=0&end=1")
    assert (await body(missing, 503))["error"] == "blob_missing"


@pytest.mark.parametrize(
    "query", ["", "?begin=1", "?begin=2&end=1", "?begin=-1&end=1", "?begin=0&end=" + "9" * 19]
)
async def test_what_asks_for_no_bytes(client, body, query):
    assert (await body(await client.get(BLOB + query), 400))["error"] == "bad_request"


async def test_only_nodes_and_administrators_ask(guarded, body, bob):
    for method, path in (("POST", STORED), ("GET", BLOB + "?begin=0&end=1"), ("PUT", BLOB)):
        await body(await guarded.request(method, path, data=b"x"), 401)
        await body(await guarded.request(method, path, data=b"x", headers=bob), 403)
