"""Clients of whole nodes: the real `Caller` over connections, operators, and strangers.

Invariants:
1. What a client was answered goes into the history, with the time of the call and of the answer;
   what it was not answered is open for ever, unless it was said that it was not done.
2. Keys name their group, so that no two groups share a part of the history.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from millstream.coordination.core.client import caller as core
from millstream.coordination.core.client.caller import (
    Caller,
)
from millstream.coordination.core.client.events import (
    ErrorReply,
    Outcome,
)
from millstream.coordination.core.client.wire import Replies, packed
from simulators.coordination_sim.lines import Line
from simulators.coordination_sim.loop import stream
from simulators.histories.events import Operation

if TYPE_CHECKING:
    from simulators.coordination_sim.whole import WholeWorld

DEADLINE_MS = 20_000.0
NOISE = (
    b"*3\r\n$3\r\nSET\r\n$-5\r\n", b"*99999999\r\n", b"*1\r\n$4\r\nPI", b"GET\r\n", b"\0\xff\r\n",
    b"*2\r\n:1\r\n", b"POST / HTTP/1.1\r\nHost: x\r\n\r\n", b"*0\r\n\r\n\r\n", b"$5\r\nhello\r\n",
    b"CSN 0 SET a b\r\n", b"GROUP 77 GET a\r\n", b"CSN 5 CSN 6\r\n", b"SESSION RESUME x y\r\n",
    b"ADMIN\r\n", b"ADMIN GROUP CREATE x\r\n", b"VDS 1 2 3\r\n", b"HELLO 9\r\n", b"INFO\r\n",
    b"SET stranger x\r\n",
)  # fmt: skip
"""What nodes are sent by mistake."""


class CallingClient:
    """One client of one group."""

    def __init__(self, callers: Callers, number: int, gid: int) -> None:
        self.callers, self.world, self.loop = callers, callers.world, callers.world.loop
        self.number, self.gid = number, gid
        rng = stream(self.world.seed, f"caller/{number}")
        nodes = [node.coord.text for node in self.world.machines]
        given = rng.sample(nodes, min(len(nodes), rng.randint(1, 3)))
        hello = (b"GROUP", b"%d" % gid, b"HELLO", b"3")
        self.caller = Caller(given, rng.random, hello=hello)
        self.line: Line | None = None
        self.reader = Replies()
        self.open: dict[int, int] = {}
        """Ticket -> place in the history."""
        self.known: dict[bytes, bytes] = {}
        self.is_over = False
        self._attempt = self._wake = self._ticket = 0

    def change(self, function: str, key: bytes) -> None:
        """Want something, and note it."""
        self._ticket += 1
        value = b"%d.%d" % (self.number, self._ticket)
        expected = self.known.get(key, b"")
        words: tuple[bytes, ...] = {
            "set": (b"SET", key, value), "cas": (b"CAS", key, expected, value),
            "get": (b"GET", key),
        }[function]  # fmt: skip
        shown = tuple(word.decode() for word in words[1:])
        name, when = f"{self.number}.{self._ticket}", round(self.loop.now * 1e6)
        self.open[self._ticket] = len(self.callers.operations)
        self.callers.operations.append(Operation(name, function, shown, None, when, None))
        argv = (b"GROUP", b"%d" % self.gid, *words)
        deadline = self.loop.now + DEADLINE_MS
        self.step(core.Call(self._ticket, argv, function != "get", deadline))

    def step(self, event: Any) -> None:
        """Have the caller take an event, and do what it wants done."""
        if self.is_over:
            return
        commands: list[bytes] = []
        for effect in self.caller.step(self.loop.now, event):
            match effect:
                case core.Transmit(argv):
                    commands.append(packed(argv))
                case core.Connect(address):
                    self._attempt += 1
                    self.loop.after(
                        self.world.network.delay(), self._connect, self._attempt, address
                    )
                case core.Disconnect():
                    commands.clear()
                    self._drop()
                case core.Wake(at_ms):
                    self._wake += 1
                    self.loop.at(max(at_ms, self.loop.now), self._tick, self._wake)
                case core.Finish():
                    self._finish(effect)
                case core.SessionLost():
                    self.world.counts["sessions lost"] += 1
        if commands and self.line is not None:
            self.line.send(b"".join(commands))

    def _tick(self, wake: int) -> None:
        if wake == self._wake:
            self.step(core.Tick())

    def _connect(self, attempt: int, address: str) -> None:
        if attempt != self._attempt or self.is_over:
            return
        line = self.callers.connected(address, self._data, self._lost)
        if line is None:
            self.step(core.Lost())
        else:
            self.line, self.reader = line, Replies()
            self.step(core.Connected())

    def _drop(self) -> None:
        self._attempt += 1
        line, self.line = self.line, None
        if line is not None:
            line.close()

    def _data(self, line: Line, data: bytes) -> None:
        if line is self.line:
            for reply in self.reader.feed(data):
                if line is self.line:
                    self.step(core.Received(reply))

    def _lost(self, line: Line) -> None:
        if line is self.line:
            self.line = None
            self.step(core.Lost())

    def _finish(self, finish: core.Finish) -> None:
        place = self.open.pop(finish.ticket)
        operation = self.callers.operations[place]
        function, reply = operation.function, finish.reply
        self.world.counts[f"calls {finish.outcome.name.lower()}"] += 1
        if finish.outcome is Outcome.UNKNOWN:
            return
        is_mismatch = isinstance(reply, ErrorReply) and reply.code == "CAS_MISMATCH"
        if finish.outcome is Outcome.FAILED or (isinstance(reply, ErrorReply) and not is_mismatch):
            self.callers.failed.add(place)
            return
        key = operation.argument[0].encode()
        result: str | bool | None = None
        if function == "get":
            assert isinstance(reply, bytes), reply
            result, self.known[key] = reply.decode(), reply
        elif function == "cas":
            result = not is_mismatch
        if function == "set" or result is True:
            self.known[key] = operation.argument[-1].encode()
        returned = round(self.loop.now * 1e6)
        self.callers.operations[place] = operation._replace(result=result, returned=returned)

    def die(self) -> None:
        """End without a word."""
        self._drop()
        self.is_over = True


class Callers:
    """All clients of a run; operators and strangers, who keep no connection."""

    def __init__(self, world: WholeWorld) -> None:
        self.world, self.loop = world, world.loop
        self.rng = stream(world.seed, "callers")
        self.clients: list[CallingClient] = []
        self.operations: list[Operation] = []
        self.failed: set[int] = set()
        self._born = 0

    def begin(self) -> None:
        """Have clients and strangers come."""
        for _ in range(self.world.conditions.clients):
            self.clients.append(self.born(1))
            self._next(len(self.clients) - 1)
        self.loop.after(1000, self.strange)
        if self.world.conditions.client_loss:
            self.loop.after(1000, self.cut_some)

    def born(self, gid: int) -> CallingClient:
        self._born += 1
        return CallingClient(self, self._born, gid)

    def _next(self, index: int) -> None:
        mean = 1000.0 * self.world.conditions.clients / self.world.conditions.rate_per_s
        self.loop.after(self.rng.expovariate(1 / mean), self.work, index)

    def work(self, index: int) -> None:
        """Have a client want the next thing."""
        self._next(index)
        client = self.clients[index]
        if self.world.calm or len(client.open) >= self.world.conditions.window:
            return
        key = b"%d/key%d" % (client.gid, self.rng.randrange(self.world.conditions.keys))
        client.change(self.rng.choices(("set", "cas", "get"), (5, 2, 4))[0], key)

    def restart_one(self, rng: Any) -> None:
        """Let a client die; one of any group comes in its place."""
        self.world.clients_of_groups.each(
            lambda namespace_clients: namespace_clients.restart_one()
        )
        index = rng.randrange(len(self.clients))
        self.clients[index].die()
        self.clients[index] = self.born(rng.choice(self.world.numbers()))

    def cut_some(self) -> None:
        """Break connections in the middle."""
        if self.world.calm:
            return
        self.loop.after(self.rng.expovariate(1 / 3000), self.cut_some)
        lines = [client.line for client in self.clients if client.line is not None]
        if lines:
            self.rng.choice(lines).reset()
            self.world.counts["client_loss"] += 1

    def connected(
        self, address: str, on_data: Callable[..., None], on_lost: Callable[..., None]
    ) -> Line | None:
        """Return a connection to a node, if it takes it."""
        node = self.world.at_coord.get(address)
        if node is None:
            return None
        line = Line(self.world, node, on_data, on_lost)
        return line if node.accept(line) else None

    def forget(self, gid: int, since_ms: float) -> None:
        """Know no more what came of the calls of a group that were answered since then."""
        since, key = round(since_ms * 1e6), f"{gid}/"
        for place, one in enumerate(self.operations):
            is_of_it = one.argument[0].startswith(key)
            if is_of_it and one.returned is not None and one.returned >= since:
                self.operations[place] = one._replace(result=None, returned=None)

    # ---- others

    def ask(self, node: Any, words: str, done: Callable[[Any], None]) -> None:
        """Ask a node something over a connection of its own; `done` takes what it says."""
        cutter = Replies()

        def data(line: Line, piece: bytes) -> None:
            for reply in cutter.feed(piece):
                line.close()
                return done(reply)
            return None

        line = self.connected(node.coord.text, data, lambda _: None)
        if line is not None:
            line.send(packed([word.encode() for word in words.split()]))

    def strange(self) -> None:
        """Send a node what makes no sense; it has to go on."""
        if self.world.calm:
            return
        self.loop.after(self.rng.expovariate(1 / 10_000), self.strange)
        cutter = Replies()

        def data(_: Line, piece: bytes) -> None:
            for _ in cutter.feed(piece):
                self.world.counts["answers to strangers"] += 1

        node = self.rng.choice(self.world.machines)
        line = self.connected(node.coord.text, data, lambda _: None)
        if line is None:
            return
        self.world.counts["strangers"] += 1
        for _ in range(self.rng.randint(1, 4)):
            noise = self.rng.choice(NOISE)
            if self.rng.random() < 0.3:
                noise = bytes(self.rng.randrange(256) for _ in range(self.rng.randint(1, 40)))
            line.send(noise)
        self.loop.after(5000, line.close)

    def history(self) -> list[Operation]:
        """Return what may have happened; what was refused for good did not."""
        return [one for place, one in enumerate(self.operations) if place not in self.failed]
