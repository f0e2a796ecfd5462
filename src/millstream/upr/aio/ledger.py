"""Kept places and rings of a bucket's partitions in tables of an SQLite database.

    millstream_bucket (name, uuid)                   one row
    millstream_place (partition, kept)               `upr.core.kept` as JSON
    millstream_ring (partition, seqno, key)

Invariants:
1. Nothing is committed here: whoever owns the connection does that, together with its own state.
2. The database belongs to one bucket; another one of the same name is refused.

Elsewhere: order of the effects (`upr.core.bookkeeper`), who owns the database (`upr.aio.sinks`).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from millstream.errors import CorruptionError, StreamError, UnavailableError, UsageError
from millstream.upr.core.bookkeeper import Effect, Forget, Keep, Remember
from millstream.upr.core.kept import Kept, Recent, kept_from_json, kept_to_json

__all__ = ["Ledger", "Stored", "open_database"]

_BUSY_S: Final = 5.0
"""Longest wait for another process that has the database locked, in seconds."""
_TABLES: Final = """
CREATE TABLE IF NOT EXISTS millstream_bucket (name TEXT NOT NULL, uuid TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS millstream_place (partition INTEGER PRIMARY KEY, kept TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS millstream_ring (
    partition INTEGER, seqno INTEGER, key BLOB, PRIMARY KEY (partition, seqno, key)
) WITHOUT ROWID;
"""


class Stored(NamedTuple):
    """What a reader finds of one partition when it starts."""

    kept: Kept
    recent: tuple[Recent, ...]


def open_database(path: Path, tables: str = "") -> sqlite3.Connection:
    """Open or make a database whose commits survive a stop of the machine.

    Raises:
        UnavailableError: `unreadable`: it cannot be opened, or another process has it.
        CorruptionError: it is no database.
    """
    try:
        database = sqlite3.connect(
            path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
        )
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=FULL")
        database.executescript(_TABLES + tables)
    except sqlite3.OperationalError as error:
        message = f"cannot open {path}: {error}; check its folder, and that nobody else uses it"
        raise UnavailableError(message, code="unreadable") from error
    except sqlite3.DatabaseError as error:
        raise CorruptionError(f"{path} is no database: {error}") from error
    return database


class Ledger:
    """The three tables of one database.

    Args:
        database: opened by `open_database`.
        name: of the database, for messages.
    """

    def __init__(self, database: sqlite3.Connection, name: str) -> None:
        self._database = database
        self._name = name

    def load(self) -> Mapping[int, Stored]:
        """Return what was stored, by partition.

        Raises:
            CorruptionError: a kept place is illegal.
        """
        rings: dict[int, list[Recent]] = {}
        rows = self._database.execute("SELECT partition, seqno, key FROM millstream_ring")
        for partition_id, seqno, key in rows:
            rings.setdefault(partition_id, []).append(Recent(seqno, bytes(key)))
        rows = self._database.execute("SELECT partition, kept FROM millstream_place")
        places = {
            partition_id: kept_from_json(text.encode(), name=f"{self._name}, {partition_id}")
            for partition_id, text in rows
        }
        return {
            partition_id: Stored(
                places.get(partition_id, Kept()), tuple(rings.get(partition_id, ()))
            )
            for partition_id in places.keys() | rings.keys()
        }

    def claim(self, bucket: str, bucket_uuid: str) -> None:
        """Make the database that of a bucket.

        Raises:
            UsageError: `wrong_checkpoint`: it is another bucket's.
            StreamError: `bucket_recreated`.
        """
        row = self._database.execute("SELECT name, uuid FROM millstream_bucket").fetchone()
        if row is None:
            self._database.execute(
                "INSERT INTO millstream_bucket VALUES (?, ?)", (bucket, bucket_uuid)
            )
        elif row[0] != bucket:
            raise UsageError(
                f"{self._name} follows bucket {row[0]!r}, not {bucket!r}; use another one",
                code="wrong_checkpoint",
            )
        elif row[1] != bucket_uuid:
            raise StreamError(
                f"bucket {bucket!r} was deleted and created again: what {self._name} holds of "
                f"the old one is invalid; start again with another file",
                code="bucket_recreated",
            )

    def perform(self, effect: Effect) -> None:
        """Perform what concerns place and ring; other effects change nothing here."""
        match effect:
            case Remember(partition_id, entries):
                self._database.executemany(
                    "INSERT OR IGNORE INTO millstream_ring VALUES (?, ?, ?)",
                    [(partition_id, *entry) for entry in entries],
                )
            case Forget(partition_id, entries):
                self._database.executemany(
                    "DELETE FROM millstream_ring WHERE partition = ? AND seqno = ? AND key = ?",
                    [(partition_id, *entry) for entry in entries],
                )
            case Keep(partition_id, kept):
                self._database.execute(
                    "INSERT OR REPLACE INTO millstream_place VALUES (?, ?)",
                    (partition_id, kept_to_json(kept).decode()),
                )
