"""Which nodes coordinate: the members of the group that has the cluster's state.

| size | when |
| --- | --- |
| grows to the next odd number | enough members of the cluster can coordinate, up to the setting |
| stays | a member is away, or has failed, and nobody can take its place |
| shrinks | members leave for good, and nobody can take their place; a group of three does not |

Invariants:
1. A member is replaced if it leaves, or has failed for `REPLACE_AFTER_MS`: a restart is no reason.
2. One group follows from one state: nodes are chosen by zone and name, and members stay.
3. A group of several has at least three members: with two, a majority would be both.

Elsewhere: the change itself, which the coordination service refuses if the new members are not up
to date or no quorum would be left (`cluster.aio.coordination_group`).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from millstream.cluster.core.elements import ClusterState
from millstream.vsr.core.configuration import SIZES

__all__ = ["REPLACE_AFTER_MS", "next_coordinators"]

REPLACE_AFTER_MS: Final = 300_000
"""A member that has failed for so long is replaced."""


def next_coordinators(
    state: ClusterState, members: Collection[str], unix_ms: int
) -> tuple[str, ...] | None:
    """Return the members that the group should have, sorted; None: those that it has.

    Args:
        state: as read.
        members: present ones, by id of the node; of a node that is not known, any text.
        unix_ms: now.
    """
    leaving = [one for one in members if _leaves(state, one)]
    kept = sorted(one for one in members if not _is_lost(state, one, unix_ms))
    free = sorted(one for one in _able(state) if one not in members)
    size = _odd(min(state.settings.coordinators, len(kept) + len(free)))
    if size < len(members) and not leaving:
        size = _odd(min(len(members), max(size, state.settings.coordinators)))
    if size > len(kept) + len(free) or size < SIZES[0] <= len(members):
        return None
    chosen = sorted(kept, key=lambda one: (one not in state.live, one))[:size]
    while len(chosen) < size:
        zones = [state.nodes[one].zone for one in chosen if one in state.nodes]
        free.sort(key=lambda one: (zones.count(state.nodes[one].zone), one))
        chosen.append(free.pop(0))
    return None if set(chosen) == set(members) else tuple(sorted(chosen))


def _odd(count: int) -> int:
    return max(1, count - (count + 1) % 2)


def _able(state: ClusterState) -> list[str]:
    return [
        name
        for name, node in state.nodes.items()
        if node.state == "in" and "coord" in node.roles and name in state.live
    ]


def _leaves(state: ClusterState, name: str) -> bool:
    node = state.nodes.get(name)
    return node is not None and (node.state in ("leaving", "out") or "coord" not in node.roles)


def _is_lost(state: ClusterState, name: str, unix_ms: int) -> bool:
    node = state.nodes.get(name)
    if node is None or _leaves(state, name):
        return True
    return node.state == "failed" and unix_ms - node.since_ms >= REPLACE_AFTER_MS
