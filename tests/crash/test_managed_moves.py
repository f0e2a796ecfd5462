"""Real engines of a managed cluster: nodes are killed, copies move, orders are lost."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from millstream.model.partitions import PartitionState
from support.budget import budget
from support.cluster.managed_engines import ManagedNodes, keys_of, put

ACTIVE = PartitionState.ACTIVE
NAMES = "abcd"
ROWS = (("a", "b", "c"), ("b", "c", "a"), ("c", "a", "d"), ("d", "a", "b"))
STEPS = 80


class Schedule(ManagedNodes):
    """Writes wherever a copy is active, and remembers what a majority had."""

    def __init__(self, path: Path, seed: int) -> None:
        super().__init__(path, ROWS, NAMES)
        self.rng = random.Random(seed)
        self.pending: list[tuple[str, int, int, int, str]] = []
        """(node, partition, seqno, epoch, key) of writes."""
        self.acknowledged: list[tuple[int, str]] = []
        self.is_calm = False

    def arrives(self) -> bool:
        return self.is_calm or self.rng.random() < 0.85

    def write_somewhere(self) -> None:
        name, number = self.rng.choice(sorted(self.up)), self.rng.randrange(len(ROWS))
        partition = self.nodes[name].partition(number)
        if partition.state is ACTIVE and not partition.is_suspended:
            key = f"key{len(self.pending) + len(self.acknowledged)}-{self.rng.random()}"
            put(self.nodes[name], number, key)
            seqno = partition.queue.high_seqno
            self.pending.append((name, number, seqno, partition.epoch, key))

    def note_acknowledged(self) -> None:
        for name, number, seqno, epoch, key in list(self.pending):
            partition = self.nodes[name].partition(number) if name in self.up else None
            if partition is None or partition.epoch != epoch:
                self.pending.remove((name, number, seqno, epoch, key))
            elif partition.majority_seqno >= seqno:
                self.pending.remove((name, number, seqno, epoch, key))
                self.acknowledged.append((number, key))

    def check_branches(self) -> None:
        """At most one copy is active in a branch."""
        found = [
            (number, partition.failover_log[0].branch)
            for name in self.up
            for number, partition in enumerate(self.nodes[name].bucket.partitions)
            if partition.state is ACTIVE
        ]
        assert len(found) == len(set(found))

    async def happen(self) -> None:
        chance = self.rng.random()
        if chance < 0.04 and len(self.up) == len(NAMES):
            await self.kill(self.rng.choice(NAMES))
        elif chance < 0.1 and len(self.up) < len(NAMES):
            await self.start_again(next(name for name in NAMES if name not in self.up))
        elif chance < 0.13:
            rows = [tuple(self.rng.sample(NAMES, 3)) for _ in ROWS]
            self.set_plan(*rows)
        for _ in range(4):
            self.write_somewhere()
        await self.step()
        self.check_branches()
        await asyncio.sleep(self.rng.choice((0, 0.01, 0.03)))  # streams go on meanwhile
        self.note_acknowledged()

    def is_settled(self) -> bool:
        for number, record in enumerate(self.data_map.records):
            if record.active is None or record.is_moving or record.building:
                return False
            active = self.nodes[record.active].partition(number)
            ends = {self.nodes[name].partition(number).high_seqno for name in record.voters}
            if active.state is not ACTIVE or ends != {active.majority_seqno}:
                return False
        return True


@pytest.mark.parametrize("seed", range(budget(4)))
async def test_whatever_is_killed_or_moved_nothing_that_a_majority_had_is_lost(
    tmp_path: Path, seed: int
) -> None:
    schedule = Schedule(tmp_path, seed)
    await schedule.start()
    try:
        for _ in range(STEPS):
            await schedule.happen()
        schedule.is_calm = True
        for name in NAMES:
            if name not in schedule.up:
                await schedule.start_again(name)
        await schedule.until(schedule.is_settled)
        assert len(schedule.acknowledged) > STEPS // 4, "nothing was tried"
        for number, key in schedule.acknowledged:
            active = schedule.record(number).active
            assert active is not None
            assert key in keys_of(schedule.nodes[active], number)
    finally:
        await schedule.stop()
