"""Coordination over HTTP, for the console: one command, and the changes of an element.

    POST /_millstream/coordination/command    {"words": ["GET", "/a"], "session": "x1"}
    GET  /_millstream/coordination/watch?path=/a&scope=TREE    server-sent events `change`

Invariants:
1. A command runs as the user of the request, with its password (HTTP Basic), never as the node.
   Without users nobody logs in.
2. Requests with the same `session` share a session of coordination, so they keep locks and
   ephemeral elements. It ends when nothing was asked for `IDLE_S`, or with the node's pages. There
   are at most `SESSIONS_MAX`.
3. What the connection itself is about (log-in, transactions, subscriptions) is refused.

Elsewhere: the commands (`coordination.core.resp`), a session (`coordination.aio.client`).
"""

from __future__ import annotations

import asyncio
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Annotated, Any, Final

import msgspec
from aiohttp import web

from millstream.coordination.aio.client.asking import ask_node
from millstream.coordination.aio.client.async_client import AsyncClient
from millstream.coordination.core.client.events import ErrorReply
from millstream.errors import AccessError, UnavailableError, UsageError
from millstream.gateway.aio.answers import NODE_API, STILL, USER, answer, read_object
from millstream.gateway.aio.guard import basic_credentials
from millstream.gateway.aio.streaming import send_events
from millstream.gateway.core.api.node import CommonNodeApi
from millstream.runtime.tasks import Tasks

__all__ = [
    "ANSWER_S", "COORDINATION", "IDLE_S", "REPLY_BYTES_MAX", "REPLY_VALUES_MAX", "SESSIONS_MAX",
    "CoordinationSessions", "routes",
]  # fmt: skip

SESSIONS_MAX: Final = 32
IDLE_S: Final = 120.0
ANSWER_S: Final = 5.0
"""How long a command may wait, for example for a lock."""
REPLY_VALUES_MAX: Final = 5_000
"""Values in a reply that is shown; a longer one is refused."""
REPLY_BYTES_MAX: Final = 8 * 1024 * 1024
"""Bytes of its strings, keys of maps included."""
WATCHERS_MAX: Final = 32
BEAT_S: Final = 10.0
_AT_NODE: Final = frozenset({b"ADMIN", b"INFO", b"VDS", b"PING", b"ECHO"})
"""Commands about the node that is asked; others go to the group of their path."""
_REFUSED: Final = frozenset(
    {
        b"AUTH", b"HELLO", b"RESET", b"QUIT", b"CLIENT", b"SELECT", b"MULTI", b"EXEC", b"DISCARD",
        b"CHECK", b"SUBSCRIBE", b"UNSUBSCRIBE", b"SUBACK", b"NOTIFY", b"CSN", b"CTS", b"SEEN",
    }
)  # fmt: skip
_READS: Final = frozenset({b"GET", b"LOOKUP", b"TREE"})
_READS_SECOND: Final = frozenset(
    {
        b"RANGE", b"INDEX", b"LEN", b"FIND", b"INFO", b"LEADER", b"HAS", b"MEMBERS", b"PEEK",
        b"UNION", b"INTER", b"DIFF", b"GET", b"WHOAMI",
    }
)  # fmt: skip
"""Second words of commands that change nothing."""


def _client(api: CommonNodeApi, user: str, password: str) -> AsyncClient:
    """Return a client that is not entered yet; raises as `coordination_port`."""
    address, tls = api.coordination_port()
    return AsyncClient(
        [address], user=user or None, password=password, deadline_s=ANSWER_S, tls=tls
    )


class _Session:
    def __init__(self, client: AsyncClient) -> None:
        self.client = client
        self.used_s = time.monotonic()
        self.turn = asyncio.Lock()


class CoordinationSessions:
    """The sessions of coordination that pages of this node use."""

    def __init__(self, api: CommonNodeApi) -> None:
        self._api = api
        self._sessions: dict[tuple[str, str, str], _Session] = {}
        self._tasks = Tasks()
        self.watchers = 0

    async def stop(self) -> None:
        """End all sessions."""
        await self._tasks.stop()
        for key in list(self._sessions):
            await self._end(key)

    async def say(self, name: str, user: str, password: str, words: list[bytes]) -> Any:
        """Return the reply to a command in a session.

        Raises:
            ConditionError: `no_coord`: this node has no coordination.
            UnavailableError: `too_many_sessions`; what coordination raises.
        """
        session = await self._session((name, user, password))
        async with session.turn:
            session.used_s = time.monotonic()
            try:
                return await session.client.execute(*words, is_change=not _is_read(words))
            finally:
                session.used_s = time.monotonic()

    async def _session(self, key: tuple[str, str, str]) -> _Session:
        found = self._sessions.get(key)
        if found is not None:
            return found
        if len(self._sessions) >= SESSIONS_MAX:
            raise UnavailableError(
                f"{SESSIONS_MAX} sessions of coordination are open already: wait until one that "
                "is not used has ended",
                code="too_many_sessions",
            )
        client = _client(self._api, key[1], key[2])
        found = self._sessions[key] = _Session(client)
        async with found.turn:
            try:
                await client.__aenter__()
            except BaseException:  # also when cancelled: nobody can use it
                del self._sessions[key]
                raise
        if not len(self._tasks):
            self._tasks.start(self._end_idle(), name="idle sessions of coordination")
        return found

    async def _end_idle(self) -> None:
        while self._sessions:
            await asyncio.sleep(IDLE_S / 4)
            late_s = time.monotonic() - IDLE_S
            idle = [key for key, one in self._sessions.items() if one.used_s < late_s]
            for key in idle:
                await self._end(key)

    async def _end(self, key: tuple[str, str, str]) -> None:
        with suppress(Exception):  # it ends by itself, later
            await self._sessions.pop(key).client.close()


COORDINATION: Final = web.AppKey("coordination", CoordinationSessions)


class _Command(msgspec.Struct, forbid_unknown_fields=True):
    words: Annotated[list[str], msgspec.Meta(min_length=1, max_length=1_000)]
    session: Annotated[str, msgspec.Meta(max_length=64)] = ""


def _is_read(words: list[bytes]) -> bool:
    first, second = words[0].upper(), words[1].upper() if len(words) > 1 else b""
    return first in _READS or second in _READS_SECOND or (first, second[:1]) == (b"LIST", b"/")


def _credentials(request: web.Request) -> tuple[str, str]:
    """Return name and password of who asks; both are empty where there are no users.

    Raises:
        AccessError: `unauthorized`; `password_needed`: a cookie or a token is not enough.
    """
    if request.app[NODE_API].users.is_empty:
        return "", ""
    if request[USER] is None:
        raise AccessError("log in first", code="unauthorized")
    authorization = request.headers.get("Authorization", "")
    if authorization.partition(" ")[0].lower() != "basic":
        raise AccessError(
            "coordination asks for the password itself: send it with this request, by HTTP Basic",
            code="password_needed",
        )
    return basic_credentials(authorization)


async def _command(request: web.Request) -> web.Response:
    """Say a command; return its reply as JSON.

    Right: that of coordination.
    """
    user, password = _credentials(request)
    content = await read_object(request)
    try:
        asked = msgspec.convert(content, _Command)
    except msgspec.ValidationError as error:
        raise UsageError(f"the body of {request.path}: {error}") from error
    words = [word.encode() for word in asked.words]
    name = words[0].upper()
    if name in _REFUSED:
        raise UsageError(
            f"{name.decode()} is about a connection, and these pages have none: use "
            "`millstream shell`",
            code="not_supported",
        )
    sessions = request.app[COORDINATION]
    if name in _AT_NODE:
        client = _client(request.app[NODE_API], user, password)
        reply = await ask_node(client, *words, limit_s=ANSWER_S)
    else:
        reply = await sessions.say(asked.session, user, password, words)
    return answer({"reply": await asyncio.to_thread(_shown, reply, _Left())})


class _Left:
    """How much of a reply may still be shown."""

    def __init__(self) -> None:
        self._values, self._bytes = REPLY_VALUES_MAX, REPLY_BYTES_MAX

    def take(self, value: Any) -> None:
        """Count a value, or the key of one.

        Raises:
            UsageError: `too_large`.
        """
        self._values -= 1
        self._bytes -= len(value) if isinstance(value, bytes | bytearray | str) else 0
        if self._values < 0 or self._bytes < 0:
            raise UsageError(
                f"the reply has more than {REPLY_VALUES_MAX} values, or {REPLY_BYTES_MAX} bytes: "
                "ask for less",
                code="too_large",
            )


def _shown(value: Any, left: _Left) -> Any:
    """Return a reply as JSON: bytes as text, or in base64 where they are none.

    Raises:
        UsageError: `too_large`.
    """
    left.take(value)
    if isinstance(value, ErrorReply):
        return {"error": str(value)}
    if isinstance(value, bytes | bytearray):
        return _text(bytes(value))
    if isinstance(value, Mapping):
        for key in value:
            left.take(key)
        return {str(_text(bytes(k)) if isinstance(k, bytes) else k): _shown(v, left)
                for k, v in value.items()}  # fmt: skip
    if isinstance(value, list | tuple | set | frozenset):
        return [_shown(one, left) for one in value]
    return value


def _text(value: bytes) -> str | dict[str, str]:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(value).decode()}


async def _watch(request: web.Request) -> web.StreamResponse:
    """Tell the changes of an element from now on.

    Right: that of coordination.
    """
    user, password = _credentials(request)
    path, scope = request.query.get("path", ""), request.query.get("scope", "ELEMENT")
    if not path.startswith("/"):
        raise UsageError("path is an element, such as /a/b", code="query_parse_error")
    sessions = request.app[COORDINATION]
    if sessions.watchers >= WATCHERS_MAX:
        raise UnavailableError(
            f"{WATCHERS_MAX} elements are watched already", code="too_many_readers"
        )
    client = _client(request.app[NODE_API], user, password)
    sessions.watchers += 1
    try:
        return await send_events(request, _changes(request, client, path, scope))
    finally:
        sessions.watchers -= 1


async def _changes(
    request: web.Request, client: AsyncClient, path: str, scope: str
) -> AsyncIterator[bytes]:
    is_still = request[STILL]
    async with client, client.subscribe(path, scope, with_data=True) as changes:
        yield b": begins\n\n"
        following = aiter(changes)
        coming = asyncio.ensure_future(anext(following))
        try:
            while is_still():
                await asyncio.wait([coming], timeout=BEAT_S)
                if not coming.done():
                    yield b": still here\n\n"
                    continue
                change = coming.result()
                coming = asyncio.ensure_future(anext(following))
                shown = _shown(change._asdict(), _Left())
                yield b"event: change\ndata: %b\n\n" % msgspec.json.encode(shown)
        finally:
            coming.cancel()


def routes() -> list[web.RouteDef]:
    """Return the pages of this module."""
    return [
        web.post("/_millstream/coordination/command", _command),
        web.get("/_millstream/coordination/watch", _watch),
    ]
