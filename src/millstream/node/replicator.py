"""Documents that are jobs: what stands in `_replicator` runs, also after a restart.

A document that is new or has changed begins its job anew, one that is deleted ends it. How a job
is stays out of its document: a job that is over is remembered in a `_local` document beside it,
with the revision that asked for it.

Invariants:
1. A job that is over is not run again unless its document changes.
2. Of several documents that ask for one replication the first one has it; the others failed.
3. What a document has that is no job concerns nothing but this document.

Elsewhere: whose turn it is (`replication.aio.scheduler`), other jobs (`node.replications`).
Source: CouchDB's replicator.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Final

import msgspec

from millstream.errors import MillstreamError, UsageError
from millstream.gateway.core.changes import ChangesQuery
from millstream.gateway.core.changes_host import ChangesHost
from millstream.gateway.core.changes_rows import RowMaker
from millstream.gateway.core.document_host import DocumentHost
from millstream.gateway.core.replication_host import REPLICATOR
from millstream.replication.aio.scheduler import Scheduler
from millstream.replication.core.jobs import Job, parse_job
from millstream.replication.core.reports import figures_of, job_name, shown
from millstream.runtime.tasks import Tasks

__all__ = ["RETRY_S", "Known", "ReplicatorDocuments", "utc_text"]

_LOG = logging.getLogger(__name__)
RETRY_S: Final = 5.0
"""After which the database of jobs is looked at again if it cannot be read."""
_WAIT_S: Final = 3600.0
_NS_PER_S: Final = 1_000_000_000
_OVER: Final = ("completed", "failed")


@dataclass(slots=True)
class Known:
    """A document that is a job, or should be one."""

    doc_id: str
    rev: str
    since_ns: int
    name: str = ""
    """Of its job; empty: it is none."""
    job: Job | None = None
    state: str = ""
    """Of a job that is over; empty: the scheduler knows."""
    told: dict[str, Any] | None = None
    """How it ended."""


class ReplicatorDocuments:
    """The jobs of the database `_replicator`.

    Args:
        documents: of the node.
        changes: of the node's databases.
        is_there: whether there is a database of a name.
        make: makes the database of jobs.
        clock_ns: Unix time.
    """

    def __init__(
        self,
        documents: DocumentHost,
        changes: ChangesHost,
        is_there: Callable[[str], bool],
        make: Callable[[], Awaitable[object]],
        clock_ns: Callable[[], int],
    ) -> None:
        self._documents, self._changes = documents, changes
        self._is_there, self._make = is_there, make
        self._clock_ns = clock_ns
        self._known: dict[str, Known] = {}
        self._by_name: dict[str, Known] = {}
        self._making = asyncio.Lock()
        self._is_up = asyncio.Event()
        self._tasks = Tasks()

    async def prepare(self) -> None:
        """Make the database of jobs if there is none."""
        async with self._making:
            if not self._is_there(REPLICATOR):
                await self._make()

    def bucket_up(self, name: str) -> None:
        """A bucket is served now."""
        if name == REPLICATOR:
            self._is_up.set()

    def of(self, name: str) -> Known | None:
        """Return the document that asks for a job, None if none does."""
        return self._by_name.get(name)

    # -- following the database

    async def follow(self, scheduler: Scheduler) -> None:
        """Have the scheduler run what documents ask for; to be cancelled."""
        try:
            while True:
                while not self._is_there(REPLICATOR):
                    await self._is_up.wait()
                    self._is_up.clear()
                try:
                    await self._follow(scheduler)
                except MillstreamError as error:
                    _LOG.warning("the database of replications cannot be read: %s", error)
                for doc_id in list(self._known):
                    await self._end(doc_id, scheduler)
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._is_up.wait(), RETRY_S)
        finally:
            await self._tasks.stop()

    async def _follow(self, scheduler: Scheduler) -> None:
        database = self._changes.of(REPLICATOR)
        maker = RowMaker(database.uuid, ChangesQuery(include_docs=True))
        walk = database.open(database.start_of(0), restarts=True)
        try:
            while True:
                async for piece in walk.pieces():
                    for row in maker.rows(piece.frames):
                        await self._take(msgspec.json.decode(b'{"seq":0' + row.text), scheduler)
                await walk.wait(_WAIT_S)
        finally:
            walk.close()

    async def _take(self, row: dict[str, Any], scheduler: Scheduler) -> None:
        doc_id, rev = row["id"], row["changes"][0]["rev"]
        if doc_id.startswith("_design/"):
            return
        known = self._known.get(doc_id)
        if known is not None and known.rev == rev and not row.get("deleted"):
            return
        await self._end(doc_id, scheduler)
        if row.get("deleted"):
            with suppress(MillstreamError):  # none was kept
                await self._documents.write_local(REPLICATOR, _local(doc_id), None, None)
            return
        known = self._known[doc_id] = Known(doc_id, rev, self._clock_ns())
        try:
            known.job = parse_job(row["doc"])
            name = job_name(known.job)
            self._refuse_second(name, scheduler)
            if not await self._is_over(known):
                scheduler.add(name, known.job)
            known.name = name
            self._by_name[name] = known
        except UsageError as error:
            known.state, known.told = "failed", {"error": str(error)}

    def _refuse_second(self, name: str, scheduler: Scheduler) -> None:
        if name in self._by_name:
            raise UsageError(
                f"replication {name} was begun by the document {self._by_name[name].doc_id!r}"
            )
        if name in scheduler.jobs:
            raise UsageError(f"replication {name} was begun by a request: cancel it first")

    async def _is_over(self, known: Known) -> bool:
        """Whether this revision's job came to its end before the node was started."""
        found = await self._documents.read_local(REPLICATOR, _local(known.doc_id))
        kept = {} if found is None else msgspec.json.decode(found.body)
        if kept.get("rev") != known.rev or kept.get("state") not in _OVER:
            return False
        known.state, known.told, known.since_ns = kept["state"], kept["info"], kept["since_ns"]
        return True

    async def _end(self, doc_id: str, scheduler: Scheduler) -> None:
        known = self._known.pop(doc_id, None)
        if known is not None and known.name:
            del self._by_name[known.name]
            await scheduler.remove(known.name)

    # -- what becomes of jobs

    def ended(self, name: str, scheduler: Scheduler) -> None:
        """A run of a job is over."""
        known, standing = self._by_name.get(name), scheduler.jobs.get(name)
        if known is None or standing is None or standing.state not in _OVER:
            return
        known.state = standing.state
        known.told = (
            {"error": standing.reason} if standing.reason else figures_of(scheduler.run_of(name))
        )
        self._tasks.start(self._keep(known), name=f"state of replication {name}")

    async def _keep(self, known: Known) -> None:
        body = {
            "doc_id": known.doc_id, "rev": known.rev, "state": known.state, "info": known.told,
            "since_ns": known.since_ns, "updated": utc_text(self._clock_ns()),
        }  # fmt: skip
        try:
            await self._documents.write_local(
                REPLICATOR, _local(known.doc_id), msgspec.json.encode(body), None
            )
        except MillstreamError as error:
            _LOG.warning("the state of %s cannot be kept: %s", known.doc_id, error)

    def shown(self, scheduler: Scheduler) -> list[dict[str, Any]]:
        """Return all of them by id, as `_scheduler/docs` shows them."""
        return [self._shown(self._known[doc_id], scheduler) for doc_id in sorted(self._known)]

    def _shown(self, known: Known, scheduler: Scheduler) -> dict[str, Any]:
        standing, job = scheduler.jobs.get(known.name), known.job
        state, told, updated_ns, crashes = known.state, known.told, known.since_ns, 0
        if not state and standing is not None:
            state, crashes = standing.state, standing.crashes
            updated_ns = int(standing.since_ms * 1_000_000)
            told = figures_of(scheduler.run_of(known.name))
            if standing.reason:
                told = {"error": standing.reason}
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


def _local(doc_id: str) -> str:
    return f"state-{sha256(doc_id.encode()).hexdigest()[:32]}"


def utc_text(now_ns: int) -> str:
    """Return a time as CouchDB's scheduler tells it."""
    return datetime.fromtimestamp(now_ns // _NS_PER_S, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
