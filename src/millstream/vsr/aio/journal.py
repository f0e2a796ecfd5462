"""The journal of a group in its own thread: it makes a replica's steps durable, in order.

Invariants:
1. One step runs at a time, and steps take effect in the order in which they were asked for.
   Appends that wait one behind the other are combined into one.
2. `on_done` is called in the loop with each number, in order, once that step is durable.
3. While the disk is full, the step waits and is tried again. No later step overtakes it. Only a
   snapshot of the own state is given up instead, and `on_given_up` is called.
4. After each step the progress of the files is noted outside of them (`core.disk.reached_file`).
5. After any other error `on_fatal` is called once. Nothing is reported or written after it, and
   the process has to stop.

Elsewhere: the steps (`core.disk.journal`), who needs them (the replica).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from millstream.errors import UnavailableError
from millstream.ports.disk import Disk
from millstream.vsr.core.disk.durable_steps import DurableImage
from millstream.vsr.core.disk.journal import Journal
from millstream.vsr.core.disk.reached_file import ReachedFile
from millstream.vsr.core.effects import Append, DiskEffect, WriteSnapshot
from millstream.vsr.core.entries import Entry

__all__ = ["APPEND_BYTES_MAX", "DISK_FULL_RETRY_S", "STEPS_MAX", "JournalThread"]

_LOG = logging.getLogger(__name__)
APPEND_BYTES_MAX: Final = 8 * 1024 * 1024
"""Most bytes of bodies that waiting appends may have to be combined into one."""
DISK_FULL_RETRY_S: Final = 1.0
"""How long a step waits for disk space before it is tried again."""
STEPS_MAX: Final = 4096
"""Most steps that may wait. A replica that asks for more has a fault."""


@dataclass(slots=True)
class _Step:
    """The numbers of a step, and the call that makes it durable. `entries` are those of an append.

    An `is_optional` step is given up when the disk is full.
    """

    ops: list[int]
    call: Callable[[Journal], None] | None
    entries: list[Entry]
    is_optional: bool = False


class JournalThread:
    """Made by `open`. All methods are called in the loop."""

    def __init__(
        self,
        journal: Journal,
        thread: ThreadPoolExecutor,
        on_done: Callable[[int], None],
        on_fatal: Callable[[BaseException], None],
        on_given_up: Callable[[int], None],
        reached: ReachedFile | None = None,
    ) -> None:
        self._on_given_up, self._reached = on_given_up, reached
        self._journal, self._thread = journal, thread
        self._on_done, self._on_fatal = on_done, on_fatal
        self._steps: deque[_Step] = deque()
        self._loop = asyncio.get_running_loop()
        self._retry: asyncio.TimerHandle | None = None
        self._is_busy = self._is_closed = False
        self.is_full = False
        """Set while the disk is full: everything waits."""

    @classmethod
    async def open(
        cls,
        disk: Disk,
        *,
        on_done: Callable[[int], None],
        on_fatal: Callable[[BaseException], None],
        on_given_up: Callable[[int], None] = lambda _: None,
        reached: ReachedFile | None = None,
    ) -> JournalThread:
        """Open and repair the files of a formatted group; `image` is what was found.

        `reached`: the file that notes the progress of these files, from now on.

        Raises:
            CorruptionError: a newer version wrote the files; `set_back`: they are older than
            noted.
            UnavailableError: `disk_full`, `disk_failed`.
        """
        thread = ThreadPoolExecutor(1, thread_name_prefix="journal")
        try:
            journal = await asyncio.get_running_loop().run_in_executor(
                thread, _opened, disk, reached
            )
        except BaseException:  # also when cancelled: nobody else ends the thread
            thread.shutdown(wait=False)
            raise
        return cls(journal, thread, on_done, on_fatal, on_given_up, reached)

    def take_image(self) -> DurableImage:
        """Return what was found at the start, once. It holds the whole log."""
        image, self._journal.image = self._journal.image, DurableImage(None)
        return image

    def carry_out(self, effect: DiskEffect) -> None:
        """Carry out an effect of the replica; its number is reported once it is durable."""
        if not isinstance(effect, Append):
            is_optional = isinstance(effect, WriteSnapshot)
            self._add(
                _Step([effect.op], lambda journal: journal.carry_out(effect), [], is_optional)
            )
            return
        last = self._steps[-1] if self._steps else None
        if last is not None and last.call is None and _bytes(last.entries) < APPEND_BYTES_MAX:
            last.ops.append(effect.op)
            last.entries.extend(effect.entries)
        else:
            self._add(_Step([effect.op], None, list(effect.entries)))

    def perform(self, op: int, call: Callable[[Journal], None]) -> None:
        """Carry out any other step, for example of a snapshot, after the steps before it."""
        self._add(_Step([op], call, []))

    def _add(self, step: _Step) -> None:
        assert len(self._steps) < STEPS_MAX, "more steps wait than a replica may ask for"
        if self._is_closed:
            return
        self._steps.append(step)
        if not self._is_busy:
            self._begin_next()

    def _begin_next(self) -> None:
        self._is_busy = bool(self._steps)
        if self._steps:
            self._begin(self._steps.popleft())

    def _begin(self, step: _Step) -> None:
        """Start a step in the thread at once, so that the loop can do other work meanwhile."""
        self._thread.submit(self._do, step)

    def _do(self, step: _Step) -> None:
        """Run the step. Called in the thread."""
        error: BaseException | None = None
        try:
            if step.call is None:
                self._journal.append(step.entries)
            else:
                step.call(self._journal)
            if self._reached is not None:
                self._reached.note(self._journal.reached)
        except BaseException as failure:  # noqa: BLE001 - it is told
            error = failure
        self._loop.call_soon_threadsafe(self._ended, step, error)

    def _ended(self, step: _Step, error: BaseException | None) -> None:
        is_full = isinstance(error, UnavailableError) and error.code == "disk_full"
        if error is not None and not is_full:
            self._fail(error)
        elif not is_full:
            self.is_full = False
            self._go_on_after(step, self._on_done)
        elif step.is_optional:
            _LOG.error("gave up a snapshot of a coordination group: %s", error)
            self._go_on_after(step, self._on_given_up)
        elif not self._is_closed:
            if not self.is_full:
                _LOG.error("a coordination group waits for disk space: %s", error)
            self.is_full = True
            self._retry = self._loop.call_later(DISK_FULL_RETRY_S, self._begin, step)

    def _go_on_after(self, step: _Step, told: Callable[[int], None]) -> None:
        self._begin_next()
        for op in step.ops:
            told(op)

    def _fail(self, error: BaseException) -> None:
        self._is_closed = True
        self._steps.clear()
        _LOG.error("the journal of a coordination group stops", exc_info=error)
        self._on_fatal(error)

    async def close(self) -> None:
        """Wait for the running step, and drop the later ones, of which nothing was reported."""
        self._is_closed = True
        self._steps.clear()
        if self._retry is not None:
            self._retry.cancel()
        await self._loop.run_in_executor(self._thread, self._journal.close)
        if self._reached is not None:
            self._reached.close()
        self._thread.shutdown()


def _opened(disk: Disk, reached: ReachedFile | None) -> Journal:
    return Journal(disk, reached=None if reached is None else reached.found())


def _bytes(entries: Sequence[Entry]) -> int:
    return sum(len(entry.body) for entry in entries)
