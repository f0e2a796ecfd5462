"""`_local` documents that a node gets from others before it counts, or answers, as their owner."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from millstream.databases.documents import copied_locals
from millstream.databases.documents.copied_locals import CopiedLocals
from millstream.documents.stored import REVS_LIMIT_DEFAULT
from millstream.gateway.core.api.documents import LocalDocument
from millstream.gateway.core.api.stored import CopyLocals
from millstream.kv.aio.documents.local_store import Version
from millstream.model.partitions import partition_of
from support.http.sharing_nodes import BUCKET, PARTITIONS, SharingNodes, sharing_nodes
from support.kv.two_engines import until


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[SharingNodes]:
    async with sharing_nodes(tmp_path) as made:
        yield made


def local_of(nodes: SharingNodes, name: str) -> tuple[str, int]:
    """Return an id of a document that a node owns, and its partition."""
    doc_id = nodes.id_at(name, "_local/l").removeprefix("_local/")
    return doc_id, partition_of(f"_local/{doc_id}".encode(), PARTITIONS)


async def test_a_node_that_missed_a_version_gets_it_before_it_answers_as_the_owner(
    nodes: SharingNodes,
) -> None:
    doc_id, partition = local_of(nodes, "a")
    await nodes["a"].distributed.write_local(BUCKET, doc_id, b'{"n":1}', None)
    nodes.network.down.add("b")
    await nodes["a"].distributed.write_local(BUCKET, doc_id, b'{"n":2}', 1)
    nodes.network.down.clear()
    await nodes.move(partition, "b")
    for node in nodes.all:
        found = await node.distributed.read_local(BUCKET, doc_id)
        assert found == LocalDocument(doc_id, 2, b'{"n":2}')
    assert [one.id for one in await nodes["b"].distributed.locals(BUCKET)] == [doc_id]
    assert nodes.network.requests(CopyLocals).count("a") <= PARTITIONS, "each is asked for once"


async def test_a_node_that_does_not_answer_is_asked_again_after_a_pause(
    nodes: SharingNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    doc_id, partition = local_of(nodes, "a")
    nodes.network.down.add("b")
    await nodes["a"].distributed.write_local(BUCKET, doc_id, b"{}", None)
    await nodes.move(partition, "b")
    nodes.network.down = {"a"}
    assert await nodes["b"].distributed.read_local(BUCKET, doc_id) is None, "a is lost for good"
    nodes.network.down.clear()
    assert await nodes["b"].distributed.read_local(BUCKET, doc_id) is None, "not yet asked again"
    monkeypatch.setattr(nodes["b"].copied, "_monotonic_s", lambda: float("inf"))
    assert await nodes["b"].distributed.read_local(BUCKET, doc_id) is not None


async def test_a_copy_being_built_is_ready_once_it_has_documents_and_settings(
    nodes: SharingNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copied_locals, "PORTION_BYTES", 10)
    doc_id, partition = local_of(nodes, "a")
    ids = [f"m{n}" for n in range(200) if partition_of(b"_local/m%d" % n, PARTITIONS) == partition]
    nodes.network.down.add("b")
    for one in (doc_id, *ids):
        await nodes["a"].distributed.write_local(BUCKET, one, b'{"n":1}', None)
    await nodes["a"].distributed.write_local(BUCKET, doc_id, b'{"n":2}', 1)
    nodes.network.down.clear()
    copied = CopiedLocals(nodes["b"].engine, nodes["b"].own, nodes["b"].route)
    nodes.network.down.add("a")
    known = copied._buckets.setdefault(nodes["b"].running.bucket.uuid, copied_locals._Bucket())
    for _ in range(2):
        assert not copied.is_copied(BUCKET, partition), "nobody has said what there is"
        await until(lambda: not known.copying)
    nodes.network.down.clear()
    await until(lambda: copied.is_copied(BUCKET, partition))
    stored = nodes["b"].running.local
    assert {one for one, _ in stored.all()} == {doc_id, *ids}
    versions, _ = stored.stored("", lambda one: one == doc_id, 10**6)
    assert [one.body for one in versions[0][1]] == [b'{"n":2}', b'{"n":1}'], "with the former"
    assert len(nodes.network.requests(CopyLocals)) > 1, "in portions"
    await copied.stop()


async def test_settings_of_the_database_come_with_a_copy(nodes: SharingNodes) -> None:
    _, partition = local_of(nodes, "a")
    await nodes["b"].running.local.set("revs_limit", b"1:%d" % REVS_LIMIT_DEFAULT)
    await nodes["a"].running.local.set("revs_limit", b"2:7")
    assert nodes["b"].own.revs_limit(nodes["b"].running) == REVS_LIMIT_DEFAULT
    await until(lambda: nodes["b"].copied.is_copied(BUCKET, partition))
    assert nodes["b"].own.revs_limit(nodes["b"].running) == 7
    await nodes["b"].copied.stop()


async def test_a_deletion_is_copied_and_what_is_newer_here_stays(nodes: SharingNodes) -> None:
    doc_id, partition = local_of(nodes, "a")
    other = next(
        f"n{n}" for n in range(200) if partition_of(b"_local/n%d" % n, PARTITIONS) == partition
    )
    store = nodes["b"].running.local
    await nodes["a"].running.local.keep(doc_id, [Version(0, b"", "s", 5)])
    await store.keep(doc_id, [Version(2, b"{}", "s", 4)])
    await nodes["a"].running.local.keep(other, [Version(1, b"old", "s", 1)])
    await store.keep(other, [Version(2, b"new", "s", 2)])
    await until(lambda: nodes["b"].copied.is_copied(BUCKET, partition))
    assert store.newest(doc_id) == Version(0, b"", "s", 5)
    assert store.newest(other) == Version(2, b"new", "s", 2)
    await nodes["b"].copied.stop()
