"""Documents and statistics of a bucket whose partitions are active on several nodes.

Documents come by id: each node sends the documents of its partitions in order, and the streams are
merged.

Invariants:
1. A partition is read by one node at a time. If that node refuses or fails, the nodes that the map
   then names continue after the last received document. After all pauses without progress the
   scan fails.
2. At most one message per node is held, whatever the size of the answer.
3. Partitions of this node are not requested from other nodes.

Elsewhere: a node's own documents (`databases.scans.local_scan`), requests to other nodes
(`databases.remote_node`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from functools import partial
from typing import Final, NamedTuple, TypeVar

from millstream.cluster.cluster_state import NodeAt
from millstream.databases.routing import (
    HERE,
    Place,
    Router,
    ask_owners,
    is_elsewhere,
    may_continue,
    nowhere,
    pauses,
    together,
)
from millstream.databases.scans.local_scan import Range, scanned
from millstream.errors import MillstreamError, UnavailableError
from millstream.gateway.core.bucket_parts import Figures, WantedDocuments, WantedFigures
from millstream.kv.core.copies.active import check_served
from millstream.model.sides import side_of
from millstream.wire.frames import description_bytes, head_of

__all__ = ["DistributedScan", "FoundDocument", "scan_everywhere", "total_figures"]

_T = TypeVar("_T")

_LINEAGE_BYTES_AT: Final = 32
_LINEAGE_AT: Final = 34


class FoundDocument(NamedTuple):
    """A document with all its stored metadata."""

    key: bytes
    frame: bytes
    side: bytes


class _Lane:
    """Partitions that one node reads."""

    def __init__(
        self,
        numbers: Sequence[int],
        wanted: Range,
        documents: AsyncGenerator[FoundDocument, None],
        closing: AsyncExitStack,
        place: Place = None,
    ) -> None:
        self.numbers, self.wanted, self.place = numbers, wanted, place
        self._documents = documents
        closing.push_async_callback(documents.aclose)
        self.head: FoundDocument | None = None
        """The next document; None: there is none."""

    @property
    def is_over(self) -> bool:
        """Return whether there are no more documents."""
        return self.head is None

    async def advance(self) -> None:
        """Go to the next document."""
        if self.head is not None:
            self.wanted = self.wanted.behind(self.head.key)
        self.head = await anext(self._documents, None)
        if self.head is not None and not self.wanted.admits(self.head.key):
            raise UnavailableError("a node sends documents out of order", code="node_failed")


class DistributedScan:
    """All documents of one bucket.

    Args:
        router: of the bucket.
        now_ns: Unix time.
    """

    def __init__(self, router: Router, now_ns: Callable[[], int]) -> None:
        self._router, self._now_ns = router, now_ns

    async def documents(self, wanted: Range) -> AsyncGenerator[FoundDocument, None]:
        """Yield existing documents by id.

        Raises:
            MillstreamError: `not_my_partition`, `node_failed`: a partition cannot be read now.
        """
        numbers = range(self._router.bucket.partition_count)
        async with AsyncExitStack() as closing:
            lanes = await self._begun(numbers, wanted, closing)
            choose = max if wanted.descending else min
            while lanes:
                lane = choose(lanes, key=_next_key)
                assert lane.head is not None
                yield lane.head
                failure = await _failure_of(lane.advance())
                if failure is not None and not may_continue(failure, self._router, lane.place):
                    raise failure
                if failure is not None or lane.is_over:
                    lanes.remove(lane)
                if failure is not None:
                    lanes += await self._begun(lane.numbers, lane.wanted, closing)

    async def _begun(
        self, numbers: Sequence[int], wanted: Range, closing: AsyncExitStack
    ) -> list[_Lane]:
        """Return lanes at their first document, without empty ones."""
        left, found, waits = list(numbers), list[_Lane](), pauses(self._router.is_managed)
        while True:
            plan = self._router.plan(left)
            lanes = [
                _Lane(part, wanted, self._documents_of(node, part, wanted), closing)
                for node, part in plan.by_node.items()
            ]
            if plan.own:
                check_served(self._router.bucket, plan.own)
                lanes.append(_Lane(plan.own, wanted, self._own(plan.own, wanted), closing, HERE))
            failures = await together(_failure_of(lane.advance()) for lane in lanes)
            failure: MillstreamError | None = nowhere(plan.nowhere) if plan.nowhere else None
            left = list(plan.nowhere)
            for lane, failed in zip(lanes, failures, strict=True):
                if failed is not None:
                    failure = failed
                    left += lane.numbers
                elif lane.head is not None:
                    found.append(lane)
            if failure is None:
                return found
            pause = next(waits, None)
            if pause is None or not may_continue(failure, self._router):
                raise failure
            await asyncio.sleep(pause)

    async def _own(
        self, numbers: Sequence[int], wanted: Range
    ) -> AsyncGenerator[FoundDocument, None]:
        found = scanned(self._router.bucket, numbers, wanted, self._now_ns)
        async with aclosing(found):
            async for _, change in found:
                yield _cut(change)
        if len(self._router.plan(numbers).own) < len(numbers):
            raise nowhere(numbers)

    async def _documents_of(
        self, node: NodeAt, numbers: Sequence[int], wanted: Range
    ) -> AsyncGenerator[FoundDocument, None]:
        asked = WantedDocuments(self._router.uuid, list(numbers), *wanted)
        found = self._router.link_to(node).documents(asked)
        async with aclosing(found):
            async for change in found:
                yield _cut(change)


def _next_key(lane: _Lane) -> bytes:
    assert lane.head is not None
    return lane.head.key


async def _failure_of(call: Awaitable[None]) -> MillstreamError | None:
    try:
        await call
    except MillstreamError as error:
        return error
    return None


def _cut(change: bytes) -> FoundDocument:
    """Split a frame with metadata into its parts."""
    at = description_bytes(change)
    lineage_bytes = int.from_bytes(change[_LINEAGE_BYTES_AT:_LINEAGE_AT], "big")
    behind = _LINEAGE_AT + lineage_bytes
    frame = change[at:]
    return FoundDocument(
        head_of(frame).key, frame, side_of(change[_LINEAGE_AT:behind], change[behind:at])
    )


async def scan_everywhere(
    router: Router,
    wanted: Range,
    own: Callable[[Range], AsyncGenerator[tuple[bytes, _T | None], None]],
    made: Callable[[FoundDocument], _T | None],
    now_ns: Callable[[], int],
) -> AsyncGenerator[tuple[str, _T], None]:
    """Yield documents by id, each with its id; None is left out.

    Args:
        router: of the bucket.
        wanted: the range of ids.
        own: yields the documents of a range while all partitions are here.
        made: makes a document from what any node has stored of it.
        now_ns: Unix time.

    Raises:
        MillstreamError: `not_my_partition`, `node_failed`: a partition cannot be read now.
    """
    last: bytes | None = None
    if not router.is_shared or router.is_whole:
        try:
            async with aclosing(own(wanted)) as documents:
                async for key, one in documents:
                    last = key
                    if one is not None:
                        yield key.decode(), one
            return
        except MillstreamError as error:
            if not router.is_shared or not is_elsewhere(error, HERE):
                raise
    scan = DistributedScan(router, now_ns)
    async with aclosing(scan.documents(wanted._replace(after=last))) as found:
        async for each in found:
            one = made(each)
            if one is not None:
                yield each.key.decode(), one


async def total_figures(router: Router) -> Figures:
    """Return the sums over all nodes that have partitions of a bucket; raises as `ask_owners`."""
    return _sum(await ask_owners(router, partial(WantedFigures, router.uuid), Figures))


def _sum(found: Sequence[Figures]) -> Figures:
    return Figures(
        sum(one.live for one in found),
        sum(one.deleted for one in found),
        sum(one.purge_seqno for one in found),
        sum(one.file_bytes for one in found),
        sum(one.active_bytes for one in found),
        any(one.is_compacting for one in found),
    )
