"""The streaming query that keeps a table and its log equal to a bucket.

Invariants:
1. One process writes DIR; another one is refused.
2. A checkpoint that has begun no batch goes with a table that has none: one that was filled before
   may have versions of another bucket, or keys whose deletions are forgotten meanwhile.

Elsewhere: how it ends (`batch_edge`), table and log (`following`), the rules of rollbacks
(`sinks.repairing`).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from millstream.errors import UsageError
from millstream.pipelines.change_stream.batch_edge import BatchGate
from millstream.pipelines.classic import require_classic
from millstream.pipelines.lake.directory import only_writer
from millstream.pipelines.lake.following import FollowedTable, TableForm
from millstream.pipelines.sinks.applying import apply_changes
from millstream.pipelines.sinks.repairing import WHOLE
from millstream.pipelines.source import register
from millstream.pipelines.spark_version import PYSPARK_MIN

__all__ = ["PYSPARK_MIN", "ROWS_PER_BATCH", "TableQuery"]

ROWS_PER_BATCH: Final = 100_000
BATCH_BYTES_MAX: Final = 32 * 1024 * 1024
"""A batch is applied in the driver. One larger document is a batch of its own."""
"""Changes wanted in one batch, which the driver applies."""


class TableQuery:
    """Keeps DIR/table and DIR/log; runs once.

    Args:
        source: options of `format("millstream")`: hosts, bucket, user, passwordFile, tlsCa.
        path: DIR; Spark's checkpoint is DIR/checkpoint.
        rows_per_batch: changes wanted in one batch.
        form: of the table.
        on_progress: called now and then with what Spark says of the query, None before the
            first batch.
    """

    def __init__(
        self,
        source: Mapping[str, str],
        path: Path,
        *,
        rows_per_batch: int = ROWS_PER_BATCH,
        form: TableForm = "parquet",
        on_progress: Callable[[Mapping[str, Any] | None], None],
    ) -> None:
        self._source = {
            "maxBytesPerBatch": str(BATCH_BYTES_MAX),
            **source,
            "rollback": "rows",
            "meta": "true",
            "maxRowsPerBatch": str(rows_per_batch),
        }
        self._path = path
        self._form = form
        self._on_progress = on_progress
        self.is_stopping = False

    def stop(self) -> None:
        """Ask it to end when the batch in work is applied."""
        self.is_stopping = True

    def run(self, spark: SparkSession, *, once: bool = False) -> None:
        """Follow until a stop is asked for; with `once`, until the present end of the stream.

        Raises:
            ConditionError: `already_running`.
            MillstreamError: a batch failed; the next run begins with it again.
            UnavailableError: `query_failed`.
            UsageError: `needs_classic_session`; `other_format`, `missing_package`;
                `other_checkpoint`: the table is filled, and its checkpoint is gone.
        """
        require_classic(spark, "the pipeline lake")
        with only_writer(self._path):
            table = FollowedTable(self._path, self._form)
            self._check_begun(table)
            format_name = f"millstream-{secrets.token_hex(8)}"
            register(spark, format_name)

            def apply(batch: DataFrame, batch_id: int) -> None:
                apply_changes(batch, batch_id, table, self._source)

            gate = BatchGate(apply, lambda: self.is_stopping)
            changes = spark.readStream.format(format_name).options(**self._source).load()
            writer = changes.writeStream.foreachBatch(gate.take)
            writer = writer.option("checkpointLocation", str(self._path / "checkpoint"))
            query = (writer.trigger(availableNow=True) if once else writer).start()
            gate.wait(query, lambda query: self._on_progress(query.lastProgress))

    def _check_begun(self, table: FollowedTable) -> None:
        """Invariant 2."""
        if any((self._path / "checkpoint" / "offsets").glob("[0-9]*")):
            return
        table.begin([WHOLE], 0)
        if table.table.states:
            raise UsageError(
                f"{self._path} has a table, but the checkpoint that belongs to it is gone: "
                "a new one would mix what it has with what the bucket has now. Bring the "
                "checkpoint back, or begin with another directory",
                code="other_checkpoint",
            )
