"""Removes rows that no longer count from the indexes of a bucket, in the background.

Invariants:
1. An index is cleaned by one task at a time, step by step, with a pause between steps.

Elsewhere: a step (`views.core.index.index`), the one writer of an index
(`views.aio.indexing.served_index`).
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from millstream.errors import CorruptionError, MillstreamError

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.runtime.tasks import Tasks
    from millstream.views.aio.indexing.served_index import ServedIndex

__all__ = ["CLEAN_PAUSE_S", "CLEAN_PAUSE_S_MAX", "Cleaning"]

_LOG = logging.getLogger(__name__)
CLEAN_PAUSE_S: Final = 0.02
"""Pause between two steps of cleaning an index."""
CLEAN_PAUSE_S_MAX: Final = 5.0
"""Longest pause after steps that failed in a row: each failure doubles the pause."""


class Cleaning:
    """The indexes that are being cleaned.

    Args:
        tasks: runs the cleaning.
        on_damage: called with an index that cannot be read or written any more.
    """

    def __init__(self, tasks: Tasks, on_damage: Callable[[str, CorruptionError], None]) -> None:
        self._tasks = tasks
        self._on_damage = on_damage
        self._running: dict[str, asyncio.Task[None]] = {}

    def begin(self, served: ServedIndex) -> None:
        """Clean an index, if there is anything to clean."""
        running = self._running.get(served.signature)
        if served.index.newest.dirty and (running is None or running.done()):
            self._running[served.signature] = self._tasks.start(
                self._steps(served), name=f"clean {served.signature}"
            )

    def forget(self, signature: str) -> None:
        """Stop cleaning an index. A step that has begun is finished."""
        if (running := self._running.pop(signature, None)) is not None:
            running.cancel()

    async def _steps(self, served: ServedIndex) -> None:
        pause_s = CLEAN_PAUSE_S
        while True:
            try:
                if await served.clean_step():
                    return
                pause_s = CLEAN_PAUSE_S
            except CorruptionError as error:
                self._on_damage(served.signature, error)
                return
            except MillstreamError as error:
                _LOG.warning("index %s is not cleaned: %s", served.signature, error)
                pause_s = min(pause_s * 2, CLEAN_PAUSE_S_MAX)
            await asyncio.sleep(pause_s)
