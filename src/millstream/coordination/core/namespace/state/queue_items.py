"""The items of queues: ready, in the order in which they leave, or taken by a session.

Invariants:
1. An item is ready or taken by one session. Only that session acknowledges or returns it.
2. Items leave by priority, then by place. A pushed item gets the last place of its priority, a
   returned one the first. Several returned items keep the order of their PUSH.
3. A session has at most `TAKEN_MAX` items, so the work at its end is bounded.

Elsewhere: commands (`queues`), clients that wait for items (`holders`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from struct import Struct
from typing import Final, NamedTuple

from millstream.coordination.core.namespace.refused import Refused
from millstream.coordination.core.namespace.state.elements import Elements, key_of
from millstream.coordination.core.namespace.state.family import Family
from millstream.coordination.core.namespace.state.run import Run
from millstream.coordination.core.namespace.tables import Table, Tables
from millstream.vsr.core.values import OK

__all__ = ["PRIORITY_MAX", "TAKEN_MAX", "Item", "QueueItems", "Queues"]

TAKEN_MAX: Final = 10_000
"""Items that one session has at once, of all queues together."""
PRIORITY_MAX: Final = 2**31 - 1
"""The highest; the lowest is minus that."""
_MIDDLE: Final = 2**63
_RANK: Final = Struct(">IQ")
_QUEUE: Final = Struct(">6Q")
_ITEM: Final = Struct(">IIQIiQ")
_NAME: Final = Struct(">IIQI")
_TAKER: Final = Struct(">I")


class Queue(NamedTuple):
    """How many items are ready and taken, how many bytes they have, and the next free places."""

    ready: int = 0
    taken: int = 0
    ready_size: int = 0
    taken_size: int = 0
    first: int = _MIDDLE - 1
    last: int = _MIDDLE


class Item(NamedTuple):
    """One item: of which push, its number among all that the entry pushed, how often taken."""

    epoch: int
    view: int
    lsn: int
    number: int
    priority: int
    deliveries: int
    value: bytes

    @property
    def id(self) -> bytes:
        """As clients see it."""
        return b"%d:%d:%d:%d" % self[:4]

    @property
    def name(self) -> bytes:
        """The same as part of a key."""
        return _NAME.pack(*self[:4])


class QueueTables(NamedTuple):
    """Queues by element.

    `ready`: items by element, priority from the highest down, place. `taken`: by element, session,
    name. `takers`: by session and element, how many items of that queue the session has.
    """

    queues: Table[Queue]
    ready: Table[Item]
    taken: Table[Item]
    takers: Table[int]


class QueueItems:
    """The items of one queue."""

    def __init__(self, tables: QueueTables, element: int, freed: Callable[[int], None]) -> None:
        self._tables, self._key = tables, key_of(element)
        self._element, self._freed = element, freed
        self.now = tables.queues.get(self._key) or Queue()

    @property
    def count(self) -> int:
        """How many items there are."""
        return self.now.ready + self.now.taken

    @property
    def size(self) -> int:
        """How many bytes they have."""
        return self.now.ready_size + self.now.taken_size

    def ready(self) -> Iterator[Item]:
        """Yield what is ready, the next one first; the queue must not change meanwhile."""
        return (item for _, item in self._tables.ready.under(self._key))

    def push(self, items: Sequence[Item]) -> None:
        """Put items behind all of their priority."""
        last = self.now.last
        self._add(items, last)
        self._keep(last=last + len(items))

    def pop(self, count: int, bytes_max: int) -> list[Item]:
        """Remove and return the next items: at least one, at most this many items and bytes."""
        found: list[tuple[bytes, Item]] = []
        size = 0
        for key, item in self._tables.ready.under(self._key):
            size += len(item.value)
            if len(found) == count or (found and size > bytes_max):
                break
            found.append((key, item))
        for key, _ in found:
            self._tables.ready.delete(key)
        gone = [item for _, item in found]
        ready_size = self.now.ready_size - _size(gone)
        self._keep(ready=self.now.ready - len(gone), ready_size=ready_size)
        return gone

    def purge(self) -> int:
        """Remove all that is ready; return how many items that was."""
        count = self.now.ready
        self._tables.ready.clear(self._key)
        self._keep(ready=0, ready_size=0)
        return count

    def take(self, session: int, count: int, bytes_max: int) -> list[Item]:
        """Give what is next to a session, as `pop` does."""
        gone = [
            item._replace(deliveries=item.deliveries + 1) for item in self.pop(count, bytes_max)
        ]
        for item in gone:
            self._tables.taken.put(self._key + key_of(session) + item.name, item)
        self._count(session, len(gone), _size(gone))
        return gone

    def acknowledge(self, session: int, names: Iterable[bytes]) -> int:
        """End items that the session has; return how many of the names were such."""
        return len(self._untake(session, names))

    def give_back(self, session: int, names: Iterable[bytes]) -> int:
        """Put items that the session has in front of their priority; return how many."""
        gone = sorted(self._untake(session, names))
        first = self.now.first - len(gone)
        self._add(gone, first + 1)
        self._keep(first=first)
        return len(gone)

    def give_all_back(self, session: int) -> None:
        """The same with all that the session has."""
        mine = self._tables.taken.under(self._key + key_of(session))
        self.give_back(session, [item.name for _, item in mine])

    def drop(self) -> None:
        """Forget everything."""
        for session in list(self._takers()):
            self._tables.takers.delete(key_of(session) + self._key)
        self._tables.ready.clear(self._key)
        self._tables.taken.clear(self._key)
        self._tables.queues.delete(self._key)

    def _takers(self) -> Iterator[int]:
        """Yield the sessions that have items, with one look at each."""
        width, start = len(self._key), b""
        while found := next(self._tables.taken.under(self._key, start), None):
            session = int.from_bytes(found[0][width : 2 * width], "big")
            yield session
            start = key_of(session + 1)

    def _add(self, items: Sequence[Item], first: int) -> None:
        for place, item in enumerate(items, first):
            rank = _RANK.pack(PRIORITY_MAX - item.priority, place)
            self._tables.ready.put(self._key + rank, item)
        ready_size = self.now.ready_size + _size(items)
        self._keep(ready=self.now.ready + len(items), ready_size=ready_size)
        if items:
            self._freed(self._element)

    def _untake(self, session: int, names: Iterable[bytes]) -> list[Item]:
        mine = self._key + key_of(session)
        gone = [item for name in names if (item := self._tables.taken.delete(mine + name))]
        self._count(session, -len(gone), -_size(gone))
        return gone

    def _count(self, session: int, more: int, size: int) -> None:
        """Count items that a session has taken or given back."""
        if not more:
            return
        key = key_of(session) + self._key
        has = (self._tables.takers.get(key) or 0) + more
        assert has >= 0, "a session gives back more than it has"
        if has:
            self._tables.takers.put(key, has)
        else:
            self._tables.takers.delete(key)
        self._keep(taken=self.now.taken + more, taken_size=self.now.taken_size + size)

    def _keep(self, **changes: int) -> None:
        self.now = now = self.now._replace(**changes)
        assert now.ready >= 0 <= now.ready_size, "less than nothing is ready"
        assert now.taken >= 0 <= now.taken_size, "less than nothing is taken"
        self._tables.queues.put(self._key, self.now)


def _size(items: Iterable[Item]) -> int:
    return sum(len(item.value) for item in items)


# ---- encoding


def _encode_queue(queue: Queue) -> bytes:
    """Return its numbers."""
    return _QUEUE.pack(*queue)


def _decode_queue(text: bytes) -> Queue:
    """Return what was encoded; ValueError."""
    if len(text) != _QUEUE.size:
        raise ValueError("a queue has a wrong length")
    return Queue(*_QUEUE.unpack(text))


def _encode_item(item: Item) -> bytes:
    """Return its numbers and its value."""
    return _ITEM.pack(*item[:6]) + item.value


def _decode_item(text: bytes) -> Item:
    """Return what was encoded; ValueError."""
    if len(text) < _ITEM.size:
        raise ValueError("an item of a queue is cut off")
    epoch, view, lsn, number, priority, deliveries = _ITEM.unpack_from(text)
    return Item(epoch, view, lsn, number, priority, deliveries, text[_ITEM.size :])


class Queues(Family):
    """The queues by element."""

    def __init__(self, tables: Tables, elements: Elements) -> None:
        self._elements = elements
        self.freed: Callable[[int], None] = _nobody_waits
        """Called with each queue that has more items ready."""
        self.wait: Callable[[Run, int], bytes] = self._go_on
        """Gives the reply of somebody who waits for a queue to have items ready."""
        self._tables = QueueTables(
            tables.add(_encode_queue, _decode_queue),
            tables.add(_encode_item, _decode_item),
            tables.add(_encode_item, _decode_item),
            tables.add(_TAKER.pack, _count_in),
        )

    def _go_on(self, _run: Run, element: int) -> bytes:
        if not self.ready(element):
            raise Refused("WOULDBLOCK", "no item is ready")
        return OK

    def of(self, element: int) -> QueueItems:
        """Return the items of a queue."""
        return QueueItems(self._tables, element, self.freed)

    def ready(self, element: int) -> int:
        """Return how many items of a queue are ready."""
        return self.of(element).now.ready

    def taken_by(self, session: int) -> list[tuple[int, int]]:
        """Return the queues of which a session has items, and how many."""
        key = key_of(session)
        found = self._tables.takers.under(key)
        return [(int.from_bytes(name[len(key) :], "big"), count) for name, count in found]

    def number_taken(self, session: int) -> int:
        """Return how many items a session has, of all queues."""
        return sum(count for _, count in self.taken_by(session))

    def session_ended(self, run: Run, session: int) -> None:
        """Give back what it has."""
        for element, _ in self.taken_by(session):
            self.of(element).give_all_back(session)
            self._elements.touch(run, element)
            self._elements.tell(run, b"queue", element)

    def deleted(self, run: Run, element: int) -> None:
        """Forget its items, also those that are taken."""
        if self._tables.queues.get(key_of(element)) is not None:
            self.of(element).drop()


def _nobody_waits(_element: int) -> None:
    pass


def _count_in(text: bytes) -> int:
    if len(text) != _TAKER.size:
        raise ValueError("a number of items has a wrong length")
    (count,) = _TAKER.unpack(text)
    return int(count)
