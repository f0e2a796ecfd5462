"""Backups under random schedules: writes, deletions, fail-overs with lost tails, promoted copies,
purges, torn backups, compaction. Any manifest restores to exactly the state at its positions.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from support.budget import budget
from support.pipelines.backup_double import FalseBackup
from support.pipelines.node_double import FalseNode

SCHEDULES = budget(500)
BLOCKS = 3


class World:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.node = FalseNode(self.rng.randint(1, 3))
        self.backup = FalseBackup(self.node)
        self.truths: dict[int, dict[int, dict[int, int]]] = {}

    def run(self) -> None:
        steps = [self.write] * 12 + [self.back_up] * 4 + [self.disturb] * 5 + [self.compact]
        if self.rng.random() < 0.3:
            self.back_up()  # of empty partitions
        for _ in range(self.rng.randint(20, 80)):
            self.rng.choice(steps)()
        self.back_up()
        for id_, truth in self.truths.items():
            assert self.backup.restored(id_) == truth, id_

    def write(self) -> None:
        p = self.rng.choice(list(self.node.partitions))
        value = self.rng.randrange(1000) if self.rng.random() < 0.7 else None
        self.node.write(p, self.rng.randrange(5), value)

    def back_up(self) -> None:
        is_torn = self.rng.random() < 0.2
        truth = {p: part.live() for p, part in self.node.partitions.items()}
        id_ = self.backup.run(
            is_incremental=self.rng.random() < 0.85,
            torn_after=self.rng.randrange(len(self.node.partitions)) if is_torn else None,
        )
        if id_ is not None:
            self.truths[id_] = truth

    def compact(self) -> None:
        tip = self.backup.tip
        if tip is not None:
            self.truths[self.backup.compact()] = self.truths[tip.id]

    def disturb(self) -> None:
        part = self.rng.choice(list(self.node.partitions.values()))
        seqno = self.rng.randint(0, part.high_seqno)
        event = self.rng.choice(["fail-over", "fail-over", "purge", "copy", "leases lost"])
        if event == "fail-over":
            part.fail_over(max(part.purge_seqno, part.high_seqno - self.rng.randint(0, 9)))
        elif event == "purge":
            part.purge(seqno)
        elif event == "leases lost":
            part.leases.clear()
        elif part.copy is None:
            part.keep_copy()
        else:
            part.promote_copy(seqno)


@pytest.mark.parametrize("block", range(BLOCKS))
def test_any_manifest_restores_to_the_state_at_its_positions(block: int) -> None:
    kinds: Counter[str] = Counter()
    for seed in range(block * SCHEDULES, (block + 1) * SCHEDULES):
        world = World(seed)
        try:
            world.run()
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
        kinds.update(world.backup.kinds)
    assert min(kinds[kind] for kind in ("full", "changes", "branched")) > SCHEDULES / 5, kinds
