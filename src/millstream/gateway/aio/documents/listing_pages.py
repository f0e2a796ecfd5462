"""All documents of a database by id: `/DB/_all_docs`, asked once or several times at once.

Invariants:
1. Ids are in the order of their bytes, not in that of views.
2. `keys` are answered in their order, one row each: a deleted document says so, an unknown id too.
3. Rows leave as they are read; no more than a piece of the answer is in memory.

Elsewhere: parameters (`views.core.query.parameters`), documents (`gateway.core.api.documents`).
Source: CouchDB's `_all_docs`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any, Final

import msgspec
from aiohttp import web

from millstream.documents.reading import PLAIN, Piece, Shown, pieces_of_text, within
from millstream.documents.sent import checked_id
from millstream.documents.stored import StoredDocument
from millstream.errors import UsageError
from millstream.gateway.aio.answers import (
    DATABASE,
    DATABASE_PATH,
    NODE_API,
    read_body,
    require,
)
from millstream.gateway.aio.documents.documents_out import inline_pieces
from millstream.gateway.aio.listing import asked_list
from millstream.gateway.aio.parsing import interpreted, prepare, worked
from millstream.gateway.aio.streaming import WhileThere, stream
from millstream.gateway.core.api.documents import DocumentApi
from millstream.gateway.core.api.node import NodeApi
from millstream.gateway.core.listing import id_bytes, keys_asked, parse_listings
from millstream.runtime.pace import Turns
from millstream.views.core.query.parameters import (
    MISSING,
    QUERY_BODY_BYTES_MAX,
    Query,
    url_options,
)

__all__ = ["routes"]

_HIGHEST: Final = b"\xff"
"""Above every id."""
_Row = tuple[bytes, tuple[Piece, ...]]
"""The beginning of a row's text, and the pieces that follow."""


async def _all_docs(request: web.Request) -> web.StreamResponse:
    bucket = request.match_info[DATABASE]
    require(request, "read", bucket)
    query = await asked_list(request, is_of_all=True)
    with WhileThere(request):
        pieces = (await _listing(request.app[NODE_API], bucket, query)).pieces()
        async with aclosing(pieces):
            return await stream(request, pieces, {"Cache-Control": "must-revalidate"})


async def _queries(request: web.Request) -> web.StreamResponse:
    bucket = request.match_info[DATABASE]
    require(request, "read", bucket)
    common = url_options(request.query.items())
    body = await read_body(request, QUERY_BODY_BYTES_MAX)
    asked = await interpreted(parse_listings, body, common)
    api = request.app[NODE_API]

    async def results() -> AsyncIterator[Piece]:
        before = b'{"results":['
        for query in asked:
            yield before
            async for piece in (await _listing(api, bucket, query)).pieces():
                yield piece
            before = b","
        yield b"]}\n" if asked else before + b"]}\n"

    with WhileThere(request):
        return await stream(request, results(), {})


async def _listing(api: NodeApi, bucket: str, query: Query) -> _Listing:
    """Return an answer; what changes beside it is not in its `update_seq`."""
    seq = (await api.changes.whole(bucket)).latest().text() if query.update_seq else None
    return _Listing(api.documents, bucket, query, seq)


class _Listing:
    """The answer to one query."""

    def __init__(
        self, documents: DocumentApi, bucket: str, query: Query, update_seq: str | None
    ) -> None:
        self._documents, self._bucket, self._query = documents, bucket, query
        self._update_seq = update_seq
        self._shown = Shown(conflicts=True) if query.conflicts else PLAIN

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        """Yield the JSON text."""
        total = await self._documents.total(self._bucket)
        query = self._query
        is_whole = query.keys is None and MISSING is query.key is query.startkey
        offset = None
        if is_whole:
            offset = query.skip if total is None else min(query.skip, total)
        said: dict[str, Any] = {"total_rows": total, "offset": offset}
        if self._update_seq is not None:
            said["update_seq"] = self._update_seq
        head = msgspec.json.encode(said)
        before = head[:-1] + b',"rows":[\r\n'
        rows = self._by_keys() if query.keys is not None else self._by_range()
        async with aclosing(rows):
            async for first, more in rows:
                yield before + first
                for piece in more:
                    yield piece
                before = b",\r\n"
        yield b"\r\n]}\n" if before == b",\r\n" else before + b"]}\n"

    async def _by_range(self) -> AsyncGenerator[_Row, None]:
        query = self._query
        low, high = b"", _HIGHEST
        first, last = (query.endkey, query.startkey) if query.descending else (
            query.startkey, query.endkey,
        )  # fmt: skip
        if query.key is not MISSING:
            low = high = id_bytes(query.key)
        else:
            low = low if first is MISSING else id_bytes(first)
            high = high if last is MISSING else id_bytes(last)
        left, skip = query.limit, query.skip
        excluded = None
        if not query.inclusive_end and query.key is MISSING and query.endkey is not MISSING:
            excluded = id_bytes(query.endkey)
        found = self._documents.scan(self._bucket, low, high, descending=query.descending)
        async with aclosing(found):
            async for doc_id, document in found:
                if doc_id.encode() == excluded:
                    continue
                if skip:
                    skip -= 1
                    continue
                if left is not None:
                    if left == 0:
                        return
                    left -= 1
                yield await self._row(doc_id, document)

    async def _by_keys(self) -> AsyncGenerator[_Row, None]:
        query = self._query
        turns = Turns()
        for number, key in enumerate(keys_asked(query), start=-query.skip):
            await turns.give()
            if number == query.limit:
                break
            if number >= 0:
                yield await self._keyed(key)

    async def _keyed(self, key: Any) -> _Row:
        document = None
        if isinstance(key, str):
            try:
                document = await self._documents.read(self._bucket, checked_id(key))
            except UsageError:
                document = None
        if document is None or not document.exists:
            return msgspec.json.encode({"key": key, "error": "not_found"}), ()
        return await self._row(key, document)

    async def _row(self, doc_id: str, document: StoredDocument) -> _Row:
        winner = document.winner
        row: dict[str, Any] = {"id": doc_id, "key": doc_id, "value": {"rev": winner.rev}}
        if winner.is_deleted:
            row["value"]["deleted"] = True
            if self._query.include_docs:
                row["doc"] = None
        head = msgspec.json.encode(row)
        if winner.is_deleted or not self._query.include_docs:
            return head, ()
        pieces = await self._text(doc_id, document)
        return within(head[:-1] + b',"doc":', pieces, b"}")

    async def _text(self, doc_id: str, document: StoredDocument) -> list[Piece]:
        await prepare(document)
        if self._query.attachments:
            return await inline_pieces(
                self._documents, self._bucket, doc_id, document, document.winner, self._shown,
                None,
            )  # fmt: skip
        return await worked(
            document, pieces_of_text, doc_id, document, document.winner, self._shown
        )


def routes() -> list[web.RouteDef]:
    """Return the pages of this module."""
    path = DATABASE_PATH + "/_all_docs"
    return [
        web.get(path, _all_docs),
        web.post(path, _all_docs),
        web.post(path + "/queries", _queries),
    ]
