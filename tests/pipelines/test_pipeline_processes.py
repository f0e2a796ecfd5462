"""Lake and backup as processes of their own: listed, refused, stopped in good order."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millstream.pipelines.change_stream.options import SourceOptions
from millstream.pipelines.lake.backup import back_up
from millstream.pipelines.lake.directory import BackupDirectory
from millstream.pipelines.lake.table_query import TableQuery
from millstream.pipelines.sinks.parquet_target import ParquetTarget
from support.node.node_process import NodeProcess
from support.pipelines.pipeline_process import PipelineProcess
from support.pipelines.spark_bucket import BucketUnderTest

pytestmark = pytest.mark.slow
DOCUMENTS = {f"k{n}": {"n": n} for n in range(2000)}
MANY = {f"k{n}": {"n": n} for n in range(40_000)}
"""Far more batches than a lake does while another process is started and refused."""


def test_a_lake_is_stopped_at_the_edge_of_a_batch(
    spark: Any, own_node: Callable[..., NodeProcess], tmp_path: Path
) -> None:
    node = own_node("--bucket", "b:4")
    source = BucketUnderTest(node.ready["kv"], "b")
    source.write(MANY)
    words = "lake", "b", "--to", str(tmp_path / "lake"), "--rows-per-batch", "100"
    driver = PipelineProcess(node, tmp_path, *words)
    try:
        driver.wait_until(lambda: (tmp_path / "lake" / "log" / "000000000003.parquet").exists())
        again = driver.call("pipeline", "run", *words)
        assert (again.returncode, "pipeline lake-b runs already" in again.stderr) == (1, True)
        # As a terminal sends Ctrl-C: to Java and the workers, too.
        os.killpg(driver.process.pid, signal.SIGINT)
        assert driver.end() == 0, driver.log.read_text()[-3000:]
    finally:
        driver.kill()
    done = json.loads(driver.call("pipeline", "status", "lake-b", "--json").stdout)
    assert (done["state"], done["error"]) == ("stopped", "")
    assert done["batches"] >= 2
    assert done["rows_per_s"] > 0
    assert "Spark's own log" in driver.log.read_text()
    assert (tmp_path / "state" / "pipelines" / "lake-b" / "spark.log").stat().st_size
    table = ParquetTarget(tmp_path / "lake" / "table")
    assert table.table().num_rows < len(MANY)
    assert not list((tmp_path / "lake" / "log").glob("pending-*"))
    options = source.options(numPartitions=2)
    TableQuery(options, tmp_path / "lake", on_progress=lambda _: None).run(spark, once=True)
    assert set(table.table().column("key").to_pylist()) == set(MANY)


def test_a_backup_that_is_stopped_leaves_a_valid_directory(
    spark: Any, own_node: Callable[..., NodeProcess], tmp_path: Path
) -> None:
    node = own_node("--bucket", "b:4")
    source = BucketUnderTest(node.ready["kv"], "b")
    source.write(DOCUMENTS)
    directory = BackupDirectory(tmp_path / "backup")
    options = SourceOptions(hosts=node.ready["kv"], bucket="b")
    assert back_up(spark, options, directory).id == 1
    driver = PipelineProcess(node, tmp_path, "backup", "b", "--to", str(directory.path))
    try:
        driver.wait_until(lambda: bool(list(directory.path.glob("data-000002-*"))))
        for pid in node.pids():
            os.kill(pid, signal.SIGSTOP)  # so that the backup does not end before the stop
        stopped = driver.call("pipeline", "stop", "backup-b")
        for pid in node.pids():
            os.kill(pid, signal.SIGCONT)
        assert stopped.returncode == 0
        assert driver.end() == 1
    finally:
        driver.kill()
    assert "does not count, what was there is as it was; run it again" in driver.log.read_text()
    assert list(directory.manifests()) == [1]
    made = back_up(spark, options, directory, is_incremental=True)
    assert (made.parent, made.row_count) == (1, 0)
    assert len(list(directory.path.glob("data-*"))) == 2  # nothing of the stopped one
