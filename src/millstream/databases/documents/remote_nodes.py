"""Asks other nodes for documents that they have, and to change some.

Invariants:
1. A node that does not answer as it should, may not be reached, or takes too long, is
   `node_failed`. The error is an `OutcomeUnknownError` where the node may have done what it was
   asked for, and no such one where it has not.
2. What it refuses arrives as the error that it is there.
3. What is not read yet of the bytes of an attachment is bounded by the connection's buffer.

Elsewhere: the page that is asked (`gateway.aio.peers.stored_pages`), who asks
(`databases.documents.distributed_documents`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, Protocol, TypeVar
from urllib.parse import quote

import msgspec

from millstream.cluster.cluster_state import NodeAt
from millstream.cluster.peers import Neighbours
from millstream.errors import (
    AccessError,
    ConditionError,
    OutcomeUnknownError,
    RoutingError,
    UnavailableError,
    UsageError,
)
from millstream.gateway.core.api.stored import Asked, Refused, decode_answer, encode, error_of

__all__ = ["ANSWER_S_MAX", "BLOB_S_MAX", "DocumentNodes", "NodesAsked"]

ANSWER_S_MAX: Final = 30.0
"""How long another node may take to answer; a change may wait 10 s for copies there."""
BLOB_S_MAX: Final = 600.0
"""How long it may take to give an attachment to another node."""
_PIECE_BYTES: Final = 256 * 1024
_A = TypeVar("_A")


class NodesAsked(Protocol):
    """What `DocumentNodes` does, for whoever asks."""

    async def ask(self, node: NodeAt, bucket: str, asked: Asked, kind: type[_A]) -> _A:
        """Return what a node answers to a request.

        Raises:
            OutcomeUnknownError: `node_failed`: it may have done it.
            UnavailableError: `node_failed`: it has not.
            MillstreamError: why it refuses.
        """

    async def give_blob(
        self, node: NodeAt, bucket: str, sha256: bytes, pieces: AsyncIterator[bytes]
    ) -> None:
        """Have a node keep bytes of an attachment, durably; raises as `ask`, or as `pieces`."""

    def open_blob(
        self, node: NodeAt, bucket: str, sha256: bytes, begin: int, end: int
    ) -> AsyncGenerator[bytes, None]:
        """Return a range of bytes of an attachment; raises as `ask`."""


class DocumentNodes:
    """Has the shape of `NodesAsked`.

    Args:
        neighbours: through which nodes are asked.
    """

    def __init__(self, neighbours: Neighbours) -> None:
        self._neighbours = neighbours

    async def ask(self, node: NodeAt, bucket: str, asked: Asked, kind: type[_A]) -> _A:
        """Return what a node answers; see `NodesAsked`."""
        async with _asking(node, ANSWER_S_MAX):
            link = self._neighbours.node(node)
            data = await link.ask("POST", f"{_path(bucket)}/stored", data=encode(asked))
        try:
            answer = decode_answer(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise _unknown(node, f"answers what nobody asked: {error}") from error
        if isinstance(answer, Refused):
            raise error_of(answer)
        if not isinstance(answer, kind):
            raise _unknown(node, "answers what nobody asked")
        return answer

    async def give_blob(
        self, node: NodeAt, bucket: str, sha256: bytes, pieces: AsyncIterator[bytes]
    ) -> None:
        """Have a node keep bytes of an attachment; see `NodesAsked`."""
        path = f"{_path(bucket)}/blobs/{sha256.hex()}"
        async with _asking(node, BLOB_S_MAX):
            await self._neighbours.node(node).ask("PUT", path, data=pieces)

    async def open_blob(
        self, node: NodeAt, bucket: str, sha256: bytes, begin: int, end: int
    ) -> AsyncGenerator[bytes, None]:
        """Yield a range of bytes of an attachment; see `NodesAsked`."""
        from millstream.views.aio.serving.node_link import HttpNodeStream

        path = f"{_path(bucket)}/blobs/{sha256.hex()}?begin={begin}&end={end}"
        link, left = self._neighbours.node(node), end - begin
        async with _asking(node, ANSWER_S_MAX):
            answer = HttpNodeStream(link, await link.opened("GET", path))
        pieces = aiter(answer)
        try:
            while True:
                async with _asking(node, ANSWER_S_MAX):
                    piece = await anext(pieces, b"")
                if not piece:
                    break
                left -= len(piece)
                yield piece
        finally:
            await answer.close()
        if left:
            raise _unknown(node, "sent another number of bytes of an attachment than it has")


def _path(bucket: str) -> str:
    return f"/_millstream/buckets/{quote(bucket, safe='')}"


@asynccontextmanager
async def _asking(node: NodeAt, seconds: float) -> AsyncIterator[None]:
    """Say of whatever goes wrong what it means for who asked."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise _unknown(node, "did not answer in time") from error
    except (AccessError, ConditionError, RoutingError, UsageError) as error:
        raise UnavailableError(
            f"{node} is not to be asked: {error}", code="node_failed"
        ) from error
    except UnavailableError as error:
        if error.code == "internal_error":
            raise _unknown(node, f"failed: {error}") from error
        raise


def _unknown(node: NodeAt, what: str) -> OutcomeUnknownError:
    return OutcomeUnknownError(
        f"node {node} {what}: ask again", code="node_failed", retry="backoff"
    )
