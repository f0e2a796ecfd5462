"""Who reads a bucket's change stream, and leases, as shown to people.

Elsewhere: how the node finds it (`node.shown_statuses`), the page (`gateway.aio.databases`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["LeaseShown", "ReaderStatus", "StreamAt"]


@dataclass(frozen=True, slots=True)
class StreamAt:
    """Where a reader is in one partition."""

    partition: int
    state: str
    """Of the stream, in a word: whether it reads the log or the memory."""
    sent_seqno: int
    uuid: str
    """Of the branch of the partition's history that has `sent_seqno`, as in its failover log."""
    lag: int
    """Changes that it has not been sent yet."""
    lag_s: float | None
    """Age of the oldest of these, by its CAS; None: it is not in memory."""


@dataclass(frozen=True, slots=True)
class ReaderStatus:
    """A connection that streams a bucket, as shown to people."""

    name: str
    """As it calls itself."""
    address: str
    user: str
    """Empty: nobody, since the node has no users."""
    bytes_waiting: int
    """Sent and not acknowledged."""
    sent_bytes: int
    since_ms: int
    """When it connected (Unix)."""
    last_rollback: Mapping[str, int] | None
    """Of this connection: partition, from_seqno, to_seqno, at_ms (Unix)."""
    streams: list[StreamAt]


@dataclass(frozen=True, slots=True)
class LeaseShown:
    """A lease of a bucket, as shown to people."""

    lease_id: int
    seconds_left: float
    holds: Mapping[int, int]
    """Partition -> the seqno as of which it is held."""
