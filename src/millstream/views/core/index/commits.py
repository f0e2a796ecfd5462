"""Commits of an index: kept headers, free lists, open snapshots, and numbers of nodes.

An open snapshot keeps the nodes of its root, like a kept header, for a bounded time. So a query
sees one commit from beginning to end, for minutes if necessary, and holds no transaction of the
store open.

Invariants:
1. Every node of every kept root, and of every root of an open snapshot, is stored.
2. Commit numbers and node numbers never decrease. Within a process a node number is used once,
   even if its commit failed, so caches never find another node under the same number.
3. A free list runs once all kept and open roots are of its commit or a later one.
4. A rollback drops the free lists of the discarded commits, and frees all node numbers used since
   the older header.
5. A failed commit has changed nothing.
6. A snapshot opened during a commit has a header that is still kept, or the next one: it is
   counted first, and then checks whether its header is still kept.

Elsewhere: what a commit changes (`views.core.index.index`), how much is kept
(`views.core.index.kept_roots`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Self

import msgspec

from millstream.errors import CorruptionError, UnavailableError
from millstream.trees.core.columns import ColumnCache, Columns
from millstream.trees.core.filtered import FilteredCache, Kind
from millstream.trees.core.nodes import CommitNodes, NodeCache
from millstream.trees.core.reader import TreeReader
from millstream.trees.core.shapes import Doubter, Reducer
from millstream.trees.core.writer import TreeWriter
from millstream.views.core.index.header import Header, decode_header, encode_header
from millstream.views.core.index.kept_roots import (
    FreeList,
    KeptBounds,
    decode_free_list,
    encode_free_list,
    retained,
    runnable,
)
from millstream.views.core.index.node_store import NodeStore, StoreCommit
from millstream.views.core.reduce.reductions import ViewReducer

__all__ = [
    "CACHE_BYTES_MAX",
    "SNAPSHOTS_MAX",
    "SNAPSHOT_MS_MAX",
    "Commits",
    "IndexSnapshot",
]

CACHE_BYTES_MAX: Final = 32 * 1024 * 1024
"""Nodes of one index kept decoded in memory."""
SNAPSHOT_MS_MAX: Final = 600_000
"""How long a snapshot may be read before its nodes may go."""
SNAPSHOTS_MAX: Final = 1024
"""Snapshots of one index open at a time."""


class IndexSnapshot:
    """One commit of an index, held for reading until it is closed; a context manager."""

    def __init__(self, header: Header, opened_ms: int, store: NodeStore, commits: Commits) -> None:
        self.header = header
        self.opened_ms = opened_ms
        self.is_expired = False
        self._store, self._commits = store, commits

    def tree(
        self,
        number: int,
        reducer: Reducer | None = None,
        kind: Kind = 0,
        doubter: Doubter | None = None,
    ) -> TreeReader:
        """Return the reader of one tree; a query may give a reducer that does less.

        `kind`: which one, a number from 0 up: under the same number it makes the same partials.
        `doubter`: which of them are not to be believed.
        """
        commits, root = self._commits, self.header.trees[number]
        if reducer is None:
            return TreeReader(self, root, commits.cache, commits.reducers[number])
        columns = None
        if isinstance(reducer, ViewReducer) and reducer.is_columnar:
            columns = Columns(commits.columns, kind, reducer)
        return TreeReader(
            self, root, commits.cache, reducer, commits.filtered, kind, doubter, columns
        )

    @property
    def back(self) -> TreeReader:
        """The reader of the back-index."""
        return TreeReader(self, self.header.back, self._commits.cache)

    def read(self, number: int) -> bytes:
        """Return a node; readers of this snapshot call it.

        Raises:
            UnavailableError: `snapshot_expired`: it was open for too long.
            CorruptionError: `index_damaged`.
        """
        try:
            if not self.is_expired:
                return self._store.read(number)
        except CorruptionError:
            if not self.is_expired:  # else it expired, and the node was let go, while it was read
                raise
        raise UnavailableError(
            "the query took longer than its rows are kept: request fewer rows at a time",
            code="snapshot_expired",
            retry="same",
        )

    def close(self) -> None:
        """Release the commit. Nothing may be read from it after this."""
        self._commits.release(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Commits:
    """What an index's store holds, and the way from one commit to the next.

    Raises:
        CorruptionError: `index_damaged`.
    """

    def __init__(self, store: NodeStore, reducers: Sequence[Reducer], bounds: KeptBounds) -> None:
        self.reducers = reducers
        self.cache = NodeCache(CACHE_BYTES_MAX)
        self.filtered = FilteredCache()
        self.columns = ColumnCache()
        self._store, self._bounds = store, bounds
        self._open: dict[int, IndexSnapshot] = {}
        self._writer: TreeWriter | None = None
        self._ahead = 0  # nodes of the writer that are stored already
        self._leftover: list[FreeList] = []
        stored = store.stored()
        self.kept = [decode_header(stored.headers[each]) for each in sorted(stored.headers)]
        self._free = {c: decode_free_list(data) for c, data in sorted(stored.free_lists.items())}
        self.next_number = 1
        if self.kept:
            self.next_number = self.newest.next_node
            store.remove_from(self.next_number)  # of a commit that was killed

    @property
    def newest(self) -> Header:
        """The header in force."""
        return self.kept[-1]

    @property
    def snapshots_open(self) -> int:
        """How many snapshots are open."""
        return len(self._open)

    @property
    def free_lists(self) -> Mapping[int, FreeList]:
        """By commit, nodes that no root from it on needs, and that are still stored."""
        return self._free

    def snapshot(self, now_ms: int) -> IndexSnapshot:
        """Open the newest commit for reading.

        Raises:
            UnavailableError: `too_many_snapshots`.
        """
        if len(self._open) >= SNAPSHOTS_MAX:
            raise UnavailableError(
                f"{SNAPSHOTS_MAX} queries read this index: try again", code="too_many_snapshots"
            )
        while True:
            header = self.newest
            snapshot = IndexSnapshot(header, now_ms, self._store, self)
            self._open[id(snapshot)] = snapshot
            if any(each is header for each in self.kept):
                return snapshot
            self.release(snapshot)

    def release(self, snapshot: IndexSnapshot) -> None:
        """Close a snapshot; harmless if it is closed."""
        self._open.pop(id(snapshot), None)

    # -- from one commit to the next

    def begin(self, header: Header) -> None:
        """Make the first commit of an empty store."""
        self._store.commit(StoreCommit(header.commit, encode_header(header)))
        self.kept = [header]
        self.next_number = header.next_node

    def writer(
        self, *, is_load: bool = False, nodes: NodeCache | CommitNodes | None = None
    ) -> TreeWriter:
        """Return the writer of the next commit's nodes; an earlier writer is discarded.

        Args:
            is_load: nodes leave memory before the commit, in portions.
            nodes: that are decoded already.
        """
        self._give_up()
        sink = self._write_ahead if is_load else None
        self._writer = TreeWriter(self._store, self.next_number, sink, nodes or self.cache)
        return self._writer

    def _write_ahead(self, nodes: Mapping[int, bytes]) -> None:
        self._store.write_ahead(nodes)
        self._ahead += len(nodes)

    def _give_up(self) -> None:
        """Numbers of a writer that came to no commit are passed over."""
        writer, self._writer, self._ahead = self._writer, None, 0
        if writer is not None and writer.next_number > self.next_number:
            self._leftover.append(FreeList(ranges=((self.next_number, writer.next_number),)))
            self.next_number = writer.next_number

    def commit(self, header: Header, now_ms: int) -> None:
        """Make a commit of `header` with what the writer wrote since it was given.

        Raises:
            UnavailableError: `disk_full`; nothing has changed.
            CorruptionError: `index_damaged`.
        """
        freed = FreeList(tuple(self._writer.freed)) if self._writer is not None else FreeList()
        self._commit(header, now_ms, self.kept, dict(self._free), freed)

    def commit_header(self, header: Header, now_ms: int) -> None:
        """Make a commit that has no new nodes; a writer whose work broke off is given up.

        Raises:
            UnavailableError: `disk_full`; nothing has changed.
        """
        self._give_up()
        self.commit(header, now_ms)

    def commit_instead(self, header: Header, now_ms: int) -> None:
        """Make a commit of what the writer loaded; no node that was there before is part of it.

        Raises:
            UnavailableError: `disk_full`; nothing has changed.
        """
        freed = FreeList(ranges=((1, self.next_number),))
        alone = msgspec.structs.replace(header, nodes=0)
        self._commit(alone, now_ms, self.kept, dict(self._free), freed)

    def go_back(self, older: Header, header: Header, now_ms: int) -> None:
        """Make a commit of `header`, which has the roots of `older`; what came after it goes.

        Raises:
            UnavailableError: `disk_full`; nothing has changed.
        """
        self._give_up()
        kept = [each for each in self.kept if each.commit <= older.commit]
        free = {commit: free for commit, free in self._free.items() if commit <= older.commit}
        freed = FreeList(ranges=((older.next_node, self.newest.next_node),))
        self._commit(header, now_ms, kept, free, freed)

    def _commit(
        self,
        header: Header,
        now_ms: int,
        kept: Sequence[Header],
        free: dict[int, FreeList],
        freed: FreeList,
    ) -> None:
        writer, commit = self._writer, self.newest.commit + 1
        next_node, nodes = self.next_number, header.nodes
        if writer is not None:
            next_node = writer.next_number
            nodes += self._ahead + len(writer.written) - len(writer.freed)
        header = msgspec.structs.replace(
            header, commit=commit, committed_ms=now_ms, next_node=next_node, nodes=nodes
        )
        header.check_invariants()
        assert next_node >= self.next_number, "node numbers only grow"
        assert nodes >= 0, "more nodes were freed than there are"
        assert header.fence >= self.newest.fence, "fencing numbers never go back"
        if freed.nodes_max:
            free[commit] = freed
        kept = retained([*kept, header], free, now_ms, self._bounds)
        removed = [free.pop(each) for each in runnable(free, self._oldest_needed(kept, now_ms))]
        still = {each.commit for each in kept}
        made = StoreCommit(
            commit,
            encode_header(header),
            writer.written if writer is not None else {},
            {commit: encode_free_list(freed)} if commit in free else {},
            [each.commit for each in self.kept if each.commit not in still],
            [each for each in self._free if each not in free],
            [*removed, *self._leftover],
        )
        try:
            self._store.commit(made)
        except BaseException:  # also when interrupted: what was written is of no commit
            self._give_up()
            raise
        for number, node in writer.inners.items() if writer is not None else ():
            self.cache.put(number, node)
        self.kept, self._free, self._leftover = kept, free, []
        self._writer, self._ahead = None, 0
        self.next_number = header.next_node

    def _oldest_needed(self, kept: Sequence[Header], now_ms: int) -> int:
        """Return the commit of the oldest root that is kept or read; old readers are cut off."""
        oldest = kept[0].commit
        for snapshot in list(self._open.values()):
            if now_ms - snapshot.opened_ms > SNAPSHOT_MS_MAX:
                snapshot.is_expired = True
                self.release(snapshot)
            else:
                oldest = min(oldest, snapshot.header.commit)
        return oldest
