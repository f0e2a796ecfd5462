"""What a producer needs of the engine: partitions that can be read as of a seqno.

The stream plane does not import the engine: whoever has these shapes can be streamed.

Invariants that a source keeps:
1. An item is returned iff it is the newest of its key among seqnos <= `at` of a hold still held.
2. Frames are canonical (`wire.frames`), seqno ascending, immutable, and shared with other readers.
3. The item whose seqno is a former or present `high_seqno` frozen by a hold is always returned.
4. A *described* item is a frame with its DOC_META in front (`wire.frames.described`): lineage and
   sidecar are those the change had when it was accepted.
5. A lost hold never gives a wrong read: `is_held` says so before the items are believed.

Elsewhere: the engine's implementation (`kv.core`), the streams (`upr.core.producer`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from millstream.model.partitions import PartitionState
from millstream.model.position import FailoverLog
from millstream.upr.core.shared_slices import SharedSlices

__all__ = ["BucketSource", "Hold", "PartitionSource", "Peer", "Reader"]


class Hold(NamedTuple):
    """The right to read a partition as of seqno `at`, until released or lost.

    `is_logged`: the state is that of a mark, which the log alone has: memory is of no use.
    """

    hold_id: int
    at: int
    is_logged: bool = False


@dataclass(eq=False, slots=True)
class Peer:
    """The node at the other end of one connection, whose copies its streams feed."""

    name: str
    sent_ms: int | None = None
    """When the newest no-op was sent that it answered (monotonic); None: it answered none."""


class Reader(Protocol):
    """Somebody who reads a partition on from a place: its cursor."""

    @property
    def sent(self) -> int:
        """What is at or below was read: tombstones there may be forgotten."""

    @property
    def memory_after(self) -> int:
        """What is at or below will not be asked of memory."""


class PartitionSource(Protocol):
    """One copy of one partition."""

    @property
    def partition_id(self) -> int:
        """Number of the partition, from 0."""

    @property
    def state(self) -> PartitionState:
        """Role of this copy."""

    @property
    def epoch(self) -> int:
        """Grows when what was read is no longer to be relied on: streams must end.

        The state or the newest history changed, or the partition was rolled back.
        """

    @property
    def is_suspended(self) -> bool:
        """Whether such a change is under way: ask again soon."""

    @property
    def failover_log(self) -> FailoverLog:
        """Histories, newest first, never empty."""

    @property
    def last_branch(self) -> int:
        """The largest branch heard of; above the newest history's it was promised to another."""

    @property
    def high_seqno(self) -> int:
        """Newest seqno; on a replica the end of its last complete snapshot."""

    @property
    def persisted_seqno(self) -> int:
        """Everything at or below is durable."""

    @property
    def awaited_seqno(self) -> int:
        """The newest change that somebody wants on the disks of other copies; 0: none."""

    @property
    def purge_seqno(self) -> int:
        """Tombstones below may be gone."""

    @property
    def memory_floor(self) -> int:
        """Changes above are served by `memory_slice`, those at or below by `backfill`."""

    def open_hold(self, at: int | None = None, start: int | None = None) -> Hold | None:
        """Keep the state as of `at` (None: the present one) readable; None: it is not.

        `start`: what is at or below is not going to be read; None: nobody knows yet.
        """

    def open_rest(self, start: int) -> Hold | None:
        """As `open_hold` of the present state, on a copy that was stopped to be handed over."""

    def release_hold(self, hold: Hold) -> None:
        """Give the hold up; harmless if it was lost."""

    def is_held(self, hold: Hold) -> bool:
        """Return whether the hold was neither released nor lost (bound on memory, rollback)."""

    @property
    def is_durable_known(self) -> bool:
        """Whether it is known which changes are durable."""

    @property
    def awaits_majority(self) -> bool:
        """Whether it is not known now which changes are durable, but will be soon."""

    def check_durable(self) -> None:
        """Raise `UnavailableError`, `majority_unknown`, where it is not known what lasts."""

    def durable_mark(self) -> int:
        """Return the newest seqno that can be read as of and no stop takes away; 0: none."""

    def add_reader(self, reader: Reader) -> None:
        """Keep in memory, within bounds, what the reader has still to read."""

    def remove_reader(self, reader: Reader) -> None:
        """The reader has gone; harmless if it was not there."""

    def memory_slice(
        self, after: int, at: int, bytes_max: int, items_max: int
    ) -> tuple[list[bytes], int] | None:
        """Return frames as of `at` with seqnos in (after, last], and last.

        `last` is the seqno covered up to, `at` once all is covered; at least one seqno is covered
        however large its frame. None: `after` is below `memory_floor`.
        """

    def slots(self, after: int, at: int, items_max: int) -> tuple[list[bytes], int, int] | None:
        """Return the newest frames and the range of them that are after `after`.

        As of `at`, at most `items_max` seqnos; blank where there is nothing to send. The list is
        the live one, not to be changed. None: there is more to it, ask `memory_slice`.
        """

    def described_slice(
        self, after: int, at: int, bytes_max: int, items_max: int
    ) -> tuple[list[bytes], int] | None:
        """Do what `memory_slice` does, with described frames, which are what is counted."""

    def backfill(
        self, after: int, at: int, *, is_logged: bool = False, is_described: bool = False
    ) -> Iterator[tuple[list[bytes], int]]:
        """Return chunks (frames as of `at`, seqno covered up to) from the log.

        `is_described`: with described frames.

        Ends at `at` if that is a mark of the log (`is_logged`), else at min(at, the memory floor
        when it was called). The iterator blocks on the disk: its `next` runs in a worker thread.
        Called in the thread of the engine.
        """


class BucketSource(Protocol):
    """The partitions of one bucket, and news of their changes."""

    @property
    def name(self) -> str:
        """Name of the bucket."""

    @property
    def partition_count(self) -> int:
        """Number of partitions, fixed at creation."""

    def partition(self, partition_id: int) -> PartitionSource | None:
        """Return a partition this node holds a copy of."""

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Call `callback` after every batch of changes, state changes included."""

    def subscribe_durable(self, callback: Callable[[], None]) -> None:
        """Call `callback` each time after changes became durable."""

    def unsubscribe(self, callback: Callable[[], None]) -> None:
        """Stop calling `callback`; harmless if unknown."""

    @property
    def shared_slices(self) -> SharedSlices | None:
        """Slices that other streams send too; None while there is no other stream."""

    def lease_hold(self, lease_id: int, partition_id: int, start: int) -> Hold | None:
        """Return the hold of a lease on a partition; None: not held (any more).

        `start`: what is at or below is not going to be read.
        """

    def on_joined(self, name: str, partition_id: int, stream: object) -> None:
        """A copy of the partition on the node `name` follows by a stream from now on.

        It takes the place of an older stream of that name.
        """

    def on_acknowledged(
        self, name: str, partition_id: int, stream: object, complete_end: int, persisted_end: int
    ) -> None:
        """That copy is complete up to `complete_end`, durably so up to `persisted_end`."""

    def on_accepted(self, peer: Peer, partition_id: int, stream: object) -> None:
        """The copy has accepted the history of the stream; until its end, answers confirm that."""

    def on_heard(self, peer: Peer) -> None:
        """A peer has answered a no-op; `sent_ms` is when that was sent."""

    def on_left(self, name: str, partition_id: int, stream: object) -> None:
        """The stream is over."""

    def begin_take_over(self, partition_id: int, reader: str) -> bool:
        """Begin the takeover of the partition by one stream. False: another one does it.

        `reader`: name of the reader's node; empty if it did not say it.
        """

    def may_hand_over(self, partition_id: int, reader: str) -> bool:
        """Return whether that node may take the partition over now."""

    def end_take_over(self, partition_id: int) -> None:
        """That stream is over; writes held back for it are accepted again."""

    def hold_back_writes(self, partition_id: int) -> None:
        """Answer new writes of the partition as a temporary failure."""

    def accept_writes_again(self, partition_id: int) -> None:
        """End that; harmless if there were none held back."""

    async def stop_copy(self, partition_id: int, epoch: int) -> None:
        """Make the active copy dead, durably, if it is still in that epoch.

        Raises:
            MillstreamError: it is not, or the disk did not take it: nothing changed.
        """
