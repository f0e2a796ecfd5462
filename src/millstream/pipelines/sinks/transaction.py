"""The commit of a transactional sink: a micro-batch is written whole, once, or not at all.

    _millstream:transaction/<sinkId>   the header: query, newest batch, segments, whether applied

One compare-and-swap of the header, which lists the staged segments, commits a batch. Then its rows
are applied, and the header records that. The next writer finishes a batch that is listed and not
applied.

Invariants:
1. Only rows of segments in the header are applied, and only of the newest batch.
2. Each effect may be the last one before a crash, and may be repeated. A batch is listed before it
   is applied, it is applied and persisted before the header says so, and only then its staged rows
   are removed.
3. A commit that was overtaken changes nothing more: a row is written under the CAS that its
   document had before the header was read again. A late insert of a key that was deleted meanwhile
   is taken back, under the CAS of that insert, also if other rows failed. The exception are
   inserts whose CAS is unknown because the process died or got no reply.
4. Batches of a query follow each other without gap. Any other batch is refused.

Elsewhere: staged rows (`sinks.staging`), Spark's side (`sinks.transactional`), the reasons
(docs/design/0016-spark-sinks.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec

from millstream.client.documents import Document, Durability, Key, Stored
from millstream.client.writes import Write
from millstream.errors import ConditionError, MillstreamError, UnavailableError, UsageError
from millstream.pipelines.change_stream.patience import ask_again
from millstream.pipelines.sinks.batch_order import Writer, next_writer
from millstream.pipelines.sinks.sink_options import SINK_PREFIX
from millstream.pipelines.sinks.staging import Segment, chunk_keys, rows_of_chunk
from millstream.pipelines.sinks.writing import Persistence, SinkBucket

__all__ = ["TransactionBucket", "TransactionalSink"]

ROUNDS_MAX: Final = 8
"""Times that a commit begins again because another one of the same sink came first."""
TRIES_MAX: Final = 16
"""Times that rows are written again because somebody else changed their documents meanwhile."""
_VERSION: Final = 1
_KEPT: Final = "persisted"


class TransactionBucket(SinkBucket, Protocol):
    """What the commit asks of a bucket, beside what every sink does."""

    def get(self, key: Key) -> Document | None:
        """Return a document."""
        ...

    def insert(self, key: Key, value: Any, *, durability: Durability = "memory") -> Stored:
        """Write a document that must not exist yet."""
        ...

    def replace(
        self, key: Key, value: Any, *, cas: int = 0, durability: Durability = "memory"
    ) -> Stored:
        """Write a document that must still have this CAS."""
        ...

    def cas_many(self, keys: Iterable[bytes]) -> Mapping[bytes, int]:
        """Return the CAS of the documents that exist."""
        ...

    def partition_of(self, key: Key) -> int:
        """Return the partition of a key."""
        ...


class Header(msgspec.Struct, frozen=True):
    """What is known of a sink: the newest batch, by which query, from which segments."""

    sink: str
    query: str
    batch: int
    is_applied: bool
    segments: tuple[Segment, ...] = ()
    v: int = _VERSION


class _OvertakenError(Exception):
    """The header is not what it was: another commit of this sink is at work."""


class TransactionalSink:
    """One sink of one bucket.

    Args:
        bucket: a client of it.
        sink_id: name of the sink.
    """

    def __init__(self, bucket: TransactionBucket, sink_id: str) -> None:
        self._bucket = bucket
        self._sink_id = sink_id
        self._key = SINK_PREFIX + sink_id

    def commit(self, batch_id: int, query_id: str, segments: Sequence[Segment]) -> None:
        """Write the rows of a batch; nothing if that is done already.

        Args:
            batch_id: number of the batch, as Spark counts.
            query_id: of the query, which its checkpoint keeps.
            segments: what the tasks that count have staged.

        Raises:
            UsageError: `other_checkpoint`: the batch is not one that can come next.
            ConditionError: `taken_over`: other commits of this sink come first again and again.
            UnavailableError: the batch may be repeated, or is finished by the next commit.
        """
        for _ in range(ROUNDS_MAX):
            try:
                header, cas = self._read()
                self._check(header, batch_id, query_id)
                if header is None or not self._is_settled(header, cas, batch_id):
                    is_empty = not any(segment.rows for segment in segments)
                    new = Header(self._sink_id, query_id, batch_id, is_empty, tuple(segments))
                    cas = self._list(new, cas)
                    if not is_empty:
                        self._settle(new, cas)
                self._remove(segments)
                return
            except _OvertakenError:
                continue
        raise ConditionError(
            f"sink {self._sink_id!r} of bucket {self._bucket.bucket!r}: another query commits to "
            "it all the time; give each query a sinkId of its own",
            code="taken_over",
        )

    def abort(self, segments: Sequence[Segment]) -> None:
        """Remove what was staged for a batch that failed, unless the header lists it."""
        header, _ = self._read()
        listed = () if header is None or header.is_applied else header.segments
        self._remove([segment for segment in segments if segment not in listed])

    # -- the header

    def _read(self) -> tuple[Header | None, int]:
        found = self._bucket.get(self._key)
        if found is None:
            return None, 0
        try:
            header = msgspec.json.decode(found.data, type=Header)
        except msgspec.MsgspecError as error:
            raise UsageError(
                f"document {self._key!r} of bucket {self._bucket.bucket!r} is not a header of a "
                f"sink: {error}",
                code="bad_header",
            ) from error
        if header.v != _VERSION:
            raise UsageError(
                f"sink {self._sink_id!r} was written by a newer release (version {header.v}); "
                "upgrade this one",
                code="newer_version",
            )
        return header, found.cas

    def _check(self, header: Header | None, batch_id: int, query_id: str) -> None:
        """Refuse a batch that cannot be the next one, or the newest again."""
        next_writer(
            Writer(-1) if header is None else Writer(header.batch, header.query),
            Writer(batch_id, query_id),
            f"sink {self._sink_id!r} of bucket {self._bucket.bucket!r}",
            "begin with a new one and another sinkId",
            gap="Was the bucket made anew or restored, or was the query no transactional one "
            "before? Begin with a new checkpoint and another sinkId",
        )

    def _list(self, header: Header, cas: int) -> int:
        """Commit: let the header list the segments of a batch; return its CAS."""
        if not self._are_staged(header.segments):
            raise self._lost(header.batch)
        return self._swap(header, cas)

    def _is_settled(self, header: Header, cas: int, batch_id: int) -> bool:
        """Finish what the header lists; return whether the batch that is asked for is done."""
        if header.is_applied:
            if header.batch == batch_id:
                self._remove(header.segments)
        elif self._are_staged(header.segments):
            self._settle(header, cas)
            if header.batch != batch_id:
                raise _OvertakenError  # by ourselves: look again
        elif header.batch == batch_id:
            return False  # expired meanwhile; this attempt has the batch's rows again
        elif self._read()[1] != cas:
            raise _OvertakenError
        else:
            raise self._lost(header.batch)
        return header.batch == batch_id

    def _lost(self, batch_id: int) -> UnavailableError:
        return UnavailableError(
            f"rows of batch {batch_id} that were staged for sink {self._sink_id!r} of bucket "
            f"{self._bucket.bucket!r} are gone: they expired, or were "
            "deleted. Start the query again",
            code="staging_lost",
            retry="never",
        )

    def _settle(self, header: Header, cas: int) -> None:
        """Apply what the header lists, say so in it, and remove what was staged."""
        persistence = Persistence(self._bucket)
        for segment in header.segments:
            for key in chunk_keys(self._sink_id, segment):
                self._apply(self._rows(key), cas, persistence)
        persistence.wait()
        self._swap(msgspec.structs.replace(header, is_applied=True), cas)
        self._remove(header.segments)

    def _swap(self, header: Header, cas: int) -> int:
        try:
            if not cas:
                return self._bucket.insert(self._key, header, durability="persisted").cas
            return self._bucket.replace(self._key, header, cas=cas, durability="persisted").cas
        except ConditionError as error:
            raise _OvertakenError from error

    # -- rows

    def _are_staged(self, segments: Iterable[Segment]) -> bool:
        keys = [key for segment in segments for key in chunk_keys(self._sink_id, segment)]
        return not keys or len(self._bucket.cas_many(keys)) == len(keys)

    def _rows(self, key: bytes) -> list[Write]:
        found = self._bucket.get(key)
        if found is None:
            raise _OvertakenError  # removed by who finished the batch, or expired
        return rows_of_chunk(key, found)

    def _apply(self, rows: Iterable[Write], cas: int, persistence: Persistence) -> None:
        """Write rows as long as the header has this CAS (invariant 3)."""
        todo = {row.key: row for row in rows}
        for _ in range(TRIES_MAX):
            if not todo:
                return
            versions = self._bucket.cas_many(todo)
            if self._read()[1] != cas:
                raise _OvertakenError
            persistence.touched.update(self._bucket.partition_of(key) for key in todo)
            todo, inserted, failure = self._write(
                row._replace(cas=versions.get(key, 0), is_insert=key not in versions)
                for key, row in todo.items()
                if key in versions or row.value is not None
            )
            if inserted and ask_again(self._bucket, lambda _: self._read())[1] != cas:
                self._take_back(inserted)
                raise _OvertakenError
            if failure is not None:
                raise failure
        raise UnavailableError(
            f"others keep changing document {next(iter(todo))!r} while batch rows are applied; "
            "start the query again",
            code="busy",
            retry="never",
        )

    def _write(
        self, rows: Iterable[Write]
    ) -> tuple[dict[bytes, Write], dict[bytes, int], MillstreamError | None]:
        """Write rows; return those whose documents others changed, CAS of inserts, a failure."""
        changed: dict[bytes, Write] = {}
        inserted: dict[bytes, int] = {}
        failure: MillstreamError | None = None
        try:
            for row, result in self._bucket.write_each(rows):
                if _is_conflict(result):
                    changed[row.key] = row
                elif isinstance(result, MillstreamError):
                    failure = failure or result
                elif row.is_insert:
                    inserted[row.key] = result.cas
        except MillstreamError as error:  # the connection broke: some have no reply
            failure = failure or error
        return changed, inserted, failure

    def _take_back(self, inserted: Mapping[bytes, int]) -> None:
        """Delete what was inserted too late; what others changed since is theirs."""
        deletions = [Write(key, None, cas=cas) for key, cas in inserted.items()]

        def delete(bucket: TransactionBucket) -> None:
            results = [result for _, result in bucket.write_each(deletions, durability=_KEPT)]
            for result in results:
                if isinstance(result, MillstreamError) and not _is_conflict(result):
                    raise result

        ask_again(self._bucket, delete)

    def _remove(self, segments: Iterable[Segment]) -> None:
        """Delete what was staged; what cannot be deleted now expires."""
        keys = [key for segment in segments for key in chunk_keys(self._sink_id, segment)]
        for _ in self._bucket.write_each(Write(key, None) for key in keys):
            pass


def _is_conflict(result: Stored | MillstreamError) -> bool:
    """Whether a document is not the one that a write was meant for."""
    return isinstance(result, ConditionError) and result.code in ("key_exists", "not_found")
