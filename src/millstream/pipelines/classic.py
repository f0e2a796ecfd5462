"""Tells a classic Spark session from one of Spark Connect, for what works with the first only.

Invariants:
1. What cannot work over Spark Connect says so before it does anything, and says what can.

Deliberately elsewhere: what does work there, which is all that goes through `format(...)` and
`apply_changes` (guides: Spark on a cluster).
"""

from __future__ import annotations

from typing import Final

from millstream.errors import UsageError

__all__ = ["is_connect", "refusal", "require_classic"]

_CONNECT: Final = "pyspark.sql.connect."


def is_connect(spark: object) -> bool:
    """Whether a session is one of Spark Connect; its package need not be there."""
    return type(spark).__module__.startswith(_CONNECT)


def require_classic(spark: object, what: str) -> None:
    """Refuse a session of Spark Connect.

    Raises:
        UsageError: `needs_classic_session`.
    """
    if is_connect(spark):
        raise refusal(what)


def refusal(what: str) -> UsageError:
    """Return the error that says so."""
    return UsageError(
        f"{what} cannot work over Spark Connect, since connections and leases are kept in the "
        "driver's own process. Give local[N] or the address of a cluster's master instead "
        "(a session of Spark Connect can read, write, and follow with apply_changes)",
        code="needs_classic_session",
    )
