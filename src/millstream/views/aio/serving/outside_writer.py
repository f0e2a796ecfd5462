"""Calls of Spark pipelines that write an index outside this process.

A pipeline writes the index of a design document with `"engine": "spark"`. A build of an index
that the node writes may also be offered to a pipeline (`views.core.index.offers`). Meanwhile the
indexer here sets the states of partitions, cleans and compacts, and does nothing else. The
pipeline sends these calls over HTTP:

    take_over    become the writer; returns a fencing number, and the positions of the index
    judge        roll back where sources refuse positions; returns the positions
    keep         the writer is working: its staged files stay; returns their names
    place, staged    a file of rows or documents, see `staging`
    load         the first commit, from sorted rows, or one that replaces all rows
    publish      a later commit, from documents

Invariants:
1. A call with another fencing number than the newest changes nothing (`index_fenced`).
2. Parts are judged by the current answer of the sources, requested after the call came, and by the
   rule of `views.core.index.publishing`, for both kinds of commits.
3. A pipeline cannot become the writer of an index that the node writes, or writes again.
4. A commit names files, not rows, so its size depends only on the number of partitions.

Elsewhere: the pages (`gateway.aio.queries.index_pages`), the pipeline
(`millstream.pipelines.index`).

Source: docs/design/0017-views-on-spark.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from millstream.errors import ConditionError, UsageError
from millstream.model.position import Position, position_from_json, position_to_json
from millstream.views.aio.serving.hosted_index import now_ms
from millstream.views.aio.serving.owned_parts import index_nodes
from millstream.views.core.index.header import DocumentRows, Judged, MapFailure, PartRead

if TYPE_CHECKING:
    from millstream.views.aio.indexing.indexing import BucketIndexer
    from millstream.views.aio.serving.bucket_order import OwnedParts
    from millstream.views.aio.serving.hosted_index import HostedIndex
    from millstream.views.core.index.index import Published
    from millstream.views.core.index.staged import Row

__all__ = ["DOCUMENTS_MAX", "OutsideWriter", "index_state"]

DOCUMENTS_MAX: Final = 500_000
"""Documents of one commit: they are in memory all together."""
_Result = TypeVar("_Result")


class _Failure(msgspec.Struct, array_like=True):
    tree: int
    doc_id: str
    message: str


class _Part(msgspec.Struct):
    """What a writer says of a partition's part."""

    start: list[str | int]
    end: list[str | int]
    is_whole: bool = True
    failures: list[_Failure] = []
    failures_before: dict[int, int] = {}


class _Load(msgspec.Struct):
    parts: dict[int, _Part]
    back: list[str]
    """Files of the back-index."""
    trees: list[list[str]]
    """Files of each tree."""


class _Publish(msgspec.Struct):
    parts: dict[int, _Part]
    documents: list[str]


class OutsideWriter:
    """What a writer outside may do with one index.

    Args:
        hosted: the index.
        indexer: of its bucket.
        owned: returns who answers for which partition; None: the bucket's map says.
    """

    def __init__(
        self,
        hosted: HostedIndex,
        indexer: BucketIndexer,
        owned: Callable[[], OwnedParts | None] = lambda: None,
    ) -> None:
        self._hosted = hosted
        self._indexer = indexer
        self._owned = owned

    def state(self) -> dict[str, Any]:
        """Return the state of the index, and which nodes have parts of it (HOST:PORT, HTTP)."""
        return index_state(self._hosted) | {"nodes": index_nodes(self._owned())}

    def _frozen(self) -> Collection[int]:
        """Return the partitions that are being handed over: nobody writes them."""
        owned = self._owned()
        return () if owned is None else owned.frozen

    async def take_over(self, writer: str) -> dict[str, Any]:
        """Become the writer.

        Raises:
            ConditionError: `not_spark_engine`.
        """
        signature = self._hosted.signature
        is_kept = self._hosted.design.engine == "spark"
        if not is_kept and not await self._indexer.take_offer(signature):
            raise self._kept_by_the_node()
        index = self._hosted.index

        def work(judged: Mapping[int, Judged]) -> None:
            if self._indexer.is_meant_here(signature):  # taken back while the source was asked
                raise self._kept_by_the_node()
            fence = index.take_over(writer, now_ms())
            self._hosted.staging.keep_only(fence)
            index.roll_back(judged, now_ms())

        await self._changed(work)
        return index_state(self._hosted)

    def _kept_by_the_node(self) -> ConditionError:
        return ConditionError(
            f"design document {self._hosted.design.name!r} is kept by the node: write "
            '"engine": "spark" into it for a pipeline to keep it',
            code="not_spark_engine",
        )

    async def judge(self, fence: int) -> dict[str, Any]:
        """Roll the index back where its source refuses positions. Each cycle begins with it.

        Partitions that are being handed over have no position: they are not to be read.
        Staged files that were not committed are removed.
        """

        def work(judged: Mapping[int, Judged]) -> None:
            self._check(fence)
            self._hosted.staging.remove_whole(fence)
            self._hosted.index.roll_back(judged, now_ms())

        await self._changed(work)
        state = index_state(self._hosted)
        frozen = {str(partition) for partition in self._frozen()}
        kept = {p: each for p, each in state["positions"].items() if p not in frozen}
        return state | {"positions": kept}

    async def keep(self, fence: int) -> dict[str, Any]:
        """The writer is at work: its files stay. Return the names of those that are whole.

        Raises:
            ConditionError: `index_fenced`.
        """
        self._check(fence)
        return {"staged": self._hosted.staging.names(fence)}

    async def place(self, fence: int, name: str) -> dict[str, Any]:
        """Return where the engine's process is to write a file."""
        self._check(fence)
        return {"path": str(self._hosted.staging.place(fence, name))}

    async def staged(self, fence: int, name: str) -> dict[str, Any]:
        """A file is whole."""
        self._check(fence)
        self._hosted.staging.finish(fence, name)
        return {}

    async def load(self, fence: int, said: dict[str, Any]) -> dict[str, Any]:
        """Make the first commit of an index, or one in the place of all rows that there are.

        Raises:
            ConditionError: `index_fenced`; `run_missing`.
            UsageError: `bad_run`.
        """
        asked = _converted(said, _Load)
        tree_count = len(self._hosted.design.trees)
        if len(asked.trees) != tree_count:
            raise UsageError(f"the index has {tree_count} trees", code="bad_parts")
        staging, index = self._hosted.staging, self._hosted.index

        def work(judged: Mapping[int, Judged]) -> Published:
            self._check(fence)
            back, *trees = (
                chain.from_iterable(
                    _of_partitions(staging.rows(fence, names, self._check_use), asked.parts)
                )
                for names in (asked.back, *asked.trees)
            )
            parts = _part_reads(asked.parts, judged)
            load = index.rebuild if any(index.newest.roots) else index.load
            return load(fence, parts, judged, back, trees, now_ms())

        published = await self._changed(work)
        staging.remove(fence, chain(asked.back, *asked.trees))
        if self._hosted.design.engine == "node":  # it was offered; the node goes on
            self._indexer.end_offer(self._hosted.signature)
        return _published_as_json(published, self._hosted)

    async def publish(self, fence: int, said: dict[str, Any]) -> dict[str, Any]:
        """Make a commit of changed documents.

        Raises:
            ConditionError: `index_fenced`; `run_missing`.
            UsageError: `bad_run`; `too_large`.
        """
        asked = _converted(said, _Publish)
        tree_count = len(self._hosted.design.trees)
        staging, index = self._hosted.staging, self._hosted.index

        def work(judged: Mapping[int, Judged]) -> Published:
            self._check(fence)
            found = staging.documents(fence, asked.documents)
            documents = _by_partition(asked, found, tree_count)
            parts = _part_reads(asked.parts, judged, documents)
            return index.publish(fence, parts, judged, now_ms())

        published = await self._changed(work)
        staging.remove(fence, asked.documents)
        return _published_as_json(published, self._hosted)

    async def _changed(self, work: Callable[[Mapping[int, Judged]], _Result]) -> _Result:
        """Work; partitions that are handed over are not judged, so they stay as they are."""
        self._hosted.staging.heard()

        def work_on(judged: Mapping[int, Judged]) -> _Result:
            frozen = self._frozen()
            return work({p: one for p, one in judged.items() if p not in frozen})

        return await self._indexer.change(self._hosted.signature, work_on)

    def _check(self, fence: int) -> None:
        self._hosted.staging.heard()
        self._hosted.index.check_fence(fence)

    def _check_use(self) -> None:
        self._indexer.check(self._hosted.signature)


def index_state(hosted: HostedIndex) -> dict[str, Any]:
    """Return what a writer has to know of an index, as JSON."""
    header = hosted.index.newest
    return {
        "signature": header.signature,
        "engine": hosted.design.engine,
        "writer": header.writer,
        "fence": header.fence,
        "commit": header.commit,
        "committed_ms": header.committed_ms,
        "is_empty": not any(header.roots),
        "trees": len(header.trees),
        "rows": [0 if root is None else root.count for root in header.trees],
        "states": {str(p): state for p, state in header.states.items()},
        "positions": {str(p): position_to_json(each) for p, each in header.positions.items()},
    }


def _published_as_json(published: Published, hosted: HostedIndex) -> dict[str, Any]:
    return {
        "published": list(published.partitions),
        "left_out": {str(p): why for p, why in published.left_out.items()},
        **index_state(hosted),
    }


def _converted(said: dict[str, Any], kind: type[_Result]) -> _Result:
    try:
        return msgspec.convert(said, kind, strict=False)
    except msgspec.ValidationError as error:
        raise UsageError(f"these are not parts of an index: {error}", code="bad_parts") from error


def _part_reads(
    parts: Mapping[int, _Part],
    judged: Mapping[int, Judged],
    documents: Mapping[int, list[DocumentRows]] | None = None,
) -> dict[int, PartRead]:
    return {
        partition: PartRead(
            _position(part.start),
            _position(part.end),
            judged[partition].log if partition in judged else (),
            judged[partition].purge_seqno if partition in judged else 0,
            (documents or {}).get(partition, ()),
            part.is_whole,
            [MapFailure(each.tree, each.doc_id, each.message) for each in part.failures],
            part.failures_before,
        )
        for partition, part in parts.items()
    }


def _position(form: list[str | int]) -> Position:
    try:
        return position_from_json(form)
    except ValueError as error:
        raise UsageError(str(error), code="bad_parts") from error


def _of_partitions(
    portions: Iterable[list[Row]], parts: Mapping[int, _Part]
) -> Iterator[list[Row]]:
    allowed = parts.keys()
    for portion in portions:
        if strange := {row[1] for row in portion} - allowed:
            raise UsageError(
                f"rows of partition {min(strange)}, which has no part", code="bad_run"
            )
        yield portion


def _by_partition(
    asked: _Publish, documents: Iterable[DocumentRows], tree_count: int
) -> dict[int, list[DocumentRows]]:
    """Return the documents of the parts that are told of; others were not read whole."""
    found: dict[int, list[DocumentRows]] = {partition: [] for partition in asked.parts}
    for count, document in enumerate(documents, 1):
        if count > DOCUMENTS_MAX:
            raise UsageError(
                f"more than {DOCUMENTS_MAX} documents in one commit: read fewer at a time",
                code="too_large",
            )
        if any(not 0 <= row[0] < tree_count for row in document.rows):
            raise UsageError(f"rows of a tree that is not one of {tree_count}", code="bad_run")
        if document.partition in found:
            found[document.partition].append(document)
    return found
