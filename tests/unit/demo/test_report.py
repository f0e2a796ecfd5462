"""The page and the figures of a run."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from millstream.demo.checks import check_number
from millstream.demo.report import figures_of, summary_of, table_of, write_report
from millstream.demo.run import Outcome, Sample
from millstream.demo.timeline import Timeline
from millstream.demo.truth import Truth
from millstream.errors import UnavailableError


@pytest.fixture
def outcome():
    stats = {"sum": -1, "count": 2, "min": -4, "max": 3, "sumsqr": 25}
    return Outcome(
        Truth(),
        rows={
            "flights/delay_by_carrier": [{"key": "A<A", "value": stats}],
            "flights/flights_by_hour": [{"key": ["JFK", 5], "value": 2}],
            "routes/delay_by_route": [{"key": [1, "JFK", "BOS"], "value": stats}],
        },
        checks=[check_number("documents", 1, 1)],
        samples=[Sample(1.0, 10, 3)],
        steps=[("node", 0.5, "running")],
        written=10, streamed=3, updates=1, deletes=1,
    )  # fmt: skip


def test_the_page_needs_nothing_else(outcome, tmp_path):
    text = write_report(outcome, tmp_path).read_text()
    assert "A&lt;A" in text
    assert text.count("data:image/png;base64,") == 4
    assert 'src="http' not in text
    assert "Every view row equals the truth" in text
    assert len(list(tmp_path.glob("*.png"))) == 4


def test_without_plots(outcome, tmp_path):
    assert "data:image" not in write_report(outcome, tmp_path, with_plots=False).read_text()
    assert not list(tmp_path.glob("*.png"))


def test_differences_are_shown(outcome, tmp_path):
    wrong = check_number("rows", 1, 2)
    wrong.samples.append("<key>: expected 1, found 2")
    outcome.checks.append(wrong)
    assert not outcome.is_right
    text = write_report(outcome, tmp_path, with_plots=False).read_text()
    assert "Differences were found" in text
    assert "&lt;key&gt;" in text
    assert json.loads(figures_of(outcome))["is_right"] is False
    console = Console(record=True, width=120, file=io.StringIO())
    console.print(table_of(outcome))
    assert "WRONG" in console.export_text()


def test_a_run_of_a_cluster_has_a_timeline_and_the_errors_of_clients(outcome, tmp_path):
    timeline = outcome.timeline = Timeline()
    timeline.failed("write", UnavailableError("<gone>", code="timeout"))
    timeline.mark("n2 is killed")
    for written in (1, 2, 4):
        timeline.note(written=written, streamed=written, rollbacks=0, active={"n1": written})
    text = write_report(outcome, tmp_path).read_text()
    assert "&lt;gone&gt;" in text
    assert (tmp_path / "timeline.png").exists()
    assert not (tmp_path / "changes_and_rows.png").exists()
    found = json.loads(figures_of(outcome))["timeline"]
    assert found["errors"] == [{"who": "write", "code": "timeout", "count": 1, "first": "<gone>"}]
    assert [moment["written"] for moment in found["moments"]] == [1, 2, 4]
    assert "1 errors of clients" in summary_of(outcome)


def test_a_timeline_without_moments_is_drawn(outcome, tmp_path):
    outcome.timeline = Timeline()
    assert "timeline" in write_report(outcome, tmp_path).read_text()
