"""The coordination of one node: its groups, the nodes it talks to, the clients it serves.

Layout: `node.toml` (who it is), one directory for each group, named after its id in hexadecimal.

Invariants:
1. A node's first start makes a group of one, `FIRST_GROUP`, unless it is to join others.
2. Whatever of the disk fails, of any group, `on_fatal` is told once: the process has to end.
3. Nobody is listened to, client or node, before all groups have read their files.

Elsewhere: a group (`aio.group_runner`), connections of nodes (`aio.peers`) and clients
(`aio.resp_server`), what clients ask (`aio.client_requests`).
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final, NamedTuple

from millstream.access.users import UserStore
from millstream.coordination.aio.client_requests import ClientRequests
from millstream.coordination.aio.group_runner import GroupRunner
from millstream.coordination.aio.node_file import Identity, begin_incarnation, keep
from millstream.coordination.aio.peers import Peers, Place
from millstream.coordination.aio.resp_server import RespServer, UserGuard
from millstream.coordination.core.entries import ID_BYTES
from millstream.coordination.core.journal import format_group, is_formatted
from millstream.coordination.core.messages import Envelope, decode, encode
from millstream.coordination.core.pool_effects import FIRST_GROUP
from millstream.coordination.core.register import Registers
from millstream.coordination.core.standing import Standing, founded
from millstream.runtime.disk import OsDisk
from millstream.runtime.tasks import Tasks

__all__ = ["BACKLOG", "Coordinator", "Listening", "group_id_of"]

_LOG = logging.getLogger(__name__)
BACKLOG: Final = 1024
"""Clients whose connections may wait to be taken."""


class Listening(NamedTuple):
    """Where a node is reached: bound sockets, and what others are told of them."""

    coord: socket.socket | None = None
    """For clients; None: closed."""
    peer: socket.socket | None = None
    """For nodes; None: closed."""
    tls: ssl.SSLContext | None = None
    peer_tls: tuple[ssl.SSLContext, ssl.SSLContext] | None = None
    """For being dialled, for dialling."""
    host: str = ""
    coord_port: int = 0
    peer_port: int = 0


def group_id_of(number: int) -> bytes:
    """Return the id of a group from the number that people know it by."""
    return number.to_bytes(ID_BYTES, "big")


class Coordinator:
    """Made by `start`, ended by `stop`."""

    def __init__(
        self,
        directory: Path,
        identity: Identity,
        listening: Listening,
        users: UserStore,
        secret: str,
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self.directory, self.identity = directory, identity
        self.node_id = identity.node_id
        self.groups: dict[bytes, GroupRunner] = {}
        self.places: dict[bytes, Place] = {}
        """Where other nodes are."""
        self.peers = Peers(self._on_frame, users=users, secret=secret, tls=listening.peer_tls)
        self.requests = ClientRequests(
            self.groups, {FIRST_GROUP: group_id_of(FIRST_GROUP)}, lambda _: ""
        )
        self._guard = UserGuard(users)
        self.clients = RespServer(self.requests, self._guard)
        self._listening = listening
        self._on_fatal = on_fatal
        self._has_failed = False
        self._encoded: tuple[Envelope, bytes] | None = None
        self._tasks = Tasks(self._failed)
        self._cleanup = AsyncExitStack()

    @classmethod
    async def start(
        cls,
        directory: Path,
        listening: Listening = Listening(),  # noqa: B008 - a value that never changes
        *,
        users: UserStore | None = None,
        secret: str = "",
        joins: bool = False,
        on_fatal: Callable[[BaseException], None] = lambda _: None,
    ) -> Coordinator:
        """Bring up all groups whose files are there.

        Args:
            directory: of coordination, in the data directory.
            listening: for clients and other nodes.
            users: of the node, for log-ins.
            secret: with which nodes log in to each other.
            joins: the node is to join others, and begins without a group.
            on_fatal: called when the node must stop.

        Raises:
            CorruptionError: `bad_node_file`, `promises_lost`.
            UnavailableError: `directory_unusable`, `disk_full`, `disk_failed`.
        """
        identity = await asyncio.to_thread(begin_incarnation, directory)
        async with AsyncExitStack() as stack:
            coordinator = cls(
                directory, identity, listening, users or UserStore(), secret, on_fatal
            )
            stack.push_async_callback(coordinator._close_groups)
            stack.push_async_callback(coordinator.peers.close)
            if not identity.is_founded:
                await coordinator._found(joins=joins)
            await coordinator._open_groups()
            await coordinator._listen(stack)
            coordinator._cleanup = stack.pop_all()
        return coordinator

    async def stop(self) -> None:
        """Close everything; what was acknowledged is durable anyway."""
        await self._cleanup.aclose()

    async def _listen(self, stack: AsyncExitStack) -> None:
        if self._listening.peer is not None:
            await self.peers.listen(self._listening.peer)
        if self._listening.coord is not None:
            stack.push_async_callback(self._guard.close)
            stack.callback(self.clients.close)
            server = await asyncio.get_running_loop().create_server(
                self.clients.connection, sock=self._listening.coord, ssl=self._listening.tls,
                backlog=BACKLOG,
            )  # fmt: skip
            stack.callback(server.close)

    # ---- groups

    async def _found(self, *, joins: bool) -> None:
        if not joins:
            group_id = group_id_of(FIRST_GROUP)
            await self.format(founded(group_id, self.node_id, (self.node_id,)))
            _LOG.warning(
                "this node coordinates alone: it is a group of one, no failure is survived"
            )
        self.identity = self.identity._replace(is_founded=True)
        await asyncio.to_thread(keep, self.directory, self.identity)

    async def format(self, standing: Standing) -> None:
        """Make the files of a group that this node is a member of; harmless if they are there.

        Raises:
            UnavailableError: `disk_full`, `disk_failed`.
        """
        await asyncio.to_thread(self._format, standing)

    def _format(self, standing: Standing) -> None:
        disk = self._disk(standing.group_id)
        if not is_formatted(disk):
            format_group(disk, standing)

    def _disk(self, group_id: bytes) -> OsDisk:
        return OsDisk(self.directory / group_id.hex())

    async def _open_groups(self) -> None:
        found = await asyncio.to_thread(lambda: sorted(self.directory.glob("[0-9a-f]*")))
        for path in found:
            if path.is_dir() and len(path.name) == 2 * ID_BYTES:
                await self.open_group(bytes.fromhex(path.name))

    async def open_group(self, group_id: bytes) -> GroupRunner | None:
        """Have a group run whose files are there; None if it was never formatted.

        Raises:
            CorruptionError: `promises_lost`.
            UnavailableError: `disk_full`, `disk_failed`.
        """
        disk = await asyncio.to_thread(self._disk, group_id)
        if not is_formatted(disk):
            return None
        runner = await GroupRunner.open(disk, Registers(), send=self._send, on_fatal=self._failed)
        self.groups[group_id] = runner
        return runner

    async def _close_groups(self) -> None:
        groups = dict(self.groups)
        self.groups.clear()
        for runner in groups.values():
            await runner.close()

    def _failed(self, error: BaseException) -> None:
        if not self._has_failed:
            self._has_failed = True
            _LOG.critical("coordination of this node ends: %s", error)
            self._on_fatal(error)

    # ---- messages

    def _send(self, receiver: bytes, envelope: Envelope) -> None:
        """Try to deliver a message; a member says the same thing to several others."""
        if place := self.places.get(receiver):
            known = self._encoded
            if known is None or not _is_same(known[0], envelope):
                known = self._encoded = envelope, encode(envelope)
            self.peers.send(place, known[1])

    def _on_frame(self, frame: bytes) -> None:
        envelope = decode(frame)
        if runner := self.groups.get(envelope.group_id):
            runner.receive(envelope)

    # ---- figures

    def figures(self) -> dict[str, float]:
        """Return what the node's metrics show of it."""
        reports = [runner.replica.report() for runner in self.groups.values()]
        return {
            "coord_groups": len(reports),
            "coord_groups_leading": sum(one.role == "primary" for one in reports),
            "coord_groups_impaired": sum(not one.is_quorum_ok for one in reports),
            "coord_groups_diverged": sum(one.is_diverged for one in reports),
            "coord_fault_tolerance": min((one.fault_tolerance for one in reports), default=0),
            "coord_lag": max((lag for one in reports for _, lag in one.lags), default=0),
            "coord_committed_total": sum(one.commit_lsn for one in reports),
            "coord_repaired_total": sum(one.repaired for one in reports),
            "coord_sessions": sum(one.sessions for one in reports),
            "coord_waiting": sum(runner.waiting for runner in self.groups.values()),
            "coord_disk_full": sum(runner.is_disk_full for runner in self.groups.values()),
            "coord_connections": self.clients.connections,
            "coord_connections_accepted_total": self.clients.connections_total,
            "coord_nodes_connected": self.peers.connected,
            "coord_messages_sent_total": self.peers.sent_total,
            "coord_messages_received_total": self.peers.received_total,
            "coord_messages_dropped_total": self.peers.dropped_total,
        }


def _is_same(one: Envelope, other: Envelope) -> bool:
    return one.payload is other.payload and one[:-1] == other[:-1]
