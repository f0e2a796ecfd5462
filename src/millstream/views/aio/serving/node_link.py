"""Asks another node, over its HTTP port, for its part of an answer.

Invariants:
1. Unread data of an answer is bounded by the buffer of the connection; the other node makes no
   more than is read.
2. An interrupted answer and an unreachable node are `node_failed`. The error class says whether
   the node may have received the request. An error that the node answers keeps its code.

Elsewhere: the page on the other node (`gateway.aio.peers.part_pages`), merging
(`views.aio.serving.gathering`).
"""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import aiohttp
import msgspec

from millstream.errors import (
    MillstreamError,
    OutcomeUnknownError,
    RoutingError,
    UnavailableError,
    kind_of_http_status,
)
from millstream.views.aio.serving.gathering import NOBODY, NodeAccess

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

__all__ = [
    "ANSWER_BYTES_MAX",
    "CONNECTIONS_MAX",
    "CONNECT_S_MAX",
    "ERROR_BYTES_MAX",
    "NOBODY",
    "HttpNode",
    "HttpNodeLink",
    "NodeAccess",
    "new_session",
]

CONNECTIONS_MAX: Final = 1000
"""Most connections to all other nodes together. A feed, and a slowly read answer, hold one each.
"""
CONNECT_S_MAX: Final = 5.0
"""How long another node may take to accept a connection."""
ERROR_BYTES_MAX: Final = 64 * 1024
"""Most bytes of an error answer of another node."""
ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
"""Most bytes of an answer that is kept whole."""
_CHUNK_BYTES: Final = 64 * 1024
_ROUTING: Final = {
    "not_my_partition": "not_my_partition",
    "bucket_not_found": "not_my_partition",
    "buckets_unknown": "not_my_partition",
    "design_differs": "design_differs",
    "missing": "design_differs",
    "missing_named_view": "design_differs",
}
"""Error code of a node whose view of the map differs -> why the query is repeated."""


class _Refusal(msgspec.Struct):
    error: str = "node_failed"
    reason: str = ""
    records: dict[str, Any] = {}


def new_session() -> aiohttp.ClientSession:
    """Return what keeps the connections to other nodes; to be closed."""
    connector = aiohttp.TCPConnector(limit=CONNECTIONS_MAX)
    return aiohttp.ClientSession(connector=connector)


class HttpNode:
    """The pages of one other node, asked as nodes of a cluster ask each other.

    Args:
        session: of this process.
        name: of the node, for messages.
        host: name or number, IPv6 without brackets.
        port: of HTTP.
        access: how it is asked.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        name: str,
        host: str,
        port: int,
        access: NodeAccess,
    ) -> None:
        shown = f"[{host}]" if ":" in host else host
        self._base = f"{'https' if access.tls else 'http'}://{shown}:{port}"
        self._session, self._name, self._access = session, name, access
        self._headers = {"Content-Type": "application/json"}
        if access.password:
            credentials = b64encode(f"{access.user}:{access.password}".encode()).decode()
            self._headers["Authorization"] = f"Basic {credentials}"

    async def opened(
        self,
        method: str,
        path: str,
        content: Any = None,
        *,
        data: bytes | AsyncIterator[bytes] | None = None,
    ) -> aiohttp.ClientResponse:
        """Return an answer that has begun and is none of an error; to be closed.

        Args:
            method: of HTTP.
            path: and query, encoded.
            content: sent as JSON.
            data: sent as it is.

        Raises:
            OutcomeUnknownError: `node_failed`, it may have got the request, and does not answer.
            UnavailableError: `node_failed`, it cannot be reached.
            MillstreamError: what the node answers, or `data` raises.
        """
        headers = self._headers
        if data is not None:
            headers = {**headers, "Content-Type": "application/octet-stream"}
        try:
            response = await self._session.request(
                method,
                self._base + path,
                data=data if content is None else msgspec.json.encode(content),
                headers=headers,
                ssl=self._access.tls or True,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S_MAX),
            )
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise self.failed(f"cannot be reached: {error}") from error
        except (aiohttp.ClientError, TimeoutError) as error:
            raise self._broke_off(f"cannot be reached: {error}") from error
        if response.status != 200:
            async with response:
                raise await self._refusal(response)
        return response

    async def ask(
        self,
        method: str,
        path: str,
        content: Any = None,
        *,
        data: bytes | AsyncIterator[bytes] | None = None,
    ) -> bytes:
        """Return a whole answer; sends what `opened` does, and raises as it does.

        Raises:
            OutcomeUnknownError: `node_failed`: it breaks off, or sends more than
                `ANSWER_BYTES_MAX`.
        """
        pieces, size = list[bytes](), 0
        async with await self.opened(method, path, content, data=data) as response:
            try:
                async for piece in response.content.iter_chunked(_CHUNK_BYTES):
                    pieces.append(piece)
                    size += len(piece)
                    if size > ANSWER_BYTES_MAX:
                        response.close()
                        raise self._broke_off(f"sends more than {ANSWER_BYTES_MAX} bytes")
            except aiohttp.ClientError as error:
                raise self._broke_off(f"broke off its answer: {error}") from error
        return b"".join(pieces)

    async def _refusal(self, response: aiohttp.ClientResponse) -> MillstreamError:
        try:
            refusal = msgspec.json.decode(
                await response.content.read(ERROR_BYTES_MAX), type=_Refusal
            )
        except (aiohttp.ClientError, msgspec.DecodeError, UnicodeDecodeError):
            refusal = _Refusal(reason=f"HTTP status {response.status}")
        kind = kind_of_http_status(response.status)
        code = refusal.error
        if code in _ROUTING:
            kind, code = RoutingError, _ROUTING[code]
        error = kind(f"node {self._name}: {refusal.reason}", code=code)
        if isinstance(error, RoutingError):
            error.records = {int(p): one for p, one in refusal.records.items() if p.isdecimal()}
        return error

    def _broke_off(self, what: str) -> OutcomeUnknownError:
        """Return the error of a node that was asked, and may have done what it was asked for."""
        return OutcomeUnknownError(
            f"node {self._name} {what}", code="node_failed", retry="backoff"
        )

    def failed(self, what: str) -> UnavailableError:
        """Return the error of a node that does not answer as it should."""
        return UnavailableError(f"node {self._name} {what}", code="node_failed")


class HttpNodeLink(HttpNode):
    """One other node, asked for its parts of answers."""

    async def query(self, request: Mapping[str, Any]) -> HttpNodeStream:
        """Ask; see `views.aio.serving.gathering.NodeLink`."""
        path = f"/_millstream/buckets/{quote(request['bucket'], safe='')}/part"
        body = {name: value for name, value in request.items() if name != "bucket"}
        return HttpNodeStream(self, await self.opened("POST", path, body))


class HttpNodeStream:
    """What another node answers, as it arrives."""

    def __init__(self, link: HttpNode, response: aiohttp.ClientResponse) -> None:
        etag = response.headers.get("ETag", "").strip('"')
        self.head = {"etag": etag} if etag else {}
        self._link, self._response = link, response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the bytes.

        Raises:
            UnavailableError: `node_failed`, it was cut off.
        """
        try:
            async for chunk in self._response.content.iter_chunked(_CHUNK_BYTES):
                yield chunk
        except aiohttp.ClientError as error:
            raise self._link.failed(f"broke off its answer: {error}") from error

    async def close(self) -> None:
        """Want no more; a connection in the middle of an answer is closed."""
        self._response.close()
