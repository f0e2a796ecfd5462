"""The doors of machines: clients' connections, each with a real `RespSession`, and what they
ask.

Invariants:
1. A door is open while its machine has a process; all connections end with that.
2. What a replica answers is looked at before anybody hears of it.
3. What a session's client is owed in RESP2 is noted: it asks for it, notice after notice.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from millstream.coordination.core.backend import NO_ASKER, Done, Where
from millstream.coordination.core.group_state import GROUP_COMMANDS
from millstream.coordination.core.namespace.audience import Subscriber
from millstream.coordination.core.namespace.commands.subscriptions import SubscribeRequest
from millstream.coordination.core.namespace.paths import Path
from millstream.coordination.core.namespace.state.run import Asker, Notice
from millstream.coordination.core.resp.common_commands import CONNECTION_COMMANDS
from millstream.coordination.core.resp.session import RespSession
from millstream.vsr.core.effects import Code, Read, Reply, Request, Resume, Touch
from millstream.vsr.core.entries import NOBODY, Body, Kind
from millstream.vsr.core.values import mapping
from simulators.coordination_sim.lines import Line
from simulators.coordination_sim.loop import Loop
from simulators.coordination_sim.rights import Users
from simulators.namespace_truth import require

if TYPE_CHECKING:
    from simulators.coordination_sim.machine import Machine
    from simulators.coordination_sim.namespace_clients import NamespaceClients

PORT = 7379
GID = 1


class Owed:
    """What the clients of a node's sessions are owed, by connections."""

    def __init__(self, loop: Loop, counts: Counter[str]) -> None:
        self.loop, self.counts = loop, counts
        self._owed: WeakKeyDictionary[RespSession, deque[tuple[float, Notice]]] = (
            WeakKeyDictionary()
        )

    def note(self, resp: RespSession, notice: Notice) -> None:
        """Note what is told, if it has to be asked for."""
        if resp.protocol == 2:
            self._owed.setdefault(resp, deque()).append((self.loop.now, notice))

    def check_told(self, resp: RespSession | None, asked: float, told: list[str] | None) -> None:
        """Look at what NOTIFY NEXT said that was asked for then."""
        assert resp is not None
        owed = self._owed.get(resp)
        if told is None:
            is_none = not owed or owed[0][0] > asked
            require(is_none, f"a notice is lost: {owed and owed[0][1]}")
            return
        _, next_one = owed.popleft() if owed else (0, None)
        words = next_one and ["retry", next_one.path.decode(), next_one.command.decode()]
        require(told == words, f"a notice says {told}, not {words}")
        self.counts["notices asked for"] += 1


class Door:
    """Has the shape of `core.backend.Backend`, and what `Line` wants of a node."""

    def __init__(self, clients: NamespaceClients, machine: Machine) -> None:
        self.namespace_clients, self.machine, self.loop = clients, machine, machine.loop
        self.shadow = clients.shadow
        self.lines: dict[RespSession, Line] = {}
        self.attached: dict[tuple[int, int], RespSession] = {}
        self.owed = Owed(self.loop, clients.world.counts)
        self.waiting: dict[int, Done] = {}
        self._numbers = count(1)

    # ---- connections

    @property
    def process(self) -> int:
        return self.machine.process

    @property
    def slowness(self) -> float:
        return self.machine.slowness

    def call(self, what: Callable[..., None], *args: Any) -> None:
        """Do something now, or when the pause is over."""
        if self.machine.paused:
            self.machine.inbox.append((what, *args))
        else:
            what(*args)

    def accept(self, line: Line) -> bool:
        """Take a client's connection, unless nobody is there."""
        if self.machine.replica is None or self.machine.paused:
            return False
        line.resp = RespSession(
            self, Users(), GROUP_COMMANDS, CONNECTION_COMMANDS, number=next(self._numbers),
            attached=self.attached, chance_bytes=self.namespace_clients.rng.randbytes,
            on_output=lambda _: line.go_on_soon(), call_later=self.loop.after,
        )  # fmt: skip
        line.process = self.process
        self.lines[line.resp] = line
        return True

    def close(self) -> None:
        """The process is gone, and all of it."""
        self.waiting.clear()
        lines, self.lines = self.lines, {}
        for resp, line in lines.items():
            resp.close()
            line.break_off()
        self.attached.clear()

    # ---- what RESP sessions ask

    def group_of(self, key: bytes) -> int:
        return GID

    def request(
        self, gid: int, body: Body, done: Done, kind: Kind = Kind.REQUEST,
        instance: bytes = NOBODY, session: int = 0, csn: int = 0, *, is_counted: bool = False,
    ) -> None:  # fmt: skip
        def known(reply: Reply) -> None:
            if kind is Kind.REQUEST and csn:
                self.shadow.check_answer((session, csn), body, reply)
            done(reply)

        self._ask(Request(0, body, instance, session, csn, kind, is_counted), known)

    def read(
        self, gid: int, body: Body, done: Done, seen: int | None = None, session: int = 0
    ) -> None:
        floor = self.namespace_clients.world.truth.end if seen is None else seen

        def known(reply: Reply) -> None:
            self.shadow.check_read(body, session, floor, reply)
            done(reply)

        self._ask(Read(0, body, seen, session), known)

    def resume(self, gid: int, instance: bytes, session: int, secret: bytes, done: Done) -> None:
        self._ask(Resume(0, instance, session, secret), done)

    def touch(self, gid: int, session: int) -> None:
        self.loop.after(0.0, self._take, self.process, Touch(session))

    def list_sessions(self, gid: int, after: int, done: Done) -> None:
        done(Reply(0, Code.NOTPRIMARY))

    def subscribe(
        self,
        gid: int,
        subscriber: Subscriber,
        request: SubscribeRequest,
        confirm: Callable[[Path], None],
    ) -> Reply:
        replica = self.machine.replica
        if not replica.has_state:
            return Reply(0, Code.BEHIND, lsn=replica.commit_lsn)
        reply: Reply = replica.machine.subscribe(subscriber, request, replica.commit_lsn, confirm)
        return reply

    def tick(self, now_ms: float) -> None:
        replica = self.machine.replica
        if replica is not None and replica.has_state and not self.machine.paused:
            replica.machine.audience.tick(now_ms, replica.commit_lsn)

    def notify(self, notice: Notice) -> None:
        """Tell a session's client, if it is here, that a request is worth repeating."""
        replica = self.machine.replica
        resp = self.attached.get((GID, notice.session))
        if replica is not None and replica.leading and resp is not None:
            self.owed.note(resp, notice)
            resp.listener.notify(GID, notice)

    def told_lsn(self, gid: int) -> int | None:
        replica = self.machine.replica
        return None if replica is None else replica.told_commit_lsn

    def where(self, gid: int) -> Where:
        replica = self.machine.replica
        if replica is None or not replica.members:
            return Where()
        leader = self.namespace_clients.world.network.machines[replica.state.primary]
        return Where(replica.epoch, replica.view, f"node{leader.number}:{PORT}")

    def vds(self, argv: tuple[bytes, ...], asker: Asker = NO_ASKER) -> bytes:
        return mapping(())

    def _ask(self, event: Any, done: Done) -> None:
        ticket = self.namespace_clients.ticket()
        self.waiting[ticket] = done
        self.loop.after(0.0, self._take, self.process, event._replace(ticket=ticket))

    def _take(self, process: int, event: Any) -> None:
        if process == self.process:
            self.machine.receive(event)

    def replied(self, reply: Reply) -> None:
        """Hand an answer to whoever asked, once."""
        done = self.waiting.pop(reply.ticket, None)
        assert done is not None, f"node {self.machine.number} answers {reply.ticket} twice"
        done(reply)
