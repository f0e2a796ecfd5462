"""Callers of namespaces in a schedule: what they want, and how they go about it.

Invariants:
1. A caller repeats a request under its number, on its session, until it knows how it ended or its
   time is over; then it says failed only if every attempt was refused.
2. A stock client repeats what waits under a new number; one without a session of its own gives up
   what it had under way when its connection is lost.

Elsewhere: what they may want (`namespace_requests`), whom they talk to (`namespace_world`), what
has to hold (`namespace_truth`).
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from millstream.coordination.core.namespace.state.claims import Mode
from millstream.coordination.core.namespace.state.waits import Wait
from millstream.vsr.core.replica.replica import Replica
from millstream.vsr.core.values import items
from simulators.namespace_requests import FOCUSES, RandomRequests
from simulators.namespace_truth import COUNTER, PATHS, QUEUE, WrongError, require
from simulators.namespace_world import TIME_OUT_BEATS, Ask, Connection, Group, Words, small

__all__ = ["Caller", "Schedule", "run"]

CHAOS_BEATS, HEALING_BEATS = 260, 900
REFUSED = (b"-BUSY", b"-NOQUORUM", b"-NOTPRIMARY")


@dataclass
class Call:
    """What a caller wants; `is_sent`: an attempt is under way, since `due`."""

    op: int
    csn: int
    words: Words
    deadline: int
    in_doubt: bool = False
    is_sent: bool = False
    due: int = 0


class Caller:
    """One client; `kind` is library, stock or implicit."""

    def __init__(self, kind: str, schedule: Schedule) -> None:
        self.kind, self.schedule = kind, schedule
        self.group, self.rng = schedule.group, schedule.rng
        self.session = self.csn = self.opening = self.beat = 0
        self.calls: dict[int, Call] = {}
        self.connection: Connection | None = None
        self.items: list[bytes] = []

    def step(self, chaos: bool) -> None:
        """Do the next thing there is to do."""
        if self.connection is None:
            self.connect()
        elif self.connection.replies:
            self.on_reply(*self.connection.replies.pop(0))
        elif self.opening:
            if self.group.now > self.opening + 12:
                self.lose_connection()
        else:
            self.work(self.connection, chaos)

    def connect(self) -> None:
        """Find the primary; go on with the session, or open one."""
        self.connection = Connection(self.group.view)
        self.schedule.connections.append(self.connection)
        if self.session or self.kind != "implicit":
            self.opening = self.group.now
            self.send(Ask("RESUME", self.session) if self.session else Ask("OPEN"))

    def send(self, ask: Ask) -> None:
        """Send it, as long as there is a connection."""
        assert self.connection is not None
        self.connection.asks.append(ask)
        self.beat = self.group.now

    def lose_connection(self) -> None:
        """Have no connection; what was sent may still arrive, its replies do not."""
        assert self.connection is not None
        self.connection.alive = False
        if self.rng.random() < 0.5:
            self.connection.asks.clear()
        self.connection, self.opening = None, 0
        for call in list(self.calls.values()):
            call.in_doubt, call.is_sent, call.due = call.in_doubt or call.is_sent, False, 0
            if self.kind == "implicit" and not self.session:
                self.give_up(call)

    def work(self, connection: Connection, chaos: bool) -> None:
        """Send what is due, or want something new."""
        now = self.group.now
        for call in list(self.calls.values()):
            if now > call.deadline:
                self.give_up(call)
            elif call.is_sent and now > call.due + 12:
                return self.lose_connection()
            elif not call.is_sent and now >= call.due:
                call.is_sent, call.due = True, now
                attempt = self.schedule.number()
                return self.send(Ask("CALL", self.session, call.csn, call.op, call.words, attempt))
        if now > self.beat + TIME_OUT_BEATS // 3 and self.session:
            self.send(Ask("PING"))
        elif chaos and len(self.calls) < 5 and self.rng.random() < 0.4:
            words = self.schedule.invent(self, connection.session)
            self.start(words, now + self.rng.choice((30, 80, 200)))
        return None

    def start(self, words: Words, deadline: int) -> Call:
        """Want something."""
        self.csn += 1
        call = Call(self.schedule.number(), self.csn, words, deadline)
        self.calls[self.csn] = call
        return call

    def give_up(self, call: Call) -> None:
        """Say that nobody knows how it ended, or that it failed if every attempt was refused."""
        del self.calls[call.csn]
        if not (call.in_doubt or call.is_sent):
            self.schedule.failed.add(call.op)

    def on_reply(self, csn: int, op: int, value: bytes) -> None:
        """Take what the group says."""
        if value.startswith(b"+SESSION "):
            _, session, highest = value.split()
            self.session, self.csn, self.opening = int(session), max(self.csn, int(highest)), 0
        elif value == b"-SESSIONEXPIRED":
            self.lose_session()
        elif self.opening or value == b"-SESSIONMOVED" or (value == b"-NOTPRIMARY" and not csn):
            self.lose_connection()
        elif csn in self.calls:
            self.on_answer(self.calls[csn], op, value)

    def lose_session(self) -> None:
        """Have no session any more: nobody knows of what was under way."""
        self.schedule.on_session_lost(self)
        for call in list(self.calls.values()):
            call.in_doubt = True
            self.give_up(call)
        self.session, self.csn, self.items = 0, 0, []
        self.lose_connection()

    def on_answer(self, call: Call, op: int, value: bytes) -> None:
        """Take the answer to a request."""
        require(op == call.op, f"op {call.op} is told the answer of op {op}")
        call.is_sent, call.due = False, self.group.now + self.rng.randint(1, 3)
        if value in REFUSED:
            if value == b"-NOTPRIMARY":
                self.lose_connection()
        elif value == b"-UNKNOWN":
            call.in_doubt = True
        elif value == b"-CSNGONE":
            call.in_doubt = True
            self.give_up(call)
        elif is_pending(value) and self.group.truth.finals.get(op) != value:
            call.in_doubt, call.due = True, self.group.now + TIME_OUT_BEATS // 4
            if self.kind == "stock":
                del self.calls[call.csn]
                self.start(call.words, call.deadline).due = call.due
        else:
            del self.calls[call.csn]
            known = self.group.truth.finals.get(op)
            require(known == value, f"op {op} is told {value!r}, and has ended with {known!r}")
            if call.words[:2] == ("QUEUE", "TAKE") and not value.startswith(b"-"):
                self.items += [items(item)[0][1:] for item in items(value)]

    def restart(self) -> None:
        """Be a new process that knows its session alone."""
        self.calls, self.csn, self.items = {}, 0, []
        if self.connection is not None:
            self.lose_connection()


def is_pending(value: bytes) -> bool:
    """Return whether somebody is to come again."""
    return value == b"+PENDING" or (value.startswith(b"*") and b"=PENDING" in items(value)[:1])


class Schedule(RandomRequests):
    """All that one seed decides."""

    def __init__(self, seed: int, replica_class: type[Replica] = Replica) -> None:
        self.rng, self.numbers = random.Random(seed), 0
        self.group = Group(self.rng, replica_class)
        self.connections: list[Connection] = []
        self.failed: set[int] = set()
        self.healed_at = 0
        self.focus = self.rng.choice(FOCUSES)
        kinds = ("library", "library", "stock", "implicit")
        self.callers = [Caller(kind, self) for kind in kinds]
        self.prepare()

    def number(self) -> int:
        """Return a number that is new."""
        self.numbers += 1
        return self.numbers

    def prepare(self) -> None:
        """Have the elements that all is about."""
        maker, self.group.chaos = self.callers[0], False
        requests: list[Words] = [("CREATENAMESPACE", "/n")]
        requests += [("CREATE", "BINARY", path) for path in sorted(PATHS)]
        requests += [("CREATE", "QUEUE", QUEUE), ("CREATE", "COUNTER", COUNTER)]
        for request in requests:
            call = maker.start(request, 10**6)
            while call.csn in maker.calls:
                self.group.beat()
                maker.step(chaos=False)
                for connection in self.connections:
                    self.group.receive(connection)
                self.group.commit()
            require(self.group.truth.finals[call.op] == b"+OK", f"{request} gives no OK")
        self.group.chaos = True

    def on_session_lost(self, caller: Caller) -> None:
        """Look whether that may be."""
        is_well = self.healed_at and self.group.now > self.healed_at + 4 * TIME_OUT_BEATS
        require(not is_well or caller.kind == "implicit", "a session that beats was ended")

    @property
    def state(self) -> Any:
        """The namespaces."""
        return self.group.replica.machine.state  # type: ignore[attr-defined]

    def clean_up(self, caller: Caller) -> None:
        """Let a caller give back what it has."""
        if caller.connection is None or caller.opening or len(caller.calls) > 3:
            return
        kinds = {Mode.UNIT: "SEMAPHORE"}
        held = self.held(caller.connection.session)
        requests: list[Words] = [(kinds.get(mode, "LOCK"), "RELEASE", path) for path, mode in held]
        if caller is self.callers[0]:
            requests += [("BARRIER", "DESTROY", path) for path in self.closed_barriers()]
        busy = {call.words for call in caller.calls.values()}
        for request in requests:
            if request not in busy:
                caller.start(request, self.group.now + 200)

    def closed_barriers(self) -> set[str]:
        """Return where somebody waits at a barrier."""
        waiting = (wait for _, wait in self.waits() if wait.mode is Mode.PLACE)
        return {self.state.elements.path(wait.elements[0]).decode() for wait in waiting}

    # ---- its course

    def run(self) -> None:
        """Have conditions, then none, and look at what is left."""
        for _ in range(CHAOS_BEATS):
            self.beat()
        self.heal()
        done = {op for op, value in self.group.truth.finals.items() if value[:1] != b"-"}
        require(not self.failed & done, "what is said to have failed was done")

    def beat(self) -> None:
        """Let a moment go by, in bad conditions."""
        group, rng = self.group, self.rng
        group.beat()
        for caller in rng.sample(self.callers, 2):
            caller.step(chaos=True)
        for connection in rng.sample(self.connections, min(3, len(self.connections))):
            group.receive(connection)
        if rng.random() < 0.6:
            group.commit()
        self.fault(rng.random())

    def fault(self, dice: float) -> None:
        """Do harm, perhaps."""
        group, rng = self.group, self.rng
        if dice < 0.015:
            group.change_view()
        elif dice < 0.02:
            group.suspend()
        elif dice < 0.04:
            group.suspended = False
        elif dice < 0.06:
            caller = rng.choice(self.callers)
            if caller.connection is not None:
                caller.lose_connection()
        elif dice < 0.065:
            rng.choice(self.callers[:2]).restart()
        elif dice < 0.075:
            group.clock_offset = rng.randint(-10_000, 10_000)
        elif dice < 0.08 and not group.paused:
            group.paused = rng.randint(1, 2 * TIME_OUT_BEATS)
        elif dice < 0.09:
            group.snapshot()
        self.connections = [one for one in self.connections if one.alive or one.asks]

    def heal(self) -> None:
        """Have good conditions, but for one pause, until nobody has or awaits anything."""
        group = self.group
        group.chaos, group.suspended, group.paused = False, False, 0
        self.healed_at = group.now
        for step in range(HEALING_BEATS):
            if step == 5 * TIME_OUT_BEATS:
                group.paused = 2 * TIME_OUT_BEATS
            group.beat()
            for connection in list(self.connections):
                group.receive(connection)
            for _ in range(6):
                group.commit()
            for caller in self.callers:
                caller.step(chaos=False)
                caller.step(chaos=False)
                self.clean_up(caller)
            self.connections = [one for one in self.connections if one.alive or one.asks]
            if step > 8 * TIME_OUT_BEATS and not self.unfinished():
                return
        raise WrongError(f"after the faults: {self.unfinished()}")

    def waits(self) -> list[tuple[int, Wait]]:
        """Return who waits for what; not who may leave a barrier and has not come for it."""
        waits = self.state.synchronisation.waits
        found = [
            (session, waits.there(name))
            for session in self.group.truth.sessions
            for name in waits.names_of(session)
        ]
        return [one for one in found if not (one[1].mode is Mode.PLACE and one[1].offer)]

    def unfinished(self) -> str:
        """Return what is not as it is when all is quiet."""
        for session, wait in self.waits():
            return f"session {session} waits for {wait.mode.name}"
        for session in self.group.truth.sessions:
            if self.held(session):
                return f"session {session} has {self.held(session)}"
        waiting = any(caller.calls for caller in self.callers)
        return "a request is not answered" if waiting else ""


def run(seed: int, replica_class: type[Replica] = Replica) -> Schedule:
    """Run one schedule; WrongError if something does not hold."""
    with small():
        schedule = Schedule(seed, replica_class)
        schedule.run()
    return schedule
