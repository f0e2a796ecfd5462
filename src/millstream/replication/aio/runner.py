"""Runs one job between two peers: carries out what its run wants, and tells how far it is.

Invariants:
1. A run has one thought at a time; requests of several batches are under way side by side.
2. Who is cancelled leaves no request behind.

Elsewhere: what a run wants (`core.running`), when jobs run (`scheduler`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing
from typing import Any, Final
from uuid import uuid4

from millstream.errors import MillstreamError
from millstream.replication.aio.peer import Peer
from millstream.replication.core.asking import Ask, Copy, Failure, Pause
from millstream.replication.core.batches import MISSING
from millstream.replication.core.jobs import Job
from millstream.replication.core.running import Run
from millstream.replication.core.tasks import Effect
from millstream.runtime.tasks import Tasks

__all__ = ["Runner"]

_MS: Final = 1000.0
_NS_PER_MS: Final = 1_000_000
_Answer = tuple[Any, MillstreamError | None]


class Runner:
    """One run of a job.

    Args:
        job: what to do.
        source: where documents come from.
        target: where they go.
        clock_ns: Unix time.
    """

    def __init__(
        self, job: Job, source: Peer, target: Peer, clock_ns: Callable[[], int] = time.time_ns
    ) -> None:
        self.run = Run(job, lambda: uuid4().hex)
        self._peers = {"source": source, "target": target}
        self._clock_ns = clock_ns
        self._tasks = Tasks()
        self._doing: dict[asyncio.Task[_Answer], int] = {}

    async def finish(self) -> Run:
        """Run it to its end; a continuous job has none but an error.

        Raises:
            MillstreamError: it failed; everything up to its last checkpoint is done.
        """
        try:
            self._do(self.run.start(self._now_ms()))
            while self.run.outcome is None:
                await self._wait()
        finally:
            await self._tasks.stop()
        if self.run.outcome.error is not None:
            raise self.run.outcome.error
        return self.run

    def _now_ms(self) -> float:
        return self._clock_ns() / _NS_PER_MS

    def _do(self, effects: list[Effect]) -> None:
        for ticket, step in effects:
            name = type(step.request).__name__ if isinstance(step, Ask) else "pause"
            self._doing[self._tasks.start(self._answer(step), name=name)] = ticket

    async def _wait(self) -> None:
        assert self._doing, "a run that is not over waits for something"
        done, _ = await asyncio.wait(self._doing, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            ticket = self._doing.pop(task)
            value, error = task.result()
            if error is None:
                self._do(self.run.answer(ticket, value, self._now_ms()))
            else:
                self._do(self.run.fail(ticket, error, self._now_ms()))

    async def _answer(self, step: Ask | Pause) -> _Answer:
        try:
            return await self._done(step), None
        except MillstreamError as error:
            return None, error

    async def _done(self, step: Ask | Pause) -> Any:
        if isinstance(step, Pause):
            return await asyncio.sleep(step.wait_ms / _MS)
        if isinstance(step.request, Copy):
            return await self._copied(step.request)
        return await self._peers[step.side].ask(step.request)

    async def _copied(self, request: Copy) -> tuple[Failure, ...]:
        failures, name = list[Failure](), request.wanted.name
        async with aclosing(self._peers["source"].documents(request)) as documents:
            async for found in documents:
                if isinstance(found, tuple):
                    failures.append(Failure(name, found[1], MISSING))
                    continue
                failure = await self._peers["target"].put(name, found)
                if failure is not None:
                    failures.append(failure)
        return tuple(failures)
