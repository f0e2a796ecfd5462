"""`python -m simulators.coordination_faults`: runs of real nodes with faults; ends with 1 if one
is wrong.

In namespaces where this may make them, unless `--proxies` is said; a namespace for the clients is
entered by starting itself in it. What goes wrong when is drawn from the seed; how nodes and
clients meet it is not.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

from simulators.coordination_faults.network import has_namespaces, run_inside_hub
from simulators.coordination_faults.run import as_text, run_once


def main() -> int:
    """Run once, in the right place."""
    parser = argparse.ArgumentParser(prog="python -m simulators.coordination_faults")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    parser.add_argument("--proxies", action="store_true", help="on loopback, also for root")
    parser.add_argument("--history", type=Path, help="keep the history there")
    parser.add_argument("--hub", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.hub is None and not options.proxies and has_namespaces():
        return run_inside_hub("simulators.coordination_faults", options.seed)
    where = "namespaces" if options.hub else "proxies"
    print(f"seed {options.seed}, {options.minutes:g} min, {where}", flush=True)  # noqa: T201
    with tempfile.TemporaryDirectory(prefix="coordination-faults-") as name:
        folder = Path(name)
        outcome = run_once(options.seed, options.minutes * 60, folder, options.hub)
        kept = options.history
        if kept is None and not outcome.holds:
            kept = Path(tempfile.gettempdir()) / f"coordination-faults-{options.seed}.jsonl"
        if kept is not None:
            kept.write_bytes((folder / "history.jsonl").read_bytes())
            print(f"the history is {kept}")  # noqa: T201
    print(as_text(outcome), flush=True)  # noqa: T201
    return 0 if outcome.holds else 1


if __name__ == "__main__":
    sys.exit(main())
