"""Heartbeats between the nodes of a pool: a ping says that a node is alive, and what it knows.

Invariants:
1. In every round, `TICK_MS` or the setting for all groups, a node pings `FANOUT` random others.

Elsewhere: the reaction to a ping (`gossip`).

Source: V2R2, "Initial Bootstrap".
"""

from __future__ import annotations

from typing import Final

from millstream.coordination.core.namespace.state.keys import KEYS, number_of
from millstream.coordination.core.pool.messages import Ping
from millstream.coordination.core.pool.state import PoolState
from millstream.coordination.core.pool.system_board import SystemBoard

__all__ = ["FANOUT", "TICK_MS", "Heartbeats"]

TICK_MS: Final = 500
"""Time between two rounds of gossip by default, and the longest time between two tries of anything
that is repeated."""
_INTERVAL: Final = KEYS[b"GLOBAL.VDS.INTERVAL"]
FANOUT: Final = 3
"""Nodes that are pinged in a round."""


class Heartbeats:
    """Sends pings."""

    def __init__(self, state: PoolState, board: SystemBoard) -> None:
        self.state = state
        self._board = board
        self._ticks = 0

    @property
    def round_ms(self) -> int:
        """Between two rounds of gossip."""
        kept = self._board.setting(_INTERVAL.name)
        return number_of((kept and _INTERVAL.read(kept)) or _INTERVAL.default)

    @property
    def _ticks_per_round(self) -> int:
        return -(-self.round_ms // TICK_MS)

    @property
    def tick_ms(self) -> float:
        """Between two Timers."""
        return self.round_ms / self._ticks_per_round

    def tick(self) -> None:
        """Ping some nodes if a round is over."""
        self._ticks += 1
        if self._ticks % self._ticks_per_round == 0:
            self._ping_some()

    def _ping_some(self) -> None:
        others = self.state.tables.others()
        for _ in range(min(FANOUT, len(others))):
            chosen = others.pop(int(self.state.chance() * len(others)))
            self.ping(chosen.node_id)

    def ping(self, receiver: bytes, *, is_answer: bool = False) -> None:
        """Send a node a ping, which asks for one back unless it is an answer."""
        self.state.say(receiver, self.message(is_answer=is_answer))

    def ping_all(self) -> None:
        """Tell all nodes at once what has changed."""
        for info in self.state.tables.others():
            self.ping(info.node_id)

    def message(self, *, is_answer: bool = False) -> Ping:
        """Return what a ping says now."""
        state, tables = self.state, self.state.tables
        sightings = state.directory.sightings(state.now_ms)
        return Ping(
            tables.pool_ids, state.me, tables.digest, sightings, is_answer, self._board.lsn
        )
