"""What happens in a schedule, made from its seed alone.

Two families. `faults`: processes die, sinks and sources fail, tasks run twice, each at a chosen
point of one of the pipelines; the source may lose its tail with its node. `rollbacks`: the source
loses changes that all pipelines have, by a restart or a fail-over to a copy that lacks them.

Invariants:
1. A seed makes the same schedule everywhere: nothing here looks at a clock or a file.
"""

from __future__ import annotations

import random
from typing import NamedTuple

FAMILIES = ("faults", "rollbacks")
SINKS = ("apply", "upsert", "transactional", "view")
"""Table and bucket that repair themselves, the two writers, a view."""
PLANTS = {
    "forgets": ("rollbacks", "a rollback row is passed over"),
    "skips": ("faults", "a batch that comes again has no rows"),
    "trusts": ("faults", "what a transaction lists is taken for applied"),
    "stays": ("rollbacks", "an index does not go back where its source did"),
}
"""Mistakes that can be planted, and the family that has to find each."""
COMMITS = ("commit-before", "commit-inside", "commit-after")
ROUNDS = 3
KEYS = 300
ROWS_MAX = (40, 100, 1000)
SPECULATION_EVERY = 10
"""One schedule of faults in so many runs on executors of their own, where tasks run twice."""


class Fault(NamedTuple):
    """What happens at the hit `at` of a point.

    `action`: raise; linger, until the same work is done by another task; die, alone; driver, node,
    other-node: kill the driver, the node of the source, that of the sink.
    """

    point: str
    at: int
    action: str


class Round(NamedTuple):
    """Writes, then what goes wrong while they are brought over, until all is level again."""

    durable: int
    """Changes that outlive everything."""
    lossy: int
    """Changes that a kill of the source's node takes away."""
    fault: Fault | None
    loss: str
    """How changes are lost that all have: restart, failover or not at all."""


class Schedule(NamedTuple):
    """A seed's life of some pipelines."""

    family: str
    seed: int
    sinks: tuple[str, ...]
    is_pair: bool
    """Whether the source is on two nodes with copies of each other."""
    is_spread: bool
    """Whether executors are processes of their own, and slow tasks run twice."""
    rows_max: int
    """Changes of one batch."""
    rounds: tuple[Round, ...]


def schedule_of(family: str, seed: int) -> Schedule:
    """Return what happens."""
    rng = random.Random(f"{family} {seed}")
    if family == "rollbacks":
        return _of_rollbacks(seed, rng)
    sink = SINKS[seed % len(SINKS)]
    is_spread = seed % SPECULATION_EVERY == 0
    rounds = []
    for number in range(ROUNDS):
        fault = _fault(sink, seed + number, rng)
        if is_spread and number:
            fault = Fault("row", 1, "linger")
        if fault.action == "driver" and number:  # one of its deaths a schedule: a start takes long
            fault = Fault("plan", fault.at, "die")
        rounds.append(_round(rng, fault, ""))
    return Schedule("faults", seed, (sink,), False, is_spread, rng.choice(ROWS_MAX), tuple(rounds))


def _fault(sink: str, turn: int, rng: random.Random) -> Fault:
    """Return what goes wrong; each kind has its turn, whatever the dice."""
    at = rng.randint(1, 2)
    task = rng.choice(("read", "row") if sink == "apply" else ("row", "write"))
    # Nothing happens inside a commit of a sink that upserts, and one page is that of an index.
    has_inside = sink in ("apply", "transactional")
    commit = rng.choice(COMMITS if has_inside else COMMITS[::2])
    anywhere = rng.choice((task, commit, "plan"))
    kinds = (
        Fault(task, at, "die"),
        Fault(commit, at, "raise"),
        Fault(anywhere, at, "node"),
        Fault(task, at, "raise"),
        Fault(anywhere, at, "driver"),
        Fault(commit, at, "raise" if sink == "view" else "other-node"),
        Fault("plan", at, "raise"),
    )
    return kinds[turn % len(kinds)]


def _round(rng: random.Random, fault: Fault | None, loss: str) -> Round:
    return Round(rng.randint(20, 120), rng.randint(20, 120), fault, loss)


def _of_rollbacks(seed: int, rng: random.Random) -> Schedule:
    is_pair = seed % 2 == 0
    rounds = []
    for _ in range(ROUNDS):
        loss = rng.choice(("failover", "failover", "restart")) if is_pair else "restart"
        fault = None
        if rng.random() < 0.5:
            fault = rng.choice(
                (
                    Fault("row", rng.randint(1, 3), "die"),
                    Fault(rng.choice(COMMITS), rng.randint(1, 3), "raise"),
                )
            )
        rounds.append(_round(rng, fault, loss))
    sinks = ("apply", "view")
    return Schedule("rollbacks", seed, sinks, is_pair, False, rng.choice(ROWS_MAX), tuple(rounds))
