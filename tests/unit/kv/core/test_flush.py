from __future__ import annotations

import pytest

from millstream.kv.core import flush
from millstream.kv.core.flush import SLOW_COMMIT_S, FlushPlan, GroupCommit
from millstream.kv.core.partition.partition import Partition
from support.kv.log_double import NOW, new_partition


def new_plan(count: int = 3) -> tuple[FlushPlan[str], list[Partition]]:
    partitions = [new_partition(number) for number in range(count)]
    return FlushPlan(partitions), partitions


def write(partition: Partition, count: int = 1) -> None:
    for _ in range(count):
        partition.put(b"k%d" % partition.high_seqno, b"", 0, 0, 0, 0, NOW)


def taken(commit: GroupCommit | None) -> list[tuple[int, int]]:
    """Partition and seqno of everything in a commit."""
    assert commit is not None
    return [
        (partition.partition_id, seqno)
        for partition, seqno in zip(commit.partitions, commit.seqnos, strict=True)
    ]


def test_a_commit_takes_all_that_changed_up_to_now() -> None:
    plan, partitions = new_plan()
    assert plan.freeze() is None
    write(partitions[0], 2)
    write(partitions[2])
    assert plan.is_dirty()
    commit = plan.freeze()
    assert taken(commit) == [(0, 2), (2, 1)]
    assert commit is not None
    assert [batch.seqnos for batch in commit.batches] == [[1, 2], [1]]
    assert (commit.changes, commit.is_more) == (3, False)
    assert not plan.is_dirty()
    write(partitions[0])
    plan.persisted(commit)
    assert [partition.persisted_seqno for partition in partitions] == [2, 0, 1]
    assert taken(plan.freeze()) == [(0, 3)]


def test_what_was_superseded_is_not_counted() -> None:
    plan, partitions = new_plan(1)
    for _ in range(5):
        partitions[0].put(b"k", b"", 0, 0, 0, 0, NOW)
    commit = plan.freeze()
    assert commit is not None
    assert (commit.seqnos, commit.changes) == ([5], 1)


def test_turns_go_round_when_a_commit_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flush, "COMMIT_CHANGES_MAX", 3)
    plan, partitions = new_plan()
    seen = []
    for _ in range(4):
        for partition in partitions:
            write(partition, 2)
        commit = plan.freeze()
        assert commit is not None
        assert commit.is_more
        seen.append([number for number, _ in taken(commit)])
        plan.persisted(commit)
    assert seen == [[0, 1], [2], [0], [1]]


def test_a_quick_disk_gets_small_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flush, "COMMIT_CHANGES_QUICK_MAX", 3)
    plan, partitions = new_plan()
    seen = []
    for last_s in (0.0, SLOW_COMMIT_S, 0.0):
        for partition in partitions:
            write(partition, 2)
        commit = plan.freeze(last_s)
        assert commit is not None
        seen.append([number for number, _ in taken(commit)])
        plan.persisted(commit)
    assert seen == [[0, 1], [2, 0, 1], [2, 0]]


def test_a_commit_takes_few_partitions_however_little_each_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(flush, "COMMIT_PARTITIONS_MAX", 2)
    plan, partitions = new_plan()
    for partition in partitions:
        write(partition)
    first, second = plan.freeze(SLOW_COMMIT_S), plan.freeze(SLOW_COMMIT_S)
    assert first is not None
    assert second is not None
    assert (taken(first), first.is_more) == ([(0, 1), (1, 1)], True)
    assert (taken(second), second.is_more) == ([(2, 1)], False)


def test_a_waiter_is_told_once_and_not_before_its_seqno() -> None:
    plan, partitions = new_plan()
    write(partitions[0])
    first = plan.freeze()
    assert first is not None
    write(partitions[0])
    assert plan.wait(0, 1, "first")
    assert plan.wait(0, 2, "second")
    assert plan.persisted(first) == ["first"]
    assert not plan.wait(0, 1, "late")
    second = plan.freeze()
    assert second is not None
    assert plan.persisted(second) == ["second"]
    assert plan.abandon() == []


def test_those_who_wait_for_what_a_rollback_took_are_given_back() -> None:
    plan, partitions = new_plan()
    write(partitions[0], 3)
    write(partitions[1], 3)
    for number in (0, 1):
        plan.wait(number, 1, f"{number}: 1")
        plan.wait(number, 3, f"{number}: 3")
    partitions[0].queue.restart(2)
    assert plan.undone(partitions[0]) == ["0: 3"]
    assert sorted(plan.abandon()) == ["0: 1", "1: 1", "1: 3"]


def test_waiters_are_given_back_when_nothing_becomes_durable() -> None:
    plan, partitions = new_plan()
    write(partitions[1])
    plan.wait(1, 1, "waits")
    assert plan.abandon() == ["waits"]
    assert plan.abandon() == []
