"""Writes a backup into a bucket: documents as they were, with CAS, rev, expiry, flags and lineage.

Invariants:
1. Keys decide where documents go: the bucket may have any number of partitions.
2. A document that is there stays, unless it is to be replaced; so a restore that broke off is
   simply run again.
3. What is deleted in the backup, or has expired since, is not written, and deletes nothing.
4. Design documents are not written with the others: they are checked where they are put, so they
   are handed to the caller.
5. It ends with success only when all it wrote, or found, is persisted on a majority of the copies
   and no partition began a new history since before the first write.
6. The attachments that a document names are on the node's disk before it is written, but for those
   that the backup has not got: they are counted.
7. A document that is too large for one request, with its conflicts, is not written, but told.

Elsewhere: the newest version of each key (`chain`), whether all arrived (`verify`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from pyspark.sql import SparkSession

from millstream.client.columns import OP_PUT, decode_meta
from millstream.client.writes import GivenWrite, is_one_request
from millstream.errors import CorruptionError, MillstreamError
from millstream.model.limits import UINT64_MAX
from millstream.model.partitions import key_from_text, text_of_key
from millstream.pipelines.change_stream.control import open_again
from millstream.pipelines.change_stream.options import SourceOptions
from millstream.pipelines.lake.blobs import BlobRestore, blob_client
from millstream.pipelines.lake.chain import chain_of, parts_of
from millstream.pipelines.lake.copying import newest_batches
from millstream.pipelines.lake.directory import BackupDirectory
from millstream.pipelines.lake.manifest import Part
from millstream.pipelines.lake.parquet import SCHEMA
from millstream.pipelines.lake.tasks import Watch, Work, results_of
from millstream.pipelines.sinks.writing import Persistence

__all__ = ["Restored", "restore", "restore_part", "writes_of"]

DESIGN: Final = "_design/"
PERSIST_S: Final = 600.0
"""Longest wait for a majority of the copies to persist what was written."""


class RestoreTask(NamedTuple):
    """One partition of a backup; `parts` newest first, `now_s` Unix seconds."""

    options: SourceOptions
    root: Path
    parts: tuple[Part, ...]
    key_prefix: str
    overwrites: bool
    now_s: int


class Restored(NamedTuple):
    """What a restore did.

    `kept`: documents that were there and stayed. `designs`: key -> JSON, not written. `blobs`:
    attachments brought; `missing_blobs`: names of those that are not in the backup. `too_large`:
    keys of documents that were not written.
    """

    manifest: int
    written: int
    kept: int
    designs: Mapping[str, bytes]
    blobs: int = 0
    missing_blobs: frozenset[bytes] = frozenset()
    too_large: tuple[str, ...] = ()


def restore(
    spark: SparkSession,
    options: SourceOptions,
    directory: BackupDirectory,
    *,
    manifest: int | None = None,
    key_prefix: str = "",
    overwrites: bool = False,
    watch: Watch | None = None,
) -> Restored:
    """Write a backup into the bucket that `options` name, and wait until it is on disk.

    Args:
        spark: whose executors see `directory`.
        options: of the node.
        directory: of the backup.
        manifest: which one; default the newest.
        key_prefix: only keys whose text form begins so.
        overwrites: replace documents that are there, newer ones too.
        watch: of the run; one that is stopped leaves what it has written.

    Raises:
        ConditionError: `stopped`.
        UsageError: `no_backup`, `unknown_manifest`.
        CorruptionError: `broken_chain`, `bad_manifest`, `damaged_file`, `bad_meta`.
        AccessError, UnavailableError: the first document that could not be written.
        UnavailableError: `history_lost`: what was written may be gone, restore it again;
            `timeout`.
    """
    watch = watch or Watch()
    manifests = directory.manifests()
    id_ = manifests.newest if manifest is None else manifest
    chain = chain_of(manifests, id_)
    tasks = []
    for part in chain[0].parts:
        parts = tuple(parts_of(chain, part.partition))
        now_s = time.time_ns() // 10**9
        task = RestoreTask(options, directory.path, parts, key_prefix, overwrites, now_s)
        rows = sum(found.row_count for found in parts)
        tasks.append(Work(part.partition, rows, task))
    written = kept = blobs = 0
    missing, too_large = frozenset[bytes](), tuple[str, ...]()
    designs: dict[str, bytes] = {}
    with open_again(options) as client:
        persistence = Persistence(client)
        persistence.touched.update(range(client.partition_count))
        for result in results_of(spark, restore_part, tasks, watch=watch):
            written, kept = written + result.written, kept + result.kept
            designs |= result.designs
            blobs, missing = blobs + result.blobs, missing | result.missing_blobs
            too_large += result.too_large
        persistence.wait(PERSIST_S, watch.check)
    return Restored(id_, written, kept, designs, blobs, missing, too_large)


def restore_part(task: RestoreTask) -> Restored:
    """Write one partition's documents.

    Raises:
        MillstreamError: as `restore`.
    """
    designs: dict[str, bytes] = {}
    too_large: list[str] = []
    written = kept = 0
    with open_again(task.options) as client, ExitStack() as stack:
        blobs = BlobRestore(task.root, partial(blob_client, task.options), client.partition_count)
        stack.callback(blobs.close)
        for _, result in client.write_each(
            _after_blobs(blobs, writes_of(task, designs), too_large)
        ):
            if not isinstance(result, MillstreamError):
                written += 1
            elif result.code == "key_exists":
                kept += 1
            else:
                raise result
    missing = frozenset(blobs.missing)
    return Restored(0, written, kept, designs, blobs.put, missing, tuple(too_large))


def _after_blobs(
    blobs: BlobRestore, writes: Iterator[GivenWrite], too_large: list[str]
) -> Iterator[GivenWrite]:
    """Yield writes whose attachments the node has; put the keys of others into `too_large`."""
    for write in writes:
        if not is_one_request(write):
            too_large.append(text_of_key(write.key))
            continue
        blobs.bring(write)
        yield write


def writes_of(task: RestoreTask, designs: dict[str, bytes]) -> Iterator[GivenWrite]:
    """Yield what is to be written; put design documents into `designs`."""
    for batch in newest_batches(task.root, task.parts, SCHEMA.names):
        for row in batch.to_pylist():
            key, expiry = row["key"], row["expiry"]
            if row["op"] != OP_PUT or not key.startswith(task.key_prefix):
                continue
            if 0 < expiry <= task.now_s:
                continue
            if key.startswith(DESIGN):
                designs[key] = row["value"]
            else:
                yield _write(row, is_insert=not task.overwrites)


def _write(row: Mapping[str, Any], *, is_insert: bool) -> GivenWrite:
    try:
        meta = decode_meta(row["meta"])
    except ValueError as error:
        raise CorruptionError(
            f"document {row['key']!r} of the backup has no lineage: {error}", code="bad_meta"
        ) from error
    return GivenWrite(
        key_from_text(row["key"]), row["value"], row["flags"], row["datatype"], row["expiry"],
        row["cas"] & UINT64_MAX, row["rev"] & UINT64_MAX, meta.lineage, is_insert, meta.sidecar,
    )  # fmt: skip
