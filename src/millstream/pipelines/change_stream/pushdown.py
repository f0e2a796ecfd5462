"""The filters of Spark that a batch read applies itself, with the option `pushdown`.

Invariants:
1. An accepted filter is applied to every row here, exactly, because Spark does not check again.
   Partitions and seqnos that are not read are only savings.
2. Accepted are: `partition` = and in; `seqno` =, <, <=, >, >=; `key` = and in, and its beginning;
   and "is not null" of columns that are never null. All others are left to Spark.

Spark 4.3 keeps the filters of the first query with the loaded DataFrame, and uses them for every
later query of it that pushes no filter, including self-joins: then rows are missing without an
error. So the option is off by default, and its users load a DataFrame for each query.

Elsewhere: Spark's call (`source.PushdownReader`), batches (`reading`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import datasource as spark_api

from millstream.client.columns import OP_PUT, Columns
from millstream.model.partitions import key_from_text, partition_of

__all__ = ["Pushed", "push"]

SEQNO_MAX: Final = 2**63 - 1
_NEVER_NULL: Final = frozenset({"op", "partition", "branch", "seqno", "key"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Pushed:
    """Filters that a read applies; all of them hold. None: no such filter."""

    partition_ids: frozenset[int] | None = None
    seqno_min: int = 0
    seqno_max: int = SEQNO_MAX
    keys: frozenset[str] | None = None
    prefixes: tuple[str, ...] = ()
    is_live_only: bool = False
    """No deletions: what the option `tombstones` says of a batch read."""

    def beginning(self, prefix: str) -> Pushed:
        """Return the same for keys that also begin so."""
        return replace(self, prefixes=(*self.prefixes, prefix)) if prefix else self

    def reads_partition(self, partition_id: int, partition_count: int) -> bool:
        """Whether a partition may have a row that is wanted."""
        if self.partition_ids is not None and partition_id not in self.partition_ids:
            return False
        if self.keys is None:
            return True
        return any(_partition_of(key, partition_count) == partition_id for key in self.keys)

    def mask(self, columns: Columns) -> pa.Array | None:
        """Return which changes are wanted; None: all."""
        found = []
        if self.is_live_only and columns.op.count(OP_PUT) < len(columns):
            found.append(pc.equal(pa.array(columns.op, pa.string()), OP_PUT))
        if self.partition_ids is not None:
            ids = pa.array(sorted(self.partition_ids), pa.int32())
            found.append(pc.is_in(pa.array(columns.partition, pa.int32()), ids))
        if self.seqno_min > 0 or self.seqno_max < SEQNO_MAX:
            seqnos = pa.array(columns.seqno, pa.int64())
            found.append(pc.greater_equal(seqnos, self.seqno_min))
            found.append(pc.less_equal(seqnos, self.seqno_max))
        if self.keys is not None or self.prefixes:
            keys = pa.array(columns.key, pa.string())
            if self.keys is not None:
                found.append(pc.is_in(keys, pa.array(sorted(self.keys), pa.string())))
            found += [pc.starts_with(keys, prefix) for prefix in self.prefixes]
        if not found:
            return None
        mask = found[0]
        for other in found[1:]:
            mask = pc.and_(mask, other)
        return mask


def push(
    filters: Sequence[spark_api.Filter],
    pushed: Pushed = Pushed(),  # never changes
) -> tuple[Pushed, list[spark_api.Filter]]:
    """Return `pushed` with the filters that are taken, and those that are left to Spark."""
    left = []
    for one in filters:
        taken = _taken(pushed, one)
        if taken is None:
            left.append(one)
        else:
            pushed = taken
    return pushed, left


def _taken(pushed: Pushed, one: spark_api.Filter) -> Pushed | None:
    """Return what holds with one more filter; None: it is not for us."""
    name, values = _simple(one)
    if isinstance(one, spark_api.IsNotNull):
        return pushed if name in _NEVER_NULL else None
    if name == "partition" and _is_one_of(one) and _are(int, values):
        return replace(pushed, partition_ids=_both(pushed.partition_ids, values))
    if name == "key" and _is_one_of(one) and _are(str, values):
        return replace(pushed, keys=_both(pushed.keys, values))
    if name == "key" and isinstance(one, spark_api.StringStartsWith):
        return replace(pushed, prefixes=(*pushed.prefixes, one.value))
    if name == "seqno" and _are(int, values):
        change = _BOUNDS.get(type(one))
        return None if change is None else change(pushed, values[0])
    return None


def _simple(one: spark_api.Filter) -> tuple[str, list[Any]]:
    """Return the column and the value of a filter.

    The column is empty if it is not one of ours.
    """
    attribute: Sequence[str] = getattr(one, "attribute", ())
    value: Any = getattr(one, "value", None)
    values = list(value) if isinstance(one, spark_api.In) else [value]
    return attribute[0] if len(attribute) == 1 else "", values


def _is_one_of(one: spark_api.Filter) -> bool:
    return isinstance(one, spark_api.EqualTo | spark_api.In)


def _are(kind: type, values: Sequence[Any]) -> bool:
    return bool(values) and all(type(value) is kind for value in values)


def _both(held: frozenset[Any] | None, values: Iterable[Any]) -> frozenset[Any]:
    return frozenset(values) if held is None else held & frozenset(values)


def _at_least(pushed: Pushed, seqno: int) -> Pushed:
    return replace(pushed, seqno_min=max(pushed.seqno_min, seqno))


def _at_most(pushed: Pushed, seqno: int) -> Pushed:
    return replace(pushed, seqno_max=min(pushed.seqno_max, seqno))


_BOUNDS: Final[dict[type, Callable[[Pushed, int], Pushed]]] = {
    spark_api.EqualTo: lambda pushed, seqno: _at_least(_at_most(pushed, seqno), seqno),
    spark_api.GreaterThan: lambda pushed, seqno: _at_least(pushed, seqno + 1),
    spark_api.GreaterThanOrEqual: _at_least,
    spark_api.LessThan: lambda pushed, seqno: _at_most(pushed, seqno - 1),
    spark_api.LessThanOrEqual: _at_most,
}


def _partition_of(key: str, partition_count: int) -> int:
    try:
        return partition_of(key_from_text(key), partition_count)
    except ValueError:
        return -1  # no key has such a text form
