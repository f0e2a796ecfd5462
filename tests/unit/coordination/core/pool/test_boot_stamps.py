"""`coordination.core.pool.boot_stamps`: numbers of starts, and what two of them say of each
other."""

from __future__ import annotations

import pytest

from millstream.coordination.core.pool.boot_stamps import (
    CHANCES,
    Kin,
    is_same_start,
    kin_of,
    next_incarnation,
    next_mark,
    starts,
)

FIRST = next_incarnation(0, 5)
SECOND = next_incarnation(FIRST, 9)


@pytest.mark.parametrize(
    ("known", "heard", "kin"),
    [
        (FIRST, FIRST, Kin.SAME),
        (FIRST, SECOND, Kin.LATER),
        (SECOND, FIRST, Kin.EARLIER),
        (SECOND, next_incarnation(FIRST, 8), Kin.OTHER),
        (SECOND, next_incarnation(next_incarnation(FIRST, 8), 1), Kin.LATER),
        (3, 4, Kin.LATER),  # of versions that counted alone
        (4, 3, Kin.EARLIER),
        (4, next_incarnation(4, 0), Kin.LATER),
        (SECOND, SECOND + 1, Kin.LATER),  # such a version was started on the directory, or a mark
        (SECOND + 1, SECOND, Kin.SAME),  # what it said before
        (SECOND + 1, next_incarnation(SECOND + 1, 1), Kin.LATER),
        (SECOND + 1, next_incarnation(SECOND, 1), Kin.EARLIER),  # copied before that mark
        (SECOND + 1, next_incarnation(next_incarnation(SECOND, 1), 1), Kin.LATER),  # who knows
    ],
)
def test_what_a_start_is_to_another(known: int, heard: int, kin: Kin) -> None:
    assert kin_of(known, heard) is kin


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        (SECOND, SECOND + 1, True),
        (SECOND + 2, SECOND + 1, True),
        (FIRST, SECOND, False),
        (SECOND, next_incarnation(FIRST, 8), False),
        (3, 4, False),  # of versions that counted alone
    ],
)
def test_marks_do_not_make_another_start(one: int, other: int, *, is_same: bool) -> None:
    assert is_same_start(one, other) is is_same


def test_starts_are_counted_over_versions() -> None:
    assert [starts(number) for number in (1, 7, FIRST, SECOND, SECOND + 2)] == [1, 7, 1, 2, 2]
    assert starts(next_incarnation(SECOND + 2, 3)) == 3


def test_numbers_grow_and_fit_into_what_travels() -> None:
    last = 0
    for _ in range(1000):
        later = next_incarnation(last, CHANCES - 1)
        assert later > last
        last = later
    assert next_incarnation((1 << 19) - 2, CHANCES - 1) < 1 << 63


def test_marks_grow_and_never_end() -> None:
    last = SECOND
    for _ in range(70_000):
        later = next_mark(last, 3)
        assert later > last
        assert kin_of(last, later) is Kin.LATER
        last = later
    assert starts(last) == 3
