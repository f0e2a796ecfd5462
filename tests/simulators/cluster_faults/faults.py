"""What goes wrong, and what administrators do meanwhile.

Elsewhere: how it is done (`members`, `coordination_faults`), in which order (`run`).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

from simulators.cluster_faults.members import FOUNDERS, Members
from simulators.coordination_faults.faults import FAULTS as ALL_FAULTS
from simulators.coordination_faults.faults import Scene

__all__ = ["CHANGES", "FAULTS", "LOSES_MEMORY", "Change", "Scene"]

LOSES_MEMORY = ("kill", "kill one process")
"""A write that a majority has in memory survives one of these at a time."""
FAULTS = {
    name: ALL_FAULTS[name]
    for name in (*LOSES_MEMORY, "pause", "isolate", "deaf", "mute", "bridge", "slow", "lose")
}


class Change(NamedTuple):
    """What administrators do; at node `at`, which is none that goes wrong."""

    rng: random.Random
    members: Members
    at: int
    ids: dict[int, str]
    """Of the members, by the number of the node."""

    def chosen(self) -> str:
        """Return the id of a member other than the first, which readers are bound to."""
        return self.ids[self.rng.choice([node for node in self.ids if node > 1])]


def _rebalance(change: Change) -> None:
    change.members.administer_cluster(change.at, "rebalance")


def _fail_over(change: Change) -> None:
    change.members.administer_cluster(change.at, "failover", change.chosen())


def _cancel(change: Change) -> None:
    change.members.has_cancelled = True
    change.members.administer_cluster(change.at, "rebalance", "--cancel")


def _swap(change: Change) -> None:
    """Add a node if one is out, else remove one."""
    members = change.members
    spare = [node for node in members.numbers if node not in change.ids]
    if not spare and len(change.ids) > FOUNDERS:
        members.administer_cluster(change.at, "remove", change.chosen())
    for node in spare:
        members.empty(node)
        members.administer_join(node, change.at)


CHANGES: dict[str, Callable[[Change], None]] = {
    "rebalance": _rebalance,
    "fail over": _fail_over,
    "cancel": _cancel,
    "add or remove": _swap,
    "add or remove, again": _swap,
}
