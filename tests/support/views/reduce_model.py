"""What every built-in reduce shows, computed from all rows at once.

Elsewhere: the tests (tests/unit/views/core).
"""

from __future__ import annotations

from functools import cmp_to_key, reduce
from typing import Any

from millstream.views.core.collation import encode_key


def stats(numbers: list[Any]) -> dict[str, Any]:
    return {
        "sum": sum(numbers),
        "count": len(numbers),
        "min": min(numbers),
        "max": max(numbers),
        "sumsqr": sum(number * number for number in numbers),
    }


def added(a: Any, b: Any) -> Any:
    """The rule of _sum once more, of two values."""
    if isinstance(a, dict):
        return {
            name: added(a[name], b[name]) if name in a and name in b else a.get(name, b.get(name))
            for name in [*a, *b]
        }
    if not isinstance(a, list) and not isinstance(b, list):
        return a + b
    longer, shorter = (part if isinstance(part, list) else [part] for part in (a, b))
    size = max(len(longer), len(shorter))
    padded = [part + [0] * (size - len(part)) for part in (longer, shorter)]
    return [x + y for x, y in zip(*padded, strict=True)]


def model(name: str, rows: list[tuple[bytes, Any]]) -> Any:
    """What a reduce shows for all rows, given in their order."""
    values = [value for _, value in rows]
    if name == "_count":
        return len(values)
    if name == "_sum":
        return reduce(added, values)
    if name == "_stats":
        if isinstance(values[0], list):
            return [
                model(name, [(b"", v) for v in column]) for column in zip(*values, strict=True)
            ]
        parts = [value if isinstance(value, dict) else stats([value]) for value in values]
        merged = {key: sum(part[key] for part in parts) for key in ("sum", "count", "sumsqr")}
        low, high = min(part["min"] for part in parts), max(part["max"] for part in parts)
        return {**merged, "min": low, "max": high}
    if name in ("_first", "_last"):
        return values[0 if name == "_first" else -1]
    if name == "_approx_count_distinct":
        return len({key for key, _ in rows})
    side, count = name[1:].split("_")
    return by_order(values, side == "top")[: int(count)]


def by_order(values: list[Any], descending: bool) -> list[Any]:
    def compare(a: Any, b: Any) -> int:
        x, y = encode_key(a), encode_key(b)
        return (x > y) - (x < y)

    listed: list[Any] = []
    for value in sorted(values, key=cmp_to_key(compare), reverse=descending):
        if not listed or compare(listed[-1], value):
            listed.append(value)
    return listed
