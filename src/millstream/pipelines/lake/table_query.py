"""The streaming query that keeps a table and its log equal to a bucket.

Invariants:
1. A query that is asked to stop ends when the batch in work is applied, and applies no other: no
   batch is cut off half way unless it takes longer than `STOP_WAIT_S`.
2. What made a batch fail is what the caller is told, not Spark's wrapping of it.

Elsewhere: table and log (`following`), the rules of rollbacks (`sinks.repairing`).
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from millstream.errors import MillstreamError, UnavailableError
from millstream.pipelines.classic import require_classic
from millstream.pipelines.lake.following import FollowedTable
from millstream.pipelines.sinks.applying import apply_changes
from millstream.pipelines.source import register
from millstream.pipelines.spark_version import PYSPARK_MIN

__all__ = ["PYSPARK_MIN", "ROWS_PER_BATCH", "TableQuery"]

ROWS_PER_BATCH: Final = 100_000
"""Changes wanted in one batch, which the driver applies."""
WAKE_S: Final = 0.5
STOP_WAIT_S: Final = 60.0
"""How long a stop waits for the batch in work before it cuts it off; the next run repeats it."""


class TableQuery:
    """Keeps DIR/table and DIR/log; runs once.

    Args:
        source: options of `format("millstream")`: hosts, bucket, user, passwordFile, tlsCa.
        path: DIR; Spark's checkpoint is DIR/checkpoint.
        rows_per_batch: changes wanted in one batch.
        on_progress: called now and then with what Spark says of the query, None before the
            first batch.
    """

    def __init__(
        self,
        source: Mapping[str, str],
        path: Path,
        *,
        rows_per_batch: int = ROWS_PER_BATCH,
        on_progress: Callable[[Mapping[str, Any] | None], None],
    ) -> None:
        self._source = {
            **source, "rollback": "rows", "meta": "true", "maxRowsPerBatch": str(rows_per_batch),
        }  # fmt: skip
        self._path = path
        self._on_progress = on_progress
        self._failure: MillstreamError | None = None
        self._in_batch = threading.Lock()
        self._is_over = False
        self.is_stopping = False

    def run(self, spark: SparkSession, *, once: bool = False) -> None:
        """Follow until `is_stopping` is set; with `once`, until the present end of the stream.

        Raises:
            MillstreamError: a batch failed; the next run begins with it again.
            UnavailableError: `query_failed`.
            UsageError: `needs_classic_session`.
        """
        require_classic(spark, "the pipeline lake")
        self._path.mkdir(parents=True, exist_ok=True)
        table = FollowedTable(self._path)
        format_name = f"millstream-{secrets.token_hex(8)}"
        register(spark, format_name)

        def take(batch: DataFrame, batch_id: int) -> None:
            with self._in_batch:
                if self._is_over:
                    raise UnavailableError("the query is being stopped", code="query_failed")
                try:
                    apply_changes(batch, batch_id, table, self._source)
                except MillstreamError as error:
                    self._failure = error
                    raise

        changes = spark.readStream.format(format_name).options(**self._source).load()
        writer = changes.writeStream.foreachBatch(take)
        writer = writer.option("checkpointLocation", str(self._path / "checkpoint"))
        query = (writer.trigger(availableNow=True) if once else writer).start()
        try:
            while not query.awaitTermination(WAKE_S):  # type: ignore[arg-type]  # takes floats
                self._on_progress(query.lastProgress)
                if self.is_stopping:
                    self._let_the_batch_end()
                    return
            self._on_progress(query.lastProgress)
        except StreamingQueryException as error:
            raise self._failure or UnavailableError(
                f"the streaming query failed: {str(error).strip()}", code="query_failed"
            ) from error
        finally:
            query.stop()

    def _let_the_batch_end(self) -> None:
        """Wait for the batch in work; those after it are refused, and begin the next run."""
        is_held = self._in_batch.acquire(timeout=STOP_WAIT_S)
        self._is_over = True
        if is_held:
            self._in_batch.release()
