"""Run whole clusters: `python -m simulators.whole_cluster --seeds 100`; a wrong one is shown."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from contextlib import ExitStack

from simulators.whole_cluster.plants import FOUND, PLANTS, planted
from simulators.whole_cluster.schedules import run

TRACE_LINES = 60


def run_seed(job: tuple[int, str | None]) -> tuple[int, str | None, list[str]]:
    seed, plant = job
    lines: list[str] = []
    with ExitStack() as stack:
        if plant is not None:
            stack.enter_context(planted(plant))
        return seed, run(seed, lines=lines), lines


def search(seeds: range, plant: str | None) -> tuple[int, list[str]]:
    """Return how many were run, and what is wrong with the first wrong one."""
    with multiprocessing.Pool(int(os.environ.get("SIMULATE_PROCESSES", "2"))) as pool:
        jobs = ((seed, plant) for seed in seeds)
        for done, (seed, wrong, lines) in enumerate(pool.imap(run_seed, jobs), 1):
            if wrong is not None:
                return done, [f"seed {seed}: {wrong}", *lines[-TRACE_LINES:]]
    return len(seeds), []


def main() -> int:
    parser = argparse.ArgumentParser(prog="whole_cluster", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many")
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--trace", action="store_true", help="run one seed and show all of it")
    parser.add_argument("--plant", choices=sorted(PLANTS), help="make this mistake")
    parser.add_argument("--all-plants", action="store_true", help="each that is found, in turn")
    args = parser.parse_args()
    if args.trace:
        _, wrong, lines = run_seed((args.seed, args.plant))
        sys.stdout.write("\n".join([*lines, wrong or "nothing is wrong"]) + "\n")
        return int(bool(wrong) != bool(args.plant))
    bad = 0
    for plant in FOUND if args.all_plants else [args.plant]:
        began = time.monotonic()
        done, wrong = search(range(args.seed, args.seed + args.seeds), plant)
        bad += bool(wrong) != bool(plant)
        shown = wrong[:1] if plant else wrong
        head = f"{plant or 'no mistake'}: {done} schedules, {time.monotonic() - began:.0f} s"
        sys.stdout.write("\n  ".join([head, *shown]) + "\n")
        sys.stdout.flush()
    return min(bad, 1)


if __name__ == "__main__":
    sys.exit(main())
