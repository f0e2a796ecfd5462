"""Queries of buckets whose partitions are on several nodes, sent to any of them.

Invariants:
1. One version of the bucket's map decides which node is asked for which partition: the last one
   from the engine, in a managed cluster the index map. A partition without a node is an error.
2. The part that another node asks for is answered from the indexes here alone.
3. While an answer is merged, the index here whose functions merge it stays open.

Elsewhere: asking and merging (`views.aio.serving.gathering`), connections to other nodes
(`views.aio.serving.node_link`), the indexes here (`views.aio.serving.hosted_bucket`).
"""

from __future__ import annotations

from contextlib import AsyncExitStack, aclosing
from typing import TYPE_CHECKING, Any

from millstream.errors import RoutingError
from millstream.views.aio.serving.gathering import Gatherer, NodeAccess, NodeLink, NodePart
from millstream.views.aio.serving.index_server import Answer
from millstream.views.aio.serving.owned_parts import records_in, refused, shares_of, with_newer
from millstream.views.core.query.parameters import parse_query

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence

    import aiohttp

    from millstream.model.cluster_maps import IndexRecord
    from millstream.views.aio.serving.bucket_order import NodeShare
    from millstream.views.aio.serving.hosted_bucket import HostedBucket

__all__ = ["DistributedQueries"]


class DistributedQueries:
    """The other nodes, as the index process of this one asks them.

    Args:
        access: how they are asked.
    """

    def __init__(self, access: NodeAccess) -> None:
        self._access = access
        self._session: aiohttp.ClientSession | None = None
        self._learned: dict[str, dict[int, IndexRecord]] = {}
        """By uuid: index records that other nodes told, newer than those of the engine."""

    async def close(self) -> None:
        """End all connections."""
        if self._session is not None:
            await self._session.close()

    async def query(
        self,
        bucket: HostedBucket,
        name: str,
        view: str,
        options: dict[str, Any],
        *,
        is_in_step: bool = True,
    ) -> Answer:
        """Answer a query over all partitions of a bucket.

        Args:
            bucket: what is here of it.
            name: of the design document.
            view: of it.
            options: of the query.
            is_in_step: whether the indexes of this node may answer, in a managed cluster.

        Returns:
            The answer. In a managed cluster `is_here` in its head says whether this node has a
                part in it.

        Raises:
            MillstreamError: as `HostedBucket.query` and `Gatherer.query`.
        """
        async with AsyncExitStack() as stack:
            asked = stack.enter_context(bucket.asked_view(name, view))
            query = parse_query(options)
            query.check(asked.reduce >= 0, asked.encode)

            parts: Sequence[NodePart] = ()

            async def parts_of(refusal: RoutingError | None) -> Sequence[NodePart]:
                nonlocal parts
                if refusal is not None:
                    self._learn(bucket.uuid, records_in(refusal))
                parts = self._parts_of(bucket, is_in_step=is_in_step)
                return parts

            waits = is_in_step and bucket.order.owned is not None
            gatherer = Gatherer(bucket.name, parts_of, waits=waits)
            answered = await gatherer.query(name, view, query, asked)
            if bucket.order.owned is not None:
                answered.head["is_here"] = any(isinstance(part.link, _Here) for part in parts)
            if isinstance(answered.chunks, tuple):
                return Answer(answered.head, answered.chunks)
            rest = stack.pop_all()
        return Answer(answered.head, _held(answered.chunks, rest))

    def _learn(self, uuid: str, records: Mapping[int, IndexRecord]) -> None:
        known = self._learned.setdefault(uuid, {})
        for partition, record in records.items():
            if partition not in known or known[partition].at < record.at:
                known[partition] = record

    def _parts_of(self, bucket: HostedBucket, *, is_in_step: bool) -> list[NodePart]:
        owned = bucket.order.owned
        if owned is not None:
            owned, newer = with_newer(owned, self._learned.get(bucket.uuid, {}))
            self._learned[bucket.uuid] = newer
            return [
                NodePart(
                    share.name, self._link_to(bucket, share, is_in_step), share.partitions,
                    {p: owned.records[p].at for p in share.partitions if p in owned.records},
                )
                for share in shares_of(owned, bucket.order.partition_count)
            ]  # fmt: skip
        shares = bucket.order.nodes
        if sum(len(share.partitions) for share in shares) < bucket.order.partition_count:
            raise RoutingError("no node is said to have some of the partitions: ask again later")
        return [
            NodePart(share.name, self._link_to(bucket, share, True), share.partitions)
            for share in shares
        ]

    def _link_to(self, bucket: HostedBucket, share: NodeShare, is_in_step: bool) -> NodeLink:
        if share.is_here and is_in_step:
            return _Here(bucket)
        if share.is_here or not share.host:
            return _Nobody("this node is out of step" if share.is_here else "it is not known")
        # Imported once it is needed: it takes as long as everything else of the index process.
        from millstream.views.aio.serving.node_link import HttpNodeLink, new_session

        if self._session is None:
            self._session = new_session()
        return HttpNodeLink(self._session, share.name, share.host, share.http, self._access)


async def _held(
    chunks: AsyncGenerator[bytes, None], rest: AsyncExitStack
) -> AsyncGenerator[bytes, None]:
    """Yield an answer; what merges it stays open until it ends."""
    async with rest, aclosing(chunks):
        async for chunk in chunks:
            yield chunk


class _Nobody:
    """An owner that cannot be asked."""

    def __init__(self, why: str) -> None:
        self._why = why

    async def query(self, request: Mapping[str, Any]) -> _HereStream:
        """Refuse; see `views.aio.serving.gathering.NodeLink`."""
        raise refused(request["partitions"], self._why)


class _Here:
    """The indexes of this node, asked as those of others are."""

    def __init__(self, bucket: HostedBucket) -> None:
        self._bucket = bucket

    async def query(self, request: Mapping[str, Any]) -> _HereStream:
        """Ask; see `views.aio.serving.gathering.NodeLink`."""
        return _HereStream(
            await self._bucket.query(
                request["design"],
                request["view"],
                request["options"],
                request["partitions"],
                request["form"],
                request.get("keys"),
            )
        )


async def _chunks_of(
    body: AsyncGenerator[bytes, None] | tuple[bytes, ...],
) -> AsyncGenerator[bytes, None]:
    if isinstance(body, tuple):
        for chunk in body:
            yield chunk
        return
    async with aclosing(body):
        async for chunk in body:
            yield chunk


class _HereStream:
    """What the indexes of this node answer."""

    def __init__(self, answer: Answer) -> None:
        self.head = answer.head
        self._chunks = _chunks_of(answer.body)

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Return the bytes."""
        return self._chunks

    async def close(self) -> None:
        """Want no more."""
        await self._chunks.aclose()
