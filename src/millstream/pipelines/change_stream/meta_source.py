"""`format("millstream.meta")`: a row per partition, where it is and where it stands.

    spark.read.format("millstream.meta").option("bucket", "flights").option("offset", JSON).load()

Columns: partition, node (HOST:PORT of the active copy's kv port), state, uuid and branch of the
newest history, high_seqno, persisted_seqno, durable_seqno, purge_seqno; and compared with the
option `offset`, position (the seqno up to which it has read) and lag, both null without it.

Invariants:
1. Each row is what the node says when the row is read; rows of one node are of one moment.

Elsewhere: what the seqnos are (docs/reference/wire/extensions.md), offsets (`offsets`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from millstream.pipelines.spark_version import PYSPARK_MIN  # refuses an older PySpark first

# isort: split
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from millstream.client.kv import Client
from millstream.errors import UsageError
from millstream.pipelines.change_stream.connection_options import split_options
from millstream.pipelines.change_stream.control import open_again
from millstream.pipelines.change_stream.offsets import Offset, offset_from_json
from millstream.pipelines.change_stream.options import SourceOptions
from millstream.pipelines.change_stream.query import check_given
from millstream.pipelines.change_stream.schema import chosen_schema

__all__ = ["PYSPARK_MIN", "MetaDataSource", "MetaReader", "meta_options"]

_TYPES: Final = {
    "partition": "int",
    "node": "string",
    "state": "string",
    "uuid": "string",
    "branch": "bigint",
    "high_seqno": "bigint",
    "persisted_seqno": "bigint",
    "durable_seqno": "bigint",
    "purge_seqno": "bigint",
    "position": "bigint",
    "lag": "bigint",
}
_SEQNOS: Final = ("branch", "high_seqno", "persisted_seqno", "durable_seqno", "purge_seqno")
_OWN: Final = (("offset", "an offset as JSON, to compare with: fills position and lag"),)


def meta_options(
    given: Mapping[str, str], environ: Mapping[str, str] | None = None
) -> tuple[SourceOptions, Offset | None]:
    """Check the options: how to connect, and what to compare with.

    Raises:
        UsageError: `unknown_option`, `bad_option`, `bad_offset`.
    """
    source, own = split_options(given, _OWN, "millstream.meta", environ)
    text = own.get("offset", "")
    if not text:
        return source, None
    try:
        form = json.loads(text)
    except ValueError as error:
        message = f"option offset {text!r:.80}: write an offset as JSON"
        raise UsageError(message, code="bad_option") from error
    return source, offset_from_json(form)


class MetaDataSource(DataSource):
    """The partitions of a bucket as a table."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "millstream.meta"

    def schema(self) -> str:
        """Return all columns; a reader can ask for fewer with `.schema(...)`."""
        meta_options(self.options)
        return ", ".join(f"{name} {kind}" for name, kind in _TYPES.items())

    def reader(self, schema: StructType) -> MetaReader:
        """Return the reader of a batch."""
        return MetaReader(*meta_options(self.options), chosen_schema(schema, _TYPES, self.name()))


class MetaReader(DataSourceReader):
    """Asks all nodes from one task."""

    def __init__(self, options: SourceOptions, offset: Offset | None, schema: pa.Schema) -> None:
        self._options = options
        self._offset = offset
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Return the one task."""
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield all rows."""
        with open_again(self._options) as client:
            if self._offset is not None:
                uuid = client.cluster_map.bucket_uuid
                check_given(self._offset, "offset", self._options.bucket, uuid)
            rows = _rows(client, self._offset)
        arrays = [
            pa.array([row[column.name] for row in rows], column.type) for column in self._schema
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _rows(client: Client, offset: Offset | None) -> list[dict[str, Any]]:
    map_ = client.cluster_map
    rows = []
    for copy in client.positions():
        node = map_.nodes[map_.owners[copy.partition_id]]
        position = None if offset is None else offset.entry(copy.partition_id).seqno
        rows.append(
            {
                "partition": copy.partition_id,
                "node": f"{node.host}:{node.port}",
                "state": copy.state.name.lower(),
                "uuid": f"{copy.uuid:012x}",
                **{name: getattr(copy, name) for name in _SEQNOS},
                "position": position,
                "lag": None if position is None else max(0, copy.high_seqno - position),
            }
        )
    return rows
