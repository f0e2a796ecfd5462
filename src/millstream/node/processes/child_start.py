"""The first steps of a process that the engine's process starts.

It reads its order as one line of JSON from stdin, which stays open, and writes one line:
`{"event":"ready"}` or `{"event":"error","message":..}`. Before it, `{"event":"starting"}` may
report progress; more lines may follow later. Lines of its log are such events, too.

Invariants:
1. The process dies immediately when its parent ends, however that ends.
2. SIGTERM stops it cleanly. SIGINT is left to the parent.
3. Only those lines go to the parent; other prints go to stderr. A parent that does not read them
   blocks nothing: lines that find no room are lost.

Elsewhere: the parent's side (`node.processes.child_process`), the work
(`node.processes.index_child`, `node.processes.coord_child`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
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
"""Sends one line to the parent."""


class ChildOrder(Protocol):
    """What every such process is told."""

    @property
    def parent_pid(self) -> int:
        """Process id of the parent."""

    @property
    def log_level(self) -> str:
        """Log level of the node."""

    @property
    def log_json(self) -> bool:
        """Log format of the node."""


_Order = TypeVar("_Order", bound=ChildOrder)


def run_child(kind: type[_Order], run: Callable[[_Order, Tell], Coroutine[Any, Any, int]]) -> int:
    """Read the order and run it; return the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    line = sys.stdin.buffer.readline()
    if not line:
        return EXIT_NOT_STARTED
    order = msgspec.json.decode(line, type=kind)
    die_with_parent(order.parent_pid, sys.stdin.fileno())
    reply = os.dup(sys.stdout.fileno())
    os.set_blocking(reply, False)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    set_up_logs(
        order.log_level, as_json=order.log_json, tell=lambda event: _tell_log(reply, event)
    )
    raise_descriptor_limit()
    with asyncio.Runner(loop_factory=new_event_loop()) as runner:
        return runner.run(run(order, lambda event: _tell(reply, event)))


def stop_signal() -> asyncio.Event:
    """Return an event that is set once the process is told to stop."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    return stop


def _tell_log(descriptor: int, event: dict[str, Any]) -> None:
    """Write a line of the log, cut to what a pipe takes whole or not at all: threads log, too."""
    while len(msgspec.json.encode(event)) >= select.PIPE_BUF:
        event["text"] = event["text"][: len(event["text"]) // 2]
    _tell(descriptor, event)


def _tell(descriptor: int, event: dict[str, Any]) -> None:
    """Write a line; the descriptor stays open, so that its end marks the end of the process."""
    with contextlib.suppress(BrokenPipeError, BlockingIOError):
        os.write(descriptor, msgspec.json.encode(event) + b"\n")
