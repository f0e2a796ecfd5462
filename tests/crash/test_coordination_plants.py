"""Mistakes planted into a replica are found by the schedules of the coordination world."""

import pytest

import coordination_world
from coordination_plants import PLANTS

SEEDS_MAX = 1000
FOUND_BY = {
    "cut_first": 216, "late_start_view": 347, "longest": 56, "lost_is_gap": 70, "no_check": 80,
    "nonce_again": 374, "read_before_noop": 128, "read_leaving": 741, "teach_all": 370,
    "torn_install": 95,
}  # fmt: skip
"""Plant -> where the search begins, to save time: the first seed from 0 that found it.

Only `read_leaving`, `nonce_again`, `teach_all`, `late_start_view` and `cut_first` took more than
200.
"""


@pytest.mark.parametrize("plant", sorted(PLANTS))
def test_a_planted_mistake_is_found(plant: str) -> None:
    first = FOUND_BY.get(plant, 0)
    for seed in range(first, first + SEEDS_MAX):
        if coordination_world.fault_of(seed, plant)[0]:
            return
    pytest.fail(f"{SEEDS_MAX} schedules did not find it")
