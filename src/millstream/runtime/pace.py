"""The pace of work in the event loop: jobs rest after each step, requests let others run.

Invariants:
1. A job that calls `breathe` after each small piece holds the loop for `STEP_S` and one piece at a
   time, and takes at most one part in 1 + `REST_FACTOR` of it, unless it asks for more.
2. A request that calls `give` after each small piece holds the loop for `STEP_S` and one piece.

Elsewhere: what the jobs do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import perf_counter
from typing import Final

__all__ = ["REST_FACTOR", "STEP_S", "Pace", "Turns"]

STEP_S: Final = 0.002
"""How long a job or a request works before it lets others run."""
REST_FACTOR: Final = 4
"""How much longer it rests than it worked."""


class Pace:
    """The pace of one job, made when its work begins.

    Args:
        now_s: tells how long the job has worked, in seconds. `time.thread_time` does not count
            what other programs and threads took meanwhile, nor waits for the disk.
    """

    __slots__ = ("_began", "_now_s", "longest_s")

    def __init__(self, now_s: Callable[[], float] = perf_counter) -> None:
        self._now_s = now_s
        self._began = now_s()
        self.longest_s = 0.0
        """The longest step so far."""

    @property
    def is_over(self) -> bool:
        """Whether the present step has lasted long enough."""
        return self._now_s() - self._began >= STEP_S

    async def breathe(self, rest_factor: float = REST_FACTOR) -> None:
        """Rest if the step is over; 0: others have one turn of the loop."""
        worked_s = self._now_s() - self._began
        if worked_s >= STEP_S:
            self.longest_s = max(self.longest_s, worked_s)
            await asyncio.sleep(worked_s * rest_factor)
            self._began = self._now_s()

    def restart(self) -> None:
        """A new step begins: the job has waited for something else."""
        self._began = self._now_s()


class Turns:
    """Gives others a turn where a request has been working for long."""

    __slots__ = ("_end_s", "_loop")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._end_s = self._loop.time() + STEP_S

    @property
    def is_over(self) -> bool:
        """Return whether the request has worked for `STEP_S`."""
        return self._loop.time() > self._end_s

    async def give(self) -> None:
        """Let other tasks run if the turn is over."""
        if self.is_over:
            await asyncio.sleep(0)
            self._end_s = self._loop.time() + STEP_S
