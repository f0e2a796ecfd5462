"""The feed of a database's changes: `_changes`.

Invariants:
1. A row leaves when the client takes it: no more than one step of rows is made ahead.
2. Whatever ends a request gives up what it holds of the database.
3. The loop is given back after every `ROWS_PER_STEP` changes, also where none of them is a row;
   a client that asked for heartbeats gets them meanwhile. Of rows with attachments one at a time
   is made.
4. The token that ends an answer stands for exactly what the client was sent.
5. A feed that goes on ends once who reads it would not be let in any more.

Elsewhere: parameters (`gateway.core.changes`), rows (`gateway.core.changes_rows`), the walk
(`kv.aio.documents.changes`).
Source: CouchDB's `_changes`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Final

import msgspec
from aiohttp import web

from millstream.documents.json_text import parse_object
from millstream.documents.reading import Piece as TextPiece
from millstream.documents.reading import Shown, pieces_of_text
from millstream.documents.tokens import Vector
from millstream.documents.tree import Leaf
from millstream.errors import UsageError
from millstream.gateway.aio.answers import (
    DATABASE,
    DATABASE_PATH,
    NODE_API,
    STILL,
    joined,
    read_text,
    require,
)
from millstream.gateway.aio.documents.documents_out import inline_pieces
from millstream.gateway.aio.documents.writing import user_context
from millstream.gateway.aio.parsing import SMALL_TEXT_BYTES, beside, prepare, understood
from millstream.gateway.aio.queries.selecting import which_pass
from millstream.gateway.aio.room import hold_copies
from millstream.gateway.aio.streaming import (
    WHOLE_BYTES_MAX,
    WhileThere,
    send_pieces,
    stream,
)
from millstream.gateway.core.api.changes import ChangesWalk, DatabaseChanges
from millstream.gateway.core.api.coverage import Puller
from millstream.gateway.core.changes import (
    CHANGES_BODY_BYTES_MAX,
    ChangesQuery,
    FilterAsked,
    parse_changes,
    parse_large_changes,
)
from millstream.gateway.core.changes_rows import ChangedDocument, Row, RowMaker
from millstream.gateway.core.function_calls import seen_headers, seen_text
from millstream.gateway.core.mango_answers import LargeSelector
from millstream.kv.core.revisions.changes_feed import Piece
from millstream.replication.core.coverage import Record, record_to_json
from millstream.runtime.long_calls import run_apart
from millstream.runtime.pace import Turns
from millstream.views.core.mango.selectors import parse_selector
from millstream.wire.frames import seqno_of

__all__ = ["routes", "stream_at_once", "with_heartbeats"]

ROWS_PER_STEP: Final = 128
DOCUMENTS_PER_STEP: Final = 50
"""Rows with documents that are made in one step."""
QUICK_FRAME_BYTES_MAX: Final = 16 * 1024
"""Most bytes of a change whose row is made in the loop. This bounds its number of branches."""
COUNTED_CHANGES_MAX: Final = 2048
"""Up to so many seqnos `pending` is exact; else it is their number, at least that of the rows."""
DESCENDING_BYTES_MAX: Final = 32 * 1024 * 1024
"""Rows that are kept to be sent in reverse."""
_PATH: Final = DATABASE_PATH + "/_changes"
Told = Callable[[Vector], Awaitable[Sequence[Record]]]
"""Says what the database has of others, to who stands somewhere."""
Passes = Callable[[Sequence[Sequence[TextPiece]]], Awaitable[Sequence[bool]]]
"""Says which documents pass a filter, by the pieces of their texts."""
TextOf = Callable[[ChangedDocument, Leaf], Awaitable[Sequence[TextPiece]]]
"""Makes the pieces of the text of a document whose attachments have to be read."""
_HEARTBEATS: Final = {"eventsource": b"event: heartbeat\ndata: \n\n"}


class _Answer:
    """What one client is sent."""

    def __init__(
        self,
        database: DatabaseChanges,
        walk: ChangesWalk,
        query: ChangesQuery,
        passes: Passes | None = None,
        told: Told | None = None,
        is_still: Callable[[], bool] = lambda: True,
        text_of: TextOf | None = None,
    ) -> None:
        self._told = told
        self._text_of = text_of
        is_plain = passes is None and not query.include_docs and query.filter.kind == "all"
        self._step_rows = ROWS_PER_STEP if is_plain else DOCUMENTS_PER_STEP
        if text_of is not None:
            self._step_rows = 1
        self._is_still = is_still
        self._is_complete = _has_all_deletions(database, walk)
        self._passes = passes
        self._database = database
        self._walk = walk
        self._query = query
        self._maker = RowMaker(database.uuid, query)
        self._left = query.limit
        self._count = 0

    @property
    def _is_full(self) -> bool:
        return self._left is not None and self._left <= 0

    async def pieces(self) -> AsyncGenerator[TextPiece, None]:
        """Yield the answer; empty pieces are chances for a heartbeat."""
        query, is_list = self._query, self._query.feed in ("normal", "longpoll")
        if is_list:
            yield b'{"results":[\n'
        wait_s = query.heartbeat_s or query.timeout_s
        while True:
            rows = self._descending() if query.descending else self._ascending()
            async with aclosing(rows):
                async for piece in rows:
                    yield piece
            if self._is_full or query.feed == "normal" or query.descending:
                break
            if not self._is_still():
                break
            if query.feed == "longpoll" and self._count:
                break
            while not await self._walk.wait(wait_s):
                yield b""
                if query.heartbeat_s is None or not self._is_still():
                    wait_s = 0.0
                    break
            if not wait_s:
                break
        pending = await self._pending() if self._is_full else 0
        token = self._walk.tokens.text()
        if is_list:
            more = await self._more()
            yield b'\n],\n"last_seq":"%b","pending":%d%b}\n' % (token, pending, more)
        elif query.feed == "continuous":
            yield b'{"last_seq":"%b","pending":%d}\n' % (token, pending)

    async def _more(self) -> bytes:
        """Return what Millstream's replicator reads of a list besides."""
        more = b"" if self._is_complete else b',"complete":false'
        if self._told is not None:
            records = await self._told(self._walk.tokens.vector)
            if records:
                more += b',"coverage":%b' % msgspec.json.encode(list(map(record_to_json, records)))
        return more

    async def _ascending(self) -> AsyncGenerator[TextPiece, None]:
        async with aclosing(self._steps()) as steps:
            async for piece in steps:
                shown = self._shown(piece, await self._rows(piece.frames))
                is_last = self._is_full
                if not is_last:
                    self._go_on_behind(piece)
                for text in shown:
                    yield text
                if is_last:
                    return

    async def _rows(self, frames: Sequence[bytes]) -> list[Row]:
        """Return the rows of changes whose documents pass the filter."""
        if self._passes is None and not self._query.include_docs:
            return await _rows_of(self._maker, frames)
        is_heavy = _is_heavy(frames)
        if is_heavy:
            hold_copies(sum(map(len, frames)))
        candidates, turns = self._maker.candidates, Turns()
        found = await beside(candidates, frames) if is_heavy else candidates(frames)
        for one in found:
            await prepare(one.document)
        if is_heavy and self._passes is None and self._text_of is None:
            return await beside(self._maker.rows_of, found)
        passing, texts = list[Sequence[Leaf]](), list[Sequence[TextPiece]]()
        for one in found:
            await turns.give()
            passing.append(one.leaves(all_docs=self._query.all_docs))
            if self._passes is not None:
                texts += map(one.pieces, passing[-1])
        await turns.give()
        if self._passes is not None:
            verdicts = iter(await self._passes(texts) if texts else [])
            passing = [[leaf for leaf in those if next(verdicts)] for those in passing]
        if self._text_of is None:
            return self._maker.rows_of(found, passing)
        shown = [
            await self._text_of(one, those[0]) if those else ()
            for one, those in zip(found, passing, strict=True)
        ]
        return self._maker.rows_of(found, passing, shown)

    def _go_on_behind(self, piece: Piece) -> None:
        snapshot = piece.snapshot
        self._walk.tokens.move(snapshot.partition_id, snapshot.at(piece.covered))

    async def _steps(self) -> AsyncGenerator[Piece, None]:
        """Yield changes, few at a time."""
        if self._is_full:
            return
        async with aclosing(self._walk.pieces()) as pieces:
            async for snapshot, frames, covered in pieces:
                while len(frames) > self._step_rows:
                    step, frames = frames[: self._step_rows], frames[self._step_rows :]
                    yield Piece(snapshot, step, seqno_of(step[-1]))
                    await asyncio.sleep(0)
                yield Piece(snapshot, frames, covered)
                if len(frames) > 1:
                    await asyncio.sleep(0)

    def _shown(self, piece: Piece, rows: list[Row]) -> list[TextPiece]:
        """Return rows as the client is sent them, and move the reader along. Hot path."""
        if self._left is not None:
            rows = rows[: self._left]
            self._left -= len(rows)
        tokens, snapshot = self._walk.tokens, piece.snapshot
        number, interval = snapshot.partition_id, self._query.seq_interval
        out, small = list[TextPiece](), list[bytes]()
        for seqno, text, more in rows:
            tokens.move(number, snapshot.at(seqno))
            seq = b"null" if self._count % interval else b'"%b"' % tokens.text(number)
            self._count += 1
            before, behind = self._frame(seq)
            small += before, text
            if more:
                out += b"".join(small), *more
                small.clear()
            small.append(behind)
        return [*out, b"".join(small)]

    def _frame(self, seq: bytes) -> tuple[bytes, bytes]:
        """Return the text before and after the text of a row."""
        feed = self._query.feed
        if feed == "continuous":
            return b'{"seq":' + seq, b"\n"
        if feed == "eventsource":
            event_id = b"" if seq == b"null" else b"id: %b\n" % seq.strip(b'"')
            return b'data: {"seq":' + seq, b"\n%b\n" % event_id
        return b'%b{"seq":%b' % (b"" if self._count == 1 else b",\n", seq), b""

    async def _descending(self) -> AsyncGenerator[TextPiece, None]:
        """Yield the last rows of what would come, in reverse.

        Raises:
            UsageError: `bad_request`: they are too many to be kept.
        """
        limit, self._left = self._left, None
        kept: deque[tuple[bytes, bytes, tuple[TextPiece, ...]]] = deque(maxlen=limit)
        size = 0
        tokens = self._walk.tokens
        async for piece in self._steps():
            number = piece.snapshot.partition_id
            for seqno, text, more in await self._rows(piece.frames):
                tokens.move(number, piece.snapshot.at(seqno))
                if len(kept) == limit and kept:
                    size -= _size(*kept[0])
                kept.append((tokens.text(number), text, more))
                size += _size(*kept[-1]) if kept else 0
            if size > DESCENDING_BYTES_MAX:
                raise UsageError(
                    "the rows of a descending feed do not fit into memory: give a limit",
                    code="bad_request",
                )
            if size > WHOLE_BYTES_MAX:
                hold_copies(size)
            self._go_on_behind(piece)
        turns = Turns()
        for token, text, more in reversed(kept):
            await turns.give()
            self._count += 1
            before, behind = self._frame(b'"%b"' % token)
            for one in (before + text, *more, behind) if more else (before + text + behind,):
                yield one

    async def _pending(self) -> int:
        """Return the number of rows above the position of the client."""
        await asyncio.sleep(0)
        turns = Turns()
        lag = self._walk.lag()
        await turns.give()  # each of these looks at all partitions
        if not lag or lag > COUNTED_CHANGES_MAX:
            return lag
        rest = self._database.open(self._walk.tokens.vector, restarts=False)
        maker, count = RowMaker(self._database.uuid, ChangesQuery()), 0
        try:
            await turns.give()
            async for piece in rest.pieces():
                count += len(await _rows_of(maker, piece.frames))
                if len(piece.frames) > 1:
                    await asyncio.sleep(0)
        finally:
            rest.close()
        return count


def _is_heavy(frames: Sequence[bytes]) -> bool:
    return max(map(len, frames), default=0) > QUICK_FRAME_BYTES_MAX


async def _rows_of(maker: RowMaker, frames: Sequence[bytes]) -> list[Row]:
    """Return rows without documents, made beside the loop where a document has many branches."""
    if not _is_heavy(frames):
        return maker.rows(frames)
    hold_copies(sum(map(len, frames)))
    return await beside(maker.rows, frames)


def _size(token: bytes, text: bytes, more: Sequence[TextPiece]) -> int:
    return len(token) + len(text) + sum(map(len, more))


def _has_all_deletions(database: DatabaseChanges, walk: ChangesWalk) -> bool:
    """Whether no deletion was forgotten above where a reader begins."""
    pairs = zip(walk.tokens.vector.positions, database.histories(), strict=True)
    return all(position.seqno >= history.purge_seqno for position, history in pairs)


async def with_heartbeats(
    pieces: AsyncIterator[TextPiece], query: ChangesQuery
) -> AsyncGenerator[TextPiece, None]:
    """Yield non-empty pieces, and a heartbeat after each interval without one."""
    loop = asyncio.get_running_loop()
    beat, last_s = _HEARTBEATS.get(query.feed, b"\n"), loop.time()
    async for piece in pieces:
        if piece:
            yield piece
        elif query.heartbeat_s is None or loop.time() - last_s < query.heartbeat_s:
            continue
        else:
            yield beat
        last_s = loop.time()


async def _changes(request: web.Request) -> web.StreamResponse:
    bucket = request.match_info[DATABASE]
    require(request, "read", bucket)
    query = await _asked(request)
    database = await request.app[NODE_API].changes.whole(bucket)
    passes = await understood(request, _filter_of, request, bucket, query.filter)
    told: Told | None = None
    if query.puller is not None:
        told = partial(_told, request, bucket, query.puller)
    turns = Turns()
    start = database.start_of(query.since)
    await turns.give()  # each of these looks at all partitions
    walk = database.open(start, restarts=passes is not None)
    try:
        await turns.give()
        with WhileThere(request):
            texts = _texts_of(request, bucket, query)
            answer = _Answer(database, walk, query, passes, told, request[STILL], texts)
            pieces = answer.pieces()
            async with aclosing(pieces), aclosing(with_heartbeats(pieces, query)) as beating:
                if query.feed == "normal" and query.heartbeat_s is None:
                    return await stream(request, beating, {"Cache-Control": "must-revalidate"})
                return await stream_at_once(request, beating, query)
    finally:
        walk.close()


async def _told(
    request: web.Request, bucket: str, puller: Puller, end: Vector
) -> Sequence[Record]:  # fmt: skip
    return await request.app[NODE_API].coverage.emitted(bucket, end, puller)


def _texts_of(request: web.Request, bucket: str, query: ChangesQuery) -> TextOf | None:
    """Return who makes the texts of documents, None where nothing is to be read for them."""
    if not query.include_docs or not (query.attachments or query.encoding_info):
        return None
    documents = request.app[NODE_API].documents
    shown = Shown(conflicts=query.conflicts, encoding_info=query.encoding_info)

    async def text(changed: ChangedDocument, leaf: Leaf) -> Sequence[TextPiece]:
        doc_id, document = changed.id, changed.document
        if leaf.rev not in document.contents:
            return changed.pieces(leaf, conflicts=query.conflicts)
        if not query.attachments:
            return pieces_of_text(doc_id, document, leaf, shown)
        return await inline_pieces(documents, bucket, doc_id, document, leaf, shown, None)

    return text


def _filter_of(request: web.Request, bucket: str, asked: FilterAsked) -> Passes | None:
    """Return the filter of documents by their content; None: there is none."""
    functions = request.app[NODE_API].functions
    if asked.kind == "selector":
        selector = (
            LargeSelector(asked.text, has_fields=False)
            if asked.text
            else parse_selector(asked.selector)
        )
        return partial(which_pass, selector)
    if asked.kind == "view":

        async def emits(documents: Sequence[Sequence[TextPiece]]) -> list[bool]:
            texts = await _whole(documents)
            return await functions.filter_by_view(bucket, asked.design, asked.name, texts)

        return emits
    if asked.kind == "function":
        seen = {
            "method": request.method,
            "path": request.path.strip("/").split("/"),
            "query": {seen_text(name): seen_text(text) for name, text in request.query.items()},
            "headers": seen_headers(request.headers.items()),
            "userCtx": user_context(request, bucket),
        }
        shown = msgspec.json.encode(seen)

        async def ask(documents: Sequence[Sequence[TextPiece]]) -> list[bool]:
            texts = await _whole(documents)
            return await functions.filter(bucket, asked.design, asked.name, texts, shown)

        return ask
    return None


async def _whole(documents: Sequence[Sequence[TextPiece]]) -> list[bytes]:
    return [await joined(pieces, sum(map(len, pieces))) for pieces in documents]


async def _asked(request: web.Request) -> ChangesQuery:
    last_id, text = request.headers.get("Last-Event-ID"), b"{}"
    if request.method == "POST":
        text = await read_text(request, CHANGES_BODY_BYTES_MAX)
    if len(text) > SMALL_TEXT_BYTES:
        query = await run_apart(parse_large_changes, text, dict(request.query), last_id)
        if query.filter.kind != "selector":
            return query
        return replace(query, filter=query.filter._replace(text=text))
    body = parse_object(text)
    return await understood(request, parse_changes, request.query, body, last_id)


async def stream_at_once(
    request: web.Request, pieces: AsyncIterator[TextPiece], query: ChangesQuery
) -> web.StreamResponse:
    """Send each piece when it is there, the headers before anything is."""
    response = web.StreamResponse(headers={"Cache-Control": "must-revalidate"})
    is_events = query.feed == "eventsource"
    response.content_type = "text/event-stream" if is_events else "application/json"
    response.enable_chunked_encoding()
    return await send_pieces(request, response, pieces)


def routes() -> list[web.RouteDef]:
    """Return the pages of this module."""
    return [web.get(_PATH, _changes), web.post(_PATH, _changes)]
