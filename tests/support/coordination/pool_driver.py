"""Drives the pools of some nodes in unit tests: simulated disks, network and time, without faults.

After every step it checks: the invariants of `Pool`; nothing is sent that is not durable; a group
is formatted at most once on a node, and opened only when a quorum of its members has formatted it;
no node goes back to older information.

Elsewhere: faults and random schedules (`simulators.coordination_sim.whole`).
"""

from __future__ import annotations

import random
from typing import Any

from millstream.coordination.core.pool.effects import (
    Admin,
    AdminReply,
    Answered,
    AskBackup,
    AskGroup,
    AskLog,
    AskReport,
    AskRestore,
    CloseGroups,
    DropGroup,
    FormatGroup,
    GroupChanged,
    GroupReplied,
    HangUp,
    Heard,
    KeepNode,
    KeepRefusal,
    NodeStart,
    OpenGroup,
    Refusal,
    Say,
    Stray,
    Warn,
)
from millstream.coordination.core.pool.file_format import NodeFile, Phase, decode_node_file
from millstream.coordination.core.pool.messages import (
    Address,
    Deleted,
    Founded,
    PoolPayload,
    Tables,
    decode_pool,
    encode_pool,
)
from millstream.coordination.core.pool.pool import Pool
from millstream.vsr.core.configuration import Configuration
from millstream.vsr.core.effects import (
    Code,
    DiskDone,
    MovePrimary,
    Reconfigure,
    Reply,
    SetTimer,
    Timer,
)
from millstream.vsr.core.hard_state import HardState
from millstream.vsr.core.messages import LENGTH, Envelope, GetEpoch
from millstream.vsr.core.replica.member import Status

PORT = 7000


def not_durable(payload: PoolPayload, kept: NodeFile) -> str:
    """Return what a node tells others that is not durable, or an empty text.

    What is told outlives the process.
    """
    match payload:
        case Tables():
            if set(payload.tombstones) - set(kept.tables.tombstones):
                return "tells of a deletion that is not durable"
            if set(payload.foundings) - set(kept.tables.foundings):
                return "tells of a founding that is not durable"
        case Founded(group_id, ""):
            phases = {one.group_id: one.phase for one in kept.hosted}
            if phases.get(group_id, Phase.FORMATTING) is Phase.FORMATTING:
                return "says it has founded what is not durable"
        case Deleted(group_id, _):
            if group_id not in kept.tables.tombstones:
                return "says it has deleted what is not durable"
    return ""


class WrongError(AssertionError):
    """An invariant does not hold."""


class Node:
    """One machine: its pool while it runs, its disk, the groups that are open."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.id = bytes([number]) * 16
        self.address = Address(f"node{number}", PORT)
        self.coord = Address(f"node{number}", PORT + 1)
        self.content: bytes | None = None
        self.folders: dict[bytes, HardState] = {}
        self.formatted_ever: dict[bytes, int] = {}
        self.incarnation = 0
        self.pool: Pool | None = None
        self.disk: list[KeepNode | FormatGroup | DropGroup | KeepRefusal] = []
        self.open: dict[bytes, None] = {}
        self.timer_ms: float | None = None
        self.join: tuple[Address, ...] = ()
        self.warnings: list[str] = []
        self.refusal = ""
        self.places: dict[bytes, tuple[int, int]] = {}
        self.ages: dict[bytes, tuple[int, int]] = {}
        """What this process knew of groups and nodes before: it never goes back."""

    @property
    def running(self) -> Pool:
        assert self.pool is not None
        return self.pool


class World:
    """The nodes, their network, and what is true of each group."""

    def __init__(self, seed: int, count: int) -> None:
        self.chance = random.Random(seed)
        self.nodes = [Node(number) for number in range(1, count + 1)]
        self.now_ms = 0.0
        self.loss, self.delay_ms = 0.0, 1.0
        self.wire: list[tuple[float, int, Address, bytes]] = []
        self.sent = 0
        self.tickets = 0
        self.answers: dict[int, bytes] = {}
        self.asked: dict[int, int] = {}
        self.views: dict[bytes, tuple[int, tuple[bytes, ...], int]] = {}
        self.olds: dict[bytes, tuple[bytes, ...]] = {}
        """What is true of each group: epoch, members, view."""
        self.questions: list[tuple[Node, Any]] = []
        """What replicas and the shell were asked and a test has to answer."""

    # ---- nodes

    def node_at(self, address: Address) -> Node | None:
        return next((node for node in self.nodes if node.address == address), None)

    def of(self, node_id: bytes) -> Node:
        return next(node for node in self.nodes if node.id == node_id)

    def start(self, node: Node, *, join: tuple[Address, ...] = ()) -> None:
        node.incarnation += 1
        node.pool, node.disk, node.open = Pool(self.chance.random), [], {}
        node.places, node.ages = {}, {}
        node.join = join or node.join
        self.step(node, NodeStart(
            node.content, node.id, node.incarnation, tuple(sorted(node.folders)), node.address,
            node.coord, node.join, node.refusal,
        ))  # fmt: skip

    def crash(self, node: Node) -> None:
        node.pool, node.timer_ms = None, None

    def step(self, node: Node, event: Any) -> None:
        if node.pool is None:
            return
        effects = node.pool.step(self.now_ms, event)
        try:
            node.pool.check_invariants()
        except AssertionError as error:
            raise WrongError(f"{node.number}, after {type(event).__name__}: {error}") from error
        self._check_forward(node)
        for effect in effects:
            self._do(node, effect)

    def _check_forward(self, node: Node) -> None:
        pool = node.running
        ages = {one: info.age for one, info in pool.tables.nodes.items()}
        places = {
            group: (seen.epoch, seen.view)
            for group in pool.tables.foundings
            if (seen := pool.directory.get(group)) is not None
        }
        for before, now in ((node.ages, ages), (node.places, places)):
            for one, known in now.items():
                if before.get(one, known) > known:
                    raise WrongError(f"{node.number} believes older words of {one.hex()}")
        node.ages, node.places = ages, places

    def admin(self, node: Node, words: str) -> int:
        self.tickets += 1
        self.asked[self.tickets] = node.number
        argv = tuple(word.encode() for word in words.split())
        self.step(node, Admin(self.tickets, argv))
        return self.tickets

    # ---- effects

    def _do(self, node: Node, effect: Any) -> None:
        match effect:
            case Say():
                self._check_said(node, effect)
                self._send(effect)
            case SetTimer(after_ms):
                node.timer_ms = self.now_ms + after_ms
            case KeepNode() | FormatGroup() | DropGroup() | KeepRefusal():
                node.disk.append(effect)
            case CloseGroups():
                node.open.clear()
            case OpenGroup():
                self._open(node, effect.group_id)
            case AdminReply(ticket, value):
                if ticket in self.answers:
                    raise WrongError(f"command {ticket} is answered twice")
                self.answers[ticket] = value
            case AskGroup() | AskReport() | AskLog() | AskBackup() | AskRestore():
                self.questions.append((node, effect))
            case Warn(text):
                node.warnings.append(text)
            case HangUp():
                pass

    def _send(self, say: Say) -> None:
        if self.chance.random() < self.loss:
            return
        self.sent += 1
        at = self.now_ms + self.chance.random() * self.delay_ms
        frame = encode_pool(say.envelope)[LENGTH.size :]
        self.wire.append((at, self.sent, say.address, frame))

    def write(self, node: Node) -> None:
        """Have the disk do the next thing."""
        effect = node.disk.pop(0)
        match effect:
            case KeepNode(_, content):
                node.content = content
            case KeepRefusal(_, reason):
                node.refusal = reason
            case FormatGroup(_, hard_state):
                if hard_state.group_id not in node.folders:
                    node.folders[hard_state.group_id] = hard_state
                    times = node.formatted_ever.get(hard_state.group_id, 0) + 1
                    node.formatted_ever[hard_state.group_id] = times
                    if times > 1:
                        raise WrongError(f"{node.number} founds a group twice")
            case DropGroup(_, group_id):
                node.folders.pop(group_id, None)
                node.open.pop(group_id, None)
        self.step(node, DiskDone(effect.op))

    def _open(self, node: Node, group_id: bytes) -> None:
        if group_id in node.open:
            raise WrongError(f"{node.number} opens a group twice")
        if group_id not in node.folders:
            raise WrongError(f"{node.number} opens what is not formatted")
        founding = node.running.tables.foundings[group_id]
        formed = [one for one in founding.members if self.of(one).formatted_ever.get(group_id)]
        quorum = Configuration(0, founding.members).quorum
        if node.folders[group_id].configuration.members and len(formed) < quorum:
            raise WrongError(f"{node.number} opens a group that no quorum has formatted")
        node.open[group_id] = None
        self.views.setdefault(group_id, (0, founding.members, 1))

    # ---- what replicas would say

    def tell(self, group_id: bytes) -> None:
        """Have those who have a group open say what is true of it, if a quorum could."""
        epoch, members, view = self.views[group_id]
        configuration = Configuration(epoch, members, old=self.olds.get(group_id, ()))
        there = [one for one in members if self._has_open(one, group_id)]
        if len(there) < configuration.quorum:
            return
        if configuration.primary(view) not in there:
            self.views[group_id] = (epoch, members, view + 1)
            self.tell(group_id)
            return
        for node_id in there:
            leads = configuration.primary(view) == node_id
            self.step(
                self.of(node_id),
                GroupChanged(group_id, Status.NORMAL, configuration, view, leads),
            )

    def _has_open(self, node_id: bytes, group_id: bytes) -> bool:
        node = self.of(node_id)
        return node.pool is not None and group_id in node.open

    def answer_questions(self, code: Code = Code.OK, value: bytes = b"") -> None:
        """Answer what replicas were asked for, all alike."""
        questions, self.questions = self.questions, []
        for node, asked in questions:
            if isinstance(asked, AskGroup):
                event = asked.event
                if code is Code.OK and isinstance(event, Reconfigure):
                    epoch, self.olds[asked.group_id], view = self.views[asked.group_id]
                    self.views[asked.group_id] = (epoch + 1, event.members, view)
                elif code is Code.OK and isinstance(event, MovePrimary):
                    epoch, members, _ = self.views[asked.group_id]
                    self.views[asked.group_id] = (epoch, members, members.index(event.node))
                self.step(node, GroupReplied(asked.ticket, Reply(0, code, value)))
            else:
                self.step(node, Answered(asked.ticket, Refusal("ERR", "not in this world")))

    # ---- checks

    def _check_said(self, node: Node, say: Say) -> None:
        payload = say.envelope.payload
        if isinstance(payload, Tables | Founded | Deleted):
            if node.content is None:
                raise WrongError(f"{node.number} speaks before anything is durable")
            if wrong := not_durable(payload, decode_node_file(node.content)):
                raise WrongError(f"{node.number} {wrong}")

    # ---- time

    def run(self, until_ms: float) -> None:
        """Let time go on; disks and the network work as they come."""
        while self.now_ms < until_ms:
            self._one()

    def _one(self) -> None:
        for node in self.nodes:
            if node.disk and self.chance.random() < 0.7:
                self.write(node)
        due = [one for one in self.wire if one[0] <= self.now_ms]
        if due:
            self.chance.shuffle(due)
            self.wire = [one for one in self.wire if one[0] > self.now_ms]
            for _, _, address, frame in due:
                if (node := self.node_at(address)) is not None:
                    self.step(node, Heard(decode_pool(frame)))
        for node in self.nodes:
            if node.timer_ms is not None and node.timer_ms <= self.now_ms:
                node.timer_ms = None
                self.step(node, Timer())
        if not due and not any(node.disk for node in self.nodes):
            later = [one[0] for one in self.wire]
            later += [node.timer_ms for node in self.nodes if node.timer_ms is not None]
            self.now_ms = max(self.now_ms, min(later, default=self.now_ms + 100))
        else:
            self.now_ms += 0.5


def joined(count: int) -> World:
    """Return nodes of one pool, without any faults."""
    world = World(1, count)
    first = world.nodes[0]
    for node in world.nodes:
        world.start(node, join=() if node is first else (first.address,))
    world.run(5000)
    return world


def asked(world: World, node: Node, words: str, *, for_ms: float = 3000) -> bytes | None:
    """Return the answer to a command, or None if there is none by then."""
    ticket = world.admin(node, words)
    world.run(world.now_ms + for_ms)
    return world.answers.get(ticket)


def led(world: World, number: int) -> Node:
    """Have a group of the pool, its new members too, led by somebody; return who leads it."""
    group_id = group_of(world, number)
    for member in world.views[group_id][1]:
        speaks = world.nodes[0] if member != world.nodes[0].id else world.nodes[-1]
        word = Envelope(group_id, speaks.id, 1, 1, 1, GetEpoch())
        world.step(world.of(member), Stray(word))
    world.run(world.now_ms + 200)
    world.tell(group_id)
    world.run(world.now_ms + 2000)
    epoch, members, view = world.views[group_id]
    return world.of(Configuration(epoch, members).primary(view))


def group_of(world: World, number: int) -> bytes:
    """Return the id of the group that the first node knows by this number."""
    (group_id,) = world.nodes[0].running.tables.numbered(number)
    return group_id
