"""One index: its trees, its kept headers, and all operations that make a commit.

Every change of the index is one commit of the store, made from the newest header: parts of changed
documents, a first build, new states, a rollback, a cleaning step, a new writer. Methods that
commit are called one at a time. Snapshots may be opened and read at any time from any thread.

Invariants:
1. Only the writer with the newest fencing number publishes. Fencing numbers never decrease.
2. The changes of a commit in a tree, and the cleaning of their void partitions, are one pass over
   that tree.
3. States are the last ones that were set. A cleanup ends when no tree has a row of the partition,
   or when the partition is wanted again; then it is void.

Elsewhere: what is kept and freed (`views.core.index.commits`), which parts are published
(`views.core.index.publishing`), rollback (`views.core.index.rollback`), old rows of changed
documents (`views.core.index.back_index`), the tree (`trees.core`), disk
(`views.aio.indexing.index_store`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from millstream.errors import ConditionError, UsageError
from millstream.model.position import Position
from millstream.trees.core.nodes import CommitNodes
from millstream.trees.core.reader import TreeReader
from millstream.trees.core.shapes import NO_REDUCER, Reducer, Root
from millstream.trees.core.writer import TreeWriter
from millstream.views.core.index import rollback
from millstream.views.core.index.back_index import LookUp, operations_of
from millstream.views.core.index.commits import Commits, IndexSnapshot
from millstream.views.core.index.header import (
    Header,
    Judged,
    MapErrors,
    PartitionState,
    PartRead,
    bitmap_of,
)
from millstream.views.core.index.kept_roots import KEPT_BOUNDS, KeptBounds
from millstream.views.core.index.node_store import NodeStore, StoreSizes
from millstream.views.core.index.publishing import LeftOut, why_left_out

__all__ = [
    "CLEAN_NODES_MAX",
    "COMPACT_NODES_MAX",
    "Index",
    "IndexShape",
    "Published",
    "RolledBack",
]

CLEAN_NODES_MAX: Final = 256
"""Nodes that one step of the cleaning rewrites in each tree."""
COMPACT_NODES_MAX: Final = 2048
"""Nodes that one step of a compaction copies."""


class IndexShape(NamedTuple):
    """What decides an index's bytes: of another signature or collation it is another index.

    `reducers`, `reduces`: for each tree, its reductions and their names.
    """

    signature: str
    collation: str
    reducers: tuple[Reducer, ...]
    reduces: tuple[tuple[str, ...], ...]


class Published(NamedTuple):
    """What became of a writer's parts; `left_out` are read again from the header's position."""

    partitions: tuple[int, ...]
    left_out: Mapping[int, LeftOut]


class RolledBack(NamedTuple):
    """What a rollback did: went back to a commit, or made partitions void to be filled from 0."""

    refused: tuple[int, ...]
    to_commit: int | None = None
    void: tuple[int, ...] = ()


class Index:
    """One index over its store.

    Args:
        store: of this index, opened.
        shape: trees, signature and collation; the store's headers must have the same.
        now_ms: Unix time.
        bounds: how many roots are kept.

    Raises:
        CorruptionError: `index_damaged`.
    """

    def __init__(
        self, store: NodeStore, shape: IndexShape, now_ms: int, bounds: KeptBounds = KEPT_BOUNDS
    ) -> None:
        self._store, self._shape = store, shape
        self._commits = Commits(store, shape.reducers, bounds)
        if not self._commits.kept:
            self._commits.begin(_first_header(shape, now_ms))

    # -- what there is

    @property
    def newest(self) -> Header:
        """The header in force."""
        return self._commits.newest

    @property
    def kept(self) -> Sequence[Header]:
        """The headers that can be gone back to, oldest first; the last one is in force."""
        return self._commits.kept

    @property
    def snapshots_open(self) -> int:
        """How many snapshots are open."""
        return self._commits.snapshots_open

    def snapshot(self, now_ms: int) -> IndexSnapshot:
        """Open the newest commit for reading; it is to be closed.

        Raises:
            UnavailableError: `too_many_snapshots`.
        """
        return self._commits.snapshot(now_ms)

    def sizes(self) -> StoreSizes:
        """Return what the index takes on disk."""
        return self._store.sizes()

    # -- commits

    def take_over(self, writer: str, now_ms: int) -> int:
        """Make somebody the writer; return the fencing number that its commits must name."""
        fence = self.newest.fence + 1
        self._commits.commit_header(
            msgspec.structs.replace(self.newest, fence=fence, writer=writer), now_ms
        )
        return fence

    def check_fence(self, fence: int) -> None:
        """Refuse a writer that has been replaced.

        Raises:
            ConditionError: `index_fenced`.
        """
        if fence != self.newest.fence:
            raise ConditionError(
                f"writer {self.newest.writer!r} has taken this index over: take over again",
                code="index_fenced",
            )

    def has_states(self, active: Iterable[int], passive: Iterable[int]) -> bool:
        """Whether `set_states` would change nothing."""
        states: dict[int, PartitionState] = dict.fromkeys(passive, "passive")
        states |= dict.fromkeys(sorted(active), "active")
        return _with_states(self.newest, states) == self.newest

    def set_states(self, active: Iterable[int], passive: Iterable[int], now_ms: int) -> Header:
        """Set which partitions are active and passive. Other partitions here are cleaned.

        New partitions begin at 0. A partition that returns while it is cleaned is void.

        Raises:
            UsageError: `bad_partition_set`: one is in both sets.
        """
        states: dict[int, PartitionState] = dict.fromkeys(passive, "passive")
        active = frozenset(active)
        if both := sorted(active & states.keys()):
            raise UsageError(f"partitions {both} active and passive", code="bad_partition_set")
        states |= dict.fromkeys(sorted(active), "active")
        header = _with_states(self.newest, states)
        if header != self.newest:
            self._commits.commit_header(header, now_ms)
        return self.newest

    def publish(
        self,
        fence: int,
        parts: Mapping[int, PartRead],
        judged: Mapping[int, Judged],
        now_ms: int,
    ) -> Published:
        """Make one commit of what a writer read, as far as it may be published.

        Args:
            fence: what `take_over` gave.
            parts: by partition.
            judged: how the sources judge now, by partition.
            now_ms: Unix time.

        Raises:
            ConditionError: `index_fenced`: another writer has taken over.
            UnavailableError: `disk_full`; nothing has changed.
            CorruptionError: `index_damaged`.
        """
        self.check_fence(fence)
        header = self.newest
        taken, left_out = _judged_parts(header, parts, judged)
        if taken:
            nodes = CommitNodes(self._commits.cache)
            writer = self._commits.writer(nodes=nodes)
            clean = header.void & bitmap_of(taken)
            look_up = self._look_up(header, nodes)
            roots = self._changed(header, taken.values(), writer, clean, look_up)
            self._commit_trees(_with_parts(header, taken), roots, now_ms)
        return Published(tuple(taken), left_out)

    def load(
        self,
        fence: int,
        parts: Mapping[int, PartRead],
        judged: Mapping[int, Judged],
        back: Iterable[tuple[bytes, int, bytes]],
        trees: Sequence[Iterable[tuple[bytes, int, bytes]]],
        now_ms: int,
    ) -> Published:
        """Make the first commit of an empty index from sorted runs.

        Args:
            fence: what `take_over` gave.
            parts: by partition, without documents; rows of those left out are passed over.
            judged: how the sources judge now.
            back: rows (key, partition, value) of the back-index, sorted by key.
            trees: the same for each tree.
            now_ms: Unix time.

        Raises:
            ConditionError: `index_fenced`.
            UsageError: `index_not_empty`.
            UnavailableError: `disk_full`; nothing has changed.
        """
        self.check_fence(fence)
        header = self.newest
        if any(header.roots):
            raise UsageError("only an empty index is loaded", code="index_not_empty")
        taken, left_out = _judged_parts(header, parts, judged)
        if taken:
            loaded = self._loaded((back, *trees), left_out)
            self._commit_trees(_with_parts(header, taken), loaded, now_ms)
        return Published(tuple(taken), left_out)

    def rebuild(
        self,
        fence: int,
        parts: Mapping[int, PartRead],
        judged: Mapping[int, Judged],
        back: Iterable[tuple[bytes, int, bytes]],
        trees: Sequence[Iterable[tuple[bytes, int, bytes]]],
        now_ms: int,
    ) -> Published:
        """Put sorted runs of everything into the place of all rows that there are, in one commit.

        A partition that has rows here and is not among what may be published would lose them: then
        nothing is changed. Arguments and errors as of `load`; the parts begin at 0.
        """
        self.check_fence(fence)
        header = self.newest
        begun = _first_again(header)
        taken, left_out = _judged_parts(begun, parts, judged)
        lost = {p for p, position in header.positions.items() if position.seqno} - taken.keys()
        if lost or not taken:
            return Published((), {**dict.fromkeys(lost, "not_judged"), **left_out})
        loaded = self._loaded((back, *trees), left_out)
        self._commit_trees(_with_parts(begun, taken), loaded, now_ms, self._commits.commit_instead)
        return Published(tuple(taken), left_out)

    def _loaded(
        self, trees: Iterable[Iterable[tuple[bytes, int, bytes]]], left_out: Mapping[int, LeftOut]
    ) -> list[Root | None]:
        """Write new trees bottom-up, the back-index first; return their roots."""
        writer = self._commits.writer(is_load=True)
        return [
            writer.load(_rows_of(rows, left_out), reducer)
            for rows, reducer in zip(trees, self._reducers, strict=True)
        ]

    def roll_back(self, judged: Mapping[int, Judged], now_ms: int) -> RolledBack:
        """Go back where sources refuse positions: to a kept root, else by voiding partitions.

        Only a header is written, whatever the size of the index.
        """
        newest = self.newest
        refused = rollback.refused_partitions(newest, judged)
        if not refused:
            return RolledBack(())
        older = rollback.serving_header(self.kept, judged)
        if older is None:
            self._commits.commit_header(rollback.emptied(newest, refused), now_ms)
            return RolledBack(tuple(refused), void=tuple(refused))
        self._commits.go_back(older, rollback.again(older, newest), now_ms)
        return RolledBack(tuple(refused), to_commit=older.commit)

    def clean_step(self, now_ms: int, nodes_max: int = CLEAN_NODES_MAX) -> bool:
        """Take out some rows that count for nothing; true when there are no more.

        Whoever has an update to publish does so between two steps.
        """
        header = self.newest
        dirty = header.dirty
        if not dirty:
            return True
        writer = self._commits.writer()
        roots: list[Root | None] = []
        is_done = True
        for root, reducer in zip(header.roots, self._reducers, strict=True):
            if root is not None and root.partitions & dirty and is_done:
                root, is_done = writer.clean(root, dirty, reducer, nodes_max)
            roots.append(root)
        left = dirty & _partitions_in(roots)
        states = {
            p: state for p, state in header.states.items() if state != "cleanup" or left >> p & 1
        }
        header = msgspec.structs.replace(header, states=states, void=header.void & left)
        self._commit_trees(header, roots, now_ms)
        return not self.newest.dirty

    def compact_step(self, nodes_max: int = COMPACT_NODES_MAX) -> bool:
        """Go on with giving disk space back; true when done.

        Node numbers and rollback points stay, and anything else may happen between two steps.
        """
        return self._store.compact_step(nodes_max)

    # -- inside a commit

    @property
    def _reducers(self) -> tuple[Reducer, ...]:
        return (NO_REDUCER, *self._shape.reducers)

    def _changed(
        self,
        header: Header,
        parts: Iterable[PartRead],
        writer: TreeWriter,
        clean: int,
        look_up: LookUp,
    ) -> list[Root | None]:
        """Bring the documents of some parts into all trees; return the new roots."""
        documents = [document for part in parts for document in part.documents]
        back, trees = operations_of(documents, len(header.trees), look_up)
        return [
            writer.apply(root, operations, reducer, clean)
            for root, operations, reducer in zip(
                header.roots, (back, *trees), self._reducers, strict=True
            )
        ]

    def _look_up(self, header: Header, nodes: CommitNodes) -> LookUp:
        """Look-ups in the back-index pass over partitions that have no rows that count."""
        known = 0 if header.back is None else header.back.partitions & ~header.void
        reader = TreeReader(self._store, header.back, nodes)

        def look_up(keys: Sequence[bytes]) -> Mapping[bytes, bytes]:
            if not known:
                return {}
            return reader.get([key for key in keys if known >> (key[0] << 8 | key[1]) & 1])

        return look_up

    def _commit_trees(
        self,
        header: Header,
        roots: Sequence[Root | None],
        now_ms: int,
        commit: Callable[[Header, int], None] | None = None,
    ) -> None:
        header = msgspec.structs.replace(header, back=roots[0], trees=tuple(roots[1:]))
        (commit or self._commits.commit)(header, now_ms)


def _first_header(shape: IndexShape, now_ms: int) -> Header:
    return Header(
        signature=shape.signature,
        collation=shape.collation,
        reduces=shape.reduces,
        trees=(None,) * len(shape.reducers),
        created_ms=now_ms,
        committed_ms=now_ms,
    )


def _first_again(header: Header) -> Header:
    """Return the header without rows, with all active and passive partitions at 0."""
    here = header.positions
    return msgspec.structs.replace(
        header,
        states={p: header.states[p] for p in here},
        positions=dict.fromkeys(here, Position()),
        failover_logs=dict.fromkeys(here, ()),
        purge_seqnos=dict.fromkeys(here, 0),
        void=0,
        map_errors={},
    )


def _with_states(header: Header, wanted: Mapping[int, PartitionState]) -> Header:
    """Return the header with these active and passive partitions, and others in cleanup."""
    states = {**dict.fromkeys(header.states, "cleanup"), **wanted}
    back = [p for p in wanted if header.states.get(p) == "cleanup"]
    return msgspec.structs.replace(
        header,
        states=dict(sorted(states.items())),
        positions={p: header.positions.get(p, Position()) for p in wanted},
        failover_logs={p: header.failover_logs.get(p, ()) for p in wanted},
        purge_seqnos={p: header.purge_seqnos.get(p, 0) for p in wanted},
        void=(header.void & bitmap_of(wanted)) | bitmap_of(back),
    )


def _judged_parts(
    header: Header, parts: Mapping[int, PartRead], judged: Mapping[int, Judged]
) -> tuple[dict[int, PartRead], dict[int, LeftOut]]:
    """Return the parts that are published, and why the others are not."""
    verdicts = {p: why_left_out(header, p, part, judged) for p, part in parts.items()}
    left_out = {p: why for p, why in verdicts.items() if why is not None}
    return {p: part for p, part in parts.items() if p not in left_out}, left_out


def _with_parts(header: Header, taken: Mapping[int, PartRead]) -> Header:
    """Return the header at the ends of these parts."""
    errors = dict(header.map_errors)
    for part in taken.values():
        listed = {failure.tree for failure in part.failures}
        for tree in sorted(listed | part.failures_before.keys()):
            failures = [failure for failure in part.failures if failure.tree == tree]
            before = part.failures_before.get(tree, 0)
            errors[tree] = errors.get(tree, MapErrors()).with_failures(failures, before)
    return msgspec.structs.replace(
        header,
        positions={**header.positions, **{p: part.end for p, part in taken.items()}},
        failover_logs={
            **header.failover_logs, **{p: part.failover_log for p, part in taken.items()}
        },
        purge_seqnos={**header.purge_seqnos, **{p: part.purge_seqno for p, part in taken.items()}},
        void=header.void & ~bitmap_of(taken),
        map_errors=errors,
    )  # fmt: skip


def _rows_of(
    rows: Iterable[tuple[bytes, int, bytes]], left_out: Mapping[int, LeftOut]
) -> Iterable[tuple[bytes, int, bytes]]:
    return (row for row in rows if row[1] not in left_out) if left_out else rows


def _partitions_in(roots: Iterable[Root | None]) -> int:
    bitmap = 0
    for root in roots:
        bitmap |= root.partitions if root is not None else 0
    return bitmap
