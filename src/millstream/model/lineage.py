"""Lineage of a document: where it was born and which branches have written it since.

Bytes: varint branch of birth, varint seqno of birth, then per later run varint branch and varint
first generation. The first run (birth branch, generation 1) is implied. Some 11 bytes for a
document that one branch wrote.

Invariants:
1. A write copies the lineage and adds a run only if the branch changed since the key's last write.
2. No branch is 0, so none begins with 0x00, which `model.sides` relies on.
3. Ids computed from it never change once shown; a lost generation never comes back under its id.
"""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = [
    "Lineage",
    "as_of",
    "born",
    "decode",
    "encode",
    "encode_number",
    "is_lineage",
    "with_run",
]

_MORE: Final = bytes(range(0x80, 0x100))
"""The bytes of a number but its last."""


class Lineage(NamedTuple):
    """`runs`: (branch, first generation), oldest first, the run implied by birth included."""

    birth_branch: int
    birth_seqno: int
    runs: tuple[tuple[int, int], ...]


def encode_number(number: int) -> bytes:
    """Return a number as a lineage stores it: 7 bits a byte, low ones first."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _numbers(data: bytes) -> list[int]:
    found, number, shift = [], 0, 0
    for byte in data:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            found.append(number)
            number = shift = 0
    if shift:
        raise ValueError("lineage ends inside a number")
    return found


def born(branch: int, seqno: int) -> bytes:
    """Return the lineage of a document first written on `branch` at `seqno`."""
    return encode_number(branch) + encode_number(seqno)


def with_run(lineage: bytes, branch: int, first_generation: int) -> bytes:
    """Return the lineage with one more run."""
    return lineage + encode_number(branch) + encode_number(first_generation)


def as_of(lineage: bytes, generation: int) -> bytes:
    """Return the lineage that an older version of the document had: `generation` is its rev."""
    parts = decode(lineage)
    runs = tuple(run for run in parts.runs if run[1] <= generation)
    return lineage if len(runs) == len(parts.runs) else encode(parts._replace(runs=runs))


def is_lineage(data: bytes) -> bool:
    """Return whether it is one; no branch is 0. Hot path of whoever is sent lineages."""
    numbers = len(data.translate(None, _MORE))
    return numbers >= 2 and not numbers & 1 and data[-1] < 0x80 and data[0] != 0


def encode(lineage: Lineage) -> bytes:
    """Reverse `decode`."""
    data = born(lineage.birth_branch, lineage.birth_seqno)
    for branch, first_generation in lineage.runs[1:]:
        data = with_run(data, branch, first_generation)
    return data


def decode(data: bytes) -> Lineage:
    """Return the parts of a lineage.

    Raises:
        ValueError: not a lineage.
    """
    numbers = _numbers(data)
    if len(numbers) < 2 or len(numbers) % 2:
        raise ValueError(f"a lineage has an even count of at least 2 numbers, not {len(numbers)}")
    runs = ((numbers[0], 1), *zip(numbers[2::2], numbers[3::2], strict=True))
    return Lineage(numbers[0], numbers[1], runs)
