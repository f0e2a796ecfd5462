"""One open index in the index process: its files, its functions and its readers.

Invariants:
1. Its files are closed after its last reader, and removed after they are closed.
2. An unusable index is set aside once and rebuilt. So is one that crashed this process several
   times, if a check finds damage.
3. Functions of the design document run in two sandboxes, one for building and one for queries, so
   that queries never wait for a build.

Elsewhere: the set of indexes (`hosted_bucket`), updates (`indexing`).
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from millstream.errors import CorruptionError, UnavailableError
from millstream.views.aio.indexing.index_check import note_close, note_open
from millstream.views.aio.indexing.index_mapping import IndexMapper
from millstream.views.aio.indexing.index_store import LmdbIndexStore
from millstream.views.aio.indexing.staging import Staging
from millstream.views.aio.sandbox.mapping import Mapper, open_functions
from millstream.views.aio.serving.answering import AskedView
from millstream.views.core.collation import COLLATION_VERSION, encoder_of
from millstream.views.core.design.design_documents import COUNT, own_number
from millstream.views.core.index.header import Header
from millstream.views.core.index.index import Index, IndexShape
from millstream.views.core.query.wait_for import has_reached, vector_to_text
from millstream.views.core.reduce.reductions import ViewReducer

if TYPE_CHECKING:
    from millstream.views.aio.indexing.served_index import IndexProgress, IndexWork
    from millstream.views.core.design.design_documents import DesignDocument, View
    from millstream.views.core.index.commits import IndexSnapshot
    from millstream.views.core.reduce.reductions import ReduceCall, ReduceLimit, ReduceResult

__all__ = [
    "ASKING_MAX",
    "SET_ASIDE",
    "HostedIndex",
    "WorkSeen",
    "figures_shown",
    "now_ms",
    "shown_without_views",
]

_LOG = logging.getLogger(__name__)
ASKING_MAX: Final = 4
"""Threads that answer queries of one index with reduce functions of its own."""
SET_ASIDE: Final = ".damaged"
"""Ending of the directory of an index that could not be used."""


class HostedIndex:
    """An open index. Making one blocks.

    Args:
        design: one of the design documents that have it.
        bucket_uuid: of its bucket.
        path: its directory.
        reduce_limit: what becomes of reduce results that do not shrink.

    Raises:
        UsageError: `compilation_error`, `unknown_function`.
        UnavailableError: `disk_full`; the sandbox cannot be started.
        OSError: the directory cannot be used.
    """

    def __init__(
        self,
        design: DesignDocument,
        bucket_uuid: str,
        path: Path,
        reduce_limit: ReduceLimit = "true",
    ) -> None:
        self.design = design
        self._reduce_limit = reduce_limit
        self._was_overflow_told = False
        self.path = path
        self.signature = design.signature
        self.staging = Staging(path)
        """Files of a writer outside."""
        self.rebuilt_because = ""
        """Why what was there could not be used; shown to people."""
        self.is_compacting = False
        self.is_catching_up = False
        """Somebody waits until it has reached the floors."""
        self.is_doomed = False
        """Whether its files are removed with it."""
        self._users = 0
        self._unused = asyncio.Event()
        self._unused.set()
        self._asking: Mapper | None = None
        self._ask_lock = threading.Lock()
        self._turns = asyncio.Semaphore(ASKING_MAX)
        self._is_closed = False
        self.mapper = IndexMapper(design, bucket_uuid)
        try:
            self._open()
        except BaseException:  # no sandbox stays behind
            self.mapper.close()
            raise

    def _open(self) -> None:
        try:
            self._open_files()
        except CorruptionError as error:
            _LOG.error("index %s is set aside and built anew: %s", self.signature, error)
            self.rebuilt_because = str(error)
            self._move_aside()
            self._open_files()

    def _open_files(self) -> None:
        note_open(self.path)
        self._store = LmdbIndexStore(self.path, self.signature, COLLATION_VERSION)
        shape = IndexShape(
            self.signature,
            COLLATION_VERSION,
            tuple(self.mapper.reducers(self._reduce_limit, self._tell_overflow)),
            tuple(tree.reduces for tree in self.design.trees),
        )
        try:
            self.index = Index(self._store, shape, now_ms())
        except BaseException:  # no file stays open
            self._store.close()
            raise
        if self._store.rebuilt_because:
            self.rebuilt_because = self._store.rebuilt_because
            _LOG.warning("index %s is built anew: %s", self.signature, self.rebuilt_because)

    def _move_aside(self) -> None:
        aside = self.path.with_name(self.path.name + SET_ASIDE)
        shutil.rmtree(aside, ignore_errors=True)
        self.path.rename(aside)

    def close(self) -> None:
        """Close the files. Blocks; there must be no readers."""
        self._is_closed = True
        if (asking := self._asking) is not None:
            asking.stop()  # a reduce that loops holds the lock
        with self._ask_lock:
            if self._asking is not None:
                self._asking.close()
                self._asking = None
        self._store.close()
        note_close(self.path)

    def set_aside(self) -> None:
        """Close files that are damaged and move them away. Blocks."""
        self.close()
        self._move_aside()

    # -- who reads it

    @contextmanager
    def used(self) -> Iterator[None]:
        """Within `with`, the files stay open."""
        self._users += 1
        self._unused.clear()
        try:
            yield
        finally:
            self._users -= 1
            if not self._users:
                self._unused.set()

    @property
    def is_used(self) -> bool:
        """Whether somebody reads it."""
        return self._users > 0

    async def until_unused(self) -> None:
        """Return once no query reads the index."""
        while self._users:
            await self._unused.wait()

    def snapshot(self) -> IndexSnapshot:
        """Open the newest commit for reading."""
        return self.index.snapshot(now_ms())

    def lacking(self, partitions: Collection[int], owed: Mapping[int, int]) -> list[int]:
        """Return partitions of which rows are missing that there were: void ones, and owed ones.

        `owed`: partition -> the seqno with which it came from another node.
        """
        header = self.index.newest

        def lacks(p: int) -> bool:
            at = header.positions.get(p)
            is_late = p in owed and (at is None or not has_reached(at, owed[p]))
            return bool(header.void >> p & 1) or is_late

        return [p for p in partitions if lacks(p)]

    def asked_view(self, view: View) -> AskedView:
        """Return what a query has to know of a view."""
        tree = self.design.trees[view.tree]

        def reduce(number: int, calls: Sequence[ReduceCall]) -> Sequence[ReduceResult]:
            with self._ask_lock:  # one thread at a time
                if self._is_closed:  # a query was given up, and its thread goes on for a while
                    raise UnavailableError("the index was closed", code="index_unavailable")
                if self._asking is None:
                    self._asking = open_functions(self.design.functions_by_tree())
                return self._asking.reduce_texts(own_number(view.tree, number), calls)

        return AskedView(
            view.tree,
            view.number,
            ViewReducer(tree.reduces, reduce, self._reduce_limit, self._tell_overflow),
            tree.reduces.index(COUNT),
            encoder_of(tree.collation),
            is_own_reduce=view.has_own_reduce,
            turns=self._turns,
        )

    def _tell_overflow(self, reason: str) -> None:
        """Log a result that does not shrink: the first one, they come in thousands."""
        if not self._was_overflow_told:
            self._was_overflow_told = True
            _LOG.warning("design document %r: %s", self.design.name, reason)

    # -- what is seen

    def shown(self, design: DesignDocument, progress: IndexProgress) -> dict[str, Any]:
        """Return what `_info` shows of it.

        Args:
            design: that was asked for.
            progress: of this index.
        """
        header = self.index.newest
        sizes = self.index.sizes()
        # What a first build has read is not in the index before all of it is loaded.
        seqnos = sum(position.seqno for position in progress.positions.values())
        pending = max(0, progress.changes_total - seqnos)
        is_running = progress.phase in ("first_build", "incremental") and pending > 0
        shown = {
            "signature": design.signature,
            "language": design.language,
            "engine": design.engine,
            "writer": header.writer,
            "sizes": {
                "file": sizes.file_bytes,
                "active": sizes.used_bytes,
                "external": sizes.used_bytes,
            },
            "update_seq": vector_to_text(header.positions),
            "purge_seq": sum(header.purge_seqnos.values()),
            "updater_running": is_running,
            "compact_running": self.is_compacting,
            "waiting_clients": progress.waiting,
            "waiting_commit": is_running,
            "updates_pending": dict.fromkeys(("minimum", "preferred", "total"), pending),
            "rollback_points": _points_shown(self.index.kept),
            "collator_versions": [COLLATION_VERSION],
            "rows": {view.name: self.rows_of(view.tree) for view in design.views},
            "map_errors": {view.name: self.map_errors_of(view.tree) for view in design.views},
        }
        if progress.error:
            shown["error"] = progress.error
        if self.rebuilt_because:
            shown["rebuilt_because"] = self.rebuilt_because
        return shown

    def rows_of(self, tree: int) -> int:
        """Return how many rows a tree has."""
        root = self.index.newest.trees[tree]
        return 0 if root is None else root.count

    def map_errors_of(self, tree: int) -> dict[str, Any]:
        """Return how often the map of a tree failed, and for which documents last."""
        found = self.index.newest.map_errors.get(tree)
        if found is None:
            return {"count": 0, "last": []}
        last = [{"id": doc_id, "message": message} for doc_id, message in found.last]
        return {"count": found.total, "last": last}


def figures_shown(
    opened: Sequence[HostedIndex], progress: Iterable[IndexProgress], work: IndexWork
) -> dict[str, float]:
    """Return the figures of all indexes of a bucket, by the names of group `index`."""
    every = [hosted.index.newest for hosted in opened]
    each_progress = list(progress)
    return {
        "indexes": len(opened),
        "building": sum(each.phase == "first_build" for each in each_progress),
        "rows": sum(root.count for header in every for root in header.trees if root),
        "pending": sum(each.pending for each in each_progress),
        "file_bytes": sum(hosted.index.sizes().file_bytes for hosted in opened),
        "commits_total": work.commits,
        "commit_seconds_total": work.commit_s,
        "rollbacks_total": work.rollbacks,
        "map_errors": sum(
            errors.total for header in every for errors in header.map_errors.values()
        ),
    }


class WorkSeen:
    """Work at the indexes of a bucket, and when it was first seen."""

    def __init__(self) -> None:
        self._began_ms: dict[tuple[str, str], int] = {}
        """By signature and kind of task, Unix time."""

    def tasks(
        self, hosted: HostedIndex, progress: IndexProgress, database: str, designs: list[str]
    ) -> list[dict[str, Any]]:
        """Return what is being done at an index, as `_active_tasks` shows it.

        Args:
            hosted: the index.
            progress: of it.
            database: name of the bucket.
            designs: ids of the design documents that have the index.
        """
        shown: list[dict[str, Any]] = []
        common = {
            "database": database,
            "design_document": f"_design/{hosted.design.name}",
            "design_documents": designs,
            "signature": hosted.signature,
        }
        is_busy = progress.pending > 0 or progress.phase in ("first_build", "cleanup")
        began_ms = self._lasts(hosted.signature, "indexer", is_busy)
        if began_ms is not None:
            shown.append({"type": "indexer", **common, **_work_shown(progress, began_ms)})
        began_ms = self._lasts(hosted.signature, "view_compaction", hosted.is_compacting)
        if began_ms is not None:
            shown.append({"type": "view_compaction", **common, "started_on": began_ms // 1000})
        return shown

    def _lasts(self, signature: str, kind: str, is_busy: bool) -> int | None:
        """Return since when something lasts; None: it does not."""
        if is_busy:
            return self._began_ms.setdefault((signature, kind), now_ms())
        self._began_ms.pop((signature, kind), None)
        return None


def _work_shown(progress: IndexProgress, began_ms: int) -> dict[str, Any]:
    """Return what `_active_tasks` shows of an index that is being built, since a Unix time."""
    done, total = progress.changes_done, progress.changes_total
    return {
        "phase": progress.phase,
        "changes_done": done,
        "total_changes": total,
        "progress": 100 if total <= 0 else min(100, done * 100 // total),
        "changes_per_second": round(progress.rate),
        "started_on": began_ms // 1000,
        "updated_on": now_ms() // 1000,
    }


def shown_without_views(design: DesignDocument) -> dict[str, Any]:
    """Return what is known of the index that a design document without views does not need."""
    return {
        "signature": design.signature,
        "language": design.language,
        "engine": design.engine,
        "writer": "",
        "sizes": {"file": 0, "active": 0, "external": 0},
        "update_seq": vector_to_text({}),
        "purge_seq": 0,
        "updater_running": False,
        "compact_running": False,
        "waiting_clients": 0,
        "waiting_commit": False,
        "updates_pending": {"minimum": 0, "preferred": 0, "total": 0},
        "rollback_points": _points_shown(()),
        "collator_versions": [COLLATION_VERSION],
        "rows": {},
        "map_errors": {},
    }


def _points_shown(kept: Sequence[Header]) -> dict[str, int | None]:
    """Return how many commits are kept for rollbacks, and when the oldest was made (Unix)."""
    made_ms = [header.committed_ms for header in kept if header.committed_ms]
    return {"count": len(kept), "oldest_ms": min(made_ms, default=None)}


def now_ms() -> int:
    """Return Unix time."""
    return time.time_ns() // 1_000_000
