"""`millstream dump BUCKET FILE`: a bucket in one file, while clients write.

Invariants:
1. Each partition is read as of one moment, under a lease. Where that cannot be done to the end,
   what the file has of the partition is forgotten, and it is read anew.
2. An attachment stands before the document that names it.
3. Memory holds a chunk of the stream and a piece of an attachment, or one design document.

Elsewhere: lines (`client.dump_lines`), the file (`client.dump_file`), the way back
(`cli.bulk.restore`).

Source: docs/reference/dump.md.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Annotated, Final

import msgspec
import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from millstream.cli.connect import BucketArgument, JsonOption, NodeOptions, at_node, client_of
from millstream.cli.designs import database_of, is_design
from millstream.cli.node_http import node_http
from millstream.cli.progress import progress_of
from millstream.client.blobs import BlobClient
from millstream.client.bulk import BucketRanges, Range
from millstream.client.databases import Database
from millstream.client.dump_file import DumpWriter
from millstream.client.dump_lines import (
    FORMAT,
    VERSION,
    AttachmentLine,
    DesignLine,
    DocumentLine,
    EndLine,
    HeaderLine,
    SettingsLine,
    decode_line,
    document_line,
    encode_line,
)
from millstream.client.extensions import LeaseHold
from millstream.client.http import HttpClient
from millstream.client.kv import Client
from millstream.client.routing import Backoff
from millstream.documents.stored import blobs_of
from millstream.errors import (
    ConditionError,
    CorruptionError,
    MillstreamError,
    RollbackRequiredError,
    RoutingError,
    StreamError,
    UnavailableError,
)
from millstream.model.position import Position
from millstream.upr.core.descriptions import cut_run, is_of_a_pair
from millstream.wire.frames import item_end

__all__ = ["command"]

RENEW_EVERY_S: Final = 120.0
"""Interval between two renewals of a lease, which lasts ten minutes."""
AWAY_S: Final = 60.0
"""Longest wait for a node that is away, and for a partition that moves."""
TRIES_MAX: Final = 10
"""Times that a partition is begun, because its history changed or its node went away."""
DESIGN_BYTES_MAX: Final = 128 * 1024 * 1024
"""All leaves of a design document, with their attachments."""
_AGAIN: Final = (RollbackRequiredError, RoutingError, StreamError, UnavailableError)

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="The file to write.")]
OverwriteOption = Annotated[
    bool, typer.Option("--overwrite", help="Replace a file that is there, once the new one is.")
]


@at_node
def command(
    bucket: BucketArgument,
    file: FileArgument,
    overwrite: OverwriteOption = False,
    *,
    at: NodeOptions,
    json: JsonOption = False,
) -> None:
    """Write a bucket to one file: documents, deletions, revisions, attachments."""

    def connected() -> Client:
        return client_of(bucket, **at.options)

    def database(key: str) -> Database:
        return database_of(bucket, key, **at.options)

    started_at = time.monotonic()
    with connected() as client, DumpWriter(file, overwrites=overwrite) as writer:
        dump = _Dump(client, writer, database)
        http = _http_of(at)
        if http is not None:
            writer.write(SettingsLine(Database(http, bucket).settings()))
        with _progress(json) as progress:
            bar = progress.add_task(bucket, total=client.partition_count)
            try:
                for _ in dump.partitions():
                    progress.advance(bar)
            finally:
                dump.ranges.close()
        with connected() as again:
            if again.cluster_map.bucket_uuid != client.cluster_map.bucket_uuid:
                raise ConditionError(
                    f"bucket {bucket!r} was re-created meanwhile: nothing was written",
                    code="bucket_replaced",
                )
        end = writer.finish()
    _report(file, end, time.monotonic() - started_at, json=json)


def _http_of(at: NodeOptions) -> HttpClient | None:
    """Return the HTTP of the node; None if it has none, and so no database has settings."""
    try:
        return node_http(**at.options)
    except UnavailableError as error:
        if error.code != "no_http":
            raise
        return None


class _Dump:
    """Copies partitions, one after the other; `database` finds who has a design document."""

    def __init__(
        self, client: Client, writer: DumpWriter, database: Callable[[str], Database]
    ) -> None:
        self._client, self._writer, self._database = client, writer, database
        self._uuid = client.cluster_map.bucket_uuid
        self.ranges = BucketRanges(client.router, with_meta=True)
        self._has_read = False
        """Something of the partition that is under way."""
        writer.write(
            HeaderLine(
                FORMAT, VERSION, client.bucket, self._uuid, client.partition_count,
                datetime.fromtimestamp(time.time_ns() // 10**9, UTC).isoformat(),
            )
        )  # fmt: skip

    def partitions(self) -> Iterator[int]:
        """Copy each, and yield its number.

        Raises:
            MillstreamError: one cannot be read.
        """
        for partition_id in range(self._client.partition_count):
            self._copy_safely(partition_id)
            yield partition_id

    def _copy_safely(self, partition_id: int) -> None:
        """Copy a partition, again where it could not be read to the end (invariant 1)."""
        mark = self._writer.mark()
        backoff, tries = Backoff(AWAY_S), 0
        while True:
            self._has_read = False
            try:
                self._copy(partition_id)
            except _AGAIN:
                self.ranges.close()
                self._writer.rewind(mark)
                if self._has_read:
                    backoff, tries = Backoff(AWAY_S), tries + 1
                if tries >= TRIES_MAX or not backoff.wait():
                    raise
                with suppress(UnavailableError):  # the next try says so
                    self._client.refresh_map()
            else:
                return

    def _copy(self, partition_id: int) -> None:
        hold = self._client.open_lease([partition_id])[partition_id]
        try:
            if hold.at:
                with TemporaryFile(prefix="millstream-dump-") as later:
                    self._copy_documents(hold, later)
                    if later.tell():
                        self.ranges.close()  # nobody reads what it hears meanwhile
                        later.seek(0)
                        self._copy_later(hold, later)
        finally:
            with suppress(MillstreamError):  # it ends by itself
                self._client.release_lease(hold.lease_id, [partition_id])

    def _copy_documents(self, hold: LeaseHold, later: IO[bytes]) -> None:
        """Write the documents; those with attachments, and design documents, go into `later`.

        Nobody may ask for something else while the stream is read.
        """
        for frame, side in self._changes(hold):
            line = document_line(self._uuid, frame, side)
            if line is None:
                continue
            if is_design(line.key):
                later.write(encode_line(DesignLine(line.key, [])))
                continue
            self._writer.counts["documents" if line.op == "put" else "deletions"] += 1
            if line.sidecar and blobs_of(line.sidecar):
                later.write(encode_line(line))
            else:
                self._writer.write(line)

    def _changes(self, hold: LeaseHold) -> Iterator[tuple[bytes, bytes]]:
        """Yield frames and sides of a partition as of its lease."""
        wanted = Range(hold.partition_id, Position(), hold.at, hold.lease_id)
        renew = self._renewal(hold)
        for chunk in self.ranges.read([wanted]):
            self._has_read = True
            at = 0
            while at < len(chunk):
                if not is_of_a_pair(chunk, at):
                    at = item_end(chunk, at)
                    continue
                run, at = cut_run(chunk, at)
                yield from zip(run.frames, run.sides, strict=True)
            renew()

    def _copy_later(self, hold: LeaseHold, later: IO[bytes]) -> None:
        """Write documents with their attachments, which the lease keeps on the node."""
        renew = self._renewal(hold)
        for data in later:
            line = decode_line(data)
            if isinstance(line, DesignLine):
                self._copy_design(line.id)
                continue
            assert isinstance(line, DocumentLine), "nothing else was put aside"
            for name in sorted(blobs_of(line.sidecar)):
                self._copy_attachment(hold, line.key, name, renew)
            self._writer.write_encoded(data)

    def _copy_design(self, key: str) -> None:
        if docs := self._database(key).leaves(key, DESIGN_BYTES_MAX):
            self._writer.write(DesignLine(key, docs))
            self._writer.counts["designs"] += 1

    def _copy_attachment(
        self, hold: LeaseHold, key: str, name: bytes, renew: Callable[[], None]
    ) -> None:
        """Write an attachment in pieces; count one that the node has not got."""
        offset, digest, mark = 0, sha256(), self._writer.mark()
        pieces = BlobClient(self._client.router).sized_pieces(hold.partition_id, name)
        try:
            for length, piece in pieces:
                self._writer.write(AttachmentLine(key, name.hex(), length, offset, piece))
                digest.update(piece)
                offset += len(piece)
                renew()
        except UnavailableError as error:
            if error.code != "blob_missing":
                raise
            self._renew(hold)  # or it may be what no document names any more
            self._writer.rewind(mark)
            self._writer.counts["missing_attachments"] += 1
            return
        if digest.digest() != name:
            raise CorruptionError(
                f"the node sent other bytes as attachment {name.hex()} of {key!r}: its file is "
                "damaged; bring it from a replica, or write the attachment again",
                code="bad_blob",
            )
        self._writer.counts["attachments"] += 1

    def _renewal(self, hold: LeaseHold) -> Callable[[], None]:
        """Return what prolongs a lease when it is time; it raises as `_renew`."""
        renewed_at = time.monotonic()

        def renew() -> None:
            nonlocal renewed_at
            if time.monotonic() - renewed_at < RENEW_EVERY_S:
                return
            self._renew(hold)
            renewed_at = time.monotonic()

        return renew

    def _renew(self, hold: LeaseHold) -> None:
        """Prolong a lease; raises StreamError: `lease_lost`."""
        if not self._client.renew_lease(hold.lease_id, [hold.partition_id]):
            raise StreamError(
                f"the lease on partition {hold.partition_id} was lost", code="lease_lost"
            )


def _progress(is_quiet: bool) -> Progress:
    return progress_of(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("partitions"),
        TimeElapsedColumn(),
        is_quiet=is_quiet,
    )


def _report(file: Path, end: EndLine, seconds: float, *, json: bool) -> None:
    if json:
        told = msgspec.to_builtins(end)
        del told["line"]
        print(msgspec.json.encode({**told, "seconds": round(seconds, 3)}).decode())
        return
    print(
        f"{file}: {end.documents:,} documents, {end.deletions:,} deletions, {end.designs:,} "
        f"design documents, {end.attachments:,} attachments; {end.bytes:,} bytes "
        f"({seconds:.1f} s)",
        file=sys.stderr,
    )
    if end.missing_attachments:
        print(
            f"{end.missing_attachments:,} attachments are not on the node, so their bytes are not "
            "in this dump",
            file=sys.stderr,
        )
