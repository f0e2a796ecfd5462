"""Ends a streaming query at the edge of a batch; shared by all `foreachBatch` pipelines.

    gate = BatchGate(apply, lambda: self.is_stopping)
    query = changes.writeStream.foreachBatch(gate.take).start()
    gate.wait(query)

Invariants:
1. After a stop request the current batch is finished and no other begins. A batch is interrupted
   only if it takes longer than `STOP_WAIT_S`.
2. The caller gets the error that made a batch fail, not Spark's wrapping of it, also if a stop was
   waiting for that batch.

Elsewhere: what is done with a batch (`lake.table_query`, `index.on_spark`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from millstream.errors import MillstreamError, UnavailableError
from millstream.pipelines.spark_version import PYSPARK_MIN

__all__ = ["PYSPARK_MIN", "BatchGate"]

WAKE_S: Final = 0.2
"""How soon a stop is seen."""
STOP_WAIT_S: Final = 60.0
"""How long a stop waits for the batch in work before it cuts it off; the next run repeats it."""


class BatchGate:
    """Lets batches of one query through until it is to stop.

    Args:
        apply: what is done with a batch and its number.
        is_stopping: asked every `WAKE_S`.
    """

    def __init__(
        self, apply: Callable[[DataFrame, int], None], is_stopping: Callable[[], bool]
    ) -> None:
        self._apply = apply
        self._is_stopping = is_stopping
        self._in_batch = threading.Lock()
        self._is_over = False
        self._failure: Exception | None = None

    def take(self, batch: DataFrame, batch_id: int) -> None:
        """Do a batch; for `foreachBatch`."""
        with self._in_batch:
            if self._is_over:
                raise UnavailableError("the query is being stopped", code="query_failed")
            try:
                self._apply(batch, batch_id)
            except Exception as error:
                self._failure = error
                raise

    def wait(
        self,
        query: StreamingQuery,
        on_wake: Callable[[StreamingQuery], None] = lambda query: None,
    ) -> None:
        """Wait until the query has ended, and stop it when it is asked for.

        Args:
            query: that hands its batches to `take`.
            on_wake: called now and then, and at the end.

        Raises:
            MillstreamError: a batch failed; a new query begins with it again.
            UnavailableError: `query_failed`: something else in it, or Java was killed.
        """
        try:
            while not query.awaitTermination(WAKE_S):  # type: ignore[arg-type]  # takes floats
                on_wake(query)
                if self._is_stopping():
                    self._let_the_batch_end()
                    break
            on_wake(query)
            if self._failure is not None:
                raise self._told(self._failure) from self._failure
        except (PySparkException, Py4JError) as error:
            raise self._told(error) from error
        finally:
            with suppress(Py4JError):  # Java was killed, and its queries with it
                query.stop()

    def _told(self, error: Exception) -> MillstreamError:
        if isinstance(self._failure, MillstreamError):
            return self._failure
        said = str(error).strip() or repr(error)
        return UnavailableError(f"the streaming query failed: {said}", code="query_failed")

    def _let_the_batch_end(self) -> None:
        is_held = self._in_batch.acquire(timeout=STOP_WAIT_S)
        self._is_over = True
        if is_held:
            self._in_batch.release()
