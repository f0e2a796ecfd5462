"""Documents of a bucket on two nodes, of which either answers for all."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from millstream.databases import routing
from millstream.databases.documents import distributed_documents, local_node
from millstream.databases.documents import distributed_reads as distributed_reads
from millstream.documents.purge_list import Purged
from millstream.documents.sent import Sent, parse_sent
from millstream.documents.stored import Attachment, Content, StoredDocument
from millstream.documents.updating import interactive
from millstream.errors import ConditionError, MillstreamError, UnavailableError
from millstream.gateway.core.api.documents import Decide, LocalDocument, Written
from millstream.gateway.core.api.stored import (
    Asked,
    Commit,
    Done,
    ListLocals,
    ReadLocal,
    WriteLocal,
    refused,
)
from support.http.revised_documents import with_leaf
from support.http.sharing_nodes import BUCKET, SharingNodes, lost, sharing_nodes
from support.kv.running_bucket import put


@pytest.fixture
async def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SharingNodes]:
    monkeypatch.setattr(routing, "PAUSE_S", 0)
    async with sharing_nodes(tmp_path) as found:
        yield found


async def pieces(*data: bytes) -> AsyncIterator[bytes]:
    for piece in data:
        yield piece


async def test_either_node_reads_and_changes_any_document(nodes: SharingNodes) -> None:
    for asked in nodes.all:
        for owner in "ab":
            doc_id = nodes.id_at(owner, f"by-{asked.name}-")
            assert await asked.distributed.read(BUCKET, doc_id) is None
            [made] = await asked.distributed.update(
                BUCKET, [(doc_id, put(b'{"n":1}'))], is_durable=True
            )
            assert isinstance(made, Written)
            assert (made.partition, made.seqno > 0) == (
                nodes[owner].running.bucket.partition_for(doc_id.encode()).partition_id, True
            )  # fmt: skip
            for node in nodes.all:
                found = await node.distributed.read(BUCKET, doc_id, is_durable=True)
                assert found is not None
                assert found.contents[found.winner.rev].body == b'{"n":1}'
                [refusal] = await node.distributed.update(
                    BUCKET, [(doc_id, put())], is_durable=True
                )
                assert isinstance(refusal, ConditionError)
                assert refusal.code == "conflict"


async def test_what_is_here_is_asked_of_nobody(nodes: SharingNodes) -> None:
    doc_id = nodes.id_at("a")
    await nodes["a"].distributed.settings(BUCKET)
    nodes.network.asked.clear()
    await nodes["a"].distributed.update(BUCKET, [(doc_id, put())], is_durable=True)
    assert await nodes["a"].distributed.read(BUCKET, doc_id) is not None
    assert nodes.network.asked == []


async def test_what_nodes_keep_for_themselves_is_read_at_either_node(nodes: SharingNodes) -> None:
    for owner in "ab":
        doc_id = nodes.id_at(owner, "_state/")
        [made] = await nodes[owner].distributed.update(BUCKET, [(doc_id, put())], is_durable=True)
        assert isinstance(made, Written)
        for node in nodes.all:
            assert await node.distributed.read(BUCKET, doc_id) is not None


async def test_a_node_without_the_bucket_has_none(
    nodes: SharingNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distributed_reads, "PAUSE_S", 0)
    nodes["a"].is_served = False
    with pytest.raises(ConditionError) as caught:
        await nodes["a"].distributed.read(BUCKET, "x")
    assert caught.value.code == "bucket_not_found"
    with pytest.raises(UnavailableError, match="not active on this node"):
        await nodes["b"].distributed.read(BUCKET, nodes.id_at("a"))


async def test_an_owner_that_cannot_be_reached(nodes: SharingNodes) -> None:
    nodes.network.down.add("b")
    doc_id = nodes.id_at("b")
    with pytest.raises(UnavailableError, match="b is down"):
        await nodes["a"].distributed.read(BUCKET, doc_id)
    [refusal] = await nodes["a"].distributed.update(BUCKET, [(doc_id, put())], is_durable=True)
    assert isinstance(refusal, MillstreamError)
    assert refusal.code == "node_failed"


async def test_attachments_go_where_the_document_is_and_are_read_from_there(
    nodes: SharingNodes,
) -> None:
    doc_id = nodes.id_at("b")
    distributed = nodes["a"].distributed
    kept = await distributed.put_blob(BUCKET, pieces(b"abc", b"def"))
    assert not nodes["b"].running.blobs.has(kept.sha256)
    [made] = await distributed.update(BUCKET, [(doc_id, attach(kept.sha256, 6))], is_durable=True)
    assert isinstance(made, Written)
    assert nodes["b"].running.blobs.has(kept.sha256)
    other = await nodes["b"].distributed.put_blob(BUCKET, pieces(b"only at b"))
    read = [piece async for piece in distributed.open_blob(BUCKET, other.sha256, 5, 9)]
    assert b"".join(read) == b"at b"
    nodes.network.down.add("b")
    with pytest.raises(UnavailableError) as caught:
        [piece async for piece in distributed.open_blob(BUCKET, other.sha256, 0, 9)]
    assert caught.value.code == "node_failed", "it may have the bytes"
    nodes.network.down.clear()
    with pytest.raises(UnavailableError) as caught:
        [piece async for piece in distributed.open_blob(BUCKET, bytes(32), 0, 9)]
    assert caught.value.code == "blob_missing"


async def test_bytes_that_are_nowhere_are_no_attachment(nodes: SharingNodes) -> None:
    doc_id = nodes.id_at("b")
    [refusal] = await nodes["a"].distributed.update(
        BUCKET, [(doc_id, attach(bytes(32), 6))], is_durable=True
    )
    assert isinstance(refusal, MillstreamError)
    assert refusal.code == "blob_missing"
    assert await nodes["b"].distributed.read(BUCKET, doc_id) is None


async def test_a_commit_is_one_of_all_nodes(nodes: SharingNodes) -> None:
    edits = [(f"k{number}", put()) for number in range(40)]
    await nodes["a"].distributed.update(BUCKET, edits, is_durable=False)
    await nodes["a"].distributed.commit(BUCKET)
    for node in nodes.all:
        partitions = node.running.bucket.partitions
        assert all(one.persisted_seqno == one.high_seqno for one in partitions)
    assert nodes.network.requests(Commit) == ["b"]
    moved = UnavailableError("it moved before it was durable", code="not_my_partition")
    nodes.network.answers["b"] = refused(moved)
    with pytest.raises(UnavailableError, match="it moved"):
        await nodes["a"].distributed.commit(BUCKET)
    nodes.network.answers.clear()
    nodes.network.down.add("b")
    with pytest.raises(UnavailableError):
        await nodes["a"].distributed.commit(BUCKET)


def attach(name: bytes, length: int) -> Decide:
    """Return an edit that makes a document with one attachment."""

    def decide(document: StoredDocument | None) -> StoredDocument | None:
        made = with_leaf(document, "1-" + "c" * 32)
        shown = Attachment("text/plain", 1, length, bytes(16), name, "", length)
        return StoredDocument(made.tree, {made.winner.rev: Content(b"{}", {"a": shown})})

    return decide


async def test_purges_that_any_node_made_are_shown_by_each(nodes: SharingNodes) -> None:
    noted = {node.name: Purged(node.name, ["1-x"]) for node in nodes.all}
    for node in nodes.all:
        await node.distributed.note_purges(BUCKET, [noted[node.name]])
    await nodes["a"].distributed.set_purged_infos_limit(BUCKET, 5)
    for node in nodes.all:
        found = await node.distributed.purges(BUCKET)
        assert (found.limit, set(map(str, found.infos))) == (5, set(map(str, noted.values())))
    nodes.network.down.add("b")
    with pytest.raises(UnavailableError, match="b is down"):
        await nodes["a"].distributed.purges(BUCKET)


# -- local documents


def local_at(nodes: SharingNodes, name: str, prefix: str = "l") -> str:
    return nodes.id_at(name, f"_local/{prefix}").removeprefix("_local/")


async def test_either_node_reads_and_writes_local_documents(nodes: SharingNodes) -> None:
    for owner in "ab":
        doc_id = local_at(nodes, owner)
        for count, node in enumerate(nodes.all):
            assert (
                await node.distributed.write_local(BUCKET, doc_id, b'{"n":1}', count) == count + 1
            )
            with pytest.raises(ConditionError) as caught:
                await node.distributed.write_local(BUCKET, doc_id, b"{}", 7)
            assert caught.value.code == "conflict"
            for other in nodes.all:
                found = await other.distributed.read_local(BUCKET, doc_id)
                assert found == LocalDocument(doc_id, count + 1, b'{"n":1}')
    listed = [[one.id for one in await node.distributed.locals(BUCKET)] for node in nodes.all]
    assert listed[0] == listed[1] == sorted(local_at(nodes, owner) for owner in "ab")
    for node, owner in zip(nodes.all, "ba", strict=True):
        assert await node.distributed.write_local(BUCKET, local_at(nodes, owner), None, 2) == 0
    assert await nodes["a"].distributed.locals(BUCKET) == []


async def test_local_documents_go_along_with_a_partition(nodes: SharingNodes) -> None:
    doc_id = local_at(nodes, "b")
    key = f"_local/{doc_id}".encode()
    partition = nodes["a"].running.bucket.partition_for(key).partition_id
    await nodes["a"].distributed.write_local(BUCKET, doc_id, b'{"seq":1}', None)
    await nodes["a"].distributed.write_local(BUCKET, doc_id, b'{"seq":2}', 1)
    await nodes.move(partition, "a")
    for node in nodes.all:
        found = await node.distributed.read_local(BUCKET, doc_id)
        assert found == LocalDocument(doc_id, 2, b'{"seq":2}')
    assert await nodes["b"].distributed.write_local(BUCKET, doc_id, b'{"seq":3}', 2) == 3
    nodes.network.down.add("a")
    with pytest.raises(UnavailableError, match="a is down"):
        await nodes["b"].distributed.locals(BUCKET)


async def test_who_cannot_be_reached_misses_a_version(
    nodes: SharingNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    doc_id = local_at(nodes, "a")
    nodes.network.down.add("b")
    assert await nodes["a"].distributed.write_local(BUCKET, doc_id, b"{}", None) == 1
    assert nodes["b"].running.local.newest(doc_id) is None
    nodes.network.down.clear()
    monkeypatch.setattr(local_node, "GIVEN_S_MAX", 0.0)
    assert await nodes["a"].distributed.write_local(BUCKET, doc_id, b"{}", 1) == 2


async def test_an_older_version_does_not_replace_a_newer_one(nodes: SharingNodes) -> None:
    doc_id = local_at(nodes, "a")
    for rev in range(3):
        await nodes["a"].distributed.write_local(BUCKET, doc_id, b"{}", rev)
    newest = nodes["b"].running.local.newest(doc_id)
    assert newest is not None
    assert newest.rev == 3
    await nodes["b"].running.local.keep(doc_id, [newest._replace(rev=2, number=2)])
    assert nodes["b"].running.local.newest(doc_id) == newest


async def test_a_local_write_whose_answer_is_lost_is_ambiguous(nodes: SharingNodes) -> None:
    doc_id = local_at(nodes, "b")
    nodes.network.after = lost(WriteLocal)
    with pytest.raises(UnavailableError) as caught:
        await nodes["a"].distributed.write_local(BUCKET, doc_id, b"{}", None)
    assert caught.value.code == "ambiguous"
    assert nodes.network.requests(WriteLocal) == ["b"]
    nodes.network.after = lost(ReadLocal)
    assert await nodes["a"].distributed.read_local(BUCKET, doc_id) is not None


async def test_an_owner_that_moves_while_it_is_asked(nodes: SharingNodes) -> None:
    doc_id = local_at(nodes, "b")
    partition = nodes["a"].running.bucket.partition_for(f"_local/{doc_id}".encode()).partition_id

    async def move(name: str, asked: Asked) -> None:
        if isinstance(asked, WriteLocal) and nodes.rows[partition] == "b":
            await nodes.move(partition, "a")

    nodes.network.before = move
    assert await nodes["a"].distributed.write_local(BUCKET, doc_id, b"{}", None) == 1
    assert await nodes["a"].own.read_local(BUCKET, doc_id) is not None


async def test_an_owner_that_does_not_serve_the_bucket_is_never_shown_as_empty(
    nodes: SharingNodes,
) -> None:
    distributed = nodes["a"].distributed
    await distributed.write_local(BUCKET, local_at(nodes, "a"), b"{}", None)
    nodes["b"].is_served = False
    for ask in (distributed.locals, distributed.purges, distributed.commit):
        with pytest.raises(UnavailableError) as caught:
            await ask(BUCKET)
        assert caught.value.code == "not_my_partition"
    for partition in range(nodes["a"].running.bucket.partition_count):
        await nodes.move(partition, "a")
    assert [one.id for one in await distributed.locals(BUCKET)] == [local_at(nodes, "a")]
    await distributed.purges(BUCKET)


async def test_a_long_list_comes_in_portions(
    nodes: SharingNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_node, "PORTION_BYTES", 10)
    for number in range(12):
        await nodes["a"].distributed.write_local(BUCKET, f"l{number}", b'{"n":1}', None)
    listed = await nodes["a"].distributed.locals(BUCKET)
    assert [one.id for one in listed] == sorted(f"l{number}" for number in range(12))
    assert len(nodes.network.requests(ListLocals)) > 1
    nodes.network.answers["b"] = Done()
    with pytest.raises(UnavailableError):
        await nodes["a"].distributed.locals(BUCKET)


async def replaced_once(nodes: SharingNodes, doc_id: str) -> list[str]:
    """Write a document twice, durably; return its revisions."""
    revs: list[str] = []
    for n in range(2):
        rev = f',"_rev":"{revs[-1]}"' if revs else ""
        sent = parse_sent(f'{{"n":{n}{rev}}}'.encode())

        def decide(document: StoredDocument | None, sent: Sent = sent) -> StoredDocument | None:
            change = interactive(document, sent, revs_limit=1000)
            revs.append(change.rev)
            return change.document

        [made] = await nodes["a"].distributed.update(BUCKET, [(doc_id, decide)], is_durable=True)
        assert isinstance(made, Written)
    return revs


async def test_either_node_reads_old_revisions_and_both_forget_them(nodes: SharingNodes) -> None:
    for owner in "ab":
        doc_id = nodes.id_at(owner, "old-")
        old, new = await replaced_once(nodes, doc_id)
        for node in nodes.all:
            found = await node.distributed.old(BUCKET, doc_id, [old], lists_all=True)
            assert found.revs == [new, old]
            [(document, has)] = found.documents
            assert has == [old]
            assert document.contents[old].body == b'{"n":0}'
    await nodes["a"].distributed.compact(BUCKET)
    for owner in "ab":
        for node in nodes.all:
            doc_id = nodes.id_at(owner, "old-")
            found = await node.distributed.old(BUCKET, doc_id, [], lists_all=True)
            assert len(found.revs) == 1
    for node in nodes.all:
        compactor = node.running.compactor
        assert compactor.is_running or compactor.statistics().passes_total


async def test_an_owner_that_cannot_be_asked_is_not_shown_as_having_no_old_revisions(
    nodes: SharingNodes,
) -> None:
    nodes.network.down.add("b")
    with pytest.raises(UnavailableError, match="b is down"):
        await nodes["a"].distributed.old(BUCKET, nodes.id_at("b"), [], lists_all=True)


async def test_the_other_nodes_compact_also_where_the_own_compaction_fails(
    nodes: SharingNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    doc_id = nodes.id_at("b", "old-")
    await replaced_once(nodes, doc_id)

    async def full() -> None:
        raise UnavailableError("no room", code="disk_full")

    monkeypatch.setattr(nodes["a"].running.old, "forget", full)
    with pytest.raises(UnavailableError, match="no room"):
        await nodes["a"].distributed.compact(BUCKET)
    assert len((await nodes["b"].distributed.old(BUCKET, doc_id, [], lists_all=True)).revs) == 1


async def test_a_node_that_does_not_answer_is_left_out_of_a_compaction(
    nodes: SharingNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    doc_id = nodes.id_at("a", "old-")
    await replaced_once(nodes, doc_id)
    monkeypatch.setattr(distributed_documents, "COMPACT_S_MAX", 0)
    await nodes["a"].distributed.compact(BUCKET)
    assert len((await nodes["b"].distributed.old(BUCKET, doc_id, [], lists_all=True)).revs) == 1
    nodes.network.down.add("b")
    await nodes["a"].distributed.compact(BUCKET)
