"""A bucket of a real node as the Spark suites use it, and what a streaming query made of it.

`KeyedState` is the simplest sink that is right: the newest row of each key by (branch, seqno),
deletions kept as tombstones, batches written again without harm.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import millstream

TIMEOUT_S = 180


class BucketUnderTest(NamedTuple):
    """A bucket and how to reach it."""

    address: str
    name: str

    def client(self) -> Any:
        """Return a kv client; the caller closes it."""
        return millstream.connect(self.address, bucket=self.name)

    def write(self, documents: dict[Any, Any]) -> None:
        """Write documents, None for a deletion."""
        with self.client() as client:
            client.apply_many(documents.items()).raise_first()

    def options(self, **more: object) -> dict[str, str]:
        """Return the options of the source."""
        given = {"hosts": self.address, "bucket": self.name, **more}
        return {name: str(value) for name, value in given.items()}

    def batch(self, spark: Any, schema: str = "", **more: object) -> Any:
        """Return a DataFrame of the changes."""
        reader = spark.read.format("millstream").options(**self.options(**more))
        return (reader.schema(schema) if schema else reader).load()

    def stream(self, spark: Any, schema: str = "", **more: object) -> Any:
        """Return a streaming DataFrame of the changes."""
        reader = spark.readStream.format("millstream").options(**self.options(**more))
        return (reader.schema(schema) if schema else reader).load()


class KeyedState:
    """The newest row of each key."""

    def __init__(self) -> None:
        self.rows: dict[tuple[int, str], Any] = {}
        self.batches: list[tuple[int, list[Any]]] = []
        self.fail_at_batch: int | None = None

    def take(self, frame: Any, batch_id: int) -> None:
        """Apply a micro-batch; for `foreachBatch`."""
        rows = frame.collect()
        self.batches.append((batch_id, rows))
        if batch_id == self.fail_at_batch:
            self.fail_at_batch = None
            raise RuntimeError("this batch was told to fail")
        for row in rows:
            if row.op in ("put", "delete", "expire"):
                held = self.rows.get((row.partition, row.key))
                if held is None or (row.branch, row.seqno) >= (held.branch, held.seqno):
                    self.rows[row.partition, row.key] = row

    def live(self) -> dict[str, bytes]:
        """Return key -> value of what is not deleted."""
        return {row.key: bytes(row.value) for row in self.rows.values() if row.op == "put"}

    def run_to_end(self, frame: Any, checkpoint: Path) -> Any:
        """Run a query over what is available now; return it."""
        writer = frame.writeStream.foreachBatch(self.take)
        query = (
            writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        )
        try:
            assert query.awaitTermination(TIMEOUT_S), "the query does not end"
        finally:
            query.stop()
        return query

    def start(self, frame: Any, checkpoint: Path) -> Any:
        """Start a query that follows."""
        writer = frame.writeStream.foreachBatch(self.take)
        return writer.option("checkpointLocation", str(checkpoint)).start()
