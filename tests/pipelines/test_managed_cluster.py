"""A Spark query of a managed cluster goes on while a node dies, returns, and partitions move."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream import connect
from millstream.pipelines import ParquetTarget, apply_changes
from support.cluster.managed_nodes import BUCKET, ManagedNodes, Writer
from support.node.node_process import NodeProcess
from support.node.waiting import until

FOLLOWED_S = 180.0
"""Far longer than the wait of the reader, 30 s, which would end the query."""
Make = Callable[..., NodeProcess]


@pytest.fixture
def make_node(tmp_path: Path) -> Iterator[Make]:
    made: list[NodeProcess] = []

    def make(*options: str, name: str) -> NodeProcess:
        made.append(NodeProcess(tmp_path / name, *options))
        return made[-1]

    yield make
    for node in made:
        node.kill()


class Followed:
    """A table of Parquet files that one query keeps equal to the bucket."""

    def __init__(self, spark: Any, seeds: str, directory: Path) -> None:
        self._table = ParquetTarget(directory / "table")
        source = {"hosts": seeds, "bucket": BUCKET, "rollback": "rows"}

        def take(batch: Any, batch_id: int) -> None:
            apply_changes(batch, batch_id, self._table, source)

        changes = spark.readStream.format("millstream").options(**source).load()
        writer = changes.writeStream.foreachBatch(take).trigger(processingTime="200 milliseconds")
        self.query = writer.option("checkpointLocation", str(directory / "checkpoint")).start()

    def state(self) -> dict[str, bytes]:
        """Return key -> value of the table; fail if the query has ended."""
        assert self.query.exception() is None, self.query.exception()
        assert self.query.isActive
        table = self._table.table().select(["key", "value"]).to_pydict()
        return dict(zip(table["key"], table["value"], strict=True))


def truth(nodes: ManagedNodes, keys: list[str]) -> dict[str, bytes]:
    seeds = [str(nodes.nodes[name].ready["kv"]) for name in nodes.running()]
    with connect(seeds, bucket=BUCKET, timeout_s=30.0) as client:
        return {str(key): bytes(one.data) for key, one in client.get_many(keys).items()}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_query_needs_no_restart_through_a_fail_over_and_a_rebalance(
    spark: Any, make_node: Make, tmp_path: Path
) -> None:
    nodes = ManagedNodes(make_node).found("n1", "n2", "n3", replicas=2)
    seeds = ",".join(str(node.ready["kv"]) for node in nodes.nodes.values())
    with Writer(nodes, keys=100) as writer:
        followed = Followed(spark, seeds, tmp_path)
        try:
            until(lambda: len(followed.state()) > 50, nodes.logs, FOLLOWED_S)
            nodes.go_through_changes(writer, writes=50)
            writer.__exit__()
            writer.check(nodes)
            expected = truth(nodes, sorted(writer.tried))
            until(
                lambda: followed.state() == expected,
                lambda: (followed.query.lastProgress, nodes.logs()),
                FOLLOWED_S,
            )
        finally:
            followed.query.stop()
