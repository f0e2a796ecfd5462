"""What a reader with a state of its own keeps beside it: a place and a ring for each partition.

    {"v": 1, "position": ["<12 hex digits>", seqno, snap_start, snap_end],   (a fifth: purge seqno)
     "failover_log": [["<12 hex digits>", seqno, branch], ...], newest first
     "load": n, "is_loading": true, "floor": seqno, "is_undoing": false}

Invariants, checked whenever one is made, so that none that breaks them is ever stored or believed:
1. snap_start <= seqno <= snap_end; the fifth member only while snap_start is 0.
2. The failover log descends and names no history twice; the position's uuid is that of its newest
   entry below snap_end. Without a log the position is the beginning.
3. `load` counts from 1. `is_loading` holds only before the first complete snapshot of a load.
4. While `is_undoing`, all that the ring names above the position has to be fetched.

The ring says which keys the reader changed recently, and by which seqno:
5. Entries ascend by (seqno, key), and none occurs twice.
6. What is above the reader's stored position never leaves by age: until then only the ring knows
   which keys a crash or another history may have left wrong.
7. Beyond `changes_max` the oldest go. So the ring holds at most that many at or below the
   position, and above it what was received or fetched since.

Elsewhere: loads and the floor (`upr.core.repair`), how it moves (`upr.core.bookkeeper`), where it
is stored (`upr.aio.ledger`).

Source: UPR design paper, "Client and Ringbuffer".
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from millstream.errors import CorruptionError
from millstream.model.limits import UINT64_MAX
from millstream.model.position import (
    FailoverEntry,
    FailoverLog,
    Position,
    entry_below,
    position_from_json,
    position_to_json,
)
from millstream.upr.core.repair import LoadState

__all__ = [
    "RING_CHANGES_DEFAULT",
    "RING_CHANGES_MAX",
    "Kept",
    "Recent",
    "Ring",
    "kept_from_json",
    "kept_to_json",
]

_VERSION: Final = 1
RING_CHANGES_DEFAULT: Final = 1000
"""Changes of a partition that a reader can undo without reading it anew."""
RING_CHANGES_MAX: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Kept:
    """Position, failover log and load of one partition.

    Raises:
        CorruptionError: an invariant does not hold.
    """

    position: Position = Position()  # noqa: RUF009 - immutable
    failover_log: FailoverLog = ()
    loaded: LoadState = LoadState(is_loading=True)  # noqa: RUF009 - immutable
    is_undoing: bool = False

    def __post_init__(self) -> None:
        breach = _position_breach(self.position) or _log_breach(self.position, self.failover_log)
        if not breach and self.loaded.load < 1:
            breach = "loads count from 1"
        if not breach and self.loaded.is_loading and self.position.snap_start:
            breach = "a load is over with its first complete snapshot"
        if not breach and not 0 <= self.loaded.floor <= UINT64_MAX:
            breach = "the floor is no seqno"
        if breach:
            raise CorruptionError(f"no place to go on from: {breach}: {self}")


def _position_breach(position: Position) -> str:
    uuid, seqno, snap_start, snap_end, purge_seqno = position
    if not 0 <= snap_start <= seqno <= snap_end <= UINT64_MAX or not 0 <= uuid <= UINT64_MAX:
        return "the position is outside its snapshot"
    if purge_seqno is not None and (snap_start or not 0 <= purge_seqno <= UINT64_MAX):
        return "a purge seqno belongs to a first load"
    return ""


def _log_breach(position: Position, log: FailoverLog) -> str:
    if not log:
        return "" if position == Position() else "a position without a failover log"
    uuids = [entry.uuid for entry in log]
    seqnos = [entry.seqno for entry in log]
    if 0 in uuids or len(set(uuids)) < len(uuids) or seqnos != sorted(seqnos, reverse=True):
        return "the failover log is none"
    is_beginning = not position.uuid and not position.snap_end
    if not is_beginning and position.uuid != entry_below(log, position.snap_end).uuid:
        return "the position's uuid is not that of its history"
    return ""


class _Form(msgspec.Struct):
    v: int
    position: list[str | int]
    failover_log: list[tuple[str, int, int]]
    load: int
    is_loading: bool
    floor: int
    is_undoing: bool


_decode_form = msgspec.json.Decoder(_Form).decode


def kept_to_json(kept: Kept) -> bytes:
    """Return the JSON text."""
    log = [(f"{entry.uuid:012x}", entry.seqno, entry.branch) for entry in kept.failover_log]
    position = position_to_json(kept.position)
    load, floor, is_loading = kept.loaded
    return msgspec.json.encode(
        _Form(_VERSION, position, log, load, is_loading, floor, kept.is_undoing)
    )


def kept_from_json(text: bytes, *, name: str) -> Kept:
    """Reverse `kept_to_json`.

    Args:
        text: JSON.
        name: of the place it comes from, for the message.

    Raises:
        CorruptionError: something else, one of a newer version, or an illegal one.
    """
    try:
        form = _decode_form(text)
        if form.v != _VERSION:
            raise ValueError(f"version {form.v}, this program reads {_VERSION}")
        log = tuple(FailoverEntry(int(uuid, 16), *rest) for uuid, *rest in form.failover_log)
        position = position_from_json(form.position)
        loaded = LoadState(form.load, form.floor, form.is_loading)
        return Kept(position, log, loaded, form.is_undoing)
    except (msgspec.MsgspecError, ValueError, CorruptionError) as error:
        raise CorruptionError(
            f"{name} is not the position of a reader: {error}; move it away to start again"
        ) from error


class Recent(NamedTuple):
    """A change that the reader applied, or is about to."""

    seqno: int
    key: bytes


class Ring:
    """Recent changes of one partition.

    Args:
        entries: as stored, in any order.
        changes_max: 1 to `RING_CHANGES_MAX`.
    """

    def __init__(
        self, entries: Iterable[Recent] = (), *, changes_max: int = RING_CHANGES_DEFAULT
    ) -> None:
        assert 1 <= changes_max <= RING_CHANGES_MAX
        self._entries = sorted(set(entries))
        self._changes_max = changes_max

    @property
    def entries(self) -> Sequence[Recent]:
        """All of them, oldest first."""
        return self._entries

    def add(self, entries: Sequence[Recent]) -> None:
        """Take entries in; what is known already changes nothing."""
        if entries and (not self._entries or self._entries[-1] < entries[0]):
            self._entries.extend(entries)  # a stream's changes ascend
            return
        for entry in entries:
            at = bisect_left(self._entries, entry)
            if at == len(self._entries) or self._entries[at] != entry:
                insort(self._entries, entry)

    def above(self, seqno: int) -> Sequence[Recent]:
        """Return the entries with a larger seqno."""
        return self._entries[bisect_right(self._entries, seqno, key=_seqno) :]

    def surplus(self, through: int) -> Sequence[Recent]:
        """Return the oldest entries that are too many, none of them above `through`."""
        too_many = len(self._entries) - self._changes_max
        if too_many <= 0:
            return ()
        return self._entries[: min(too_many, bisect_right(self._entries, through, key=_seqno))]

    def drop(self, entries: Iterable[Recent]) -> None:
        """Forget entries."""
        gone = set(entries)
        self._entries = [entry for entry in self._entries if entry not in gone]


def _seqno(entry: Recent) -> int:
    return entry.seqno
