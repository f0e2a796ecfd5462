"""Documents that a client holds locked for some seconds: get-with-lock.

A lock is kept in memory only, by its document's key. It does not change the document.

Invariants:
1. A lock ends with its time, by its CAS (in a write or an unlock), or with its document.
2. It ends at most `LOCK_SECONDS_MAX` after it was last looked at, also when the clock is set back:
   then its time begins anew.
3. Only its holder learns its CAS.

Elsewhere: what a lock forbids (`partition`), the commands (`kv.core.session.document_commands`).

Source: memcached binary protocol, GET_LOCKED and UNLOCK; docs/reference/wire/documents.md.
"""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = [
    "LOCKED_CAS",
    "LOCKS_MAX",
    "LOCK_SECONDS_DEFAULT",
    "LOCK_SECONDS_MAX",
    "Lock",
    "Locks",
    "granted_seconds",
]

LOCK_SECONDS_DEFAULT: Final = 15
LOCK_SECONDS_MAX: Final = 30
LOCKS_MAX: Final = 16_384
"""Locks that one partition holds at a time; one more is refused as a temporary failure."""
LOCKED_CAS: Final = 2**64 - 1
"""CAS of a locked document as readers see it; no document ever has it."""
_SECOND_NS: Final = 1_000_000_000


class Lock(NamedTuple):
    """Times are Unix nanoseconds."""

    cas: int
    since_ns: int
    until_ns: int


def granted_seconds(asked: int) -> int:
    """Return the duration of a lock: zero and too large values mean the default."""
    return asked if 0 < asked <= LOCK_SECONDS_MAX else LOCK_SECONDS_DEFAULT


class Locks(dict[bytes, Lock]):
    """The locks of one partition by key; some may have expired and not yet been dropped."""

    __slots__ = ("taken_total",)

    def __init__(self) -> None:
        super().__init__()
        self.taken_total = 0

    @property
    def is_full(self) -> bool:
        """Return whether no further lock is granted."""
        return len(self) >= LOCKS_MAX

    def take(self, key: bytes, cas: int, seconds: int, now_ns: int) -> None:
        """Lock a key that is not locked."""
        self[key] = Lock(cas, now_ns, now_ns + seconds * _SECOND_NS)
        self.taken_total += 1

    def cas_of(self, key: bytes, now_ns: int) -> int:
        """Return the CAS that unlocks the key; 0 if it is not locked."""
        lock = self.get(key)
        if lock is None:
            return 0
        if now_ns < lock.since_ns:  # the clock was set back
            self[key] = Lock(lock.cas, now_ns, now_ns + lock.until_ns - lock.since_ns)
        elif now_ns >= lock.until_ns:
            del self[key]
            return 0
        return lock.cas

    def drop_ended(self, now_ns: int) -> None:
        """Drop the expired locks. O(locks held)."""
        for key in list(self):
            self.cas_of(key, now_ns)
