"""Schedules of `pipeline_world`, thousands of them, through planner, ranges and repairing sink."""

from __future__ import annotations

import pytest

from simulators.pipeline_world import World
from support.budget import budget

SCHEDULES = budget(1_500)
BLOCKS = 3


@pytest.mark.parametrize("block", range(BLOCKS))
def test_a_sink_that_repairs_equals_the_source_at_rest(block: int) -> None:
    for seed in range(block * SCHEDULES, (block + 1) * SCHEDULES):
        try:
            World(seed, repairs=True).run()
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error


@pytest.mark.parametrize("loses_histories", [False, True])
def test_a_sink_that_does_not_repair_is_right_or_refused(loses_histories: bool) -> None:
    refused = 0
    for seed in range(SCHEDULES):
        world = World(seed, repairs=False, loses_histories=loses_histories)
        try:
            world.run()
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
        refused += world.refusal is not None
    assert SCHEDULES * 0.1 < refused < SCHEDULES * 0.9


def test_durable_reads_are_refused_only_after_a_purge() -> None:
    """A sink that does not repair, read up to durable marks: fail-overs lose nothing of it."""
    refused = 0
    for seed in range(SCHEDULES):
        world = World(seed, repairs=False, is_durable_only=True)
        try:
            world.run()
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
        if world.refusal is not None:
            part = world.node.partitions[world.refusal.partition_id]
            entry = world.committed[world.refusal.partition_id]
            assert entry.snap_start < part.purge_seqno, f"seed {seed}"
            refused += 1
    assert refused < SCHEDULES * 0.2
