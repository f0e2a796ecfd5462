"""Copies the `_local` documents of partitions from other nodes of a bucket.

The owner of a partition sends each new version of a `_local` document to all other nodes. A node
that was away, or has joined since, lacks versions. It gets them at two moments:

- while its first copy of the partition is being built: the copy counts only once it has them;
- once its copy has become active, and after each start: before it first answers for them.

Invariants:
1. A copy that is being built has all versions that the owner had, and its settings of the
   database, before the cluster counts it.
2. A new owner asks each other node of the map once. A node that did not send all is asked for the
   rest, every `ASK_PAUSE_S` at most, and delays no request by more than `ASK_S_MAX`.
3. Nothing of one bucket comes into another one that has its name by now.

Elsewhere: the versions (`kv.aio.documents.local_store`), who sends new ones
(`databases.documents.local_node`), settings (`databases.documents.distributed_settings`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Collection
from typing import Final

from millstream.cluster.cluster_state import NodeAt
from millstream.databases.documents.local_documents import Documents
from millstream.databases.remote_node import NotServedError, RemoteNode
from millstream.databases.routing import LOCAL_PREFIX, Router
from millstream.errors import ConditionError, MillstreamError
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
"""Pause before a node that did not send all is asked again."""


class _Heard:
    """Whom the present copy of a partition has the documents of."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.nodes = set[NodeAt]()
        self.after: dict[NodeAt, str] = {}
        """The last id that came from a node that did not send all."""


class _Bucket:
    """What is known of one bucket."""

    def __init__(self) -> None:
        self.heard: dict[int, _Heard] = {}
        self.next_s: dict[NodeAt, float] = {}
        """When a node that did not send all may be asked again."""
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

        Raises:
            ConditionError: `bucket_not_found`: it was replaced by another one meanwhile.
        """
        router = self._route(bucket)
        known = self._buckets.setdefault(router.uuid, _Bucket())
        if not self._unheard(router, known, numbers):
            return
        async with known.turn:
            unheard = self._unheard(router, known, numbers)
            asking = (self._ask_quickly(bucket, router, known, *one) for one in unheard.items())
            await asyncio.gather(*asking)
        self._running(bucket, router)

    def _unheard(
        self, router: Router, known: _Bucket, numbers: Collection[int]
    ) -> dict[tuple[NodeAt, str], list[int]]:
        """Return what is to be asked now: partitions that are active here, by node and last id."""
        now_s = self._monotonic_s()
        others = [at for at in router.others() if now_s >= known.next_s.get(at, 0.0)]
        found: dict[tuple[NodeAt, str], list[int]] = {}
        for number in numbers if others else ():
            partition = router.bucket.partitions[number]
            if partition.state is not PartitionState.ACTIVE:
                continue
            heard = known.heard.get(number)
            if heard is None or heard.epoch != partition.epoch:
                heard = known.heard[number] = _Heard(partition.epoch)
            for at in others:
                if at not in heard.nodes:
                    found.setdefault((at, heard.after.get(at, "")), []).append(number)
        return found

    async def _ask_quickly(
        self,
        bucket: str,
        router: Router,
        known: _Bucket,
        asked: tuple[NodeAt, str],
        numbers: list[int],
    ) -> None:
        """Copy the documents of a node, as many as come in time."""
        (at, after), heard = asked, [known.heard[number] for number in numbers]
        try:
            async with asyncio.timeout(ASK_S_MAX):
                async for last in self._copied(bucket, router, router.link_to(at), numbers, after):
                    for one in heard:
                        one.after[at] = last
        except (MillstreamError, TimeoutError) as error:
            _LOG.info("bucket %s: node %s sends no local documents: %s", bucket, at, error)
            known.next_s[at] = self._monotonic_s() + ASK_PAUSE_S
        else:
            for one in heard:
                one.nodes.add(at)

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
                self._running(bucket, router)
                await self._own.keep_settings(bucket, settings)
                async for _ in self._copied(bucket, router, node, [number], ""):
                    pass
                known.copied[number] = epoch
        except MillstreamError as error:  # the next report tries again
            _LOG.info("bucket %s: no local documents of %d yet: %s", bucket, number, error)
        finally:
            known.copying.discard(number)

    # -- asking and answering

    def _running(self, bucket: str, router: Router) -> BucketEngine:
        """Return the engine of the bucket that a router is of.

        Raises:
            ConditionError: `bucket_not_found`: another bucket has its name by now.
        """
        running = self._engine(bucket)
        if running.bucket.uuid != router.uuid:
            raise ConditionError(f"bucket {bucket!r} is another one now", code="bucket_not_found")
        return running

    async def _copied(
        self, bucket: str, router: Router, node: RemoteNode, numbers: list[int], after: str
    ) -> AsyncIterator[str]:
        """Store the newer versions of what another node has; yield the last id of each portion.

        Args:
            bucket: its name.
            router: of the bucket.
            node: that has them.
            numbers: partitions.
            after: only documents with larger ids.

        Raises:
            MillstreamError: it did not send all.
        """
        is_last = False
        while not is_last:
            try:
                part = await node.ask(CopyLocals(router.uuid, numbers, after), LocalCopies)
            except NotServedError:  # it has no documents
                return
            store = self._running(bucket, router).local
            for doc_id, versions in part.copies:
                await store.keep(doc_id, [Version(*one) for one in versions])
            is_last = part.is_last or not part.copies
            if not is_last:
                after = part.copies[-1][0]
                yield after

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
