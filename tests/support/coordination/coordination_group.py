"""A few replicas on disks that never fail, with a network that does what a test says."""

from __future__ import annotations

from collections.abc import Callable

from millstream.coordination.core.group_state import GroupState
from millstream.vsr.core.effects import (
    AdoptSnapshot,
    Append,
    CallSoon,
    DiskDone,
    DiskGaveUp,
    Event,
    Image,
    Install,
    InstallSnapshot,
    Message,
    Read,
    Reconfigure,
    Reply,
    Request,
    Send,
    Soon,
    Start,
    Timer,
    WriteHardState,
    WriteSnapshot,
)
from millstream.vsr.core.entries import GENESIS, Body, Entry
from millstream.vsr.core.hard_state import HardState, founded
from millstream.vsr.core.messages import Envelope, Payload
from millstream.vsr.core.replica.replica import Replica
from millstream.vsr.core.snapshots import Snapshot
from millstream.vsr.core.state_machine import StateMachine
from support.coordination.coordination_logs import GROUP

Filter = Callable[[int, int, Envelope], bool]


class Group:
    """`replicas[i]` with node id i+1; `passes` says which messages are delivered."""

    def __init__(
        self, size: int, learners: int = 0, journalled: bool = True,
        machine: Callable[[], StateMachine] = GroupState,
    ) -> None:  # fmt: skip
        self.machine = machine
        self.ids = [bytes([number + 1]) * 16 for number in range(size + learners)]
        members = tuple(self.ids[:size])
        self.now = 0.0
        self.chance = 0.5
        self.passes: Filter = lambda sender, receiver, envelope: True
        self.holds_disk: set[int] = set()
        self.no_space: set[int] = set()
        """Whose disks have no space for snapshots."""
        self.held: dict[int, list[int]] = {}
        self.net: list[tuple[int, int, Envelope]] = []
        self.replies: dict[int, Reply] = {}
        self.sent: list[tuple[int, int, Envelope]] = []
        self.installs: list[Install] = []
        self.hard_states: list[HardState] = []
        self.disks: list[list[Entry]] = [[] for _ in self.ids]
        self.bases = [GENESIS for _ in self.ids]
        self.stables: list[Snapshot | None] = [None for _ in self.ids]
        self.snapshots: dict[tuple[int, int], Snapshot] = {}
        self.replicas: list[Replica] = []
        for number, node_id in enumerate(self.ids):
            hard_state = founded(GROUP, node_id, members, journalled)
            if number >= size:
                empty = hard_state.configuration._replace(members=())
                hard_state = hard_state._replace(configuration=empty)
            self.hard_states.append(hard_state)
            self.replicas.append(Replica(self.machine(), lambda: self.chance))
            self.start(number)
        self.settle()

    def start(self, number: int, lost: bool = False) -> None:
        """Start a process of this node on what its disk has."""
        if lost:
            self.disks[number], self.bases[number] = [], GENESIS
        self.replicas[number] = Replica(self.machine(), lambda: self.chance)
        self.held.pop(number, None)
        stable = self.stables[number]
        image = Image(
            self.hard_states[number], tuple(self.disks[number]), lost, self.bases[number],
            stable and stable.id, stable,
        )  # fmt: skip
        self.step(number, Start(image))

    def step(self, number: int, *events: Event) -> None:
        """Give a replica an event and carry out what it wants."""
        effects = self.replicas[number].step(self.now, int(self.now), *events)
        self.replicas[number].check_invariants()
        for effect in effects:
            match effect:
                case Send(receiver, envelope):
                    self.net.append((number, self.ids.index(receiver), envelope))
                case Reply(ticket):
                    assert ticket not in self.replies
                    self.replies[ticket] = effect
                case Append(op, entries):
                    self.disks[number] += entries
                    self.written(number, op)
                case Install(op, keep_lsn, suffix, hard_state):
                    self.installs.append(effect)
                    self.disks[number][keep_lsn - self.bases[number].lsn :] = suffix
                    self.hard_states[number] = hard_state
                    self.written(number, op)
                case WriteSnapshot(op) if number in self.no_space:
                    self.step(number, DiskGaveUp(op))
                case WriteSnapshot(op, snapshot):
                    self.snapshots[number, snapshot.id.number] = snapshot
                    self.written(number, op)
                case AdoptSnapshot(op, found):
                    self.stables[number] = self.snapshots[number, found.number]
                    self.written(number, op)
                case InstallSnapshot(op, snapshot, suffix, hard_state):
                    self.stables[number], self.bases[number] = snapshot, snapshot.id.link
                    self.disks[number], self.hard_states[number] = list(suffix), hard_state
                    self.written(number, op)
                case CallSoon():
                    self.step(number, Soon())
                case WriteHardState(op, hard_state):
                    self.hard_states[number] = hard_state
                    self.written(number, op)
                case _:
                    pass

    def written(self, number: int, op: int) -> None:
        if number in self.holds_disk:
            self.held.setdefault(number, []).append(op)
        else:
            self.step(number, DiskDone(op))

    def release_disk(self, number: int) -> None:
        """Report what the disk did meanwhile."""
        self.holds_disk.discard(number)
        for op in self.held.pop(number, []):
            self.step(number, DiskDone(op))

    def settle(self) -> None:
        """Deliver everything that passes, until nothing is under way."""
        while self.net:
            sender, receiver, envelope = self.net.pop(0)
            if self.passes(sender, receiver, envelope):
                self.sent.append((sender, receiver, envelope))
                self.step(receiver, Message(envelope))

    def tick(self, *numbers: int, times: int = 1) -> None:
        """Let a heartbeat's time pass for these (all, if none is named), and settle."""
        for _ in range(times):
            self.now += 100
            for number in numbers or range(len(self.replicas)):
                self.step(number, Timer())
            self.settle()

    def without(self, *gone: int) -> None:
        """Cut these off from everybody."""
        self.passes = lambda sender, receiver, envelope: not {sender, receiver} & set(gone)

    def tick_with_a_line(self, to: int, kind: type[Payload], number: int, times: int) -> int:
        """Let ticks pass in each of which only so many of these arrive; return how many did."""
        line: list[Envelope] = []
        arrived = 0

        def passes(sender: int, receiver: int, envelope: Envelope) -> bool:
            held = receiver == to and isinstance(envelope.payload, kind)
            if held:
                line.append(envelope)
            return not held

        self.passes = passes
        for _ in range(times):
            self.tick()
            for _ in range(number):
                if line:
                    arrived += 1
                    self.step(to, Message(line.pop(0)))
                    self.settle()
        return arrived

    def whole(self) -> None:
        """Let everything pass."""
        self.passes = lambda sender, receiver, envelope: True

    @property
    def leader(self) -> int:
        """Who leads the highest view."""
        leading = [i for i, replica in enumerate(self.replicas) if replica.leading]
        return max(leading, key=lambda i: (self.replicas[i].epoch, self.replicas[i].view))

    def only(self, *payloads: type) -> None:
        """Let nothing pass but these kinds of messages."""
        self.passes = lambda sender, receiver, envelope: isinstance(envelope.payload, payloads)

    def change(self, *members: int, ticket: int = 1000, epoch: int | None = None) -> Replica:
        """Ask the primary for other members, and let no time pass."""
        leader = self.leader
        wanted = tuple(sorted(self.ids[number] for number in members))
        self.step(leader, Reconfigure(ticket, wanted, epoch))
        self.settle()
        return self.replicas[leader]

    def set(self, number: int, ticket: int, value: bytes = b"v") -> None:
        """Ask this one for a change."""
        self.step(number, Request(ticket, Body(argv=(b"SET", b"k", value))))

    def get(self, number: int, ticket: int) -> None:
        """Ask this one for the value."""
        self.step(number, Read(ticket, Body(argv=(b"GET", b"k"))))
