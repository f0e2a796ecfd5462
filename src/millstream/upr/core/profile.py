"""How frames look on one connection: canonical ones are shared, others are patched copies.

Invariants:
1. With the canonical profile and opaque = partition id the frames go out untouched.
2. The common profile of other clients differs in the opaque only: one copy of the joined chunk,
   one patch per frame.
3. A deletion as version 1 has no time; an expiration is a deletion where it was not asked for.

Elsewhere: the canonical profile and the rewriting of one frame (`wire.frames`).
"""

from __future__ import annotations

from typing import Final

from millstream.wire.frames import with_profile
from millstream.wire.mcbp import Opcode, OpenFlag

__all__ = ["Profile"]

_OPCODE_AT: Final = 1
_OPAQUE_AT: Final = 12
_MUTATION: Final = int(Opcode.DCP_MUTATION)


class Profile:
    """What one connection asked for.

    Args:
        flags: of DCP_OPEN.
        has_json: the connection was granted the JSON bit.
        has_expiry_opcode: asked for by CONTROL; effective only with delete times.
    """

    __slots__ = ("_delete_times", "_expiry_opcode", "_has_json", "_keep_datatype", "_with_values")

    def __init__(self, flags: int, *, has_json: bool, has_expiry_opcode: bool) -> None:
        self._has_json = has_json
        self._delete_times = bool(flags & OpenFlag.INCLUDE_DELETE_TIMES)
        self._expiry_opcode = self._delete_times and has_expiry_opcode
        self._keep_datatype = bool(flags & OpenFlag.NO_VALUE_KEEP_DATATYPE)
        self._with_values = not (self._keep_datatype or flags & OpenFlag.NO_VALUE)

    def join(self, frames: list[bytes], partition_id: int, opaque: int) -> bytes:
        """Return canonical frames of one partition as one chunk of this profile. Hot path."""
        if not (self._with_values and self._has_json):
            return b"".join(self._rewritten(frames, opaque))
        if not self._expiry_opcode:
            frames = [
                frame if frame[_OPCODE_AT] == _MUTATION else self._rewritten([frame], opaque)[0]
                for frame in frames
            ]
        if opaque == partition_id:
            return b"".join(frames)
        return _with_opaque(frames, opaque)

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


def _with_opaque(frames: list[bytes], opaque: int) -> bytes:
    """Join frames and set the opaque of each in the copy."""
    chunk = bytearray().join(frames)
    patch = opaque.to_bytes(4, "big")
    at = _OPAQUE_AT
    for size in map(len, frames):
        chunk[at : at + 4] = patch
        at += size
    return bytes(chunk)
