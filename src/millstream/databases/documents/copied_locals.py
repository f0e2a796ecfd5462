"""Copies the `_local` documents of partitions from other nodes of a bucket.

The owner of a partition sends each new version of a `_local` document to all other nodes. A node
that was away, or has joined since, lacks versions. It gets them at two moments:

- while its first copy of the partition is being built: the copy counts only once it has them;
- once its copy has become active, and after each start: before it first answers for them.

Invariants:
1. A copy that is being built has all versions that the owner had, and its settings of the
   database, before the cluster counts it.
2. A new owner asks each other node of the map once. Unreachable nodes are asked again every
   `ASK_PAUSE_S` at most, and delay no request by more than `ASK_S_MAX`.

Elsewhere: the versions (`kv.aio.documents.local_store`), who sends new ones
(`databases.documents.local_node`), settings (`databases.documents.distributed_settings`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from typing import Final

from millstream.cluster.cluster_state import NodeAt
from millstream.databases.documents.local_documents import Documents
from millstream.databases.remote_node import NotServedError, RemoteNode
from millstream.databases.routing import LOCAL_PREFIX, Router
from millstream.errors import MillstreamError, UsageError
from millstream.gateway.core.api.stored import (
    PORTION_BYTES,
    AskSettings,
    CopyLocals,
    KeepSettings,
    LocalCopies,
    LocalVersion,
)
from millstream.kv.aio.documents.local_store import Version
from millstream.kv.aio.engine import BucketEngine
from millstream.kv.core.bucket import Bucket
from millstream.model.partitions import PartitionState, partition_of
from millstream.runtime.tasks import Tasks, in_thread

__all__ = ["ASK_PAUSE_S", "ASK_S_MAX", "CopiedLocals"]

_LOG = logging.getLogger(__name__)
ASK_S_MAX: Final = 2.0
"""How long a request waits for the `_local` documents of other nodes."""
ASK_PAUSE_S: Final = 10.0
"""Pause before the nodes that did not answer are asked again."""


class _Heard:
    """Whom the present copy of a partition has the documents of."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.nodes = set[NodeAt]()
        self.next_s = 0.0


class _Bucket:
    """What is known of one bucket."""

    def __init__(self) -> None:
        self.heard: dict[int, _Heard] = {}
        self.copied: dict[int, int] = {}
        """Partition -> epoch of the copy for which the owner's documents were copied."""
        self.copying = set[int]()
        self.turn = asyncio.Lock()


class CopiedLocals:
    """The `_local` documents of a node's buckets; ended by `stop`.

    Args:
        engine: returns the engine of a bucket; raises if it is not served.
        own: the documents of this node.
        route: returns the router of a bucket.
        monotonic_s: clock.
    """

    def __init__(
        self,
        engine: Callable[[str], BucketEngine],
        own: Documents,
        route: Callable[[str], Router],
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine, self._own, self._route = engine, own, route
        self._monotonic_s = monotonic_s
        self._buckets: dict[str, _Bucket] = {}
        self._tasks = Tasks()

    async def stop(self) -> None:
        """End what goes on in the background."""
        await self._tasks.stop()

    def drop(self, bucket: Bucket) -> None:
        """A bucket is no longer served."""
        self._buckets.pop(bucket.uuid, None)

    # -- a new owner

    async def learn(self, bucket: str, numbers: Collection[int]) -> None:
        """Ask the nodes that were not asked yet, before this node answers for its partitions.

        Args:
            bucket: its name.
            numbers: partitions; those that are not active here are passed over.
        """
        router = self._route(bucket)
        known = self._buckets.setdefault(router.uuid, _Bucket())
        if not self._unheard(router, known, numbers):
            return
        async with known.turn:
            unheard = self._unheard(router, known, numbers)
            by_node: dict[NodeAt, list[int]] = {}
            for number, nodes in unheard.items():
                for node in nodes:
                    by_node.setdefault(node, []).append(number)
            asking = (self._ask_quickly(bucket, router, *one) for one in by_node.items())
            answered = await asyncio.gather(*asking)
            for number in unheard:
                known.heard[number].next_s = self._monotonic_s() + ASK_PAUSE_S
            for (node, asked), is_answered in zip(by_node.items(), answered, strict=True):
                for number in asked if is_answered else ():
                    known.heard[number].nodes.add(node)

    def _unheard(
        self, router: Router, known: _Bucket, numbers: Collection[int]
    ) -> dict[int, set[NodeAt]]:
        """Return the nodes to be asked now, by partition that is active here."""
        others, found = router.others(), dict[int, set[NodeAt]]()
        now_s = self._monotonic_s()
        for number in numbers if others else ():
            partition = router.bucket.partitions[number]
            if partition.state is not PartitionState.ACTIVE:
                continue
            heard = known.heard.get(number)
            if heard is None or heard.epoch != partition.epoch:
                heard = known.heard[number] = _Heard(partition.epoch)
            if not heard.nodes.issuperset(others) and now_s >= heard.next_s:
                found[number] = set(others) - heard.nodes
        return found

    async def _ask_quickly(
        self, bucket: str, router: Router, at: NodeAt, numbers: list[int]
    ) -> bool:
        """Copy the documents of a node; return whether it has sent all."""
        try:
            async with asyncio.timeout(ASK_S_MAX):
                await self._copy(bucket, router.link_to(at), router.uuid, numbers)
        except (MillstreamError, TimeoutError) as error:
            _LOG.info("bucket %s: node %s sends no local documents: %s", bucket, at, error)
            return False
        return True

    # -- a copy that is being built

    def is_copied(self, bucket: str, number: int) -> bool:
        """Return whether the owner's documents of a partition are here; if not, copy them."""
        router = self._route(bucket)
        known = self._buckets.setdefault(router.uuid, _Bucket())
        epoch = router.bucket.partitions[number].epoch
        if known.copied.get(number) == epoch:
            return True
        if number not in known.copying:
            known.copying.add(number)
            work = self._build(bucket, router, known, number, epoch)
            self._tasks.start(work, name=f"local documents of {bucket}/{number}")
        return False

    async def _build(
        self, bucket: str, router: Router, known: _Bucket, number: int, epoch: int
    ) -> None:
        try:
            for at in router.plan([number]).by_node:
                node = router.link_to(at)
                settings = (await node.ask(AskSettings(router.uuid), KeepSettings)).settings
                await self._own.keep_settings(bucket, settings)
                await self._copy(bucket, node, router.uuid, [number])
                known.copied[number] = epoch
        except MillstreamError as error:  # the next report tries again
            _LOG.info("bucket %s: no local documents of %d yet: %s", bucket, number, error)
        finally:
            known.copying.discard(number)

    # -- asking and answering

    async def _copy(self, bucket: str, node: RemoteNode, uuid: str, numbers: list[int]) -> None:
        """Store the newer versions of what another node has of partitions.

        Raises:
            MillstreamError: it did not send all.
        """
        after, is_last = "", False
        while not is_last:
            try:
                part = await node.ask(CopyLocals(uuid, numbers, after), LocalCopies)
            except NotServedError:  # it has no documents
                return
            except UsageError:  # it is of a version that cannot send them
                return
            store = self._engine(bucket).local
            for doc_id, versions in part.copies:
                await store.keep(doc_id, [Version(*one) for one in versions])
            is_last = part.is_last or not part.copies
            after = "" if is_last else part.copies[-1][0]

    async def stored(self, bucket: str, asked: CopyLocals) -> LocalCopies:
        """Answer another node with what is stored here."""
        await self.learn(bucket, asked.partitions)
        running, wanted = self._engine(bucket), frozenset(asked.partitions)
        count = running.bucket.partition_count
        found, is_last = await in_thread(
            running.local.stored, asked.after,
            lambda doc_id: partition_of((LOCAL_PREFIX + doc_id).encode(), count) in wanted,
            PORTION_BYTES,
        )  # fmt: skip
        copies = [(key, [LocalVersion(*one) for one in versions]) for key, versions in found]
        return LocalCopies(copies, is_last)
