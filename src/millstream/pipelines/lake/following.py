"""A table that follows a bucket, and beside it a log of everything that the table was given.

    DIR/table/                  the newest row of each key, see `sinks.parquet_target` or
                                `sinks.delta_target`
    DIR/log/000000000007.parquet

A file of the log has the columns of the source and `batch`; its rows are those that one batch gave
the table, in their order: changes, the documents that were fetched after a rollback, and rows with
op `removed`, which have a key and nothing else, of what a load or a purge made void.

Invariants:
1. For each partition and key the last row of the log is what the table has; the key is not there
   if that is no `put`. Whoever reads the log needs no rule about histories (`newest_rows`).
2. The rows of a batch are durable before the table has it, and become part of the log after. A
   file whose batch the table never had is thrown away; one whose batch it has is put into the log:
   told apart by the stamp of the table that the batch began with, which is in the file's name.
3. A file of the log never changes. One process writes.

Elsewhere: the rules of rollbacks (`sinks.repairing`), the query (`table_query`).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from millstream.errors import UsageError
from millstream.pipelines.sinks.change_rows import table_of
from millstream.pipelines.sinks.delta_target import DeltaTarget
from millstream.pipelines.sinks.parquet_target import CURRENT, ParquetTarget
from millstream.pipelines.sinks.repairing import OP_PUT, KeyedTarget, Row, StoredVersion
from millstream.runtime.files import sync_directory
from millstream.upr.core.repair import LoadState

__all__ = ["OP_REMOVED", "FollowedTable", "TableForm", "newest_rows", "table_of_form"]

OP_REMOVED: Final = "removed"
_EVERY_BRANCH: Final = 2**63
_BATCH: Final = pa.field("batch", pa.int64())
_PENDING: Final = "pending-"

TableForm = Literal["parquet", "delta"]
_MARKS: Final[Mapping[TableForm, str]] = {"parquet": CURRENT, "delta": "_delta_log"}
"""What a directory has that holds such a table."""


class FollowedTable:
    """A `repairing.KeyedTarget`: a table in DIR/table, its rows logged in DIR/log.

    Args:
        path: DIR, which exists.
        form: of the table.

    Raises:
        UsageError: `other_format`: the table that is there has another form; `missing_package`.
    """

    def __init__(self, path: Path, form: TableForm = "parquet") -> None:
        self.table = table_of_form(path / "table", form)
        self._inner: KeyedTarget = self.table
        self._log = path / "log"
        self._log.mkdir(exist_ok=True)
        self._rows: list[Row] = []

    # -- reading what is there: as of the table

    def state(self, partition: int) -> LoadState | None:
        """Return what was set last."""
        return self._inner.state(partition)

    def versions(self, partition: int, keys: Collection[str]) -> Mapping[str, StoredVersion]:
        """Return the versions of keys, tombstones included."""
        return self._inner.versions(partition, keys)

    def keys_above(self, partition: int, branch: int, seqno: int) -> Collection[str]:
        """Return the keys of versions of a lower branch and a higher seqno."""
        return self._inner.keys_above(partition, branch, seqno)

    # -- writing

    def enter(self, batch_id: int, query_id: str) -> None:
        """Refuse a batch that cannot be the next one."""
        self._inner.enter(batch_id, query_id)

    def begin(self, partitions: Collection[int], partition_count: int) -> None:
        """Begin a batch; what the one before left undecided is decided first (invariant 2)."""
        self._settle()
        self._rows = []
        self._inner.begin(partitions, partition_count)

    def set_state(self, partition: int, state: LoadState) -> None:
        """Remember the state."""
        self._inner.set_state(partition, state)

    def put(self, partition: int, rows: Sequence[Row], load: int) -> None:
        """Replace what there is of these keys."""
        self._inner.put(partition, rows, load)
        self._rows += rows

    def sweep(self, partition: int, load: int) -> None:
        """Remove what carries a lower load."""
        held = self._held(partition)
        self._inner.sweep(partition, load)
        self._removed(partition, (key for key, found in held.items() if found.load < load))

    def retain(self, partition: int, keys: AbstractSet[str]) -> None:
        """Remove all keys but these."""
        held = self._held(partition)
        self._inner.retain(partition, keys)
        self._removed(partition, (key for key in held if key not in keys))

    def drop_tombstones(self, partition: int, seqno: int) -> int:
        """Forget tombstones at or below; the log keeps its rows."""
        return self._inner.drop_tombstones(partition, seqno)

    def commit(self, batch_id: int) -> None:
        """Make the rows durable, then the table, then the rows a part of the log."""
        if not self._rows:
            self._inner.commit(batch_id)
            return
        pending = self._log / f"{_PENDING}{self.table.stamp()}"
        batch = pa.array([batch_id] * len(self._rows), _BATCH.type)
        _write(pending, table_of(self._rows).append_column(_BATCH, batch))
        sync_directory(self._log)
        self._inner.commit(batch_id)
        self._accept(pending)

    # -- private

    def _held(self, partition: int) -> Mapping[str, StoredVersion]:
        keys = self._inner.keys_above(partition, _EVERY_BRANCH, -1)
        return self._inner.versions(partition, keys)

    def _removed(self, partition: int, keys: Iterable[str]) -> None:
        self._rows += [Row(OP_REMOVED, partition, 0, 0, key) for key in sorted(keys)]

    def _settle(self) -> None:
        for pending in self._log.glob(f"{_PENDING}*"):
            if pending.name == _PENDING + self.table.stamp():
                pending.unlink()  # the table never had it
            else:
                self._accept(pending)

    def _accept(self, pending: Path) -> None:
        newest = max((int(file.stem) for file in self._log.glob("*.parquet")), default=0)
        pending.rename(self._log / f"{newest + 1:012}.parquet")
        sync_directory(self._log)


def table_of_form(path: Path, form: TableForm) -> ParquetTarget | DeltaTarget:
    """Return the table in a directory, which is made if it is not there.

    Raises:
        UsageError: `other_format`, `missing_package`.
    """
    for other, mark in _MARKS.items():
        if other != form and (path / mark).exists():
            raise UsageError(
                f"{path} is a table in the form {other}, not {form}: say --format {other}, or "
                "begin with another directory",
                code="other_format",
            )
    return DeltaTarget(path) if form == "delta" else ParquetTarget(path)


def newest_rows(path: Path) -> dict[tuple[int, str], dict[str, Any]]:
    """Return (partition, key) -> row of all keys that are there, from the log of DIR alone.

    Args:
        path: DIR. All keys have to fit into memory.
    """
    found: dict[tuple[int, str], dict[str, Any]] = {}
    for file in sorted((path / "log").glob("*.parquet")):
        for row in pq.read_table(file).to_pylist():
            found[row["partition"], row["key"]] = row
    return {key: row for key, row in found.items() if row["op"] == OP_PUT}


def _write(path: Path, table: pa.Table) -> None:
    with path.open("wb") as file:
        pq.write_table(table, file, compression="zstd")
        file.flush()
        os.fsync(file.fileno())
