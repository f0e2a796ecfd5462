"""The changes of a node's buckets, for readers over HTTP.

Invariants:
1. When a bucket is no longer served, its readers end, whatever they wait for.
2. A bucket with a map is read as a whole, on all its nodes. A bucket without a map is on this
   node.

Elsewhere: the walks (`kv.aio.documents.changes`, `databases.scans.distributed_feeds`), the pages
(`gateway.aio.documents.changes_pages`).
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial

from millstream.cluster.cluster_state import NodeAt
from millstream.databases.purges import Purges
from millstream.databases.remote_node import RemoteNode
from millstream.databases.routing import HereNode, Router, together
from millstream.databases.scans.bucket_view import BucketView
from millstream.databases.scans.distributed_feeds import DistributedFeed
from millstream.errors import MillstreamError
from millstream.gateway.core.api.changes import DatabaseChanges
from millstream.gateway.core.api.stored import CountPurge, Done
from millstream.kv.aio.documents.changes import BucketChanges
from millstream.kv.aio.engine import BucketEngine
from millstream.kv.core.bucket import Bucket

__all__ = ["NodeChanges"]

_LOG = logging.getLogger(__name__)


class NodeChanges:
    """Implements `gateway.core.api.changes.ChangesApi`.

    Args:
        find: returns a served bucket by its name, or raises why there is none.
        here: returns this node for a bucket, given the name of the bucket.
        link_to: connects to another node for a bucket, given the name of the bucket.
        purges: counts them.
    """

    def __init__(
        self,
        find: Callable[[str], BucketEngine],
        here: Callable[[str], HereNode],
        link_to: Callable[[str, NodeAt], RemoteNode],
        purges: Purges,
    ) -> None:
        self._find, self._here, self._link_to, self._purges = find, here, link_to, purges
        self._of: dict[Bucket, BucketChanges] = {}

    def of(self, bucket: str) -> BucketChanges:
        """Return the changes of the partitions of one bucket that are here."""
        running = self._find(bucket)
        changes = self._of.get(running.bucket)
        if changes is None:
            changes = BucketChanges(running.bucket, lambda: running.purge_epoch)
            self._of[running.bucket] = changes
        return changes

    def router(self, bucket: str) -> Router:
        """Return the router of a bucket."""
        return self.router_of(self._find(bucket).bucket)

    def router_of(self, bucket: Bucket) -> Router:
        """Return the router of a bucket that is about to be served, or is served."""
        name = bucket.name
        return Router(bucket, self._here(name), partial(self._link_to, name))

    async def whole(self, bucket: str) -> DatabaseChanges:
        """Return the changes of a whole bucket; see `ChangesApi`."""
        own = self.of(bucket)
        router = self.router(bucket)
        if not router.is_shared:
            await own.known()
            return own
        purges = partial(self._purges.said, bucket)
        return DistributedFeed(own, router, await BucketView.look(router), purges)

    @asynccontextmanager
    async def purging(self, bucket: str) -> AsyncGenerator[None, None]:
        """Count a purge before and after it is made; see `ChangesApi`."""
        router = self.router(bucket)
        if not router.is_shared:
            running = self._find(bucket)
            await running.count_purge()
            try:
                yield
            finally:  # data cached meanwhile predates the purge
                await running.count_purge()
            return
        uuid = router.uuid
        owners = router.plan(range(router.bucket.partition_count)).by_node
        await self._purges.begin(bucket)
        try:
            await together(router.link_to(n).ask(CountPurge(uuid, False), Done) for n in owners)
            await self._told(router, set(router.others()) - owners.keys(), is_made=False)
            yield
        finally:
            await self._purges.end(bucket)
            await self._told(router, set(router.others()), is_made=True)

    async def _told(self, router: Router, nodes: set[NodeAt], *, is_made: bool) -> None:
        """Count the purge at other nodes too, as far as they answer."""

        async def tell(node: NodeAt) -> None:
            try:
                await router.link_to(node).ask(CountPurge(router.uuid, is_made), Done)
            except MillstreamError as error:
                _LOG.warning("node %s has not counted a purge: %s", node, error)

        await together(map(tell, nodes))

    def drop(self, bucket: Bucket) -> None:
        """A bucket is no longer served."""
        changes = self._of.pop(bucket, None)
        if changes is not None:
            changes.drop()
