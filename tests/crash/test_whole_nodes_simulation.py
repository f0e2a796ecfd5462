"""Whole nodes in false time: pools of several groups, with callers, operators and strangers.

`make sim ARGS=--whole` runs more; a seed that fails says how to repeat it.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from simulators.coordination_sim.conditions import Options
from simulators.coordination_sim.runs import command
from simulators.coordination_sim.search import search
from simulators.coordination_sim.whole import run
from simulators.coordination_sim.whole_mistakes import OF_POOLS, WHOLE_PLANTS

TESTS = Path(__file__).parents[1]
SEEDS, CASES = 8, 4
"""About 15 s of processor time."""
REGISTERS = Options(without=frozenset(("namespaces",)))
"""Whole runs with clients of namespaces take a minute each: here they are short ones."""


@pytest.mark.parametrize("case", range(CASES))
def test_invariants_of_all_groups_hold_under_faults_and_they_recover(case: int) -> None:
    for seed in range(case, SEEDS, CASES):
        outcome = run(seed, REGISTERS)
        assert outcome.wrong is None, f"{outcome.wrong}\n{command(seed, REGISTERS, is_whole=True)}"


def test_groups_come_and_go_and_clients_are_answered() -> None:
    total: Counter[str] = Counter()
    for seed in (0, 2):
        total += run(seed, REGISTERS).counts
    for what in ("GROUP CREATE OK", "calls answered", "answers to strangers", "histories"):
        assert total[what] > 0, total


def test_clients_of_namespaces_in_several_groups_are_told_the_truth() -> None:
    faults = ("namespaces", "crash", "isolate_primary", "move_primary", "reconfigure")
    options = Options(only=frozenset(faults))
    outcomes = [run(seed, options) for seed in (0, 1)]
    assert [outcome.wrong for outcome in outcomes] == [None, None]
    total = outcomes[0].counts + outcomes[1].counts
    for what in ("requests of namespaces ok", "messages", "names: ok OK"):
        assert total[what] > 0, total


FORCED = Options(only=frozenset(("forced", "crash")))


def test_old_members_leave_a_forced_group() -> None:
    outcomes = [run(seed, FORCED) for seed in range(2, 8)]
    assert [outcome.wrong for outcome in outcomes] == [None] * 6
    total = sum((outcome.counts for outcome in outcomes), Counter())
    assert total["forced, and told by others"] > 2, total
    assert total["committed entries lost by forks"] > 0, "some were left behind before"


def test_members_that_hear_of_a_fork_and_go_on_are_found() -> None:
    assert any(run(seed, FORCED._replace(plant="deaf_to_hearsay")).wrong for seed in range(2, 8))


@pytest.mark.parametrize("plant", ["ack_early", "own_ack_early"])
def test_a_mistake_of_a_replica_is_found(plant: str) -> None:
    assert any(run(seed, Options(plant=plant)).wrong for seed in range(6))


@pytest.mark.parametrize("plant", OF_POOLS)
def test_a_mistake_of_a_pool_is_found(plant: str) -> None:
    found = search(plant, 0, 6, run, WHOLE_PLANTS)
    assert found.said is not None, found
