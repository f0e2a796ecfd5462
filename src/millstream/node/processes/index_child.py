"""The index process, started by the engine's process.

Invariants:
1. It reports that it is ready once its socket answers.

Elsewhere: its first steps (`node.processes.child_start`), its start and supervision
(`node.processes.index_process`), its work (`views.aio.serving.index_host`).
"""

from __future__ import annotations

import asyncio
import logging
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import msgspec

from millstream.access.users import NODE_USER
from millstream.errors import MillstreamError
from millstream.node.listeners import peer_context
from millstream.node.processes.child_start import EXIT_NOT_STARTED, Tell, run_child, stop_signal
from millstream.runtime.process import calm_collector
from millstream.views.aio.sandbox.modules import load_modules
from millstream.views.aio.serving.gathering import NodeAccess
from millstream.views.aio.serving.index_host import IndexHost
from millstream.views.aio.serving.index_server import IndexServer
from millstream.views.core.reduce.reductions import ReduceLimit

__all__ = ["SWITCH_S", "THREADS_MAX", "IndexOrder", "main"]

_LOG = logging.getLogger("millstream.node.processes.index_child")
THREADS_MAX: Final = 64
"""Threads that open indexes and answer queries; a slow function occupies one."""
SWITCH_S: Final = 0.001
"""How long a mapping thread may hold the interpreter while the loop waits for it."""


class IndexOrder(msgspec.Struct, frozen=True):
    """What the index process is told at its start."""

    parent_pid: int
    buckets: str
    """The directory `buckets` of the data directory."""
    kv: str
    """Address of the engine's socket, as for `upr.aio.link.Link`."""
    socket: str
    """Path of its own socket."""
    modules: tuple[str, ...]
    """Python modules to import; they register functions for views."""
    log_level: str
    log_json: bool
    cluster_secret: str = ""
    """Secret for requests to other nodes for their parts of answers."""
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_ca: str | None = None
    reduce_limit: ReduceLimit = "true"
    """Handling of reduce results that do not shrink."""


def main() -> int:
    """Run until stopped; return the exit code."""
    return run_child(IndexOrder, _run)


async def _run(order: IndexOrder, tell: Tell) -> int:
    stop = stop_signal()
    asyncio.get_running_loop().set_default_executor(
        ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="index answers")
    )
    try:
        host = IndexHost(Path(order.buckets), order.kv, _access(order), order.reduce_limit)
    except (OSError, ValueError) as error:
        tell({"event": "error", "message": f"--tls-cert {order.tls_cert}: {error}"})
        return EXIT_NOT_STARTED
    server = IndexServer(host)
    try:
        load_modules(order.modules)
        await server.start(Path(order.socket))
    except (MillstreamError, OSError) as error:
        tell({"event": "error", "message": str(error)})
        return EXIT_NOT_STARTED
    calm_collector()
    sys.setswitchinterval(SWITCH_S)
    tell({"event": "ready"})
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


if __name__ == "__main__":
    sys.exit(main())
