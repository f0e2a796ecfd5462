"""What the pages of replications need of the node around them.

Elsewhere: the node that has this shape (`node.replications`), what a job is
(`replication.core.jobs`).
"""

from __future__ import annotations

from typing import Any, Protocol

from millstream.replication.core.jobs import Job

__all__ = ["REPLICATOR", "ReplicationHost"]

REPLICATOR = "_replicator"
"""The database whose documents are jobs."""


class ReplicationHost(Protocol):
    """The replications of a node; what is told of them is JSON with CouchDB's names."""

    async def run(self, job: Job) -> dict[str, Any]:
        """Run a job to its end; who asks for one that runs waits for it, too.

        Raises:
            ConditionError: `not_found`: there is no such database; `cancelled`.
            UnavailableError: `too_many_jobs`, or an end does not answer.
            MillstreamError: what an end answered.
        """

    async def begin(self, job: Job) -> str:
        """Have a job run until it is cancelled, or the node ends; return its name.

        Raises:
            UsageError: `too_many_jobs`.
        """

    async def cancel(self, name: str) -> None:
        """End a job that was not begun by a document.

        Raises:
            ConditionError: `not_found`.
        """

    async def prepare(self) -> None:
        """Make the database of jobs if there is none."""

    def jobs(self) -> list[dict[str, Any]]:
        """Return all jobs that run, or wait for their turn."""

    def documents(self) -> list[dict[str, Any]]:
        """Return all documents that are jobs, by id, and how each is."""
