from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from millstream.kv.aio.documents import document_counts as module
from millstream.kv.aio.documents.changes import BucketChanges
from millstream.kv.aio.documents.document_counts import Counts, DocumentCounts
from support.kv.running_bucket import LIMIT, NOW, opened, put


async def test_documents_are_counted_also_after_a_restart(tmp_path: Path) -> None:
    engine = await opened(tmp_path)
    counts = DocumentCounts(BucketChanges(engine.bucket))
    assert await counts.count() == Counts(0, 0)
    edits = [(b"k%d" % number, put()) for number in range(20)]
    edits.append((b"_design/d", put()))
    await engine.documents.update(edits, LIMIT, is_durable=True)
    assert await counts.count() == Counts(21, 0)
    for key in (b"k1", b"k2"):
        partition = engine.bucket.partition_for(key)
        partition.delete(key, 0, NOW)
        await engine.until_persisted(partition.partition_id, partition.high_seqno)
    for key in (b"\xff", b"_other"):
        partition = engine.bucket.partition_for(key)
        partition.put(key, b"{}", 0, 0, 0, 0, NOW)
        await engine.until_persisted(partition.partition_id, partition.high_seqno)
    assert await counts.count() == Counts(19, 2)
    await engine.stop()
    engine = await opened(tmp_path)
    assert await DocumentCounts(BucketChanges(engine.bucket)).count() == Counts(19, 2)
    await engine.stop()


async def test_only_what_changed_is_read_again(tmp_path: Path) -> None:
    engine = await opened(tmp_path)
    changes = BucketChanges(engine.bucket)
    counts = DocumentCounts(changes)
    await engine.documents.update(
        [(b"k%d" % number, put()) for number in range(20)], LIMIT, is_durable=True
    )
    await counts.count()
    opened_from = []
    genuine = changes.open

    def spy(start, **options):  # type: ignore[no-untyped-def]
        opened_from.append(start)
        return genuine(start, **options)

    changes.open = spy  # type: ignore[method-assign]
    assert await counts.count() == Counts(20, 0)
    assert opened_from == []
    await engine.documents.update([(b"more", put())], LIMIT, is_durable=True)
    assert await counts.count() == Counts(21, 0)
    [start] = opened_from
    assert sum(position.seqno == 0 for position in start.positions) == 1
    await engine.stop()


async def test_a_page_does_not_wait_until_many_changes_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "COUNTED_AT_ONCE_MAX", 10)
    engine = await opened(tmp_path)
    counts = DocumentCounts(BucketChanges(engine.bucket))
    await engine.documents.update(
        [(b"k%d" % number, put()) for number in range(8)], LIMIT, is_durable=True
    )
    assert await counts.recent() == Counts(8, 0)
    counts = DocumentCounts(BucketChanges(engine.bucket))
    await engine.documents.update(
        [(b"l%d" % number, put()) for number in range(8)], LIMIT, is_durable=True
    )
    assert await counts.recent() is None
    await counts._tasks.finish()
    assert await counts.recent() == Counts(16, 0)
    await engine.documents.update(
        [(b"m%d" % number, put()) for number in range(8)], LIMIT, is_durable=True
    )
    counts._not_before_s = 0.0
    assert await counts.recent() == Counts(16, 0)
    await counts._tasks.finish()
    assert await counts.recent() == Counts(24, 0)
    counts._known.clear()
    counts._not_before_s = 0.0
    assert await counts.recent() is None
    await counts.stop()
    assert counts._known == {}
    await engine.stop()


async def test_counts_follow_what_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Puts, deletions, expirations, what comes back, and keys that are no ids, in any order."""
    monkeypatch.setattr(module, "COUNTED_AT_ONCE_MAX", 0)  # reading would be noticed: it is later
    engine = await opened(tmp_path)
    counts = DocumentCounts(BucketChanges(engine.bucket), engine.flusher.follow)
    dice = random.Random(7)
    keys = [b"k%d" % number for number in range(30)] + [
        b"_design/d",
        b"_other",
        b"\xff",
        b"\xc3\xa4",
    ]

    async def write(changes: int) -> None:
        for _ in range(changes):
            key = dice.choice(keys)
            partition = engine.bucket.partition_for(key)
            if dice.random() < 0.4:
                partition.delete(key, 0, NOW)
            else:
                partition.put(key, b"{}", 0, 0, 0, 0, NOW)
            engine.bucket.changed()
            if dice.random() < 0.2:
                await engine.until_persisted(partition.partition_id, partition.high_seqno)
        for partition in engine.bucket.partitions:
            await engine.until_persisted(partition.partition_id, partition.high_seqno)

    await write(50)
    counting = asyncio.ensure_future(counts.count())
    await write(50)  # while it is counted
    await counting
    await counts.count()
    for _ in range(20):
        await write(dice.randrange(40))
        fresh = await DocumentCounts(BucketChanges(engine.bucket)).count()
        assert await counts.recent() == fresh
        assert await counts.count() == fresh
    assert fresh.live
    assert fresh.deleted
    await engine.stop()


@pytest.mark.parametrize("is_empty", [True, False])
async def test_followed_counts_are_read_and_no_log(tmp_path: Path, is_empty: bool) -> None:
    engine = await opened(tmp_path)
    changes = BucketChanges(engine.bucket)
    counts = DocumentCounts(changes, engine.flusher.follow)
    if is_empty:
        assert await counts.count() == Counts(0, 0)
    await engine.documents.update([(b"a", put())], LIMIT, is_durable=True)
    assert await counts.count() == Counts(1, 0)
    partition = engine.bucket.partition_for(b"a")
    changes.open = None  # type: ignore[method-assign,assignment]
    edits = [(b"k%d" % number, put()) for number in range(20)]
    if not is_empty:  # what was empty when it was counted is read once
        edits = [one for one in edits if engine.bucket.partition_for(one[0]) is partition]
    await engine.documents.update(edits, LIMIT, is_durable=True)
    assert await counts.count() == Counts(1 + len(edits), 0)
    await engine.stop()


async def test_seqnos_of_deletions_are_bounded_while_the_log_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FOLLOWED_DELETIONS_MAX", 5)
    engine = await opened(tmp_path)
    counts = DocumentCounts(BucketChanges(engine.bucket), engine.flusher.follow)
    keys = [b"k%d" % number for number in range(20)]
    await engine.documents.update([(key, put()) for key in keys], LIMIT, is_durable=True)
    assert await counts.count() == Counts(20, 0)
    for number, key in enumerate(keys, 1):
        partition = engine.bucket.partition_for(key)
        partition.delete(key, 0, NOW)
        engine.bucket.changed()
        await engine.until_persisted(partition.partition_id, partition.high_seqno)
        held = sum(len(one.deletions) for one in counts._followed.values())
        assert held <= 5
        assert await counts.count() == Counts(20 - number, number)
    await engine.stop()
