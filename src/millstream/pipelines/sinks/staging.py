"""Staged rows: rows that wait in the bucket for the commit of their micro-batch.

    _millstream:transaction/<sinkId>/<segment>/<n>     digest (16 bytes), then rows as MessagePack

A segment has the rows that one attempt of one task staged. Its name is
`<batch>.<task>.<attempt>.<token>`, and its chunks are numbered from 0.

Invariants:
1. No two attempts write under one name, because the token is random.
2. A segment is reported only when all its chunks are persisted on a majority of the copies.
3. A chunk that is damaged, or was not written under its own name, is an error.
4. Chunks that are not removed expire after `STAGED_SECONDS`.
5. An unavailable node is waited for (`reconnectTimeout`). Chunks that may not be persisted, at
   most `CHUNKS_AT_ONCE`, are written again.

Elsewhere: which segments count (`sinks.transaction`), the reasons
(docs/design/0016-spark-sinks.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from hashlib import blake2b
from itertools import islice
from typing import Final

import msgspec

from millstream.client.documents import FLAGS_BINARY, Document
from millstream.client.writes import Write
from millstream.errors import CorruptionError, MillstreamError, UsageError
from millstream.model.limits import VALUE_BYTES_MAX
from millstream.model.partitions import text_of_key
from millstream.pipelines.change_stream.patience import ask_again
from millstream.pipelines.sinks.sink_options import SINK_PREFIX
from millstream.pipelines.sinks.writing import SinkBucket

__all__ = ["STAGED_SECONDS", "Segment", "chunk_keys", "rows_of_chunk", "stage"]

STAGED_SECONDS: Final = 7 * 24 * 3600
"""Life of staged rows: longest pause between a kill and the restart that finishes the batch."""
CHUNK_BYTES: Final = 1024 * 1024
CHUNK_ROWS_MAX: Final = 8_192
CHUNKS_AT_ONCE: Final = 16
"""Chunks that are written, and persisted, together."""
ROW_BYTES_MAX: Final = VALUE_BYTES_MAX - 1024
_DIGEST_BYTES: Final = 16
_ROW_OVERHEAD_BYTES: Final = 40


class Segment(msgspec.Struct, frozen=True, array_like=True):
    """The rows of one attempt: its name, how many chunks and rows there are."""

    name: str
    chunks: int
    rows: int


_Row = tuple[bytes, bytes | None, int, int, int]
_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(list[_Row]).decode


def chunk_keys(sink_id: str, segment: Segment) -> list[bytes]:
    """Return the keys of a segment's chunks, in their order."""
    return [_chunk_key(sink_id, segment.name, n) for n in range(segment.chunks)]


def stage(bucket: SinkBucket, sink_id: str, name: str, writes: Iterable[Write]) -> Segment:
    """Store rows for later.

    Args:
        bucket: where they will be written, too.
        sink_id: of the sink.
        name: of the segment, never used before.
        writes: the rows; conditions are not kept.

    Raises:
        UsageError: `bad_row`.
        UnavailableError: something could not be stored; the task may be repeated.
    """
    chunks = rows = 0

    def documents() -> Iterator[Write]:
        nonlocal chunks, rows
        for group in _groups(writes):
            key = _chunk_key(sink_id, name, chunks)
            body = _pack([write[:5] for write in group])
            value = _digest(key, body) + body
            chunks, rows = chunks + 1, rows + len(group)
            yield Write(key, value, FLAGS_BINARY, 0, expiry=STAGED_SECONDS)

    waiting = documents()
    while group := list(islice(waiting, CHUNKS_AT_ONCE)):
        ask_again(bucket, partial(_store, chunks=group))
    return Segment(name, chunks, rows)


def _store(bucket: SinkBucket, chunks: Iterable[Write]) -> None:
    for _, result in bucket.write_each(chunks, durability="persisted"):
        if isinstance(result, MillstreamError):
            raise result


def rows_of_chunk(key: bytes, document: Document) -> list[Write]:
    """Return the rows of a chunk.

    Raises:
        CorruptionError: `bad_chunk`.
    """
    digest, body = document.data[:_DIGEST_BYTES], document.data[_DIGEST_BYTES:]
    if digest != _digest(key, body):
        raise CorruptionError(
            f"document {text_of_key(key)!r} has no rows that this sink staged: who else writes "
            f"keys that begin with {SINK_PREFIX}?",
            code="bad_chunk",
        )
    return [Write(*row) for row in _unpack(body)]


def _groups(writes: Iterable[Write]) -> Iterator[list[Write]]:
    """Cut rows into the contents of chunks, without empty ones."""
    group: list[Write] = []
    size = 0
    for write in writes:
        row_bytes = len(write.key) + len(write.value or b"") + _ROW_OVERHEAD_BYTES
        if row_bytes > ROW_BYTES_MAX:
            raise UsageError(
                f"row {text_of_key(write.key)[:80]!r}: a transactional sink takes rows of at most "
                f"{ROW_BYTES_MAX} bytes",
                code="bad_row",
            )
        if group and (size + row_bytes > CHUNK_BYTES or len(group) >= CHUNK_ROWS_MAX):
            yield group
            group, size = [], 0
        group.append(write)
        size += row_bytes
    if group:
        yield group


def _chunk_key(sink_id: str, name: str, n: int) -> bytes:
    return f"{SINK_PREFIX}{sink_id}/{name}/{n}".encode()


def _digest(key: bytes, body: bytes) -> bytes:
    return blake2b(body, digest_size=_DIGEST_BYTES, key=blake2b(key).digest()).digest()
