"""Mistakes in a pool that its schedules must find: name -> what to replace, and by what."""

from __future__ import annotations

from typing import Any, Final

from millstream.coordination.core.pool.directory import Directory, GroupStatus
from millstream.coordination.core.pool.file_format import Phase
from millstream.coordination.core.pool.gossip import Gossip
from millstream.coordination.core.pool.hosted_groups import HostedGroups
from millstream.coordination.core.pool.messages import Founding, NodeInfo, Ping, PoolEnvelope
from millstream.coordination.core.pool.pool import Pool
from millstream.coordination.core.pool.tables import PoolTables

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


PLANTS: Final[dict[str, tuple[type, str, Any, int]]] = {
    "tombstones are not looked at": (PoolTables, "note_founding", _note_founding, 51),
    "effects do not wait for the disk": (Pool, "_take", _take, 1),
    "a group opens before a quorum is formed": (HostedGroups, "_note_formed", _note_formed, 2),
    "that a group is formatted is not kept": (HostedGroups, "_formatted", _formatted, 1),
    "older words of nodes count": (PoolTables, "note_node", _note_node, 1),
    "older words of groups count": (Directory, "note", _note, 5),
    "pings are not answered": (Gossip, "on_ping", _on_ping, 1),
}
"""With a seed that finds it."""
