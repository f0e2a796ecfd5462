"""The first steps of a process that the engine's process starts.

It reads one line of JSON, its order, from stdin, which stays open, and writes one line:
`{"event":"ready"}` or `{"event":"error","message":..}`; perhaps `{"event":"starting"}` before it,
as long as it comes nearer, and more later.

Invariants:
1. The process dies with the one that started it, at once, however that ends.
2. SIGTERM stops it cleanly; SIGINT is left to whoever started it.
3. Nothing but those lines goes to who started it; stray prints go to stderr. Who does not read
   them holds nobody up: what finds no room is lost.

Elsewhere: who starts and watches it (`node.processes.child_process`), what is done then
(`node.processes.index_child`, `node.processes.coord_child`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol, TypeVar

import msgspec

from millstream.runtime.logs import set_up_logs
from millstream.runtime.process import die_with_parent, new_event_loop, raise_descriptor_limit

__all__ = ["EXIT_NOT_STARTED", "ChildOrder", "Tell", "run_child", "stop_signal"]

EXIT_NOT_STARTED: Final = 1
Tell = Callable[[dict[str, Any]], None]
"""Says one line to who started the process."""


class ChildOrder(Protocol):
    """What every such process is told."""

    @property
    def parent_pid(self) -> int:
        """Who started it."""

    @property
    def log_level(self) -> str:
        """As of the node."""

    @property
    def log_json(self) -> bool:
        """As of the node."""


_Order = TypeVar("_Order", bound=ChildOrder)


def run_child(kind: type[_Order], run: Callable[[_Order, Tell], Coroutine[Any, Any, int]]) -> int:
    """Read the order and do it; return the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    line = sys.stdin.buffer.readline()
    if not line:
        return EXIT_NOT_STARTED
    order = msgspec.json.decode(line, type=kind)
    die_with_parent(order.parent_pid, sys.stdin.fileno())
    reply = os.dup(sys.stdout.fileno())
    os.set_blocking(reply, False)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    set_up_logs(order.log_level, as_json=order.log_json)
    raise_descriptor_limit()
    with asyncio.Runner(loop_factory=new_event_loop()) as runner:
        return runner.run(run(order, lambda event: _tell(reply, event)))


def stop_signal() -> asyncio.Event:
    """Return what is set once the process is told to stop."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    return stop


def _tell(descriptor: int, event: dict[str, Any]) -> None:
    """Say a line; the descriptor stays open, its end says that the process has ended."""
    with contextlib.suppress(BrokenPipeError, BlockingIOError):
        os.write(descriptor, msgspec.json.encode(event) + b"\n")
