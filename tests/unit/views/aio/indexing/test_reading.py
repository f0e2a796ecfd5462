"""Lines that break while indexes are read for: what was committed is right, nothing is skipped."""

import asyncio
import random
from pathlib import Path

import pytest

from millstream.errors import UnavailableError
from millstream.upr.aio.link import Link
from millstream.views.aio.indexing import reading
from millstream.views.aio.indexing.index_source import ReadableCopies, ask_copies
from millstream.views.aio.indexing.index_sources import Source
from millstream.views.core.index import first_build, indexer
from support.views.indexed_bucket import IndexedBucket


class BadLines:
    """Makes links that are cut after so many reads; `None`: never."""

    def __init__(self, bucket: IndexedBucket, *after: int | None) -> None:
        self._bucket = bucket
        self._after = list(after)
        self.cut_count = 0

    def link(self) -> Link:
        link = IndexedBucket.link(self._bucket)
        after = self._after.pop(0) if self._after else None
        if after is None:
            return link
        real, left = link.read, after

        async def read(timeout_s: float = 10.0, bytes_max: int = 1 << 16) -> bytes:
            nonlocal left
            left -= 1
            if left < 0:
                self.cut_count += 1
                raise UnavailableError("cut by the test", code="connection_closed")
            return await real(timeout_s, bytes_max)

        link.read = read  # type: ignore[method-assign]
        return link


def some(count: int) -> dict[str, object]:
    return {f"d{n:05d}": [n % 97, n % 7] for n in range(count)}


@pytest.fixture
def small_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "READ_BYTES_MAX", 2000)
    monkeypatch.setattr(reading, "CONNECT_PAUSE_S", 0.001)
    monkeypatch.setattr(first_build, "BATCH_CHANGES", 50)


@pytest.mark.usefixtures("small_reads")
async def test_a_first_build_goes_on_after_lost_connections(tmp_path: Path) -> None:
    async with IndexedBucket(tmp_path) as bucket:
        await bucket.put(some(2000))
        lines = BadLines(bucket, None, 20, 15, 40)
        await bucket.indexer.set_sources([Source("test", lines.link)])
        await bucket.add()
        await bucket.updated()
        bucket.check()
        assert lines.cut_count >= 2


@pytest.mark.usefixtures("small_reads")
async def test_a_first_build_that_never_succeeds_restarts_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "CONNECTS_MAX", 2)
    async with IndexedBucket(tmp_path) as bucket:
        await bucket.put(some(500))
        lines = BadLines(bucket, None, 20, 20, 20)
        await bucket.indexer.set_sources([Source("test", lines.link)])
        await bucket.add()
        await bucket.updated()
        bucket.check()
        assert lines.cut_count == 3


@pytest.mark.usefixtures("small_reads")
async def test_following_goes_on_where_the_index_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexer, "COMMIT_S", 0.001)
    monkeypatch.setattr(indexer, "GATHERED_BYTES_MAX", 10_000)
    rng = random.Random(3)
    async with IndexedBucket(tmp_path) as bucket:
        await bucket.put(some(10))
        await bucket.add()
        await bucket.updated()
        lines = BadLines(bucket, *[rng.randrange(15, 60) for _ in range(12)])
        await bucket.indexer.set_sources([Source("test", lines.link)])
        await bucket.stop_node()
        await bucket.start_node()
        for _ in range(50):
            await bucket.put(some(400))
            await bucket.updated()
            bucket.check()
            if lines.cut_count > 3:
                return
        pytest.fail("the lines were not cut")


async def test_an_index_is_built_once_a_source_is_reachable(tmp_path: Path) -> None:
    async with IndexedBucket(tmp_path) as bucket:
        await bucket.put(some(50))
        await bucket.indexer.set_sources([])
        await bucket.add()
        async with asyncio.timeout(60):
            while not (error := bucket.indexer.progress()[0].error):  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        assert "no node serves" in error
        await bucket.indexer.set_sources([Source("test", bucket.link)])
        await bucket.updated()
        bucket.check()


async def test_unreadable_copies_are_looked_for_again(tmp_path: Path) -> None:
    async with IndexedBucket(tmp_path) as bucket:
        await bucket.put(some(200))
        hidden = {2, 5}
        real = ask_copies

        async def ask(*args: object, **options: object) -> object:
            found = await real(*args, **options)  # type: ignore[arg-type]
            return ReadableCopies({p: each for p, each in found.items() if p not in hidden})

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("millstream.views.aio.indexing.index_sources.ask_copies", ask)
            patch.setattr("millstream.views.aio.indexing.indexing.LOOK_S", 0.01)
            await bucket.add()
            rest = sorted(set(range(8)) - hidden)
            await bucket.updated(partitions=rest)
            assert bucket.rows() == bucket.right_rows(rest)
            hidden.clear()
            await bucket.updated()
            bucket.check()
