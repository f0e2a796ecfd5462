"""A group as one simulated node has it: the `Machine` of other runs, in a process with others.

Invariants:
1. A machine ends when its node does, and only then; what ends a machine ends its node.
2. Each group has a truth of its own. What a replica answers is compared with it before anybody
   hears of it, so also what never arrives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count
from typing import TYPE_CHECKING, Any

from millstream.coordination.core.pool.effects import GroupChanged
from millstream.vsr.core.effects import Code, Read, Reply, Request, Touch
from millstream.vsr.core.entries import NOBODY, Body, Header, Kind
from millstream.vsr.core.hard_state import founded
from millstream.vsr.core.messages import Envelope
from simulators.coordination_sim.machine import Machine
from simulators.coordination_sim.names import Names
from simulators.coordination_sim.shadow import Shadow
from simulators.coordination_sim.times import Times
from simulators.coordination_sim.truth import Truth
from support.kv.simulated_disk import SimulatedDisk

if TYPE_CHECKING:
    from millstream.coordination.core.namespace.state.run import Notice
    from simulators.coordination_sim.nodes import Node
    from simulators.coordination_sim.whole import WholeWorld

OnReply = Callable[[Reply], None]


class Absent:
    """Stands for the disk of a member that has nothing of the group yet."""

    harmed = dead = False

    def has_on_disk(self, lsn: int, digest: bytes) -> bool:
        return False


ABSENT = Absent()


class Members(dict[bytes, Any]):
    """The machines of a group, by their nodes."""

    def __missing__(self, node_id: bytes) -> Absent:
        return ABSENT


class GroupTruth(Truth):
    """As for a group alone; its node hears of what became of the replica, as a shell tells it."""

    def __init__(self, world: Any) -> None:
        super().__init__(world)
        self.commit_times: list[float] = []
        """When each entry was first committed; of those that were inherited, the beginning."""

    def check(self, machine: Any) -> None:
        super().check(machine)
        machine.tell_changes()

    def machines(self) -> Iterable[Any]:
        return self.world.machines.values()

    def _commit(self, machine: Any, lsn: int) -> None:
        super()._commit(machine, lsn)
        if lsn > len(self.commit_times):
            self.commit_times.append(self.world.loop.now)

    def _fork(self, machine: Any) -> None:
        super()._fork(machine)
        self.old_machines = len(self.world.world.machines)
        del self.commit_times[self.end :]

    def inherit(self, source: Truth, lsn: int) -> None:
        """Begin with what another group was, up to there."""
        self.committed = source.committed[:lsn]
        self.committed_in = source.committed_in[:lsn]
        self.commit_times = [0.0] * lsn
        shadow, known = self.world.shadow, source.world.shadow
        if shadow is not None and known is not None:
            shadow.truth.requests, shadow.truth.users = known.truth.requests, known.truth.users
        for entry in self.committed:
            self.model.commit(entry)
            self.world.times.commit(entry, None)
            if shadow is not None:
                shadow.commit(entry, self.model.at_lsn, self.model.number)


class Scope:
    """What `Machine` and `Truth` take for their world, their network and their clients."""

    def __init__(
        self, world: WholeWorld, group_id: bytes, number: int, source: Scope | None = None
    ) -> None:
        self.world, self.group_id, self.number, self.source = world, group_id, number, source
        self.loop, self.conditions, self.counts = world.loop, world.conditions, world.counts
        self.seed: Any = f"{world.seed}/{group_id.hex()}"
        self.plant, self.replica_class = world.plant, world.replica_class
        self.last_leader: tuple[Any, ...] = ()
        self.machines = Members()
        self.network = self.clients = self
        self.survivor: GroupMachine | None = None
        self.configurations: dict[int, set[tuple[bytes, ...]]] = {}
        self.times = Times(self)  # type: ignore[arg-type]
        self.shadow: Shadow | None = None
        if self.conditions.namespaces:
            names = Names(f"{number}") if source is None else source.shadow.names
            self.shadow = Shadow(self, names)  # type: ignore[arg-type]
        self.truth = GroupTruth(self)  # type: ignore[arg-type]

    @property
    def calm(self) -> bool:
        return self.world.calm

    @property
    def trace(self) -> int | str | None:
        return self.world.trace

    def down_ms(self) -> float:
        return 0.0

    def may_end(self, machine: Any) -> bool:
        """Return whether a process may end: always, since all that it knows is on its disk."""
        return True

    def forgets(self, machine: Any) -> None:
        """Nothing is forgotten."""

    def say(self, machine: Any, text: str) -> None:
        self.world.say(machine, text, self.group_id)

    def say_step(self, machine: Any, events: Any, effects: list[Any]) -> None:
        self.world.say_step(machine, events, effects, self.group_id)

    # ---- the network

    def send(self, sender: GroupMachine, receiver_id: bytes, envelope: Envelope) -> None:
        """Send a message to where the node believes the receiver to be."""
        pool = sender.node.pool
        if pool is not None and pool.address_of(receiver_id) is not None:
            self.world.network.send(sender.node, receiver_id, envelope)

    # ---- clients

    def replied(self, machine: GroupMachine, reply: Reply) -> None:
        """Hand an answer to whoever asked, once."""
        on_reply = machine.waiting.pop(reply.ticket, None)
        assert on_reply is not None, f"node {machine.number} answers {reply.ticket} twice"
        on_reply(reply)

    def fork(self, kept: int) -> None:
        """Have clients know that what came of later entries is lost: it may have been, or not."""
        times = self.truth.commit_times
        if kept < len(times):
            self.world.callers.forget(self.number, times[kept])

    def forget_process(self, machine: GroupMachine) -> None:
        machine.waiting.clear()


class GroupMachine(Machine):
    """Has what `ClientRequests` asks of a runner; `open` and `stop` are its node's."""

    def __init__(self, scope: Scope, node: Node, disk: SimulatedDisk) -> None:
        super().__init__(
            scope,  # type: ignore[arg-type]
            node.number,
            founded(scope.group_id, node.id, (node.id,)),
        )
        self.scope, self.node, self.disk = scope, node, disk
        self.rate, self.wall_ms = node.rate, node.wall_ms
        self.waiting: dict[int, OnReply] = {}
        self.tickets = count(1)
        self.state: tuple[Any, ...] | None = None
        scope.machines[node.id] = self

    # ---- life

    def start(self, process: int | None = None) -> None:
        if process is None:
            self.state = None
            super().start()

    def crash(self, *, power_lost: bool = False) -> None:
        self.node.crash(power_lost=power_lost)

    def _end(self, *, power_lost: bool) -> None:
        self.node.end(power_lost=power_lost)

    def tear(self) -> None:
        """Do a part of what is being written, or nothing."""
        if self.replica is not None and self.writing and self.rng.random() < 0.7:
            self._tear(self.steps[0])

    def stop(self) -> None:
        """Have no process any more."""
        super()._end(power_lost=False)

    def notifier(self) -> Callable[[Notice], None]:
        def notify(notice: Notice) -> None:
            if self.replica is not None and self.replica.leading:
                self.node.notify(self.scope.number, notice)

        return notify

    def close(self) -> None:
        """End because the group is deleted: who still waits is told that nobody knows."""
        if self.scope.shadow is not None:
            self.replica.machine.audience.skip()
        waiting, self.waiting = self.waiting, {}
        for ticket, on_reply in waiting.items():
            on_reply(Reply(ticket, Code.UNKNOWN))
        self.stop()

    def tell_changes(self) -> None:
        """Tell the pool of this step, before anything is sent."""
        replica = self.replica
        leads = replica.leading and not replica.suspended
        state = replica.status, replica.configuration, replica.view, leads
        if state != self.state:
            self.state = state
            self.node.take(GroupChanged(self.scope.group_id, *state))

    def _carry_out(self, effect: Any) -> None:
        if self.replica is not None:  # telling the pool may have been the end
            super()._carry_out(effect)

    # ---- what others want

    def request(
        self, body: Body, on_reply: OnReply, *, instance: bytes = NOBODY, session: int = 0,
        csn: int = 0, kind: Kind = Kind.REQUEST, is_counted: bool = False,
    ) -> None:  # fmt: skip
        truth, shadow = self.scope.truth, self.scope.shadow

        def known(reply: Reply) -> None:
            if kind is Kind.REQUEST and body.argv[0].isdigit():
                if csn:
                    shadow.check_answer((session, csn), body, reply)
            elif kind is Kind.REQUEST and session:
                if reply.code is Code.OK and csn:
                    truth.check_written(session, csn, reply)
                elif reply.code is Code.SESSIONEXPIRED:
                    truth.check_refused(session, reply.code, instance)
            on_reply(reply)

        self.ask(Request(0, body, instance, session, csn, kind, is_counted), known)

    def read(
        self, body: Body, on_reply: OnReply, seen: int | None = None, session: int = 0
    ) -> None:
        truth, shadow = self.scope.truth, self.scope.shadow
        floor = truth.end if seen is None else seen
        is_register = body.argv[0] == b"GET" and not body.argv[1].startswith(b"/")

        def known(reply: Reply) -> None:
            if shadow is not None and not is_register:
                shadow.check_read(body, session, floor, reply)
            elif reply.code is Code.OK and len(body.argv) == 2:
                truth.check_read(body.argv[1], floor, reply)
            on_reply(reply)

        self.ask(Read(0, body, seen, session), known)

    def touch(self, session: int) -> None:
        self.loop.after(0.0, self.take, self.process, Touch(session))

    def ask(self, event: Any, on_reply: OnReply) -> None:
        ticket = next(self.tickets)
        self.waiting[ticket] = on_reply
        self.loop.after(0.0, self.take, self.process, event._replace(ticket=ticket))

    def take(self, process: int, event: Any) -> None:
        if process == self.process:
            self.receive(event)

    def headers(self, first_lsn: int, last_lsn: int) -> list[Header]:
        log = self.replica.log
        first, last = max(first_lsn, log.base.lsn + 1), min(last_lsn, log.op_lsn)
        found = map(log.entry_at, range(first, last + 1))
        return [entry.header for entry in found if entry is not None]
