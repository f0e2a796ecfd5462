"""An event loop in a thread of its own, for programs that have none.

Invariants:
1. Any thread may call `run`; `KeyboardInterrupt` cancels the work that is waited for.
2. Nobody waits for a loop that was stopped: work that is under way then is cancelled.

Elsewhere: what runs there (`node.embedded`, `coordination.aio.client.blocking`,
`cli.coordination.coord`).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from typing import Any, TypeVar

from millstream.runtime.tasks import STOP_SECONDS

__all__ = ["LoopThread"]

_Result = TypeVar("_Result")


class LoopThread:
    """An event loop that runs until `stop`; the thread is a daemon.

    Args:
        name: of the thread.
        new_loop: makes the loop.
    """

    def __init__(
        self, name: str, new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    ) -> None:
        self._loop = new_loop()
        self._lock = threading.Lock()
        self.is_stopped = False
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Run it there, and wait for its result.

        Raises:
            concurrent.futures.CancelledError: the loop is stopped.
        """
        with self._lock:
            if self.is_stopped:
                work.close()
                raise CancelledError
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:  # also when interrupted: nobody else ends what runs there
            future.cancel()
            raise

    def stop(self) -> None:
        """Cancel what runs there, and end the thread; twice is harmless."""
        with self._lock:
            if self.is_stopped:
                return
            self.is_stopped = True
            ending = asyncio.run_coroutine_threadsafe(self._end(), self._loop)
        ending.result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others, timeout=STOP_SECONDS)
        await asyncio.get_running_loop().shutdown_default_executor()
