"""What a feed of following copies wants its shell to do (`kv.core.copies.replica_stream`)."""

from __future__ import annotations

from typing import NamedTuple

from millstream.kv.core.copies.record_exchange import AdoptRecords
from millstream.kv.core.partition.residents import NotInMemory
from millstream.model.partitions import PartitionState

__all__ = ["ChangeState", "Effect", "Read", "Send", "TakenOver", "Undo", "Wait"]


class Send(NamedTuple):
    """Send bytes to the source."""

    data: bytes


class Read(NamedTuple):
    """Read a document from the disk: nothing is applied until `on_read`.

    `on_read` is called from the callback of `absent.fetch`, or later if too many reads wait.
    """

    absent: NotInMemory


class Undo(NamedTuple):
    """Roll the copy back to `seqno` or below; then call `on_undone`.

    This is done only if its epoch is still this one and it may follow a source of `branch`;
    otherwise `on_not_undone` is called.
    """

    partition_id: int
    seqno: int
    epoch: int
    branch: int


class Wait(NamedTuple):
    """Call `on_waited` after `pause_s` seconds."""

    partition_id: int
    pause_s: float


class ChangeState(NamedTuple):
    """Set the state of the copy durably, if its epoch is still this one; then `on_state_changed`.

    A move to active is a hand-over and keeps the history. Only `takeover_stream.TakingFeed` emits
    this.
    """

    partition_id: int
    state: PartitionState
    epoch: int


class TakenOver(NamedTuple):
    """A take-over has ended; `failure`: why the copy is not active, empty if it is."""

    partition_id: int
    failure: str


Effect = Send | Read | Undo | Wait | ChangeState | TakenOver | AdoptRecords
