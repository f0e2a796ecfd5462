"""The comparison must find what is wrong, missing or too much."""

from __future__ import annotations

import copy

import pytest

from millstream.demo.checks import check_number, check_that, check_views, expected_views
from millstream.demo.truth import Delays, Truth


@pytest.fixture
def truth():
    delays = Delays()
    for delay in (3, -4):
        delays.add(delay)
    return Truth(
        delay_by_carrier={"AA": delays},
        flights_by_hour={("JFK", 5): 2, ("LGA", 6): 1},
        delay_by_route={(1, "JFK", "BOS"): delays},
    )


@pytest.fixture
def right():
    stats = {"sum": -1, "count": 2, "min": -4, "max": 3, "sumsqr": 25}
    return {
        "flights/delay_by_carrier": [{"key": "AA", "value": dict(stats)}],
        "flights/flights_by_hour": [
            {"key": ["LGA", 6], "value": 1}, {"key": ["JFK", 5], "value": 2},
        ],
        "routes/delay_by_route": [{"key": [1, "JFK", "BOS"], "value": dict(stats)}],
    }  # fmt: skip


def wrong_names(truth, found):
    return [check.name for check in check_views(truth, found) if not check.is_right]


def test_equal_rows_are_right(truth, right):
    assert wrong_names(truth, right) == []
    assert sorted(right) == sorted(expected_views(truth))


@pytest.mark.parametrize("name", ["flights/delay_by_carrier", "routes/delay_by_route"])
@pytest.mark.parametrize("member", ["sum", "count", "min", "max", "sumsqr"])
def test_each_member_is_compared(truth, right, name, member):
    found = copy.deepcopy(right)
    found[name][0]["value"][member] += 1
    assert wrong_names(truth, found) == [f"rows of {name}"]


def test_a_missing_and_an_extra_row_are_found(truth, right):
    found = copy.deepcopy(right)
    found["flights/flights_by_hour"].pop()
    found["routes/delay_by_route"].append({"key": [2, "JFK", "BOS"], "value": {}})
    checks = [check for check in check_views(truth, found) if not check.is_right]
    assert [check.differences for check in checks] == [1, 1]
    assert "no row" in checks[0].samples[0]


@pytest.mark.parametrize("at", [0, 1])
def test_a_row_that_is_there_twice_is_found(truth, right, at):
    name = "flights/flights_by_hour"
    right[name].insert(0, dict(right[name][at]))
    (check,) = [check for check in check_views(truth, right) if not check.is_right]
    assert (check.differences, check.expected, check.found) == (1, "2", "3")
    assert " and " in check.samples[0]


def test_numbers():
    assert check_number("n", 5, 5).is_right
    assert not check_number("n", 5, 4).is_right
    assert check_that("n", "some", 1, is_right=True).is_right
    assert not check_that("n", "some", 0, is_right=False).is_right
