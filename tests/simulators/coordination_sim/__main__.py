"""`python -m simulators.coordination_sim`: run seeds, find planted mistakes, or repeat one
seed."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

from simulators.coordination_sim.conditions import FAULTS, Options
from simulators.coordination_sim.ledger import LEDGER, line, next_seed, write_table
from simulators.coordination_sim.runs import command, run, say, shrink
from simulators.coordination_sim.search import SEEDS_MAX, search_all
from simulators.coordination_sim.whole import ALL_PLANTS
from simulators.coordination_sim.whole import run as run_whole
from simulators.coordination_sim.whole_mistakes import WHOLE_PLANTS

LEDGER_SEEDS = 4


def main() -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(prog="coordination_sim", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--count", type=int, help="how many; with --all-plants: for each")
    parser.add_argument("--hours", type=float, help="simulated ones, instead of --count")
    parser.add_argument("--without", default="", help="fault classes to leave out")
    parser.add_argument("--only", help="a short run with these fault classes, or `nothing`")
    parser.add_argument("--fix", default="", help="its conditions: members=5,late=0.1,...")
    parser.add_argument("--clients", type=int, default=12, help="at most so many")
    parser.add_argument("--until", type=float, default=1e9, help="end there, in simulated seconds")
    parser.add_argument("--trace", help="print what this node does at the end, or all of them")
    parser.add_argument("--plant", choices=sorted(ALL_PLANTS), help="make this mistake")
    parser.add_argument("--all-plants", action="store_true", help="each of them in turn")
    parser.add_argument("--whole", action="store_true", help="whole nodes, of several groups")
    parser.add_argument("--shrink", action="store_true", help="make a run that fails smaller")
    parser.add_argument(
        "--ledger", type=Path, help="go on with its seeds, for ever, and add lines"
    )
    parser.add_argument("--revision", default="", help="of the code, for the ledger")
    parser.add_argument("--table", type=Path, help="write what came of it into this document")
    args = parser.parse_args()
    without = frozenset(filter(None, args.without.split(",")))
    only = None if args.only is None else frozenset(args.only.split(",")) - {"nothing"}
    if unknown := (without | (only or frozenset())) - set(FAULTS):
        parser.error(f"no such faults: {sorted(unknown)}")
    options = Options(without, args.clients, args.until, args.plant, only, fixed(args.fix))
    trace = int(args.trace) if (args.trace or "").isdigit() else args.trace
    if args.all_plants and args.whole:
        return search_all(args.seed, args.count or SEEDS_MAX, None, run_whole, WHOLE_PLANTS)
    if args.all_plants:
        return search_all(args.seed, args.count or SEEDS_MAX, args.table)
    if args.table:
        write_table(args.table, args.ledger or LEDGER)
        return 0
    if args.ledger:
        return keep_running(args.ledger, args.revision)
    return seeds(args, options, trace)


def fixed(text: str) -> tuple[tuple[str, float], ...]:
    """Return what `--fix` says."""
    pairs = (part.split("=") for part in filter(None, text.split(",")))
    return tuple((name, float(value) if "." in value else int(value)) for name, value in pairs)


def keep_running(path: Path, revision: str) -> int:
    """Run seed after seed; end only when somebody ends it."""
    while True:
        first = next_seed(path)
        outcomes = [run(seed, Options()) for seed in range(first, first + LEDGER_SEEDS)]
        with path.open("a", encoding="utf-8") as ledger:
            ledger.write(line(revision, outcomes) + "\n")
        for outcome in outcomes:
            if outcome.wrong:
                say(f"{revision} seed {outcome.seed}: {outcome.wrong}")


def seeds(args: argparse.Namespace, options: Options, trace: int | str | None) -> int:
    """Run seeds; 1 if something was found."""
    total, hours, processor = Counter[str](), 0.0, 0.0
    wanted = args.hours if args.hours is not None else 1e9
    count = (args.count or 1) if args.hours is None else 10**9
    found, run_one = 0, run_whole if args.whole else run
    for seed in range(args.seed, args.seed + count):
        outcome = run_one(seed, options, trace)
        say(*outcome.lines)
        total += outcome.counts
        hours += outcome.simulated_s / 3600
        processor += outcome.processor_s
        if count == 1:
            say(f"digest {outcome.digest}")
        if outcome.wrong:
            found += 1
            say(f"seed {seed}: {outcome.wrong}")
            least = shrink(seed, options, run_one) if args.shrink else options
            say(f"    {command(seed, least, is_whole=args.whole)}")
        if hours >= wanted:
            break
    rate = hours * 3600 / processor if processor else 0
    say(f"{hours:.2f} simulated hours, {processor:.0f} s, {rate:.0f} x, {found} violations")
    say(f"    {dict(sorted(total.items()))}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
