"""Run schedules: `python -m simulators.cluster --seeds 1000`; a wrong one is shown in full."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from contextlib import ExitStack

from simulators.cluster.plants import PLANTS, RARE, planted
from simulators.cluster.schedules import run

TRACE_LINES = 40


def run_seed(job: tuple[int, str | None, bool]) -> tuple[int, str | None, list[str]]:
    seed, plant, is_restored = job
    lines: list[str] = []
    with ExitStack() as stack:
        if plant is not None:
            stack.enter_context(planted(plant))
        return seed, run(seed, lines=lines, is_restored=is_restored), lines[-TRACE_LINES:]


def search(seeds: range, plant: str | None, *, is_restored: bool) -> tuple[int, list[str]]:
    """Return how many were run, and what is wrong with the first wrong one."""
    is_restored |= plant is not None and PLANTS[plant].is_restored
    with multiprocessing.Pool() as pool:
        jobs = ((seed, plant, is_restored) for seed in seeds)
        for done, (seed, wrong, lines) in enumerate(pool.imap(run_seed, jobs, chunksize=2), 1):
            if wrong is not None:
                return done, [f"seed {seed}: {wrong}", *lines]
    return len(seeds), []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--plant", choices=sorted(PLANTS))
    parser.add_argument("--all-plants", action="store_true")
    parser.add_argument("--restored", action="store_true", help="coordination loses entries")
    args = parser.parse_args()
    bad = 0
    found = [name for name in PLANTS if name not in RARE]
    for plant in found if args.all_plants else [args.plant]:
        began = time.monotonic()
        seeds = range(args.seed, args.seed + args.seeds)
        done, wrong = search(seeds, plant, is_restored=args.restored)
        bad += bool(wrong) != bool(plant)
        shown = wrong[:1] if plant else wrong
        seconds = time.monotonic() - began
        head = f"{plant or 'no mistake'}: {done} schedules, {seconds:.0f} s"
        sys.stdout.write("\n  ".join([head, *shown]) + "\n")
        sys.stdout.flush()
    return min(bad, 1)


if __name__ == "__main__":
    sys.exit(main())
