"""Runs of Hypothesis's state machines: the same examples for some time, or other ones by seeds.

`MILLSTREAM_MACHINE_EXAMPLES=N` runs N others instead; they begin with a seed that is printed, and
that `MILLSTREAM_MACHINE_SEED` repeats.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable
from itertools import count
from typing import Any

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

SECONDS = 15
EXAMPLES = int(os.environ.get("MILLSTREAM_MACHINE_EXAMPLES", "0"))
FIRST_SEED = int(
    os.environ.get("MILLSTREAM_MACHINE_SEED", secrets.randbits(32) if EXAMPLES else 0)
)


def run_examples(
    machine: Any, steps: int, examples: int, number: int, phases: tuple[Phase, ...] = tuple(Phase)
) -> None:
    """Run examples of one seed."""
    run_state_machine_as_test(
        seed(number)(machine),
        settings=settings(
            max_examples=examples, stateful_step_count=steps, deadline=None, database=None,
            suppress_health_check=list(HealthCheck), report_multiple_bugs=False, phases=phases,
        ),
    )  # fmt: skip


def run_rounds(
    machine: Any, steps: int, examples: int, tell: Callable[[str, object], None]
) -> None:
    """Run seed after seed, until there were enough examples, or the time has passed.

    `machine.example_count` is the number of examples so far.
    """
    began, first = time.monotonic(), machine.example_count
    for number in count(FIRST_SEED):
        try:
            run_examples(machine, steps, examples, number)
        except BaseException as error:  # also when interrupted
            error.add_note(f"seed {number}, the first one was {FIRST_SEED}")
            raise
        seconds, done = time.monotonic() - began, machine.example_count - first
        if done >= EXAMPLES if EXAMPLES else seconds >= SECONDS:
            break
    tell("said", f"{done} examples in {seconds:.0f} s, seeds from {FIRST_SEED}")
