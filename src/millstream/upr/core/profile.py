"""How frames look on one connection: canonical ones are shared, others are patched copies.

Invariants:
1. With the canonical profile and opaque = partition id the frames go out untouched.
2. The common profiles of other clients differ in the opaque and the JSON bit only: one copy of the
   joined chunk, patched in place.
3. A described frame (`wire.frames`) keeps its description, whatever becomes of the change.
4. A deletion as version 1 has no time; an expiration is a deletion where it was not asked for.

Elsewhere: the canonical profile and the rewriting of one frame (`wire.frames`).
"""

from __future__ import annotations

from operator import itemgetter
from struct import Struct
from typing import Final

from millstream.upr.core.shared_slices import SharedSlice
from millstream.wire.frames import (
    description_bytes,
    snapshot_marker,
    snapshot_marker_2,
    with_profile,
)
from millstream.wire.mcbp import Datatype, Opcode, OpenFlag

__all__ = ["DescribedProfile", "Profile"]

_OPCODE_AT: Final = 1
_DATATYPE_AT: Final = 5
_OPAQUE_AT: Final = 12
_OPAQUE: Final = Struct(">I")
_MUTATION: Final = int(Opcode.DCP_MUTATION)
_JSON: Final = int(Datatype.JSON)
_opcode_of = itemgetter(_OPCODE_AT)
_datatype_of = itemgetter(_DATATYPE_AT)


class Profile:
    """What one connection asked for.

    Args:
        flags: of DCP_OPEN.
        has_json: the connection was granted the JSON bit.
        has_expiry_opcode: asked for by CONTROL; effective only with delete times.
        marker_version: the newest form of markers that was asked for: 1.0, 2.0 or 2.2.
    """

    __slots__ = (
        "_delete_times",
        "_expiry_opcode",
        "_has_json",
        "_keep_datatype",
        "_marker_version",
        "_with_values",
    )

    is_described = False
    """Frames come with descriptions in front."""

    def __init__(
        self, flags: int, *, has_json: bool, has_expiry_opcode: bool, marker_version: str = "1.0"
    ) -> None:
        self._has_json = has_json
        self._marker_version = marker_version
        self._delete_times = bool(flags & OpenFlag.INCLUDE_DELETE_TIMES)
        self._expiry_opcode = self._delete_times and has_expiry_opcode
        self._keep_datatype = bool(flags & OpenFlag.NO_VALUE_KEEP_DATATYPE)
        self._with_values = not (self._keep_datatype or flags & OpenFlag.NO_VALUE)

    def marker(
        self, partition_id: int, opaque: int, start: int, end: int, flags: int, purge_seqno: int
    ) -> bytes:
        """Return a snapshot marker."""
        if self._marker_version == "1.0":
            return snapshot_marker(partition_id, opaque, start, end, flags)
        purge = purge_seqno if self._marker_version == "2.2" else None
        return snapshot_marker_2(partition_id, opaque, start, end, flags, purge)

    def join(
        self,
        frames: list[bytes],
        partition_id: int,
        opaque: int,
        head: bytes = b"",
        tail: bytes = b"",
    ) -> bytes:
        """Return canonical frames of one partition as one chunk of this profile. Hot path.

        `head` and `tail` are messages of this profile that go in front and behind.
        """
        if not self._with_values:
            return b"".join([head, *self._rewritten(frames, opaque), tail])
        if not self._expiry_opcode and not _are_mutations(frames):
            frames = [
                frame if frame[_OPCODE_AT] == _MUTATION else self._rewritten([frame], opaque)[0]
                for frame in frames
            ]
        if opaque != partition_id or not self._has_json:
            return _patched(frames, opaque, self._has_json, head, tail)
        return b"".join([head, *frames, tail] if head or tail else frames)

    def shares(self, shared: SharedSlice) -> bool:
        """Return whether frames that were joined already need no look at each."""
        return self._with_values and (self._expiry_opcode or shared.is_mutations)

    def join_shared(
        self, shared: SharedSlice, partition_id: int, opaque: int, head: bytes, tail: bytes
    ) -> bytes:
        """Do what `join` does with frames that were joined already, and that it `shares`."""
        json_offsets = () if self._has_json else shared.json_offsets
        if opaque == partition_id and not json_offsets:
            return b"".join([head, shared.body, tail]) if head or tail else shared.body
        chunk, pack = bytearray().join([head, shared.body, tail]), _OPAQUE.pack_into
        opaque_at, datatype_at = len(head) + _OPAQUE_AT, len(head) + _DATATYPE_AT
        for at in shared.offsets:
            pack(chunk, at + opaque_at, opaque)
        for at in json_offsets:
            chunk[at + datatype_at] ^= _JSON
        return bytes(chunk)

    def _rewritten(self, frames: list[bytes], opaque: int) -> list[bytes]:
        return with_profile(
            frames,
            opaque=opaque,
            keep_json=self._has_json,
            delete_times=self._delete_times,
            expiry_opcode=self._expiry_opcode,
            with_values=self._with_values,
            keep_datatype=self._keep_datatype,
        )


class DescribedProfile(Profile):
    """The same for a connection that is sent described frames."""

    __slots__ = ()

    is_described = True

    def shares(self, shared: SharedSlice) -> bool:
        """Return False: shared frames have no descriptions."""
        return False

    def join(
        self,
        frames: list[bytes],
        partition_id: int,
        opaque: int,
        head: bytes = b"",
        tail: bytes = b"",
    ) -> bytes:
        """Do what `Profile.join` does, with described frames."""
        is_canonical = self._with_values and self._has_json and self._expiry_opcode
        if is_canonical and opaque == partition_id:
            return b"".join([head, *frames, tail])
        sizes = list(map(description_bytes, frames))
        changes = self._rewritten(
            [frame[size:] for frame, size in zip(frames, sizes, strict=True)], opaque
        )
        patch = _OPAQUE.pack(opaque)
        pieces = [head]
        for frame, size, change in zip(frames, sizes, changes, strict=True):
            pieces += frame[:_OPAQUE_AT], patch, frame[_OPAQUE_AT + 4 : size], change
        return b"".join([*pieces, tail])


def _are_mutations(frames: list[bytes]) -> bool:
    return bytes(map(_opcode_of, frames)).count(_MUTATION) == len(frames)


def _patched(frames: list[bytes], opaque: int, has_json: bool, head: bytes, tail: bytes) -> bytes:
    """Join frames; set the opaque of each in the copy, and clear the JSON bit if need be."""
    chunk = bytearray().join([head, *frames, tail])
    pack = _OPAQUE.pack_into
    at = len(head) + _OPAQUE_AT
    if has_json:
        for size in map(len, frames):
            pack(chunk, at, opaque)
            at += size
    else:
        for size, datatype in zip(map(len, frames), map(_datatype_of, frames), strict=True):
            pack(chunk, at, opaque)
            if datatype & _JSON:
                chunk[at - _OPAQUE_AT + _DATATYPE_AT] = datatype ^ _JSON
            at += size
    return bytes(chunk)
