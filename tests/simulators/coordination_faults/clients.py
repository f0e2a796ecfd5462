"""Clients that set, compare and set, and read a few registers, and write down what they are told.

Invariants:
1. A value is written at most once in a history, so that who sees it knows who wrote it.
2. A register has at most `KEY_OPERATIONS_MAX` operations, then another takes its place.

Elsewhere: how they ask (`callers`), what is right (`histories`), other things (`workloads`).
"""

from __future__ import annotations

from simulators.coordination_faults.callers import KEYS, Asker, Shared

__all__ = ["Client"]


class Client(Asker):
    """One of them; every fourth has no session, so what it loses sight of stays unknown."""

    def __init__(self, shared: Shared, seed: str) -> None:
        super().__init__(shared, seed)
        self.has_session = self.rng.random() < 0.75
        self._seen: dict[str, str] = {}

    def _operate(self) -> None:
        key = self.shared.key(self.rng.randrange(KEYS))
        function = self.rng.choice(("get", "get", "set", "cas"))
        if function == "get":
            self._get(key)
            return
        argument: tuple[str, ...] = key, self.shared.value()
        if function == "cas":
            argument = key, self._seen.get(key, ""), self.shared.value()
        self.shared.note("invoke", self.process, function, argument)
        ended, told = self._ask((function.upper(), *argument), is_change=True)
        if ended == "ok":
            told = told == "OK" if function == "cas" else None
        self._end(ended, told)

    def _get(self, key: str) -> None:
        self.shared.note("invoke", self.process, "get", (key,))
        ended, told = self._ask(("GET", key, "META"), is_change=False)
        version = None
        if ended == "ok":
            told, version = told
            self._seen[key] = told
        self._end(ended, told, version)
