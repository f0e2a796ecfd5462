"""What the tests of clusters give to spark-submit: copies a bucket, follows it into two others.

    cluster_job.py SOURCE_ADDRESS TARGETS_ADDRESS DIRECTORY [HELD ...]

Once in each part that is named (`copy`, `follow`) a task stops between two pieces of rows, writes
the id of its process to DIRECTORY/PART, and waits to be killed. Writes DIRECTORY/found.json.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

import millstream
from millstream.pipelines import BucketTarget, apply_changes, register

WAIT_S = 120


class Job:
    def __init__(self, source: str, targets: str, directory: str, *held: str) -> None:
        self.spark: Any = SparkSession.builder.getOrCreate()
        self.bucket = {"hosts": source, "bucket": "source"}
        self.source = self.bucket | {"numPartitions": "2"}
        self.targets, self.directory, self.held = targets, Path(directory), held

    def run(self) -> dict[str, Any]:
        register(self.spark)
        self.copy()
        batches = self.follow()
        self.upsert()
        meta = self.spark.read.format("millstream.meta").options(**self.bucket).load()
        places = self.spark.sparkContext.parallelize([0, 1], 2).map(where).collect()
        return {"partitions": meta.count(), "batches": batches, "executors": places}

    def target(self, bucket: str) -> dict[str, str]:
        return {"hosts": self.targets, "bucket": bucket}

    def copy(self) -> None:
        """A batch into another bucket."""
        changes = self.spark.read.format("millstream").options(**self.source).load()
        rows = self.stopping("copy", changes).where("op = 'put'")
        # A task that runs again finds its own documents.
        rows.write.format("millstream").options(**self.target("copy")).mode("append").save()

    def follow(self) -> int:
        """The stream into a second one, with `apply_changes`."""
        source = self.source | {"rollback": "rows", "maxRowsPerBatch": "1500"}
        bucket = BucketTarget(self.target("applied"), "copy")

        def take(rows: Any, batch_id: int) -> None:
            rows = self.stopping("follow", rows) if batch_id == 1 else rows
            apply_changes(rows, batch_id, bucket, source)

        frame = self.spark.readStream.format("millstream").options(**source).load()
        return self._ended(frame.writeStream.foreachBatch(take), "follow")

    def upsert(self) -> None:
        """The stream through the streaming writer."""
        frame = self.spark.readStream.format("millstream").options(**self.source).load()
        rows = frame.where("op = 'put'").select("key", "value")
        writer = rows.writeStream.format("millstream").options(**self.target("upserted"))
        self._ended(writer, "upsert")

    def stopping(self, part: str, rows: Any) -> Any:
        return (
            rows.mapInArrow(stopper(self.directory / part), rows.schema)
            if part in self.held
            else rows
        )

    def _ended(self, writer: Any, name: str) -> int:
        checkpoint = str(self.directory / f"checkpoint-{name}")
        writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
        query = writer.start()
        assert query.awaitTermination(WAIT_S), "the query does not end"
        return len(query.recentProgress)


def stopper(mark: Path) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return what passes rows on, but stops in the first attempt of one task."""

    def stop(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        for batch in batches:
            yield batch
            if context.partitionId() == 0 and context.attemptNumber() == 0:
                mark.with_suffix(".new").write_text(str(os.getpid()))
                mark.with_suffix(".new").rename(mark)
                time.sleep(WAIT_S)  # not waited out: whoever sees the mark kills this process
                raise AssertionError("nobody killed this task")

    return stop


def where(_: int) -> str:
    """Return where an executor has the package."""
    return str(Path(millstream.__file__).absolute())


def main(*words: str) -> None:
    job = Job(*words)
    found = job.run()
    job.spark.stop()
    (job.directory / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
