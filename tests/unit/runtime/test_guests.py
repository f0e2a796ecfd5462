import resource

import pytest

from millstream.runtime import guests as module
from millstream.runtime.guests import CONNECTIONS_MAX, LOGIN_S_MAX, LOOK_S, Guests, places


class GuestDouble:
    def __init__(self, name: str = "") -> None:
        self.name = name
        self.is_active = self.is_busy = self.is_cut = False

    def cut(self) -> None:
        self.is_cut = True


class ClockDouble:
    def __init__(self) -> None:
        self.now = 100.0
        self.later = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay, callback):
        assert delay == LOOK_S
        self.later.append(callback)

    def turn(self, seconds: float) -> None:
        self.now += seconds
        calls, self.later = self.later, []
        for call in calls:
            call()


@pytest.fixture
def clock():
    return ClockDouble()


def entered(crowd: Guests, clock: ClockDouble, count: int) -> list[GuestDouble]:
    made = []
    for _ in range(count):
        made.append(GuestDouble())
        assert crowd.enter(made[-1])
        clock.now += 0.01
    return made


def cut(some: list[GuestDouble]) -> list[int]:
    return [number for number, one in enumerate(some) if one.is_cut]


def test_of_too_many_strangers_the_oldest_goes_for_a_newcomer(clock, monkeypatch):
    monkeypatch.setattr(module, "STRANGERS_MAX", 3)
    crowd = Guests(lambda: True, clock, most=100)
    some = entered(crowd, clock, 3)
    crowd.recognise(some[0], "ann")
    some += entered(crowd, clock, 3)
    assert cut(some) == [1, 2]
    some[3].is_busy = True
    some += entered(crowd, clock, 1)
    assert cut(some) == [1, 2, 4]
    for one in some:
        one.is_busy = True
    some += entered(crowd, clock, 1)
    assert cut(some) == [1, 2, 3, 4]
    assert len(crowd) == 4


def test_who_has_logged_in_stays_and_who_has_not_in_time_goes(clock):
    crowd = Guests(lambda: True, clock, most=100)
    known, slow, busy = entered(crowd, clock, 3)
    crowd.recognise(known, "ann")
    busy.is_busy = True
    clock.turn(LOGIN_S_MAX + 1)
    assert cut([known, slow, busy]) == [1]
    busy.is_busy = False
    clock.turn(LOOK_S)
    assert busy.is_cut


def test_who_is_slow_to_prove_a_password_on_a_busy_machine_is_not_cut_off(clock):
    crowd = Guests(lambda: True, clock, most=100)
    slow = entered(crowd, clock, 1)
    clock.turn(20)
    assert cut(slow) == []


def test_where_there_are_no_users_nobody_has_to_log_in(clock):
    crowd = Guests(lambda: False, clock, most=100)
    some = entered(crowd, clock, 3)
    clock.turn(LOGIN_S_MAX + 1)
    assert cut(some) == []


def test_when_all_places_are_taken_who_has_been_idle_longest_goes(clock):
    crowd = Guests(lambda: False, clock, most=3)
    some = entered(crowd, clock, 3)
    some[0].is_active = True
    clock.turn(1)
    some[1].is_busy = True
    some += entered(crowd, clock, 1)
    assert cut(some) == [2]
    for one in some:
        one.is_busy = True
    assert not crowd.enter(GuestDouble())
    assert crowd.refused_total == 1


def test_all_bytes_that_are_held_are_bounded_and_the_idlest_goes_first(clock, monkeypatch):
    monkeypatch.setattr(module, "CLIENT_BYTES_MAX", 100)
    crowd = Guests(lambda: False, clock, most=9)
    some = entered(crowd, clock, 4)
    for one in (some[1], some[0], some[2]):
        crowd.hold(one, 30)
        clock.now += 1
    crowd.hold(some[1], 31)  # it has sent more
    clock.now += 1
    assert cut(some) == []
    crowd.hold(some[3], 30)
    assert cut(some) == [0]
    assert crowd.held_bytes == 91
    clock.now += 1
    crowd.hold(some[3], 99)  # one alone may take it all, not more
    assert cut(some) == [0, 1, 2]
    assert crowd.held_bytes == 99
    crowd.leave(some[3])
    assert crowd.held_bytes == len(crowd) == 0


def test_the_bytes_of_one_user_are_bounded_over_all_his_connections(clock, monkeypatch):
    monkeypatch.setattr(module, "USER_BYTES_MAX", 50)
    crowd = Guests(lambda: True, clock, most=9)
    some = entered(crowd, clock, 4)
    for one, name in zip(some, ("ann", "bob", "ann", "ann"), strict=True):
        crowd.recognise(one, name)
        crowd.hold(one, 20)
        clock.now += 1
    assert cut(some) == [0]
    crowd.hold(some[1], 0)
    assert crowd.held_bytes == 40
    crowd.recognise(some[3], "bob")
    crowd.hold(some[2], 45)
    assert cut(some) == [0]


def test_the_log_is_not_flooded_with_those_that_are_cut_off(clock, monkeypatch, caplog):
    monkeypatch.setattr(module, "STRANGERS_MAX", 3)
    crowd = Guests(lambda: True, clock, most=100)
    entered(crowd, clock, 10)
    assert len(caplog.records) == 1
    clock.turn(LOOK_S)
    assert [record.getMessage() for record in caplog.records[1:]] == ["closed 6 more clients"]


def test_nobody_is_looked_at_once_all_have_gone(clock):
    crowd = Guests(lambda: True, clock, most=9)
    (one,) = entered(crowd, clock, 1)
    crowd.leave(one)
    crowd.leave(one)
    crowd.hold(one, 5)
    clock.turn(1)
    assert clock.later == []
    assert crowd.held_bytes == 0
    entered(crowd, clock, 1)
    assert len(clock.later) == 1


def test_there_are_places_as_far_as_there_are_descriptors(monkeypatch):
    for most, expected in ((resource.RLIM_INFINITY, CONNECTIONS_MAX), (1024, 256), (3000, 1244)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, most=most: (most, most))
        assert places() == expected
