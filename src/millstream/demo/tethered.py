"""A `millstream` command that never outlives the process which started it.

    python -m millstream.demo.tethered PARENT_PID COMMAND...        standard input: a pipe

Invariants:
1. The command is killed when the parent ends, however that ends; what the command has started ends
   with it in turn (a node's engine, Spark's Java, its workers).

Elsewhere: how a process is tied to its parent (`runtime.process`), who starts it
(`demo.children`).
"""

from __future__ import annotations

import runpy
import sys

from millstream.runtime.process import die_with_parent

__all__ = ["main"]


def main() -> None:
    """Tie this process to its parent, then be the command."""
    parent_id = int(sys.argv.pop(1))
    die_with_parent(parent_id, sys.stdin.fileno())
    runpy.run_module("millstream", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
