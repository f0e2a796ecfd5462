"""Mistakes planted into a replica or its journal are found by what follows from them."""

import pytest

from simulators.coordination_plants import PLANTS as IN_REPLICAS
from simulators.coordination_sim.plants import OUT_OF_REACH, PLANTS
from simulators.coordination_sim.search import search

SEEDS_MAX = 100
FOUND_BY = {
    "counted_early": 3, "cut_first": 2, "deaf_to_forks": 2, "faulty_is_missing": 83, "longest": 2,
    "loyal": 15, "no_check": 22, "nonce_again": 3, "old_normal": 78, "own_clock": 4,
    "torn_install": 2,
}  # fmt: skip
"""Plant -> where the search begins, to save time: the first seed that found it."""


@pytest.mark.parametrize("plant", sorted({*IN_REPLICAS, "torn_install"} - OUT_OF_REACH.keys()))
def test_a_planted_mistake_is_found(plant: str) -> None:
    assert plant in PLANTS
    assert search(plant, FOUND_BY.get(plant, 0), SEEDS_MAX).said
