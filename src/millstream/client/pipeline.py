"""Many requests in flight at once, each matched to its reply.

Invariants:
1. At most `IN_FLIGHT_MAX` requests and about `IN_FLIGHT_BYTES_MAX` bytes are unanswered per node.
2. Every item is yielded exactly once, with its final reply.
3. Of several items with one key the last one's effect is what remains: an item that has to be
   repeated is dropped (as done) once a later one of its key has succeeded.

Elsewhere: frames of the commands (`client.kv`). Replies are matched by opaque, so a node may
answer durable writes late and out of order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Generic, TypeVar

from millstream.client.routing import Backoff, Router, is_transient
from millstream.errors import RemoteProtocolError
from millstream.wire.mcbp import Packet, Status

__all__ = ["IN_FLIGHT_BYTES_MAX", "IN_FLIGHT_MAX", "exchange"]

IN_FLIGHT_MAX: Final = 4096
IN_FLIGHT_BYTES_MAX: Final = 4 * 1024 * 1024
_SEND_ITEMS: Final = 512
_SEND_BYTES: Final = 128 * 1024

_Item = TypeVar("_Item", bound=tuple[Any, ...])
_Encode = Callable[[_Item, int], tuple[int, bytes]]


def exchange(
    router: Router, items: Iterable[_Item], encode: _Encode[_Item]
) -> Iterator[tuple[_Item, Packet]]:
    """Send a request per item and yield each item with its reply.

    Args:
        router: finds the connections.
        items: tuples whose first member identifies the document.
        encode: (item, opaque) -> (partition, frame).

    Raises:
        UnavailableError: a connection broke; items not yet yielded may or may not have been done.
    """
    backoff: Backoff | None = None
    pending: Iterable[_Item] = items
    while True:
        again: list[tuple[_Item, Packet]] = []
        for item, packet in _once(router, pending, encode):
            if is_transient(packet.status):
                again.append((item, packet))
                continue
            if again and packet.status == Status.SUCCESS:
                done = [pair for pair in again if pair[0][0] == item[0]]
                again = [pair for pair in again if pair[0][0] != item[0]]
                yield from ((earlier, packet) for earlier, _ in done)
            yield item, packet
        if not again:
            return
        backoff = backoff or Backoff(router.timeout_s)
        if not backoff.wait():
            yield from again
            return
        router.refresh_map()
        pending = [item for item, _ in again]


def _once(
    router: Router, items: Iterable[_Item], encode: _Encode[_Item]
) -> Iterator[tuple[_Item, Packet]]:
    """Send every item once; yield replies as they come."""
    lanes: dict[int, _Lane[_Item]] = {}
    opaque = 0
    try:
        for item in items:
            opaque = (opaque + 1) & 0xFFFFFFFF
            partition_id, frame = encode(item, opaque)
            owner = router.map.owners[partition_id]
            lane = lanes.get(owner)
            if lane is None:
                lane = lanes[owner] = _Lane(router, partition_id)
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
        """Close the connection if replies are still to come: nobody would expect them."""
        if self._in_flight:
            self._connection.close()
