"""A group of real replicas behind real connections, and who changes and hears it, by a seed.

Messages between members get lost, come twice or late; members stop, start again, are cut off, are
paused, and get the state of others as a snapshot. Then all is mended: every change has to be
answered, and every hearer to hear the last update. Who was only ever refused has changed nothing.

Elsewhere: what callers and hearers do, and are promised (`hearing_clients`).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from millstream.coordination.core.backend import Done, Where
from millstream.coordination.core.group_state import GroupState
from millstream.coordination.core.resp.session import RespSession
from millstream.vsr.core.effects import (
    Code,
    Message,
    Read,
    Reply,
    Request,
    Resume,
    TakeSnapshot,
    Timer,
    Touch,
)
from millstream.vsr.core.entries import NOBODY, Body, Entry, Kind
from simulators.hearing_clients import (
    HISTORY,
    ROOT,
    Caller,
    Client,
    Hearer,
    Ledger,
    Line,
    WrongError,
    require,
)
from support.coordination.coordination_group import Group

NODES: Final = 3
STEPS: Final = 1500
HEAL_STEPS: Final = 6000
TICK_EVERY: Final = 4
"""Steps in one heartbeat of 100 ms."""


class Watched(GroupState):
    """A state that says what it does."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self._ledger = ledger

    def apply(self, entry: Entry) -> bytes:
        reply = super().apply(entry)
        self._ledger.note(entry, reply)
        return reply


class Node:
    """A member's end of connections (`backend.Backend`); gone when the member stops."""

    def __init__(self, world: World, number: int) -> None:
        self.world, self.number = world, number
        self.attached: dict[tuple[int, int], RespSession] = {}
        self.waiting: dict[int, Done] = {}

    def _ask(self, done: Done, make: Callable[[int], Any]) -> None:
        ticket = self.world.ticket()
        self.waiting[ticket] = done
        self.world.group.step(self.number, make(ticket))

    def group_of(self, key: bytes) -> int:
        return 0

    def request(
        self, gid: int, body: Body, done: Done, kind: Kind = Kind.REQUEST,
        instance: bytes = NOBODY, session: int = 0, csn: int = 0, *, is_counted: bool = False,
    ) -> None:  # fmt: skip
        self._ask(done, lambda ticket: Request(
            ticket, body, instance, session, csn, kind, is_counted,
        ))  # fmt: skip

    def read(
        self, gid: int, body: Body, done: Done, seen: int | None = None, session: int = 0
    ) -> None:
        self._ask(done, lambda ticket: Read(ticket, body, seen, session))

    def resume(self, gid: int, instance: bytes, session: int, secret: bytes, done: Done) -> None:
        self._ask(done, lambda ticket: Resume(ticket, instance, session, secret))

    def subscribe(self, gid: int, subscriber: Any, request: Any, confirm: Any) -> Reply:
        replica = self.world.group.replicas[self.number]
        if not replica.has_state:
            return Reply(0, Code.BEHIND, lsn=replica.commit_lsn)
        assert isinstance(replica.machine, GroupState)
        return replica.machine.subscribe(subscriber, request, replica.commit_lsn, confirm)

    def touch(self, gid: int, session: int) -> None:
        self.world.group.step(self.number, Touch(session))

    def tick(self, now_ms: float) -> None:
        replica = self.world.group.replicas[self.number]
        if replica.has_state and isinstance(replica.machine, GroupState):
            replica.machine.audience.tick(now_ms, replica.commit_lsn)

    def told_lsn(self, gid: int) -> int | None:
        return self.world.group.replicas[self.number].told_commit_lsn

    def where(self, gid: int) -> Where:
        replica = self.world.group.replicas[self.number]
        return Where(replica.epoch, replica.view)


class World:
    """One seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.ledger, self.counts = Ledger(), Counter[str]()
        self.steps = self.ops = self._tickets = 0
        self.is_calm = False
        self.failed: set[int] = set()
        self.group = Group(NODES, machine=lambda: Watched(self.ledger))
        self.nodes = {number: Node(self, number) for number in range(NODES)}
        self.down: dict[int, int] = {}
        self.apart: tuple[int, int] = (NODES, 0)
        self.paused: tuple[int, int] = (NODES, 0)
        self._make()
        self.callers = [Caller(self, number) for number in range(3)]
        self.hearers = [Hearer(self), Hearer(self), Hearer(self), Hearer(self, "name")]

    def _make(self) -> None:
        line = Line(self, self.nodes[self.group.leader])
        line.say(
            "made", f"CREATENAMESPACE {ROOT}",
            f"CREATE BINARY {ROOT}/a", f"CREATE BINARY {ROOT}/b",
            f"CONFIG SET {ROOT} SUBS.MIN.HISTORY {HISTORY}",
        )  # fmt: skip
        heard: list[Any] = []
        while len(heard) < 4:
            heard += line.hear()
            self.group.settle()
            self.pump()
        require(heard == [b"OK"] * 4, str(heard))

    # ---- for others

    def ticket(self) -> int:
        self._tickets += 1
        return self._tickets

    def any_node(self) -> Node | None:
        """Return one to connect to: mostly the one that leads."""
        numbers = sorted(self.nodes)
        leading = [n for n in numbers if self.group.replicas[n].leading]
        some = leading if leading and self.rng.random() < 0.6 else numbers
        return self.nodes[self.rng.choice(some)] if some else None

    # ---- the run

    def run(self) -> None:
        """Let it go wrong, then mend it."""
        while self.steps < STEPS:
            self.step()
            self._fault(self.rng.random())
        self.is_calm = True
        while not self.is_done():
            require(self.steps < STEPS + HEAL_STEPS, f"after mending: {self.state()}")
            self.step()
        done = {op for op, (_, succeeded) in self.ledger.ops.items() if succeeded}
        require(not self.failed & done, f"refused, and done: {sorted(self.failed & done)}")

    def is_done(self) -> bool:
        return not any(caller.op for caller in self.callers) and all(
            hearer.is_up_to_date for hearer in self.hearers
        )

    def state(self) -> str:
        calls = [(caller.op, caller.is_sent) for caller in self.callers]
        return f"changes {calls}, heard up to {[hearer.done_lsn for hearer in self.hearers]}"

    def step(self) -> None:
        self.steps += 1
        for number in [n for n, until in self.down.items() if self.steps >= until or self.is_calm]:
            del self.down[number]
            self.group.start(number)
            self.nodes[number] = Node(self, number)
        self._deliver(self.rng.randint(0, 6))
        clients: list[Client] = [*self.callers, *self.hearers]
        for client in self.rng.sample(clients, 3):
            client.step()
            self.pump()
        if self.steps % TICK_EVERY == 0:
            self._tick()

    def _tick(self) -> None:
        self.group.now += 100
        for number, node in list(self.nodes.items()):
            if not self._is_out(self.paused, number):
                self.group.step(number, Timer())
                node.tick(self.group.now)
        self.pump()

    def _is_out(self, out: tuple[int, int], number: int) -> bool:
        return not self.is_calm and out[0] == number and self.steps < out[1]

    def _deliver(self, most: int) -> None:
        net, rng = self.group.net, self.rng
        for _ in range(most if not self.is_calm else len(net)):
            if not net:
                return
            at = 0 if self.is_calm else rng.randrange(min(len(net), 3))
            sender, receiver, envelope = net.pop(at)
            if any(self._is_out(self.apart, number) for number in (sender, receiver)):
                continue
            luck = 1.0 if self.is_calm else rng.random()
            if receiver not in self.nodes or luck < 0.02:
                continue
            if self._is_out(self.paused, receiver) or luck < 0.04:
                net.append((sender, receiver, envelope))
                if luck >= 0.04:
                    continue
            self.group.step(receiver, Message(envelope))
            self.pump()

    def pump(self) -> None:
        """Hand on what members have answered."""
        while self.group.replies:
            ticket, reply = self.group.replies.popitem()
            for node in self.nodes.values():
                if done := node.waiting.pop(ticket, None):
                    done(reply)

    def _fault(self, dice: float) -> None:
        rng, number = self.rng, self.rng.randrange(NODES)
        if dice < 0.004 and not self.down:
            self.down[number] = self.steps + rng.choice((20, 100, 300))
            del self.nodes[number]
            self.counts["stops"] += 1
        elif dice < 0.008:
            self.apart = number, self.steps + rng.choice((50, 150, 300))
        elif dice < 0.011:
            self.paused = number, self.steps + rng.choice((20, 100))
        elif dice < 0.02 and number in self.nodes:
            self.group.step(number, TakeSnapshot(self.ticket()))
        elif dice < 0.035:
            rng.choice(self.callers).cut()
        elif dice < 0.06:
            rng.choice(self.hearers).cut()
        elif dice < 0.075:
            rng.choice(self.hearers).away_until = self.steps + rng.choice((30, 100, 250))


def run(seed: int) -> tuple[str | None, Counter[str]]:
    """Return what was wrong, if anything was, and what happened."""
    world = World(seed)
    try:
        world.run()
    except (WrongError, AssertionError) as wrong:
        return f"{type(wrong).__name__}: {wrong}", world.counts
    return None, world.counts
