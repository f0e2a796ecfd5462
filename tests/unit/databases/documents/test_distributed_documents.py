"""Documents of a bucket on two nodes, of which either answers for all."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from millstream.databases.documents import distributed_reads as spread_reads
from millstream.documents.purge_list import Purged
from millstream.documents.stored import Attachment, Content, StoredDocument
from millstream.errors import ConditionError, MillstreamError, UnavailableError
from millstream.gateway.core.api.documents import Decide, Written
from millstream.gateway.core.api.stored import Commit, refused
from support.http.revised_documents import with_leaf
from support.http.sharing_nodes import BUCKET, SpreadNodes, sharing_nodes
from support.kv.running_bucket import put


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[SpreadNodes]:
    async with sharing_nodes(tmp_path) as found:
        yield found


async def pieces(*data: bytes) -> AsyncIterator[bytes]:
    for piece in data:
        yield piece


async def test_either_node_reads_and_changes_any_document(nodes: SpreadNodes) -> None:
    for asked in nodes.all:
        for owner in "ab":
            doc_id = nodes.id_at(owner, f"by-{asked.name}-")
            assert await asked.spread.read(BUCKET, doc_id) is None
            [made] = await asked.spread.update(
                BUCKET, [(doc_id, put(b'{"n":1}'))], is_durable=True
            )
            assert isinstance(made, Written)
            assert (made.partition, made.seqno > 0) == (
                nodes[owner].running.bucket.partition_for(doc_id.encode()).partition_id, True
            )  # fmt: skip
            for node in nodes.all:
                found = await node.spread.read(BUCKET, doc_id, is_durable=True)
                assert found is not None
                assert found.contents[found.winner.rev].body == b'{"n":1}'
                [refusal] = await node.spread.update(BUCKET, [(doc_id, put())], is_durable=True)
                assert isinstance(refusal, ConditionError)
                assert refusal.code == "conflict"


async def test_what_is_here_is_asked_of_nobody(nodes: SpreadNodes) -> None:
    doc_id = nodes.id_at("a")
    await nodes["a"].spread.settings(BUCKET)
    nodes.network.asked.clear()
    await nodes["a"].spread.update(BUCKET, [(doc_id, put())], is_durable=True)
    assert await nodes["a"].spread.read(BUCKET, doc_id) is not None
    assert nodes.network.asked == []


async def test_a_node_without_the_bucket_has_none(
    nodes: SpreadNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spread_reads, "PAUSE_S", 0)
    nodes["a"].is_served = False
    with pytest.raises(ConditionError) as caught:
        await nodes["a"].spread.read(BUCKET, "x")
    assert caught.value.code == "bucket_not_found"
    with pytest.raises(UnavailableError, match="not active on this node"):
        await nodes["b"].spread.read(BUCKET, nodes.id_at("a"))


async def test_an_owner_that_cannot_be_reached(nodes: SpreadNodes) -> None:
    nodes.network.down.add("b")
    doc_id = nodes.id_at("b")
    with pytest.raises(UnavailableError, match="b is down"):
        await nodes["a"].spread.read(BUCKET, doc_id)
    [refusal] = await nodes["a"].spread.update(BUCKET, [(doc_id, put())], is_durable=True)
    assert isinstance(refusal, MillstreamError)
    assert refusal.code == "node_failed"


async def test_attachments_go_where_the_document_is_and_are_read_from_there(
    nodes: SpreadNodes,
) -> None:
    doc_id = nodes.id_at("b")
    spread = nodes["a"].spread
    kept = await spread.put_blob(BUCKET, pieces(b"abc", b"def"))
    assert not nodes["b"].running.blobs.has(kept.sha256)
    [made] = await spread.update(BUCKET, [(doc_id, attach(kept.sha256, 6))], is_durable=True)
    assert isinstance(made, Written)
    assert nodes["b"].running.blobs.has(kept.sha256)
    other = await nodes["b"].spread.put_blob(BUCKET, pieces(b"only at b"))
    read = [piece async for piece in spread.open_blob(BUCKET, other.sha256, 5, 9)]
    assert b"".join(read) == b"at b"
    nodes.network.down.add("b")
    with pytest.raises(UnavailableError) as caught:
        [piece async for piece in spread.open_blob(BUCKET, other.sha256, 0, 9)]
    assert caught.value.code == "node_failed", "it may have the bytes"
    nodes.network.down.clear()
    with pytest.raises(UnavailableError) as caught:
        [piece async for piece in spread.open_blob(BUCKET, bytes(32), 0, 9)]
    assert caught.value.code == "blob_missing"


async def test_bytes_that_are_nowhere_are_no_attachment(nodes: SpreadNodes) -> None:
    doc_id = nodes.id_at("b")
    [refusal] = await nodes["a"].spread.update(
        BUCKET, [(doc_id, attach(bytes(32), 6))], is_durable=True
    )
    assert isinstance(refusal, MillstreamError)
    assert refusal.code == "blob_missing"
    assert await nodes["b"].spread.read(BUCKET, doc_id) is None


async def test_a_commit_is_one_of_all_nodes(nodes: SpreadNodes) -> None:
    edits = [(f"k{number}", put()) for number in range(40)]
    await nodes["a"].spread.update(BUCKET, edits, is_durable=False)
    await nodes["a"].spread.commit(BUCKET)
    for node in nodes.all:
        partitions = node.running.bucket.partitions
        assert all(one.persisted_seqno == one.high_seqno for one in partitions)
    assert nodes.network.requests(Commit) == ["b"]
    moved = UnavailableError("it moved before it was durable", code="not_my_partition")
    nodes.network.answers["b"] = refused(moved)
    with pytest.raises(UnavailableError, match="it moved"):
        await nodes["a"].spread.commit(BUCKET)
    nodes.network.answers.clear()
    nodes["b"].is_served = False
    await nodes["a"].spread.commit(BUCKET)
    nodes.network.down.add("b")
    with pytest.raises(UnavailableError):
        await nodes["a"].spread.commit(BUCKET)


def attach(name: bytes, length: int) -> Decide:
    """Return an edit that makes a document with one attachment."""

    def decide(document: StoredDocument | None) -> StoredDocument | None:
        made = with_leaf(document, "1-" + "c" * 32)
        shown = Attachment("text/plain", 1, length, bytes(16), name, "", length)
        return StoredDocument(made.tree, {made.winner.rev: Content(b"{}", {"a": shown})})

    return decide


async def test_purges_that_any_node_made_are_shown_by_each(nodes: SpreadNodes) -> None:
    noted = {node.name: Purged(node.name, ["1-x"]) for node in nodes.all}
    for node in nodes.all:
        await node.spread.note_purges(BUCKET, [noted[node.name]])
    await nodes["a"].spread.set_purged_infos_limit(BUCKET, 5)
    for node in nodes.all:
        found = await node.spread.purges(BUCKET)
        assert (found.limit, set(map(str, found.infos))) == (5, set(map(str, noted.values())))
    nodes.network.down.add("b")
    with pytest.raises(UnavailableError, match="b is down"):
        await nodes["a"].spread.purges(BUCKET)
