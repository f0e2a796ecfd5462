"""The floors of Spark: batch reads, streams, sinks, views on Spark. Limit and peers: the same rows
as Parquet, and PostgreSQL by Spark's JDBC source.

How it measures:
1. Node, peer and Spark share all processors, as on a machine where one looks at one's data.
2. Wall time, warm, best of a few; beside it the processor time of Spark and of the server, which
   other programs disturb less.
3. Every job is a process with a session of its own.

Elsewhere: the jobs (spark_rows.py, spark_streams.py, spark_sinks.py, spark_sql.py,
spark_views.py), the servers (servers.py), what is printed (report_spark.py).
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import streams
from report import Verdict
from servers import HERE, Node, Postgres, run_program

Figures = dict[str, Any]
PARTITIONS = 64
CASES = ("spark", "spark_streams", "spark_sinks", "spark_sql", "spark_views")
JOB_S = 600.0
"""Longest that a job may take; several times what it takes where nothing else runs."""
SINK_ROWS = 250_000
SQL_BATCHES = {1_000: 10, 10_000: 10, 100_000: 3}
"""Rows of a batch, of 1,000 bytes, and how many of these."""
SINK_BUCKETS = ("upserts", "transactions", "copy")
ROWS_PER_S_MIN = 400_000
STREAM_ROWS_PER_S_MIN = 200_000
BATCH_S_MAX = 0.25
BUILD_PER_S_MIN = 60_000
VISIBLE_S_MAX = 1.0


def measure_rows(directory: Path, rows: int) -> Figures:
    """Read a whole bucket into Spark, and the same rows from Parquet and PostgreSQL."""
    say(f"Spark reads {rows:,} rows")
    with _node(directory) as node:
        streams.fill(node, rows)
        if not Postgres.is_installed():
            return _job("rows", node, "--rows", rows)
        with Postgres(directory) as peer:
            os.environ["PGPASSWORD"] = peer.password
            where = ["--postgres", peer.port, "--postgres-pid", peer.pids()[0]]
            return _job("rows", node, "--rows", rows, *where)


def measure_streams(directory: Path, rows: int) -> Figures:
    """Follow a bucket: rows/s, the shortest batch, the time from a write to its row."""
    say(f"Spark streams {rows:,} rows")
    with _node(directory) as node:
        streams.fill(node, rows)
        return _job("streams", node, "--rows", rows)


def measure_sinks(directory: Path) -> Figures:
    """Stream a bucket into every sink."""
    say(f"Spark writes {SINK_ROWS:,} rows into each sink")
    more = [word for name in SINK_BUCKETS for word in ("--bucket", f"{name}:{PARTITIONS}")]
    with _node(directory, *more) as node:
        streams.fill(node, SINK_ROWS)
        return _job("sinks", node, "--rows", SINK_ROWS)


def measure_sql(directory: Path) -> Figures:
    """Stream buckets into PostgreSQL, by `SqlTarget` and by Spark's JDBC."""
    say("Spark writes into PostgreSQL")
    more = [word for n in SQL_BATCHES for word in ("--bucket", f"batch{n}:{PARTITIONS}")]
    with _node(directory, *more) as node, Postgres(directory) as peer:
        for rows, count in SQL_BATCHES.items():
            run_program("loadgen", "-o", "fill", "-e", "-c", 10, "-P", 100, "-k", rows * count,
                        "-v", 1_000, "-b", f"batch{rows}", "-p", PARTITIONS,
                        "127.0.0.1", node.kv_port)  # fmt: skip
        node.settle()
        os.environ["PGPASSWORD"] = peer.password
        return _job("sql", node, "--postgres", peer.port)


def measure_views(directory: Path) -> Figures:
    """Have Spark build and keep a view."""
    say("Spark builds and keeps a view of the flights")
    with _node(directory) as node:
        return _job("views", node)


def verdicts(results: Figures) -> list[Verdict]:
    """Return what was measured of Spark beside every floor."""
    found: list[Verdict] = []
    if "spark" in results:
        figure = results["spark"]["node"]["rows_per_s"]
        found.append(Verdict("rows/s into Spark", figure, ROWS_PER_S_MIN))
    if "spark_streams" in results:
        figures = results["spark_streams"]
        read, batch_s = figures["catching_up"]["rows_per_s"], figures["floor"]["p50_s"]
        found.append(Verdict("rows/s streamed into Spark", read, STREAM_ROWS_PER_S_MIN))
        found.append(Verdict("seconds of a micro-batch of few rows", batch_s, BATCH_S_MAX, True))
    if "spark_views" in results:
        figures = results["spark_views"]
        built, seen_s = figures["best_documents_per_s"], figures["visible_s_p50"]
        found.append(Verdict("documents/s into a view on Spark", built, BUILD_PER_S_MIN))
        found.append(Verdict("seconds until seen in a view on Spark", seen_s, VISIBLE_S_MAX, True))
    return found


def _node(directory: Path, *more: str) -> Node:
    return Node(directory, "--bucket", f"default:{PARTITIONS}", *more, pinned=False)


def _job(name: str, node: Node, *arguments: object) -> Figures:
    """Run a Spark job beside a node; return the figures it prints last."""
    done = subprocess.run(
        [sys.executable, str(HERE / f"spark_{name}.py"), "--port", str(node.kv_port),
         "--pid", str(node.pids()[0]), *map(str, arguments)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=JOB_S,
    )  # fmt: skip
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures


def say(text: str) -> None:
    """Tell what is being measured."""
    print(f"-- {text}", file=sys.stderr, flush=True)
