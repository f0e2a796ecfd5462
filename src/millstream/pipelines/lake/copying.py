"""Copies partitions of a node into files of a backup; runs on executors.

Invariants:
1. A partition is read under the lease it was planned with, to the lease's end; where that cannot
   be done nothing of it is kept, and it is planned anew.
2. Memory holds one row group, the names of the part's attachments, for a branched part the undone
   keys, and for a compaction the keys of all parts newer than the full one.

Elsewhere: what is read (`increment`), the driver (`backup`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from millstream.client.bulk import Range
from millstream.client.columns import Columns, cut_columns
from millstream.client.extensions import LeaseHold
from millstream.errors import StreamError
from millstream.model.position import Position
from millstream.pipelines.lake.blobs import Fetch, keep_blobs, kept_names, listed, named_in
from millstream.pipelines.lake.chain import Newest
from millstream.pipelines.lake.increment import PartPlan, Selection
from millstream.pipelines.lake.manifest import Part
from millstream.pipelines.lake.parquet import (
    GROUP_BYTES,
    GROUP_ROWS,
    PartWriter,
    read_batches,
)

__all__ = ["CopyTask", "MergeTask", "RangeStream", "copy_part", "merge_parts", "newest_batches"]


class RangeStream(Protocol):
    """Where the frames of a range come from; `reading.NodeRanges` is one."""

    def stream(self, ranges: Sequence[Range]) -> Iterator[bytes]:
        """Yield the frames of ranges in chunks, each change behind its description."""

    def renew_lease(self, lease_id: int, partition_ids: Sequence[int]) -> Mapping[int, LeaseHold]:
        """Extend a lease on partitions; return those still held."""


class CopyTask(NamedTuple):
    """One partition to be copied.

    `parts`: what the chain has of it, newest first; empty for a first backup.
    """

    root: Path
    data: str
    plan: PartPlan
    parts: tuple[Part, ...]


class MergeTask(NamedTuple):
    """One partition whose parts, newest first, are to become one."""

    root: Path
    data: str
    parts: tuple[Part, ...]


def copy_part(task: CopyTask, source: RangeStream, fetch: Fetch) -> Part:
    """Copy one partition; return what the manifest says of it.

    Attachments are brought once all rows are there: nobody would read the stream meanwhile. The
    lease keeps them on the node.

    Args:
        task: what to copy.
        source: of the rows.
        fetch: brings attachments.

    Raises:
        StreamError: `lease_lost`, or a stream that ended early.
        RollbackRequiredError: the node's history changed since it was planned.
        CorruptionError: `damaged_file` of the chain.
    """
    plan, begin, selection = task.plan, task.plan.begin, None
    names = set[bytes]()
    lease = plan.lease
    with PartWriter(task.root, task.data, lease.partition_id) as writer:
        if plan.rollback_to is not None:
            writer.add_marks("rollback", lease.branch, plan.rollback_to)
            undone = _undone_keys(task.root, task.parts, plan.rollback_to)
            if undone:
                begin = Position()
                selection = Selection(plan.rollback_to, undone)
        elif plan.kind == "full" and task.parts:
            writer.add_marks("sweep", lease.branch, lease.at)
        if begin.seqno < lease.at:
            wanted = Range(lease.partition_id, begin, lease.at, lease.lease_id)
            for columns in _columns(source.stream([wanted])):
                rows = selection.rows(columns) if selection is not None else None
                writer.add(columns, lease.branch, rows)
                metas = columns.meta
                names |= named_in(metas if rows is None else [metas[row] for row in rows])
        if selection is not None and selection.unknown:
            assert plan.rollback_to is not None
            writer.add_marks("delete", lease.branch, plan.rollback_to, selection.unknown)
        part = plan.part(writer.close())
    found = keep_blobs(task.root, lease.partition_id, names, fetch)
    if len(found) < len(names) and not source.renew_lease(lease.lease_id, [lease.partition_id]):
        raise StreamError(  # what the node has not got may be what no document names any more
            f"the lease on partition {lease.partition_id} was lost while attachments were read",
            code="lease_lost",
        )
    blobs = listed(task.root, task.data, lease.partition_id, found)
    return part.with_blobs(blobs, len(names) - len(found))


def merge_parts(task: MergeTask) -> Part:
    """Write the newest version of each key, deletions included, as one full part.

    Oldest parts first, so that rows are in the order of their seqnos as far as no part was
    branched.

    Raises:
        CorruptionError: `damaged_file`.
    """
    files = [(part, file) for part in task.parts for file in part.files]
    newest = Newest()
    masks = []
    for part, file in files:
        mask = np.zeros(file.row_count, np.bool_)
        at = 0
        for batch in read_batches(task.root, file, ["key"]):
            rows = list(newest.rows(part, batch.column("key").to_pylist()))
            mask[np.array(rows, np.int64) + at] = True
            at += batch.num_rows
        masks.append(mask)
    names = set[bytes]()
    with PartWriter(task.root, task.data, task.parts[0].partition) as writer:
        for (_, file), mask in reversed(list(zip(files, masks, strict=True))):
            at = 0
            for batch in read_batches(task.root, file):
                kept = batch.filter(pa.array(mask[at : at + batch.num_rows]))
                writer.add_batch(kept)
                names |= named_in(kept.column("meta").to_pylist())
                at += batch.num_rows
        part = task.parts[0].as_full(writer.close())
    found = kept_names(task.root, names)
    blobs = listed(task.root, task.data, part.partition, found)
    return part.with_blobs(blobs, len(names) - len(found))


def newest_batches(
    root: Path, parts: Sequence[Part], names: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a partition that count, deletions included, columns `names`.

    Args:
        root: of the backup.
        parts: newest first, see `chain.parts_of`.
        names: columns of `SCHEMA`, the key among them.

    Raises:
        CorruptionError: `damaged_file`.
    """
    newest = Newest()
    for part in parts:
        for file in part.files:
            for batch in read_batches(root, file, names):
                rows = list(newest.rows(part, batch.column("key").to_pylist()))
                if len(rows) < batch.num_rows:
                    batch = batch.take(pa.array(rows, pa.int64()))
                if rows:
                    yield batch


def _undone_keys(root: Path, parts: Sequence[Part], rollback_to: int) -> list[str]:
    """Return the keys whose newest version in the chain lies above `rollback_to`."""
    found: list[str] = []
    for batch in newest_batches(root, parts, ["key", "seqno"]):
        keys, seqnos = batch.column("key").to_pylist(), batch.column("seqno").to_pylist()
        found += [k for k, seqno in zip(keys, seqnos, strict=True) if seqno > rollback_to]
    return found


def _columns(chunks: Iterator[bytes]) -> Iterator[Columns]:
    columns, size = Columns(), 0
    for chunk in chunks:
        cut_columns(chunk, columns)
        size += len(chunk)
        if size >= GROUP_BYTES or len(columns) >= GROUP_ROWS:
            yield columns
            columns, size = Columns(), 0
    if len(columns):
        yield columns
