"""What callers of namespaces may want next: locks, moves, also by force, semaphores, barriers,
queues, counters.

Elsewhere: callers (`namespace_callers`, `coordination_sim.namespace_clients`), what has to hold
(`namespace_truth`).
"""

from __future__ import annotations

import random
from typing import Any, Protocol

from millstream.coordination.core.namespace.paths import parse_path
from millstream.coordination.core.namespace.state.claims import LOCKS, Mode, Phase
from simulators.namespace_truth import BARRIER_SIZE, COUNTER, PATHS, QUEUE
from simulators.namespace_world import Words

__all__ = ["FOCUSES", "HasItems", "RandomRequests"]

FOCUSES = ("locks", "sync", "data", "all")


class HasItems(Protocol):
    """Who wants something."""

    items: list[bytes]
    """Of the queue, that it has taken and not given back."""


class RandomRequests:
    """Draws what is wanted; `state` is that of the namespaces, `focus` one of `FOCUSES`."""

    rng: random.Random
    focus: str
    state: Any

    def held(self, session: int) -> list[tuple[str, Mode]]:
        """Return what a session has: paths and modes."""
        state = self.state
        claims = state.synchronisation.claims
        found = []
        for element in claims.elements_of(session):
            hold = claims.held_by(session, element)
            path = state.elements.path(element)
            found.append((path.decode(), hold.mode))
        return found

    def locked(self) -> list[str]:
        """Return where anybody holds a lock."""
        elements, claims = self.state.elements, self.state.synchronisation.claims
        found = [(path, elements.find(parse_path(path.encode()))) for path in PATHS]
        return [
            path
            for path, element in found
            if element and any(claims.number(element, Phase.HELD, mode) for mode in LOCKS)
        ]

    def forced(self, put: Words, path: str) -> Words:
        """Return what passes the locks of others: also trees with locks to where others are."""
        targets = {one: f"{one}/w" for one in ("/n/a", "/n/b")}
        locked = self.locked()
        moves = [
            ("FORCE", "MOVE", source, targets[above])
            for source in locked
            for above in locked
            if above in targets and not source.startswith(above)
        ]
        if moves and self.rng.random() < 0.7:
            return self.rng.choice(moves)
        return self.rng.choice((("FORCE", *put), ("FORCE", "DELETE", path, "RECURSIVE")))

    def invent(self, caller: HasItems, session: int) -> Words:
        """Return what a caller wants next."""
        pick, chance = self.rng.choice, self.rng.random
        path, deep = pick(PATHS), pick(("/n/a/x", "/n/a/y", "/n/a/x/z", "/n/b/x", "/n/b/w"))
        held = [one for one, mode in self.held(session) if mode in LOCKS]
        paths = sorted({path} | ({deep} if chance() < 0.2 else set()))
        at_once = ("NOWAIT",) * (chance() < 0.1)
        lock = ("LOCK", pick(("READ", "WRITE")), "GROUP", *paths, *at_once)
        release = ("LOCK", "RELEASE", pick(held) if held else path)
        cancel, put = ("LOCK", "CANCEL", path), ("PUT", path, "x")
        locks: list[Words] = [lock, lock, release, release, cancel, put]
        deep = pick(held) if held and chance() < 0.4 else deep
        target = pick(("/n/a/w", "/n/b/w", "/n/b/x", "/n/a/x"))
        moves: list[Words] = [
            ("CREATE", "BINARY", deep), ("DELETE", deep, "RECURSIVE"), ("MOVE", deep, target),
            ("CREATE", "BINARY", "/n/a/y"), ("CREATE", "BINARY", "/n/b/x"),
            self.forced(put, deep),
        ]  # fmt: skip
        size, units = str(BARRIER_SIZE), str(1 + session % 2)
        sync: list[Words] = [
            ("SEMAPHORE", "INIT", units, "/n/b/x"), ("SEMAPHORE", "ACQUIRE", "/n/b/x"),
            ("SEMAPHORE", "ACQUIRE", "/n/b/x"), ("SEMAPHORE", "RELEASE", "/n/b/x"),
            ("SEMAPHORE", "DESTROY", "/n/b/x"), ("SEMAPHORE", "CANCEL", "/n/b/x"),
            ("BARRIER", "INIT", size, "/n/a/y"), ("BARRIER", "DESTROY", "/n/a/y"),
            *[("BARRIER", "WAIT", "/n/a/y")] * 3, ("BARRIER", "CANCEL", "/n/a/y"),
        ]  # fmt: skip
        count, push = ("COUNTER", "INC", COUNTER), ("QUEUE", "PUSH", QUEUE, "item")
        check = ("CHECK", "/n/a/y", "EXISTS")
        group = self.rng.sample((count, push, put, check), 3)
        data: list[Words] = [put, count, push, ("QUEUE", "TAKE", QUEUE), ("EXEC", *group)]
        if caller.items and chance() < 0.3:
            return ("QUEUE", pick(("ACK", "NACK")), QUEUE, caller.items.pop())
        return pick({
            "locks": locks + moves, "sync": sync + moves, "data": data + data + moves,
            "all": locks + moves + sync + data,
        }[self.focus])  # fmt: skip
