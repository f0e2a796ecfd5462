"""The coordination of one node: its groups, its connections to other nodes, and its clients.

Layout: `node.toml` (the identity of the node) and `pool` (what it knows of others), each with a
copy, and the groups (`aio.groups`).

Invariants:
1. Any failure of the disk, of any group, calls `on_fatal` once: the process has to end.
2. No client or node is served before all groups have read their files, except groups that wait for
   disk space to be repaired.

Elsewhere: the knowledge and decisions of the node (`aio.pool_runner`), a group
(`aio.group_runner`), names of namespaces (`aio.namespaces`), connections of nodes (`aio.peers`)
and clients (`aio.resp_server`, `aio.ninep_server`), requests of clients (`aio.client_requests`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
import ssl
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from millstream.access.users import NODE_USER, UserStore
from millstream.coordination.aio.client.group_client import Client
from millstream.coordination.aio.client_requests import ClientRequests
from millstream.coordination.aio.groups import Groups
from millstream.coordination.aio.handshakes import Handshakes
from millstream.coordination.aio.namespaces import Namespaces
from millstream.coordination.aio.ninep_server import NinepServer
from millstream.coordination.aio.node_file import begin_incarnation, mark_incarnation
from millstream.coordination.aio.peers import Peers
from millstream.coordination.aio.pool_copies import mend_pool_file
from millstream.coordination.aio.pool_runner import PoolRunner
from millstream.coordination.aio.provider import PROVIDER_KEYS
from millstream.coordination.aio.resp_server import LOGIN_S_MAX, RespServer
from millstream.coordination.aio.shared_users import SharedUsers
from millstream.coordination.aio.user_guard import UserGuard
from millstream.coordination.core.namespace.state.run import Notice
from millstream.coordination.core.pool.effects import GroupChanged, Marked, NodeStart, Stray
from millstream.coordination.core.pool.messages import Address, decode_pool, is_pool_frame
from millstream.coordination.core.pool.pool import Pool
from millstream.errors import MillstreamError
from millstream.runtime.tasks import Tasks, in_thread
from millstream.vsr.core.effects import Refused, Timer
from millstream.vsr.core.messages import Envelope, decode, encode

if TYPE_CHECKING:
    from millstream.access.token_keys import TokenKeys

__all__ = ["BACKLOG", "HANDSHAKES_MAX", "MARK_S", "SHARING_S", "Coordinator", "Listening"]

_LOG = logging.getLogger(__name__)
BACKLOG: Final = 1024
"""Clients whose connections may wait to be taken."""
SHARING_S: Final = 5.0
"""How long the group is asked about users of the cluster."""
MARK_S: Final = 2.0
"""While its groups go on, a node tells others after each such time that its directory is newer: an
older copy of it that is not older than that is taken for it."""
HANDSHAKES_MAX: Final = 256
"""Most clients whose TLS handshake is under way: half of the descriptors that clients leave."""


class Listening(NamedTuple):
    """Where a node is reached: bound sockets, and what others are told of them."""

    coord: socket.socket | None = None
    """Listener for clients. None: closed."""
    peer: socket.socket | None = None
    """Listener for nodes. None: closed."""
    tls: ssl.SSLContext | None = None
    peer_tls: tuple[ssl.SSLContext, ssl.SSLContext] | None = None
    """TLS contexts for incoming and outgoing connections of nodes."""
    host: str = ""
    coord_port: int = 0
    peer_port: int = 0
    ninep: socket.socket | None = None
    """Listener for clients of the file service. None: closed. It needs `coord`."""
    tls_files: tuple[str, str, str] = ("", "", "")
    """Certificate, key and authority, as `CONFIG GET NODE` shows them."""


def _settings(directory: Path, listening: Listening) -> dict[bytes, bytes]:
    """Return what a node is started with, as text."""
    sockets = listening.coord, listening.peer, listening.ninep
    places = [Address(*each.getsockname()[:2]).text for each in sockets if each is not None]
    ports = [f"{port}" for port in (listening.coord_port, listening.peer_port) if port]
    certificate, key, authority = listening.tls_files
    said = {
        "NODE.LISTEN": " ".join(places),
        "NODE.ADVERTISE": " ".join([listening.host, *ports]),
        "NODE.DATA": str(directory.parent),
        "NODE.TLS.CERTIFICATE": certificate, "NODE.TLS.KEY": key, "NODE.TLS.CA": authority,
    }  # fmt: skip
    return {name.encode(): os.fsencode(value) for name, value in said.items()}


class Coordinator:
    """Made by `start`, ended by `stop`."""

    def __init__(
        self,
        directory: Path,
        node_id: bytes,
        listening: Listening,
        users: UserStore,
        secret: str,
        on_fatal: Callable[[BaseException], None],
        on_progress: Callable[[], None] = lambda: None,
        tokens: TokenKeys | None = None,
    ) -> None:
        self.node_id = node_id
        self.peers = Peers(
            self._on_frame, self._greeting, users=users, secret=secret, tls=listening.peer_tls,
            on_refused=self._refused,
        )  # fmt: skip
        self.groups = Groups(
            directory, node_id, self._send, self._changed, self._failed, on_progress, self._notify
        )
        pool = Pool(random.SystemRandom().random)
        self.pool = PoolRunner(pool, directory, self.groups, self.peers, self._failed)
        self.namespaces = Namespaces(
            self.groups.running, self.pool, self.peers, asyncio.get_running_loop()
        )
        self.requests = ClientRequests(
            self.groups.running, self.pool, self.namespaces, _settings(directory, listening)
        )
        self._users, self._secret = users, secret
        self._guard = UserGuard(users, tokens, pool.board.setting)
        self.clients = RespServer(self.requests, self._guard)
        address = f"[{listening.host}]" if ":" in listening.host else listening.host
        self.files = NinepServer(
            f"{address}:{listening.coord_port}", self._guard,
            listening.peer_tls[1] if listening.peer_tls is not None else None,
        )  # fmt: skip
        self._guard.on_user_changed = self.drop_user
        self._listening = listening
        self._on_fatal = on_fatal
        self._has_failed = False
        self._encoded: tuple[Envelope, bytes] | None = None
        self._tasks = Tasks()
        self._cleanup = AsyncExitStack()

    @classmethod
    async def start(
        cls,
        directory: Path,
        listening: Listening = Listening(),  # noqa: B008 - a value that never changes
        *,
        users: UserStore | None = None,
        secret: str = "",
        join: tuple[Address, ...] = (),
        on_fatal: Callable[[BaseException], None] = lambda _: None,
        on_progress: Callable[[], None] = lambda: None,
        tokens: TokenKeys | None = None,
    ) -> Coordinator:
        """Bring up all groups of this node.

        Args:
            directory: of coordination, in the data directory.
            listening: for clients and other nodes.
            users: of the node, for log-ins.
            secret: with which nodes log in to each other.
            join: nodes of the pool that a new node is to join; else it begins with a group.
            on_fatal: called when the node must stop.
            on_progress: called in any thread when files of groups are read.
            tokens: what judges those of clients; None: they are not taken.

        Raises:
            CorruptionError: `bad_node_file`, `bad_pool_file`, `promises_lost`.
            UnavailableError: `directory_unusable`, `disk_failed`.
        """
        node_id, incarnation, refusal = await in_thread(begin_incarnation, directory)
        async with AsyncExitStack() as stack:
            node = cls(
                directory, node_id, listening, users or UserStore(), secret, on_fatal,
                on_progress, tokens,
            )  # fmt: skip
            stack.push_async_callback(node.groups.close)
            stack.push_async_callback(node.peers.close)
            stack.push_async_callback(node.pool.close)
            stack.callback(node.namespaces.close)
            here = await in_thread(node.groups.here)
            content = await in_thread(mend_pool_file, directory)
            await node.pool.start(
                NodeStart(
                    content, node_id, incarnation, here,
                    Address(listening.host, listening.peer_port),
                    Address(listening.host, listening.coord_port), join, refusal,
                )
            )  # fmt: skip
            await in_thread(node.groups.remove_unknown, frozenset(node.pool.pool.hosted))
            await node._listen(stack)
            node._share_users(stack, has_begun=not join)
            await node._listen_for_files(stack)
            stack.push_async_callback(node._tasks.stop)
            node._tasks.start(node._mark(), name="marking that the node works")
            node._cleanup = stack.pop_all()
        return node

    async def _mark(self) -> None:
        """Let others know that the groups here have progressed.

        So they recognise older copies of this directory. Idle groups promise nothing new, and need
        no marks.
        """
        seen = None
        while True:
            await asyncio.sleep(MARK_S)
            now = [
                (group_id, one.replica.epoch, one.replica.view, one.replica.log.op_lsn)
                for group_id, one in self.groups.running.items()
            ]
            pool = self.pool.pool
            if now == seen or pool.incarnations.own_refusal or not pool.tables.others():
                continue
            try:
                incarnation = await in_thread(mark_incarnation, self.groups.directory)
            except (OSError, MillstreamError) as error:
                _LOG.warning("%s cannot be marked: %s", self.groups.directory, error)
                continue
            if incarnation is not None:
                self.pool.take(Marked(incarnation))
                seen = now

    async def stop(self) -> None:
        """Close everything; what was acknowledged is durable anyway."""
        await self._cleanup.aclose()

    async def _listen(self, stack: AsyncExitStack) -> None:
        if self._listening.peer is not None:
            await self.peers.listen(self._listening.peer)
            self.pool.take(Timer())  # what became of its groups it hears before they could vote
        if self._listening.coord is not None:
            stack.push_async_callback(self._guard.close)
            stack.callback(self.clients.close)
            make, tls = self.clients.connection, self._listening.tls
            if tls is not None:
                handshakes = Handshakes(
                    self._listening.coord, BACKLOG, make, tls,
                    timeout_s=LOGIN_S_MAX, most=HANDSHAKES_MAX,
                )  # fmt: skip
                stack.push_async_callback(handshakes.close)
                return
            server = await asyncio.get_running_loop().create_server(
                make, sock=self._listening.coord, backlog=BACKLOG
            )
            stack.callback(server.close)

    def _share_users(self, stack: AsyncExitStack, *, has_begun: bool) -> None:
        """Keep the users of this node and of the others the same, if both were reached."""
        host, port = self._listening.host, self._listening.coord_port
        if self._listening.coord is None or self._listening.peer is None or not host:
            return
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        user, tls = NODE_USER if self._secret else None, self._listening.peer_tls
        connect = partial(
            Client, [address], user=user, password=self._secret, deadline_s=SHARING_S,
            tls=tls[1] if tls is not None else None,
        )  # fmt: skip
        shared = SharedUsers(
            self._users, self.requests, connect, lambda: bool(self.pool.pool.tables.others()),
            self._guard.drop_soon, has_secret=bool(self._secret), has_begun=has_begun,
        )  # fmt: skip
        stack.push_async_callback(shared.close)
        self._guard.shared = shared
        shared.start()

    def token_settings(self) -> dict[str, str]:
        """Return what is set for all groups of whose tokens are taken, by the keys."""
        found = ((key, self.pool.pool.board.setting(key)) for key in PROVIDER_KEYS)
        return {key.decode(): value.decode() for key, value in found if value is not None}

    def user_changed(self, name: str) -> None:
        """Take note that another process of the node has changed a user."""
        if self._guard.shared is not None:
            self._guard.shared.changed_here(name)
        self.drop_user(name)

    async def _listen_for_files(self, stack: AsyncExitStack) -> None:
        """Serve files: in the clear on loopback, as those who mount want it; elsewhere by TLS."""
        if (listening := self._listening.ninep) is None:
            return
        stack.push_async_callback(self.files.close)
        is_near = ip_address(listening.getsockname()[0]).is_loopback
        server = await asyncio.get_running_loop().create_server(
            self.files.connection, sock=listening, backlog=BACKLOG,
            ssl=None if is_near else self._listening.tls,
        )  # fmt: skip
        stack.callback(server.close)

    def drop_user(self, name: str) -> None:
        """Close the connections of a user whose record changed."""
        self.clients.drop_user(name)
        self.peers.drop_user(name)

    def _failed(self, error: BaseException) -> None:
        if not self._has_failed:
            self._has_failed = True
            _LOG.critical("coordination stops on this node: %s", error)
            self._on_fatal(error)

    # ---- messages

    def _send(self, receiver: bytes, envelope: Envelope) -> None:
        """Try to deliver a message; a member says the same thing to several others."""
        if address := self.pool.pool.address_of(receiver):
            known = self._encoded
            if known is None or not _is_same(known[0], envelope):
                known = self._encoded = envelope, encode(envelope)
            self.pool.who[address] = receiver
            self.peers.send(address, known[1])

    def _refused(self, address: Address) -> None:
        """Tell the groups whose process has ended."""
        if (node_id := self.pool.who.get(address)) is not None:
            for runner in self.groups.running.values():
                runner.take(Refused(node_id))

    def _greeting(self, address: Address) -> bytes:
        return self.pool.greeting(address)

    def _notify(self, gid: int, notice: Notice) -> None:
        self.clients.notify(gid, notice)

    def _changed(self, change: GroupChanged) -> None:
        if change.leads and len(change.configuration.members) == 1:
            _LOG.warning(
                "coordination group %s has this node as its only member; "
                "add members with ADMIN GROUP ADD", change.group_id.hex(),
            )  # fmt: skip
        self.pool.take(change)

    def _on_frame(self, frame: bytes) -> None:
        if is_pool_frame(frame):
            said = decode_pool(frame)
            if not self.namespaces.hear(said):
                self.pool.hear(said)
            return
        envelope = decode(frame)
        if runner := self.groups.running.get(envelope.group_id):
            runner.receive(envelope)
        else:
            self.pool.take(Stray(envelope))

    # ---- figures

    def figures(self) -> dict[str, float]:
        """Return what the node's metrics show of it."""
        reports = [runner.replica.report() for runner in self.groups.running.values()]
        return {
            "coord_groups": len(reports),
            "coord_groups_leading": sum(one.role == "primary" for one in reports),
            "coord_groups_impaired": sum(one.is_impaired for one in reports),
            "coord_groups_stuck": (sum(one.is_stuck for one in reports) + len(self.pool.set_back)),
            "coord_nodes_refused": len(self.pool.pool.incarnations.refused)
            + bool(self.pool.pool.incarnations.own_refusal),
            "coord_groups_diverged": sum(one.is_diverged for one in reports),
            "coord_fault_tolerance": min(
                (one.fault_tolerance for one in reports if one.is_member), default=0
            ),
            "coord_lag": max((lag for one in reports for _, lag in one.lags), default=0),
            "coord_committed_total": sum(one.commit_lsn for one in reports),
            "coord_repaired_total": sum(one.repaired for one in reports),
            "coord_sessions": sum(one.sessions for one in reports),
            "coord_waiting": sum(runner.waiting for runner in self.groups.running.values()),
            "coord_disk_full": self.pool.is_disk_full
            + sum(runner.is_disk_full for runner in self.groups.running.values()),
            "coord_connections": self.clients.connections,
            "coord_connections_accepted_total": self.clients.connections_total,
            "coord_connections_cut_total": self.clients.cut_total,
            "coord_replies_waiting_bytes": self.clients.waiting_bytes,
            "coord_nodes_connected": self.peers.connected,
            "coord_messages_sent_total": self.peers.sent_total,
            "coord_messages_received_total": self.peers.received_total,
            "coord_messages_dropped_total": self.peers.dropped_total,
        }


def _is_same(one: Envelope, other: Envelope) -> bool:
    return one.payload is other.payload and one[:-1] == other[:-1]
