"""Clients of namespaces over replicas in false time: what they are told is right, whatever fails.

Elsewhere: all faults at once (`test_coordination_simulation`), a state alone
(`test_namespace_schedules`).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from simulators.coordination_sim.conditions import Conditions, Options
from simulators.coordination_sim.namespace_mistakes import CONDITIONS as CONDITIONS_OF_PLANTS
from simulators.coordination_sim.runs import Outcome, run
from simulators.coordination_sim.search import search

TESTS = Path(__file__).parents[1]
CONDITIONS = {
    "leaders that go": ("isolate_primary", "move_primary", "client_loss", "client_silence"),
    "crashes": ("crash", "crash_in_step", "power", "client_restart", "short_sessions"),
    "snapshots": ("partition", "snapshot_storm", "slow_node", "client_loss", "restart_storm"),
    "changes of members": ("reconfigure", "death_in_reconfigure", "pause", "short_sessions"),
    "no journal": ("no_journal", "crash", "client_loss", "upgrade"),
}
SEEDS = range(3)
QUICKLY_FOUND = (
    "ns_no_room", "ns_not_done", "ns_old_token", "ns_overrun", "ns_quiet", "ns_resume", "ns_start",
)  # fmt: skip
"""Planted mistakes; `make sim-mutants` looks for all of them."""


def short(seed: int, *faults: str, plant: str | None = None) -> Outcome:
    """Run a short one with clients of namespaces, and these faults."""
    return run(seed, Options(only=frozenset(("namespaces", *faults)), plant=plant))


@pytest.mark.parametrize("conditions", CONDITIONS)
def test_what_clients_of_namespaces_are_told_is_right(conditions: str) -> None:
    outcomes = [short(seed, *CONDITIONS[conditions]) for seed in SEEDS]
    assert [outcome.wrong for outcome in outcomes] == [None] * len(outcomes)
    assert sum(outcome.counts["requests of namespaces ok"] for outcome in outcomes)


def test_who_keeps_a_subscription_hears_all_though_its_queue_is_often_full() -> None:
    faults = frozenset(("namespaces", "partition", "slow_node", "clog"))
    outcomes = [run(seed, Options(only=faults, fixed=CONDITIONS_OF_PLANTS)) for seed in (0, 2)]
    assert [outcome.wrong for outcome in outcomes] == [None] * len(outcomes)
    assert sum(outcome.counts["overrun"] for outcome in outcomes) > 5


def test_in_good_conditions_all_is_done_and_heard() -> None:
    outcome = short(1)
    assert outcome.wrong is None
    assert outcome.counts["requests of namespaces ok"] > 100
    assert outcome.counts["messages"] > 100


def test_a_seed_is_the_same_run_in_every_process() -> None:
    digests = set()
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONPATH": f"{TESTS}:{TESTS.parent / 'src'}"}
        found = subprocess.run(
            [sys.executable, "-m", "simulators.coordination_sim", "--seed=3",
            "--only=namespaces,crash"],
            env={**environment, "PYTHONHASHSEED": hash_seed}, capture_output=True, check=True,
            text=True,
        )  # fmt: skip
        digests |= {line for line in found.stdout.splitlines() if line.startswith("digest")}
    assert len(digests) == 1


def test_about_half_of_the_seeds_have_them_and_nothing_else_of_the_conditions_changes() -> None:
    drawn = [Conditions.drawn(seed, Options()) for seed in range(60)]
    assert 20 < sum(conditions.namespaces for conditions in drawn) < 40
    with_them = next(seed for seed, conditions in enumerate(drawn) if conditions.namespaces)
    without = Conditions.drawn(with_them, Options(without=frozenset(("namespaces",))))
    periods = dict(drawn[with_them].periods)
    del periods["namespaces"]
    assert without == drawn[with_them]._replace(namespaces=False, periods=periods)


@pytest.mark.parametrize("plant", QUICKLY_FOUND)
def test_a_planted_mistake_is_found_by_what_follows_from_it(plant: str) -> None:
    assert search(plant, 0, 5).said
