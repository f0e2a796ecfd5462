from __future__ import annotations

import pytest

from millstream.kv.core.partition.locks import (
    LOCK_SECONDS_DEFAULT,
    LOCK_SECONDS_MAX,
    LOCKS_MAX,
    Locks,
    granted_seconds,
)
from support.kv.log_double import NOW, SECOND


@pytest.mark.parametrize(
    ("asked", "granted"),
    [
        (0, LOCK_SECONDS_DEFAULT),
        (1, 1),
        (LOCK_SECONDS_MAX, LOCK_SECONDS_MAX),
        (LOCK_SECONDS_MAX + 1, LOCK_SECONDS_DEFAULT),
        (2**32 - 1, LOCK_SECONDS_DEFAULT),
    ],
)
def test_no_time_and_too_much_time_mean_the_default(asked: int, granted: int) -> None:
    assert granted_seconds(asked) == granted


def test_a_lock_ends_with_its_time() -> None:
    locks = Locks()
    locks.take(b"k", 7, 5, NOW)
    assert locks.cas_of(b"k", NOW + 5 * SECOND - 1) == 7
    assert locks.cas_of(b"other", NOW) == 0
    assert locks.cas_of(b"k", NOW + 5 * SECOND) == 0
    assert not locks
    assert locks.taken_total == 1


def test_a_clock_set_back_begins_the_time_anew() -> None:
    locks = Locks()
    back = NOW - 3600 * SECOND
    locks.take(b"k", 7, 5, NOW)
    assert locks.cas_of(b"k", back) == 7
    assert locks.cas_of(b"k", back + 5 * SECOND - 1) == 7
    assert locks.cas_of(b"k", back + 5 * SECOND) == 0


def test_ended_locks_are_dropped_all_at_once() -> None:
    locks = Locks()
    locks.take(b"short", 1, 5, NOW)
    locks.take(b"long", 2, 30, NOW)
    locks.drop_ended(NOW + 10 * SECOND)
    assert list(locks) == [b"long"]


def test_their_number_is_bounded() -> None:
    locks = Locks()
    for number in range(LOCKS_MAX):
        assert not locks.is_full
        locks.take(b"%d" % number, number + 1, 1, NOW)
    assert locks.is_full
