"""Nodes of a pool on false disks and a false network, through seeded schedules.

Faults: loss, duplication, late copies, restarts between any two effects (what was not durable yet
is lost), commands to anybody. Then all is healed.

Checked after every step: the invariants of `Pool`; nothing is said that is not durable; a group is
formatted at most once on a node, and opened only when a quorum of its members has formatted it.
At the end: every node of a pool knows every other one and where each group is led, and a deleted
group is nowhere.
"""

from __future__ import annotations

import argparse
import random
import sys
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
from millstream.coordination.core.pool.file_format import Phase, decode_node_file
from millstream.coordination.core.pool.messages import (
    Address,
    Deleted,
    Founded,
    Founding,
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
HEAL_MS = 60_000


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
    """All of it; `calm` has no faults."""

    def __init__(self, seed: int, count: int, *, is_calm: bool = False) -> None:
        self.chance = random.Random(seed)
        self.nodes = [Node(number) for number in range(1, count + 1)]
        self.now_ms = 0.0
        self.loss = 0.0 if is_calm else self.chance.choice((0.0, 0.05, 0.3))
        self.twice = 0.0 if is_calm else self.chance.choice((0.0, 0.1, 0.4))
        self.delay_ms = 1.0 if is_calm else self.chance.choice((5.0, 100.0, 2000.0))
        self.restarts = 0.0 if is_calm else self.chance.choice((0.0, 0.01, 0.05))
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
            if self.restarts and self.chance.random() < self.restarts / 4:
                self.crash(node)
                return
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
        for _ in range(1 + (self.chance.random() < self.twice)):
            if self.chance.random() >= self.loss:
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
        if self.restarts and self.chance.random() < self.restarts:
            self.crash(node)
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
        if not isinstance(payload, Tables | Founded | Deleted):
            return
        if node.content is None:
            raise WrongError(f"{node.number} speaks before anything is durable")
        kept = decode_node_file(node.content)
        match payload:
            case Tables():
                if set(payload.tombstones) - set(kept.tables.tombstones):
                    raise WrongError(f"{node.number} tells of a deletion that is not durable")
                if set(payload.foundings) - set(kept.tables.foundings):
                    raise WrongError(f"{node.number} tells of a founding that is not durable")
            case Founded(group_id, ""):
                phases = {one.group_id: one.phase for one in kept.hosted}
                if phases.get(group_id, Phase.FORMATTING) is Phase.FORMATTING:
                    raise WrongError(f"{node.number} says it has founded what is not durable")
            case Deleted(group_id, _):
                if group_id not in kept.tables.tombstones:
                    raise WrongError(f"{node.number} says it has deleted what is not durable")

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

    def fault(self) -> None:
        """Restart somebody, or have something late come again."""
        for node in self.nodes:
            if node.pool is None and self.chance.random() < 0.5:
                self.start(node)
            elif node.pool is not None and self.chance.random() < self.restarts:
                self.crash(node)

    def heal(self) -> None:
        """Have all run, with nothing going wrong any more, until everybody could know all."""
        self.loss = self.twice = self.restarts = 0.0
        self.delay_ms = 5.0
        for node in self.nodes:
            if node.pool is None:
                self.start(node)
        until_ms = self.now_ms + HEAL_MS
        while self.now_ms < until_ms:
            self.run(min(until_ms, self.now_ms + 2000))
            for group_id in sorted(self.views):
                self.tell(group_id)
            self.answer_questions(Code.NOTPRIMARY)

    def check_end(self) -> None:
        """See that all know all."""
        pools = [node.running for node in self.nodes]
        first = pools[0]
        for node, pool in zip(self.nodes, pools, strict=True):
            if pool.tables.pool_ids != first.tables.pool_ids:
                raise WrongError(f"{node.number} is in another pool")
            known = {info.node_id: info.incarnation for info in pool.tables.others()}
            known[node.id] = node.incarnation
            if known != {one.id: one.incarnation for one in self.nodes}:
                raise WrongError(f"{node.number} does not know all others: {known}")
            if pool.tables.digest != first.tables.digest:
                raise WrongError(f"{node.number} knows other groups than the first one")
            self._check_groups(node, pool)

    def _check_groups(self, node: Node, pool: Pool) -> None:
        for group_id in pool.tables.tombstones:
            if group_id in pool.tables.foundings or group_id in pool.hosted:
                raise WrongError(f"{node.number} has a group that was deleted")
            if group_id in node.folders or group_id in node.open:
                raise WrongError(f"{node.number} has files of a group that was deleted")
        for group_id, founding in pool.tables.foundings.items():
            if len(pool.tables.numbered(founding.number)) == 1:
                self._check_founded(node, founding)
            elif group_id not in self.views:
                continue  # its number was another's, and it never began
            epoch, members, view = self.views[group_id]
            seen = pool.directory.get(group_id)
            if seen is None or seen[:3] != (epoch, view, members):
                raise WrongError(f"{node.number} takes group {founding.number} for {seen}")

    def _check_founded(self, node: Node, founding: Founding) -> None:
        if node.id in founding.members and founding.group_id not in node.open:
            raise WrongError(f"{node.number} has not opened group {founding.number}")


def schedule(seed: int) -> World:
    """Run one seed to its end and check it."""
    world = World(seed, random.Random(seed ^ 0xF00D).choice((3, 4, 6)))
    chance = world.chance
    first = world.nodes[0]
    for node in world.nodes:
        world.start(node, join=() if node is first else (first.address,))
    numbers = 1
    for _ in range(chance.choice((10, 40))):
        world.run(world.now_ms + chance.choice((200, 1000, 4000)))
        world.fault()
        node = chance.choice(world.nodes)
        if node.pool is None or (node is not first and len(node.pool.tables.others()) == 0):
            continue
        known = sorted(node.pool.tables.foundings.values())
        match chance.randrange(6):
            case 0 | 1:
                numbers += chance.randrange(2)
                among = sorted(node.pool.tables.nodes)
                members = chance.sample(among, chance.choice((1, 3)) if len(among) > 2 else 1)
                ids = " ".join(member.hex() for member in members)
                world.admin(node, f"GROUP CREATE {numbers} {ids}")
            case 2 if known:
                number = chance.choice(known).number
                world.admin(node, f"GROUP DELETE {number} CONFIRM {number}")
            case 3 if world.views:
                group_id = chance.choice(sorted(world.views))
                epoch, members, view = world.views[group_id]
                world.views[group_id] = (epoch, members, view + 1)
                world.tell(group_id)
            case _:
                world.answer_questions(chance.choice((Code.OK, Code.NOQUORUM)))
    world.heal()
    world.check_end()
    return world


def joined(count: int) -> World:
    """Return nodes of one pool, without any faults."""
    world = World(1, count, is_calm=True)
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


def main() -> int:
    """Run seeds; print the command that repeats one that fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=100)
    arguments = parser.parse_args()
    for seed in range(arguments.seed, arguments.seed + arguments.count):
        try:
            schedule(seed)
        except Exception as error:
            sys.stderr.write(f"seed {seed}: {error!r}: --seed {seed} --count 1\n")
            raise
    return 0


if __name__ == "__main__":
    sys.exit(main())
