"""A Spark query of a managed cluster goes on while a node dies, returns, and partitions move."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream import connect
from millstream.pipelines import ParquetTarget, apply_changes
from millstream.pipelines.change_stream.options import parse_options
from millstream.pipelines.index.on_spark import CycleReport, IndexPipeline
from millstream.pipelines.index.setup import find_specs
from support.cluster.managed_nodes import BUCKET, ManagedNodes, Writer
from support.node.node_process import NodeProcess
from support.node.waiting import until

FOLLOWED_S = 180.0
OUTSIDE_S = 40.0
SHORT_WAIT = f"""
import millstream.cluster.core.settings as settings
settings.OUTSIDE_MS_MAX = {int(OUTSIDE_S * 1000)}
"""
"""Nodes wait less than half as long for a pipeline that keeps indexes; it is heard every 20 s."""
DESIGN = {
    "_id": "_design/kept",
    "engine": "spark",
    "views": {"v": {"map": "function (doc) { emit(doc.n, doc.n); }", "reduce": "_sum"}},
}
Make = Callable[..., NodeProcess]


@pytest.fixture
def make_node(tmp_path: Path) -> Iterator[Make]:
    made: list[NodeProcess] = []
    (tmp_path / "sitecustomize.py").write_text(SHORT_WAIT)

    def make(*options: str, name: str) -> NodeProcess:
        made.append(NodeProcess(tmp_path / name, *options, env={"PYTHONPATH": str(tmp_path)}))
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


@pytest.mark.nightly  # so does the query of `test_demo`, whose nodes die, come and go
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


class Kept:
    """A view that a pipeline keeps, in a thread."""

    def __init__(self, spark: Any, seeds: str, directory: Path) -> None:
        (directory / "kept.json").write_text(json.dumps(DESIGN))
        source = parse_options({"hosts": seeds, "bucket": BUCKET})
        (spec,) = find_specs(source, [str(directory / "kept.json")])
        self.reports: list[CycleReport] = []
        self.errors: list[str] = []
        self.pipeline = IndexPipeline(
            spec, directory / "checkpoint", on_cycle=self.reports.append, is_loop=True
        )
        self._thread = threading.Thread(target=self._run, args=(spark,), daemon=True)
        self._thread.start()

    def _run(self, spark: Any) -> None:
        try:
            self.pipeline.run(spark)
        except Exception as error:  # noqa: BLE001 - shown by the test
            self.errors.append(repr(error))

    def stop(self) -> None:
        self.pipeline.is_stopping = True
        self._thread.join(60)


def rows_of(node: NodeProcess, **options: Any) -> dict[str, Any] | None:
    """Return the rows of the view, by document; None: it is refused."""
    words = "&".join(f"{name}={json.dumps(value)}" for name, value in options.items())
    url = f"{node.http}/{BUCKET}/_design/kept/_view/v?{words}"
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            rows = json.load(answer)["rows"]
    except OSError:
        return None
    return {row["id"]: row["value"] for row in rows}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_view_that_spark_keeps_moves_with_its_parts_also_without_its_pipeline(
    spark: Any, make_node: Make, tmp_path: Path
) -> None:
    nodes = ManagedNodes(make_node).found("n1", "n2", replicas=1)
    seeds = ",".join(str(node.ready["kv"]) for node in nodes.nodes.values())
    expected = {f"k{n}": n for n in range(200)}

    def write(*numbers: int) -> None:
        kv = [str(nodes.nodes[name].ready["kv"]) for name in nodes.running()]
        with connect(kv, bucket=BUCKET) as client:
            for n in numbers:
                client.upsert(f"k{n}", {"n": n}, durability="majority")
                expected[f"k{n}"] = n

    def until_shown(*names: str) -> None:
        def is_shown(name: str) -> bool:
            rows = rows_of(nodes.nodes[name], reduce=False, update=False) or {}
            return {key: n for key, n in rows.items() if key[0] == "k"} == expected

        for name in names:
            until(lambda at=name: is_shown(at), lambda: (kept.errors, nodes.logs()), FOLLOWED_S)

    write(*range(200))
    kept = Kept(spark, seeds, tmp_path)
    try:
        until_shown("n1", "n2")
        with Writer(nodes, keys=50) as writer:
            nodes.start("n3")  # it has parts of the index and no data, so no data map names it
            place = str(nodes.nodes["n1"].ready["http"])
            nodes.command("n3", "join", place, "--roles", "index,coord")
            nodes.command("n1", "rebalance")
            until(
                lambda: not nodes.status("n1")["plan"],
                lambda: (kept.errors, nodes.status("n1"), nodes.logs()),
                FOLLOWED_S,
            )
        writer.check(nodes)
        write(200)
        until_shown("n1", "n2", "n3")
        assert kept.errors == []
        kept.stop()
        write(201)
        nodes.command("n1", "remove", "n1", "--yes")
        # Nobody brings the view on: after a while its parts are handed over without it.
        until(
            lambda: nodes.state_of("n1", "n2") == "out",
            lambda: (nodes.status("n2"), nodes.logs()),
            2 * OUTSIDE_S + 60,
        )
        nodes.nodes["n1"].stop()
        kept = Kept(spark, str(nodes.nodes["n2"].ready["kv"]), tmp_path)
        until_shown("n2", "n3")
    finally:
        kept.stop()
