"""Checks histories in files: `python -m simulators.histories FILE...`; ends with 1 where one is
wrong."""

from __future__ import annotations

import sys
from pathlib import Path

from simulators.histories.check import check, total
from simulators.histories.events import operations, read_events


def main(paths: list[str]) -> int:
    """Print a verdict per file, and one on all."""
    verdicts = []
    for path in paths:
        with Path(path).open(encoding="utf-8") as lines:
            verdicts.append(check(operations(read_events(lines))))
        print(f"{path}: {verdicts[-1]}")  # noqa: T201
    everything = total(verdicts)
    words = "holds" if everything.holds else "WRONG"
    print(f"all: {everything.operations} operations: {words}")  # noqa: T201
    return 0 if everything.holds else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
