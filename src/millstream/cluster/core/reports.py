"""What a node reports of itself, of its copies and of its index parts.

Invariants:
1. A report is made after everything that it tells is so, and durable where it has to be.
2. A report is as old as it is: whoever decides something that cannot be taken back asks again.

Elsewhere: orders and their replies (`cluster.core.orders`), what is told of a copy to people
(`model.standing`).
"""

from __future__ import annotations

from typing import Final, Literal, TypeVar

import msgspec

from millstream.errors import RemoteProtocolError
from millstream.model.cluster_maps import NO_KEY, DataRecord, Floor, MapKey
from millstream.model.partitions import PartitionState
from millstream.model.standing import Standing

__all__ = [
    "CopyReport",
    "NodeReport",
    "PartReport",
    "PartState",
    "from_peer",
    "new_copy",
    "no_copy",
]

PartState = Literal["active", "passive", "cleanup"]
_T = TypeVar("_T")


class CopyReport(msgspec.Struct, frozen=True):
    """A copy of a partition. State ABSENT: the node has no copy."""

    standing: Standing
    at: MapKey = NO_KEY
    """The adopted record of this partition, also if there is no copy."""
    may_serve: bool = False
    """An active copy may serve plain requests, by a lease or by contact."""
    is_confirmed: bool = False
    """Of an active copy with several rows: the last row has everything that was acknowledged
    before it came into force, also on disk."""
    heard: int = 0
    """The largest branch that a reader has come with."""
    quiet_ms: int | None = None
    """Time since this copy last told its source that it follows; None: it does not know."""
    log_bytes: int | None = None
    """What its documents take in the log, about, without attachments; None: it does not know."""

    @property
    def is_there(self) -> bool:
        """Whether the node has a copy."""
        return self.standing.state is not PartitionState.ABSENT


class PartReport(msgspec.Struct, frozen=True):
    """A part of an index."""

    state: PartState
    reached: Floor
    """Branch of the history that it follows, and how far it is."""
    at: MapKey = NO_KEY
    """The adopted index record."""
    has_floor: bool = True
    """Whether it has reached the floor of that record."""
    is_frozen: bool = False
    """Whether it has stopped indexing, to be handed over."""
    designs: str = ""
    """Digest of the design documents that it has indexed everything for."""
    own_reached: Floor | None = None
    """How far the indexes are that the node keeps itself; None: there are none."""
    own_designs: str = ""
    """Digest of the design documents of these."""
    outside_ms: int | None = None
    """Since when no writer outside the node (Spark) was heard; None: none keeps an index."""


class NodeReport(msgspec.Struct, frozen=True):
    """A node: what it answers to `report`."""

    node: str
    boots: int
    """Number of its session; 0: it is not in step."""
    is_admitted: bool
    copies: dict[str, dict[int, CopyReport]] = {}
    """By the bucket's uuid and by partition."""
    parts: dict[str, dict[int, PartReport]] = {}
    broken: dict[str, bool] = {}
    """Nodes that it has streams from or to, and whether all of these are broken."""
    has_space: bool = True
    """Whether it may build copies: its disk has more than the reserve left."""
    keys: dict[str, MapKey] = {}
    """Of the newest whole data map that it has taken, by the bucket's uuid."""

    def copy(self, bucket: str, partition: int) -> CopyReport | None:
        """Return what it says of a copy; None if it says nothing."""
        return self.copies.get(bucket, {}).get(partition)

    def part(self, bucket: str, partition: int) -> PartReport | None:
        """Return what it says of an index part; None if it has none."""
        return self.parts.get(bucket, {}).get(partition)


_NOTHING: Final = Standing(0, PartitionState.ABSENT, 0, 0, 0, 0, 0, False, False)


def no_copy(partition: int, at: MapKey) -> CopyReport:
    """Return the report of a node that has no copy."""
    return CopyReport(_NOTHING._replace(partition=partition), at)


def new_copy(partition: int, record: DataRecord) -> CopyReport:
    """Return the report of a copy that a node makes because a record places it."""
    standing = _NOTHING._replace(
        partition=partition, state=PartitionState.REPLICA, last_branch=record.branch
    )
    return CopyReport(standing, record.at)


def from_peer(content: bytes, kind: type[_T]) -> _T:
    """Return a report, an order or a reply that another node sent.

    Raises:
        RemoteProtocolError: `bad_peer_message`.
    """
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.MsgspecError as error:
        raise RemoteProtocolError(
            f"another node sent no {kind.__name__}: {error}; check that all nodes have the same "
            "version",
            code="bad_peer_message",
        ) from error
