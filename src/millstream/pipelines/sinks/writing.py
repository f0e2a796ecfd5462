"""Writes documents for a Spark task and reports the result.

Invariants:
1. A task succeeds only if all its documents, written or found, are persisted on a majority of the
   copies, and no partition began a new history meanwhile: Spark does not send its rows again.
2. Every failure says how much was written before. Written documents stay.
3. A repeated task accepts its own documents: equal content is not a conflict.
4. An unavailable node is waited for (`reconnectTimeout`). Documents are kept until they are
   persisted, at most `HELD_BYTES_MAX` and a slice, and written again if a partition began a new
   history.
5. With a version column no document is replaced by a lower version, however late: it is written
   under the CAS that it had when its version was read.

Elsewhere: rows into writes (`sinks.rows`), Spark's side (`sinks.writers`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import msgspec

from millstream.client.documents import Document, Durability, Key, Stored
from millstream.client.extensions import PartitionPosition
from millstream.client.routing import Backoff
from millstream.client.writes import Write
from millstream.errors import ConditionError, MillstreamError, RoutingError, UnavailableError
from millstream.model.partitions import text_of_key
from millstream.pipelines.change_stream.patience import ask_again

__all__ = ["Persistence", "SinkBucket", "Written", "write_all"]

SLICE_ROWS: Final = 8_192
"""Rows that are written before conflicts among them are looked at."""
SLICE_BYTES: Final = 16 * 1024 * 1024
"""About as many bytes of keys and values, one row more at most."""
HELD_BYTES_MAX: Final = 64 * 1024 * 1024
"""About what a task's written rows take in memory before it waits until they are persisted."""
_HELD_ROW_BYTES: Final = 200
"""What a row takes beside its key and value; most of what a deletion takes."""
TRIES_MAX: Final = 16
"""Times that rows with a version are looked at again because others changed their documents."""
REFUSALS_SHOWN: Final = 5
PERSIST_S: Final = 60.0
"""Longest wait for a majority of the copies to persist what a task wrote."""


Refused = list[tuple[Write, MillstreamError]]
"""Writes that were not done, and why."""


class SinkBucket(Protocol):
    """What a sink asks of a bucket; `client.kv.Client` is one."""

    @property
    def bucket(self) -> str:
        """Its name."""
        ...

    @property
    def reconnect_s(self) -> float:
        """How long it is asked again when no node answers, in seconds."""
        ...

    @property
    def partition_count(self) -> int:
        """Number of its partitions."""
        ...

    def partition_of(self, key: Key) -> int:
        """Return the partition that owns a key."""
        ...

    def write_each(
        self, writes: Iterable[Write], *, durability: Durability = "memory"
    ) -> Iterator[tuple[Write, Stored | MillstreamError]]:
        """Do writes; yield each with what became of it."""
        ...

    def get_many(self, keys: Iterable[Any]) -> Mapping[Any, Document]:
        """Return the documents that exist."""
        ...

    def positions(self, partition_ids: Sequence[int] | None = None) -> list[PartitionPosition]:
        """Return where partitions stand."""
        ...

    def refresh_map(self) -> None:
        """Ask for the newest partition map."""
        ...


@dataclass(frozen=True, slots=True)
class Written:
    """What was done: documents written, deleted, and left alone because of a conflict."""

    written: int = 0
    deleted: int = 0
    skipped: int = 0

    def __add__(self, other: Written) -> Written:
        """Return both together."""
        return Written(
            self.written + other.written,
            self.deleted + other.deleted,
            self.skipped + other.skipped,
        )

    def __str__(self) -> str:
        """Return a line for people."""
        return f"{self.written} written, {self.deleted} deleted, {self.skipped} skipped"


def write_all(
    bucket: SinkBucket,
    writes: Iterable[Write],
    *,
    durability: Durability = "memory",
    skips_conflicts: bool = False,
    version_field: str = "",
) -> Written:
    """Write what a task has, and wait until it is persisted (invariant 1).

    Args:
        bucket: where to.
        writes: in order; of several of one key the last one counts. May raise `bad_row`.
        durability: when each write is acknowledged.
        skips_conflicts: leave documents alone whose condition does not hold, instead of failing.
        version_field: member of the documents whose higher number wins (invariant 5); empty for
            none. Writes then have no conditions of their own, and are no deletions.

    Raises:
        UsageError: `bad_row` and what else is wrong with rows.
        ConditionError: `conflict`.
        UnavailableError: something could not be written or persisted; the task may be repeated.
    """
    task = _Task(bucket, durability, version_field, skips_conflicts=skips_conflicts)
    try:
        for rows in _slices(writes):
            task.add(rows)
        task.settle()
    except MillstreamError as error:
        message = f"{error} [bucket {bucket.bucket!r}: this task has {task.done}; that stays]"
        error.args = (message,)
        raise
    return task.done


class _Task:
    """What a task has written, and what of it is not known to be persisted (invariant 4)."""

    def __init__(
        self,
        bucket: SinkBucket,
        durability: Durability,
        version_field: str,
        *,
        skips_conflicts: bool,
    ) -> None:
        self._bucket = bucket
        self._version_field = version_field
        self._durability = durability
        self._skips_conflicts = skips_conflicts
        self._persistence: Persistence | None = None
        self._is_lost = False
        self._held: list[tuple[list[Write], Written]] = []
        self._held_bytes = 0
        self._settled = Written()
        self._begun = Written()
        """What was done of the rows that are being written."""

    @property
    def done(self) -> Written:
        """What was done so far."""
        return sum((done for _, done in self._held), self._settled + self._begun)

    def add(self, rows: list[Write]) -> None:
        """Write rows."""
        done = ask_again(self._bucket, lambda _: self._write(rows))
        self._held.append((rows, done))
        self._begun = Written()
        self._held_bytes += sum(map(_size_of, rows)) + len(rows) * _HELD_ROW_BYTES
        if self._held_bytes >= HELD_BYTES_MAX:
            self.settle()

    def settle(self) -> None:
        """Wait until all is persisted; write again what a new history may lack."""
        ask_again(self._bucket, lambda _: self._persist())
        self._settled, self._held, self._held_bytes = self.done, [], 0

    def _persist(self) -> None:
        if self._is_lost:
            self._persistence = None
            self._held = [(rows, self._write(rows)) for rows, _ in self._held]
            self._is_lost, self._begun = False, Written()
        try:
            if self._persistence is not None:
                self._persistence.wait()
        except UnavailableError as error:
            self._is_lost = error.code == "history_lost"
            raise

    def _write(self, rows: list[Write]) -> Written:
        """Write rows; what is done already of an earlier time is found as it is wanted."""
        if self._persistence is None:
            self._persistence = Persistence(self._bucket)
        self._begun = Written()
        if self._version_field:
            self._write_newer(rows, self._persistence)
            return self._begun
        refused = self._write_each(rows, self._persistence)
        left_alone, found = _left_alone(self._bucket, refused, fails=not self._skips_conflicts)
        self._persistence.touched.update(self._bucket.partition_of(write.key) for write in found)
        return self._begun + left_alone

    def _write_each(self, rows: Iterable[Write], persistence: Persistence) -> Refused:
        """Write rows; return those that were refused."""
        refused = []
        for write, result in self._bucket.write_each(rows, durability=self._durability):
            if isinstance(result, MillstreamError):
                refused.append((write, result))
            else:
                persistence.touched.add(result.partition_id)
                self._begun += _DELETED if write.value is None else _WRITTEN
        return refused

    def _write_newer(self, rows: Iterable[Write], persistence: Persistence) -> None:
        """Write the rows whose documents have no higher version (invariant 5)."""
        todo: dict[bytes, tuple[int, Write]] = {}
        for row in rows:
            version = _version_in(row.value or b"", self._version_field)
            if row.key not in todo or todo[row.key][0] <= version:
                todo[row.key] = version, row
        for _ in range(TRIES_MAX):
            found = self._bucket.get_many(todo)
            wanted = []
            for key, (version, row) in todo.items():
                held = found.get(key)
                if held and _version_in(held.data, self._version_field) > version:
                    persistence.touched.add(self._bucket.partition_of(key))
                    self._begun += Written(skipped=1)
                else:
                    wanted.append(row._replace(cas=held.cas if held else 0, is_insert=not held))
            refused = self._write_each(wanted, persistence)
            others = [pair for pair in refused if not _is_conflict(*pair)]
            if others:
                raise _refusal(others, others[0][1].code)
            todo = {write.key: todo[write.key] for write, _ in refused}
            if not todo:
                return
        raise UnavailableError(
            f"others keep changing document {text_of_key(next(iter(todo)))!r} while it is "
            "written; run it again later",
            code="busy",
            retry="never",
        )


class Persistence:
    """Waits until what was written since it was made is persisted on a majority of the copies.

    `touched`: the partitions that were written, or have what was found written.
    """

    def __init__(self, bucket: SinkBucket) -> None:
        self._bucket = bucket
        self._histories = {found.partition_id: found.uuid for found in bucket.positions()}
        self.touched: set[int] = set()

    @property
    def partition_ids(self) -> Collection[int]:
        """The partitions that had an owner when it was made."""
        return self._histories.keys()

    def wait(
        self, timeout_s: float | None = None, on_look: Callable[[], None] = lambda: None
    ) -> None:
        """Wait.

        Args:
            timeout_s: at most so many seconds; None for `PERSIST_S`.
            on_look: called before each pause, all below a second; what it raises ends the wait.

        Raises:
            UnavailableError: `history_lost`: a partition began a new history, so that what was
                acknowledged may be gone, or has no owner; `timeout`.
        """
        if not self.touched:
            return
        backoff = Backoff(PERSIST_S if timeout_s is None else timeout_s)
        waiting = self._checked(sorted(self.touched))
        wanted = {found.partition_id: found.high_seqno for found in waiting}
        while waiting := [
            found for found in waiting if found.durable_seqno < wanted[found.partition_id]
        ]:
            on_look()
            if not backoff.wait():
                raise UnavailableError(
                    f"bucket {self._bucket.bucket!r} did not persist the writes in time: is a "
                    f"disk full or slow, or a majority of the copies away?",
                    code="timeout",
                    retry="never",
                )
            waiting = self._checked([found.partition_id for found in waiting])

    def _checked(self, partition_ids: Sequence[int]) -> list[PartitionPosition]:
        found = self._bucket.positions(partition_ids)
        same = {
            position.partition_id
            for position in found
            if position.uuid == self._histories.get(position.partition_id)
        }
        for partition_id in partition_ids:
            if partition_id not in same:
                raise UnavailableError(
                    f"partition {partition_id} of bucket {self._bucket.bucket!r} began a new "
                    "history, or no node serves it now: the last writes may be lost; repeat them",
                    code="history_lost",
                )
        return found


_NO_VERSION: Final = -(2**63) - 1
_members: Final = msgspec.json.Decoder(dict[str, Any]).decode
_WRITTEN: Final = Written(written=1)
_DELETED: Final = Written(deleted=1)


def _slices(writes: Iterable[Write]) -> Iterator[list[Write]]:
    rows: list[Write] = []
    size = 0
    for write in writes:
        rows.append(write)
        size += _size_of(write)
        if len(rows) == SLICE_ROWS or size >= SLICE_BYTES:
            yield rows
            rows, size = [], 0
    yield rows


def _version_in(value: bytes, name: str) -> int:
    """Return the version of a document; what has none is older than all that have one."""
    try:
        found = _members(value)[name]
        if isinstance(found, float) and found.is_integer():
            return int(found)  # others may write 5 as 5.0
        return msgspec.convert(found, int)
    except (msgspec.MsgspecError, KeyError, UnicodeDecodeError, RecursionError):
        return _NO_VERSION


def _size_of(write: Write) -> int:
    return len(write.key) + len(write.value or b"")


def _left_alone(
    bucket: SinkBucket, refused: Sequence[tuple[Write, MillstreamError]], *, fails: bool
) -> tuple[Written, list[Write]]:
    """Look at what was refused; return what is done already, counted and listed.

    Raises:
        MillstreamError: the first refusal that is no conflict, or if `fails` one that is.
    """
    others = [pair for pair in refused if not _is_conflict(*pair)]
    if others:
        # What no repetition mends is told, not what one may.
        others.sort(key=lambda pair: isinstance(pair[1], (UnavailableError, RoutingError)))
        raise _refusal(others, others[0][1].code)
    found = bucket.get_many(write.key for write, _ in refused) if refused else {}
    conflicts = [pair for pair in refused if not _is_as_wanted(pair[0], found.get(pair[0].key))]
    if conflicts and fails:
        raise _refusal(conflicts, "conflict")
    done = Written(skipped=len(conflicts))
    present = [write for write, _ in refused if _is_as_wanted(write, found.get(write.key))]
    for write in present:
        done += _DELETED if write.value is None else _WRITTEN
    return done, present


def _is_conflict(write: Write, error: MillstreamError) -> bool:
    has_condition = write.is_insert or write.cas
    return bool(has_condition) and error.code in ("key_exists", "not_found")


def _is_as_wanted(write: Write, found: Document | None) -> bool:
    if found is None or write.value is None:
        return found is None and write.value is None
    return (found.data, found.flags) == (write.value, write.flags)


def _refusal(refused: Sequence[tuple[Write, MillstreamError]], code: str) -> MillstreamError:
    named = ", ".join(
        f"{text_of_key(write.key)!r}: {error}" for write, error in refused[:REFUSALS_SHOWN]
    )
    more = len(refused) - REFUSALS_SHOWN
    also = f", and {more} more" if more > 0 else ""
    kind = ConditionError if code == "conflict" else type(refused[0][1])
    return kind(f"not written: {named}{also}", code=code)
