"""A table of Parquet files in a directory: one file for each partition of the source.

    target = ParquetTarget("/data/flights")
    target.table()                       # live rows, as a pyarrow table
    target.read(spark)                   # the same as a DataFrame

`_current` is a JSON object that names the files of the table and holds the state of each
partition; it is replaced as a whole. A file has the columns of the source and `load`, tombstones
(rows of another op than put) included.

Invariants:
1. A batch is one replacement of `_current`, after all files that it names are durable. Whoever
   reads sees all of a batch or nothing.
2. A file never changes. What `_current` named before the last batch is kept for readers that have
   begun; what it named earlier, or never, is removed.
3. One query writes a table (`sinks.batch_order`): `_current` names it, and its newest batch that
   changed anything. A second one that replaced `_current` meanwhile is noticed, too: the batch
   fails and changes nothing.

Cost: a batch writes the files of the partitions that it changes anew, O(rows of these).

Elsewhere: which rows (`sinks.repairing`), what a batch changes (`sinks.keyed_table`).
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Collection, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from millstream.errors import CorruptionError, UnavailableError
from millstream.pipelines.classic import require_classic
from millstream.pipelines.sinks.batch_order import Writer
from millstream.pipelines.sinks.keyed_table import (
    TABLE_SCHEMA,
    VERSION_COLUMNS,
    Held,
    KeyedTable,
    held_from,
    loaded_table,
)
from millstream.pipelines.sinks.repairing import OP_PUT
from millstream.runtime.files import sync_directory, write_atomically
from millstream.upr.core.repair import LoadState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["CURRENT", "ParquetTarget"]

CURRENT: Final = "_current"
_VERSION: Final = 1


class _Part(msgspec.Struct, omit_defaults=True):
    """One partition in `_current`; `file` is empty where it has no rows."""

    file: str = ""
    state: LoadState = LoadState()


class _Current(msgspec.Struct):
    """The content of `_current`; `files_before`: what the one before it named.

    `query`: of the batch; empty for not known, as in what earlier releases wrote.
    """

    v: int = _VERSION
    batch: int = -1
    query: str = ""
    parts: dict[int, _Part] = {}
    files_before: list[str] = []


_DECODER: Final = msgspec.json.Decoder(_Current)


class ParquetTarget(KeyedTable):
    """A `repairing.KeyedTarget` in a directory, which is made if it is not there.

    Raises:
        CorruptionError: `damaged`: `_current` cannot be read.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._path.mkdir(parents=True, exist_ok=True)
        self._read_text, self._current = self._load()
        super().__init__(f"table {self._path}")

    def __reduce__(self) -> tuple[type[ParquetTarget], tuple[Path]]:
        """Open anew, where Spark Connect brings it to."""
        return type(self), (self._path,)

    # -- reading -----------------------------------------------------------------------------

    def files(self) -> list[Path]:
        """Return the files of the table as it is now, tombstones in them."""
        _, current = self._load()
        return [self._path / part.file for part in current.parts.values() if part.file]

    def table(self) -> pa.Table:
        """Return the live rows."""
        tables = [_read(file) for file in self.files()]
        found = pa.concat_tables(tables) if tables else TABLE_SCHEMA.empty_table()
        return found.filter(pa.compute.equal(found.column("op"), OP_PUT))

    def read(self, spark: SparkSession) -> DataFrame:
        """Return the live rows as they are now; later batches remove the files of them.

        Raises:
            UsageError: `needs_classic_session`: the table is not on this machine.
        """
        files = [str(file) for file in self.files()]
        if not files:
            require_classic(spark, f"reading {self._path}, which this machine does not have,")
            return spark.createDataFrame(TABLE_SCHEMA.empty_table())
        return spark.read.parquet(*files).where(f"op = '{OP_PUT}'")

    # -- writing: see `KeyedTarget` ----------------------------------------------------------

    def begin(self, partitions: Collection[int], partition_count: int) -> None:
        """Begin a batch from what is there."""
        self._read_text, self._current = self._load()
        self.restart({p: part.state for p, part in self._current.parts.items()})

    def last_writer(self) -> Writer | None:
        """Return what `_current` has."""
        found = self._current
        return Writer(found.batch, found.query) if found.batch >= 0 else None

    def commit(self, batch_id: int) -> None:
        """Write the files that changed, then `_current`.

        Raises:
            UnavailableError: `target_changed`: another query writes this table.
        """
        parts = {p: _Part(self._file_after(p), state) for p, state in sorted(self.states.items())}
        if parts == self._current.parts:
            return
        sync_directory(self._path)
        before = _files(self._current)
        after = _Current(
            batch=batch_id, query=self.query_id, parts=parts, files_before=sorted(before)
        )
        if self._load()[0] != self._read_text:
            raise UnavailableError(
                f"{self._path}: another query has written this table; stop one of them",
                code="target_changed",
                retry="never",
            )
        write_atomically(self._path / CURRENT, msgspec.json.encode(after), mode=0o644)
        self._clean(before | _files(after))

    def stamp(self) -> str:
        """Return what every batch that changes something changes, and nothing else does."""
        return hashlib.sha256(self._load()[0]).hexdigest()

    # -- private -----------------------------------------------------------------------------

    def _load(self) -> tuple[bytes, _Current]:
        try:
            text = (self._path / CURRENT).read_bytes()
        except FileNotFoundError:
            return b"", _Current()
        try:
            found = _DECODER.decode(text)
        except msgspec.DecodeError as error:
            raise self._damaged(str(error)) from error
        if found.v != _VERSION:
            raise self._damaged(f"version {found.v} is not known, only {_VERSION}")
        return text, found

    def _damaged(self, reason: str) -> CorruptionError:
        return CorruptionError(
            f"{self._path / CURRENT} cannot be read: {reason}. Begin again with an empty "
            "directory and a new checkpoint",
            code="damaged",
        )

    def stored_versions(self, partition: int) -> Held:
        """Return what the files have."""
        file = self._file_of(partition)
        return _versions_in(self._path / file, partition) if file else {}

    def stored_rows(self, partition: int, columns: Sequence[str]) -> pa.Table:
        """Return what the files have, tombstones included, as it was when the batch began."""
        file = self._file_of(partition)
        if not file:
            return pa.schema([TABLE_SCHEMA.field(name) for name in columns]).empty_table()
        return pq.read_table(self._path / file, columns=list(columns))

    def _file_of(self, partition: int) -> str:
        part = self._current.parts.get(partition)
        return part.file if part is not None else ""

    def _file_after(self, partition: int) -> str:
        """Write the file of a partition if it changed; return its name."""
        name = self._file_of(partition)
        changed, gone = self.changed.get(partition, {}), self.gone.get(partition, set())
        if not changed and not gone:
            return name
        found = loaded_table(changed.values())
        if name:
            kept = _read(self._path / name)
            replaced = pa.array([*changed, *gone], pa.string())
            kept = kept.filter(
                pa.compute.invert(pa.compute.is_in(kept.column("key"), value_set=replaced))
            )
            found = pa.concat_tables([kept, found])
        if not found.num_rows:
            return ""
        name = f"part-{partition:05}-{secrets.token_hex(8)}.parquet"
        _write(self._path / name, found)
        return name

    def _clean(self, kept: AbstractSet[str]) -> None:
        for file in self._path.glob("part-*.parquet"):
            if file.name not in kept:
                file.unlink(missing_ok=True)


def _files(current: _Current) -> set[str]:
    return {part.file for part in current.parts.values() if part.file}


def _versions_in(file: Path, partition: int) -> Held:
    return held_from(pq.read_table(file, columns=VERSION_COLUMNS), partition)


def _read(file: Path) -> pa.Table:
    return pq.read_table(file, schema=TABLE_SCHEMA)


def _write(file: Path, table: pa.Table) -> None:
    with file.open("wb") as opened:
        pq.write_table(table, opened, compression="zstd")
        opened.flush()
        os.fsync(opened.fileno())
