"""The decisions of a managed cluster on seeds, and the mistakes that the seeds must find.

`make manager` runs more.
"""

from __future__ import annotations

import pytest

from simulators.cluster.plants import PLANTS, RARE, planted
from simulators.cluster.schedules import run

SEEDS, CASES = 20, 4
FOUND = [name for name in PLANTS if name not in RARE]


@pytest.mark.parametrize("case", range(CASES))
def test_whatever_happens_nothing_is_lost_and_the_cluster_is_whole_again(case: int) -> None:
    for seed in range(100 + case, 100 + SEEDS, CASES):
        assert run(seed) is None, f"make manager SEEDS=1 ARGS='--seed {seed}'"


@pytest.mark.parametrize("case", range(CASES))
def test_a_state_that_was_restored_is_rebuilt_and_nothing_is_lost(case: int) -> None:
    for seed in range(100 + case, 100 + SEEDS, CASES):
        wrong = run(seed, is_restored=True)
        assert wrong is None, f"make manager SEEDS=1 ARGS='--restored --seed {seed}'"


@pytest.mark.parametrize("name", FOUND)
def test_a_planted_mistake_is_found(name: str) -> None:
    with planted(name) as seed:
        assert run(seed, is_restored=PLANTS[name].is_restored) is not None


def test_without_the_mistakes_their_seeds_end_well() -> None:
    for seed, is_restored in sorted({(PLANTS[n].seed, PLANTS[n].is_restored) for n in FOUND}):
        assert run(seed, is_restored=is_restored) is None, seed
