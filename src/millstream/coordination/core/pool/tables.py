"""What every node of a pool should know: nodes, groups, and those that were removed.

Invariants:
1. Merging gives the same result in any order and any number of times. Of a node, the latest
   information that it gave about itself counts. A founding record never changes. A deleted group
   or a removed node never comes back.
2. What a node hears about itself from others changes nothing.
3. When two pools become one, it has the names of both. So it does not matter which joined which.
4. Each table has a bound. What does not fit is not taken, and only nodes that have left are
   dropped for it.

Elsewhere: where groups are now (`directory`), spreading (`gossip`), the place on the disk
(`file_format`).
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

import msgspec

from millstream.coordination.core.pool.messages import (
    GROUPS_MAX,
    NODES_MAX,
    POOL_IDS_MAX,
    TOMBSTONES_MAX,
    Founding,
    NodeInfo,
    Tables,
)
from millstream.vsr.core.entries import ID_BYTES

__all__ = ["PoolTables", "digest_of", "fresh_pool_id"]


def fresh_pool_id(info: NodeInfo) -> bytes:
    """Return the pool id of a node that is alone, made from its last statement about itself."""
    content = msgspec.msgpack.encode((info.node_id, info.incarnation, info.turn))
    return blake2b(content, digest_size=ID_BYTES).digest()


class PoolTables:
    """As one node knows them; `me` is what it says of itself."""

    def __init__(self, me: NodeInfo) -> None:
        self.me = me
        self.pool_ids: tuple[bytes, ...] = (fresh_pool_id(me),)
        self.nodes: dict[bytes, NodeInfo] = {me.node_id: me}
        self.foundings: dict[bytes, Founding] = {}
        self.tombstones: dict[bytes, None] = {}
        self._numbered: dict[int, list[bytes]] = {}

    # ---- pools

    def is_of(self, pool_ids: tuple[bytes, ...]) -> bool:
        """Return whether these are names of this node's pool."""
        return any(pool_id in self.pool_ids for pool_id in pool_ids)

    def unite(self, pool_ids: tuple[bytes, ...]) -> bool:
        """Take a pool's names for further ones of this; return whether there are new ones."""
        before = self.pool_ids
        self.pool_ids = tuple(sorted({*before, *pool_ids})[:POOL_IDS_MAX])
        return self.pool_ids != before

    # ---- nodes

    def say_of_me(self, me: NodeInfo) -> None:
        """Replace what this node says of itself."""
        assert me.age > self.me.age
        self.me = self.nodes[me.node_id] = me

    def note_node(self, info: NodeInfo) -> bool:
        """Take what a node said of itself; return whether it is news."""
        known = self.nodes.get(info.node_id)
        if info.node_id == self.me.node_id or info.node_id in self.tombstones:
            return False
        if known is not None and known.age >= info.age:
            return False
        if known is None and len(self.nodes) >= NODES_MAX and not self._forget_one():
            return False
        self.nodes[info.node_id] = info
        return True

    def _forget_one(self) -> bool:
        gone = next((node for node in sorted(self.nodes) if self.nodes[node].is_gone), None)
        if gone is not None:
            del self.nodes[gone]
        return gone is not None

    def others(self) -> list[NodeInfo]:
        """Return the other nodes that are in the pool, in order of their ids."""
        return [
            self.nodes[node]
            for node in sorted(self.nodes)
            if node != self.me.node_id and not self.nodes[node].is_gone
        ]

    def node(self, node_id: bytes) -> NodeInfo | None:
        """Return a node that is in the pool."""
        info = self.nodes.get(node_id)
        return info if info is not None and not info.is_gone else None

    # ---- groups

    def note_founding(self, founding: Founding) -> bool:
        """Take a founding record; return whether it is news. One without order is none."""
        group_id, members = founding.group_id, founding.members
        if not members or list(members) != sorted(set(members)):
            return False
        if group_id in self.foundings or group_id in self.tombstones:
            return False
        if len(self.foundings) >= GROUPS_MAX:
            return False
        self.foundings[group_id] = founding
        self._number_them()
        return True

    def _number_them(self) -> None:
        self._numbered = {}
        for group_id in sorted(self.foundings):
            self._numbered.setdefault(self.number_of(group_id), []).append(group_id)

    def numbered(self, number: int) -> list[bytes]:
        """Return the groups that are called so: more than one if founded at the same time."""
        return self._numbered.get(number, [])

    def number_of(self, group_id: bytes) -> int:
        """Return what people call a group."""
        return self.foundings[group_id].number

    def add_tombstone(self, unwanted: bytes) -> bool:
        """Refuse a group, or a node, for ever; return whether that is news."""
        if unwanted in self.tombstones or len(self.tombstones) >= TOMBSTONES_MAX:
            return False
        self.tombstones[unwanted] = None
        if self.foundings.pop(unwanted, None) is not None:
            self._number_them()
        if unwanted != self.me.node_id:
            self.nodes.pop(unwanted, None)
        return True

    # ---- all of it

    @property
    def is_removed(self) -> bool:
        """Whether this node is to be no more."""
        return self.me.node_id in self.tombstones

    def leave(self, me: NodeInfo, hosted: Iterable[bytes]) -> None:
        """Leave the pool: be a new pool of one node, with the groups that are here."""
        kept = {group_id: self.foundings[group_id] for group_id in hosted}
        self.me, self.nodes, self.foundings = me, {me.node_id: me}, kept
        self.pool_ids = (fresh_pool_id(me),)
        self._number_them()

    def message(self, *, is_answer: bool = False) -> Tables:
        """Return all of it, in order."""
        return Tables(
            self.pool_ids,
            tuple(self.nodes[node] for node in sorted(self.nodes)),
            tuple(self.foundings[group] for group in sorted(self.foundings)),
            tuple(sorted(self.tombstones)),
            is_answer,
        )

    @property
    def digest(self) -> bytes:
        """Return a hash that is equal where all of it is."""
        return digest_of(self.message())

    def check_invariants(self) -> None:
        """Assert that bounds are kept, and that nothing deleted is left."""
        assert self.nodes[self.me.node_id] is self.me, "the node does not know itself"
        assert len(self.nodes) <= NODES_MAX, "too many nodes"
        assert len(self.foundings) <= GROUPS_MAX, "too many groups"
        assert len(self.tombstones) <= TOMBSTONES_MAX, "too many tombstones"
        assert 0 < len(self.pool_ids) <= POOL_IDS_MAX, "a pool without a name, or with too many"
        assert self.tombstones.keys().isdisjoint(self.foundings), "a deleted group is there"
        assert self.tombstones.keys().isdisjoint(self.nodes.keys() - {self.me.node_id}), (
            "a removed node is there"
        )
        numbered = [group_id for groups in self._numbered.values() for group_id in groups]
        assert sorted(numbered) == sorted(self.foundings), "a group is not found by its number"


def digest_of(tables: Tables) -> bytes:
    """Return the hash of tables as they were sent."""
    content = msgspec.msgpack.encode(tables._replace(is_answer=False))
    return blake2b(content, digest_size=ID_BYTES).digest()
