"""What a reply's status means to the caller: the error that says it, and what to do next.

Invariants:
1. Every status that is not success becomes exactly one error of `millstream.errors`.
2. Each message names what was asked and the node that answered.

Elsewhere: statuses that are no failure for their command (login steps, a miss) are looked at by
the command itself before it comes here.
"""

from __future__ import annotations

from typing import Final

import msgspec

from millstream.errors import (
    AccessError,
    ConditionError,
    MillstreamError,
    ProtocolError,
    RoutingError,
    StreamError,
    UnavailableError,
    UsageError,
)
from millstream.wire.mcbp import Packet, Status

__all__ = ["detail_of", "error_of", "error_of_status"]

_MEANINGS: Final[dict[int, tuple[type[MillstreamError], str, str]]] = {
    Status.KEY_ENOENT: (ConditionError, "not_found", "no such document"),
    Status.KEY_EEXISTS: (
        ConditionError,
        "key_exists",
        "the document exists, or was changed since its CAS was read; read it again",
    ),
    Status.E2BIG: (UsageError, "too_large", "the key or the value is too large"),
    Status.EINVAL: (UsageError, "bad_request", "the node refused the arguments"),
    Status.NOT_STORED: (ConditionError, "not_found", "no such document"),
    Status.DELTA_BADVAL: (ConditionError, "not_a_number", "the document is no decimal number"),
    Status.NOT_MY_VBUCKET: (
        RoutingError,
        "not_my_partition",
        "the node does not serve this partition (any more); fetch the partition map and ask again",
    ),
    Status.NO_BUCKET: (UsageError, "no_bucket", "no bucket is selected; name one"),
    Status.LOCKED: (ConditionError, "locked", "the document is locked; try again later"),
    Status.NOT_LOCKED: (ConditionError, "not_locked", "the document is not locked (any more)"),
    Status.AUTH_STALE: (AccessError, "login_stale", "the login is no longer valid; log in again"),
    Status.AUTH_ERROR: (AccessError, "bad_credentials", "wrong user name or password"),
    Status.ERANGE: (UsageError, "bad_range", "the seqnos contradict each other or the partition"),
    Status.EACCESS: (AccessError, "access_denied", "the user lacks the right; ask an admin"),
    Status.UNKNOWN_COMMAND: (UsageError, "not_supported", "the node does not know this command"),
    Status.ENOMEM: (UnavailableError, "no_memory", "the node is out of memory; try again later"),
    Status.NOT_SUPPORTED: (UsageError, "not_supported", "the node does not support this"),
    Status.EBUSY: (UnavailableError, "busy", "the node is busy; try again later"),
    Status.ETMPFAIL: (
        UnavailableError,
        "busy",
        "the node cannot do it now: its memory or disk may be full, which `millstream status` "
        "says, or the partition changes hands; try again later",
    ),
    Status.DURABILITY_INVALID_LEVEL: (
        UsageError,
        "durability_level",
        "the node does not know this durability level",
    ),
    Status.DURABILITY_IMPOSSIBLE: (
        UnavailableError,
        "durability_impossible",
        "too few copies are reachable for this durability level",
    ),
    Status.SYNC_WRITE_IN_PROGRESS: (
        UnavailableError,
        "write_in_progress",
        "a durable write of this document is in progress; try again",
    ),
    Status.SYNC_WRITE_AMBIGUOUS: (
        UnavailableError,
        "ambiguous",
        "the write may or may not survive a failure; read the document to find out",
    ),
    Status.LEASE_LOST: (
        StreamError,
        "lease_lost",
        "the lease is not held any more, or its seqno cannot be read; open a new one",
    ),
}


class _Context(msgspec.Struct):
    context: str = ""


class _Explained(msgspec.Struct):
    error: _Context


_decode_explained = msgspec.json.Decoder(_Explained).decode


def detail_of(packet: Packet) -> str:
    """Return the explanation that a node may put into an error reply, else nothing."""
    try:
        return _decode_explained(packet.value).error.context
    except msgspec.MsgspecError:
        return ""


def error_of(packet: Packet, *, address: str, what: str) -> MillstreamError:
    """Return the error that a failed reply stands for.

    Args:
        packet: a response whose status is not success.
        address: HOST:PORT that answered.
        what: what was asked, as the subject of a sentence.
    """
    return error_of_status(packet.status, address=address, what=what, detail=detail_of(packet))


def error_of_status(status: int, *, address: str, what: str, detail: str = "") -> MillstreamError:
    """As `error_of`, from the bare status."""
    meaning = _MEANINGS.get(status)
    said = f" ({detail})" if detail else ""
    if meaning is None:
        text = f"{what}: {address} answered with status 0x{status:02x}{said}"
        return ProtocolError(text, code="unexpected_status")
    kind, code, text = meaning
    return kind(f"{what}: {text}{said} [{address}]", code=code)
