"""Mistakes of pools and of several groups that runs of whole nodes must find, and others.

Elsewhere: mistakes of a group alone (`plants`, `namespace_mistakes`).
"""

from __future__ import annotations

from typing import Any, Final

from millstream.coordination.core.namespace import settling
from millstream.coordination.core.namespace.names import NameKeeper
from millstream.coordination.core.pool.directory import Directory, GroupStatus
from millstream.coordination.core.pool.file_format import Phase
from millstream.coordination.core.pool.gossip import Gossip
from millstream.coordination.core.pool.hosted_groups import HostedGroups
from millstream.coordination.core.pool.messages import Founding, NodeInfo, Ping, PoolEnvelope
from millstream.coordination.core.pool.pool import Pool
from millstream.coordination.core.pool.tables import PoolTables
from millstream.vsr.core.replica.reconfiguration import Reconfiguration
from millstream.vsr.core.replica.replica import Replica
from simulators.coordination_sim.namespace_mistakes import CONDITIONS, MISTAKES, Patch, instead
from simulators.coordination_sim.plants import PLANTS, Plant

__all__ = ["IN_WHOLE", "WHOLE_PLANTS"]

POOL_FAULTS = ("crash", "reconfigure", "loss", "duplicate", "late")
FAULTS = ("isolate_primary", "move_primary", "crash", "client_loss")


def _of_names(what: str, patch: Patch, *signs: str) -> Plant:
    return Plant(what, Replica, signs, frozenset(("namespaces", *FAULTS)), CONDITIONS, patch)


def _whoever_asks_is_told(_chain: Any, _wanted: Any) -> bytes:
    return b"+OK"


def _nobody_goes_on(*_: Any) -> list[Any]:
    return []


def _only_asks(part: Any, heard: Any) -> None:
    for member in heard.members:
        if member != part.state.id and heard.epoch > part.newest.epoch:
            part.ask_epoch(member)


_TAKE: Final = Pool._take
_NOTE_FORMED: Final = HostedGroups._note_formed
_FORMATTED: Final = HostedGroups._formatted


def _note_founding(self: PoolTables, founding: Founding) -> bool:
    is_news = founding.group_id not in self.foundings
    self.foundings[founding.group_id] = founding
    self._number_them()
    return is_news


def _take(self: Any, event: Any) -> None:
    _TAKE(self, event)
    self._out += self._held
    self._held = []


def _note_formed(self: Any, group_id: bytes, member: bytes) -> None:
    _NOTE_FORMED(self, group_id, member)
    hosted = self.state.hosted.get(group_id)
    if hosted is not None and hosted.phase is Phase.FORMED:
        self._open(group_id)


def _formatted(self: Any, group_id: bytes) -> None:
    _FORMATTED(self, group_id)
    self.state.is_changed = False


def _note_node(self: PoolTables, info: NodeInfo) -> bool:
    is_news = info.node_id != self.me.node_id and self.nodes.get(info.node_id) != info
    if is_news:
        self.nodes[info.node_id] = info
    return is_news


def _note(self: Directory, group_id: bytes, seen: GroupStatus) -> bool:
    self._seen[group_id] = seen
    return True


def _on_ping(self: Gossip, _: PoolEnvelope, ping: Ping) -> None:
    self.incarnations.note_node(ping.info)


def _of_pools(what: str, patch: Patch, *signs: str) -> Plant:
    return Plant(what, Replica, signs, frozenset(POOL_FAULTS), (), patch)


OF_POOLS: Final = {
    "pool_tombstones": _of_pools(
        "Tombstones are not looked at when a founding record arrives.",
        instead(PoolTables, "note_founding", _note_founding), "a deleted group is there",
        "opens a deleted group",
    ),
    "pool_early": _of_pools(
        "Effects of a pool do not wait for the disk.",
        instead(Pool, "_take", _take), "that is not durable", "before anything is durable",
    ),
    "pool_opens_early": _of_pools(
        "A group is opened before a quorum of its founders has formatted it.",
        instead(HostedGroups, "_note_formed", _note_formed), "that no quorum has formatted",
    ),
    "pool_format_lost": _of_pools(
        "A node does not store that it has formatted a group.",
        instead(HostedGroups, "_formatted", _formatted), "what is not durable",
        "founds a group twice",
    ),
    "pool_old_nodes": _of_pools(
        "Older information about a node replaces newer information.",
        instead(PoolTables, "note_node", _note_node), "believes older words",
    ),
    "pool_old_groups": _of_pools(
        "An older report about a group replaces a newer one.",
        instead(Directory, "note", _note), "believes older words",
    ),
    "pool_pings": _of_pools(
        "Pings are not answered.", instead(Gossip, "on_ping", _on_ping), "know different things",
    ),
}  # fmt: skip
OF_FORKS: Final = {
    "deaf_to_hearsay": Plant(
        "A member that learns of a forced group from others asks only the new members.",
        Replica, ("goes on in a group that was given up",), frozenset(("forced", "crash")), (),
        instead(Reconfiguration, "on_superseded", _only_asks),
    ),
}  # fmt: skip
OF_NAMES: Final = {
    "names_early": _of_names(
        "A client is told that a namespace was created or deleted, whatever its group answers.",
        instead(settling, "_value_of", _whoever_asks_is_told), "and it is there", "is not so",
    ),
    "names_forgotten": _of_names(
        "A new primary of the system group does not continue unfinished names.",
        instead(NameKeeper, "tick", _nobody_goes_on), " is RESERVED", " is DELETING",
    ),
}  # fmt: skip
IN_WHOLE: Final = (
    "ack_early", "own_ack_early", "ns_ephemeral", "ns_locks_stay", "ns_items_stay", "ns_not_done",
    "ns_resume", "ns_twice", "ns_quiet", "ns_notices", "ns_no_fence", "ns_undone",
)  # fmt: skip
"""Those of a group alone that are searched for in runs of whole nodes, too."""
assert set(IN_WHOLE[2:]) <= set(MISTAKES)
WHOLE_PLANTS: Final = {
    **OF_FORKS, **OF_NAMES, **OF_POOLS, **{name: PLANTS[name] for name in IN_WHOLE},
}  # fmt: skip
