"""Spark's side of transactional sinks: tasks stage rows, the driver commits them.

Invariants:
1. Names of methods and parameters are Spark's; writers hold options only (see `sinks.writers`).
2. What counts is the batch id that `commit` is given and the segments in its messages; what Spark
   tells a task of its batch and attempt only names its segment.

Elsewhere: staged rows (`sinks.staging`), the commit (`sinks.transaction`).
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from millstream.errors import MillstreamError
from millstream.pipelines.change_stream.control import open_again, open_client
from millstream.pipelines.change_stream.patience import ask_again
from millstream.pipelines.sinks.rows import RowRules
from millstream.pipelines.sinks.sink_options import SinkOptions
from millstream.pipelines.sinks.staging import Segment, stage
from millstream.pipelines.sinks.transaction import TransactionalSink, TransactionBucket

__all__ = ["StagedMessage", "TransactionalStreamWriter"]

_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"
_TOKEN_BYTES: Final = 8


@dataclass(frozen=True)
class StagedMessage(WriterCommitMessage):
    """What one attempt staged, and for which query."""

    query_id: str
    segment: Segment


class TransactionalStreamWriter(DataSourceStreamArrowWriter):
    """Writes each micro-batch whole, once.

    Args:
        options: checked; they name the sink.
        schema: of the stream.

    Raises:
        UsageError: `bad_schema`.
    """

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._options = options
        self._rules = RowRules(schema, id_field=options.id_field, with_cas=False, is_append=False)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedMessage:
        """Stage the rows of one task."""
        query_id, name = _named_by_spark()
        writes = (write for batch in iterator for write in self._rules.writes(batch))
        with open_again(self._options.connection) as client:
            return StagedMessage(query_id, stage(client, self._options.sink_id, name, writes))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Make the rows of a batch part of the bucket."""
        staged = _staged(messages)
        query_id = staged[0].query_id if staged else ""
        segments = [message.segment for message in staged]

        def commit(client: TransactionBucket) -> None:
            TransactionalSink(client, self._options.sink_id).commit(batchId, query_id, segments)

        with open_again(self._options.connection) as client:
            ask_again(client, commit)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Remove what was staged, unless it is committed."""
        segments = [message.segment for message in _staged(messages)]
        try:
            with open_client(self._options.connection) as client:
                TransactionalSink(client, self._options.sink_id).abort(segments)
        except MillstreamError as error:  # the failure that led here is the one to be told
            sys.stderr.write(f"millstream sink: what was staged expires by itself: {error}\n")


def _staged(messages: Sequence[WriterCommitMessage | None]) -> list[StagedMessage]:
    return [message for message in messages if isinstance(message, StagedMessage)]


def _named_by_spark() -> tuple[str, str]:
    """Return the id of the query and a name, never used before, for this attempt's segment."""
    context = TaskContext.get()
    token = secrets.token_hex(_TOKEN_BYTES)
    if context is None:
        return "", f"0.0.0.{token}"
    batch = context.getLocalProperty(_BATCH) or "0"
    name = f"{batch}.{context.partitionId()}.{context.attemptNumber()}.{token}"
    return context.getLocalProperty(_QUERY) or "", name
