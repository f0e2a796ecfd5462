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

A `SqlTarget` gets the rows from the tasks that read them: the driver has what they report, some
numbers for each piece and partition. Any other target gets them from the driver, which holds the
whole batch; `maxRowsPerBatch` and `maxBytesPerBatch` bound its memory.

Elsewhere: the rules (`sinks.repairing`), stores (`sinks.bucket_target` and its neighbours), tasks
that bring rows to a store (`sinks.sql_staging`).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame

from millstream.pipelines.change_stream.options import SourceOptions, parse_options
from millstream.pipelines.change_stream.patience import again
from millstream.pipelines.classic import is_connect
from millstream.pipelines.sinks.change_rows import check_columns, rows_from
from millstream.pipelines.sinks.origin import BucketOrigin
from millstream.pipelines.sinks.repairing import Applied, KeyedTarget, RepairingSink
from millstream.pipelines.sinks.sql_staging import REPORT, reported_from
from millstream.pipelines.sinks.sql_target import SqlTarget

__all__ = ["apply_changes", "apply_table", "query_id_of"]

_QUERY: Final = "sql.streaming.queryId"


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
    rows = batch.select(*check_columns(batch.columns))
    if isinstance(target, SqlTarget):
        return _apply_staged(rows, batch_id, target, parse_options(source))
    return apply_table(rows.toArrow(), batch_id, target, source, query_id_of(rows))


def apply_table(
    table: pa.Table,
    batch_id: int,
    target: KeyedTarget,
    source: Mapping[str, str],
    query_id: str = "",
) -> Applied:
    """Apply the rows of a micro-batch; see `apply_changes` and `query_id_of`."""
    options = parse_options(source)
    with closing(BucketOrigin(options)) as origin:
        sink = RepairingSink(target, origin)
        return again(
            lambda: sink.apply(rows_from(table), batch_id, query_id=query_id),
            options.reconnect_s,
            may_move=True,
        )


def _apply_staged(
    rows: DataFrame, batch_id: int, target: SqlTarget, options: SourceOptions
) -> Applied:
    """Apply a micro-batch that tasks bring to the store; see `apply_changes`.

    Args:
        rows: what the store gets, mark rows among it.
        batch_id: as Spark gives it.
        target: the store.
        options: of the source.
    """
    query_id = query_id_of(rows)

    def apply() -> Applied:
        stage = target.open_stage(batch_id, options.reconnect_s, query_id)
        reported = reported_from(rows.mapInArrow(stage.run, REPORT).toArrow())
        staged = target.staged(reported, is_unique=False)
        return sink.apply(reported.marks, batch_id, staged, query_id)

    with closing(BucketOrigin(options)) as origin:
        sink = RepairingSink(target, origin)
        try:
            return again(apply, options.reconnect_s, may_move=True)
        except BaseException:
            target.close()  # undoes what has begun, so that its lock keeps nobody out
            raise


def query_id_of(batch: DataFrame) -> str:
    """Return the id of the query that a batch is of, which its checkpoint keeps; else nothing.

    A server of Spark Connect does not tell it.
    """
    if is_connect(batch.sparkSession):
        return ""
    return batch.sparkSession.sparkContext.getLocalProperty(_QUERY) or ""
