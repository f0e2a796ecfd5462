"""Running a schedule: as it is, with a planted mistake, or with its trace."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from millstream.errors import MillstreamError
from simulators.simulation.plants import PLANTS
from simulators.simulation.world import World

CHUNK_SEEDS = 50
TRACE_LINES = 60
WRONG = (AssertionError, MillstreamError, KeyError, IndexError, ValueError)
"""What a schedule may raise that finds something."""


def say(*lines: str) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


@contextmanager
def quietly() -> Iterator[None]:
    """What nodes log is of no use here, and slow."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def run(seed: int, plant: str | None = None) -> str | None:
    """Run one schedule; return what is wrong, if anything."""
    with quietly(), PLANTS[plant].make() if plant else nullcontext():
        try:
            World(seed).run()
        except WRONG as error:
            return f"{type(error).__name__}: {error}"
    return None


def replay_command(seed: int, plant: str | None = None) -> str:
    planted = f" --plant {plant}" if plant else ""
    return f'make simulate ARGS="--seed {seed}{planted}"'


def traced(seed: int, plant: str | None = None) -> int:
    """Run one schedule and print what happened; 1 if something is wrong."""
    lines: list[str] = []
    with quietly(), PLANTS[plant].make() if plant else nullcontext():
        try:
            World(seed, lines).run()
        except WRONG:
            say(*lines)
            raise
    say(*lines)
    return 0


def check(seed: int) -> None:
    """Run one schedule as it is; what is wrong is raised, with its trace and how to repeat it."""
    lines: list[str] = []
    try:
        with quietly():
            World(seed, lines).run()
    except Exception as error:
        error.add_note("\n".join(lines[-TRACE_LINES:]))
        error.add_note(replay_command(seed))
        raise
