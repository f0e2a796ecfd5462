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
4. One process at a time has a sink open, as long as it lives: another one is refused before it
   has changed anything.

Elsewhere: which effects, in which order (`upr.core.bookkeeper`); who calls (`upr.aio.following`).
"""

from __future__ import annotations

import contextlib
import io
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from millstream.errors import CorruptionError, MillstreamError, UnavailableError
from millstream.runtime.process import FileLock
from millstream.upr.aio.ledger import Ledger, Stored, open_database
from millstream.upr.core.bookkeeper import Apply, Document, Effect, Restore, Rewind, Sweep
from millstream.upr.core.lines import lines_of

__all__ = ["CallbackSink", "JsonLinesSink", "Sink", "SinkLock", "SqliteSink"]

LOCK_PATIENCE_S: Final = 1.0
"""How long to wait for the lock of a reader that is just ending."""
_DOCUMENTS: Final = """
CREATE TABLE IF NOT EXISTS documents (
    key BLOB PRIMARY KEY, value BLOB NOT NULL, partition INTEGER NOT NULL, seqno INTEGER NOT NULL,
    cas INTEGER NOT NULL, flags INTEGER NOT NULL, datatype INTEGER NOT NULL, load INTEGER NOT NULL
) WITHOUT ROWID;
"""
_LINES: Final = "CREATE TABLE IF NOT EXISTS millstream_lines (bytes INTEGER NOT NULL);"


class Sink(Protocol):
    """Holds what a reader builds, with its position and its ring."""

    def load(self) -> Mapping[int, Stored]:
        """Return places and rings by partition, as last written."""

    def claim(self, bucket: str, bucket_uuid: str) -> None:
        """Belong to this bucket, or raise because it belongs to another one."""

    def write(self, effects: Sequence[Effect]) -> None:
        """Perform effects; a kill may leave any beginning of them."""

    def close(self) -> None:
        """Close files."""


@contextlib.contextmanager
def _transaction(database: sqlite3.Connection) -> Iterator[None]:
    """Commit at the end, or leave everything as it was."""
    try:
        database.execute("BEGIN IMMEDIATE")
        try:
            yield
            database.execute("COMMIT")
        except BaseException:  # also when interrupted: all or nothing
            if database.in_transaction:
                database.execute("ROLLBACK")
            raise
    except sqlite3.OperationalError as error:
        message = f"the database cannot be written: {error}; nothing of it is lost"
        raise UnavailableError(message, code="unwritable") from error


class SinkLock(FileLock):
    """The right to follow into a sink.

    Raises:
        UnavailableError: `sink_in_use`.
    """

    def refusal(self, path: Path, holder: str) -> UnavailableError:
        """Return `sink_in_use`."""
        return UnavailableError(
            f"another reader (process {holder}) follows into {path.with_suffix('')}; stop it, or "
            "choose another file",
            code="sink_in_use",
        )


class _LedgerSink:
    """A sink whose place and ring are in a database, with whatever else it keeps there.

    Args:
        path: of the sink, for messages; whoever has `<path>.lock` may follow into it.
        database: path of the database.
        tables: what the sink keeps in it.
    """

    def __init__(self, path: os.PathLike[str] | str, database: str, tables: str = "") -> None:
        self._path = os.fspath(path)
        try:
            self._lock = SinkLock(Path(f"{self._path}.lock"), patience_s=LOCK_PATIENCE_S)
        except OSError as error:
            message = f"cannot open {error.filename}: {error.strerror}"
            raise UnavailableError(message, code="unreadable") from error
        try:
            self._database = open_database(Path(database), tables)
        except MillstreamError:
            self._lock.release()
            raise
        self._ledger = Ledger(self._database, self._path)

    def load(self) -> Mapping[int, Stored]:
        """Return places and rings by partition, as last written."""
        return self._ledger.load()

    def claim(self, bucket: str, bucket_uuid: str) -> None:
        """Belong to this bucket; raises as `Ledger.claim`."""
        self._ledger.claim(bucket, bucket_uuid)

    def close(self) -> None:
        """Close the database, and let others follow into it."""
        self._database.close()
        self._lock.release()


class SqliteSink(_LedgerSink):
    """The bucket as a table `documents` of an SQLite database; place and ring beside it.

    Args:
        path: of the database, made if missing.

    Raises:
        UnavailableError: `unreadable`, `sink_in_use`. CorruptionError: no database.
    """

    def __init__(self, path: os.PathLike[str] | str) -> None:
        super().__init__(path, os.fspath(path), _DOCUMENTS)

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


class JsonLinesSink(_LedgerSink):
    """Every change as a line of a file; place and ring in `<path>.place`.

    What is behind the length kept there was written and not counted: it is cut off at the start.

    Args:
        path: of the lines, made if missing.

    Raises:
        UnavailableError: `unreadable`, `sink_in_use`.
        CorruptionError: the file is shorter than what was written to it.
    """

    def __init__(self, path: os.PathLike[str] | str) -> None:
        super().__init__(path, f"{os.fspath(path)}.place", _LINES)
        row = self._database.execute("SELECT bytes FROM millstream_lines").fetchone()
        if row is None:
            self._database.execute("INSERT INTO millstream_lines VALUES (0)")
        self._bytes: int = row[0] if row else 0
        self._file: io.FileIO | None = None
        try:
            self._file = io.FileIO(self._path, "ab")
            found = self._file.seek(0, os.SEEK_END)
            if found >= self._bytes:
                self._file.truncate(self._bytes)
        except OSError as error:
            self.close()
            message = f"cannot open {self._path}: {error.strerror}"
            raise UnavailableError(message, code="unreadable") from error
        if found < self._bytes:
            self.close()
            raise CorruptionError(
                f"{self._path} has {found} bytes, {self._bytes} were written to it; put the file "
                f"back, or start again without its .place file"
            )

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
        assert self._file is not None
        try:
            self._file.truncate(self._bytes)  # of a write that failed
            rest = memoryview(lines)
            while rest:
                rest = rest[self._file.write(rest) :]
            os.fdatasync(self._file.fileno())
        except OSError as error:
            message = f"cannot write {self._path}: {error.strerror}"
            raise UnavailableError(message, code="unwritable") from error

    def close(self) -> None:
        """Close file and database, and let others follow into it."""
        if self._file is not None:
            self._file.close()
        super().close()


class CallbackSink(_LedgerSink):
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
        UnavailableError: `unreadable`, `sink_in_use`. CorruptionError: no database.
    """

    def __init__(
        self,
        path: os.PathLike[str] | str,
        callback: Callable[[Apply | Restore | Sweep | Rewind], None],
    ) -> None:
        super().__init__(path, os.fspath(path))
        self._callback = callback

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
