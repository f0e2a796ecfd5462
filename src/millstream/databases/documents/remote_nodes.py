"""Requests to other nodes: read their documents, and change some.

Invariants:
1. A node that is unreachable, takes too long or gives an unexpected response is `node_failed`. The
   error is an `OutcomeUnknownError` only if the node may have done what was requested.
2. An error that a node answers is raised here as the same error.
3. Unread bytes of an attachment are bounded by the buffer of the connection.

Elsewhere: the requested page (`gateway.aio.peers.stored_pages`), the requesting side
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
from millstream.cluster.peers import ClusterPeers
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
"""How long the transfer of an attachment to another node may take."""
_PIECE_BYTES: Final = 256 * 1024
_A = TypeVar("_A")


class NodesAsked(Protocol):
    """Interface of `DocumentNodes`, for its users."""

    async def ask(self, node: NodeAt, bucket: str, asked: Asked, kind: type[_A]) -> _A:
        """Return the answer of a node to a request.

        Raises:
            OutcomeUnknownError: `node_failed`: it may have been done.
            UnavailableError: `node_failed`: it was not done.
            MillstreamError: why the node refuses.
        """

    async def give_blob(
        self, node: NodeAt, bucket: str, sha256: bytes, pieces: AsyncIterator[bytes]
    ) -> None:
        """Let a node store attachment bytes durably; raises as `ask`, or as `pieces`."""

    def open_blob(
        self, node: NodeAt, bucket: str, sha256: bytes, begin: int, end: int
    ) -> AsyncGenerator[bytes, None]:
        """Return a range of bytes of an attachment; raises as `ask`."""


class DocumentNodes:
    """Implements `NodesAsked`.

    Args:
        neighbours: sends requests to other nodes.
    """

    def __init__(self, neighbours: ClusterPeers) -> None:
        self._neighbours = neighbours

    async def ask(self, node: NodeAt, bucket: str, asked: Asked, kind: type[_A]) -> _A:
        """Return the answer of a node; see `NodesAsked`."""
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
        """Let a node store attachment bytes; see `NodesAsked`."""
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
    """Convert any failure of a request into the error that its caller expects."""
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
