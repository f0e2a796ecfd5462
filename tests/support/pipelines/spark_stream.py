"""A streaming query without a JVM: what Spark does with a reader, one batch after the other.

The offset log is a list of JSON texts, as Spark keeps them: a batch is logged, then read, and one
that fails is read again from the same two texts.
"""

from __future__ import annotations

import json
from typing import Any

from pyspark import cloudpickle
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.streaming.datasource import ReadAllAvailable

from millstream.pipelines.source import MillstreamDataSource
from support.pipelines.spark_rows import struct_of

SCHEMA = "op string, partition int, branch bigint, seqno bigint, key string, value binary"


class StreamUnderTest:
    """One query; `log` outlives a restart, `restart` ends the source process as Spark would."""

    def __init__(self, schema: str = SCHEMA, **options: object) -> None:
        self.options = {name: str(value) for name, value in options.items()}
        self.schema = schema
        self.log: list[str] = []
        self.ended = 0
        self.rows: list[dict[str, Any]] = []
        self._reader: Any = None

    @property
    def reader(self) -> Any:
        """The reader of the source process."""
        if self._reader is None:
            source = MillstreamDataSource(CaseInsensitiveDict(self.options))
            self._reader = source.streamReader(struct_of(self.schema))
            if not self.log:
                self.log.append(json.dumps(self._reader.initialOffset()))
        return self._reader

    def restart(self, **options: object) -> None:
        """Stop, and have the next batch begin a process with other options."""
        self.stop()
        self.options |= {name: str(value) for name, value in options.items()}

    def stop(self) -> None:
        """End the source process."""
        if self._reader is not None:
            self._reader.stop()
            self._reader = None

    def plan(self) -> bool:
        """Log the next batch, unless one waits that is logged; False if nothing is new."""
        reader = self.reader
        if len(self.log) - 1 == self.ended:
            start = self.log[-1]
            end = json.dumps(reader.latestOffset(json.loads(start), ReadAllAvailable()))
            if end == start:
                return False
            self.log.append(end)
        return True

    def read(self) -> list[dict[str, Any]]:
        """Read the batch that is logged, and end it; return its rows."""
        start, end = self.log[self.ended : self.ended + 2]
        parts = self.reader.partitions(json.loads(start), json.loads(end))
        executor = cloudpickle.loads(cloudpickle.dumps(self.reader))
        rows = [
            row
            for part in parts
            for batch in executor.read(cloudpickle.loads(cloudpickle.dumps(part)))
            for row in batch.to_pylist()
        ]
        self.ended += 1
        self.rows += rows
        return rows

    def run(self) -> list[dict[str, Any]]:
        """Read until nothing is new; return the rows that came."""
        before = len(self.rows)
        while self.plan():
            self.read()
        return self.rows[before:]

    def live(self) -> dict[str, bytes]:
        """Return what a sink that upserts by version holds."""
        held: dict[str, dict[str, Any]] = {}
        for row in self.rows:
            if row["op"] not in ("rollback", "sweep"):
                old = held.get(row["key"])
                if old is None or (row["branch"], row["seqno"]) >= (old["branch"], old["seqno"]):
                    held[row["key"]] = row
        return {key: row["value"] for key, row in held.items() if row["op"] == "put"}
