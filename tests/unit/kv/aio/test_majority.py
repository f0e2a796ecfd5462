from __future__ import annotations

import asyncio

import pytest

from millstream.errors import UnavailableError
from millstream.kv.aio import majority
from millstream.kv.aio.majority import MajorityWait
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
    partition.acknowledged.set_rows((row,), "a")
    return partition


async def test_a_change_waits_until_enough_copies_follow() -> None:
    partition = with_copies("a", "b")
    wait = MajorityWait(lambda: NOW)
    waiting = asyncio.ensure_future(wait.until_possible(partition))
    await asyncio.sleep(0)
    assert not waiting.done()
    assert partition.acknowledged is not None
    partition.acknowledged.join("b", 1)
    await waiting
    await wait.until_possible(with_copies("a"))


async def test_copies_that_do_not_come_soon_are_awaited_by_the_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(majority, "FOLLOW_SECONDS_MAX", 0.01)
    with pytest.raises(UnavailableError, match="1 of 2 copies of partition 0 are there") as raised:
        await MajorityWait(lambda: NOW).until_possible(with_copies("a", "b"))
    assert (raised.value.code, raised.value.retry) == ("majority_awaited", "backoff")


async def test_copies_that_are_missing_for_longer_are_not_waited_for() -> None:
    partition, times = with_copies("a", "b"), iter((NOW, NOW + AWAITED_NS_MAX))
    with pytest.raises(UnavailableError) as raised:
        await MajorityWait(lambda: next(times)).until_possible(partition)
    assert raised.value.code == "majority_impossible"


async def test_who_asks_a_copy_that_is_not_active_does_not_wait() -> None:
    partition = with_copies("a", "b")
    partition.state = PartitionState.REPLICA
    await MajorityWait(lambda: 0).until_possible(partition)


async def test_many_changes_wait_in_vain_together_not_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(majority, "FOLLOW_SECONDS_MAX", 0.2)
    wait, loop = MajorityWait(lambda: NOW), asyncio.get_running_loop()
    since_s = loop.time()
    for _ in range(50):
        with pytest.raises(UnavailableError):
            await wait.until_possible(with_copies("a", "b"))
    assert 0.2 <= loop.time() - since_s < 5
    await wait.until_possible(with_copies("a"))
    since_s = loop.time()
    with pytest.raises(UnavailableError):
        await wait.until_possible(with_copies("a", "b"))
    assert loop.time() - since_s >= 0.2, "since then somebody has found its majority"


async def test_changes_that_find_their_majority_prolong_no_wait_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(majority, "FOLLOW_SECONDS_MAX", 0.05)
    monkeypatch.setattr(majority, "FOLLOW_PAUSE_S", 0.001)
    wait, others = MajorityWait(lambda: NOW), 0

    async def others_go_on() -> None:
        nonlocal others
        while True:
            await wait.until_possible(with_copies("a"))
            others += 1
            await asyncio.sleep(0)

    task = asyncio.ensure_future(others_go_on())
    with pytest.raises(UnavailableError):
        await asyncio.wait_for(wait.until_possible(with_copies("a", "b")), 30)
    task.cancel()
    assert others > 1


async def test_copies_that_are_gone_for_good_shorten_no_wait_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(majority, "FOLLOW_SECONDS_MAX", 0.05)
    gone, moving = with_copies("a", "b"), with_copies("a", "c")
    assert gone.acknowledged is not None
    assert moving.acknowledged is not None
    assert gone.acknowledged.are_awaited(NOW - AWAITED_NS_MAX)
    wait = MajorityWait(lambda: NOW)
    with pytest.raises(UnavailableError, match="no majority"):
        await wait.until_possible(gone)
    await asyncio.sleep(0.05)
    waiting = asyncio.ensure_future(wait.until_possible(moving))
    await asyncio.sleep(0)
    moving.acknowledged.join("c", 1)
    await waiting
