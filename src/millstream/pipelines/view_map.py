"""The map side of the views pipeline: change rows in, what each document emits out.

Runs in Spark's Python workers. Per change one row: the version of the key, and the list of what
the maps of the design document emit for the document at that version.

Invariants:
1. No key or value that a client can write makes it raise: what is no JSON document emits nothing.
2. Every emitted row has at most one of `number` (integer of at most 2^53), `real` and `value`
   (any other JSON text, or any text where the view does not reduce numbers).
3. All batches have exactly OUT_SCHEMA.

Elsewhere: the functions (`views.aio.mapping`), the latest state per key (`pipelines.views`).
"""

from __future__ import annotations

from importlib import import_module
from math import isfinite
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from millstream.views.aio.mapping import Mapper, open_mapper
from millstream.views.core.design import DesignDocument, View, parse_design
from millstream.views.core.documents import document_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from millstream.views.aio.sandbox import Mapped

__all__ = [
    "IN_COLUMNS",
    "NUMBER_MAX",
    "OUT_COLUMNS",
    "OUT_SCHEMA",
    "import_modules",
    "map_batches",
    "mapper_of",
]

NUMBER_MAX: Final = 2**53
"""Integers up to this size are summed in the JVM, exactly; larger ones here, exactly too."""
IN_COLUMNS: Final = (
    "op string, partition int, branch bigint, seqno bigint, key string, value binary"
)
OUT_COLUMNS: Final = (
    "partition int, key string, branch bigint, seqno bigint, is_put boolean, is_document boolean, "
    "emitted array<struct<view:int,key:string,number:bigint,real:double,value:string>>, "
    "errors array<struct<view:int,message:string>>"
)
_EMITTED: Final = pa.struct(
    [
        ("view", pa.int32()),
        ("key", pa.string()),
        ("number", pa.int64()),
        ("real", pa.float64()),
        ("value", pa.string()),
    ]
)
_ERROR: Final = pa.struct([("view", pa.int32()), ("message", pa.string())])
OUT_SCHEMA: Final = pa.schema(
    [
        ("partition", pa.int32()),
        ("key", pa.string()),
        ("branch", pa.int64()),
        ("seqno", pa.int64()),
        ("is_put", pa.bool_()),
        ("is_document", pa.bool_()),
        ("emitted", pa.list_(_EMITTED)),
        ("errors", pa.list_(_ERROR)),
    ]
)

_PUTS: Final = frozenset({"put"})
_CHANGES: Final = frozenset({"put", "delete", "expire"})
_mappers: dict[str, Mapper] = {}


def map_batches(
    design_json: bytes, modules: Sequence[str], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield one row per change of `batches` (IN_COLUMNS); rows that are no changes are left out.

    Args:
        design_json: the design document.
        modules: modules that register Python functions.
        batches: change rows.
    """
    design = parse_design(msgspec.json.decode(design_json))
    mapper = mapper_of(design, modules)
    for batch in batches:
        yield _map_batch(design, mapper, batch)


def mapper_of(design: DesignDocument, modules: Sequence[str]) -> Mapper:
    """Return this process's mapper of a design document; workers are used again and again."""
    mapper = _mappers.get(design.named_signature)
    if mapper is None:
        for other in _mappers.values():
            other.close()
        _mappers.clear()
        import_modules(modules)
        mapper = _mappers[design.named_signature] = open_mapper(design)
    return mapper


def import_modules(modules: Sequence[str]) -> None:
    """Import the modules that register Python functions."""
    for module in modules:
        import_module(module)


def _map_batch(design: DesignDocument, mapper: Mapper, batch: pa.RecordBatch) -> pa.RecordBatch:
    ops: list[str] = batch.column("op").to_pylist()
    keys: list[str] = batch.column("key").to_pylist()
    values: list[bytes | None] = batch.column("value").to_pylist()
    documents: list[bytes] = []
    places: list[int] = []
    for at, (op, key, value) in enumerate(zip(ops, keys, values, strict=True)):
        if op in _PUTS and value is not None:
            document = document_text(key, value)
            if document is not None:
                documents.append(document)
                places.append(at)
    emitted = _Emitted([_shape_of(view) for view in design.views])
    errors = _Errors()
    is_document = [False] * len(ops)
    next_place = 0
    for place, mapped in zip(places, mapper.map(documents), strict=True):
        emitted.skip(place - next_place)
        errors.skip(place - next_place)
        emitted.add(mapped)
        errors.add(mapped)
        is_document[place] = True
        next_place = place + 1
    emitted.skip(len(ops) - next_place)
    errors.skip(len(ops) - next_place)
    out = pa.RecordBatch.from_arrays(
        [
            batch.column("partition"),
            batch.column("key"),
            batch.column("branch"),
            batch.column("seqno"),
            pa.array([op in _PUTS for op in ops], pa.bool_()),
            pa.array(is_document, pa.bool_()),
            emitted.array(),
            errors.array(),
        ],
        schema=OUT_SCHEMA,
    )
    if all(op in _CHANGES for op in ops):
        return out
    # Rollback and sweep rows carry no key; a source that must roll back ends the query itself.
    return out.filter(pa.array([op in _CHANGES for op in ops], pa.bool_()))


_Value = tuple["int | None", "float | None", "str | None"]


def _shape_of(view: View) -> Callable[[Any], _Value]:
    if view.reduce == "_count":
        return _nothing
    return _number_or_text if view.has_builtin_reduce else _text


def _nothing(text: Any) -> _Value:
    return None, None, None


def _text(text: Any) -> _Value:
    return None, None, bytes(text).decode()


def _number_or_text(text: Any) -> _Value:
    data = bytes(text)
    try:
        number = int(data)
    except ValueError:
        pass
    else:
        is_small = -NUMBER_MAX <= number <= NUMBER_MAX
        return (number, None, None) if is_small else (None, None, data.decode())
    try:
        real = float(data)
    except ValueError:
        return None, None, data.decode()
    return (None, real, None) if isfinite(real) else (None, None, data.decode())


class _Lists:
    """Offsets of a list column: how many members each row has."""

    def __init__(self) -> None:
        self.offsets = [0]

    def skip(self, count: int) -> None:
        """Add rows without members."""
        self.offsets += [self.offsets[-1]] * count


class _Emitted(_Lists):
    def __init__(self, shapes: Sequence[Callable[[Any], _Value]]) -> None:
        super().__init__()
        self._shapes = shapes
        self._rows: list[tuple[int, str, int | None, float | None, str | None]] = []

    def add(self, mapped: Mapped) -> None:
        shapes = self._shapes
        self._rows += [
            (view, bytes(key).decode(), *shapes[view](value)) for view, key, value in mapped.rows
        ]
        self.offsets.append(len(self._rows))

    def array(self) -> pa.Array:
        columns: list[Sequence[Any]] = list(zip(*self._rows, strict=True))
        columns = columns or [()] * len(_EMITTED)
        arrays = [
            pa.array(column, field.type) for column, field in zip(columns, _EMITTED, strict=True)
        ]
        struct = pa.StructArray.from_arrays(arrays, fields=list(_EMITTED))
        return pa.ListArray.from_arrays(pa.array(self.offsets, pa.int32()), struct)


class _Errors(_Lists):
    def __init__(self) -> None:
        super().__init__()
        self._views: list[int] = []
        self._messages: list[str] = []

    def add(self, mapped: Mapped) -> None:
        for error in mapped.errors:
            self._views.append(error.view)
            self._messages.append(error.message)
        self.offsets.append(len(self._views))

    def array(self) -> pa.Array:
        struct = pa.StructArray.from_arrays(
            [pa.array(self._views, pa.int32()), pa.array(self._messages, pa.string())],
            fields=list(_ERROR),
        )
        return pa.ListArray.from_arrays(pa.array(self.offsets, pa.int32()), struct)
