"""Backs a bucket up: plans parts under leases, has executors copy them, writes the manifest last.

Invariants:
1. What a manifest says of a partition is exactly its state as of the manifest's position: every
   part is read under one lease, to its end.
2. A partition whose lease or history goes while it is read is planned anew, `ROUNDS_MAX` times.
   Nothing of a backup that fails is seen by anyone.
3. An increment belongs to the bucket that its parent is of.
4. The attachments that a part's rows name are there before its manifest, but for those that the
   node has not got; they are counted.

Elsewhere: rules (`increment`, `chain`), files (`directory`, `copying`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Final, NamedTuple

from pyspark.sql import SparkSession

from millstream.client.blobs import BlobClient
from millstream.client.extensions import LeaseHold
from millstream.errors import (
    MillstreamError,
    RoutingError,
    StreamError,
    UnavailableError,
    UsageError,
)
from millstream.pipelines.change_stream.control import LeaseKeeper, NodeControl
from millstream.pipelines.change_stream.options import SourceOptions
from millstream.pipelines.change_stream.reading import NodeRanges
from millstream.pipelines.lake.blobs import blob_client
from millstream.pipelines.lake.chain import chain_of, parts_of
from millstream.pipelines.lake.copying import CopyTask, MergeTask, copy_part, merge_parts
from millstream.pipelines.lake.directory import BackupDirectory
from millstream.pipelines.lake.increment import by_lease, plan_part
from millstream.pipelines.lake.manifest import Manifest, Part
from millstream.pipelines.lake.tasks import Watch, Work, results_of, run_tasks

__all__ = ["back_up", "compact"]

ROUNDS_MAX: Final = 5
"""How often a partition is planned in one backup."""
_PLANNED_AGAIN: Final = (StreamError, RoutingError, UnavailableError)


class _NodeTask(NamedTuple):
    options: SourceOptions
    copy: CopyTask


def _copy(task: _NodeTask) -> Part:
    source = NodeRanges(task.options, with_values=True, with_meta=True)
    with ExitStack() as stack:
        stack.callback(source.close)
        known: list[BlobClient] = []

        def fetch(partition_id: int, name: bytes) -> Iterator[bytes]:
            if not known:
                known.append(blob_client(task.options))
                stack.callback(known[0].close)
            return known[0].pieces(partition_id, name)

        return copy_part(task.copy, source, fetch)


def back_up(
    spark: SparkSession,
    options: SourceOptions,
    directory: BackupDirectory,
    *,
    is_incremental: bool = False,
    watch: Watch | None = None,
) -> Manifest:
    """Back the bucket up as it is now; return the manifest.

    Args:
        spark: whose executors see `directory`.
        options: of the node; bucket, hosts and credentials count.
        directory: of the backup.
        is_incremental: read what changed since the newest backup in `directory`; if there is
            none, all.
        watch: of the run; one that is stopped leaves nothing that counts.

    Raises:
        ConditionError: `already_running`, `stopped`.
        UsageError: `other_bucket`.
        CorruptionError: what an increment builds on is damaged.
        StreamError, UnavailableError: invariant 2, `ROUNDS_MAX` times.
    """
    with directory.writing():
        manifests = directory.manifests()
        directory.remove_unnamed(manifests)
        control = NodeControl(options)
        try:
            chain = (
                chain_of(manifests, manifests.newest)
                if is_incremental and manifests.newest
                else []
            )
            if chain:
                _check_bucket(chain[0], options.bucket, control)
            id_ = directory.next_id()
            data = directory.new_data(id_)
            parts = _Rounds(spark, options, control, directory, data, chain, watch).run()
            manifest = Manifest(
                id=id_, parent=chain[0].id if chain else None, created=_now(),
                bucket=options.bucket, bucket_uuid=control.bucket_uuid,
                partition_count=len(control.partition_ids), parts=parts,
            )  # fmt: skip
            directory.publish(manifest, data)
            return manifest
        finally:
            control.close()


def compact(
    spark: SparkSession, directory: BackupDirectory, *, watch: Watch | None = None
) -> Manifest:
    """Write the newest backup as a full one, at the same positions; return its manifest.

    Raises:
        ConditionError: `already_running`, `stopped`.
        UsageError: `no_backup`.
        CorruptionError: the chain is damaged.
    """
    with directory.writing():
        manifests = directory.manifests()
        if not manifests.newest:
            raise UsageError(f"no backup in {directory.path}", code="no_backup")
        directory.remove_unnamed(manifests)
        chain = chain_of(manifests, manifests.newest)
        id_ = directory.next_id()
        data = directory.new_data(id_)
        tasks = []
        for part in chain[0].parts:
            parts = parts_of(chain, part.partition)
            task = MergeTask(directory.path, data, tuple(parts))
            rows = sum(found.row_count for found in parts)
            tasks.append(Work(part.partition, rows, task))
        done = results_of(spark, merge_parts, tasks, watch=watch)
        made = sorted(done, key=lambda part: part.partition)
        tip = chain[0]
        manifest = Manifest(
            id=id_, parent=None, created=_now(), bucket=tip.bucket, bucket_uuid=tip.bucket_uuid,
            partition_count=tip.partition_count, parts=tuple(made),
        )  # fmt: skip
        directory.publish(manifest, data)
        return manifest


class _Rounds:
    """Plans and copies partitions until all are copied."""

    def __init__(
        self,
        spark: SparkSession,
        options: SourceOptions,
        control: NodeControl,
        directory: BackupDirectory,
        data: str,
        chain: Sequence[Manifest],
        watch: Watch | None,
    ) -> None:
        self._spark = spark
        self._watch = watch
        self._options = options
        self._control = control
        self._directory = directory
        self._data = data
        self._chain = chain
        self._leases: Mapping[int, LeaseHold] = {}

    def run(self) -> tuple[Part, ...]:
        wanted = sorted(self._control.partition_ids)
        made: dict[int, Part] = {}
        keeper = LeaseKeeper(self._options, self._leases_in_use)
        failure: MillstreamError | None = None
        try:
            for _ in range(ROUNDS_MAX):
                failure = self._round([p for p in wanted if p not in made], made)
                if len(made) == len(wanted):
                    return tuple(made[p] for p in wanted)
        finally:
            keeper.stop()
            self._release()
        raise failure or UnavailableError(
            "the histories of partitions kept changing while they were backed up; try again later"
        )

    def _round(
        self, partition_ids: Sequence[int], made: dict[int, Part]
    ) -> MillstreamError | None:
        """Copy partitions into `made`; return why one of them has to be planned anew."""
        self._leases = self._control.open_lease(partition_ids)
        tasks = []
        for p, lease in self._leases.items():
            log = self._control.failover_log(p)
            if log[0].branch != lease.branch:
                continue  # it moved while the lease was opened
            parts = parts_of(self._chain, p)
            plan = plan_part(parts[0] if parts else None, lease, log)
            if plan.is_unchanged:
                made[p] = plan.part([])
                continue
            copy = CopyTask(self._directory.path, self._data, plan, tuple(parts))
            rows = lease.at - plan.begin.seqno
            tasks.append(Work(p, rows, _NodeTask(self._options, copy)))
        failure: MillstreamError | None = None
        for result in run_tasks(self._spark, _copy, tasks, watch=self._watch):
            if isinstance(result, _PLANNED_AGAIN):
                failure = result
            elif isinstance(result, MillstreamError):
                raise result
            else:
                made[result.partition] = result
        self._release()
        return failure

    def _leases_in_use(self) -> dict[int, list[int]]:
        return by_lease(self._leases)

    def _release(self) -> None:
        for lease_id, partition_ids in self._leases_in_use().items():
            self._control.release_lease(lease_id, partition_ids)
        self._leases = {}


def _check_bucket(parent: Manifest, bucket: str, control: NodeControl) -> None:
    mine = control.bucket_uuid, len(control.partition_ids)
    if (parent.bucket_uuid, parent.partition_count) != mine:
        raise UsageError(
            f"the newest backup is of another bucket (uuid {parent.bucket_uuid}) than {bucket!r} "
            f"is now (uuid {control.bucket_uuid}): it was created anew, or is not the one; make a "
            "full backup, into a directory of its own",
            code="other_bucket",
        )


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
