"""The cluster as the pages of a node see it.

Elsewhere: who implements it (`cluster.aio.membership`), the pages
(`gateway.aio.node.cluster_pages`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

__all__ = ["ClusterApi"]


class ClusterApi(Protocol):
    """The cluster that a node is a member of."""

    @property
    def is_managed(self) -> bool:
        """Whether the node is a member of a managed cluster."""

    async def status(self) -> Mapping[str, Any]:
        """Return members, buckets, maps, plan and fail-overs, as `cluster status --json` has them.

        Raises:
            ConditionError: `not_managed`.
            UnavailableError: `no_quorum`: the coordination service does not answer.
        """

    async def init(self, name: str, coordinators: int) -> Mapping[str, Any]:
        """Make a cluster of this node; does nothing if it is a member of one of this name.

        Raises:
            ConditionError: `other_cluster`.
        """

    async def join(self, address: str, *, zone: str, roles: tuple[str, ...]) -> Mapping[str, Any]:
        """Join the cluster of which the node at this address (HOST:PORT, HTTP) is a member.

        Raises:
            ConditionError: `has_data`, `name_taken`, `address_taken`, `clock`, `version`,
                `other_cluster`.
            UnavailableError: it does not answer, or has no quorum.
        """

    async def request(
        self, op: str, args: Mapping[str, Any], by: str, *, timeout_s: float
    ) -> Mapping[str, Any]:
        """Ask the orchestrator for something, and return the result (`cluster.core.requests`).

        Raises:
            ConditionError: `not_managed`; what the orchestrator refused.
            UnavailableError: `no_quorum`; `timeout`: it was asked for and may still be done.
        """

    async def recover(
        self, *, without: tuple[str, ...], from_nodes: bool, is_trial: bool
    ) -> Mapping[str, Any]:
        """Rebuild the state of the cluster from what its nodes hold.

        Args:
            without: nodes that never come back.
            from_nodes: nothing is left of the state, not even a backup.
            is_trial: only tell what would be done, and what may be lost.

        Raises:
            ConditionError: `not_managed`; `not_lost`, `no_state`, `has_state`, `other_cluster`,
                `node_answers`, `bucket_failed`, `two_buckets`: nothing was changed.
            UsageError: `unknown_node`: nothing was changed.
            UnavailableError: `node_failed`, `not_ready`; `busy`: run it again.
        """

    async def held(self, content: bytes) -> bytes:
        """Tell a node that recovers the cluster what this one holds (`cluster.core.recovery`).

        Raises:
            ConditionError: `not_managed`, `other_cluster`.
        """

    async def member(self) -> Mapping[str, Any]:
        """Return what a node needs to know that wants to join.

        Raises:
            ConditionError: `not_managed`.
            UnavailableError: `no_quorum`.
        """

    async def reign(self) -> Mapping[str, Any]:
        """Return the status by what this node knows as the orchestrator.

        Raises:
            ConditionError: `not_managed`, `not_orchestrator`.
            UnavailableError: `no_quorum`.
        """

    async def orders(self, content: bytes) -> bytes:
        """Carry out orders of an orchestrator (`cluster.core.orders`); return the replies."""
