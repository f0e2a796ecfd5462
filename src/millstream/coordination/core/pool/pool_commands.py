"""Commands about the nodes of a pool: JOIN, LEAVE, NODES.

Invariants:
1. A node is removed only by a node that can reach the pool: since the request most nodes have
   answered, and of each group a quorum. So its current memberships are known.

Elsewhere: joining and leaving (`membership`).

Source: V2R2, "Administration".
"""

from __future__ import annotations

from typing import Final

from millstream.coordination.core.pool.admin_arguments import (
    RefusedError,
    Words,
    is_removed_node,
    need_room_for_a_tombstone,
    no_more,
    node_named,
    number_in,
    shown,
)
from millstream.coordination.core.pool.admin_requests import AdminRequests
from millstream.coordination.core.pool.discovery import Discovery
from millstream.coordination.core.pool.heartbeats import Heartbeats
from millstream.coordination.core.pool.hosted_groups import HostedGroups
from millstream.coordination.core.pool.incarnations import Incarnations
from millstream.coordination.core.pool.membership import REMOVED, Membership
from millstream.coordination.core.pool.messages import Address
from millstream.coordination.core.pool.replies import node_row, refused_row, value_of
from millstream.coordination.core.pool.state import PoolState
from millstream.vsr.core.configuration import Configuration
from millstream.vsr.core.values import OK, error

__all__ = ["SILENT_MS", "PoolCommands"]

SILENT_MS: Final = 3000
"""A node that has not answered for so long may be removed: it is asked at each round of gossip,
and rounds are counted, so that a node that stood still itself takes nobody for silent."""


class PoolCommands:
    """Let nodes in and out of the pool, and show them."""

    def __init__(
        self,
        state: PoolState,
        heartbeats: Heartbeats,
        incarnations: Incarnations,
        membership: Membership,
        groups: HostedGroups,
        discovery: Discovery,
        requests: AdminRequests,
    ) -> None:
        self.state = state
        self._heartbeats = heartbeats
        self._incarnations = incarnations
        self._membership = membership
        self._groups = groups
        self._discovery = discovery
        self._requests = requests
        self._rounds: dict[int, int] = {}
        """How often a node was asked by a command that checks whether it is alive, by ticket."""

    def tick(self) -> None:
        """Ask again who is to be removed, and all the others."""
        for ticket in self._rounds:
            self._rounds[ticket] += 1
        if self._rounds:
            self._heartbeats.ping_all()

    def join(self, ticket: int, words: Words) -> bytes | None:
        """Join the pool of the node at one of these addresses."""
        if not words or len(words) % 2:
            raise RefusedError("BADARG", "ADMIN JOIN <host> <port> [<host> <port> ...]")
        addresses = [
            Address(shown(host), number_in(port, 1, 65535))
            for host, port in zip(words[::2], words[1::2], strict=True)
        ]
        if addresses == [self.state.me.peer]:
            raise RefusedError("BADARG", "this is the node itself")
        if self.state.tables.is_removed:
            raise RefusedError("CONFLICT", REMOVED)
        self._membership.join(tuple(addresses))
        attempt = self.state.me.turn

        def done() -> bytes | None:
            if self._membership.join_refusal:
                return error("CONFLICT", self._membership.join_refusal)
            return None if self._membership.joining else OK

        def late() -> bytes:
            if self.state.me.turn == attempt:  # else it was said again, and goes on
                self._membership.stop_joining()
            return error("ERR", "no node answers at this address; nothing has changed")

        self._requests.wait(ticket, done, late)
        return None

    def leave(self, ticket: int, words: Words) -> bytes | None:
        """Leave the pool, or remove the node that is named."""
        if words:
            return self._remove(ticket, words)
        for group_id in sorted(self.state.hosted):
            if self._groups.is_member(group_id):
                number = self.state.tables.number_of(group_id)
                raise RefusedError(
                    "CONFLICT", f"this node is in group {number}: GROUP REPLACE or REMOVE it first"
                )
        self._membership.leave()
        return OK

    def _remove(self, ticket: int, words: Words) -> bytes | None:
        """Refuse a node for ever that is in no group and does not answer."""
        no_more(words[1:])
        try:
            node = node_named(self.state.tables, words[0])
        except RefusedError:
            if is_removed_node(self.state.tables, words[0]):
                return OK
            raise
        if node == self.state.id:
            return self.leave(ticket, ())
        need_room_for_a_tombstone(self.state.tables)
        if groups := self._groups_of(node):
            raise RefusedError(
                "CONFLICT", f"it is in group {groups[0]}: GROUP REPLACE or REMOVE it first"
            )
        asked_ms = self.state.now_ms
        self._rounds[ticket] = 0
        self._heartbeats.ping_all()

        def over(value: bytes) -> bytes:
            del self._rounds[ticket]
            return value

        def done() -> bytes | None:
            if self.state.tables.node(node) is None:
                return over(OK)
            if self.state.has_heard(node, asked_ms):
                return over(
                    error("CONFLICT", "the node is alive: send it LEAVE, or stop it first")
                )
            # What waits to be taken may be its answer.
            if (
                self._rounds[ticket] <= SILENT_MS // self._heartbeats.tick_ms
                or self.state.deferred
            ):
                return None
            try:
                self._remove_for_ever(node, asked_ms)
            except RefusedError as refused:
                return over(refused.value)
            return over(OK)

        def late() -> bytes:
            return over(error("BUSY", "this node was too slow to find out; nothing has changed"))

        self._requests.wait(ticket, done, late)
        return None

    def _remove_for_ever(self, node: bytes, asked_ms: float) -> None:
        if groups := self._groups_of(node):
            raise RefusedError("CONFLICT", f"it is in group {groups[0]} now")
        need_room_for_a_tombstone(self.state.tables)
        if missing := self._not_heard_of(node, asked_ms):
            text = f"this node hears too little of the pool ({missing}); ask another one"
            raise RefusedError("CONFLICT", text)
        self._groups.delete(node)
        self._heartbeats.ping_all()

    def _not_heard_of(self, node: bytes, asked_ms: float) -> str:
        """Return what a node has to hear, and has not since then, to remove this one."""
        nodes = [info.node_id for info in self.state.tables.others() if info.node_id != node]
        if (sum(self.state.has_heard(one, asked_ms) for one in nodes) + 1) * 2 <= len(nodes) + 1:
            return "most nodes are silent"
        for group_id in self.state.tables.foundings:
            seen, name = self.state.directory.get(group_id), self._discovery.name_of(group_id)
            if seen is None or not self._discovery.is_news(seen):
                return f"nothing new of group {name}"
            # A primary may be cut off from what its group has become; a quorum cannot be.
            heard = sum(
                one == self.state.id or self.state.has_heard(one, asked_ms) for one in seen.members
            )
            if heard < Configuration(seen.epoch, seen.members).quorum:
                return f"most members of group {name} are silent"
        return ""

    def _groups_of(self, node: bytes) -> list[int]:
        """Return the numbers of the groups that a node is a member of, as far as is known."""
        return sorted(
            self.state.tables.number_of(group)
            for group in self.state.tables.foundings
            if node in self._discovery.entry_of(group)["nodes"]
        )

    def nodes(self, _: int, words: Words) -> bytes:
        """Return a row for each node of the pool."""
        no_more(words)
        state, rows = self.state, []
        for node_id in sorted(state.tables.nodes):
            info = state.tables.node(node_id)
            if info is None:
                continue
            heard_ms = state.heard_ms.get(node_id)
            ago = 0 if info is state.me else None if heard_ms is None else state.now_ms - heard_ms
            refused = self._incarnations.refused.get(node_id)
            row = node_row(info, ago, self._groups_of(node_id), is_me=info is state.me)
            rows.append({**row, "refused": refused and refused_row(refused, state.now_ms)})
        return value_of(rows)

    def check_invariants(self) -> None:
        """Assert what is true after every event."""
        waiting = {pending.ticket for pending in self._requests.pending}
        assert self._rounds.keys() <= waiting, "a node is asked about for nobody"
