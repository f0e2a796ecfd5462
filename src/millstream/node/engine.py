"""The engine of a node: data directory, users, buckets and listeners, started and stopped as one.

Invariants:
1. Parts are started in one order and stopped in the reverse. A failed start releases everything.
2. No listener is opened that settings and users do not allow. A refused start creates no users.
3. The map's revision grows with every bucket created or deleted, also over restarts.

Elsewhere: its process (`node.engine_process`), the engine in a caller's process (`node.embedded`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import ssl
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, Final

from millstream.access.kv_login import Login
from millstream.access.users import NODE_USER, UserStore
from millstream.cluster.aio.local_engine import LocalEngine
from millstream.cluster.aio.membership import Membership
from millstream.cluster.cluster_state import NodeAt
from millstream.data_directory.map_file import PlacedMap
from millstream.data_directory.ownership import DataDirectory
from millstream.databases.bucket_table import BucketTable
from millstream.databases.buckets import Buckets
from millstream.databases.design_documents import Designs
from millstream.databases.design_functions import DesignFunctions
from millstream.databases.design_reading import drop_designs
from millstream.databases.documents.copied_locals import CopiedLocals
from millstream.databases.documents.distributed_documents import DistributedDocuments
from millstream.databases.documents.document_scan import DocumentScans
from millstream.databases.documents.local_documents import Documents
from millstream.databases.documents.local_node import LocalNode
from millstream.databases.jobs.coverage import Coverage
from millstream.databases.jobs.job_rows import JobRows
from millstream.databases.jobs.replications import OwnAddress, Replications
from millstream.databases.jobs.replicator import ReplicatorDocuments
from millstream.databases.managed_engine import ManagedEngine
from millstream.databases.purges import Purges
from millstream.databases.routing import HereNode
from millstream.databases.scans.feeds import NodeChanges
from millstream.errors import MillstreamError
from millstream.gateway.aio.databases.making import create_bucket
from millstream.gateway.aio.server import BACKLOG, HttpServer
from millstream.gateway.core.api.node import BucketStatus, NodeMetrics, PartitionStatus
from millstream.gateway.core.api.readers import LeaseShown, ReaderStatus
from millstream.kv.aio.engine import BucketEngine
from millstream.kv.aio.server import KvServer
from millstream.kv.core.bucket import Bucket
from millstream.kv.core.copies.copy_status import standing_of
from millstream.model.bucket_map import BucketMap, NodeAddress
from millstream.model.bucket_names import REPLICATOR
from millstream.model.limits import PARTITIONS_DEFAULT
from millstream.model.partitions import PartitionState
from millstream.model.standing import Standing
from millstream.node.cluster_member import ClusterMember, Parts
from millstream.node.document_streams import open_streams
from millstream.node.index_parts import IndexParts
from millstream.node.indexes import Indexes
from millstream.node.known_users import keep_users
from millstream.node.listeners import (
    BUILT,
    COORDINATION,
    bind_all,
    bound_address,
    peer_tls_context,
    shown_addresses,
    tls_context,
    trust_of,
)
from millstream.node.own_coordination import OwnCoordination, coordination_port
from millstream.node.peer_buckets import OtherNodes
from millstream.node.processes.orders import IndexOrder
from millstream.node.run_directory import RunDirectory
from millstream.node.settings import (
    Address,
    Settings,
    memory_quota_of,
    refuse_exposure,
)
from millstream.node.shown_statuses import partition_statuses, past_rollbacks, reader_statuses
from millstream.node.token_order import keep_tokens
from millstream.runtime.metrics import LoopLag, machine_bytes, processor_seconds, resident_bytes
from millstream.runtime.tasks import Tasks
from millstream.upr.aio.link import TIMEOUT_S, UNIX, Link
from millstream.version import __version__
from millstream.views.aio.serving.gathering import NodeAccess

__all__ = ["DEFAULT_BUCKET", "Engine"]

_LOG = logging.getLogger(__name__)
DEFAULT_BUCKET: Final = "default"
REPLICATOR_PARTITIONS: Final = 1
"""Number of partitions of the database of jobs."""
_HOUSEKEEPING_S: Final = 5.0


class Engine:
    """A running engine; created by `start`, ended by `stop`."""

    def __init__(self, settings: Settings, directory: DataDirectory) -> None:
        self.settings = settings
        self.uuid = directory.uuid
        self.engine = settings.engine, settings.engines
        self._own_secret = settings.cluster_secret or secrets.token_hex(32)
        self.users = UserStore(
            directory.users_path, node_secret=self._own_secret, note=directory.inventory
        )
        self._directory = directory
        self._on_fatal: Callable[[Exception], None] = lambda _: None
        self._run_directory = RunDirectory(directory.path)
        self.indexes = Indexes(
            IndexOrder(
                os.getpid(), str(directory.buckets_path.absolute()),
                f"{UNIX}{self._run_directory.kv}", str(self._run_directory.index),
                settings.python_modules, settings.log_level, settings.log_json,
                settings.cluster_secret, settings.tls_cert, settings.tls_key, settings.tls_ca,
                settings.reduce_limit,
            ),
            lambda name: self._served_engine(name).bucket.uuid,
            is_wanted="index" in settings.roles,
        )  # fmt: skip
        self.index_parts = IndexParts(self.uuid, directory.buckets_path, self.indexes)
        self.others = OtherNodes(
            NodeAccess(NODE_USER, settings.cluster_secret, peer_tls_context(settings)),
            self.indexes,
        )
        table = BucketTable(
            directory.buckets_path,
            flush_interval_ms=settings.flush_interval_ms,
            memory_quota_bytes=settings.memory_quota_bytes or memory_quota_of(machine_bytes()),
            on_persisted=self._persisted,
            on_fatal=self._bucket_failed,
            on_stopped=self._bucket_stopped,
            link_to=self._link_to,
            on_up=self._bucket_up,
        )
        self._buckets = Buckets(table, on_gone=self.others.bucket_gone)
        self.check_buckets_known = self._buckets.check_known
        self._kv = KvServer(
            self._buckets.served, self.users, open_streams, advertise=settings.advertised_host
        )
        self._kv.node_figures = self._figures
        self._plain_listener: asyncio.Server | None = None
        self.shared = self.others.shared(self.uuid, self._buckets, lambda: self._port("kv"))
        self.designs = Designs(self._buckets, self.indexes.check, self.others.own)
        self.functions = DesignFunctions(self.designs)
        purges = Purges(self._served_engine, time.monotonic)
        self.changes = NodeChanges(
            self._served_engine, lambda name: HereNode(name, self.stored), self.others.link_to,
            purges,
        )  # fmt: skip
        own = Documents(self._buckets, self.changes)
        self.documents = DistributedDocuments(self._buckets, own, self.changes)
        self.locals = CopiedLocals(self._served_engine, own, self.changes.router)
        self.stored = LocalNode(
            self._buckets, own, self.changes, purges, self.locals, time.time_ns
        )  # fmt: skip
        self.scan = DocumentScans(self.changes.router, time.time_ns)
        self.coverage = Coverage(self.documents, self.changes)
        self._jobs = ReplicatorDocuments(
            self.documents, self._job_rows, self._make_replicator, time.time_ns
        )  # fmt: skip
        self.replications = Replications(self._own_address, self._jobs, trust_of(settings))
        self.coordination = OwnCoordination(settings, directory, self._coordination_failed)
        self._addresses: dict[str, Address] = {}
        self.cluster = self._membership()
        self._lag = LoopLag()
        self._tasks = Tasks()
        self._started_ns = time.time_ns()
        self._cleanup = AsyncExitStack()

    @classmethod
    async def start(
        cls, settings: Settings, *, on_fatal: Callable[[Exception], None] = lambda _: None
    ) -> Engine:
        """Start a node; on return every listener answers.

        Args:
            settings: of the node.
            on_fatal: called when a bucket's disk failed: the node needs a restart.

        Raises:
            UsageError: settings that contradict each other, the users or the directory.
            UnavailableError: a busy port, a directory in use or unusable.
            CorruptionError: files of the node itself are damaged.
            OSError: the directory cannot be read or written.
        """
        directory = await asyncio.to_thread(DataDirectory.open, Path(settings.data))
        async with AsyncExitStack() as stack:
            stack.callback(directory.close)
            engine = cls(settings, directory)
            engine._on_fatal = on_fatal
            await engine._bring_up(stack)
            engine._cleanup = stack.pop_all()
        return engine

    async def stop(self) -> None:
        """Close the listeners, write all data, stop cleanly."""
        await self._cleanup.aclose()

    # -- buckets, for the pages and for embedding programs

    @property
    def served(self) -> dict[str, Bucket]:
        """Return the served buckets by name, without failed ones."""
        return self._buckets.served

    def bucket_statuses(self) -> list[BucketStatus]:
        """Return the status of all buckets, sorted by name."""
        return self._buckets.statuses()

    async def create_bucket(
        self, name: str, partitions: int, memory_quota_bytes: int | None = None
    ) -> BucketStatus:
        """Create a bucket durably; raises as `databases.buckets.Buckets.create`."""
        status = await self._buckets.create(name, partitions, memory_quota_bytes)
        self._raise_revision()
        return status

    async def delete_bucket(self, name: str) -> None:
        """Delete a bucket; raises as `databases.buckets.Buckets.delete`."""
        await self._buckets.delete(name, self._drop_bucket)
        self._raise_revision()

    def cluster_config(self, name: str | None) -> bytes | None:
        """Return the map for SDKs, of the nodes or of a bucket; None if that is not served."""
        bucket = self.served.get(name) if name is not None else None
        return None if name is not None and bucket is None else self._kv.config(bucket)

    def silent_nodes(self) -> set[str]:
        """Return the page addresses of nodes that do not answer, or that send no data."""
        silent = {str(node) for node in self.others.neighbours.silent()}
        for name, bucket in self.served.items():
            if bucket.map is not None:
                failed = self._buckets.running[name].replicator.failed_nodes()
                nodes = [one for one in bucket.map.nodes if one.name in failed]
                silent.update(str(NodeAt(one.host, one.http)) for one in nodes)
        return silent

    def bucket_map(self, name: str) -> tuple[BucketMap, str] | None:
        """Return a bucket's map; raises as `databases.buckets.Buckets.map_of`."""
        return self._buckets.maps.map_of(name)

    async def set_bucket_map(
        self, name: str, uuid: str, partitions: int, bucket_map: BucketMap, node_name: str
    ) -> None:
        """Give a bucket its map durably; raises as `databases.buckets.Buckets.set_map`."""
        placed = PlacedMap(bucket_map, node_name)
        await self._buckets.maps.set_map(name, uuid, partitions, placed)
        self._raise_revision()

    async def partition_statuses(self, name: str) -> list[PartitionStatus]:
        """Return a bucket's partition copies; raises as `databases.buckets.Buckets.copies`."""
        self._buckets.copies(name)
        return await partition_statuses(self._buckets.running[name])

    async def readers(self, name: str) -> list[ReaderStatus]:
        """Return who streams a bucket; raises as `databases.buckets.Buckets.copies`."""
        self._buckets.copies(name)
        return await reader_statuses(self._kv.streaming(name))

    def past_rollbacks(self, name: str) -> list[tuple[str, Mapping[str, int]]]:
        """Return the last rollbacks of readers that have gone, newest first; as `readers`."""
        self._buckets.copies(name)
        return past_rollbacks(self.served[name].streams)

    def leases(self, name: str) -> list[LeaseShown]:
        """Return the leases on a bucket; raises as `readers`."""
        self._buckets.copies(name)
        return [LeaseShown(*one) for one in self.served[name].leases.statuses()]

    async def set_partition_state(self, name: str, number: int, state: PartitionState) -> None:
        """Set the state of a copy durably; raises as `kv.aio.copies.Copies` does."""
        await self._buckets.copies_by_hand(name).set_state(number, state)

    async def take_over(self, name: str, number: int) -> None:
        """Take a partition over at the wish of an operator; raises as `copies_by_hand`, too."""
        self._buckets.copies_by_hand(name)
        await self.take_prepared(name, number)

    async def take_prepared(self, name: str, number: int) -> None:
        """Take a partition over; raises as `kv.aio.replicator.Replicator` does.

        The indexes of this node catch up first, so views neither lack rows nor wait for them.
        """
        replicator = self._buckets.replicator(name)
        with suppress(MillstreamError):  # views wait, or fail with the reason
            await self.indexes.prepare(name, number)
        try:
            await replicator.take_over(number)
        finally:
            with suppress(MillstreamError):  # the bucket is gone
                self.indexes.prepared(name, number)

    def standings(self, name: str) -> list[Standing]:
        """Return the standings of copies; raises as `databases.buckets.Buckets.copies`."""
        self._buckets.copies(name)
        return list(map(standing_of, self.served[name].partitions))

    async def promise(self, name: str, branch: int, numbers: Collection[int]) -> list[int]:
        """Let copies promise a branch; raises as `kv.aio.copies.Copies` does."""
        return await self._buckets.copies_by_hand(name).promise(numbers, branch)

    async def activate(self, name: str, branch: int, ends: Mapping[int, int]) -> list[int]:
        """Activate copies by their promises; raises as `kv.aio.copies.Copies` does."""
        return await self._buckets.copies_by_hand(name).activate(branch, ends)

    async def roll_back_partition(self, name: str, number: int, seqno: int) -> int:
        """Roll a copy back; raises as `kv.aio.copies.Copies` does."""
        return await self._buckets.copies_by_hand(name).roll_back(number, seqno)

    async def set_index_replicas(self, name: str, wanted: bool) -> None:
        """Set replica indexing; raises as `databases.buckets.Buckets.set_index_replicas`."""
        await self._buckets.set_index_replicas(name, wanted)

    async def until_persisted(self, bucket: str, partition_id: int, seqno: int) -> None:
        """Return once all changes of a partition up to `seqno` are durable."""
        await self._buckets.running[bucket].until_persisted(partition_id, seqno)

    # -- the node as its pages see it

    @property
    def hosts(self) -> frozenset[str]:
        """Return the host names by which the node may be addressed."""
        names = {address.host for address in self._addresses.values() if not address.is_wildcard}
        return frozenset(name.lower() for name in {*names, self.settings.advertised_host})

    @property
    def origins(self) -> frozenset[str]:
        """Return the sites whose pages may use the node from a browser."""
        return frozenset(self.settings.cors_origins)

    def drop_user(self, name: str) -> None:
        """Close the kv connections of a user whose rights changed.

        With the first user the memcached port closes, as it would have at the start.
        """
        self._kv.drop_user(name)
        listener = self._plain_listener
        if listener is not None and not self.users.is_empty and self._closed_to_strangers():
            self._plain_listener = None
            listener.close()
            self._kv.drop_plain()
            self._addresses.pop("memcached", None)

    def addresses(self) -> dict[str, str | None]:
        """Return listener -> HOST:PORT, None for closed ones."""
        return shown_addresses(self._addresses)

    def metrics(self, buckets: Collection[str] | None = None) -> NodeMetrics:
        """Return the engine's statistics, of these buckets or all."""
        wanted = self.served.items()
        found = {n: b.published.read() for n, b in wanted if buckets is None or n in buckets}
        return NodeMetrics(self._figures(), found)

    def shown_settings(self) -> dict[str, Any]:
        """Return the settings that may be shown."""
        return self.settings.shown()

    def coordination_port(self) -> tuple[str, Any]:
        """Return where the own coordination is; raises as `own_coordination.coordination_port`."""
        return coordination_port(self._addresses.get("coord")), peer_tls_context(self.settings)

    def replication_tasks(self) -> list[dict[str, Any]]:
        """Return the replications that run."""
        return self.replications.tasks()

    def _figures(self) -> dict[str, float]:
        statuses = self.bucket_statuses()
        return {
            "uptime_seconds": (time.time_ns() - self._started_ns) / 1e9,
            "loop_lag_ms": self._lag.last_ms,
            "loop_lag_worst_ms": self._lag.worst_ms,
            "processor_seconds_total": processor_seconds(),
            "resident_bytes": resident_bytes(),
            "kv_connections": len(self._kv.connections),
            "kv_connections_accepted_total": self._kv.connection_total,
            "kv_connections_cut_total": self._kv.guests.cut_total,
            "kv_held_bytes": self._kv.guests.held_bytes,
            **self.indexes.node_figures(),
            **self.replications.metrics(),
            **self.coordination.figures(),
            "buckets_ready": sum(status.state == "ready" for status in statuses),
            "buckets_failed": sum(status.state == "failed" for status in statuses),
        }

    # -- start and stop

    async def _bring_up(self, stack: AsyncExitStack) -> None:
        settings = self.settings
        stack.callback(self._run_directory.close)
        refuse_exposure(settings, has_users=bool(settings.users) or not self.users.is_empty)
        tls = tls_context(settings)
        coordinates = "coord" in settings.roles
        if settings.coord is None and settings.ninep is not None:
            _LOG.info("--ninep stays closed: it needs --coord")
        closed: tuple[str, ...] = () if coordinates else COORDINATION
        closed = ("ninep",) if coordinates and settings.coord is None else closed
        if settings.users or not self.users.is_empty:
            closed = (*closed, *self._closed_to_strangers())
        bound = bind_all(settings, (name for name in BUILT if name not in closed))
        for name, listening in bound.items():
            stack.callback(listening.close)
            self._addresses[name] = bound_address(getattr(settings, name), listening)
        await asyncio.to_thread(self.users.protect)
        for credential in settings.users:
            await asyncio.to_thread(self.users.ensure_admin, credential.name, credential.password)
        if self.users.is_empty:
            _LOG.info("this node has no users: every local process has all rights")
        stack.push_async_callback(self.coordination.stop)
        self.coordination.start(bound)
        stack.callback(self.functions.close)
        stack.push_async_callback(self._buckets.stop)
        stack.push_async_callback(self.documents.stop)
        stack.push_async_callback(self.others.stop)
        stack.push_async_callback(self.locals.stop)
        await self._open_buckets()
        self._raise_revision()
        stack.callback(self._lag.stop)
        self._lag.start()
        stack.push_async_callback(self._tasks.stop)
        self._tasks.start(self._keep_house(), name="housekeeping")
        self._tasks.start(keep_users(self.users, self.drop_user), name="users of the node")
        await self._listen(bound, tls, stack)
        await self.coordination.until_ready()
        stack.push_async_callback(self.cluster.stop)
        self.cluster.start()

    def _closed_to_strangers(self) -> tuple[str, ...]:
        """Return the listeners without log-in that a node with users keeps closed."""
        if self.settings.memcached is None:
            return ()
        if self.settings.memcached_is_asked:
            _LOG.warning(
                "--memcached %s: every local process can read and write the bucket 'default' "
                "there without log-in", self.settings.memcached,
            )  # fmt: skip
            return ()
        _LOG.info(
            "there are users: the memcached port, which has no log-in, stays closed; give "
            "--memcached HOST:PORT to open it nevertheless"
        )
        return ("memcached",)

    def _membership(self) -> Membership:
        parts = Parts(
            self.settings, self._directory, self.users, self._buckets, self.others.neighbours,
            self._addresses, peer_tls_context(self.settings), self._managed_engine,
            self.delete_bucket, self.coordination.join, self.coordination.found,
        )  # fmt: skip
        return Membership(ClusterMember(parts), __version__, self._directory.identity)

    def _managed_engine(self) -> LocalEngine:
        """Return the engine of a member of a cluster."""
        return ManagedEngine(
            self.uuid, self._buckets, self._directory.path,
            delete=self.delete_bucket, take_over=self.take_prepared, on_maps=self._raise_revision,
            index=self.index_parts, is_copied=self.locals.is_copied,
        )  # fmt: skip

    async def _open_buckets(self) -> None:
        await self._buckets.open_all()
        if self.cluster.is_managed or self.settings.engines > 1:
            return  # the cluster says which buckets there are
        wanted = self.settings.buckets
        for name, partitions in wanted:
            await self._buckets.ensure(name, partitions, PARTITIONS_DEFAULT)
        if not wanted and not self._buckets.statuses():
            await self._buckets.create(DEFAULT_BUCKET, PARTITIONS_DEFAULT)

    async def _listen(
        self, bound: dict[str, socket.socket], tls: ssl.SSLContext | None, stack: AsyncExitStack
    ) -> None:
        self._kv.kv_port = self._port("kv")
        self._kv.http_port = self._port("http")
        self._kv.coord_port = self._port("coord")
        stack.callback(self._kv.close)
        loop = asyncio.get_running_loop()
        protocols = {"kv": self._kv.kv_protocol, "memcached": self._kv.memcached_protocol}
        for name, protocol in protocols.items():
            if name in bound:
                listener = await loop.create_server(
                    protocol,
                    sock=bound[name],
                    ssl=tls if name == "kv" else None,
                    backlog=BACKLOG,
                )
                stack.callback(listener.close)
                if name == "memcached":
                    self._plain_listener = listener
        server = await loop.create_unix_server(
            self._kv.own_protocol, str(self._run_directory.kv), backlog=BACKLOG
        )
        stack.callback(server.close)
        stack.push_async_callback(self.indexes.stop)
        self.indexes.start()
        stack.push_async_callback(self.index_parts.stop)
        self.index_parts.start()
        if "http" in bound:
            self.users.failed_elsewhere = self.coordination.failed_logins
            tokens = keep_tokens(self.settings, stack, self._set_of_tokens)
            http = HttpServer(self, tokens=tokens, shares=self._kv.shares)
            stack.push_async_callback(http.stop)
            await http.start(bound["http"], tls)
        stack.push_async_callback(self.replications.stop)
        self.replications.start()

    def _set_of_tokens(self) -> Mapping[str, str]:
        """Return the token settings that apply to all nodes."""
        return self.coordination.token_settings

    def _own_address(self) -> OwnAddress:
        address = self._addresses.get("http")
        if address is None:
            return OwnAddress("", "")
        host = self.settings.advertised_host if address.is_wildcard else address.host
        scheme = "http" if self.settings.tls_cert is None else "https"
        secret = "" if self.users.is_empty else self._own_secret
        return OwnAddress(f"{scheme}://{Address(host, address.port)}", secret)

    def _port(self, name: str) -> int:
        return self._addresses[name].port if name in self._addresses else 0

    async def _keep_house(self) -> None:
        while True:
            await asyncio.sleep(_HOUSEKEEPING_S)
            if await self._buckets.try_again():
                self._raise_revision()
            for bucket in list(self.served.values()):
                bucket.leases.drop_expired()
                bucket.drop_ended_locks()
                bucket.age_queues(time.monotonic())
                await asyncio.sleep(0)  # a bucket of many partitions takes a millisecond

    def _link_to(self, node: NodeAddress, bucket: str) -> Link:
        """Return a link to another node with copies of a bucket, with this node's own security."""
        secret, tls = self.settings.cluster_secret, peer_tls_context(self.settings)
        login = Login(
            f"{node.host}:{node.kv}", NODE_USER if secret else None, secret, bucket,
            tls is not None, "millstream-node",
        )  # fmt: skip
        return Link(login, node.host, node.kv, tls=tls, timeout_s=TIMEOUT_S)

    # -- callbacks of the parts

    def _served_engine(self, name: str) -> BucketEngine:
        return self._buckets.engine(name)

    def _raise_revision(self) -> None:
        self._kv.map_revision = max(self._kv.map_revision + 1, time.time_ns() // 1_000_000)

    def _persisted(self) -> None:
        self._kv.on_persisted()

    def _bucket_up(self, running: BucketEngine, index_replicas: bool) -> None:
        self.others.bucket_up(running, index_replicas, self.changes.router_of(running.bucket))
        self._jobs.bucket_up(running.bucket.name)

    def _drop_bucket(self, bucket: Bucket) -> None:
        self._kv.drop_bucket(bucket)
        self.changes.drop(bucket)
        self.documents.drop(bucket)
        self.locals.drop(bucket)
        drop_designs(bucket.uuid)
        self._jobs.bucket_gone(bucket.name)

    def _job_rows(self) -> JobRows | None:
        running = self._buckets.running.get(REPLICATOR)
        if running is None or REPLICATOR not in self.served:
            return None
        return JobRows(running.bucket, running.copies)

    async def _make_replicator(self) -> None:
        if all(status.name != REPLICATOR for status in self.bucket_statuses()):
            await create_bucket(self, REPLICATOR, REPLICATOR_PARTITIONS)

    def _bucket_stopped(self, bucket: Bucket) -> None:
        self._drop_bucket(bucket)
        self._tasks.start(self.others.bucket_gone(bucket.uuid), name="bucket stopped")

    def _bucket_failed(self, name: str, error: Exception) -> None:
        _LOG.critical("bucket %s: its disk failed, the node must restart: %s", name, error)
        self._drop_bucket(self._buckets.running[name].bucket)
        self._on_fatal(error)

    def _coordination_failed(self, error: Exception) -> None:
        _LOG.critical("coordination: its disk failed, the node must restart")
        self._on_fatal(error)
