"""The coordination of one node: started with the node, begun anew when the node joins a pool.

Invariants:
1. Coordination that was lost is not begun anew, unless the node is to join a pool: then it gets a
   new identity there.
2. The sockets stay the same, also if coordination begins anew.

Elsewhere: the process (`node.processes.coord_process`), joining (`cluster.aio.joining`).
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Mapping, Sequence

from millstream.access.failed_logins import FailedLogin
from millstream.data_directory.ownership import (
    DataDirectory,
    put_coordination_aside,
    refuse_lost_coordination,
    remove_unused_coordination,
)
from millstream.errors import ConditionError
from millstream.model.addresses import parse_address
from millstream.node.listeners import COORDINATION
from millstream.node.processes.coord_process import NO_FIGURES, CoordProcess
from millstream.node.processes.orders import CoordOrder
from millstream.node.settings import LISTENERS, Address, Settings
from millstream.node.token_order import token_order
from millstream.runtime.tasks import in_thread

__all__ = ["OwnCoordination", "coordination_port"]


def coordination_port(address: Address | None) -> str:
    """Return HOST:PORT by which a node reaches its own coordination.

    Raises:
        ConditionError: `no_coord`: the port is closed.
    """
    if address is None:
        raise ConditionError(
            "this node has no port of coordination: ask a node that has one", code="no_coord"
        )
    return str(Address("127.0.0.1" if address.is_wildcard else address.host, address.port))


class OwnCoordination:
    """Begun by `start`, ended by `stop`.

    Args:
        settings: of the node.
        directory: of the node.
        on_fatal: called when the disk of coordination failed: the node has to stop.
    """

    def __init__(
        self,
        settings: Settings,
        directory: DataDirectory,
        on_fatal: Callable[[Exception], None],
    ) -> None:
        self._settings, self._directory, self._on_fatal = settings, directory, on_fatal
        self._sockets: dict[str, socket.socket] = {}
        self._process: CoordProcess | None = None

    def start(self, bound: Mapping[str, socket.socket]) -> None:
        """Start the process, unless it has no open listener.

        Raises:
            CorruptionError: `coordination_lost`.
        """
        self._sockets = {name: bound[name] for name in COORDINATION if name in bound}
        if not self._sockets:
            return
        join, identity = self._settings.join, self._directory.identity
        if join is None and identity is not None and identity.peer:
            join = Address(*parse_address(identity.peer, default_port=LISTENERS["peer"].port))
        if join is None:
            refuse_lost_coordination(self._directory.path, self._directory.inventory.read())
        self._begin(join)

    def _begin(self, join: Address | None) -> None:
        """Start the process; if its directory is new, it joins a pool."""
        settings, sockets = self._settings, self._sockets
        numbers = {name: one.fileno() for name, one in sockets.items()}
        ports = {name: one.getsockname()[1] for name, one in sockets.items()}
        order = CoordOrder(
            os.getpid(), settings.log_level, settings.log_json,
            str((self._directory.path / "coord").absolute()),
            str(self._directory.users_path.absolute()),
            numbers.get("coord"), numbers.get("peer"), numbers.get("ninep"),
            (settings.coordination_host, ports.get("coord", 0), ports.get("peer", 0)),
            (join.host, join.port) if join is not None else None,
            settings.cluster_secret, settings.tls_cert, settings.tls_key, settings.tls_ca,
            token_order(settings),
        )  # fmt: skip
        self._process = CoordProcess(order, tuple(numbers.values()), self._on_fatal)
        self._process.start()

    async def until_ready(self) -> None:
        """Return once it serves, if it is to; raises as `CoordProcess.until_ready`."""
        if self._process is not None:
            await self._process.until_ready()
            await asyncio.to_thread(self._directory.inventory.note_coordination)

    async def stop(self) -> None:
        """Stop the process."""
        if self._process is not None:
            await self._process.stop()

    async def join(self, peer: Address) -> None:
        """Begin anew, in the pool of another node; raises as `until_ready`, and OSError."""
        await self.stop()
        await in_thread(remove_unused_coordination, self._directory.path)
        self._begin(peer)
        await self.until_ready()

    async def found(self) -> None:
        """Begin anew, alone; the files so far are kept aside. Raises as `join`."""
        await self.stop()
        await in_thread(put_coordination_aside, self._directory.path)
        self._begin(None)
        await self.until_ready()

    def figures(self) -> Mapping[str, float]:
        """Return its statistics."""
        return self._process.figures() if self._process is not None else NO_FIGURES

    @property
    def token_settings(self) -> Mapping[str, str]:
        """Return the settings of tokens that apply to all nodes."""
        return self._process.token_settings if self._process is not None else {}

    def failed_logins(self) -> Sequence[FailedLogin]:
        """Return the log-ins that failed at the ports of coordination."""
        return self._process.failed_logins if self._process is not None else ()
