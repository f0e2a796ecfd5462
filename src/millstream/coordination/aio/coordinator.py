"""The coordination of one node: its groups, the nodes it talks to, the clients it serves.

Layout: `node.toml` (who it is), one directory for each group, named after its id in hexadecimal.

Invariants:
1. A node's first start makes a group of one, `FIRST_GROUP`, unless it is to join others.
2. Whatever of the disk fails, of any group, `on_fatal` is told once: the process has to end.
3. A client's request is answered by the group of this node alone; nothing is passed on.

Elsewhere: a group (`aio.group_runner`), connections of nodes (`aio.peers`).
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from millstream.access.users import UserStore
from millstream.coordination.aio.group_runner import GroupRunner
from millstream.coordination.aio.node_file import Identity, begin_incarnation, keep
from millstream.coordination.aio.peers import Peers, Place
from millstream.coordination.core.entries import ID_BYTES
from millstream.coordination.core.journal import format_group, is_formatted
from millstream.coordination.core.messages import Envelope
from millstream.coordination.core.register import Registers
from millstream.coordination.core.standing import Standing, founded
from millstream.runtime.disk import OsDisk
from millstream.runtime.tasks import Tasks

__all__ = ["FIRST_GROUP", "Coordinator", "group_id_of"]

_LOG = logging.getLogger(__name__)
FIRST_GROUP: Final = 1
"""Number of the group that a node which joins nobody has from its first start."""


def group_id_of(number: int) -> bytes:
    """Return the id of a group from the number that people know it by."""
    return number.to_bytes(ID_BYTES, "big")


class Coordinator:
    """Made by `start`, ended by `stop`."""

    def __init__(
        self, directory: Path, identity: Identity, on_fatal: Callable[[BaseException], None]
    ) -> None:
        self.directory, self.identity = directory, identity
        self.node_id = identity.node_id
        self.peers = Peers(self.receive)
        self.groups: dict[bytes, GroupRunner] = {}
        self.places: dict[bytes, Place] = {}
        """Where other nodes are."""
        self._on_fatal = on_fatal
        self._has_failed = False
        self._tasks = Tasks(self._failed)
        self._cleanup = AsyncExitStack()

    @classmethod
    async def start(
        cls,
        directory: Path,
        *,
        peer: socket.socket | None = None,
        users: UserStore | None = None,
        secret: str = "",
        peer_tls: tuple[ssl.SSLContext, ssl.SSLContext] | None = None,
        joins: bool = False,
        on_fatal: Callable[[BaseException], None] = lambda _: None,
    ) -> Coordinator:
        """Bring up all groups whose files are there.

        Args:
            directory: of coordination, in the data directory.
            peer: bound socket for other nodes; None: closed.
            users: of the node, for log-ins.
            secret: with which nodes log in to each other.
            peer_tls: for being dialled, for dialling.
            joins: the node is to join others, and begins without a group.
            on_fatal: called when the node must stop.

        Raises:
            CorruptionError: `bad_node_file`, `promises_lost`.
            UnavailableError: `directory_unusable`, `disk_full`, `disk_failed`.
        """
        identity = await asyncio.to_thread(begin_incarnation, directory)
        async with AsyncExitStack() as stack:
            coordinator = cls(directory, identity, on_fatal)
            peers = coordinator.peers = Peers(
                coordinator.receive, users=users, secret=secret, tls=peer_tls
            )
            stack.push_async_callback(coordinator._close_groups)
            stack.push_async_callback(peers.close)
            if not identity.is_founded:
                await coordinator._found(joins=joins)
            await coordinator._open_groups()
            if peer is not None:
                await peers.listen(peer)
            coordinator._cleanup = stack.pop_all()
        return coordinator

    async def stop(self) -> None:
        """Close everything; what was acknowledged is durable anyway."""
        await self._cleanup.aclose()

    # ---- groups

    async def _found(self, *, joins: bool) -> None:
        if not joins:
            group_id = group_id_of(FIRST_GROUP)
            await self.format(founded(group_id, self.node_id, (self.node_id,)))
            _LOG.info("this node is a coordination group of its own, which tolerates no failure")
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
        groups, self.groups = self.groups, {}
        for runner in groups.values():
            await runner.close()

    def _failed(self, error: BaseException) -> None:
        if not self._has_failed:
            self._has_failed = True
            _LOG.critical("coordination of this node ends: %s", error)
            self._on_fatal(error)

    # ---- messages

    def _send(self, receiver: bytes, envelope: Envelope) -> None:
        if place := self.places.get(receiver):
            self.peers.send(place, envelope)

    def receive(self, envelope: Envelope) -> None:
        """Give a message to its group."""
        if runner := self.groups.get(envelope.group_id):
            runner.receive(envelope)
