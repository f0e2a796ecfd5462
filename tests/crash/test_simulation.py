"""The simulator of several nodes: some seconds of schedules, and mistakes that it has to find.

`make simulate` runs thousands; a failing seed says how to repeat it.
"""

from __future__ import annotations

import os

import pytest

from simulation.plants import PLANTS
from simulation.schedules import check, run

SEEDS = int(os.environ.get("MILLSTREAM_SIMULATION_SEEDS", "400"))
BATCH = 50
QUICKLY_FOUND = {
    "bare_position": 40,
    "diverted_marker": 40,
    "early_barrier": 40,
    "end_inside_snapshot": 40,
    "half_is_a_majority": 40,
    "memory_switch": 40,
    "no_fencing": 40,
    "restart_as_active": 40,
    "rollback_skipped": 40,
    "rollback_too_short": 40,
}
"""Planted mistake -> seeds within which it is found."""


@pytest.mark.parametrize("first", range(0, SEEDS, BATCH))
def test_whatever_happens_all_come_to_hold_the_same(first: int) -> None:
    for seed in range(first, min(first + BATCH, SEEDS)):
        check(seed)


@pytest.mark.parametrize("plant", QUICKLY_FOUND)
def test_a_planted_mistake_is_found(plant: str) -> None:
    assert any(run(seed, plant) for seed in range(QUICKLY_FOUND[plant])), PLANTS[plant].what
