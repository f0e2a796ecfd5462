"""The HTTP listener: the application, its limits, its start and stop.

Invariants:
1. A request's line, headers and body are bounded before a page sees it.
2. Also a request that is not HTTP is answered with a JSON error, or not at all.
3. A client that takes nothing of its answer for `UNREAD_SECONDS` is cut off, so that what the
   answer holds is let go.
4. Of strangers, and of connections above what the process has places for, those that have been
   idle longest are cut off (`runtime.guests`); the slowest stranger never keeps others out.

Elsewhere: pages (`*_pages`), what precedes them (`guard`).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import ssl
import time
from typing import Any, Final, cast

from aiohttp import web
from aiohttp.http import RawRequestMessage

from millstream.gateway.aio.answers import GUESTS, NODE_API, SHARES, SIGNER, TOKENS, answer
from millstream.gateway.aio.databases import (
    bucket_pages,
    coverage_pages,
    database_pages,
    database_updates_pages,
    design_pages,
    map_pages,
    partition_pages,
    promotion_pages,
    reader_pages,
    replication_pages,
)
from millstream.gateway.aio.documents import (
    attachment_pages,
    bulk_pages,
    changes_pages,
    document_pages,
    listing_pages,
    local_pages,
    purge_pages,
    update_pages,
)
from millstream.gateway.aio.guard import MIDDLEWARES, add_shared_headers
from millstream.gateway.aio.node import (
    administration_pages,
    cluster_pages,
    console_pages,
    coordination_pages,
    dataless_pages,
    node_pages,
    observing_pages,
    openapi_pages,
    pool_bucket_pages,
    pool_pages,
    pool_user_pages,
    security_pages,
    session_pages,
    support_pages,
    user_document_pages,
    user_pages,
)
from millstream.gateway.aio.node.dataless_pages import REFUSAL, Refusal
from millstream.gateway.aio.parsing import judge_apart
from millstream.gateway.aio.peers import order_pages, part_pages, shared_pages, stored_pages
from millstream.gateway.aio.queries import (
    index_pages,
    mango_index_pages,
    mango_pages,
    try_pages,
    view_pages,
)
from millstream.gateway.aio.room import ROOM, Room
from millstream.gateway.core.api.node import CommonNodeApi, NodeApi
from millstream.gateway.core.api.tokens import TokenApi
from millstream.gateway.core.cookies import CookieSigner
from millstream.gateway.core.errors import body_of_status
from millstream.runtime.guests import Guests
from millstream.runtime.long_calls import end_idle_ones
from millstream.runtime.shares import LoopShares

__all__ = [
    "BODY_BYTES_MAX",
    "DATALESS_PAGES",
    "HEADER_BYTES_MAX",
    "UNREAD_SECONDS",
    "HttpServer",
    "make_application",
]

_LOG = logging.getLogger(__name__)
BODY_BYTES_MAX: Final = 1024 * 1024
HEADER_BYTES_MAX: Final = 32 * 1024
"""Most bytes of the request line, and of each header: a token of a thousand partitions fits."""
IDLE_SECONDS: Final = 75.0
STOP_SECONDS: Final = 2.0
"""How long requests under way may take to end when the node stops."""
LINGER_SECONDS: Final = 1.0
"""How long the rest of a body is taken in after its request was refused."""
UNREAD_SECONDS: Final = 120
"""How long a client may leave an answer that was sent unread."""
BACKLOG: Final = 1024
_HANDLER: Final = {"auto_decompress": False}
"""Attachments are kept as they come, and a stream that breaks off is noticed (`answers`)."""
PAGES: Final = (
    node_pages, session_pages, console_pages, observing_pages, openapi_pages, coordination_pages,
    support_pages, security_pages, bucket_pages, map_pages, partition_pages, promotion_pages,
    reader_pages, user_pages, user_document_pages, pool_user_pages, shared_pages, stored_pages,
    part_pages, cluster_pages, order_pages,
    index_pages, view_pages, try_pages, update_pages, mango_index_pages, mango_pages,
    local_pages, bulk_pages, purge_pages,
    listing_pages, changes_pages, coverage_pages, document_pages, attachment_pages, design_pages,
    replication_pages, pool_bucket_pages, pool_pages, administration_pages, database_pages,
    database_updates_pages,
)  # fmt: skip


DATALESS_PAGES: Final = (
    node_pages, session_pages, console_pages, observing_pages, openapi_pages, coordination_pages,
    support_pages, security_pages, cluster_pages, user_pages, user_document_pages, part_pages,
    index_pages, view_pages, design_pages, dataless_pages,
)  # fmt: skip
"""The pages of a node without data: they need no more than a `CommonNodeApi`."""


def make_application(
    api: CommonNodeApi, refusal: Refusal | None = None, tokens: TokenApi | None = None
) -> web.Application:
    """Return the pages around a node.

    Args:
        api: a `NodeApi`; of a node without data a `CommonNodeApi`.
        refusal: how a node without data refuses what it has not.
        tokens: judges those that clients show; None: none are taken.
    """
    guards = (*MIDDLEWARES, replication_pages.guard_replicator)
    application = web.Application(
        middlewares=guards, client_max_size=BODY_BYTES_MAX, handler_args=_HANDLER
    )
    application[NODE_API] = cast("NodeApi", api)
    application[database_updates_pages.UPDATES] = database_updates_pages.NodeUpdates()
    application[ROOM] = Room()
    application[SIGNER] = CookieSigner(secrets.token_bytes(32), lambda: time.time_ns() // 10**9)
    application[TOKENS] = tokens
    application[console_pages.CONSOLE] = console_pages.Console()
    application[observing_pages.OBSERVER] = observing_pages.Observer(api)
    application[coordination_pages.COORDINATION] = coordination_pages.CoordinationSessions(api)
    application[try_pages.TRIES] = asyncio.Semaphore(try_pages.TRIES_MAX)
    application.on_response_prepare.append(add_shared_headers)
    if refusal is not None:
        application[REFUSAL] = refusal
    for pages in PAGES if refusal is None else DATALESS_PAGES:
        application.add_routes(pages.routes())
    return application


class _RequestHandler(web.RequestHandler):
    """Answers what no page sees in JSON; what is no HTTP request is logged in one line."""

    __slots__ = ("_guests", "_shares", "is_active")

    def __init__(
        self, guests: Guests, shares: LoopShares, *arguments: Any, **options: Any
    ) -> None:
        super().__init__(*arguments, **options)
        make_request = self._request_factory
        assert make_request is not None, "the server has pages"
        self._request_factory = lambda message, *rest: make_request(_with_spaces(message), *rest)
        self._guests, self._shares = guests, shares
        self.is_active = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin, unless there are too many already."""
        super().connection_made(transport)
        connection = transport.get_extra_info("socket")
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            connection.setsockopt(
                socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_SECONDS * 1000
            )
        manager = self._manager
        assert manager is not None, "the connection was made"
        if not self._guests.enter(self):
            self.force_close()

    def connection_lost(self, exc: BaseException | None) -> None:
        """The client is gone."""
        self._guests.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take what came."""
        self.is_active = True
        self._shares.share()
        super().data_received(data)

    @property
    def is_busy(self) -> bool:
        """Whether a request is being answered."""
        return self._current_request is not None

    def cut(self) -> None:
        """Close at once, whatever waits."""
        if self.transport is not None:
            self.transport.abort()

    def __str__(self) -> str:
        peer = self.transport.get_extra_info("peername") if self.transport is not None else None
        return f"HTTP {peer}"

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send an answer; what was refused before any page's guard saw it is told in JSON."""
        if isinstance(resp, web.HTTPException):
            resp = _refusal(resp.status)
        return await super().finish_response(request, resp, start_time)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Return the answer to a request that could not be read; the connection is closed."""
        _LOG.info("refused a request from %s: %s", request.remote, type(exc).__name__)
        if request.writer.output_size > 0:
            raise ConnectionError("an answer was begun already")
        response = _refusal(status)
        response.force_close()
        return response


def _with_spaces(message: RawRequestMessage) -> RawRequestMessage:
    """Return a request whose path means a space by `+`, as CouchDB reads it."""
    path, mark, query = message.path.partition("?")
    if "+" not in path:
        return message
    url = message.url.with_path(
        message.url.raw_path.replace("+", "%20"), encoded=True, keep_query=True
    )
    return message._replace(path=path.replace("+", "%20") + mark + query, url=url)


def _refusal(status: int) -> web.Response:
    return answer(body_of_status(status), status=status)


class HttpServer:
    """The listener of one node."""

    def __init__(
        self,
        api: CommonNodeApi,
        refusal: Refusal | None = None,
        tokens: TokenApi | None = None,
        guests: Guests | None = None,
        shares: LoopShares | None = None,
    ) -> None:
        self._shares = shares or LoopShares(asyncio.get_running_loop())
        application = make_application(api, refusal, tokens)
        self._guests = guests or Guests(lambda: not api.users.is_empty, asyncio.get_running_loop())
        application[GUESTS] = self._guests
        application[SHARES] = self._shares
        self._observer = application[observing_pages.OBSERVER]
        self._coordination = application[coordination_pages.COORDINATION]
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=STOP_SECONDS)
        self._listener: asyncio.Server | None = None

    async def start(self, listening: socket.socket, tls: ssl.SSLContext | None) -> None:
        """Accept requests on a bound socket."""
        judge_apart()
        await self._runner.setup()
        self._observer.start()
        server = self._runner.server
        assert server is not None
        loop = asyncio.get_running_loop()
        guests, shares = self._guests, self._shares

        def handler() -> _RequestHandler:
            return _RequestHandler(
                guests,
                shares,
                server,
                loop=loop,
                access_log=None,
                keepalive_timeout=IDLE_SECONDS,
                lingering_time=LINGER_SECONDS,
                auto_decompress=False,
                max_line_size=HEADER_BYTES_MAX,
                max_field_size=HEADER_BYTES_MAX,
            )

        self._listener = await loop.create_server(
            handler, sock=listening, ssl=tls, backlog=BACKLOG
        )

    async def stop(self) -> None:
        """Close the listener, let requests under way end."""
        if self._listener is not None:
            self._listener.close()
        await self._observer.stop()
        await self._coordination.stop()
        await self._runner.cleanup()
        await asyncio.to_thread(end_idle_ones)
