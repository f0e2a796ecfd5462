"""Records of the log as described frames: what the log keeps beside a frame stands in front of it.

Invariants:
1. Cut like frames alone (`records.cut_frames`): what is damaged, or cut, ends it.

Elsewhere: records (`records`), described frames (`wire.frames`).
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final
from zlib import crc32

from millstream.storage.core.records import FRAME_BYTES_MIN, FRAME_ENVELOPE, FRAME_IN_BODY
from millstream.wire.frames import describe_kept

__all__ = ["COPIED_BYTES_MAX", "cut_described"]

COPIED_BYTES_MAX: Final = 64 * 1024
"""A larger record is copied once, with its description; slices cost less for a small one."""


def cut_described(data: bytes, start: int, offsets: list[int], stops: list[int]) -> list[bytes]:
    """Do what `records.cut_frames` does, for described frames. Hot path of reading the log.

    Lineage, sidecar and frame stand side by side in a record as behind a description's head.
    """
    cut: list[bytes] = []
    add, unpack, check, describe = cut.append, FRAME_ENVELOPE.unpack_from, crc32, describe_kept
    if start + len(data) < stops[-1]:
        stops = stops[: bisect_right(stops, start + len(data))]
    for offset, stop in zip(offsets, stops, strict=False):
        at = offset - start
        checksum, lineage_bytes, sidecar_bytes = unpack(data, at)
        body: bytes | memoryview = data
        if stop - offset > COPIED_BYTES_MAX:
            body = memoryview(data)
        body = body[at + 4 : stop - start]
        kept = body[FRAME_IN_BODY:]
        if check(body) != checksum or len(kept) < lineage_bytes + sidecar_bytes + FRAME_BYTES_MIN:
            break
        add(describe(kept, lineage_bytes, sidecar_bytes))
    return cut
