"""`_local` documents that a node gets from others before it counts, or answers, as their owner."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from millstream.databases.documents import copied_locals
from millstream.databases.documents.copied_locals import CopiedLocals
from millstream.documents.stored import REVS_LIMIT_DEFAULT
from millstream.errors import ConditionError, UnavailableError
from millstream.gateway.core.api.documents import LocalDocument
from millstream.gateway.core.api.stored import Asked, CopyLocals
from millstream.kv.aio.documents.local_store import Version
from millstream.kv.aio.engine import BucketEngine
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


async def test_a_silent_node_is_waited_for_once_not_once_a_partition(
    nodes: SharingNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copied_locals, "ASK_S_MAX", 0.01)
    ids = [nodes.id_at("a", prefix) for prefix in ("_local/l", "_local/m", "_local/n", "_local/o")]
    partitions = {partition_of(one.encode(), PARTITIONS) for one in ids}
    assert len(partitions) == 2
    for partition in partitions:
        await nodes.move(partition, "b")

    async def silent(name: str, asked: Asked) -> None:
        await asyncio.Event().wait()

    nodes.network.before = silent
    for one in ids:
        await nodes["b"].copied.learn(BUCKET, [partition_of(one.encode(), PARTITIONS)])
    assert nodes.network.requests(CopyLocals) == ["a"]


async def test_many_documents_are_copied_though_the_time_ends_again_and_again(
    nodes: SharingNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copied_locals, "PORTION_BYTES", 10)
    monkeypatch.setattr(copied_locals, "ASK_PAUSE_S", 0.0)
    _, partition = local_of(nodes, "a")
    ids = [f"m{n}" for n in range(40) if partition_of(b"_local/m%d" % n, PARTITIONS) == partition]
    nodes.network.down.add("b")
    for one in ids:
        await nodes["a"].distributed.write_local(BUCKET, one, b'{"n":1}', None)
    nodes.network.down.clear()
    await nodes.move(partition, "b")
    left = 0

    async def breaks(name: str, asked: Asked) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise UnavailableError("out of time", code="node_failed")

    nodes.network.before = breaks
    for _ in ids:
        left = 2
        await nodes["b"].copied.learn(BUCKET, [partition])
    assert {one for one, _ in nodes["b"].running.local.all()} == set(ids)
    asked_after = [one.after for _, one in nodes.network.asked if isinstance(one, CopyLocals)]
    assert len(asked_after) > len(set(asked_after)) > 3, "some did not get through"
    assert asked_after == sorted(asked_after), "and were asked again, not all from the first on"


async def test_a_bucket_that_was_dropped_and_created_again_gets_nothing_of_the_old_one(
    nodes: SharingNodes, tmp_path: Path
) -> None:
    doc_id, partition = local_of(nodes, "a")
    nodes.network.down.add("b")
    await nodes["a"].distributed.write_local(BUCKET, doc_id, b"{}", None)
    await nodes["a"].running.local.set("revs_limit", b"2:7")
    nodes.network.down.clear()
    node, old = nodes["b"], nodes["b"].running
    new = await BucketEngine.open(
        tmp_path / "new", name=BUCKET, uuid="01", partition_count=PARTITIONS,
        flush_interval_ms=1, bucket_map=old.bucket.map, node_name="b",
        on_persisted=lambda: None, on_fatal=lambda _: None, on_corrupt=lambda _: None,
    )  # fmt: skip

    async def replaced(name: str, asked: Asked) -> None:
        node.running = new

    nodes.network.after = replaced
    try:
        assert not node.copied.is_copied(BUCKET, partition)
        await until(lambda: node.running is new)
        await until(lambda: not node.copied._buckets[old.bucket.uuid].copying)
        assert new.local.setting("revs_limit") is None
        node.running = old
        await nodes.move(partition, "b")
        with pytest.raises(ConditionError) as gone:
            await node.copied.learn(BUCKET, [partition])
        assert gone.value.code == "bucket_not_found"
        assert not new.local.all()
    finally:
        await node.copied.stop()
        await new.stop()


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
