"""Changes of an element as an asynchronous iterator that survives connections and nodes.

    async with client.subscribe("/app", "TREE") as changes:
        async for change in changes:
            print(change.op, change.path)

Invariants:
1. There is no task: bytes are read when the next change is requested. The node cuts off a slow
   reader, which then resumes (`QUEUED_MAX` of the node bounds what waits).
2. A connection that is silent for `QUIET_S` is given up: nodes send more often.
3. Waiting can be cancelled without losing anything.
4. With a name (`durable`), a change is acknowledged once the reader asks for the next one, or
   leaves `async with` without an error. So each change is processed at least once.

Elsewhere: requests and new updates (`core.client.resumed_subscription`), names
(`durable_positions`).
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self

from millstream.coordination.aio.client.durable_positions import DurablePlace
from millstream.coordination.aio.client.link import PORT
from millstream.coordination.core.client.caller import (
    BACK_OFF_LONG_MS,
    BACK_OFF_MAX_MS,
    BACK_OFF_MIN_MS,
)
from millstream.coordination.core.client.resumed_subscription import Again, Change, Following, Over
from millstream.coordination.core.client.wire import Replies, is_push, packed
from millstream.errors import MillstreamError, RemoteProtocolError
from millstream.model.addresses import parse_address
from millstream.vsr.core.versions import Version

__all__ = ["ACKNOWLEDGED_MAX", "CONNECT_S", "QUIET_S", "Subscription"]

QUIET_S: Final = 25.0
"""A node says something every ten seconds."""
CONNECT_S: Final = 5.0
"""Longest time for connecting and the greeting."""
ACKNOWLEDGED_MAX: Final = 64
"""Changes that are acknowledged together while more are ready; before waiting all are."""
_TIRED_AFTER: Final = 300
"""Attempts that failed one after another; the pauses are longer from then on."""
_READ_BYTES: Final = 64 * 1024


class Subscription:
    """Iterated over by one task; begun and ended by `async with`, or by a step and `close`.

    Args:
        addresses: `HOST:PORT` of nodes.
        greeting: the first command of each connection, `HELLO 3 ...`.
        tls: how to check the nodes, if they speak TLS.
        following: what is subscribed to.
        look: returns the version of the element, by a quorum's word: asked once, so that no member
            that lags says that there is none.
        on_seen: called with the LSN of each change that is handed out.
        durable: what is told how far changes were worked off.

    `lsn` is what to go on from (`after=`) once this is gone. Iterating may raise:

        MissingError: there is no such element.
        ConditionError: `history_lost`: some changes are not kept any more. Read the element,
            then subscribe again without `after`, or after the number or version in the text.
        AccessError: it may not be read, or not any more.
    """

    def __init__(
        self, addresses: Sequence[str], greeting: Sequence[bytes], tls: ssl.SSLContext | None,
        following: Following, look: Callable[[], Awaitable[Version]] | None = None,
        on_seen: Callable[[int], None] = lambda _: None, durable: DurablePlace | None = None,
    ) -> None:  # fmt: skip
        self._addresses, self._greeting, self._tls = list(addresses), greeting, tls
        self._following, self._look, self._on_seen = following, look, on_seen
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._replies = Replies()
        self._ready: deque[Change] = deque()
        self._hint: str | None = None
        self._failures = self._at = 0
        self._over: Over | None = None
        self._lsn = following.lsn
        self._durable = durable
        self._handed_lsn: int | None = None
        self._done_lsn: int | None = None
        """Up to where changes were handed out, and up to where their reader asked for more."""
        self._done = 0
        """How many processed messages were not acknowledged yet."""

    @property
    def lsn(self) -> int | None:
        """All up to there was iterated over, in full."""
        return self._lsn

    async def __aenter__(self) -> Self:
        """Begin: all that is done from now on is heard. Raises what iterating does."""
        try:
            while not self._following.has_begun and self._over is None:
                await self._step()
        except BaseException:  # also when cancelled: nobody else closes the connection
            self.close()
            raise
        if self._over is not None and self._over.error is not None:
            raise self._over.error
        self._lsn = self._following.lsn
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.close()
        if kind is None:
            self._note_done()
        if kind is None or issubclass(kind, Exception):  # else it is to end at once
            await self._acknowledge()

    def _note_done(self) -> None:
        self._done += self._done_lsn != self._handed_lsn
        self._done_lsn = self._handed_lsn

    async def _acknowledge(self) -> None:
        """Tell the group what was processed."""
        lsn = self._done_lsn
        if self._durable is not None and lsn is not None and self._done:
            await self._durable.acknowledge(lsn)
            self._done = 0

    def close(self, error: MillstreamError | None = None) -> None:
        """End it; who waits for a change gets the error, or the end of the loop."""
        self._over = Over(error)
        self._ready.clear()
        self._hang_up()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Change:
        self._note_done()
        if not self._ready or self._done >= ACKNOWLEDGED_MAX:
            await self._acknowledge()
        while not self._ready:
            self._lsn = self._following.lsn
            if self._over is not None:
                if self._over.error is not None:
                    raise self._over.error
                raise StopAsyncIteration
            await self._step()
        change = self._ready.popleft()
        self._on_seen(change.lsn)
        if change.part == change.parts - 1:
            self._lsn = self._handed_lsn = change.lsn
        return change

    async def _step(self) -> None:
        if self._look is not None:
            await self._look_first(self._look)
            self._look = None
        try:
            await self._read_some()
        except (OSError, RemoteProtocolError):  # a time-out is one
            self._hang_up()
            await self._pause()

    async def _look_first(self, look: Callable[[], Awaitable[Version]]) -> None:
        following = self._following
        if self._durable is not None:
            heard_lsn = await self._durable.begin()
            following.lsn = heard_lsn if following.lsn is None else following.lsn
        following.seen = (await look()).lsn

    async def _read_some(self) -> None:
        if self._streams is None:
            async with asyncio.timeout(CONNECT_S):
                await self._connect()
        assert self._streams is not None
        async with asyncio.timeout(QUIET_S):
            data = await self._streams[0].read(_READ_BYTES)
        if not data:
            raise ConnectionResetError("the node has closed the connection")
        for reply in self._replies.feed(data):
            if not await self._take(reply):
                return

    async def _take(self, reply: Any) -> bool:
        """Take a reply; return whether the connection goes on."""
        heard = self._following.take(reply)
        if is_push(reply):
            self._failures = 0
        match heard:
            case Change():
                self._ready.append(heard)
                if self._following.ends_with(heard):
                    self._over = Over(None)
            case Again(address):
                self._hint = address
                self._hang_up()
                await self._pause()
            case Over():
                self._over = heard
        if self._over is not None:
            self._hang_up()
        return self._streams is not None

    async def _connect(self) -> None:
        if self._hint is not None and self._hint not in self._addresses:
            self._addresses.append(self._hint)
        address = self._hint or self._addresses[self._at % len(self._addresses)]
        self._at, self._hint = self._at + 1, None
        host, port = parse_address(address, default_port=PORT)
        reader, writer = await asyncio.open_connection(host, port, ssl=self._tls)
        self._streams = reader, writer
        if self._over is not None:
            raise ConnectionResetError("the subscription was closed meanwhile")
        self._replies = Replies()
        writer.write(packed(self._greeting) + packed(self._following.request()))

    def _hang_up(self) -> None:
        if self._streams is not None:
            with suppress(OSError):
                self._streams[1].transport.abort()
            self._streams = None

    async def _pause(self) -> None:
        self._failures += 1
        most = BACK_OFF_MAX_MS if self._failures < _TIRED_AFTER else BACK_OFF_LONG_MS
        pause_ms = min(BACK_OFF_MIN_MS * 2.0 ** min(self._failures - 1, 16), most)
        await asyncio.sleep(pause_ms * random.uniform(0.5, 1.0) / 1000)
