"""Sites that replicate while everything goes wrong: seeded schedules, and mistakes to be found."""

import time

import pytest

from simulators.sites.plants import PLANTS
from simulators.sites.world import World

SECONDS_MAX = 10
"""For schedules of the right rules; `make sites` runs 2,000."""
PLANTED_SEEDS_MAX = 400
FIRST_SEEDS = {
    "a_later_hop_may_look_inside": 9,
    "a_record_is_not_narrowed_by_the_hop": 7,
    "forgotten_deletions_do_not_matter": 28,
    "a_purge_at_the_target_does_not_matter": 27,
    "records_are_told_before_their_stamp": 41,
    "what_the_source_lost_counts_as_accepted": 18,
    "what_looks_inside_restarts_at_the_branch_point": 200,
    "a_lost_purge_does_not_matter": 88,
    "a_refused_document_that_moved_on_counts_as_taken": 150,
}
"""Where chance needs long to find a mistake: the seed at which the search begins."""


def test_no_change_is_missed(record_property):
    began, seeds, checked = time.monotonic(), 0, 0
    while time.monotonic() - began < SECONDS_MAX:
        world = World(seeds)
        world.run()
        seeds, checked = seeds + 1, checked + world.checked
    record_property("said", f"sites: {seeds} schedules, {checked} checkpoints")
    assert checked > seeds


def found_by(seeds, leaning):
    """The first seed whose schedule finds something wrong."""
    for seed in seeds:
        try:
            World(seed, **leaning).run()
        except AssertionError:
            return seed
    return None


@pytest.mark.parametrize("name", PLANTS)
def test_mistakes_are_found(monkeypatch, name):
    leaning = PLANTS[name](monkeypatch) or {}
    first = FIRST_SEEDS.get(name, 0)
    assert found_by(range(first, first + PLANTED_SEEDS_MAX), leaning) is not None
