"""All documents of a bucket by id, from memory and disk."""

import time

import pytest

from millstream.errors import ConditionError, UnavailableError
from millstream.model.partitions import PartitionState
from millstream.node.embedded import Node


async def ids(scan, first=None, last=None, *, descending=False):
    found = scan.documents("b", first, last, descending=descending, conflicts=False)
    return [doc_id async for doc_id, _ in found]


@pytest.fixture
async def node(tmp_path):
    async with Node(tmp_path, buckets=["b:4"], http=None, flush_interval_ms=1) as node:
        bucket = node.bucket("b")
        for key in (b"c", b"a", "é".encode(), b"B", b"_design/d", b"\xff", b"gone"):
            bucket.partition_for(key).put(key, b'{"n":1}', 0, 0, 0, 1, time.time_ns())
        bucket.partition_for(b"gone").delete(b"gone", 0, time.time_ns())
        yield node


async def test_ids_are_in_the_order_of_their_bytes(node):
    scan = node.engine.scan
    assert await ids(scan) == ["B", "a", "c", "é"]
    assert await ids(scan, descending=True) == ["é", "c", "a", "B"]
    assert await ids(scan, "a", "c") == ["a", "c"]
    assert await ids(scan, "b") == ["c", "é"]
    assert await ids(scan, None, "Z", descending=True) == ["B"]


async def test_texts_are_those_of_now(node):
    scan, bucket = node.engine.scan, node.bucket("b")
    found = scan.documents("b", None, None, descending=False, conflicts=False)
    doc_id, text = await anext(found)
    assert doc_id == "B"
    assert text.startswith(b'{"_id":"B","_rev":"1-')
    bucket.partition_for(b"a").delete(b"a", 0, time.time_ns())
    bucket.partition_for(b"c").put(b"c", b'{"n":2}', 0, 0, 0, 1, time.time_ns())
    doc_id, text = await anext(found)
    assert doc_id == "c"
    assert text.endswith(b'"n":2}')
    await found.aclose()


async def test_documents_that_are_not_here(node):
    with pytest.raises(ConditionError):
        await anext(node.engine.scan.documents("x", None, None, descending=False, conflicts=False))
    await node.engine.set_partition_state("b", 2, PartitionState.DEAD)
    with pytest.raises(UnavailableError, match="partition 2"):
        await ids(node.engine.scan)
