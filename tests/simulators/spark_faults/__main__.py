"""`python -m simulators.spark_faults`: run schedules, say what happened in them, or repeat one
seed."""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from simulators.spark_faults.schedule import FAMILIES, PLANTS, Schedule, schedule_of
from simulators.spark_faults.world import Outcome, World

PLANT = "MILLSTREAM_SPARK_PLANT"


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def run_many(world: World, family: str, first: int, wanted: int) -> list[Outcome]:
    """Run schedules until so many count; those that need executors of their own come last.

    A schedule whose faults never came up is told, and another one is run in its place.
    """
    outcomes: list[Outcome] = []
    seeds = itertools.count(first)
    while (left := wanted - sum(one.counted or bool(one.wrong) for one in outcomes)) > 0:
        assert len(outcomes) < 2 * wanted + 3, "most schedules come to nothing"
        schedules = [schedule_of(family, seed) for seed in itertools.islice(seeds, left)]
        schedules.sort(key=lambda one: one.is_spread)
        outcomes += [run_one(world, schedule) for schedule in schedules]
    return outcomes


def until_found(
    world: World, family: str, first: int, most: int, plant: str
) -> tuple[list[Outcome], bool]:
    """Run schedules with a mistake until one shows it; return also whether one did."""
    outcomes: list[Outcome] = []
    os.environ[PLANT] = plant
    for seed in range(first, first + most):
        outcomes.append(run_one(world, schedule_of(family, seed)))
        if is_by_plant(world, outcomes[-1]):
            return outcomes, True
    return outcomes, False


def is_by_plant(world: World, outcome: Outcome) -> bool:
    """Whether a schedule is wrong by the mistake in it.

    A sink that differs is; a failure or a time limit only where there is none without the mistake.
    """
    if outcome.is_difference or not outcome.wrong:
        return outcome.is_difference
    plant = os.environ.pop(PLANT)
    world.end_spark()
    try:
        say("    the same without the mistake:")
        return not run_one(world, outcome.schedule).wrong
    finally:
        os.environ[PLANT] = plant
        world.end_spark()


def run_one(world: World, schedule: Schedule, *, is_traced: bool = False) -> Outcome:
    """Run a schedule, and say how it went."""
    outcome = world.run(schedule)
    verdict = outcome.wrong or ("equal" if outcome.counted else "equal, but nothing went wrong")
    say(f"{schedule.family} {schedule.seed:4} {outcome.seconds:5.1f} s  {verdict}")
    if is_traced or outcome.wrong:
        say(f"    {schedule}\n    {dict(outcome.counts)}")
    if outcome.wrong:
        say(f"    again: {command(schedule.family, schedule.seed)}")
    return outcome


def command(family: str, seed: int) -> str:
    return f'make faults ARGS="--family {family} --seed {seed}"'


def summary(family: str, outcomes: list[Outcome]) -> str:
    """Return what is to be known of many schedules."""
    mine = [one for one in outcomes if one.schedule.family == family]
    counts = sum((one.counts for one in mine), Counter[str]())
    equal = sum(one.counted and not one.wrong for one in mine)
    lines = [
        f"{family}: {equal} of {len(mine)} schedules equal, "
        f"{sum(not one.counted and not one.wrong for one in mine)} do not count, "
        f"{sum(bool(one.wrong) for one in mine)} wrong"
    ]
    lines += [f"    {number:6} {name}" for name, number in sorted(counts.items())]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="spark_faults", description=__doc__)
    parser.add_argument("--seed", type=int, help="repeat this one")
    parser.add_argument("--family", choices=FAMILIES, help="default: both in turn")
    parser.add_argument("--first", type=int, default=1, help="the first of many seeds")
    parser.add_argument("--schedules", type=int, default=100, help="how many of each family")
    parser.add_argument("--plant", choices=sorted(PLANTS), help="make this mistake until found")
    parser.add_argument("--keep", type=Path, help="where data and logs are kept")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that nothing is left running
    families = FAMILIES if args.family is None else (args.family,)
    if args.plant is not None:
        families = (PLANTS[args.plant][0],)
    began = time.monotonic()
    outcomes: list[Outcome] = []
    is_found = False
    with tempfile.TemporaryDirectory(prefix="spark-faults-") as made:
        folder = args.keep or Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        world = World(folder)
        try:
            for family in families[::-1]:
                if args.seed is not None:
                    outcomes += [run_one(world, schedule_of(family, args.seed), is_traced=True)]
                elif args.plant is not None:
                    outcomes, is_found = until_found(
                        world, family, args.first, args.schedules, args.plant
                    )
                else:
                    outcomes += run_many(world, family, args.first, args.schedules)
        finally:
            world.close()
    for family in families:
        say(summary(family, outcomes))
    say(f"{time.monotonic() - began:.0f} s")
    if args.plant is not None:
        return not is_found
    return any(one.wrong for one in outcomes)


if __name__ == "__main__":
    sys.exit(main())
