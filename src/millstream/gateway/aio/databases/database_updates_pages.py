"""What happens to databases: `/_db_updates`.

Databases are looked at when somebody asks, and every `LOOK_S` while somebody waits. All who wait
share one look. What was created and deleted again between two looks is not told.

Invariants:
1. Only administrators ask.
2. A database that cannot be asked now is not told as deleted.

Elsewhere: the events and positions (`gateway.core.database_updates`), feeds of one database
(`gateway.aio.documents.changes_pages`).
Source: CouchDB's `_db_updates`.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Final

import msgspec
from aiohttp import web

from millstream.errors import ConditionError, MillstreamError
from millstream.gateway.aio.answers import NODE_API, STILL, require
from millstream.gateway.aio.documents.changes_pages import stream_at_once, with_heartbeats
from millstream.gateway.aio.streaming import WhileThere
from millstream.gateway.core.changes import ChangesQuery, parse_changes
from millstream.gateway.core.database_updates import DatabaseUpdates, Event, Seen
from millstream.runtime.pace import Turns

__all__ = ["LOOK_S", "UPDATES", "NodeUpdates", "routes"]

LOOK_S: Final = 0.5
"""Pause between two looks at the databases while somebody waits for events."""
_OPTIONS: Final = ("feed", "limit", "descending", "heartbeat", "timeout")


class NodeUpdates:
    """The events of a node's databases, as known since the node was first asked."""

    def __init__(self) -> None:
        self.events = DatabaseUpdates(secrets.token_hex(8))
        self._turn = asyncio.Lock()
        self._looked_s = 0.0

    async def look(self, request: web.Request, *, age_s: float = 0.0) -> None:
        """Look at the databases, unless somebody did so less than `age_s` ago.

        Raises:
            UnavailableError: `buckets_unknown`: what is not known yet was not made just now.
        """
        loop = asyncio.get_running_loop()
        asked_s = loop.time() - age_s
        async with self._turn:
            if self._looked_s >= asked_s and self._looked_s:
                return
            began_s = loop.time()
            host, turns = request.app[NODE_API], Turns()
            host.check_buckets_known()
            found, unknown = dict[str, Seen](), set[str]()
            for one in host.bucket_statuses():
                await turns.give()
                try:
                    database = await host.changes.whole(one.name)
                    latest = database.latest()
                    await turns.give()
                    found[one.name] = Seen(database.uuid, latest.text())
                except ConditionError:
                    continue  # it is gone by now
                except MillstreamError:
                    unknown.add(one.name)
            self.events.look(found, unknown)
            self._looked_s = began_s


UPDATES: Final = web.AppKey("updates", NodeUpdates)


async def _updates(request: web.Request) -> web.StreamResponse:
    require(request, "admin")
    options = request.query
    query = parse_changes({name: options[name] for name in _OPTIONS if name in options}, {})
    last_id = request.headers.get("Last-Event-ID") if query.feed == "eventsource" else None
    updates = request.app[UPDATES]
    await updates.look(request)
    since = (last_id or options.get("since", "")).strip('"')
    start = updates.events.last if since == "now" else since
    with WhileThere(request):
        pieces = _pieces(request, updates, query, start)
        async with aclosing(pieces), aclosing(with_heartbeats(pieces, query)) as beating:
            return await stream_at_once(request, beating, query)


async def _pieces(
    request: web.Request, updates: NodeUpdates, query: ChangesQuery, since: str
) -> AsyncGenerator[bytes, None]:
    """Yield the answer; empty pieces are chances for a heartbeat."""
    loop = asyncio.get_running_loop()
    is_list = query.feed in ("normal", "longpoll")
    if is_list:
        yield b'{"results":[\n'
    count, last = 0, since
    until_s = loop.time() + query.timeout_s
    while True:
        rows, last = _rows(updates.events, query, last, count)
        if rows:
            count += len(rows)
            until_s = loop.time() + query.timeout_s
            yield b"".join(rows)
        is_full = query.limit is not None and count >= query.limit
        is_over = query.feed == "normal" or query.descending or is_full
        if is_over or (query.feed == "longpoll" and count) or not request[STILL]():
            break
        if query.heartbeat_s is None and loop.time() >= until_s:
            break
        await asyncio.sleep(min(LOOK_S, query.timeout_s))
        await updates.look(request, age_s=LOOK_S / 2)
        yield b""
    encoded = msgspec.json.encode(last)
    if is_list:
        yield b'\n],\n"last_seq":%b}\n' % encoded
    elif query.feed == "continuous":
        yield b'{"last_seq":%b}\n' % encoded


def _rows(
    events: DatabaseUpdates, query: ChangesQuery, since: str, count: int
) -> tuple[list[bytes], str]:
    """Return the next rows as the client is sent them, and its position behind them."""
    found: Sequence[Event] = events.after(since)
    last = events.last
    if query.descending:
        found = found[::-1]
    if query.limit is not None and len(found) > query.limit - count:
        found = found[: query.limit - count]
        last = found[-1].seq if found else since or events.last
    rows = list[bytes]()
    for number, one in enumerate(found, count):
        text = msgspec.json.encode(one._asdict())
        if query.feed == "continuous":
            rows.append(text + b"\n")
        elif query.feed == "eventsource":
            rows.append(b"data: %b\nid: %b\n\n" % (text, one.seq.encode()))
        else:
            rows.append((b",\n" if number else b"") + text)
    return rows, last


def routes() -> list[web.RouteDef]:
    """Return the pages of this module."""
    return [web.get("/_db_updates", _updates)]
