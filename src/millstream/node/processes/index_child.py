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

from millstream.access.users import NODE_USER
from millstream.errors import MillstreamError
from millstream.node.listeners import peer_context
from millstream.node.processes.child_start import EXIT_NOT_STARTED, Tell, run_child, stop_signal
from millstream.node.processes.orders import IndexOrder
from millstream.runtime.process import calm_collector
from millstream.views.aio.sandbox.modules import load_modules
from millstream.views.aio.serving.gathering import NodeAccess
from millstream.views.aio.serving.index_host import IndexHost
from millstream.views.aio.serving.index_server import IndexServer

__all__ = ["SWITCH_S", "THREADS_MAX", "main"]

_LOG = logging.getLogger("millstream.node.processes.index_child")
THREADS_MAX: Final = 64
"""Threads that open indexes and answer queries; a slow function occupies one."""
SWITCH_S: Final = 0.001
"""How long a mapping thread may hold the interpreter while the loop waits for it."""


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
