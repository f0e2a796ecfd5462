"""Indexes that are read from several nodes: here two ways to one, each for a half of it."""

import asyncio
from pathlib import Path

import pytest

from millstream.access.kv_login import Login
from millstream.errors import MillstreamError, RoutingError, UnavailableError
from millstream.model.partitions import PartitionState
from millstream.upr.aio.link import Link
from millstream.views.aio.indexing import index_sources, indexing, reading
from millstream.views.aio.indexing.index_source import IndexerSpec
from millstream.views.aio.indexing.index_sources import CopiesAsker, Source, divided, open_lines
from support.views.indexed_bucket import PARTITIONS, IndexedBucket

LOW, HIGH = frozenset(range(PARTITIONS // 2)), frozenset(range(PARTITIONS // 2, PARTITIONS))


class Halves:
    """Two sources of a bucket; one that is down cannot be reached."""

    def __init__(self, bucket: IndexedBucket) -> None:
        self.bucket = bucket
        self.down: set[str] = set()
        self.opened = {"low": 0, "high": 0}

    def link(self, name: str) -> Link:
        self.opened[name] += 1
        if name in self.down:
            return Link(Login("nobody"), "127.0.0.1", 1, tls=None, timeout_s=1)
        return IndexedBucket.link(self.bucket)

    def sources(self) -> list[Source]:
        return [
            Source("low", lambda: self.link("low"), LOW),
            Source("high", lambda: self.link("high"), HIGH),
        ]


def some(count: int, number: int = 0) -> dict[str, object]:
    return {f"d{n:05d}": [n % 97, number] for n in range(count)}


def test_partitions_are_divided_and_the_last_named_counts() -> None:
    def nowhere() -> Link:
        raise AssertionError

    every = Source("all", nowhere)
    low = Source("low", nowhere, LOW)
    assert divided([every], LOW | HIGH) == [(every, set(LOW | HIGH))]
    assert divided([every, low], LOW | HIGH) == [(every, set(HIGH)), (low, set(LOW))]
    assert divided([low], HIGH) == []
    assert divided([low], [PARTITIONS - 1, 0]) == [(low, {0})]


async def test_a_first_build_and_changes_come_from_both(tmp_path: Path) -> None:
    async with IndexedBucket(tmp_path) as bucket:
        halves = Halves(bucket)
        await bucket.indexer.set_sources(halves.sources())
        await bucket.put(some(500))
        await bucket.add()
        await bucket.updated()
        bucket.check()
        assert halves.opened["low"] >= 2
        assert halves.opened["high"] >= 2
        await bucket.put(some(300, 1), "persisted")
        await bucket.updated()
        bucket.check()
        known = await bucket.indexer._ask()
        assert known.keys() == LOW | HIGH
        assert await bucket.indexer._ask() is known


async def test_an_unreachable_source_affects_only_its_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexing, "LOOK_S", 0.02)
    monkeypatch.setattr(reading, "CONNECT_PAUSE_S", 0.001)
    async with IndexedBucket(tmp_path) as bucket:
        halves = Halves(bucket)
        halves.down = {"high"}
        await bucket.indexer.set_sources(halves.sources())
        await bucket.put(some(200))
        await bucket.add()
        await bucket.updated(partitions=LOW)
        with pytest.raises(UnavailableError) as raised:
            await bucket.updated()
        assert raised.value.code == "unreachable"
        while "nobody" not in bucket.indexer.progress()[0].error:  # once changes are followed
            await bucket.indexer._ask()
        await bucket.put(some(200, 1))
        await bucket.updated(partitions=LOW)
        halves.down = set()
        while bucket.indexer._asker.copies.keys() != LOW | HIGH:
            await bucket.indexer._ask()
        await bucket.updated()
        bucket.check()
        halves.down = {"low", "high"}
        await bucket.indexer.set_sources(halves.sources())
        with pytest.raises(UnavailableError):
            await bucket.updated()
        halves.down = set()
        await bucket.put(some(200, 2))
        await bucket.updated()
        bucket.check()


async def test_reading_continues_at_the_new_source_of_a_moved_partition(tmp_path: Path) -> None:
    async with IndexedBucket(tmp_path) as bucket:
        halves = Halves(bucket)
        low, high = halves.sources()
        await bucket.indexer.set_sources([low, high])
        await bucket.put(some(200))
        index = await bucket.add()
        await bucket.updated()
        before = index.newest.positions
        await bucket.indexer.set_sources([low._replace(partitions=None)])
        await bucket.put(some(200, 1))
        await bucket.updated()
        bucket.check()
        assert all(index.newest.positions[p].seqno >= before[p].seqno for p in before)
        assert bucket.indexer.work().rollbacks == 0


async def test_a_copy_no_longer_active_at_its_source_is_not_read(tmp_path: Path) -> None:
    """What is written since is elsewhere: the replica here would be taken for all there is."""
    async with IndexedBucket(tmp_path) as bucket:
        sources = Halves(bucket).sources()
        await bucket.indexer.set_sources(sources)
        await bucket.put(some(200))
        index = await bucket.add()
        await bucket.updated()
        await bucket.node.engine.set_partition_state("docs", 3, PartitionState.REPLICA)
        with pytest.raises(RoutingError):
            await bucket.updated(partitions=[2, 3])
        await bucket.updated(partitions=[2])
        lines = await open_lines(sources, bucket.indexer._spec, LOW)
        assert lines.copies.keys() == LOW - {3}, "nothing is read of it, nor judged by it"
        await lines.close()
        await bucket.node.engine.set_partition_state("docs", 3, PartitionState.ACTIVE)
        await bucket.put(some(200, 1))
        await bucket.updated()
        bucket.check()
        assert index.newest.states[3] == "active"


async def test_a_dead_source_does_not_delay_its_replacement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with IndexedBucket(tmp_path) as bucket:
        await bucket.put(some(50))
        await bucket.add()
        await bucket.updated()
        real, is_asked = Link.open_bucket, asyncio.Event()

        async def dead(link: Link, bucket_uuid: str) -> None:
            if link.address == "nobody":
                is_asked.set()
                await asyncio.Event().wait()
            await real(link, bucket_uuid)

        monkeypatch.setattr(Link, "open_bucket", dead)
        halves = Halves(bucket)
        halves.down = {"low", "high"}
        async with asyncio.timeout(60):
            await bucket.indexer.set_sources(halves.sources())
            waiting = asyncio.ensure_future(bucket.updated())
            await is_asked.wait()
            await bucket.indexer.set_sources([Source("test", bucket.link)])
            await waiting
        bucket.check()
        assert bucket.indexer._asker.failure_of(0) is None


async def test_connections_are_closed_after_errors_and_cancellation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with IndexedBucket(tmp_path) as bucket:
        halves, made = Halves(bucket), list[Link]()

        def link(name: str) -> Link:
            made.append(Halves.link(halves, name))
            return made[-1]

        monkeypatch.setattr(halves, "link", link)
        spec = bucket.indexer._spec
        halves.down = {"high"}
        lines = await open_lines(halves.sources(), spec, LOW | HIGH)
        assert lines.copies.keys() == LOW
        assert [type(error) for error in lines.failures] == [UnavailableError]
        await lines.close()
        halves.down = {"low", "high"}
        with pytest.raises(MillstreamError):
            await open_lines(halves.sources(), spec, LOW | HIGH)
        halves.down = set()

        async def fail(*_: object, **__: object) -> None:
            raise MemoryError

        monkeypatch.setattr(index_sources, "ask_copies", fail)
        with pytest.raises(MemoryError):
            await open_lines(halves.sources(), spec, LOW | HIGH)
        assert all(one._writer is None for one in made)


async def test_a_question_to_a_dead_node_does_not_delay_the_close(tmp_path: Path) -> None:
    has_come = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        has_come.set()
        while await reader.read(65_536):
            pass
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]

    def link() -> Link:
        return Link(Login("dead", bucket="b"), "127.0.0.1", port, tls=None, timeout_s=3_600)

    spec = IndexerSpec("b", "00", tmp_path)
    asker = CopiesAsker(spec, [Source("dead", link)])

    async def end() -> None:
        await has_come.wait()
        await asyncio.wait_for(asker.close(), 60)

    told, ended = await asyncio.gather(asker.ask([0]), end(), return_exceptions=True)
    assert isinstance(told, UnavailableError)
    assert told.code == "stopped"
    assert ended is None
    await asker.set_sources([Source("dead", link)])
    with pytest.raises(UnavailableError):
        await asker.ask([0])
    server.close()
    await server.wait_closed()
