"""Who guesses is answered slowly; who knows gets in."""

import pytest

from millstream.access import failed_logins
from millstream.access.failed_logins import (
    FAILED_LOGINS_MAX,
    FAILED_LOGINS_S,
    PAUSE_S,
    PAUSE_S_MAX,
    FailedLogins,
)


def fail(logins: FailedLogins, times: int, *, name: str = "ada", at_s: float = 0.0) -> list[float]:
    return [logins.ended(name, "here", at_s, is_right=False) for _ in range(times)]


def test_after_so_many_failures_refusals_leave_one_after_the_other() -> None:
    logins = FailedLogins()
    assert fail(logins, FAILED_LOGINS_MAX) == [0.0] * FAILED_LOGINS_MAX
    assert fail(logins, 3) == [PAUSE_S, 2 * PAUSE_S, 3 * PAUSE_S]
    assert max(fail(logins, 100)) == PAUSE_S_MAX
    assert fail(logins, 1, name="bob") == [0.0]
    assert logins.ended("ada", "there", 0.0, is_right=False) == 0.0
    assert fail(logins, 1, at_s=FAILED_LOGINS_S) == [0.0]


def test_the_right_password_gets_in_at_once_and_begins_anew() -> None:
    logins = FailedLogins()
    fail(logins, 100)
    assert logins.ended("ada", "here", 0.0, is_right=True) == 0.0
    assert fail(logins, 1) == [0.0]


def test_whose_record_changes_waits_no_more() -> None:
    logins = FailedLogins()
    for name in ("ada", "bob"):
        fail(logins, FAILED_LOGINS_MAX, name=name)
    logins.forget(["ada"])
    assert fail(logins, 1) == [0.0]
    assert fail(logins, 1, name="bob") == [PAUSE_S]


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failed_logins, "PLACES_MAX", 3)
    logins = FailedLogins()
    for number in range(10):
        fail(logins, 1, name=f"{number}" * 100_000)
    assert len(logins._failed) == 3
    assert all(len(name) < 1000 for name, _ in logins._failed)


def test_the_last_failures_are_told_first() -> None:
    logins = FailedLogins()
    fail(logins, 2, name="ada", at_s=1.0)
    fail(logins, 1, name="bob", at_s=2.0)
    fail(logins, 1, name="ada", at_s=5.0)
    assert logins.newest(9, 6.0) == [("ada", "here", 3, 1.0), ("bob", "here", 1, 4.0)]
    assert [one.name for one in logins.newest(1, 6.0)] == ["ada"]
    logins.ended("ada", "here", 6.0, is_right=True)
    assert [one.name for one in logins.newest(9, 6.0)] == ["bob"]
