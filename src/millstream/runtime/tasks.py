"""The only place that makes asyncio tasks: kept, named, cancelled at the end, errors surfaced.

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
from typing import Any, Final

__all__ = ["STOP_SECONDS", "Tasks"]

_LOG = logging.getLogger(__name__)
STOP_SECONDS: Final = 10.0
"""How long cancelled tasks may take to end before that is logged."""


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
        """Wait until nothing runs any more."""
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
