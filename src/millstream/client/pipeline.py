"""Many requests in flight at once, each matched to its reply.

Invariants:
1. At most `IN_FLIGHT_MAX` requests and about `IN_FLIGHT_BYTES_MAX` bytes are unanswered per node.
2. Every item is yielded exactly once, with its final reply.
3. Of several items with one key the last one's effect is what remains: an item that has to be
   repeated is dropped (as done) once a later one of its key has succeeded.
4. While items are refused for the moment no new ones are taken, so hardly more than were in
   flight wait to be repeated. They are final when nothing was done for the timeout; so are
   later ones then, at once, until something is done again.
5. Items whose node cannot be connected to, where there are others, were not sent: they count as
   refused for the moment, since another node may take its place. It is an error when nothing was
   done for the timeout.

Elsewhere: frames of the commands (`client.kv`). Replies are matched by opaque, so a node may
answer durable writes late and out of order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, Final, Generic, TypeVar

from millstream.client.routing import Backoff, Router, is_transient
from millstream.errors import RemoteProtocolError, UnavailableError
from millstream.wire.mcbp import RESPONSE, Packet, Status

__all__ = ["IN_FLIGHT_BYTES_MAX", "IN_FLIGHT_MAX", "exchange"]

IN_FLIGHT_MAX: Final = 4096
IN_FLIGHT_BYTES_MAX: Final = 4 * 1024 * 1024
_SEND_ITEMS: Final = 512
_SEND_BYTES: Final = 128 * 1024

_NOT_SENT: Final = Packet(RESPONSE, 0, 0, Status.ETMPFAIL, 0, 0, b"", b"", b"", b"")

_Item = TypeVar("_Item", bound=tuple[Any, ...])
_Encode = Callable[[_Item, int], tuple[int, bytes]]


def exchange(
    router: Router, items: Iterable[_Item], encode: _Encode[_Item]
) -> Iterator[tuple[_Item, Packet]]:
    """Send a request per item and yield each item with its reply.

    Args:
        router: finds the connections; its timeout bounds the repetition.
        items: tuples whose first member identifies the document.
        encode: (item, opaque) -> (partition, frame).

    Raises:
        UnavailableError: a connection broke, and items not yet yielded may or may not have been
            done; a node cannot be connected to for longer than the timeout.
    """
    backoff: Backoff | None = None
    feed = _Feed(items)
    while not feed.is_over:
        is_stuck = True
        away: list[UnavailableError] = []
        for item, packet in _once(router, feed.turn(), encode, away):
            if is_transient(packet.status):
                feed.put_back(item, packet)
                continue
            is_stuck = False
            if packet.status == Status.SUCCESS:
                yield from ((earlier, packet) for earlier, _ in feed.take_back(item))
            yield item, packet
        if feed.refused:
            backoff = backoff if backoff and is_stuck else Backoff(router.timeout_s)
            if backoff.wait():
                with suppress(UnavailableError):  # the next try says so
                    router.refresh_map()
            elif away:
                raise away[0]
            else:
                yield from feed.give_up()


class _Feed(Generic[_Item]):
    """What is still to be sent: what was refused first, and new items while nothing is."""

    def __init__(self, items: Iterable[_Item]) -> None:
        self._fresh = iter(items)
        self._has_ended = False
        self.refused: dict[Any, list[tuple[_Item, Packet]]] = {}
        """Refused items by their first member, in the order of the items."""

    @property
    def is_over(self) -> bool:
        """Whether everything has its final reply."""
        return self._has_ended and not self.refused

    def turn(self) -> Iterator[_Item]:
        """Yield what is to be sent until something is refused."""
        again = [item for item, _ in self.give_up()]
        yield from again
        if self.refused:
            return
        for item in self._fresh:
            yield item
            if self.refused:
                return
        self._has_ended = True

    def put_back(self, item: _Item, packet: Packet) -> None:
        """Keep an item that was refused."""
        self.refused.setdefault(item[0], []).append((item, packet))

    def take_back(self, item: _Item) -> list[tuple[_Item, Packet]]:
        """Return the refused items that this one, done after them, makes needless."""
        return self.refused.pop(item[0], []) if self.refused else []

    def give_up(self) -> list[tuple[_Item, Packet]]:
        """Return all that was refused, and forget it."""
        found = [pair for pairs in self.refused.values() for pair in pairs]
        self.refused = {}
        return found


def _once(
    router: Router,
    items: Iterable[_Item],
    encode: _Encode[_Item],
    away: list[UnavailableError],
) -> Iterator[tuple[_Item, Packet]]:
    """Send every item once; yield replies as they come.

    An item that was not sent (invariant 5) comes with `_NOT_SENT`; why is added to `away`.
    """
    lanes: dict[int, _Lane[_Item]] = {}
    opaque = 0
    try:
        for item in items:
            opaque = (opaque + 1) & 0xFFFFFFFF
            partition_id, frame = encode(item, opaque)
            owner = router.map.owners[partition_id]
            lane = lanes.get(owner)
            if lane is None:
                try:
                    lane = lanes[owner] = _Lane(router, partition_id)
                except UnavailableError as error:
                    if len(router.map.nodes) == 1:
                        raise
                    away.append(error)
                    yield item, _NOT_SENT
                    continue
            if lane.add(opaque, item, frame):
                lane.send()
                yield from lane.receive_until(IN_FLIGHT_MAX // 2)
        for lane in lanes.values():
            lane.send()
        for lane in lanes.values():
            yield from lane.receive_until(0)
    finally:
        for lane in lanes.values():
            lane.leave()


class _Lane(Generic[_Item]):
    """The requests of one exchange that go to one node."""

    def __init__(self, router: Router, partition_id: int) -> None:
        self._connection = router.connection_of(partition_id)
        self._frames: list[bytes] = []
        self._frames_bytes = 0
        self._in_flight: dict[int, tuple[_Item, int]] = {}
        self._in_flight_bytes = 0

    def add(self, opaque: int, item: _Item, frame: bytes) -> bool:
        """Queue a frame; True when it is time to send."""
        size = len(frame)
        self._frames.append(frame)
        self._frames_bytes += size
        self._in_flight[opaque] = item, size
        return len(self._frames) >= _SEND_ITEMS or self._frames_bytes >= _SEND_BYTES

    def send(self) -> None:
        """Send what is queued."""
        self._connection.send(b"".join(self._frames))
        self._in_flight_bytes += self._frames_bytes
        self._frames, self._frames_bytes = [], 0

    def receive_until(self, count_max: int) -> Iterator[tuple[_Item, Packet]]:
        """Yield replies until at most `count_max` requests and the byte bound are unanswered."""
        in_flight = self._in_flight
        bytes_max = IN_FLIGHT_BYTES_MAX if count_max else 0
        while len(in_flight) > count_max or self._in_flight_bytes > bytes_max:
            for packet in self._connection.receive():
                found = in_flight.pop(packet.opaque, None)
                if found is None:
                    raise RemoteProtocolError(
                        f"{self._connection.address} answered a request that was not made",
                        code="unexpected_reply",
                    )
                self._in_flight_bytes -= found[1]
                yield found[0], packet

    def leave(self) -> None:
        """Close the connection if replies are still to come, as no caller expects them."""
        if self._in_flight:
            self._connection.close()
