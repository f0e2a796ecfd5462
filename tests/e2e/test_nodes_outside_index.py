"""Views that a pipeline keeps on several nodes: real nodes, tasks run here, without Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from millstream.model.partitions import partition_of
from millstream.pipelines.index import on_spark
from millstream.pipelines.index.mapping import MapSpec, TaskDone
from millstream.pipelines.index.planning import PartPlan
from millstream.pipelines.index.setup import index_state_of
from support.node.node_process import NodeProcess
from support.node.waiting import until
from support.views.distributed_index import ROWS, IndexedNodes
from support.views.outside_index import here

MakeNode = Callable[..., NodeProcess]
TURNS = threading.Lock()
"""Tasks of one process run one after the other, as in a worker of Spark's."""


def by_turns(spec: MapSpec, tasks: Sequence[Sequence[PartPlan]]) -> list[TaskDone]:
    with TURNS:
        return here(spec, tasks)


@pytest.fixture
def indexed(make_node: MakeNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> IndexedNodes:
    monkeypatch.setattr(on_spark, "spark_tasks", lambda spark: by_turns)
    return IndexedNodes(make_node, tmp_path)


def test_each_node_has_its_part_after_moves_and_losses(indexed: IndexedNodes) -> None:
    nodes = indexed.nodes
    indexed.write(range(60))
    indexed.pipeline().run(None, once=True)  # type: ignore[arg-type]
    assert [report.is_first for report in indexed.reports] == [True, True]
    assert sorted(indexed.reports[-1].rows) == [60]
    assert len({report.node for report in indexed.reports}) == 2
    indexed.check("a", "b")
    state = index_state_of(indexed.source("b"), "d")
    assert (state.rows, sorted(state.where)) == ([60], [0, 1, 2, 3])

    with indexed.running(is_loop=True):
        indexed.write(range(40, 80), "again")
        indexed.check("a", "b")
        for turn in range(2):  # partitions move; rows that were there stay, or come again
            nodes.promote("a", "--to", "ba"[turn % 2], "--partition", str(turn % 4))
            indexed.write(range(turn * 10, turn * 10 + 5), f"moved {turn}")
            indexed.check("ab"[turn % 2])
        indexed.check("a", "b")
        for turn in range(2):
            nodes.promote("a", "--to", "ab"[turn % 2], "--partition", str(turn % 4))

        nodes.until_whole("a", "b")
        nodes.nodes["b"].kill()  # its partitions wait, those of a go on
        indexed.put(indexed.at("a", range(30)))
        left = "on_error=continue&stale=ok"
        mine = [row for row in indexed.right if ROWS[partition_of(row[0].encode(), 4)][0] == "a"]
        until(lambda: indexed.rows(nodes.nodes["a"], left) == mine)
        nodes.nodes["b"].start()
        nodes.promote("a")
        indexed.put(indexed.at("b", range(30)))
        indexed.check("a", "b")
        assert indexed.rows(nodes.nodes["b"], "stale=ok") == indexed.right


def test_a_node_without_data_gets_its_index_too(
    indexed: IndexedNodes, make_node: MakeNode
) -> None:
    joined = str(indexed.nodes.nodes["a"].ready["http"])
    options = ("--roles", "index", "--no-kv", "--no-memcached", "--join", joined)
    index = make_node(*options, name="index").start()
    address = str(index.ready["http"])
    indexed.write(range(50))
    indexed.pipeline(index_nodes=(address,)).run(None, once=True)  # type: ignore[arg-type]
    told = {report.node for report in indexed.reports}
    assert (len(told), address in told) == (3, True)
    indexed.check("a", "b")
    assert indexed.rows(index, "stale=ok") == indexed.right
    with indexed.running(is_loop=True, index_nodes=(address,)):
        indexed.write(range(30, 70), "again")
        until(lambda: indexed.rows(index) == indexed.right)
        indexed.nodes.until_whole("a", "b")
        indexed.nodes.nodes["b"].kill()
        indexed.put(indexed.at("a", range(30)))
        until(lambda: indexed.rows(index, "stale=ok") == indexed.right)
        indexed.nodes.nodes["b"].start()
        indexed.nodes.promote("a")
        indexed.put(indexed.at("b", range(30)))
        until(lambda: indexed.rows(index) == indexed.right)
        indexed.check("a", "b")
