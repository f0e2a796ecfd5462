"""Changes of documents of another node, with everything that can come between."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from millstream.databases.documents import distributed_updates as distributed_updates
from millstream.databases.routing import TRIES_MAX, Router
from millstream.documents.sent import parse_sent
from millstream.documents.stored import StoredDocument
from millstream.documents.updating import LongDecision, interactive, replicated
from millstream.errors import ConditionError, MillstreamError, UnavailableError, UsageError
from millstream.gateway.core.api.documents import Decide, Written
from millstream.gateway.core.api.stored import (
    Asked,
    Changed,
    Done,
    Placed,
    ReadStored,
    StoredList,
    WriteStored,
    WrittenList,
)
from millstream.kv.core.revisions.revision_store import Made, RevisedDocuments
from millstream.model.partitions import PartitionState
from millstream.runtime.tasks import Tasks
from simulators import document_schedules
from support.budget import budget
from support.http.sharing_nodes import BUCKET, SharingNodes, lost, sharing_nodes
from support.kv.running_bucket import LIMIT, put


@pytest.fixture
async def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SharingNodes]:
    monkeypatch.setattr(distributed_updates, "PAUSE_S", 0)
    async with sharing_nodes(tmp_path) as found:
        yield found


def from_peer(doc_id: str, digit: str) -> Decide:
    """Return a revision that a peer has."""
    text = b'{"_id":"%b","_rev":"1-%b","by":"%b"}' % (
        doc_id.encode(), digit.encode() * 32, digit.encode(),
    )  # fmt: skip

    def decide(document: StoredDocument | None) -> StoredDocument | None:
        return replicated(document, parse_sent(text), revs_limit=LIMIT).document

    return decide


async def change(nodes: SharingNodes, *edits: tuple[str, Decide], at: str = "a") -> list[Any]:
    return await nodes[at].distributed.update(BUCKET, edits, is_durable=True)


def code_of(found: object) -> str:
    assert isinstance(found, MillstreamError), found
    return found.code


async def test_a_long_decision_about_a_document_of_another_node_is_made_in_a_thread(
    nodes: SharingNodes,
) -> None:
    threads = list[bool]()

    def noted(document: StoredDocument | None) -> StoredDocument | None:
        threads.append(threading.current_thread() is threading.main_thread())
        return put(b"{}")(document)

    done = await change(nodes, ("k1", noted), ("k2", LongDecision(noted)))
    assert all(isinstance(one, Written) and one.seqno for one in done)
    assert threads == [True, False]
    assert nodes.network.requests(WriteStored) == ["b"]


async def test_a_thousand_documents_are_two_requests(nodes: SharingNodes) -> None:
    edits = [(f"k{number}", put(b'{"n":%d}' % number)) for number in range(1000)]
    done = await change(nodes, *edits)
    assert all(isinstance(one, Written) and one.seqno for one in done)
    assert nodes.network.requests(ReadStored, WriteStored) == ["b", "b"]
    ids = [doc_id for doc_id, _ in edits]
    nodes.network.asked.clear()
    found = [one async for one in nodes["a"].distributed.read_all(BUCKET, ids)]
    bodies = [
        one.contents[one.winner.rev].body for one in found if isinstance(one, StoredDocument)
    ]
    assert bodies == [b'{"n":%d}' % number for number in range(1000)]
    assert nodes.network.requests(ReadStored) == ["b"]


async def test_portions_are_bounded(nodes: SharingNodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed_updates, "PORTION_BYTES", 1000)
    edits = [(f"k{number}", put(b'{"n":"%b"}' % (b"x" * 300))) for number in range(20)]
    assert all(isinstance(one, Written) for one in await change(nodes, *edits))
    sizes = [len(one.changes) for _, one in nodes.network.asked if isinstance(one, WriteStored)]
    assert max(sizes) <= 4
    assert sum(sizes) == sum(nodes.owner(doc_id) == "b" for doc_id, _ in edits)


async def test_what_changes_between_reading_and_writing_is_decided_again(
    nodes: SharingNodes,
) -> None:
    doc_id = nodes.id_at("b")

    async def come_between(name: str, asked: Asked) -> None:
        if isinstance(asked, ReadStored) and len(nodes.network.requests(ReadStored)) == 1:
            edits = [(doc_id, from_peer(doc_id, "b"))]
            await nodes["b"].own.update(BUCKET, edits, is_durable=False)

    nodes.network.after = come_between
    [made] = await change(nodes, (doc_id, from_peer(doc_id, "a")))
    assert isinstance(made, Written)
    found = await nodes["b"].own.read(BUCKET, doc_id)
    assert found is not None
    assert sorted(found.tree.leaf_revs()) == ["1-" + "a" * 32, "1-" + "b" * 32]
    assert nodes.network.requests(ReadStored, WriteStored) == ["b"] * 4


async def test_a_clients_edit_that_comes_second_is_a_conflict(nodes: SharingNodes) -> None:
    doc_id = nodes.id_at("b")

    async def come_between(name: str, asked: Asked) -> None:
        if isinstance(asked, ReadStored):
            await nodes["b"].own.update(BUCKET, [(doc_id, put())], is_durable=False)

    nodes.network.after = come_between
    [refusal] = await change(nodes, (doc_id, put(b'{"late":1}')))
    assert isinstance(refusal, ConditionError)
    assert refusal.code == "conflict"


async def test_a_document_that_always_changes(nodes: SharingNodes) -> None:
    nodes.network.answers["b"] = None
    doc_id, decided = nodes.id_at("b"), 0

    def decide(document: StoredDocument | None) -> StoredDocument | None:
        nonlocal decided
        decided += 1
        return interactive(document, parse_sent(b"{}"), revs_limit=LIMIT).document

    async def answer(name: str, asked: Asked) -> None:
        is_read = isinstance(asked, ReadStored)
        nodes.network.answers["b"] = StoredList([None]) if is_read else WrittenList([Changed()])

    nodes.network.before = answer
    [refusal] = await change(nodes, (doc_id, decide))
    assert code_of(refusal) == "temporarily_unavailable"
    assert decided == TRIES_MAX


async def test_several_edits_of_a_document_see_each_other(nodes: SharingNodes) -> None:
    for owner in "ab":
        doc_id = nodes.id_at(owner)
        [first, second] = await change(nodes, (doc_id, put()), (doc_id, put(b'{"n":2}')))
        assert isinstance(first, Written)
        assert code_of(second) == "conflict"
        rev = first.document.winner.rev.encode()  # type: ignore[union-attr]
        gone = put(b'{"_rev":"%b","_deleted":true}' % rev)
        done = await change(nodes, (doc_id, gone), (doc_id, put(b'{"n":3}')))
        assert [one.document.winner.rev[:2] for one in done] == ["2-", "3-"]


async def test_an_owner_that_has_moved_is_found(nodes: SharingNodes) -> None:
    doc_id, other = nodes.id_at("b"), nodes.id_at("b", "other")
    partition = nodes["b"].running.bucket.partition_for(doc_id.encode()).partition_id

    async def move(name: str, asked: Asked) -> None:
        if isinstance(asked, WriteStored) and nodes.rows[partition] == "b":
            await nodes.move(partition, "a")

    nodes.network.before = move
    done = await change(nodes, (doc_id, put()), (other, put()))
    assert all(isinstance(one, Written) for one in done)
    assert await nodes["a"].own.read(BUCKET, doc_id) is not None
    assert await nodes["b"].distributed.read(BUCKET, doc_id) is not None


async def test_an_owner_that_nobody_is(nodes: SharingNodes) -> None:
    doc_id = nodes.id_at("b")
    partition = nodes["b"].running.bucket.partition_for(doc_id.encode()).partition_id
    await nodes.set_state("b", partition, PartitionState.DEAD)
    [refusal] = await change(nodes, (doc_id, put()))
    assert code_of(refusal) == "not_my_partition"
    assert len(nodes.network.requests(ReadStored)) == TRIES_MAX
    [refusal] = await change(nodes, (doc_id, put()), at="b")
    assert code_of(refusal) == "not_my_partition"


@pytest.mark.parametrize("times", [1, 2])
async def test_what_is_lost_while_reading_is_asked_again(nodes: SharingNodes, times: int) -> None:
    nodes.network.before = lost(ReadStored, times=times)
    [made] = await change(nodes, (nodes.id_at("b"), put()))
    if times == 1:
        assert isinstance(made, Written)
    else:
        assert code_of(made) == "node_failed"


async def test_a_change_that_was_lost_on_its_way_is_sent_again(nodes: SharingNodes) -> None:
    nodes.network.before = lost(WriteStored)
    [made] = await change(nodes, (nodes.id_at("b"), put()))
    assert isinstance(made, Written)
    assert nodes.network.requests(WriteStored) == ["b", "b"]


async def test_a_change_whose_answer_was_lost_is_found_and_not_made_again(
    nodes: SharingNodes,
) -> None:
    doc_id = nodes.id_at("b")
    nodes.network.after = lost(WriteStored)
    [made] = await change(nodes, (doc_id, put(b'{"n":1}')))
    assert isinstance(made, Written)
    kept = await nodes["b"].running.documents.kept(doc_id.encode(), is_durable=True)
    assert kept is not None
    assert kept.version.seqno == made.seqno
    assert nodes.network.requests(WriteStored) == ["b"]


async def test_a_deletion_whose_answer_was_lost_is_found(nodes: SharingNodes) -> None:
    doc_id = nodes.id_at("b")
    [made] = await change(nodes, (doc_id, put()))
    rev = made.document.winner.rev.encode()
    nodes.network.after = lost(WriteStored)
    [made] = await change(nodes, (doc_id, put(b'{"_rev":"%b","_deleted":true}' % rev)))
    assert isinstance(made, Written)
    assert made.document is not None
    assert made.document.winner.is_deleted


async def test_what_is_another_document_afterwards_is_ambiguous(nodes: SharingNodes) -> None:
    doc_id = nodes.id_at("b")
    lose = lost(WriteStored)

    async def come_after(name: str, asked: Asked) -> None:
        if isinstance(asked, WriteStored):
            edits = [(doc_id, from_peer(doc_id, "f"))]
            await nodes["b"].own.update(BUCKET, edits, is_durable=False)
        await lose(name, asked)

    nodes.network.after = come_after
    [refusal] = await change(nodes, (doc_id, put()))
    assert code_of(refusal) == "ambiguous"
    assert len(nodes.network.requests(WriteStored)) == 1


@pytest.mark.parametrize("is_sent", [False, True])
async def test_in_a_managed_cluster_a_change_waits_for_a_node_to_be_replaced(
    nodes: SharingNodes, monkeypatch: pytest.MonkeyPatch, is_sent: bool
) -> None:
    monkeypatch.setattr(Router, "is_managed", True)
    monkeypatch.setattr(distributed_updates, "PAUSE_S", 0.05)
    doc_id, lose = nodes.id_at("b"), lost(WriteStored)

    async def go_down(name: str, asked: Asked) -> None:
        if isinstance(asked, WriteStored):
            nodes.network.down.add("b")
        await lose(name, asked)

    if is_sent:
        nodes.network.after = go_down
    else:
        nodes.network.down.add("b")
    changing = Tasks().start(change(nodes, (doc_id, put())), name="test")
    await asyncio.wait([changing], timeout=0.1)
    assert not changing.done()
    nodes.network.down.clear()
    [made] = await changing
    assert isinstance(made, Written)
    assert made.seqno == 1


@pytest.mark.parametrize("is_managed", [False, True])
async def test_a_change_that_no_node_takes_is_told_as_not_made(
    nodes: SharingNodes, monkeypatch: pytest.MonkeyPatch, is_managed: bool
) -> None:
    monkeypatch.setattr(Router, "is_managed", is_managed)
    nodes.network.down.add("b")
    [refusal] = await change(nodes, (nodes.id_at("b"), put()))
    assert code_of(refusal) == "node_failed"


async def test_what_cannot_be_looked_for_is_ambiguous(nodes: SharingNodes) -> None:
    lose = lost(WriteStored)

    async def go_down(name: str, asked: Asked) -> None:
        if isinstance(asked, WriteStored):
            nodes.network.down.add("b")
        await lose(name, asked)

    nodes.network.after = go_down
    [refusal] = await change(nodes, (nodes.id_at("b"), put()))
    assert code_of(refusal) == "ambiguous"


async def test_a_lost_change_whose_partition_comes_here_is_ambiguous(nodes: SharingNodes) -> None:
    doc_id = nodes.id_at("b")
    partition = nodes["b"].running.bucket.partition_for(doc_id.encode()).partition_id
    lose = lost(WriteStored)

    async def move(name: str, asked: Asked) -> None:
        if isinstance(asked, WriteStored):
            await nodes.move(partition, "a")
        await lose(name, asked)

    nodes.network.after = move
    [refusal] = await change(nodes, (doc_id, put()))
    assert code_of(refusal) == "ambiguous"
    assert await nodes["a"].own.read(BUCKET, doc_id) is None


@pytest.mark.parametrize(
    "answer",
    [
        Done(),
        StoredList([]),
        StoredList([None] * 9),
        WrittenList([]),
        WrittenList([Placed(1)] * 2),
    ],
)
async def test_answers_that_make_no_sense(nodes: SharingNodes, answer: Any) -> None:
    nodes.network.answers["b"] = answer
    [refusal] = await change(nodes, (nodes.id_at("b"), put()))
    assert code_of(refusal) == "node_failed"


@pytest.mark.parametrize("answer", [Done(), StoredList([]), WrittenList([Placed(1)] * 2)])
async def test_a_write_that_is_answered_with_nonsense_is_looked_for(
    nodes: SharingNodes, answer: Any
) -> None:
    async def answer_writes(name: str, asked: Asked) -> None:
        nodes.network.answers.clear()
        if isinstance(asked, WriteStored):
            nodes.network.answers["b"] = answer

    nodes.network.before = answer_writes
    [made] = await change(nodes, (nodes.id_at("b", "x"), put()))
    assert isinstance(made, Written), "it was written"
    assert nodes.network.requests(WriteStored) == ["b"]


async def test_refusals_concern_their_own_document(nodes: SharingNodes) -> None:
    def refuse(document: StoredDocument | None) -> StoredDocument | None:
        raise UsageError("no", code="bad_request")

    def leave(document: StoredDocument | None) -> StoredDocument | None:
        return None

    ids = [nodes.id_at("b", prefix) for prefix in "xyz"]
    done = await change(nodes, (ids[0], refuse), (ids[1], leave), (ids[2], put()))
    assert code_of(done[0]) == "bad_request"
    assert done[1] == Written(nodes_partition(nodes, ids[1]), 0, None)
    assert isinstance(done[2], Written)
    assert done[2].seqno > 0


def nodes_partition(nodes: SharingNodes, doc_id: str) -> int:
    return nodes["a"].running.bucket.partition_for(doc_id.encode()).partition_id


async def test_what_the_owner_refuses_is_told(nodes: SharingNodes) -> None:
    nodes["b"].running.bucket.writes.refuses = lambda _: True  # type: ignore[method-assign]
    [refusal] = await change(nodes, (nodes.id_at("b"), put()))
    assert code_of(refusal) == "temporarily_unavailable"
    assert "writes are refused" in str(refusal)


@pytest.mark.parametrize("seed", range(budget(12)))
async def test_what_is_told_is_so_while_connections_break(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(distributed_updates, "PAUSE_S", 0)
    told = await document_schedules.run(tmp_path, seed)
    assert told["made"] > 20


def _write_anyway(
    self: RevisedDocuments, key: bytes, version: Any, packed: Any, now_ns: int
) -> Made:
    return self._written(key, None, packed, now_ns)


PLANTS: dict[str, tuple[type[Any], str, Any]] = {
    "versions are not compared": (RevisedDocuments, "replace", _write_anyway),
    "what was lost is forgotten": (
        distributed_updates._Edit, "lost", property(lambda _: None, lambda _, error: None)
    ),
    "whatever is there was made": (distributed_updates._Edit, "is_as_sent", lambda *_: True),
}  # fmt: skip


@pytest.mark.parametrize("plant", PLANTS)
async def test_mistakes_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: str
) -> None:
    monkeypatch.setattr(distributed_updates, "PAUSE_S", 0)
    monkeypatch.setattr(*PLANTS[plant], raising=False)

    async def run_all() -> None:
        for seed in range(20):
            await document_schedules.run(tmp_path / str(seed), seed)

    with pytest.raises(AssertionError, match="a change"):
        await run_all()


async def test_what_a_peer_sends_again_is_acknowledged_once_what_is_there_lasts(
    nodes: SharingNodes,
) -> None:
    doc_id = nodes.id_at("b")
    edit = (doc_id, from_peer(doc_id, "f"))
    await nodes["b"].own.update(BUCKET, [edit], is_durable=False)
    [again] = await change(nodes, edit)
    assert isinstance(again, Written)
    assert again.seqno == 0, "nothing was changed"
    reads = [one for _, one in nodes.network.asked if isinstance(one, ReadStored)]
    assert [one.is_durable for one in reads] == [False, True]
    assert nodes.network.requests(WriteStored) == []

    async def fail(number: int, seqno: int) -> None:
        raise UnavailableError("gone", code="ambiguous")

    nodes["b"].running.documents._until_durable = fail
    [refusal] = await change(nodes, edit)
    assert code_of(refusal) == "ambiguous"
