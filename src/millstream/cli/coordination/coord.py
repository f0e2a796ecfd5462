"""Asking a node's coordination from the command line: one connection, one command at a time.

Invariants:
1. A connection whose replies cannot be told apart any more is closed.
2. While the connection lives, silence never ends its sessions: empty lines break it, often enough
   for the shortest one.
3. A command for a group's primary follows `NOTPRIMARY` to where that is, and waits for it while
   nobody knows, for `PRIMARY_S` at most; nothing else is repeated.

Elsewhere: the socket (`coordination.aio.client.link`), the client for programs
(`coordination.aio.client.group_client`), the commands that use this
(`cli.coordination.pool`), which node the shell asks
(`cli.coordination.shell_requests`).
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Self

from millstream.cli.connect import Who, connection_of
from millstream.cluster.pages import coord_port_of
from millstream.coordination.aio.client.link import Link
from millstream.coordination.core.client.errors import kind_of
from millstream.coordination.core.client.wire import hello, packed
from millstream.coordination.core.shell.replies import Reply, ReplyCutter
from millstream.errors import MillstreamError, UnavailableError, UsageError
from millstream.runtime.loop_thread import LoopThread
from millstream.runtime.tasks import Tasks

__all__ = [
    "ANSWER_S",
    "BEAT_S",
    "PRIMARY_S",
    "REPLIES_MAX",
    "Coordination",
    "ask_primary",
    "coord_address_at",
    "coordination_at",
]

ANSWER_S: Final = 15.0
"""Longest wait for an answer."""
PRIMARY_S: Final = 15.0
"""How long a command waits for its group to have a primary."""
BEAT_S: Final = 0.2
"""How often something is sent: the shortest session ends after half a second of silence."""
REPLIES_MAX: Final = 2_000
"""Replies that wait to be taken; an answer to UNSUBSCRIBE has one for each subscription."""
_PAUSE_S: Final = 0.2
_CONFIRMING: Final = ((b"subscribe",), (b"unsubscribe",))
"""Pushes that begin like this answer a command."""
_KINDS: Final[dict[str, type[MillstreamError]]] = {
    "ERR": UnavailableError, "UNKNOWN": UnavailableError, "ERROR_DOES_NOT_EXISTS": UsageError,
}  # fmt: skip
"""Codes that mean something else where nodes and groups are named, and not elements."""


class Coordination:
    """A connection to the port for clients of coordination groups, in RESP3, logged in.

    Args:
        address: `HOST:PORT` of the node.
        who: logs in.
        tls: how to check the node, if it speaks TLS.
        told: called with each push, in a thread of its own; also with those that answer.

    Raises:
        UnavailableError: `unreachable`, or `lost`.
        AccessError: the log-in failed.
    """

    def __init__(
        self, address: str, who: Who, tls: ssl.SSLContext | None = None,
        told: Callable[[Reply], None] = lambda _: None,
    ) -> None:  # fmt: skip
        self.address = address
        self.pending: dict[tuple[bytes, ...], int] = {}
        """Commands that wait in this connection's session, and their numbers."""
        self._who, self._tls, self._told, self._why = who, tls, told, ""
        self._replies: asyncio.Queue[Reply | None] = asyncio.Queue(REPLIES_MAX)
        self._link = Link(self._take, self._lost, cutter=ReplyCutter())
        self._thread, self._tasks = LoopThread("coordination"), Tasks()
        try:
            self._thread.run(self._connect())
            _checked(self.say(hello(who.user, who.password)))
        except BaseException:  # also when interrupted: nobody else ends the thread
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_lost(self) -> bool:
        """Whether the connection is gone."""
        return bool(self._why)

    def ask(self, *words: str, timeout_s: float = ANSWER_S) -> Any:
        """Return the reply to a command, as Python values.

        Raises:
            MillstreamError: an error reply; `code` is the reply's in small letters.
            UnavailableError: as `say`.
        """
        said = self.say([word.encode() for word in words], timeout_s=timeout_s)
        return _checked(said).value

    def say(
        self, words: Sequence[bytes], has_all: Callable[[list[Reply]], bool] = bool,
        timeout_s: float = ANSWER_S,
    ) -> list[Reply]:  # fmt: skip
        """Say a command; return what is answered, until that is all.

        Raises:
            UnavailableError: `lost`: the connection is gone; it may have been done.
        """
        found: list[Reply] = []
        try:
            if not self._why:
                self._thread.run(self._say(words, has_all, timeout_s, found))
        except (TimeoutError, KeyboardInterrupt) as error:
            self.close("no answer came")  # one that comes later would be taken for the next one
            if isinstance(error, KeyboardInterrupt):
                raise
        if self._why and not found:
            raise UnavailableError(
                f"the connection to {self.address} is lost, and with it what this command did; "
                f"read to find out: {self._why}",
                code="lost",
            )
        return found

    def elsewhere(self, address: str) -> Coordination:
        """Return a connection to another node, as the same user."""
        return Coordination(address, self._who, self._tls)

    def close(self, why: str = "closed") -> None:
        """Close; twice is harmless."""
        self._why = self._why or why
        self._thread.stop()

    # ---- in the thread

    async def _connect(self) -> None:
        try:
            async with asyncio.timeout(ANSWER_S):
                await self._link.connect(self.address, self._tls)
        except OSError as error:
            raise UnavailableError(
                f"coordination at {self.address} is not reached: {error.strerror or error}",
                code="unreachable",
            ) from error
        self._tasks.start(self._beat(), name="beats")

    async def _beat(self) -> None:
        """Break the silence, so that it never ends a session; hang up at the end."""
        try:
            while not self._why:
                self._link.send(b"\r\n")
                await asyncio.sleep(BEAT_S)
        finally:
            self._link.transport.abort()

    async def _say(
        self, words: Sequence[bytes], has_all: Callable[[list[Reply]], bool], timeout_s: float,
        found: list[Reply],
    ) -> None:  # fmt: skip
        self._link.send(packed(words))
        while not found or not has_all(found):
            async with asyncio.timeout(timeout_s):
                reply = await self._replies.get()
            if reply is None:
                return
            found.append(reply)

    def _take(self, link: Link, reply: Reply) -> None:
        is_push = reply.sign == b">"
        if is_push:
            self._told(reply)
        if not is_push or reply.words[:1] in _CONFIRMING:
            try:
                self._replies.put_nowait(reply)
            except asyncio.QueueFull:
                link.transport.abort()

    def _lost(self, _: Link, error: Exception | None) -> None:
        self._why = self._why or str(error or "the node has closed it")
        if self._replies.full():
            self._replies.get_nowait()
        self._replies.put_nowait(None)


def _checked(said: list[Reply]) -> Reply:
    if said[0].is_error:
        raise error_of(said[0].text.decode("utf-8", "replace"))
    return said[0]


def error_of(text: str) -> MillstreamError:
    """Return the exception for an error reply."""
    code, _, rest = text.partition(" ")
    kind = _KINDS.get(code) or kind_of(code)
    return kind(f"{code}: {rest}" if rest else code, code=code.lower())


def coordination_at(address: str, who: Who, tls: ssl.SSLContext | None) -> Coordination:
    """Return a connection to the coordination of the node whose kv port is at `address`."""
    return Coordination(coord_address_at(address, who, tls), who, tls)


def coord_address_at(address: str, who: Who, tls: ssl.SSLContext | None) -> str:
    """Return where the node whose kv port is at `address` serves coordination."""
    with connection_of(address, who, tls, timeout_s=ANSWER_S) as connection:
        host, port = connection.host, coord_port_of(connection)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def ask_primary(node: Coordination, *words: str, timeout_s: float = ANSWER_S) -> Any:
    """Have a command done by its group's primary; `node` is asked first where that is.

    Raises:
        MillstreamError: as `Coordination.ask`.
    """
    until = time.monotonic() + PRIMARY_S
    address = ""
    while True:
        try:
            if not address:
                return node.ask(*words, timeout_s=timeout_s)
            with node.elsewhere(address) as primary:
                return primary.ask(*words, timeout_s=timeout_s)
        except UnavailableError as error:
            if error.code not in ("notprimary", "unreachable", "lost", "busy", "noquorum"):
                raise
            if time.monotonic() > until:
                raise
            hint = str(error).rpartition(" ")[2]
            address = hint if error.code == "notprimary" and hint != "?" else ""
        time.sleep(_PAUSE_S)
