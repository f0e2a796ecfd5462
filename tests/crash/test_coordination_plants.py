"""Mistakes planted into a replica are found by the schedules of the coordination world."""

import pytest

import coordination_world
from coordination_plants import PLANTS

SEEDS_MAX = 400
FOUND_BY = {
    "cut_first": 30, "late_start_view": 130, "loyal": 15, "longest": 430, "no_check": 20,
    "nonce_again": 190, "own_ack_early": 15, "read_before_noop": 165, "read_leaving": 285,
    "torn_install": 120,
}  # fmt: skip
"""Plant -> where the search begins, a little before a seed that found it: to save time only."""


@pytest.mark.parametrize("plant", sorted(PLANTS))
def test_a_planted_mistake_is_found(plant: str) -> None:
    first = FOUND_BY.get(plant, 0)
    for seed in range(first, first + SEEDS_MAX):
        if coordination_world.fault_of(seed, plant)[0]:
            return
    pytest.fail(f"{SEEDS_MAX} schedules did not find it")
