"""Reading evicted documents back, stepped by hand: the real class over a loop that only notes.

A request that meets a document on the disk waits: a thread reads at one step of the test, the
request begins again at a later one, with anything between them.

Invariants, each an assertion:
1. A request that has to wait has changed nothing.
2. Whatever waits comes to its end once the threads have read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

from millstream.errors import CorruptionError
from millstream.kv.aio.reading_back import LoopReader, ReadingBack
from millstream.kv.core.partition.partition import Partition
from millstream.kv.core.partition.residents import NotInMemory
from millstream.kv.core.queue.log_reader import Fetched
from millstream.storage.core.store import LogStore


class SteppedLoop:
    """As much of an event loop and its threads as reading back uses."""

    def __init__(self) -> None:
        self.jobs: list[tuple[asyncio.Future[Any], Callable[[], Any]]] = []
        self.soon: list[Callable[[], object]] = []

    def get_debug(self) -> bool:
        return False

    def call_soon(self, callback: Callable[..., object], *args: object, context: object = None):
        self.soon.append(partial(callback, *args))

    def run_in_executor(self, _: object, function: Callable[..., Any], *args: object):
        future: asyncio.Future[Any] = asyncio.Future(loop=self)
        self.jobs.append((future, partial(function, *args)))
        return future


class SimulatedReading:
    """Threads that read, and requests that wait for them."""

    def __init__(self) -> None:
        self._loop = SteppedLoop()

    def reader(self, store: LogStore, on_corrupt: Callable[[CorruptionError], None]):
        """What partitions read the log through."""
        with patch.object(asyncio, "get_running_loop", lambda: self._loop):
            return LoopReader(store, on_corrupt, ReadingBack("b", store, on_corrupt))

    def ask(self, partition: Partition, call: Callable[[], object]) -> None:
        """Do what a client asks, now or once a thread has read; a refused one goes away."""
        if partition.refusal is not None:
            return
        before = partition.queue.high_seqno, partition.last_cas
        fetch = self._try(call)
        if fetch is not None:
            assert (partition.queue.high_seqno, partition.last_cas) == before
            assert fetch(partial(self._again, partition, call))

    @staticmethod
    def _try(call: Callable[[], object]) -> Callable[[Fetched], bool] | None:
        """Call; return how to fetch what was not in memory."""
        try:
            call()
        except NotInMemory as absent:
            return absent.fetch
        return None

    def wait_for(self, call: Callable[[], object]) -> None:
        """Do what nothing may come before, however often a thread must read."""
        fetch = self._try(call)
        if fetch is not None:
            assert fetch(lambda error: self.wait_for(call))
            self.finish()

    def _again(
        self, partition: Partition, call: Callable[[], object], error: Exception | None
    ) -> None:
        assert error is None, error
        self.ask(partition, call)

    def step(self, n: int) -> None:
        """A thread reads, or somebody hears of what one has read."""
        jobs, soon = self._loop.jobs, self._loop.soon
        if soon and (n % 2 or not jobs):
            soon.pop(n // 2 % len(soon))()
        elif jobs:
            future, job = jobs.pop(n // 2 % len(jobs))
            future.set_result(job())

    @property
    def is_busy(self) -> bool:
        """Whether anything waits."""
        return bool(self._loop.jobs or self._loop.soon)

    def finish(self) -> None:
        """Let everything that waits come to its end."""
        for n in range(10_000):
            if not self.is_busy:
                return
            self.step(n)
        raise AssertionError("requests wait for ever")
