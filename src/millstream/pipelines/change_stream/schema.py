"""The rows of the change stream as Spark sees them: names, types, Arrow batches.

Invariants:
1. Every batch of a read has exactly the schema that Spark derives for it. Spark checks the first
   batch only: another one that differs would be read as garbage.
2. No change that a client can write makes a batch fail (see `client.columns`).
3. `branch` of a row is the history it was read from.

Source: the contract of the Spark source in the design.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql.types import StructType

from millstream.client.columns import Columns
from millstream.errors import UsageError
from millstream.model.limits import PARTITIONS_MAX

__all__ = [
    "ARROW_SCHEMA",
    "OP_ROLLBACK",
    "OP_SWEEP",
    "SPARK_SCHEMA",
    "SPARK_TYPES",
    "BranchTable",
    "MarkRow",
    "RowForm",
    "branch_table",
    "chosen_schema",
    "row_form",
]

OP_ROLLBACK: Final = "rollback"
OP_SWEEP: Final = "sweep"

SPARK_TYPES: Final = {
    "op": "string",
    "partition": "int",
    "branch": "bigint",
    "seqno": "bigint",
    "key": "string",
    "cas": "bigint",
    "rev": "bigint",
    "expiry": "bigint",
    "flags": "bigint",
    "datatype": "int",
    "value": "binary",
    "ts": "timestamp",
    "meta": "binary",
}
_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
_ARROW_TYPES: Final = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "binary": pa.binary(),
    "timestamp": _TIMESTAMP,
}
ARROW_SCHEMA: Final = pa.schema([(name, _ARROW_TYPES[kind]) for name, kind in SPARK_TYPES.items()])
"""All columns, as Arrow has them."""
SPARK_SCHEMA: Final = ", ".join(f"{name} {kind}" for name, kind in SPARK_TYPES.items())
_CUT: Final = frozenset(column.name for column in fields(Columns))
_NS_PER_US: Final = 1000


BranchTable = np.ndarray[tuple[int], np.dtype[np.int64]]
"""Branch by partition id."""


class MarkRow(NamedTuple):
    """A row that is no change: `op` rollback or sweep; `load` travels in the column rev."""

    op: str
    partition: int
    branch: int
    seqno: int
    load: int


class RowForm:
    """Builds the batches of one read.

    Args:
        schema: the columns that were asked for, in that order.
        has_values: whether the column value, if it was asked for, is to be filled.
        has_meta: whether the column meta, if it was asked for, is to be filled.
    """

    def __init__(
        self, schema: pa.Schema, *, has_values: bool = True, has_meta: bool = False
    ) -> None:
        self.schema = schema
        self.has_values = has_values and "value" in schema.names
        """Whether values have to be read at all."""
        self.has_meta = has_meta and "meta" in schema.names
        """Whether lineages have to be read at all."""
        absent = {"value": self.has_values, "meta": self.has_meta}
        self._cut = _CUT - {name for name, is_read in absent.items() if not is_read}

    def batch(
        self, columns: Columns, branches: BranchTable, mask: pa.Array | None = None
    ) -> pa.RecordBatch:
        """Return the changes in `columns`, with a mask those that it chooses."""
        arrays = [self._array(columns, name, branches) for name in self.schema.names]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        return batch if mask is None else batch.filter(mask)

    def marks(self, rows: Sequence[MarkRow]) -> pa.RecordBatch:
        """Return rows that are no changes as a batch; what they do not have is null."""
        given = {
            "op": [row.op for row in rows],
            "partition": [row.partition for row in rows],
            "branch": [row.branch for row in rows],
            "seqno": [row.seqno for row in rows],
            "rev": [row.load for row in rows],
        }
        arrays = [
            pa.array(given.get(column.name, [None] * len(rows)), column.type)
            for column in self.schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _array(self, columns: Columns, name: str, branches: BranchTable) -> pa.Array:
        if name in self._cut:
            return pa.array(getattr(columns, name), self.schema.field(name).type)
        if name == "branch":
            return pa.array(branches[np.array(columns.partition, np.int32)])
        if name == "ts":
            # The clock in a CAS is unsigned; one beyond 2**63 is held as two's complement.
            cas_ns = np.array(columns.cas, np.int64).view(np.uint64)
            return pa.array((cas_ns // _NS_PER_US).view(np.int64)).view(_TIMESTAMP)
        return pa.nulls(len(columns), self.schema.field(name).type)


def branch_table(branches: Mapping[int, int]) -> BranchTable:
    """Return branch numbers as the table that `RowForm.batch` looks them up in."""
    table = np.zeros(PARTITIONS_MAX, np.int64)
    for partition_id, branch in branches.items():
        table[partition_id] = branch
    return table


def row_form(schema: StructType, *, has_values: bool = True, has_meta: bool = False) -> RowForm:
    """Return the form of a read whose schema Spark says is `schema`; see `RowForm`.

    Raises:
        UsageError: `bad_schema`: a column this source does not have, or one of another type.
    """
    found = chosen_schema(schema, SPARK_TYPES, "millstream")
    return RowForm(found, has_values=has_values, has_meta=has_meta)


def chosen_schema(schema: StructType, kinds: Mapping[str, str], format_name: str) -> pa.Schema:
    """Return the columns that were asked for as Arrow has them.

    Args:
        schema: as Spark passes it.
        kinds: Spark's name of the type, by name of each column that there is.
        format_name: for messages.

    Raises:
        UsageError: `bad_schema`: a column that is not there, or of another type.
    """
    found = []
    for column in schema.fields:
        kind = column.dataType.simpleString()
        if kinds.get(column.name) != kind:
            known = ", ".join(f"{name} {of}" for name, of in kinds.items())
            raise UsageError(
                f"column {column.name} {kind} is not one of the {format_name} source, which has: "
                f"{known}",
                code="bad_schema",
            )
        found.append(pa.field(column.name, _ARROW_TYPES[kind], nullable=column.nullable))
    return pa.schema(found)
