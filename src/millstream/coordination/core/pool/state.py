"""What one node of a pool keeps, and how it says, keeps and asks: the ground of `Pool`.

The parts stand on one another, each a class in a module of its own: `PoolState` here, `Hosting`,
`Gossip`, `Administration`, and `Pool`, which receives events.

Invariants:
1. Whoever changes what is to outlive the process sets `is_changed`; what is said because of it
   waits for the disk (`Pool`).
2. A question has one ticket and one answer.

Elsewhere: everything that is decided (the classes above).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

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
    """State and primitives; `chance` returns numbers from 0 to below 1."""

    def __init__(self, chance: Callable[[], float]) -> None:
        self.chance = chance
        self.now_ms = 0.0
        self.effects: list[PoolEffect] = []
        self.is_changed = False
        nobody = NodeInfo(bytes(16), 0, 0, Address("", 0), Address("", 0))
        self.tables = PoolTables(nobody)
        self.directory = Directory()
        self.hosted: dict[bytes, Hosted] = {}
        self.states: dict[bytes, GroupChanged] = {}
        self.heard_ms: dict[bytes, float] = {}
        self.deferred: deque[tuple[float, PoolEvent]] = deque()
        """What waits while the node's file is written, and since when."""
        self.elements: dict[bytes, int] = {}
        """How many each group here has."""
        self.reports: dict[int, None] = {}
        """Tickets of questions whose answers change nothing."""
        self._number = 0
        self._after_disk: dict[int, Callable[[], None]] = {}
        self._asked: dict[int, Callable[[Any], None]] = {}

    @property
    def me(self) -> NodeInfo:
        """What this node says of itself."""
        return self.tables.me

    @property
    def id(self) -> bytes:
        """Of this node."""
        return self.tables.me.node_id

    def has_heard(self, node_id: bytes, since_ms: float) -> bool:
        """Return whether a node has spoken since."""
        return self.heard_ms.get(node_id, since_ms) > since_ms

    # ---- saying

    def say_to(self, receiver: bytes, address: Address, payload: PoolPayload) -> None:
        """Say something to whoever is at an address; all zeros: whoever it is."""
        if address.port:
            envelope = PoolEnvelope(self.id, self.me.incarnation, payload)
            self.effects.append(Say(receiver, address, envelope))

    def say(self, receiver: bytes, payload: PoolPayload) -> None:
        """Say something to a node of the pool; to one that is none it is lost."""
        info = self.tables.node(receiver)
        if info is not None and receiver != self.id:
            self.say_to(receiver, info.peer, payload)

    def note_node(self, info: NodeInfo) -> None:
        """Take what a node said of itself."""
        known = self.tables.node(info.node_id)
        if self.tables.note_node(info):
            self.is_changed = True
            if known is not None and (info.is_gone or info.peer != known.peer):
                self.effects.append(HangUp(info.node_id))

    # ---- the disk, and questions

    def next_number(self, then: Callable[[], None]) -> int:
        """Return the number of a disk effect; `then` runs when it is durable."""
        self._number += 1
        self._after_disk[self._number] = then
        return self._number

    def on_disk_done(self, number: int) -> None:
        """Go on with what was waiting for the disk."""
        self._after_disk.pop(number)()

    def next_ticket(self, then: Callable[[Any], None]) -> int:
        """Return the ticket of a question; `then` takes the answer."""
        self._number += 1
        self._asked[self._number] = then
        return self._number

    def on_answer(self, ticket: int, answer: object) -> None:
        """Go on with what was waiting for an answer; of a second one there is no use."""
        then = self._asked.pop(ticket, None)
        self.reports.pop(ticket, None)
        if then is not None:
            then(answer)
