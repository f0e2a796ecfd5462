"""Seeded schedules of faults on real Spark, a few; `make faults` runs hundreds.

They have a Spark of their own, since its driver is killed.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from simulators.spark_faults import __main__ as program
from simulators.spark_faults import nodes, world
from simulators.spark_faults.causes import Causes
from simulators.spark_faults.points import Points, ToldToFail
from simulators.spark_faults.schedule import ROUNDS, SINKS, schedule_of
from simulators.spark_faults.world import Difference, Executors, Outcome, Play, World

FEW = [
    pytest.param("faults", 4, marks=pytest.mark.slow),
    ("faults", 9),
]
"""Table and bucket whose driver is killed; a sink that upserts."""
CI_SEEDS = range(10, 12)
"""`make ci` runs these of both families: two other sinks, executors of their own, lost tails."""
PLAYS_MAX = 3
"""A fault may not come up, where batches are cut otherwise than they mostly are."""


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("faults"))
    yield made
    made.close()


@pytest.mark.parametrize(("family", "seed"), FEW)
def test_sinks_equal_the_source_after_random_faults(faulty: World, family: str, seed: int) -> None:
    for _ in range(PLAYS_MAX):
        outcome = faulty.run(schedule_of(family, seed))
        assert not outcome.wrong, f"{outcome.wrong}\n{outcome.schedule}\n{outcome.counts}"
        assert outcome.counts["comparisons"] == ROUNDS
        if outcome.counted:
            return
    raise AssertionError(f"its faults never came up: {outcome.schedule}\n{outcome.counts}")


def test_a_few_schedules_have_every_sink_every_fault_and_every_loss() -> None:
    faults = [schedule_of("faults", seed) for seed in (4, 9, *CI_SEEDS)]
    rollbacks = [schedule_of("rollbacks", seed) for seed in CI_SEEDS]
    assert {sink for one in faults for sink in one.sinks} == set(SINKS)
    actions = {each.fault.action for one in faults for each in one.rounds if each.fault}
    assert actions == {"raise", "die", "driver", "node", "other-node", "linger"}
    assert {each.loss for one in rollbacks for each in one.rounds} == {"failover", "restart"}
    assert any(one.is_spread for one in faults)
    assert schedule_of("faults", 7) == schedule_of("faults", 7)


# -- what schedules take for wrong; no Spark here


class FalsePlay(Play):
    """A play of one pipeline; its driver answers what it is told to, and else that all is well."""

    def __init__(self, folder: Path) -> None:
        self.points = Points(folder)
        self.causes = Causes(self.points)
        self.schedule = schedule_of("faults", 4)
        self.folder, self.counts, self.started, self.deaths = folder, Counter(), set(), Counter()
        end = SimpleNamespace(options=lambda **_: {})
        self.source = self.copy = end  # type: ignore[assignment]
        node = SimpleNamespace(log=lambda: "its log")
        self.nodes = SimpleNamespace(  # type: ignore[assignment]
            look_after=lambda: None, by_name={"a": node}, deaths=Counter()
        )
        self.answers: dict[str, list[str]] = {"start": [], "settle": [], "stop": []}

    def tell_driver(self, **said: Any) -> str:
        answers = self.answers[said["do"]]
        return answers.pop(0) if answers else ""

    def fire(self, number: int, victim: str = "") -> None:
        self.causes.armed(number, victim)
        self.points.arm(number, "plan", 1, "raise", [])
        with pytest.raises(ToldToFail):
            self.points.hit("plan")


def test_a_pipeline_that_fails_by_itself_is_wrong(tmp_path: Path) -> None:
    play = FalsePlay(tmp_path)
    play.settle()
    play.answers["settle"] = ["no lease"]
    with pytest.raises(AssertionError, match="apply failed by itself: no lease"):
        play.settle()


def test_a_pipeline_may_fail_by_a_fault_until_it_was_level_without_a_restart(
    tmp_path: Path,
) -> None:
    play = FalsePlay(tmp_path)
    play.fire(0)
    for _ in range(2):
        play.answers["settle"] = ["told to fail", "and again"]
        play.settle()
    assert play.counts["restarts of pipelines"] == 4
    play.settle()
    play.answers["settle"] = ["no lease"]
    with pytest.raises(AssertionError, match="by itself"):
        play.settle()
    play.started.clear()
    play.causes.shaken()
    play.answers["start"] = ["the node is away"]
    play.settle()


def test_a_fault_that_fires_while_pipelines_settle_is_not_over_with_that(tmp_path: Path) -> None:
    play = FalsePlay(tmp_path)
    play.causes.begin()
    play.fire(0)
    play.causes.settled()
    assert play.causes.is_any
    play.settle()
    assert not play.causes.is_any


def test_a_pipeline_that_does_not_stop_is_wrong(tmp_path: Path) -> None:
    play = FalsePlay(tmp_path)
    play.settle()
    play.fire(0)
    play.answers |= {"settle": ["told to fail"], "stop": ["the pipeline does not stop"]}
    with pytest.raises(AssertionError, match="apply does not stop: the pipeline does not"):
        play.settle()


def test_more_deaths_than_kills_are_a_failure(tmp_path: Path) -> None:
    play = FalsePlay(tmp_path)
    play.fire(0, "a")
    play.nodes.deaths["a"] = 1
    play.settle()
    play.nodes.deaths["a"] = 2
    with pytest.raises(AssertionError, match="a died 2 times, 1 of them by a fault: its log"):
        play.settle()
    with pytest.raises(AssertionError, match="driver died 1 times, 0 of them"):
        play.causes.check_deaths("driver", 1, "")


def test_a_start_that_fails_leaves_no_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    left: set[str] = set()

    class FalseNode:
        def __init__(self, folder: Path, *options: str) -> None:
            self.name, self.options = folder.name, options
            self.ready = {"kv": "h:1", "http": "h:2"}

        def start(self) -> None:
            assert self.name != "b", "no ready line"
            left.add(self.name)

        def kill(self) -> None:
            left.discard(self.name)

    monkeypatch.setattr(nodes, "NodeProcess", FalseNode)
    with pytest.raises(AssertionError, match="no ready line"):
        nodes.Nodes(tmp_path)
    assert not left

    class FalseProcesses:
        def __init__(self, folder: Path) -> None: ...

        def __exit__(self, *_: object) -> None:
            left.clear()

        def program(self, name: str) -> str:
            return name

        def start(self, name: str, command: list[str], **env: str) -> None:
            left.add(name)

        def said(self, name: str, pattern: str) -> None:
            assert name == "master", "it took too long"

    monkeypatch.setattr(world, "Processes", FalseProcesses)
    with pytest.raises(AssertionError, match="too long"):
        Executors(tmp_path, Points(tmp_path))
    assert not left


@pytest.mark.parametrize(
    ("planted", "bare", "is_found"),
    [
        (Difference("the table differs"), None, True),
        (AssertionError("not level in time"), None, True),
        (AssertionError("not level in time"), AssertionError("not level in time"), False),
        (None, None, False),
    ],
)
def test_a_mistake_is_found_by_what_is_wrong_only_with_it(
    monkeypatch: pytest.MonkeyPatch,
    planted: Exception | None,
    bare: Exception | None,
    is_found: bool,
) -> None:
    class FalseWorld:
        def run(self, schedule: Any) -> Outcome:
            error = planted if program.PLANT in os.environ else bare
            return Outcome(
                schedule, wrong=str(error or ""), is_difference=isinstance(error, Difference)
            )

        def end_spark(self) -> None: ...

    monkeypatch.setenv(program.PLANT, "")
    false: Any = FalseWorld()
    outcomes, found = program.until_found(false, "rollbacks", 1, 2, "stays")
    assert (found, len(outcomes)) == (is_found, 1 if is_found else 2)
