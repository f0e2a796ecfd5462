"""Which rows of a range a read wants, by its options: `keyPrefix`, `tombstones`.

Spark's filters are not taken over (`DataSourceReader.pushFilters`). PySpark 4.2 and 4.3 keep the
ranges and the filters of one query with the loaded DataFrame, and use them for every later query
of it that pushes no filter, such as `count()`, and for both sides of a self-join. No Python code
is called then, so a source cannot correct it: rows would be missing without an error.

Elsewhere: batches (`reading`).
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from millstream.client.columns import OP_PUT, Columns

__all__ = ["rows_wanted"]


def rows_wanted(columns: Columns, key_prefix: str, *, is_live_only: bool) -> pa.Array | None:
    """Return which changes are wanted; None: all.

    Args:
        columns: the changes.
        key_prefix: with which the text form of a key begins.
        is_live_only: without deletions.
    """
    mask = None
    if is_live_only and columns.op.count(OP_PUT) < len(columns):
        mask = pc.equal(pa.array(columns.op, pa.string()), OP_PUT)
    if key_prefix:
        begins = pc.starts_with(pa.array(columns.key, pa.string()), key_prefix)
        mask = begins if mask is None else pc.and_(mask, begins)
    return mask
