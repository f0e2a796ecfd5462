"""A node without data (`--roles index --join HOST:PORT`): it indexes the data of other nodes.

It joins a node by its HTTP port. From that node and the nodes that maps name it learns the
buckets, the nodes with active partitions, and the design documents. Its index process follows
those nodes over the network. Views are queried at its own HTTP port.

Layout: `followed/<bucket uuid>/learned.json` and `followed/<bucket uuid>/indexes/<signature>/`.

Invariants:
1. It has no documents: requests for them are refused, with the address of a node that has them.
2. The known state is stored in a file. After a restart it answers from its indexes even if no
   other node answers, and the indexes continue from their positions.
3. A bucket without a map belongs to the joined node; other nodes may have another bucket of that
   name.
4. A bucket is forgotten and its indexes are removed once all nodes answer and none lists it,
   served or not.

Elsewhere: the known state (`cluster.cluster_state`, `cluster.peers`), a node with data
(`node.engine`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import time
from collections.abc import Callable, Collection
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final, NoReturn

from millstream.access.users import NODE_USER, UserStore
from millstream.cluster.cluster_state import BucketState, NodeAt, learn
from millstream.cluster.cluster_state_files import FOLLOWED, find_learned, keep_learned
from millstream.cluster.peers import NODE_ASK_S, ClusterPeers
from millstream.data_directory.ownership import DataDirectory
from millstream.databases.design_reading import drop_designs, known_design
from millstream.errors import ConditionError, MillstreamError, UnavailableError
from millstream.gateway.aio.server import HttpServer
from millstream.gateway.core.api.cluster import ClusterApi
from millstream.gateway.core.api.node import BucketStatus, NodeMetrics
from millstream.kv.core.revisions.design_documents import StoredDesign
from millstream.node.followed_bucket import FollowedBucket
from millstream.node.indexes import Indexes
from millstream.node.listeners import (
    bind_all,
    bound_address,
    peer_tls_context,
    shown_addresses,
    tls_context,
)
from millstream.node.own_coordination import coordination_port
from millstream.node.processes.orders import IndexOrder
from millstream.node.run_directory import RunDirectory
from millstream.node.settings import Address, Settings, refuse_exposure
from millstream.node.token_order import keep_tokens
from millstream.runtime.metrics import LoopLag, processor_seconds, resident_bytes
from millstream.runtime.tasks import Tasks
from millstream.upr.aio.link import UNIX
from millstream.views.aio.serving.gathering import NodeAccess
from millstream.views.core.design.known_designs import KnownDesign

__all__ = ["IndexNode"]

_LOG = logging.getLogger(__name__)
_OPEN: Final = ("http",)


class IndexNode:
    """A running node without data; created by `start`, ended by `stop`."""

    def __init__(self, settings: Settings, directory: DataDirectory) -> None:
        assert settings.join is not None, "settings without data name a node to join"
        self.settings = settings
        self.uuid = directory.uuid
        self.engine = settings.engine, settings.engines
        self.users = UserStore(
            directory.users_path, node_secret=settings.cluster_secret, note=directory.inventory
        )
        self.cluster: ClusterApi | None = None
        self._join = NodeAt(settings.join.host, settings.join.port)
        self._path = directory.path / FOLLOWED
        self._run_directory = RunDirectory(directory.path)
        self.indexes = Indexes(
            IndexOrder(
                os.getpid(), str(self._path.absolute()), f"{UNIX}{self._run_directory.kv}",
                str(self._run_directory.index), settings.python_modules, settings.log_level,
                settings.log_json, settings.cluster_secret, settings.tls_cert, settings.tls_key,
                settings.tls_ca, settings.reduce_limit,
            ),
            lambda name: self._found(name).uuid,
        )  # fmt: skip
        self.designs = _FollowedDesigns(self._found)
        self._neighbours = ClusterPeers(
            NodeAccess(NODE_USER, settings.cluster_secret, peer_tls_context(settings)),
            lambda _: True,
            self._heard,
        )
        self._buckets: dict[str, FollowedBucket] = {}
        self._news = asyncio.Event()
        self._addresses: dict[str, Address] = {}
        self._tls = peer_tls_context(settings)
        self._shown_settings = settings.shown()
        self._lag = LoopLag()
        self._tasks = Tasks()
        self._started_ns = time.time_ns()
        self._cleanup = AsyncExitStack()

    @classmethod
    async def start(
        cls, settings: Settings, *, on_fatal: Callable[[Exception], None] = lambda _: None
    ) -> IndexNode:
        """Start a node; on return it answers, perhaps before it knows any bucket.

        Args:
            settings: of the node, without the role data.
            on_fatal: never called: indexes that are lost can be built again.

        Raises:
            UsageError, UnavailableError, CorruptionError, OSError: as `Engine.start`.
        """
        directory = await asyncio.to_thread(DataDirectory.open, Path(settings.data))
        async with AsyncExitStack() as stack:
            stack.callback(directory.close)
            node = cls(settings, directory)
            await node._bring_up(stack)
            node._cleanup = stack.pop_all()
        return node

    async def stop(self) -> None:
        """Close the listener, end the index process, stop cleanly."""
        await self._cleanup.aclose()

    async def _bring_up(self, stack: AsyncExitStack) -> None:
        settings = self.settings
        stack.callback(self._run_directory.close)
        refuse_exposure(settings, has_users=bool(settings.users) or not self.users.is_empty)
        tls = tls_context(settings)
        bound = bind_all(settings, _OPEN)
        for name, listening in bound.items():
            stack.callback(listening.close)
            self._addresses[name] = bound_address(getattr(settings, name), listening)
        await asyncio.to_thread(self.users.protect)
        for credential in settings.users:
            await asyncio.to_thread(self.users.ensure_admin, credential.name, credential.password)
        stack.callback(self._lag.stop)
        self._lag.start()
        stack.push_async_callback(self.indexes.stop)
        self.indexes.start()
        stack.push_async_callback(self._neighbours.stop)
        stack.push_async_callback(self._tasks.stop)
        for _, learned in await asyncio.to_thread(find_learned, self._path):
            self._begin(learned)
        self._watch()
        self._tasks.start(self._keep_learning(), name="learning of buckets")
        http = HttpServer(self, self.refusal, keep_tokens(settings, stack))
        stack.push_async_callback(http.stop)
        await http.start(bound["http"], tls)

    # -- buckets

    def _heard(self) -> None:
        self._news.set()

    async def _keep_learning(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            steps = [(self._learn, uuid) for uuid in self._neighbours.uuids()]
            steps += [(self._forget, u) for u in self._buckets if self._neighbours.is_gone(u)]
            for step, uuid in steps:
                try:
                    await step(uuid)
                except (MillstreamError, OSError) as error:
                    _LOG.error("the state of a bucket cannot be stored: %s", error)
                    self._news.set()
            self._watch()
            if self._news.is_set():
                await asyncio.sleep(NODE_ASK_S)

    async def _learn(self, uuid: str) -> None:
        told = [
            each
            for each in self._neighbours.told_of(uuid)
            if each.bucket.map is not None or each.node == self._join
        ]
        if not told:
            return
        known = self._buckets.get(uuid)
        before = known.learned if known is not None else None
        learned = learn(told, before)
        if learned == before:
            return
        await asyncio.to_thread(keep_learned, self._path / uuid, learned)
        if known is None:
            _LOG.info("bucket %s is indexed from now on", learned.name)
            self._begin(learned)
        else:
            known.take(learned)

    def _begin(self, learned: BucketState) -> None:
        bucket = self._buckets[learned.uuid] = FollowedBucket(learned, self._neighbours)
        self.indexes.bucket_up(bucket)

    async def _forget(self, uuid: str) -> None:
        bucket = self._buckets.pop(uuid)
        _LOG.info("bucket %s was deleted, and its indexes were removed", bucket.name)
        await self.indexes.bucket_gone(uuid)
        drop_designs(uuid)
        await asyncio.to_thread(shutil.rmtree, self._path / uuid, ignore_errors=True)

    def _watch(self) -> None:
        places = [place for bucket in self._buckets.values() for place in bucket.learned.places]
        self._neighbours.watch([self._join, *(place.node for place in places)])

    def _found(self, name: str) -> FollowedBucket:
        """Return a bucket.

        Raises:
            ConditionError: `bucket_not_found`.
            UnavailableError: `not_joined`, a node to ask has not answered yet.
        """
        same = [bucket for bucket in self._buckets.values() if bucket.name == name]
        if same:  # a bucket created anew is the one still reported
            return max(same, key=lambda one: bool(self._neighbours.told_of(one.uuid)))
        silent = self._neighbours.silent()
        if silent:
            node, why = next(iter(silent.items()))
            raise UnavailableError(
                f"no bucket {name!r} is known here, and node {node} does not answer: {why}",
                code="not_joined",
            )
        raise ConditionError(f"no bucket {name!r}", code="bucket_not_found")

    def refusal(self, bucket: str) -> MillstreamError:
        """Return why a page is not answered here, and where it is."""
        same = [one for one in self._buckets.values() if one.name == bucket]
        return _no_data((same[0].node_for() if same else None) or self._join)

    # -- the node as its pages see it

    @property
    def hosts(self) -> frozenset[str]:
        """Return the host names by which the node may be addressed."""
        names = {address.host for address in self._addresses.values() if not address.is_wildcard}
        names |= {self.settings.advertise} if self.settings.advertise is not None else set()
        return frozenset(map(str.lower, names))

    @property
    def origins(self) -> frozenset[str]:
        """Return the sites whose pages may use the node from a browser."""
        return frozenset(self.settings.cors_origins)

    def drop_user(self, name: str) -> None:
        """Do nothing: there is no kv port, so a user has no open connection here."""

    def addresses(self) -> dict[str, str | None]:
        """Return listener -> HOST:PORT, None for closed ones."""
        return shown_addresses(self._addresses)

    def bucket_statuses(self) -> list[BucketStatus]:
        """Return the indexed buckets, sorted by name."""
        return [
            BucketStatus(bucket.name, bucket.uuid, bucket.learned.partitions, "", "ready")
            for bucket in sorted(self._buckets.values(), key=lambda one: one.name)
        ]

    def check_buckets_known(self) -> None:
        """Do nothing: a node that indexes only shows what it indexes."""

    def replication_tasks(self) -> list[dict[str, Any]]:
        """Return nothing: a node without data has no replications."""
        return []

    def shown_settings(self) -> dict[str, Any]:
        """Return the settings that may be shown."""
        return dict(self._shown_settings)

    def coordination_port(self) -> tuple[str, Any]:
        """Return where the own coordination is; raises as `own_coordination.coordination_port`."""
        return coordination_port(self._addresses.get("coord")), self._tls

    def metrics(self, buckets: Collection[str] | None = None) -> NodeMetrics:
        """Return the node's statistics, of these buckets or all."""
        node = {
            "uptime_seconds": (time.time_ns() - self._started_ns) / 1e9,
            "loop_lag_ms": self._lag.last_ms,
            "loop_lag_worst_ms": self._lag.worst_ms,
            "processor_seconds_total": processor_seconds(),
            "resident_bytes": resident_bytes(),
            **self.indexes.node_figures(),
            "buckets_ready": float(len(self._buckets)),
        }
        figures = {
            bucket.name: self.indexes.figures(uuid)
            for uuid, bucket in self._buckets.items()
            if buckets is None or bucket.name in buckets
        }
        return NodeMetrics(
            node,
            {
                name: {f"index_{figure}": value for figure, value in each._asdict().items()}
                for name, each in figures.items()
            },
        )


class _FollowedDesigns:
    """Implements `gateway.core.api.node.DesignApi`, read only."""

    def __init__(self, find: Callable[[str], FollowedBucket]) -> None:
        self._find = find

    async def read(self, bucket: str, name: str) -> StoredDesign | None:
        """Return a document; None if there is none; raises as `FollowedBucket.design`."""
        return self._find(bucket).design(name)

    async def all(self, bucket: str) -> list[StoredDesign]:
        """Return them by name; raises as `FollowedBucket.designs`."""
        return self._find(bucket).designs()

    async def known(self, bucket: str, stored: StoredDesign) -> KnownDesign:
        """Return what a design document that is not deleted says."""
        return await known_design(self._find(bucket).uuid, stored)

    async def check(self, bucket: str, name: str, body: bytes) -> None:
        """Refuse: design documents are not changed here."""
        self._refuse(bucket)

    async def write(
        self, bucket: str, name: str, body: bytes | None, rev: str | None, *, is_durable: bool
    ) -> StoredDesign:
        """Refuse: design documents are not changed here."""
        self._refuse(bucket)

    def _refuse(self, bucket: str) -> NoReturn:
        found = self._find(bucket)
        raise _no_data(found.node_for())


def _no_data(node: NodeAt | None) -> UnavailableError:
    return UnavailableError(
        "this node only indexes and has no documents: ask "
        + (f"the node at {node}" if node is not None else "a node with data"),
        code="no_data_role",
        retry="never",
    )
