"""The positions of a client's durable subscriptions, which the group stores by name.

    place = DurablePlaces().named(b"jobs", client_of_path, (b"/app", b"TREE"))
    await place.begin()             # -> the LSN to resume from, None: from now on
    await place.acknowledge(lsn)

Invariants:
1. A position belongs to the session of the client in its group. That session is used on the
   client's own connection, while changes come over another one. So a name is registered by a
   subscription on the client's connection, which ends at once.
2. Acknowledged changes are not delivered again under this name, whatever happens to connections
   and the session: the name and the position are registered again in a new session.

Elsewhere: changes (`subscription`), repeats (`group_client`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from millstream.coordination.aio.client.group_client import Client
from millstream.coordination.core.client.errors import MissingError
from millstream.errors import UnavailableError

__all__ = ["DurablePlace", "DurablePlaces"]


class DurablePlaces:
    """Of one client."""

    def __init__(self) -> None:
        self.heard: dict[tuple[Client, bytes], int] = {}

    def named(
        self, name: bytes, at: Callable[[], Awaitable[Client]], words: Sequence[bytes]
    ) -> DurablePlace:
        """Return the place of this name, of a subscription to a path with some options (`words`).

        `at` returns the client of the group that has the path.
        """
        return DurablePlace(self, name, at, words)


class DurablePlace:
    """One of them."""

    def __init__(
        self, places: DurablePlaces, name: bytes, at: Callable[[], Awaitable[Client]],
        words: Sequence[bytes],
    ) -> None:  # fmt: skip
        self._places, self._name, self._at, self._words = places, name, at, tuple(words)

    async def begin(self) -> int | None:
        """Let the group remember the name. Return its position, if it has one.

        Raises:
            MillstreamError: as subscribing does.
        """
        client = await self._at()
        await self._tell(client)
        return self._places.heard.get((client, self._name))

    async def _tell(self, client: Client) -> None:
        durable = (b"DURABLE", self._name)
        await client.execute(b"SUBSCRIBE", *self._words, *durable, is_change=True)
        await client.execute(b"UNSUBSCRIBE", self._words[0], is_change=False)

    async def acknowledge(self, lsn: int) -> None:
        """Let the group remember that everything up to there is processed.

        If the group cannot be reached now, the next acknowledgement covers this one.
        """
        client = await self._at()
        self._places.heard[client, self._name] = lsn
        words = (b"SUBACK", self._name, b"%d" % lsn)
        try:
            try:
                await client.execute(*words, is_change=True)
            except MissingError:  # the session is another one by now
                await self._tell(client)
                await client.execute(*words, is_change=True)
        except (UnavailableError, MissingError):
            return
