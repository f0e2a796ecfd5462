"""The executor's side: ranges from a node, cut into columns, as Arrow batches.

Invariants:
1. Sockets are opened inside a read and closed when it ends, also when it is abandoned.
2. A batch holds about `BATCH_ROWS` rows or `BATCH_BYTES`, at most one chunk more; one chunk is
   at most one document longer than the fetch size. So no batch comes near Arrow's 2 GiB.
3. Ranges are read from the nodes that have their partitions, one node after the other.
4. Mark rows come before the changes of a task.
5. Nodes that are away are waited for, before a stream has given anything; one that goes later ends
   the task, and Spark's next attempt begins anew.

Spark's filters are not taken over (`DataSourceReader.pushFilters`). PySpark 4.2 and 4.3 keep the
ranges and the filters of one query with the loaded DataFrame, and use them for every later query
of it that pushes no filter, such as `count()`, and for both sides of a self-join. No Python code
is called then, so a source cannot correct it: rows would be missing without an error. The option
`selector` says what the nodes shall leave out. They send what they cannot judge quickly, and nodes
of earlier releases send all, so each row is judged here again.

Hot path: socket -> `BucketRanges` -> `cut_columns` -> Arrow; measured by `make bench`.

Elsewhere: which ranges (`ranges`), form of the rows (`schema`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from millstream.client.bulk import BucketRanges, Range
from millstream.client.columns import OP_PUT, Columns, cut_columns
from millstream.client.extensions import DURABLE_MARK, LeaseHold
from millstream.client.kv import Client
from millstream.errors import AccessError, StreamError, UnavailableError
from millstream.model.position import FailoverLog
from millstream.pipelines.change_stream.control import RENEW_EVERY_S, open_again
from millstream.pipelines.change_stream.document_rows import DocumentForm
from millstream.pipelines.change_stream.options import SourceOptions
from millstream.pipelines.change_stream.patience import Wait, advised, ask_again
from millstream.pipelines.change_stream.ranges import RangeRead, read_committed
from millstream.pipelines.change_stream.schema import (
    OP_ROLLBACK,
    OP_SWEEP,
    MarkRow,
    RowForm,
    branch_table,
)
from millstream.views.core.mango.stored import stored_condition

__all__ = ["NodeRanges", "committed_batches", "mark_rows", "pinned_batches", "pinned_chunks"]

BATCH_ROWS: Final = 10_000
BATCH_BYTES: Final = 4 * 1024 * 1024


class NodeRanges:
    """Ranges read from a node; a `ranges.RangeSource`."""

    def __init__(
        self, options: SourceOptions, *, with_values: bool, with_meta: bool = False
    ) -> None:
        self._options = options
        self._with_values = with_values or bool(options.selector)  # which is checked here, too
        self._with_meta = with_meta
        self._client: Client | None = None

    def close(self) -> None:
        """Close what is open; streams close with their iterators."""
        if self._client is not None:
            self._client.close()

    def stream(self, ranges: Sequence[Range]) -> Iterator[bytes]:
        """Yield the frames of ranges in chunks, from the nodes that have them; none for no range.

        Raises:
            RoutingError: partitions moved while they were read, or for too long.
            UnavailableError: a node went while it was read from, or is away for longer.
        """
        if not ranges:
            return
        read = BucketRanges(
            self._connected().router,
            with_values=self._with_values,
            with_meta=self._with_meta,
            selector=self._options.selector,
            waiting=Wait(self._options.reconnect_s),
        )
        with closing(read):
            try:
                yield from read.read(ranges)
            except AccessError as error:
                raise advised(error) from error

    def failover_log(self, partition_id: int) -> tuple[FailoverLog, int]:
        """Return the histories of a partition, newest first, and its high seqno."""
        return ask_again(
            self._connected(),
            lambda client: (
                client.branch_log(partition_id), client.positions([partition_id])[0].high_seqno,
            ),
        )  # fmt: skip

    def open_lease(self, partition_ids: Sequence[int]) -> Mapping[int, LeaseHold]:
        """Hold partitions as of their present high, or newest durable mark (the option says)."""
        newest = DURABLE_MARK if self._options.is_durable_only else None
        wanted = dict.fromkeys(partition_ids, newest)
        return ask_again(
            self._connected(), lambda client: client.open_lease(wanted), may_move=True
        )

    def open_lease_up_to(self, ends: Mapping[int, int]) -> Mapping[int, LeaseHold]:
        """Hold partitions as `open_lease` does, up to a seqno at least, or all there still is.

        A new history learns only by and by how much of what it has is durable.

        Raises:
            UnavailableError: `durable_unknown` for longer than `reconnectTimeout`.
        """
        wait = Wait(self._options.reconnect_s)
        held: dict[int, LeaseHold] = {}
        missing = list(ends)
        while missing:
            held.update(self.open_lease(missing))
            missing = [p for p in missing if self._is_short(p, ends[p], held.get(p))]
            if missing:
                wait.pause(self._durable_unknown(missing))
            for p in missing:
                if p in held:
                    self.release_lease(held.pop(p).lease_id, p)
        wait.end()
        return held

    def _durable_unknown(self, partition_ids: Sequence[int]) -> UnavailableError:
        return UnavailableError(
            f"the partitions {partition_ids} of bucket {self._options.bucket!r} have a new "
            "history, of which is not known yet whether all that this read was planned with is "
            "durable: a majority of the copies has not said. Run it again when they can be "
            "reached, or read without durableOnly",
            code="durable_unknown",
        )

    def _is_short(self, partition_id: int, end: int, hold: LeaseHold | None) -> bool:
        if not self._options.is_durable_only or (hold is not None and hold.at >= end):
            return False
        _, high_seqno = self.failover_log(partition_id)
        return (hold.at if hold else 0) < min(end, high_seqno)

    def renew_lease(self, lease_id: int, partition_ids: Sequence[int]) -> Mapping[int, LeaseHold]:
        """Extend a lease on partitions; return those still held."""
        return ask_again(
            self._connected(), lambda client: client.renew_lease(lease_id, partition_ids)
        )

    def release_lease(self, lease_id: int, partition_id: int) -> None:
        """Give up a lease on a partition."""
        ask_again(self._connected(), lambda client: client.release_lease(lease_id, [partition_id]))

    def _connected(self) -> Client:
        """Return the connection for what is no stream."""
        if self._client is None:
            self._client = open_again(self._options)
        return self._client


def committed_batches(
    options: SourceOptions, form: RowForm | DocumentForm, reads: Sequence[RangeRead]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a stream's logged ranges; see `ranges.read_committed`."""
    marks = mark_rows(reads)
    if marks:
        yield form.marks(marks)
    source = NodeRanges(options, with_values=form.has_values, with_meta=form.has_meta)
    try:
        yield from _batches(options, form, _branches(reads), read_committed(reads, source))
    finally:
        source.close()


def pinned_batches(
    options: SourceOptions, form: RowForm | DocumentForm, reads: Sequence[RangeRead]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a batch read, exactly as of the leases it was planned with.

    A DataFrame may be evaluated long after it was planned: what is not held any more when the
    task begins is read as of the present, unless an end was asked for.

    Raises:
        StreamError: `lease_lost`: the snapshot is gone.
        RollbackRequiredError: the place where the read was to begin is no longer in the history.
        UnavailableError: `durable_unknown`: of durable changes, those that were planned cannot be
            told from others since the partition has a new history.
    """
    source = NodeRanges(options, with_values=form.has_values, with_meta=form.has_meta)
    try:
        held = _held(source, reads, can_move=options.ending_offsets == "latest")
        frames = _kept(source, held)
        is_live_only = not options.has_tombstones
        yield from _batches(options, form, _branches(held), frames, is_live_only=is_live_only)
    finally:
        source.close()


def pinned_chunks(
    options: SourceOptions, reads: Sequence[RangeRead], *, with_values: bool = True
) -> Iterator[bytes]:
    """Yield the frames of a batch read as they come, as `pinned_batches` reads them."""
    source = NodeRanges(options, with_values=with_values)
    try:
        held = _held(source, reads, can_move=options.ending_offsets == "latest")
        yield from _kept(source, held)
    finally:
        source.close()


def _held(
    source: NodeRanges, reads: Sequence[RangeRead], *, can_move: bool
) -> Sequence[RangeRead]:
    """Renew the leases of ranges; give new ones to those that have lost theirs."""
    held: dict[int, LeaseHold] = {}
    for lease_id in {read.lease_id for read in reads if read.lease_id is not None}:
        mine = [read.partition_id for read in reads if read.lease_id == lease_id]
        held.update(source.renew_lease(lease_id, mine))
    lost = [read.partition_id for read in reads if read.partition_id not in held]
    if not lost:
        return reads
    if not can_move:
        raise StreamError(
            f"the snapshot of partition {lost[0]} that this read was planned with is gone; load "
            "the DataFrame again",
            code="lease_lost",
        )
    opened = source.open_lease_up_to(
        {read.partition_id: read.end for read in reads if read.partition_id in lost}
    )
    return [
        read.as_of(opened[read.partition_id]) if read.partition_id in opened else read
        for read in reads
        if read.partition_id in opened or read.partition_id in held  # else nothing is there
    ]


def _kept(source: NodeRanges, reads: Sequence[RangeRead]) -> Iterator[bytes]:
    """Yield the frames of ranges, renewing their leases meanwhile."""
    renewed_s = time.monotonic()
    for chunk in source.stream([read.request for read in reads]):
        if time.monotonic() - renewed_s > RENEW_EVERY_S:
            renewed_s = time.monotonic()
            _held(source, reads, can_move=False)
        yield chunk


def _batches(
    options: SourceOptions,
    form: RowForm | DocumentForm,
    branches: Mapping[int, int],
    chunks: Iterable[bytes],
    *,
    is_live_only: bool = False,
) -> Iterator[pa.RecordBatch]:
    table = branch_table(branches)
    wanted = partial(
        _rows_wanted,
        key_prefix=options.key_prefix,
        condition=stored_condition(options.selector.encode()) if options.selector else None,
        is_live_only=is_live_only,
    )
    columns, size = Columns(), 0
    for chunk in chunks:
        cut_columns(chunk, columns)
        size += len(chunk)
        if size >= BATCH_BYTES or len(columns) >= BATCH_ROWS:
            yield form.batch(columns, table, wanted(columns))
            columns, size = Columns(), 0
    if len(columns):
        yield form.batch(columns, table, wanted(columns))


def _branches(reads: Sequence[RangeRead]) -> dict[int, int]:
    return {read.partition_id: read.branch for read in reads}


def mark_rows(reads: Sequence[RangeRead]) -> list[MarkRow]:
    """Return the rollback and sweep rows of ranges."""
    rollbacks = [
        MarkRow(OP_ROLLBACK, read.partition_id, read.branch, read.rollback_to, read.load)
        for read in reads
        if read.rollback_to is not None
    ]
    sweeps = [
        MarkRow(OP_SWEEP, read.partition_id, read.branch, read.sweep_seqno, read.load)
        for read in reads
        if read.sweep_seqno is not None
    ]
    return rollbacks + sweeps


def _rows_wanted(
    columns: Columns,
    key_prefix: str,
    condition: Callable[[str, bytes], bool] | None = None,
    *,
    is_live_only: bool,
) -> pa.Array | None:
    """Return which changes are wanted; None: all.

    Args:
        columns: the changes.
        key_prefix: with which the text form of a key begins.
        condition: of keys and values; deletions are not wanted then. None: all are wanted.
        is_live_only: without deletions.
    """
    mask = None
    if is_live_only and columns.op.count(OP_PUT) < len(columns):
        mask = pc.equal(pa.array(columns.op, pa.string()), OP_PUT)
    if key_prefix:
        begins = pc.starts_with(pa.array(columns.key, pa.string()), key_prefix)
        mask = begins if mask is None else pc.and_(mask, begins)
    if condition is not None:
        keys_and_values = zip(columns.key, columns.value, strict=True)
        passes = pa.array(
            [value is not None and condition(key, value) for key, value in keys_and_values],
            pa.bool_(),
        )
        mask = passes if mask is None else pc.and_(mask, passes)
    return mask
