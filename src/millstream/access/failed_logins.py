"""Log-ins that failed: who guesses is answered ever more slowly.

Invariants:
1. Every password is tried, and the right one gets in at once, whatever failed before it.
2. After `FAILED_LOGINS_MAX` failures by one name from one place within `FAILED_LOGINS_S`, refusals
   leave one after the other, `PAUSE_S` apart, however many connections ask. One that would wait
   longer than `PAUSE_S_MAX` leaves then.
3. What was tried against a former password does not count: whose record changes waits no more.
4. At most `PLACES_MAX` are remembered; the oldest are forgotten first.

Elsewhere: checking passwords (`access.users`), waiting (whoever sends the refusal).
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice
from typing import Final, NamedTuple

from millstream.access.records import NAME_BYTES_MAX

__all__ = [
    "FAILED_LOGINS_MAX", "FAILED_LOGINS_S", "PAUSE_S", "PAUSE_S_MAX", "PLACES_MAX",
    "FailedLogin", "FailedLogins",
]  # fmt: skip

FAILED_LOGINS_MAX: Final = 10
FAILED_LOGINS_S: Final = 60.0
PAUSE_S: Final = 0.5
"""Interval between two refusals of repeated wrong logins."""
PAUSE_S_MAX: Final = 5.0
"""The longest that a refusal waits."""
PLACES_MAX: Final = 10_000
"""Names and places together that are remembered."""


class _Failed(NamedTuple):
    since_s: float
    last_s: float
    failures: int
    free_s: float
    """When the next refusal may leave."""


class FailedLogin(NamedTuple):
    """Failures by one name from one place, as shown to people."""

    name: str
    """As it was said: there may be no such user."""
    address: str
    failures: int
    """Within `FAILED_LOGINS_S`, up to the last one."""
    ago_s: float
    """How long ago the last one was."""


class FailedLogins:
    """Counts failures by name and place."""

    def __init__(self) -> None:
        self._failed: dict[tuple[str, str], _Failed] = {}

    def ended(self, name: str, source: str, now_s: float, *, is_right: bool) -> float:
        """Count a failure, or forget those before; return for how many seconds a refusal waits."""
        before = self._failed.pop(_key(name, source), None)
        if is_right:
            return 0.0
        if before is None or now_s - before.since_s >= FAILED_LOGINS_S:
            before = _Failed(now_s, now_s, 0, now_s)
        free_s = now_s
        if before.failures >= FAILED_LOGINS_MAX:
            free_s = min(max(before.free_s, now_s) + PAUSE_S, now_s + PAUSE_S_MAX)
        if len(self._failed) >= PLACES_MAX:
            del self._failed[next(iter(self._failed))]
        self._failed[_key(name, source)] = _Failed(
            before.since_s, now_s, before.failures + 1, free_s
        )
        return free_s - now_s

    def newest(self, count: int, now_s: float) -> list[FailedLogin]:
        """Return the last failures, at most `count`, the last one first."""
        return [
            FailedLogin(name, source, failed.failures, now_s - failed.last_s)
            for (name, source), failed in islice(reversed(self._failed.items()), count)
        ]

    def forget(self, names: Collection[str]) -> None:
        """Forget the failures by these names: they have other passwords now, or are gone."""
        keys = {name[:NAME_BYTES_MAX] for name in names}
        self._failed = {who: failed for who, failed in self._failed.items() if who[0] not in keys}


def _key(name: str, source: str) -> tuple[str, str]:
    return name[:NAME_BYTES_MAX], source
