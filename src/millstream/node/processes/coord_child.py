"""The coordination process, started by the engine's process.

Invariants:
1. It listens on sockets that the engine's process has bound and keeps, so that their ports stay
   the same over its restarts.
2. While it reads the groups' files it reports progress every `FIGURES_S`. It reports that it is
   ready once it listens, then its statistics.
3. It exits with `EXIT_DISK_FAILED` if its disk failed, without any retry. A lack of file
   descriptors is not a disk failure, and a statistic that cannot be sent does not end the process.

Elsewhere: its first steps (`node.processes.child_start`), its start and supervision
(`node.processes.coord_process`), its work (`coordination.aio.coordinator`).
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from millstream.access.users import UserStore
from millstream.coordination.aio.coordinator import Coordinator, Listening
from millstream.coordination.core.pool.messages import Address
from millstream.data_directory.inventory import Inventory
from millstream.errors import MillstreamError, UsageError
from millstream.node.known_users import keep_users
from millstream.node.listeners import peer_context, peer_server_context, server_context
from millstream.node.processes.child_start import EXIT_NOT_STARTED, Tell, run_child, stop_signal
from millstream.node.processes.orders import CoordOrder
from millstream.node.processes.supervisor import EXIT_DISK_FAILED
from millstream.node.token_order import token_keys
from millstream.runtime.metrics import LoopLag, processor_seconds, resident_bytes
from millstream.runtime.process import calm_collector, give_memory_back
from millstream.runtime.tasks import Tasks
from millstream.storage.core.disk_errors import is_full

__all__ = ["FAILED_LOGINS_TOLD_MAX", "FIGURES_S", "SWITCH_S", "main"]

_LOG = logging.getLogger("millstream.node.processes.coord_child")
FIGURES_S: Final = 1.0
"""How often the statistics are sent to the engine."""
FAILED_LOGINS_TOLD_MAX: Final = 200
"""Names and places of failed log-ins that the engine is told each time."""
EXIT_FAILED: Final = 1
SWITCH_S: Final = 0.0005
"""How long the loop may hold the interpreter while a thread that has synced waits for it."""


def main() -> int:
    """Run until stopped; return the exit code."""
    return run_child(CoordOrder, _run)


async def _run(order: CoordOrder, tell: Tell) -> int:
    stop, failures = stop_signal(), list[BaseException]()

    def fail(error: BaseException) -> None:
        failures.append(error)
        stop.set()

    try:
        users_path = Path(order.users)
        users = UserStore(
            users_path, node_secret=order.cluster_secret, note=Inventory(users_path.parent)
        )
        tokens = token_keys(order.tokens)
        coordinator = await Coordinator.start(
            Path(order.directory), _listening(order), users=users, secret=order.cluster_secret,
            join=(Address(*order.join),) if order.join is not None else (), on_fatal=fail,
            on_progress=_progress(tell), tokens=tokens,
        )  # fmt: skip
    except (MillstreamError, OSError) as error:
        is_final = isinstance(error, MillstreamError) and error.retry == "never"
        tell({"event": "error", "message": str(error), "is_final": is_final})
        return EXIT_DISK_FAILED if _is_of_the_disk(error) else EXIT_NOT_STARTED
    calm_collector()
    give_memory_back()
    sys.setswitchinterval(SWITCH_S)
    tell({"event": "ready"})
    tasks = Tasks(fail)
    tasks.start(_tell_figures(coordinator, users, tell), name="figures for the engine")
    tasks.start(keep_users(users, coordinator.user_changed), name="users of the node")
    if tokens is not None:
        tokens.start()
    await stop.wait()
    await tasks.stop()
    await coordinator.stop()
    if tokens is not None:
        await tokens.close()
    _LOG.info("stopped")
    if failures:
        return EXIT_DISK_FAILED if _is_of_the_disk(failures[0]) else EXIT_FAILED
    return 0


def _progress(tell: Tell) -> Callable[[], None]:
    """Return a function that reports progress of the start; callable from any thread."""
    said = 0.0

    def say() -> None:
        nonlocal said
        now = time.monotonic()
        if now - said >= FIGURES_S:
            said = now
            tell({"event": "starting"})

    return say


def _is_of_the_disk(error: BaseException) -> bool:
    if isinstance(error, OSError):
        return not is_full(error)
    return getattr(error, "code", "") == "disk_failed"


def _listening(order: CoordOrder) -> Listening:
    tls: ssl.SSLContext | None = None
    peer_tls: tuple[ssl.SSLContext, ssl.SSLContext] | None = None
    if order.tls_cert is not None:
        files = order.tls_cert, order.tls_key, order.tls_ca
        try:
            tls = server_context(*files)
            peer_tls = peer_server_context(*files), peer_context(*files)
        except (OSError, ValueError) as error:
            raise UsageError(
                f"--tls-cert {order.tls_cert}: {error}", code="bad_certificate"
            ) from error
    host, coord, peer = order.advertise
    return Listening(
        _socket(order.coord), _socket(order.peer), tls, peer_tls, host, coord, peer,
        _socket(order.ninep),
        (order.tls_cert or "", order.tls_key or "", order.tls_ca or ""),
    )  # fmt: skip


def _socket(descriptor: int | None) -> socket.socket | None:
    return None if descriptor is None else socket.socket(fileno=descriptor)


async def _tell_figures(coordinator: Coordinator, users: UserStore, tell: Tell) -> None:
    lag = LoopLag()
    lag.start()
    try:
        while True:
            await asyncio.sleep(FIGURES_S)
            try:
                occupied = resident_bytes()
            except OSError as error:  # too few descriptors or too little memory: continue
                _LOG.warning("the memory of this process cannot be read: %s", error)
                occupied = 0
            figures: dict[str, Any] = {
                "coord_process_resident_bytes": occupied,
                "coord_process_processor_seconds_total": processor_seconds(),
                "coord_process_loop_lag_worst_ms": lag.worst_ms,
                **coordinator.figures(),
            }
            tell({
                "event": "figures", "figures": figures,
                "token_settings": coordinator.token_settings(),
                "failed_logins": users.failed_logins(FAILED_LOGINS_TOLD_MAX),
            })  # fmt: skip
    finally:
        lag.stop()


if __name__ == "__main__":
    sys.exit(main())
