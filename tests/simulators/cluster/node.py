"""A node of the simulated cluster: its copies, streams and session, and how it obeys orders.

Every decision is made by the cores: what an order means, who may serve, what is acknowledged. Here
is what a shell does: it keeps copies, makes durable what has to be, and answers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from millstream.cluster.core import admission
from millstream.cluster.core.admission import (
    Activate,
    Admit,
    Adopt,
    AdoptIndex,
    Follow,
    Freeze,
    Known,
    Promise,
    RaiseToken,
    Remove,
    Ruling,
    Step,
    StopPart,
    TakeOver,
)
from millstream.cluster.core.elements import Live, boots_path
from millstream.cluster.core.orders import Order, Place, Reply
from millstream.cluster.core.reports import CopyReport, NodeReport, PartReport, no_copy
from millstream.cluster.core.writes import open_session
from millstream.model import rows, serving_rights
from millstream.model.cluster_maps import NO_KEY, DataRecord, MapKey
from millstream.model.partitions import PartitionState
from millstream.model.position import FailoverEntry, FailoverLog, with_new_entry
from millstream.model.serving_rights import Contact, Right
from millstream.model.standing import Standing
from millstream.vsr.core.versions import NEVER
from simulators.cluster.index_parts import Index

if TYPE_CHECKING:
    from simulators.cluster.world import World

ACTIVE, REPLICA, DEAD = PartitionState.ACTIVE, PartitionState.REPLICA, PartitionState.DEAD
Log = tuple[tuple[int, int], ...]
"""Of (branch, number of the write)."""
FAR = 1 << 60


def common(one: Log, other: Log) -> Log:
    size = 0
    for mine, its in zip(one, other, strict=False):
        if mine != its:
            break
        size += 1
    return one[:size]


@dataclass(eq=False)
class Copy:
    """`log[:disk]` is durable, and so are states, branches and promises."""

    log: Log = ()
    disk: int = 0
    state: PartitionState = REPLICA
    branch: int = 0
    last_branch: int = 0
    is_intact: bool = False
    is_whole: bool = False
    owed: int | None = None
    """It has all that it ever acknowledged once it has so many changes of this history."""
    acks: dict[str, tuple[int, int]] = field(default_factory=dict)
    contacts: dict[str, Contact] = field(default_factory=dict)
    told_ms: int | None = None
    """When it last told its source that it follows."""
    pending: list[tuple[int, int, str]] = field(default_factory=list)
    """(end, number, level) of writes that are not acknowledged yet."""
    streams: int = 0
    """Changes whenever its streams end."""
    confirm_end: int = 0
    heard: int = 0
    failover: FailoverLog = (FailoverEntry(1, 0, 1),)

    def end_streams(self) -> None:
        self.streams += 1
        self.acks, self.contacts, self.pending = {}, {}, []

    def settle(self) -> None:
        if self.owed is not None:
            self.is_intact |= len(self.log) >= self.owed
            self.is_whole |= self.disk >= self.owed


class Node:
    def __init__(self, world: World, name: str, zone: str) -> None:
        self.world, self.name, self.zone = world, name, zone
        self.is_up, self.is_gone, self.side = True, False, 0
        self.token = NEVER
        self.boots = 0
        """Number of the session that it believes to have; 0: it is out of step."""
        self.is_admitted = False
        self.records: dict[Place, DataRecord] = {}
        self.copies: dict[Place, Copy] = {}
        self.clock = 1.0
        """Its clock goes so fast."""
        self.is_index = False
        self.index = Index(self)

    # ---- maps

    def key(self, place: Place) -> MapKey:
        return self.records[place].at if place in self.records else NO_KEY

    def adopt(self, place: Place, record: DataRecord) -> None:
        """From whomever it comes."""
        if not admission.is_news(record, self.records.get(place)):
            return
        known = self.records.get(place)
        self.world.truth.publish(place, record)
        self.records[place] = record
        if self.name in record.placed and place not in self.copies:
            self.copies[place] = Copy(last_branch=record.branch)
        copy = self.copies.get(place)
        is_new_row = record.is_moving and (known is None or known.since != record.since)
        if copy is not None and copy.state is ACTIVE and is_new_row:
            copy.confirm_end = len(copy.log)

    # ---- serving

    def now_ms(self) -> int:
        return int(self.world.now_ms * self.clock)

    def right(self, place: Place) -> Right:
        copy, record = self.copies.get(place), self.records.get(place)
        if not self.is_up or copy is None or record is None:
            return Right(False, False)
        contact = serving_rights.contact_until_ms(
            self.name, copy.branch, record.rows, copy.contacts, self.world.window_ms
        )
        return serving_rights.may_serve(
            now_ms=self.now_ms(),
            is_active=copy.state is ACTIVE,
            lease_ms=FAR if self.boots else None,
            is_admitted=self.is_admitted,
            contact_ms=contact,
        )

    def write(self, place: Place, level: str) -> None:
        copy, world = self.copies[place], self.world
        number = world.truth.number()
        copy.log += ((copy.branch, number),)
        world.truth.grow(place, copy.branch, copy.log, self.name)
        if level == "memory":
            world.truth.plain[place].append(number)
        else:
            copy.pending.append((len(copy.log), number, level))
        self.acknowledge(place)

    def _ends(self, copy: Copy, is_disk: bool) -> dict[str, int]:
        ends = {name: both[is_disk] for name, both in copy.acks.items()}
        ends[self.name] = copy.disk if is_disk else len(copy.log)
        return ends

    def acknowledge(self, place: Place) -> None:
        copy, record = self.copies[place], self.records[place]
        for level in ("majority", "persisted"):
            done = rows.reached(record.rows, self._ends(copy, level == "persisted"))
            for one in list(copy.pending):
                end, number, wanted = one
                if wanted == level and end <= done:
                    copy.pending.remove(one)
                    self.world.truth.acked[place].append((number, level))

    # ---- reports

    def copy_report(self, place: Place) -> CopyReport:
        copy, record = self.copies.get(place), self.records.get(place)
        if copy is None:
            return no_copy(place.partition, self.key(place))
        standing = Standing(
            partition=place.partition,
            state=copy.state,
            last_branch=copy.last_branch,
            branch=copy.branch,
            complete_end=len(copy.log),
            persisted_end=copy.disk,
            branch_at_end=copy.log[-1][0] if copy.log else 0,
            is_intact=copy.is_intact,
            is_whole=copy.is_whole,
        )
        is_confirmed = (
            copy.state is ACTIVE
            and record is not None
            and record.is_moving
            and all(
                rows.has_all(record.row, self._ends(copy, is_disk), copy.confirm_end)
                for is_disk in (False, True)
            )
        )
        return CopyReport(
            standing,
            self.key(place),
            self.right(place).is_given,
            is_confirmed,
            copy.heard,
            None if copy.told_ms is None else self.now_ms() - copy.told_ms,
        )

    def report(self) -> NodeReport:
        copies: dict[str, dict[int, CopyReport]] = {}
        for place in self.world.places:
            copies.setdefault(place.bucket, {})[place.partition] = self.copy_report(place)
        others = (one for one in self.world.nodes.values() if one is not self)
        broken = {one.name: not self.world.connected(self, one) for one in others}
        parts: dict[str, dict[int, PartReport]] = {}
        for place in self.index.parts:
            parts.setdefault(place.bucket, {})[place.partition] = self.index.report(place)
        return NodeReport(self.name, self.boots, self.is_admitted, copies, parts, broken)

    def has_bucket(self, _: str) -> bool:
        """Whether it has made this bucket."""
        return True

    def is_active(self, place: Place) -> bool:
        copy = self.copies.get(place)
        return copy is not None and copy.state is ACTIVE

    # ---- session

    def sync(self) -> None:
        """Open a session, then read token and maps; only then the node is in step."""
        space = self.world.space
        if self.side or not space.has_quorum or not self.is_up or space.state().is_forked:
            return
        counter = space.elements.get(boots_path(self.name))
        if counter is None:
            return
        space.end_session(self.name)  # the one before has run out, or is closed now
        boots = int(counter.data) + 1
        live = Live(f"i{self.world.truth.number()}", {}, boots)
        if not space.run(open_session(self.name, live, counter.version)):
            return
        state = space.state()
        self.token = max(self.token, state.token)
        for place in self.world.places:
            self.adopt(place, state.data[place.bucket].records[place.partition])
            self.index.adopt(place, state.index[place.bucket].records[place.partition])
        self.boots, self.is_admitted = boots, False

    def lose_session(self) -> None:
        self.boots, self.is_admitted = 0, False

    def crash(self) -> None:
        self.is_up = False
        self.lose_session()
        for place, copy in self.copies.items():
            self.world.truth.crashed[place] |= {number for _, number in copy.log[copy.disk :]}
            if copy.state is ACTIVE:
                copy.state = REPLICA
            copy.end_streams()
            copy.log = copy.log[: copy.disk]
            copy.is_intact, copy.owed, copy.told_ms = False, None, None

    def restart(self) -> None:
        self.is_up = True

    # ---- orders

    def rule(self, order: Order) -> Ruling:
        place = order.place
        known = Known(
            self.world.uuid,
            self.name,
            self.boots,
            self.token,
            self.records.get(place),
            self.copy_report(place) if place in self.copies else None,
            self.index.records.get(place),
            self.index.report(place) if place in self.index.parts else None,
        )
        return admission.judge_order(order, known)

    def obey(self, order: Order) -> Reply | NodeReport:
        ruling = self.rule(order)
        if ruling.refusal is not None:
            return ruling.refusal
        for step in ruling.steps:
            self.carry_out(step)
        if order.kind == "report":
            return self.report()
        if ruling.code == "stopped":
            return Reply("stopped", floor=self.index.stopped_at(order.place))
        if order.kind in ("admit", "index", "freeze"):
            return Reply("is")
        branch = order.branch if ruling.code == "promised" else 0
        return Reply(ruling.code, self.copy_report(order.place), branch)

    def carry_out(self, step: Step) -> None:
        if isinstance(step, RaiseToken):
            self.token = step.token
        elif isinstance(step, Adopt):
            self.adopt(step.place, step.record)
        elif isinstance(step, AdoptIndex | Freeze | StopPart):
            self.index.carry_out(step)
        elif isinstance(step, Admit):
            self.is_admitted = True
        elif isinstance(step, Promise):
            copy = self.copies[step.place]
            copy.last_branch = step.branch
            if step.stands_down:
                copy.state = REPLICA
            if step.ends_streams:
                copy.end_streams()
        elif isinstance(step, Activate):
            self._activate(step)
        elif isinstance(step, Follow):
            self.copies[step.place].state = REPLICA
        elif isinstance(step, TakeOver):
            self._ask_for(step.place)
        else:
            assert isinstance(step, Remove), step
            self.world.truth.removed(self, step.place)
            del self.copies[step.place]

    def _activate(self, step: Activate) -> None:
        copy, truth = self.copies[step.place], self.world.truth
        truth.excuse(step.place, frozenset(step.kept))
        truth.activated(self, step.place)
        copy.end_streams()
        copy.branch, copy.state, copy.disk = step.branch, ACTIVE, len(copy.log)
        entry = FailoverEntry(step.branch, len(copy.log), step.branch)
        copy.failover = with_new_entry(copy.failover, entry)
        copy.is_intact = copy.is_whole = True
        copy.owed, copy.confirm_end = None, len(copy.log)
        truth.grow(step.place, step.branch, copy.log, self.name)

    # ---- streams

    def source(self, place: Place) -> Node | None:
        """Return the node with the active copy, as this one finds it by its map."""
        record = self.records.get(place)
        names = [] if record is None else [record.active, *record.voters]
        for name in names:
            if name is None or name == self.name:
                continue
            source = self.world.nodes[name]
            copy = source.copies.get(place)
            if self.world.connected(self, source) and copy and copy.state is ACTIVE:
                return source
        return None

    def _ask_for(self, place: Place) -> None:
        """Ask for the partition; the source is dead, durably, before it answers."""
        source, copy = self.source(place), self.copies[place]
        if source is None or not self._is_equal(place, source):
            return
        if source.key(place) < self.key(place):
            source.adopt(place, self.records[place])
        record = source.records[place]
        if not serving_rights.may_hand_over(record, self.name, source.right(place)):
            return
        old = source.copies[place]
        old.disk = len(old.log)
        old.end_streams()
        old.state, old.last_branch = DEAD, old.branch
        answer = ("given", self, place, copy.streams, copy.branch, len(copy.log))
        self.world.flying.append(answer)

    def _is_equal(self, place: Place, source: Node) -> bool:
        """Return whether it follows the source and has all that the source has."""
        copy, old = self.copies[place], source.copies[place]
        return copy.last_branch == copy.branch == old.branch and copy.log == old.log

    def take_over(self, place: Place, streams: int, branch: int, end: int) -> None:
        """The source has answered: become active in the same history."""
        copy = self.copies.get(place)
        if not self.is_up or copy is None or copy.streams != streams:
            return
        if copy.state is not REPLICA or len(copy.log) != end:
            return
        if copy.last_branch == branch == copy.branch:
            copy.end_streams()
            copy.state, copy.disk = ACTIVE, len(copy.log)
            copy.is_intact = copy.is_whole = True
            copy.confirm_end = len(copy.log)
            self.world.count("taken over")

    def follow(self, place: Place, count: int) -> None:
        """Go back to the common history, take some changes, acknowledge."""
        world, copy, source = self.world, self.copies[place], self.source(place)
        if copy.state is not REPLICA or source is None:
            return
        old = source.copies[place]
        if old.branch < copy.last_branch:
            old.heard = max(old.heard, copy.last_branch)
            return
        if not serving_rights.may_acknowledge(self.records[place], source.records.get(place)):
            source.adopt(place, self.records[place])
        else:
            self.adopt(place, source.records[place])
        same = common(copy.log, old.log)
        if len(same) < len(copy.log):
            world.truth.rolled_back(place, copy.log[len(same) :])
            copy.log, copy.disk = same, min(copy.disk, len(same))
            copy.is_intact, copy.is_whole, copy.owed = False, False, None
        is_other = copy.branch != old.branch
        copy.branch, copy.last_branch = old.branch, max(old.branch, copy.last_branch)
        copy.failover = old.failover
        if copy.owed is None or is_other:
            copy.owed = len(old.log)
        copy.log = old.log[: len(copy.log) + count]
        copy.settle()
        if world.rng.random() < 0.85 and source.is_up:
            old.acks[self.name] = (len(copy.log), copy.disk)
            self.tell_source(place, source)
            source.acknowledge(place)

    def tell_source(self, place: Place, source: Node) -> None:
        """Answer a message of the source: that is contact."""
        copy = self.copies[place]
        contact = Contact(source.now_ms(), copy.last_branch)
        source.copies[place].contacts[self.name] = contact
        copy.told_ms = self.now_ms()

    def flush(self, place: Place) -> None:
        copy, rng = self.copies[place], self.world.rng
        size = len(copy.log)
        copy.disk = size if rng.random() < 0.7 else rng.randint(copy.disk, size)
        copy.settle()
        if copy.state is ACTIVE:
            self.acknowledge(place)
