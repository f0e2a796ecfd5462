r"""Rows of a DataFrame as documents to be written; the rules that the guide states.

Key and value: a column `key` (or `id`), text or binary, and a column `value`, text that is JSON or
binary that is stored as it is; `op`, `expiry`, `flags`, `datatype` and `cas` are honoured, the
other columns of the change stream are not. With `idField` any columns: the row as JSON.

Invariants:
1. What cannot be stored is refused by an error that names the row's key, before anything of its
   Arrow batch is written; a schema that cannot be is refused before the job begins.
2. Nothing is stored otherwise than these rules say; rows of a rollback never are.
3. Text of keys is that of the source: `\x` and hex for keys that are no text.

Elsewhere: writing (`sinks.writing`), sinks that understand rollbacks (`sinks.applying`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    CharType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
)

from millstream.client.documents import FLAGS_BINARY, FLAGS_JSON
from millstream.client.writes import Write
from millstream.errors import UsageError
from millstream.model.limits import KEY_BYTES_MAX, VALUE_BYTES_MAX
from millstream.model.partitions import key_from_text, text_of_key
from millstream.wire.mcbp import Datatype

__all__ = ["RowRules"]

_IGNORED: Final = frozenset(("partition", "branch", "seqno", "rev", "ts", "meta"))
_CHANGE: Final = frozenset(("op", "partition", "branch", "seqno"))
"""A schema with these is one of the change stream, whatever else it has."""
_WRITES: Final = frozenset(("put",))
_DELETES: Final = frozenset(("delete", "expire"))
_MARKS: Final = frozenset(("rollback", "sweep"))
_WHOLE: Final = (ByteType, ShortType, IntegerType, LongType)
_TEXT: Final = (StringType, CharType, VarcharType)
_PLAIN: Final = (
    *_WHOLE, *_TEXT, BinaryType, BooleanType, FloatType, DoubleType, DecimalType, DateType,
    TimestampType, TimestampNTZType, NullType,
)  # fmt: skip
_OPTIONAL: Final[Mapping[str, tuple[type[DataType], ...]]] = {
    "op": _TEXT,
    "expiry": _WHOLE,
    "flags": _WHOLE,
    "datatype": _WHOLE,
    "cas": _WHOLE,
}
_UINT32: Final = 1 << 32
_UINT64_MASK: Final = (1 << 64) - 1
_encode_row = msgspec.json.Encoder(decimal_format="number").encode
_check_json = msgspec.json.Decoder(msgspec.Raw).decode


class RowRules:
    """Turns Arrow batches of one schema into writes.

    Args:
        schema: of the DataFrame.
        id_field: the option `idField`; empty for rows of key and value.
        version_field: the option `versionField`; empty for none.
        with_cas: whether the column `cas` is a condition.
        is_append: whether documents are inserted.

    Raises:
        UsageError: `bad_schema`.
    """

    def __init__(
        self,
        schema: StructType,
        *,
        id_field: str,
        with_cas: bool,
        is_append: bool,
        version_field: str = "",
    ) -> None:
        names = schema.fieldNames()
        if len(set(names)) < len(names):
            raise _bad_schema(f"a column occurs twice: {', '.join(names)}")
        self._id_field = id_field
        self._version_field = version_field
        self._is_append = is_append
        self._is_change = set(names) >= _CHANGE
        if with_cas and "cas" not in names:
            raise _bad_schema("option cas needs a column cas")
        self._cas_of: Callable[[Mapping[str, Any]], int] = _cas if with_cas else _no_cas
        if id_field:
            _check_row_schema(schema, id_field)
            if version_field:
                _check_version(schema, version_field)
            self._left_out = frozenset(
                ("cas",) * with_cas + ((id_field,) if id_field.startswith("_") else ())
            )
        else:
            self._key_name = _checked_key_name(schema)
            self._is_text = isinstance(schema["value"].dataType, _TEXT)

    def writes(self, batch: pa.RecordBatch) -> Sequence[Write]:
        """Return the writes of a batch, in its order.

        Raises:
            UsageError: `bad_row`: names the key of the first row that cannot be written;
                `rollback_row`: the batch has to undo what was written.
        """
        make = self._from_row if self._id_field else self._from_pair
        return [make(row) for row in self._rows(batch)]

    def _rows(self, batch: pa.RecordBatch) -> list[Mapping[str, Any]]:
        try:
            return _rows_in(batch)
        except (ValueError, OverflowError, KeyError, pa.ArrowException):
            return [self._only_row(batch.slice(at, 1)) for at in range(len(batch))]

    def _only_row(self, row: pa.RecordBatch) -> Mapping[str, Any]:
        try:
            return _rows_in(row)[0]
        except (ValueError, OverflowError, KeyError, pa.ArrowException) as error:
            key = row.column(self._id_field or self._key_name)[0].as_py()
            raise _bad_row(key, f"a value of it has no form in JSON: {error}") from error

    def _from_row(self, row: Mapping[str, Any]) -> Write:
        """The whole row as JSON."""
        if self._is_change and row["op"] in _MARKS:
            raise _rollback_row(row)
        raw = _key_of(row[self._id_field])
        if self._version_field and row[self._version_field] is None:
            raise _bad_row(row[self._id_field], f"its version {self._version_field} is null")
        if self._left_out:
            kept = {name: value for name, value in row.items() if name not in self._left_out}
        else:
            kept = dict(row)
        try:
            value = _encode_row(kept)
        except (TypeError, ValueError, RecursionError) as error:
            raise _bad_row(row[self._id_field], f"it has no form as JSON: {error}") from error
        return self._checked(Write(raw, value, cas=self._cas_of(row)))

    def _from_pair(self, row: Mapping[str, Any]) -> Write:
        """A key and a value, both as given."""
        op = row.get("op", "put")
        if op in _MARKS:
            raise _rollback_row(row)
        key, value = row[self._key_name], row["value"]
        raw, cas = _key_of(key), self._cas_of(row)
        if op in _DELETES:
            if self._is_append:
                raise _bad_row(key, f"op {op} has no place in .mode('append')")
            return self._checked(Write(raw, None, cas=cas))
        if op not in _WRITES:
            raise _bad_row(key, f"op {op!r} is none of put, delete, expire")
        if value is None:
            raise _bad_row(key, "value is null; a row with op = 'delete' deletes")
        if self._is_text:
            value = value.encode(errors="surrogatepass")
            try:
                _check_json(value)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise _bad_row(
                    key, f"value is no JSON ({error}); cast it to binary to store it as it is"
                ) from error
        flags, datatype = self._marks_of(row, key)
        expiry = _number(row, "expiry", 0, key)
        return self._checked(Write(raw, value, flags, datatype, expiry, cas))

    def _marks_of(self, row: Mapping[str, Any], key: Any) -> tuple[int, int]:
        """Flags and datatype."""
        json = int(Datatype.JSON)
        if self._is_text:
            return _number(row, "flags", FLAGS_JSON, key), json
        flags = _number(row, "flags", FLAGS_BINARY, key)
        return flags, _number(row, "datatype", 0, key) & json

    def _checked(self, write: Write) -> Write:
        if write.value is not None and len(write.value) > VALUE_BYTES_MAX:
            raise _bad_row(
                text_of_key(write.key),
                f"{len(write.value)} bytes; a document has at most {VALUE_BYTES_MAX}",
            )
        return write._replace(is_insert=True) if self._is_append else write


def _check_row_schema(schema: StructType, id_field: str) -> None:
    if id_field not in schema.fieldNames():
        raise _bad_schema(
            f"option idField names {id_field!r}, the columns are {', '.join(schema.names)}"
        )
    kind = schema[id_field].dataType
    if not isinstance(kind, (*_TEXT, *_WHOLE)):
        raise _bad_schema(f"column {id_field} is {kind.simpleString()}; a key is text or whole")
    for column in schema.fields:
        if column.name.startswith("_") and column.name != id_field:
            raise _bad_schema(
                f"column {column.name}: members that begin with _ are the node's own; rename it"
            )
        _check_type(column.name, column.dataType)


def _check_version(schema: StructType, version_field: str) -> None:
    if version_field not in schema.fieldNames():
        raise _bad_schema(
            f"option versionField names {version_field!r}, the columns are "
            f"{', '.join(schema.names)}"
        )
    kind = schema[version_field].dataType
    if not isinstance(kind, _WHOLE):
        raise _bad_schema(
            f"column {version_field} is {kind.simpleString()}; a version is a whole number, such "
            "as unix_micros(...) of a timestamp"
        )


def _check_type(name: str, kind: DataType) -> None:
    if isinstance(kind, StructType):
        if len(set(kind.names)) < len(kind.names):
            raise _bad_schema(f"a member of column {name} occurs twice: {', '.join(kind.names)}")
        for member in kind.fields:
            _check_type(f"{name}.{member.name}", member.dataType)
    elif isinstance(kind, ArrayType):
        _check_type(f"{name}[]", kind.elementType)
    elif isinstance(kind, MapType):
        if not isinstance(kind.keyType, _TEXT):
            raise _bad_schema(f"column {name} is {kind.simpleString()}; names in JSON are text")
        _check_type(f"{name}[]", kind.valueType)
    elif not isinstance(kind, _PLAIN):
        raise _bad_schema(
            f"column {name} is {kind.simpleString()}, which has no form in JSON; cast it"
        )


def _checked_key_name(schema: StructType) -> str:
    """Return the column of keys of rows that are keys and values."""
    kinds = {column.name: column.dataType for column in schema.fields}
    name = "key" if "key" in kinds else "id"
    if name not in kinds or "value" not in kinds:
        raise _bad_schema(
            f"the columns are {', '.join(kinds)}: write columns key and value, or name the "
            "column of keys with option idField to store whole rows as JSON"
        )
    for column in (name, "value"):
        if not isinstance(kinds[column], (*_TEXT, BinaryType)):
            raise _bad_schema(
                f"column {column} is {kinds[column].simpleString()}, not text or binary; "
                "to_json makes text of a struct"
            )
    for column, kind in kinds.items():
        if column in _OPTIONAL and not isinstance(kind, _OPTIONAL[column]):
            raise _bad_schema(f"column {column} is {kind.simpleString()}, which it cannot be")
    unknown = set(kinds) - {name, "value"} - set(_OPTIONAL) - _IGNORED
    if unknown:
        raise _bad_schema(
            f"columns {', '.join(sorted(unknown))} beside key and value would be lost: drop "
            "them, or store whole rows with option idField"
        )
    return name


def _key_of(key: Any) -> bytes:
    if key is None:
        raise UsageError("a row has no key: it is null", code="bad_row")
    try:
        raw = key if isinstance(key, bytes) else key_from_text(str(key))
    except ValueError as error:
        raise _bad_row(key, f"its key is no text that can be stored: {error}") from error
    if not 0 < len(raw) <= KEY_BYTES_MAX:
        raise _bad_row(key, f"its key has {len(raw)} bytes; a key has 1 to {KEY_BYTES_MAX}")
    if raw.startswith(b"_"):
        raise _bad_row(
            key, "keys that begin with _ are the node's own: leave it out, design documents are "
            "put with `millstream put`"
        )  # fmt: skip
    return raw


def _number(row: Mapping[str, Any], name: str, default: int, key: Any) -> int:
    found = row.get(name)
    if found is None:
        return default
    if not 0 <= found < _UINT32:
        raise _bad_row(key, f"{name} {found} is not within 32 bits")
    return int(found)


def _cas(row: Mapping[str, Any]) -> int:
    if row["cas"] is None:
        return 0
    return int(row["cas"]) & _UINT64_MASK  # 2**63 and more comes as two's complement


def _no_cas(row: Mapping[str, Any]) -> int:
    return 0


def _rows_in(batch: pa.RecordBatch) -> list[Mapping[str, Any]]:
    """Return a batch as Python values. Hot path."""
    batch = _as_utc(batch)
    names = batch.schema.names
    columns = [_values_in(column) for column in batch.columns]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def _values_in(column: pa.Array) -> list[Any]:
    """Return a column as Python values, by numpy where that gives the same."""
    kind = column.type
    is_text = pa.types.is_string(kind) or pa.types.is_binary(kind)
    is_number = pa.types.is_integer(kind) or pa.types.is_float64(kind)
    if is_text or (is_number and not column.null_count):
        return column.to_numpy(zero_copy_only=False).tolist()  # type: ignore[no-any-return]
    return column.to_pylist(maps_as_pydicts="strict")  # type: ignore[no-any-return]


def _as_utc(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch with its times in UTC, whatever the session's time zone is."""
    wanted = pa.schema([field.with_type(_utc(field.type)) for field in batch.schema])
    return batch if wanted.equals(batch.schema) else batch.cast(wanted)


def _utc(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    if pa.types.is_struct(kind):
        return pa.struct([member.with_type(_utc(member.type)) for member in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_utc(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_field, kind.item_field.with_type(_utc(kind.item_type)))
    return kind


def _rollback_row(row: Mapping[str, Any]) -> UsageError:
    return UsageError(
        f"a row says {row['op']!r} of partition {row.get('partition')}: a part of the change "
        "stream's history has to be undone, which this sink cannot do. Write the stream with "
        "foreachBatch and millstream.pipelines.apply_changes, which can",
        code="rollback_row",
    )


def _bad_row(key: Any, reason: str) -> UsageError:
    shown = key if isinstance(key, str) else text_of_key(key) if isinstance(key, bytes) else key
    return UsageError(f"row {str(shown)[:80]!r}: {reason}", code="bad_row")


def _bad_schema(reason: str) -> UsageError:
    return UsageError(f"this DataFrame cannot be written: {reason}", code="bad_schema")
