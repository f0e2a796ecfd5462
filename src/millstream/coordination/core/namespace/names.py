"""Names of namespaces: unique over all groups, whichever members fail.

The system group stores the group of each name. A root is created in that group by an entry that
carries the id of the reservation. Each group stores the ids that it refuses forever.

    reserve (system group), create (target), confirm (system group)
    reserve, nothing for `UNDO_MS`, undo (target), confirm or free (system group)
    delete (system group), drop (target), free or keep (system group)

Invariants:
1. A name is in at most one group, and a root exists only under the id of its reservation.
2. A name is freed only after its target has refused its id forever, so late requests are refused.
3. Each step may be late, repeated or lost. The next step depends only on the state of the system
   group and the answer of the target. So any primary of the system group can continue.
4. A deletion that was refused because there are elements is refused forever: it has an id, too.
5. The names of the system group's own roots are in the same table. They need no other group.

Elsewhere: the table (`registry`), the commands (`naming`), sending the steps to groups and
answering clients (`settling`).

Source: V2R2, "CREATENAMESPACE"; Gray and Lamport 2006 on who may decide in place of the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Final, NamedTuple, Protocol

from millstream.vsr.core.versions import NEVER, Version

__all__ = [
    "NAMES_MAX",
    "OWN",
    "STEPS_MAX",
    "UNDO_MS",
    "Answer",
    "Do",
    "Name",
    "NameKeeper",
    "NameStatus",
    "Names",
    "Roots",
    "Step",
    "begin_deletion",
    "confirm",
    "create",
    "drop",
    "free",
    "keep",
    "reserve",
    "step_after",
    "step_of",
    "undo",
]

UNDO_MS: Final = 60_000.0
"""A reservation that is not confirmed is undone after this time."""
AGAIN_MS: Final = 5000.0
"""A step is repeated if there is no answer after this time."""
STEPS_MAX: Final = 100
"""Most steps in progress at once."""
NAMES_MAX: Final = 2048
"""Most namespaces of an instance: every node has all of their names."""
OWN: Final = 0
"""Stands for the system group where others have a group's number; no group has it."""


class NameStatus(Enum):
    """Of a name, in the system group."""

    RESERVED = b"reserved"
    CONFIRMED = b"confirmed"
    DELETING = b"deleting"


class Name(NamedTuple):
    """What the system group knows of a name. `deletion` is the id of the last attempt at one."""

    gid: int
    id: Version
    status: NameStatus
    deletion: Version = NEVER
    is_forced: bool = False
    passes_locks: bool = False


class Names(Protocol):
    """The table of the system group, by name of the root."""

    def get(self, key: bytes, /) -> Name | None:
        """Return what is known of it."""

    def put(self, key: bytes, name: Name, /) -> None:
        """Set the record of a name."""

    def delete(self, key: bytes, /) -> object:
        """Remove the record of a name."""


class Roots(Protocol):
    """The roots of a target group, and the ids that it refuses."""

    def id_of(self, root: bytes) -> Version | None:
        """Return the id under which a root was created; None if there is no root of this name."""

    def refusal_of(self, refused: Version) -> Answer | None:
        """Return what is answered to an id that is refused; None if it is not."""

    def refuse(self, refused: Version, answer: Answer) -> None:
        """Refuse an id for ever."""

    def create(self, root: bytes, reservation: Version) -> None:
        """Create a root that is not there."""

    def remove(self, root: bytes, is_forced: bool) -> Answer:
        """Remove a root with everything below it (GONE), or return what prevents it."""


class Answer(Enum):
    """Of a target group."""

    CREATED = b"CREATED"
    """The root is there, under this id."""
    GONE = b"GONE"
    """It does not exist, and never will."""
    NOTEMPTY = b"NOTEMPTY"
    """It stays, and this deletion is refused: there are elements."""
    LOCKED = b"LOCKED"
    """It stays, and this deletion is refused: a lock is held."""
    TOOBIG = b"TOOBIG"
    """It stays, and this deletion is refused: there are more elements than one entry deletes."""
    DELETED = b"DELETED"
    """It existed under this id, and was deleted."""


class Do(Enum):
    """What is asked of a group: the first three of a target, the rest of the system group."""

    CREATE = b"CREATE"
    UNDO = b"UNDO"
    DROP = b"DROP"
    CONFIRM = b"CONFIRM"
    FREE = b"FREE"
    KEEP = b"KEEP"


class Step(NamedTuple):
    """One thing to be asked of a group (None: the system group)."""

    gid: int | None
    do: Do
    root: bytes
    id: Version
    deletion: Version = NEVER
    is_forced: bool = False
    passes_locks: bool = False


# ---- entries of the system group; each gives what is known of the name after it


def reserve(names: Names, root: bytes, gid: int, version: Version) -> Name:
    """Reserve a free name. The id of the reservation is the version of the entry."""
    known = names.get(root)
    if known is None:
        known = Name(gid, version, NameStatus.RESERVED)
        names.put(root, known)
    return known


def begin_deletion(
    names: Names, root: bytes, is_forced: bool, version: Version, passes_locks: bool = False
) -> Name | None:
    """Note that a namespace is being deleted; a name that is only reserved stays what it is."""
    known = names.get(root)
    if known and known.status is NameStatus.CONFIRMED:
        known = Name(known.gid, known.id, NameStatus.DELETING, version, is_forced, passes_locks)
        names.put(root, known)
    return known


def confirm(names: Names, root: bytes, reservation: Version) -> Name | None:
    """Note that the root exists."""
    known = names.get(root)
    if known and known.id == reservation and known.status is NameStatus.RESERVED:
        known = known._replace(status=NameStatus.CONFIRMED)
        names.put(root, known)
    return known


def free(names: Names, root: bytes, reservation: Version) -> Name | None:
    """Forget a name whose target said that it is gone."""
    known = names.get(root)
    if known and known.id == reservation:
        names.delete(root)
        return None
    return known


def keep(names: Names, root: bytes, reservation: Version, deletion: Version) -> Name | None:
    """Note that a deletion was refused."""
    known = names.get(root)
    if known and (known.id, known.deletion) == (reservation, deletion):
        known = known._replace(status=NameStatus.CONFIRMED)
        names.put(root, known)
    return known


# ---- entries of a target group


def create(roots: Roots, root: bytes, reservation: Version) -> Answer:
    """Create the root, unless the id is refused; said again, it changes nothing."""
    if refusal := roots.refusal_of(reservation):
        return refusal
    there = roots.id_of(root)
    if there is None:
        roots.create(root, reservation)
    elif there != reservation:
        return _refuse(roots, reservation, Answer.GONE)
    return Answer.CREATED


def undo(roots: Roots, root: bytes, reservation: Version) -> Answer:
    """Refuse the id, unless the root is there already."""
    if refusal := roots.refusal_of(reservation):
        return refusal
    if roots.id_of(root) == reservation:
        return Answer.CREATED
    return _refuse(roots, reservation, Answer.GONE)


def drop(
    roots: Roots, root: bytes, reservation: Version, deletion: Version, is_forced: bool
) -> Answer:
    """Remove the root and refuse its id, or refuse the deletion."""
    if refusal := roots.refusal_of(deletion):
        return refusal
    if roots.id_of(root) == reservation:
        answer = roots.remove(root, is_forced)
        if answer is not Answer.GONE:
            return _refuse(roots, deletion, answer)
        _refuse(roots, reservation, Answer.DELETED)
    elif roots.refusal_of(reservation) is None:
        _refuse(roots, reservation, Answer.GONE)
    return Answer.GONE


def _refuse(roots: Roots, refused: Version, answer: Answer) -> Answer:
    roots.refuse(refused, answer)
    return answer


# ---- what is next


def step_of(root: bytes, name: Name, is_late: bool) -> Step | None:
    """Return the request to send to the target. `is_late`: it was not confirmed in time."""
    if name.status is NameStatus.DELETING:
        return Step(
            name.gid, Do.DROP, root, name.id, name.deletion, name.is_forced, name.passes_locks
        )  # fmt: skip
    if name.status is NameStatus.RESERVED and is_late:
        return Step(name.gid, Do.UNDO, root, name.id)
    return None


def step_after(asked: Step, answer: Answer) -> Step:
    """Return what the system group has to be told once the target has answered."""
    return asked._replace(gid=None, do=_NEXT.get(answer, Do.KEEP))


_NEXT: Final = {
    Answer.CREATED: Do.CONFIRM, Answer.GONE: Do.FREE, Answer.DELETED: Do.FREE,
}  # fmt: skip


class NameKeeper:
    """The primary of the system group: it repeats the steps of names that are unfinished.

    A new one begins to count anew: a reservation has its full time again.
    """

    def __init__(self) -> None:
        self._since_ms: dict[tuple[bytes, Name], float] = {}
        self._asked_ms: dict[tuple[bytes, Name], float] = {}

    def tick(self, unfinished: Iterable[tuple[bytes, Name]], now_ms: float) -> list[Step]:
        """Return what to ask now; `unfinished` are the names that are not confirmed, in order."""
        items = list(unfinished)
        self._since_ms = {item: self._since_ms.get(item, now_ms) for item in items}
        self._asked_ms = {
            item: at for item, at in self._asked_ms.items() if item in self._since_ms
        }
        return list(self._due(items, now_ms))

    def _due(self, items: list[tuple[bytes, Name]], now_ms: float) -> Iterator[Step]:
        room = STEPS_MAX
        for item in items:
            step = step_of(*item, now_ms - self._since_ms[item] >= UNDO_MS)
            asked_ms = self._asked_ms.get(item)
            if step is None or (asked_ms is not None and now_ms - asked_ms < AGAIN_MS):
                continue
            if room == 0:
                return
            room -= 1
            self._asked_ms[item] = now_ms
            yield step
