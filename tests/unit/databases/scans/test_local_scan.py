"""Documents of partitions that are here, by id."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from random import Random

import pytest

from millstream.databases.scans.local_scan import LANE_KEYS_MIN, Range, ordered_keys, scanned
from millstream.errors import UnavailableError
from millstream.kv.core.partition.partition import Partition
from millstream.model.partitions import PartitionState, partition_of
from millstream.runtime.pace import Pace
from millstream.wire.frames import change_of, description_bytes
from support.kv.running_bucket import LIMIT, NOW, opened, put

NAMES = [b"%c" % letter for letter in b"abcdefgh"]


def test_a_range() -> None:
    wanted = Range(b"b", b"d")
    assert [key for key in NAMES if wanted.admits(key)] == [b"b", b"c", b"d"]
    assert [key for key in NAMES if wanted.behind(b"b").admits(key)] == [b"c", b"d"]
    down = wanted._replace(descending=True).behind(b"c")
    assert [key for key in NAMES if down.admits(key)] == [b"b"]


async def test_some_partitions_without_what_is_deleted(tmp_path: Path) -> None:
    engine = await opened(tmp_path / "b")
    edits = [(name, put()) for name in (*NAMES, b"_design/d")]
    await engine.documents.update([*edits, (b"gone", put(b'{"_deleted":true}'))], LIMIT,
                                  is_durable=True)  # fmt: skip
    bucket, everything = engine.bucket, Range(b"", b"\xff", descending=True)
    bucket.partition_for(b"_local").put(b"_local", b"{}", 0, 0, 0, 1, NOW)
    bucket.partition_for(b"\xff").put(b"\xff", b"{}", 0, 0, 0, 1, NOW)
    numbers = [0, 2]
    ours = [n for n in (*NAMES, b"_design/d") if partition_of(n, 4) in numbers]
    found = [one async for one in scanned(bucket, numbers, everything, lambda: NOW)]
    assert [key for key, _ in found] == sorted(ours, reverse=True)
    assert [change_of(change[description_bytes(change) :]).key for _, change in found] == [
        key for key, _ in found
    ]
    every = Range(b"", b"\xff", of_kv=True)
    found = [one async for one in scanned(bucket, range(4), every, lambda: NOW)]
    assert [key for key, _ in found] == sorted([*NAMES, b"_design/d", b"_local", b"\xff"])
    assert b"gone" in [key async for key in ordered_keys(bucket, range(4), everything, Pace())]
    rest = scanned(bucket, range(4), everything, lambda: NOW)
    await anext(rest)
    lost = partition_of(sorted([*NAMES, b"_design/d"], reverse=True)[1], 4)
    await engine.copies.set_state(lost, PartitionState.DEAD)
    with pytest.raises(UnavailableError) as caught:
        await anext(rest)
    assert caught.value.code == "not_my_partition"
    await engine.stop()


@pytest.mark.slow
async def test_a_page_looks_up_what_it_holds_however_many_documents_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up = 0
    page = Partition.page

    def counted(
        self: Partition, low: bytes, high: bytes, count: int, *, descending: bool
    ) -> list[bytes]:
        nonlocal looked_up
        found = page(self, low, high, count, descending=descending)
        looked_up += len(found)
        return found

    monkeypatch.setattr(Partition, "page", counted)
    engine = await opened(tmp_path / "b")
    bucket, names = engine.bucket, [b"k%05d" % number for number in range(20_000)]
    for number, name in enumerate(names):
        bucket.partition_for(name).put(name, b"{}", 0, 0, 0, 1, NOW)
        if number == 15_000:
            await engine.flusher.until_persisted(0, bucket.partitions[0].high_seqno)
    for descending in (False, True):
        for start, end in ((b"", b"\xff"), (b"k01", b"k02"), (b"k07777", b"k07777")):
            for after in (None, b"k0150"):
                wanted = Range(start, end, descending, after)
                expected = [name for name in names if wanted.admits(name)]
                expected.sort(reverse=descending)
                looked_up = 0
                async with aclosing(ordered_keys(bucket, range(4), wanted, Pace())) as keys:
                    first = [key async for _, key in _numbered(keys, 20)]
                assert first == expected[:20]
                assert looked_up <= 8 * LANE_KEYS_MIN
                whole = [key async for key in ordered_keys(bucket, range(4), wanted, Pace())]
                assert whole == expected
    await engine.stop()


async def test_pages_have_every_key_however_it_was_written_last(tmp_path: Path) -> None:
    engine, dice, known = await opened(tmp_path / "b"), Random(3), set[bytes]()
    bucket, names = engine.bucket, [b"k%03d" % number for number in range(400)]
    wanted = Range(b"", b"\xff")
    for number in range(3_000):
        name = dice.choice(names[: 1 + number // 5])
        known.add(name)
        partition, made = bucket.partition_for(name), dice.random()
        if made < 0.6:
            partition.put(name, b"{}", 0, 0, 0, 1, NOW)
        elif made < 0.8:
            partition.delete(name, 0, NOW)
        else:
            partition.put(name, b"5", 0, 0, 0, 0, NOW)
            partition.count(name, 1, 0, 0, 0, NOW)
        if number % 7 == 0:
            await asyncio.sleep(0)
        if number % 50 == 0:
            for descending in (False, True):
                asked = wanted._replace(descending=descending)
                found = [key async for key in ordered_keys(bucket, range(4), asked, Pace())]
                assert set(found) >= {k for k in known if bucket.partition_for(k).entry(k)}
                assert found == sorted(set(found), reverse=descending)
        if number % 400 == 0:
            await engine.flusher.bring_by_id_up()
        if number % 900 == 0:
            await engine.compactor.compact()
    await engine.stop()


async def _numbered(keys: AsyncIterator[bytes], count: int) -> AsyncIterator[tuple[int, bytes]]:
    """Yield the first ones."""
    number = 0
    async for key in keys:
        yield number, key
        number += 1
        if number == count:
            return
