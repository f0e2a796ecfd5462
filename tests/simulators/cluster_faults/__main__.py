"""`python -m simulators.cluster_faults`: a cluster with faults; ends with 1 if anything is wrong.

In network namespaces where this process may make them, unless `--proxies` is given. Faults and
their times are drawn from the seed; what nodes and clients do meanwhile is not.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

from simulators.cluster_faults.run import PLANTS, as_text, run_once
from simulators.coordination_faults.network import has_namespaces, run_inside_hub


def main() -> int:
    """Run once, in the right place."""
    parser = argparse.ArgumentParser(prog="python -m simulators.cluster_faults")
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    parser.add_argument("--proxies", action="store_true", help="on loopback, also for root")
    parser.add_argument("--spark", action="store_true", help="a Spark query follows, too")
    parser.add_argument("--plant", choices=PLANTS, default="", help="must be found: ends with 0")
    parser.add_argument("--keep", type=Path, help="keep logs and data in this new folder")
    parser.add_argument("--hub", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.hub is None and not options.proxies and has_namespaces():
        return run_inside_hub("simulators.cluster_faults", options.seed)
    where = "namespaces" if options.hub else "proxies"
    print(f"seed {options.seed}, {options.minutes:g} min, {where}", flush=True)  # noqa: T201
    with tempfile.TemporaryDirectory(prefix="cluster-faults-") as name:
        folder = options.keep or Path(name) / "run"
        folder.mkdir()
        outcome = run_once(
            options.seed, options.minutes * 60, folder, options.hub,
            plant=options.plant, with_spark=options.spark,
        )  # fmt: skip
    print(as_text(outcome), flush=True)  # noqa: T201
    return 0 if outcome.holds != bool(options.plant) else 1


if __name__ == "__main__":
    sys.exit(main())
