"""The only place that makes asyncio tasks: kept, named, cancelled at the end, errors surfaced.

`in_thread` is for calls that change files.

Invariants:
1. A task is referenced until it is done, so it cannot vanish in the middle of its work.
2. An error that a task ends with is logged once and told to `on_error`; it is never lost.
3. After `stop` no task of the group runs.

Elsewhere: what the tasks do.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, TypeVar

__all__ = ["STOP_SECONDS", "Tasks", "in_thread", "until_done"]

_Result = TypeVar("_Result")

_LOG = logging.getLogger(__name__)
STOP_SECONDS: Final = 10.0
"""How long cancelled tasks may take to end before that is logged."""


async def in_thread(call: Callable[..., _Result], *args: Any, **named: Any) -> _Result:
    """Run a call in a thread, as `asyncio.to_thread`; a cancelled caller ends after the call.

    A thread cannot be stopped. Without this a call that changes files could still do so after its
    owner was closed, and undo what the next owner has written.
    """
    loop = asyncio.get_running_loop()
    return await until_done(loop.run_in_executor(None, partial(call, *args, **named)))


async def until_done(running: asyncio.Future[_Result]) -> _Result:
    """Return the result of what runs in a thread; a cancelled caller ends once it is done.

    Raises:
        CancelledError: the caller was cancelled. An error of the call is logged, and no more.
    """
    cancelled: asyncio.CancelledError | None = None
    while not running.done():
        try:
            await asyncio.wait([running])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is None:
        return running.result()
    if not running.cancelled() and (failure := running.exception()) is not None:
        _LOG.info("what ran in a thread until it was cancelled failed: %s", failure)
    raise cancelled


class Tasks:
    """A group of background tasks with one owner.

    Args:
        on_error: called in the loop with the error that ended a task.
    """

    def __init__(self, on_error: Callable[[BaseException], None] | None = None) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._on_error = on_error

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, Any], *, name: str) -> asyncio.Task[Any]:
        """Run a coroutine in the background."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def stop(self) -> None:
        """Cancel what still runs and wait for it."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if not tasks:
            return
        _, late = await asyncio.wait(tasks, timeout=STOP_SECONDS)
        for task in late:
            _LOG.error("task %s ignores its cancellation", task.get_name())

    async def finish(self) -> None:
        """Wait until no task runs."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            return
        _LOG.error("task %s failed", task.get_name(), exc_info=error)
        if self._on_error is not None:
            self._on_error(error)
