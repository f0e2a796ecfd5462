"""Documents of partitions that are here, by id."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest

from millstream.databases.scans.local_scan import LANE_KEYS_MIN, Range, ordered_keys, scanned
from millstream.errors import UnavailableError
from millstream.kv.core.partition.partition import Partition
from millstream.model.partitions import PartitionState, partition_of
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
    assert b"gone" in [key async for key in ordered_keys(bucket, range(4), everything)]
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
                async with aclosing(ordered_keys(bucket, range(4), wanted)) as keys:
                    first = [key async for _, key in _numbered(keys, 20)]
                assert first == expected[:20]
                assert looked_up <= 8 * LANE_KEYS_MIN
                whole = [key async for key in ordered_keys(bucket, range(4), wanted)]
                assert whole == expected
    await engine.stop()


async def _numbered(keys: AsyncIterator[bytes], count: int) -> AsyncIterator[tuple[int, bytes]]:
    """Yield the first ones."""
    number = 0
    async for key in keys:
        yield number, key
        number += 1
        if number == count:
            return
