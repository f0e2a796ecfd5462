"""Follows a bucket with Spark: rows per second, the shortest batch, a write until it is seen.

    spark_streams.py --port PORT --pid PID --rows N

1. A query with `TASKS` tasks reads all there is in batches of `BATCH_ROWS` into Spark's `noop`:
   one run to warm up, then the best of three. Rows and times are those of the query's progress,
   from the trigger to the commit of each such batch; what a whole run takes, from its start,
   stands beside it.
2. A query of one task while one document is written each `TRICKLE_S`: every trigger finds a few
   rows at once. The p50 of its batches, from trigger to commit, is the floor.
3. A document at a time, at random times, until `foreachBatch` has its row in the driver.

One JSON line.
"""

import argparse
import json
import os
import random
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamReader

import millstream
from millstream.pipelines import local_session, register
from servers import cpu_s_since, family_times

Figures = dict[str, Any]
TASKS = 4
PARTITIONS = 64
BATCH_ROWS = 160_000 + PARTITIONS
"""The shares of the partitions are rounded down."""
RUNS = 3
TRICKLE_S = 0.01
TRICKLE_BATCHES = 60
WARM_UP_BATCHES = 10
WRITES = 40
WARM_UP_WRITES = 5
SEEN_S = 60.0


def main() -> None:
    """Measure all three."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--pid", type=int, required=True, help="of the node")
    parser.add_argument("--rows", type=int, required=True)
    options = parser.parse_args()
    spark = local_session("millstream-bench")
    register(spark)
    address = f"127.0.0.1:{options.port}"
    with (
        tempfile.TemporaryDirectory() as folder,
        millstream.connect(address, bucket="default") as client,
    ):
        bench = Bench(spark, address, Path(folder), client)
        figures = {
            "catching_up": bench.catch_up(options.rows, options.pid),
            "floor": bench.shortest(),
            "seen": bench.see(),
        }
    spark.stop()
    print(json.dumps({"rows": options.rows, "tasks": TASKS, "batch_rows": BATCH_ROWS, **figures}))


class Bench:
    """The queries of one bucket."""

    def __init__(
        self, spark: SparkSession, address: str, folder: Path, client: millstream.Client
    ) -> None:
        self._spark, self._address, self._client = spark, address, client
        self._folder = folder
        self._count = 0

    def catch_up(self, rows: int, pid: int) -> Figures:
        """Read all there is, several times."""
        runs = [self._run_once(rows, pid) for _ in range(1 + RUNS)][1:]
        return {key: min(run[key] for run in runs) for key in runs[0]} | {
            "rows_per_s": max(run["rows_per_s"] for run in runs)
        }

    def _run_once(self, rows: int, pid: int) -> Figures:
        mine, server = family_times(os.getpid()), family_times(pid)
        began = time.perf_counter()
        query = (
            self._source(TASKS, "earliest", maxRowsPerBatch=BATCH_ROWS)
            .writeStream.format("noop")
            .option("checkpointLocation", self._checkpoint())
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        seconds = time.perf_counter() - began
        counts = [one["numInputRows"] for one in query.recentProgress]
        assert sum(counts) == rows + PARTITIONS, (
            counts
        )  # each first snapshot ends with a sweep row
        batches = [one for one in query.recentProgress if one["numInputRows"] > PARTITIONS]
        assert min(one["numInputRows"] for one in batches) >= BATCH_ROWS - PARTITIONS
        return {
            "rows_per_s": rows / sum(_seconds_of(one) for one in batches),
            "batches": len(batches),
            "run_s": seconds,
            "spark_us_per_row": cpu_s_since(mine, os.getpid()) / rows * 1e6,
            "server_us_per_row": cpu_s_since(server, pid) / rows * 1e6,
        }

    def shortest(self) -> Figures:
        """Time batches of few rows."""
        query = (
            self._source(1, "latest")
            .writeStream.format("noop")
            .option("checkpointLocation", self._checkpoint())
            .start()
        )
        batches: dict[int, Any] = {}
        number = 0
        while len(batches) < WARM_UP_BATCHES + TRICKLE_BATCHES:
            self._client.upsert(f"trickle-{number % 1000}", {"n": number})
            number += 1
            time.sleep(TRICKLE_S)
            if number % 10 == 0:
                found = _progress(query)
                batches.update({one["batchId"]: one for one in found if one["numInputRows"]})
        query.stop()
        chosen = [batches[key] for key in sorted(batches)][WARM_UP_BATCHES:]
        steps = sorted({step for one in chosen for step in one["durationMs"]})
        return {
            **_spread([_seconds_of(one) for one in chosen]),
            "rows_p50": statistics.median(one["numInputRows"] for one in chosen),
            "steps_ms": {
                step: statistics.median(one["durationMs"].get(step, 0) for one in chosen)
                for step in steps
            },
        }

    def see(self) -> Figures:
        """Time single writes until they are seen."""
        seen: dict[str, float] = {}
        is_new = threading.Condition()

        def take(batch: DataFrame, batch_id: int) -> None:
            keys = batch.select("key").toArrow().column("key").to_pylist()
            with is_new:
                seen.update(dict.fromkeys(keys, time.perf_counter()))
                is_new.notify()

        query = (
            self._source(1, "latest")
            .writeStream.foreachBatch(take)
            .option("checkpointLocation", self._checkpoint())
            .start()
        )
        while not query.recentProgress:
            time.sleep(0.05)
        pauses = random.Random(1)
        times = []
        for number in range(WARM_UP_WRITES + WRITES):
            time.sleep(pauses.uniform(0.3, 0.8))
            key, began = f"seen-{number}", time.perf_counter()
            self._client.upsert(key, {"n": number})
            with is_new:
                assert is_new.wait_for(lambda key=key: key in seen, SEEN_S), query.exception()
            times.append(seen[key] - began)
        query.stop()
        return _spread(times[WARM_UP_WRITES:])

    def _source(self, tasks: int, starting: str, **more: object) -> DataStreamReader:
        options = {"hosts": self._address, "bucket": "default", "startingOffsets": starting}
        reader = self._spark.readStream.format("millstream").options(**options)
        return reader.options(numPartitions=tasks, **more).load()

    def _checkpoint(self) -> str:
        self._count += 1
        return str(self._folder / f"checkpoint-{self._count}")


def _progress(query: StreamingQuery) -> list[Any]:
    if query.exception() is not None:
        raise RuntimeError(query.exception())
    return query.recentProgress


def _seconds_of(progress: Any) -> float:
    return progress["durationMs"]["triggerExecution"] / 1000


def _spread(seconds: list[float]) -> Figures:
    ordered = sorted(seconds)
    return {
        "p50_s": statistics.median(ordered),
        "p90_s": ordered[len(ordered) * 9 // 10],
        "min_s": ordered[0],
    }


if __name__ == "__main__":
    main()
