"""Spark's side of the sinks of `format("millstream")`: batch jobs and keyed streams.

Invariants:
1. Names of methods and parameters are Spark's: some are passed by keyword, others by position.
2. Writers hold options only, no sockets: they are pickled to the executors. A stream's writer is
   built again for each commit; a batch's is the same object, pickled.
3. `truncate` deletes last: everything new is persisted before anything old goes, and what others
   wrote or changed since the job began stays.

Elsewhere: options (`sinks.sink_options`), rules of rows (`sinks.rows`), writing (`sinks.writing`),
micro-batches that are written whole or not (`sinks.transactional`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from millstream.client.writes import Write
from millstream.errors import UnavailableError
from millstream.model.partitions import key_from_text
from millstream.pipelines.change_stream.batch_plan import plan_batch
from millstream.pipelines.change_stream.control import open_again
from millstream.pipelines.change_stream.patience import ask_again
from millstream.pipelines.change_stream.reading import pinned_batches
from millstream.pipelines.change_stream.schema import RowForm
from millstream.pipelines.sinks.rows import RowRules
from millstream.pipelines.sinks.sink_options import SinkOptions
from millstream.pipelines.sinks.writing import SinkBucket, Written, write_all

__all__ = ["BatchWriter", "TaskMessage", "UpsertStreamWriter"]

_KEYS: Final = pa.schema(
    [("op", pa.string()), ("partition", pa.int32()), ("seqno", pa.int64()), ("key", pa.string()),
     ("cas", pa.int64())]
)  # fmt: skip
_UINT64_MASK: Final = (1 << 64) - 1


@dataclass(frozen=True)
class TaskMessage(WriterCommitMessage):
    """What one task wrote."""

    written: Written


class BatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame: inserts in mode append, upserts in mode overwrite.

    Args:
        options: checked.
        schema: of the DataFrame.

    Raises:
        UsageError: `bad_schema`.
    """

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._options = options
        self._rules = _rules_of(options, schema)
        with open_again(options.connection) as client:  # a password that is wrong is told here
            self._began = _places(client) if options.is_truncating else {}

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:
        """Write the rows of one task."""
        return TaskMessage(_write(self._options, self._rules, iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete what was there before, if asked to."""
        if self._options.is_truncating:
            _delete_older(self._options, self._began)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Report what stays written of a failed job."""
        _tell_aborted(self._options, messages)


class UpsertStreamWriter(DataSourceStreamArrowWriter):
    """Upserts the rows of a micro-batch as they come; a batch that is repeated changes nothing.

    Args:
        options: checked.
        schema: of the stream.

    Raises:
        UsageError: `bad_schema`.
    """

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._options = options
        self._rules = _rules_of(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:
        """Write the rows of one task; they are persisted when it returns."""
        return TaskMessage(_write(self._options, self._rules, iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: the tasks have done all."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Report what stays written until the batch is repeated."""
        _tell_aborted(self._options, messages)


def _rules_of(options: SinkOptions, schema: StructType) -> RowRules:
    return RowRules(
        schema,
        id_field=options.id_field,
        version_field=options.version_field,
        with_cas=options.with_cas,
        is_append=options.is_append,
    )


def _write(options: SinkOptions, rules: RowRules, batches: Iterator[pa.RecordBatch]) -> Written:
    writes = (write for batch in batches for write in rules.writes(batch))
    with open_again(options.connection) as client:
        return write_all(
            client,
            writes,
            durability=options.durability,
            skips_conflicts=options.skips_conflicts,
            version_field=options.version_field,
        )


def _tell_aborted(options: SinkOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    done = sum(
        (message.written for message in messages if isinstance(message, TaskMessage)), Written()
    )
    sys.stderr.write(
        f"millstream sink: a job that writes bucket {options.connection.bucket!r} failed. Tasks "
        f"that ended before it did have {done}; that stays\n"
    )


Places = dict[int, tuple[int, int]]
"""History and high seqno of each partition."""


def _places(client: SinkBucket) -> Places:
    found = {place.partition_id: (place.uuid, place.high_seqno) for place in client.positions()}
    for partition_id in range(client.partition_count):
        if partition_id not in found:
            raise UnavailableError(
                f"no node serves partition {partition_id} of bucket {client.bucket!r} at "
                "present: what is in it cannot be replaced; run the job again later",
                code="not_my_partition",
            )
    return found


def _delete_older(options: SinkOptions, began: Places) -> Written:
    """Delete the documents that no task wrote since the job began."""
    with open_again(options.connection) as client:
        for partition_id, (uuid, _) in ask_again(client, _places).items():
            if uuid != began[partition_id][0]:
                raise UnavailableError(
                    f"partition {partition_id} of bucket {options.connection.bucket!r} began a "
                    "new history while the job ran: nothing was deleted, but the new rows may "
                    "lack some; run the job again",
                    code="history_lost",
                )
        return write_all(client, _deletions(options, began), skips_conflicts=True)


def _deletions(options: SinkOptions, began: Places) -> Iterator[Write]:
    form = RowForm(_KEYS)
    for batch in pinned_batches(options.connection, form, plan_batch(options.connection)):
        for row in batch.to_pylist():
            if row["op"] == "put" and row["seqno"] <= began[row["partition"]][1]:
                key = key_from_text(row["key"])
                if not key.startswith(b"_"):
                    yield Write(key, None, cas=row["cas"] & _UINT64_MASK)
