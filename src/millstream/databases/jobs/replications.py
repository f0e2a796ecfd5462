"""Replications of a node: one-time, continuous, and those requested by documents.

Invariants:
1. Two requests for the same job share one run.
2. A database of this node is reached at the node's own address, with the node's own identity: only
   administrators can request jobs.
3. Jobs requested through `_replicate` end when the node stops. Jobs requested by documents do not.

Elsewhere: one run (`replication.aio.runner`), scheduling (`replication.aio.scheduler`), documents
that are jobs (`databases.jobs.replicator`), pages (`gateway.aio.databases.replication_pages`).
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from millstream.access.users import NODE_USER
from millstream.databases.jobs.replicator import ReplicatorDocuments, utc_text
from millstream.errors import ConditionError, MillstreamError, UnavailableError, UsageError
from millstream.model.bucket_names import REPLICATOR
from millstream.replication.aio.peer import Peer, http_peers
from millstream.replication.aio.runner import Runner
from millstream.replication.aio.scheduler import Scheduler
from millstream.replication.core.asking import ReadLocal
from millstream.replication.core.jobs import Endpoint, Job
from millstream.replication.core.reports import (
    Totals,
    answer_of,
    figures_of,
    job_name,
    shown,
    task_of,
)
from millstream.replication.core.running import Run
from millstream.replication.core.scheduling import OVER, Event
from millstream.runtime.tasks import Tasks

__all__ = ["ONCE_MAX", "OwnAddress", "Replications"]

_STATES: Final = ("pending", "running", "crashing", "completed", "failed")
_NS_PER_MS: Final = 1_000_000
ONCE_MAX: Final = 100
"""Number of one-time jobs that run concurrently, with requests waiting for them."""


class OwnAddress(NamedTuple):
    """How the node reaches its own databases."""

    url: str
    """Empty: its HTTP port is closed."""
    secret: str
    """Secret of the user `@node`; empty: there are no users."""


class _Once(NamedTuple):
    job: Job
    task: asyncio.Task[dict[str, Any] | MillstreamError]
    since_ns: int


class Replications:
    """Implements `gateway.core.api.replications.ReplicationApi`.

    Args:
        own: returns how the node reaches itself; called before each run.
        documents: those that are jobs.
        tls: trust settings of encrypted connections; None: those of the system.
        clock_ns: Unix time.
    """

    def __init__(
        self,
        own: Callable[[], OwnAddress],
        documents: ReplicatorDocuments,
        tls: ssl.SSLContext | None = None,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._own = own
        self._documents = documents
        self._tls = tls
        self._clock_ns = clock_ns
        self._totals = Totals()
        self._scheduler = Scheduler(
            self._opened, clock_ns=clock_ns, on_ended=self._ended, totals=self._totals
        )
        self._begun: dict[str, tuple[Job, int]] = {}
        self._once: dict[str, _Once] = {}
        self._runs: dict[str, Run] = {}
        self._tasks = Tasks()

    def start(self) -> None:
        """Start to run the jobs that documents request."""
        self._tasks.start(self._scheduler.run(), name="replication scheduler")
        self._tasks.start(self._documents.follow(self._scheduler), name="replication documents")

    def _ended(self, name: str) -> None:
        self._documents.ended(name, self._scheduler)
        if name in self._begun and self._scheduler.jobs[name].state in OVER:
            del self._begun[name]
            self._scheduler.forget(name)

    async def stop(self) -> None:
        """End all runs; work done since their last checkpoints is repeated later."""
        await self._tasks.stop()

    # -- jobs of `_replicate`

    async def run(self, job: Job) -> dict[str, Any]:
        """Run a job to its end; see `ReplicationApi`."""
        name = job_name(job)
        once = self._once.get(name)
        if once is None:
            if len(self._once) >= ONCE_MAX:
                raise UnavailableError(
                    f"{ONCE_MAX} replications that were asked for once run: try again later",
                    code="too_many_jobs",
                )
            task = self._tasks.start(self._ended_with(name, job), name=f"replication {name}")
            task.add_done_callback(lambda _: self._forget(name))
            once = self._once[name] = _Once(job, task, self._clock_ns())
        await asyncio.wait([once.task])
        if once.task.cancelled():
            raise ConditionError("the replication was cancelled", code="cancelled")
        ended = once.task.result()
        if isinstance(ended, MillstreamError):
            raise ended
        return ended

    def _forget(self, name: str) -> None:
        self._once.pop(name, None)
        self._runs.pop(name, None)

    async def _ended_with(self, name: str, job: Job) -> dict[str, Any] | MillstreamError:
        """Return the result or the error of a run; errors go to the callers, not to the log."""
        try:
            return await self._finish(name, job)
        except MillstreamError as error:
            return error

    async def _finish(self, name: str, job: Job) -> dict[str, Any]:
        async with self._opened(job) as (source, target):
            runner = Runner(job, source, target, self._clock_ns)
            self._runs[name] = runner.run
            with self._totals.counting(runner.run):
                run = await runner.finish()
            assert run.pair is not None, "a run that went well knew both databases"
            log = await target.ask(ReadLocal(run.pair.log)) if job.use_checkpoints else None
        return answer_of(run, log)

    async def begin(self, job: Job) -> str:
        """Start a job that runs until it is cancelled; see `ReplicationApi`."""
        name = job_name(job)
        if self._scheduler.add(name, job):
            self._begun[name] = job, self._clock_ns()
        return name

    async def cancel(self, name: str) -> None:
        """End a job that was not started by a document; see `ReplicationApi`."""
        once = self._once.get(name)
        if once is not None:
            once.task.cancel()
            await asyncio.wait([once.task])
            return
        if self._begun.pop(name, None) is None:
            raise ConditionError("there is no such replication", code="not_found")
        await self._scheduler.remove(name)

    @asynccontextmanager
    async def _opened(self, job: Job) -> AsyncIterator[tuple[Peer, Peer]]:
        reached = replace(job, source=self._reached(job.source), target=self._reached(job.target))
        async with http_peers(reached, self._tls) as peers:
            yield peers

    def _reached(self, end: Endpoint) -> Endpoint:
        if end.url:
            return end
        own = self._own()
        if not own.url:
            raise UsageError(
                f"{end.name}: the node's HTTP port is closed, so that its databases have no "
                "address: name them by that of another node",
                code="bad_request",
            )
        user = NODE_USER if own.secret else ""
        return Endpoint(f"{own.url}/{quote(end.name, safe='')}", user=user, password=own.secret)

    # -- the database of jobs

    async def prepare(self) -> None:
        """Create the database of jobs if it does not exist."""
        await self._documents.prepare()

    # -- status

    def jobs(self) -> list[dict[str, Any]]:
        """Return all jobs that run or wait to be scheduled."""
        found = [
            _told(
                name,
                once.job,
                None,
                "running",
                once.since_ns,
                figures_of(self._runs.get(name)),
                [Event(once.since_ns / _NS_PER_MS, kind) for kind in ("started", "added")],
            )
            for name, once in self._once.items()
        ]
        for name, job_state in self._scheduler.jobs.items():
            job, doc_id, since_ns = self._of(name)
            if job is not None:
                info = figures_of(self._scheduler.run_of(name))
                if job_state.state == "crashing":
                    info = {"error": job_state.reason, "crashes": job_state.crashes}
                found.append(
                    _told(name, job, doc_id, job_state.state, since_ns, info, job_state.history)
                )
        return sorted(found, key=lambda one: str(one["id"]))

    def _of(self, name: str) -> tuple[Job | None, str | None, int]:
        if name in self._begun:
            job, since_ns = self._begun[name]
            return job, None, since_ns
        known = self._documents.of(name)
        return (known.job, known.doc_id, known.since_ns) if known else (None, None, 0)

    def documents(self) -> list[dict[str, Any]]:
        """Return all documents that are jobs, by id, each with its status."""
        return self._documents.shown(self._scheduler)

    def metrics(self) -> dict[str, float]:
        """Return the statistics of all replications; names as in `kv.core.statistics`."""
        states = self._documents.over()
        states.update(job_state.state for job_state in self._scheduler.jobs.values())
        states["running"] += len(self._once)
        states["pending"] += states.pop("initializing", 0)
        return {
            **{f"replicator_jobs_{state}": float(states[state]) for state in _STATES},
            **self._totals.figures(),
        }

    def tasks(self) -> list[dict[str, Any]]:
        """Return the running replications as `_active_tasks` shows them."""
        now_ns = self._clock_ns()
        found = [
            task_of(
                name, once.job, self._runs.get(name), None, since_ns=once.since_ns, now_ns=now_ns
            )
            for name, once in self._once.items()
        ]
        for name, job_state in self._scheduler.jobs.items():
            job, doc_id, _ = self._of(name)
            if job_state.state == "running" and job is not None:
                run, since_ns = self._scheduler.run_of(name), int(job_state.since_ms) * _NS_PER_MS
                found.append(task_of(name, job, run, doc_id, since_ns=since_ns, now_ns=now_ns))
        return found


def _told(
    name: str,
    job: Job,
    doc_id: str | None,
    state: str,
    since_ns: int,
    info: dict[str, Any],
    history: Sequence[Event],
) -> dict[str, Any]:
    return {
        "id": name,
        "database": REPLICATOR if doc_id is not None else None,
        "doc_id": doc_id,
        "source": shown(job.source),
        "target": shown(job.target),
        "continuous": job.continuous,
        "state": state,
        "start_time": utc_text(since_ns),
        "info": info,
        "history": [
            {
                "timestamp": utc_text(int(event.at_ms * _NS_PER_MS)),
                "type": event.kind,
                **({"reason": event.reason} if event.reason else {}),
            }
            for event in history
        ],
    }
