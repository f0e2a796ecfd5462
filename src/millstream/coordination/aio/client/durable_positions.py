"""How far the durable subscriptions of a client were heard: the group remembers it, by a name.

    place = DurablePlaces().named(b"jobs", client_of_path, (b"/app", b"TREE"))
    await place.begin()             # -> the LSN to go on from, None: from now on
    await place.acknowledge(lsn)

Invariants:
1. A place belongs to the client's session in its group; that session is used on the client's own
   connection, while changes come over another one. So the group is told of a name by a
   subscription there, which ends at once.
2. What was acknowledged is not told again under this name, whatever becomes of connections and of
   the session: a new one is told of the name anew, and how far it was heard.

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
