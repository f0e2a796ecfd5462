"""Log-ins that failed: who guesses has to wait.

Invariants:
1. After `FAILED_LOGINS_MAX` failures by one name from one place none is tried there for the rest
   of `FAILED_LOGINS_S`. Who logs in by that name from elsewhere does not wait.
2. What was tried against a former password does not count: whose record changes waits no more.
3. At most `PLACES_MAX` are remembered; the oldest are forgotten first.

Elsewhere: checking passwords (`access.users`).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from millstream.access.records import NAME_BYTES_MAX
from millstream.errors import AccessError

__all__ = ["FAILED_LOGINS_MAX", "FAILED_LOGINS_S", "PLACES_MAX", "FailedLogins"]

FAILED_LOGINS_MAX: Final = 10
FAILED_LOGINS_S: Final = 60.0
PLACES_MAX: Final = 10_000
"""Names and places together that are remembered."""


class FailedLogins:
    """Counts failures by name and place."""

    def __init__(self) -> None:
        self._failed: dict[tuple[str, str], tuple[float, int]] = {}

    def check(self, name: str, source: str, now_s: float) -> None:
        """Let an attempt be made.

        Raises:
            AccessError: `too_many_failures`: it may not.
        """
        since_s, count = self._failed.get(_key(name, source), (now_s, 0))
        if count >= FAILED_LOGINS_MAX and now_s - since_s < FAILED_LOGINS_S:
            raise AccessError(
                f"too many log-ins by this name have failed; wait {FAILED_LOGINS_S:.0f} s",
                code="too_many_failures",
                retry="backoff",
            )

    def ended(self, name: str, source: str, now_s: float, *, is_right: bool) -> None:
        """Count a failure, or forget those before."""
        since_s, count = self._failed.pop(_key(name, source), (now_s, 0))
        if is_right:
            return
        if now_s - since_s >= FAILED_LOGINS_S:
            since_s, count = now_s, 0
        if len(self._failed) >= PLACES_MAX:
            del self._failed[next(iter(self._failed))]
        self._failed[_key(name, source)] = since_s, count + 1

    def forget(self, names: Collection[str]) -> None:
        """Forget the failures by these names: they have other passwords now, or are gone."""
        keys = {name[:NAME_BYTES_MAX] for name in names}
        self._failed = {who: failed for who, failed in self._failed.items() if who[0] not in keys}


def _key(name: str, source: str) -> tuple[str, str]:
    return name[:NAME_BYTES_MAX], source
