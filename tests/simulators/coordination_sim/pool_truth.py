"""What is true of a pool, and whether what its nodes say and do agrees with it.

Invariants:
1. Nothing is said that is not durable; a node founds a group once; a group is opened only when a
   quorum of its founders has formatted it; a deleted group is never opened again where that is
   durable.
2. What a process knows of nodes and of the places of groups never gets older.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millstream.coordination.core.pool.effects import Say
from millstream.coordination.core.pool.file_format import decode_node_file
from millstream.coordination.core.pool.messages import Deleted, Founded, Tables
from millstream.vsr.core.configuration import Configuration
from millstream.vsr.core.hard_state import HardState
from simulators.coordination_sim.truth import WrongError
from support.coordination.pool_driver import not_durable

if TYPE_CHECKING:
    from simulators.coordination_sim.whole import WholeWorld


class PoolTruth:
    """Looks at what all nodes do."""

    def __init__(self, world: WholeWorld) -> None:
        self.world = world
        self.founders: dict[bytes, set[bytes]] = {}
        self._kept: dict[int, tuple[bytes, Any]] = {}
        self._known: dict[tuple[int, int], tuple[dict[bytes, Any], dict[bytes, Any]]] = {}

    def _durable(self, node: Any) -> Any:
        if node.content is None:
            raise WrongError(f"node {node.number} speaks before anything is durable")
        content, kept = self._kept.get(node.number, (None, None))
        if content is not node.content:
            kept = decode_node_file(node.content)
            self._kept[node.number] = node.content, kept
        return kept

    def check_said(self, node: Any, say: Say) -> None:
        """What is told to others outlives the process."""
        payload = say.envelope.payload
        if not isinstance(payload, Tables | Founded | Deleted):
            return
        if wrong := not_durable(payload, self._durable(node)):
            raise WrongError(f"node {node.number} {wrong}")

    def check_forward(self, node: Any) -> None:
        """What a process knows of nodes and groups never goes back to older information."""
        pool = node.pool
        ages = {one: info.age for one, info in pool.tables.nodes.items()}
        places = {
            group: (status.epoch, status.view)
            for group in pool.tables.foundings
            if (status := pool.directory.get(group)) is not None
        }
        before = self._known.get((node.number, node.process), ({}, {}))
        for earlier, now in zip(before, (ages, places), strict=True):
            for one, known in now.items():
                if earlier.get(one, known) > known:
                    raise WrongError(f"node {node.number} believes older words of {one.hex()}")
        self._known[node.number, node.process] = ages, places

    def formatted(self, node: Any, hard_state: HardState) -> None:
        """A node has formatted a group."""
        if hard_state.configuration.members:
            founders = self.founders.setdefault(hard_state.group_id, set())
            if node.id in founders:
                raise WrongError(f"node {node.number} founds a group twice")
            founders.add(node.id)

    def opened(self, node: Any, group_id: bytes) -> None:
        """A node opens a group."""
        kept = self._durable(node)
        if group_id in kept.tables.tombstones:
            raise WrongError(f"node {node.number} opens a deleted group")
        founding = node.pool.tables.foundings.get(group_id)
        if founding is None:
            return  # it is being deleted
        founders = self.founders.get(group_id, set())
        is_restored = len(founding.members) == 1
        if not is_restored and len(founders) < Configuration(0, founding.members).quorum:
            raise WrongError(f"node {node.number} opens a group that no quorum has formatted")
