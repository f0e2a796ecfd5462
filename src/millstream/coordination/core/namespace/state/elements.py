"""Elements: the tree of a group's namespaces, by number, name and path.

Invariants:
1. An element has a number that no other element ever has, and keeps it when it moves. So
   everything about it is stored under its number, and a move changes two records.
2. Names below an element are unique. `nchildren` is their number.
3. The version of an element changes with its data and its own attributes. Its child version
   changes when children are added or removed.
4. An ephemeral element has no children. It ends with its session, or with the last other session
   that holds something on it or waits for it.

Elsewhere: commands (`tree`), data (`data`, and the modules of the types).

Source: V2R2, "Namespace", "Elements".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple

from millstream.coordination.core.namespace.paths import DEPTH_MAX, Path, joined
from millstream.coordination.core.namespace.refused import Refused
from millstream.coordination.core.namespace.state.access_lists import Readers
from millstream.coordination.core.namespace.state.family import Family, hearing
from millstream.coordination.core.namespace.state.run import Happened, Run
from millstream.coordination.core.namespace.tables import Tables, as_bytes
from millstream.vsr.core.versions import NEVER, Version

__all__ = ["MOVED_MAX", "OWNED_MAX", "WORK_MAX", "Element", "Elements", "Type", "key_of"]

WORK_MAX: Final = 10_000
"""Elements that one entry goes through to delete or change them; beyond that: TOOBIG."""
MOVED_MAX: Final = 100_000
"""Elements that are moved at once to where paths are longer, as none may become too long."""
OWNED_MAX: Final = 5000
"""Ephemeral elements of one session, and as many things that it holds or awaits: one entry ends
all of them."""
_KEY: Final = Struct(">Q")
_HEAD: Final = Struct(">QBBQQHHHIIQIIQIIQQQQQQQQ")
_NUMBER: Final = b"number"
_ALL: Final = 0


class Type(IntEnum):
    """What an element holds."""

    ROOT = 0
    BINARY = 1
    LIST = 2
    SET = 3
    QUEUE = 4
    COUNTER = 5

    @property
    def text(self) -> bytes:
        """As clients see it."""
        return _TEXTS[self]


_TEXTS: Final = tuple(kind.name.encode() for kind in Type)


class Element(NamedTuple):
    """What every element has. Times in ms: `ts` of the entry, `cts` as its client said, or 0."""

    parent: int
    name: bytes
    type: Type
    is_ephemeral: bool = False
    is_sequential: bool = False
    owner: int = 0
    """The session that an ephemeral element ends with; 0 once that has ended."""
    nchildren: int = 0
    sequence: int = 0
    """The number that the next sequential child gets."""
    created_version: Version = NEVER
    version: Version = NEVER
    child_version: Version = NEVER
    created_ts: int = 0
    ts: int = 0
    created_cts: int = 0
    cts: int = 0
    data_len: int = 0
    created_client: bytes = b""
    client: bytes = b""


class Place(NamedTuple):
    """An element and all above it, by number, itself first; and its path."""

    line: tuple[int, ...]
    path: bytes


_NOWHERE: Final = Place((), b"")
PLACES_MAX: Final = 8_192
"""Elements whose places are known without a search; when they are as many, they are forgotten."""


key_of: Final[Callable[[int], bytes]] = _KEY.pack
"""Return the key of what there is once for an element, and the beginning of other keys."""


def _encode(one: Element) -> bytes:
    texts = one.name, one.created_client, one.client
    flags = one.is_ephemeral | one.is_sequential << 1
    return b"".join(
        (
            _HEAD.pack(
                one.parent, one.type, flags, one.owner, one.nchildren, *map(len, texts),
                *one.created_version, *one.version, *one.child_version, one.sequence,
                one.created_ts, one.ts, one.created_cts, one.cts, one.data_len, 0,
            ),
            *texts,
        )
    )  # fmt: skip


def _decode(text: bytes) -> Element:
    parent, kind, flags, owner, nchildren, *rest = _HEAD.unpack_from(text)
    sizes, numbers = rest[:3], rest[3:]
    texts, at = [], _HEAD.size
    for size in sizes:
        texts.append(text[at : at + size])
        at += size
    if at != len(text):
        raise ValueError("an element has a wrong length")
    created, version, child = (Version(*numbers[i : i + 3]) for i in (0, 3, 6))
    sequence, created_ts, ts, created_cts, cts, data_len, _ = numbers[9:]
    return Element(
        parent, texts[0], Type(kind), bool(flags & 1), bool(flags & 2), owner, nchildren, sequence,
        created, version, child, created_ts, ts, created_cts, cts, data_len, texts[1], texts[2],
    )  # fmt: skip


class Elements(Family):
    """The tree. Number 0 stands for what is above the namespaces, and is no element."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._places: dict[int, Place] = {}
        """The places of elements that were asked for since the last move or revert."""
        self._places_as_of = 0
        self._elements = tables.add(_encode, _decode)
        self._children = tables.add(as_bytes, as_bytes)
        """Parent's number and name -> number."""
        self._ephemeral = tables.add(as_bytes, as_bytes)
        """Session and number -> nothing."""
        self._counted = tables.add(as_bytes, as_bytes)
        self.readers: Callable[[int], Readers]
        """Return who may read an element now."""
        self.tell_families(())

    def tell_families(self, families: Sequence[Family]) -> None:
        """Tell these from now on: all of the state, this one among them, once all are made."""
        self._creating, self._deleting = hearing("created", families), hearing("deleted", families)
        self._resizing, self._counting = hearing("resized", families), hearing("counted", families)
        self._moving, self._wanting = hearing("moved", families), hearing("is_wanted", families)

    def __len__(self) -> int:
        return len(self._elements)

    # ---- finding

    def find(self, path: Path) -> int | None:
        """Return the number of what is there."""
        return self._children.descend(path)

    def at(self, path: Path) -> int:
        """Return the number of what has to be there.

        Raises:
            Refused: ERROR_DOES_NOT_EXISTS.
        """
        found = self._children.descend(path)
        if found is None:
            raise Refused("ERROR_DOES_NOT_EXISTS", joined(path).decode())
        return found

    def deepest(self, path: Path) -> Path:
        """Return as much of a path as is there."""
        number, depth = _ALL, 0
        for name in path:
            found = self._children.get(_KEY.pack(number) + name)
            if found is None:
                break
            (number,) = _KEY.unpack(found)
            depth += 1
        return path[:depth]

    def there(self, number: int) -> Element:
        """Return an element; there has to be one of this number."""
        found = self._elements.get(_KEY.pack(number))
        assert found is not None
        return found

    def get(self, number: int) -> Element | None:
        """Return an element, if it is still there."""
        return self._elements.get(_KEY.pack(number))

    def place(self, number: int) -> Place:
        """Return where an element is."""
        if self._places_as_of != self._tables.reversals:
            self._forget_places()
        return self._places.get(number) or self._found_place(number)

    def _found_place(self, number: int) -> Place:
        if len(self._places) >= PLACES_MAX:
            self._forget_places()
        one = self.there(number)
        above = self.place(one.parent) if one.parent != _ALL else _NOWHERE
        found = Place((number, *above.line), b"%b/%b" % (above.path, one.name))
        self._places[number] = found
        return found

    def _forget_places(self) -> None:
        self._places.clear()
        self._places_as_of = self._tables.reversals

    def line(self, number: int) -> tuple[int, ...]:
        """Return an element and all above it, by number, itself first."""
        return self.place(number).line

    def path(self, number: int) -> bytes:
        """Return the path of an element."""
        return self.place(number).path

    def child(self, number: int, name: bytes) -> int | None:
        """Return what has this name below an element."""
        found = self._children.get(_KEY.pack(number) + name)
        return None if found is None else _KEY.unpack(found)[0]

    def children(self, number: int, after: bytes | None = None) -> Iterator[tuple[bytes, int]]:
        """Yield names and numbers below an element, by name; behind one, if it is given."""
        start = b"" if after is None else after + b"\0"
        prefix = _KEY.pack(number)
        for key, found in self._children.under(prefix, start):
            yield key[len(prefix) :], _KEY.unpack(found)[0]

    def tree(self, number: int, run: Run | None = None) -> list[int]:
        """Return an element and all below it, each before what is above it, names descending.

        `run`: what has it in hand, for which all that was returned counts.

        Raises:
            Refused: TOOBIG, if there are more than `WORK_MAX`.
        """
        found, at = [number], 0
        done = run.worked if run is not None else 0
        while at < len(found):
            if self.there(found[at]).nchildren:
                found += [child for _, child in self.children(found[at])]
            at += 1
            if done + len(found) > WORK_MAX:
                raise Refused("TOOBIG", f"at most {WORK_MAX} elements at once; delete some first")
        found.reverse()
        if run is not None:
            run.worked += len(found)
        return found

    def refuse_too_deep(self, number: int, depth: int) -> None:
        """Raise Refused if the paths below an element become too long under this many more names.

        The code is BADPATH, or TOOBIG if there are too many elements to check.
        """
        level, seen = [number], 0
        while level:
            seen += len(level)
            if depth > DEPTH_MAX:
                raise Refused("BADPATH", f"a path has at most {DEPTH_MAX} names")
            if seen > MOVED_MAX:
                raise Refused("TOOBIG", f"at most {MOVED_MAX} elements at once; move parts first")
            above = [each for each in level if self.there(each).nchildren]
            level = [child for each in above for _, child in self.children(each)]
            depth += 1

    # ---- changing

    def create(
        self, run: Run, parent: int, name: bytes, one: Element, sequence: int | None = None
    ) -> int:
        """Create an element below another one. The name is free and the parent exists.

        `sequence`: the number that the parent gives next, if it gave one.

        Raises:
            Refused: QUOTA.
        """
        if one.owner and self.owned(one.owner) >= OWNED_MAX:
            raise Refused("QUOTA", f"a session has {OWNED_MAX} ephemeral elements at most")
        number = self._next_number()
        version, ts_ms, stamp, client = run.version, run.ts_ms, run.asker.stamp, run.client
        key = _KEY.pack(number)
        self._elements.put(key, Element(
            parent, name, one.type, one.is_ephemeral, one.is_sequential, one.owner, one.nchildren,
            one.sequence, version, version, version, ts_ms, ts_ms, stamp, stamp, one.data_len,
            client, client,
        ))  # fmt: skip
        self._children.put(_KEY.pack(parent) + name, key)
        if one.owner:
            self._ephemeral.put(_KEY.pack(one.owner) + key, b"")
        self._count_child(run, parent, 1, sequence)
        for family in self._creating:
            family.created(run, number, parent, one.data_len)
        return number

    def _next_number(self) -> int:
        last = self._counted.get(_NUMBER)
        number = 1 if last is None else _KEY.unpack(last)[0] + 1
        self._counted.put(_NUMBER, _KEY.pack(number))
        return number

    def _count_child(self, run: Run, parent: int, more: int, sequence: int | None = None) -> None:
        if parent != _ALL:
            (
                above, name, kind, is_ephemeral, is_sequential, owner, nchildren, last, created,
                version, _, created_ts, _, created_cts, cts, data_len, created_client, _,
            ) = self.there(parent)  # fmt: skip
            self._elements.put(_KEY.pack(parent), Element(
                above, name, kind, is_ephemeral, is_sequential, owner, nchildren + more,
                last if sequence is None else sequence, created, version, run.version,
                created_ts, run.ts_ms, created_cts, cts, data_len, created_client, run.client,
            ))  # fmt: skip

    def put(self, number: int, one: Element) -> None:
        """Change an element's record."""
        self._elements.put(_KEY.pack(number), one)

    def touch(self, run: Run, number: int, data_len: int | None = None) -> None:
        """Note that its data or attributes change with this entry, and its new size in bytes.

        Raises:
            Refused: QUOTA.
        """
        (
            parent, name, kind, is_ephemeral, is_sequential, owner, nchildren, sequence, created,
            _, child, created_ts, _, created_cts, _, before, created_client, _,
        ) = self.there(number)  # fmt: skip
        size = before if data_len is None else data_len
        self._elements.put(_KEY.pack(number), Element(
            parent, name, kind, is_ephemeral, is_sequential, owner, nchildren, sequence, created,
            run.version, child, created_ts, run.ts_ms, created_cts, run.asker.stamp, size,
            created_client, run.client,
        ))  # fmt: skip
        if size != before:
            for family in self._resizing:
                family.resized(run, number, size - before)

    def count_bytes(self, run: Run, number: int, more: int) -> None:
        """Note that it holds more bytes besides its data, or less if that is negative.

        Raises:
            Refused: QUOTA.
        """
        if more:
            for family in self._counting:
                family.counted(run, number, more)

    def delete(self, run: Run, number: int) -> None:
        """End an element that has no children."""
        one = self.there(number)
        self.tell(run, b"delete", number, is_deleted=True)
        for family in self._deleting:
            family.deleted(run, number)
        key = _KEY.pack(number)
        self._elements.delete(key)
        self._children.delete(_KEY.pack(one.parent) + one.name)
        if one.owner:
            self._ephemeral.delete(_KEY.pack(one.owner) + key)
        self._count_child(run, one.parent, -1)

    def move(self, run: Run, number: int, parent: int, name: bytes) -> None:
        """Put an element, with all below it, elsewhere."""
        one = self.there(number)
        self._children.delete(_KEY.pack(one.parent) + one.name)
        self._children.put(_KEY.pack(parent) + name, _KEY.pack(number))
        self.put(number, one._replace(parent=parent, name=name))
        self._tables.reversals += 1
        self._count_child(run, one.parent, -1)
        self._count_child(run, parent, 1)
        for family in self._moving:
            family.moved(run, number)

    def tell(
        self, run: Run, op: bytes, number: int, data: bytes | None = None, *,
        is_deleted: bool = False, is_public: bool = False,
    ) -> None:  # fmt: skip
        """Note what happens to an element, for subscribers.

        `is_public`: a WRITE lock does not hide the data.
        """
        if not run.is_heard:
            return
        line, path = self.place(number)
        kind, readers = self.there(number).type.text, self.readers(number)
        if is_public:
            readers = readers._replace(holder=b"")
        run.happened.append(Happened(op, path, kind, line, data, is_deleted, readers=readers))

    # ---- ephemeral ones

    def owned(self, session: int) -> int:
        """Return how many elements end with a session."""
        return self._ephemeral.number_under(_KEY.pack(session))

    def owned_by(self, session: int) -> list[int]:
        """Return the elements that end with a session."""
        prefix = _KEY.pack(session)
        return [_KEY.unpack(key[len(prefix) :])[0] for key, _ in self._ephemeral.under(prefix)]

    def session_ended(self, run: Run, session: int) -> None:
        """End what ends with it, in the order of paths; what others want stays until they go."""
        prefix = _KEY.pack(session)
        for _, number in sorted((self.path(number), number) for number in self.owned_by(session)):
            self._ephemeral.delete(prefix + _KEY.pack(number))
            self.put(number, self.there(number)._replace(owner=0))
            self.drop_orphan(run, number)

    def drop_orphan(self, run: Run, number: int) -> None:
        """End an ephemeral element whose session has ended, unless somebody wants it still."""
        one = self.get(number)
        if one is None or not one.is_ephemeral or one.owner:
            return
        if not any(family.is_wanted(number) for family in self._wanting):
            self.delete(run, number)
