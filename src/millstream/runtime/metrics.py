"""What the process knows about itself: how late its event loop runs, memory, processor time.

Invariants:
1. Measuring costs next to nothing: one timer, a few times a second.

Elsewhere: the page that shows it (`gateway.aio.node.node_pages`).
"""

from __future__ import annotations

import asyncio
import os
import resource
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

__all__ = ["LoopLag", "free_bytes", "machine_bytes", "processor_seconds", "resident_bytes"]

_INTERVAL_S: Final = 0.25
_WINDOW: Final = 40
"""Measurements kept: ten seconds."""
_CONTAINER_LIMITS: Final = (
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
)


class LoopLag:
    """Measures by how much timers of the running loop are late."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._recent_ms = [0.0] * _WINDOW
        self._next = 0
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin measuring."""
        self._due = self._loop.time() + _INTERVAL_S
        self._timer = self._loop.call_at(self._due, self._measure)

    def stop(self) -> None:
        """End measuring."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def last_ms(self) -> float:
        """The latest measurement."""
        return self._recent_ms[self._next - 1]

    @property
    def worst_ms(self) -> float:
        """The worst of the last ten seconds."""
        return max(self._recent_ms)

    def _measure(self) -> None:
        late_ms = max(0.0, self._loop.time() - self._due) * 1000
        self._recent_ms[self._next] = late_ms
        self._next = (self._next + 1) % _WINDOW
        self.start()


def resident_bytes() -> int:
    """Return the memory this process occupies."""
    return int(os.pread(_statm(os.getpid()), 128, 0).split()[1]) * os.sysconf("SC_PAGE_SIZE")


@cache
def _statm(process_id: int) -> int:
    """Open the process's figures once.

    Each call of the system gives the interpreter's lock away: beside a busy thread it comes back
    only after a switch interval. An open file needs one call, opening it four.
    """
    return os.open(f"/proc/{process_id}/statm", os.O_RDONLY)


def machine_bytes() -> int:
    """Return the memory there is: the machine's, or what its container may use of it."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path in _CONTAINER_LIMITS:
        with suppress(OSError, ValueError):  # there is none, or it is "max"
            limits.append(int(Path(path).read_text()))
    return min(limits)


def free_bytes(path: str | os.PathLike[str]) -> int:
    """Return the space left to this process in the file system of `path`; raises OSError."""
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def processor_seconds() -> float:
    """Return the processor time this process has used, user and system."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
