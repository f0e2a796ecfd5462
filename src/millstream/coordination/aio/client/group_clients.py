"""Finds the group of a path, and keeps a client with a session for each group in use.

Invariants:
1. A group is asked for its namespaces once. A missing path is looked up again, since it may have
   moved.
2. A stale read returns nothing older than what this client has seen. A connection continues only
   where its session does: at a node that a quorum confirms, which has everything that was
   acknowledged until then. From then on the node only moves forward. What came over other
   connections, such as changes, is noted here and named in each stale read (`SEEN`).

Elsewhere: the commands (`async_client`), connections and repeats (`group_client`).
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, Self

from millstream.coordination.aio.client.durable_positions import DurablePlaces
from millstream.coordination.aio.client.group_client import DEADLINE_S, Client
from millstream.coordination.core.client.errors import MissingError
from millstream.coordination.core.client.replies import places_of, root_of
from millstream.coordination.core.client.wire import hello
from millstream.vsr.core.client_table import TIME_OUT_MS

__all__ = ["GroupClients", "words_of"]

_SYSTEM: Final = 1
"""The group that keeps the names of namespaces."""


class GroupClients:
    """A client for each group that is used; each has a session of its own.

    Arguments: as of `async_client.AsyncClient`.
    """

    def __init__(
        self, addresses: Sequence[str], *, user: str | None = None, password: str = "",
        deadline_s: float = DEADLINE_S, session_s: float = TIME_OUT_MS / 1000,
        tls: ssl.SSLContext | None = None, on_session_lost: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        def made(group: int) -> Client:
            return Client(
                addresses, user=user, password=password, deadline_s=deadline_s,
                session_s=session_s, tls=tls, on_session_lost=on_session_lost, group=group,
            )  # fmt: skip

        self.greeting = hello(user, password)
        self.addresses, self.tls = list(addresses), tls
        """How other connections of this client begin."""
        self._made = made
        self.raw = made(_SYSTEM)
        """The client of the system group: any command (`execute`), and registers."""
        self._groups = {_SYSTEM: self.raw}
        self._where: dict[str, int] = {}
        self._seen: dict[Client, int] = {}
        self.places = DurablePlaces()
        self.held: set[bytes] = set()
        """Paths of what this client's locks and the like hold or await."""

    async def __aenter__(self) -> Self:
        await self.raw.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End the session, and with it all that it holds; calls that wait end with errors."""
        for raw in self._groups.values():
            await raw.close()

    @property
    def client_id(self) -> str | None:
        """The session's name, once there is one; attributes and locks name it."""
        return self.raw.client_id

    async def at(self, path: str) -> Client:
        """Return the client of the group that has a path; it has a session of its own there."""
        root = root_of(path)
        if root and root not in self._where:
            with suppress(MissingError):  # then the system group says that there is none
                found = await self.raw.execute(b"VDS", root.encode(), is_change=False)
                self._where |= places_of(found)
        group = self._where.get(root, _SYSTEM)
        if group not in self._groups:
            self._groups[group] = raw = self._made(group)
            await raw.__aenter__()
        return self._groups[group]

    async def execute(self, *words: str | bytes, is_change: bool) -> Any:
        """Execute a command; return its reply as on the wire.

        Args:
            words: the command; without a number, which it gets if it is a change. It goes to the
                group that has the first path in it.
            is_change: whether it is logged; reads are not numbered.
        """
        found = words_of(words)
        path = next((word for word in found if word.startswith(b"/")), b"")
        return await self.execute_at(path.decode(errors="replace"), *found, is_change=is_change)

    def note_seen(self, group: Client, lsn: int) -> None:
        """Remember an LSN of a group that was seen over another connection."""
        self._seen[group] = max(lsn, self._seen.get(group, 0))

    async def read_stale(self, path: str, *words: bytes) -> Any:
        """Read without asking a quorum. The result is never older than what was seen before."""
        lsn = self._seen.get(await self.at(path), 0)
        seen = (b"SEEN", b"0:0:%d" % lsn) if lsn else ()
        return await self.execute_at(path, *seen, *words, b"STALEREAD", is_change=False)

    async def execute_at(self, path: str, *words: bytes, is_change: bool) -> Any:
        """Run a command at the group that has a path."""
        raw = await self.at(path)
        try:
            return await raw.execute(*words, is_change=is_change)
        except MissingError:
            self._where.pop(root_of(path), None)  # perhaps it is elsewhere by now
            raise


def words_of(words: Sequence[str | bytes]) -> tuple[bytes, ...]:
    """Return a command's words as bytes."""
    return tuple(word.encode() if isinstance(word, str) else word for word in words)
