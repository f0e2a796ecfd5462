"""Documents of another node, read in order, with everything that can come between."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from millstream.databases.documents import distributed_reads as distributed_reads
from millstream.databases.documents import local_node as stored_documents
from millstream.databases.routing import TRIES_MAX, KnownPlace, Router, tries_max
from millstream.documents.stored import StoredDocument
from millstream.errors import CorruptionError, MillstreamError
from millstream.gateway.core.api import stored as stored_host
from millstream.gateway.core.api.stored import (
    Asked,
    ReadStored,
    Refused,
    Stored,
    StoredList,
    WrittenList,
)
from millstream.model.partitions import PartitionState
from millstream.runtime.tasks import Tasks
from support.http.sharing_nodes import BUCKET, SharingNodes, lost, sharing_nodes
from support.kv.running_bucket import put


@pytest.fixture
async def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SharingNodes]:
    monkeypatch.setattr(distributed_reads, "PAUSE_S", 0)
    async with sharing_nodes(tmp_path, "abcb", "abc") as found:
        await found["a"].distributed.settings(BUCKET)
        yield found


async def read(nodes: SharingNodes, ids: list[str], at: str = "a") -> list[Any]:
    found = nodes[at].distributed.read_all(BUCKET, ids, is_durable=True)
    return [
        one.contents[one.winner.rev].body if isinstance(one, StoredDocument) else one
        async for one in found
    ]


async def fill(nodes: SharingNodes, count: int) -> list[str]:
    ids = [f"k{number}" for number in range(count)]
    edits = [(doc_id, put(b'{"_id":"%b"}' % doc_id.encode())) for doc_id in ids]
    for node in nodes.all:
        here = [edit for edit in edits if nodes.owner(edit[0]) == node.name]
        await node.own.update(BUCKET, here, is_durable=True)
    nodes.network.asked.clear()
    return ids


async def test_in_order_wherever_they_are(
    nodes: SharingNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = await fill(nodes, 60)
    wanted = [*ids, "none", *reversed(ids)]
    assert await read(nodes, wanted) == [b"{}"] * 60 + [None] + [b"{}"] * 60
    assert sorted(nodes.network.requests(ReadStored)) == ["b", "c"]
    monkeypatch.setattr(stored_documents, "PORTION_BYTES", 300)
    monkeypatch.setattr(distributed_reads, "IDS_MAX", 20)
    assert await read(nodes, wanted) == [b"{}"] * 60 + [None] + [b"{}"] * 60
    assert len(nodes.network.requests(ReadStored)) > 10


async def test_who_is_asked_has_one_answer_waiting_here(
    nodes: SharingNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_documents, "PORTION_BYTES", 1)
    ids = await fill(nodes, 40)
    found = nodes["a"].distributed.read_all(
        BUCKET, [one for one in ids if nodes.owner(one) != "a"]
    )
    for number in range(10):
        await anext(found)
        assert len(nodes.network.requests(ReadStored)) <= number + 2
    await found.aclose()


async def test_a_node_that_is_down_costs_one_attempt(nodes: SharingNodes) -> None:
    ids = await fill(nodes, 30)
    nodes.network.down.add("b")
    found = await read(nodes, ids)
    for doc_id, one in zip(ids, found, strict=True):
        assert (one == b"{}") is (nodes.owner(doc_id) != "b")
    failures = {id(one) for one in found if isinstance(one, MillstreamError)}
    assert len(failures) == 1, "it was tried once"


async def test_in_a_managed_cluster_reads_wait_for_a_node_to_be_replaced(
    nodes: SharingNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Router, "is_managed", True)
    monkeypatch.setattr(distributed_reads, "PAUSE_S", 0.05)
    ids = await fill(nodes, 30)
    nodes.network.down.add("b")
    reading = Tasks().start(read(nodes, ids), name="test")
    await asyncio.wait([reading], timeout=0.01)
    assert not reading.done()
    nodes.network.down.clear()
    assert await reading == [b"{}"] * 30


async def test_in_a_managed_cluster_the_wait_for_a_node_is_that_of_one_document(
    nodes: SharingNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Router, "is_managed", True)
    ids = await fill(nodes, 30)
    nodes.network.down.add("b")
    asked, node = Counter[str](), Router.node

    def counted(router: Router, place: KnownPlace) -> Any:
        asked[str(place)] += 1
        return node(router, place)

    monkeypatch.setattr(Router, "node", counted)
    found = await read(nodes, ids)
    codes = {doc_id: getattr(one, "code", "") for doc_id, one in zip(ids, found, strict=True)}
    assert codes == {one: "node_failed" if nodes.owner(one) == "b" else "" for one in ids}
    assert max(asked.values()) <= tries_max(is_managed=True) + 30


async def test_a_connection_that_is_lost_once(nodes: SharingNodes) -> None:
    ids = await fill(nodes, 10)
    nodes.network.before = lost(ReadStored)
    assert await read(nodes, ids) == [b"{}"] * 10
    nodes.network.before = lost(ReadStored, times=9)
    assert [getattr(one, "code", "") for one in await read(nodes, [nodes.id_at("b")])] == [
        "node_failed"
    ]


async def test_a_document_whose_partition_moves_is_followed(nodes: SharingNodes) -> None:
    doc_id = nodes.id_at("b")
    partition = nodes["a"].running.bucket.partition_for(doc_id.encode()).partition_id

    async def move(name: str, asked: Asked) -> None:
        if name == "b" and nodes.rows[partition] == "b":
            await nodes.move(partition, "c")
            await nodes["c"].own.update(BUCKET, [(doc_id, put())], is_durable=True)

    nodes.network.before = move
    assert await read(nodes, [doc_id]) == [b"{}"]
    await nodes.move(partition, "a")
    assert await read(nodes, [doc_id], at="c") == [None], "it comes with its documents, or empty"


async def test_nobody_has_it(nodes: SharingNodes) -> None:
    doc_id = nodes.id_at("b")
    partition = nodes["a"].running.bucket.partition_for(doc_id.encode()).partition_id
    await nodes.set_state("b", partition, PartitionState.DEAD)
    [error] = await read(nodes, [doc_id])
    assert error.code == "not_my_partition"
    assert "b" in str(error)
    assert len(nodes.network.requests(ReadStored)) == TRIES_MAX
    [error] = await read(nodes, [doc_id], at="b")
    assert error.code == "not_my_partition"


async def test_refusals_are_among_the_documents(nodes: SharingNodes) -> None:
    ids = [nodes.id_at("b", "x"), nodes.id_at("b", "y")]
    refusal = Refused("CorruptionError", "bad_sidecar", "broken")
    nodes.network.answers["b"] = StoredList([refusal, None])
    [error, nothing] = await read(nodes, ids)
    assert isinstance(error, CorruptionError)
    assert (error.code, str(error), nothing) == ("bad_sidecar", "broken", None)


@pytest.mark.parametrize(
    "answer",
    [
        StoredList([]), StoredList([None, None]), WrittenList([]),
        StoredList([Stored(b"", b"")]), StoredList([Stored(b"x" * 100, b"\\0")]),
    ],
)  # fmt: skip
async def test_answers_that_make_no_sense(nodes: SharingNodes, answer: Any) -> None:
    nodes.network.answers["b"] = answer
    [error] = await read(nodes, [nodes.id_at("b")])
    assert error.code in ("node_failed", "bad_sidecar")


async def test_another_document_than_was_asked_for(nodes: SharingNodes) -> None:
    ids = await fill(nodes, 20)
    doc_id = next(one for one in ids if nodes.owner(one) == "b")
    kept = await nodes["b"].running.documents.kept(doc_id.encode(), is_durable=True)
    assert kept is not None
    nodes.network.answers["b"] = StoredList([Stored(kept.frame, kept.side)])
    assert await read(nodes, [doc_id]) == [b"{}"]
    [error] = await read(nodes, [nodes.id_at("b", "z")])
    assert error.code == "node_failed"


async def test_a_frame_that_is_cut_off(nodes: SharingNodes) -> None:
    ids = await fill(nodes, 20)
    doc_id = next(one for one in ids if nodes.owner(one) == "b")
    kept = await nodes["b"].running.documents.kept(doc_id.encode(), is_durable=True)
    assert kept is not None
    for end in range(0, 40, 3):
        nodes.network.answers["b"] = StoredList([Stored(kept.frame[:end], kept.side)])
        [error] = await read(nodes, [doc_id])
        assert error.code == "node_failed"


def test_a_request_has_no_more_ids_than_the_page_takes() -> None:
    assert distributed_reads.IDS_MAX <= stored_host.IDS_MAX
