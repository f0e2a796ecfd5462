"""The indexes of one design document on all its nodes, each kept by a thread of its own.

    with Shards(find, open_writer, on_cycle) as shards:
        shards.wake()                 # something was written
        while not shards.is_over:     # with `once`: all have all there is
            shards.look()             # nodes that come and go; raises what ends the pipeline

Which node a row belongs to is decided by what is read: a node's index has the partitions that are
active there, and each task reads for one node's index.

Invariants:
1. Each index has its own position, fencing number and commits. A node that is away stops its own
   index alone, which is caught up when it is back; partitions that move are read from where the
   index that has them now says.
2. The pipeline ends when all nodes were away for `AWAY_S`, with `once` when one was; and when
   another writer has taken one of the indexes over.
3. An index is looked at every `LOOK_S` though nothing wakes it: partitions move, nodes come back,
   nothing is written.
4. Nobody waits for an index at work once the pipeline is to end, and who wakes them never for
   longer than `WAKE_S`.

Elsewhere: one index's cycle (`writer`), where they are (`nodes`), what wakes (`on_spark`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final, Self, TypeVar

from millstream.errors import ConditionError, MillstreamError, RoutingError, UnavailableError
from millstream.pipelines.index.nodes import shown
from millstream.pipelines.index.shard import IndexAddress
from millstream.pipelines.index.writer import Cycle, IndexWriter

__all__ = ["AWAY", "AWAY_S", "LOOK_S", "TOLD_S", "WAKE_S", "ShardRun", "Shards"]

AWAY_S: Final = 60.0
"""How long nodes or executors may be away before the pipeline ends."""
PAUSE_S: Final = 0.25
"""Pause before a missing node is tried again."""
POLL_S: Final = 0.02
"""How often a loop asks whether there is something new."""
LOOK_S: Final = 2.0
"""How often an index is looked at, and which nodes there are."""
WAKE_S: Final = 2.0
"""Longest wait for commits after indexes were woken: a large one delays others no longer."""
TOLD_S: Final = 15.0
"""How long one of several nodes may take to hear of a design document as it is now."""
STOP_WAIT_S: Final = 60.0
"""How long a stop waits for the commits under way."""
AWAY: Final = (UnavailableError, RoutingError)
"""A node, or what has some partition, is away."""
_NO_VIEWS: Final = "no_index_role"
_NOT_HEARD: Final = frozenset({"missing", "bucket_not_found"})
_NOT_TOLD: Final = _NOT_HEARD | {"not_spark_engine", "other_index"}

Open = Callable[[IndexAddress], AbstractContextManager[IndexWriter]]
"""Returns the writer of a node's index."""
OnCycle = Callable[[IndexAddress, IndexWriter, Cycle, float], None]
"""Told of each commit, and its seconds; by several threads, one at a time."""
_Result = TypeVar("_Result")


class ShardRun:
    """Keeps the index of one node up to date, in a thread, until `end` is called.

    Args:
        address: of the index.
        open_writer: opens its writer.
        on_cycle: told after each commit.
        once: end when the index has all there is.
        is_loop: ask the node all the time, instead of being woken.
        told_s: how long the node may not know the design document.
    """

    def __init__(
        self,
        address: IndexAddress,
        open_writer: Open,
        on_cycle: OnCycle,
        *,
        once: bool = False,
        is_loop: bool = False,
        told_s: float = 0.0,
    ) -> None:
        self.address = address
        self._open, self._on_cycle = open_writer, on_cycle
        self._once, self._is_loop, self._told_s = once, is_loop, told_s
        self.failure: BaseException | None = None
        """What ended it."""
        self.away: tuple[float, MillstreamError] | None = None
        """Since when nothing could be done, and why."""
        self.waits_since = 0.0
        """Since when partitions cannot be read that the index lacks; 0: it does not."""
        self._changed = threading.Condition()
        self._asked = self._done = 0
        """How often it was woken, and up to which of them it has done all there was."""
        self._ending = threading.Event()
        self._woken = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"index at {shown(address)}")
        self._thread.daemon = True

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def end(self) -> None:
        """Do nothing more after the commit under way, for which `wait_done` does not wait."""
        self._ending.set()
        self._woken.set()
        with self._changed:
            self._changed.notify_all()

    def join(self, timeout_s: float) -> None:
        """Wait for its end."""
        self._thread.join(timeout_s)

    @property
    def is_over(self) -> bool:
        """Whether the shard has ended."""
        return not self._thread.is_alive()

    @property
    def is_broken(self) -> bool:
        """Whether the shard failed, except because its node has no views."""
        return self.failure is not None and getattr(self.failure, "code", "") != _NO_VIEWS

    def wake(self) -> int:
        """Report that there may be something new. Return the number of this call."""
        with self._changed:
            self._asked += 1
            self._woken.set()
            return self._asked

    def wait_done(self, number: int, timeout_s: float) -> None:
        """Return once what there was at a call of `wake` is committed, or cannot be now."""
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._done >= number
                    or self.away is not None
                    or self.failure is not None
                    or self._ending.is_set()
                ),
                timeout_s,
            )

    # -- the thread

    def _run(self) -> None:
        try:
            self._keep()
        except BaseException as error:  # noqa: BLE001 - whatever it is, the pipeline raises it
            self.failure = error
        finally:
            with self._changed:
                self._changed.notify_all()

    def _keep(self) -> None:
        opened: AbstractContextManager[IndexWriter] | None = self._patiently(
            lambda: self._open(self.address)
        )
        if opened is None:
            return
        with opened as writer:
            self._take_over(writer)
            while not self._ending.is_set():
                with self._changed:
                    number = self._asked
                    self._woken.clear()
                self._catch_up(writer)
                self._note(number, writer)
                if self._once and not writer.is_waiting:
                    return
                self._wait(writer)

    def _take_over(self, writer: IndexWriter) -> None:
        """Become the writer, once the node has heard of the design document."""
        until = time.monotonic() + self._told_s
        while True:
            try:
                self._patiently(writer.take_over)
                return
            except ConditionError as error:
                if error.code not in _NOT_TOLD or time.monotonic() > until:
                    raise
                self._ending.wait(PAUSE_S)

    def _catch_up(self, writer: IndexWriter) -> None:
        """Commit until there is nothing new."""
        while not self._ending.is_set():
            began = time.monotonic()
            try:
                cycle = self._patiently(writer.cycle)
            except ConditionError as error:
                is_new = error.code == "index_fenced" and self._patiently(writer.was_made_anew)
                if not is_new and not self._is_starting(error):
                    raise
                self._take_over(writer)
                continue
            if cycle is None:
                return
            self._on_cycle(self.address, writer, cycle, time.monotonic() - began)
            if not cycle.parts:  # what was left out is no other at once
                self._ending.wait(PAUSE_S)

    def _is_starting(self, error: ConditionError) -> bool:
        """Whether one of several nodes was perhaps started again, and has not heard of it yet."""
        return self._told_s > 0 and error.code in _NOT_HEARD

    def _note(self, number: int, writer: IndexWriter) -> None:
        """All that can be read is committed."""
        with self._changed:
            self._done = number
            self.waits_since = (self.waits_since or time.monotonic()) if writer.is_waiting else 0.0
            self._changed.notify_all()

    def _wait(self, writer: IndexWriter) -> None:
        """Return once there may be something new."""
        if writer.is_waiting:
            self._woken.wait(PAUSE_S)
            return
        until = time.monotonic() + LOOK_S
        while self._is_loop and not self._ending.is_set():
            try:
                is_behind = self._patiently(writer.is_behind)
            except ConditionError as error:
                if not self._is_starting(error):
                    raise
                self._take_over(writer)
                return
            if is_behind or time.monotonic() > until:
                return
            self._woken.wait(POLL_S)
        self._woken.wait(LOOK_S)

    def _patiently(self, work: Callable[[], _Result]) -> _Result | None:
        """Do something, again while it fails because something is away; None: this is to end."""
        while True:
            try:
                result = work()
            except AWAY as error:
                if error.code == _NO_VIEWS:
                    raise
                with self._changed:
                    self.away = (self.away or (time.monotonic(),))[0], error
                    self._changed.notify_all()
                if self._ending.is_set():
                    return None
                self._ending.wait(PAUSE_S)
            else:
                self.away = None
                return result


class Shards:
    """All indexes of a design document; used within `with`.

    Args:
        find: returns where they are, by the newest map; or raises, and they stay as they are.
        open_writer: opens the writer of one.
        on_cycle: told after each commit, by one thread at a time.
        once: end when all have all there is.
        is_loop: ask the nodes all the time, instead of being woken.
    """

    def __init__(
        self,
        find: Callable[[], list[IndexAddress]],
        open_writer: Open,
        on_cycle: OnCycle,
        *,
        once: bool = False,
        is_loop: bool = False,
    ) -> None:
        self._find, self._open = find, open_writer
        self._told = on_cycle
        self._options: Mapping[str, Any] = {"once": once, "is_loop": is_loop}
        self._once = once
        self._lock = threading.Lock()
        self._runs: dict[IndexAddress, ShardRun] = {}
        self._looked_at = 0.0

    def __enter__(self) -> Self:
        try:
            self._follow(self._find())
        except BaseException:  # also when interrupted: no thread of an index stays behind
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def end(self) -> None:
        """Do nothing more after the commits under way."""
        for run in self._runs.values():
            run.end()

    def close(self) -> None:
        """Do nothing more, and wait for the commits under way."""
        deadline = time.monotonic() + STOP_WAIT_S
        self.end()
        for run in self._runs.values():
            run.join(max(0.0, deadline - time.monotonic()))

    @property
    def is_over(self) -> bool:
        """Whether all have ended by themselves."""
        return all(run.is_over for run in self._runs.values())

    @property
    def is_any_away(self) -> bool:
        """Whether some node is away."""
        return any(run.away is not None for run in self._runs.values())

    def wake(self) -> None:
        """Report a write. Return when it is committed at all present nodes.

        Returns after `WAKE_S` at the latest, and when they are to end.
        """
        until = time.monotonic() + WAKE_S
        for run, number in [(run, run.wake()) for run in list(self._runs.values())]:
            run.wait_done(number, max(0.0, until - time.monotonic()))

    def look(self) -> None:
        """Take notice of nodes that came or went, and of what ends the pipeline.

        What is raised ends all indexes.

        Raises:
            ConditionError: `index_fenced`: another writer keeps an index now; `not_spark_engine`;
                `other_index`; `missing`.
            UnavailableError, RoutingError: nodes or Spark were away for long.
        """
        failed = [run for run in self._runs.values() if run.is_broken]
        if failed or time.monotonic() - self._looked_at > LOOK_S:
            try:
                self._follow(self._find())  # one that has left may not have the bucket any more
            except AWAY:
                self._looked_at = time.monotonic()
        try:
            self._check(failed)
        except BaseException:  # whatever it is: the others do not go on without a pipeline
            self.end()
            raise

    def _follow(self, found: list[IndexAddress]) -> None:
        self._looked_at = time.monotonic()
        for address in self._runs.keys() - set(found):
            self._runs.pop(address).end()  # it has no index of the bucket any more
        for address in found:
            if address not in self._runs:
                told_s = TOLD_S if len(found) > 1 else 0.0
                run = ShardRun(address, self._open, self._on_cycle, told_s=told_s, **self._options)
                self._runs[address] = run
                run.start()

    def _check(self, failed: list[ShardRun]) -> None:
        runs = self._runs.values()
        serious = [run.failure for run in failed if run.failure and run in runs]
        failures = [run.failure for run in runs if run.failure is not None]
        if serious or (failures and len(failures) == len(runs)):
            raise (serious or failures)[0]
        left = [run for run in runs if run.failure is None]
        before = time.monotonic() - AWAY_S
        away = [run.away[1] for run in left if run.away is not None and run.away[0] < before]
        if away and (self._once or len(away) == len(left)):
            raise away[0]
        if self._once and any(0 < run.waits_since < before for run in left if not run.is_over):
            raise UnavailableError(
                "partitions that an index lacks are not served by any node", code="partitions_away"
            )

    def _on_cycle(
        self, address: IndexAddress, writer: IndexWriter, cycle: Cycle, seconds: float
    ) -> None:
        with self._lock:
            self._told(address, writer, cycle, seconds)
