"""What a batch changes in a table that is written by whole transactions: Parquet files, Delta.

The versions of a partition are read once, when the batch first concerns it, and kept as the batch
makes them; what is to be written is collected until `commit`, which is the table's own.

Invariants:
1. Before `commit` nothing of the table changes; `begin` forgets what a batch before it collected.
2. `changed` and `gone` of a partition have no key in common, and what is the table's already is in
   neither.

Cost: O(rows of the partitions that a batch changes), for their versions.

Elsewhere: which rows (`sinks.repairing`), the tables (`sinks.parquet_target`,
`sinks.delta_target`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

import pyarrow as pa

from millstream.pipelines.change_stream.schema import ARROW_SCHEMA
from millstream.pipelines.sinks.batch_order import Writer, next_writer
from millstream.pipelines.sinks.change_rows import table_of
from millstream.pipelines.sinks.repairing import OP_PUT, Row, StoredVersion
from millstream.upr.core.repair import LoadState

__all__ = ["TABLE_SCHEMA", "VERSION_COLUMNS", "Held", "KeyedTable", "held_from", "loaded_table"]

_LOAD: Final = pa.field("load", pa.int64())
TABLE_SCHEMA: Final = ARROW_SCHEMA.append(_LOAD)
"""The columns of the source, and the load."""
VERSION_COLUMNS: Final = ["key", "op", "branch", "seqno", "load"]

Held = dict[str, StoredVersion]
"""The versions of a partition by key, tombstones included."""


class KeyedTable(ABC):
    """All of `repairing.KeyedTarget` but `begin` and `commit`.

    `states`: of all partitions. `changed`: rows to be put, with their load, and `gone`: keys to be
    removed, by partition. `query_id`: of the query that writes it; empty for not known.

    Args:
        name: as errors name it.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.query_id = ""
        self.restart({})

    def restart(self, states: Mapping[int, LoadState]) -> None:
        """Begin a batch on what is there now."""
        self.states: dict[int, LoadState] = dict(states)
        self.changed: dict[int, dict[str, tuple[Row, int]]] = {}
        self.gone: dict[int, set[str]] = {}
        self._held: dict[int, Held] = {}

    @abstractmethod
    def last_writer(self) -> Writer | None:
        """Return the newest batch that the table has a record of."""

    def enter(self, batch_id: int, query_id: str) -> None:
        """Refuse a batch that cannot be the next one."""
        anew = "begin with a new checkpoint and an empty table, or another one"
        this = Writer(batch_id, query_id)
        self.query_id = next_writer(self.last_writer(), this, self._name, anew).query

    @abstractmethod
    def stored_versions(self, partition: int) -> Held:
        """Return the versions that the table has."""

    def state(self, partition: int) -> LoadState | None:
        """Return what was set last."""
        return self.states.get(partition)

    def set_state(self, partition: int, state: LoadState) -> None:
        """Remember the state."""
        self.states[partition] = state

    def versions(self, partition: int, keys: Collection[str]) -> Mapping[str, StoredVersion]:
        """Return the versions of keys, tombstones included."""
        held = self._versions(partition)
        return {key: held[key] for key in keys if key in held}

    def keys_above(self, partition: int, branch: int, seqno: int) -> Collection[str]:
        """Return the keys of versions of a lower branch and a higher seqno."""
        held = self._versions(partition)
        return [k for k, found in held.items() if found.branch < branch and found.seqno > seqno]

    def put(self, partition: int, rows: Sequence[Row], load: int) -> None:
        """Replace what there is of these keys; what is there already costs nothing."""
        held, changed = self._versions(partition), self.changed.setdefault(partition, {})
        for row in rows:
            version = StoredVersion(
                partition, row.branch, row.seqno, row.key, row.is_deleted, load
            )
            if held.get(row.key) != version:
                held[row.key] = version
                changed[row.key] = row, load
        self.gone.get(partition, set()).difference_update(changed)

    def sweep(self, partition: int, load: int) -> None:
        """Remove what carries a lower load."""
        held = self._versions(partition)
        self._remove(partition, [key for key, found in held.items() if found.load < load])

    def retain(self, partition: int, keys: AbstractSet[str]) -> None:
        """Remove all keys but these."""
        self._remove(partition, [key for key in self._versions(partition) if key not in keys])

    def drop_tombstones(self, partition: int, seqno: int) -> int:
        """Forget tombstones at or below `seqno`, with whatever else the batch writes."""
        if not self.changed.get(partition):
            return 0
        held = self._versions(partition)
        dropped = [v for v in held.values() if v.is_deleted and v.seqno <= seqno]
        self._remove(partition, [version.key for version in dropped])
        return max((version.seqno for version in dropped), default=0)

    def _versions(self, partition: int) -> Held:
        if partition not in self._held:
            self._held[partition] = self.stored_versions(partition)
        return self._held[partition]

    def _remove(self, partition: int, keys: Sequence[str]) -> None:
        held, changed = self._versions(partition), self.changed.setdefault(partition, {})
        for key in keys:
            del held[key]
            changed.pop(key, None)
        self.gone.setdefault(partition, set()).update(keys)


def held_from(table: pa.Table, partition: int) -> Held:
    """Return the versions of a partition from a table of `VERSION_COLUMNS`."""
    columns = [table.column(name).to_pylist() for name in VERSION_COLUMNS]
    return {
        key: StoredVersion(partition, branch, seqno, key, op != OP_PUT, load)
        for key, op, branch, seqno, load in zip(*columns, strict=True)
    }


def loaded_table(rows: Iterable[tuple[Row, int]]) -> pa.Table:
    """Return rows and their loads as a table of `TABLE_SCHEMA`."""
    pairs = list(rows)
    loads = pa.array([load for _, load in pairs], _LOAD.type)
    return table_of([row for row, _ in pairs]).append_column(_LOAD, loads)
