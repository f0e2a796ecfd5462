"""What stands beside the frame of a change: its lineage, and the sidecar where it has one.

    lineage                                               no sidecar
    0x00, varint length of the lineage, lineage, sidecar   with one

Invariants:
1. A side without a sidecar is the lineage itself, byte for byte: who has none pays nothing.
2. No lineage begins with 0x00 (branches count from 1), so the first byte tells the two apart.

Elsewhere: lineages (`model.lineage`), what is in a sidecar (`documents.stored`).
"""

from __future__ import annotations

from typing import Final

from millstream.model.lineage import encode_number

__all__ = ["has_sidecar", "lineage_of", "side_of", "sidecar_of", "split"]

_MARK: Final = b"\x00"


def side_of(lineage: bytes, sidecar: bytes) -> bytes:
    """Return the two as one. Hot path."""
    if not sidecar:
        assert lineage[:1] != _MARK, "a lineage begins with a branch, and these count from 1"
        return lineage
    return b"".join((_MARK, encode_number(len(lineage)), lineage, sidecar))


def has_sidecar(side: bytes) -> bool:
    """Return whether there is a sidecar. Hot path."""
    return side[:1] == _MARK


def split(side: bytes) -> tuple[bytes, bytes]:
    """Return (lineage, sidecar), the latter empty where there is none.

    Raises:
        ValueError: not a side.
    """
    if not has_sidecar(side):
        return side, b""
    start, end = _lineage_at(side)
    return side[start:end], side[end:]


def lineage_of(side: bytes) -> bytes:
    """Return the lineage alone.

    Raises:
        ValueError: not a side.
    """
    if not has_sidecar(side):
        return side
    start, end = _lineage_at(side)
    return side[start:end]


def sidecar_of(side: bytes) -> bytes:
    """Return the sidecar alone, empty where there is none.

    Raises:
        ValueError: not a side.
    """
    return side[_lineage_at(side)[1] :] if has_sidecar(side) else b""


def _lineage_at(side: bytes) -> tuple[int, int]:
    """Return where the lineage begins and ends in a side with a sidecar."""
    length = shift = 0
    for at in range(1, len(side)):
        length |= (side[at] & 0x7F) << shift
        if side[at] < 0x80:
            start = at + 1
            if start + length >= len(side):
                break
            return start, start + length
        shift += 7
    raise ValueError("a side with a sidecar ends before the sidecar begins")
