import base64
import time

import msgspec
import pytest

from millstream.databases.documents import included_documents
from millstream.databases.documents.included_documents import (
    PORTION_BYTES,
    AskedDocument,
    DistributedTexts,
    WithDocuments,
)
from millstream.documents.sent import parse_sent
from millstream.documents.updating import interactive
from millstream.errors import UnavailableError, UsageError
from millstream.gateway.aio.documents.attaching import keep_inline
from millstream.gateway.core.api.stored import ReadStored
from millstream.model.partitions import PartitionState
from millstream.node.embedded import Node
from millstream.views.core.query.rendering import SEPARATOR, head_text, rendered, tail_text
from support.http.sharing_nodes import BUCKET, sharing_nodes
from support.kv.running_bucket import put

IMPOSSIBLE = ("", "x" * 1000, "_design/", "_x")
"""No document can have such an id."""


class FakeAnswer:
    head = msgspec.json.decode(b'{"etag":"e"}')

    def __init__(self, pieces):
        self.pieces = pieces
        self.taken = 0
        self.is_closed = False

    async def __aiter__(self):
        for piece in self.pieces:
            self.taken += 1
            yield piece

    async def close(self):
        self.is_closed = True


def row(doc_id, value=None, key=1):
    return msgspec.json.encode({"id": doc_id, "key": key, "value": value})


def answered(rows, rows_per_piece=7, bytes_per_piece=0):
    pieces = [
        SEPARATOR.join(rows[at : at + rows_per_piece])
        for at in range(0, len(rows), rows_per_piece)
    ]
    text = b"".join(rendered(head_text(len(rows), 0), iter(pieces), tail_text()))
    step = bytes_per_piece or len(text)
    return FakeAnswer([text[at : at + step] for at in range(0, len(text), step)])


@pytest.fixture
async def bucket(tmp_path):
    async with Node(tmp_path, buckets=["b:4"], http=None, flush_interval_ms=1) as node:
        bucket = node.bucket("b")

        def put(key, value, expiry=0):
            bucket.partition_for(key).put(key, value, 0, expiry, 0, 1, time.time_ns())

        bucket.put = put
        bucket.node = node
        put(b"a", b'{"n":1.50}')
        put(b"b", b"no JSON")
        put(b"_design/d", b'{"views":{}}')
        yield bucket


def texts_of(bucket):
    return DistributedTexts(bucket.node.engine.changes.router("b"))


async def documents(bucket, rows, attachments=False, **options):
    answer = WithDocuments(answered(rows, **options), texts_of(bucket), attachments=attachments)
    assert answer.head == {"etag": "e"}
    text = b"".join([piece async for piece in answer])
    found = msgspec.json.decode(text)
    assert found["total_rows"] == len(rows) == len(found["rows"])
    return [one["doc"] for one in found["rows"]]


async def test_rows_get_the_documents_that_emitted_them(bucket):
    rows = [row("a"), row("b", {"a": 1}), row("none"), row("a", [1]), row("_design/d")]
    a, b, none, again, design = await documents(bucket, rows)
    assert (a["_id"], a["_rev"][:2], a["n"]) == ("a", "1-", 1.5)
    assert b["_attachments"]["value"]["length"] == 7
    assert (none, again) == (None, a)
    assert (design["_id"], design["views"]) == ("_design/d", {})


async def test_values_that_are_no_json_come_as_data_where_asked_for(bucket):
    rows = [row("b"), row("a"), row("a", {"_id": "b"})]
    for shown in (await documents(bucket, rows), await documents(bucket, rows, attachments=True)):
        b, a, linked = shown
        assert b == linked
        assert a["n"] == 1.5
    value = b["_attachments"]["value"]
    assert base64.b64decode(value["data"]) == b"no JSON"
    assert value.keys() == {"content_type", "revpos", "digest", "data"}


async def test_values_link_to_documents(bucket):
    (a,) = await documents(bucket, [row("b", {"_id": "a"})])
    bucket.put(b"a", b"{}")
    (newer,) = await documents(bucket, [row("b", {"x": [1], "_id": "a"})])
    assert newer["_rev"].startswith("2-")
    rows = [
        row("b", {"_id": "a", "_rev": newer["_rev"]}), row("b", {"_id": "a", "_rev": a["_rev"]}),
        row("b", {"_id": "none"}), row("b", {"_id": "_local/x"}), row("a", {"_id": 1}),
        row("a", {"_id": "a", "_rev": 5}), row("x", {"_id": "\ud7ff"}),
        *(row("a", {"_id": impossible}) for impossible in IMPOSSIBLE),
    ]  # fmt: skip
    assert await documents(bucket, rows) == [
        newer, None, None, None, newer, None, None, *[None] * len(IMPOSSIBLE),
    ]  # fmt: skip


async def test_what_is_deleted_or_over_is_not_there(bucket):
    bucket.partition_for(b"a").delete(b"a", 0, time.time_ns())
    bucket.put(b"b", b"{}", expiry=time.time_ns() // 10**9 - 10)
    bucket.put(b"c", b"{}", expiry=time.time_ns() // 10**9 + 1000)
    a, b, c = await documents(bucket, [row("a"), row("b"), row("c")])
    assert (a, b, c["_id"]) == (None, None, "c")


@pytest.mark.parametrize("bytes_per_piece", [1, 2, 3, 50, 1000])
async def test_pieces_may_end_anywhere(bucket, bytes_per_piece):
    rows = [row("a", 'x\r\n"}', ["é", n]) for n in range(30)]
    found = await documents(bucket, rows, bytes_per_piece=bytes_per_piece)
    assert [one["_id"] for one in found] == ["a"] * 30


async def test_attachments_stand_in_documents_where_they_are_asked_for(bucket, monkeypatch):
    host = bucket.node.engine.documents
    table = {
        "t": {"content_type": "text/plain", "data": "Zmlyc3Q="},
        "p": {"content_type": "image/png", "data": "Zmlyc3Q="},
    }
    kept = await keep_inline(host, "b", table)
    sent = parse_sent(msgspec.json.encode({"n": 1, "_attachments": table}))
    await host.update(
        "b", [("d", lambda one: interactive(one, sent, kept, revs_limit=9).document)],
        is_durable=True,
    )  # fmt: skip

    async def asked(doc_id, **options):
        answer = WithDocuments(answered([row(doc_id)]), texts_of(bucket), **options)
        (found,) = msgspec.json.decode(b"".join([piece async for piece in answer]))["rows"]
        return found["doc"]

    whole = await asked("d", attachments=True)
    assert {name: one["data"] for name, one in whole["_attachments"].items()} == {
        "t": "Zmlyc3Q=", "p": "Zmlyc3Q=",
    }  # fmt: skip
    assert all(one["stub"] for one in (await asked("d"))["_attachments"].values())
    value = (await asked("b", attachments=True))["_attachments"]["value"]
    assert base64.b64decode(value["data"]) == b"no JSON"
    monkeypatch.setattr(included_documents, "INLINE_BYTES_MAX", 9)
    with pytest.raises(UsageError, match="10 bytes"):
        await asked("d", attachments=True)


async def test_no_rows_no_documents(bucket):
    assert await documents(bucket, []) == []


async def test_documents_are_read_back_from_the_disk(bucket):
    running = bucket.node.engine._buckets.running["b"]
    partition = bucket.partition_for(b"a")
    await running.until_persisted(partition.partition_id, partition.high_seqno)
    partition.residents.evict(partition.residents.ring.index(partition.table[b"a"]))
    (a,) = await documents(bucket, [row("a")])
    assert a["n"] == 1.5


async def test_no_more_is_held_than_a_portion(bucket, monkeypatch):
    monkeypatch.setattr(included_documents, "PORTION_ROWS_MAX", 10)
    bucket.put(b"big", b'{"x":"' + b"x" * (PORTION_BYTES - 100) + b'"}')
    rows = [row("a")] * 25 + [row("big")] * 4
    pieces = [piece async for piece in WithDocuments(answered(rows), texts_of(bucket))]
    assert max(map(len, pieces)) < 2 * PORTION_BYTES
    assert [piece.count(b'"doc":') for piece in pieces] == [9, 10, 7, 1, 1, 1, 0]


async def test_documents_elsewhere_are_said_to_be(bucket):
    copies = bucket.node.engine._buckets.running["b"].copies
    for partition in bucket.partitions:
        await copies.set_state(partition.partition_id, PartitionState.REPLICA)
    with pytest.raises(UnavailableError) as caught:
        await documents(bucket, [row("a")])
    assert caught.value.code == "not_my_partition"


@pytest.fixture
async def nodes(tmp_path):
    async with sharing_nodes(tmp_path) as found:
        yield found


def texts_at(nodes, name):
    return DistributedTexts(nodes[name].route(BUCKET))


async def texts(source, asked):
    found = [one async for one in source.texts(asked)]
    return [one if one is None else msgspec.json.decode(one) for one in found]


async def test_documents_of_both_nodes_come_in_order(nodes):
    ids = [f"k{n}" for n in range(20)]
    edits = [(one, put(b'{"n":"%b"}' % one.encode())) for one in ids]
    await nodes["a"].distributed.update(BUCKET, edits, is_durable=True)
    await nodes["a"].distributed.update(BUCKET, [("gone", put())], is_durable=True)
    gone = nodes[nodes.owner("gone")].running.bucket.partition_for(b"gone")
    gone.delete(b"gone", 0, time.time_ns())
    no_ids = ["none", "_local/x", "\ud7ff", "gone", "\ud800", *IMPOSSIBLE]
    asked = [AskedDocument(one) for one in [*ids, *no_ids, *ids]]
    for name in "ab":
        nodes.network.asked.clear()
        found = await texts(texts_at(nodes, name), asked)
        assert [one and one["n"] for one in found] == [*ids, *[None] * len(no_ids), *ids]
        other = "b" if name == "a" else "a"
        assert nodes.network.requests(ReadStored) == [other], "one request"
    there = nodes.id_at("b", "k")
    rev = (await texts(texts_at(nodes, "a"), [AskedDocument(there)]))[0]["_rev"]
    asked = [AskedDocument(there, rev), AskedDocument(there, "1-other"), AskedDocument(there, 5)]
    assert [one and one["_rev"] for one in await texts(texts_at(nodes, "a"), asked)] == [
        rev, None, None,
    ]  # fmt: skip


async def test_attachments_of_another_node_come_from_there(nodes):
    doc_id, host = nodes.id_at("b"), nodes["b"].distributed
    table = {"t": {"content_type": "image/png", "data": "Zmlyc3Q="}}
    kept = await keep_inline(host, BUCKET, table)
    sent = parse_sent(msgspec.json.encode({"_attachments": table}))
    edit = (doc_id, lambda one: interactive(one, sent, kept, revs_limit=9).document)
    await host.update(BUCKET, [edit], is_durable=True)
    [found] = await texts(texts_at(nodes, "a"), [AskedDocument(doc_id, attachments=True)])
    assert found["_attachments"]["t"]["data"] == "Zmlyc3Q="


async def test_a_document_that_cannot_be_read_ends_the_answer(nodes):
    nodes.network.down.add("b")
    with pytest.raises(UnavailableError, match="b is down"):
        await texts(texts_at(nodes, "a"), [AskedDocument(nodes.id_at("b"))])
    nodes.network.down.clear()
    nodes["a"].running.bucket.map = None
    with pytest.raises(UnavailableError) as caught:
        await texts(texts_at(nodes, "a"), [AskedDocument(nodes.id_at("b"))])
    assert caught.value.code == "not_my_partition"
