"""How the nodes of a pool learn of one another and of the groups: joining, leaving, gossip.

Invariants:
1. Every `TICK_MS`, or what is set for all groups, a node pings some others; whose tables differ
   exchange them, each way at most once per ping. So what one node knows all know soon, also if
   messages are lost.
2. Nodes of another pool are not listened to, except that they are told so, until one of them asks
   to join: then both pools become one, whoever else joins whom at the same time.
3. A removed node is not listened to, whoever speaks of it; it is told, and then is alone for ever:
   what comes back in its place is a new node.

Elsewhere: what is known (`pool_tables`, `pool_directory`), what follows for groups here
(`pool_hosting`), the commands (`pool_admin`).

Source: V2R2, "Initial Bootstrap" and "Administration".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from millstream.coordination.core.namespace.state.keys import KEYS, number_of
from millstream.coordination.core.pool.board import Boards
from millstream.coordination.core.pool.effects import GroupChanged, Posted, TellFork, Warn
from millstream.coordination.core.pool.messages import (
    Address,
    Deleted,
    Founding,
    Hello,
    Join,
    JoinRefused,
    Ping,
    PoolEnvelope,
    PoolPayload,
    Tables,
)
from millstream.coordination.core.pool.tables import digest_of
from millstream.vsr.core.configuration import generation
from millstream.vsr.core.effects import Superseded
from millstream.vsr.core.entries import NOBODY
from millstream.vsr.core.replica.member import Status

__all__ = ["FANOUT", "REMOVED", "TICK_MS", "Gossip"]

TICK_MS: Final = 500
"""Between two rounds of gossip, if nothing else is set, and the longest time between two tries of
whatever has to be tried again."""
_INTERVAL: Final = KEYS[b"GLOBAL.VDS.INTERVAL"]
FANOUT: Final = 3
"""Nodes that are pinged in a round."""
REMOVED: Final = (
    "this node was removed from its pool by an administrator (ADMIN LEAVE) and takes no part any "
    "more; to come back, move its coord directory aside and start it with --join, as a new node"
)
"""What a removed node says."""


class Gossip(Boards):
    """Hello, Ping, Tables, Join, JoinRefused."""

    def __init__(self, chance: Callable[[], float]) -> None:
        super().__init__(chance)
        self.joining: tuple[Address, ...] = ()
        self.join_refusal = ""
        self._ticks = 0

    # ---- gossip

    @property
    def round_ms(self) -> int:
        """Between two rounds of gossip."""
        kept = self.setting(_INTERVAL.name)
        return number_of((kept and _INTERVAL.read(kept)) or _INTERVAL.default)

    @property
    def _ticks_per_round(self) -> int:
        return -(-self.round_ms // TICK_MS)

    @property
    def tick_ms(self) -> float:
        """Between two Timers."""
        return self.round_ms / self._ticks_per_round

    def tick_gossip(self) -> None:
        """Ping some nodes if it is time; try again to join."""
        self._note_led()
        self._ticks += 1
        if self._ticks % self._ticks_per_round == 0:
            self._ping_some()
        self._try_to_join()

    def _ping_some(self) -> None:
        others = self.tables.others()
        for _ in range(min(FANOUT, len(others))):
            chosen = others.pop(int(self.chance() * len(others)))
            self.ping(chosen.node_id)

    def _note_led(self) -> None:
        for group_id in sorted(self.states):
            if self.states[group_id].leads:
                self.note_state(self.states[group_id])

    def _try_to_join(self) -> None:
        for address in self.joining:
            own = tuple(self.tables.foundings[group] for group in sorted(self.tables.foundings))
            self.say_to(NOBODY, address, Join(self.me, own))

    def ping(self, receiver: bytes, *, is_answer: bool = False) -> None:
        """Give a node a sign of life, which asks for one."""
        self.say(receiver, self._sign_of_life(is_answer=is_answer))

    def _sign_of_life(self, *, is_answer: bool = False) -> Ping:
        sightings = self.directory.sightings(self.now_ms)
        tables = self.tables
        return Ping(
            tables.pool_ids, self.me, tables.digest, sightings, is_answer, self.board_lsn
        )  # fmt: skip

    def spread(self) -> None:
        """Tell all nodes at once what has changed."""
        for info in self.tables.others():
            self.ping(info.node_id)

    def on_posted(self, posted: Posted) -> None:
        """Note what members here have; of news all nodes are told at once."""
        if self.post(posted):
            self.spread()

    def question(self) -> PoolPayload:
        """Return a sign of life, which asks for one."""
        return self._sign_of_life()

    def on_hello(self, envelope: PoolEnvelope, hello: Hello) -> None:
        """Learn where a node of the pool is now."""
        if self.tables.node(envelope.sender) is not None:
            self.hear_node(hello.info, is_late=False)

    def on_ping(self, envelope: PoolEnvelope, ping: Ping) -> None:
        """Take what it says; answer with what it lacks."""
        if not self.tables.is_of(ping.pool_ids):
            self._say_gone(ping)
            return
        if not self.hear_node(ping.info, is_late=True) or ping.info.is_gone:
            return
        self.heard_ms[envelope.sender] = self.now_ms
        self._hear_where(ping)
        if self.board is not None and ping.board_lsn < self.board.lsn:
            self.say(envelope.sender, self.board)
        if not ping.is_answer:
            self.ping(envelope.sender, is_answer=True)
            if ping.digest != self.tables.digest:
                self.say(envelope.sender, self.tables.message())

    def _hear_where(self, ping: Ping) -> None:
        """Learn where groups are; tell replicas of forks that have left them behind."""
        self.directory.hear(ping.sightings, self.tables.foundings, self.now_ms)
        for group_id, state in sorted(self.states.items()):
            seen, known = self.directory.get(group_id), state.configuration
            if seen is None or not known.members or state.status is Status.RETIRED:
                continue
            if generation(seen.epoch) > generation(known.epoch):
                self.effects.append(TellFork(group_id, Superseded(seen.epoch, seen.members)))

    def show_life(self, envelope: PoolEnvelope, ping: Ping) -> None:
        """Note that a node lives, and tell it so of this one: what can be done without the disk.

        Nothing of the tables is told but their hash: they may not be durable.
        """
        if ping.info.is_gone or not self.tables.is_of(ping.pool_ids):
            return
        if self.tables.node(envelope.sender) is None or self.refusal_of_node(ping.info):
            return
        self.heard_ms[envelope.sender] = self.now_ms
        self._hear_where(ping)
        if not ping.is_answer:
            self._note_led()
            self.ping(envelope.sender, is_answer=True)

    def _say_gone(self, ping: Ping) -> None:
        """Tell a node that takes this one for one of its pool that it is none."""
        if not ping.is_answer and not self.joining:
            answer = self._sign_of_life(is_answer=True)._replace(
                pool_ids=ping.pool_ids, info=self.me._replace(is_gone=True), sightings=()
            )
            self.say_to(ping.info.node_id, ping.info.peer, answer)

    def on_tables(self, envelope: PoolEnvelope, tables: Tables) -> None:
        """Take what is news; give back what the sender lacks."""
        if not self.joining and not self.tables.is_of(tables.pool_ids):
            return
        self.stop_joining()
        self._merge(tables)
        self.heard_ms[envelope.sender] = self.now_ms
        if not tables.is_answer and digest_of(tables) != self.tables.digest:
            self.say(envelope.sender, self.tables.message(is_answer=True))

    def _merge(self, tables: Tables) -> None:
        if self.tables.unite(tables.pool_ids):
            self.is_changed = True
        for group_id in tables.tombstones:
            self.delete(group_id)
        for info in tables.nodes:
            self.note_node(info)
        for founding in tables.foundings:
            self.take_founding(founding)

    def on_group_changed(self, state: GroupChanged) -> None:
        """Also tell everybody where the group is now, if this node leads it."""
        super().on_group_changed(state)
        if state.leads:
            self.spread()

    # ---- joining

    def join(self, addresses: tuple[Address, ...]) -> None:
        """Try to join the pool of the nodes at these addresses until one answers."""
        self.joining, self.join_refusal = addresses, ""
        # Who left this pool before comes back as somebody newer.
        self.tables.say_of_me(self.me._replace(turn=self.me.turn + 1))
        self.is_changed = True
        self._try_to_join()

    def stop_joining(self) -> None:
        """Ask no more; pools that heard the question, and are not this node's, can be told so."""
        if self.joining:
            self.joining = ()
            # What a node said last counts: word of being gone has to be newer than the question.
            self.tables.say_of_me(self.me._replace(turn=self.me.turn + 1))
            self.is_changed = True

    def on_join(self, envelope: PoolEnvelope, join: Join) -> None:
        """Let a node in, unless groups of its pool and of this are called the same."""
        removed = "the node there was removed from its pool" if self.tables.is_removed else ""
        if refusal := removed or self._clash(join.foundings):
            self.say_to(envelope.sender, join.info.peer, JoinRefused(refusal))
            return
        self.note_node(join.info)
        self.say(envelope.sender, self.tables.message())

    def _clash(self, foundings: tuple[Founding, ...]) -> str:
        for founding in foundings:
            # One that is known here is no news: its node was let in before, and asks again.
            known = founding.group_id in self.tables.foundings
            if not known and self.tables.numbered(founding.number):
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

    # ---- leaving

    def leave(self) -> None:
        """Be alone again; who is not told now is told when it asks."""
        gone = self.me._replace(turn=self.me.turn + 1, is_gone=True)
        self.tables.say_of_me(gone)
        self.spread()
        self._be_alone()

    def _be_alone(self) -> None:
        here = self.me._replace(turn=self.me.turn + 1, is_gone=False)
        self.tables.leave(here, self.hosted)
        self.heard_ms.clear()
        self.forget_board()
        self.is_changed = True

    # ---- being removed

    def on_removed(self, envelope: PoolEnvelope) -> None:
        """Tell a node that it was removed."""
        said = envelope.payload
        if isinstance(said, Join | Ping):
            self.say_to(envelope.sender, said.info.peer, Deleted(envelope.sender, is_answer=False))

    def part_with(self, node_id: bytes) -> None:
        """Also be alone if it is this node that was removed."""
        if node_id != self.id:
            super().part_with(node_id)
            return
        self._be_alone()
        self.joining, self.join_refusal = (), REMOVED
        self.effects.append(Warn(REMOVED))
