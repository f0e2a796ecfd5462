"""Interface of the node for the pages of replications.

Elsewhere: the implementation (`databases.jobs.replications`), the form of a job
(`replication.core.jobs`).
"""

from __future__ import annotations

from typing import Any, Protocol

from millstream.replication.core.jobs import Job

__all__ = ["ReplicationApi"]


class ReplicationApi(Protocol):
    """The replications of a node; their descriptions are JSON with CouchDB's names."""

    async def run(self, job: Job) -> dict[str, Any]:
        """Run a job to its end; a request for a running job waits for that run.

        Raises:
            ConditionError: `not_found`: there is no such database; `cancelled`.
            UnavailableError: `too_many_jobs`, or an end does not answer.
            MillstreamError: the error of an end.
        """

    async def begin(self, job: Job) -> str:
        """Start a job that runs until it is cancelled, or the node ends; return its name.

        Raises:
            UsageError: `too_many_jobs`.
        """

    async def cancel(self, name: str) -> None:
        """End a job that was not started by a document.

        Raises:
            ConditionError: `not_found`.
        """

    async def prepare(self) -> None:
        """Create the database of jobs if it does not exist."""

    def jobs(self) -> list[dict[str, Any]]:
        """Return all jobs that run or wait to be scheduled."""

    def documents(self) -> list[dict[str, Any]]:
        """Return all documents that are jobs, by id, each with its status."""
