"""`millstream restore BUCKET FILE`: a dump into a bucket.

Invariants:
1. Nothing is written from a file that was cut or changed (`client.dump_file`).
2. A document that is there stays, unless it is to be replaced, and a deletion deletes nothing; so
   a restore that broke off is simply run again.
3. The attachments that a document names are on the node's disk before it is written.
4. It ends with success only when all it wrote, or found, is persisted on a majority of the copies
   and no partition began a new history since before the first write.
5. Memory holds a batch of documents, and a piece of an attachment or one design document.

Elsewhere: lines (`client.dump_lines`), where they come from (`cli.bulk.dump`).

Source: docs/reference/dump.md.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from millstream.cli.connect import (
    BucketArgument,
    JsonOption,
    NodeOptions,
    at_node,
    client_of,
)
from millstream.cli.designs import database_of
from millstream.cli.node_http import node_http, path_of
from millstream.cli.progress import progress_of
from millstream.client.blobs import BlobClient
from millstream.client.databases import Database, DatabaseSettings
from millstream.client.dump_file import DumpFile
from millstream.client.dump_lines import (
    AttachmentLine,
    DesignLine,
    DocumentLine,
    Line,
    SettingsLine,
    leaf_texts,
    write_of,
)
from millstream.client.kv import Client
from millstream.client.writes import GivenWrite, is_one_request
from millstream.documents.stored import REVS_LIMIT_DEFAULT
from millstream.errors import (
    AccessError,
    ConditionError,
    CorruptionError,
    MillstreamError,
    UnavailableError,
    UsageError,
)
from millstream.model.partitions import key_from_text
from millstream.pipelines.sinks.writing import Persistence

__all__ = ["command"]

BATCH_ROWS: Final = 1000
BATCH_BYTES: Final = 8 * 1024 * 1024
"""Values and sidecars of one batch, one document more at most."""
PERSIST_S: Final = 600.0
"""Longest wait for a majority of the copies to persist what was written."""

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="What `dump` wrote.")]
CreateOption = Annotated[
    bool,
    typer.Option(
        "--create",
        help="Make the bucket if there is none, with as many partitions as the dumped one.",
    ),
]
OverwriteOption = Annotated[
    bool, typer.Option("--overwrite", help="Replace documents that are there, newer ones too.")
]


@at_node
def command(
    bucket: BucketArgument,
    file: FileArgument,
    create: CreateOption = False,
    overwrite: OverwriteOption = False,
    *,
    at: NodeOptions,
    json: JsonOption = False,
) -> None:
    """Write a dump into a bucket; documents that are there stay."""

    def database(key: str) -> Database:
        return database_of(bucket, key, **at.options)

    def settings() -> Database:
        http = node_http(**at.options)
        return Database(http, bucket)

    started_at = time.monotonic()
    with DumpFile(file) as dump:
        if create:
            http = node_http(**at.options)
            content = {"name": bucket, "partitions": dump.header.partitions}
            with suppress(ConditionError):  # it is there, perhaps since a restore that broke off
                http.request("PUT", path_of("_millstream", "buckets", bucket), content)
        with client_of(bucket, **at.options) as client:
            restore = _Restore(dump, client, database, settings, overwrites=overwrite)
            try:
                with _progress(json) as progress:
                    bar = progress.add_task(bucket, total=dump.end.bytes)
                    for _ in restore.batches():
                        progress.update(bar, completed=dump.done)
                    restore.wait_persisted()
            except KeyboardInterrupt:
                print("stopped; run it again for the rest", file=sys.stderr)
                raise
    done = restore.done
    if restore.unset is not None:
        print(
            f"the settings of the database (_security, _revs_limit) were not restored: "
            f"{restore.unset}",
            file=sys.stderr,
        )
    if json:
        told = {**asdict(done), "seconds": round(time.monotonic() - started_at, 3)}
        print(msgspec.json.encode(told).decode())
    else:
        _report(bucket, dump, done, time.monotonic() - started_at)
    if restore.refusal is not None:
        raise ConditionError(
            f"{done.refused:,} documents were not written, such as this one: {restore.refusal}",
            code="too_large",
        )


@dataclass
class _Done:
    """What was done.

    `kept`: what was there and stayed. `expired`: by now, and not written. `refused`: not written.
    """

    documents: int = 0
    deletions: int = 0
    designs: int = 0
    attachments: int = 0
    kept: int = 0
    expired: int = 0
    refused: int = 0


class _Restore:
    """Writes the lines of a dump."""

    def __init__(
        self,
        dump: DumpFile,
        client: Client,
        database: Callable[[str], Database],
        settings: Callable[[], Database],
        *,
        overwrites: bool,
    ) -> None:
        self._dump, self._client, self._database = dump, client, database
        self._settings, self._overwrites = settings, overwrites
        self._is_new = not any(place.high_seqno for place in client.positions())
        self._revs_limit = REVS_LIMIT_DEFAULT
        self._now_s = time.time_ns() // 10**9
        self._persistence = Persistence(client)
        self._persistence.touched.update(range(client.partition_count))
        self.done = _Done()
        self.unset: MillstreamError | None = None
        """Why the settings of the database were not restored."""
        self.refusal: UsageError | None = None
        """Why the first of those that were refused was."""

    def batches(self) -> Iterator[int]:
        """Write batch after batch; yield how many documents each had.

        Raises:
            CorruptionError: `bad_dump`, `bad_sidecar`.
            MillstreamError: the first document that could not be written.
        """
        batch: list[GivenWrite] = []
        size = 0
        lines = self._dump.lines()
        for line in lines:
            if isinstance(line, AttachmentLine):
                self._bring(line, lines)
            elif isinstance(line, DesignLine):
                self._database(line.id).bring(line.docs)
                self.done.designs += 1
            elif isinstance(line, SettingsLine):
                self._set(line.settings)
            elif isinstance(line, DocumentLine):
                if line.op == "put" and 0 < line.expiry <= self._now_s:
                    self.done.expired += 1
                    continue
                write = write_of(
                    line, self._dump.header.bucket_uuid, self._client.cluster_map.bucket_uuid,
                    is_insert=not self._overwrites, revs_limit=self._revs_limit,
                )  # fmt: skip
                if not is_one_request(write):
                    self._merge(line)
                    continue
                batch.append(write)
                size += len(write.value or b"") + len(write.sidecar)
            else:
                raise CorruptionError(
                    f"{self._dump.path}: a header or an end stands among the documents",
                    code="bad_dump",
                )
            if size >= BATCH_BYTES or len(batch) >= BATCH_ROWS:
                self._write(batch)
                yield len(batch)
                batch, size = [], 0
        self._write(batch)
        yield len(batch)

    def wait_persisted(self) -> None:
        """Wait until all is on disk (invariant 4).

        Raises:
            UnavailableError: `history_lost`, `timeout`.
        """
        self._persistence.wait(PERSIST_S)

    def _set(self, settings: DatabaseSettings) -> None:
        """Set what was set for the database, unless there was something in it before."""
        self._revs_limit = settings.revs_limit
        if not self._is_new and not self._overwrites:
            return
        try:
            self._settings().set(settings)
        except (AccessError, UnavailableError) as error:
            if isinstance(error, UnavailableError) and error.code != "no_http":
                raise  # nothing is written yet: it may be tried again
            self.unset = error

    def _merge(self, line: DocumentLine) -> None:
        """Bring a document leaf by leaf; those that are there stay."""
        try:
            for text in leaf_texts(line, self._dump.header.bucket_uuid):
                self._database(line.key).bring([text])
        except UsageError as error:
            if error.code != "too_large":
                raise
            self.refusal = self.refusal or error
            self.done.refused += 1
        else:
            self.done.documents += 1

    def _write(self, batch: list[GivenWrite]) -> None:
        wanted = batch if self._overwrites else self._without_old_deletions(batch)
        for write, result in self._client.write_each(wanted):
            if not isinstance(result, MillstreamError):
                if write.value is None:
                    self.done.deletions += 1
                else:
                    self.done.documents += 1
            elif result.code == "key_exists" and write.is_insert:
                self.done.kept += 1
            else:
                raise result

    def _without_old_deletions(self, batch: list[GivenWrite]) -> list[GivenWrite]:
        """Return a batch without the deletions of which the bucket knows something."""
        keys = [write.key for write in batch if write.value is None]
        known = self._client.get_versioned_many(keys) if keys else {}
        wanted = [write for write in batch if write.value is not None or write.key not in known]
        self.done.kept += len(batch) - len(wanted)
        return wanted

    def _bring(self, first: AttachmentLine, lines: Iterator[Line]) -> None:
        """Bring an attachment to the node that has its document's partition."""
        partition_id = self._client.partition_of(key_from_text(first.key))
        pieces = _Pieces(first, lines)
        name = bytes.fromhex(first.sha256)
        self.done.attachments += BlobClient(self._client.router).put(
            partition_id, name, first.length, pieces
        )
        while pieces.read():
            pass  # it was there


class _Pieces:
    """An attachment as a file that is read to its end, a line at a time."""

    def __init__(self, first: AttachmentLine, lines: Iterator[Line]) -> None:
        self._next: AttachmentLine | None = first
        self._lines = lines

    def read(self, _: int = -1) -> bytes:
        """Return the bytes of a line, nothing at the end."""
        line = self._next
        if line is None:
            return b""
        end = line.offset + len(line.data)
        self._next = None
        if end < line.length:
            following = next(self._lines, None)
            if not isinstance(following, AttachmentLine) or (
                following.sha256,
                following.offset,
            ) != (line.sha256, end):
                raise CorruptionError(
                    f"an attachment of {line.key!r} ends in the middle", code="bad_dump"
                )
            self._next = following
        return line.data


def _progress(is_quiet: bool) -> Progress:
    return progress_of(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
        is_quiet=is_quiet,
    )


def _report(bucket: str, dump: DumpFile, done: _Done, seconds: float) -> None:
    said = (
        f"bucket {bucket}: {done.documents:,} documents, {done.deletions:,} deletions, "
        f"{done.designs:,} design documents, {done.attachments:,} attachments written "
        f"({seconds:.1f} s)"
    )
    if done.kept:
        said += f"; {done.kept:,} that were there stayed (--overwrite replaces them)"
    if done.expired:
        said += f"; {done.expired:,} have expired since the dump"
    print(said, file=sys.stderr)
    if dump.end.missing_attachments:
        print(
            f"{dump.end.missing_attachments:,} attachments are not in this dump; the documents "
            "that have them were written without their bytes",
            file=sys.stderr,
        )
