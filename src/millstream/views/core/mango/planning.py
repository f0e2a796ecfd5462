"""Which index serves a query, and which range of it.

Invariants:
1. An index is used only if every document that the selector can match, and that has the fields to
   sort by, is in it; the rows of the range are a superset of these.
2. A partial index is used only where the query names it: that its filter follows from the selector
   is for who asks to know.
3. Of several the one of which most leading fields are restricted serves, then the one with fewest
   fields, then the first by name; the list of all documents only if there is none.

Elsewhere: reading and filtering (`gateway.aio.queries.mango_pages`).
Source: CouchDB's Mango, its codes and reasons.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from millstream.errors import UsageError
from millstream.views.core.collation import encode_key, encode_raw_key
from millstream.views.core.mango.definitions import Definition, parse_definition
from millstream.views.core.mango.selectors import Normal, only

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

__all__ = ["ALL_DOCS", "MAXIMUM", "Index", "Plan", "Range", "indexes_of", "plan_query"]

MAXIMUM: Final[dict[str, Any]] = {"\U0010ffff\U0010ffff\U0010ffff\U0010ffff": None}
"""Sorts behind everything that documents have in practice."""
_ID: Final = "_id"
_IMPLICIT: Final = frozenset({"_id", "_rev"})
"""Fields that every document has."""
_NOTHING_GIVEN: Final = frozenset({"$all", "$and", "$or", "$in"})
"""Operators which alone and without arguments find nothing."""


class Index(NamedTuple):
    """An index; `design` without `_design/`, empty for the list of all documents."""

    design: str
    name: str
    definition: Definition

    @property
    def is_all_docs(self) -> bool:
        """Whether this is the list of all documents."""
        return not self.design

    def as_json(self) -> dict[str, Any]:
        """Return it as lists of indexes show it."""
        if self.is_all_docs:
            about: dict[str, Any] = {"ddoc": None, "name": self.name, "type": "special"}
        else:
            about = {
                "ddoc": f"_design/{self.design}", "name": self.name, "type": "json",
                "partitioned": False,
            }  # fmt: skip
        return about | {"def": self.definition.as_listed()}


ALL_DOCS: Final = Index("", "_all_docs", Definition(((_ID, "asc"),), {}))


def indexes_of(design: str, content: Mapping[str, Any]) -> list[Index]:
    """Return the indexes of a design document; none if it has another language.

    Args:
        design: its name without `_design/`.
        content: its members. A view that is no index is passed over.
    """
    views = content.get("views")
    if content.get("language") != "query" or not isinstance(views, dict):
        return []
    found = []
    for name, member in sorted(views.items()):
        try:
            definition = parse_definition(member["map"])
        except (UsageError, LookupError, TypeError):
            continue
        found.append(Index(design, name, definition))
    return found


class Range(NamedTuple):
    """What a selector says of a field: lists of no or one value that bound it, both included."""

    low: tuple[Any, ...]
    high: tuple[Any, ...]
    is_equal: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """How a query is served."""

    index: Index
    ranges: tuple[Range, ...]
    """Ranges of the leading fields of the index."""
    is_empty: bool
    """Whether nothing can match."""
    warnings: tuple[str, ...]

    @property
    def start_key(self) -> list[Any]:
        """The lowest key of an index, as far as it is known."""
        key: list[Any] = []
        for name, one in zip(self.index.definition.columns, self.ranges, strict=False):
            if not _bounds(name, one, one.low):
                break
            key += one.low
        return key

    @property
    def end_key(self) -> list[Any]:
        """The highest key of an index."""
        key: list[Any] = []
        for name, one in zip(self.index.definition.columns, self.ranges, strict=False):
            if not _bounds(name, one, one.high):
                break
            key += one.high
        return [*key, MAXIMUM]

    @property
    def ids(self) -> tuple[str | None, str | None]:
        """The lowest and the highest id of the list of all documents, None where it is open."""
        if not self.ranges:
            return None, None
        (one,) = self.ranges
        low, high = (next(iter(bound), None) for bound in (one.low, one.high))
        return (low if isinstance(low, str) else None, high if isinstance(high, str) else None)


def _bounds(name: str, one: Range, bound: tuple[Any, ...]) -> bool:
    """Ids are compared otherwise than they stand in an index: there only equal ones bound it."""
    return bool(bound) and (name != _ID or one.is_equal)


def plan_query(
    indexes: Iterable[Index],
    normal: Normal,
    sort_fields: Sequence[str],
    use_index: Sequence[str],
    *,
    allow_fallback: bool = True,
) -> Plan:
    """Choose an index.

    Args:
        indexes: those of the bucket, without that of all documents.
        normal: the selector.
        sort_fields: what is to be sorted by.
        use_index: the design document that is wished for, perhaps the index in it, or nothing.
        allow_fallback: whether another index may be used, or that of all documents.

    Raises:
        UsageError: `no_usable_index`: none has this order. `invalid_index`: only a fallback has.
    """
    ranges = _ranges(normal)
    usable = [
        index for index in [*indexes, ALL_DOCS]
        if (not index.definition.partial or _is_named(index, use_index))
        and _is_usable(index, normal, sort_fields)
    ]  # fmt: skip
    if not usable:
        raise UsageError(
            "No index exists for this sort, try indexing by the sort fields.",
            code="no_usable_index",
        )
    named = [index for index in usable if _is_named(index, use_index)]
    candidates = named or usable
    if not (allow_fallback or named or (not use_index and usable != [ALL_DOCS])):
        raise _no_fallback(use_index)
    of_fields = [index for index in candidates if not index.is_all_docs] or [ALL_DOCS]
    index = min(of_fields, key=lambda one: _rank(one, ranges))
    prefix = tuple(ranges[name] for name in _restricted(index, ranges))
    warnings = [*_not_used(index, use_index), *_no_index(index)]
    is_empty = any(map(_is_contradiction, ranges.values())) or _finds_nothing(normal)
    return Plan(index, prefix, is_empty, tuple(warnings))


def _no_fallback(use_index: Sequence[str]) -> UsageError:
    if not use_index:
        reason = "You must specify an index with the `use_index` parameter."
    else:
        name = ", ".join((f"_design/{use_index[0]}", *use_index[1:]))
        reason = f"{name} specified by `use_index` could not be found or it is not suitable."
    return UsageError(reason, code="invalid_index")


def _finds_nothing(normal: Normal) -> bool:
    return any(name in _NOTHING_GIVEN and not value for name, value in normal.items())


def _is_named(index: Index, use_index: Sequence[str]) -> bool:
    if not use_index or index.is_all_docs:
        return False
    return index.design == use_index[0] and use_index[1:] in ((), [], (index.name,), [index.name])


def _rank(index: Index, ranges: Mapping[str, Range]) -> tuple[Any, ...]:
    columns = index.definition.columns
    return (-len(_restricted(index, ranges)), len(columns), index.design, index.name)


def _restricted(index: Index, ranges: Mapping[str, Range]) -> list[str]:
    """Return the leading fields that the selector restricts."""
    found: list[str] = []
    for name in index.definition.columns:
        if name not in ranges:
            break
        found.append(name)
    return found


def _not_used(index: Index, use_index: Sequence[str]) -> list[str]:
    if not use_index or _is_named(index, use_index):
        return []
    if len(use_index) == 1:
        return [
            f"_design/{use_index[0]} was not used because it does not contain a valid index "
            "for this query."
        ]
    return [
        f"_design/{use_index[0]}, {use_index[1]} was not used because it is not a valid index "
        "for this query."
    ]


def _no_index(index: Index) -> list[str]:
    if not index.is_all_docs:
        return []
    return ["No matching index found, create an index to optimize query time."]


# -- what a selector demands


def _is_usable(index: Index, normal: Normal, sort_fields: Sequence[str]) -> bool:
    if index.is_all_docs:
        return not sort_fields or list(sort_fields) == [_ID]
    columns = index.definition.columns
    wanted = set(columns) - set(sort_fields) - _IMPLICIT
    if not normal or not wanted <= _required(normal):
        return False
    return _has_order(columns, sort_fields, normal)


def _required(normal: Normal) -> set[str]:
    """Return fields that every document has which matches."""
    name, value = only(normal)
    if name == "$and":
        return set().union(*map(_required, value))
    if name == "$or":
        return set.intersection(*map(_required, value)) if value else set()
    if name.startswith("$") or value == {"$exists": False}:
        return set()
    return {name}


def _has_order(columns: Sequence[str], sort_fields: Sequence[str], normal: Normal) -> bool:
    """Return whether rows are in an order, the first columns left out that have one value."""
    if not sort_fields:
        return True
    for at, column in enumerate(columns):
        if column == sort_fields[0]:
            return list(columns[at : at + len(sort_fields)]) == list(sort_fields)
        if not _is_constant(normal, column):
            return False
    return False


def _is_constant(normal: Normal, field: str) -> bool:
    return any(name == field and operator == "$eq" for name, operator, _ in _conjuncts(normal))


def _conjuncts(normal: Normal) -> Iterator[tuple[str, str, Any]]:
    """Yield field, operator and argument of the conditions that all have to be true."""
    if not normal:
        return
    name, value = only(normal)
    if name == "$and":
        for one in value:
            yield from _conjuncts(one)
    elif not name.startswith("$") and name:
        yield (name, *only(value))


# -- ranges


class _Bounds:
    """The bounds of one field, as conditions are added."""

    def __init__(self, field: str) -> None:
        self._encode = encode_raw_key if field == _ID else encode_key
        self.low: tuple[bytes, bool, Any] | None = None
        self.high: tuple[bytes, bool, Any] | None = None

    def add(self, operator: str, argument: Any) -> None:
        key = self._encode(argument)
        is_open = operator in ("$lt", "$gt")
        if operator in ("$gt", "$gte", "$eq") and (
            self.low is None or (key, is_open) > self.low[:2]
        ):
            self.low = (key, is_open, argument)
        if operator in ("$lt", "$lte", "$eq") and (
            self.high is None or (key, not is_open) < (self.high[0], not self.high[1])
        ):
            self.high = (key, is_open, argument)

    def range(self) -> Range:
        low, high = self.low, self.high
        if low is not None and high is not None and low[0] >= high[0]:
            is_equal = low[0] == high[0] and not low[1] and not high[1]
            return Range((low[2],), (high[2],), True) if is_equal else _CONTRADICTION
        return Range(() if low is None else (low[2],), () if high is None else (high[2],), False)


_CONTRADICTION: Final = Range((None,), (), True)


def _is_contradiction(one: Range) -> bool:
    return one is _CONTRADICTION


def _ranges(normal: Normal) -> dict[str, Range]:
    """Return what a selector says of the fields that an index can restrict."""
    bounds: dict[str, _Bounds] = {}
    for field, operator, argument in _conjuncts(normal):
        if operator in ("$lt", "$lte", "$eq", "$gt", "$gte"):
            try:
                bounds.setdefault(field, _Bounds(field)).add(operator, argument)
            except UsageError:  # deeper than a key may be: nothing is equal to it, or beyond it
                bounds[field] = _Nothing(field)
    return {field: bound.range() for field, bound in bounds.items()}


class _Nothing(_Bounds):
    """A condition that nothing meets."""

    def add(self, operator: str, argument: Any) -> None:
        return

    def range(self) -> Range:
        return _CONTRADICTION
