"""Adoption: durable first, and records that come together share a write."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, cast

import pytest
from msgspec.structs import replace

from millstream.data_directory.map_file import AdoptedMap
from millstream.databases.adopted_records import AdoptedRecords, with_map
from millstream.errors import CorruptionError, UnavailableError
from millstream.model.bucket_map import NodeAddress
from millstream.model.cluster_maps import DataMap, DataRecord, MapKey
from millstream.runtime.tasks import Tasks

NODES = (NodeAddress("a", "h", 1, 2), NodeAddress("b", "h", 3, 4))
KEY = MapKey(2, 5)
RECORD = DataRecord(KEY, "a", 7, (("a", "b"),))
RECORDS = (RECORD,) * 4
ADOPTED = AdoptedMap("c1", "a", NODES, DataMap(KEY, "u", RECORDS), RECORDS)


def newer(revision: int = 6, **changes: Any) -> DataRecord:
    return replace(RECORD, at=MapKey(2, revision), **changes)


def begin(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    return Tasks().start(work, name="adopt")


class Running:
    """A bucket whose file is kept here; `writes` go on when the test lets them."""

    def __init__(self) -> None:
        self.log: list[object] = []
        self.may_write = asyncio.Event()
        self.may_write.set()
        self.error: Exception | None = None
        self.bucket = self.copies = self
        self.records = AdoptedRecords(cast(Any, self), ADOPTED, self.keep)

    async def keep(self, adopted: AdoptedMap) -> None:
        await self.may_write.wait()
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        self.log.append([p for p, one in enumerate(adopted.records) if one.at > KEY])

    def use_records(self, records: dict[int, DataRecord]) -> None:
        self.log.append(f"used {sorted(records)}")

    def set_map(self, bucket_map: object, node_name: str) -> None:
        self.log.append("map")

    async def take_places(self) -> None:
        self.log.append("places")


async def test_a_record_is_written_before_it_is_used_and_then_its_copy_is_made() -> None:
    running = Running()
    await running.records.adopt({1: newer()})
    assert running.log == [[1], "used [1]", "places"]
    assert running.records.adopted.records == (RECORD, newer(), RECORD, RECORD)
    running.log.clear()
    await running.records.adopt({1: newer(), 2: RECORD, 3: replace(RECORD, at=MapKey(2, 4))})
    assert running.log == ["places"], "a copy that could not be made is made now"


async def test_records_that_come_during_a_write_share_the_next_one() -> None:
    running = Running()
    running.may_write.clear()
    first = begin(running.records.adopt({0: newer()}))
    await asyncio.sleep(0)
    others = [begin(running.records.adopt({p: newer()})) for p in (1, 2, 3)]
    await asyncio.sleep(0)
    running.may_write.set()
    await asyncio.gather(first, *others)
    assert [one for one in running.log if isinstance(one, list)] == [[0], [0, 1, 2, 3]]


async def test_whoever_asked_for_a_record_whose_write_failed_is_told_or_writes_it_anew() -> None:
    running = Running()
    running.may_write.clear()
    running.error = UnavailableError("full", code="disk_error")
    first = begin(running.records.adopt({0: newer()}))
    second = begin(running.records.adopt({1: newer()}))
    await asyncio.sleep(0)
    running.may_write.set()
    with pytest.raises(UnavailableError):
        await first
    await second
    assert running.records.adopted.records == (RECORD, newer(), RECORD, RECORD)


async def test_two_contents_of_one_key_are_damage_and_nothing_is_adopted() -> None:
    running = Running()
    with pytest.raises(CorruptionError) as caught:
        await running.records.adopt({0: replace(RECORD, active="b")})
    assert caught.value.code == "other_map"
    assert running.log == []


async def test_a_whole_map_brings_its_records_but_for_older_ones() -> None:
    running = Running()
    await running.records.adopt({1: newer(9), 2: newer(6)})
    running.log.clear()
    data_map = DataMap(MapKey(2, 8), "u", (newer(8), newer(7), newer(6), RECORD))
    await running.records.take(data_map, NODES)
    assert running.log == [[0, 1, 2], "used [0]", "map", "places"]
    adopted = running.records.adopted
    assert adopted.records == (newer(8), newer(9), newer(6), RECORD)
    await running.records.take(ADOPTED.data_map, NODES[:1])
    assert running.records.adopted is adopted, "an older map"


def test_a_map_of_one_key_has_one_content() -> None:
    other = ADOPTED.data_map._replace(records=(replace(RECORD, branch=8), *RECORDS[1:]))
    with pytest.raises(CorruptionError):
        with_map(ADOPTED, other, NODES)
    assert with_map(ADOPTED, ADOPTED.data_map, NODES) == ADOPTED
