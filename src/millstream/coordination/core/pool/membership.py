"""The membership of this node in a pool: joining, leaving, and being removed.

Invariants:
1. A node tries to join until one of the addresses answers, or until the time of an administrator's
   command is over. Then both pools become one, whichever others join at the same time.
2. A removed node is told so, and is then alone forever. Its replacement is a new node.

Elsewhere: the other nodes (`tables`), how they learn of it (`gossip`), the commands
(`pool_commands`).

Source: V2R2, "Initial Bootstrap" and "Administration".
"""

from __future__ import annotations

from typing import Final

from millstream.coordination.core.pool.effects import Warn
from millstream.coordination.core.pool.heartbeats import Heartbeats
from millstream.coordination.core.pool.incarnations import Incarnations
from millstream.coordination.core.pool.messages import (
    Address,
    Deleted,
    Founding,
    Join,
    JoinRefused,
    Ping,
    PoolEnvelope,
)
from millstream.coordination.core.pool.state import PoolState
from millstream.coordination.core.pool.system_board import SystemBoard
from millstream.vsr.core.entries import NOBODY

__all__ = ["REMOVED", "Membership"]

REMOVED: Final = (
    "this node was removed from its pool by an administrator (ADMIN LEAVE) and takes no part any "
    "more; to come back, move its coord directory aside and start it with --join, as a new node"
)
"""What a removed node says."""


class Membership:
    """Of this node."""

    def __init__(
        self,
        state: PoolState,
        board: SystemBoard,
        heartbeats: Heartbeats,
        incarnations: Incarnations,
    ) -> None:
        self.state = state
        self._board = board
        self._heartbeats = heartbeats
        self._incarnations = incarnations
        self.joining: tuple[Address, ...] = ()
        """The addresses where it asks to join."""
        self.join_refusal = ""

    # ---- joining

    def join(self, addresses: tuple[Address, ...]) -> None:
        """Try to join the pool of the nodes at these addresses until one answers."""
        self.joining, self.join_refusal = addresses, ""
        # Who left this pool before comes back as somebody newer.
        self._say_newer()
        self.ask_to_join()

    def stop_joining(self) -> None:
        """Ask no more; pools that heard the question, and are not this node's, can be told so."""
        if self.joining:
            self.joining = ()
            # What a node said last counts: word of being gone has to be newer than the question.
            self._say_newer()

    def _say_newer(self) -> None:
        state = self.state
        state.tables.say_of_me(state.me._replace(turn=state.me.turn + 1))
        state.is_changed = True

    def ask_to_join(self) -> None:
        """Ask again."""
        foundings = self.state.tables.foundings
        for address in self.joining:
            own = tuple(foundings[group] for group in sorted(foundings))
            self.state.say_to(NOBODY, address, Join(self.state.me, own))

    def on_join(self, envelope: PoolEnvelope, join: Join) -> None:
        """Accept a node, unless groups of its pool and of this one have equal numbers."""
        tables = self.state.tables
        removed = "the node there was removed from its pool" if tables.is_removed else ""
        if refusal := removed or self._clash(join.foundings):
            self.state.say_to(envelope.sender, join.info.peer, JoinRefused(refusal))
            return
        self._incarnations.note_node(join.info)
        self.state.say(envelope.sender, tables.message())

    def _clash(self, foundings: tuple[Founding, ...]) -> str:
        tables = self.state.tables
        for founding in foundings:
            # One that is known here is no news: its node was let in before, and asks again.
            known = founding.group_id in tables.foundings
            if not known and tables.numbered(founding.number):
                return (
                    f"both have a group {founding.number}; let a node join that never was in one, "
                    "or delete one of the groups if nobody uses it"
                )
        return ""

    def on_join_refused(self, _: PoolEnvelope, refused: JoinRefused) -> None:
        """Give up."""
        if self.joining:
            self.stop_joining()
            self.join_refusal = refused.reason

    # ---- leaving, and being removed

    def leave(self) -> None:
        """Leave the pool. Nodes that are not told now are told when they ask."""
        state = self.state
        state.tables.say_of_me(state.me._replace(turn=state.me.turn + 1, is_gone=True))
        self._heartbeats.ping_all()
        self._be_alone()

    def _be_alone(self) -> None:
        state = self.state
        here = state.me._replace(turn=state.me.turn + 1, is_gone=False)
        state.tables.leave(here, state.hosted)
        state.heard_ms.clear()
        self._board.forget()
        state.is_changed = True

    def be_removed(self) -> None:
        """Leave the pool forever: an administrator has removed this node."""
        self._be_alone()
        self.joining, self.join_refusal = (), REMOVED
        self.state.effects.append(Warn(REMOVED))

    def tell_removed(self, envelope: PoolEnvelope) -> None:
        """Tell a removed node, which has said something, that it was removed."""
        said = envelope.payload
        if isinstance(said, Join | Ping):
            deleted = Deleted(envelope.sender, is_answer=False)
            self.state.say_to(envelope.sender, said.info.peer, deleted)
