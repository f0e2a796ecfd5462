"""Rows of typed columns: what the option `documentSchema` makes of documents.

A row has `_id`, the members that the schema names, and with `includeMeta` the struct `_meta`.

Invariants:
1. A member that is missing, null, or has a value that its type cannot hold, is null; the others of
   the row keep their values. Nothing a client can write makes a batch fail.
2. If the schema has `_corrupt_record string`, it has the text of each document of which something
   did not fit, and null for the others.
3. Every batch of a read has exactly the schema that Spark derives for it, as in `schema`.

Elsewhere: plain rows (`schema`), how a schema is found (`inference`).
Source: `from_json` of Spark in its mode PERMISSIVE, whose rules of types these are.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema, to_arrow_type

from millstream.client.columns import Columns
from millstream.errors import UsageError
from millstream.pipelines.change_stream.schema import (
    SPARK_TYPES,
    BranchTable,
    MarkRow,
    RowForm,
    row_form,
)

__all__ = ["CORRUPT", "ID", "META", "META_TYPE", "DocumentForm", "document_form"]

ID: Final = "_id"
META: Final = "_meta"
CORRUPT: Final = "_corrupt_record"
_META_NAMES: Final = (
    "op", "partition", "branch", "seqno", "cas", "rev", "expiry", "flags", "ts",
)  # fmt: skip
META_TYPE: Final = (
    "struct<" + ",".join(f"{name}:{SPARK_TYPES[name]}" for name in _META_NAMES) + ">"
)
"""What `_meta` is; its members are columns of the plain rows."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FLOATS: Final[Mapping[object, float]] = {
    "NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf"),
    "+Infinity": float("inf"), "INF": float("inf"), "-INF": float("-inf"), "+INF": float("inf"),
}  # fmt: skip
_DECIMAL_DIGITS_MAX: Final = 38
_encode: Final = msgspec.json.Encoder(decimal_format="number").encode
_plain: Final = msgspec.json.Decoder().decode
_exact: Final = msgspec.json.Decoder(float_hook=Decimal).decode

_Convert = Callable[[Any], Any]
"""Returns a value as Arrow takes it; raises `_Misfit` if the type cannot hold it."""


class _Misfit(Exception):
    """A value is not of the type that the schema gives it."""


def _string(value: Any) -> str:
    return value if type(value) is str else _encode(value).decode()


def _boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise _Misfit
    return value


def _whole(bits: int) -> _Convert:
    least, most = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1

    def convert(value: Any) -> int:
        if type(value) is not int or not least <= value <= most:
            raise _Misfit
        return value

    return convert


def _float(value: Any) -> float:
    if type(value) is str and value in _FLOATS:
        return _FLOATS[value]
    if type(value) not in (float, int, Decimal):
        raise _Misfit
    try:
        return float(value)
    except OverflowError as error:
        raise _Misfit from error


def _decimal(precision: int, scale: int) -> _Convert:
    step = Decimal(1).scaleb(-scale)
    context = Context(prec=_DECIMAL_DIGITS_MAX + scale + 1, rounding=ROUND_HALF_UP)
    least_over = Decimal(10) ** (precision - scale)

    def convert(value: Any) -> Decimal:
        if type(value) not in (int, Decimal, float):
            raise _Misfit
        try:
            found = Decimal(value).quantize(step, context=context)
        except InvalidOperation as error:
            raise _Misfit from error
        if abs(found) >= least_over:
            raise _Misfit
        return found

    return convert


def _timestamp(value: Any) -> datetime:
    """Return a moment of ISO 8601, without a zone in UTC, or of seconds since 1970."""
    try:
        if type(value) is int:
            return _EPOCH + timedelta(seconds=value)
        if type(value) is str:
            found = datetime.fromisoformat(value)
            return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
    except (ValueError, OverflowError) as error:
        raise _Misfit from error
    raise _Misfit


def _local_timestamp(value: Any) -> datetime:
    """Return a time of ISO 8601 without a zone."""
    try:
        found = datetime.fromisoformat(value) if type(value) is str else None
    except ValueError as error:
        raise _Misfit from error
    if found is None or found.tzinfo is not None:
        raise _Misfit
    return found


def _date(value: Any) -> date:
    try:
        if type(value) is str:
            return date.fromisoformat(value)
    except ValueError as error:
        raise _Misfit from error
    raise _Misfit


def _binary(value: Any) -> bytes:
    """Return the bytes of a text in base64."""
    try:
        if type(value) is str:
            return b64decode(value, validate=True)
    except ValueError as error:
        raise _Misfit from error
    raise _Misfit


def _array(of: _Convert) -> _Convert:
    def convert(value: Any) -> list[Any]:
        if type(value) is not list:
            raise _Misfit
        return [None if one is None else of(one) for one in value]

    return convert


def _map(of: _Convert) -> _Convert:
    def convert(value: Any) -> list[tuple[str, Any]]:
        if type(value) is not dict:
            raise _Misfit
        return [(name, None if one is None else of(one)) for name, one in value.items()]

    return convert


def _struct(members: Sequence[tuple[str, _Convert]]) -> _Convert:
    def convert(value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise _Misfit
        found = {}
        for name, of in members:
            one = value.get(name)
            found[name] = None if one is None else of(one)
        return found

    return convert


_SIMPLE: Final[Mapping[type[t.DataType], _Convert]] = {
    t.StringType: _string, t.BooleanType: _boolean, t.ByteType: _whole(8),
    t.ShortType: _whole(16), t.IntegerType: _whole(32), t.LongType: _whole(64),
    t.FloatType: _float, t.DoubleType: _float, t.TimestampType: _timestamp,
    t.TimestampNTZType: _local_timestamp, t.DateType: _date, t.BinaryType: _binary,
}  # fmt: skip


def _converter(kind: t.DataType, name: str) -> _Convert:
    """Return what makes values of a type of Spark.

    Raises:
        UsageError: `bad_schema`: a type that no JSON value has.
    """
    if type(kind) in _SIMPLE:
        return _SIMPLE[type(kind)]
    if isinstance(kind, t.DecimalType):
        return _decimal(kind.precision, kind.scale)
    if isinstance(kind, t.ArrayType):
        return _array(_converter(kind.elementType, name))
    if isinstance(kind, t.MapType) and isinstance(kind.keyType, t.StringType):
        return _map(_converter(kind.valueType, name))
    if isinstance(kind, t.StructType):
        return _struct([(one.name, _converter(one.dataType, name)) for one in kind.fields])
    raise UsageError(
        f"documentSchema: column {name} has the type {kind.simpleString()}, which no JSON value "
        "has. Read it as string",
        code="bad_schema",
    )


def _has_decimal(kind: t.DataType) -> bool:
    if isinstance(kind, t.StructType):
        return any(_has_decimal(one.dataType) for one in kind.fields)
    if isinstance(kind, t.ArrayType):
        return _has_decimal(kind.elementType)
    if isinstance(kind, t.MapType):
        return _has_decimal(kind.valueType)
    return isinstance(kind, t.DecimalType)


class DocumentForm:
    """Builds the batches of one read; takes the place of a `RowForm`.

    Args:
        schema: the columns that were asked for, as Spark has them.
    """

    has_meta = False
    """Whether lineages have to be read: typed rows have none."""

    def __init__(self, schema: t.StructType) -> None:
        self._asked = schema
        self.schema = to_arrow_schema(schema, timezone="UTC")
        self._members = {
            column.name: _converter(column.dataType, column.name)
            for column in schema.fields
            if column.name not in (ID, META, CORRUPT)
        }
        self._has_corrupt = CORRUPT in schema.names
        self.has_values = bool(self._members) or self._has_corrupt
        """Whether values have to be read at all."""
        self._decode = _exact if _has_decimal(schema) else _plain
        self._rows = _meta_form(schema)

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel as the schema: what is made of it belongs to one process."""
        return type(self), (self._asked,)

    def batch(
        self, columns: Columns, branches: BranchTable, mask: pa.Array | None = None
    ) -> pa.RecordBatch:
        """Return the changes in `columns`, with a mask those that it chooses."""
        values: Sequence[bytes | None] = columns.value
        if mask is not None:
            values = [
                value if chosen else None
                for value, chosen in zip(values, mask.to_pylist(), strict=True)
            ]
        found = self._members_of(values)
        meta = None if self._rows is None else self._rows.batch(columns, branches)
        batch = self._assembled(columns.key, found, meta)
        return batch if mask is None else batch.filter(mask)

    def marks(self, rows: Sequence[MarkRow]) -> pa.RecordBatch:
        """Return rows that are no changes as a batch: only `_meta` tells of them."""
        nothing = dict[str, list[Any]]()
        meta = None if self._rows is None else self._rows.marks(rows)
        return self._assembled([None] * len(rows), nothing, meta)

    def _members_of(self, values: Sequence[bytes | None]) -> dict[str, list[Any]]:
        """Return the values of the columns that come from documents."""
        found: dict[str, list[Any]] = {name: [None] * len(values) for name in self._members}
        corrupt: list[str | None] = [None] * len(values)
        if self.has_values:
            for at, text in enumerate(values):
                if text is not None and not self._fill(text, at, found):
                    corrupt[at] = text.decode(errors="replace")
        return found | ({CORRUPT: corrupt} if self._has_corrupt else {})

    def _fill(self, text: bytes, at: int, found: Mapping[str, list[Any]]) -> bool:
        """Set the members of one document; return whether all of it fits."""
        try:
            document = self._decode(text)
        except (msgspec.DecodeError, ValueError, RecursionError):
            return False
        if type(document) is not dict:
            return False
        fits = True
        for name, convert in self._members.items():
            value = document.get(name)
            if value is None:
                continue
            try:
                found[name][at] = convert(value)
            except _Misfit:
                fits = False
        return fits

    def _assembled(
        self,
        ids: Sequence[str | None],
        found: Mapping[str, list[Any]],
        meta: pa.RecordBatch | None,
    ) -> pa.RecordBatch:
        arrays = []
        for column in self.schema:
            if column.name == ID:
                arrays.append(pa.array(ids, column.type))
            elif column.name == META:
                assert meta is not None, "the schema has _meta"
                parts = [meta.column(one.name) for one in column.type]
                arrays.append(pa.StructArray.from_arrays(parts, fields=list(column.type)))
            else:
                values = found.get(column.name)
                known = [None] * len(ids) if values is None else values
                arrays.append(pa.array(known, column.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _meta_form(schema: t.StructType) -> RowForm | None:
    """Return what makes the members of `_meta`, None without it.

    Raises:
        UsageError: `bad_schema`.
    """
    if META not in schema.names:
        return None
    kind = schema[META].dataType
    if not isinstance(kind, t.StructType):
        raise UsageError(f"column {META} is {META_TYPE}", code="bad_schema")
    return row_form(kind)


def _refuse_required(kind: t.DataType, name: str) -> None:
    """Refuse what must not be null: any document may lack it.

    Raises:
        UsageError: `bad_schema`.
    """
    if isinstance(kind, t.ArrayType):
        _refuse_required(kind.elementType, name)
    elif isinstance(kind, t.MapType):
        _refuse_required(kind.valueType, name)
    elif isinstance(kind, t.StructType):
        for one in kind.fields:
            if not one.nullable:
                raise UsageError(
                    f"documentSchema: {one.name} is NOT NULL, but a document may lack it. Leave "
                    "NOT NULL out, and filter the rows",
                    code="bad_schema",
                )
            _refuse_required(one.dataType, one.name)


def document_form(schema: t.StructType) -> DocumentForm:
    """Return the form of a read of typed rows.

    Raises:
        UsageError: `bad_schema`: a reserved name, a name that occurs twice, or a type that no
            JSON value has.
    """
    text = to_arrow_type(t.StringType())
    for column in schema.fields:
        if column.name in (ID, CORRUPT) and to_arrow_type(column.dataType) != text:
            raise UsageError(f"column {column.name} is a string", code="bad_schema")
        if column.name.startswith("_") and column.name not in (ID, META, CORRUPT):
            raise UsageError(
                f"documentSchema names {column.name}: members that begin with _ are the node's "
                f"own. {CORRUPT} is the text of documents that do not fit",
                code="bad_schema",
            )
    _refuse_required(schema, "")
    twice = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if twice:
        raise UsageError(f"documentSchema names {', '.join(twice)} twice", code="bad_schema")
    return DocumentForm(schema)
