"""One step of an orchestrator: what it sees, what it remembers, and what it decides.

Invariants:
1. A step writes at most one transaction.
2. A step of who was replaced, or has read a state with another's token, does nothing.

Elsewhere: `cluster.core.deciding` runs the parts of a step.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from millstream.cluster.core.elements import ClusterState
from millstream.cluster.core.memory import Memory
from millstream.cluster.core.orders import Order, OrderKind, Place
from millstream.cluster.core.settings import UNREACHED_MS_MAX
from millstream.cluster.core.writes import Txn
from millstream.model.cluster_maps import DataRecord
from millstream.vsr.core.versions import Version

__all__ = ["Decision", "EndSession", "Step", "View"]


class View(NamedTuple):
    """What a decision is based on, besides the memory."""

    me: str
    """Node of the orchestrator."""
    token: Version
    """The orchestrator's grant of the lock."""
    state: ClusterState
    is_fresh: bool
    """The state was read linearizably in this step, and says that the lock is still held."""
    answered: frozenset[str]
    """Nodes whose report was asked for after that read, and came."""
    now_ms: int
    """Monotonic."""
    unix_ms: int
    branch_by_clock: int
    noise: int
    """Random, as many bits as a branch has noise."""
    starting: frozenset[str] = frozenset()
    """Nodes that the orchestrator's node, which has just started, has not heard yet: they may be
    starting, too."""
    coordinators: frozenset[str] | None = frozenset()
    """Nodes of the group that has the state; None: not known yet."""


class EndSession(NamedTuple):
    """End a node's session, if it is still this one.

    From then on its beats are not answered, and it ends once its lease must have ended.
    """

    node: str
    boots: int
    why: str


@dataclass
class Decision:
    """What to do now."""

    orders: list[Order] = field(default_factory=list)
    write: Txn | None = None
    ends: list[EndSession] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Why something wanted is not done, for `status` and the log."""
    stalled: dict[Place, str] = field(default_factory=dict)
    """Partitions of the plan without progress for long, and why."""
    is_deposed: bool = False
    """Another orchestrator holds the lock: forget everything."""


class Step:
    """The parts of a step add to `decision`."""

    def __init__(self, view: View, memory: Memory) -> None:
        self.view, self.memory, self.decision = view, memory, Decision()
        self._waited_for: set[str] = set()
        cluster = view.state.cluster
        self._cluster = "" if cluster is None else cluster.uuid

    @property
    def state(self) -> ClusterState:
        """Return the state of the view."""
        return self.view.state

    def order(
        self, kind: OrderKind, to: str, place: Place, record: DataRecord | None, **others: Any
    ) -> None:
        """Give an order."""
        token = self.view.token
        made = Order(kind, self._cluster, to, token, place, record, **others)
        self.decision.orders.append(made)

    def note(self, why: str) -> None:
        """Record why something that is wanted is not done."""
        if why not in self.decision.notes:
            self.decision.notes.append(why)

    def wait_for(self, names: Iterable[str]) -> None:
        """Note nodes with a session that something waits for, though they do not answer."""
        self._waited_for |= set(names) - self.view.answered

    def end_sessions(self) -> None:
        """End the sessions of those who were waited for too long.

        Not if this orchestrator may be the one that is cut off: a majority of the members and its
        own node must have answered.
        """
        view, state = self.view, self.view.state
        since = self.memory.unreached
        waited = sorted(name for name in self._waited_for if name in state.live)
        self.memory.unreached = {name: since.get(name, view.now_ms) for name in waited}
        if not view.is_fresh or not self.reaches_most():
            return
        for name, since_ms in self.memory.unreached.items():
            if view.now_ms - since_ms >= UNREACHED_MS_MAX:
                why = f"{name} has a session and did not answer for {UNREACHED_MS_MAX} ms"
                self.decision.ends.append(EndSession(name, state.live[name].boots, why))

    def reaches_most(self) -> bool:
        """Return whether a majority of the data nodes, and the own node, answered in this step."""
        members = self.state.members("data")
        there = len(set(members) & self.view.answered)
        return self.view.me in self.view.answered and 2 * there > len(members)
