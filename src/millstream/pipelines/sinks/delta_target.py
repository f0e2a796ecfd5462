"""A Delta table, by the package `deltalake` (extra `delta`), which needs no Java.

    target = DeltaTarget("/data/flights")        # or a URL that deltalake knows, with its options
    target.table()                               # live rows, as a pyarrow table

The table has the columns of the source and `load`, partitioned by `partition`. Who reads it takes
the rows with `op = 'put'`: deletions are kept as rows of their own, and a row with op `state`
holds what is known of its partition (`rev` the load, `seqno` the floor, `flags` 1 while loading).
In the row of partition -1 `value` is a JSON array of the newest batch that changed anything and
the id of its query.

Invariants:
1. A batch is one version of the table, states included; one that changes nothing makes none.
2. One query writes a table (`sinks.batch_order`). What another writer commits meanwhile to the
   same rows fails the batch.
3. Old files are left to `vacuum`, small ones to `optimize`, which are the owner's to run.

Cost: O(rows of the partitions that a batch changes) to read, the files with changed rows to write.

Elsewhere: which rows (`sinks.repairing`), what a batch changes (`sinks.keyed_table`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from millstream.errors import UnavailableError, UsageError
from millstream.pipelines.sinks.batch_order import Writer
from millstream.pipelines.sinks.keyed_table import (
    TABLE_SCHEMA,
    VERSION_COLUMNS,
    Held,
    KeyedTable,
    held_from,
    loaded_table,
)
from millstream.pipelines.sinks.repairing import OP_PUT, WHOLE, Row
from millstream.upr.core.repair import LoadState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["DeltaTarget", "delta_package"]

OP_STATE: Final = "state"
OP_GONE: Final = "gone"
"""Only in what is merged: a row that is to be removed."""
_WRITERS: Final = msgspec.json.Decoder(Writer)
_WRITER: Final = "millstream"
"""Under this name the table counts its batches, by which Delta tells two writers apart, too."""


class DeltaTarget(KeyedTable):
    """A `repairing.KeyedTarget` in a Delta table, which is made if it is not there.

    Args:
        path: directory or URL.
        storage_options: for `deltalake`, such as credentials.

    Raises:
        UsageError: `missing_package`; `bad_schema`: there is a table with other columns.
        UnavailableError: `table_unreachable`.
    """

    def __init__(self, path: str | Path, storage_options: Mapping[str, str] | None = None) -> None:
        super().__init__(f"the Delta table {path}")
        self._lake = delta_package()
        self._failures = (self._lake.exceptions.DeltaError, OSError)
        self._path = str(path)
        self._options = dict(storage_options or {})
        self._began: dict[int, LoadState] = {}
        self._last: Writer | None = None
        self._table = self._opened()

    def __reduce__(self) -> tuple[type[DeltaTarget], tuple[str, dict[str, str]]]:
        """Open anew, where Spark Connect brings it to."""
        return type(self), (self._path, self._options)

    def table(self) -> pa.Table:
        """Return the live rows as they are now."""
        self._refresh()
        return self._read(f"op = '{OP_PUT}'", TABLE_SCHEMA.names)

    def read(self, spark: SparkSession) -> DataFrame:
        """Return the live rows as they are now, which pass through the driver."""
        return spark.createDataFrame(self.table())

    # -- writing: see `KeyedTarget` ----------------------------------------------------------

    def begin(self, partitions: Collection[int], partition_count: int) -> None:
        """Begin a batch from what is there."""
        self._refresh()
        wanted = ["partition", "rev", "seqno", "flags", "value"]
        found = self._read(f"op = '{OP_STATE}'", wanted).to_pylist()
        self._began = {
            row["partition"]: LoadState(row["rev"], row["seqno"], bool(row["flags"]))
            for row in found
        }
        writers = (row["value"] for row in found if row["partition"] == WHOLE and row["value"])
        self._last = next(map(_WRITERS.decode, writers), None)
        self.restart(self._began)

    def last_writer(self) -> Writer | None:
        """Return what the table had when the batch began."""
        return self._last

    def stored_versions(self, partition: int) -> Held:
        """Return what the table has."""
        only = f"partition = {partition} AND op <> '{OP_STATE}'"
        return held_from(self._read(only, VERSION_COLUMNS), partition)

    def commit(self, batch_id: int) -> None:
        """Merge what changed, as one version.

        Raises:
            UnavailableError: `target_changed`: another writer came first; `table_unreachable`.
        """
        rows = self._rows_to_merge(Writer(batch_id, self.query_id))
        if not rows:
            return
        partitions = sorted({row.partition for row, _ in rows})
        merger = self._table.merge(
            loaded_table(rows),
            f"t.partition IN ({', '.join(map(str, partitions))}) "
            "AND t.partition = s.partition AND t.key = s.key",
            source_alias="s",
            target_alias="t",
            commit_properties=self._lake.CommitProperties(
                custom_metadata={"millstream_batch": str(batch_id)},
                app_transactions=[self._lake.Transaction(_WRITER, _commits(self._table) + 1)],
            ),
        )
        try:
            (
                merger.when_matched_delete(predicate=f"s.op = '{OP_GONE}'")
                .when_matched_update_all(predicate=f"s.op <> '{OP_GONE}'")
                .when_not_matched_insert_all(predicate=f"s.op <> '{OP_GONE}'")
                .execute()
            )
        except self._lake.exceptions.CommitFailedError as error:
            raise UnavailableError(
                f"{self._path}: another writer has changed this table meanwhile ({error}); the "
                "batch can be run again, but let one query write it",
                code="target_changed",
            ) from error
        except self._failures as error:
            raise self._unreachable(error) from error

    def stamp(self) -> str:
        """Return what every batch that changes something changes, and nothing else does.

        A batch that has begun stays with what it has read (invariant 2).
        """
        return str(_commits(self._opened()))

    # -- private -----------------------------------------------------------------------------

    def _rows_to_merge(self, writer: Writer) -> list[tuple[Row, int]]:
        """Return what changed; if anything did, with who changed it."""
        rows = [pair for changed in self.changed.values() for pair in changed.values()]
        for partition, keys in self.gone.items():
            rows.extend((Row(OP_GONE, partition, 0, 0, key), 0) for key in sorted(keys))
        rows += [
            _state_row(p, state)
            for p, state in self.states.items()
            if p != WHOLE and state != self._began.get(p)
        ]
        whole = self.states.get(WHOLE)
        if rows or whole != self._began.get(WHOLE):
            row, load = _state_row(WHOLE, whole or LoadState())
            rows.append((row._replace(value=msgspec.json.encode(writer)), load))
        return rows

    def _opened(self) -> Any:
        try:
            if not self._lake.DeltaTable.is_deltatable(self._path, self._options):
                return self._lake.DeltaTable.create(
                    self._path,
                    pa.schema([field.with_nullable(True) for field in TABLE_SCHEMA]),
                    mode="ignore",
                    partition_by=["partition"],
                    storage_options=self._options,
                )
            table = self._lake.DeltaTable(self._path, storage_options=self._options)
        except self._failures as error:
            raise self._unreachable(error) from error
        columns = [field.name for field in table.schema().fields]
        if columns != TABLE_SCHEMA.names:
            raise UsageError(
                f"{self._path} has the columns {', '.join(columns)}, a table of changes has "
                f"{', '.join(TABLE_SCHEMA.names)}: give another path",
                code="bad_schema",
            )
        return table

    def _refresh(self) -> None:
        try:
            self._table.update_incremental()
        except self._failures as error:
            raise self._unreachable(error) from error

    def _read(self, only: str, columns: list[str]) -> pa.Table:
        wanted = pa.schema([TABLE_SCHEMA.field(name) for name in columns])
        named = ", ".join(f'"{name}"' for name in columns)
        query = self._lake.QueryBuilder().register("t", self._table)
        try:
            found = pa.table(query.execute(f"SELECT {named} FROM t WHERE {only}").read_all())
        except self._failures as error:
            raise self._unreachable(error) from error
        return found.cast(wanted)

    def _unreachable(self, error: Exception) -> UnavailableError:
        return UnavailableError(
            f"the Delta table {self._path} cannot be read or written: {error}",
            code="table_unreachable",
        )


def _state_row(partition: int, state: LoadState) -> tuple[Row, int]:
    load, floor, loading = state
    return Row(OP_STATE, partition, 0, floor, rev=load, flags=int(loading)), load


def _commits(table: Any) -> int:
    """Return how often a batch was committed; `optimize` and its like do not count."""
    return table.transaction_version(_WRITER) or 0


def delta_package() -> Any:
    """Return the package, which is loaded when a target is made.

    Raises:
        UsageError: `missing_package`.
    """
    try:
        return import_module("deltalake")
    except ImportError as error:
        raise UsageError(
            "a Delta table needs the package deltalake: pip install 'millstream[delta]'",
            code="missing_package",
        ) from error
