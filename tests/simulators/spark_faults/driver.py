"""The driver of the queries under test, in a process that may be killed at any moment.

    python -m simulators.spark_faults.driver FOLDER [SETTING=VALUE ...]

Each line on stdin is a JSON object with the member `do`: `start` a pipeline, have it `settle`,
`stop` it, or `end` all. Each is answered by one line: `{"ok": true}` or `{"error": text}`.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

from millstream.pipelines import BucketTarget, ParquetTarget, apply_changes, local_session
from millstream.pipelines.change_stream.options import parse_options
from millstream.pipelines.index.on_spark import IndexPipeline
from millstream.pipelines.index.setup import find_specs
from simulators.spark_faults.points import Points

STOP_S = 60.0


class Query:
    """A streaming query into sinks; `said` tells which."""

    def __init__(self, spark: Any, points: Points, said: dict[str, Any]) -> None:
        self.points, self.said, self.target = points, said, None
        frame = spark.readStream.format("millstream").options(**said["source"]).load()
        if said["kind"] == "apply":
            self.target = BucketTarget(said["target"], name="copy")
            writer = frame.writeStream.foreachBatch(self.apply)
        else:
            changes = frame.where("op in ('put', 'delete', 'expire')")  # no marks
            rows = changes.select("op", "key", "value", "flags", "datatype", "expiry")
            writer = rows.writeStream.format("millstream").options(**said["target"])
        self.query = writer.option("checkpointLocation", said["checkpoint"]).start()

    def apply(self, batch: Any, batch_id: int) -> None:
        self.points.tell("batch", id=batch_id)
        assert self.target is not None
        for target in (ParquetTarget(self.said["table"]), self.target):
            did = apply_changes(batch, batch_id, target, self.said["source"])
            self.points.tell("applied", **did._asdict())

    def settle(self) -> None:
        """Wait until all that is there has been written; raise what ended the query."""
        if self.query.exception() is not None:
            raise self.query.exception()
        self.query.processAllAvailable()

    def stop(self) -> None:
        self.query.stop()
        if self.target is not None:
            self.target.close()


class View:
    """A pipeline that keeps an index, as `millstream pipeline run views` has it."""

    def __init__(self, spark: Any, points: Points, said: dict[str, Any]) -> None:
        self.failure: Exception | None = None
        (spec,) = find_specs(parse_options(said["source"]), [said["design"]])
        self.pipeline = IndexPipeline(
            spec, Path(said["checkpoint"]), rows_max=said["rows"],
            on_cycle=lambda report: points.tell("cycle", changes=report.changes),
        )  # fmt: skip
        self.thread = threading.Thread(target=self.run, args=(spark,), daemon=True)
        self.thread.start()

    def run(self, spark: Any) -> None:
        try:
            self.pipeline.run(spark)
        except Exception as error:  # noqa: BLE001 - told to who asks
            self.failure = error

    def settle(self) -> None:
        """Raise what ended it; whether it has all, a view is asked."""
        if not self.thread.is_alive():
            raise self.failure or RuntimeError("the pipeline ended by itself")

    def stop(self) -> None:
        self.pipeline.is_stopping = True
        self.thread.join(STOP_S)
        assert not self.thread.is_alive(), "the pipeline does not stop"


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever Java and workers print
    folder = Path(sys.argv[1])
    settings = dict(word.split("=", 1) for word in sys.argv[2:])
    spark = local_session("faults", cores=2, work_dir=folder / "work", settings=settings)
    points = Points(Path(os.environ["MILLSTREAM_SPARK_FAULTS"]))
    running: dict[str, Query | View] = {}
    answers.write('{"ok": true}\n')
    answers.flush()
    for line in sys.stdin:
        said = json.loads(line)
        try:
            if said["do"] == "start":
                kind = View if said["kind"] == "view" else Query
                running[said["kind"]] = kind(spark, points, said)
            elif said["do"] == "settle":
                running[said["kind"]].settle()
            elif said["kind"] in running:
                running.pop(said["kind"]).stop()
            answer: dict[str, object] = {"ok": True}
        except Exception as error:  # noqa: BLE001 - told to who asks
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
