"""What the other copies of a partition that is active here are known to have.

A following copy gives its name when it opens its stream, and acknowledges the ends of complete
snapshots: those in memory, and those that are durable with their range. These ends, this copy's
own end and the row of the bucket's map determine what a majority has.

    acknowledged.join("b", stream)                      # its stream was opened
    acknowledged.acknowledge("b", stream, 17, 12)       # complete up to 17, durable up to 12
    acknowledged.majority_seqno, acknowledged.durable_seqno
    acknowledged.leave("b", stream)

Invariants:
1. Only copies in the row count, each once: a new stream with a known name replaces the old one. An
   empty place of the row is a copy that does not answer.
2. What a majority once had stays reached, in the same history and row: a copy that left still has
   it, or says otherwise where that matters (`Replica.is_intact`, `is_whole`).
3. Acknowledgements of one epoch of the partition do not count in another, and those of one row not
   in another. What was durable by a former row is kept separately (`kept_seqno`).
4. Neither seqno is above the partition's high seqno.
5. Missing copies count as about to connect for at most `AWAITED_NS_MAX`: the time that they need
   to find the active copy after it moved.

Elsewhere: the streams that report (`upr.core.producer`), the writes that wait
(`kv.core.session.session`), what a copy that is not active knows of itself (`replica`).

Source: docs/concepts/durability.md, docs/design/0006-copies.md.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

from millstream.model.limits import UINT64_MAX

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


class Acknowledged:
    """The acknowledged ends of one partition's copies."""

    __slots__ = (
        "_beside_own", "_complete", "_epoch", "_following", "_has_own", "_kept", "_missed_ns",
        "_partition", "_without_own", "majority", "row",
    )  # fmt: skip

    def __init__(self, partition: Followed) -> None:
        self._partition = partition
        self._epoch = partition.epoch
        self._following: dict[str, _Ends] = {}
        self._has_own = True
        self.row: tuple[str, ...] = ()
        """The other nodes that should have a copy."""
        self.majority = 1
        """Number of copies in a majority, this one included."""
        self._kept = 0
        self._missed_ns = 0
        """When a write first missed copies (Unix); 0: none since a majority was there."""
        self._forget()
        self._count()

    def set_row(self, row: tuple[str | None, ...], own: str) -> None:
        """Use another row of the map, in which this node is called `own`.

        What was durable by the former row is still reported (`kept_seqno`): a copy that lacks it
        is not promoted without force.
        """
        self._kept = self.kept_seqno
        self.row = tuple(name for name in row if name is not None and name != own)
        self._has_own = own in row
        self.majority = len(row) // 2 + 1
        self._missed_ns = 0
        self._forget()
        self._count()

    def _forget(self) -> None:
        self._complete = self._beside_own = self._without_own = 0

    def _check_epoch(self) -> None:
        """Start anew if the partition's state or history has changed: its streams end, too."""
        epoch = self._partition.epoch
        if epoch != self._epoch:
            self._epoch = epoch
            self._following.clear()
            self._kept = self._missed_ns = 0
            self._forget()
            self._count()

    # -- reports of the streams

    def join(self, name: str, stream: object) -> None:
        """A copy follows by a stream from now on; its state is not known yet."""
        self._check_epoch()
        self._following[name] = _Ends(stream)
        if self.is_possible:
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
        before = self._complete, self._beside_own, self._without_own
        self._count()
        return before != (self._complete, self._beside_own, self._without_own)

    def leave(self, name: str, stream: object) -> None:
        """The stream has ended; does nothing if another one has replaced it."""
        self._check_epoch()
        known = self._following.get(name)
        if known is not None and known.stream is stream:
            del self._following[name]

    def _count(self) -> None:
        ends = [self._following[name] for name in self.row if name in self._following]
        complete = sorted((end.complete_end for end in ends), reverse=True)
        persisted = sorted((end.persisted_end for end in ends), reverse=True)
        others = self.majority - self._has_own
        self._complete = max(self._complete, _end_of(complete, others))
        if self._has_own:
            self._beside_own = max(self._beside_own, _end_of(persisted, others))
        self._without_own = max(self._without_own, _end_of(persisted, self.majority))

    # -- results

    @property
    def is_alone(self) -> bool:
        """Return whether this copy is a majority by itself."""
        return self._has_own and self.majority == 1

    @property
    def is_possible(self) -> bool:
        """Return whether enough copies follow for a majority to get a change."""
        self._check_epoch()
        following = sum(name in self._following for name in self.row)
        return following + self._has_own >= self.majority

    def are_awaited(self, now_ns: int) -> bool:
        """Return whether too few copies follow for a write now (Unix), but more may soon."""
        if self.is_possible:
            return False
        self._missed_ns = self._missed_ns or now_ns
        return self._missed_ns <= now_ns < self._missed_ns + AWAITED_NS_MAX

    @property
    def following(self) -> int:
        """Return how many copies of the row follow now."""
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
        """Return the seqno that a majority of this or a former row has on disk in this history."""
        durable = self.durable_seqno
        return min(max(durable, self._kept), self._partition.high_seqno)

    @property
    def durable_seqno(self) -> int:
        """Return the seqno that a majority has on disk."""
        self._check_epoch()
        partition = self._partition
        with_own = min(self._beside_own, partition.persisted_seqno)
        return min(max(with_own, self._without_own), partition.high_seqno)


def _end_of(ends: list[int], count: int) -> int:
    """Return what `count` of them reach (ends descending); the largest number if 0."""
    if count == 0:
        return UINT64_MAX
    return ends[count - 1] if count <= len(ends) else 0
