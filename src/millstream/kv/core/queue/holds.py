"""Holds: rights to read a past state of a partition, and the changes kept in memory for them.

A hold is the right to read a partition as of a seqno. Its state is either *frozen*: taken when
that seqno was the newest, so that memory and log together have it; or *logged*: a mark, so that
the log alone has it.

Invariants:
1. A superseded change is kept iff a frozen hold sees it: its seqno is at or below the hold's `at`
   and its successor above. Once the floor has passed it, it is kept only if the log does not have
   it.
2. A kept change is listed at the newest frozen `at` that sees it. So releasing a hold only looks
   at changes that were superseded while its `at` was the newest, or inherited.
3. A lost hold is never found again: numbers are not reused.

Elsewhere: changes that were not superseded (`kv.core.queue.mutation_queue`), leases, which are
holds with a name and a timeout (`kv.core.leases`).

Source: docs/concepts/snapshots.md.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Final, NamedTuple

from millstream.kv.core.queue.blocks import BITS
from millstream.storage.core.segment_files import Sizes
from millstream.wire.frames import seqno_of

__all__ = ["KEPT_BYTES", "Holds", "Superseded", "with_kept", "with_kept_sizes"]

KEPT_BYTES: Final = 256
"""Memory of a kept change besides frame and side: a tuple, numbers, its place in two lists."""


class Superseded(NamedTuple):
    """A change that only holds can still see; `previous_seqno` as the queue had it.

    `side`: its own, or, if it has no sidecar, that of the change which replaced it: see
    `model.lineage.as_of`.
    """

    frame: bytes
    previous_seqno: int
    successor: int
    is_logged: bool
    side: bytes


class _Hold:
    __slots__ = ("at", "is_logged", "reads_from")

    def __init__(self, at: int, is_logged: bool) -> None:
        self.at = at
        self.is_logged = is_logged
        self.reads_from: int | None = None


class _View:
    """A frozen seqno: the number of holds at it, and the changes listed there."""

    __slots__ = ("count", "seqnos")

    def __init__(self) -> None:
        self.count = 0
        self.seqnos: list[int] = []


class Holds:
    """The holds of one partition."""

    __slots__ = ("_holds", "_next_id", "_views", "bytes_kept", "high", "kept")

    def __init__(self) -> None:
        self.high = -1
        """The newest frozen `at`; changes at or below it must be kept when superseded."""
        self.kept: dict[int, dict[int, Superseded]] = {}
        """Block number -> seqno -> change."""
        self.bytes_kept = 0
        self._holds: dict[int, _Hold] = {}
        self._views: dict[int, _View] = {}  # ascending
        self._next_id = 1

    def __len__(self) -> int:
        return len(self._holds)

    # -- holds

    def is_frozen(self, at: int) -> bool:
        """Return whether a frozen hold is at this seqno."""
        return at in self._views

    def open_frozen(self, at: int) -> int:
        """Hold the newest state, whose seqno is `at`, or one that is frozen already."""
        view = self._views.get(at)
        if view is None:
            assert at > self.high
            view = self._views[at] = _View()
            self.high = at
        view.count += 1
        return self._open(_Hold(at, is_logged=False))

    def open_logged(self, at: int) -> int:
        """Hold the state at a mark."""
        return self._open(_Hold(at, is_logged=True))

    def _open(self, hold: _Hold) -> int:
        hold_id, self._next_id = self._next_id, self._next_id + 1
        self._holds[hold_id] = hold
        return hold_id

    def is_held(self, hold_id: int) -> bool:
        """Return whether the hold was neither released nor lost."""
        return hold_id in self._holds

    def release(self, hold_id: int) -> None:
        """Release a hold; a lost one is ignored."""
        hold = self._holds.pop(hold_id, None)
        if hold is None or hold.is_logged:
            return
        view = self._views[hold.at]
        view.count -= 1
        if not view.count:
            self._close(hold.at)

    def lose_oldest(self) -> bool:
        """Lose all holds at the oldest frozen seqno; False: there is none."""
        at = next(iter(self._views), None)
        if at is None:
            return False
        self._holds = {i: h for i, h in self._holds.items() if h.is_logged or h.at != at}
        self._close(at)
        return True

    def lose_below(self, seqno: int) -> None:
        """Lose all holds at seqnos below this one."""
        for hold_id in [i for i, hold in self._holds.items() if hold.at < seqno]:
            self.release(hold_id)

    def lose_all(self) -> None:
        """Lose all holds."""
        for hold_id in list(self._holds):
            self.release(hold_id)

    def _close(self, at: int) -> None:
        """No hold is at this frozen seqno any more: drop the changes that only it saw."""
        older = -1
        for other in self._views:
            if other == at:
                break
            older = other
        view = self._views.pop(at)
        self.high = next(reversed(self._views), -1)
        inherited = self._views[older].seqnos if older >= 0 else None
        for seqno in view.seqnos:
            if inherited is not None and seqno <= older:
                inherited.append(seqno)
            else:
                self._drop(seqno)

    # -- readers

    def asked(self, hold_id: int, start: int) -> None:
        """A reader of this hold will read changes above `start`."""
        hold = self._holds.get(hold_id)
        if hold is not None:
            known = hold.reads_from
            hold.reads_from = start if known is None else min(known, start)

    def oldest_at(self) -> int | None:
        """Return the lowest seqno as of which anybody reads."""
        return min((hold.at for hold in self._holds.values()), default=None)

    def lowest_start(self) -> int | None:
        """Return the lowest seqno above which a hold's readers still have to read; 0: unknown."""
        starts = (hold.reads_from or 0 for hold in self._holds.values())
        return min(starts, default=None)

    # -- kept changes

    def keep(self, seqno: int, superseded: Superseded) -> None:
        """Keep a change that is being superseded; `seqno` is at or below `high`."""
        number = seqno >> BITS
        group = self.kept.get(number)
        if group is None:
            group = self.kept[number] = {}
        group[seqno] = superseded
        self._views[self.high].seqnos.append(seqno)
        self.bytes_kept += _bytes_of(superseded)

    def _drop(self, seqno: int) -> None:
        number = seqno >> BITS
        group = self.kept.get(number)
        superseded = group.pop(seqno, None) if group else None
        if superseded is not None:
            self.bytes_kept -= _bytes_of(superseded)
            if not group:
                del self.kept[number]

    def pass_floor(self, number: int, upto: int) -> None:
        """The log now serves a block's changes up to a seqno: drop the copies that it has."""
        group = self.kept.get(number)
        for seqno in [s for s, c in group.items() if s <= upto and c.is_logged] if group else ():
            self._drop(seqno)

    def visible(self, after: int, upto: int, at: int) -> list[tuple[int, bytes]]:
        """Return (seqno, frame) of kept changes in (after, upto] visible as of `at`, sorted."""
        found = [
            (seqno, change.frame)
            for number in self._numbers(after, upto)
            for seqno, change in self.kept[number].items()
            if after < seqno <= upto and change.successor > at
        ]
        found.sort()
        return found

    def sides(self) -> Iterator[bytes]:
        """Yield the sides of the kept changes."""
        for group in self.kept.values():
            for change in group.values():
                yield change.side

    def _numbers(self, after: int, upto: int) -> list[int]:
        if upto - after <= 1 << BITS:
            return [n for n in range(after + 1 >> BITS, (upto >> BITS) + 1) if n in self.kept]
        return [number for number in self.kept if after >> BITS <= number <= upto >> BITS]

    def replaced_in_log(self, at: int) -> Iterator[int]:
        """Yield the seqnos of log records that kept changes at or below `at` replaced."""
        for group in self.kept.values():
            for seqno, change in group.items():
                if seqno <= at and not change.is_logged:
                    yield change.previous_seqno

    def check(self, floor: int) -> None:
        """Assert the invariants; for tests."""
        assert list(self._views) == sorted(self._views)
        assert self.high == max(self._views, default=-1)
        ats = [hold.at for hold in self._holds.values() if not hold.is_logged]
        assert {at: ats.count(at) for at in ats} == {a: v.count for a, v in self._views.items()}
        everything = {s: c for group in self.kept.values() for s, c in group.items()}
        assert self.bytes_kept == sum(map(_bytes_of, everything.values()))
        for seqno, change in everything.items():
            newest = max(at for at in ats if seqno <= at < change.successor)
            assert self._views[newest].seqnos.count(seqno) == 1
            assert seqno > floor or not change.is_logged


def _bytes_of(change: Superseded) -> int:
    return KEPT_BYTES + len(change.frame) + len(change.side)


def with_kept(
    chunks: Iterator[tuple[list[bytes], int]], kept: list[tuple[int, bytes]]
) -> Iterator[tuple[list[bytes], int]]:
    """Merge kept changes (seqno, frame), ascending, into the chunks of a log that covers them."""
    return _merged(chunks, kept) if kept else chunks


def with_kept_sizes(chunks: Iterator[Sizes], kept: list[tuple[int, bytes]]) -> Iterator[Sizes]:
    """Merge the sizes of kept changes into those of the log, as `with_kept` does."""
    begin = 0
    for chunk in chunks:
        seqnos, sizes, last = chunk
        end = bisect_left(kept, (last + 1,), begin)
        if begin < end:
            found = ((seqno, len(frame)) for seqno, frame in kept[begin:end])
            rows = sorted([*zip(seqnos, sizes, strict=True), *found])
            chunk = [seqno for seqno, _ in rows], [size for _, size in rows], last
        yield chunk
        begin = end


def _merged(
    chunks: Iterator[tuple[list[bytes], int]], kept: list[tuple[int, bytes]]
) -> Iterator[tuple[list[bytes], int]]:
    begin = 0
    for frames, last in chunks:
        end = bisect_left(kept, (last + 1,), begin)
        found = [frame for _, frame in kept[begin:end]]
        yield (sorted([*frames, *found], key=seqno_of) if found else frames), last
        begin = end
    assert begin == len(kept)
