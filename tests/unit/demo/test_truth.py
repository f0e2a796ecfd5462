"""The facts of the whole file, and a file small enough to check by hand."""

from __future__ import annotations

import zipfile

import pytest

from millstream.demo.flights import find_flights
from millstream.demo.truth import compute_truth

NAMES = (
    "year,month,day,dep_time,sched_dep_time,dep_delay,arr_time,sched_arr_time,arr_delay,carrier,"
    "flight,tailnum,origin,dest,air_time,distance,hour,minute,time_hour"
)
ROWS = (
    "2013,1,1,517,515,2,830,819,11,UA,1545,N14228,EWR,IAH,227,1400,5,15,2013-01-01T10:00:00Z",
    "2013,1,1,533,529,4,850,830,-20,UA,1714,N24211,LGA,IAH,227,1416,5,29,2013-01-01T10:00:00Z",
    "2013,1,1,NA,1630,NA,NA,1815,NA,EV,4308,N18120,EWR,RDU,NA,416,16,30,2013-01-01T21:00:00Z",
    "2013,1,1,2016,1930,46,NA,2220,NA,EV,4204,N14168,EWR,OKC,NA,1325,19,30,2013-01-02T00:00:00Z",
    "2013,1,1,1525,1530,-5,1934,1805,NA,MQ,4525,N719MQ,LGA,XNA,NA,1147,15,30,2013-01-01T20:00:00Z",
)


@pytest.fixture
def archive(tmp_path):
    path = tmp_path / "flights.csv.zip"
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr("flights.csv", "\n".join([NAMES, *ROWS]) + "\n")
    return path


def test_a_small_file(archive):
    truth = compute_truth(archive)
    assert (truth.flights, truth.cancelled, truth.documents, truth.changes) == (5, 1, 4, 13)
    assert truth.flights_by_hour == {
        ("EWR", 5): 1, ("LGA", 5): 1, ("EWR", 19): 1, ("LGA", 15): 1,
    }  # fmt: skip
    united = truth.delay_by_carrier["UA"]
    assert (united.sum, united.count, united.min, united.max, united.sumsqr) == (
        -9, 2, -20, 11, 521,
    )  # fmt: skip
    assert sorted(truth.delay_by_route) == [(1, "EWR", "IAH"), (1, "LGA", "IAH")]


def test_the_first_rows_only(archive):
    assert compute_truth(archive, 3).documents == 2


@pytest.mark.slow
def test_the_facts_of_the_whole_file():
    truth = compute_truth(find_flights())
    delays = truth.delay_by_carrier.values()
    assert truth.flights == 336_776
    assert truth.changes == 1_001_615
    assert truth.documents == 328_521
    assert len(delays) == 16
    assert sum(delay.count for delay in delays) == 327_346
    assert sum(delay.sum for delay in delays) == 2_257_174
    assert len(truth.flights_by_hour) == 56
    assert sum(truth.flights_by_hour.values()) == 328_521
    assert len(truth.delay_by_route) == 2_311
    assert sum(delay.count for delay in truth.delay_by_route.values()) == 327_346
