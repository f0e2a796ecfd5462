"""Documents of partitions that are here, by id."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.errors import UnavailableError
from millstream.model.partitions import PartitionState, partition_of
from millstream.node.own_scan import Range, keys_between, scanned
from millstream.wire.frames import change_of, description_bytes
from running_bucket import LIMIT, NOW, opened, put

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
    assert b"gone" in keys_between(bucket, range(4), everything)
    rest = scanned(bucket, range(4), everything, lambda: NOW)
    await anext(rest)
    lost = partition_of(sorted([*NAMES, b"_design/d"], reverse=True)[1], 4)
    await engine.copies.set_state(lost, PartitionState.DEAD)
    with pytest.raises(UnavailableError) as caught:
        await anext(rest)
    assert caught.value.code == "not_my_partition"
    await engine.stop()
