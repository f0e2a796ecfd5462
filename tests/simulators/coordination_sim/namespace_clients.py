"""Clients of namespaces: connections, sessions, requests repeated until their end is known.

A client does one thing at a time. Its workload (`workloads`) is a generator that yields requests
and receives their results.

Invariants:
1. A request keeps its number, and its session; it is given up only at its deadline, or with the
   session. That it failed is said only if every attempt was refused.
2. Each attempt has a stamp of its own, so that what is executed can be told from what was refused.

Elsewhere: what has to hold (`shadow`), machines' ends of connections (`doors`), who hears
(`hearers`, `keepers`), who reads anywhere (`readers`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any

from millstream.coordination.core.client.events import ErrorReply
from millstream.coordination.core.client.wire import Replies, is_push, packed
from simulators.coordination_sim.doors import Door
from simulators.coordination_sim.hearers import Hearer
from simulators.coordination_sim.keepers import Keeper
from simulators.coordination_sim.lines import Line
from simulators.coordination_sim.loop import stream
from simulators.coordination_sim.readers import MemberReader
from simulators.coordination_sim.rights import USERS
from simulators.coordination_sim.shadow import ATTEMPTS
from simulators.coordination_sim.workloads import (
    IN_RESP3,
    OF_USERS,
    SHARERS,
    WORKLOADS,
    WORKLOADS_MAX,
    Ask,
    Nap,
    Want,
    Workload,
    preparing,
    rest,
    sharing,
)  # fmt: skip
from simulators.histories.events import Operation
from simulators.namespace_requests import FOCUSES
from simulators.namespace_truth import INSTANCE, require
from simulators.namespace_world import Words

if TYPE_CHECKING:
    from simulators.coordination_sim.machine import Machine
    from simulators.coordination_sim.world import World

ATTEMPT_MS = 1000.0
BACK_OFF_MS = (10.0, 150.0)
DOUBLINGS_MAX = 4
BELIEVED = 0.7
"""So often a client asks the node next that is said to lead; it may be wrong for ever."""
TICK_MS = 1000.0
CALM_PAUSE_MS = 100.0
CUT_MS = 4000.0
RATE_MIN, RATE_MAX = 0.5, 20.0
READERS = 2
PLAIN = 0.3
TTLS_MS, SHORT_TTLS_MS = (3000, 10_000), (500, 1000, 3000)
ELSEWHERE = ("NOTPRIMARY", "NOQUORUM", "UNKNOWN", "SESSIONMOVED")
IN_DOUBT = ("UNKNOWN", "SESSIONMOVED")
LATER = ("BUSY", "BEHIND")
PENDING = "PENDING"


class NamespaceClient:
    """One client, with one session."""

    def __init__(self, clients: NamespaceClients, number: int, workload: Workload) -> None:
        self.namespace_clients, self.world, self.loop = (
            clients,
            clients.world,
            clients.world.loop,
        )
        self.number, self.make_workload = number, workload
        self.rng = stream(self.world.seed, f"guest/{number}")
        short = self.world.conditions.short_sessions
        self.ttl_ms = self.rng.choice(SHORT_TTLS_MS if short else TTLS_MS)
        self.repeats = self.rng.random() < 0.5
        """Waits by the request it has sent, not by new ones."""
        self.is_plain = self.rng.random() < PLAIN and workload not in IN_RESP3
        """Speaks RESP2: it is told nothing but what it asks for."""
        self.user = self.rng.choice(USERS) if workload in OF_USERS else ""
        self.focus = clients.focus
        self.session = self.op = 0
        """`op`: what ended last."""
        self.items: list[bytes] = []
        self.keeper: Keeper | None = None
        """What it has subscribed to for good."""
        self.is_over = self.is_napping = self.is_done = self.is_ready = False
        self.ask: Ask | None = None
        self.workload = workload(self)
        self._known: tuple[str, str] | None = None
        self._csn = self._turn = self._failures = 0
        self._node = self.rng.randrange(100)
        self._line: Line | None = None
        self._reader: Any = None
        self._expected: deque[Callable[[Any], None] | None] = deque()
        self._pauses = 0
        self.loop.after(self.rng.random() * 500, self.wake, 0)
        self._beat()

    # ---- what it does

    def go_on(self, told: tuple[str, Any] | None) -> None:
        """Have the workload go on; it is told how what it wanted ended."""
        if self.is_over:
            return
        self.is_napping = False
        try:
            want = self.workload.send(told)
        except StopIteration:
            self.is_done = True
            return
        if isinstance(want, Nap):
            self.is_napping = want.is_silent
            self._pauses += 1
            ms = min(want.ms, CALM_PAUSE_MS) if self.world.calm else want.ms
            self.loop.after(ms, self.wake, self._pauses)
        else:
            self._want(want)

    def wake(self, pause: int | None = None) -> None:
        """A pause is over: the one meant, or the one there is."""
        if self.is_pausing and pause in (None, self._pauses):
            self._pauses += 1
            self.go_on(None)

    @property
    def is_pausing(self) -> bool:
        return self.ask is None and not self.is_done

    def _want(self, want: Want) -> None:
        self.ask = Ask(want, self.namespace_clients.op(want.words, self.user))
        if not want.is_vital:
            self.loop.after(want.deadline_ms, self._give_up, self.ask)
        self._try()

    def _give_up(self, ask: Ask) -> None:
        if self.ask is ask:
            self._finish("info" if ask.in_doubt or ask.is_sent else "fail", None)

    def _finish(self, ended: str, told: Any) -> None:
        ask = self.ask
        assert ask is not None
        self.ask, self.op = None, ask.op
        self._turn += 1
        if ask.want.changes and ended == "fail":
            self.namespace_clients.shadow.truth.failed.add(ask.op)
        ended = ended if ask.want.changes or ended == "ok" else "fail"
        self.world.counts[f"requests of namespaces {ended}"] += 1
        self.go_on((ended, told))

    def end(self) -> None:
        """Be gone without a word."""
        self.is_over = True
        if self._line is not None:
            self._line.reset()
        self._line = None

    def cut(self) -> None:
        """Have the connection break."""
        if self._line is not None:
            self._line.reset()

    # ---- attempts

    def _later(self, ms: float | None = None) -> None:
        self._turn += 1
        if ms is None:
            ms = self.rng.uniform(*BACK_OFF_MS) * 2 ** min(self._failures, DOUBLINGS_MAX)
            self._failures += 1
        self.loop.after(ms, self._at_turn, self._turn)

    def _at_turn(self, turn: int) -> None:
        is_resting = self.ask is None and (self.is_napping or self.is_done)
        if turn == self._turn and not self.is_over and not is_resting:
            self._try()

    def _try(self) -> None:
        if self._line is None:
            self._connect()
        elif self.is_ready and self.ask is not None and not self.ask.is_sent:
            self._send(self.ask)

    def _send(self, ask: Ask) -> None:
        assert self._line is not None
        if ask.want.changes and not ask.csn:
            self._csn += 1
            ask.csn = self._csn
        ask.attempt, ask.is_sent = next(self.namespace_clients.attempts), True
        *first, last = ask.want.requests
        for words in first:
            self._say(words, None, self.namespace_clients.names.real)
        prefix: Words = ("CTS", str(ask.op * ATTEMPTS + ask.attempt))
        prefix += ("CSN", str(ask.csn)) if ask.csn else ()
        plain = self.namespace_clients.names.plain
        self._say((*prefix, *last), lambda reply: self._answered(ask, plain(reply)))
        self.loop.after(self._patience_ms, self._overdue, ask, ask.attempt)

    @property
    def _patience_ms(self) -> float:
        return ATTEMPT_MS + 30 * self.world.conditions.delay_ms

    def _overdue(self, ask: Ask, attempt: int) -> None:
        if self.ask is ask and ask.attempt == attempt and ask.is_sent:
            self._leave()

    def _say(
        self, words: Words, known: Callable[[Any], None] | None,
        called: Callable[[Any], Any] | None = None,
    ) -> None:  # fmt: skip
        assert self._line is not None
        self._expected.append(known)
        words = (
            self.namespace_clients.as_said(words) if called is None else tuple(map(called, words))
        )
        flat = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        self._line.send(packed(flat))

    # ---- the connection

    def _connect(self) -> None:
        self._line = self.namespace_clients.connected(self._node, self._data, self._lost)
        self.is_ready = False
        self._expected.clear()
        if self._line is None:
            self._node += 1
            return self._later()
        self._reader = Replies("utf-8")
        if not self.is_plain:
            self._say(("HELLO", "3"), None)
        if self.user:
            self._say(("AUTH", self.user, "password"), None)
        if self._known is None:
            instance = INSTANCE.hex()
            words: Words = ("SESSION", "OPEN", "TTL", f"{self.ttl_ms}", "INSTANCE", instance)
        else:
            words = ("SESSION", "RESUME", *self._known)
        self._say(words, self._has_session)
        self.loop.after(self._patience_ms, self._greeted_late, self._line)
        return None

    def _greeted_late(self, line: Line) -> None:
        if self._line is line and not self.is_ready:
            self._leave()

    def _has_session(self, reply: Any) -> None:
        if isinstance(reply, ErrorReply):
            self._refused(reply)
            return
        if self.is_plain:
            reply = dict(zip(reply[::2], reply[1::2], strict=True))
        if self._known is None:
            self._known, self._csn = (reply["client_id"], reply["secret"]), 0
            self.session = int(reply["client_id"].rpartition("-")[2])
        self._csn = max(self._csn, reply["csn"])
        self.is_ready = True
        if self.keeper is not None:
            self._keep(self.keeper)
        self._try()

    def _keep(self, keeper: Keeper) -> None:
        """Subscribe where it was left off, under a number of its own."""
        self._csn += 1
        words = ("CSN", f"{self._csn}", *keeper.words())
        self._say(words, lambda reply: self._kept(keeper, reply))

    def _kept(self, keeper: Keeper, reply: Any) -> None:
        if not isinstance(reply, ErrorReply):
            keeper.begun()
        elif reply.code == "HISTORY_LOST":
            keeper.lost(int(reply.words.split()[0]))
            self._keep(keeper)
        else:
            self._refused(reply)

    def _leave(self, hint: str | None = None) -> None:
        """Hang up, and try another node, the one that was named if any."""
        if self._line is not None:
            self._line.close()
        self._gone()
        leaders = self.namespace_clients.leaders() if self.world.calm else []
        if leaders:
            self._node = self.rng.choice(leaders)
        elif hint and self.rng.random() < BELIEVED:
            self._node = int(hint.removeprefix("node"))
        else:
            self._node += 1
        self._later()

    def _gone(self) -> None:
        self._line, self.is_ready = None, False
        self._expected.clear()
        if self.ask is not None and self.ask.is_sent:
            self.ask.in_doubt, self.ask.is_sent = True, False

    def _lost(self, line: Line) -> None:
        if line is self._line:
            self._gone()
            self._later()

    def _data(self, line: Line, data: bytes) -> None:
        if line is not self._line:
            return
        for reply in self._reader.feed(data):
            if line is not self._line:
                return
            if is_push(reply) and reply[0] != "subscribe":
                self._called(reply)
                continue
            known = self._expected.popleft()
            if known is not None:
                known(reply)

    def _beat(self) -> None:
        if self.is_over:
            return
        self.loop.after(self.ttl_ms / 3, self._beat)
        if self.is_napping or self.is_done:
            return
        if self.is_ready and self.ask is None:
            self._say(("SESSION", "PING"), self._refused)

    # ---- answers

    def _refused(self, reply: Any) -> None:
        """Take what is said of the session; an error ends the connection."""
        if not isinstance(reply, ErrorReply):
            return
        if reply.code == "SESSIONEXPIRED":
            self._lose_session()
        else:
            self._leave(_hint(reply))

    def _lose_session(self) -> None:
        self._known, self._csn, self.session = None, 0, 0
        self.items.clear()
        self.world.counts["sessions of namespaces lost"] += 1
        self._leave()
        if self.ask is not None and self.ask.want.changes:
            self._finish("info" if self.ask.in_doubt else "fail", None)

    def _called(self, push: list[Any]) -> None:
        """What is waited for may be there: ask again, mostly; or it is a message."""
        require(not self.is_plain, f"who speaks RESP2 is told {push}")
        if push[0] == "message":
            self._heard(push[2].encode())
            return
        self.world.counts[f"pushes of {push[0]}"] += 1
        if self.is_ready and self.ask is not None and self.rng.random() < 0.8:
            self._later(0)

    def _await_notice(self, ask: Ask) -> None:
        """Ask to be told when it is worth to ask again."""
        self._turn += 1
        block_ms = self.rng.choice((0, self.ttl_ms // 6, self.ttl_ms))
        words: Words = ("NOTIFY", "NEXT", "BLOCK", f"{block_ms}")
        since, line = self.loop.now, self._line
        self._say(words[: 4 if block_ms else 2], lambda told: self._noticed(ask, since, told))
        self.loop.after(block_ms / 3 + self._patience_ms, self._not_told, line, self._turn)

    def _noticed(self, ask: Ask, since: float, told: Any) -> None:
        if isinstance(told, ErrorReply):
            self._refused(told)
            return
        assert self._line is not None
        self.namespace_clients.check_told(self._line, since, told)
        if self.ask is ask and not ask.is_sent:
            self._later(0 if told else self.ttl_ms / 10)

    def _not_told(self, line: Line, turn: int) -> None:
        if line is self._line and turn == self._turn:
            self._leave()

    def _heard(self, text: bytes) -> None:
        assert self.keeper is not None
        if self.keeper.hear(text) and self.is_ready:
            self._keep(self.keeper)

    def _answered(self, ask: Ask, reply: Any) -> None:
        if self.ask is not ask:
            return
        ask.is_sent = False
        code = reply.code if isinstance(reply, ErrorReply) else ""
        ask.in_doubt |= code in IN_DOUBT
        if code in ELSEWHERE:
            self._leave(_hint(reply))
        elif code in LATER and len(ask.want.requests) == 1:
            self._later()
        elif code in LATER:
            self._leave()
        elif code == "SESSIONEXPIRED":
            self._lose_session()
        elif code == "CSNGONE":
            self._finish("info", None)
        elif self.repeats and _is_pending(reply) and not self.world.calm:
            ask.in_doubt = True
            if self.is_plain:
                self._await_notice(ask)
            else:
                self._later(self.ttl_ms / 4)
        else:
            self._failures = 0
            self._finish("ok", reply)


class NamespaceClients:
    """All of them, and what `Line` takes for its world, its network and its clients."""

    workloads_max = WORKLOADS_MAX
    prefix: Words = ()
    """What is said before each request."""
    is_over = False
    has_roots = False
    """Somebody else makes the namespaces."""

    def __init__(self, world: World) -> None:
        self.world, self.loop, self.shadow = world, world.loop, world.shadow
        assert self.shadow is not None
        self.names = self.shadow.names
        self.rng: Random = stream(world.seed, "guests")
        self.callers = self.network = self
        self.doors: dict[int, Door] = {}
        self.namespace_clients: list[NamespaceClient] = []
        self.hearers: list[Hearer] = []
        self.seen = (0, "")
        """The newest version that a reader was shown, behind its LSN."""
        self.operations: list[Operation] = []
        self.failed: set[int] = set()
        self.attempts, self._ops, self._numbers, self._tickets = count(1), count(1), count(1), 0
        self._used: dict[str, int] = {}
        self._values = 0
        self.is_prepared = False
        self.focus = self.rng.choice(FOCUSES)
        """What they request most; all the same, so that they get into each other's way."""
        rate = min(max(world.conditions.rate_per_s / 2, RATE_MIN), RATE_MAX)
        self.between_ms = 1000.0 * self.workloads_max / rate

    def begin(self) -> None:
        """Have them come."""
        self.world.counts["namespaces"] += 1
        chosen = self.rng.sample(WORKLOADS, self.workloads_max)
        self.namespace_clients = [self.born(preparing), *map(self.born, chosen)]
        if self.focus == "sync":
            self.namespace_clients += [self.born(sharing) for _ in range(SHARERS)]
        whole, other, guarded = self.shadow.told.values()
        heard = [(whole, ""), (other, ""), (whole, ""), *((guarded, user) for user in USERS)]
        self.hearers = [Hearer(self, at, *one) for at, one in enumerate(heard)]
        for hearer in self.hearers:
            hearer.go_on_later()
        for at in range(READERS):
            MemberReader(self, at).go_on_later()
        self.loop.after(TICK_MS, self._tick)
        if self.world.conditions.client_loss:
            self.loop.after(CUT_MS, self._cut_some)

    def born(self, workload: Workload) -> NamespaceClient:
        return NamespaceClient(self, next(self._numbers), workload)

    def restart_one(self) -> None:
        """Let one die, and another one come in its place."""
        at = self.rng.randrange(1, len(self.namespace_clients))
        self.namespace_clients[at].end()
        self.namespace_clients[at] = self.born(self.namespace_clients[at].make_workload)

    def _cut_some(self) -> None:
        if not self.world.calm and not self.is_over:
            self.loop.after(self.rng.expovariate(1 / CUT_MS), self._cut_some)
            self.rng.choice(self.namespace_clients).cut()

    def _tick(self) -> None:
        self.loop.after(TICK_MS, self._tick)
        for door in self.doors.values():
            door.tick(self.loop.now)

    # ---- connections

    def delay(self) -> float:
        """Draw how long it takes from a client to a node, or back."""
        return self.world.conditions.delay_ms * (0.5 + self.rng.random())

    def door(self, machine: Machine) -> Door:
        """Return where clients come in."""
        if machine.number not in self.doors:
            self.doors[machine.number] = Door(self, machine)
        return self.doors[machine.number]

    def connected(self, node: int, on_data: Any, on_lost: Any) -> Line | None:
        """Return a connection to a node, if it takes it."""
        machine = self.world.machines[node % len(self.world.machines)]
        line = Line(self, self.door(machine), on_data, on_lost)  # type: ignore[arg-type]
        return line if self.door(machine).accept(line) else None

    def leaders(self) -> list[int]:
        """Return the nodes that lead."""
        return [machine.number for machine in self.world.machines if machine.leads]

    def as_said(self, words: Words) -> Words:
        """Return a request as it is sent."""
        return (*self.prefix, *map(self.names.real, words))

    def check_told(self, line: Line, asked: float, told: list[str] | None) -> None:
        """Look at what somebody was told by NOTIFY NEXT."""
        door: Any = line.node
        door.owed.check_told(line.resp, asked, told)

    def ticket(self) -> int:
        """Return a ticket that is none of the clients of registers."""
        self._tickets -= 1
        return self._tickets

    # ---- what is done

    def op(self, words: Words, user: str) -> int:
        """Return the number of something that is wanted."""
        op, truth = next(self._ops), self.shadow.truth
        truth.requests[op], truth.users[op] = words, user
        return op

    def value(self) -> str:
        """Return a value that was never written."""
        self._values += 1
        return f"v{self._values}"

    def place(self, name: str, most: int) -> str:
        """Return a thing of this name that is in use; another one when it was used enough."""
        self._used[name] = self._used.get(name, 0) + 1
        return f"{name}{self._used[name] // most}"

    def note(self, function: str, argument: tuple[str, ...]) -> int:
        """Note that something is asked for; return its place in the history."""
        self.operations.append(
            Operation(
                f"{len(self.operations)}", function, self._named(argument), None, self._now, None
            )
        )
        return len(self.operations) - 1

    def asked(self, place: int, argument: tuple[str, ...]) -> None:
        """Note what it was done with: a session may have been opened only after it was wanted."""
        named = self._named(argument)
        self.operations[place] = self.operations[place]._replace(argument=named)

    def _named(self, argument: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(self.names.real, argument))

    def noted(self, place: int, ended: str, told: Any = None, version: str | None = None) -> None:
        """Note how it ended."""
        if ended == "fail":
            self.failed.add(place)
        elif ended == "ok":
            at = None if version is None else tuple(map(int, version.split(":")))
            done = self.operations[place]._replace(result=told, returned=self._now, version=at)
            self.operations[place] = done

    @property
    def _now(self) -> int:
        return round(self.loop.now * 1e6)

    def history(self) -> list[Operation]:
        """Return what may have happened."""
        return [one for place, one in enumerate(self.operations) if place not in self.failed]

    # ---- the end

    def finish(self) -> None:
        """The faults are over: finish what is open."""
        for hearer in self.hearers:
            hearer.go_on_later()
        for client in self.namespace_clients:
            client.wake()
        self.namespace_clients.append(self.born(rest))

    def unfinished(self) -> str:
        """Return what is still to come."""
        for client in self.namespace_clients:
            if not client.is_done:
                return f"client {client.number} wants {client.ask and client.ask.want.requests}"
        for hearer in self.hearers:
            if not hearer.is_well:
                return f"a subscriber has heard {hearer.at} of {len(hearer.told.lsns)} messages"
        return ""

    def check(self) -> None:
        """Look at what cannot have been done."""
        self.shadow.check_failed()


def _hint(reply: ErrorReply) -> str | None:
    words = reply.words.split()
    named = words[-1].partition(":")[0] if reply.code == "NOTPRIMARY" and words else ""
    return named if named.startswith("node") else None


def _is_pending(reply: Any) -> bool:
    return reply == PENDING or (isinstance(reply, list) and reply[:1] == [PENDING])
