"""Another node, asked about one bucket that both share, over its HTTP port.

Invariants:
1. A node that is unreachable, takes too long or gives an unexpected response is `node_failed`. The
   error is an `OutcomeUnknownError` if the node may have done what was requested.
2. An error that a node answers is raised here as the same error, except that a node which does not
   serve the bucket does not have its partitions: `not_my_partition`.
3. Unread data of a stream and of an attachment is bounded by the buffer of the connection.

Elsewhere: the page (`gateway.aio.peers.stored_pages`), the answers
(`databases.documents.local_node`), which node to ask (`databases.routing`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Final, TypeVar
from urllib.parse import quote

import msgspec

from millstream.cluster.cluster_state import NodeAt
from millstream.errors import (
    AccessError,
    ConditionError,
    MillstreamError,
    OutcomeUnknownError,
    RemoteProtocolError,
    RoutingError,
    UnavailableError,
    UsageError,
)
from millstream.gateway.core.api.stored import (
    Asked,
    Refused,
    Streamed,
    decode_answer,
    encode,
    error_of,
)
from millstream.gateway.core.bucket_parts import (
    Ended,
    Failed,
    Found,
    Histories,
    PartChanges,
    PartCutter,
    PartMessage,
    Reached,
    ReceivedChanges,
    ReceivedPiece,
    WantedChanges,
    WantedDocuments,
    WantedHistories,
    bad_part,
    is_change,
)
from millstream.model.position import Position
from millstream.views.aio.serving.gathering import NODE_CHUNK_S_MAX
from millstream.views.aio.serving.node_link import HttpNode, HttpNodeStream

__all__ = ["ANSWER_S_MAX", "BLOB_S_MAX", "NotServedError", "RemoteNode"]

ANSWER_S_MAX: Final = 30.0
"""How long another node may take to answer, in addition to its requested wait; a change may wait
10 s for copies there."""
BLOB_S_MAX: Final = 600.0
"""How long the transfer of an attachment to another node may take."""
_NOT_SERVED: Final = ("bucket_not_found", "buckets_unknown")
_A = TypeVar("_A")


class NotServedError(RoutingError):
    """The node does not serve the bucket now, so it has none of its partitions."""

    default_code = "not_my_partition"


class RemoteNode:
    """One other node, and one bucket.

    Every call may raise `NotServedError` (`not_my_partition`), `UnavailableError` (`node_failed`:
    it was not done), `OutcomeUnknownError` (`node_failed`: it may have been done), and the errors
    that the node answers.

    Args:
        bucket: its name.
        at: address of the node.
        http: the pages of the node.
    """

    def __init__(self, bucket: str, at: NodeAt, http: HttpNode) -> None:
        self._path = f"/_millstream/buckets/{quote(bucket, safe='')}"
        self.at, self._http = at, http

    async def ask(self, asked: Asked, kind: type[_A], wait_s: float = 0.0) -> _A:
        """Return the answer to a request that makes the node wait for at most `wait_s`."""
        async with self._asking(ANSWER_S_MAX + wait_s):
            data = await self._http.ask("POST", f"{self._path}/stored", data=encode(asked))
        try:
            answer = decode_answer(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise self._unknown(f"sent an unexpected response: {error}") from error
        if isinstance(answer, Refused):
            refusal = error_of(answer)
            if refusal.code in _NOT_SERVED:
                raise NotServedError(str(refusal))
            raise refusal
        if not isinstance(answer, kind):
            raise self._unknown("sent an unexpected response")
        return answer

    # -- attachments

    async def give_blob(self, sha256: bytes, pieces: AsyncIterator[bytes]) -> None:
        """Make the node store attachment bytes durably. Also raises what `pieces` raises."""
        async with self._asking(BLOB_S_MAX):
            await self._http.ask("PUT", f"{self._path}/blobs/{sha256.hex()}", data=pieces)

    async def open_blob(self, sha256: bytes, begin: int, end: int) -> AsyncGenerator[bytes, None]:
        """Yield a range of bytes of an attachment."""
        path, left = f"{self._path}/blobs/{sha256.hex()}?begin={begin}&end={end}", end - begin
        async with self._asking(ANSWER_S_MAX):
            answer = HttpNodeStream(self._http, await self._http.opened("GET", path))
        pieces = aiter(answer)
        try:
            while True:
                async with self._asking(ANSWER_S_MAX):
                    piece = await anext(pieces, b"")
                if not piece:
                    break
                left -= len(piece)
                yield piece
        finally:
            await answer.close()
        if left:
            raise self._unknown("sent another number of bytes of an attachment than it has")

    # -- partitions

    async def histories(self, wanted: WantedHistories) -> Histories:
        """Return the state of partitions."""
        found = await self.ask(wanted, Histories, wanted.wait_s)
        if [one.partition for one in found.partitions] != wanted.partitions:
            raise self._failed("sent the state of other partitions")
        if not all(one.log for one in found.partitions):
            raise self._failed("sent a partition without a history")
        return found

    async def changes(
        self, wanted: WantedChanges
    ) -> AsyncGenerator[ReceivedPiece | dict[int, Position], None]:
        """Yield changes, then the reader's position after them."""
        received = ReceivedChanges(dict(zip(wanted.partitions, wanted.positions, strict=True)))
        try:
            async with aclosing(self._messages(wanted)) as messages:
                async for message in messages:
                    if isinstance(message, PartChanges):
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
        """Yield documents by id, with their metadata."""
        async with aclosing(self._messages(wanted)) as messages:
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

    async def _messages(self, wanted: Streamed) -> AsyncGenerator[PartMessage, None]:
        async with self._asking(ANSWER_S_MAX):
            path = f"{self._path}/stored"
            response = await self._http.opened("POST", path, data=encode(wanted))
        stream, cutter = HttpNodeStream(self._http, response), PartCutter()
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

    def _ended(self, message: PartMessage) -> MillstreamError:
        if not isinstance(message, Failed):
            return self._failed("sent an unexpected response")
        text = f"node {self.at}: {message.reason}"
        if message.code in _NOT_SERVED:
            return NotServedError(text)
        return UnavailableError(text, code=message.code)

    # -- errors

    @asynccontextmanager
    async def _asking(self, seconds: float) -> AsyncIterator[None]:
        """Convert any failure of a request into the error that its caller expects."""
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError as error:
            raise self._unknown("did not answer in time") from error
        except (AccessError, ConditionError, RoutingError, UsageError) as error:
            raise UnavailableError(
                f"node {self.at} rejects requests of this node: {error}", code="node_failed"
            ) from error
        except UnavailableError as error:
            if error.code == "internal_error":
                raise self._unknown(f"failed: {error}") from error
            raise

    def _failed(self, what: str) -> UnavailableError:
        return UnavailableError(f"node {self.at} {what}: ask again", code="node_failed")

    def _unknown(self, what: str) -> OutcomeUnknownError:
        return OutcomeUnknownError(
            f"node {self.at} {what}: ask again", code="node_failed", retry="backoff"
        )
