"""Reads the same rows into Spark from a node, from Parquet, from PostgreSQL; prints one JSON line.

    spark_rows.py --port PORT --pid PID --rows N [--postgres PORT --postgres-pid PID]

Every column of every row reaches the JVM: the sink is Spark's `noop`, which asks for all of them.
The first read of the node, which starts the Python workers and warms up the JVM, is reported
apart; then each source has one warm-up, and the best of three counts. The rows are written to
Parquet and to the table from one read of the node, so that all three have the same rows and the
same schema. PostgreSQL is read by ranges of the column partition, of which the table has an
index and in whose order it lies; its driver sends columns in binary and fetches 10,000 rows at a
time.
"""

import argparse
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from millstream.pipelines import local_session, register
from servers import POSTGRES_DRIVER, cpu_s_since, family_times

ROUNDS = 3
PARTITIONS = 64
FETCH_ROWS = 10_000
TABLE = "changes"
BY_PARTITION = {
    "partitionColumn": "partition",
    "lowerBound": "0",
    "upperBound": str(PARTITIONS),
    "numPartitions": str(len(os.sched_getaffinity(0))),
    "fetchsize": str(FETCH_ROWS),
}


def main() -> None:
    """Read from all sources."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--pid", type=int, required=True, help="of the node")
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--postgres", type=int, help="port of the server, which has no table yet")
    parser.add_argument("--postgres-pid", type=int)
    options = parser.parse_args()
    settings = {"spark.driver.extraClassPath": str(POSTGRES_DRIVER)} if options.postgres else {}
    spark = local_session("millstream-bench", settings=settings)
    register(spark)
    address = f"127.0.0.1:{options.port}"
    source = spark.read.format("millstream").option("hosts", address).option("bucket", "default")
    first_s, _, _ = read(source.load(), None)
    figures: dict[str, Any] = {"node": best(source.load, options.rows, options.pid)}
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/rows"
        source.load().write.parquet(path)
        figures["parquet"] = best(lambda: spark.read.parquet(path), options.rows, None)
        if options.postgres:
            url = f"jdbc:postgresql://127.0.0.1:{options.postgres}/postgres?prepareThreshold=-1"
            table = {"user": "postgres", "password": os.environ["PGPASSWORD"], "dbtable": TABLE}
            fill(spark.read.parquet(path), url, table, options.postgres)
            reader = spark.read.format("jdbc").options(url=url, **table, **BY_PARTITION)
            assert reader.load().columns == source.load().columns
            figures["postgres"] = best(reader.load, options.rows, options.postgres_pid)
    spark.stop()
    print(
        json.dumps({"rows": options.rows, "first_rows_per_s": options.rows / first_s, **figures})
    )


def read(rows: DataFrame, server: int | None) -> tuple[float, float, float]:
    """Read all columns; return wall time, and processor time of Spark and of the server."""
    pids = [os.getpid(), *([server] if server else [])]
    times = [family_times(pid) for pid in pids]
    began = time.perf_counter()
    rows.write.format("noop").mode("overwrite").save()
    wall_s = time.perf_counter() - began
    spark_s, *server_s = (cpu_s_since(*pair) for pair in zip(times, pids, strict=True))
    return wall_s, spark_s, sum(server_s)


def best(load: Callable[[], DataFrame], rows: int, server: int | None) -> dict[str, Any]:
    """Count what a source has, which warms it up; return the figures of the best of `ROUNDS`.

    Args:
        load: plans a read.
        rows: how many there must be.
        server: process id of the server, if there is one.
    """
    assert load().count() == rows
    read(load(), server)
    times = [read(load(), server) for _ in range(ROUNDS)]
    wall_s, spark_s, server_s = (min(of) for of in zip(*times, strict=True))
    return {
        "rows_per_s": rows / wall_s,
        "spark_us_per_row": spark_s / rows * 1e6,
        "server_us_per_row": server_s / rows * 1e6,
        "seconds": [wall for wall, _, _ in times],
    }


def fill(rows: DataFrame, url: str, table: dict[str, str], port: int) -> None:
    """Write the rows to a new table, in the order of `partition`."""
    url += "&reWriteBatchedInserts=true"
    rows.write.format("jdbc").options(url=url, batchsize="10000", **table).save()
    for statement in (
        f"CREATE INDEX by_partition ON {TABLE} (partition)",
        f"CLUSTER {TABLE} USING by_partition",
        f"VACUUM (FREEZE, ANALYZE) {TABLE}",
    ):
        subprocess.run(
            ["psql", "-q", "-h", "127.0.0.1", "-p", str(port), "-U", "postgres", "-c", statement],
            check=True,
            cwd=Path("/"),
        )


if __name__ == "__main__":
    main()
