"""Requests and replies of Millstream's own kv commands: positions, branch logs, leases, versions.

Layouts, all big-endian:

    POSITIONS 0x6b      value u16*; reply {partition u16, state u8, pad 5, uuid, branch, high,
                        snap_start, snap_end, persisted, durable, purge: u64 each}*
    BRANCH_LOG 0x7a     partition in the header; reply {uuid u64, seqno u64, branch u64}*
    LEASE 0x6c          extras {op u8, id u64, seconds u16}, value {partition u16, seqno u64}*;
                        reply extras {id u64, seconds u16},
                        value {partition u16, at u64, uuid u64, branch u64, purge u64}*;
                        to measure one: `client.measuring`
    GET_VERSIONED 0x6d  key; reply extras {flags u32, uuid u64, branch u64, seqno u64, rev u64,
                        expiry u32, deleted u8}, CAS in the header, value

Invariants:
1. A reply of another length than its layout allows is the peer's error, never guessed at.

Elsewhere: who asks (`client.kv`); the commands need HELLO feature 0xff00.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple

from millstream.errors import RemoteProtocolError
from millstream.model.limits import UINT64_MAX
from millstream.model.partitions import PartitionState
from millstream.model.position import FailoverEntry, FailoverLog
from millstream.wire.mcbp import Packet

__all__ = [
    "DURABLE_MARK",
    "LeaseHold",
    "LeaseOp",
    "PartitionPosition",
    "Versioned",
    "branch_log_from",
    "lease_extras",
    "lease_holds_from",
    "lease_value",
    "partition_list",
    "positions_from",
    "versioned_from",
]

DURABLE_MARK: Final = UINT64_MAX - 1
"""Instead of a seqno in a lease: the newest mark of the log that nothing takes away."""
_POSITION: Final = Struct(">HB5x8Q")
_ENTRY: Final = Struct(">QQQ")
_LEASE: Final = Struct(">BQH")
_LEASE_ITEM: Final = Struct(">HQ")
_LEASE_REPLY: Final = Struct(">QH")
_LEASE_HELD: Final = Struct(">HQQQQ")
_VERSIONED: Final = Struct(">IQQQQIB")


class PartitionPosition(NamedTuple):
    """Where one partition of a node stands.

    `durable_seqno`: persisted on a majority of the copies. `snap_start` and `snap_end` are the
    range of the newest snapshot the copy holds whole.
    """

    partition_id: int
    state: PartitionState
    uuid: int
    branch: int
    high_seqno: int
    snap_start: int
    snap_end: int
    persisted_seqno: int
    durable_seqno: int
    purge_seqno: int


class LeaseOp(IntEnum):
    """What a LEASE request does."""

    OPEN = 1
    RENEW = 2
    RELEASE = 3
    MEASURE = 4


class LeaseHold(NamedTuple):
    """One partition of a lease: readable as of `at` in the history `uuid`, numbered `branch`."""

    lease_id: int
    partition_id: int
    at: int
    uuid: int
    branch: int
    purge_seqno: int


class Versioned(NamedTuple):
    """A document, or the tombstone of one, with its place in the history."""

    value: bytes
    cas: int
    flags: int
    uuid: int
    branch: int
    seqno: int
    rev: int
    expiry: int
    is_deleted: bool
    datatype: int = 0


def partition_list(partition_ids: Iterable[int]) -> bytes:
    """Return the value of a POSITIONS request."""
    return b"".join(partition_id.to_bytes(2, "big") for partition_id in partition_ids)


def positions_from(packet: Packet) -> list[PartitionPosition]:
    """Cut the reply to POSITIONS.

    Raises:
        RemoteProtocolError: `bad_frame`.
    """
    return [
        PartitionPosition(partition_id, _state(state), *rest)
        for partition_id, state, *rest in _items(_POSITION, packet.value)
    ]


def branch_log_from(packet: Packet) -> FailoverLog:
    """Cut the reply to BRANCH_LOG: histories, newest first.

    Raises:
        RemoteProtocolError: `bad_frame`.
    """
    log = tuple(FailoverEntry(*entry) for entry in _items(_ENTRY, packet.value))
    if not log:
        raise RemoteProtocolError("a branch log is never empty", code="bad_frame")
    return log


def lease_extras(operation: LeaseOp, lease_id: int, seconds: int) -> bytes:
    """Return the extras of a LEASE request; `seconds` 0 asks for the node's default."""
    return _LEASE.pack(operation, lease_id, seconds)


def lease_value(wanted: Mapping[int, int | None]) -> bytes:
    """Return the value of a LEASE request: partition -> seqno, None for the present high."""
    return b"".join(
        _LEASE_ITEM.pack(partition_id, UINT64_MAX if at is None else at)
        for partition_id, at in wanted.items()
    )


def lease_holds_from(packet: Packet) -> list[LeaseHold]:
    """Cut the reply to LEASE: what is held.

    Raises:
        RemoteProtocolError: `bad_frame`.
    """
    if len(packet.extras) != _LEASE_REPLY.size:
        raise RemoteProtocolError("lease reply without its id", code="bad_frame")
    lease_id = _LEASE_REPLY.unpack(packet.extras)[0]
    return [LeaseHold(lease_id, *held) for held in _items(_LEASE_HELD, packet.value)]


def versioned_from(packet: Packet) -> Versioned:
    """Cut the reply to GET_VERSIONED.

    Raises:
        RemoteProtocolError: `bad_frame`.
    """
    if len(packet.extras) != _VERSIONED.size:
        raise RemoteProtocolError("versioned reply of wrong length", code="bad_frame")
    flags, uuid, branch, seqno, rev, expiry, deleted = _VERSIONED.unpack(packet.extras)
    return Versioned(
        packet.value,
        packet.cas,
        flags,
        uuid,
        branch,
        seqno,
        rev,
        expiry,
        bool(deleted),
        packet.datatype,
    )


def _items(layout: Struct, value: bytes) -> Iterable[tuple[int, ...]]:
    if len(value) % layout.size:
        raise RemoteProtocolError(
            f"reply of {len(value)} bytes is no list of {layout.size}-byte items", code="bad_frame"
        )
    return layout.iter_unpack(value)


def _state(number: int) -> PartitionState:
    try:
        return PartitionState(number)
    except ValueError as error:
        raise RemoteProtocolError(f"unknown partition state {number}", code="bad_frame") from error
