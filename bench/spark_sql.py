"""Streams buckets into tables of PostgreSQL: by `SqlTarget`, and by Spark's own JDBC beside it.

    spark_sql.py --port PORT --pid PID --postgres PORT

Bucket `batchN` is read from its start in batches of N rows of `ROW_BYTES`, first into a table by
`apply_changes`, then appended to another one by `format("jdbc")`, which replaces no rows, keeps no
position and can leave half a batch. The first batch is not among the rows/s. `python_mb` and
`java_mb` are the highest resident set of the driver's two processes in a run; in local mode tasks
run in the one of Java, too. One JSON line.
"""

import argparse
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from millstream.pipelines import SqlTarget, apply_changes, local_session, register
from servers import POSTGRES_DRIVER
from spark import SQL_BATCHES

Figures = dict[str, Any]
ROW_BYTES = 1_000
TASKS = 2


def main() -> None:
    """Measure both ways for every size of a batch."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--pid", type=int, required=True, help="of the node")
    parser.add_argument("--postgres", type=int, required=True, help="port of the server")
    options = parser.parse_args()
    settings = {"spark.driver.extraClassPath": str(POSTGRES_DRIVER)}
    spark = local_session("millstream-bench", settings=settings)
    register(spark)
    address = f"127.0.0.1:{options.postgres}/postgres"
    jdbc = {"url": f"jdbc:postgresql://{address}", "user": "postgres",
            "password": os.environ["PGPASSWORD"], "batchsize": "10000"}  # fmt: skip
    found: list[Figures] = []
    with tempfile.TemporaryDirectory() as folder:
        for rows, count in [(1_000, 2), *SQL_BATCHES.items()]:  # the first one warms up
            source = {"hosts": f"127.0.0.1:{options.port}", "bucket": f"batch{rows}"}
            name = f"t{len(found)}_{rows}"
            target = SqlTarget(f"postgresql://postgres@{address}", f"{name}_target")

            def apply(batch: DataFrame, batch_id: int) -> None:
                apply_changes(batch, batch_id, target, source)  # noqa: B023

            def append(batch: DataFrame, _: int) -> None:
                writer = batch.write.format("jdbc").options(**jdbc, dbtable=f"{name}_jdbc")  # noqa: B023
                writer.mode("append").save()

            figures: Figures = {"batch_rows": rows}
            for way, take in (("target", apply), ("jdbc", append)):
                at = f"{folder}/{name}-{way}"
                figures[way] = measure(spark, source, take, at, rows, count)
            found.append(figures)
    spark.stop()
    print(json.dumps({"row_bytes": ROW_BYTES, "sizes": found[1:]}))


def measure(
    spark: SparkSession,
    source: dict[str, str],
    take: Callable[[DataFrame, int], None],
    checkpoint: str,
    rows: int,
    count: int,
) -> Figures:
    """Run one query to the present end; return rows/s and the highest resident sets."""
    pids = {"python_mb": os.getpid(), "java_mb": java_pid(spark)}
    for pid in pids.values():
        Path(f"/proc/{pid}/clear_refs").write_text("5")  # the highest is the present one
    how = {"maxRowsPerBatch": str(rows), "maxBytesPerBatch": str(2**31 - 1),
           "numPartitions": str(TASKS), "rollback": "rows"}  # fmt: skip
    stream = spark.readStream.format("millstream").options(**source, **how).load()
    writer = stream.writeStream.foreachBatch(take).option("checkpointLocation", checkpoint)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    batches = [one for one in query.recentProgress if one["numInputRows"] > rows // 2]
    assert len(batches) >= min(count, 3), query.recentProgress
    counted = batches[1:]
    seconds = sum(one["durationMs"]["triggerExecution"] for one in counted) / 1000
    peaks = {name: highest_mb(pid) for name, pid in pids.items()}
    return {"rows_per_s": sum(one["numInputRows"] for one in counted) / seconds, **peaks}


def java_pid(spark: SparkSession) -> int:
    """Return the process of the driver's Java."""
    java: Any = spark.sparkContext._jvm
    return int(java.java.lang.ProcessHandle.current().pid())


def highest_mb(pid: int) -> float:
    """Return the highest resident set of a process, in MB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("VmHWM"))


if __name__ == "__main__":
    main()
