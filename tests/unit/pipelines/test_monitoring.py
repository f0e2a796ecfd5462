from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from millstream.pipelines import monitoring
from millstream.pipelines.change_stream.offsets import Offset, OffsetEntry, offset_to_json
from millstream.pipelines.monitoring import Figures, LagClock, figures_of, monitor


def offset(**seqnos: int) -> dict[str, Any]:
    entries = {int(p[1:]): OffsetEntry(1, n, n, n, 1) for p, n in seqnos.items()}
    return offset_to_json(Offset("orders", "b0b0", entries))


def report(end: Any, latest: Any, run: str = "run") -> dict[str, Any]:
    return {
        "id": "id", "runId": run, "name": None, "batchId": 7, "batchDuration": 250,
        "sources": [{
            "endOffset": json.dumps(end), "latestOffset": json.dumps(latest),
            "processedRowsPerSecond": 12.5,
        }],
    }  # fmt: skip


def figures(end: Any, latest: Any, clock: LagClock | None = None, now_s: float = 0.0) -> Figures:
    (found,) = figures_of(report(end, latest), lambda run, source: clock or LagClock(), now_s)
    return found


def test_a_report_has_named_figures() -> None:
    found = figures(offset(p0=3, p1=9), offset(p0=5, p1=9))
    assert (found.bucket, found.name, found.batch_id) == ("orders", "", 7)
    assert (found.rows_per_s, found.batch_s) == (12.5, 0.25)
    assert (found.lag_by_partition, found.lag_changes) == ({0: 2, 1: 0}, 2)
    assert (found.waiting_for, found.waits) == ("", 0)


def test_the_lag_lasts_from_the_first_report_that_shows_it() -> None:
    clock = LagClock()
    lags = [
        figures(offset(p0=read), offset(p0=high), clock, now_s).lag_s
        for now_s, read, high in ((0, 5, 5), (10, 5, 8), (25, 5, 9), (30, 8, 9), (40, 9, 9))
    ]
    assert lags == [0.0, 0.0, 15.0, 5.0, 0.0]


def test_what_a_node_has_lost_is_no_lag() -> None:
    clock = LagClock()
    assert clock.look({0: 8}, {0: 3}, 0.0) == clock.look({0: 5}, {0: 0}, 9.0) == {0: 0.0}
    assert clock.look({0: 6}, {0: 1}, 20.0) == {0: 0.0}


def test_few_reports_are_remembered_and_no_lag_is_told_too_long() -> None:
    clock = LagClock()
    for now_s in range(1000):
        lag_s = clock.look({0: now_s + 2}, {0: now_s + 1}, now_s)[0]
        assert lag_s <= now_s
        assert len(clock._seen[0]) <= monitoring.SEEN_MAX
    assert lag_s > 0


def test_what_is_not_known_is_not_zero() -> None:
    found = figures(offset(p0=3), {"waiting": "node a is away"})
    assert (found.lag_changes, found.lag_s, found.lag_by_partition) == (None, None, None)
    assert found.waiting_for == "node a is away"
    waiting = figures(offset(p0=3) | {"waits": 2}, offset(p0=5) | {"waiting": "node a is away"})
    assert (waiting.waits, waiting.lag_changes) == (2, 2)
    assert figures(offset(p0=3), None).lag_changes is None


@pytest.mark.parametrize("end", [None, 17, {"v": 1}])
def test_other_sources_are_passed_over(end: Any) -> None:
    assert list(figures_of(report(end, end), lambda run, source: LagClock(), 0.0)) == []


def test_a_listener_tells_each_report_and_bears_errors(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitoring, "QUERIES_MAX", 2)
    added: list[Any] = []
    spark: Any = SimpleNamespace(streams=SimpleNamespace(addListener=added.append))
    told: list[Figures] = []

    def tell(figures: Figures) -> None:
        told.append(figures)
        if figures.lag_changes == 99:
            raise RuntimeError("no room")

    listener: Any = monitor(spark, tell)
    assert added == [listener]
    for run in ("a", "b", "c", "c"):
        progress = report(offset(p0=1), offset(p0=100), run)
        listener.onQueryProgress(SimpleNamespace(progress=progress))
    assert [one.run_id for one in told] == ["a", "b", "c", "c"]
    assert "no room" in capsys.readouterr().err
    assert [run for run, _ in listener._clocks] == ["b", "c"]
    listener.onQueryTerminated(SimpleNamespace(runId="c"))
    assert [run for run, _ in listener._clocks] == ["b"]
