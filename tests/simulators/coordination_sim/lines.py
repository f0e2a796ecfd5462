"""What lies between whole nodes and between them and their clients.

Invariants:
1. A connection of a client brings bytes in their order, in pieces of any size, until it breaks;
   then nothing more, and its client is told, or finds out by its own patience.
2. Frames of the pool are bytes; they are lost, doubled, late and cut as other messages are.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING, Any

from millstream.coordination.core.pool.messages import Address
from millstream.coordination.core.resp.session import RespSession
from simulators.coordination_sim.network import LATE_MS_MAX, Network

if TYPE_CHECKING:
    from simulators.coordination_sim.nodes import Node
    from simulators.coordination_sim.whole import WholeWorld

GO_ON_MS = 0.01
PIECES_MAX = 3


class NoGuard:
    """A node without users."""

    asks = False

    def check(self, name: str, password: str, done: Any, source: str) -> Callable[[], object]:
        done("there are no users")
        return lambda: None

    def check_token(self, token: bytes, done: Any) -> Callable[[], object]:
        done("there are no users")
        return lambda: None


class NodesNetwork(Network):
    """Links of whole nodes."""

    by_address: dict[Address, Any]

    def delay(self) -> float:
        """Draw how long it takes from a client to a node, or back."""
        conditions = self.conditions
        return conditions.delay_ms * (1 + conditions.jitter * self.rng.random() ** 3)

    def say(self, sender: Node, address: Address, frame: bytes) -> None:
        """Take a frame of the pool to whoever is at an address, or not."""
        receiver = self.by_address.get(address)
        if receiver is None or self.cuts.get((sender.number, receiver.number)):
            return
        draw, conditions = self.rng.random, self.conditions
        link: Any = (sender.number, receiver.number)
        ones: Any = (sender, receiver, frame)
        if not self.calm:
            if conditions.loss and draw() < conditions.loss:
                self.counts["loss"] += 1
                return
            if conditions.duplicate and draw() < conditions.duplicate:
                self.counts["duplicate"] += 1
                self._arrange(link, *ones)
            if conditions.late and draw() < conditions.late:
                self.counts["late"] += 1
                self.loop.after(draw() * LATE_MS_MAX, receiver.receive, frame)
        self._arrange(link, *ones)


class Line:
    """One connection; `resp` is the node's end, `on_data` and `on_lost` the client's."""

    def __init__(
        self, world: WholeWorld, node: Node, on_data: Callable[[Line, bytes], None],
        on_lost: Callable[[Line], None],
    ) -> None:  # fmt: skip
        self.world, self.loop, self.node = world, world.loop, node
        self.rng: Random = world.callers.rng
        self.on_data, self.on_lost = on_data, on_lost
        self.resp: RespSession | None = None
        self.process = 0
        self.is_broken = False
        self._last = [0.0, 0.0]

    def _when(self, way: int) -> float:
        delay = self.world.network.delay() * self.node.slowness
        self._last[way] = max(self._last[way], self.loop.now + delay)
        return self._last[way]

    def _pieces(self, data: bytes) -> list[bytes]:
        if self.rng.random() < 0.9:
            return [data]
        cuts = sorted(self.rng.randrange(len(data) + 1) for _ in range(PIECES_MAX - 1))
        ends = [0, *cuts, len(data)]
        return [data[a:b] for a, b in pairwise(ends) if b > a]

    # ---- the client's end

    def send(self, data: bytes) -> None:
        """Send bytes to the node."""
        for piece in self._pieces(data):
            self.loop.at(self._when(0), self._to_node, piece)

    def close(self) -> None:
        """End it; the node finds out when all that was sent has come."""
        self.on_data, self.on_lost = _nobody, _nobody
        self.loop.at(self._when(0), self._close_front)

    def _close_front(self) -> None:
        if self.resp is not None and self.process == self.node.process:
            self.node.lines.pop(self.resp, None)
            self.resp.close()
        self.is_broken = True

    def _to_node(self, piece: bytes) -> None:
        if not self.is_broken:
            self.node.call(self._feed, piece)

    # ---- the node's end

    def _feed(self, piece: bytes) -> None:
        if self._is_up:
            assert self.resp is not None
            self.resp.feed(piece)
            self.go_on()

    @property
    def _is_up(self) -> bool:
        is_there = self.resp is not None and self.process == self.node.process
        return is_there and not self.is_broken

    def go_on_soon(self) -> None:
        """Go on in the node's next turn."""
        self.loop.after(GO_ON_MS, self.node.call, self.go_on)

    def go_on(self) -> None:
        """Do what can be done, and send what there is to send."""
        if not self._is_up:
            return
        resp = self.resp
        assert resp is not None
        has_more = resp.advance()
        if resp.has_output:
            for piece in self._pieces(resp.take_output()):
                self.loop.at(self._when(1), self._to_client, piece)
        if resp.is_done:
            self.break_off()
            self.node.lines.pop(resp, None)
            resp.close()
        elif has_more:
            self.go_on_soon()

    def break_off(self) -> None:
        """Have no connection any more; what is on its way to the client still comes."""
        if not self.is_broken:
            self.is_broken = True
            self.loop.at(self._when(1), self._lost)

    def reset(self) -> None:
        """Break in the middle, for both ends."""
        if not self.is_broken:
            self.break_off()
            if self.resp is not None and self.process == self.node.process:
                self.node.lines.pop(self.resp, None)
                self.resp.close()

    def _to_client(self, piece: bytes) -> None:
        self.on_data(self, piece)

    def _lost(self) -> None:
        self.on_lost(self)


def _nobody(*_: Any) -> None: ...
