"""Random schedules over the real index: the rules of its commits hold, and each is needed."""

import pytest

from millstream.errors import CorruptionError
from simulators.index_plants import PLANTS
from simulators.index_world import World, Wrong
from support.budget import budget

SCHEDULES = budget(300)
SCHEDULES_PER_PLANT_MAX = 3000
FIRST_SEEDS = {
    "the_position_of_the_index_is_not_judged": 620,
    "only_what_the_discarded_commits_made_is_freed": 794,
    "a_header_that_lacks_a_partition_serves": 200,
    "what_is_dropped_is_not_cleaned_again": 446,
    "a_header_that_cleans_a_partition_serves": 105,
    "a_lost_lease_does_not_matter": 79,
}
"""Where mistakes that few schedules meet are looked for first; the search goes on from there."""


@pytest.mark.parametrize("first", range(0, SCHEDULES, 100))
def test_an_index_agrees_with_its_sources(first):
    for seed in range(first, first + 100):
        world = World(seed)
        try:
            world.run()
        except Wrong as wrong:
            pytest.fail(f"schedule {seed}: {wrong}\n" + "\n".join(world.trace[-30:]))


@pytest.mark.parametrize("name", PLANTS)
def test_schedules_find_a_planted_mistake(name, monkeypatch):
    PLANTS[name](monkeypatch)
    first = FIRST_SEEDS.get(name, 0)
    with pytest.raises((Wrong, CorruptionError, AssertionError)):  # or a core notices by itself
        run_all(range(first, first + SCHEDULES_PER_PLANT_MAX))


def run_all(seeds):
    for seed in seeds:
        World(seed).run()
