"""Durable subscriptions: what their clients hear and acknowledge, go away from and come back to.

Invariants:
1. Who comes back is told what follows the last message whose acknowledgement counts: nothing again
   that is acknowledged, nothing behind it left out, all of it in order.
2. That a history begins later is said only where more has happened since than is kept.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from millstream.coordination.core.client.events import (
    ErrorReply,
)
from simulators.namespace_truth import require

if TYPE_CHECKING:
    from simulators.coordination_sim.hearers import Told
    from simulators.coordination_sim.namespace_clients import NamespaceClient
    from simulators.coordination_sim.workloads import Doing
    from simulators.namespace_world import Words

HISTORY = 128
"""So many updates are kept, unless it is set otherwise."""
FROM_THERE = 0.5
"""So often it goes on from where its queue was full, else from what it acknowledged last: from
there it gets no further while more is kept than fits into the queue."""
AGAIN = 0.2
"""So often what is acknowledged is less than what was."""


class Keeper:
    """One durable subscription of a session to a tree; a new session begins anew."""

    def __init__(self, client: NamespaceClient, told: Told) -> None:
        self.client, self.world, self.told = client, client.world, told
        self.name = f"keeper{client.number}"
        self.session = self.acked = self.maybe = self.lsn = 0
        """Heard up to: what counts at least, and at most, and what was told."""
        self.from_lsn: int | None = None
        """What is behind that is asked for, as what was before it is lost."""
        self.at: int | None = None
        """The place of the next message; before the first one nobody knows."""
        self.is_on = self.is_known = False

    def words(self) -> Words:
        """Return how it is asked for on a connection that has the session now."""
        if self.session != self.client.session:
            self.session, self.is_known, self.from_lsn = self.client.session, False, None
            self.acked = self.maybe = self.lsn = self.world.truth.end
        if self.from_lsn is not None and self.acked >= self.from_lsn:
            self.from_lsn = None
        self.is_on = False
        come_from = () if self.from_lsn is None else ("FROM", f"{self.from_lsn}")
        words = "SUBSCRIBE", self.told.root, "TREE", "MODE", "DATA", *come_from
        return (*words, "DURABLE", self.name)

    def begun(self) -> None:
        """It is confirmed."""
        if not self.is_known:
            self.is_known, self.maybe = True, max(self.maybe, self.world.truth.end)
        self.is_on = True
        self.at = None if self.from_lsn is None else self.told.behind(self.from_lsn)
        self.world.counts["kept subscriptions"] += 1

    def lost(self, lsn: int) -> None:
        """What follows is not kept any more; behind `lsn` it is."""
        known = self.acked if self.from_lsn is None else self.from_lsn
        missed = self.told.behind(lsn) - self.told.behind(known)
        require(missed > HISTORY, f"{missed} updates behind {known} are kept, and called lost")
        self.world.counts["gaps told"] += 1
        self.from_lsn = lsn

    def hear(self, text: bytes) -> bool:
        """Take a message; return whether it says that the subscription has ended."""
        message = json.loads(text)
        op, lsn = message["op"], message["lsn"]
        texts, behind = self.told.texts, self.told.behind
        if op in ("progress", "overrun"):
            place = behind(self.maybe) if self.at is None else self.at
            missed = texts[place : behind(lsn)]
            require(not missed, f"who keeps a subscription is told {op} {lsn}, not {missed[:1]}")
            self.lsn = max(self.lsn, lsn)
            if op == "overrun" and (self.world.calm or self.client.rng.random() < FROM_THERE):
                self.from_lsn = lsn
            return bool(op == "overrun")
        if self.at is None:
            self.at = behind(lsn - 1)
            fits = behind(self.acked) <= self.at <= behind(self.maybe)
            known = f"{self.acked} to {self.maybe}"
            require(fits, f"who keeps a subscription goes on with {text!r}, heard is {known}")
        wanted = texts[self.at : self.at + 1]
        require([text] == wanted, f"who keeps a subscription is told {text!r}, not {wanted}")
        self.at += 1
        self.world.counts["kept messages"] += 1
        if message.get("part", 0) == message.get("parts", 1) - 1:
            self.lsn = max(self.lsn, lsn)
        return False

    @property
    def is_well(self) -> bool:
        """Whether it has heard all that there is."""
        place = self.told.behind(self.maybe) if self.at is None else self.at
        return self.is_on and place == len(self.told.lsns)

    def acknowledge(self, ask: Any) -> Doing:
        """Have it counted what was heard, or less of it; `ask` makes a request of words."""
        rng, session = self.client.rng, self.client.session
        lsn = self.lsn if rng.random() >= AGAIN else rng.randint(0, self.lsn)
        self.maybe = max(self.maybe, lsn)
        ended, told = yield ask("SUBACK", self.name, f"{lsn}")
        if session != self.session or ended != "ok":
            return
        if isinstance(told, ErrorReply):
            require(not self.is_known, f"who keeps a subscription is told {told.code} for {lsn}")
        else:
            self.acked = max(self.acked, lsn)
