from __future__ import annotations

import math

import pytest

from millstream.errors import AccessError, MillstreamError, StreamError, UnavailableError
from millstream.pipelines.change_stream import patience
from millstream.pipelines.change_stream.patience import Wait, again, ask_again
from support.pipelines.node_double import FalseClient, FalseNode


class Clock:
    """Time that passes only by sleeping."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1_000.0
        monkeypatch.setattr("time.monotonic", lambda: self.now_s)
        monkeypatch.setattr("time.sleep", self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


class Failing:
    def __init__(self, times: float, error: MillstreamError) -> None:
        self.times, self.error, self.calls = times, error, 0

    def __call__(self) -> int:
        self.calls += 1
        if self.calls <= self.times:
            raise self.error
        return self.calls


def test_a_node_that_is_away_for_minutes_is_waited_for_and_the_wait_is_told(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    refreshed: list[int] = []
    failing = Failing(600, UnavailableError("h:1 refuses"))
    assert again(failing, 600, lambda: refreshed.append(1)) == 601
    assert 290 < clock.now_s - 1_000 < 310
    assert len(refreshed) == 600
    told = capsys.readouterr().err.splitlines()
    assert told[0] == "millstream: waiting for 2 s, reconnectTimeout 600 s: h:1 refuses"
    assert 28 <= len(told) <= 32
    assert told[-1].startswith("millstream: goes on after a wait of 29")


def test_a_short_wait_is_not_told(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    assert again(Failing(3, UnavailableError("away")), 600) == 4
    assert clock.now_s < 1_001
    assert capsys.readouterr().err == ""


def test_a_wait_that_is_over_ends_with_the_last_failure_and_is_not_repeated(clock: Clock) -> None:
    with pytest.raises(UnavailableError, match=r"away \(tried again for 90 s") as failed:
        again(Failing(math.inf, UnavailableError("away")), 90)
    assert 89 < clock.now_s - 1_000 <= 90
    outer = Failing(math.inf, failed.value)
    with pytest.raises(UnavailableError):
        again(outer, 90)
    assert outer.calls == 1


def test_forever_has_no_end(clock: Clock) -> None:
    assert again(Failing(20_000, UnavailableError("away")), math.inf) == 20_001
    assert clock.now_s > 9_000


def test_without_a_wait_the_failure_is_the_only_one_as_it_is(clock: Clock) -> None:
    error = UnavailableError("away")
    with pytest.raises(UnavailableError, match=r"^away$") as failed:
        again(Failing(1, error), 0)
    assert (failed.value.retry, clock.now_s) == (error.retry, 1_000)


@pytest.mark.usefixtures("clock")
def test_other_errors_are_not_waited_for() -> None:
    for error in (AccessError("no", code="bad_credentials"), StreamError("no", code="lease_lost")):
        failing = Failing(1, error)
        with pytest.raises(type(error)):
            again(failing, 600)
        assert failing.calls == 1
    for code in ("lease_lost", "stream_ended", "rolled_back"):
        assert again(Failing(1, StreamError("no", code=code)), 600, may_move=True) == 2
    with pytest.raises(StreamError):
        again(Failing(1, StreamError("no", code="unknown_branch")), 600, may_move=True)


@pytest.mark.usefixtures("clock")
def test_a_client_is_asked_by_a_new_map_each_time() -> None:
    client = FalseClient(FalseNode(1))
    client.failures = [UnavailableError("away")] * 2
    assert len(ask_again(client, lambda one: one.positions())) == 1
    assert client.calls == ["positions", "refresh_map"] * 2 + ["positions"]


def test_a_wait_says_what_it_waits_for_at_most_so_often(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    wait = Wait(math.inf)
    while clock.now_s < 1_000 + patience.TOLD_AFTER_S + 3 * patience.TOLD_EVERY_S - 1:
        wait.pause(UnavailableError("partition 3"))
    told = capsys.readouterr().err
    assert told.count("reconnectTimeout forever: partition 3") == 3
