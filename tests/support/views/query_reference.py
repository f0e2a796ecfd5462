"""What queries of a view answer, worked out from a sorted list of all its rows.

The executor, which reads trees, is compared with it.

1. The direction is applied before the range: with `descending`, startkey is the high end.
2. `skip` and `limit` count what is answered: rows, or groups.
3. Keys that are equal under collation are one group, shown with the first one's text.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from millstream.errors import UsageError
from millstream.views.core.collation import encode_key
from millstream.views.core.query.parameters import MISSING, Query

__all__ = ["MapRow", "ReducedRow", "query_map", "query_reduced", "reduce_rows"]


class MapRow(NamedTuple):
    """One row of a view: `ekey` is the encoded key, `id` the document id in UTF-8."""

    ekey: bytes
    id: bytes
    key: Any
    value: Any


class ReducedRow(NamedTuple):
    """The partial result over all rows of one exact key."""

    ekey: bytes
    key: Any
    partial: Any


def query_map(rows: Sequence[MapRow], query: Query) -> dict[str, Any]:
    """Answer rows.

    Args:
        rows: all rows of the view, sorted by (ekey, id).
        query: checked with `has_reduce` false, or with `reduce` false.

    Returns:
        `{"total_rows", "offset", "rows": [{"id", "key", "value"}]}`, offset as rows before the
        first one in the direction of the query. O(log rows + answered).
    """
    picked: list[MapRow] = []
    offset = 0
    for at, single in enumerate(_ranges(query)):
        low, high = _bounds(rows, single)
        if at == 0:
            offset = len(rows) - high if query.descending else low
        picked += rows[low:high][::-1] if query.descending else rows[low:high]
    answered = _cut(picked, query)
    return {
        "total_rows": len(rows),
        "offset": min(offset + query.skip, len(rows)),
        "rows": [{"id": row.id.decode(), "key": row.key, "value": row.value} for row in answered],
    }


def query_reduced(
    rows: Sequence[ReducedRow], query: Query, merge: Callable[[list[Any]], Any]
) -> list[dict[str, Any]]:
    """Answer groups.

    Args:
        rows: one row per exact key, sorted by ekey.
        query: checked with `has_reduce` true; without document id bounds.
        merge: the rereduce: partial results in key order, at least one, to one result.

    Returns:
        `[{"key", "value"}]`; nothing where the range is empty.

    Raises:
        UsageError: `query_parse_error`: document id bounds.
    """
    if query.startkey_docid is not None or query.endkey_docid is not None:
        raise UsageError(
            "startkey_docid and endkey_docid need reduce=false here", code="query_parse_error"
        )
    groups: list[tuple[Any, list[Any]]] = []
    for single in _ranges(query):
        low, high = _bounds(rows, single)
        found = list(_groups(rows[low:high], query.level))
        groups += found[::-1] if query.descending else found
    answered = _cut(groups, query)
    return [
        {"key": key, "value": partials[0] if len(partials) == 1 else merge(partials)}
        for key, partials in answered
    ]


def reduce_rows(
    rows: Sequence[MapRow], reduce: Callable[[list[MapRow]], Any]
) -> Iterator[ReducedRow]:
    """Yield one reduced row per exact key of rows sorted by (ekey, id)."""
    start = 0
    for at in range(1, len(rows) + 1):
        if at == len(rows) or rows[at].ekey != rows[start].ekey:
            first = rows[start]
            yield ReducedRow(first.ekey, first.key, reduce(list(rows[start:at])))
            start = at


def _ranges(query: Query) -> Iterator[Query]:
    """Yield one query per range: the keys in their order, or the one range."""
    if query.keys is not None:
        for key in query.keys:
            yield replace(query, key=key, keys=None, startkey=MISSING, endkey=MISSING)
    else:
        yield query


def _bounds(rows: Sequence[MapRow] | Sequence[ReducedRow], query: Query) -> tuple[int, int]:
    """Return the half-open range of row numbers that `query` selects, in ascending order."""
    start, end = (
        (query.key, query.key) if query.key is not MISSING else (query.startkey, query.endkey)
    )
    start_id, end_id = _id_bytes(query.startkey_docid), _id_bytes(query.endkey_docid)
    if query.descending:
        low = 0 if end is MISSING else _edge(rows, end, end_id, not query.inclusive_end)
        high = len(rows) if start is MISSING else _edge(rows, start, start_id, True)
        return min(low, high), high
    low = 0 if start is MISSING else _edge(rows, start, start_id, False)
    high = len(rows) if end is MISSING else _edge(rows, end, end_id, query.inclusive_end)
    return low, max(low, high)


def _id_bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode(errors="surrogatepass")


def _edge(rows: Sequence[Any], key: Any, doc_id: bytes | None, is_after: bool) -> int:
    """Return the number of rows before `key` (and `doc_id`), or up to and with it."""
    wanted = encode_key(key)
    search = bisect_right if is_after else bisect_left
    if doc_id is None:
        return search(rows, wanted, key=_ekey_of)
    return search(rows, (wanted, doc_id), key=_place_of)


def _ekey_of(row: MapRow | ReducedRow) -> bytes:
    return row.ekey


def _place_of(row: Any) -> tuple[bytes, bytes]:
    return row[0], row[1]


def _cut(found: list[Any], query: Query) -> list[Any]:
    end = None if query.limit is None else query.skip + query.limit
    return found[query.skip : end]


def _groups(rows: Sequence[ReducedRow], level: int | None) -> Iterator[tuple[Any, list[Any]]]:
    """Yield (shown key, partials) per group, in key order."""
    group: bytes | None = None
    shown: Any = None
    partials: list[Any] = []
    for row in rows:
        key, ekey = _group_key(row, level)
        if group is not None and ekey != group:
            yield shown, partials
            partials = []
        if not partials:
            group, shown = ekey, key
        partials.append(row.partial)
    if partials:
        yield shown, partials


def _group_key(row: ReducedRow, level: int | None) -> tuple[Any, bytes]:
    if level == 0:
        return None, b""
    if level is None or not isinstance(row.key, list) or len(row.key) <= level:
        return row.key, row.ekey
    prefix = row.key[:level]
    return prefix, encode_key(prefix)
