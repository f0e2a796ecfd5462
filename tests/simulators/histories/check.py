"""Checks a history, for every key by itself; what a key is is told by what is done with it.

An operation touches one key, so a history is right if each key's part of it is (Herlihy and
Wing 1990); parts are small, and a search grows quickly with what it searches. Registers are
checked by the versions told, then by a search; what says more about itself needs no search.

Elsewhere: the checks (`versions` and `search`; `locks`, `queues`, `tickets`, `watches`), the
format (`events`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from simulators.histories import locks, queues, tickets, watches
from simulators.histories.events import Operation
from simulators.histories.search import STEPS_MAX, Answer, search
from simulators.histories.versions import disorders

__all__ = ["CLIENTS_MAX", "OPERATIONS_MAX", "UNDECIDED_MAX", "Verdict", "check", "total"]

OPERATIONS_MAX = 1_000
"""Operations that who makes histories does on one key, so that the search comes to an end."""
CLIENTS_MAX = 12
"""Clients at a time on one key, for the same reason."""
UNDECIDED_MAX = 0.01
"""So great a part of all keys may be undecided."""
_WRONG_MAX = 20
_CHECKS: Final[dict[str, Callable[[Sequence[Operation]], Iterable[str]]]] = {
    **dict.fromkeys(("next", "count"), tickets.disorders),
    **dict.fromkeys(("lock", "release", "put", "leader"), locks.disorders),
    **dict.fromkeys(("write", "begin", "see"), watches.disorders),
    **dict.fromkeys(("push", "take", "ack", "nack", "rest"), queues.disorders),
}
"""Of what is no register, by what is done with it."""


class Verdict(NamedTuple):
    """What a check came to."""

    keys: int
    operations: int
    open_ones: int
    undecided: int
    wrong: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Whether nothing is wrong, and hardly anything undecided."""
        return not self.wrong and self.undecided <= UNDECIDED_MAX * self.keys

    def __str__(self) -> str:
        figures = (
            f"{self.operations} operations ({self.open_ones} of unknown outcome) "
            f"on {self.keys} keys, {self.undecided} undecided, {len(self.wrong)} wrong"
        )
        return "\n".join([figures, *self.wrong[:_WRONG_MAX]])


def check(operations: Sequence[Operation], steps_max: int = STEPS_MAX) -> Verdict:
    """Check operations on any number of things."""
    parts: dict[str, list[Operation]] = {}
    for operation in operations:
        parts.setdefault(operation.key, []).append(operation)
    undecided, wrong = 0, []
    for key, part in parts.items():
        if other := _CHECKS.get(part[0].function):
            wrong += [f"key {key}: {line}" for line in other(part)]
            continue
        wrong += [f"key {key}: {line}" for line in disorders(part)]
        found = search(part, steps_max)
        if found.answer is Answer.UNDECIDED:
            undecided += 1
        elif found.answer is Answer.NO:
            wrong.append(f"key {key}: {found.stuck}")
    open_ones = sum(operation.is_open for operation in operations)
    return Verdict(len(parts), len(operations), open_ones, undecided, tuple(wrong))


def total(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the verdict on several histories together."""
    keys = operations = open_ones = undecided = 0
    wrong: list[str] = []
    for verdict in verdicts:
        keys += verdict.keys
        operations += verdict.operations
        open_ones += verdict.open_ones
        undecided += verdict.undecided
        wrong += verdict.wrong
    return Verdict(keys, operations, open_ones, undecided, tuple(wrong))
