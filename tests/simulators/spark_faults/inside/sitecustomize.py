"""Python loads this by itself into the processes of a Spark under test: they fail when told to.

The folder `MILLSTREAM_SPARK_FAULTS` holds what is to fail, see `spark_faults.points`. Points:

    plan, read, row          the source: planning, a task that begins, one half through its rows
    write                    a sink's task in the middle of its rows, or an index's staged file
    commit-before, -inside, -after       a sink's commit, an index's publication
"""

import os
from pathlib import Path

from pyspark import TaskContext

from millstream.pipelines.index.shard import IndexShard
from millstream.pipelines.sinks import parquet_target
from millstream.pipelines.sinks.bucket_target import BucketTarget
from millstream.pipelines.sinks.parquet_target import ParquetTarget
from millstream.pipelines.sinks.repairing import RepairingSink
from millstream.pipelines.sinks.transaction import TransactionalSink
from millstream.pipelines.sinks.transactional import TransactionalStreamWriter
from millstream.pipelines.sinks.writers import UpsertStreamWriter
from millstream.pipelines.source import MillstreamStreamReader
from millstream.views.aio.indexing.index_mapping import IndexMapper
from simulators.spark_faults.points import Points

PLANT = os.environ.get("MILLSTREAM_SPARK_PLANT", "")
POINTS = Points(Path(os.environ["MILLSTREAM_SPARK_FAULTS"]))


def around(owner, method, *, before="", after=""):
    """Have calls pass a point before or after what they do."""
    whole = getattr(owner, method)

    def call(*args, **kwargs):
        if before:
            POINTS.hit(before)
        done = whole(*args, **kwargs)
        if after:
            POINTS.hit(after)
        return done

    setattr(owner, method, call)


def attempt():
    """Tell of an attempt of a task; return the work of which it is one."""
    context = TaskContext.get()
    who = "" if context is None else f"{context.stageId()}.{context.partitionId()}"
    POINTS.tell("attempt", who=who, number=0 if context is None else context.attemptNumber())
    return who


def halting(batches, point, who):
    """Yield batches, the first in halves with a point between them."""
    batches = iter(batches)
    for batch in batches:
        half = batch.num_rows // 2
        if half:
            yield batch.slice(0, half)
            POINTS.hit(point, who)
            yield batch.slice(half)
            break
        yield batch
    yield from batches


whole_map = IndexMapper.map
whole_read, whole_partitions = MillstreamStreamReader.read, MillstreamStreamReader.partitions


def read(self, partition):
    who = attempt()
    POINTS.hit("read", who)
    yield from halting(whole_read(self, partition), "row", who)


def partitions(self, start, end):
    told = {"bucket": end["bucket"], "start": start, "end": end}
    if PLANT == "skips" and {"name": "planned", **told} in POINTS.events("planned"):
        return []
    POINTS.tell("planned", **told)
    return whole_partitions(self, start, end)


def map_changes(self, changes):
    POINTS.hit("row", attempt())
    return whole_map(self, changes)


def write_through(writer):
    whole = writer.write

    def write(self, iterator):
        return whole(self, halting(iterator, "write", attempt()))

    writer.write = write
    around(writer, "commit", before="commit-before", after="commit-after")


MillstreamStreamReader.read, MillstreamStreamReader.partitions = read, partitions
around(MillstreamStreamReader, "latestOffset", before="plan")
write_through(UpsertStreamWriter)
write_through(TransactionalStreamWriter)
around(TransactionalSink, "_settle", before="commit-inside")
for target in (BucketTarget, ParquetTarget):
    around(target, "commit", before="commit-before", after="commit-after")
around(parquet_target, "write_atomically", before="commit-inside")
around(BucketTarget, "_wait", before="commit-inside")
IndexMapper.map = map_changes
around(IndexShard, "stage", after="write")
for method in ("load", "publish"):
    around(IndexShard, method, before="commit-before", after="commit-after")

# Mistakes that schedules must find; see `schedule.PLANTS`.
if PLANT == "forgets":
    RepairingSink._roll_back = lambda *_: None
elif PLANT == "trusts":
    TransactionalSink._is_settled = lambda _, header, __, batch_id: header.batch == batch_id
elif PLANT == "stays":
    IndexShard.judge = lambda self, _: self.state()
