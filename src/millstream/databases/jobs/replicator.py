"""Documents that are jobs: replications in `_replicator` run, also after a restart.

A new or changed document starts its job anew; a deleted one ends it. The status of a job is not
written into its document. When a job is over, its result and the document's revision are stored
under a key in the same partition; the key is not a document.

Invariants:
1. A finished job runs again only if its document changes. A document that says that its job is
   over (`_replication_state`, as CouchDB writes it) is not run at all.
2. A job runs on the node that has the partition of its document active. The stored result is in
   the same partition, so it moves with it to another node.
3. If several documents request the same replication, the first one has it until it is over; the
   others fail.
4. A document that is not a valid job affects no other document.

Elsewhere: scheduling (`replication.aio.scheduler`), other jobs (`databases.jobs.replications`),
which documents are here (`databases.jobs.job_rows`).
Source: CouchDB's replicator.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from millstream.databases.jobs.job_rows import JobRow, JobRows, Left
from millstream.documents.sent import Sent
from millstream.documents.stored import StoredDocument
from millstream.documents.updating import interactive
from millstream.errors import MillstreamError, UsageError
from millstream.gateway.core.api.documents import DocumentApi
from millstream.model.bucket_names import REPLICATOR
from millstream.replication.aio.scheduler import Scheduler
from millstream.replication.core.jobs import Job, parse_job
from millstream.replication.core.reports import figures_of, job_name, shown
from millstream.replication.core.scheduling import OVER
from millstream.runtime.tasks import Tasks

__all__ = ["RETRY_S", "Known", "ReplicatorDocuments", "utc_text"]

_LOG = logging.getLogger(__name__)
RETRY_S: Final = 5.0
"""Pause before the database of jobs is read again after an error."""
_NS_PER_S: Final = 1_000_000_000
_SECONDS_MAX: Final = 1 << 32
"""Upper bound of a time in a document."""
_STATES_KEPT: Final = 1
"""Number of generations kept of a job's stored result."""


@dataclass(slots=True)
class Known:
    """A document that is a job, or is meant to be one."""

    doc_id: str
    rev: str
    since_ns: int
    """When it was first seen."""
    state_key: str
    """Key of the stored result."""
    partition: int = 0
    name: str = ""
    """Name of its job; empty: it is no job."""
    job: Job | None = None
    state: str = ""
    """Final state of a finished job; empty: the scheduler knows the state."""
    told: dict[str, Any] | None = None
    """How it ended."""
    crashes: int = 0
    ended_ns: int = 0


class ReplicatorDocuments:
    """The jobs of the database `_replicator`.

    Args:
        documents: of the node.
        open_rows: reads the database of jobs; None: this node does not serve it.
        make: creates it if it does not exist.
        clock_ns: Unix time.
    """

    def __init__(
        self,
        documents: DocumentApi,
        open_rows: Callable[[], JobRows | None],
        make: Callable[[], Awaitable[object]],
        clock_ns: Callable[[], int],
    ) -> None:
        self._documents = documents
        self._open_rows, self._make = open_rows, make
        self._clock_ns = clock_ns
        self._rows: JobRows | None = None
        self._known: dict[str, Known] = {}
        self._by_name: dict[str, Known] = {}
        """Documents whose jobs are in the scheduler."""
        self._making = asyncio.Lock()
        self._is_up = asyncio.Event()
        self._tasks = Tasks()

    async def prepare(self) -> None:
        """Create the database of jobs if it does not exist."""
        async with self._making:
            await self._make()

    def bucket_up(self, name: str) -> None:
        """A bucket is now served."""
        if name == REPLICATOR:
            self._is_up.set()

    def bucket_gone(self, name: str) -> None:
        """A bucket is no longer served."""
        if name == REPLICATOR and self._rows is not None:
            self._rows.drop()

    def of(self, name: str) -> Known | None:
        """Return the document that has a job; None: no document has it."""
        return self._by_name.get(name)

    # -- following the database

    async def follow(self, scheduler: Scheduler) -> None:
        """Run the jobs of documents with the scheduler, until cancelled."""
        try:
            while True:
                self._is_up.clear()
                self._rows = self._open_rows()
                if self._rows is None:
                    await self._is_up.wait()
                    continue
                await self._follow(self._rows, scheduler)
                with suppress(TimeoutError):
                    async with asyncio.timeout(RETRY_S):
                        await self._is_up.wait()
        finally:
            await self._tasks.stop()

    async def _follow(self, rows: JobRows, scheduler: Scheduler) -> None:
        try:
            async with aclosing(rows.tell()) as every:
                async for told in every:
                    if isinstance(told, JobRow):
                        await self._take(told, scheduler)
                    else:
                        await self._leave(told, scheduler)
        except MillstreamError as error:
            _LOG.warning("the database of replications cannot be read: %s", error)
        finally:
            rows.close()
            self._rows = None
        for doc_id in list(self._known):
            await self._end(doc_id, scheduler)

    async def _leave(self, left: Left, scheduler: Scheduler) -> None:
        for known in list(self._known.values()):
            if known.partition in left.partitions and known.doc_id not in left.doc_ids:
                await self._end(known.doc_id, scheduler)

    async def _take(self, row: JobRow, scheduler: Scheduler) -> None:
        if row.doc_id.startswith("_design/"):
            return
        known = self._known.get(row.doc_id)
        if known is not None and known.rev == row.rev and row.doc is not None:
            return
        await self._end(row.doc_id, scheduler)
        if row.doc is None:
            await self._forget(row)
            return
        known = Known(row.doc_id, row.rev, self._clock_ns(), row.state_key, row.partition)
        self._known[row.doc_id] = known
        try:
            known.job = parse_job(row.doc)
            name = job_name(known.job)
            if not _is_said_over(known, row.doc) and not await self._is_over(known):
                self._refuse_second(name, scheduler)
                scheduler.add(name, known.job)
                self._by_name[name] = known
            known.name = name
        except UsageError as error:
            if not _is_said_over(known, row.doc):
                known.state, known.told = "failed", {"error": str(error)}
                known.ended_ns = known.since_ns

    def _refuse_second(self, name: str, scheduler: Scheduler) -> None:
        if name in self._by_name:
            raise UsageError(
                f"replication {name} was begun by the document {self._by_name[name].doc_id!r}"
            )
        if name in scheduler.jobs:
            raise UsageError(f"replication {name} was begun by a request: cancel it first")

    async def _is_over(self, known: Known) -> bool:
        """Return whether the job of this revision had ended before it came to this node."""
        kept = _state_of(await self._documents.read(REPLICATOR, known.state_key))
        if kept.get("rev") != known.rev:
            return False
        known.state, known.told, known.crashes = kept["state"], kept["info"], kept["crashes"]
        known.since_ns, known.ended_ns = kept["since_ns"], kept["ended_ns"]
        return True

    async def _end(self, doc_id: str, scheduler: Scheduler) -> None:
        known = self._known.pop(doc_id, None)
        if known is not None and self._by_name.get(known.name) is known:
            del self._by_name[known.name]
            await scheduler.remove(known.name)

    # -- results of jobs

    def ended(self, name: str, scheduler: Scheduler) -> None:
        """A run of a job has ended."""
        known, job_state = self._by_name.get(name), scheduler.jobs.get(name)
        if known is None or job_state is None or job_state.state not in OVER:
            return
        known.state = job_state.state
        known.told = (
            {"error": job_state.reason} if job_state.reason else figures_of(scheduler.run_of(name))
        )
        known.ended_ns, known.crashes = self._clock_ns(), job_state.crashes
        del self._by_name[name]
        scheduler.forget(name)
        self._tasks.start(self._keep(known), name=f"state of replication {name}")

    async def _keep(self, known: Known) -> None:
        body = {
            "doc_id": known.doc_id, "rev": known.rev, "state": known.state, "info": known.told,
            "crashes": known.crashes, "since_ns": known.since_ns, "ended_ns": known.ended_ns,
        }  # fmt: skip
        await self._remember(known.doc_id, known.state_key, body)

    async def _forget(self, row: JobRow) -> None:
        with suppress(MillstreamError):  # a stale result is ignored: it names another revision
            if _state_of(await self._documents.read(REPLICATOR, row.state_key)):
                await self._remember(row.doc_id, row.state_key, None)

    async def _remember(self, doc_id: str, key: str, body: dict[str, Any] | None) -> None:
        error: object
        try:
            [error] = await self._documents.update(
                REPLICATOR, [(key, _replaced_by(body))], is_durable=True
            )
        except MillstreamError as failure:
            error = failure
        if isinstance(error, MillstreamError):
            _LOG.warning("the state of %s cannot be stored: %s", doc_id, error)

    def over(self) -> Counter[str]:
        """Return the number of finished jobs by state."""
        return Counter(known.state for known in self._known.values() if known.state)

    def shown(self, scheduler: Scheduler) -> list[dict[str, Any]]:
        """Return all of them by id, as `_scheduler/docs` shows them."""
        return [self._shown(self._known[doc_id], scheduler) for doc_id in sorted(self._known)]

    def _shown(self, known: Known, scheduler: Scheduler) -> dict[str, Any]:
        job_state, job = scheduler.jobs.get(known.name), known.job
        state, told, updated_ns, crashes = (
            known.state, known.told, known.ended_ns, known.crashes,
        )  # fmt: skip
        if not state and job_state is not None:
            state, crashes = job_state.state, job_state.crashes
            updated_ns = int(job_state.since_ms * 1_000_000)
            told = figures_of(scheduler.run_of(known.name))
            if job_state.state == "crashing":
                told = {"error": job_state.reason}
        return {
            "database": REPLICATOR,
            "doc_id": known.doc_id,
            "id": known.name or None,
            "source": None if job is None else shown(job.source),
            "target": None if job is None else shown(job.target),
            "state": state,
            "info": told,
            "error_count": crashes,
            "start_time": utc_text(known.since_ns),
            "last_updated": utc_text(updated_ns),
        }


def _is_said_over(known: Known, doc: Mapping[str, Any]) -> bool:
    """Return whether a document says that its job is over: from CouchDB, or a backup of it.

    Its statements about how the job ended are taken over.
    """
    state = doc.get("_replication_state")
    if state not in OVER:
        return False
    stats = doc.get("_replication_stats")
    reason = doc.get("_replication_state_reason")
    known.state = state
    known.told = {"error": str(reason)} if reason else stats if isinstance(stats, dict) else {}
    known.ended_ns = _time_ns(doc.get("_replication_state_time"), known.since_ns)
    return True


def _time_ns(said: object, otherwise_ns: int) -> int:
    """Parse a time as CouchDB writes it: text, or seconds in old versions."""
    if isinstance(said, str):
        with suppress(ValueError, OverflowError):
            said = int(datetime.fromisoformat(said).timestamp())
    if type(said) is int and 0 <= said < _SECONDS_MAX:
        return said * _NS_PER_S
    return otherwise_ns


def _state_of(found: StoredDocument | None) -> dict[str, Any]:
    if found is None or not found.exists or found.winner.is_deleted:
        return {}
    kept: dict[str, Any] = msgspec.json.decode(found.contents[found.winner.rev].body)
    return kept


def _replaced_by(
    body: dict[str, Any] | None,
) -> Callable[[StoredDocument | None], StoredDocument | None]:
    def decide(found: StoredDocument | None) -> StoredDocument | None:
        there = found if found is not None and found.exists else None
        rev = None if there is None or there.winner.is_deleted else there.winner.rev
        text = b"{}" if body is None else msgspec.json.encode(body)
        sent = Sent(None, rev, body is None, None, None, text, body or {})
        return interactive(there, sent, revs_limit=_STATES_KEPT).document

    return decide


def utc_text(now_ns: int) -> str:
    """Format a time as CouchDB's scheduler shows it."""
    return datetime.fromtimestamp(now_ns // _NS_PER_S, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
