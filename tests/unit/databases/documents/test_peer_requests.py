"""What a node answers to others that share a bucket, and to whoever asks for what it is not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from millstream.databases.documents import peer_requests as stored_documents
from millstream.documents.stored import Packed, pack
from millstream.errors import ConditionError, UnavailableError
from millstream.gateway.core.api.stored import (
    Change,
    Changed,
    Commit,
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
from millstream.kv.core.revisions.revision_store import Kept, Version
from millstream.model.partitions import PartitionState
from support.http.revised_documents import with_leaf
from support.http.sharing_nodes import BUCKET, UUID, SpreadNodes, sharing_nodes

REV = "1-" + "a" * 32


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[SpreadNodes]:
    async with sharing_nodes(tmp_path, "aaab") as found:
        yield found


def packed(*blobs: bytes, body: bytes = b"{}") -> Packed:
    return pack(with_leaf(None, REV, body, blobs=blobs))


async def write(
    nodes: SpreadNodes, doc_id: str, version: Version | None, what: Packed
) -> Placed | Changed | Lacking | Refused:
    asked = WriteStored(UUID, [Change(doc_id, version, *what)], True)
    answer = await nodes["a"].stored.answer(BUCKET, asked)
    assert isinstance(answer, WrittenList)
    [one] = answer.changes
    return one


async def read(nodes: SpreadNodes, *ids: str) -> list[Stored | Refused | None]:
    answer = await nodes["a"].stored.answer(BUCKET, ReadStored(UUID, list(ids), True))
    assert isinstance(answer, StoredList)
    return answer.documents


async def version_of(nodes: SpreadNodes, doc_id: str) -> Version:
    [found] = await read(nodes, doc_id)
    assert isinstance(found, Stored)
    return Kept(0, found.frame, found.side).version


async def test_a_change_is_written_on_the_version_that_it_was_decided_on(
    nodes: SpreadNodes,
) -> None:
    doc_id = nodes.id_at("a")
    assert await write(nodes, doc_id, Version(1, 1), packed()) == Changed()
    assert isinstance(await write(nodes, doc_id, None, packed()), Placed)
    assert await write(nodes, doc_id, None, packed()) == Changed()
    version = await version_of(nodes, doc_id)
    assert await write(nodes, doc_id, version._replace(cas=1), packed()) == Changed()
    assert await write(nodes, doc_id, version._replace(seqno=9), packed()) == Changed()
    assert isinstance(await write(nodes, doc_id, version, packed(body=b'{"n":1}')), Placed)


async def test_what_is_no_change_of_a_document_is_refused_alone(nodes: SpreadNodes) -> None:
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


async def test_bytes_have_to_be_here_before_they_are_named(nodes: SpreadNodes) -> None:
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


async def test_an_answer_is_bounded(nodes: SpreadNodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_documents, "PORTION_BYTES", 1)
    ids = [nodes.id_at("a", prefix) for prefix in "xyz"]
    for doc_id in ids:
        await write(nodes, doc_id, None, packed())
    assert len(await read(nodes, *ids)) == 1
    assert len(await read(nodes, "none", nodes.id_at("b"), "_bad", *ids)) == 4


async def test_what_is_read(nodes: SpreadNodes) -> None:
    [nothing, elsewhere, illegal] = await read(nodes, nodes.id_at("a"), nodes.id_at("b"), "_x")
    assert nothing is None
    assert isinstance(elsewhere, Refused)
    assert isinstance(illegal, Refused)
    assert (elsewhere.code, illegal.code) == ("not_my_partition", "illegal_docid")


async def test_another_bucket_of_the_name_is_not_meant(nodes: SpreadNodes) -> None:
    with pytest.raises(ConditionError) as caught:
        await nodes["a"].stored.answer(BUCKET, Commit("11"))
    assert caught.value.code == "bucket_not_found"
    with pytest.raises(ConditionError):
        await nodes["a"].stored.answer("none", Commit(UUID))


async def test_local_documents_of_others_are_not_answered(nodes: SpreadNodes) -> None:
    there = nodes.id_at("b", "_local/l").removeprefix("_local/")
    for asked in (ReadLocal(UUID, there), WriteLocal(UUID, there, b"{}", None)):
        with pytest.raises(UnavailableError) as caught:
            await nodes["a"].stored.answer(BUCKET, asked)
        assert caught.value.code == "not_my_partition"
    await nodes["b"].spread.write_local(BUCKET, there, b"{}", None)
    answer = await nodes["a"].stored.answer(BUCKET, ListLocals(UUID, ""))
    assert answer.documents == []  # type: ignore[union-attr]


async def test_a_partition_that_is_stopped_is_not_written(nodes: SpreadNodes) -> None:
    doc_id = nodes.id_at("a")
    number = nodes["a"].running.bucket.partition_for(doc_id.encode()).partition_id
    await nodes.set_state("a", number, PartitionState.DEAD)
    refusal = await write(nodes, doc_id, None, packed())
    assert isinstance(refusal, Refused)
    assert refusal.code == "not_my_partition"
