"""The rows of a view as a DataFrame.

Elsewhere: the layout of the store (`view_store`), queries without Spark (`view_reading`).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from millstream.client.kv import connect
from millstream.pipelines.view_reading import read_header
from millstream.pipelines.view_store import STORE_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

__all__ = ["view_rows"]

_COLUMNS: Final = "key string, id string, value string, batch bigint"
_SCHEMA: Final = pa.schema(
    [("key", pa.string()), ("id", pa.string()), ("value", pa.string()), ("batch", pa.int64())]
)


class _Stamp(msgspec.Struct):
    batch: int


class _Row(msgspec.Struct):
    ddoc: str
    view: str
    signature: str
    key: msgspec.Raw
    stamp: _Stamp
    value: msgspec.Raw = msgspec.Raw(b"")
    id: str | None = None
    rows: list[msgspec.Raw] = []


_ROW: Final = msgspec.json.Decoder(_Row)


def view_rows(
    spark: SparkSession, hosts: str, bucket: str, ddoc: str, view: str, **options: Any
) -> DataFrame:
    """Return the rows of a view that a pipeline keeps, as they are when an action runs.

    Args:
        spark: a session with `format("millstream")`.
        hosts: HOST:PORT of a node's kv port, or several with commas.
        bucket: the bucket whose view it is.
        ddoc: name of the design document.
        view: name of the view.
        options: further options of the source, such as `user` and `passwordFile`.

    Returns:
        Columns `key string` and `value string` (JSON texts: `from_json` gives them types),
        `id string` (the document; null in views with a reduce) and `batch bigint` (the batch
        that wrote the row). A view with a reduce has one row per exact key.

    Raises:
        ConditionError: `missing`: no pipeline has run for the design document.
    """
    from millstream.pipelines.options import parse_options

    given = {"hosts": hosts, "bucket": bucket + STORE_SUFFIX}
    given |= {name: str(value) for name, value in options.items()}
    parsed = parse_options(given)
    with connect(
        parsed.hosts, bucket=parsed.bucket, user=parsed.user, password=parsed.password,
        tls=parsed.tls(),
    ) as client:  # fmt: skip
        signature = read_header(client, ddoc)["signature"]
    changes = (
        spark.read.format("millstream")
        .options(**given)
        .schema("op string, key string, value binary")
        .load()
        .where("op = 'put'")
    )
    return changes.mapInArrow(partial(_read, ddoc, view, signature), _COLUMNS)


def _read(
    ddoc: str, view: str, signature: str, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one view; runs in Spark's Python workers."""
    named = b'{"ddoc":%b,"view":%b,' % (msgspec.json.encode(ddoc), msgspec.json.encode(view))
    for batch in batches:
        rows = [
            row
            for value in batch.column("value").to_pylist()
            if value.startswith(named)
            for row in _cells(_ROW.decode(value), signature)
        ]
        columns: list[Sequence[Any]] = list(zip(*rows, strict=True))
        columns = columns or [()] * len(_SCHEMA)
        arrays = [
            pa.array(column, field.type) for column, field in zip(columns, _SCHEMA, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)


def _cells(row: _Row, signature: str) -> Iterator[tuple[str, str | None, str, int]]:
    if row.signature != signature:
        return
    key = bytes(row.key).decode()
    values = [row.value] if row.id is None else row.rows
    for value in values:
        yield key, row.id, bytes(value).decode(), row.stamp.batch
