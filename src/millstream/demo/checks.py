"""Every row of the views against the truth.

Invariants:
1. A check passes only if there are exactly the expected keys, each once and with exactly the
   expected value; integers are compared, no floats.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from millstream.demo.truth import Delays, Truth

__all__ = ["Check", "check_number", "check_that", "check_views", "expected_views"]

DIFFERENCES_SHOWN_MAX: Final = 5


@dataclass(slots=True)
class Check:
    """One comparison; `differences` counts rows that are wrong, missing or too many."""

    name: str
    expected: str
    found: str
    differences: int = 0
    samples: list[str] = field(default_factory=list)

    @property
    def is_right(self) -> bool:
        """Whether nothing differs."""
        return not self.differences


def expected_views(truth: Truth) -> dict[str, dict[str, Any]]:
    """Return for each view its rows: JSON text of the key -> value."""
    return {
        "flights/delay_by_carrier": {
            _text(carrier): _stats(delays) for carrier, delays in truth.delay_by_carrier.items()
        },
        "flights/flights_by_hour": {
            _text(list(hour)): count for hour, count in truth.flights_by_hour.items()
        },
        "routes/delay_by_route": {
            _text(list(route)): _stats(delays) for route, delays in truth.delay_by_route.items()
        },
    }


def check_views(truth: Truth, found: Mapping[str, list[dict[str, Any]]]) -> list[Check]:
    """Compare the rows of each view (`[{"key", "value"}]`, grouped by exact key)."""
    return [
        _compare(name, expected, [(_text(row["key"]), row["value"]) for row in found[name]])
        for name, expected in expected_views(truth).items()
    ]


def check_number(name: str, expected: int, found: int) -> Check:
    """Compare one number."""
    return Check(name, f"{expected:,}", f"{found:,}", int(expected != found))


def check_that(name: str, expected: str, found: int, *, is_right: bool) -> Check:
    """Judge a number by a rule, told in words."""
    return Check(name, expected, f"{found:,}", int(not is_right))


def _compare(name: str, expected: dict[str, Any], rows: list[tuple[str, Any]]) -> Check:
    check = Check(f"rows of {name}", f"{len(expected):,}", f"{len(rows):,}")
    found: dict[str, list[Any]] = {}
    for key, value in rows:
        found.setdefault(key, []).append(value)
    for key in sorted(expected.keys() | found.keys()):
        wanted = [expected[key]] if key in expected else []
        has = found.get(key, [])
        if wanted != has:
            check.differences += 1
            if len(check.samples) < DIFFERENCES_SHOWN_MAX:
                check.samples.append(f"{key}: expected {_shown(wanted)}, found {_shown(has)}")
    return check


def _shown(values: list[Any]) -> str:
    return " and ".join(map(str, values)) or "no row"


def _text(key: Any) -> str:
    return msgspec.json.encode(key).decode()


def _stats(delays: Delays) -> dict[str, int]:
    return {
        "sum": delays.sum,
        "count": delays.count,
        "min": delays.min,
        "max": delays.max,
        "sumsqr": delays.sumsqr,
    }
