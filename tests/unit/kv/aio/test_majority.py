from __future__ import annotations

import asyncio

import pytest

from millstream.errors import UnavailableError
from millstream.kv.aio import majority
from millstream.kv.aio.majority import until_possible
from millstream.kv.core.partition.acknowledgement import AWAITED_NS_MAX, Acknowledged
from millstream.kv.core.partition.partition import Partition
from millstream.model.partitions import PartitionState
from millstream.model.position import FailoverEntry

NOW = 1_700_000_000_000_000_000


def with_copies(*row: str) -> Partition:
    partition = Partition(
        0, failover_log=(FailoverEntry(1, 0, 1),), high_seqno=0, purge_seqno=0, is_resident=True,
        log=None,  # type: ignore[arg-type]
    )  # fmt: skip
    partition.acknowledged = Acknowledged(partition)
    partition.acknowledged.set_row(row, "a")
    return partition


async def test_a_change_waits_until_enough_copies_follow() -> None:
    partition = with_copies("a", "b")
    waiting = asyncio.ensure_future(until_possible(partition, lambda: NOW))
    await asyncio.sleep(0)
    assert not waiting.done()
    assert partition.acknowledged is not None
    partition.acknowledged.join("b", 1)
    await waiting
    await until_possible(with_copies("a"), lambda: NOW)


async def test_copies_that_do_not_come_soon_are_awaited_by_the_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(majority, "FOLLOW_SECONDS_MAX", 0.01)
    with pytest.raises(UnavailableError, match="1 of 2 copies of partition 0 are there") as raised:
        await until_possible(with_copies("a", "b"), lambda: NOW)
    assert (raised.value.code, raised.value.retry) == ("majority_awaited", "backoff")


async def test_copies_that_are_missing_for_longer_are_not_waited_for() -> None:
    partition, times = with_copies("a", "b"), iter((NOW, NOW + AWAITED_NS_MAX))
    with pytest.raises(UnavailableError) as raised:
        await until_possible(partition, lambda: next(times))
    assert raised.value.code == "majority_impossible"


async def test_who_asks_a_copy_that_is_not_active_does_not_wait() -> None:
    partition = with_copies("a", "b")
    partition.state = PartitionState.REPLICA
    await until_possible(partition, lambda: 0)
