"""The state of one node of a pool, which all parts of `Pool` share.

Invariants:
1. A part that changes what must survive the process sets `is_changed`. Messages that depend on it
   wait for the disk (`Pool`).
2. A deleted group or a removed node appears only among the tombstones.
3. A hosted group has a founding record. Only a hosted group has a replica.

Elsewhere: state of single parts (that part), all decisions (the parts).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from millstream.coordination.core.pool.directory import Directory
from millstream.coordination.core.pool.effects import (
    GroupChanged,
    HangUp,
    PoolEffect,
    PoolEvent,
    Say,
)
from millstream.coordination.core.pool.file_format import Hosted
from millstream.coordination.core.pool.messages import (
    Address,
    NodeInfo,
    PoolEnvelope,
    PoolPayload,
)
from millstream.coordination.core.pool.tables import PoolTables

__all__ = ["PoolState"]


class PoolState:
    """Fields that several parts read or write; `chance` returns numbers from 0 to below 1."""

    def __init__(self, chance: Callable[[], float]) -> None:
        self.chance = chance
        self.now_ms = 0.0
        self.effects: list[PoolEffect] = []
        """Effects of the event that is being handled."""
        self.is_changed = False
        """The node's file has to be written before these effects are carried out."""
        nobody = NodeInfo(bytes(16), 0, 0, Address("", 0), Address("", 0))
        self.tables = PoolTables(nobody)
        self.directory = Directory()
        self.hosted: dict[bytes, Hosted] = {}
        """Groups that have a folder here, or get one; `HostedGroups` alone changes them."""
        self.replicas: dict[bytes, GroupChanged] = {}
        """What the replica of each group here reported last."""
        self.heard_ms: dict[bytes, float] = {}
        """When each node spoke last."""
        self.elements: dict[bytes, int] = {}
        """How many elements each group here has."""
        self.deferred: deque[tuple[float, PoolEvent]] = deque()
        """Events that wait while the node's file is written, and since when."""

    @property
    def me(self) -> NodeInfo:
        """What this node says of itself."""
        return self.tables.me

    @property
    def id(self) -> bytes:
        """The id of this node."""
        return self.tables.me.node_id

    def has_heard(self, node_id: bytes, since_ms: float) -> bool:
        """Return whether a node has spoken since."""
        return self.heard_ms.get(node_id, since_ms) > since_ms

    def leads(self, group_id: bytes) -> bool:
        """Return whether this node leads a group."""
        replica = self.replicas.get(group_id)
        return replica is not None and replica.leads

    def say_to(self, receiver: bytes, address: Address, payload: PoolPayload) -> None:
        """Send to an address. An id of all zeros means any node there."""
        if address.port:
            envelope = PoolEnvelope(self.id, self.me.incarnation, payload)
            self.effects.append(Say(receiver, address, envelope))

    def say(self, receiver: bytes, payload: PoolPayload) -> None:
        """Send to a node of the pool. For any other node the message is lost."""
        info = self.tables.node(receiver)
        if info is not None and receiver != self.id:
            self.say_to(receiver, info.peer, payload)

    def record_node(self, info: NodeInfo) -> None:
        """Take what a node said of itself, if that is news."""
        known = self.tables.node(info.node_id)
        if self.tables.note_node(info):
            self.is_changed = True
            if known is not None and (info.is_gone or info.peer != known.peer):
                self.effects.append(HangUp(info.node_id))

    def check_invariants(self) -> None:
        """Assert what is true after every event."""
        self.tables.check_invariants()
        assert not self.effects, "effects of an event were not handed out"
        for group_id, hosted in self.hosted.items():
            assert hosted.group_id == group_id, "a hosted group is kept under another id"
            assert group_id in self.tables.foundings, "a hosted group has no founding record"
        assert self.replicas.keys() <= self.hosted.keys(), "a replica of a group that is not here"
        assert self.id not in self.heard_ms, "the node has heard from itself"
