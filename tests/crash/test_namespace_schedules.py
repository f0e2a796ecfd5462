"""Schedules of namespaces' clients hold what has to hold, and find mistakes that are planted."""

import struct

import pytest

from simulators import namespace_callers
from simulators.namespace_plants import PLANTS
from simulators.namespace_truth import WrongError
from support.budget import budget

SEEDS = budget(150)
SEEDS_MAX = 100
RARE = {
    "own locks count for nothing": 127,
    "executed without a reply is new": 237,
    "a request waits twice": 262,
}
"""Plant -> about how many schedules it takes, or took of an earlier revision; too many to wait."""


@pytest.mark.parametrize("first", range(0, SEEDS, 30))
def test_schedules_hold(first: int) -> None:
    for seed in range(first, first + 30):
        namespace_callers.run(seed)


@pytest.mark.parametrize("plant", sorted(PLANTS.keys() - RARE.keys()))
def test_a_planted_mistake_is_found(plant: str) -> None:
    for seed in range(SEEDS_MAX):
        try:
            with PLANTS[plant]():
                namespace_callers.run(seed)
        except (WrongError, AssertionError, struct.error):  # the last: it cannot be frozen
            return
    pytest.fail(f"{SEEDS_MAX} schedules did not find it")


def test_one_seed_gives_one_schedule() -> None:
    one, other = namespace_callers.run(11), namespace_callers.run(11)
    assert one.group.truth.finals == other.group.truth.finals
    states = [b"".join(each.group.replica.parts.execution.freeze()) for each in (one, other)]
    assert states[0] == states[1]
