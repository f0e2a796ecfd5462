"""The reduces of one tree: what its nodes keep of them, and what a query shows.

A *partial* is a msgpack array with one part per reduce of the tree: what its rule says for a
built-in (`views.core.reduce.builtin_reduces`), JSON text as bytes for a function of the design
document's
own, an error value (an object with `error` and `reason`) where rows cannot be reduced. Integers
that msgpack cannot hold are decimal texts of extension type 1.

Invariants:
1. No row makes it raise: an error value takes the place of the reduce it belongs to, and is kept
   by every partial that rows with the fault went into, and by no other.
2. Own functions are called once per order of the tree (one call of `CustomReduce` for all leaves
   or all groups of it), with at most REDUCE_VALUES_MAX values each, in row order.
3. A partial of rows is a function of the rows: which leaves they lie in matters only to own
   functions that are not associative, and to results near the limit. An own function that ran out
   of time may have been stopped by a busy machine: queries do not believe such a part, but call it
   again for what is below, until that was in vain `TIME_ERRORS_MAX` times.

Elsewhere: when nodes ask (`trees`), where own functions run (`views.aio`).
"""

from __future__ import annotations

from array import array
from itertools import accumulate, chain, compress, pairwise
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

import msgspec

from millstream.views.core.reduce.builtin_reduces import Rows, rule_of
from millstream.views.core.reduce.values import (
    TIME_ERROR,
    IllegalValueError,
    error_value,
    is_error,
    overflow_reason,
    reduce_error,
)
from millstream.views.core.rows import emits_in, numbers_of, pairs_of_all, split_row_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from millstream.trees.core.columns import Column
    from millstream.views.core.reduce.builtin_reduces import Rule

__all__ = [
    "CAUSED_BY_BYTES_MAX",
    "REDUCE_LIMITS",
    "REDUCE_VALUES_MAX",
    "TIME_ERRORS_MAX",
    "CustomReduce",
    "ReduceCall",
    "ReduceLimit",
    "ReduceResult",
    "RowSlice",
    "ViewReducer",
]

REDUCE_VALUES_MAX: Final = 1000
"""Values given to one call of a reduce function; its results are reduced again."""

CAUSED_BY_BYTES_MAX: Final = 1000
"""JSON bytes of an illegal value that an error value shows; a longer one is left out."""

TIME_ERRORS_MAX: Final = 2
"""Own functions that run out of time in a query before it believes the parts that say so."""

ReduceCall = tuple[bytes, bytes, bool]
"""JSON texts of keys ([[key, id], ...] or null) and of values, and whether they are results."""
ReduceResult = bytes | dict[str, str]
"""JSON text, or an error value."""
ReduceLimit = Literal["true", "false", "log"]
"""How to treat a result that does not shrink: as an error value, ignore it, or log it."""
REDUCE_LIMITS: Final[tuple[ReduceLimit, ...]] = ("true", "false", "log")

_TIME_MARK: Final = TIME_ERROR.encode()
_BIG: Final = 1
_ARRAY_OF: Final = Struct(">BI")
_ARRAY32: Final = 0xDD
_JOIN: Final = b","
_NULL: Final = b"null"
_decode_values: Final = msgspec.json.Decoder(list[Any]).decode
_encode_json: Final = msgspec.json.encode
_encode: Final = msgspec.msgpack.Encoder().encode
_NUMBERS: Final = frozenset({int, float})


def _extension(code: int, data: memoryview) -> int:
    return int(bytes(data))


_decode_all: Final = msgspec.msgpack.Decoder(list[list[Any]], ext_hook=_extension).decode
_UNREADABLE: Final = error_value("a value is nested too deeply", None)


class RowSlice(Protocol):
    """Rows of a tree: a leaf, or the requested part of a leaf."""

    @property
    def keys(self) -> Sequence[bytes]:
        """Row keys, ascending."""

    @property
    def values(self) -> Sequence[bytes]:
        """Row values."""


class CustomReduce(Protocol):
    """The reduce functions of a design document's own, of one tree."""

    def __call__(
        self, number: int, calls: Sequence[ReduceCall]
    ) -> Sequence[bytes | dict[str, str]]:
        """Return, for each call of reduce `number`, JSON text or an error value."""


def _pass_over(reason: str) -> None:
    """Log nothing."""


class ViewReducer:
    """Reduces rows and partials of one tree.

    Args:
        reduces: as in the tree of a design document: built-ins or sources.
        custom: runs the others; needed only where there are some.
        limit: what becomes of results that do not shrink.
        on_overflow: told the reason of each, where they are only to be logged.
    """

    def __init__(
        self,
        reduces: Sequence[str],
        custom: CustomReduce | None = None,
        limit: ReduceLimit = "true",
        on_overflow: Callable[[str], None] = _pass_over,
    ) -> None:
        self._rules: list[Rule | None] = [rule_of(reduce) for reduce in reduces]
        assert custom is not None or None not in self._rules
        self._custom = custom
        self._limit = limit
        self._on_overflow = on_overflow
        self._active = range(len(self._rules))
        self._time_errors = 0
        self._choose_rules()

    def only(self, number: int) -> ViewReducer:
        """Return a reducer of the same tree that works on one reduce alone, for a query.

        It takes the tree's partials; its own have null in the place of the others.
        """
        one = ViewReducer((), self._custom, self._limit, self._on_overflow)
        one._rules, one._active = self._rules, range(number, number + 1)
        one._choose_rules()
        return one

    def _choose_rules(self) -> None:
        """Find out how values that are numbers are reduced, if nothing but them matters."""
        rules = [(number, self._rules[number]) for number in self._active]
        found = [(number, rule.of_numbers) for number, rule in rules if rule and rule.of_numbers]
        self._needs_values = any(rule and rule.needs_values for _, rule in rules)
        self._of_numbers = found if len(found) == len(rules) else []

    # -- rows in columns (`trees.core.columns.Columnar`): numbers, or how many emits there are

    @property
    def is_columnar(self) -> bool:
        """Whether rows that have one number each can be reduced in any order."""
        return bool(self._of_numbers)

    def columns(self, leaves: Sequence[Sequence[bytes]]) -> list[Column | None]:
        """Return the numbers of each leaf, given its row values; None: its rows are others."""
        if not self._needs_values:
            sizes = [(len(values), emits_in(values)) for values in leaves]
            return [bytes(rows) if rows == emits else None for rows, emits in sizes]
        numbers = numbers_of(list(chain.from_iterable(leaves)))
        if numbers is None:
            return [_column(numbers_of(values)) for values in leaves]
        bounds = pairwise(accumulate(map(len, leaves), initial=0))
        return [_column(numbers[low:high]) for low, high in bounds]

    def reduce_columns(self, columns: Iterable[Column], flags: bytes) -> bytes | None:
        """Return the partial of the rows whose flag is 1; None: they are to be looked at."""
        values = list(compress(chain.from_iterable(columns), flags))
        parts: list[Any] = [None] * len(self._rules)
        try:
            for number, part_of in self._of_numbers:
                parts[number] = part_of(values)
        except OverflowError:  # an integer beyond every double met a float
            return None
        return _packed(parts)

    def reduce(self, leaves: Sequence[RowSlice]) -> list[bytes]:
        """Return the partial of each slice of at least one row. O(rows)."""
        is_quick = self._needs_values and self._of_numbers
        if is_quick and (partials := self._reduced_numbers(leaves)) is not None:
            return partials
        parts: list[list[Any]] = [[None] * len(self._rules) for _ in leaves]
        if self._active and leaves:
            rules = [self._rules[number] for number in self._active]
            needs_texts = any(rule is None or rule.needs_texts for rule in rules)
            rows = [pairs_of_all(leaf.values) if needs_texts else [] for leaf in leaves]
            if any(rule is not None for rule in rules):
                self._reduce_by_rules(leaves, rows, parts)
            for number in self._active:
                if self._rules[number] is None:
                    for row, part in zip(parts, self._own(number, leaves, rows), strict=True):
                        row[number] = part
        return [_packed(row) for row in parts]

    def rereduce(self, groups: Sequence[Sequence[bytes]]) -> list[bytes]:
        """Return the partial over each group of at least one partial."""
        parts: list[list[Any]] = [[None] * len(self._rules) for _ in groups]
        if self._active:
            unpacked = _unpacked([partial for group in groups for partial in group])
            bounds = pairwise(accumulate(map(len, groups), initial=0))
            by_group = [list(zip(*unpacked[low:high], strict=True)) for low, high in bounds]
        for number in self._active:
            columns = [of_reduces[number] for of_reduces in by_group]
            rule = self._rules[number]
            if rule is None:
                merged = self._own_merged(number, columns)
            else:
                merged = [self._merged(rule, column) for column in columns]
            for row, part in zip(parts, merged, strict=True):
                row[number] = part
        return [_packed(row) for row in parts]

    def merge(self, number: int, partials: Sequence[bytes]) -> bytes:
        """Return one partial over all of at least one, as to one reduce alone."""
        return self.only(number).rereduce([partials])[0]

    def finalize(self, number: int, partial: bytes) -> Any:
        """Return the JSON value that reduce `number` shows for a partial."""
        (part,) = (row[number] for row in _unpacked([partial]))
        if is_error(part):
            return part
        rule = self._rules[number]
        try:
            return msgspec.json.decode(part) if rule is None else rule.final(part)
        except RecursionError:
            return _UNREADABLE

    # -- which partials are not to be believed (`trees.core.shapes.Doubter`), of one reduce

    def is_lasting(self, partial: bytes) -> bool:
        """Whether no own function ran out of time over these rows."""
        if _TIME_MARK not in partial:
            return True
        (parts,) = _unpacked([partial])
        return not any(_is_time_error(parts[number]) for number in self._active)

    def is_to_be_tried(self, partial: bytes) -> bool:
        """Whether one did, and is to be called again."""
        return self._time_errors < TIME_ERRORS_MAX and not self.is_lasting(partial)

    def _reduced_numbers(self, leaves: Sequence[RowSlice]) -> list[bytes] | None:
        """Return the partials where all values are numbers; None: it has to be looked closer.

        What rows and rules are decided by one at a time is decided here once for all leaves.
        """
        values = numbers_of([value for leaf in leaves for value in leaf.values])
        if values is None:
            return None
        bounds = pairwise(accumulate([len(leaf.values) for leaf in leaves], initial=0))
        slices = [values[low:high] for low, high in bounds]
        columns: list[list[Any]] = [[None] * len(leaves)] * len(self._rules)
        try:
            for number, part_of in self._of_numbers:
                columns[number] = list(map(part_of, slices))
        except OverflowError:  # an integer beyond every double met a float
            return None
        return [_packed(row) for row in zip(*columns, strict=True)]

    def _reduce_by_rules(
        self, leaves: Sequence[RowSlice], rows: list[list[list[bytes]]], parts: list[list[Any]]
    ) -> None:
        rules = [(number, rule) for number in self._active if (rule := self._rules[number])]
        needs_values = any(rule.needs_values for _, rule in rules)
        for leaf, texts, row in zip(leaves, rows, parts, strict=True):
            count = emits_in(leaf.values)
            values, bytes_in = _values_of(texts, count) if needs_values else ([], 0)
            found = Rows(leaf.keys, texts, values or (), count)
            for number, rule in rules:
                if rule.needs_values and values is None:
                    row[number] = _UNREADABLE
                else:
                    row[number] = self._checked(rule, _part(rule, found), bytes_in)

    def _merged(self, rule: Rule, column: Sequence[Any]) -> Any:
        if len(column) == 1:
            return column[0]
        kinds = set(map(type, column))
        if dict in kinds:
            for part in column:
                if is_error(part):
                    return part
        try:
            if rule.of_number_parts and kinds <= _NUMBERS:
                return rule.of_number_parts(column)
            part = rule.merge(column)
        except (IllegalValueError, OverflowError, RecursionError) as error:
            return _error_of(error)
        return self._checked(rule, part, len(_packed(column)) if rule.is_limited else 0)

    def _checked(self, rule: Rule, part: Any, bytes_in: int) -> Any:
        """Apply the limit to arrays and objects that may grow with what went in."""
        if not rule.is_limited or not isinstance(part, list | dict) or is_error(part):
            return part
        try:
            return self._limited(part, len(_encode_json(part)), bytes_in)
        except RecursionError:
            return _UNREADABLE

    def _limited(self, part: Any, bytes_out: int, bytes_in: int) -> Any:
        """Return a part of an own function or an array, or what the limit makes of it."""
        if self._limit == "false" or not (reason := overflow_reason(bytes_out, bytes_in)):
            return part
        if self._limit == "log":
            self._on_overflow(reason)
            return part
        return reduce_error(reason, "reduce_overflow_error")

    def _own(
        self, number: int, leaves: Sequence[RowSlice], rows: list[list[list[bytes]]]
    ) -> list[Any]:
        """Reduce the rows of each leaf by the design document's function."""
        pieces: list[list[tuple[bytes, bytes]]] = []
        for leaf, texts in zip(leaves, rows, strict=True):
            pieces.append(_pieces(_own_rows(leaf.keys, texts)))
        calls = [(keys, values, False) for leaf in pieces for keys, values in leaf]
        results = iter(self._called(number, calls))
        return self._own_merged(number, [[next(results) for _ in leaf] for leaf in pieces])

    def _own_merged(self, number: int, columns: Sequence[Sequence[Any]]) -> list[Any]:
        """Reduce each column of results to one, in as many rounds as the longest takes."""
        columns = [_settled(column) for column in columns]
        while any(len(column) > 1 for column in columns):
            open_at = [at for at, column in enumerate(columns) if len(column) > 1]
            cut = [
                [columns[at][low : low + REDUCE_VALUES_MAX]
                 for low in range(0, len(columns[at]), REDUCE_VALUES_MAX)]
                for at in open_at
            ]  # fmt: skip
            calls = [(_NULL, b"[%b]" % _JOIN.join(piece), True) for all_ in cut for piece in all_]
            results = iter(self._called(number, calls))
            for at, pieces in zip(open_at, cut, strict=True):
                columns[at] = _settled([next(results) for _ in pieces])
        return [column[0] for column in columns]

    def _called(self, number: int, calls: Sequence[ReduceCall]) -> list[Any]:
        assert self._custom is not None
        results = self._custom(number, calls)
        self._time_errors += sum(map(_is_time_error, results))
        return [
            result if is_error(result) else self._limited(result, len(result), len(call[1]))
            for call, result in zip(calls, results, strict=True)
        ]


def _column(numbers: list[int | float] | None) -> Column | None:
    """Return numbers in as little memory as may be."""
    if numbers is None:
        return None
    kinds = set(map(type, numbers))
    try:
        return array("d" if kinds == {float} else "q", numbers)
    except (TypeError, OverflowError):  # of both kinds, or of many digits
        return tuple(numbers)


def _is_time_error(part: Any) -> bool:
    return isinstance(part, dict) and part.get("error") == TIME_ERROR


def _values_of(texts: list[list[bytes]], count: int) -> tuple[list[Any] | None, int]:
    """Return the decoded values of a leaf, None if they cannot be decoded, and their size."""
    if count == len(texts):
        joined = _JOIN.join([pair[1] for pair in texts])
    else:
        joined = _JOIN.join([value for pairs in texts for value in pairs[1::2]])
    try:
        return _decode_values(b"[%b]" % joined), len(joined)
    except (msgspec.DecodeError, RecursionError):
        return None, len(joined)


def _part(rule: Rule, rows: Rows) -> Any:
    try:
        return rule.rows_part(rows)
    except (IllegalValueError, OverflowError, RecursionError) as error:
        return _error_of(error)


def _error_of(error: Exception) -> dict[str, Any]:
    if not isinstance(error, IllegalValueError):
        # An integer beyond every double met a float, or a value is nested without end.
        return error_value(f"the values cannot be reduced: {error}", None)
    reason, value = error.args
    try:
        is_short = len(_encode_json(value)) <= CAUSED_BY_BYTES_MAX
    except RecursionError:
        is_short = False
    return error_value(reason, value if is_short else None)


def _own_rows(keys: Sequence[bytes], rows: list[list[bytes]]) -> list[tuple[bytes, bytes]]:
    """Return ([key, id], value) as JSON texts for every emit."""
    found: list[tuple[bytes, bytes]] = []
    for key, texts in zip(keys, rows, strict=True):
        doc_id = _encode_json(split_row_key(key)[1].decode())
        found += [
            (b"[%b,%b]" % (text, doc_id), value)
            for text, value in zip(texts[::2], texts[1::2], strict=True)
        ]
    return found


def _pieces(rows: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return (keys, values) as JSON texts, per at most REDUCE_VALUES_MAX rows."""
    pieces = []
    for low in range(0, len(rows), REDUCE_VALUES_MAX):
        keys, values = zip(*rows[low : low + REDUCE_VALUES_MAX], strict=True)
        pieces.append((b"[%b]" % _JOIN.join(keys), b"[%b]" % _JOIN.join(values)))
    return pieces


def _settled(column: Sequence[Any]) -> Sequence[Any]:
    """Return the error value alone where there is one."""
    for part in column:
        if is_error(part):
            return [part]
    return column


def _unpacked(partials: Sequence[bytes]) -> list[list[Any]]:
    return _decode_all(_ARRAY_OF.pack(_ARRAY32, len(partials)) + b"".join(partials))


def _packed(parts: Sequence[Any]) -> bytes:
    try:
        return _encode(parts)
    except (OverflowError, RecursionError):
        return _encode([_storable(part) for part in parts])


def _storable(part: Any) -> Any:
    try:
        part = _with_extensions(part)
        _encode(part)
    except RecursionError:
        return _UNREADABLE
    return part


def _with_extensions(part: Any) -> Any:
    """Replace integers that msgpack cannot hold."""
    if isinstance(part, int) and not -(1 << 63) <= part < 1 << 64:
        return msgspec.msgpack.Ext(_BIG, str(part).encode())
    if isinstance(part, list | tuple):
        return [_with_extensions(one) for one in part]
    if isinstance(part, dict):
        return {name: _with_extensions(one) for name, one in part.items()}
    return part
