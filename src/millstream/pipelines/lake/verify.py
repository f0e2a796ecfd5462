"""Verifies a backup: every file against its manifest, and the newest state against a bucket.

Invariants:
1. Files are right if size, SHA-256 and number of rows are those of the manifest, no key is there
   twice, and every chain is complete.
2. With the bucket that was backed up, documents are compared as of the backup's position, and only
   in partitions whose history still is the one that was backed up. With another one all are
   compared, wherever its partitions have them.

Elsewhere: the comparison (`comparing`), the rules of histories (`increment`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from math import gcd
from pathlib import Path
from typing import Final, NamedTuple

from pyspark.sql import SparkSession

from millstream.client.bulk import Range
from millstream.client.columns import Columns, cut_columns
from millstream.client.extensions import LeaseHold
from millstream.errors import CorruptionError, MillstreamError, UsageError
from millstream.model.position import Position
from millstream.pipelines.change_stream.control import LeaseKeeper, NodeControl
from millstream.pipelines.change_stream.options import SourceOptions
from millstream.pipelines.change_stream.reading import NodeRanges
from millstream.pipelines.lake.blobs import BlobTask, check_blobs, read_names
from millstream.pipelines.lake.chain import chain_of, parts_of
from millstream.pipelines.lake.comparing import Compared, Comparison
from millstream.pipelines.lake.copying import newest_batches
from millstream.pipelines.lake.directory import BackupDirectory
from millstream.pipelines.lake.increment import by_lease, plan_part
from millstream.pipelines.lake.manifest import DataFile, Manifest, Part
from millstream.pipelines.lake.parquet import file_digest, read_batches
from millstream.pipelines.lake.tasks import Watch, Work, results_of, run_tasks

__all__ = ["check_file", "compare_group", "verify_bucket", "verify_files"]

BLOBS_OF_TASK: Final = 1000
"""Attachments of one task."""


class FileTask(NamedTuple):
    """One file to be checked."""

    root: Path
    file: DataFile


class GroupTask(NamedTuple):
    """Partitions of the backup and of the bucket that have the same keys.

    `expected`: parts of each partition, newest first. `found`: leases of the bucket's partitions.
    `newer_than`: the seqno above which the bucket's rows are newer, None for never.
    """

    options: SourceOptions
    root: Path
    expected: tuple[tuple[Part, ...], ...]
    found: tuple[LeaseHold, ...]
    newer_than: int | None
    now_s: int


def verify_files(
    spark: SparkSession, directory: BackupDirectory, *, watch: Watch | None = None
) -> tuple[int, list[str]]:
    """Check all manifests and files; return how many files there are, and what is wrong.

    Raises:
        UsageError: `no_backup`.
        ConditionError: `stopped`.
        UnavailableError: `tasks_failed`.
    """
    manifests = directory.manifests()
    found = set()  # of a manifest that cannot be read each chain that needs it says the same
    for id_ in (*manifests, *manifests.unreadable):
        try:
            chain_of(manifests, id_)
        except (CorruptionError, UsageError) as error:
            found.add(str(error))
    problems = list(found)
    tasks = [
        Work(part.partition, file.row_count, FileTask(directory.path, file))
        for manifest in manifests.values()
        for part in manifest.parts
        for file in part.files
    ]
    results = run_tasks(spark, check_file, tasks, watch=watch)
    problems += [str(result) for result in results if isinstance(result, MillstreamError)]
    names, unreadable = _attachments(directory, manifests)
    checks = [
        Work(0, BLOBS_OF_TASK, BlobTask(directory.path, tuple(names[at : at + BLOBS_OF_TASK])))
        for at in range(0, len(names), BLOBS_OF_TASK)
    ]
    for wrong in results_of(spark, check_blobs, checks, watch=watch):
        problems += wrong
    return len(tasks) + len(names), sorted(problems + unreadable)


def _attachments(
    directory: BackupDirectory, manifests: Mapping[int, Manifest]
) -> tuple[list[bytes], list[str]]:
    """Return the names of all attachments that backups have, and what is wrong with the lists."""
    names, problems = set[bytes](), list[str]()
    for manifest in manifests.values():
        for part in manifest.parts:
            try:
                if part.blobs is not None:
                    names.update(read_names(directory.path, part.blobs))
            except CorruptionError as error:
                problems.append(str(error))
        if manifest.missing_blobs:
            problems.append(
                f"manifest {manifest.id} lacks {manifest.missing_blobs} attachments that the node "
                "had not got when it was made"
            )
    return sorted(names), problems


def check_file(task: FileTask) -> None:
    """Check one file.

    Raises:
        CorruptionError: `damaged_file`.
    """
    file = task.file
    if file_digest(task.root, file) != file.sha256:
        raise CorruptionError(f"{file.path} has another checksum", code="damaged_file")
    keys: set[str] = set()
    for batch in read_batches(task.root, file, ["key"]):
        for key in batch.column("key").to_pylist():
            if key in keys:
                raise CorruptionError(f"{file.path} has {key!r} twice", code="damaged_file")
            if key is not None:
                keys.add(key)


def verify_bucket(
    spark: SparkSession,
    options: SourceOptions,
    directory: BackupDirectory,
    *,
    manifest: int | None = None,
    watch: Watch | None = None,
) -> Compared:
    """Compare a backup, by default the newest, with the bucket that `options` name.

    Raises:
        UsageError: `unknown_manifest`.
        CorruptionError: `broken_chain`, `bad_manifest`, `damaged_file`.
        MillstreamError: the bucket could not be read.
    """
    manifests = directory.manifests()
    chain = chain_of(manifests, manifests.newest if manifest is None else manifest)
    control = NodeControl(options)
    try:
        leases = control.open_lease(control.partition_ids)
        in_use = by_lease(leases)
        keeper = LeaseKeeper(options, lambda: in_use)
        try:
            found = Compared()
            if chain[0].bucket_uuid == control.bucket_uuid:
                tasks, away = _same_bucket(chain, leases, control, options, directory.path)
                found = Compared(incomparable=away)
            else:
                tasks = list(_other_bucket(chain, leases, options, directory.path))
            for result in results_of(spark, compare_group, tasks, watch=watch):
                found = found.plus(result)
            return found
        finally:
            keeper.stop()
            for lease_id, partition_ids in in_use.items():
                control.release_lease(lease_id, partition_ids)
    finally:
        control.close()


def compare_group(task: GroupTask) -> Compared:
    """Compare the documents of some partitions.

    Raises:
        MillstreamError: as `verify_bucket`.
    """
    comparison = Comparison(task.now_s, is_same_bucket=task.newer_than is not None)
    names = ["op", "key", "cas", "expiry"]
    for parts in task.expected:
        for batch in newest_batches(task.root, parts, names):
            comparison.expect(zip(*(batch.column(n).to_pylist() for n in names), strict=True))
    source = NodeRanges(task.options, with_values=False)
    try:
        for lease in task.found:
            wanted = Range(lease.partition_id, Position(), lease.at, lease.lease_id)
            for chunk in source.stream([wanted] if lease.at else []):
                columns = Columns()
                cut_columns(chunk, columns)
                _find(comparison, columns, task.newer_than)
    finally:
        source.close()
    return comparison.result()


def _find(comparison: Comparison, columns: Columns, newer_than: int | None) -> None:
    rows = list(zip(columns.op, columns.key, columns.cas, columns.expiry, strict=True))
    if newer_than is None:
        comparison.find(rows, are_newer=False)
        return
    pairs = list(zip(rows, columns.seqno, strict=True))
    comparison.find((row for row, seqno in pairs if seqno <= newer_than), are_newer=False)
    comparison.find((row for row, seqno in pairs if seqno > newer_than), are_newer=True)


def _same_bucket(
    chain: Sequence[Manifest],
    leases: Mapping[int, LeaseHold],
    control: NodeControl,
    options: SourceOptions,
    root: Path,
) -> tuple[list[Work[GroupTask]], int]:
    """Return a task for each partition, and how many partitions cannot be compared."""
    tasks, away = [], 0
    for p, lease in leases.items():
        parts = tuple(parts_of(chain, p))
        log = control.failover_log(p)
        if log[0].branch != lease.branch or plan_part(parts[0], lease, log).kind != "changes":
            away += 1
            continue
        at = parts[0].position.seqno
        task = GroupTask(options, root, (parts,), (lease,), at, _now_s())
        tasks.append(Work(p, lease.at, task))
    return tasks, away


def _other_bucket(
    chain: Sequence[Manifest],
    leases: Mapping[int, LeaseHold],
    options: SourceOptions,
    root: Path,
) -> Iterator[Work[GroupTask]]:
    """Yield tasks whose keys are in the same partitions on both sides.

    The partition of a key is a number that the key has, modulo the number of partitions.
    """
    groups = gcd(chain[0].partition_count, len(leases))
    for group in range(groups):
        mine = range(group, chain[0].partition_count, groups)
        theirs = tuple(leases[p] for p in range(group, len(leases), groups))
        expected = tuple(tuple(parts_of(chain, p)) for p in mine)
        weight = sum(lease.at for lease in theirs)
        yield Work(group, weight, GroupTask(options, root, expected, theirs, None, _now_s()))


def _now_s() -> int:
    return time.time_ns() // 10**9
