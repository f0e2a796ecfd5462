"""What a node answers to other nodes: documents, and its partitions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from millstream.databases.documents import local_node as stored_documents
from millstream.documents.stored import Packed, pack
from millstream.errors import ConditionError, UnavailableError, UsageError
from millstream.gateway.core.api.stored import (
    Change,
    Changed,
    Commit,
    CountPurge,
    Done,
    Lacking,
    ListLocals,
    Placed,
    ReadLocal,
    ReadStored,
    Refused,
    Stored,
    StoredList,
    WriteLocal,
    WriteStored,
    WrittenList,
)
from millstream.gateway.core.bucket_parts import (
    Failed,
    Histories,
    PartChanges,
    PartCutter,
    Reached,
    WantedChanges,
    WantedDocuments,
    WantedFigures,
    WantedHistories,
)
from millstream.kv.aio.documents.changes import BucketChanges
from millstream.kv.core.partition.acknowledgement import Acknowledged
from millstream.kv.core.revisions.revision_store import Kept, Version
from millstream.model.partitions import PartitionState
from millstream.model.position import Position
from millstream.wire.frames import seqno_of
from support.http.revised_documents import with_leaf
from support.http.sharing_nodes import BUCKET, UUID, SharingNodes, sharing_nodes
from support.views.distributed_nodes import BUCKET as PARTS
from support.views.distributed_nodes import DistributedNodes as FalseNodes
from support.views.distributed_nodes import Node

REV = "1-" + "a" * 32


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[SharingNodes]:
    async with sharing_nodes(tmp_path, "aaab") as found:
        yield found


def packed(*blobs: bytes, body: bytes = b"{}") -> Packed:
    return pack(with_leaf(None, REV, body, blobs=blobs))


async def write(
    nodes: SharingNodes, doc_id: str, version: Version | None, what: Packed
) -> Placed | Changed | Lacking | Refused:
    asked = WriteStored(UUID, [Change(doc_id, version, *what)], True)
    answer = await nodes["a"].stored.answer(BUCKET, asked)
    assert isinstance(answer, WrittenList)
    [one] = answer.changes
    return one


async def read(nodes: SharingNodes, *ids: str) -> list[Stored | Refused | None]:
    answer = await nodes["a"].stored.answer(BUCKET, ReadStored(UUID, list(ids), True))
    assert isinstance(answer, StoredList)
    return answer.documents


async def version_of(nodes: SharingNodes, doc_id: str) -> Version:
    [found] = await read(nodes, doc_id)
    assert isinstance(found, Stored)
    return Kept(0, found.frame, found.side).version


async def test_a_change_is_written_on_the_version_that_it_was_decided_on(
    nodes: SharingNodes,
) -> None:
    doc_id = nodes.id_at("a")
    assert await write(nodes, doc_id, Version(1, 1), packed()) == Changed()
    assert isinstance(await write(nodes, doc_id, None, packed()), Placed)
    assert await write(nodes, doc_id, None, packed()) == Changed()
    version = await version_of(nodes, doc_id)
    assert await write(nodes, doc_id, version._replace(cas=1), packed()) == Changed()
    assert await write(nodes, doc_id, version._replace(seqno=9), packed()) == Changed()
    assert isinstance(await write(nodes, doc_id, version, packed(body=b'{"n":1}')), Placed)


async def test_what_is_no_change_of_a_document_is_refused_alone(nodes: SharingNodes) -> None:
    good = nodes.id_at("a")
    changes = [
        Change("", None, *packed()), Change("_bad", None, *packed()),
        Change(good, None, b"{}", b"rubbish"), Change(nodes.id_at("b"), None, *packed()),
        Change(good, None, *packed()),
    ]  # fmt: skip
    answer = await nodes["a"].stored.answer(BUCKET, WriteStored(UUID, changes, False))
    assert isinstance(answer, WrittenList)
    codes = [one.code if isinstance(one, Refused) else "" for one in answer.changes]
    assert codes == ["illegal_docid", "illegal_docid", "bad_request", "not_my_partition", ""]
    assert isinstance(answer.changes[-1], Placed)


async def test_bytes_have_to_be_here_before_they_are_named(nodes: SharingNodes) -> None:
    doc_id = nodes.id_at("a")

    async def pieces() -> AsyncIterator[bytes]:
        yield b"bytes"

    with_bytes = packed(b"bytes")
    lacking = await write(nodes, doc_id, None, with_bytes)
    assert isinstance(lacking, Lacking)
    [name] = lacking.blobs
    assert await read(nodes, doc_id) == [None]
    assert (await nodes["a"].stored.put_blob(BUCKET, pieces())).sha256 == name
    assert isinstance(await write(nodes, doc_id, None, with_bytes), Placed)
    for file in nodes["a"].running.path.glob("blobs/??/*"):
        file.unlink()
    version = await version_of(nodes, doc_id)
    assert isinstance(await write(nodes, doc_id, version, with_bytes), Placed), "no news"


async def test_an_answer_is_bounded(nodes: SharingNodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_documents, "PORTION_BYTES", 1)
    ids = [nodes.id_at("a", prefix) for prefix in "xyz"]
    for doc_id in ids:
        await write(nodes, doc_id, None, packed())
    assert len(await read(nodes, *ids)) == 1
    assert len(await read(nodes, "none", nodes.id_at("b"), "_bad", *ids)) == 4


async def test_what_is_read(nodes: SharingNodes) -> None:
    [nothing, elsewhere] = await read(nodes, nodes.id_at("a"), nodes.id_at("b"))
    assert nothing is None
    assert isinstance(elsewhere, Refused)
    assert elsewhere.code == "not_my_partition"


async def test_another_bucket_of_the_name_is_not_meant(nodes: SharingNodes) -> None:
    with pytest.raises(ConditionError) as caught:
        await nodes["a"].stored.answer(BUCKET, Commit("11"))
    assert caught.value.code == "bucket_not_found"
    with pytest.raises(ConditionError):
        await nodes["a"].stored.answer("none", Commit(UUID))


async def test_local_documents_of_others_are_not_answered(nodes: SharingNodes) -> None:
    there = nodes.id_at("b", "_local/l").removeprefix("_local/")
    for asked in (ReadLocal(UUID, there), WriteLocal(UUID, there, b"{}", None)):
        with pytest.raises(UnavailableError) as caught:
            await nodes["a"].stored.answer(BUCKET, asked)
        assert caught.value.code == "not_my_partition"
    await nodes["b"].distributed.write_local(BUCKET, there, b"{}", None)
    answer = await nodes["a"].stored.answer(BUCKET, ListLocals(UUID, ""))
    assert answer.documents == []  # type: ignore[union-attr]


async def test_a_partition_that_is_stopped_is_not_written(nodes: SharingNodes) -> None:
    doc_id = nodes.id_at("a")
    number = nodes["a"].running.bucket.partition_for(doc_id.encode()).partition_id
    await nodes.set_state("a", number, PartitionState.DEAD)
    refusal = await write(nodes, doc_id, None, packed())
    assert isinstance(refusal, Refused)
    assert refusal.code == "not_my_partition"


@pytest.mark.parametrize("wanted", [WantedFigures, WantedHistories])
async def test_a_partition_that_leaves_while_it_is_asked_for_is_not_shown_as_empty(
    nodes: SharingNodes,
    monkeypatch: pytest.MonkeyPatch,
    wanted: type[WantedFigures | WantedHistories],
) -> None:
    doc_id = nodes.id_at("a")
    assert isinstance(await write(nodes, doc_id, None, packed()), Placed)
    partition = nodes["a"].running.bucket.partition_for(doc_id.encode())
    number, known = partition.partition_id, BucketChanges.known

    async def known_after_it_left(changes: BucketChanges) -> None:
        await known(changes)
        await nodes.set_state("a", number, PartitionState.DEAD)
        partition.acknowledged = Acknowledged(partition)
        partition.acknowledged.set_rows((("a", "b"),), "a")  # b has it now, a is its copy

    monkeypatch.setattr(BucketChanges, "known", known_after_it_left)
    with pytest.raises(UnavailableError) as caught:
        await nodes["a"].stored.answer(BUCKET, wanted(UUID, [number]))
    assert caught.value.code == "not_my_partition"


def asked_of(nodes: SharingNodes) -> list[Any]:
    """Everything that can be asked about documents of node a."""
    here = nodes.id_at("a", "_local/l").removeprefix("_local/")
    owned = [number for number, name in enumerate(nodes.rows) if name == "a"]
    return [
        WantedHistories(UUID, owned), WantedFigures(UUID, owned), ReadLocal(UUID, here),
        WriteLocal(UUID, here, b"{}", None), ListLocals(UUID, ""),
    ]  # fmt: skip


async def test_a_node_that_may_not_serve_answers_nothing_as_if_it_were_current(
    nodes: SharingNodes,
) -> None:
    doc_id = nodes.id_at("a")
    assert isinstance(await write(nodes, doc_id, None, packed()), Placed)
    nodes.isolate("a")
    node, owned = nodes["a"], [number for number, name in enumerate(nodes.rows) if name == "a"]
    for asked in asked_of(nodes):
        with pytest.raises(UnavailableError) as caught:
            await node.stored.answer(BUCKET, asked)
        assert caught.value.code == "isolated", asked
    for one in (*await read(nodes, doc_id), await write(nodes, doc_id, None, packed())):
        assert isinstance(one, Refused)
        assert one.code == "isolated"
    for wanted in (
        WantedChanges(UUID, owned, [NOWHERE] * len(owned), False),
        WantedDocuments(UUID, owned, b"", b"\xff"),
    ):
        cutter = PartCutter()
        [found] = [
            message
            async for data in node.stored.stream(BUCKET, wanted)
            for message in cutter.receive(data)
        ]
        assert isinstance(found, Failed)
        assert found.code == "isolated"
    node.running.bucket.set_right(2**62, is_admitted=True)
    for asked in asked_of(nodes):
        await node.stored.answer(BUCKET, asked)
    assert isinstance((await read(nodes, doc_id))[0], Stored)


async def test_readers_of_a_node_that_may_not_serve_are_told_at_once(nodes: SharingNodes) -> None:
    doc_id = nodes.id_at("a")
    nodes.isolate("a")
    database, spread = nodes["a"].stored._changes, nodes["a"].distributed
    everything = spread.scan(BUCKET, b"", b"\xff", descending=False)
    calls: list[Any] = [
        spread.read(BUCKET, doc_id), spread.info(BUCKET), anext(everything),
        database.whole(BUCKET),
    ]  # fmt: skip
    async with asyncio.timeout(30):
        results = await asyncio.gather(*calls, return_exceptions=True)
    for found in results:
        assert isinstance(found, UnavailableError), found
        assert found.code == "isolated"


async def test_a_reader_of_changes_ends_when_its_node_may_not_serve_any_more(
    nodes: SharingNodes,
) -> None:
    database = await nodes["a"].stored._changes.whole(BUCKET)
    walk = database.open(database.latest(), restarts=False)
    assert [piece async for piece in walk.pieces()] == []
    nodes.isolate("a")
    with pytest.raises(UnavailableError) as caught:
        async for _ in walk.pieces():
            pass
    assert caught.value.code == "isolated"
    walk.close()


# -- partitions

NOWHERE = Position()


@pytest.fixture
def node() -> Node:
    nodes = FalseNodes.false("aab")
    nodes.write(0, "ab")
    nodes.write(1, "abc")
    return nodes["a"]


async def read_part(node: Node, partitions: list[int], *positions: Position) -> list[Any]:
    wanted = WantedChanges("u1", partitions, list(positions), False)
    cutter = PartCutter()
    return [
        message
        async for data in node.stored.stream(PARTS, wanted)
        for message in cutter.receive(data)
    ]


async def histories(node: Node, wanted: WantedHistories) -> Histories:
    found = await node.stored.answer(PARTS, wanted)
    assert isinstance(found, Histories)
    return found


async def test_changes_of_partitions_from_where_a_reader_stands(node: Node) -> None:
    *pieces, end = await read_part(node, [1, 0], NOWHERE, Position(0xA001, 1, 1, 1))
    assert all(isinstance(piece, PartChanges) for piece in pieces)
    found = {piece.partition: [seqno_of(frame) for frame in piece.frames] for piece in pieces}
    assert found == {0: [2], 1: [1, 2, 3]}
    assert isinstance(end, Reached)
    ends = dict(end.positions)
    assert (ends[0].seqno, ends[1].seqno) == (2, 3)
    assert not len(node.changes.of(PARTS))


async def test_a_reader_is_judged_by_the_history_here(node: Node) -> None:
    [end] = await read_part(node, [0], Position(0xA001, 2, 2, 2))
    assert dict(end.positions)[0].seqno == 2
    *_, end = await read_part(node, [0], Position(0xBAD, 7, 7, 7))
    assert dict(end.positions)[0].seqno == 2
    node.bucket.partitions[0].fail_over(1)
    [end] = await read_part(node, [0], Position(0xA001, 2, 2, 2))
    assert dict(end.positions)[0].seqno == 1


async def test_a_partition_that_goes_in_the_middle(node: Node) -> None:
    node.bucket.partitions[1].forget_memory(3)
    wanted = WantedChanges("u1", [1], [NOWHERE], False)
    cutter, found = PartCutter(), list[Any]()
    async for data in node.stored.stream(PARTS, wanted):
        found += cutter.receive(data)
        node.bucket.partitions[1].state = PartitionState.DEAD
        node.bucket.partitions[1].lose_holds()
    assert isinstance(found[0], PartChanges)
    assert isinstance(found[-1], Failed)
    assert found[-1].code == "not_my_partition"


async def test_how_partitions_stand_at_once_or_once_there_is_more(node: Node) -> None:
    said = await histories(node, WantedHistories("u1", [1, 0]))
    assert [(one.partition, one.high_seqno, one.mark) for one in said.partitions] == [
        (1, 3, 3), (0, 2, 2),
    ]  # fmt: skip
    assert said.purges == "0.1"
    at = Position(0xA001, 2, 2, 2)
    wanted = WantedHistories("u1", [0], [at], 60.0)
    waiting = asyncio.ensure_future(histories(node, wanted))
    await node.bucket.until_read()
    assert not waiting.done()
    node.bucket.write(0, "x")
    assert (await waiting).partitions[0].mark == 3
    wanted = WantedHistories("u1", [0], [Position(0xA001, 3, 3, 3)], 0.001)
    assert (await histories(node, wanted)).partitions[0].mark == 3
    assert not node.bucket.durable_callbacks


async def test_what_is_refused(node: Node) -> None:
    for asked in (WantedHistories("other", [0]), CountPurge("other", False)):
        with pytest.raises(ConditionError):
            await node.stored.answer(PARTS, asked)
    with pytest.raises(UnavailableError, match="partition 2"):
        await node.stored.answer(PARTS, WantedFigures("u1", [0, 2]))
    for partitions in ([], [3], [-1], [0, 0]):
        with pytest.raises(UsageError):
            await histories(node, WantedHistories("u1", partitions))
    none = Position(1, 3, 2, 2), Position(1, 1, 2, 2), Position(-1)
    for positions in ([], [NOWHERE, NOWHERE], *([position] for position in none)):
        [failed] = await read_part(node, [0], *positions)
        assert (type(failed), failed.code) == (Failed, "bad_request")
    [failed] = await read_part(node, [2], NOWHERE)
    assert failed.code == "not_my_partition"


async def test_a_purge_is_counted_twice(node: Node) -> None:
    for is_made in (False, True):
        assert await node.stored.answer(PARTS, CountPurge("u1", is_made)) == Done()
    said = await histories(node, WantedHistories("u1", [0]))
    assert said.purges == "2.1"
