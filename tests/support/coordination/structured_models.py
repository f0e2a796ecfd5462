"""Counters, lists, sets and queues as anybody would write them: what the real ones are held to.

Each method is one command. It gives what a client sees (see `shown`): bytes, numbers, None for
null, lists for arrays, frozensets for sets, `Status` and `Error` for those.
"""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from millstream.coordination.core.namespace.commands.command import parse
from millstream.coordination.core.namespace.machine import COMMANDS
from millstream.coordination.core.namespace.refused import Refused
from millstream.coordination.core.namespace.state.run import Asker
from millstream.coordination.core.namespace.state.state import Job
from millstream.vsr.core.values import items
from millstream.vsr.core.versions import Version
from support.coordination.namespace_machine import Tree

Seen = object
"""What a client sees of a reply."""


class Status(NamedTuple):
    """A word like OK."""

    word: bytes


class Error(NamedTuple):
    """The code of an error."""

    code: bytes


OK = Status(b"OK")
BADARG = Error(b"BADARG")


def shown(value: bytes) -> Seen:
    """Return what a client sees of a reply."""
    kind, rest = value[:1], value[1:]
    if kind == b"*":
        return [shown(item) for item in items(value)]
    if kind == b"~":
        return frozenset(shown(item) for item in items(value))
    if kind == b"%":
        parts = [shown(item) for item in items(value)]
        return dict(zip(parts[::2], parts[1::2], strict=True))
    return {
        b"+": lambda: Status(rest),
        b"-": lambda: Error(rest.split(b" ")[0]),
        b"=": lambda: rest,
        b":": lambda: int(rest),
        b"#": lambda: rest == b"t",
        b"_": lambda: None,
    }[kind]()


class CounterModel:
    """A number between two ends, written as it is defined: no two's complement, just circles."""

    def __init__(self, bits: int = 64, is_unsigned: bool = False, is_wrapping: bool = False):
        self.low = 0 if is_unsigned else -(2 ** (bits - 1))
        self.high = self.low + 2**bits - 1
        self.is_wrapping = is_wrapping
        self.value = 0

    def add(self, count: int, is_wrapping: bool) -> Seen:
        changed = self.value + count
        if self.low <= changed <= self.high:
            self.value = changed
            return changed
        if not (is_wrapping or self.is_wrapping):
            self.value = self.high if changed > self.high else self.low
            return [self.value, Status(b"NOWRAP")]
        circle = self.high - self.low + 1
        self.value = self.low + (changed - self.low) % circle
        return self.value

    def reset(self) -> Seen:
        self.value = 0
        return 0


class ListModel:
    """A list of Python's."""

    def __init__(self, items: list[bytes]) -> None:
        self.items = items

    def append(self, values: list[bytes]) -> Seen:
        self.items = self.items + values
        return len(self.items)

    def prepend(self, values: list[bytes]) -> Seen:
        self.items = values + self.items
        return len(self.items)

    def insert(self, index: int, value: bytes) -> Seen:
        if not -len(self.items) <= index <= len(self.items):
            return BADARG
        self.items.insert(index, value)
        return len(self.items)

    def set(self, index: int, value: bytes) -> Seen:
        if not -len(self.items) <= index < len(self.items):
            return BADARG
        self.items[index] = value
        return OK

    def remove(self, index: int, count: int) -> Seen:
        begin = index + len(self.items) if index < 0 else index
        if not 0 <= begin < len(self.items):
            return []
        gone = self.items[begin : begin + count]
        del self.items[begin : begin + count]
        return gone

    def remove_value(self, value: bytes, most: int | None) -> Seen:
        kept, count = [], 0
        for item in self.items:
            if item == value and (most is None or count < most):
                count += 1
            else:
                kept.append(item)
        self.items = kept
        return count

    def trim(self, first: int, last: int) -> Seen:
        self.items = self.range(first, last)
        return len(self.items)

    def range(self, first: int, last: int) -> list[bytes]:
        size = len(self.items)
        begin = first + size if first < 0 else first
        end = last + size if last < 0 else last
        return [item for at, item in enumerate(self.items) if begin <= at <= end]

    def index(self, index: int) -> Seen:
        there = -len(self.items) <= index < len(self.items)
        return self.items[index] if there else None

    def find(self, value: bytes) -> Seen:
        return self.items.index(value) if value in self.items else None


class SetModel:
    """A set of Python's."""

    def __init__(self, members: set[bytes]) -> None:
        self.members = members

    def add(self, members: list[bytes]) -> Seen:
        before = len(self.members)
        self.members = self.members | set(members)
        return len(self.members) - before

    def remove(self, members: list[bytes]) -> Seen:
        before = len(self.members)
        self.members = self.members - set(members)
        return before - len(self.members)

    def pop(self) -> Seen:
        if not self.members:
            return None
        smallest = min(self.members)
        self.members = self.members - {smallest}
        return smallest


class Item(NamedTuple):
    """Of a queue; `place` says in what order items were pushed, over all of it."""

    id: bytes
    value: bytes
    priority: int
    deliveries: int
    place: int


class QueueModel:
    """Two lists: what is ready, the next one first, and who has taken what."""

    def __init__(self) -> None:
        self.ready: list[Item] = []
        self.taken: list[tuple[int, Item]] = []
        self.pushed = 0

    def push(self, ids: list[bytes], values: list[bytes], priority: int) -> Seen:
        for name, value in zip(ids, values, strict=True):
            self.pushed += 1
            item = Item(name, value, priority, 0, self.pushed)
            behind = [at for at, other in enumerate(self.ready) if other.priority < priority]
            self.ready.insert(behind[0] if behind else len(self.ready), item)
        return ids

    def pop(self, count: int) -> Seen:
        gone, self.ready = self.ready[:count], self.ready[count:]
        return [item.value for item in gone]

    def take(self, session: int, count: int) -> Seen:
        gone, self.ready = self.ready[:count], self.ready[count:]
        counted = [item._replace(deliveries=item.deliveries + 1) for item in gone]
        self.taken += [(session, item) for item in counted]
        return [[item.id, item.value, item.deliveries] for item in counted]

    def acknowledge(self, session: int, ids: list[bytes]) -> Seen:
        mine = [(who, item) for who, item in self.taken if who == session and item.id in ids]
        self.taken = [pair for pair in self.taken if pair not in mine]
        return len(mine)

    def refuse(self, session: int, ids: list[bytes]) -> Seen:
        mine = [(who, item) for who, item in self.taken if who == session and item.id in ids]
        self.taken = [pair for pair in self.taken if pair not in mine]
        for item in sorted((item for _, item in mine), key=lambda item: -item.place):
            ahead = [at for at, other in enumerate(self.ready) if other.priority <= item.priority]
            self.ready.insert(ahead[0] if ahead else len(self.ready), item)
        return len(mine)

    def end_session(self, session: int) -> None:
        self.refuse(session, [item.id for who, item in self.taken if who == session])

    def purge(self) -> Seen:
        count, self.ready = len(self.ready), []
        return count


def seen(tree: Tree, *words: bytes | str, session: int = 7) -> Seen:
    """Have a command logged; return what its client sees. What is refused changes nothing."""
    before = tree.bytes
    found = shown(tree.do(*words, session=session))
    assert not isinstance(found, Error) or tree.bytes == before
    return found


def looked_up(tree: Tree, *words: bytes | str) -> Seen:
    """Have something read."""
    return shown(tree.read(*words))


def check_undone(tree: Tree, *words: bytes) -> None:
    """Take a command back after it was executed: the state is what it was."""
    before = tree.bytes
    asker = Asker(7, 0, b"i" * 16)
    job = Job(tree.machine.state, asker, Version(1, 2, tree.lsn + 1), 0)
    mark = job.mark()
    with suppress(Refused):
        parse(words, COMMANDS).execute(job)
    job.roll_back(mark)
    assert tree.bytes == before
    assert not job.happened
