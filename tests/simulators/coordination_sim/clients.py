"""Clients: sessions that write and read registers, and repeat until they are answered.

Invariants:
1. A change keeps its number whatever happens to it; a client that has died never comes back, a
   new one does in its place.
2. No number is asked for while one `SPAN` below is open: more could not be remembered.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

from millstream.vsr.core.effects import Code, Read, Reply, Request, Touch
from millstream.vsr.core.entries import NOTHING, Body, Kind
from simulators.coordination_sim.loop import stream
from simulators.histories.events import Operation

if TYPE_CHECKING:
    from simulators.coordination_sim.machine import Machine
    from simulators.coordination_sim.world import World

SPAN = 40
SIGN_OF_LIFE_MS = 2000.0
SHORT_MS = (500, 1000, 3000)
"""Time-outs of sessions that may be short; their clients show life more often."""
BACK_OFF_MS = (10.0, 100.0)


@dataclass(eq=False)
class Call:
    """One thing a client wants; `csn` 0 is a read, or the opening of a session."""

    client: Client
    function: str
    key: bytes = b""
    argv: tuple[bytes, ...] = ()
    csn: int = 0
    began: float = 0.0
    attempt: int = 0
    is_done: bool = False
    number: int = 0
    session: int = 0


@dataclass(eq=False)
class Asked:
    """What a ticket stands for; no call: an operator asked. `floor`: so much a read must have."""

    call: Call | None
    attempt: int
    machine: int
    process: int
    floor: int


@dataclass(eq=False)
class Client:
    """One process that uses the group."""

    number: int
    instance: bytes
    session: int = 0
    csn: int = 0
    target: int = 0
    seen: int = 0
    is_over: bool = False
    time_out_ms: int = 0
    open: dict[int, Call] = field(default_factory=dict)
    known: dict[bytes, bytes] = field(default_factory=dict)


class Clients:
    """All of them, and the way their requests and answers go."""

    def __init__(self, world: World) -> None:
        self.world, self.loop, self.conditions = world, world.loop, world.conditions
        self.rng = stream(world.seed, "workload")
        self.short_rng = stream(world.seed, "short sessions")
        self.asked: dict[int, Asked] = {}
        self.history: list[tuple[float, int, str, Call, Any]] = []
        """(time, client, invoke/ok, call, result)"""
        self._dropped: set[int] = set()
        """Calls that were answered by entries which a fork has dropped."""
        self._tickets = self._calls = 0
        self._born = 0
        self.clients: list[Client] = []

    def begin(self) -> None:
        """Have clients come."""
        for _ in range(self.conditions.clients):
            self.clients.append(self.born())
            self._next(len(self.clients) - 1)
        self.loop.after(SIGN_OF_LIFE_MS, self.show_life)
        if self.conditions.short_sessions:
            self.world.counts["short_sessions"] += 1
            self.show_life_often()

    def show_life_often(self) -> None:
        """Have clients of short sessions say that they live, to whoever they take for primary."""
        draw, machines = self.short_rng.random, self.world.machines
        self.loop.after(SHORT_MS[0] / 3, self.show_life_often)
        for client in self.clients:
            if client.session and client.time_out_ms and draw() < self.conditions.sign_of_life:
                delay = self.conditions.delay_ms * (0.5 + draw())
                leader = next((m for m in machines if m.leads), None)
                machine = leader or machines[client.target % len(machines)]
                self.loop.after(delay, machine.receive, Touch(client.session))

    def show_life(self) -> None:
        """Have clients say that they live, as their connections do."""
        self.loop.after(SIGN_OF_LIFE_MS, self.show_life)
        machines = self.world.machines
        for client in self.clients:
            if client.session and self.rng.random() < self.conditions.sign_of_life:
                machine = machines[client.target % len(machines)]
                self.loop.after(self._delay(), machine.receive, Touch(client.session))

    def born(self) -> Client:
        """Return a client that nobody knows yet, and have it open a session."""
        self._born += 1
        client = Client(self._born, self._born.to_bytes(16, "big"))
        client.target = self.rng.randrange(len(self.world.machines))
        if self.conditions.short_sessions and not self.world.calm:
            client.time_out_ms = self.short_rng.choice((*SHORT_MS, 0))
        self._try(Call(client, "open"))
        return client

    def _next(self, index: int) -> None:
        mean = 1000.0 * self.conditions.clients / self.conditions.rate_per_s
        self.loop.after(self.rng.expovariate(1 / mean), self.work, index)

    def work(self, index: int) -> None:
        """Have a client want the next thing."""
        self._next(index)
        client = self.clients[index]
        if self.world.calm or len(client.open) >= self.conditions.window:
            return
        key = b"key%d" % self.rng.randrange(self.conditions.keys)
        function = self.rng.choices(("set", "cas", "get", "stale"), (5, 2, 4, 1))[0]
        if function in ("get", "stale"):
            self.invoke(Call(client, function, key))
        elif client.session and self._has_span(client):
            self.invoke(self.change(client, function, key))

    def _has_span(self, client: Client) -> bool:
        changes = [call.csn for call in client.open.values() if call.csn]
        return client.csn - min(changes, default=client.csn) < SPAN

    def change(self, client: Client, function: str, key: bytes) -> Call:
        """Return a change that has the client's next number."""
        client.csn += 1
        value = b"%d/%d" % (client.number, client.csn)
        if function == "cas":
            argv = (b"CAS", key, client.known.get(key, b""), value)
        else:
            argv = (b"SET", key, value)
        return Call(client, function, key, argv, client.csn)

    def invoke(self, call: Call) -> None:
        """Begin a call, and keep it until it is answered."""
        self._calls += 1
        call.began, call.number = self.loop.now, self._calls
        call.client.open[call.number] = call
        self.history.append((self.loop.now, call.client.number, "invoke", call, None))
        self._try(call)

    # ---- attempts

    def _try(self, call: Call) -> None:
        """Send a request to whom the client takes for the primary."""
        call.attempt += 1
        machines = self.world.machines
        targets = [machines[call.client.target % len(machines)]]
        if self.rng.random() < self.conditions.client_duplicate and not self.world.calm:
            targets.append(self.rng.choice(machines))
            self.world.counts["client_duplicate"] += 1
        for machine in targets:
            self.loop.after(self._delay(), self.request, machine, call, call.attempt)
        patience = self.rng.uniform(300, 2000)
        self.loop.after(patience, self.try_again, call, call.attempt, True)

    def _delay(self) -> float:
        return self.conditions.delay_ms * (0.5 + self.rng.random())

    def _lost(self) -> bool:
        lost = not self.world.calm and self.rng.random() < self.conditions.client_loss
        self.world.counts["client_loss"] += lost
        return lost

    def request(self, machine: Machine, call: Call, attempt: int) -> None:
        """A request reaches a node."""
        if call.is_done or machine.replica is None or self._lost():
            return
        self._tickets += 1
        floor = call.client.seen if call.function == "stale" else self.world.truth.end
        self.asked[self._tickets] = Asked(call, attempt, machine.number, machine.process, floor)
        machine.receive(self.event(call, self._tickets))

    def event(self, call: Call, ticket: int) -> Request | Read:
        """Return what the RESP session of a node makes of a request."""
        client = call.client
        if call.function == "open":
            asked = Body(argv=(b"%d" % client.time_out_ms,)) if client.time_out_ms else NOTHING
            return Request(ticket, asked, client.instance, kind=Kind.SESSION_OPEN)
        if call.csn:
            body = Body(argv=call.argv)
            return Request(ticket, body, client.instance, client.session, call.csn)
        body = Body(argv=(b"GET", call.key))
        seen = client.seen if call.function == "stale" else None
        return Read(ticket, body, seen, client.session)

    def try_again(self, call: Call, attempt: int, elsewhere: bool) -> None:
        """The time of an attempt is over, or it was refused."""
        if call.is_done or attempt != call.attempt:
            return
        if elsewhere:
            call.client.target = self._other_target()
        self._try(call)

    def _other_target(self) -> int:
        """Return where else to ask: rather where the primary is said to be."""
        machines = self.world.machines
        leaders = [m.number for m in machines if m.leads]
        if leaders and self.rng.random() < 0.7:
            return self.rng.choice(leaders)
        return self.rng.randrange(len(machines))

    # ---- answers

    def replied(self, machine: Machine, reply: Reply) -> None:
        """A replica answers; the answer is checked here, whether or not it arrives."""
        if reply.ticket < 0:
            self.world.namespace_clients.door(machine).replied(reply)
            return
        asked = self.asked.pop(reply.ticket, None)
        where = None if asked is None else (asked.machine, asked.process)
        if asked is None or where != (machine.number, machine.process):
            raise AssertionError(f"ticket {reply.ticket} is answered twice, or by another process")
        call, truth = asked.call, self.world.truth
        if call is None:
            self.world.counts[f"operators were told {reply.code.value}"] += 1
            return
        if reply.code is not Code.OK:
            truth.check_refused(call.client.session, reply.code, call.client.instance)
        elif call.csn:
            truth.check_written(call.client.session, call.csn, reply)
        elif call.function != "open":
            truth.check_read(call.key, asked.floor, reply)
        if not self._lost():
            self.loop.after(self._delay(), self.answered, call, asked.attempt, reply)

    def answered(self, call: Call, attempt: int, reply: Reply) -> None:
        """An answer reaches its client."""
        if call.is_done:
            return
        if reply.code is Code.SESSIONEXPIRED:
            self._give_up(call.client)
            return
        if reply.code is not Code.OK:
            if attempt == call.attempt:
                wait = self.rng.uniform(*BACK_OFF_MS)
                elsewhere = reply.code in (Code.NOTPRIMARY, Code.NOQUORUM)
                self.loop.after(wait, self.try_again, call, attempt, elsewhere)
            return
        call.is_done = True
        client = call.client
        if call.function == "open":
            client.session = client.session or int(reply.value)
            return
        client.seen = max(client.seen, reply.lsn)
        client.open.pop(call.number, None)
        if reply.value[:1] == b"=":
            client.known[call.key] = reply.value[1:]
        elif reply.value == b"+OK":
            client.known[call.key] = call.argv[-1]
        self.history.append((self.loop.now, client.number, "ok", call, reply))
        self.world.counts["answers"] += 1

    def forget_process(self, machine: Machine) -> None:
        """Nobody will answer what this process was asked."""
        if self.world.namespace_clients is not None:
            self.world.namespace_clients.door(machine).close()
        where = machine.number
        gone = [ticket for ticket, asked in self.asked.items() if asked.machine == where]
        for ticket in gone:
            del self.asked[ticket]

    def restart_one(self, rng: Random) -> None:
        """Let a client die, and another one come in its place."""
        if self.world.namespace_clients is not None:
            self.world.namespace_clients.restart_one()
        self._give_up(rng.choice(self.clients))

    def _give_up(self, client: Client) -> None:
        """Let a client end, and another one come in its place."""
        for call in client.open.values():
            call.is_done = True
        client.is_over = True
        if client in self.clients:
            self.clients[self.clients.index(client)] = self.born()
        self.world.counts["clients gone"] += 1

    def operator_ticket(self, machine: Machine) -> int:
        """Return a ticket whose answer nobody waits for; it comes at most once all the same."""
        self._tickets += 1
        self.asked[self._tickets] = Asked(None, 0, machine.number, machine.process, 0)
        return self._tickets

    def fork(self, kept: int) -> None:
        """Know that what was answered of later entries is lost: it may have been, or not."""
        self._dropped |= {
            call.number for _, _, kind, call, reply in self.history
            if kind == "ok" and reply.lsn > kept
        }  # fmt: skip

    # ---- what came of all of it

    def operations(self) -> list[Operation]:
        """Return what was asked for and had to be true at one moment, each by a process."""
        found: list[Operation] = []
        places: dict[int, int] = {}
        for time, _, kind, call, reply in self.history:
            if call.function == "stale":
                continue
            if kind == "invoke":
                places[call.number] = len(found)
                words = (call.key, *call.argv[2:]) if call.argv else (call.key,)
                argument = tuple(word.decode() for word in words)
                name = f"{call.client.number}.{call.number}"
                when = round(time * 1e6)
                found.append(Operation(name, call.function, argument, None, when, None))
            elif call.number not in self._dropped:
                at = places[call.number]
                result: str | bool | None = None
                if call.function == "get":
                    result = reply.value[1:].decode()
                elif call.function == "cas":
                    result = reply.value == b"+OK"
                end = round(time * 1e6)
                found[at] = found[at]._replace(result=result, returned=end, version=reply.lsn)
        return found
