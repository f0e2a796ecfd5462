"""Spark's part in a transactional stream, in processes that die by kill -9 at a chosen request.

    python sink_driver.py OPTIONS(JSON) COMMIT-LOG BATCHES

Each line on stdin, `ATTEMPT KILL_AT before|after`, forks a process that stages two tasks a batch,
commits and notes the batch in the commit log, from where the log ends; it kills itself before or
after its request number KILL_AT (0: never). The answer is a line with its exit status. Each
attempt has documents of its own.
"""

import itertools
import json
import os
import signal
import sys
from pathlib import Path

import pyarrow as pa
from pyspark.sql.types import StringType, StructType

from millstream.client.connection import Connection
from millstream.pipelines.sinks import transactional
from millstream.pipelines.source import MillstreamDataSource

TASKS = 2
ROWS = 30
SCHEMA = StructType().add("key", StringType()).add("value", StringType())


class Context:
    """What Spark tells a task."""

    def getLocalProperty(self, name: str) -> str:
        return "7" if name == "streaming.sql.batchId" else "query"

    def partitionId(self) -> int:
        return 0

    def attemptNumber(self) -> int:
        return 0


def rows(batch: int, task: int, attempt: int) -> pa.RecordBatch:
    keys = [f"k{task}.{n}" for n in range(ROWS)] + [f"x{batch}.{attempt}.{task}"]
    values = [f"[{batch}, {attempt}]"] * len(keys)
    return pa.RecordBatch.from_pydict({"key": keys, "value": values})


def run(options: dict[str, str], log: Path, batches: int, attempt: int) -> None:
    source = MillstreamDataSource(options)
    for batch in range(int(log.read_text()), batches):
        writer = source.streamWriter(SCHEMA, False)
        messages = [writer.write(iter([rows(batch, task, attempt)])) for task in range(TASKS)]
        source.streamWriter(SCHEMA, False).commit(messages, batch)
        log.write_text(str(batch + 1))


def kill_at(number: int, *, is_after: bool) -> None:
    """Have this process die at its request of this number."""
    send, sent = Connection.send, itertools.count(1)

    def counted(connection: Connection, data: bytes) -> None:
        is_last = next(sent) == number
        if is_last and not is_after:
            os.kill(os.getpid(), signal.SIGKILL)
        send(connection, data)
        if is_last:
            os.kill(os.getpid(), signal.SIGKILL)

    Connection.send = counted  # type: ignore[method-assign]


def main() -> None:
    options, log, batches = json.loads(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    transactional.TaskContext.get = Context  # type: ignore[assignment,method-assign]
    for line in sys.stdin:
        attempt, number, when = line.split()
        child = os.fork()
        if not child:
            kill_at(int(number), is_after=when == "after")
            run(options, log, batches, int(attempt))
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        sys.stdout.write(f"{status}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
