"""What the other copies of a partition that is active here are known to have.

A following copy gives its name when it opens its stream, and acknowledges the ends of complete
snapshots: those in memory, and those that are durable with their range. These ends, this copy's
own end and the rows in force determine what a majority has. A map made by hand has one row. While
a partition moves several rows are in force, and a majority is one of each row.

    acknowledged.join("b", stream)                      # its stream was opened
    acknowledged.acknowledge("b", stream, 17, 12)       # complete up to 17, durable up to 12
    acknowledged.majority_seqno, acknowledged.durable_seqno
    acknowledged.leave("b", stream)

Invariants:
1. Only copies in a row count for it, each once: a new stream with a known name replaces the old
   one. An empty place of a row is a copy that does not answer.
2. What a majority once had stays reached, in the same history and rows: a copy that left still has
   it, or says otherwise where that matters (`Replica.is_intact`, `is_whole`).
3. Acknowledgements of one epoch of the partition do not count in another, and what is reached by
   one set of rows not by another. What was durable by former rows is kept separately
   (`kept_seqno`).
4. Neither seqno is above the partition's high seqno.
5. Missing copies count as about to connect for at most `AWAITED_NS_MAX`: the time that they need
   to find the active copy after it moved.

Elsewhere: the streams that report (`upr.core.producer`), the writes that wait
(`kv.core.session.session`), what a copy that is not active knows of itself (`replica`).

Source: docs/concepts/durability.md, docs/design/0006-copies.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol

from millstream.model.limits import UINT64_MAX
from millstream.model.rows import Row, has_all, majority

__all__ = ["AWAITED_NS_MAX", "Acknowledged", "Followed"]

AWAITED_NS_MAX: Final = 5_000_000_000
"""How long missing copies count as about to connect, after the first write that misses them."""


class Followed(Protocol):
    """The part of a partition that provides its own copy's answer."""

    @property
    def epoch(self) -> int:
        """Return a number that grows when acknowledgements belong to another history."""

    @property
    def high_seqno(self) -> int:
        """Return the seqno that this copy has in memory."""

    @property
    def persisted_seqno(self) -> int:
        """Return the seqno that this copy has on disk."""


class _Ends(NamedTuple):
    """What one copy acknowledged on its current stream."""

    stream: object
    complete_end: int = 0
    persisted_end: int = 0


class _Row:
    """What a majority of one row is known to have."""

    __slots__ = (
        "_beside_own", "_without_own", "complete", "has_own", "is_possible", "majority", "others",
    )  # fmt: skip

    def __init__(self, row: Row, own: str) -> None:
        self.others = tuple(name for name in row if name is not None and name != own)
        self.has_own = own in row
        self.majority = majority(row)
        self.is_possible = False
        """Enough copies follow."""
        self.forget()

    def forget(self) -> None:
        """Begin anew with nothing reached."""
        self.complete = self._beside_own = self._without_own = 0

    def count(self, following: Mapping[str, _Ends]) -> None:
        """Take what the copies that follow have now."""
        ends = [following[name] for name in self.others if name in following]
        needed = self.majority - self.has_own
        self.is_possible = len(ends) >= needed
        if not ends and needed:
            return
        complete = sorted((end.complete_end for end in ends), reverse=True)
        persisted = sorted((end.persisted_end for end in ends), reverse=True)
        self.complete = max(self.complete, _end_of(complete, needed))
        if self.has_own:
            self._beside_own = max(self._beside_own, _end_of(persisted, needed))
        self._without_own = max(self._without_own, _end_of(persisted, self.majority))

    @property
    def reached(self) -> tuple[int, int, int]:
        """Return what was reached, to be compared."""
        return self.complete, self._beside_own, self._without_own

    def durable(self, persisted_seqno: int) -> int:
        """Return what a majority has on disk; the argument is what this copy has there."""
        beside, without = self._beside_own, self._without_own
        with_own = min(beside, persisted_seqno)
        return max(with_own, without)


class Acknowledged:
    """The acknowledged ends of one partition's copies."""

    __slots__ = (
        "_complete", "_confirm_end", "_counted", "_epoch", "_following", "_is_possible", "_kept",
        "_missed_ns", "_own", "_partition", "majority", "row", "rows",
    )  # fmt: skip

    def __init__(self, partition: Followed) -> None:
        self._partition = partition
        self._epoch = partition.epoch
        self._following: dict[str, _Ends] = {}
        self._own = ""
        self._kept = 0
        self._missed_ns = 0
        """When a write first missed copies (Unix); 0: none since a majority was there."""
        self._confirm_end = 0
        """What a majority of the last row must have for that row to be confirmed."""
        self._use((("",),))

    def set_rows(self, rows: tuple[Row, ...], own: str) -> None:
        """Use other rows, in which this node is called `own`; the last one is the wanted one.

        What was durable by the former rows is still reported (`kept_seqno`): a copy that lacks it
        is not promoted without force.
        """
        assert rows, "no row"
        self._kept = self.kept_seqno
        self._own = own
        self._missed_ns = 0
        self._use(rows)

    def begin(self) -> None:
        """A node starts with these rows: no copy has told yet what it has."""
        self._kept = 0

    def _use(self, rows: tuple[Row, ...]) -> None:
        self.rows = rows
        self._counted = tuple(_Row(row, self._own) for row in rows)
        self.row: tuple[str, ...] = tuple(
            dict.fromkeys(name for one in self._counted for name in one.others)
        )
        """The other nodes that should have a copy, by any row."""
        self.majority = max(one.majority for one in self._counted)
        """Number of copies in a majority, this one included; of the row that wants most."""
        self._count()

    def confirm_from_now(self) -> None:
        """The last row is another one: it is confirmed once it has what this copy has now."""
        self._check_epoch()
        self._confirm_end = self._partition.high_seqno

    def _check_epoch(self) -> None:
        """Start anew if the partition's state or history has changed: its streams end, too."""
        epoch = self._partition.epoch
        if epoch != self._epoch:
            self._epoch = epoch
            self._following.clear()
            self._kept = self._missed_ns = 0
            self._confirm_end = self._partition.high_seqno
            for one in self._counted:
                one.forget()
            self._count()

    # -- reports of the streams

    def join(self, name: str, stream: object) -> None:
        """A copy follows by a stream from now on; its state is not known yet."""
        self._check_epoch()
        self._following[name] = _Ends(stream)
        self._count()
        if self._is_possible:
            self._missed_ns = 0

    def acknowledge(
        self, name: str, stream: object, complete_end: int, persisted_end: int
    ) -> bool:
        """Record what a copy has; return whether a majority has more than before.

        Reports on any stream but its current one are ignored.
        """
        self._check_epoch()
        known = self._following.get(name)
        if known is None or known.stream is not stream:
            return False
        self._following[name] = _Ends(stream, complete_end, persisted_end)
        counted = self._counted
        if len(counted) == 1:
            only = counted[0]
            before = only.reached
            only.count(self._following)
            self._complete = only.complete
            return only.reached != before
        all_before = [one.reached for one in counted]
        self._count()
        return [one.reached for one in counted] != all_before

    def leave(self, name: str, stream: object) -> None:
        """The stream has ended; does nothing if another one has replaced it."""
        self._check_epoch()
        known = self._following.get(name)
        if known is not None and known.stream is stream:
            del self._following[name]
            self._count()

    def _count(self) -> None:
        for one in self._counted:
            one.count(self._following)
        self._complete = min(one.complete for one in self._counted)
        self._is_possible = all(one.is_possible for one in self._counted)

    # -- results

    @property
    def is_alone(self) -> bool:
        """Return whether this copy is a majority by itself."""
        return self.majority == 1 and all(one.has_own for one in self._counted)

    @property
    def is_possible(self) -> bool:
        """Return whether enough copies follow for a majority to get a change."""
        self._check_epoch()
        return self._is_possible

    def are_awaited(self, now_ns: int) -> bool:
        """Return whether too few copies follow for a write now (Unix), but more may soon."""
        if self.is_possible:
            return False
        self._missed_ns = self._missed_ns or now_ns
        return self._missed_ns <= now_ns < self._missed_ns + AWAITED_NS_MAX

    @property
    def following(self) -> int:
        """Return how many copies of the rows follow now."""
        self._check_epoch()
        return sum(name in self._following for name in self.row)

    @property
    def slowest_end(self) -> int | None:
        """Return the end that all following copies have, in the row or not; None: none follows."""
        self._check_epoch()
        return min((ends.complete_end for ends in self._following.values()), default=None)

    @property
    def majority_seqno(self) -> int:
        """Return the seqno that a majority has at least in memory."""
        self._check_epoch()
        return min(self._complete, self._partition.high_seqno)

    @property
    def kept_seqno(self) -> int:
        """Return the seqno that a majority of these or former rows has on disk in this history."""
        durable = self.durable_seqno
        return min(max(durable, self._kept), self._partition.high_seqno)

    @property
    def durable_seqno(self) -> int:
        """Return the seqno that a majority has on disk."""
        self._check_epoch()
        partition, counted = self._partition, self._counted
        durable = counted[0].durable(partition.persisted_seqno)
        for one in counted[1:]:
            durable = min(durable, one.durable(partition.persisted_seqno))
        return min(durable, partition.high_seqno)

    @property
    def is_confirmed(self) -> bool:
        """Return whether the last row has what was there when it came into force, also on disk.

        A majority of the row must have it, or all copies that the row names if these are fewer.
        """
        self._check_epoch()
        partition, row, end = self._partition, self.rows[-1], self._confirm_end
        complete = {name: ends.complete_end for name, ends in self._following.items()}
        persisted = {name: ends.persisted_end for name, ends in self._following.items()}
        complete[self._own], persisted[self._own] = partition.high_seqno, partition.persisted_seqno
        return has_all(row, complete, end) and has_all(row, persisted, end)


def _end_of(ends: list[int], count: int) -> int:
    """Return what `count` of them reach (ends descending); the largest number if 0."""
    if count == 0:
        return UINT64_MAX
    return ends[count - 1] if count <= len(ends) else 0
