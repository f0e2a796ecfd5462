"""Groups in false time: some simulated hours of every fault, and what makes a simulator worth it.

`make sim SEED=... COUNT=...` runs others; a seed that fails says how to repeat it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from millstream.vsr.core.replica.normal_case import NormalCase
from simulators.coordination_plants import planted
from simulators.coordination_sim.__main__ import fixed
from simulators.coordination_sim.conditions import FAULTS, LATER, Conditions, Options
from simulators.coordination_sim.plants import PLANTS, Plant
from simulators.coordination_sim.runs import Outcome, command, run, shrink
from simulators.coordination_sim.search import Found, search, table
from simulators.coordination_sim.world import World

HOURS = 1
"""Simulated ones, of all cases together, and each case less than one more run. `make sim-change`
has 20."""
CASES = 10
TESTS = Path(__file__).parents[1]
QUICKLY_FOUND = ("ack_early", "own_ack_early", "behind_the_end", "forgetful", "pause_is_silence")
"""Planted mistakes; `make sim-mutants` looks for all of them."""
REGRESSIONS = {
    59: "a learner that lost its log has less than its superblock says",
    81: "a member that lost its log restarted its snapshot every 10 s",
    123: "each copy of an answer caused another request, without end",
    1604: "a false alarm: a partition that began after healing never ended",
    5710: "a member with two snapshots to fetch left each for the other, forever",
    6010: "a primary repeated entries it had not sent, and lost them after their commit",
    770_013: "a false alarm: a log that began with a snapshot of a later view",
}
"""Seed -> what it found once, when there were no faults yet of `LATER`."""
LATER_REGRESSIONS = {
    2718: "a member left the snapshot it fetched for each newer one, and got none",
    3276: "a snapshot was fetched from its beginning again with each view",
    9514: "a log grew faster than it was fetched, and each view dropped what had come",
    101_787: "the same over slow links, where requests are repeated after a second",
    100_298: "a primary always gave up before its quorum had the log",
    11_630: "a state known to be wrong during a change of epoch served until a heartbeat",
    106_803: "a false alarm: the simulator made two of three states wrong",
}
"""The same, with all faults, and only clients of registers."""
NAMESPACE_REGRESSIONS = {
    300_199: "a false alarm: a new member without a journal was judged by its disk",
}
"""The same, with all faults and all clients."""
SHORT_SEEDS = range(4)


@pytest.mark.parametrize("case", range(CASES))
def test_invariants_hold_under_faults_and_the_group_recovers(case: int) -> None:
    left_s, seed = HOURS * 3600 / CASES, case
    while left_s > 0:
        outcome = run(seed)
        assert outcome.wrong is None, f"{outcome.wrong}\n{command(seed, Options())}"
        left_s -= outcome.simulated_s
        seed += CASES


@pytest.mark.parametrize("seed", REGRESSIONS)
def test_alarms_stay_fixed(seed: int) -> None:
    assert run(seed, Options(without=frozenset(LATER))).wrong is None, REGRESSIONS[seed]


@pytest.mark.parametrize("seed", LATER_REGRESSIONS)
def test_alarms_of_later_faults_stay_fixed(seed: int) -> None:
    options = Options(without=frozenset(("namespaces", "forced")))
    assert run(seed, options).wrong is None, LATER_REGRESSIONS[seed]


@pytest.mark.parametrize("seed", NAMESPACE_REGRESSIONS)
def test_alarms_of_runs_with_clients_of_namespaces_stay_fixed(seed: int) -> None:
    assert run(seed).wrong is None, NAMESPACE_REGRESSIONS[seed]


def short(seed: int, *faults: str, plant: str | None = None) -> Outcome:
    """Run a short one that has these faults."""
    return run(seed, Options(only=frozenset(faults), plant=plant))


@pytest.mark.parametrize("seed", SHORT_SEEDS)
def test_an_entry_without_a_copy_stays_missing(seed: int) -> None:
    outcome = short(seed, "lost_entry", "crash", "partition")
    assert outcome.wrong is None
    assert outcome.counts["lost_entry"] == 1


def test_a_group_that_has_forgotten_more_than_it_may_says_so_and_stands_still() -> None:
    outcomes = [short(seed, "no_journal", "forget_all", "isolate_primary") for seed in SHORT_SEEDS]
    assert [outcome.wrong for outcome in outcomes] == [None] * len(outcomes)
    counts = sum((outcome.counts for outcome in outcomes), Counter())
    assert counts["ruins that stand still"] == counts["forget_all"] > 0


def test_a_group_without_a_journal_keeps_its_word_while_a_minority_forgets() -> None:
    outcomes = [short(seed, "no_journal", "crash", "all_down") for seed in SHORT_SEEDS]
    assert [outcome.wrong for outcome in outcomes] == [None] * len(outcomes)
    assert all(outcome.counts["crashes"] and outcome.counts["commits"] for outcome in outcomes)


def test_a_group_that_is_forced_to_go_on_keeps_what_its_survivor_has_and_others_retire() -> None:
    faults = ("forced", "crash", "partition", "isolate_primary")
    outcomes = [short(seed, *faults) for seed in range(12)]
    assert [outcome.wrong for outcome in outcomes] == [None] * len(outcomes)
    counts = sum((outcome.counts for outcome in outcomes), Counter())
    assert counts["forced"]
    assert counts["committed entries lost by forks"]
    assert counts["entries made committed by forks"]


def test_a_member_that_does_not_hear_of_a_fork_is_found() -> None:
    assert search("deaf_to_forks", 0, 10).said


def test_a_new_member_that_is_counted_before_it_has_the_log_is_found() -> None:
    assert search("counted_early", 0, 20).said


def test_a_state_that_went_wrong_is_noticed_by_its_member() -> None:
    faults = ("wrong_state", "snapshot_storm", "crash")
    assert all(short(seed, *faults).wrong is None for seed in SHORT_SEEDS)
    blind = [short(seed, *faults, plant="blind_to_divergence").wrong for seed in SHORT_SEEDS]
    assert any("goes on with another state" in (wrong or "") for wrong in blind)


@pytest.mark.parametrize("plant", QUICKLY_FOUND)
def test_a_planted_mistake_is_found_by_what_follows_from_it(plant: str) -> None:
    assert search(plant, 0, 10).said


class _Fails(NormalCase):
    """Its own code fails."""

    def acknowledge(self) -> None:
        raise AttributeError("nothing to find")


class _Alarms(NormalCase):
    """Something is wrong, but not what follows from the mistake."""

    def acknowledge(self) -> None:
        raise AssertionError("something else")


def test_a_planted_mistake_whose_own_code_fails_is_not_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(
        PLANTS, "fails", Plant("", planted(normal=_Fails), ("nothing to find",), frozenset())
    )
    found = search("fails", 0)
    assert found.said is None
    assert found.broken


def test_another_alarm_than_that_of_the_mistake_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(
        PLANTS, "alarms", Plant("", planted(normal=_Alarms), ("is led by",), frozenset())
    )
    assert search("alarms", 0, 2)[:3] == (2, None, 2)


def test_what_is_found_and_what_is_not_is_in_the_table() -> None:
    found = {
        "no_check": Found(200, None, 0, 1.0), "ack_early": Found(3, "said", 0, 1.0),
        "longest": Found(1, None, 0, 1.0, "AttributeError"),
    }  # fmt: skip
    lines = "\n".join(table(found))
    assert "1 of 3" in lines
    assert "| 3 | said |" in lines
    assert "| not in 200 |" in lines
    assert "| its own code fails |" in lines


def test_a_seed_is_the_same_run_in_every_process() -> None:
    digests = set()
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONPATH": f"{TESTS}:{TESTS.parent / 'src'}"}
        found = subprocess.run(
            [sys.executable, "-m", "simulators.coordination_sim", "--seed", "5"],
            env={**environment, "PYTHONHASHSEED": hash_seed}, capture_output=True, check=True,
            text=True,
        )  # fmt: skip
        digests |= {line for line in found.stdout.splitlines() if line.startswith("digest")}
    assert len(digests) == 1


def test_links_are_gone_through_by_numbers_in_any_interpreter() -> None:
    world = World(5)
    while len(world.machines) < 9:
        world.add_machine()
    links = world.faults._links([world.machines[8], world.machines[1]])
    assert [link for link in links if 0 in link] == [(1, 0), (0, 1), (8, 0), (0, 8)]


def test_a_trace_changes_nothing() -> None:
    plain, traced = World(5), World(5, trace="all")
    plain.run()
    traced.run()
    assert traced.lines
    assert plain.loop.digest == traced.loop.digest


def test_leaving_out_a_fault_leaves_the_others_as_they_are() -> None:
    whole = Conditions.drawn(7, Options())
    less = Conditions.drawn(7, Options(without=frozenset(whole.faults[:1])))
    assert less.periods == {name: whole.periods[name] for name in whole.faults[1:]}
    assert less._replace(periods={}).rate_per_s == whole.rate_per_s


def test_a_part_of_a_short_runs_conditions_can_be_fixed_and_the_command_says_so() -> None:
    pairs = (("late", 0.2), ("members", 5))
    options = Options(only=frozenset(("late",)), fixed=pairs)
    drawn, free = Conditions.drawn(7, options), Conditions.drawn(7, options._replace(fixed=()))
    assert drawn == free._replace(late=0.2, members=5)
    _, _, text = options.as_arguments().partition("--fix ")
    assert fixed(text) == pairs


def test_a_run_that_fails_is_made_smaller_and_still_fails() -> None:
    options = Options(plant="ack_early")
    seed = next(seed for seed in range(5) if run(seed, options).wrong)
    least = shrink(seed, options)
    assert least.without or least.until_s < 1e9
    assert run(seed, least).wrong


def test_every_fault_comes_to_pass_somewhere() -> None:
    drawn = {fault for seed in range(60) for fault in Conditions.drawn(seed, Options()).faults}
    assert drawn == set(FAULTS)
