"""Run schedules: `python -m simulators.sites --seeds 1000`; a failing one is printed with its
trace."""

import argparse
import multiprocessing
import sys
import time

import pytest

from simulators.sites.plants import PLANTS
from simulators.sites.world import World


def run_seed(job):
    """Return (seed, what is wrong or None, the end of its trace)."""
    seed, plant = job
    with pytest.MonkeyPatch.context() as patch:
        options = {}
        if plant:
            options = PLANTS[plant](patch) or {}
        world = World(seed, **options)
        try:
            world.run()
        except AssertionError as wrong:
            return seed, f"{type(wrong).__name__} {wrong}", world.trace[-40:]
    return seed, None, []


def search(seeds, plant, *, stops):
    """Run the seeds; return (number run, those that are wrong)."""
    done, wrong = 0, []
    with multiprocessing.Pool() as pool:
        jobs = [(seed, plant) for seed in seeds]
        for seed, what, trace in pool.imap(run_seed, jobs, chunksize=2):
            done += 1
            if what is not None:
                wrong.append((seed, what, trace))
                if stops:
                    break
    return done, wrong


def say(*lines):
    sys.stdout.write("\n".join([*lines, ""]))
    sys.stdout.flush()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--plant", choices=sorted(PLANTS))
    parser.add_argument("--all-plants", action="store_true")
    args = parser.parse_args()
    seeds = range(args.seed, args.seed + args.seeds)
    bad = 0
    for plant in PLANTS if args.all_plants else [args.plant]:
        began = time.monotonic()
        done, wrong = search(seeds, plant, stops=plant is not None or len(seeds) == 1)
        bad += bool(wrong) == (plant is None)
        took = f"{done} schedules, {len(wrong)} wrong, {time.monotonic() - began:.0f} s"
        first = f"; seed {wrong[0][0]}: {wrong[0][1]}" if wrong else ""
        say(f"{plant or 'as it is'}: {took}{first}")
        if plant is None and wrong:
            say(*(f"seed {seed}: {what}" for seed, what, _ in wrong))
            say(*wrong[0][2])
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
