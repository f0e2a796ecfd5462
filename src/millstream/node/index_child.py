"""The index process: `python -m millstream.node.index_child`, started by the engine's process.

It reads one line of JSON (`IndexOrder`) from stdin, which stays open, and writes one line:
`{"event":"ready"}` or `{"event":"error","message":..}`.

Invariants:
1. The process dies with the one that started it, at once, however that ends.
2. SIGTERM stops it cleanly; SIGINT is left to whoever started it.
3. Nothing but the one line goes to who started it; stray prints go to stderr.

Elsewhere: who starts and watches it (`node.index_process`), what it does (`views.aio.index_host`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any, Final

import msgspec

from millstream.access.users import NODE_USER
from millstream.errors import MillstreamError
from millstream.node.listeners import peer_context
from millstream.runtime.logs import set_up_logs
from millstream.runtime.process import (
    calm_collector,
    die_with_parent,
    new_event_loop,
    raise_descriptor_limit,
)
from millstream.views.aio.gathering import NodeAccess
from millstream.views.aio.index_host import IndexHost
from millstream.views.aio.index_server import IndexServer
from millstream.views.aio.modules import load_modules
from millstream.views.core.reductions import ReduceLimit

__all__ = ["EXIT_NOT_STARTED", "SWITCH_S", "IndexOrder", "main"]

_LOG = logging.getLogger("millstream.node.index_child")
EXIT_NOT_STARTED: Final = 1
SWITCH_S: Final = 0.001
"""How long a thread that maps may go on while the loop waits for the interpreter."""


class IndexOrder(msgspec.Struct, frozen=True):
    """What the index process is told at its start."""

    parent_pid: int
    buckets: str
    """The directory `buckets` of the data directory."""
    kv: str
    """Address of the engine's socket, as `upr.aio.link.Link` takes it."""
    socket: str
    """Where to listen."""
    modules: tuple[str, ...]
    """Python modules to import, which register functions for views."""
    log_level: str
    log_json: bool
    cluster_secret: str = ""
    """With which other nodes are asked for their parts of answers."""
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_ca: str | None = None
    reduce_limit: ReduceLimit = "true"
    """What becomes of reduce results that do not shrink."""


def main() -> int:
    """Run until told to stop; returns the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    order = msgspec.json.decode(sys.stdin.buffer.readline() or b"null", type=IndexOrder | None)
    if order is None:
        return EXIT_NOT_STARTED
    die_with_parent(order.parent_pid, sys.stdin.fileno())
    reply = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    set_up_logs(order.log_level, as_json=order.log_json)
    raise_descriptor_limit()
    with asyncio.Runner(loop_factory=new_event_loop()) as runner:
        return runner.run(_run(order, reply))


async def _run(order: IndexOrder, reply: int) -> int:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    try:
        host = IndexHost(Path(order.buckets), order.kv, _access(order), order.reduce_limit)
    except (OSError, ValueError) as error:
        _tell(reply, {"event": "error", "message": f"--tls-cert {order.tls_cert}: {error}"})
        return EXIT_NOT_STARTED
    server = IndexServer(host)
    try:
        load_modules(order.modules)
        await server.start(Path(order.socket))
    except (MillstreamError, OSError) as error:
        _tell(reply, {"event": "error", "message": str(error)})
        return EXIT_NOT_STARTED
    calm_collector()
    sys.setswitchinterval(SWITCH_S)
    _tell(reply, {"event": "ready"})
    await stop.wait()
    await server.stop()
    await host.stop()
    _LOG.info("stopped")
    return 0


def _access(order: IndexOrder) -> NodeAccess:
    tls = None
    if order.tls_cert is not None:
        tls = peer_context(order.tls_cert, order.tls_key, order.tls_ca)
    return NodeAccess(NODE_USER, order.cluster_secret, tls)


def _tell(descriptor: int, event: dict[str, Any]) -> None:
    """Say the one line; the descriptor stays open, its end says that the process has ended."""
    with contextlib.suppress(BrokenPipeError):
        os.write(descriptor, msgspec.json.encode(event) + b"\n")


if __name__ == "__main__":
    sys.exit(main())
