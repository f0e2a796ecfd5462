"""The views pipeline: keeps the rows of a design document current with Structured Streaming.

    change stream -> maps (Python workers) -> newest version per key (state in the JVM)
        -> reduced rows (JVM) -> what differs is written to the bucket `BUCKET-views`

Invariants:
1. Rows are computed from the whole state of the query, which Spark keeps exactly once, and are
   absolute: a batch that is run again after any crash writes the same rows.
2. A checkpoint belongs to one bucket (by uuid), one design document (by signature) and the store
   whose header names it; otherwise it is not used, and the rows are built anew.
3. The header of the store is written after all rows of a batch, and names the offset up to which
   they are true.
4. Pipelines of one process read formats of their own: see `source.register`.

Cost: each batch reads the state of all documents, O(documents), whatever the number of changes.

Elsewhere: the store (`view_store`), queries (`view_reading`), the record of runs (`runs`).
"""

from __future__ import annotations

import json
import secrets
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from millstream.client.kv import Client
from millstream.errors import MillstreamError, StreamError, UnavailableError, UsageError
from millstream.pipelines.bucket_changes import BucketChanges, Endpoint
from millstream.pipelines.source import register
from millstream.pipelines.view_map import IN_COLUMNS, OUT_COLUMNS, map_batches
from millstream.pipelines.view_reduce import (
    OWN_COLUMNS,
    latest_state,
    own_groups,
    reduce_own_batches,
    reduced_groups,
    reduced_rows,
)
from millstream.pipelines.view_store import STORE_SUFFIX, Applied, ViewStore
from millstream.views.core.design import DesignDocument

__all__ = ["BatchReport", "ViewsPipeline", "checkpoint_name"]

ROWS_PER_BATCH: Final = 200_000
"""Changes wanted in one batch: bounds what the workers hold, and how stale rows may become.

The flights (336,777 rows, two busy cores): 95 s of batches at 50,000, 25 s at 200,000, 29 s all at
once. State in RocksDB took 34 s where the default store took 38 s, and less heap.
"""
STOP_WAIT_S: Final = 60.0
"""How long a stop waits for the batch in work before it cuts it off; the rows stay right."""
_POLL_S: Final = 0.2
_ID_FILE: Final = "checkpoint.id"


@dataclass(frozen=True, slots=True)
class BatchReport:
    """What one batch did, for people."""

    ddoc: str
    batch_id: int
    seconds: float
    documents: int
    rows_streamed: int
    updates: int
    deletes: int
    map_errors: int
    rows: int
    changed: int
    deleted: int


def checkpoint_name(bucket: str, bucket_uuid: str, design: DesignDocument) -> str:
    """Return the directory name of a checkpoint: one per bucket, design document and signature."""
    return f"{bucket}-{bucket_uuid[:8]}-{design.name}-{design.named_signature[:12]}"


@dataclass(slots=True)
class ViewsPipeline:
    """One run of the pipeline.

    Args:
        endpoint: of a node.
        bucket: whose changes are followed.
        design: whose views are kept.
        checkpoint: directory of this pipeline alone.
        modules: modules that register Python functions.
        source_options: further options of `format("millstream")`, such as `passwordFile`.
        on_batch: told after each batch.
    """

    endpoint: Endpoint
    bucket: str
    design: DesignDocument
    checkpoint: Path
    modules: tuple[str, ...] = ()
    source_options: dict[str, str] = field(default_factory=dict)
    rows_per_batch: int = ROWS_PER_BATCH
    on_batch: Callable[[BatchReport], None] = lambda report: None
    is_stopping: bool = False
    _run: str = field(default_factory=lambda: secrets.token_hex(8))
    _bucket_uuid: str = ""
    _failure: MillstreamError | None = None

    def run(self, spark: SparkSession, *, once: bool = False) -> None:
        """Follow the stream until `is_stopping` is set; with `once`, until its present end.

        Raises:
            StreamError: `rollback_required`: the node has lost history that this pipeline read.
            ConditionError: `taken_over`: another run keeps these views now.
            UnavailableError: the node or Spark failed; running again goes on.
        """
        with self.endpoint.client(self.bucket + STORE_SUFFIX) as client:
            store = self._take_over(client)
            query = self._start(spark, store, once=once)
            try:
                self._await(query, once=once)
            finally:
                query.stop()

    def _take_over(self, client: Client) -> ViewStore:
        """Become the writer of the store; drop a checkpoint that does not belong to it."""
        with self.endpoint.client(self.bucket) as source:
            bucket_uuid = source.cluster_map.bucket_uuid
        changes = BucketChanges(self.endpoint, client)
        store = ViewStore(client, changes, self.design, self._run)
        header = store.read_header()
        checkpoint_id = self._checkpoint_id()
        if header.get("checkpoint") != checkpoint_id or not checkpoint_id:
            shutil.rmtree(self.checkpoint / "spark", ignore_errors=True)
            checkpoint_id = secrets.token_hex(8)
            self.checkpoint.mkdir(parents=True, exist_ok=True)
            (self.checkpoint / _ID_FILE).write_text(checkpoint_id)
            header = {"batch": None, "bucket_uuid": header.get("bucket_uuid")}
        members = {name: value for name, value in header.items() if name not in _OWN_MEMBERS}
        store.take_over({**members, "checkpoint": checkpoint_id, "bucket_uuid": bucket_uuid})
        if header.get("bucket_uuid") != bucket_uuid:
            store.clear()
        self._bucket_uuid = bucket_uuid
        return store

    def _checkpoint_id(self) -> str:
        try:
            return (self.checkpoint / _ID_FILE).read_text()
        except FileNotFoundError:
            return ""

    def _start(self, spark: SparkSession, store: ViewStore, *, once: bool) -> StreamingQuery:
        design_json = msgspec.json.encode(self.design.as_json())
        options = {
            "hosts": self.endpoint.address,
            "bucket": self.bucket,
            "maxRowsPerBatch": str(self.rows_per_batch),
            **self.source_options,
        }
        if self.endpoint.user:
            options["user"] = self.endpoint.user
        format_name = f"millstream-{self._run}"
        register(spark, format_name)
        changes = spark.readStream.format(format_name).options(**options).schema(IN_COLUMNS)
        mapped = changes.load().mapInArrow(
            partial(map_batches, design_json, self.modules), OUT_COLUMNS
        )
        writer = (
            latest_state(mapped)
            .writeStream.outputMode("complete")
            .queryName(f"views-{self.bucket}-{self.design.name}")
            .option("checkpointLocation", str(self.checkpoint / "spark"))
            .foreachBatch(lambda state, batch_id: self._apply(store, state, batch_id))
        )
        return (writer.trigger(availableNow=True) if once else writer).start()

    def _await(self, query: StreamingQuery, *, once: bool) -> None:
        deadline = 0.0
        try:
            while not query.awaitTermination(_POLL_S):  # type: ignore[arg-type]  # takes floats
                if not self.is_stopping:
                    continue
                deadline = deadline or time.monotonic() + STOP_WAIT_S
                status = query.status
                if not status["isTriggerActive"] or not status["isDataAvailable"]:
                    return
                if time.monotonic() > deadline:
                    return
        except StreamingQueryException as error:
            raise self._failure or _explained(error) from error
        if not once and not self.is_stopping:
            raise UnavailableError("the streaming query ended by itself", code="query_ended")

    def _apply(self, store: ViewStore, state: DataFrame, batch_id: int) -> None:
        """Write what a batch comes to. Runs on the driver, in a thread of Spark's."""
        began = time.monotonic()
        has_own = any(view.has_own_reduce for view in self.design.views)
        if has_own:
            # Both queries below read the state; without this the stream would be read twice.
            state.persist()
        try:
            groups = reduced_groups(state, self.design).toArrow()
            own = self._own(state).toArrow() if has_own else None
        finally:
            if has_own:
                state.unpersist()
        reduced = reduced_rows(self.design, groups, own)
        header = self._header(state.sparkSession, batch_id, reduced)
        try:
            applied: Applied = store.apply(batch_id, reduced, header)
        except MillstreamError as error:
            self._failure = error
            raise
        errors = sum(reduced.map_errors.values())
        self.on_batch(
            BatchReport(
                self.design.name, batch_id, time.monotonic() - began, reduced.documents,
                reduced.rows_streamed, reduced.updates, reduced.deletes, errors,
                len(reduced.rows), applied.changed, applied.deleted,
            )
        )  # fmt: skip

    def _own(self, state: DataFrame) -> DataFrame:
        design_json = msgspec.json.encode(self.design.as_json())
        return own_groups(state, self.design).mapInArrow(
            partial(reduce_own_batches, design_json, self.modules), OWN_COLUMNS
        )

    def _header(self, spark: SparkSession, batch_id: int, reduced: Any) -> dict[str, Any]:
        names = {at: view.name for at, view in enumerate(self.design.views)} | {-1: "*"}
        return {
            "checkpoint": self._checkpoint_id(),
            "bucket_uuid": self._bucket_uuid,
            "offset": self._offset_of(batch_id),
            "documents": reduced.documents,
            "rows_streamed": reduced.rows_streamed,
            "updates": reduced.updates,
            "deletes": reduced.deletes,
            "rows": len(reduced.rows),
            "map_errors": {names[at]: count for at, count in reduced.map_errors.items()},
            "error_samples": [
                {"view": names[at], "id": doc_id, "message": message}
                for at, doc_id, message in reduced.error_samples
            ],
        }

    def _offset_of(self, batch_id: int) -> dict[str, Any]:
        """Return the end of a batch from Spark's offset log, written before the batch began."""
        log = (self.checkpoint / "spark" / "offsets" / str(batch_id)).read_text()
        offset: dict[str, Any] = json.loads(log.splitlines()[-1])
        return offset


_OWN_MEMBERS: Final = frozenset({"ddoc", "signature", "design", "run", "checkpoint"})


def _explained(error: StreamingQueryException) -> MillstreamError:
    """Return the error of ours that ended a query, dug out of Spark's text."""
    text = str(error)
    for name, kind in (
        ("RollbackRequiredError", StreamError),
        ("UsageError", UsageError),
        ("AccessError", UsageError),
        ("StreamError", StreamError),
        ("UnavailableError", UnavailableError),
    ):
        mark = f"millstream.errors.{name}: "
        if mark in text:
            message = text.rpartition(mark)[2].partition("\n")[0].strip()
            code = "rollback_required" if name == "RollbackRequiredError" else ""
            return kind(message, code=code)
    return UnavailableError(f"the streaming query failed: {text.strip()}", code="query_failed")
