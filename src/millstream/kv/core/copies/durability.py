"""Durable writes: the level that each waits for, and its answer.

Invariants:
1. A write is refused before anything is stored if too few copies follow for its level: with a
   temporary failure while other copies may still connect, else permanently. A stored write is
   never answered as if it had not been stored.
2. Success is answered once the level is reached in the history in which the change was made. In
   any other case the answer is ambiguous: the partition's state or history changed, its majority
   was lost, or the timeout passed.
3. A clock that is set back ends a wait; it never makes one longer.

Elsewhere: what a majority has (`kv.core.partition.acknowledgement`), the order of replies
(`kv.core.session.session`), timeouts (`kv.aio.server`).

Source: docs/concepts/durability.md.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from millstream.kv.core.partition.partition import Partition
from millstream.wire.mcbp import Status, response

__all__ = [
    "DURABLE_WAIT_S_DEFAULT",
    "MAJORITY",
    "MAJORITY_AND_PERSISTED",
    "PERSISTED_ON_MAJORITY",
    "PersistedWait",
    "Waiting",
    "answer_of",
    "refusal_of",
    "waits_for_copies_or_disk",
]

MAJORITY: Final = 1
MAJORITY_AND_PERSISTED: Final = 2
PERSISTED_ON_MAJORITY: Final = 3
DURABLE_WAIT_S_DEFAULT: Final = 10
"""Timeout of a durable write that names none."""

PersistedWait = tuple[Partition, int, bytes, int]
"""A write that waits for the disk only: partition, seqno, reply, the partition's epoch then."""


class Waiting(NamedTuple):
    """A reply that waits for a durability level."""

    partition: Partition
    seqno: int
    reply: bytes
    epoch: int
    """Epoch of the partition when the change was made."""
    level: int
    since_ns: int
    until_ns: int
    """End of the timeout (Unix)."""


def refusal_of(partition: Partition, level: int, now_ns: int) -> Status | None:
    """Return why a write of that level must not be made now (Unix time)."""
    acknowledged = partition.acknowledged
    if not level or acknowledged is None or acknowledged.is_possible:
        return None
    is_temporary = acknowledged.are_awaited(now_ns)
    return Status.ETMPFAIL if is_temporary else Status.DURABILITY_IMPOSSIBLE


def waits_for_copies_or_disk(partition: Partition, level: int) -> bool:
    """Return whether a change that was just made has yet to reach its level."""
    return level > MAJORITY or (level == MAJORITY and partition.has_copies)


def answer_of(wait: PersistedWait | Waiting, now_ns: int) -> bytes | None:
    """Return the reply if it can be sent now; None if it still waits."""
    if len(wait) == 4:
        partition, seqno, reply, epoch = wait
        is_reached, is_over = partition.persisted_seqno >= seqno, False
    else:
        partition, seqno, reply, epoch, level, since_ns, until_ns = wait
        is_reached = _reached(partition, level) >= seqno
        is_over = not since_ns <= now_ns < until_ns
    if partition.epoch != epoch:
        return _ambiguous(reply)
    if is_reached:
        return reply
    return _ambiguous(reply) if is_over or partition.doubtful_seqno >= seqno else None


def _reached(partition: Partition, level: int) -> int:
    """Return the seqno up to which the changes of a partition have reached the level."""
    if level == MAJORITY:
        return partition.majority_seqno
    if level == MAJORITY_AND_PERSISTED:
        return min(partition.majority_seqno, partition.persisted_seqno)
    return partition.durable_seqno


def _ambiguous(reply: bytes) -> bytes:
    """Return the ambiguous answer: the change was made and may have been undone."""
    return response(reply[1], Status.SYNC_WRITE_AMBIGUOUS, int.from_bytes(reply[12:16], "big"))
