"""Seeded schedules of faults on real Spark, a few; `make faults` runs hundreds.

They have a Spark of their own, since its driver is killed.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_faults.schedule import ROUNDS, SINKS, schedule_of
from spark_faults.world import World

FEW = [("faults", 4), ("faults", 14), ("rollbacks", 1)]
"""Table and bucket whose driver is killed; a transactional sink; lost tails, and a view, too."""
CI_SEEDS = range(1, 11)
PLAYS_MAX = 3
"""A fault may not come up, where batches are cut otherwise than they mostly are."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("faults"))
    yield made
    made.close()


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("family", "seed"), FEW)
def test_sinks_equal_the_source_after_all_that_goes_wrong(
    world: World, family: str, seed: int
) -> None:
    for _ in range(PLAYS_MAX):
        outcome = world.run(schedule_of(family, seed))
        assert not outcome.wrong, f"{outcome.wrong}\n{outcome.schedule}\n{outcome.counts}"
        assert outcome.counts["comparisons"] == ROUNDS
        if outcome.counted:
            return
    raise AssertionError(f"its faults never came up: {outcome.schedule}\n{outcome.counts}")


def test_a_few_schedules_have_every_sink_every_fault_and_every_loss() -> None:
    faults = [schedule_of("faults", seed) for seed in CI_SEEDS]
    rollbacks = [schedule_of("rollbacks", seed) for seed in CI_SEEDS]
    assert {sink for one in faults for sink in one.sinks} == set(SINKS)
    actions = {each.fault.action for one in faults for each in one.rounds if each.fault}
    assert actions == {"raise", "die", "driver", "node", "other-node", "linger"}
    assert {each.loss for one in rollbacks for each in one.rounds} == {"failover", "restart"}
    assert schedule_of("faults", 7) == schedule_of("faults", 7)
