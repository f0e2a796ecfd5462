"""Built-in reduces as an index keeps them: of rows, of parts, and what is shown in the end.

    _sum _count _stats _approx_count_distinct _top_N _bottom_N (N from 1 to 100) _first _last

A *part* is what a rule makes of some rows and what an inner node keeps; `final` turns it into
the JSON value of a group. Parts are msgpack values:

    _sum         as shown                 _stats  [sum, count, min, max, sumsqr], or a list of them
    _count       as shown                 _approx_count_distinct  a sketch
    (`views.core.reduce.distinct`)
    _top _bottom as shown: a list         _first _last            [row key, JSON text of the value]

Invariants:
1. merge([rows_part(a), rows_part(b)]) is rows_part(a + b), whatever the grouping and the order:
   exactly for integers, up to rounding for floats; of values that are equal by row order (1 and
   1.0) _top and _bottom list the one that came first.
2. An illegal value raises IllegalValueError, and nothing else that a value can cause is raised but
   OverflowError and RecursionError.

Elsewhere: the arithmetic of values (`views.core.reduce.values`), errors kept as parts, the limit
on results, encoding (`views.core.reduce.reductions`).

Source: the built-in reduces of CouchDB 3.5.
"""

from __future__ import annotations

import re
from operator import mul
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import msgspec

from millstream.errors import UsageError
from millstream.views.core.collation import encode_key
from millstream.views.core.reduce.distinct import estimate, merge_sketches, sketch
from millstream.views.core.reduce.values import STATS, IllegalValueError, statistics, total
from millstream.views.core.rows import ekey_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["RANKED_MAX", "Rows", "Rule", "is_builtin", "rule_of"]

RANKED_MAX: Final = 100
"""Values that `_top_N` and `_bottom_N` list at most."""

_RANKED: Final = re.compile(r"_(top|bottom)_([1-9][0-9]{0,2})", re.ASCII)
_NUMBERS: Final = frozenset({int, float})


class Rows(NamedTuple):
    """Some rows of a view in their order: a key and texts (`rows.pairs_of_all`) per row.

    `texts`: empty where no rule needs them; `values`: decoded, one per emit, for rules that need
    them; `emits`: how many.
    """

    keys: Sequence[bytes]
    texts: Sequence[Sequence[bytes]]
    values: Sequence[Any]
    emits: int


class Rule(Protocol):
    """One built-in reduce."""

    @property
    def needs_values(self) -> bool:
        """Whether `rows_part` looks at values; else they need not be decoded."""

    @property
    def needs_texts(self) -> bool:
        """Whether the reduce uses values or texts. If not, rows need not be decoded."""

    @property
    def is_limited(self) -> bool:
        """Whether parts can grow with what went in, and are held to the limit on results."""

    @property
    def of_numbers(self) -> Callable[[Sequence[Any]], Any] | None:
        """Makes the part of at least one value, all of them numbers; None: it takes more."""

    @property
    def of_number_parts(self) -> Callable[[Sequence[Any]], Any] | None:
        """Merges parts that are numbers, all of them; None: no parts are."""

    def rows_part(self, rows: Rows) -> Any:
        """Return the part of at least one row."""

    def merge(self, parts: Sequence[Any]) -> Any:
        """Return the part of all rows of at least one part."""

    def final(self, part: Any) -> Any:
        """Return the JSON value that is shown."""


def is_builtin(name: str) -> bool:
    """Tell whether a reduce of that name comes with the database."""
    return rule_of(name) is not None


def rule_of(name: str) -> Rule | None:
    """Return the rule of a built-in reduce, None for an unknown name."""
    rule = _RULES.get(name)
    if rule is None and (ranked := _RANKED.fullmatch(name)) and int(ranked[2]) <= RANKED_MAX:
        return _Ranked(int(ranked[2]), is_top=ranked[1] == "top")
    return rule


class _Count:
    needs_values = False
    needs_texts = False
    is_limited = False
    of_numbers = staticmethod(len)
    of_number_parts = staticmethod(sum)

    def rows_part(self, rows: Rows) -> Any:
        return rows.emits

    def merge(self, parts: Sequence[Any]) -> Any:
        return sum(parts)

    def final(self, part: Any) -> Any:
        return part


class _Sum:
    needs_values = True
    needs_texts = True
    is_limited = True
    of_numbers = staticmethod(sum)
    of_number_parts = staticmethod(sum)

    def rows_part(self, rows: Rows) -> Any:
        return total(rows.values)

    def merge(self, parts: Sequence[Any]) -> Any:
        return total(parts)

    def final(self, part: Any) -> Any:
        return part


class _Stats:
    needs_values = True
    needs_texts = True
    is_limited = False
    of_number_parts = None

    @staticmethod
    def of_numbers(values: Sequence[Any]) -> Any:
        squares = sum(map(mul, values, values))
        return [sum(values), len(values), min(values), max(values), squares]

    def rows_part(self, rows: Rows) -> Any:
        found = statistics(rows.values)
        if isinstance(found, dict):
            return [found[name] for name in STATS]
        return [[one[name] for name in STATS] for one in found]

    def merge(self, parts: Sequence[Any]) -> Any:
        if not _is_listed(parts[0]) and not any(map(_is_listed, parts)):
            return _merged_stats(parts)
        length = len(parts[0]) if _is_listed(parts[0]) else -1
        for part in parts:
            if not _is_listed(part) or len(part) != length:
                raise IllegalValueError(_MIXED, self.final(part))
        return [_merged_stats(column) for column in zip(*parts, strict=True)]

    def final(self, part: Any) -> Any:
        if _is_listed(part):
            return [self.final(one) for one in part]
        return dict(zip(STATS, part, strict=True))


_MIXED: Final = "_stats takes arrays only where all values are arrays of one length"


def _is_listed(part: Any) -> bool:
    return not part or isinstance(part[0], list)


def _merged_stats(parts: Sequence[Any]) -> list[Any]:
    totals, counts, lows, highs, squares = zip(*parts, strict=True)
    return [sum(totals), sum(counts), min(lows), max(highs), sum(squares)]


class _Distinct:
    needs_values = False
    needs_texts = False
    is_limited = False
    of_numbers = of_number_parts = None

    def rows_part(self, rows: Rows) -> Any:
        return sketch(map(ekey_of, rows.keys))

    def merge(self, parts: Sequence[Any]) -> Any:
        return merge_sketches(parts)

    def final(self, part: Any) -> Any:
        return estimate(part)


class _Ranked:
    needs_values = True
    needs_texts = True
    is_limited = False
    of_numbers = of_number_parts = None

    def __init__(self, count: int, *, is_top: bool) -> None:
        self._count = count
        self._is_top = is_top

    def rows_part(self, rows: Rows) -> Any:
        return self._ranked(rows.values)

    def merge(self, parts: Sequence[Any]) -> Any:
        return self._ranked([value for part in parts for value in part])

    def final(self, part: Any) -> Any:
        return part

    def _ranked(self, values: Sequence[Any]) -> list[Any]:
        if set(map(type, values)) <= _NUMBERS:
            # Of equal ones a dictionary keeps the first.
            return sorted(dict.fromkeys(values), reverse=self._is_top)[: self._count]
        distinct: dict[bytes, Any] = {}
        for value in values:
            try:
                distinct.setdefault(encode_key(value), value)
            except UsageError as error:
                raise IllegalValueError(f"the value cannot be ordered: {error}", None)\
                    from error  # fmt: skip
        chosen = sorted(distinct, reverse=self._is_top)[: self._count]
        return [distinct[ekey] for ekey in chosen]


class _End:
    needs_values = False
    needs_texts = True
    is_limited = False
    of_numbers = of_number_parts = None

    def __init__(self, *, is_first: bool) -> None:
        self._choose = min if is_first else max
        self._at = 0 if is_first else -1

    def rows_part(self, rows: Rows) -> Any:
        return [rows.keys[self._at], rows.texts[self._at][1 if self._at == 0 else -1]]

    def merge(self, parts: Sequence[Any]) -> Any:
        return self._choose(parts, key=_row_key_of)

    def final(self, part: Any) -> Any:
        return msgspec.json.decode(part[1])


def _row_key_of(part: Any) -> Any:
    return part[0]


_RULES: Final[dict[str, Rule]] = {
    "_count": _Count(),
    "_sum": _Sum(),
    "_stats": _Stats(),
    "_approx_count_distinct": _Distinct(),
    "_first": _End(is_first=True),
    "_last": _End(is_first=False),
}
