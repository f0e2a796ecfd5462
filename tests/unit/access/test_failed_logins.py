"""Who guesses has to wait, and nobody else."""

import pytest

from millstream.access import failed_logins
from millstream.access.failed_logins import FAILED_LOGINS_MAX, FAILED_LOGINS_S, FailedLogins
from millstream.errors import AccessError


def fail(logins: FailedLogins, times: int, *, name: str = "ada", at_s: float = 0.0) -> None:
    for _ in range(times):
        logins.check(name, "here", at_s)
        logins.ended(name, "here", at_s, is_right=False)


def test_after_so_many_failures_nothing_is_tried_for_a_while() -> None:
    logins = FailedLogins()
    fail(logins, FAILED_LOGINS_MAX)
    with pytest.raises(AccessError) as caught:
        logins.check("ada", "here", FAILED_LOGINS_S - 1)
    assert caught.value.code == "too_many_failures"
    logins.check("ada", "there", 1.0)
    logins.check("bob", "here", 1.0)
    fail(logins, FAILED_LOGINS_MAX, at_s=FAILED_LOGINS_S)
    with pytest.raises(AccessError):
        logins.check("ada", "here", 2 * FAILED_LOGINS_S - 1)


def test_who_logs_in_begins_anew() -> None:
    logins = FailedLogins()
    for _ in range(3):
        fail(logins, FAILED_LOGINS_MAX - 1)
        logins.ended("ada", "here", 0.0, is_right=True)


def test_whose_record_changes_waits_no_more() -> None:
    logins = FailedLogins()
    for name in ("ada", "bob"):
        fail(logins, FAILED_LOGINS_MAX, name=name)
    logins.forget(["ada"])
    logins.check("ada", "here", 1.0)
    with pytest.raises(AccessError):
        logins.check("bob", "here", 1.0)


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failed_logins, "PLACES_MAX", 3)
    logins = FailedLogins()
    for number in range(10):
        fail(logins, 1, name=f"{number}" * 100_000)
    assert len(logins._failed) == 3
    assert all(len(name) < 1000 for name, _ in logins._failed)
