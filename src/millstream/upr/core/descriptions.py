"""Changes that come behind their descriptions: cut in pairs, and checked.

A consumer that asked for `document_meta` is sent a DOC_META before each change: what the log
keeps beside the change's frame, its lineage and perhaps a sidecar.

Invariants:
1. A description without its change, of another seqno, partition or stream, a change without its
   description, and bytes that are no lineage are errors of the peer: nothing of them is taken.
2. A pair is taken whole or left for the next bytes.
3. The seqnos of a run ascend.

Elsewhere: how a pair is made (`wire.frames.described`), what is not described and where pairs
belong (`upr.core.consumer`), what a lineage says (`model.lineage`).

Source: docs/reference/wire/extensions.md.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from millstream.errors import RemoteProtocolError
from millstream.model.limits import FRAME_BYTES_MAX
from millstream.model.lineage import is_lineage
from millstream.model.sides import side_of
from millstream.wire.mcbp import HEADER, HEADER_BYTES, REQUEST, Opcode

__all__ = ["Run", "cut_run", "is_of_a_pair", "needed_bytes"]

_HEAD: Final = Struct(">BBHBBHIIQQ")
_HEAD_LINEAGE: Final = Struct(">BBHBBHIIQQH")
_DESCRIPTION: Final = Struct(">IHHII8xQH")
_CHANGE: Final = Struct(">HH2xHII8xQ")
_DESCRIPTION_BEGINS: Final = 0x806F0000, 0x0800
"""Magic, opcode, no key; eight bytes of extras, no datatype."""
_CHANGES: Final = frozenset((0x8057, 0x8058, 0x8059))
_MORE: Final = bytes(range(0x80, 0x100))
_BIRTH_NUMBERS: Final = 2
_CHANGE_BODY_BYTES_MIN: Final = 18
_DESCRIPTION_BODY_BYTES_MIN: Final = 10
_DOC_META: Final = int(Opcode.DOC_META)
_MUTATION: Final = int(Opcode.DCP_MUTATION)
_EXPIRATION: Final = int(Opcode.DCP_EXPIRATION)


class Run(NamedTuple):
    """Changes of one stream that follow each other, with their sides, and their seqnos."""

    partition_id: int
    opaque: int
    first: int
    last: int
    frames: list[bytes]
    sides: list[bytes]


def is_of_a_pair(data: bytes, at: int) -> bool:
    """Return whether the message at an offset is a description or a change."""
    opcode = data[at + 1]
    return data[at] == REQUEST and (opcode == _DOC_META or _MUTATION <= opcode <= _EXPIRATION)


def cut_run(data: bytes, at: int) -> tuple[Run, int]:
    """Cut whole pairs of one stream from an offset on; return them and where they end.

    There may be none yet.

    Args:
        data: what has come.
        at: where a message begins of which `is_of_a_pair` holds.

    Raises:
        RemoteProtocolError: `bad_description`: see the module; `bad_order`; `too_large`.
    """
    frames: list[bytes] = []
    sides: list[bytes] = []
    stream, first, last, end = (0, 0), 0, 0, len(data)
    while end - at >= HEADER_BYTES and is_of_a_pair(data, at):
        pair = _cut_pair(data, at)
        if pair is None or (frames and pair[0] != stream):
            break
        found, seqno, side, begin, at = pair
        if not frames:
            stream, first = found, seqno
        elif seqno <= last:
            message = f"partition {stream[0]}: change {seqno} after {last}"
            raise RemoteProtocolError(message, code="bad_order")
        frames.append(data[begin:at])
        sides.append(side)
        last, at = _cut_plain(data, at, stream, seqno, frames, sides)
    return Run(*stream, first, last, frames, sides), at


def _cut_plain(
    data: bytes,
    at: int,
    stream: tuple[int, int],
    last: int,
    frames: list[bytes],
    sides: list[bytes],
) -> tuple[int, int]:
    """Cut the pairs that go on as expected, of documents that one branch wrote. Hot path.

    What is not plain is left to `_cut_pair`, and so is whatever is wrong. Returns the last seqno
    and where it stopped.
    """
    cut_description, cut_change, changes = _DESCRIPTION.unpack_from, _CHANGE.unpack_from, _CHANGES
    partition_id, opaque = stream
    plain = (*_DESCRIPTION_BEGINS, partition_id, opaque)
    end = len(data) - _HEAD.size
    while at + _HEAD_LINEAGE.size <= end:
        kind, extras, owner, body, its_opaque, seqno, size = cut_description(data, at)
        begin = at + HEADER_BYTES + body
        if (
            (kind, extras, owner, its_opaque) != plain
            or seqno <= last
            or body != _DESCRIPTION_BODY_BYTES_MIN + size
            or begin > end
        ):
            break
        change, key_bytes, owner, body, its_opaque, change_seqno = cut_change(data, begin)
        stop = begin + HEADER_BYTES + body
        lineage = data[begin - size : begin]
        if (
            (owner, its_opaque, change_seqno) != (partition_id, opaque, seqno)
            or change not in changes
            or body < _CHANGE_BODY_BYTES_MIN + key_bytes
            or body > FRAME_BYTES_MAX
            or stop > len(data)
            or len(lineage.translate(None, _MORE)) != _BIRTH_NUMBERS
            or lineage[-1] > 0x7F
            or not lineage[0]
        ):
            break
        frames.append(data[begin:stop])
        sides.append(lineage)
        last, at = seqno, stop
    return last, at


def _cut_pair(data: bytes, at: int) -> tuple[tuple[int, int], int, bytes, int, int] | None:
    """Return stream, seqno, side, begin and end of the change; None: they are not whole."""
    end = len(data)
    if end - at < _HEAD_LINEAGE.size:
        return None
    _, opcode, key_bytes, extras_bytes, _, partition_id, body, opaque, _, seqno, size = (
        _HEAD_LINEAGE.unpack_from(data, at)
    )
    begin = at + HEADER_BYTES + _checked(body)
    is_description = opcode == _DOC_META and extras_bytes == 8 and not key_bytes
    if not is_description or body < _DESCRIPTION_BODY_BYTES_MIN + size:
        raise _bad(partition_id, f"no lineage is before opcode 0x{opcode:02x}, or it is cut")
    if end - begin < _HEAD.size:
        return None
    magic, opcode, key_bytes, _, _, owner, body, change_opaque, _, change_seqno = (
        _HEAD.unpack_from(data, begin)
    )
    stop = begin + HEADER_BYTES + _checked(body)
    if not (magic == REQUEST and _MUTATION <= opcode <= _EXPIRATION):
        raise _bad(partition_id, f"a lineage before opcode 0x{opcode:02x}")
    if (owner, change_opaque, change_seqno) != (partition_id, opaque, seqno):
        raise _bad(partition_id, f"the lineage of {seqno} before change {change_seqno} of {owner}")
    if stop > end:
        return None
    middle = at + _HEAD_LINEAGE.size + size
    lineage = data[at + _HEAD_LINEAGE.size : middle]
    if body < _CHANGE_BODY_BYTES_MIN + key_bytes or not is_lineage(lineage):
        raise _bad(partition_id, f"change {seqno} or its lineage is cut")
    return (partition_id, opaque), seqno, side_of(lineage, data[middle:begin]), begin, stop


def needed_bytes(rest: bytes | bytearray) -> int:
    """Return how many bytes it takes, as far as is known, until something of `rest` is whole."""
    needed = HEADER_BYTES
    if len(rest) >= needed:
        needed += HEADER.unpack_from(rest)[6]
        if rest[1] == _DOC_META and rest[0] == REQUEST:
            begin, needed = needed, needed + HEADER_BYTES
            if len(rest) >= needed:
                needed += HEADER.unpack_from(rest, begin)[6]
    return needed


def _checked(body: int) -> int:
    if body > FRAME_BYTES_MAX:
        raise RemoteProtocolError(f"body of {body} bytes is too long", code="too_large")
    return body


def _bad(partition_id: int, what: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"partition {partition_id}: {what}", code="bad_description")
