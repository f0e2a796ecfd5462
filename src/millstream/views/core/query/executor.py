"""Queries over the trees of an index: which rows or groups are answered, piece by piece.

Invariants:
1. Only rows of the requested partitions are answered. All of them must be active here.
2. Every emit is a row: total_rows, offset, skip and limit count it, even if a document emits equal
   keys repeatedly.
3. The rows of a descending query are those of the ascending one in reverse, emits included.
4. A piece is made of one leaf, or of at most `GROUPS_PER_PIECE_MAX` groups. Each key of a list has
   a piece, which may be empty. So the caller gets control every millisecond or two. Nothing is
   read before it is needed, and nothing after `limit`.

Elsewhere: parameters (`views.core.query.parameters`), the answer as text
(`views.core.query.rendering`), answers of several nodes (`views.core.query.merging`), reduce
functions (`views.core.reduce.reductions`).
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import msgspec

from millstream.errors import RoutingError
from millstream.views.core.collation import encode_raw_key
from millstream.views.core.design.emits import cut_rows, emits_in, turned
from millstream.views.core.query.grouping import group_namer, shown_key
from millstream.views.core.query.parameters import MISSING, Query
from millstream.views.core.rows import pairs_of, row_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = [
    "GROUPS_PER_PIECE_MAX",
    "Bound",
    "FoundRows",
    "Group",
    "Range",
    "RowPiece",
    "RowReader",
    "View",
    "find_groups",
    "find_rows",
    "ranges_of",
    "wanted_partitions",
]

GROUPS_PER_PIECE_MAX: Final = 16
Bound = tuple[bytes, bool] | None
"""(row key, whether it is within); None: unbounded."""

_AFTER_IDS: Final = b"\xff"
"""Greater than the first byte of any document id: they are UTF-8."""


class Range(NamedTuple):
    """Bounds by row key, low before high whatever the direction."""

    low: Bound = None
    high: Bound = None


class LeafRows(Protocol):
    """Rows of one leaf, in the order asked for."""

    @property
    def keys(self) -> Sequence[bytes]:
        """Row keys."""

    @property
    def values(self) -> Sequence[bytes]:
        """Their values."""


class RowReader(Protocol):
    """One tree as a query sees it (`trees.core.reader`)."""

    def count(self, low: Bound, high: Bound, wanted: int | None) -> int:
        """Return how many row keys lie between the bounds."""

    def reduce(self, low: Bound, high: Bound, wanted: int | None) -> bytes | None:
        """Return the partial result over them, None for no rows."""

    def scan(
        self, low: Bound, high: Bound, *, descending: bool, wanted: int | None, skip: int
    ) -> Iterator[LeafRows]:
        """Yield them leaf by leaf, without the first `skip`."""

    def groups(
        self,
        group_of: Callable[[bytes], bytes],
        low: Bound,
        high: Bound,
        *,
        wanted: int | None,
        descending: bool,
    ) -> Iterator[tuple[bytes, bytes, bytes]]:
        """Yield each group's first row as met, key and value, and the partial result over it."""


class RowPiece(NamedTuple):
    """Rows that follow one another; `part`: number of the range they are of."""

    part: int
    keys: Sequence[bytes]
    values: Sequence[bytes]


class FoundRows(NamedTuple):
    """The answer of a map query; `pieces` read the tree as they are taken."""

    total_rows: int
    offset: int
    pieces: Iterator[RowPiece]


class Group(NamedTuple):
    """One group; `partial` is over all reduces of the tree."""

    part: int
    name: bytes
    first: bytes
    """Row key of the row whose key is shown."""
    key_json: bytes
    partial: bytes


def wanted_partitions(active: int, lacking: int = 0, asked: int | None = None) -> int:
    """Return the bitmap of partitions whose rows are answered.

    Args:
        active: those that this index answers for.
        lacking: active ones whose rows in the trees count for nothing.
        asked: those that the query is to be answered for; None: all active ones.

    Raises:
        RoutingError: `not_my_partition`, one that is asked for is not active here.
    """
    if asked is None:
        asked = active
    elif missing := asked & ~active:
        lowest = (missing & -missing).bit_length() - 1
        raise RoutingError(
            f"the index here does not answer for partition {lowest} "
            f"({missing.bit_count()} of those asked for): ask again with a newer map"
        )
    return asked & ~lacking


def ranges_of(query: Query, encode: Callable[[Any], bytes]) -> Iterator[Range]:
    """Yield the range of a query, or one for each of its keys, in their order."""
    if query.keys is not None:
        for key in query.keys:
            yield _range_of(query, key, key, encode)
    elif query.key is not MISSING:
        yield _range_of(query, query.key, query.key, encode)
    else:
        yield _range_of(query, query.startkey, query.endkey, encode)


def _range_of(query: Query, start: Any, end: Any, encode: Callable[[Any], bytes]) -> Range:
    begin = _bound(start, query.startkey_docid, encode, is_low=not query.descending)
    finish = _bound(
        end, query.endkey_docid, encode, is_low=query.descending, is_within=query.inclusive_end
    )
    return Range(finish, begin) if query.descending else Range(begin, finish)


def _bound(
    key: Any,
    doc_id: str | None,
    encode: Callable[[Any], bytes],
    *,
    is_low: bool,
    is_within: bool = True,
) -> Bound:
    if key is MISSING:
        return None
    ekey = encode(key)
    if doc_id is not None:
        return row_key(ekey, doc_id.encode(errors="surrogatepass")), is_within
    # All rows of a key lie between the key itself and the key with what no id begins with.
    return (ekey if is_low == is_within else ekey + _AFTER_IDS), is_low


class View(NamedTuple):
    """One view as it is asked: its tree, and how its keys are ordered.

    `emits_of`: how many emits a partial result is over.
    """

    reader: RowReader
    encode: Callable[[Any], bytes]
    emits_of: Callable[[bytes], int]


def find_rows(view: View, query: Query, wanted: int | None) -> FoundRows:
    """Return the rows that a checked map query answers. O(log rows) before the first piece."""
    rows = _EmitReader(view, wanted)
    total_rows = rows.count(None, None)
    first = next(ranges_of(query, view.encode), None)
    offset = 0
    if first is not None and query.descending:
        offset = total_rows - rows.count(None, first.high) if first.high else 0
    elif first is not None and first.low:
        key, is_within = first.low
        offset = rows.count(None, (key, not is_within))
    offset = min(offset + query.skip, total_rows)
    return FoundRows(total_rows, offset, _pieces(rows, query, view.encode))


def _pieces(rows: _EmitReader, query: Query, encode: Callable[[Any], bytes]) -> Iterator[RowPiece]:
    skip, left = query.skip, query.limit
    for part, (low, high) in enumerate(ranges_of(query, encode)):
        if left == 0:
            return
        if skip:
            here = rows.count(low, high)
            if here <= skip:
                skip -= here
                yield RowPiece(part, (), ())
                continue
        for keys, values in rows.scan(low, high, query.descending, skip):
            if left is not None:
                keys, values = cut_rows(keys, values, 0, left)
                left -= emits_in(values)
            if keys:
                yield RowPiece(part, keys, values)
            if left == 0:
                return
        skip = 0
        yield RowPiece(part, (), ())


class _EmitReader:
    """Counts emits, where the tree counts row keys: those differ if a document repeats itself."""

    def __init__(self, view: View, wanted: int | None) -> None:
        self._reader, self._emits_of, self._wanted = view.reader, view.emits_of, wanted
        partial = view.reader.reduce(None, None, None)
        emits = 0 if partial is None else view.emits_of(partial)
        self._has_repeats = emits != view.reader.count(None, None, None)

    def count(self, low: Bound, high: Bound) -> int:
        if not self._has_repeats:
            return self._reader.count(low, high, self._wanted)
        partial = self._reader.reduce(low, high, self._wanted)
        return 0 if partial is None else self._emits_of(partial)

    def scan(
        self, low: Bound, high: Bound, descending: bool, skip: int
    ) -> Iterator[tuple[Sequence[bytes], Sequence[bytes]]]:
        rows = self._rows_within(low, high, descending, skip) if self._has_repeats else skip
        leaves = self._reader.scan(
            low, high, descending=descending, wanted=self._wanted, skip=rows
        )
        if not self._has_repeats:
            for leaf in leaves:
                yield leaf.keys, leaf.values
            return
        if rows:
            skip -= self._emits_of_first(low, high, descending, rows)
        for leaf in leaves:
            keys, values = leaf.keys, leaf.values
            if descending:
                values = [turned(value) for value in values]
            yield cut_rows(keys, values, skip, None)
            skip = 0

    def _rows_within(self, low: Bound, high: Bound, descending: bool, emits: int) -> int:
        """Return how many rows, from the query's beginning, have at most this many emits."""
        least, most = 0, min(emits, self._reader.count(low, high, self._wanted))
        while least < most:
            rows = (least + most + 1) // 2
            if self._emits_of_first(low, high, descending, rows) <= emits:
                least = rows
            else:
                most = rows - 1
        return least

    def _emits_of_first(self, low: Bound, high: Bound, descending: bool, rows: int) -> int:
        """Return how many emits the first `rows` >= 1 rows have."""
        leaf = next(
            self._reader.scan(low, high, descending=descending, wanted=self._wanted, skip=rows - 1)
        )
        last = (leaf.keys[0], True)
        return self.count(last, high) if descending else self.count(low, last)


def find_groups(view: View, query: Query, wanted: int | None) -> Iterator[list[Group]]:
    """Yield the groups that a checked reduce query answers, none where no row is in the range."""
    skip, left = query.skip, query.limit
    for part, bounds in enumerate(ranges_of(query, view.encode)):
        found = _groups(view, query.level, part, bounds, wanted, query.descending)
        while left != 0:
            piece = list(islice(found, GROUPS_PER_PIECE_MAX))
            yield piece[skip:] if left is None else piece[skip : skip + left]
            if left is not None:
                left -= min(left, len(piece[skip:]))
            skip = max(0, skip - len(piece))
            if len(piece) < GROUPS_PER_PIECE_MAX:
                break


def _groups(
    view: View, level: int | None, part: int, bounds: Range, wanted: int | None, descending: bool
) -> Iterator[Group]:
    low, high = bounds
    if level == 0:
        whole = view.reader.reduce(low, high, wanted)
        if whole is not None:
            yield Group(part, b"", b"", b"null", whole)
        return
    name_of = group_namer(level, is_raw=view.encode is encode_raw_key)
    found = view.reader.groups(name_of, low, high, wanted=wanted, descending=descending)
    for first, value, partial in found:
        text = _key_json(turned(value) if descending else value, level)
        yield Group(part, name_of(first), first, text, partial)


def _key_json(value: bytes, level: int | None) -> bytes:
    """Return the text of the key that a group shows: as it was emitted, if it is not cut."""
    text = pairs_of(value)[0][0]
    if level is None or not text.startswith(b"["):
        return text
    key = msgspec.json.decode(text)
    return text if len(key) <= level else msgspec.json.encode(shown_key(key, level))
