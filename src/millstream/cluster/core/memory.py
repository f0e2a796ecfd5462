"""What an orchestrator remembers between two decisions: reports, and promotions it has begun.

All of it may be lost at any time: the next orchestrator begins with an empty `Memory`.

    memory.hear(report); memory.miss(node)    # answers to `report`
    memory.take(order, reply, now_ms)         # answers to orders

Invariants:
1. A report of a node that did not answer when it was last asked is forgotten.
2. Promises count for the branch that was asked for, in the promotion that asked.
3. A promotion that was begun stays begun until a copy serves in a branch of it: until then an
   order may be on its way that makes a copy active.
4. A branch is given to one copy. Once an order to activate was sent, no other copy is chosen in
   that branch, whatever is promised later.

Elsewhere: what is decided with it (`cluster.core.deciding`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from millstream.cluster.core.orders import Order, Place, Reply
from millstream.cluster.core.promotion import Level
from millstream.cluster.core.reports import CopyReport, NodeReport, PartReport
from millstream.model.cluster_maps import Floor, MapKey
from millstream.model.standing import Standing

__all__ = ["Chosen", "Memory", "Promised", "Promotion", "Stopped"]


class Promised(NamedTuple):
    """A promise, and the standing told with it."""

    standing: Standing
    quiet_ms: int | None
    heard_ms: int
    """When the reply came."""


class Stopped(NamedTuple):
    """An index part that answers no more."""

    at: MapKey
    """The index record under which the part was stopped."""
    floor: Floor
    """Where the part stopped."""
    since_ms: int


class Chosen(NamedTuple):
    """The copy to which the branch of a promotion is given."""

    node: str
    end: int
    kept: tuple[Level, ...]
    """Levels of which everything acknowledged is kept."""


@dataclass
class Promotion:
    """A promotion of a partition in one branch."""

    branch: int
    at: MapKey
    """The record that the move is based on."""
    try_ms: int
    """The order is repeated after this time without progress, in milliseconds."""
    moved_ms: int
    """When it last advanced."""
    promised: dict[str, Promised] = field(default_factory=dict)
    ready_ms: int | None = None
    """Since when only the contact of those that did not promise is waited for."""
    chosen: Chosen | None = None

    def standings(self) -> dict[str, Standing]:
        """Return the standings told with promises, by node."""
        return {name: one.standing for name, one in self.promised.items()}


@dataclass
class Memory:
    """Of one reign: from winning the lock until losing it."""

    nodes: dict[str, NodeReport] = field(default_factory=dict)
    copies: dict[str, dict[Place, CopyReport]] = field(default_factory=dict)
    parts: dict[str, dict[Place, PartReport]] = field(default_factory=dict)
    promotions: dict[Place, Promotion] = field(default_factory=dict)
    begun: dict[Place, int] = field(default_factory=dict)
    """Number of tries, of partitions whose promotion was begun and not seen through."""
    asked: dict[Place, int] = field(default_factory=dict)
    """The last branch that was asked for."""
    made: dict[Place, int] = field(default_factory=dict)
    """Branch of a promotion that this reign saw through."""
    handed: dict[Place, int] = field(default_factory=dict)
    """When a take-over was last asked for."""
    silent: dict[str, int] = field(default_factory=dict)
    """Members without a session that nobody hears, and since when this orchestrator knows."""
    unreached: dict[str, int] = field(default_factory=dict)
    """Nodes with a session that something waits for, and since when they have not answered."""
    stopped: dict[Place, Stopped] = field(default_factory=dict)
    """Index parts that were stopped."""
    marks: dict[Place, tuple[object, int]] = field(default_factory=dict)
    """Where partitions of the plan are, and since when."""
    floors: dict[Place, tuple[MapKey, int, Floor]] = field(default_factory=dict)
    """What a lost index owner, in its session of this number, may have shown."""

    outside: dict[Place, tuple[MapKey, int]] = field(default_factory=dict)
    """Since when the hand-over of an index part waits for a writer outside the nodes."""

    def forget(self) -> None:
        """Begin anew."""
        vars(self).update(vars(Memory()))

    def hear(self, report: NodeReport) -> None:
        """Take the report of a node."""
        name = report.node
        self.nodes[name] = report
        self.copies[name] = {
            Place(bucket, partition): copy
            for bucket, copies in report.copies.items()
            for partition, copy in copies.items()
        }
        self.parts[name] = {
            Place(bucket, partition): part
            for bucket, parts in report.parts.items()
            for partition, part in parts.items()
        }

    def miss(self, name: str) -> None:
        """Note that a node did not answer."""
        for reports in (self.nodes, self.copies, self.parts):
            reports.pop(name, None)

    def take(self, order: Order, reply: Reply, now_ms: int) -> bool:
        """Take the reply to an order; return whether this orchestrator was replaced."""
        if reply.code == "deposed":
            return True
        if reply.copy is not None:
            self.copies.setdefault(order.to, {})[order.place] = reply.copy
        promotion = self.promotions.get(order.place)
        if reply.code == "promised" and reply.copy is not None and promotion is not None:
            is_asked = promotion.branch == reply.branch and promotion.chosen is None
            if is_asked and order.to not in promotion.promised:
                copy = reply.copy
                promised = Promised(copy.standing, copy.quiet_ms, now_ms)
                promotion.promised[order.to] = promised
                promotion.moved_ms = now_ms
        elif reply.code == "stopped" and reply.floor is not None:
            known = self.stopped.get(order.place)
            if known is None or known.at != order.key:
                self.stopped[order.place] = Stopped(order.key, reply.floor, now_ms)
        return False

    def copy(self, name: str, place: Place) -> CopyReport | None:
        """Return what a node last said of its copy."""
        return self.copies.get(name, {}).get(place)

    def told(self, place: Place) -> Iterator[tuple[str, CopyReport]]:
        """Yield what each node last said of the partition."""
        for name, copies in self.copies.items():
            if place in copies:
                yield name, copies[place]

    def answers(self, place: Place, names: Iterable[str]) -> dict[str, Standing]:
        """Return the standings of the copies that these nodes have."""
        return {
            name: copy.standing
            for name in names
            if (copy := self.copy(name, place)) is not None and copy.is_there
        }
