"""A group's replicas, whole, on false disks and a false network, through seeded schedules.

Faults: loss, duplication, copies that come much later, reordering, cuts of all or one direction,
pauses, clocks that run ahead, logs cut for snapshots, states that go wrong, crashes between any
two effects (what was not yet durable is kept in part or lost), damaged entries and snapshots. Then
all but one member is healed, and a new request must commit.

Checked after every event: one entry per LSN is ever committed; one process leads a view; a view
begins with all that is committed; logs of one view are prefixes of one another; nothing is said
that is not durable, nor against a promise; reads see all that was committed before they were
asked for; a request is executed once, and its answer never changes.

Only these schedules show a new log of which a half is durable (`torn_install`): they stand beside
the groups in false time (`coordination_sim`) for it, and lead `test_group_on_journals`.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import deque
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

from millstream.coordination.core.group_state import GroupState
from millstream.vsr.core.configuration import Configuration
from millstream.vsr.core.disk.journal import is_of_the_view
from millstream.vsr.core.effects import (
    AdoptSnapshot,
    Append,
    CallSoon,
    Code,
    Damaged,
    DiskDone,
    DiskEffect,
    Image,
    Install,
    InstallSnapshot,
    Message,
    MovePrimary,
    Read,
    Reconfigure,
    Reply,
    Request,
    Send,
    Soon,
    Start,
    TakeSnapshot,
    Timer,
    WriteHardState,
    WriteSnapshot,
)
from millstream.vsr.core.entries import GENESIS, Body, Entry, Kind, Link
from millstream.vsr.core.hard_state import HardState, founded
from millstream.vsr.core.messages import (
    DoViewChange,
    Envelope,
    PrepareOk,
    QuorumCheckOk,
    SnapshotDone,
    decode,
    encode,
)
from millstream.vsr.core.replica.member import Status
from millstream.vsr.core.replica.replica import Replica
from millstream.vsr.core.snapshots import Pieces, Snapshot, SnapshotId
from millstream.vsr.core.versions import NEVER
from simulators.coordination_plants import PLANTS
from support.coordination.coordination_sessions import SessionWatch

NODES = 6
STEPS = (500, 2000, 5000)
HEAL_ROUNDS = 400
LATE_MAX = 20
CLIENTS = 3
GROUP = b"g" * 16
FAR = 10**12
"""So much one clock may be ahead."""
CHANGE = -1
"""In place of a request number: an operator asked."""


class WrongError(AssertionError):
    """An invariant does not hold."""


def contradicted(what: str) -> None:
    """Be no less strict than a member: it would go on."""
    raise WrongError(what)


class CrashError(Exception):
    """The node dies here."""


class Asked(NamedTuple):
    """What a ticket stands for; `floor`: so much was committed when a read was asked for."""

    node: int
    client: Client | None
    csn: int
    floor: int
    session: int = 0


class Client:
    """One session that asks for one thing after the other, and again until it is answered."""

    def __init__(self, number: int, time_out_ms: int) -> None:
        self.instance = bytes([number]) * 16
        self.time_out_ms = time_out_ms
        self.session = 0
        self.csn = 0
        self.open = False
        self.answers: dict[tuple[int, int], tuple[bytes, int]] = {}

    def request(self, ticket: int) -> Request:
        if not self.session:
            asked = Body(argv=(b"%d" % self.time_out_ms,))
            return Request(ticket, asked, self.instance, kind=Kind.SESSION_OPEN)
        if not self.open:
            self.csn, self.open = self.csn + 1, True
        body = Body(argv=(b"SET", b"x", b"%d/%d" % (self.session, self.csn)))
        return Request(ticket, body, self.instance, self.session, self.csn)

    def answered(self, asked: Asked, reply: Reply) -> None:
        if asked.csn == 0:
            if not self.session:
                self.session = int(reply.value)
            return
        key, told = (asked.session, asked.csn), (reply.value, reply.lsn)
        if self.answers.setdefault(key, told) != told:
            raise WrongError(f"request {key}: {self.answers[key]}, then {told}")
        if key == (self.session, self.csn):
            self.open = False

    def lose_session(self, session: int) -> None:
        if session == self.session:
            self.session, self.csn, self.open = 0, 0, False


class OnceRegisters(GroupState):
    """GroupState that are told nothing twice."""

    def __init__(self) -> None:
        super().__init__()
        self.done: set[tuple[int, int]] = set()

    def apply(self, entry: Entry) -> bytes:
        key = entry.header.session, entry.header.csn
        if entry.header.session and key in self.done:
            raise WrongError(f"request {key} is executed twice")
        self.done.add(key)
        return super().apply(entry)

    def restore(self, pieces: Pieces) -> Iterator[None]:
        self.done = set()
        return super().restore(pieces)


class Node:
    """One machine: a replica while it runs, a disk, a clock of its own."""

    def __init__(self, number: int, standing: HardState) -> None:
        self.number = number
        self.id = standing.node_id
        self.standing = standing
        self.base = GENESIS
        self.entries: list[Entry | Damaged] = []
        self.snapshots: dict[int, Snapshot] = {}
        self.stable: SnapshotId | None = None
        self.bad_snapshot = False
        self.works = False
        self.diverged = False
        self.pending: deque[DiskEffect] = deque()
        self.replica: Any = None
        self.clock = 0.0
        self.ahead = 0
        self.paused = False
        self.told = (0, 0)
        self.seen_commit = 0
        self.late: list[Envelope] = []
        self.lost = False

    @property
    def is_hurt(self) -> bool:
        """Whether a member of the group lacks its log, or its state."""
        return (self.lost and self.standing.is_voting) or self.diverged

    @property
    def op_lsn(self) -> int:
        return self.base.lsn + len(self.entries)

    def on_disk(self, lsn: int) -> Entry | Damaged | None:
        return (
            self.entries[lsn - self.base.lsn - 1] if self.base.lsn < lsn <= self.op_lsn else None
        )

    def link_at(self, lsn: int) -> Link:
        found = self.on_disk(lsn)
        return self.base if found is None else found.header.link

    def hash_on_disk(self, lsn: int) -> bytes | None:
        return self.link_at(lsn).hash if self.base.lsn <= lsn <= self.op_lsn else None

    @property
    def image(self) -> Image:
        found = None
        if self.stable is not None and not self.bad_snapshot:
            found = self.snapshots[self.stable.number]
        if self.lost:
            return Image(self.standing, lost=True)
        return Image(self.standing, tuple(self.entries), False, self.base, self.stable, found)

    def adopt(self, found: SnapshotId) -> None:
        if self.snapshots[found.number].id != found:
            raise WrongError("a snapshot is adopted that was never written")
        self.stable, self.bad_snapshot = found, False
        self.snapshots = {n: one for n, one in self.snapshots.items() if n >= found.number}


class Weather(NamedTuple):
    """How bad one seed is; many seeds are calm in some respect, so that others come to bear."""

    crash: float
    pause: float
    cut: float
    jump: float
    reconfigure: float
    move: float
    late: float
    synced: float
    lost: float
    net_max: int
    lose: float
    batch: int
    snapshot: int
    retain: int
    part: int
    diverge: float

    @classmethod
    def drawn(cls, rng: random.Random) -> Weather:
        pick = rng.choice
        return cls(
            pick((0, 0.004, 0.02)), pick((0, 0.01, 0.03)), pick((0, 0.01, 0.03)),
            pick((0.01, 0.08)), pick((0, 0.005, 0.03)), pick((0, 0.01)), pick((0.02, 0.05, 0.2)),
            pick((0.1, 0.6, 0.95)), pick((0, 0.02, 0.06)), pick((40, 70, 150)),
            pick((0, 0, 0.3)), pick((1, 3, 512)), pick((3, 8, 25, 10**6)), pick((0, 3, 12)),
            pick((60, 200, 10**6)), pick((0, 0, 0.003)),
        )  # fmt: skip


class World:
    """One seed."""

    def __init__(self, seed: int, plant: str | None = None, nodes: int = NODES) -> None:
        self.rng = random.Random(seed)
        self.replica_class: type[Replica] = PLANTS[plant] if plant else Replica
        self.torn_install = plant == "torn_install"
        self.is_right = plant is None
        """No mistake is planted. One has to be found by what follows from it."""
        self.weather = Weather.drawn(self.rng)
        self.trace: list[str] = []
        self.net: list[tuple[int, Envelope]] = []
        self.cuts: set[tuple[int, int]] = set()
        self.chaos = True
        self.damage = self.rng.random() < 0.5
        self.committed: list[Entry] = []
        self.committed_in: list[tuple[int, int]] = []
        self.values = [b""]
        self.longest: dict[tuple[int, int], dict[int, bytes]] = {}
        self.states: dict[int, bytes] = {}
        self.leaders: dict[tuple[int, int], tuple[int, int]] = {}
        self.asked: dict[int, Asked] = {}
        self.tickets = 0
        self.clients = [
            Client(number + 1, self.rng.choice((500, 10_000))) for number in range(CLIENTS)
        ]
        self.watch = SessionWatch()
        names = (
            "commits views epochs reads crashes damaged lost changes expired forgot "
            "snapshots installed diverged unreadable"
        )
        self.counts = dict.fromkeys(names.split(), 0)
        ids = [bytes([number + 1]) * 16 for number in range(nodes)]
        members = tuple(sorted(self.rng.sample(ids, self.rng.choice((1, 3, 3, 5)))))
        self.configurations: dict[int, set[tuple[bytes, ...]]] = {0: {members}}
        self.journalled = len(members) == 1 or self.rng.random() < 0.85
        self.nodes = []
        for number, node_id in enumerate(ids):
            standing = founded(GROUP, node_id, members, self.journalled)
            if node_id not in members:
                standing = standing._replace(configuration=Configuration(0, ()))
            self.nodes.append(Node(number, standing))
        self.by_id = {node.id: node for node in self.nodes}
        if self.rng.random() < 0.5:
            self.rng.choice(self.nodes).ahead = FAR
        self.sane_first = not any(node.ahead for node in self.nodes if members == (node.id,))

    # ---- machines

    def say(self, node: Node, text: str) -> None:
        r = node.replica
        state = (
            "down"
            if r is None
            else (
                f"{r.epoch}:{r.view} {r.status.name}{' leads' if r.leading else ''}"
                f"{' suspended' if r.suspended else ''} log {r.log.op_lsn} commit {r.commit_lsn}"
            )
        )
        self.trace.append(f"node {node.number} ({state}): {text}")

    def guarded(self, node: Node, action: Any, *args: Any) -> None:
        try:
            action(node, *args)
        except CrashError:
            self.crash(node)

    def start(self, node: Node) -> None:
        chance = random.Random(self.rng.random()).random
        node.replica = self.replica_class(OnceRegisters(), chance)
        node.replica.state.contradict = contradicted  # type: ignore[method-assign]
        node.replica.state.tuning.hint_entries_max = 5
        node.replica.state.tuning.batch_entries_max = self.weather.batch
        node.replica.state.tuning.snapshot_entries = self.weather.snapshot
        node.replica.state.tuning.snapshot_share = 1
        node.replica.state.tuning.retain_entries = self.weather.retain
        node.replica.state.tuning.part_bytes = self.weather.part
        node.seen_commit, node.paused = 0, False
        self.say(node, f"starts with {len(node.entries)} entries")
        self.step(node, Start(node.image))

    def crash(self, node: Node) -> None:
        if node.replica is None or not self.may_lose(node):
            return
        self.counts["crashes"] += 1
        kept = self.rng.randint(0, len(node.pending)) if self.chaos else len(node.pending)
        for _ in range(kept):
            self.to_disk(node, node.pending.popleft())
        if node.pending:
            self.torn(node, node.pending[0])
        node.pending.clear()
        self.say(node, f"crashes, {len(node.entries)} entries on disk")
        if not self.journalled and node.id in node.standing.configuration.members:
            self.counts["forgot"] += 1
        node.replica, node.diverged = None, False
        if self.chaos and self.damage and self.journalled and self.rng.random() < 0.3:
            self.damage_snapshot(node)
        if self.chaos and self.damage and self.rng.random() < 0.3:
            self.damage_one(node)
        if self.chaos and self.rng.random() < self.weather.lose and self.journalled:
            self.lose_log(node)

    def may_lose(self, node: Node) -> bool:
        """Return whether a node may crash: without a journal only if all others have the log."""
        members = node.standing.configuration.members
        if self.journalled or node.id not in members or node.standing.retired:
            return True
        others = [self.by_id[member] for member in members if member != node.id]
        epoch = node.standing.configuration.epoch
        return all(
            other.replica and other.replica.status is not Status.LOST
            and (epoch, False) == (other.standing.configuration.epoch, other.replica.is_persisting)
            for other in others
        )  # fmt: skip

    def lose_log(self, node: Node) -> None:
        """Have a log lost, if all others of its members are in its epoch and have theirs."""
        members = node.standing.configuration.members
        others = [self.by_id[member] for member in members if member != node.id]
        epoch = node.standing.configuration.epoch
        usable = len(members) >= 3 and node.standing.is_voting
        entered = all(other.standing.configuration.epoch == epoch for other in others)
        if not node.standing.is_voting and node.entries and not node.diverged:
            node.lost, node.entries, node.base = True, [], GENESIS
            self.counts["lost"] += 1
        elif usable and entered and not any(n.is_hurt for n in self.nodes):
            node.lost, node.entries, node.base = True, [], GENESIS
            self.counts["lost"] += 1
            self.say(node, "has lost its log")

    def diverge(self, node: Node) -> None:
        """Have one state of a group go wrong, as memory does; nothing that is asked for."""
        replica = node.replica
        if len(replica.members) < 3 or not self.journalled or any(n.is_hurt for n in self.nodes):
            return
        if replica.has_state and replica.status is Status.NORMAL:
            node.diverged = True
            replica.machine.registers.values.put(b"y", (b"%d" % node.number, NEVER))
            self.counts["diverged"] += 1
            self.say(node, "has a wrong state")

    def torn(self, node: Node, op: DiskEffect) -> None:
        if isinstance(op, Append):
            node.entries += op.entries[: self.rng.randint(0, len(op.entries) - 1)]
        elif (isinstance(op, Install) and self.torn_install) or (
            isinstance(op, Install)
            and op.keep_lsn == node.op_lsn
            and is_of_the_view(op.suffix, op.standing)
        ):
            node.standing = op.standing

    def damage_one(self, node: Node) -> None:
        """Damage an entry that two others who are asked for it have whole on their disks."""
        if not node.entries:
            return
        lsn = self.rng.randint(max(node.base.lsn, node.op_lsn - 8) + 1, node.op_lsn)
        found = node.on_disk(lsn)
        assert found is not None
        others = [
            other for other in self.nodes
            if other is not node and other.id in node.standing.configuration.everybody
            and isinstance(there := other.on_disk(lsn), Entry)
            and there.header == found.header
        ]  # fmt: skip
        if len(others) >= 2:
            node.entries[lsn - node.base.lsn - 1] = Damaged(found.header)
            self.counts["damaged"] += 1
            self.say(node, f"has entry {lsn} damaged")

    def damage_snapshot(self, node: Node) -> None:
        """Damage the snapshot in force, if two other members have it, or a later one."""
        stable = node.stable
        if stable is None or node.lost:
            return
        others = [self.by_id[member] for member in node.standing.configuration.members]
        whole = [
            other for other in others
            if other is not node and not other.bad_snapshot and not other.lost
            and other.stable is not None and other.stable.number >= stable.number
        ]  # fmt: skip
        if len(whole) >= 2:
            node.bad_snapshot = True
            self.counts["unreadable"] += 1
            self.say(node, f"has snapshot {stable.number} damaged")

    def to_disk(self, node: Node, op: DiskEffect) -> None:
        match op:
            case Append(_, entries):
                if entries[0].lsn != node.op_lsn + 1 or node.lost:
                    raise WrongError("an entry is written behind a gap")
                node.entries += entries
            case Install(_, keep_lsn, suffix, standing):
                if node.lost:
                    node.lost, node.stable, node.bad_snapshot = False, None, False
                assert keep_lsn >= node.base.lsn
                node.entries = [*node.entries[: keep_lsn - node.base.lsn], *suffix]
                node.standing = standing
            case WriteHardState(_, standing):
                node.standing = standing
            case WriteSnapshot(_, snapshot):
                node.snapshots[snapshot.id.number] = snapshot
            case AdoptSnapshot(_, found, cut_lsn):
                self.adopted(node, found, cut_lsn)
            case InstallSnapshot(_, snapshot, suffix, standing):
                self.counts["installed"] += 1
                node.snapshots[snapshot.id.number] = snapshot
                node.adopt(snapshot.id)
                node.base, node.entries = snapshot.id.link, list(suffix)
                node.lost, node.standing = False, standing
        end = node.entries[-3:]
        for earlier, later in pairwise(end):
            assert later.header.prev_hash == earlier.header.hash

    def adopted(self, node: Node, found: SnapshotId, cut_lsn: int) -> None:
        if cut_lsn > found.lsn:
            raise WrongError("the log is cut above the snapshot")
        node.adopt(found)
        self.counts["snapshots"] += 1
        if cut_lsn > node.base.lsn:
            at = self.rng.randint(node.base.lsn, cut_lsn)
            node.entries, node.base = node.entries[at - node.base.lsn :], node.link_at(at)

    def disk(self, node: Node) -> None:
        if node.pending:
            op = node.pending.popleft()
            self.to_disk(node, op)
            self.may_crash(node, 0.01)
            self.step(node, DiskDone(op.op))

    def may_crash(self, node: Node, probability: float) -> None:
        if self.chaos and self.rng.random() < probability and self.may_lose(node):
            raise CrashError

    # ---- events and effects

    def step(self, node: Node, event: Any) -> None:
        effects = node.replica.step(node.clock, int(node.clock) + node.ahead, event)
        if self.is_right:
            node.replica.check_invariants()
        self.check(node)
        for effect in effects:
            self.may_crash(node, 0.001 if isinstance(effect, Send) else 0.003)
            self.carry_out(node, effect)
        while node.pending and (not self.chaos or self.rng.random() < self.weather.synced):
            self.disk(node)

    def carry_out(self, node: Node, effect: Any) -> None:
        if isinstance(effect, Send):
            self.check_said(node, effect.envelope)
            receiver = self.by_id[effect.receiver]
            if (node.number, receiver.number) not in self.cuts:
                self.net.append((receiver.number, effect.envelope))
        elif isinstance(effect, DiskEffect):
            node.pending.append(effect)
        elif isinstance(effect, CallSoon):
            node.works = True
        elif isinstance(effect, Reply):
            self.replied(node, effect)

    def replied(self, node: Node, reply: Reply) -> None:
        asked = self.asked.pop(reply.ticket, None)
        if asked is None or asked.node != node.number:
            raise WrongError(f"ticket {reply.ticket} is answered twice, or by another node")
        if asked.csn == CHANGE:
            self.counts["changes"] += reply.code is Code.OK
            return
        if reply.code is Code.SESSIONEXPIRED and asked.session in self.watch.expired:
            assert asked.client is not None
            self.counts["expired"] += 1
            asked.client.lose_session(asked.session)
            return
        if reply.code is not Code.OK:
            if reply.code in (Code.CSNGONE, Code.SESSIONEXPIRED):
                raise WrongError(f"{reply.code} to a client that waits for every answer")
            return
        if asked.client is None:
            self.counts["reads"] += 1
            if reply.lsn < asked.floor:
                raise WrongError(f"stale read: {reply.lsn} of {asked.floor} entries")
            if reply.value != b"=" + self.values[reply.lsn]:
                raise WrongError(f"a read at {reply.lsn} is {reply.value!r}")
            return
        if reply.lsn > len(self.committed):
            raise WrongError("an answer to what is not committed")
        asked.client.answered(asked, reply)

    def ask(self, node: Node, client: Client) -> None:
        self.tickets += 1
        request = client.request(self.tickets)
        self.asked[self.tickets] = Asked(node.number, client, request.csn, 0, request.session)
        self.watch.touched(node.number, node.replica, request.session)
        self.step(node, request)

    def read(self, node: Node) -> None:
        self.tickets += 1
        seen = self.rng.randint(0, len(self.committed)) if self.rng.random() < 0.3 else None
        floor = len(self.committed) if seen is None else seen
        self.asked[self.tickets] = Asked(node.number, None, 0, floor)
        self.step(node, Read(self.tickets, Body(argv=(b"GET", b"x")), seen))

    def reconfigure(self, node: Node, members: tuple[bytes, ...] = ()) -> None:
        replica = node.replica
        size = 3 if len(replica.members) == 1 else self.rng.choice((3, 3, 5))
        members = members or tuple(sorted(self.rng.sample(sorted(self.by_id), size)))
        self.configurations.setdefault(replica.epoch + 1, set()).add(members)
        self.say(node, f"shall end its epoch for {[self.by_id[m].number for m in members]}")
        self.tickets += 1
        self.asked[self.tickets] = Asked(node.number, None, CHANGE, 0)
        self.step(node, Reconfigure(self.tickets, members))

    def move(self, node: Node) -> None:
        """Have another member lead."""
        self.tickets += 1
        self.asked[self.tickets] = Asked(node.number, None, CHANGE, 0)
        self.say(node, "shall hand over")
        self.step(node, MovePrimary(self.tickets, self.rng.choice(node.replica.members)))

    def snapshot(self, node: Node) -> None:
        """Have one taken."""
        self.tickets += 1
        self.asked[self.tickets] = Asked(node.number, None, CHANGE, 0)
        self.step(node, TakeSnapshot(self.tickets))

    # ---- invariants

    def check_said(self, node: Node, envelope: Envelope) -> None:
        """Nothing is said that is not durable, nor that breaks a promise."""
        epoch, view, payload = envelope.epoch, envelope.view, envelope.payload
        durable = (node.standing.configuration.epoch, node.standing.view)
        if (epoch, view) != durable:
            raise WrongError(f"node {node.number} speaks of {epoch}:{view}, durable is {durable}")
        if envelope.incarnation != node.standing.incarnation:
            raise WrongError("an incarnation is spoken of before it is durable")
        if isinstance(payload, DoViewChange | PrepareOk | QuorumCheckOk):
            if (epoch, view) < node.told:
                raise WrongError(f"node {node.number} promised {node.told}, says {payload}")
            node.told = (epoch, view)
        if isinstance(payload, PrepareOk):
            durable = node.hash_on_disk(payload.lsn) == payload.hash
            if payload.lsn and self.journalled and not durable:
                raise WrongError(f"node {node.number} acknowledges what is not durable")
            if node.standing.last_normal != (epoch, view):
                raise WrongError(f"node {node.number} acknowledges with an older log")
        if isinstance(payload, SnapshotDone):
            self.check_snapshot(node, payload)
        if self.rng.random() < 0.002 and decode(encode(envelope)[4:]) != envelope:
            raise WrongError("a message changes on the wire")

    def check_snapshot(self, node: Node, done: SnapshotDone) -> None:
        """Who applied the same has the same state, and says so when it is on the disk."""
        written = node.snapshots.get(done.number)
        if self.journalled and (written is None or written.id.hash != done.hash):
            raise WrongError(f"node {node.number} says too early that it has a snapshot")
        replica = node.replica
        wrong = not replica.has_state or replica.machine.registers.values.get(b"y") is not None
        node.diverged = node.diverged and wrong
        if not node.diverged:
            known = self.states.setdefault(done.number, done.hash)
            if known != done.hash:
                raise WrongError(f"two states at snapshot {done.number}")

    def check(self, node: Node) -> None:
        replica = node.replica
        has_part = replica.members and replica.status is not Status.INITIALIZATION
        if has_part and not replica.state.retired:
            self.check_prefix(node)
        while node.seen_commit < replica.commit_lsn:
            node.seen_commit += 1
            self.check_commit(node, node.seen_commit)
        if replica.leading:
            self.check_leader(node)

    def check_commit(self, node: Node, lsn: int) -> None:
        replica = node.replica
        entry = replica.log.entry_at(lsn)
        if lsn <= replica.log.base.lsn:
            known = self.committed[lsn - 1].header.hash
            if replica.log.hash_at(lsn) not in (None, known):
                raise WrongError(f"a snapshot stands for another entry {lsn}")
        elif lsn > len(self.committed):
            self.committed.append(entry)
            self.committed_in.append((replica.epoch, replica.view))
            self.counts["commits"] += 1
            self.watch.committed(entry)
            self.check_time(entry)
            self.values.append(self.value_after(entry))
        elif self.committed[lsn - 1] != entry:
            raise WrongError(f"entry {lsn} is committed twice: {self.committed[lsn - 1]}, {entry}")

    def check_time(self, entry: Entry) -> None:
        sane = max(node.clock for node in self.nodes if not node.ahead)
        if self.sane_first and entry.header.ts_ms > sane + FAR / 2:
            raise WrongError(f"entry {entry.lsn} shows the time of one wrong clock")

    def value_after(self, entry: Entry) -> bytes:
        if entry.header.kind is not Kind.REQUEST:
            return self.values[-1]
        first = self.once_seen(entry) and entry.header.session not in self.watch.expired
        return entry.content.argv[2] if first else self.values[-1]

    def once_seen(self, entry: Entry) -> bool:
        key = (entry.header.session, entry.header.csn)
        return not any(
            (known.header.session, known.header.csn) == key
            for known in self.committed[:-1] if known.header.kind is Kind.REQUEST
        )  # fmt: skip

    def check_prefix(self, node: Node) -> None:
        replica = node.replica
        hashes = self.longest.setdefault(replica.last_normal, {})
        base, op = replica.log.base.lsn, replica.log.op_lsn
        common = min(max(hashes, default=0), op)
        known, here = hashes.get(common), replica.log.hash_at(common)
        if common > base and known not in (None, here):
            raise WrongError(f"two logs of {replica.last_normal} are no prefixes")
        for lsn in range(max(common, base) + 1, op + 1):
            hashes[lsn] = replica.log.hash_at(lsn)

    def check_leader(self, node: Node) -> None:
        replica = node.replica
        if wrong := self.watch.check(node.number, replica):
            raise WrongError(wrong)
        where = (replica.epoch, replica.view)
        who = (node.number, replica.incarnation)
        if where not in self.leaders:
            self.leaders[where] = who
            self.counts["views"] += 1
            self.counts["epochs"] = max(self.counts["epochs"], replica.epoch)
            self.say(node, "leads")
            for lsn, (entry, at) in enumerate(
                zip(self.committed, self.committed_in, strict=True), 1
            ):
                here = replica.log.hash_at(lsn)
                is_cut = lsn < replica.log.base.lsn
                if at < where and not is_cut and here != entry.header.hash:
                    raise WrongError(f"view {where} begins without committed entry {lsn}")
        elif self.leaders[where] != who:
            raise WrongError(f"{where} is led by {who} and {self.leaders[where]}")

    # ---- schedules

    def run(self) -> None:
        for node in self.nodes:
            self.guarded(node, self.start)
        for _ in range(self.rng.choice(STEPS)):
            self.random_step()
        self.heal()

    def random_step(self) -> None:
        rng = self.rng
        leaders = [node for node in self.nodes if node.replica and node.replica.leading]
        node = rng.choice(leaders if leaders and rng.random() < 0.25 else self.nodes)
        if rng.random() < self.weather.late and node.late:
            self.net.append((node.number, rng.choice(node.late)))
        if self.net and rng.random() < 0.78:
            return self.deliver(rng.randrange(len(self.net)))
        if node.replica is None:
            return self.guarded(node, self.start) if rng.random() < 0.2 else None
        if node.paused:
            node.paused = rng.random() < 0.7
            return None
        return self.disturb_or_work(node, rng.random())

    def disturb_or_work(self, node: Node, chance: float) -> None:
        rng, weather = self.rng, self.weather
        leads = node.replica.leading and not node.replica.suspended
        for probability, what in (
            (weather.crash, self.crash), (weather.pause, self.pause), (weather.cut, self.cut),
            (weather.jump, self.jump), (weather.reconfigure if leads else 0, self.reconfigure),
            (weather.move if leads else 0, self.move), (weather.diverge, self.diverge),
            (0.002 if leads else 0, self.snapshot), (0.3 if node.works else 0, self.soon),
        ):  # fmt: skip
            if chance < probability:
                return self.guarded(node, what)
            chance -= probability
        chance = rng.random()
        if chance < 0.25 or (not leads and chance < 0.7):
            return self.guarded(node, self.tick)
        if chance < 0.40 or (not leads and chance < 0.9):
            return self.guarded(node, self.disk)
        if chance < 0.6:
            return self.guarded(node, self.read)
        return self.guarded(node, self.ask, rng.choice(self.clients))

    def pause(self, node: Node) -> None:
        node.paused = True

    def jump(self, node: Node) -> None:
        leads = node.replica.leading
        node.clock += 1000 if not leads or self.rng.random() < 0.1 else 0

    def cut(self, node: Node) -> None:
        out = self.rng.random()
        cut = {
            pair for i in range(len(self.nodes))
            for pair in ((node.number, i), (i, node.number))
            if out < 0.4 or (out < 0.7) == (pair[0] == node.number)
        }  # fmt: skip
        self.cuts = set() if self.rng.random() < 0.5 else self.cuts | cut

    def soon(self, node: Node) -> None:
        node.works = False
        self.step(node, Soon())

    def tick(self, node: Node) -> None:
        node.clock += 100
        self.watch.beat(node.number, node.replica)
        self.step(node, Timer())

    def deliver(self, index: int) -> None:
        (number, envelope), fate = self.net[index], self.rng.random()
        node = self.nodes[number]
        if node.paused:
            return
        if fate < 0.85 or not self.chaos:
            self.net[index] = self.net[-1]
            self.net.pop()
        if fate > 0.85 and self.chaos:
            node.late = [*node.late[-LATE_MAX:], envelope]
        if len(self.net) > self.weather.net_max and self.chaos:
            self.net.pop(self.rng.randrange(len(self.net)))
        if node.replica and (fate > self.weather.lost or not self.chaos):
            self.guarded(node, self.step, Message(envelope))

    # ---- healing

    def heal(self) -> None:
        """Repair all but one node; then a new request commits and the members become equal."""
        self.chaos, self.cuts = False, set()
        broken, fault = self.break_one()
        if any(node.is_hurt for node in self.nodes) or not self.journalled:
            broken, fault = None, "whole"
        self.trace.append(f"healed, but node {broken} is {fault}")
        for node in self.nodes:
            node.paused = False
            if fault == "down" and node.number == broken:
                self.crash(node)
            elif node.replica is None:
                self.start(node)
            while node.replica and node.pending:
                self.disk(node)
        if fault in ("deaf", "mute"):
            self.cuts = {(i, broken) if fault == "deaf" else (broken, i) for i in range(NODES)}
        goal = Client(99, 10_000)
        for _ in range(HEAL_ROUNDS):
            self.calm_round(goal, broken)
            if goal.answers and self.converged(broken):
                return self.change_once_more(goal, broken)
        for node in self.nodes:
            self.say(node, "at the end")
        raise WrongError(f"stuck after healing: {'differ' if goal.answers else 'no commit'}")

    def change_once_more(self, goal: Client, broken: int | None) -> None:
        """An operator's wish comes true: other members, out of the nodes that are well."""
        well = sorted(node.id for node in self.nodes if node.number != broken)
        wanted = tuple(sorted(self.rng.sample(well, 3)))
        ticket = 0
        for _ in range(HEAL_ROUNDS):
            leading = [n for n in self.nodes if n.number != broken and n.replica.leading]
            if self.converged(broken) and any(n.replica.members == wanted for n in leading):
                return
            if leading and ticket not in self.asked:
                self.reconfigure(leading[-1], wanted)
                ticket = self.tickets
            self.calm_round(goal, broken)
        raise WrongError("stuck after healing: members cannot be changed")

    def calm_round(self, goal: Client, broken: int | None) -> None:
        for node in self.rng.sample(self.nodes, len(self.nodes)):
            if node.replica is None:
                continue
            self.tick(node)
            if node.replica.leading and node.number != broken and not goal.answers:
                self.ask(node, goal)
                self.read(node)
            elif node.replica.leading and any(other.diverged for other in self.nodes):
                self.snapshot(node)
        for _ in range(3000):
            if self.net:
                self.deliver(self.rng.randrange(len(self.net)))

    def break_one(self) -> tuple[int | None, str]:
        top = max(node.standing.configuration.epoch for node in self.nodes)
        used = [c for e in (top - 1, top, top + 1) for c in self.configurations.get(e, ())]
        lone = {members[0] for members in used if len(members) == 1}
        choices = [node.number for node in self.nodes if node.id not in lone]
        leaders = [n for n in choices if (r := self.nodes[n].replica) and r.leading]
        broken = self.rng.choice(leaders if leaders and self.rng.random() < 0.5 else choices)
        return self.rng.choice(
            [(None, "whole"), (broken, "down"), (broken, "deaf"), (broken, "mute")]
        )

    def converged(self, broken: int | None) -> bool:
        leaders = [
            n.replica for n in self.nodes
            if n.number != broken and n.replica and n.replica.leading
        ]  # fmt: skip
        if not leaders:
            return False
        last = max(leaders, key=lambda r: (r.epoch, r.view))
        wanted = self.end_of(last)
        members = [n for n in self.nodes if n.id in last.members and n.number != broken]
        return last.commit_lsn == last.log.op_lsn and all(
            n.replica.status is Status.NORMAL and self.end_of(n.replica) == wanted for n in members
        )

    def end_of(self, replica: Replica) -> tuple[Any, ...]:
        assert isinstance(replica.machine, GroupState)
        return (
            replica.epoch, replica.view, replica.log.head, replica.commit_lsn,
            sorted(replica.machine.registers.values.items()), tuple(replica.table),
        )  # fmt: skip


def fault_of(seed: int, plant: str | None = None) -> tuple[str | None, World]:
    """Run one seed; return what is wrong, and the world it happened in."""
    world = World(seed, plant)
    try:
        world.run()
    except Exception as error:  # noqa: BLE001 - whatever it is, something is wrong
        frame, last = error.__traceback__, ""
        while frame is not None:
            last = f"{frame.tb_frame.f_code.co_filename.rsplit('/', 1)[-1]}:{frame.tb_lineno}"
            frame = frame.tb_next
        return f"{error!r:.300} ({last})", world
    return None, world


def main() -> int:
    """Run seeds from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--plant", choices=sorted(PLANTS))
    parser.add_argument("--all-plants", action="store_true")
    args = parser.parse_args()
    bad, say = 0, sys.stdout.write
    for plant in sorted(PLANTS) if args.all_plants else [args.plant]:
        began, counts, found = time.monotonic(), dict[str, int](), None
        seed = args.seed
        for seed in range(args.seed, args.seed + args.count):
            found, world = fault_of(seed, plant)
            counts = {key: counts.get(key, 0) + n for key, n in world.counts.items()}
            if found:
                if not args.all_plants:
                    say("\n".join(world.trace[-40:]) + "\n")
                break
            if time.monotonic() - began > args.seconds:
                break
        bad += (found is None) == (plant is not None)
        seconds = time.monotonic() - began
        say(f"{plant or 'as it is'}: {seed - args.seed + 1} seeds, {seconds:.0f} s, {counts}\n")
        say(f"  seed {seed}: {found}\n" if found else "  nothing found\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
