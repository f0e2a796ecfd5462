"""`millstream pipeline run backup / compact / restore`, `pipeline verify`: backups in Parquet.

Invariants:
1. What is told of a run goes to stderr; stdout has one line, or with `--json` one object.
   `verify` says what is wrong on stdout, and ends with exit code 1 if anything is.
2. A backup that is stopped or fails leaves nothing behind that counts.

Elsewhere: the work (`pipelines.lake`), the other pipelines (`cli.pipelines.pipeline`).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from millstream.cli.connect import (
    BucketArgument,
    JsonOption,
    NodeOptions,
    at_node,
)
from millstream.cli.designs import database_of
from millstream.cli.pipelines.run import (
    MEMORY_DEFAULT,
    MasterOption,
    MemoryOption,
    Run,
    check_node,
    print_json,
    recorded,
    source_options,
    spark_session,
)
from millstream.errors import ConditionError, CorruptionError, MillstreamError, UsageError

if TYPE_CHECKING:
    from millstream.client.databases import Database
    from millstream.pipelines.lake.comparing import Compared
    from millstream.pipelines.lake.directory import BackupDirectory
    from millstream.pipelines.lake.manifest import Manifest
    from millstream.pipelines.lake.tasks import Watch, Wave

__all__ = ["add_to"]

DirectoryArgument = Annotated[Path, typer.Argument(metavar="DIR", help="Directory of the backup.")]
ToOption = Annotated[Path, typer.Option("--to", metavar="DIR", help="Directory of the backup.")]
ManifestOption = Annotated[
    int | None, typer.Option("--manifest", metavar="ID", help="Which one; default the newest.")
]
PrefixOption = Annotated[
    str, typer.Option("--key-prefix", metavar="TEXT", help="Only keys that begin so.")
]
OverwriteOption = Annotated[
    bool, typer.Option("--overwrite", help="Replace documents that are there, newer ones too.")
]
MISSING_SHOWN_MAX = 10
"""Attachments, and documents that were not written, that a restore names."""
INCREMENTS_MAX = 50
"""The node is told of at most so many backups of a chain, the newest ones."""
_AGAIN = "it has no manifest and does not count, what was there is as it was; run it again"
_REST = "what it has written stays; run it again for the rest"

IncrementalOption = Annotated[
    bool,
    typer.Option("--incremental", help="Read only what changed since the newest backup in DIR."),
]


def add_to(app: typer.Typer, run_app: typer.Typer) -> None:
    """Add the commands to those of `millstream pipeline` and `millstream pipeline run`."""
    run_app.command("backup")(run_backup)
    run_app.command("compact")(run_compact)
    run_app.command("restore")(run_restore)
    app.command("verify")(verify)


@at_node
def run_backup(
    bucket: BucketArgument,
    to: ToOption,
    incremental: IncrementalOption = False,
    master: MasterOption = None,
    driver_memory: MemoryOption = MEMORY_DEFAULT,
    *,
    at: NodeOptions,
    json: JsonOption = False,
) -> None:
    """Back a bucket up into Parquet files, as of one moment for each partition."""
    options = source_options(bucket, at)
    check_node(options)
    from millstream.pipelines.lake.backup import back_up
    from millstream.pipelines.lake.directory import BackupDirectory

    to = to.absolute()
    with (
        recorded("backup", bucket, checkpoint=to, subject=str(to), at=at) as run,
        _watched(run, _AGAIN, master, driver_memory) as (spark, watch),
    ):
        started, directory = time.monotonic(), BackupDirectory(to)
        run.progress.show(_increments(directory))
        made = back_up(spark, options, directory, is_incremental=incremental, watch=watch)
        run.progress.show(_increments(directory))
    _tell(made, time.monotonic() - started, as_json=json)


def run_compact(
    directory: DirectoryArgument,
    master: MasterOption = None,
    driver_memory: MemoryOption = MEMORY_DEFAULT,
    json: JsonOption = False,
) -> None:
    """Write the newest backup of a directory as a full one; needs no node."""
    from millstream.pipelines.lake.backup import compact

    backup = _backup_in(directory)
    at = backup.path
    with (
        recorded("compact", checkpoint=at, subject=str(at), name=at.name) as run,
        _watched(run, _AGAIN, master, driver_memory) as (spark, watch),
    ):
        started = time.monotonic()
        made = compact(spark, backup, watch=watch)
    _tell(made, time.monotonic() - started, as_json=json)


@at_node
def run_restore(
    directory: DirectoryArgument,
    bucket: BucketArgument,
    manifest: ManifestOption = None,
    key_prefix: PrefixOption = "",
    overwrite: OverwriteOption = False,
    master: MasterOption = None,
    driver_memory: MemoryOption = MEMORY_DEFAULT,
    *,
    at: NodeOptions,
    json: JsonOption = False,
) -> None:
    """Write a backup into a bucket, with CAS, rev, expiry, flags and lineage as they were."""
    options = source_options(bucket, at)
    check_node(options)
    from millstream.pipelines.lake.restore import restore

    backup = _backup_in(directory)
    path = backup.path
    with recorded(
        "restore", bucket, checkpoint=path, subject=f"{path} to {at.address}", at=at
    ) as run:
        with _watched(run, _REST, master, driver_memory) as (spark, watch):
            done = restore(
                spark, options, backup, manifest=manifest, key_prefix=key_prefix,
                overwrites=overwrite, watch=watch,
            )  # fmt: skip
        designs = 0
        for key, body in done.designs.items():
            database = database_of(bucket, key, **at.options)
            designs += _put_design(database, key, body, overwrite=overwrite)
    kept = done.kept + len(done.designs) - designs
    if json:
        missing = [name.hex() for name in sorted(done.missing_blobs)]
        told: dict[str, Any] = {"manifest": done.manifest, "written": done.written, "kept": kept}
        told |= {"designs": designs, "attachments": done.blobs, "missing_attachments": missing}
        told["too_large"] = sorted(done.too_large)
        print_json(told)
        _refuse_large(done.too_large)
        return
    said = f"manifest {done.manifest}: {done.written:,} documents written"
    if designs:
        said += f", and {designs} design documents"
    if done.blobs:
        said += f", {done.blobs:,} attachments"
    if kept:
        said += f"; {kept:,} that were there stayed (--overwrite replaces them)"
    sys.stdout.write(f"{said}\n")
    if done.missing_blobs:
        shown = ", ".join(name.hex() for name in sorted(done.missing_blobs)[:MISSING_SHOWN_MAX])
        sys.stdout.write(
            f"{len(done.missing_blobs):,} attachments are not in this backup; the documents that "
            f"have them were written without their bytes: {shown}\n"
        )
    _refuse_large(done.too_large)


def _refuse_large(keys: Sequence[str]) -> None:
    """Raise ConditionError: `too_large`, which names the documents that were not written."""
    if keys:
        raise ConditionError(
            f"{len(keys):,} documents were not written, since their conflicts are too large for "
            "one request: bring them by `millstream dump` or a replication: "
            + ", ".join(sorted(keys)[:MISSING_SHOWN_MAX]),
            code="too_large",
        )


def _put_design(database: Database, key: str, body: bytes, *, overwrite: bool) -> bool:
    """Put a design document; return False if there is one that stays."""
    if not overwrite:
        with suppress(ConditionError):
            database.get(key)
            return False
    database.put_back(key, msgspec.json.decode(body))
    return True


@at_node
def verify(
    directory: DirectoryArgument,
    bucket: Annotated[
        str | None,
        typer.Option("--bucket", metavar="BUCKET", help="Compare with this bucket, too."),
    ] = None,
    manifest: ManifestOption = None,
    master: MasterOption = None,
    driver_memory: MemoryOption = MEMORY_DEFAULT,
    *,
    at: NodeOptions,
    json: JsonOption = False,
) -> None:
    """Check every file of a backup; with --bucket, compare its documents with a bucket's."""
    options = None
    if bucket is not None:
        options = source_options(bucket, at)
        check_node(options)
    from millstream.pipelines.lake.verify import verify_bucket, verify_files

    backup = _backup_in(directory)
    subject = f"{backup.path} with {bucket} at {at.address}" if bucket else str(backup.path)
    with recorded(
        "verify", bucket or "", checkpoint=backup.path, subject=subject,
        at=at if bucket else None, name=backup.path.name,
    ) as run:  # fmt: skip
        with _watched(run, "run it again", master, driver_memory) as (spark, watch):
            file_count, problems = verify_files(spark, backup, watch=watch)
            found = None
            if options is not None and not problems:
                found = verify_bucket(spark, options, backup, manifest=manifest, watch=watch)
        if json:
            compared = {"bucket": bucket, **found._asdict()} if found is not None else {}
            print_json({"files": file_count, "problems": problems, **compared})
        else:
            lines = [*problems, *_compared_lines(found, bucket), f"{file_count} files checked"]
            sys.stdout.write("".join(f"{line}\n" for line in lines))
        if problems or (found is not None and not found.is_equal):
            raise CorruptionError(
                f"the backup in {directory} "
                + ("is damaged" if problems else f"and bucket {bucket!r} are not the same"),
                code="verify_failed",
            )


def _backup_in(directory: Path) -> BackupDirectory:
    """Return a backup that is there.

    Raises:
        UsageError: `no_backup`.
    """
    from millstream.pipelines.lake.directory import BackupDirectory

    backup = BackupDirectory(directory.absolute())
    if not backup.manifests().newest:
        raise UsageError(f"no backup in {backup.path}", code="no_backup")
    return backup


def _compared_lines(found: Compared | None, bucket: str | None) -> Iterator[str]:
    if found is None:
        return
    yield (
        f"bucket {bucket}: {found.equal:,} documents equal, {found.changed:,} keys changed since, "
        f"{found.missing:,} missing, {found.extra:,} not in the backup, {found.different:,} "
        "different"
    )
    if found.samples:
        yield f"such as {', '.join(found.samples)}"
    if found.incomparable:
        yield (
            f"{found.incomparable} partitions were not compared: their history is another one, or "
            "deletions were purged, since the backup; back up again"
        )


@contextmanager
def _watched(
    run: Run, advice: str, master: str | None, memory: str
) -> Iterator[tuple[Any, Watch]]:
    """Start Spark for a run whose waves are told, and which can be stopped."""
    from millstream.pipelines.lake.tasks import Watch

    def tell(wave: Wave) -> None:
        run.progress.batch(wave.number, wave.rows, wave.seconds, lag=wave.left)

    watch = Watch(tell, advice=advice)
    with spark_session(run, watch.stop, master=master, memory=memory) as spark:
        yield spark, watch


def _increments(directory: BackupDirectory) -> dict[str, Any]:
    """Return the newest backup and what it builds on, oldest first, `INCREMENTS_MAX` of them."""
    from millstream.pipelines.lake.chain import chain_of

    try:
        manifests = directory.manifests()
        chain = chain_of(manifests, manifests.newest)[:INCREMENTS_MAX] if manifests.newest else []
    except (MillstreamError, OSError):  # not there yet, or damaged: who builds on it says so
        return {}
    shown = [
        {"id": one.id, "parent": one.parent, "created": one.created, "rows": one.row_count,
         "bytes": sum(file.byte_count for part in one.parts for file in part.files)}
        for one in reversed(chain)
    ]  # fmt: skip
    return {"chain": shown}


def _tell(made: Manifest, seconds: float, *, as_json: bool) -> None:
    kinds = [part.kind for part in made.parts]
    shown: dict[str, Any] = {
        "manifest": made.id, "parent": made.parent, "bucket": made.bucket,
        "rows": made.row_count, "bytes": sum(f.byte_count for p in made.parts for f in p.files),
        "branched": kinds.count("branched"), "full": kinds.count("full"),
        "attachments": sum(p.blobs.row_count for p in made.parts if p.blobs),
        "missing_attachments": made.missing_blobs, "seconds": round(seconds, 3),
    }  # fmt: skip
    if as_json:
        print_json(shown)
        return
    said = f"manifest {made.id}: {shown['rows']:,} rows, {shown['bytes']:,} bytes"
    if made.parent is not None:
        said += f", on top of {made.parent}"
        if shown["branched"] or shown["full"]:
            said += (
                f"; {shown['branched']} partitions had to be rolled back, "
                f"{shown['full']} to be copied whole"
            )
    if shown["attachments"]:
        said += f"; {shown['attachments']:,} attachments"
    sys.stdout.write(f"{said}\n")
    if made.missing_blobs:
        sys.stdout.write(
            f"{made.missing_blobs:,} attachments are not on the node, so their bytes are not in "
            "this backup\n"
        )
