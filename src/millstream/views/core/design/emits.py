"""Counting and cutting rows by emits: a document that emits equal keys repeatedly has one row.

Invariants:
1. What is cut off by a count of emits leaves exactly the others, in their order; the row in
   which the cut falls is divided.

Elsewhere: rows as they are kept (`views.core.rows`), who counts (`views.core.query.executor`,
`views.core.query.merging`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from millstream.views.core.rows import pairs_of, row_value

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["cut_rows", "emits_in", "turned"]

_ONE_EMIT: Final = 0x92
_ARRAY16: Final = 0xDC


def emits_in(values: Sequence[bytes]) -> int:
    """Return how many emits row values hold. Hot path: nearly all hold one."""
    heads = bytes([value[0] for value in values])
    count = heads.count(_ONE_EMIT)
    if count == len(heads):
        return count
    return sum(map(_emits_of, values))


def _emits_of(value: bytes) -> int:
    head = value[0]
    if head < _ARRAY16:
        return (head & 15) // 2
    return int.from_bytes(value[1 : 3 if head == _ARRAY16 else 5], "big") // 2


def cut_rows(
    keys: Sequence[bytes], values: Sequence[bytes], skip: int, limit: int | None
) -> tuple[Sequence[bytes], Sequence[bytes]]:
    """Return the rows without the first `skip` emits, and of the others the first `limit`."""
    if skip:
        at, left = _place_of(values, skip)
        keys, values = keys[at:], values[at:]
        if left:
            values = [row_value(pairs_of(values[0])[left:]), *values[1:]]
    if (limit is not None and limit < len(values)) or (limit and emits_in(values) > limit):
        at, left = _place_of(values, limit or 0)
        if left:
            values = [*values[:at], row_value(pairs_of(values[at])[:left])]
        keys, values = keys[: at + bool(left)], values[: at + bool(left)]
    return keys, values


def _place_of(values: Sequence[bytes], emits: int) -> tuple[int, int]:
    """Return the row that emit number `emits` is in and its number there; at the end (rows, 0)."""
    first = values[:emits]
    if emits_in(first) == len(first):
        return len(first), 0
    for at, value in enumerate(values):
        here = _emits_of(value)
        if emits < here:
            return at, emits
        emits -= here
    return len(values), 0


def turned(value: bytes) -> bytes:
    """Return a row value with its emits in the opposite order."""
    return value if value[0] == _ONE_EMIT else row_value(pairs_of(value)[::-1])
