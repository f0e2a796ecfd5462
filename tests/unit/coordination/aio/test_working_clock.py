"""The time in which a process worked."""

from __future__ import annotations

import pytest

from millstream.coordination.aio.working_clock import LATE_MS_MAX, WorkingClock


class Shown:
    """A clock over a loop's time that the test sets."""

    def __init__(self) -> None:
        self.time_s = 1.0
        self.clock = WorkingClock(lambda: self.time_s)

    def after(self, ms: float) -> float:
        self.time_s += ms / 1000
        return self.clock.now_ms()


def test_a_late_timer_is_time_and_a_pause_is_not() -> None:
    shown = Shown()
    assert shown.clock.now_ms() == 1000.0
    shown.clock.wake_after(50)
    assert shown.after(60) == pytest.approx(1060)
    assert shown.after(20_000) == pytest.approx(1050 + LATE_MS_MAX)
    assert shown.after(20_000) == pytest.approx(1050 + LATE_MS_MAX), "it was not woken yet"
    shown.clock.wake_after(50)
    assert shown.after(60) == pytest.approx(1110 + LATE_MS_MAX)


def test_nothing_is_a_pause_before_the_core_asks_to_be_woken() -> None:
    assert Shown().after(20_000) == 21_000.0


def test_the_clock_never_goes_back() -> None:
    shown, before = Shown(), 0.0
    for number in range(1, 2000):
        if number % 7 == 0:
            shown.clock.wake_after(0.1 * number)
        now = shown.after(number * 37.7 % 311.3)
        assert now >= before
        before = now
