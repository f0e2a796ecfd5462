"""The engine as its own process: `python -m millstream.node.engine_process`.

The supervisor writes one line of JSON to stdin (its process id and the settings) and keeps stdin
open. The engine answers one line: `{"event":"ready","listeners":{..}}` or
`{"event":"error","message":..,"is_usage":..,"is_final":..}`.

Invariants:
1. The process dies immediately when its supervisor ends, however that ends.
2. SIGTERM stops it cleanly. SIGINT is left to the supervisor, which shares the terminal.
3. Only this one line goes to the supervisor; other prints go to stderr.

Elsewhere: its start and supervision (`node.processes.supervisor`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from typing import Any, Final

import msgspec

from millstream import accelerated
from millstream.errors import MillstreamError, UsageError
from millstream.node.engine import Engine
from millstream.node.index_node import IndexNode
from millstream.node.processes.supervisor import EXIT_DISK_FAILED
from millstream.node.settings import Settings
from millstream.runtime.logs import RECENT, KeptLine, set_up_logs
from millstream.runtime.process import (
    calm_collector,
    die_with_parent,
    give_memory_back,
    new_event_loop,
    raise_descriptor_limit,
)

__all__ = ["EXIT_NOT_STARTED", "StartOrder", "main"]

_LOG = logging.getLogger("millstream.node.engine_process")
EXIT_NOT_STARTED: Final = 1
SWITCH_S: Final = 0.001
"""How long a busy thread keeps the interpreter while the loop waits for it."""


class StartOrder(msgspec.Struct):
    """Message of the supervisor."""

    supervisor_pid: int
    settings: Settings
    lines: list[KeptLine] = []
    """The last ones of its log."""


def main() -> int:
    """Run until stopped; return the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    order = msgspec.json.decode(sys.stdin.buffer.readline() or b"null", type=StartOrder | None)
    if order is None:
        return EXIT_NOT_STARTED
    die_with_parent(order.supervisor_pid, sys.stdin.fileno())
    reply = _private_stdout()
    set_up_logs(order.settings.log_level, as_json=order.settings.log_json)
    for line in order.lines:
        RECENT.add(line.process, line.at_ms, line.level, line.logger, line.text)
    raise_descriptor_limit()
    give_memory_back()
    with asyncio.Runner(loop_factory=new_event_loop()) as runner:
        return runner.run(_run(order.settings, reply))


async def _run(settings: Settings, reply: int) -> int:
    stop = asyncio.Event()
    failures: list[Exception] = []

    def fail(error: Exception) -> None:
        failures.append(error)
        stop.set()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    try:
        kind = Engine if "data" in settings.roles else IndexNode
        engine = await kind.start(settings, on_fatal=fail)
    except (MillstreamError, OSError) as error:
        _tell(reply, _as_event(error))
        return EXIT_NOT_STARTED
    calm_collector()
    sys.setswitchinterval(SWITCH_S)
    _LOG.info("hot functions: %s", accelerated.state())
    _tell(reply, {"event": "ready", "listeners": engine.addresses()})
    await stop.wait()
    _LOG.info("stopping")
    await engine.stop()
    _LOG.info("stopped")
    return EXIT_DISK_FAILED if failures else 0


def _as_event(error: MillstreamError | OSError) -> dict[str, Any]:
    is_final = isinstance(error, MillstreamError) and error.retry == "never"
    return {
        "event": "error",
        "message": str(error),
        "is_usage": isinstance(error, UsageError),
        "is_final": is_final,
    }


def _tell(descriptor: int, event: dict[str, Any]) -> None:
    with contextlib.suppress(BrokenPipeError):
        os.write(descriptor, msgspec.json.encode(event) + b"\n")
    os.close(descriptor)


def _private_stdout() -> int:
    """Reserve stdout for the supervisor; other prints go to stderr."""
    descriptor = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return descriptor


if __name__ == "__main__":
    sys.exit(main())
