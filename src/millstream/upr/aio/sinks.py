"""Where a reader's state goes: an SQLite table, a file of JSON lines, a function of yours.

| sink | kept with its state | after a kill at any moment |
| --- | --- | --- |
| `SqliteSink` | in the same transaction | every change took effect exactly once |
| `JsonLinesSink` | its length in the place's transaction | every line is there exactly once |
| `CallbackSink` | before and after each call | the last call may be made again |

Invariants:
1. Effects are performed in order, and are durable when `write` returns.
2. A sink that is opened again goes on from what `load` returns; what was begun and not finished is
   void, or may be done again.
3. Calls block, and come one at a time, from any thread.

Elsewhere: which effects, in which order (`upr.core.bookkeeper`); who calls (`upr.aio.following`).
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from millstream.errors import CorruptionError, UnavailableError
from millstream.upr.aio.ledger import Ledger, Stored, open_database
from millstream.upr.core.bookkeeper import Apply, Document, Effect, Restore, Rewind, Sweep
from millstream.upr.core.lines import lines_of

__all__ = ["CallbackSink", "JsonLinesSink", "Sink", "SqliteSink"]

_DOCUMENTS: Final = """
CREATE TABLE IF NOT EXISTS documents (
    key BLOB PRIMARY KEY, value BLOB NOT NULL, partition INTEGER NOT NULL, seqno INTEGER NOT NULL,
    cas INTEGER NOT NULL, flags INTEGER NOT NULL, datatype INTEGER NOT NULL, load INTEGER NOT NULL
) WITHOUT ROWID;
"""
_LINES: Final = "CREATE TABLE IF NOT EXISTS millstream_lines (bytes INTEGER NOT NULL);"


class Sink(Protocol):
    """Holds what a reader builds, with the place it stands at and its ring."""

    def load(self) -> Mapping[int, Stored]:
        """Return places and rings by partition, as last written."""

    def claim(self, bucket: str, bucket_uuid: str) -> None:
        """Belong to this bucket, or raise because it belongs to another one."""

    def write(self, effects: Sequence[Effect]) -> None:
        """Perform effects; a kill may leave any beginning of them."""

    def close(self) -> None:
        """Let go of files."""


@contextlib.contextmanager
def _transaction(database: sqlite3.Connection) -> Iterator[None]:
    """Commit at the end, or leave everything as it was."""
    try:
        database.execute("BEGIN IMMEDIATE")
        try:
            yield
            database.execute("COMMIT")
        except BaseException:
            if database.in_transaction:
                database.execute("ROLLBACK")
            raise
    except sqlite3.OperationalError as error:
        message = f"the database cannot be written: {error}; nothing of it is lost"
        raise UnavailableError(message, code="unwritable") from error


class SqliteSink:
    """The bucket as a table `documents` of an SQLite database; place and ring beside it.

    Args:
        path: of the database, made if missing.

    Raises:
        UnavailableError: `unreadable`. CorruptionError: no database.
    """

    def __init__(self, path: os.PathLike[str] | str) -> None:
        self._database = open_database(Path(path), _DOCUMENTS)
        self._ledger = Ledger(self._database, str(path))

    def load(self) -> Mapping[int, Stored]:
        """Return places and rings by partition, as last written."""
        return self._ledger.load()

    def claim(self, bucket: str, bucket_uuid: str) -> None:
        """Belong to this bucket; raises as `Ledger.claim`."""
        self._ledger.claim(bucket, bucket_uuid)

    def write(self, effects: Sequence[Effect]) -> None:
        """Perform effects in one transaction: all of them, or none.

        Raises:
            UnavailableError: `unwritable`.
        """
        with _transaction(self._database):
            for effect in effects:
                self._ledger.perform(effect)
                self._perform(effect)

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Apply(partition_id, load, _, _, changes):
                for change in changes:
                    value = None if change.is_deleted else change.value
                    self._put(
                        partition_id,
                        load,
                        Document(
                            change.key,
                            value,
                            change.seqno,
                            change.cas,
                            change.flags,
                            change.datatype,
                        ),
                    )
            case Restore(partition_id, load, documents):
                for document in documents:
                    self._put(partition_id, load, document)
            case Sweep(partition_id, load):
                self._database.execute(
                    "DELETE FROM documents WHERE partition = ? AND load < ?", (partition_id, load)
                )

    def _put(self, partition_id: int, load: int, document: Document) -> None:
        key, value, seqno, cas, flags, datatype = document
        if value is None:
            self._database.execute("DELETE FROM documents WHERE key = ?", (key,))
            return
        signed_cas = cas - (1 << 64) if cas >> 63 else cas  # SQLite's integers have a sign
        self._database.execute(
            "INSERT OR REPLACE INTO documents VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (key, value, partition_id, seqno, signed_cas, flags, datatype, load),
        )

    def close(self) -> None:
        """Close the database."""
        self._database.close()


class JsonLinesSink:
    """Every change as a line of a file; place and ring in `<path>.place`.

    What is behind the length kept there was written and not counted: it is cut off at the start.

    Args:
        path: of the lines, made if missing.

    Raises:
        UnavailableError: `unreadable`.
        CorruptionError: the file is shorter than what was written to it.
    """

    def __init__(self, path: os.PathLike[str] | str) -> None:
        self._database = open_database(Path(f"{os.fspath(path)}.place"), _LINES)
        self._ledger = Ledger(self._database, str(path))
        row = self._database.execute("SELECT bytes FROM millstream_lines").fetchone()
        if row is None:
            self._database.execute("INSERT INTO millstream_lines VALUES (0)")
        self._bytes: int = row[0] if row else 0
        try:
            self._file = open(os.fspath(path), "ab", buffering=0)  # noqa: SIM115 - see close
            found = self._file.seek(0, os.SEEK_END)
            if found >= self._bytes:
                self._file.truncate(self._bytes)
        except OSError as error:
            message = f"cannot open {os.fspath(path)}: {error.strerror}"
            raise UnavailableError(message, code="unreadable") from error
        if found < self._bytes:
            self.close()
            raise CorruptionError(
                f"{os.fspath(path)} has {found} bytes, {self._bytes} were written to it; put the "
                "file back, or begin anew without its .place file"
            )

    def load(self) -> Mapping[int, Stored]:
        """Return places and rings by partition, as last written."""
        return self._ledger.load()

    def claim(self, bucket: str, bucket_uuid: str) -> None:
        """Belong to this bucket; raises as `Ledger.claim`."""
        self._ledger.claim(bucket, bucket_uuid)

    def write(self, effects: Sequence[Effect]) -> None:
        """Append lines, make them durable, then count them together with the place.

        Raises:
            UnavailableError: `unwritable`; what was appended is cut off again.
        """
        lines = b"".join(line for effect in effects for line in lines_of(effect))
        with _transaction(self._database):
            for effect in effects:
                self._ledger.perform(effect)
            if lines:
                self._append(lines)
                reached = self._bytes + len(lines)
                self._database.execute("UPDATE millstream_lines SET bytes = ?", (reached,))
        self._bytes += len(lines)

    def _append(self, lines: bytes) -> None:
        try:
            self._file.truncate(self._bytes)  # of a write that failed
            rest = memoryview(lines)
            while rest:
                rest = rest[self._file.write(rest) :]
            os.fdatasync(self._file.fileno())
        except OSError as error:
            message = f"cannot write {self._file.name}: {error.strerror}"
            raise UnavailableError(message, code="unwritable") from error

    def close(self) -> None:
        """Close file and database."""
        self._file.close()
        self._database.close()


class CallbackSink:
    """Calls a function with every change, and with what undoes changes.

    The ring is durable before a call, the place after it: a call may be made again after a kill,
    so it should set, not add. Documents should be stored with the `load` they come with: `Sweep`
    asks to delete those of a partition that carry a smaller one.

    Args:
        path: of the database for place and ring, made if missing.
        callback: takes `Apply`, `Restore`, `Sweep`, and `Rewind`, which changes nothing. It is
            called in a worker thread; what it raises ends the reader, and it is called again
            when the reader is started again.

    Raises:
        UnavailableError: `unreadable`. CorruptionError: no database.
    """

    def __init__(
        self,
        path: os.PathLike[str] | str,
        callback: Callable[[Apply | Restore | Sweep | Rewind], None],
    ) -> None:
        self._database = open_database(Path(path))
        self._ledger = Ledger(self._database, str(path))
        self._callback = callback

    def load(self) -> Mapping[int, Stored]:
        """Return places and rings by partition, as last written."""
        return self._ledger.load()

    def claim(self, bucket: str, bucket_uuid: str) -> None:
        """Belong to this bucket; raises as `Ledger.claim`."""
        self._ledger.claim(bucket, bucket_uuid)

    def write(self, effects: Sequence[Effect]) -> None:
        """Perform effects in order, place and ring between calls in one transaction.

        Raises:
            UnavailableError: `unwritable`.
        """
        own: list[Effect] = []
        for effect in effects:
            if isinstance(effect, Apply | Restore | Sweep | Rewind):
                self._store(own)
                own = []
                self._callback(effect)
            else:
                own.append(effect)
        self._store(own)

    def _store(self, effects: Sequence[Effect]) -> None:
        if effects:
            with _transaction(self._database):
                for effect in effects:
                    self._ledger.perform(effect)

    def close(self) -> None:
        """Close the database."""
        self._database.close()
