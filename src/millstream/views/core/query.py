"""Queries of a view: which of the sorted rows are answered, and how they are grouped.

Works on rows sorted by (encoded key, document id), or on exact-key reduced rows sorted by
encoded key; where they come from is the caller's matter.

Invariants:
1. The direction is applied before the range: with `descending`, startkey is the high end.
2. `skip` and `limit` count what is answered: rows, or groups.
3. Keys that are equal under collation are one group, shown with the first one's text.

Elsewhere: JSON and URL decoding of parameters, loading of documents.
Source: the query parameters of CouchDB 3.4 and its refusals.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from millstream.errors import UsageError
from millstream.views.core.collation import encode_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

__all__ = [
    "MISSING",
    "MapRow",
    "Query",
    "ReducedRow",
    "parse_query",
    "query_map",
    "query_reduced",
    "reduce_rows",
]


class _Missing:
    """The value of a key that was not given; None is a key."""

    __slots__ = ()


MISSING: Final = _Missing()


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A checked query; keys are decoded JSON, MISSING where not given."""

    key: Any = MISSING
    keys: tuple[Any, ...] | None = None
    startkey: Any = MISSING
    endkey: Any = MISSING
    startkey_docid: str | None = None
    endkey_docid: str | None = None
    inclusive_end: bool = True
    descending: bool = False
    skip: int = 0
    limit: int | None = None
    reduce: bool | None = None
    group: bool | None = None
    group_level: int | None = None

    @property
    def level(self) -> int | None:
        """Elements of array keys that make a group: 0 one group for all, None exact keys."""
        if self.group_level is not None:
            return self.group_level
        return None if self.group else 0

    def is_reduced(self, has_reduce: bool) -> bool:
        """Whether a view with or without reduce function answers groups rather than rows."""
        return has_reduce if self.reduce is None else self.reduce

    def check(self, has_reduce: bool) -> None:
        """Refuse what contradicts itself or the view.

        Raises:
            UsageError: `query_parse_error`.
        """
        reduced = self.is_reduced(has_reduce)
        if reduced and not has_reduce:
            raise _refused("reduce is asked for, but the view has no reduce function")
        if not reduced and (self.group or self.group_level):
            raise _refused("grouping needs a reduce function and reduce not false")
        if self.group is False and self.group_level:
            raise _refused("group=false contradicts group_level above 0")
        self._check_keys(reduced)
        self._check_range()

    def _check_keys(self, reduced: bool) -> None:
        if self.keys is None:
            return
        if reduced and self.level is not None:
            raise _refused("keys with a reduce function needs group=true")
        bounds = (self.key, self.startkey, self.endkey)
        if all(bound is MISSING for bound in bounds):
            return
        if len(self.keys) != 1 or any(
            bound is not MISSING and encode_key(bound) != encode_key(self.keys[0])
            for bound in bounds
        ):
            raise _refused("keys cannot be combined with key, startkey or endkey")

    def _check_range(self) -> None:
        if self.startkey is MISSING or self.endkey is MISSING:
            return
        start, end = encode_key(self.startkey), encode_key(self.endkey)
        if (start < end) if self.descending else (start > end):
            raise _refused(
                "no rows can match the key range: reverse startkey and endkey or the value "
                "of descending"
            )


def _refused(message: str) -> UsageError:
    return UsageError(message, code="query_parse_error")


_ALIASES: Final = {
    "start_key": "startkey",
    "end_key": "endkey",
    "start_key_doc_id": "startkey_docid",
    "end_key_doc_id": "endkey_docid",
}
_JSON_NAMES: Final = frozenset({"key", "startkey", "endkey"})
_BOOL_NAMES: Final = frozenset({"inclusive_end", "descending", "reduce", "group"})
_COUNT_NAMES: Final = frozenset({"skip", "limit", "group_level"})
_TEXT_NAMES: Final = frozenset({"startkey_docid", "endkey_docid"})


def parse_query(options: Mapping[str, Any]) -> Query:
    """Return the query that `options` (decoded JSON values by parameter name) ask for.

    Raises:
        UsageError: `query_parse_error`: unknown parameter, or a value of the wrong type.
    """
    members: dict[str, Any] = {}
    for given, value in options.items():
        name = _ALIASES.get(given, given)
        if name in _JSON_NAMES:
            encode_key(value)
        elif name == "keys":
            if not isinstance(value, list | tuple):
                raise _refused("keys must be an array")
            value = tuple(value)
        elif name in _BOOL_NAMES:
            if not isinstance(value, bool):
                raise _refused(f"{given} must be true or false, not {value!r}")
        elif name in _COUNT_NAMES:
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise _refused(f"{given} must be an integer of 0 or more, not {value!r}")
        elif name in _TEXT_NAMES:
            if not isinstance(value, str):
                raise _refused(f"{given} must be a string")
        else:
            raise _refused(f"unknown query parameter {given!r}")
        members[name] = value
    return Query(**members)


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
        raise _refused("startkey_docid and endkey_docid need reduce=false here")
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
    elif query.key is not MISSING:
        _check_one_key(query)
        yield query
    else:
        yield query


def _check_one_key(query: Query) -> None:
    wanted = encode_key(query.key)
    for bound in (query.startkey, query.endkey):
        if bound is not MISSING and encode_key(bound) != wanted:
            raise _refused("key cannot be combined with another startkey or endkey")


def _bounds(rows: Sequence[MapRow] | Sequence[ReducedRow], query: Query) -> tuple[int, int]:
    """Return the half-open range of row numbers that `query` selects, in ascending order."""
    start, end = (
        (query.key, query.key) if query.key is not MISSING else (query.startkey, query.endkey)
    )
    start_id, end_id = _id_bytes(query.startkey_docid), _id_bytes(query.endkey_docid)
    if query.descending:
        low = 0 if end is MISSING else _edge(rows, end, end_id, not query.inclusive_end)
        high = len(rows) if start is MISSING else _edge(rows, start, start_id, True)
    else:
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
