"""Old revisions in the log of a running bucket, on real files."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from millstream.documents.sent import parse_sent
from millstream.documents.stored import StoredDocument, load, pack
from millstream.documents.updating import interactive, purge
from millstream.errors import MillstreamError, UnavailableError
from millstream.kv.aio import engine as engine_module
from millstream.kv.aio.documents import old_revisions as module
from millstream.kv.aio.engine import BucketEngine
from millstream.kv.core.queue.low_points import HistoryWindow
from millstream.kv.core.revisions.revision_store import Kept
from millstream.model.partitions import PartitionState

KEY = b"doc"


class Node:
    """A running bucket of one partition, with one document."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.revs: list[str] = []

    async def open(self) -> None:
        self.engine = await BucketEngine.open(
            self.path, name="b", uuid="00", partition_count=1, flush_interval_ms=1,
            on_persisted=lambda: None, on_fatal=lambda _: None, on_corrupt=lambda _: None,
        )  # fmt: skip

    async def write(self, n: int, *, is_durable: bool = True) -> None:
        before = f',"_rev":"{self.revs[-1]}"' if self.revs else ""
        sent = parse_sent(b'{"n":%d%b}' % (n, before.encode()))

        def decide(document: StoredDocument | None) -> StoredDocument | None:
            change = interactive(document, sent, revs_limit=1000)
            self.revs.append(change.rev)
            return change.document

        [made] = await self.engine.documents.update([(KEY, decide)], 1000, is_durable=is_durable)
        assert not isinstance(made, MillstreamError)

    async def readable(self) -> list[str]:
        return (await self.engine.old.find(KEY, [], lists_all=True)).revs[::-1]


@pytest.fixture(name="node")
async def _node(tmp_path: Path) -> AsyncIterator[Node]:
    node = Node(tmp_path)
    await node.open()
    yield node
    await node.engine.stop()


async def test_they_are_read_until_a_compaction_also_after_a_start(node: Node) -> None:
    for n in range(3):
        await node.write(n)
    assert await node.readable() == node.revs
    await node.engine.stop()
    await node.open()
    await node.write(3)
    assert await node.readable() == node.revs
    await node.engine.old.forget()
    assert await node.readable() == node.revs[3:]
    await node.write(4)
    assert await node.readable() == node.revs[3:], "what is replaced later can be read again"
    await node.engine.stop()
    await node.open()
    assert await node.readable() == node.revs[3:]
    assert (await node.engine.old.find(b"other", [], lists_all=True)).revs == []


async def test_they_are_not_read_once_history_is_over(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.engine.stop()
    monkeypatch.setattr(engine_module, "HistoryWindow", lambda: HistoryWindow(0, 0))
    await node.open()
    for n in range(3):
        await node.write(n)
    for _ in range(2):
        await node.engine.compactor.compact()
    assert await node.readable() == node.revs[2:]


async def test_a_change_that_is_replaced_before_it_is_stored_is_read(node: Node) -> None:
    await asyncio.gather(*(node.write(n, is_durable=n == 2) for n in range(3)))
    assert await node.readable() == node.revs
    found = await node.engine.old.find(KEY, node.revs[:1], lists_all=False)
    assert len(found.changes) == 1


@pytest.mark.parametrize("by", ["edit", "edit_at_once", "other_node", "kv", "kv_deletion"])
async def test_what_was_purged_is_not_read_if_a_change_follows_before_the_purge_is_stored(
    node: Node, by: str
) -> None:
    await node.write(0)
    edit, now = parse_sent(b'{"n":1}'), time.time_ns()

    def gone(document: StoredDocument | None) -> StoredDocument | None:
        return purge(document, node.revs).document

    def edited(document: StoredDocument | None) -> StoredDocument | None:
        return interactive(document, edit, revs_limit=1000).document

    documents, partition = node.engine.documents, node.engine.bucket.partitions[0]
    both = [(KEY, gone), (KEY, edited)] if by == "edit_at_once" else [(KEY, gone)]
    made = await documents.update(both, 1000, is_durable=False)
    assert not any(isinstance(one, MillstreamError) for one in made)
    assert partition.persisted_seqno == 1
    if by == "edit":
        await documents.update([(KEY, edited)], 1000, is_durable=False)
    elif by == "other_node":
        entry = partition.entry(KEY)
        assert entry is not None
        version = Kept(0, entry.frame, entry.side).version
        document = edited(load(node.engine.bucket.uuid, KEY, entry.frame, entry.side))
        assert document is not None
        await documents.replace([(KEY, version, pack(document))], is_durable=False)
    elif by == "kv":
        partition.put(KEY, b"{}", 0, 0, 0, 0, now)
    elif by == "kv_deletion":
        partition.put(KEY, b"{}", 0, 0, 0, 0, now)
        partition.delete(KEY, 0, now)
    assert partition.persisted_seqno == 1
    node.engine.bucket.changed()
    await node.engine.documents.update([(b"other", edited)], 1000, is_durable=True)
    assert partition.persisted_seqno == partition.high_seqno
    assert not set(node.revs) & set(await node.readable())
    found = await node.engine.old.find(KEY, node.revs, lists_all=False)
    assert found.changes == []


async def test_one_search_runs_at_a_time_and_only_so_many_wait(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SEARCHES_WAITING_MAX", 3)
    await node.write(0)
    running, most = 0, 0
    find = node.engine.old._find

    def counted(*arguments: object, **named: object) -> object:
        nonlocal running, most
        running += 1
        most = max(most, running)
        found = find(*arguments, **named)  # type: ignore[arg-type]
        running -= 1
        return found

    monkeypatch.setattr(node.engine.old, "_find", counted)
    found = await asyncio.gather(*(node.readable() for _ in range(5)), return_exceptions=True)
    refused = [one for one in found if isinstance(one, UnavailableError)]
    assert [one.code for one in refused] == ["temporarily_unavailable"] * 2
    assert found.count(node.revs) == 3
    assert most == 1


async def test_only_the_active_copy_answers_and_a_stopping_bucket_says_so(node: Node) -> None:
    await node.write(0)
    state = node.engine.bucket.partitions[0]
    await node.engine.copies.set_state(0, PartitionState.REPLICA)
    assert state.state is PartitionState.REPLICA
    with pytest.raises(UnavailableError) as refused:
        await node.readable()
    assert refused.value.code == "not_my_partition"
    await node.engine._reading.stop()
    with pytest.raises(UnavailableError) as stopping:
        await node.engine._reading.run(lambda: None)
    assert stopping.value.code == "stopping"
