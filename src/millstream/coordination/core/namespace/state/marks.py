"""Marks: the elements and trees whose updates are kept, so that subscriptions can be resumed.

A mark has the last updates of its element and scope, in chunks. It has a floor: all updates after
that LSN are kept, earlier ones may be missing.

Invariants:
1. A mark is replicated state: log entries begin it, add its updates, and end it.
2. Updates after the floor are complete. A client that asks for earlier ones gets an error, never a
   part.
3. A mark keeps as many updates as SUBS.MIN.HISTORY of its element says, but at most
   `KEPT_BYTES_MAX`. A mark ends with its element, and when its history is set to zero.

Elsewhere: updates (`updates`), current subscribers (`audience`), creating marks (`subscriptions`).

Source: V2R2, "Subscribe to an element".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Final, NamedTuple

from millstream.coordination.core.namespace.refused import Refused
from millstream.coordination.core.namespace.state.configuration import Settings
from millstream.coordination.core.namespace.state.elements import Elements, key_of
from millstream.coordination.core.namespace.state.family import Family
from millstream.coordination.core.namespace.state.run import Run
from millstream.coordination.core.namespace.state.updates import (
    Place,
    Scope,
    Update,
    decode_update,
    encode_update,
    updates_of,
)
from millstream.coordination.core.namespace.tables import Tables

__all__ = ["CHUNK_UPDATES_MAX", "KEPT_BYTES_MAX", "NAMES_MAX", "Mark", "Marks"]

CHUNK_UPDATES_MAX: Final = 32
"""A change of a history copies no more of it."""
KEPT_BYTES_MAX: Final = 8 * 1024 * 1024
"""Most bytes of one mark, data included."""
NAMES_MAX: Final = 100
"""Durable subscriptions of one session."""
_UPDATE_BYTES: Final = 64
_PLACE: Final = Struct(">QB")
_MARK: Final = Struct(">QQQQQ")


class Mark(NamedTuple):
    """One mark: its floor, its chunks, and how many updates with how many bytes they have."""

    floor_lsn: int
    first: int = 0
    """The number of the first chunk."""
    end: int = 0
    """Behind the number of the last chunk."""
    kept: int = 0
    size: int = 0


def _encode_mark(mark: Mark) -> bytes:
    return _MARK.pack(*mark)


def _decode_mark(text: bytes) -> Mark:
    if len(text) != _MARK.size:
        raise ValueError("a mark has a wrong length")
    return Mark(*_MARK.unpack(text))


def _number(lsn: int) -> bytes:
    return lsn.to_bytes(8, "big")


def _number_in(text: bytes) -> int:
    if len(text) != 8:
        raise ValueError("a number has a wrong length")
    return int.from_bytes(text, "big")


def _encode_chunk(chunk: tuple[Update, ...]) -> bytes:
    return b"".join(map(encode_update, chunk))


def _decode_chunk(text: bytes) -> tuple[Update, ...]:
    found, at = [], 0
    while at < len(text):
        update, at = decode_update(text, at)
        found.append(update)
    return tuple(found)


class Marks(Family):
    """The marks of a group, what they keep, and how far durable subscriptions were heard."""

    def __init__(self, tables: Tables, elements: Elements, settings: Settings) -> None:
        self._elements, self._settings = elements, settings
        self._marks = tables.add(_encode_mark, _decode_mark)
        self._history = tables.add(_encode_chunk, _decode_chunk)
        """A place's key and the number of a chunk -> its updates."""
        self._heard = tables.add(_number, _number_in)
        """Session and name -> LSN."""

    def __len__(self) -> int:
        return len(self._marks)

    def at(self, place: Place) -> Mark | None:
        """Return the mark of a place."""
        return self._marks.get(_PLACE.pack(*place))

    def begin(self, place: Place, lsn: int) -> None:
        """Keep what happens in a place from now on, if it is not kept already."""
        key = _PLACE.pack(*place)
        if self._marks.get(key) is None:
            self._marks.put(key, Mark(lsn))

    def end(self, place: Place) -> None:
        """Stop keeping updates of a place."""
        key = _PLACE.pack(*place)
        mark = self._marks.get(key)
        if mark is not None:
            for number in range(mark.first, mark.end):
                self._history.delete(_chunk_key(key, number))
            self._marks.delete(key)

    def end_of(self, element: int) -> None:
        """Stop keeping updates of an element."""
        for scope in Scope:
            self.end(Place(element, scope))

    def keeps(self, element: int) -> bool:
        """Return whether a mark on an element would keep anything."""
        return self._settings.number(element, b"SUBS.MIN.HISTORY") > 0

    def deleted(self, run: Run, element: int) -> None:
        """End its marks."""
        if len(self._marks):
            self.end_of(element)

    def finished(self, run: Run) -> None:
        """Keep what the entry did."""
        if not len(self._marks) or not run.happened:
            return
        done = updates_of(run, self._elements, lambda place: self.at(place) is not None)
        for place, updates in done.items():
            keep = self._settings.number(place.element, b"SUBS.MIN.HISTORY")
            self.record(place, updates, keep)

    def record(self, place: Place, updates: Sequence[Update], keep: int) -> None:
        """Keep what one entry of this many updates did in a place, if the place is marked."""
        key = _PLACE.pack(*place)
        mark = self._marks.get(key)
        if mark is None:
            return
        if keep == 0:
            self.end(place)
            return
        for update in updates:
            mark = self._append(key, mark, update)
        self._marks.put(key, self._cut(key, mark, keep))

    def _append(self, key: bytes, mark: Mark, update: Update) -> Mark:
        last = self._history.get(_chunk_key(key, mark.end - 1)) if mark.end > mark.first else None
        if last is not None and len(last) < CHUNK_UPDATES_MAX:
            self._history.put(_chunk_key(key, mark.end - 1), (*last, update))
        else:
            self._history.put(_chunk_key(key, mark.end), (update,))
            mark = mark._replace(end=mark.end + 1)
        return mark._replace(kept=mark.kept + 1, size=mark.size + _size_of(update))

    def _cut(self, key: bytes, mark: Mark, keep: int) -> Mark:
        while mark.kept > keep or mark.size > KEPT_BYTES_MAX:
            chunk = self._history.get(_chunk_key(key, mark.first)) or ()
            gone, count, size = 0, mark.kept, mark.size
            while gone < len(chunk) and (count > keep or size > KEPT_BYTES_MAX):
                count, size = count - 1, size - _size_of(chunk[gone])
                gone += 1
            floor_lsn, first = chunk[gone - 1].lsn, mark.first
            if gone == len(chunk):
                self._history.delete(_chunk_key(key, first))
                first += 1
            else:
                self._history.put(_chunk_key(key, first), chunk[gone:])
            mark = Mark(floor_lsn, first, mark.end, count, size)
        return mark

    def kept(self, place: Place, after_lsn: int) -> list[Update] | None:
        """Return what happened in a place after an LSN; None if not all of it is kept."""
        mark = self.at(place)
        if mark is None or after_lsn < mark.floor_lsn:
            return None
        return [update for update in self._updates(place, mark) if update.lsn > after_lsn]

    def contradict(self, place: Place, epoch: int, lsn: int) -> bool:
        """Return whether an entry so numbered is of another history: epochs never fall."""
        mark = self.at(place)
        return mark is not None and any(
            (one.epoch > epoch and one.lsn <= lsn) or (one.epoch < epoch and one.lsn >= lsn)
            for one in self._updates(place, mark)
        )

    def _updates(self, place: Place, mark: Mark) -> Iterator[Update]:
        key = _PLACE.pack(*place)
        for number in range(mark.first, mark.end):
            yield from self._history.get(_chunk_key(key, number)) or ()

    # ---- durable subscriptions

    def heard(self, session: int, name: bytes) -> int | None:
        """Return up to which LSN a session has heard under a name; None if it has none such."""
        return self._heard.get(key_of(session) + name)

    def begin_hearing(self, session: int, name: bytes, lsn: int) -> None:
        """Begin a name, if the session has none such.

        Raises:
            Refused: QUOTA.
        """
        key = key_of(session)
        if self._heard.get(key + name) is None:
            if sum(1 for _ in self._heard.under(key)) >= NAMES_MAX:
                raise Refused("QUOTA", f"a session has {NAMES_MAX} durable subscriptions at most")
            self._heard.put(key + name, lsn)

    def hear(self, session: int, name: bytes, lsn: int) -> None:
        """Note how far a session has heard; never less than before.

        Raises:
            Refused: ERROR_DOES_NOT_EXISTS.
        """
        known = self.heard(session, name)
        if known is None:
            shown = name.decode("utf-8", "replace")
            raise Refused("ERROR_DOES_NOT_EXISTS", f"SUBSCRIBE ... DURABLE {shown} comes first")
        if lsn > known:
            self._heard.put(key_of(session) + name, lsn)

    def session_ended(self, run: Run, session: int) -> None:
        """Forget how far it has heard."""
        for key in [key for key, _ in self._heard.under(key_of(session))]:
            self._heard.delete(key)


def _chunk_key(place: bytes, number: int) -> bytes:
    return place + number.to_bytes(8, "big")


def _size_of(update: Update) -> int:
    texts = len(update.path) + len(update.to) + len(update.client)
    readers = b"" if update.readers is None else update.readers.encode()
    return _UPDATE_BYTES + texts + len(update.data or b"") + len(readers)
