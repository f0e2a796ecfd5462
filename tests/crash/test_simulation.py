"""The simulator of several nodes: some seconds of schedules, and mistakes that it has to find.

`make simulate` runs thousands; a failing seed says how to repeat it.
"""

from __future__ import annotations

import pytest

from simulators.simulation.plants import PLANTS
from simulators.simulation.schedules import check, run
from support.budget import budget

SEEDS = budget(800)
BATCH = 50
QUICKLY_FOUND = (
    "always_intact",
    "always_whole",
    "bare_position",
    "diverted_marker",
    "early_barrier",
    "end_inside_snapshot",
    "entry_at_top",
    "half_is_a_majority",
    "highest_end_wins",
    "history_not_held_back",
    "memory_switch",
    "no_fencing",
    "own_disk_is_durable",
    "own_snap_start",
    "promise_not_looked_at",
    "purge_kept",
    "restart_as_active",
    "ring_floor",
    "rollback_skipped",
    "rollback_too_short",
    "sweep_by_branch",
)
"""Planted mistakes that are found within so many seeds:"""
FOUND_WITHIN = 40
FOUND_FROM = {"complete_not_owed": 64, "replica_purge": 71, "stale_acknowledgement": 124}
"""Others, and where the search begins, to save time: the first seed that finds it."""


@pytest.mark.parametrize("first", range(0, SEEDS, BATCH))
def test_whatever_happens_all_come_to_hold_the_same(first: int) -> None:
    for seed in range(first, min(first + BATCH, SEEDS)):
        check(seed)


@pytest.mark.parametrize("plant", [*QUICKLY_FOUND, *FOUND_FROM])
def test_a_planted_mistake_is_found(plant: str) -> None:
    first = FOUND_FROM.get(plant, 0)
    assert any(run(seed, plant) for seed in range(first, first + FOUND_WITHIN)), PLANTS[plant].what
