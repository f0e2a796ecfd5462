"""Groups in false time: some simulated hours of every fault, and what makes a simulator worth it.

`make sim SEED=... COUNT=...` runs others; a seed that fails says how to repeat it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from coordination_sim.plants import PLANTS, Plant
from coordination_sim.runs import command, run, shrink
from coordination_sim.search import Found, search, table
from coordination_sim.weather import FAULTS, Options, Weather
from coordination_sim.world import World
from millstream.coordination.core.replica import Replica

HOURS = float(os.environ.get("MILLSTREAM_SIM_HOURS", "5"))
"""Simulated ones, of all cases together; some 80 s of processor time, and each case less than one
more run."""
CASES = 10
TESTS = Path(__file__).parents[1]
QUICKLY_FOUND = ("ack_early", "own_ack_early", "behind_the_end")
"""Planted mistakes; `make sim-mutants` looks for all of them."""
REGRESSIONS = {
    59: "a learner whose log was lost has less than its superblock knew of",
    81: "a member that lost its log began its snapshot anew each 10 s, however far it was",
    123: "each copy of an answer was asked for more, so that messages bred without end",
    1604: "the simulator's: a cut that began once all was mended never ended",
    5710: "who was offered two snapshots left each for the other, for ever",
    6010: "a primary said again what it had not said yet, and forgot it once it was committed",
    770_013: "a false alarm: a log that was begun by a snapshot of a later view than its own",
}
"""Seed -> what it found once."""


@pytest.mark.parametrize("case", range(CASES))
def test_whatever_happens_the_group_keeps_its_word_and_comes_back(case: int) -> None:
    left_s, seed = HOURS * 3600 / CASES, case
    while left_s > 0:
        outcome = run(seed)
        assert outcome.wrong is None, f"{outcome.wrong}\n{command(seed, Options())}"
        left_s -= outcome.simulated_s
        seed += CASES


@pytest.mark.parametrize("seed", REGRESSIONS)
def test_what_was_found_once_is_not_found_again(seed: int) -> None:
    assert run(seed).wrong is None, REGRESSIONS[seed]


@pytest.mark.parametrize("plant", QUICKLY_FOUND)
def test_a_planted_mistake_is_found_by_what_follows_from_it(plant: str) -> None:
    assert search(plant, 0, 10).said


class _Fails(Replica):
    """Its own code fails."""

    def acknowledge(self) -> None:
        raise AttributeError("nothing to find")


class _Alarms(Replica):
    """Something is wrong, but not what follows from the mistake."""

    def acknowledge(self) -> None:
        raise AssertionError("something else")


def test_a_planted_mistake_whose_own_code_fails_is_not_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(PLANTS, "fails", Plant("", _Fails, ("nothing to find",), frozenset()))
    found = search("fails", 0)
    assert found.said is None
    assert found.broken


def test_another_alarm_than_that_of_the_mistake_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(PLANTS, "alarms", Plant("", _Alarms, ("is led by",), frozenset()))
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
            [sys.executable, "-m", "coordination_sim", "--seed", "5"],
            env={**environment, "PYTHONHASHSEED": hash_seed}, capture_output=True, check=True,
            text=True,
        )  # fmt: skip
        digests |= {line for line in found.stdout.splitlines() if line.startswith("digest")}
    assert len(digests) == 1


def test_a_trace_changes_nothing() -> None:
    plain, traced = World(5), World(5, trace="all")
    plain.run()
    traced.run()
    assert traced.lines
    assert plain.loop.digest == traced.loop.digest


def test_leaving_out_a_fault_leaves_the_others_as_they_are() -> None:
    whole = Weather.drawn(7, Options())
    less = Weather.drawn(7, Options(without=frozenset(whole.faults[:1])))
    assert less.periods == {name: whole.periods[name] for name in whole.faults[1:]}
    assert less._replace(periods={}).rate_per_s == whole.rate_per_s


def test_a_run_that_fails_is_made_smaller_and_still_fails() -> None:
    options = Options(plant="ack_early")
    seed = next(seed for seed in range(5) if run(seed, options).wrong)
    least = shrink(seed, options)
    assert least.without or least.until_s < 1e9
    assert run(seed, least).wrong


def test_every_fault_comes_to_pass_somewhere() -> None:
    drawn = {fault for seed in range(60) for fault in Weather.drawn(seed, Options()).faults}
    assert drawn == set(FAULTS)
