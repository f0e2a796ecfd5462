"""`format("millstream.view")`: the rows of a view, or its groups, as a batch.

    spark.read.format("millstream.view").option("bucket", "flights").option("ddoc", "delays")
        .option("view", "by_carrier").option("group", "true").load()

Columns `key string`, `value string` (JSON texts) and `id string`, null in groups.

Invariants:
1. Rows are read by a task per node with partitions that are active there, each of its own
   partitions. What has to be put together (groups, `keys`, `skip`, `limit`) is asked of one node,
   which asks the others.
2. What is held is one piece of the answer and one batch, of about `BATCH_ROWS` or `BATCH_BYTES`.

Elsewhere: asking (`view_asking`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from millstream.pipelines.spark_version import PYSPARK_MIN  # refuses an older PySpark first

# isort: split
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from millstream.pipelines.change_stream.schema import chosen_schema
from millstream.pipelines.views.answer import ViewRow
from millstream.pipelines.views.requests import ViewOptions, shares_of, view_options, view_rows_of

__all__ = ["PYSPARK_MIN", "ViewDataSource", "ViewPart", "ViewReader"]

BATCH_ROWS: Final = 10_000
BATCH_BYTES: Final = 4 * 1024 * 1024
_TYPES: Final = dict.fromkeys(ViewRow._fields, "string")


class ViewPart(InputPartition):
    """What one task reads: rows of some partitions, or with None the whole answer."""

    def __init__(self, partition_ids: Sequence[int] | None) -> None:
        super().__init__(None)
        self.partition_ids = partition_ids


class ViewDataSource(DataSource):
    """The rows of a view as a table."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "millstream.view"

    def schema(self) -> str:
        """Return all columns; a reader can ask for fewer with `.schema(...)`."""
        view_options(self.options)
        return ", ".join(f"{name} {kind}" for name, kind in _TYPES.items())

    def reader(self, schema: StructType) -> ViewReader:
        """Return the reader of a batch."""
        columns = chosen_schema(schema, _TYPES, self.name())
        return ViewReader(view_options(self.options), columns)


class ViewReader(DataSourceReader):
    """Asks for the rows when they are read, not when that is planned."""

    def __init__(self, options: ViewOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Return what each task reads."""
        return [ViewPart(share) for share in shares_of(self._options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        # Spark puts in an empty partition of its own where there is nothing to read.
        if isinstance(partition, ViewPart):
            yield from _batches(view_rows_of(self._options, partition.partition_ids), self._schema)


def _batches(pieces: Iterable[list[ViewRow]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    rows: list[ViewRow] = []
    size = 0
    for piece in pieces:
        rows += piece
        size += sum(len(row.key) + len(row.value) for row in piece)
        if len(rows) >= BATCH_ROWS or size >= BATCH_BYTES:
            yield _batch(rows, schema)
            rows, size = [], 0
    if rows:
        yield _batch(rows, schema)


def _batch(rows: list[ViewRow], schema: pa.Schema) -> pa.RecordBatch:
    columns = dict(zip(ViewRow._fields, zip(*rows, strict=True), strict=True))
    arrays = [pa.array(columns[column.name], column.type) for column in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
