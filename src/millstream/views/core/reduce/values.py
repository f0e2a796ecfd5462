"""The values of _count, _sum and _stats, how their results are merged, and error values.

A partial result has the form of the final one, so a partial can be stored, shown and merged.

Invariants:
1. merge(name, [reduce(name, a), reduce(name, b)]) equals reduce(name, a + b), whatever the order
   and the grouping; exactly for integers, up to rounding for floats.
2. No value raises: an illegal one makes an error value, which every merge keeps.

Elsewhere: all built-in reduces as an index keeps them (`views.core.reduce.builtin_reduces`),
reduce functions of a design document's own (`views.aio`).
Source: the built-in reduces of CouchDB 3.4; an illegal value under `_stats` stops a whole index
there and poisons only its own groups here.
"""

from __future__ import annotations

from operator import mul
from typing import TYPE_CHECKING, Any, Final

import msgspec

from millstream.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "BUILTIN_REDUCES",
    "REDUCE_BYTES_MAX",
    "STATS",
    "TIME_ERROR",
    "IllegalValueError",
    "error_value",
    "is_error",
    "merge",
    "overflow_error",
    "overflow_reason",
    "reduce_error",
    "reduce_values",
    "statistics",
    "stats_of",
    "total",
]

REDUCE_BYTES_MAX: Final = 5000
"""JSON bytes of a result; a larger one must be at most half as large as what went in."""

_ERROR: Final = "builtin_reduce_error"
TIME_ERROR: Final = "reduce_time_error"
"""Error of a user's function that ran out of time. On a less busy machine it may succeed."""
_ERRORS: Final = (_ERROR, "reduce_overflow_error", "reduce_error", TIME_ERROR)
STATS: Final = ("sum", "count", "min", "max", "sumsqr")
_SUM_RULE: Final = (
    "_sum takes numbers, arrays of numbers, and objects whose members are such values again; "
    "objects do not mix with the others"
)
_STATS_RULE: Final = (
    "_stats takes numbers, objects with the members sum, count, min, max and sumsqr, "
    "and arrays of these, all of one length"
)


_NUMBERS: Final = frozenset({int, float})


class IllegalValueError(Exception):
    """A value that the reduce function does not take: carries the rule and the value."""


def error_value(reason: str, caused_by: Any) -> dict[str, Any]:
    """Return the value of a group whose rows a built-in reduce cannot take."""
    return {"error": _ERROR, "reason": reason, "caused_by": caused_by}


def overflow_error(result: Any, bytes_in: int) -> dict[str, Any] | None:
    """Return the error value of a result that does not shrink, None if it does.

    Args:
        result: JSON value of a reduce function.
        bytes_in: JSON bytes of the values it was made of.
    """
    reason = overflow_reason(len(msgspec.json.encode(result)), bytes_in)
    return reduce_error(reason, "reduce_overflow_error") if reason else None


def overflow_reason(bytes_out: int, bytes_in: int) -> str:
    """Return why a result is too large for its input. Empty if it is not."""
    if bytes_out <= REDUCE_BYTES_MAX or 2 * bytes_out <= bytes_in:
        return ""
    return (
        f"the reduce result has {bytes_out} bytes and must shrink: it was made of "
        f"{bytes_in} bytes (results up to {REDUCE_BYTES_MAX} bytes are always accepted)"
    )


def reduce_error(reason: str, error: str = "reduce_error") -> dict[str, str]:
    """Return the error value of a reduce function of a design document's own."""
    return {"error": error, "reason": reason}


def is_error(value: Any) -> bool:
    """Tell whether `value` is the error value of a reduce function."""
    return isinstance(value, dict) and value.get("error") in _ERRORS


def reduce_values(name: str, values: Sequence[Any]) -> Any:
    """Return the result of a built-in reduce over the values of map rows. O(values).

    Raises:
        UsageError: `bad_reduce`: no built-in of that name.
    """
    reducer = BUILTIN_REDUCES.get(name)
    if reducer is None:
        raise UsageError(f"no built-in reduce {name!r}", code="bad_reduce")
    try:
        return reducer(values)
    except (OverflowError, RecursionError) as error:
        # An integer beyond every double met a float, or a value is nested without end.
        return error_value(f"the values cannot be reduced: {error}", None)


def merge(name: str, partials: Sequence[Any]) -> Any:
    """Return the result over all rows that went into `partials` (the rereduce). O(partials)."""
    for partial in partials:
        if is_error(partial):
            return partial
    return reduce_values("_sum" if name == "_count" else name, partials)


def _count(values: Sequence[Any]) -> int:
    return len(values)


def total(values: Sequence[Any]) -> Any:
    """Return the sum of values. O(size of them).

    Raises:
        IllegalValueError: a value that `_sum` does not take.
    """
    if set(map(type, values)) <= _NUMBERS:
        return sum(values)
    result: Any = 0
    for at, value in enumerate(values):
        result = _checked(value) if at == 0 else _add(result, value)
    return result


def _sum(values: Sequence[Any]) -> Any:
    try:
        result = total(values)
    except IllegalValueError as error:
        return error_value(*error.args)
    if isinstance(result, list | dict):
        return overflow_error(result, len(msgspec.json.encode(values))) or result
    return result


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _checked(value: Any) -> Any:
    """Return a value that `_sum` takes; the lists and objects of it are copied."""
    if _is_number(value):
        return value
    if isinstance(value, list) and all(map(_is_number, value)):
        return list(value)
    if isinstance(value, dict):
        return {name: _checked(member) for name, member in value.items()}
    raise IllegalValueError(_SUM_RULE, value)


def _add(so_far: Any, value: Any) -> Any:
    value = _checked(value)
    if _is_number(so_far) and _is_number(value):
        return so_far + value
    if isinstance(so_far, dict) and isinstance(value, dict):
        for name, member in value.items():
            so_far[name] = _add(so_far[name], member) if name in so_far else member
        return so_far
    if isinstance(so_far, dict) or isinstance(value, dict):
        raise IllegalValueError(_SUM_RULE, value)
    longer, shorter = _as_list(so_far), _as_list(value)
    if len(longer) < len(shorter):
        longer, shorter = shorter, longer
    return [a + b for a, b in zip(longer, shorter, strict=False)] + longer[len(shorter) :]


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def stats_of(value: float) -> dict[str, Any]:
    """Return the statistics of one number."""
    return {"sum": value, "count": 1, "min": value, "max": value, "sumsqr": value * value}


def statistics(values: Sequence[Any]) -> Any:
    """Return the statistics of values: an object, or an array of them. O(size of values).

    Raises:
        IllegalValueError: a value that `_stats` does not take.
    """
    if values and set(map(type, values)) <= _NUMBERS:
        return {
            "sum": sum(values),
            "count": len(values),
            "min": min(values),
            "max": max(values),
            "sumsqr": sum(map(mul, values, values)),
        }
    if values and isinstance(values[0], list):
        return _stats_of_arrays(values)
    return _merge_stats([_as_stats(value) for value in values])


def _stats(values: Sequence[Any]) -> Any:
    try:
        return statistics(values)
    except IllegalValueError as error:
        return error_value(*error.args)


def _stats_of_arrays(values: Sequence[Any]) -> list[dict[str, Any]]:
    length = len(values[0])
    for value in values:
        if not isinstance(value, list) or len(value) != length:
            raise IllegalValueError(_STATS_RULE, value)
    return [_merge_stats([_as_stats(element) for element in column])
            for column in zip(*values, strict=True)]  # fmt: skip


def _as_stats(value: Any) -> dict[str, Any]:
    if _is_number(value):
        return stats_of(value)
    if isinstance(value, dict) and all(_is_number(value.get(name)) for name in STATS):
        return value
    raise IllegalValueError(_STATS_RULE, value)


def _merge_stats(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    if not parts:
        raise IllegalValueError(_STATS_RULE, None)
    return {
        "sum": sum(part["sum"] for part in parts),
        "count": sum(part["count"] for part in parts),
        "min": min(part["min"] for part in parts),
        "max": max(part["max"] for part in parts),
        "sumsqr": sum(part["sumsqr"] for part in parts),
    }


BUILTIN_REDUCES: Final[dict[str, Callable[[Sequence[Any]], Any]]] = {
    "_count": _count,
    "_stats": _stats,
    "_sum": _sum,
}
