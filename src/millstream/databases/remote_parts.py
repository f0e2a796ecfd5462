"""Requests another node's partitions of a bucket over its HTTP port.

Invariants:
1. Unread data of a stream is bounded by the buffer of the connection.
2. A node that hangs, disconnects or sends an unexpected response is `node_failed`. An error that
   it answers keeps its code.

Elsewhere: the pages (`gateway.aio.peers.bucket_part_pages`), what uses the answers
(`databases.scans.distributed_feeds`, `databases.scans.distributed_scans`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Final, Protocol, TypeVar
from urllib.parse import quote

import msgspec

from millstream.cluster.cluster_state import NodeAt
from millstream.errors import (
    MillstreamError,
    RemoteProtocolError,
    RoutingError,
    UnavailableError,
)
from millstream.gateway.core.bucket_parts import (
    Changed,
    Ended,
    Failed,
    Figures,
    Found,
    Histories,
    PartCutter,
    PartMessage,
    Reached,
    ReceivedChanges,
    ReceivedPiece,
    WantedChanges,
    WantedDocuments,
    WantedHistories,
    WantedPart,
    bad_part,
    is_change,
)
from millstream.model.position import Position
from millstream.views.aio.serving.gathering import NODE_CHUNK_S_MAX
from millstream.views.aio.serving.node_link import HttpNode, HttpNodeStream

__all__ = ["ANSWER_S_MAX", "HttpPartLink", "PartLink"]

ANSWER_S_MAX: Final = 30.0
"""How long a node may take to begin an answer, in addition to its requested wait."""
_MOVED: Final = ("not_my_partition", "bucket_not_found")
_Answer = TypeVar("_Answer", Histories, Figures)


class PartLink(Protocol):
    """A link to one other node for its partitions of one bucket.

    Every call may raise `RoutingError` (`not_my_partition`), `UnavailableError` (`node_failed`),
    and the errors that the node answers.
    """

    async def histories(self, wanted: WantedHistories) -> Histories:
        """Return the state of partitions."""

    def changes(
        self, wanted: WantedChanges
    ) -> AsyncGenerator[ReceivedPiece | dict[int, Position], None]:
        """Yield changes, then the reader's position after them."""

    def documents(self, wanted: WantedDocuments) -> AsyncGenerator[bytes, None]:
        """Yield documents by id, with their metadata."""

    async def figures(self, wanted: WantedPart) -> Figures:
        """Return the statistics of partitions."""

    async def count_purge(self, uuid: str, *, is_made: bool) -> None:
        """Let the node count a purge that is about to be made, or was made."""


class HttpPartLink:
    """Implements `PartLink`.

    Args:
        bucket: its name.
        at: address of the node.
        node: returns the node's pages.
    """

    def __init__(self, bucket: str, at: NodeAt, node: Callable[[NodeAt], HttpNode]) -> None:
        self._path = f"/_millstream/buckets/{quote(bucket, safe='')}/parts/"
        self._at, self._node = at, node

    async def histories(self, wanted: WantedHistories) -> Histories:
        """Return the state of partitions."""
        found = await self._asked("histories", wanted, Histories, wanted.wait_s)
        numbers = [one.partition for one in found.partitions]
        if numbers != wanted.partitions or not all(one.log for one in found.partitions):
            raise self._failed("speaks of other partitions")
        return found

    async def figures(self, wanted: WantedPart) -> Figures:
        """Return the statistics of partitions."""
        return await self._asked("figures", wanted, Figures)

    async def count_purge(self, uuid: str, *, is_made: bool) -> None:
        """Let the node count a purge."""
        await self._text("purges", {"uuid": uuid, "is_made": is_made})

    async def changes(
        self, wanted: WantedChanges
    ) -> AsyncGenerator[ReceivedPiece | dict[int, Position], None]:
        """Yield changes; see `PartLink`."""
        received = ReceivedChanges(dict(zip(wanted.partitions, wanted.positions, strict=True)))
        try:
            async with aclosing(self._messages("changes", wanted)) as messages:
                async for message in messages:
                    if isinstance(message, Changed):
                        yield received.piece(message)
                    elif isinstance(message, Reached):
                        yield received.positions(message)
                        return
                    else:
                        raise self._ended(message)
        except RemoteProtocolError as error:
            raise self._failed(str(error)) from error
        raise self._failed("broke off its answer")

    async def documents(self, wanted: WantedDocuments) -> AsyncGenerator[bytes, None]:
        """Yield documents by id; see `PartLink`."""
        async with aclosing(self._messages("documents", wanted)) as messages:
            async for message in messages:
                if isinstance(message, Ended):
                    return
                if not isinstance(message, Found):
                    raise self._ended(message)
                for change in message.changes:
                    if not is_change(change):
                        raise self._failed(str(bad_part("no document")))
                    yield change
        raise self._failed("broke off its answer")

    async def _messages(
        self, page: str, wanted: msgspec.Struct
    ) -> AsyncGenerator[PartMessage, None]:
        node = self._node(self._at)
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                response = await node.opened("POST", self._path + page, wanted)
        except TimeoutError as error:
            raise self._failed("did not answer in time") from error
        except MillstreamError as error:
            raise self._refused(error) from error
        stream, cutter = HttpNodeStream(node, response), PartCutter()
        try:
            chunks = aiter(stream)
            while (chunk := await self._chunk(chunks)) is not None:
                for message in cutter.receive(chunk):
                    yield message
        except RemoteProtocolError as error:
            raise self._failed(str(error)) from error
        finally:
            await stream.close()

    async def _chunk(self, chunks: AsyncIterator[bytes]) -> bytes | None:
        try:
            async with asyncio.timeout(NODE_CHUNK_S_MAX):
                return await anext(chunks, None)
        except TimeoutError as error:
            raise self._failed(f"sent nothing for {NODE_CHUNK_S_MAX:.0f} s") from error

    async def _asked(
        self, page: str, wanted: msgspec.Struct, form: type[_Answer], wait_s: float = 0.0
    ) -> _Answer:
        text = await self._text(page, wanted, wait_s)
        try:
            return msgspec.json.decode(text, type=form)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise self._failed(f"answers what nobody asked: {error}") from error

    async def _text(self, page: str, content: object, wait_s: float = 0.0) -> bytes:
        try:
            async with asyncio.timeout(ANSWER_S_MAX + wait_s):
                return await self._node(self._at).ask("POST", self._path + page, content)
        except TimeoutError as error:
            raise self._failed("did not answer in time") from error
        except MillstreamError as error:
            raise self._refused(error) from error

    def _refused(self, error: MillstreamError) -> MillstreamError:
        """Return the error for an error response; our own requests are always valid."""
        if isinstance(error, RoutingError | UnavailableError):
            return error
        return self._failed(f"refuses what nodes of this version ask: {error}")

    def _ended(self, message: PartMessage) -> MillstreamError:
        if not isinstance(message, Failed):
            return self._failed("answers what nobody asked")
        if message.code in _MOVED:
            return RoutingError(f"node {self._at}: {message.reason}", code="not_my_partition")
        return UnavailableError(f"node {self._at}: {message.reason}", code=message.code)

    def _failed(self, what: str) -> UnavailableError:
        return UnavailableError(f"node {self._at} {what}: ask again", code="node_failed")
