"""Runs as wholes: what came of one, how to repeat it, and how to make it smaller."""

from __future__ import annotations

import sys
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeVar

from millstream.errors import MillstreamError
from simulators.coordination_sim.conditions import Conditions, Options
from simulators.coordination_sim.loop import Loop
from simulators.coordination_sim.world import World

WRONG = (
    AssertionError, MillstreamError, KeyError, IndexError, ValueError, AttributeError, TypeError,
)  # fmt: skip
"""What a run may raise that finds something."""
ALL = Options()


class Outcome(NamedTuple):
    """What came of a run."""

    seed: int
    wrong: str | None
    digest: str
    simulated_s: float
    processor_s: float
    counts: Counter[str]
    lines: tuple[str, ...] = ()

    @property
    def struck(self) -> frozenset[str]:
        """The fault classes that came to pass."""
        return frozenset(name for name, count in self.counts.items() if count)


def run(seed: int, options: Options = ALL, trace: int | str | None = None) -> Outcome:
    """Run one seed."""
    return outcome_of(seed, lambda: World(seed, options, trace=trace), _end)


def _end(world: World) -> str:
    committed = world.truth.committed
    return f"{world.truth.end}-{committed[-1].header.hash.hex() if committed else ''}"


class AnyWorld(Protocol):
    """What is run."""

    loop: Loop
    lines: deque[str]

    def run(self) -> None: ...

    def summary(self) -> Counter[str]: ...


W = TypeVar("W", bound=AnyWorld)


def outcome_of(seed: int, make: Callable[[], W], end: Callable[[W], str]) -> Outcome:
    """Run a world; `end` says what it came to, which is the same with each run of a seed."""
    began, wrong = time.process_time(), None
    world = make()
    try:
        world.run()
    except WRONG as error:
        wrong = f"{type(error).__name__}: {error or 'assertion'} ({where(error)})"
    return Outcome(
        seed, wrong, f"{world.loop.digest:08x}-{end(world)}", world.loop.now / 1000,
        time.process_time() - began, world.summary(), tuple(world.lines),
    )  # fmt: skip


def where(error: BaseException) -> str:
    frame, last = error.__traceback__, ""
    while frame is not None:
        last = f"{frame.tb_frame.f_code.co_filename.rsplit('/', 1)[-1]}:{frame.tb_lineno}"
        frame = frame.tb_next
    return last


def command(seed: int, options: Options, *, is_whole: bool = False) -> str:
    """Return what repeats a run."""
    arguments = f"--seed {seed}{' --whole' * is_whole} {options.as_arguments()}".strip()
    return f"PYTHONPATH=tests python -m simulators.coordination_sim {arguments}"


Run = Callable[[int, Options], Outcome]


def shrink(seed: int, options: Options, run: Run = run) -> Options:
    """Drop fault classes, then clients, then time, as long as something is still found."""
    for fault in Conditions.drawn(seed, options).faults:
        fewer = options._replace(without=options.without | {fault})
        if run(seed, fewer).wrong:
            options = fewer
    for clients in (1, 2, 4):
        fewer = options._replace(clients_max=clients)
        if clients < options.clients_max and run(seed, fewer).wrong:
            options = fewer
            break
    found = run(seed, options)
    sooner = options._replace(until_s=round(found.simulated_s + 0.001, 3))
    return sooner if run(seed, sooner).wrong else options


def say(*lines: str) -> None:
    """Print at once."""
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()
