"""Stream requests, failover logs and positions as bytes: what both sides of a stream share.

Invariants:
1. Decoding refuses with a status of the protocol, never with an exception of the parser.
2. A failover log on the wire is newest first; the standard payload has no branch numbers (they
   read as 0), the extension's has.

Elsewhere: frames of changes and markers (`wire.frames`), numbers (`wire.mcbp`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from struct import Struct
from typing import Any, Final, NamedTuple

import msgspec

from millstream.errors import AccessError, RemoteProtocolError, UsageError
from millstream.model.limits import UINT64_MAX
from millstream.model.position import FailoverEntry, FailoverLog, Position
from millstream.wire.mcbp import (
    Datatype,
    FrameInfo,
    Opcode,
    Packet,
    Status,
    parse_frame_infos,
    request,
)

__all__ = [
    "COOKIE_BYTES_MAX",
    "Reached",
    "RefusedError",
    "StreamRequest",
    "check_accepted",
    "check_layout",
    "decode_acknowledgement",
    "decode_barrier",
    "decode_barrier_reached",
    "decode_branch_log",
    "decode_failover_log",
    "decode_high_and_purge",
    "decode_stream_request",
    "encode_acknowledgement",
    "encode_barrier",
    "encode_barrier_reached",
    "encode_branch_log",
    "encode_failover_log",
    "encode_stream_request",
    "with_branches",
]

_REQUEST: Final = Struct(">IIQQQQQ")
_LOG_ENTRY: Final = Struct(">QQ")
_BRANCH_ENTRY: Final = Struct(">QQQ")
_POSITIONS: Final = Struct(">HB5x8Q")
_U32: Final = Struct(">I")
_U16: Final = Struct(">H")
_REACHED: Final = Struct(">HQQ")
_U64: Final = Struct(">Q")
_ENDS: Final = Struct(">QQ")
_NAMED: Final = 1
"""Flag of BARRIER: the value names those that take part."""
COOKIE_BYTES_MAX: Final = 64
"""Most bytes of the cookie of a barrier."""
_DIGITS_MAX: Final = 20
"""Most digits of a number of 64 bits."""
_LAYOUTS: Final[Mapping[int, tuple[int, bool, bool]]] = {
    Opcode.DCP_CLOSE_STREAM: (0, False, False),
    Opcode.DCP_GET_FAILOVER_LOG: (0, False, False),
    Opcode.DCP_BUFFER_ACK: (4, False, False),
    Opcode.DCP_CONTROL: (0, True, True),
    Opcode.DCP_NOOP: (0, False, False),
}
"""Bytes of the extras, whether it has a key, whether it may have a value. Stream requests have a
check of their own."""
_STATUS_STREAM_ID_INVALID: Final = 0x8D
_DEFAULT_COLLECTION: Final = ("0", "0x0")


class RefusedError(UsageError):
    """A request that is answered with `status` and changes nothing."""

    default_code = "refused"

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class StreamRequest(NamedTuple):
    """What a consumer asks for: a position, an end, and our own members of the JSON value.

    `lease`: read as of the `at` of that lease. `as_of`: only together with a lease, must be its
    `at`. `end_uuid`: the newest uuid expected; the request is refused if it is another.
    """

    partition_id: int
    position: Position
    end: int = UINT64_MAX
    flags: int = 0
    lease: int | None = None
    as_of: int | None = None
    end_uuid: int | None = None


class Reached(NamedTuple):
    """How far a stream that took part in a barrier has been sent: complete up to `seqno`."""

    uuid: int
    seqno: int


def check_layout(packet: Packet) -> None:
    """Check the parts of a consumer's request against its opcode; others pass.

    Raises:
        RefusedError: a part too much, too few or of another size, or a stream id.
    """
    if packet.framing and FrameInfo.STREAM_ID in parse_frame_infos(packet.framing):
        raise RefusedError(_STATUS_STREAM_ID_INVALID, "stream ids are not supported")
    if packet.opcode not in _LAYOUTS:
        return  # a request whose extras may differ is checked where it is decoded
    extras_bytes, has_key, may_have_value = _LAYOUTS[packet.opcode]
    is_laid_out = len(packet.extras) == extras_bytes and bool(packet.key) == has_key
    if not is_laid_out or (packet.value and not may_have_value):
        raise RefusedError(Status.EINVAL, f"the layout of 0x{packet.opcode:02x} is another")


def encode_acknowledgement(
    partition_id: int, complete_end: int, persisted_end: int | None
) -> bytes:
    """Return SEQNO_ACKNOWLEDGED; `persisted_end` is for who knows our extension, else None."""
    extras = (
        _U64.pack(complete_end)
        if persisted_end is None
        else _ENDS.pack(complete_end, persisted_end)
    )
    return request(Opcode.DCP_SEQNO_ACKNOWLEDGED, vbucket=partition_id, extras=extras)


def decode_acknowledgement(packet: Packet, *, is_extended: bool) -> tuple[int, int]:
    """Return (end of the last complete snapshot, end of the last durable one, 0 if not said).

    Raises:
        RefusedError: malformed.
    """
    layouts = {8: _U64, 16: _ENDS} if is_extended else {8: _U64}
    layout = layouts.get(len(packet.extras))
    if layout is None or packet.key or packet.value:
        raise RefusedError(Status.EINVAL, "an acknowledgement names one seqno, or two")
    complete_end, persisted_end = (*layout.unpack(packet.extras), 0)[:2]
    return complete_end, persisted_end


def encode_stream_request(asked: StreamRequest, opaque: int) -> bytes:
    """Return the request frame; the JSON value is left out where nothing needs it."""
    uuid, seqno, snap_start, snap_end, purge_seqno = asked.position
    members: dict[str, int | str] = {}
    if purge_seqno is not None:
        members["purge_seqno"] = str(purge_seqno)
    if asked.lease is not None:
        members["lease"] = asked.lease
    if asked.as_of is not None:
        members["as_of"] = asked.as_of
    if asked.end_uuid is not None:
        members["end_uuid"] = f"{asked.end_uuid:x}"
    return request(
        Opcode.DCP_STREAM_REQ,
        vbucket=asked.partition_id,
        opaque=opaque,
        datatype=Datatype.JSON if members else 0,
        extras=_REQUEST.pack(asked.flags, 0, seqno, asked.end, uuid, snap_start, snap_end),
        value=msgspec.json.encode(members) if members else b"",
    )


def decode_stream_request(packet: Packet, *, is_extended: bool) -> StreamRequest:
    """Reverse `encode_stream_request`.

    Raises:
        RefusedError: malformed (EINVAL), or a filter that is not supported.
    """
    if len(packet.extras) != _REQUEST.size or packet.key:
        raise RefusedError(Status.EINVAL, "a stream request has 48 bytes of extras and no key")
    flags, _, seqno, end, uuid, snap_start, snap_end = _REQUEST.unpack(packet.extras)
    members = _json_members(packet.value)
    _refuse_filters(members)
    own = members if is_extended else {}
    position = Position(
        uuid, seqno, snap_start, snap_end, _number(members, "purge_seqno", base=10)
    )
    return StreamRequest(
        packet.vbucket,
        position,
        end,
        flags,
        _number(own, "lease", base=10),
        _number(own, "as_of", base=10),
        _number(own, "end_uuid", base=16),
    )


def _json_members(value: bytes) -> dict[str, Any]:
    if not value:
        return {}
    try:
        return msgspec.json.decode(value, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        message = "the value of a stream request is not a JSON object"
        raise RefusedError(Status.EINVAL, message) from error


def _number(members: dict[str, Any], name: str, *, base: int) -> int | None:
    """Return a whole number 0..2**64-1 given as a number or as text in `base`."""
    found = members.get(name)
    if found is None:
        return None
    number = found
    if (
        isinstance(found, str)
        and len(found) <= _DIGITS_MAX
        and found.isascii()
        and found.isalnum()
    ):
        with contextlib.suppress(ValueError):
            number = int(found, base)
    if type(number) is not int or not 0 <= number <= UINT64_MAX:
        raise RefusedError(Status.EINVAL, f"{name} is not a number of 64 bits: {found!r}")
    return number


def _refuse_filters(members: dict[str, Any]) -> None:
    """Accept a filter that names the default collection only; refuse the others clearly."""
    if "sid" in members:
        message = "stream ids are not supported: ask without `sid`"
        raise RefusedError(_STATUS_STREAM_ID_INVALID, message)
    wanted = members.get("collections", ["0"])
    scope = members.get("scope", "0")
    if not isinstance(wanted, list) or not wanted or not isinstance(scope, str):
        raise RefusedError(Status.EINVAL, "`collections` is a list of names, `scope` a text")
    if scope not in _DEFAULT_COLLECTION or any(name not in _DEFAULT_COLLECTION for name in wanted):
        message = "only the default collection exists: ask without a filter"
        raise RefusedError(Status.UNKNOWN_COLLECTION, message)


def encode_barrier(
    cookie: bytes, partition_ids: Iterable[int] | None = None, *, opaque: int = 0
) -> bytes:
    """Return the frame that asks for `cookie` to come back; None: every open stream takes part."""
    flags = 0 if partition_ids is None else _NAMED
    value = b"".join(map(_U16.pack, partition_ids or ()))
    extras = _U32.pack(flags)
    return request(Opcode.BARRIER, opaque=opaque, extras=extras, key=cookie, value=value)


def decode_barrier(packet: Packet) -> tuple[bytes, list[int] | None]:
    """Return the cookie, and the partitions that take part, None for all.

    Raises:
        RefusedError: malformed.
    """
    if len(packet.extras) != _U32.size or not 1 <= len(packet.key) <= COOKIE_BYTES_MAX:
        message = f"a barrier has 4 bytes of extras and a cookie of 1 to {COOKIE_BYTES_MAX} bytes"
        raise RefusedError(Status.EINVAL, message)
    flags = _U32.unpack(packet.extras)[0]
    if flags & ~_NAMED or bool(packet.value) != bool(flags) or len(packet.value) % _U16.size:
        message = "flag 1 goes with partition ids of 16 bits in the value, no flag with no value"
        raise RefusedError(Status.EINVAL, message)
    named = [partition_id for (partition_id,) in _U16.iter_unpack(packet.value)]
    return packet.key, named if flags else None


def encode_barrier_reached(cookie: bytes, opaque: int, reached: Mapping[int, Reached]) -> bytes:
    """Return the frame that brings a cookie back, `reached` in partition order."""
    value = b"".join(_REACHED.pack(p, *found) for p, found in sorted(reached.items()))
    extras = _U32.pack(len(reached))
    return request(Opcode.BARRIER_REACHED, opaque=opaque, extras=extras, key=cookie, value=value)


def decode_barrier_reached(packet: Packet) -> tuple[bytes, dict[int, Reached]]:
    """Reverse `encode_barrier_reached`: the cookie, and how far each partition is.

    Raises:
        RemoteProtocolError: malformed.
    """
    value = packet.value
    count = _U32.unpack(packet.extras)[0] if len(packet.extras) == _U32.size else -1
    if not packet.key or len(value) != count * _REACHED.size:
        raise RemoteProtocolError(f"a barrier of {len(value)} bytes", code="bad_frame")
    return packet.key, {p: Reached(*found) for p, *found in _REACHED.iter_unpack(value)}


def encode_failover_log(log: FailoverLog) -> bytes:
    """Return the standard payload: 16 bytes an entry."""
    return b"".join(_LOG_ENTRY.pack(entry.uuid, entry.seqno) for entry in log)


def decode_failover_log(value: bytes) -> FailoverLog:
    """Reverse `encode_failover_log`; branches read as 0.

    Raises:
        RemoteProtocolError: empty, or not whole entries.
    """
    if not value or len(value) % _LOG_ENTRY.size:
        raise RemoteProtocolError(f"a failover log of {len(value)} bytes", code="bad_frame")
    return tuple(FailoverEntry(uuid, seqno, 0) for uuid, seqno in _LOG_ENTRY.iter_unpack(value))


def encode_branch_log(log: FailoverLog) -> bytes:
    """Return the extension's payload: 24 bytes an entry."""
    return b"".join(_BRANCH_ENTRY.pack(*entry) for entry in log)


def decode_branch_log(value: bytes) -> FailoverLog:
    """Reverse `encode_branch_log`.

    Raises:
        RemoteProtocolError: empty, or not whole entries.
    """
    if not value or len(value) % _BRANCH_ENTRY.size:
        raise RemoteProtocolError(f"a branch log of {len(value)} bytes", code="bad_frame")
    return tuple(FailoverEntry(*entry) for entry in _BRANCH_ENTRY.iter_unpack(value))


def with_branches(log: FailoverLog, branches: FailoverLog) -> FailoverLog:
    """Return `log` with the branch numbers asked for just before it (0 where unknown)."""
    numbers = {entry.uuid: entry.branch for entry in branches}
    return tuple(entry._replace(branch=numbers.get(entry.uuid, 0)) for entry in log)


def check_accepted(what: str, status: int) -> None:
    """Check the answer to something that no stream can do without.

    Raises:
        AccessError: `access_denied`.
        RemoteProtocolError: `refused`.
    """
    if status == Status.EACCESS:
        message = "the user lacks the right to stream this bucket: grant `stream`"
        raise AccessError(message, code="access_denied")
    if status != Status.SUCCESS:
        message = f"the server refused {what} with status 0x{status:02x}"
        raise RemoteProtocolError(message, code="refused")


def decode_high_and_purge(value: bytes) -> tuple[int, int]:
    """Return the high and the purge seqno from the answer about one partition's position.

    Raises:
        RemoteProtocolError: not exactly one partition.
    """
    if len(value) != _POSITIONS.size:
        raise RemoteProtocolError(f"a position of {len(value)} bytes", code="bad_frame")
    found = _POSITIONS.unpack(value)
    return found[4], found[9]
