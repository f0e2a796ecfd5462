"""A table of PostgreSQL, by the package `psycopg` (extra `postgres`).

    target = SqlTarget("postgresql://user@host:5432/database", "flights")
    target.table()                               # live rows, as a pyarrow table

The table has the columns of the source and `load`; `key` is its primary key. Who reads it takes
the rows with `op = 'put'`: deletions are kept as rows of their own until a majority of the
source's copies has persisted them.

Invariants:
1. A batch is one transaction, with the states of its partitions, its number and its query. Whoever
   reads sees all of it or nothing.
2. Rows of a batch go from the executors to a staging table of this attempt, and from there by one
   statement into the table; the driver has none of them. What a rollback undoes is fetched by the
   driver, as much at once as a partition has lost.
3. One query writes a table (`sinks.batch_order`). What tasks stage has to follow the newest
   batch. Writers exclude each other by a lock that ends with their transaction; a connection lasts
   no longer.
4. Staged rows that are not all there any more are never applied: the batch is staged again.

Elsewhere: which rows (`sinks.repairing`), statements (`sinks.sql_text`), tasks
(`sinks.sql_staging`), who asks for stages (`sinks.applying`).
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from millstream.errors import UsageError
from millstream.pipelines.sinks.batch_order import Writer, next_writer
from millstream.pipelines.sinks.keyed_table import TABLE_SCHEMA
from millstream.pipelines.sinks.repairing import WHOLE, Row, Staged, StoredVersion
from millstream.pipelines.sinks.sql_staging import (
    Reported,
    Stage,
    connected,
    copy_rows,
    key_of_sql,
    sql_key,
    staging_lost,
    unreachable_told,
)
from millstream.pipelines.sinks.sql_text import Statements
from millstream.upr.core.repair import LoadState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["SqlTarget"]


class SqlTarget:
    """A `repairing.KeyedTarget` in a database, which is given the table if it has none.

    Args:
        address: as libpq takes it: `postgresql://user@host:5432/database`, or words such as
            `host=... dbname=...`. Driver and executors connect to it; a password may be in it, in
            `PGPASSWORD`, or in `~/.pgpass` of all of them.
        table: its name, in the first schema of the search path.

    Raises:
        UsageError: `missing_package`, `bad_option`; `bad_schema`: there is a table with other
            columns.
        UnavailableError: `table_unreachable`.
    """

    def __init__(self, address: str, table: str) -> None:
        self._address = address
        self._sql = Statements(table)
        self._put_table = f"{table}_put"
        self._connection: Any = None
        self._query_id = ""
        self._staging = ""
        self._states: dict[int, LoadState] = {}
        self._changed: dict[int, LoadState] = {}
        """States that the transaction has not got yet."""
        self._tombstones: Mapping[int, int] | None = None
        """Partition -> the lowest seqno of its tombstones, as of when first asked."""
        self._create()

    def __reduce__(self) -> tuple[type[SqlTarget], tuple[str, str]]:
        """Open anew, where Spark Connect brings it to."""
        return type(self), (self._address, self._sql.name)

    def close(self) -> None:
        """Undo a batch that has begun; between batches there is no connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def table(self) -> pa.Table:
        """Return the live rows as they are now."""
        with connected(self._address) as connection, unreachable_told(self._sql.name):
            rows = connection.execute(self._sql.live).fetchall()
        columns = dict(zip(TABLE_SCHEMA.names, zip(*rows, strict=True), strict=False))
        if rows:
            columns["key"] = tuple(map(key_of_sql, columns["key"]))
        arrays = [pa.array(columns.get(field.name, ()), field.type) for field in TABLE_SCHEMA]
        return pa.Table.from_arrays(arrays, schema=TABLE_SCHEMA)

    def read(self, spark: SparkSession) -> DataFrame:
        """Return the live rows as they are now, which pass through the driver."""
        return spark.createDataFrame(self.table())

    # -- staged rows: see `repairing.StagingTarget` ------------------------------------------

    def open_stage(self, batch_id: int, reconnect_s: float, query_id: str = "") -> Stage:
        """Make a staging table for an attempt of a batch; remove those of earlier ones.

        Args:
            batch_id: as Spark gives it.
            reconnect_s: how long tasks wait for the database.
            query_id: as Spark keeps it in the checkpoint; empty for not known.

        Raises:
            UsageError: `other_checkpoint`.
            UnavailableError: `table_unreachable`, `target_changed`.
        """
        self.begin([], 0)
        self._check_batch(
            Writer(batch_id, query_id),
            gap="Was the database restored, or the checkpoint set to another offset? Begin a new "
            "checkpoint with an empty table; or, if nothing is missing, UPDATE "
            f"{self._sql.name}_positions SET batch = {batch_id - 1} WHERE partition = {WHOLE}",
        )
        self._drop_leftovers()
        self._staging = f"{self._sql.staged_prefix}{secrets.token_hex(8)}"
        self._run(self._sql.create_staging(self._staging))
        self._commit()
        return Stage(self._address, self._staging, reconnect_s)

    def staged(self, reported: Reported, *, is_unique: bool) -> Staged:
        """Return what tasks have staged, to be applied in a batch that has begun.

        Args:
            reported: by the tasks.
            is_unique: a key that was staged twice is an error.
        """
        return Staged(reported.changes, partial(self._apply_staged, reported, is_unique=is_unique))

    def _apply_staged(self, reported: Reported, *, is_unique: bool) -> None:
        """Raises `UnavailableError`, `staging_lost`; `UsageError`, `bad_row`."""
        if not reported.pieces:
            return
        pieces = [list(reported.pieces)]
        self._write_states()
        ((count, keys),) = self._run(self._sql.count(self._staging), pieces)
        if count != reported.row_count:
            raise staging_lost(self._sql.name)
        if is_unique and keys < count:
            ((key,),) = self._run(self._sql.repeated(self._staging), pieces)
            raise UsageError(
                f"document {key[:80]!r}: a step made several rows of this document: each may have "
                "one; is a value that is joined on in the other frame more than once?",
                code="bad_row",
            )
        self._run(self._sql.apply(self._staging, is_unique=keys == count), pieces)

    # -- see `KeyedTarget` -------------------------------------------------------------------

    def begin(self, partitions: Collection[int], partition_count: int) -> None:
        """Begin a transaction, in which this query alone writes.

        Raises:
            UnavailableError: `table_unreachable`, `target_changed`.
        """
        self._open()
        self._changed, self._tombstones = {}, None
        self._run(self._sql.lock)
        found = self._run(self._sql.states, [[WHOLE, *partitions]])
        self._states = {p: LoadState(*state) for p, *state in found}
        self._query_id = ""

    def enter(self, batch_id: int, query_id: str) -> None:
        """Refuse a batch that cannot be the next one."""
        self._query_id = self._check_batch(Writer(batch_id, query_id)).query

    def state(self, partition: int) -> LoadState | None:
        """Return what was set last."""
        return self._states.get(partition)

    def set_state(self, partition: int, state: LoadState) -> None:
        """Remember the state."""
        self._states[partition] = self._changed[partition] = state

    def versions(self, partition: int, keys: Collection[str]) -> Mapping[str, StoredVersion]:
        """Return the versions of keys, tombstones included."""
        names = {sql_key(key): key for key in keys}
        found = self._run(self._sql.versions, [partition, list(names)])
        versions = [StoredVersion(*row)._replace(key=names[row[3]]) for row in found]
        return {version.key: version for version in versions}

    def keys_above(self, partition: int, branch: int, seqno: int) -> Collection[str]:
        """Return the keys of versions of a lower branch and a higher seqno."""
        found = self._run(self._sql.keys_above, [partition, branch, seqno])
        return [key_of_sql(key) for (key,) in found]

    def put(self, partition: int, rows: Sequence[Row], load: int) -> None:
        """Replace what there is of these keys."""
        self._run(self._sql.create_staging(self._put_table, is_temporary=True))
        self._run(f'TRUNCATE "{self._put_table}"')
        with self._told():
            copy_rows(self._connection, self._put_table, 0, rows)
        self._run(self._sql.put(self._put_table), [load, 0])

    def sweep(self, partition: int, load: int) -> None:
        """Remove what carries a lower load."""
        self._run(self._sql.sweep, [partition, load])

    def retain(self, partition: int, keys: AbstractSet[str]) -> None:
        """Remove all keys but these."""
        self._run(self._sql.retain, [partition, list(map(sql_key, keys))])

    def drop_tombstones(self, partition: int, seqno: int) -> int:
        """Forget tombstones at or below; return the highest seqno forgotten, 0 for none."""
        if self._tombstones is None:
            self._tombstones = dict(self._run(self._sql.oldest_tombstones))
        if self._tombstones.get(partition, seqno + 1) > seqno:
            return 0
        ((highest,),) = self._run(self._sql.drop_tombstones, [partition, seqno])
        return highest or 0

    def commit(self, batch_id: int) -> None:
        """Make the batch visible, as a whole.

        Raises:
            UnavailableError: `table_unreachable`: it may have been made visible, too; the batch
                comes again.
        """
        self._write_states()
        self._run(self._sql.set_batch, [batch_id, self._query_id])
        if self._staging:
            self._run(f'DROP TABLE IF EXISTS "{self._staging}"')
        self._commit()
        self._staging = ""

    # -- private -----------------------------------------------------------------------------

    def _create(self) -> None:
        self._open()
        found = [name for (name,) in self._run(self._sql.columns, [self._sql.name])]
        if not found:
            for statement in self._sql.create:
                self._run(statement)
        elif sorted(found) != sorted(TABLE_SCHEMA.names):
            self.close()
            raise UsageError(
                f"table {self._sql.name} has the columns {', '.join(found)}, a table of changes "
                f"has {', '.join(TABLE_SCHEMA.names)}: give another name",
                code="bad_schema",
            )
        self._commit()

    def _open(self) -> None:
        """Connect; what a transaction before has begun is undone."""
        self.close()
        self._connection = connected(self._address)

    def _run(self, statement: str, given: Sequence[object] = ()) -> list[Any]:
        """Run a statement in the transaction; return its rows."""
        with self._told():
            cursor = self._connection.execute(statement, given)
            return cursor.fetchall() if cursor.description else []

    def _commit(self) -> None:
        with self._told():
            self._connection.commit()
        self.close()

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Tell failures; what fails undoes the transaction, so that its lock keeps nobody out."""
        try:
            with unreachable_told(f"table {self._sql.name}"):
                yield
        except BaseException:
            self.close()
            raise

    def _write_states(self) -> None:
        lines = [(p, *state) for p, state in self._changed.items()]
        if lines:
            with self._told(), self._connection.cursor() as cursor:
                cursor.executemany(self._sql.set_state, lines)
        self._changed = {}

    def _check_batch(self, this: Writer, gap: str = "") -> Writer:
        """Return what is to be kept of a batch, if it may come next; invariant 3."""
        found = self._run(self._sql.last_batch)
        last = Writer(found[0][0], found[0][1] or "") if found else None
        name = self._sql.name
        anew = f"begin with a new one and another table, or drop {name} and {name}_positions"
        with self._told():
            return next_writer(last, this, f"table {name}", anew, gap=gap)

    def _drop_leftovers(self) -> None:
        for (name,) in self._run(self._sql.leftovers, [self._sql.staged_prefix]):
            self._run(f'DROP TABLE IF EXISTS "{name}"')
