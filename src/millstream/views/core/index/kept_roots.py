"""Decides which headers are kept for rollbacks, and when nodes of old roots are freed.

The free list of a commit names the nodes that no root of that commit or a later one needs. It may
run when every kept root, and every root being read, is of that commit or a later one.

The newest headers are kept by count, and some older ones, spaced in time. A source can lose only
what it had not flushed, so a root that is some seconds older nearly always serves. One that is ten
minutes older is the last resort.

Invariants:
1. At least `newest_min` headers and at most `roots_max` are kept. Of the older ones none is older
   than `age_ms_max`, and each is at least `spacing_ms` younger than the one before.
2. A kept header stays until it is too old, or too many nodes wait for it. So the spacing has no
   gaps later.
3. The nodes that only older roots need are at most the larger of `waiting_nodes_min` and the
   number of nodes of the newest root, unless `newest_min` headers need more.

Elsewhere: when a commit is made (`views.core.index.index`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from millstream.errors import CorruptionError
from millstream.views.core.index.header import Header, with_checksum, without_checksum

__all__ = [
    "KEPT_AGE_MS_MAX",
    "KEPT_BOUNDS",
    "KEPT_NEWEST_MIN",
    "KEPT_ROOTS_MAX",
    "KEPT_SPACING_MS",
    "WAITING_NODES_MIN",
    "FreeList",
    "KeptBounds",
    "decode_free_list",
    "encode_free_list",
    "retained",
    "runnable",
]

KEPT_NEWEST_MIN: Final = 8
"""Newest headers of an index that are always kept as rollback points."""
KEPT_ROOTS_MAX: Final = 64
KEPT_AGE_MS_MAX: Final = 600_000
KEPT_SPACING_MS: Final = 10_000
"""Time between two rollback points beyond the newest ones."""
WAITING_NODES_MIN: Final = 16_384
"""Nodes that old roots may hold whatever the size of the index, some 64 MiB."""


class KeptBounds(NamedTuple):
    """How much is kept."""

    newest_min: int = KEPT_NEWEST_MIN
    roots_max: int = KEPT_ROOTS_MAX
    age_ms_max: int = KEPT_AGE_MS_MAX
    spacing_ms: int = KEPT_SPACING_MS
    waiting_nodes_min: int = WAITING_NODES_MIN


KEPT_BOUNDS: Final = KeptBounds()


class FreeList(NamedTuple):
    """Nodes that no root from a commit on needs: numbers, and ranges [first, end)."""

    numbers: tuple[int, ...] = ()
    ranges: tuple[tuple[int, int], ...] = ()

    @property
    def nodes_max(self) -> int:
        """How many at most; a range may name numbers that never became nodes."""
        return len(self.numbers) + sum(end - first for first, end in self.ranges)


def retained(
    headers: Sequence[Header],
    free_lists: Mapping[int, FreeList],
    now_ms: int,
    bounds: KeptBounds = KEPT_BOUNDS,
) -> list[Header]:
    """Return the headers to keep.

    Args:
        headers: kept so far and the new one, oldest first.
        free_lists: by commit, those that have not run and the new one.
        now_ms: Unix time.
        bounds: how much may be kept.
    """
    split = max(0, len(headers) - bounds.newest_min)
    kept: list[Header] = []
    for header in headers[:split]:
        is_spaced = not kept or header.committed_ms - kept[-1].committed_ms >= bounds.spacing_ms
        if is_spaced and now_ms - header.committed_ms <= bounds.age_ms_max:
            kept.append(header)
    kept = [*kept, *headers[split:]][-bounds.roots_max :]
    waiting_max = max(bounds.waiting_nodes_min, headers[-1].nodes)
    while len(kept) > bounds.newest_min and _waiting(kept, free_lists) > waiting_max:
        del kept[0]
    assert kept[-1] is headers[-1], "the header in force is kept"
    assert len(kept) <= max(bounds.roots_max, bounds.newest_min), "too many headers are kept"
    return kept


def _waiting(kept: Sequence[Header], free_lists: Mapping[int, FreeList]) -> int:
    """Return how many nodes wait at most for the oldest of these headers to go."""
    waiting = 0
    for commit, free in free_lists.items():
        if commit > kept[0].commit:
            before = next(each for each in reversed(kept) if each.commit < commit)
            waiting += len(free.numbers)
            waiting += sum(_of_range(first, end, before) for first, end in free.ranges)
    return waiting


def _of_range(first: int, end: int, before: Header) -> int:
    """Return how many nodes a range frees at most, that were there at `before` or came later.

    A range from 1 on, of an index that was built anew, names all that ever were: of numbers given
    until `before` only the nodes of its root wait for this list.
    """
    return min(end - first, before.nodes + max(0, end - max(first, before.next_node)))


def runnable(free_lists: Mapping[int, FreeList], oldest_needed: int) -> list[int]:
    """Return the commits whose free lists may run; `oldest_needed`: commit of the oldest root."""
    return [commit for commit in free_lists if commit <= oldest_needed]


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(FreeList).decode


def encode_free_list(free: FreeList) -> bytes:
    """Return a free list as it is kept: msgpack [[number, ...], [[first, end], ...]]."""
    return with_checksum(_encode(free))


def decode_free_list(data: bytes) -> FreeList:
    """Reverse `encode_free_list`.

    Raises:
        CorruptionError: `index_damaged`.
    """
    try:
        return _decode(without_checksum(data, "free list"))
    except msgspec.DecodeError as error:
        raise CorruptionError(f"free list of an index: {error}", code="index_damaged") from error
