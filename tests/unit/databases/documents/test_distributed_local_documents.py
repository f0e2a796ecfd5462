"""Local documents at two nodes: whose partition is active where."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from millstream.databases import routing
from millstream.databases.documents import distributed_local_documents as spread_locals
from millstream.databases.documents import local_node as stored_documents
from millstream.errors import ConditionError, UnavailableError
from millstream.gateway.core.api.documents import LocalDocument
from millstream.gateway.core.api.stored import Asked, Done, ListLocals, ReadLocal, WriteLocal
from support.http.sharing_nodes import BUCKET, SpreadNodes, lost, sharing_nodes


@pytest.fixture
async def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SpreadNodes]:
    monkeypatch.setattr(routing, "PAUSE_S", 0)
    async with sharing_nodes(tmp_path) as found:
        yield found


def local_at(nodes: SpreadNodes, name: str, prefix: str = "l") -> str:
    return nodes.id_at(name, f"_local/{prefix}").removeprefix("_local/")


async def test_either_node_reads_and_writes_them(nodes: SpreadNodes) -> None:
    for owner in "ab":
        doc_id = local_at(nodes, owner)
        for count, node in enumerate(nodes.all):
            assert await node.spread.write_local(BUCKET, doc_id, b'{"n":1}', count) == count + 1
            with pytest.raises(ConditionError) as caught:
                await node.spread.write_local(BUCKET, doc_id, b"{}", 7)
            assert caught.value.code == "conflict"
            for other in nodes.all:
                found = await other.spread.read_local(BUCKET, doc_id)
                assert found == LocalDocument(doc_id, count + 1, b'{"n":1}')
    listed = [[one.id for one in await node.spread.locals(BUCKET)] for node in nodes.all]
    assert listed[0] == listed[1] == sorted(local_at(nodes, owner) for owner in "ab")
    for node, owner in zip(nodes.all, "ba", strict=True):
        assert await node.spread.write_local(BUCKET, local_at(nodes, owner), None, 2) == 0
    assert await nodes["a"].spread.locals(BUCKET) == []


async def test_a_partition_that_moves_takes_them_along(nodes: SpreadNodes) -> None:
    doc_id = local_at(nodes, "b")
    key = f"_local/{doc_id}".encode()
    partition = nodes["a"].running.bucket.partition_for(key).partition_id
    await nodes["a"].spread.write_local(BUCKET, doc_id, b'{"seq":1}', None)
    await nodes["a"].spread.write_local(BUCKET, doc_id, b'{"seq":2}', 1)
    await nodes.move(partition, "a")
    for node in nodes.all:
        found = await node.spread.read_local(BUCKET, doc_id)
        assert found == LocalDocument(doc_id, 2, b'{"seq":2}')
    assert await nodes["b"].spread.write_local(BUCKET, doc_id, b'{"seq":3}', 2) == 3
    nodes.network.down.add("a")
    with pytest.raises(UnavailableError, match="a is down"):
        await nodes["b"].spread.locals(BUCKET)


async def test_who_cannot_be_reached_misses_a_version(
    nodes: SpreadNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    doc_id = local_at(nodes, "a")
    nodes.network.down.add("b")
    assert await nodes["a"].spread.write_local(BUCKET, doc_id, b"{}", None) == 1
    assert nodes["b"].running.local.newest(doc_id) is None
    nodes.network.down.clear()
    monkeypatch.setattr(spread_locals, "GIVEN_S_MAX", 0.0)
    assert await nodes["a"].spread.write_local(BUCKET, doc_id, b"{}", 1) == 2


async def test_an_older_version_does_not_replace_a_newer_one(nodes: SpreadNodes) -> None:
    doc_id = local_at(nodes, "a")
    for rev in range(3):
        await nodes["a"].spread.write_local(BUCKET, doc_id, b"{}", rev)
    newest = nodes["b"].running.local.newest(doc_id)
    assert newest is not None
    assert newest.rev == 3
    await nodes["b"].running.local.keep(doc_id, newest._replace(rev=2, number=2))
    assert nodes["b"].running.local.newest(doc_id) == newest


async def test_a_write_whose_answer_is_lost_is_ambiguous(nodes: SpreadNodes) -> None:
    doc_id = local_at(nodes, "b")
    nodes.network.after = lost(WriteLocal)
    with pytest.raises(UnavailableError) as caught:
        await nodes["a"].spread.write_local(BUCKET, doc_id, b"{}", None)
    assert caught.value.code == "ambiguous"
    assert nodes.network.requests(WriteLocal) == ["b"]
    nodes.network.after = lost(ReadLocal)
    assert await nodes["a"].spread.read_local(BUCKET, doc_id) is not None


async def test_an_owner_that_moves_while_it_is_asked(nodes: SpreadNodes) -> None:
    doc_id = local_at(nodes, "b")
    partition = nodes["a"].running.bucket.partition_for(f"_local/{doc_id}".encode()).partition_id

    async def move(name: str, asked: Asked) -> None:
        if isinstance(asked, WriteLocal) and nodes.rows[partition] == "b":
            await nodes.move(partition, "a")

    nodes.network.before = move
    assert await nodes["a"].spread.write_local(BUCKET, doc_id, b"{}", None) == 1
    assert await nodes["a"].own.read_local(BUCKET, doc_id) is not None


async def test_a_long_list_comes_in_portions(
    nodes: SpreadNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_documents, "PORTION_BYTES", 10)
    for number in range(12):
        await nodes["a"].spread.write_local(BUCKET, f"l{number}", b'{"n":1}', None)
    listed = await nodes["a"].spread.locals(BUCKET)
    assert [one.id for one in listed] == sorted(f"l{number}" for number in range(12))
    assert len(nodes.network.requests(ListLocals)) > 1
    nodes["b"].is_served = False
    assert 0 < len(await nodes["a"].spread.locals(BUCKET)) < 12
    nodes.network.answers["b"] = Done()
    with pytest.raises(UnavailableError):
        await nodes["a"].spread.locals(BUCKET)
