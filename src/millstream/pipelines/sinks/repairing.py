"""The rules of a sink that keeps the newest row of each key and repairs itself after a rollback.

    RepairingSink(target, origin).apply(rows_of_one_batch)

One class serves every store: a second bucket, a table of Parquet files, the user's own.
`KeyedTarget` is the interface of a store. `Origin` is the interface of the source bucket.

Invariants:
1. Of a batch all rollback rows are handled first, then changes, then sweep rows, because their
   order within a batch has no meaning.
2. `(branch, seqno)` is the version of a key in its partition. The higher one wins. An equal one is
   written again, because it may carry a later load, or the store may have stopped between two
   writes.
3. A deletion is kept as a tombstone with its version. Otherwise a rollback could not undo it.
4. A rollback to R in branch B replaces every key that may have a version of a branch below B and a
   seqno above R by the newest document of the source, or its deletion, stamped (B, its own seqno).
   If the source does not know the key, it becomes a tombstone (B, R).
5. Loads, sweeps and the floor are those of `upr.core.repair`. A rollback to 0 begins a load, and a
   sweep row ends it. A change of branch alone begins none, because a purge makes no branch.
6. A dropped tombstone is forgotten. So for a rollback below the floor the whole partition is read
   again, and the store keeps only that.
7. Tombstones are dropped only if the batch is of the newest branch and has no mark row, only up to
   what is durable, and never while a load is incomplete: until the batch has ended the store may
   need them to repeat it.
8. The first batch, even an empty one, leaves a state of the partition `WHOLE`, which no source
   has. A later batch that finds no state of any partition has another store, or one that lost
   earlier batches: it is refused.
9. A store that has batches of another query, or later ones, refuses the batch before it changes
   anything (`sinks.batch_order`).

Elsewhere: rollback rows (`pipelines.change_stream.planner`, `pipelines.change_stream.ranges`), the
source's side (`sinks.origin`), stores (`sinks.bucket_target`, `sinks.parquet_target`,
`sinks.delta_target`, `sinks.sql_target`, `sinks.callback_target`), Spark's side
(`sinks.applying`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple, Protocol

from millstream.errors import UsageError
from millstream.upr.core.repair import LoadState

__all__ = [
    "OP_DELETE",
    "OP_PUT",
    "OP_ROLLBACK",
    "OP_SWEEP",
    "WHOLE",
    "Applied",
    "KeyedTarget",
    "Origin",
    "OriginPosition",
    "RepairingSink",
    "Row",
    "Staged",
    "StagedChanges",
    "StoredVersion",
]

OP_PUT: Final = "put"
OP_DELETE: Final = "delete"
OP_ROLLBACK: Final = "rollback"
OP_SWEEP: Final = "sweep"
WHOLE: Final = -1
"""Stands for the target as a whole where partitions are numbered."""


class Row(NamedTuple):
    """A row of the change stream, its columns in their order; `ts` in microseconds.

    Rollback and sweep rows have no key and carry the load in `rev`.
    """

    op: str
    partition: int
    branch: int
    seqno: int
    key: str = ""
    cas: int = 0
    rev: int = 0
    expiry: int = 0
    flags: int = 0
    datatype: int = 0
    value: bytes | None = None
    ts: int = 0
    meta: bytes | None = None

    @property
    def version(self) -> tuple[int, int]:
        """What is compared: (branch, seqno)."""
        return self.branch, self.seqno

    @property
    def is_deleted(self) -> bool:
        """Whether the change is a tombstone: a deletion or an expiration."""
        return self.op != OP_PUT


class StoredVersion(NamedTuple):
    """What a store remembers of one key."""

    partition: int
    branch: int
    seqno: int
    key: str
    is_deleted: bool = False
    load: int = 1

    @property
    def version(self) -> tuple[int, int]:
        """What is compared: (branch, seqno)."""
        return self.branch, self.seqno


class OriginPosition(NamedTuple):
    """The position of a partition of the source."""

    branch: int
    durable_seqno: int
    purge_seqno: int


class KeyedTarget(Protocol):
    """A store of the newest row of each key.

    `begin` comes before all else of a batch. Nothing has to be durable before `commit` returns; a
    batch that did not get so far comes again, with the same rows or others of the same keys.
    """

    def begin(self, partitions: Collection[int], partition_count: int) -> None:
        """Begin a batch that concerns these partitions of as many as the source has."""

    def enter(self, batch_id: int, query_id: str) -> None:
        """Refuse a batch that cannot be the next one, by `batch_order.next_writer`.

        Keep its number and query with what else the batch changes. `WHOLE` is among the
        partitions that have begun.
        """

    def state(self, partition: int) -> LoadState | None:
        """Return what was set last; None if nothing of the partition was ever applied."""

    def set_state(self, partition: int, state: LoadState) -> None:
        """Remember the state, together with what else the batch does."""

    def versions(self, partition: int, keys: Collection[str]) -> Mapping[str, StoredVersion]:
        """Return the versions of keys, tombstones included.

        A key may be left out if every version it may have is at or below the partition's `floor`.
        """

    def keys_above(self, partition: int, branch: int, seqno: int) -> Collection[str]:
        """Return keys that may have a version of a lower branch and a higher seqno."""

    def put(self, partition: int, rows: Sequence[Row], load: int) -> None:
        """Replace what there is of these keys (one row each), tombstones included."""

    def sweep(self, partition: int, load: int) -> None:
        """Remove what carries a lower load."""

    def retain(self, partition: int, keys: AbstractSet[str]) -> None:
        """Remove all keys but these."""

    def drop_tombstones(self, partition: int, seqno: int) -> int:
        """Forget tombstones at or below; return the highest seqno forgotten, 0 for none."""

    def commit(self, batch_id: int) -> None:
        """Make durable what the batch did."""


class Origin(Protocol):
    """The bucket that the rows come from."""

    @property
    def partition_count(self) -> int:
        """Number of its partitions."""

    def positions(self, partitions: Collection[int]) -> Mapping[int, OriginPosition]:
        """Return where partitions stand."""

    def newest(self, partition: int, keys: Collection[str]) -> Mapping[str, Row]:
        """Return the newest row of each key, deletions included; unknown keys are left out."""

    def everything(self, partition: int) -> Iterator[Sequence[Row]]:
        """Yield all rows of a partition as of one moment, deletions included, in pieces."""


class StagedChanges(NamedTuple):
    """Changes of one partition that a store has staged: the highest branch, and how many."""

    branch: int = 0
    puts: int = 0
    deletions: int = 0


class Staged(NamedTuple):
    """The changes of a batch, where tasks have brought them to the store.

    `changes`: by partition. `apply`: has the store do by itself what invariant 2 says, with the
    loads that its partitions have by then.
    """

    changes: Mapping[int, StagedChanges]
    apply: Callable[[], None]


class Applied(NamedTuple):
    """What a batch did."""

    puts: int = 0
    deletions: int = 0
    rollbacks: int = 0
    fetched: int = 0
    sweeps: int = 0


class RepairingSink:
    """Applies batches to one store."""

    def __init__(self, target: KeyedTarget, origin: Origin) -> None:
        self._target = target
        self._origin = origin
        self._fetched = 0

    def apply(
        self,
        rows: Iterable[Row],
        batch_id: int = 0,
        staged: Staged | None = None,
        query_id: str = "",
    ) -> Applied:
        """Apply the rows of one batch, in any order, and commit.

        Args:
            rows: all of them; mark rows only, if the changes are staged.
            batch_id: as Spark gives it.
            staged: the changes, if the store has them.
            query_id: as Spark keeps it in the checkpoint; empty for not known.

        Raises:
            UsageError: `other_checkpoint`: the target has batches of another query or later ones,
                knows a later load of a partition, or lacks what the batches before have written.
        """
        rollbacks, sweeps = [], []
        changes: dict[int, list[Row]] = {}
        for row in rows:
            if row.op == OP_ROLLBACK:
                rollbacks.append(row)
            elif row.op == OP_SWEEP:
                sweeps.append(row)
            else:
                changes.setdefault(row.partition, []).append(row)
        counted = staged.changes if staged else {p: _counted(rows) for p, rows in changes.items()}
        partitions = sorted({*counted, *(row.partition for row in rollbacks + sweeps)})
        self._fetched = 0
        self._begin(partitions, batch_id, query_id)
        positions = self._origin.positions(partitions) if partitions else {}
        for p in partitions:
            if self._target.state(p) is None:
                self._target.set_state(p, LoadState(floor=positions[p].purge_seqno))
        for row in rollbacks:
            self._roll_back(row, positions[row.partition])
        for p, mine in changes.items():
            self._upsert(p, mine)
        if staged:
            staged.apply()
        for row in sweeps:
            self._sweep(row)
        for p in sorted(counted.keys() - {row.partition for row in rollbacks + sweeps}):
            self._drop_tombstones(p, counted[p].branch, positions[p])
        self._target.commit(batch_id)
        puts = sum(found.puts for found in counted.values())
        deletions = sum(found.deletions for found in counted.values())
        return Applied(puts, deletions, len(rollbacks), self._fetched, len(sweeps))

    def _begin(self, partitions: Sequence[int], batch_id: int, query_id: str) -> None:
        """Begin the batch in the target; invariants 8 and 9."""
        count = self._origin.partition_count
        self._target.begin([WHOLE, *partitions], count)
        self._target.enter(batch_id, query_id)
        if batch_id > 0 and not self._has_state([WHOLE, *partitions]):
            # Filled by a release without that state, or given no empty batches?
            self._target.begin([WHOLE, *range(count)], count)
            if not self._has_state(range(count)):
                raise UsageError(
                    f"this is batch {batch_id}, but the target has nothing of the batches "
                    "before: it was emptied or made anew, or is another one. Go on with the "
                    "target that belongs to this checkpoint, or begin a new checkpoint with the "
                    "empty target",
                    code="other_checkpoint",
                )
            self._target.begin([WHOLE, *partitions], count)
            self._target.enter(batch_id, query_id)
        if self._target.state(WHOLE) is None:
            self._target.set_state(WHOLE, LoadState())

    def _has_state(self, partitions: Iterable[int]) -> bool:
        return any(self._target.state(p) is not None for p in partitions)

    def _state(self, partition: int) -> LoadState:
        return self._target.state(partition) or LoadState()

    def _roll_back(self, row: Row, position: OriginPosition) -> None:
        """Invariants 4, 5, 6."""
        p, state = row.partition, self._state(row.partition)
        if row.seqno == 0:
            if row.rev < state.load:
                raise _other_checkpoint(row, state)
            if row.rev > state.load:
                floor = state.forgot(position.purge_seqno).floor
                self._target.set_state(p, state.begun(row.rev, floor))
        elif not state.undo_point(row.seqno):
            self._read_anew(p, position)
        else:
            self._fetch(row, state.load)

    def _read_anew(self, partition: int, position: OriginPosition) -> None:
        found: set[str] = set()
        for rows in self._origin.everything(partition):
            self._upsert(partition, rows)
            found.update(row.key for row in rows)
            self._fetched += len(rows)
        self._target.retain(partition, found)
        state = self._state(partition)
        self._target.set_state(partition, state.forgot(position.purge_seqno))

    def _fetch(self, row: Row, load: int) -> None:
        p, branch = row.partition, row.branch
        keys = sorted(self._target.keys_above(p, branch, row.seqno))
        found = self._origin.newest(p, keys) if keys else {}
        unknown = Row(OP_DELETE, p, branch, row.seqno)
        rows = [
            found[key]._replace(branch=branch) if key in found else unknown._replace(key=key)
            for key in keys
        ]
        self._fetched += len(rows)
        if rows:
            self._target.put(p, rows, load)

    def _upsert(self, partition: int, rows: Sequence[Row]) -> None:
        """Invariant 2."""
        newest: dict[str, Row] = {}
        for row in rows:
            held = newest.get(row.key)
            if held is None or row.version >= held.version:
                newest[row.key] = row
        stored = self._target.versions(partition, newest.keys())
        wins = [
            row
            for key, row in newest.items()
            if key not in stored or row.version >= stored[key].version
        ]
        if wins:
            self._target.put(partition, wins, self._state(partition).load)

    def _sweep(self, row: Row) -> None:
        state = self._state(row.partition)
        if state.is_swept_by(row.rev):
            self._target.sweep(row.partition, row.rev)
            self._target.set_state(row.partition, state.swept())

    def _drop_tombstones(self, partition: int, branch: int, position: OriginPosition) -> None:
        """Invariant 7."""
        state = self._state(partition)
        if state.is_loading or branch != position.branch:
            return
        dropped = self._target.drop_tombstones(partition, position.durable_seqno)
        if dropped > state.floor:
            self._target.set_state(partition, state.forgot(dropped))


def _counted(rows: Sequence[Row]) -> StagedChanges:
    gone = sum(row.is_deleted for row in rows)
    return StagedChanges(max(row.branch for row in rows), len(rows) - gone, gone)


def _other_checkpoint(row: Row, state: LoadState) -> UsageError:
    return UsageError(
        f"partition {row.partition} begins load {row.rev}, but the target has seen load "
        f"{state.load}: it was filled by a query with another checkpoint. Begin a new checkpoint "
        "with an empty target",
        code="other_checkpoint",
    )
