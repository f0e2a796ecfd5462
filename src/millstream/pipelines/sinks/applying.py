"""`apply_changes`: a micro-batch of the change stream into a store, rollbacks repaired.

    target = ParquetTarget("/data/flights")
    source = {"hosts": "127.0.0.1:11210", "bucket": "flights"}
    changes = spark.readStream.format("millstream").options(**source, rollback="rows").load()
    changes.writeStream.foreachBatch(
        lambda batch, batch_id: apply_changes(batch, batch_id, target, source)
    ).option("checkpointLocation", "/data/checkpoints/flights").start()

Invariants:
1. The batch is read once. What it did is counted from the rows that were read, so that nobody has
   to read it again to count.
2. A batch that fails can be given again: what it did so far does no harm. It is, for
   `reconnectTimeout`, while a node of the target is away.

A batch is applied in the driver; `maxRowsPerBatch` bounds its memory.

Elsewhere: the rules (`sinks.repairing`), stores (`sinks.bucket_target` and its neighbours).
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
from pyspark.sql import DataFrame

from millstream.pipelines.change_stream.options import parse_options
from millstream.pipelines.change_stream.patience import again
from millstream.pipelines.sinks.change_rows import check_columns, rows_from
from millstream.pipelines.sinks.origin import BucketOrigin
from millstream.pipelines.sinks.repairing import Applied, KeyedTarget, RepairingSink

__all__ = ["apply_changes", "apply_table"]


def apply_changes(
    batch: DataFrame, batch_id: int, target: KeyedTarget, source: Mapping[str, str]
) -> Applied:
    """Apply a micro-batch of `format("millstream")` with option `rollback=rows`.

    Args:
        batch: with the columns op, partition, branch, seqno, key and rev at least.
        batch_id: as Spark gives it.
        target: where the rows go.
        source: the options that the stream was read with.

    Raises:
        UsageError: `bad_schema`, `other_checkpoint`; `bad_option`, `unknown_option`.
        UnavailableError, RoutingError: target or source cannot be reached for longer than
            the source's option `reconnectTimeout`. The query ends; Spark gives the batch again
            when it is started again.
        AccessError: target or source is gone, or its password was changed.
    """
    columns = check_columns(batch.columns)
    return apply_table(batch.select(*columns).toArrow(), batch_id, target, source)


def apply_table(
    table: pa.Table, batch_id: int, target: KeyedTarget, source: Mapping[str, str]
) -> Applied:
    """Apply the rows of a micro-batch; see `apply_changes`."""
    options = parse_options(source)
    origin = BucketOrigin(options)
    try:
        sink = RepairingSink(target, origin)
        return again(lambda: sink.apply(rows_from(table), batch_id), options.reconnect_s)
    finally:
        origin.close()
