"""A client of Spark Connect, as `test_connect.py` drives it.

    connect_job.py sc://HOST:PORT SOURCE_ADDRESS TARGETS_ADDRESS DIRECTORY

Reads the name of a step per line, writes what it found as a JSON object per line.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from millstream.errors import MillstreamError
from millstream.pipelines import (
    BucketTarget,
    ParquetTarget,
    apply_changes,
    local_session,
    register,
)
from millstream.pipelines.lake.tasks import run_tasks

WAIT_S = 120
DOCUMENTS = "op = 'put' and not startswith(key, '_')"


class Steps:
    def __init__(self, server: str, source: str, targets: str, directory: str) -> None:
        self.spark: Any = SparkSession.builder.remote(server).getOrCreate()
        self.source, self.targets, self.directory = source, targets, Path(directory)

    def options(self, bucket: str, **more: str) -> dict[str, str]:
        hosts = self.source if bucket == "source" else self.targets
        return {"hosts": hosts, "bucket": bucket, **more}

    def batch(self, bucket: str, kind: str = "millstream", **more: str) -> Any:
        return self.spark.read.format(kind).options(**self.options(bucket, **more)).load()

    def copy(self) -> dict[str, Any]:
        """Read a batch, write it to another bucket, read partitions and a view."""
        register(self.spark)
        changes = self.batch("source").where(DOCUMENTS)
        changes.write.format("millstream").options(**self.options("copy")).mode("append").save()
        meta = self.batch("copy", "millstream.meta").agg({"high_seqno": "sum"}).collect()
        view = {"ddoc": "d", "view": "by_parity", "group_level": "1"}
        groups = self.batch("source", "millstream.view", **view).collect()
        return {"seqnos": meta[0][0], "view": {row.key: int(row.value) for row in groups}}

    def follow(self) -> dict[str, Any]:
        """Bring a second bucket and a table up to date with the source."""
        source = self.options("source", rollback="rows", maxRowsPerBatch="1500")
        bucket = BucketTarget(self.options("applied"), "copy")
        table = ParquetTarget(self.directory / "table")

        def take(rows: Any, batch_id: int) -> None:
            apply_changes(rows, batch_id, bucket, source)
            apply_changes(rows, batch_id, table, source)

        frame = self.spark.readStream.format("millstream").options(**source).load()
        self._run(frame.writeStream.foreachBatch(take), "follow")
        bucket.close()
        return {"rows": sorted(row.key for row in table.read(self.spark).collect())}

    def upsert(self) -> dict[str, Any]:
        """Follow into a third bucket through the streaming writer."""
        source = self.options("source", maxRowsPerBatch="1500", durableOnly="false")
        frame = self.spark.readStream.format("millstream").options(**source).load()
        rows = frame.where(DOCUMENTS).select("key", "value")
        writer = rows.writeStream.format("millstream").options(**self.options("upserted"))
        return {"batches": self._run(writer, "upsert")}

    def refuse(self) -> dict[str, Any]:
        """Try what cannot work here."""
        said = []
        for work in (
            lambda: run_tasks(self.spark, print, [(1, 1)]),
            lambda: ParquetTarget(self.directory / "elsewhere").read(self.spark),
            lambda: local_session(settings={"spark.remote": "sc://localhost"}),
        ):
            try:
                work()
            except MillstreamError as error:
                said.append(error.code)
        return {"codes": said}

    def _run(self, writer: Any, name: str) -> int:
        checkpoint = str(self.directory / f"checkpoint-{name}")
        writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
        query = writer.start()
        try:
            assert query.awaitTermination(WAIT_S), "the query does not end"
            return len(query.recentProgress)
        finally:
            query.stop()


def main(*words: str) -> None:
    steps = Steps(*words)
    for line in sys.stdin:
        sys.stdout.write(json.dumps(getattr(steps, line.strip())()) + "\n")
        sys.stdout.flush()
    steps.spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
