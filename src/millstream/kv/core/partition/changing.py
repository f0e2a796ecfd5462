"""What those who make changes of a special kind need of the partition that they change.

Elsewhere: the partition (`kv.core.partition.partition`), who uses this (`counting`, `revising`).
"""

from __future__ import annotations

from typing import Protocol

from millstream.kv.core.partition.expiry import Expiries
from millstream.kv.core.partition.locks import Locks
from millstream.kv.core.partition.residents import Residents
from millstream.kv.core.queue.entry import Entry
from millstream.kv.core.queue.mutation_queue import MutationQueue
from millstream.model.position import FailoverLog
from millstream.wire.mcbp import Status

__all__ = ["ChangingPartition"]


class ChangingPartition(Protocol):
    """A partition's active copy; see there."""

    partition_id: int
    bucket_uuid: str
    failover_log: FailoverLog
    queue: MutationQueue
    residents: Residents
    expiries: Expiries
    locks: Locks
    design_keys: set[bytes]

    def entry(self, key: bytes) -> Entry | None:
        """Return a key's entry."""

    def live(self, key: bytes, now_ns: int) -> bytes | None:
        """Return the frame of a document that exists now."""

    def next_cas(self, now_ns: int, old_cas: int = 0) -> int:
        """Return the CAS of the next change."""

    def succeed(self, entry: Entry, now_ns: int) -> tuple[int, int, int]:
        """Return the seqno of an entry's change, and rev and CAS of the one that follows it."""

    def check_cas(self, key: bytes, cas: int, now_ns: int) -> Status | None:
        """Return why a change that names a CAS is refused."""

    def drop_lock(self, key: bytes) -> None:
        """The key is locked no more."""
