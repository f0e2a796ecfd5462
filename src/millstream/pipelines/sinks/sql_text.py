"""The statements of PostgreSQL by which `sinks.sql_target` keeps the newest row of each key.

Of a target NAME there are the tables NAME, with the columns of the source and `load`, tombstones
(rows of another op than put) included; `NAME_positions`, with what is known of each partition of
the source, and in the row of partition -1 the newest batch and the query that wrote it; and while
a batch is under way `NAME_staged_TOKEN`, with rows that are not applied yet.

Invariants:
1. Names are made of letters that need no quotes, and short enough that none is cut.
2. A row replaces one of a lower (branch, seqno, load) only, where it comes from staged rows.

Elsewhere: when they are run (`sinks.sql_target`), who fills staging tables (`sinks.sql_staging`).
"""

from __future__ import annotations

import re
from typing import Final

from millstream.errors import UsageError
from millstream.pipelines.sinks.keyed_table import TABLE_SCHEMA
from millstream.pipelines.sinks.repairing import OP_PUT, WHOLE

__all__ = ["STAGED_COLUMNS", "Statements"]

NAME_CHARS_MAX: Final = 36
"""Letters of a target's name; those of a table are 63 at most in PostgreSQL."""
_NAME: Final = re.compile(r"[a-z_][a-z0-9_]*")
_TYPES: Final = {
    "op": "text NOT NULL",
    "partition": "integer NOT NULL",
    "branch": "bigint NOT NULL",
    "seqno": "bigint NOT NULL",
    "key": 'text COLLATE "C" PRIMARY KEY',
    "cas": "bigint",
    "rev": "bigint",
    "expiry": "bigint",
    "flags": "bigint",
    "datatype": "integer",
    "value": "bytea",
    "ts": "timestamptz",
    "meta": "bytea",
    "load": "bigint NOT NULL",
}
_PLAIN: Final = {name: kind.replace(" PRIMARY KEY", "") for name, kind in _TYPES.items()}
STAGED_COLUMNS: Final = tuple(TABLE_SCHEMA.names[:-1])
"""Columns of a staging table after the first one, `piece`: those of the source."""


class Statements:
    """The statements for one target.

    Args:
        name: of the target.

    Raises:
        UsageError: `bad_option`.
    """

    def __init__(self, name: str) -> None:
        if not _NAME.fullmatch(name) or len(name) > NAME_CHARS_MAX:
            raise UsageError(
                f"a table cannot be named {name!r}: {NAME_CHARS_MAX} small letters, digits and _ "
                "at most, no digit first; a schema is chosen by search_path in the address",
                code="bad_option",
            )
        self.name = name
        self.positions = f'"{name}_positions"'
        self.staged_prefix = f"{name}_staged_"
        table = f'"{name}"'
        mine = ", ".join(f"{column} {kind}" for column, kind in _TYPES.items())
        self.create = (
            f"CREATE TABLE IF NOT EXISTS {table} ({mine})",
            f'CREATE INDEX IF NOT EXISTS "{name}_by_seqno" ON {table} (partition, seqno)',
            f'CREATE INDEX IF NOT EXISTS "{name}_tombstones" ON {table} (partition, seqno) '
            f"WHERE op <> '{OP_PUT}'",
            f"CREATE TABLE IF NOT EXISTS {self.positions} (partition integer PRIMARY KEY, "
            "load bigint NOT NULL, floor bigint NOT NULL, is_loading boolean NOT NULL, "
            "batch bigint, query text)",
        )
        self.columns = (
            "SELECT column_name FROM information_schema.columns WHERE table_name = %s "
            "AND table_schema = current_schema() ORDER BY ordinal_position"
        )
        self.lock = f"LOCK TABLE {self.positions} IN EXCLUSIVE MODE NOWAIT"
        self.states = (
            f"SELECT partition, load, floor, is_loading FROM {self.positions} "
            "WHERE partition = ANY(%s)"
        )
        self.last_batch = (
            f"SELECT batch, query FROM {self.positions} "
            f"WHERE partition = {WHOLE} AND batch IS NOT NULL"
        )
        self.set_state = (
            f"INSERT INTO {self.positions} (partition, load, floor, is_loading) "
            "VALUES (%s, %s, %s, %s) ON CONFLICT (partition) DO UPDATE SET load = excluded.load, "
            "floor = excluded.floor, is_loading = excluded.is_loading"
        )
        self.set_batch = (
            f"INSERT INTO {self.positions} (partition, load, floor, is_loading, batch, query) "
            f"VALUES ({WHOLE}, 1, 0, false, %s, %s) ON CONFLICT (partition) "
            "DO UPDATE SET batch = excluded.batch, query = excluded.query"
        )
        self.versions = (
            f"SELECT partition, branch, seqno, key, op <> '{OP_PUT}', load FROM {table} "
            "WHERE partition = %s AND key = ANY(%s)"
        )
        self.keys_above = (
            f"SELECT key FROM {table} WHERE partition = %s AND branch < %s AND seqno > %s"
        )
        self.sweep = f"DELETE FROM {table} WHERE partition = %s AND load < %s"
        self.retain = (
            f"DELETE FROM {table} AS t WHERE partition = %s "
            "AND NOT EXISTS (SELECT FROM unnest(%s::text[]) AS k WHERE k = t.key)"
        )
        self.oldest_tombstones = (
            f"SELECT partition, min(seqno) FROM {table} WHERE op <> '{OP_PUT}' GROUP BY partition"
        )
        self.drop_tombstones = (
            f"WITH gone AS (DELETE FROM {table} WHERE partition = %s AND op <> '{OP_PUT}' "
            "AND seqno <= %s RETURNING seqno) SELECT max(seqno) FROM gone"
        )
        self.live = f"SELECT {', '.join(_TYPES)} FROM {table} WHERE op = '{OP_PUT}'"
        self.leftovers = (
            "SELECT tablename FROM pg_tables WHERE schemaname = current_schema() "
            "AND starts_with(tablename, %s)"
        )

    def create_staging(self, staging: str, *, is_temporary: bool = False) -> str:
        """Return the statement that makes a staging table."""
        kind = "TEMPORARY TABLE IF NOT EXISTS" if is_temporary else "UNLOGGED TABLE"
        columns = ", ".join(f"{name} {_PLAIN[name]}" for name in STAGED_COLUMNS)
        return f'CREATE {kind} "{staging}" (piece bigint NOT NULL, {columns})'

    @staticmethod
    def copy(staging: str) -> str:
        """Return the statement that fills one."""
        return f'COPY "{staging}" (piece, {", ".join(STAGED_COLUMNS)}) FROM STDIN (FORMAT BINARY)'

    @staticmethod
    def count(staging: str) -> str:
        """Return the statement that counts staged rows and their keys; takes the pieces."""
        return f'SELECT count(*), count(DISTINCT key) FROM "{staging}" WHERE piece = ANY(%s)'

    @staticmethod
    def repeated(staging: str) -> str:
        """Return the statement that finds a key of several staged rows; takes the pieces."""
        return (
            f'SELECT min(key) FROM (SELECT key FROM "{staging}" WHERE piece = ANY(%s) '
            "GROUP BY key HAVING count(*) > 1) AS r"
        )

    def apply(self, staging: str, *, is_unique: bool) -> str:
        """Return the statement that applies staged rows by their versions; takes the pieces.

        Args:
            staging: table that has them.
            is_unique: no key is in it twice.
        """
        distinct, order = ("", "")
        if not is_unique:
            distinct = "DISTINCT ON (s.key) "
            order = " ORDER BY s.key, s.branch DESC, s.seqno DESC"
        return self._upsert(
            f'SELECT {distinct}{self._of("s")}, p.load FROM "{staging}" AS s '
            f"LEFT JOIN {self.positions} AS p USING (partition) WHERE s.piece = ANY(%s){order}",
            "(excluded.branch, excluded.seqno, excluded.load) > (t.branch, t.seqno, t.load)",
        )

    def put(self, staging: str) -> str:
        """Return the statement that puts staged rows in any case; takes their load and piece."""
        return self._upsert(
            f'SELECT {self._of("s")}, %s FROM "{staging}" AS s WHERE s.piece = %s',
            "(excluded.op, excluded.branch, excluded.seqno, excluded.load) "
            "IS DISTINCT FROM (t.op, t.branch, t.seqno, t.load)",
        )

    def _upsert(self, rows: str, guard: str) -> str:
        others = ", ".join(f"{name} = excluded.{name}" for name in _TYPES if name != "key")
        return (
            f'INSERT INTO "{self.name}" AS t ({", ".join(_TYPES)}) {rows} '
            f"ON CONFLICT (key) DO UPDATE SET {others} WHERE {guard}"
        )

    @staticmethod
    def _of(table: str) -> str:
        return ", ".join(f"{table}.{name}" for name in STAGED_COLUMNS)
