"""What happened to the databases of a node: created, updated, deleted.

Invariants:
1. Of each kind of event of a database only the newest is kept, in order of the events. The
   numbers of events only grow.
2. At most `DELETED_MAX` databases that no longer exist are remembered; the oldest goes first.
3. A position of another node, or of an earlier run of this one, is no position here: its reader
   gets all events that are kept.

Elsewhere: the page (`gateway.aio.databases.database_updates_pages`).
Source: CouchDB's `_db_updates`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, Literal, NamedTuple

__all__ = ["DELETED_MAX", "DatabaseUpdates", "Event", "Seen"]

DELETED_MAX: Final = 10_000
Kind = Literal["created", "updated", "deleted"]


class Event(NamedTuple):
    """One event; the same names as CouchDB gives its members."""

    db_name: str
    type: Kind
    seq: str


class Seen(NamedTuple):
    """A database as it was found."""

    uuid: str
    update_seq: str


class DatabaseUpdates:
    """The events of a node.

    Args:
        origin: tells this run of this node from all others.
    """

    def __init__(self, origin: str) -> None:
        self._origin = origin
        self._number = 0
        self._seen: dict[str, Seen] = {}
        self._events: dict[tuple[Kind, str], int] = {}
        """In order: number of the newest event."""

    @property
    def last(self) -> str:
        """Return the position of a reader that has all events."""
        return self._token(self._number)

    def look(self, found: Mapping[str, Seen], unknown: Collection[str]) -> None:
        """Compare the databases with how they were before.

        Args:
            found: by name.
            unknown: names of databases that exist, but cannot be asked now: nothing happens to
                them.
        """
        for name in [name for name in self._seen if name not in found and name not in unknown]:
            self._delete(name)
        for name, now in found.items():
            before = self._seen.get(name)
            if before is not None and before.uuid != now.uuid:
                self._delete(name)
                before = None
            if before is None:
                self._add("created", name)
            if before is None or before.update_seq != now.update_seq:
                self._add("updated", name)
            self._seen[name] = now

    def after(self, since: str) -> list[Event]:
        """Return the events above a position, oldest first."""
        number, _, origin = since.partition("-")
        is_known = origin == self._origin and number.isascii() and number.isdigit()
        first = int(number) if is_known and len(number) <= len(str(self._number)) else 0
        return [
            Event(name, kind, self._token(one))
            for (kind, name), one in self._events.items()
            if one > first
        ]

    def _delete(self, name: str) -> None:
        del self._seen[name]
        self._events.pop(("created", name), None)
        self._events.pop(("updated", name), None)
        self._add("deleted", name)
        deleted = [key for key in self._events if key[0] == "deleted"]
        for key in deleted[: max(0, len(deleted) - DELETED_MAX)]:
            del self._events[key]

    def _add(self, kind: Kind, name: str) -> None:
        self._number += 1
        self._events.pop((kind, name), None)
        self._events[kind, name] = self._number

    def _token(self, number: int) -> str:
        return f"{number}-{self._origin}"
