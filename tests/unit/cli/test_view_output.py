"""Tables, CSV and bars (what commands print of them: `test_view`)."""

from __future__ import annotations

import csv
from typing import Any

import pytest

from millstream.cli.view_output import PLOT_BARS_MAX, plot, print_csv


def test_values_of_one_shape_are_spread(capsys: pytest.CaptureFixture[str]) -> None:
    rows: list[dict[str, Any]] = [{"key": [1, "a"], "value": {"sum": 1, "count": 2}}]
    print_csv([*rows, {"key": None, "value": {"sum": 3, "count": 4}}])
    print_csv([*rows, {"key": None, "value": {"sum": 3}}])
    print_csv([])
    found = list(csv.reader(capsys.readouterr().out.splitlines()))
    assert found == [
        ["key", "sum", "count"], ['[1,"a"]', "1", "2"], ["", "3", "4"],
        ["key", "value"], ['[1,"a"]', '{"sum":1,"count":2}'], ["", '{"sum":3}'],
        ["value"],
    ]  # fmt: skip


def test_bars_are_bounded_and_show_means(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"key": n, "value": {"sum": n * 2, "count": 2}} for n in range(PLOT_BARS_MAX + 5)]
    plot([*rows], "-", "t")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == PLOT_BARS_MAX
    assert lines[-1].endswith(f" {PLOT_BARS_MAX - 1}")
    plot([{"key": "a", "value": "text"}], "-", "t")
    assert capsys.readouterr().out == "a  0\n"
