"""The interface of a partition for modules that make special kinds of changes.

Elsewhere: the partition (`kv.core.partition.partition`), users (`counting`, `revision_changes`).
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
    """A partition's active copy; see `kv.core.partition.partition`."""

    partition_id: int
    bucket_uuid: str
    failover_log: FailoverLog
    persisted_seqno: int
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
        """Return the seqno of an entry's change, and rev and CAS of its successor."""

    def check_cas(self, key: bytes, cas: int, now_ns: int) -> Status | None:
        """Return why a change with this CAS is refused."""

    def drop_lock(self, key: bytes) -> None:
        """Remove the lock of a key."""
