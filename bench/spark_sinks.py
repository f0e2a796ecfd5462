"""Streams a bucket into every sink with Spark: rows per second, and what they cost whom.

    spark_sinks.py --port PORT --pid PID --rows N

A query per sink reads the bucket from its start in batches of `BATCH_ROWS`, after one into `noop`
that warms up; its first batch, which also makes files and companions, is not among the rows/s.
The node is source, and target of all but the Parquet table, on the same processors. One JSON line.
"""

import argparse
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from millstream.pipelines import (
    BucketTarget,
    ParquetTarget,
    apply_changes,
    local_session,
    register,
)
from servers import cpu_s_since, family_times

Figures = dict[str, Any]
BATCH_ROWS = 50_000
TASKS = 2


def main() -> None:
    """Measure every sink."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--pid", type=int, required=True, help="of the node")
    parser.add_argument("--rows", type=int, required=True)
    options = parser.parse_args()
    spark = local_session("millstream-bench")
    register(spark)
    hosts = f"127.0.0.1:{options.port}"
    source = {"hosts": hosts, "bucket": "default"}
    with tempfile.TemporaryDirectory() as folder:

        def writer(bucket: str, **more: str) -> Callable[[DataFrame], DataStreamWriter]:
            def to(rows: DataFrame) -> DataStreamWriter:
                pairs = rows.where("op = 'put'").selectExpr("key", "cast(value as string) value")
                target = {"hosts": hosts, "bucket": bucket, **more}
                return pairs.writeStream.format("millstream").options(**target)

            return to

        def applied(target: Any) -> Callable[[DataFrame], DataStreamWriter]:
            def take(batch: DataFrame, batch_id: int) -> None:
                apply_changes(batch, batch_id, target, source)

            return lambda rows: rows.writeStream.foreachBatch(take)

        sinks = {
            "upserts": writer("upserts"),
            "transactions": writer("transactions", transactional="true", sinkId="bench"),
            "copy": applied(BucketTarget({"hosts": hosts, "bucket": "copy"})),
            "parquet": applied(ParquetTarget(Path(folder) / "table")),
        }
        measure(
            spark, source, lambda rows: rows.writeStream.format("noop"), f"{folder}/0", options
        )
        figures = {
            name: measure(spark, source, to, f"{folder}/checkpoint-{name}", options)
            for name, to in sinks.items()
        }
    spark.stop()
    print(json.dumps({"rows": options.rows, "batch_rows": BATCH_ROWS, "sinks": figures}))


def measure(
    spark: SparkSession,
    source: dict[str, str],
    to: Callable[[DataFrame], DataStreamWriter],
    checkpoint: str,
    options: argparse.Namespace,
) -> Figures:
    """Run one query to the present end; return the figures of all batches but the first."""
    how = {"maxRowsPerBatch": str(BATCH_ROWS), "numPartitions": str(TASKS), "rollback": "rows"}
    rows = spark.readStream.format("millstream").options(**source, **how).load()
    mine, server = family_times(os.getpid()), family_times(options.pid)
    query = to(rows).option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
    batches = [one for one in query.recentProgress if one["numInputRows"] > BATCH_ROWS // 2]
    assert sum(one["numInputRows"] for one in batches) >= options.rows, query.recentProgress
    counted = batches[1:]
    seconds = sum(one["durationMs"]["triggerExecution"] for one in counted) / 1000
    return {
        "rows_per_s": sum(one["numInputRows"] for one in counted) / seconds,
        "spark_us_per_row": cpu_s_since(mine, os.getpid()) / options.rows * 1e6,
        "server_us_per_row": cpu_s_since(server, options.pid) / options.rows * 1e6,
    }


if __name__ == "__main__":
    main()
