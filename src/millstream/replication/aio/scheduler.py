"""The jobs of a node, run by its schedule.

Invariants:
1. A job has one run at a time; who removes a job hears that its run is over.
2. What an end refuses may go well later; only what this node refuses before a run fails its job.
3. A run that makes room for others loses what it did since its last checkpoint, nothing else.

Elsewhere: which jobs run (`core.scheduling`), one run (`runner`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from typing import Final

from millstream.errors import MillstreamError, UnavailableError, UsageError
from millstream.replication.aio.peer import Peer
from millstream.replication.aio.runner import Runner
from millstream.replication.core.jobs import Job
from millstream.replication.core.reports import Totals
from millstream.replication.core.running import Run
from millstream.replication.core.scheduling import OVER, JobState, Schedule
from millstream.runtime.tasks import Tasks

__all__ = ["OpenPeers", "Scheduler"]

OpenPeers = Callable[[Job], AbstractAsyncContextManager[tuple[Peer, Peer]]]
"""Opens source and target of a job."""
_NS_PER_MS: Final = 1_000_000
_MS_PER_S: Final = 1000
_LOG = logging.getLogger(__name__)


class Scheduler:
    """Runs jobs until it is closed.

    Args:
        open_peers: reaches both ends of a job.
        schedule: which jobs run.
        clock_ns: Unix time.
        on_ended: called with the name of a job whose run is over, whatever comes next.
        totals: of all runs of the node.
    """

    def __init__(
        self,
        open_peers: OpenPeers,
        schedule: Schedule | None = None,
        clock_ns: Callable[[], int] = time.time_ns,
        on_ended: Callable[[str], None] = lambda _: None,
        totals: Totals | None = None,
    ) -> None:
        self._open_peers = open_peers
        self._schedule = schedule or Schedule()
        self._clock_ns = clock_ns
        self._on_ended = on_ended
        self._totals = totals or Totals()
        self._jobs: dict[str, Job] = {}
        self._runs: dict[str, Run] = {}
        self._tasks = Tasks()
        self._running: dict[str, asyncio.Task[None]] = {}
        self._happened = asyncio.Event()

    @property
    def jobs(self) -> Mapping[str, JobState]:
        """How all jobs are, by name."""
        return self._schedule.jobs

    def run_of(self, name: str) -> Run | None:
        """Return the newest run of a job: its figures and checkpoints."""
        return self._runs.get(name)

    def add(self, name: str, job: Job) -> bool:
        """Have a job run from now on; False: there is one of that name, which stays as it is.

        Raises:
            UsageError: `too_many_jobs`.
        """
        known = self.jobs.get(name)
        if known is not None and known.state not in OVER:
            return False
        self._schedule.add(name, self._now_ms())
        self._jobs[name] = job
        self._happened.set()
        return True

    def forget(self, name: str) -> None:
        """Forget a job that is over."""
        self._schedule.remove(name)
        self._jobs.pop(name, None)
        self._runs.pop(name, None)

    async def remove(self, name: str) -> None:
        """Stop a job and forget it."""
        await self._stop(name)
        self.forget(name)
        self._happened.set()  # others have room

    async def run(self) -> None:
        """Run jobs; to be cancelled."""
        try:
            while True:
                self._happened.clear()
                turn = self._schedule.turn(self._now_ms())
                for name in turn.pause:
                    await self._stop(name)
                for name in turn.begin:
                    if name in self.jobs and self.jobs[name].state == "running":
                        self._running[name] = self._tasks.start(
                            self._finish(name, self._jobs[name]), name=f"replication {name}"
                        )
                await self._wait(turn.next_ms)
        finally:
            await self._tasks.stop()

    async def _wait(self, until_ms: float | None) -> None:
        left_s = None if until_ms is None else max(0.0, until_ms - self._now_ms()) / _MS_PER_S
        with suppress(TimeoutError):
            async with asyncio.timeout(left_s):
                await self._happened.wait()

    async def _finish(self, name: str, job: Job) -> None:
        error: MillstreamError | None = None
        has_begun = False
        try:
            async with self._open_peers(job) as (source, target):
                has_begun = True
                runner = Runner(job, source, target, self._clock_ns)
                self._runs[name] = runner.run
                with self._totals.counting(runner.run):
                    await runner.finish()
        except MillstreamError as failure:
            _LOG.warning("replication %s: %s", name, failure)
            error = failure
        except Exception:  # noqa: BLE001 - a mistake of ours ends a run, not its job
            _LOG.exception("replication %s", name)
            error = UnavailableError("it ended with an error of this node: see its log")
        if error is not None and isinstance(error, UsageError) and not has_begun:
            self._schedule.failed(name, error, self._now_ms())
        else:
            self._totals.ended(error)
            self._schedule.ended(name, error, self._now_ms())
        self._running.pop(name, None)
        self._on_ended(name)
        self._happened.set()

    async def _stop(self, name: str) -> None:
        task = self._running.pop(name, None)
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    def _now_ms(self) -> float:
        return self._clock_ns() / _NS_PER_MS
