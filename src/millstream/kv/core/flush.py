"""Decides what the group commits of a bucket contain, their order, and which waiters to notify.

Invariants:
1. All changes of a commit were frozen in one step, up to each partition's high seqno at that time.
2. A commit takes whole partitions in rotation, so that none starves behind busier ones.
3. A waiter is returned once: when its partition is persisted up to its seqno, or by `abandon`.
4. Commits become persisted in the order in which they were frozen.

Elsewhere: timing, threads and disk errors (`kv.aio.flusher`), bytes (`storage.core.store`).
"""

from __future__ import annotations

from typing import Final, Generic, NamedTuple, TypeVar

from millstream.kv.core.partition.partition import Partition
from millstream.storage.core.store import FlushBatch

__all__ = [
    "COMMIT_CHANGES_MAX",
    "COMMIT_CHANGES_QUICK_MAX",
    "COMMIT_PARTITIONS_MAX",
    "SLOW_COMMIT_S",
    "FlushPlan",
    "GroupCommit",
]

COMMIT_CHANGES_MAX: Final = 4096
"""Changes after which a commit takes no further partition: encoding blocks the loop meanwhile."""
COMMIT_CHANGES_QUICK_MAX: Final = 1024
"""The same while the disk is fast: more commits are then cheap, and each blocks for less time."""
SLOW_COMMIT_S: Final = 0.01
"""Duration of the last commit's write above which the disk counts as slow."""
COMMIT_PARTITIONS_MAX: Final = 256
"""Partitions of a commit: each costs the loop some 10 us, however few changes it has."""
_Waiter = TypeVar("_Waiter")


class GroupCommit(NamedTuple):
    """What one commit makes durable: of each partition, everything up to `seqnos`."""

    partitions: list[Partition]
    seqnos: list[int]
    batches: list[FlushBatch]
    changes: int
    frame_bytes: int
    is_more: bool
    """Changed partitions are left for another commit."""


class FlushPlan(Generic[_Waiter]):
    """The flusher's decisions; `_Waiter` is whatever the shell notifies through."""

    def __init__(self, partitions: list[Partition]) -> None:
        self._partitions = partitions
        self._turn = 0
        self._waiting: list[tuple[Partition, int, _Waiter]] = []

    def is_dirty(self) -> bool:
        """Return whether there are changes that no commit has taken yet."""
        return bool(_dirty(self._partitions))

    def freeze(self, last_s: float = 0.0) -> GroupCommit | None:
        """Take the next commit; None if nothing changed. `last_s`: duration of the last one."""
        is_slow = last_s >= SLOW_COMMIT_S
        most = COMMIT_CHANGES_MAX if is_slow else min(COMMIT_CHANGES_QUICK_MAX, COMMIT_CHANGES_MAX)
        chosen, is_more = self._next_partitions(most)
        if not chosen:
            return None
        batches = [partition.freeze() for partition in chosen]
        seqnos = [p.queue.frozen_seqno for p in chosen]
        changes = sum(len(batch.frames) for batch in batches)
        frame_bytes = sum(sum(map(len, batch.frames)) for batch in batches)
        return GroupCommit(chosen, seqnos, batches, changes, frame_bytes, is_more)

    def _next_partitions(self, most: int) -> tuple[list[Partition], bool]:
        turns = self._partitions[self._turn :] + self._partitions[: self._turn]
        chosen: list[Partition] = []
        count = 0
        for partition in _dirty(turns):
            if count >= most or len(chosen) == COMMIT_PARTITIONS_MAX:
                self._turn = partition.partition_id
                return chosen, True
            chosen.append(partition)
            count += partition.queue.high_seqno - partition.queue.frozen_seqno
        return chosen, False

    def persisted(self, commit: GroupCommit) -> list[_Waiter]:
        """The commit is durable and known to look-ups; return the waiters to notify."""
        for partition, seqno in zip(commit.partitions, commit.seqnos, strict=True):
            partition.persisted(seqno)
        told: list[_Waiter] = []
        waiting = []
        for partition, seqno, waiter in self._waiting:
            if partition.persisted_seqno < seqno:
                waiting.append((partition, seqno, waiter))
            else:
                told.append(waiter)
        self._waiting = waiting
        return told

    def wait(self, partition_id: int, seqno: int, waiter: _Waiter) -> bool:
        """Keep a waiter until `seqno` is persisted; False if it is already."""
        partition = self._partitions[partition_id]
        if partition.persisted_seqno >= seqno:
            return False
        self._waiting.append((partition, seqno, waiter))
        return True

    def undone(self, partition: Partition) -> list[_Waiter]:
        """The partition was rolled back: return the waiters for changes that are gone."""
        told = [w for p, seqno, w in self._waiting if p is partition and seqno > p.high_seqno]
        self._waiting = [
            wait
            for wait in self._waiting
            if wait[0] is not partition or wait[1] <= partition.high_seqno
        ]
        return told

    def abandon(self) -> list[_Waiter]:
        """Return all waiters: nothing becomes durable any more."""
        given = [waiter for _, _, waiter in self._waiting]
        self._waiting = []
        return given


def _dirty(partitions: list[Partition]) -> list[Partition]:
    """Return the partitions with changes to commit. Twice per commit: one pass, no calls."""
    return [
        p
        for p in partitions
        if (queue := p.queue).high_seqno != queue.frozen_seqno
        or ((replica := p.replica) is not None and replica.is_dirty)
    ]
