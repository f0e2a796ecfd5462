"""The reduce side of the views pipeline: the latest state of all keys to reduced rows.

The JVM groups what all live documents emit by (view, exact key) and adds integers and floats up;
what it cannot add comes out value by value with its number, and is reduced here.

Invariants:
1. Integers are exact: sums and squares of integers of at most 2^53 fit decimals of 38 digits for
   more rows than a partition has seqnos; larger integers are added here.
2. One pass over the state: counters and errors travel as rows of views -1 and -2.
3. A design document's own reduce runs in Spark's Python workers, on whole groups.

Cost: every batch reads all documents of the state, so O(documents) per batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import pyarrow as pa
from pyspark.sql import functions as F

from millstream.pipelines.view_map import mapper_of
from millstream.views.aio.mapping import reduce_groups
from millstream.views.core.design import DesignDocument, parse_design
from millstream.views.core.documents import document_id
from millstream.views.core.reduce import error_value, merge, reduce_values

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql import Column, DataFrame

__all__ = [
    "OWN_COLUMNS",
    "ReducedBatch",
    "ViewRow",
    "latest_state",
    "own_groups",
    "reduce_own_batches",
    "reduced_groups",
    "reduced_rows",
]

COUNTERS: Final = -1
ERRORS: Final = -2
ERRORS_SHOWN_MAX: Final = 20
"""Messages of failed map calls that are kept for people to read."""
OWN_COLUMNS: Final = "view int, key string, value string"
_OWN_SCHEMA: Final = pa.schema(
    [("view", pa.int32()), ("key", pa.string()), ("value", pa.string())]
)


class ViewRow(NamedTuple):
    """One row to be kept: `value` of a reduced key, or `rows` of a document in a map-only view."""

    view: int
    key: str
    doc_id: str | None
    content: bytes  # JSON text of the value, or of the array of values


@dataclass(slots=True)
class ReducedBatch:
    """What a batch comes to."""

    rows: list[ViewRow] = field(default_factory=list)
    documents: int = 0
    rows_streamed: int = 0
    updates: int = 0
    deletes: int = 0
    map_errors: dict[int, int] = field(default_factory=dict)
    error_samples: list[tuple[int, str, str]] = field(default_factory=list)


def latest_state(mapped: DataFrame) -> DataFrame:
    """Return the newest version of every key, with the number of its changes seen so far.

    `mapped` has the columns of `view_map.OUT_COLUMNS`. Keyed state lives in the JVM.
    """
    return mapped.groupBy("partition", "key").agg(
        F.max_by(
            F.struct("is_document", "emitted", "errors"), F.struct("branch", "seqno")
        ).alias("latest"),
        F.sum(F.col("is_put").cast("bigint")).alias("puts"),
        F.count("*").alias("changes"),
    )  # fmt: skip


def reduced_groups(state: DataFrame, design: DesignDocument) -> DataFrame:
    """Return one row per (view, key, document where the view is map-only, value no number)."""
    emitted = _emitted_rows(state, with_signals=True)
    own = [at for at, view in enumerate(design.views) if view.has_own_reduce]
    if own:
        emitted = emitted.where(~F.col("view").isin(own))
    map_only = [at for at, view in enumerate(design.views) if not view.reduce]
    doc_id = F.when(F.col("view").isin(map_only), F.col("doc_id")) if map_only else _no_text()
    number, real = F.col("number"), F.col("real")
    small = number.cast("decimal(18,0)")
    return (
        emitted.groupBy("view", "key", doc_id.alias("doc_id"), "value")
        .agg(
            F.count("*").alias("rows"),
            F.count(number).alias("ints"),
            F.sum(number.cast("decimal(38,0)")).cast("string").alias("int_sum"),
            F.min(number).alias("int_min"),
            F.max(number).alias("int_max"),
            F.sum((small * small).cast("decimal(38,0)")).cast("string").alias("int_sumsqr"),
            F.count(real).alias("reals"),
            F.sum(real).alias("real_sum"),
            F.min(real).alias("real_min"),
            F.max(real).alias("real_max"),
            F.sum(real * real).alias("real_sumsqr"),
            F.min(F.when(F.col("view") == ERRORS, F.col("sample_id"))).alias("sample_id"),
        )
    )  # fmt: skip


def own_groups(state: DataFrame, design: DesignDocument) -> DataFrame:
    """Return one row per (view, key) of views with a reduce function of their own."""
    own = [at for at, view in enumerate(design.views) if view.has_own_reduce]
    return (
        _emitted_rows(state, with_signals=False)
        .where(F.col("view").isin(own))
        .groupBy("view", "key")
        .agg(F.sort_array(F.collect_list(F.struct("doc_id", "value"))).alias("members"))
    )


def _emitted_rows(state: DataFrame, *, with_signals: bool) -> DataFrame:
    live = F.col("latest.is_document")
    members = F.when(live, F.col("latest.emitted")).otherwise(F.array())
    if with_signals:
        members = F.concat(
            members,
            F.when(live, F.transform("latest.errors", _error_row)).otherwise(F.array()),
            F.array(_counter_row()),
        )
    return state.select(F.col("key").alias("doc_id"), F.explode(members).alias("row")).select(
        "doc_id", F.col("doc_id").alias("sample_id"), "row.*"
    )


def _error_row(error: Column) -> Column:
    return _row(ERRORS, error["view"].cast("string"), error["message"])


def _counter_row() -> Column:
    # Few distinct texts, so this costs one group each and no further column.
    text = F.concat_ws(",", "puts", "changes", F.col("latest.is_document").cast("int"))
    return _row(COUNTERS, text, _no_text())


def _row(view: int, key: Column, value: Column) -> Column:
    return F.struct(
        F.lit(view).alias("view"),
        key.alias("key"),
        F.lit(None).cast("bigint").alias("number"),
        F.lit(None).cast("double").alias("real"),
        value.alias("value"),
    )


def _no_text() -> Column:
    return F.lit(None).cast("string")


def reduce_own_batches(
    design_json: bytes, modules: Sequence[str], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield OWN_COLUMNS for batches of `own_groups`; runs in Spark's Python workers."""
    design = parse_design(msgspec.json.decode(design_json))
    mapper = mapper_of(design, modules)
    decode = msgspec.json.decode
    for batch in batches:
        groups: dict[int, list[tuple[str, list[Any], list[Any]]]] = {}
        for row in batch.to_pylist():
            key = decode(row["key"])
            keys = [[key, document_id(member["doc_id"])] for member in row["members"]]
            values = [decode(member["value"]) for member in row["members"]]
            groups.setdefault(row["view"], []).append((row["key"], keys, values))
        out: list[tuple[int, str, str]] = []
        for view, members in groups.items():
            results = reduce_groups(mapper, view, [(keys, values) for _, keys, values in members])
            out += [
                (view, key, msgspec.json.encode(result).decode())
                for (key, _, _), result in zip(members, results, strict=True)
            ]
        yield pa.RecordBatch.from_pylist(
            [dict(zip(_OWN_SCHEMA.names, row, strict=True)) for row in out], schema=_OWN_SCHEMA
        )


def reduced_rows(design: DesignDocument, groups: pa.Table, own: pa.Table | None) -> ReducedBatch:
    """Finish what the JVM grouped (`reduced_groups`, and results of `reduce_own_batches`)."""
    batch = ReducedBatch()
    by_key: dict[tuple[int, str, str | None], list[dict[str, Any]]] = {}
    for chunk in groups.to_batches():
        for row in chunk.to_pylist():
            if row["view"] >= 0:
                by_key.setdefault((row["view"], row["key"], row["doc_id"]), []).append(row)
            elif row["view"] == COUNTERS:
                _count(batch, row)
            else:
                _note_error(batch, row)
    for (view, key, doc_id), parts in by_key.items():
        reduce = design.views[view].reduce
        content = _reduced(reduce, parts) if reduce else _listed(parts)
        # The stream's text form of a key escapes where a document id does not.
        shown_id = None if doc_id is None else document_id(doc_id)
        batch.rows.append(ViewRow(view, key, shown_id, content))
    if own is not None:
        batch.rows += [
            ViewRow(row["view"], row["key"], None, row["value"].encode())
            for row in own.to_pylist()
        ]
    return batch


def _count(batch: ReducedBatch, row: dict[str, Any]) -> None:
    puts, changes, is_live = map(int, row["key"].split(","))
    keys = row["rows"]
    batch.documents += keys * is_live
    batch.rows_streamed += keys * changes
    batch.updates += keys * max(puts - 1, 0)
    batch.deletes += keys * min(changes - puts, puts)


def _note_error(batch: ReducedBatch, row: dict[str, Any]) -> None:
    view = int(row["key"])
    batch.map_errors[view] = batch.map_errors.get(view, 0) + row["rows"]
    if len(batch.error_samples) < ERRORS_SHOWN_MAX:
        batch.error_samples.append((view, row["sample_id"], row["value"]))


def _listed(parts: list[dict[str, Any]]) -> bytes:
    texts = [part["value"] for part in parts for _ in range(part["rows"])]
    return ("[" + ",".join(sorted(texts)) + "]").encode()


def _reduced(reduce: str, parts: list[dict[str, Any]]) -> bytes:
    partials = [partial for part in parts for partial in _partials(reduce, part)]
    result = partials[0] if len(partials) == 1 else merge(reduce, partials)
    return msgspec.json.encode(result)


def _partials(reduce: str, part: dict[str, Any]) -> Iterator[Any]:
    if reduce == "_count":
        yield part["rows"]
        return
    if part["value"] is not None:
        try:
            value = msgspec.json.decode(part["value"])
        except (msgspec.DecodeError, RecursionError) as error:
            yield error_value(f"a value that cannot be read: {error}", None)
        else:
            yield reduce_values(reduce, [value] * part["rows"])
        return
    for kind, prefix in (("ints", "int"), ("reals", "real")):
        if part[kind]:
            whole = {
                "sum": _number(part[f"{prefix}_sum"]),
                "count": part[kind],
                "min": part[f"{prefix}_min"],
                "max": part[f"{prefix}_max"],
                "sumsqr": _number(part[f"{prefix}_sumsqr"]),
            }
            yield whole["sum"] if reduce == "_sum" else whole


def _number(value: str | float) -> int | float:
    return int(value) if isinstance(value, str) else value
