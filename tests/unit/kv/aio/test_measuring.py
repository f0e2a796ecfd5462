from __future__ import annotations

import asyncio
from random import Random

import pytest

from millstream.kv.aio import measuring
from millstream.kv.aio.measuring import measure
from millstream.kv.core.measuring import Piece
from millstream.kv.core.partition.partition import Partition
from millstream.upr.core.source import Hold
from millstream.wire.frames import seqno_of
from support.kv.log_double import NOW, LogDouble, new_partition

ONE_ROW = (1, 2**63, 10**6)


async def measured(
    *asked: tuple[Partition, Hold, int], limits: tuple[int, int, int] = ONE_ROW
) -> dict[int, list[Piece]]:
    found = await measure(asked, limits, asyncio.Semaphore(1))
    return {p: list(pieces) for p, pieces in found.items()}


def rows_of(partition: Partition, hold: Hold, after: int) -> list[tuple[int, int]]:
    """Return seqno and bytes of what a stream under the hold gets."""
    frames: list[bytes] = []
    while after < hold.at:
        found = None if hold.is_logged else partition.memory_slice(after, hold.at, 2**60, 1024)
        chunks = [found] if found else partition.backfill(after, hold.at, is_logged=hold.is_logged)
        for chunk, last in chunks:
            frames += chunk
            after = last
    return [(seqno_of(frame), len(frame)) for frame in frames]


def written(rng: Random, partition: Partition, log: LogDouble, count: int) -> None:
    for _ in range(count):
        key, value = b"k%d" % rng.randrange(30), bytes(rng.randrange(50))
        partition.put(key, value, 0, 0, 0, 0, NOW)
        if rng.random() < 0.05:
            log.take(partition)
        if rng.random() < 0.05:
            partition.queue.collect(0)


@pytest.mark.parametrize("seed", range(20))
async def test_what_is_measured_is_what_a_reader_gets(seed: int) -> None:
    """From memory, from the log, and of what only a hold keeps."""
    rng, log = Random(seed), LogDouble()
    partition = new_partition(3, log=log)
    written(rng, partition, log, 60)
    hold = partition.open_hold()
    assert hold is not None
    written(rng, partition, log, 60)
    for after in (0, 7, 40):
        rows = rows_of(partition, hold, after)
        pieces = (await measured((partition, hold, after)))[3]
        assert [(piece.end, piece.bytes) for piece in pieces] == rows
        (whole,) = (await measured((partition, hold, after), limits=(10**6, 10**9, 9)))[3]
        assert whole == (hold.at, len(rows), sum(size for _, size in rows))


async def test_a_state_that_only_the_log_has_is_measured() -> None:
    log = LogDouble()
    partition = new_partition(log=log)
    written(Random(1), partition, log, 40)
    log.take(partition)
    at = log.marks[-1]
    written(Random(2), partition, log, 40)
    hold = partition.open_hold(at)
    assert hold is not None
    assert hold.is_logged
    pieces = (await measured((partition, hold, 0)))[0]
    assert [(piece.end, piece.bytes) for piece in pieces] == rows_of(partition, hold, 0)


async def test_a_lost_hold_is_left_out() -> None:
    lost, kept = new_partition(0), new_partition(1)
    holds = []
    for partition in (lost, kept):
        partition.put(b"k", b"v", 0, 0, 0, 0, NOW)
        hold = partition.open_hold()
        assert hold is not None
        holds.append(hold)
    measuring_now = measured((lost, holds[0], 0), (kept, holds[1], 0))
    lost.release_hold(holds[0])
    assert list(await measuring_now) == [1]
    hold = lost.open_hold()
    assert hold is not None
    task = asyncio.ensure_future(measured((lost, hold, 0), (kept, holds[1], 0)))
    await asyncio.sleep(0)
    lost.release_hold(hold)  # after its rows were taken
    assert list(await task) == [1]


async def test_a_request_that_takes_long_leaves_partitions_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(measuring, "MEASURE_S", -1.0)
    asked = []
    for p in range(2):
        log = LogDouble()
        partition = new_partition(p, log=log)
        for n in range(5):
            partition.put(b"k%d" % n, b"v", 0, 0, 0, 0, NOW)
        if p == 0:
            log.take(partition)
            partition.queue.collect(0)
        hold = partition.open_hold()
        assert hold is not None
        asked.append((partition, hold, 0))
    (log_piece,) = (await measured(*asked))[0]
    assert (log_piece.end, log_piece.rows) == (1, 1)
    found = await measured(asked[1])
    assert sum(piece.rows for piece in found[1]) == found[1][-1].end
