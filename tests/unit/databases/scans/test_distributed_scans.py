"""Documents and figures of a bucket on two nodes, on real engines."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from millstream.databases import routing
from millstream.databases.documents import local_node as own_parts
from millstream.databases.documents.document_scan import DocumentScans
from millstream.databases.scans import distributed_scans as distributed_scans
from millstream.documents.reading import PLAIN, text_of
from millstream.errors import MillstreamError
from millstream.model.partitions import PartitionState, partition_of
from support.kv.running_bucket import LIMIT, NOW, opened, put
from support.views.distributed_nodes import BUCKET, DistributedNodes

NAMES = sorted([f"k{n:02}" for n in range(40)] + ["_design/d", "é"], key=str.encode)
OWNERS = "abab"


@pytest.fixture
async def nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[DistributedNodes]:
    """Both have all documents; what is not to be a node's is dead there."""
    monkeypatch.setattr(routing, "PAUSES_S", (0.0, 0.0, 0.0))
    monkeypatch.setattr(own_parts, "FOUND_BYTES", 1)  # a message each
    running = {name: await opened(tmp_path / name) for name in "ab"}
    for engine in running.values():
        edits = [(name.encode(), put(b'{"n":"%b"}' % name.encode())) for name in NAMES]
        edits.append((b"gone", put(b'{"_deleted":true}')))
        await engine.documents.update(edits, LIMIT, is_durable=True)
    made = DistributedNodes(running, OWNERS)
    for number, owner in enumerate(OWNERS):
        other = "b" if owner == "a" else "a"
        await running[other].copies.set_state(number, PartitionState.DEAD)
    yield made
    for engine in running.values():
        await engine.stop()


async def ids(nodes: DistributedNodes, at: str = "a", *, first: bytes = b"", last: bytes = b"\xff",
              descending: bool = False) -> list[str]:  # fmt: skip
    found = nodes[at].documents.scan(BUCKET, first, last, descending=descending)
    return [doc_id async for doc_id, _ in found]


async def test_documents_come_in_order_with_all_that_they_are(nodes: DistributedNodes) -> None:
    for at in "ab":
        assert await ids(nodes, at) == NAMES
        assert await ids(nodes, at, descending=True) == NAMES[::-1]
    assert await ids(nodes, first=b"k03", last=b"k06") == ["k03", "k04", "k05", "k06"]
    assert await ids(nodes, first=b"zz", last=b"zzz") == []
    found = nodes["a"].documents.scan(BUCKET, b"k00", b"k99", descending=False)
    async for doc_id, document in found:
        text = text_of(doc_id, document, document.winner, PLAIN)
        assert text.endswith(b'"n":"%b"}' % doc_id.encode())


async def test_keys_of_kv_are_listed_wherever_they_are(nodes: DistributedNodes) -> None:
    made = [name.encode() for name in NAMES]
    for number in range(20):
        for key in (b"\xff%d" % number, b"_%d" % number):
            owner = OWNERS[partition_of(key, len(OWNERS))]
            nodes[owner].running.bucket.partition_for(key).put(key, b"{}", 0, 0, 0, 1, NOW)
            made.append(key)
    for at in "ab":
        found = nodes[at].documents.keys(BUCKET, b"", b"\xff" * 251)
        assert [key async for key in found] == sorted(made)
        assert await ids(nodes, at) == NAMES


async def test_figures_are_sums(nodes: DistributedNodes) -> None:
    one, other = [await nodes[at].documents.info(BUCKET) for at in "ab"]
    assert (one.document_count, one.deleted_count) == (len(NAMES), 1)
    assert one.update_seq == other.update_seq
    assert one.branches == other.branches
    assert one.instance_start_time == other.instance_start_time
    assert one.file_bytes > 0


async def test_texts_for_queries(nodes: DistributedNodes) -> None:
    scans = DocumentScans(nodes["a"].changes.router, lambda: NOW)
    found = scans.documents(BUCKET, "k10", "k20", descending=True, conflicts=False)
    texts = [one async for one in found]
    assert [doc_id for doc_id, _ in texts] == [f"k{n}" for n in range(20, 9, -1)]
    assert all(text.startswith(b'{"_id":"%b","_rev":"1-' % i.encode()) for i, text in texts)
    everything = scans.documents(BUCKET, None, None, descending=False, conflicts=False)
    assert [doc_id async for doc_id, _ in everything] == [n for n in NAMES if n[0] != "_"]


async def move(nodes: DistributedNodes, number: int, to: str) -> None:
    before = nodes.owners[number]
    await nodes[before].running.copies.set_state(number, PartitionState.DEAD)
    await nodes[to].running.copies.set_state(number, PartitionState.ACTIVE)
    nodes.owners[number] = to
    nodes.tell_map()


@pytest.mark.parametrize("descending", [False, True])
async def test_a_scan_goes_on_where_partitions_went(
    nodes: DistributedNodes, descending: bool
) -> None:
    at: Any = iter([(1, "a"), (0, "b"), (3, "a")])
    seen = []
    found = nodes["a"].documents.scan(BUCKET, b"", b"\xff", descending=descending)
    async for doc_id, _ in found:
        seen.append(doc_id)
        if len(seen) % 10 == 0 and (step := next(at, None)):
            await move(nodes, *step)
    assert seen == (NAMES[::-1] if descending else NAMES)


async def test_a_scan_that_began_where_all_was_here_goes_on_elsewhere(
    nodes: DistributedNodes,
) -> None:
    for number in (1, 3):
        await move(nodes, number, "a")
    seen = []
    async for doc_id, _ in nodes["a"].documents.scan(BUCKET, b"", b"\xff", descending=False):
        seen.append(doc_id)
        if len(seen) == 10:
            await move(nodes, partition_of(NAMES[20].encode(), 4), "b")
    assert seen == NAMES
    assert "WantedDocuments" in nodes["b"].asked


async def test_a_query_that_began_where_all_was_here_goes_on_elsewhere(
    nodes: DistributedNodes,
) -> None:
    for number in (1, 3):
        await move(nodes, number, "a")
    scans = DocumentScans(nodes["a"].changes.router, lambda: NOW)
    seen = []
    found = scans.documents(BUCKET, None, None, descending=True, conflicts=False)
    async for doc_id, _ in found:
        seen.append(doc_id)
        if len(seen) == 10:
            await move(nodes, partition_of(NAMES[20].encode(), 4), "b")
    assert seen == [name for name in NAMES[::-1] if name[0] != "_"]
    assert "WantedDocuments" in nodes["b"].asked


async def test_a_node_that_breaks_off_is_asked_again_and_one_that_is_dead_is_not(
    nodes: DistributedNodes,
) -> None:
    count = 0

    def every_third(page: str, data: bytes) -> bytes | None:
        nonlocal count
        count += 1
        return None if page == "WantedDocuments" and count % 3 == 0 else data

    nodes["b"].on_chunk = every_third
    assert await ids(nodes) == NAMES
    nodes["b"].is_dead = True
    for call in (ids(nodes), nodes["a"].documents.info(BUCKET)):
        with pytest.raises(MillstreamError) as caught:
            await call
        assert caught.value.code == "node_failed"


@pytest.mark.parametrize("answer", [b"\0\0\0\2\x91\x04", b"\xff" * 9, b"\0\0\0\4\x92\x02\x91\xa0"])
async def test_nonsense(nodes: DistributedNodes, answer: bytes) -> None:
    is_over = answer == b"\0\0\0\2\x91\x04"
    nodes["b"].on_chunk = lambda page, data: answer if page == "WantedDocuments" else data
    if is_over:  # believed: it has nothing
        assert len(await ids(nodes)) < len(NAMES)
        return
    with pytest.raises(MillstreamError) as caught:
        await ids(nodes)
    assert caught.value.code == "node_failed"


async def test_what_comes_out_of_order_is_refused(nodes: DistributedNodes) -> None:
    kept = list[bytes]()

    def again(page: str, data: bytes) -> bytes:
        kept.append(data)
        return kept[0] if page == "WantedDocuments" and len(kept) == 3 else data

    nodes["b"].on_chunk = again
    assert await ids(nodes) == NAMES, "it is asked again behind what was right"
