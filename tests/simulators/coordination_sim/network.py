"""The network between nodes: late, lossy, doubled, out of order, clogged and cut.

Invariants:
1. What is delivered was sent, byte for byte; it may come when its sender is long dead.
2. Without `reorder` what one node sends to another arrives in its order.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from millstream.vsr.core.effects import Message
from millstream.vsr.core.messages import Envelope, decode, encode
from simulators.coordination_sim.conditions import Conditions
from simulators.coordination_sim.loop import Loop, stream

if TYPE_CHECKING:
    from simulators.coordination_sim.machine import Machine

LATE_MS_MAX = 20_000.0
"""So much later may a copy come."""
ENCODED = 0.01
"""So many messages are sent as bytes; all of them would be slow."""


class Network:
    """Links are pairs of node numbers, sender first."""

    def __init__(
        self, seed: int, loop: Loop, conditions: Conditions, counts: Counter[str]
    ) -> None:
        self.rng = stream(seed, "network")
        self.loop, self.conditions, self.counts = loop, conditions, counts
        self.machines: dict[bytes, Machine] = {}
        self._message: Message | None = None
        """The last one: what is said to several is one message."""
        self.cuts: Counter[tuple[int, int]] = Counter()
        self.clogs: dict[tuple[int, int], float] = {}
        self.calm = False
        self._last: dict[tuple[int, int], float] = {}

    def send(self, sender: Machine, receiver_id: bytes, envelope: Envelope) -> None:
        """Take a message to its receiver, or not."""
        receiver = self.machines.get(receiver_id)
        if receiver is None:
            return
        message = self._message
        if message is None or message[0] is not envelope:
            message = self._message = Message(envelope)
        draw, conditions, link = self.rng.random, self.conditions, (sender.number, receiver.number)
        if self.cuts and self.cuts.get(link):
            return
        if not self.calm:
            if conditions.loss and draw() < conditions.loss:
                self.counts["loss"] += 1
                return
            if conditions.duplicate and draw() < conditions.duplicate:
                self.counts["duplicate"] += 1
                self._arrange(link, sender, receiver, message)
            if conditions.late and draw() < conditions.late:
                self.counts["late"] += 1
                self.loop.after(draw() * LATE_MS_MAX, receiver.receive, message)
        if draw() < ENCODED:
            message = Message(decode(encode(envelope)[4:]))
        self._arrange(link, sender, receiver, message)

    def _arrange(
        self, link: tuple[int, int], sender: Machine, receiver: Machine, message: Message
    ) -> None:
        conditions = self.conditions
        delay = conditions.delay_ms * (1 + conditions.jitter * self.rng.random() ** 3)
        when = self.loop.now + delay * (sender.slowness + receiver.slowness) / 2
        if self.clogs and link in self.clogs:
            when = max(when, self.clogs[link])
        if not conditions.reorder:
            when = max(when, self._last.get(link, 0.0))
            self._last[link] = when
        self.loop.at(when, receiver.receive, message)

    # ---- cuts

    def cut(self, links: list[tuple[int, int]], for_ms: float) -> None:
        """Lose all that is sent on these links for a time, unless all is mended by now."""
        if self.calm:
            return
        self.cuts.update(links)
        self.loop.after(for_ms, self.mend, links)

    def mend(self, links: list[tuple[int, int]]) -> None:
        """End a cut."""
        if self.calm:
            return
        for link in links:
            if self.cuts[link] <= 1:
                self.cuts.pop(link, None)
            else:
                self.cuts[link] -= 1

    def clog(self, links: list[tuple[int, int]], for_ms: float) -> None:
        """Hold back all that is sent on these links for a time, unless all is mended by now."""
        if self.calm:
            return
        until = self.loop.now + for_ms
        for link in links:
            self.clogs[link] = until

    def heal(self) -> None:
        """Let everything through from now on."""
        self.calm = True
        self.cuts.clear()
        self.clogs.clear()
        self._last.clear()
