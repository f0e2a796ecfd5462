"""`python -m simulators.simulation`: run seeds, find planted mistakes, or repeat one seed with
its trace."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from typing import NamedTuple

from simulators.simulation.plants import PLANTS
from simulators.simulation.schedules import CHUNK_SEEDS, replay_command, run, say, traced


class Found(NamedTuple):
    seed: int
    wrong: str


def first_wrong(job: tuple[int, int, str | None]) -> tuple[int, Found | None]:
    """Return how many seeds of a chunk were run, and the first wrong one."""
    first, stop, plant = job
    for seed in range(first, stop):
        wrong = run(seed, plant)
        if wrong is not None:
            return seed + 1 - first, Found(seed, wrong)
    return stop - first, None


def search(first: int, count: int, plant: str | None) -> tuple[int, Found | None]:
    """Return how many seeds were run, and the first wrong one; on all processors."""
    stop = first + count
    chunks = range(first, stop, CHUNK_SEEDS)
    jobs = [(at, min(at + CHUNK_SEEDS, stop), plant) for at in chunks]
    total = 0
    with multiprocessing.Pool(int(os.environ.get("SIMULATE_PROCESSES", "2"))) as pool:
        for done, found in pool.imap(first_wrong, jobs):
            total += done
            if found is not None:
                return total, found
    return total, None


def main() -> int:
    parser = argparse.ArgumentParser(prog="simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="repeat this one, with its trace")
    parser.add_argument("--first", type=int, default=0, help="the first of many seeds")
    parser.add_argument("--seeds", type=int, default=5000, help="how many")
    parser.add_argument("--plant", choices=sorted(PLANTS), help="make this mistake")
    parser.add_argument("--all-plants", action="store_true", help="each of them in turn")
    args = parser.parse_args()
    if args.seed is not None:
        return traced(args.seed, args.plant)
    status = 0
    for plant in sorted(PLANTS) if args.all_plants else [args.plant]:
        began = time.monotonic()
        total, found = search(args.first, args.seeds, plant)
        status |= (found is None) != (plant is None)
        seconds = time.monotonic() - began
        verdict = "nothing found" if found is None else f"seed {found.seed}: {found.wrong[:150]}"
        say(f"{plant or 'as it is':24}{total:6} seeds {seconds:5.0f} s  {verdict}")
        if found is not None:
            say(f"    {replay_command(found.seed, plant)}")
    return status


if __name__ == "__main__":
    sys.exit(main())
