"""The pipeline around the cycle without a session; with one: tests/pipelines/test_index.py."""

import msgspec
import pyarrow as pa
import pytest

from millstream.errors import ConditionError, RoutingError, UnavailableError
from millstream.pipelines.index import on_spark
from millstream.pipelines.index.mapping import TaskDone
from millstream.pipelines.index.on_spark import IndexPipeline, _done_of, _run_rows


def told_of(monkeypatch, run):
    monkeypatch.setattr(on_spark, "run_task", run)
    batch = pa.RecordBatch.from_pydict({"id": [1, 0]})
    rows = [row for found in _run_rows(None, ["a", "b"], iter([batch])) for row in found[0]]
    return [row.as_py() for row in rows]


def test_what_tasks_did_comes_back(monkeypatch):
    told = told_of(monkeypatch, lambda spec, plans: TaskDone(changes=3, documents=[plans]))
    assert [_done_of(each).documents for each in told] == [["b"], ["a"]]


def test_an_error_that_trying_again_does_not_cure_comes_back(monkeypatch):
    def fenced(spec, plans):
        raise ConditionError("taken over", code="index_fenced")

    told = told_of(monkeypatch, fenced)
    with pytest.raises(ConditionError) as caught:
        _done_of(told[0])
    assert (caught.value.code, str(caught.value)) == ("index_fenced", "taken over")


def test_spark_tries_again_what_may_be_cured(monkeypatch):
    def away(spec, plans):
        raise UnavailableError("away")

    with pytest.raises(UnavailableError):
        told_of(monkeypatch, away)


class Cycles:
    """A writer whose cycles do what they are told: None, or an error."""

    def __init__(self, *steps):
        self.steps = list(steps)

    def cycle(self):
        step = self.steps.pop(0)
        if isinstance(step, Exception):
            raise step
        return step


def test_a_node_that_is_away_for_a_while_ends_nothing(monkeypatch, tmp_path):
    monkeypatch.setattr(on_spark, "PAUSE_S", 0.001)
    pipeline = IndexPipeline(None, tmp_path)
    writer = Cycles(UnavailableError("away"), RoutingError("nobody has it"), None)
    pipeline._catch_up(writer)
    assert writer.steps == []


def test_one_that_stays_away_ends_it(monkeypatch, tmp_path):
    monkeypatch.setattr(on_spark, "PAUSE_S", 0.001)
    monkeypatch.setattr(on_spark, "AWAY_S", 0.0)
    pipeline = IndexPipeline(None, tmp_path)
    with pytest.raises(UnavailableError):
        pipeline._catch_up(Cycles(*[UnavailableError("away")] * 9))
    with pytest.raises(ConditionError):
        pipeline._catch_up(Cycles(ConditionError("taken over")))


def test_a_stop_waits_for_nothing_more(tmp_path):
    pipeline = IndexPipeline(None, tmp_path, is_stopping=True)
    pipeline._catch_up(Cycles())
    with pytest.raises(UnavailableError):
        pipeline._patiently(Cycles(UnavailableError("away")).cycle)


class NoWriter(Cycles):
    """A writer that cannot take over; used within `with`."""

    def __init__(self, *_, **__):
        super().__init__(UnavailableError("away"))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    take_over = Cycles.cycle


def test_a_stop_while_the_node_is_away_is_no_failure(monkeypatch, tmp_path):
    monkeypatch.setattr(on_spark, "IndexWriter", NoWriter)
    monkeypatch.setattr(on_spark, "spark_tasks", lambda spark: None)
    monkeypatch.setattr(on_spark, "AWAY_S", 0.0)
    IndexPipeline(None, tmp_path, is_stopping=True).run(None)
    monkeypatch.setattr(on_spark, "PAUSE_S", 0.001)
    stays_away = NoWriter()
    stays_away.steps *= 9
    monkeypatch.setattr(on_spark, "IndexWriter", lambda *_, **__: stays_away)
    with pytest.raises(UnavailableError):
        IndexPipeline(None, tmp_path).run(None)


def test_task_results_are_json():
    done = TaskDone(changes=1, lost=[3])
    assert _done_of(b"+" + msgspec.json.encode(done)) == done
