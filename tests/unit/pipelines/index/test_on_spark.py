"""The pipeline around the cycle without a session; with one: tests/pipelines/test_index.py."""

from dataclasses import replace
from typing import ClassVar, NamedTuple

import msgspec
import pyarrow as pa
import pytest

from millstream.errors import ConditionError, UnavailableError
from millstream.pipelines.change_stream.options import parse_options
from millstream.pipelines.index import on_spark
from millstream.pipelines.index.mapping import MapSpec, TaskDone
from millstream.pipelines.index.on_spark import IndexPipeline, _done_of, _run_rows
from millstream.pipelines.index.shard import IndexAddress, IndexState
from millstream.pipelines.index.writer import Cycle
from millstream.wire.cluster_map import ClusterMap, NodeAddress

SPEC = MapSpec(
    source=parse_options({"bucket": "b", "hosts": "c:3"}),
    address=IndexAddress(host="a", port=1, bucket="b", design="d"),
    bucket_uuid="u", design=b"{}", signature="s", fence=0, is_first=False,
)  # fmt: skip


def state_of(rows):
    return IndexState(
        signature="s", engine="spark", writer="w", fence=1, commit=1, committed_ms=0,
        is_empty=False, trees=1, rows=rows, states={}, positions={},
    )  # fmt: skip


def told_of(monkeypatch, run):
    monkeypatch.setattr(on_spark, "run_task", run)
    batch = pa.RecordBatch.from_pydict({"id": [1, 0]})
    rows = [row for found in _run_rows(None, ["a", "b"], iter([batch])) for row in found[0]]
    return [row.as_py() for row in rows]


def test_task_results_come_back(monkeypatch):
    told = told_of(monkeypatch, lambda spec, plans: TaskDone(changes=3, documents=[plans]))
    assert [_done_of(each).documents for each in told] == [["b"], ["a"]]


def test_a_permanent_error_comes_back(monkeypatch):
    def fenced(spec, plans):
        raise ConditionError("taken over", code="index_fenced")

    told = told_of(monkeypatch, fenced)
    with pytest.raises(ConditionError) as caught:
        _done_of(told[0])
    assert (caught.value.code, str(caught.value)) == ("index_fenced", "taken over")


def test_spark_retries_transient_errors(monkeypatch):
    def away(spec, plans):
        raise UnavailableError("away")

    with pytest.raises(UnavailableError):
        told_of(monkeypatch, away)


class FalseShards:
    """Nodes that stay as they are, or fail as they are told."""

    made: ClassVar[list] = []

    def __init__(self, find, opened, on_cycle, *, once, is_loop):
        self.on_cycle, self.once, self.is_loop = on_cycle, once, is_loop
        self.is_over = False
        FalseShards.made.append(self)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def look(self):
        raise UnavailableError("away")


class FalseShard:
    """An index of which `told` has the nodes, by host; others are away."""

    told: ClassVar[dict[str, list[str]]] = {}

    def __init__(self, address):
        self.address = address

    def state(self, limit_s):
        if self.address.host not in self.told:
            raise UnavailableError("away")
        return msgspec.structs.replace(state_of([]), nodes=self.told[self.address.host])


@pytest.fixture
def pipeline(monkeypatch, tmp_path):
    FalseShards.made.clear()
    FalseShard.told.clear()
    monkeypatch.setattr(on_spark, "Shards", FalseShards)
    monkeypatch.setattr(on_spark, "IndexShard", FalseShard)
    return IndexPipeline(SPEC, tmp_path, index_nodes=("h:7",))


def test_a_stop_while_nodes_are_away_is_no_failure(pipeline):
    pipeline.is_stopping = True
    pipeline.run(None, once=True)
    pipeline.is_stopping = False
    with pytest.raises(UnavailableError):
        pipeline.run(None, once=True)


class FalseClient:
    def __init__(self, map_):
        self.cluster_map = map_

    def refresh_map(self):
        pass

    def close(self):
        pass


def test_the_nodes_of_the_map_are_found_and_remembered(pipeline, monkeypatch):
    nodes = (NodeAddress("a", 1), NodeAddress("b", 2))
    client = FalseClient(ClusterMap(1, 1, nodes, (0, 1), {}, "u", nodes[0], (8, 9)))
    monkeypatch.setattr(on_spark, "open_client", lambda source: client)
    found = pipeline._find()
    assert [(each.host, each.port) for each in found] == [("a", 8), ("b", 9), ("h", 7)]
    assert pipeline.spec.source.hosts == "c:3,a:1,b:2"
    assert [each.design for each in found] == ["d"] * 3


def test_nodes_with_parts_of_the_index_and_no_data_are_found_and_stay_while_nobody_answers(
    pipeline, monkeypatch
):
    told = FalseShard.told
    told["a"] = ["a:8", "i:5"]
    node = NodeAddress("b", 2)
    client = FalseClient(ClusterMap(1, 1, (node,), (0,), {}, "u", node, (9,)))
    monkeypatch.setattr(on_spark, "open_client", lambda source: client)

    def places():
        return [(each.host, each.port) for each in pipeline._find()]

    assert places() == [("b", 9), ("h", 7)]
    told["h"] = told.pop("a")
    assert places() == [("b", 9), ("h", 7), ("a", 8), ("i", 5)]
    told.clear()
    assert places() == [("b", 9), ("h", 7), ("a", 8), ("i", 5)]
    told["b"] = ["b:9"]
    assert places() == [("b", 9), ("h", 7)], "their parts have moved away"


def test_a_report_is_of_all_nodes(pipeline):
    class Writer(NamedTuple):
        told: dict

        def lag(self):
            return self.told

    reports = []
    pipeline.on_cycle = reports.append
    pipeline._where = [replace(SPEC.address, host=host) for host in "ab"]
    for address, rows, lag in (
        (pipeline._where[0], [3], {0: 4}), (pipeline._where[1], [5], {1: 0, 0: 1}),
    ):  # fmt: skip
        pipeline._report(address, Writer(lag), Cycle(state_of(rows), 2, 1, False), 0.5)
    assert [(each.rows, each.node, each.lag) for each in reports] == [
        ([3], "a:1", {0: 4}), ([8], "b:1", {0: 4, 1: 0}),
    ]  # fmt: skip
    pipeline._where = pipeline._where[1:]
    pipeline._report(address, Writer(lag), Cycle(state_of([6]), 2, 1, False), 0.5)
    assert (reports[-1].rows, reports[-1].lag) == ([6], {1: 0, 0: 1}), "a node that went"


def test_task_results_are_json():
    done = TaskDone(changes=1, lost=[3])
    assert _done_of(b"+" + msgspec.json.encode(done)) == done
