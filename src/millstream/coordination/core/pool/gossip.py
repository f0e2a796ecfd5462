"""How the nodes of a pool learn about each other and about the groups.

Invariants:
1. Nodes ping each other (`heartbeats`). Nodes whose tables differ exchange them, in each direction
   at most once per ping. So all nodes soon know what one node knows, even if messages are lost.
2. Messages from nodes of another pool are ignored until one of them asks to join. Their senders
   are told so.
3. A removed node is ignored, whichever node speaks of it.

Elsewhere: the tables (`tables`, `directory`), effects on the groups here (`hosted_groups`).

Source: V2R2, "Initial Bootstrap" and "Administration".
"""

from __future__ import annotations

from millstream.coordination.core.pool.effects import GroupChanged, Posted, TellFork
from millstream.coordination.core.pool.heartbeats import Heartbeats
from millstream.coordination.core.pool.hosted_groups import HostedGroups
from millstream.coordination.core.pool.incarnations import Incarnations
from millstream.coordination.core.pool.membership import Membership
from millstream.coordination.core.pool.messages import Hello, Ping, PoolEnvelope, Tables
from millstream.coordination.core.pool.state import PoolState
from millstream.coordination.core.pool.system_board import SystemBoard
from millstream.coordination.core.pool.tables import digest_of
from millstream.vsr.core.configuration import generation
from millstream.vsr.core.effects import Superseded
from millstream.vsr.core.replica.member import Status

__all__ = ["Gossip"]


class Gossip:
    """Hello, Ping, Tables, and what all nodes are told at once."""

    def __init__(
        self,
        state: PoolState,
        board: SystemBoard,
        heartbeats: Heartbeats,
        incarnations: Incarnations,
        membership: Membership,
        groups: HostedGroups,
    ) -> None:
        self.state = state
        self._board = board
        self._heartbeats = heartbeats
        self.incarnations = incarnations
        self._membership = membership
        self._groups = groups

    def tick(self) -> None:
        """Ping some nodes if it is time; try again to join."""
        self._groups.note_led()
        self._heartbeats.tick()
        self._membership.ask_to_join()

    def on_posted(self, posted: Posted) -> None:
        """Note what members here have; of news all nodes are told at once."""
        if self._board.post(posted):
            self._heartbeats.ping_all()

    def on_group_changed(self, replica: GroupChanged) -> None:
        """Note what became of a group here; if this node leads it, tell everybody."""
        self._groups.on_group_changed(replica)
        if replica.leads:
            self._heartbeats.ping_all()

    def on_hello(self, envelope: PoolEnvelope, hello: Hello) -> None:
        """Learn where a node of the pool is now."""
        if self.state.tables.node(envelope.sender) is not None:
            self.incarnations.hear_node(hello.info, is_late=False)

    # ---- pings

    def on_ping(self, envelope: PoolEnvelope, ping: Ping) -> None:
        """Take what it says; answer with what it lacks."""
        state, board = self.state, self._board.board
        if not state.tables.is_of(ping.pool_ids):
            self._say_gone(ping)
            return
        if not self.incarnations.hear_node(ping.info, is_late=True) or ping.info.is_gone:
            return
        state.heard_ms[envelope.sender] = state.now_ms
        self._hear_where(ping)
        if board is not None and ping.board_lsn < board.lsn:
            state.say(envelope.sender, board)
        if not ping.is_answer:
            self._heartbeats.ping(envelope.sender, is_answer=True)
            if ping.digest != state.tables.digest:
                state.say(envelope.sender, state.tables.message())

    def _hear_where(self, ping: Ping) -> None:
        """Learn where groups are; tell replicas of forks that have left them behind."""
        state = self.state
        state.directory.hear(ping.sightings, state.tables.foundings, state.now_ms)
        for group_id, replica in sorted(state.replicas.items()):
            seen, known = state.directory.get(group_id), replica.configuration
            if seen is None or not known.members or replica.status is Status.RETIRED:
                continue
            if generation(seen.epoch) > generation(known.epoch):
                state.effects.append(TellFork(group_id, Superseded(seen.epoch, seen.members)))

    def answer_while_writing(self, envelope: PoolEnvelope, ping: Ping) -> None:
        """Note that a node lives, and tell it so of this one: what can be done without the disk.

        Nothing of the tables is told but their hash: they may not be durable.
        """
        state = self.state
        if ping.info.is_gone or not state.tables.is_of(ping.pool_ids):
            return
        if state.tables.node(envelope.sender) is None:
            return
        if self.incarnations.refusal_of_node(ping.info):
            return
        state.heard_ms[envelope.sender] = state.now_ms
        self._hear_where(ping)
        if not ping.is_answer:
            self._groups.note_led()
            self._heartbeats.ping(envelope.sender, is_answer=True)

    def _say_gone(self, ping: Ping) -> None:
        """Tell a node that wrongly takes this one for a node of its pool."""
        if not ping.is_answer and not self._membership.joining:
            answer = self._heartbeats.message(is_answer=True)._replace(
                pool_ids=ping.pool_ids, info=self.state.me._replace(is_gone=True), sightings=()
            )
            self.state.say_to(ping.info.node_id, ping.info.peer, answer)

    # ---- tables

    def on_tables(self, envelope: PoolEnvelope, said: Tables) -> None:
        """Take what is news; give back what the sender lacks."""
        state = self.state
        is_ours = state.tables.is_of(said.pool_ids)
        if not self._membership.joining and not is_ours:
            return
        # A node that joined through this one tells its tables, too: the pool that was asked may
        # not have answered yet. Nodes of one pool send equal tables only in answer to a join.
        if not is_ours or digest_of(said) == state.tables.digest:
            self._membership.stop_joining()
        self._merge(said)
        state.heard_ms[envelope.sender] = state.now_ms
        if not said.is_answer and digest_of(said) != state.tables.digest:
            state.say(envelope.sender, state.tables.message(is_answer=True))

    def _merge(self, said: Tables) -> None:
        if self.state.tables.unite(said.pool_ids):
            self.state.is_changed = True
        for deleted in said.tombstones:
            self._groups.delete(deleted)
        for info in said.nodes:
            self.incarnations.note_node(info)
        for founding in said.foundings:
            self._groups.take_founding(founding)
