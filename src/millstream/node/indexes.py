"""The views of a node: what the index process is told, and calls on it.

The index process is told everything about a bucket each time something of it changes: which
partitions are active here, which of the other copies are to be indexed, and the design documents
that are persisted.

Invariants:
1. A call on a bucket is sent only once the index process was told of the bucket as it is now.
2. There is no index process until some bucket has a view, or a call needs it.
3. A bucket's files are removed only after the index process has let go of them, or has ended.
4. While the index process is away calls end with `index_unavailable` after `TOLD_S_MAX`.

Elsewhere: the process (`node.processes.index_process`), what it does
(`views.aio.serving.index_host`), what is so
of a bucket (`databases.own_bucket`, `node.followed_bucket`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from millstream.errors import (
    ConditionError,
    MillstreamError,
    RoutingError,
    UnavailableError,
    UsageError,
)
from millstream.gateway.core.api.node import PartRequest, ViewAnswer, WriterCall
from millstream.node.processes.index_child import IndexOrder
from millstream.node.processes.index_process import IndexProcess
from millstream.runtime.tasks import Tasks
from millstream.views.aio.indexing.staging import receive
from millstream.views.aio.serving.index_link import IndexLink, StreamedAnswer, unavailable

__all__ = [
    "FIGURES_INTERVAL_S",
    "PAUSE_S",
    "PREPARE_S_MAX",
    "TOLD_S_MAX",
    "IndexFigures",
    "Indexes",
    "ToldBucket",
    "not_heard",
]

_LOG = logging.getLogger(__name__)
TOLD_S_MAX: Final = 5.0
"""How long a call waits for the index process to be there, and to know the bucket as it is."""
PREPARE_S_MAX: Final = 60.0
"""How long a partition's hand-over waits for the indexes of its new node."""
TOLD_AT_ONCE_MAX: Final = 8
"""Buckets of which is told at the same time: one that takes long holds up no other."""
FIGURES_INTERVAL_S: Final = 5.0
"""How often the index process is asked for its figures."""
PAUSE_S: Final = 1.0
"""Before a bucket is told again whose design documents could not be read."""


_PROCESS_FIGURES: Final = ("resident_bytes", "processor_seconds_total", "loop_lag_worst_ms")


class IndexFigures(NamedTuple):
    """Group `index`, as the index process said last."""

    indexes: int = 0
    building: int = 0
    rows: int = 0
    pending: int = 0
    file_bytes: int = 0
    commits_total: int = 0
    commit_seconds_total: float = 0.0
    rollbacks_total: int = 0
    map_errors: int = 0


class ToldBucket(Protocol):
    """A bucket that the index process is told of."""

    @property
    def name(self) -> str:
        """Of the bucket."""

    @property
    def uuid(self) -> str:
        """Of the bucket."""

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Call `callback` when something of it is not as it was told."""

    def close(self) -> None:
        """Nobody wants to know any more."""

    def warm(self, partition: int, *, is_wanted: bool) -> None:
        """Index a replica since it is about to become active here, or not any more."""

    def lacks_designs(self) -> bool:
        """Whether there may be design documents that are not known here yet."""

    async def order(self) -> dict[str, Any]:
        """Return what the index process is told now: the members of `BucketOrder`.

        Raises:
            UnavailableError: that is not known now.
        """

    def with_documents(self, answer: ViewAnswer, *, attachments: bool = False) -> ViewAnswer:
        """Return an answer with the document beside each row, perhaps with attachments' data."""


class Indexes:
    """Has the shape of `gateway.core.api.node.IndexHost`; begins by `start`, ends by `stop`.

    Args:
        order: what the index process is told at its start.
        find: returns the uuid of a served bucket by its name, or raises why there is none.
        is_wanted: whether the node has views at all; else calls are refused.
    """

    def __init__(
        self,
        order: IndexOrder,
        find: Callable[[str], str],
        *,
        is_wanted: bool = True,
    ) -> None:
        self.process = IndexProcess(order, self._process_changed)
        self._find = find
        self._is_wanted = is_wanted
        self._known: dict[str, _KnownBucket] = {}
        self._work = asyncio.Event()
        self._turns = asyncio.Semaphore(TOLD_AT_ONCE_MAX)
        self._tasks = Tasks()
        self._process_figures: Mapping[str, float] = {}

    def start(self) -> None:
        """The engine can be followed now: begin."""
        if not self._is_wanted:
            return
        self._tasks.start(self._keep_telling(), name="telling the index process")
        self._tasks.start(self._keep_asking(), name="figures of the index process")

    async def stop(self) -> None:
        """End the index process."""
        await self._tasks.stop()
        await self.process.stop()

    # -- buckets

    def bucket_up(self, told: ToldBucket) -> None:
        """A bucket is about to be served."""
        self._known[told.uuid] = _KnownBucket(told, self._work.set)

    def figures(self, uuid: str) -> IndexFigures:
        """Return the figures of a bucket's indexes, as the index process said last."""
        known = self._known.get(uuid)
        return IndexFigures() if known is None else known.figures

    async def bucket_gone(self, uuid: str) -> None:
        """A bucket was stopped for ever; its files may be removed afterwards."""
        known = self._known.pop(uuid, None)
        if known is None:
            return
        known.told.close()
        link = self.process.link
        if link is None:
            return
        try:
            async with asyncio.timeout(TOLD_S_MAX):
                await link.ask("drop_bucket", uuid=uuid)
        except (MillstreamError, TimeoutError) as error:
            _LOG.warning("the index process is ended: it keeps a deleted bucket: %s", error)
            self.process.kill()

    async def _keep_asking(self) -> None:
        while True:
            await asyncio.sleep(FIGURES_INTERVAL_S)
            if self.process.link is not None:
                try:
                    async with asyncio.timeout(TOLD_S_MAX):
                        self._take_figures(await self.process.link.ask("figures"))
                except (MillstreamError, TimeoutError) as error:
                    _LOG.warning("the index process does not say its figures: %s", error)

    def _take_figures(self, answer: dict[str, Any]) -> None:
        self._process_figures = answer["process"]
        for uuid, figures in answer["buckets"].items():
            if uuid in self._known:
                self._known[uuid].take_figures(IndexFigures(**figures))

    def node_figures(self) -> dict[str, float]:
        """Return the figures of the index process itself, as it said last."""
        is_ready = self.process.link is not None
        said = self._process_figures if is_ready else {}
        return {
            "index_process_up": float(is_ready),
            "index_process_restarts_total": self.process.restarts_total,
            **{f"index_process_{name}": said.get(name, 0.0) for name in _PROCESS_FIGURES},
        }

    # -- calls

    async def query(
        self, bucket: str, design: str, view: str, options: Mapping[str, object]
    ) -> ViewAnswer:
        """Ask a view."""
        known, link = await self._there(bucket, design)
        views = known.designs[design].get("views", {})
        if isinstance(views, dict) and view not in views:  # if it is none: the process says why
            raise UsageError(
                f"design document {design!r} has no view {view!r}", code="missing_named_view"
            )
        found = await link.call(
            "query", share=_share(bucket, design), uuid=known.uuid, design=design, view=view,
            options=options,
        )  # fmt: skip
        if options.get("include_docs") is not True:
            return found
        return known.told.with_documents(found, attachments=options.get("attachments") is True)

    async def part(self, bucket: str, asked: PartRequest) -> StreamedAnswer:
        """Answer another node for some partitions."""
        known, link = await self._there(bucket, asked.design)
        return await link.call(
            "query", share=_share(bucket, asked.design), uuid=known.uuid, design=asked.design,
            view=asked.view, options=asked.options, partitions=asked.partitions, form=asked.form,
        )  # fmt: skip

    async def prepare(self, bucket: str, partition: int) -> None:
        """Have a replica indexed that is about to become active here.

        Returns once the indexes here have all of it, or after `PREPARE_S_MAX`: it is logged then,
        and queries wait for what is missing. Where there are no views nothing is done.
        """
        if not self._is_wanted:
            return
        known = self._known[self._find(bucket)]
        if not any(
            document.get("views") for document in (await known.order())["designs"].values()
        ):
            return
        known.told.warm(partition, is_wanted=True)
        _, link = await self._there(bucket)
        await link.ask("prepare", uuid=known.uuid, partitions=[partition], timeout_s=PREPARE_S_MAX)

    def prepared(self, bucket: str, partition: int) -> None:
        """Index a replica no more than others: it has become active, or is not going to."""
        if self._is_wanted:
            self._known[self._find(bucket)].told.warm(partition, is_wanted=False)

    async def info(self, bucket: str, design: str) -> dict[str, Any]:
        """Return what `_info` shows as `view_index`."""
        known, link = await self._there(bucket, design)
        return await link.ask("info", uuid=known.uuid, design=design)

    async def compact(self, bucket: str, design: str) -> None:
        """Have an index written anew, densely; returns once it has begun."""
        known, link = await self._there(bucket, design)
        await link.ask("compact", uuid=known.uuid, design=design)

    async def cleanup(self, bucket: str) -> None:
        """Remove the files of indexes that no design document has any more."""
        known, link = await self._there(bucket)
        if known.told.lacks_designs():
            raise not_heard()
        await link.ask("cleanup", uuid=known.uuid)

    async def write(
        self, bucket: str, design: str, call: WriterCall, arguments: Mapping[str, object]
    ) -> dict[str, Any]:
        """Do what a writer outside asks for; see `views.aio.serving.outside_writer`."""
        known, link = await self._there(bucket, design)
        return await link.ask(call, uuid=known.uuid, design=design, **arguments)

    async def offers(self, bucket: str, building: Sequence[str]) -> list[str]:
        """Return the design documents whose builds a pipeline may do; it says which it does."""
        known, link = await self._there(bucket)
        answer = await link.ask("offers", uuid=known.uuid, building=building)
        found: list[str] = answer["offers"]
        return found

    async def stage(
        self, bucket: str, design: str, fence: int, run: str, pieces: AsyncIterator[bytes]
    ) -> None:
        """Keep a file that a writer outside will have committed."""
        place = await self.write(bucket, design, "place", {"fence": fence, "run": run})
        await receive(Path(place["path"]), pieces)
        await self.write(bucket, design, "staged", {"fence": fence, "run": run})

    async def check(self, bucket: str, design: str, content: dict[str, Any]) -> None:
        """Refuse a design document whose functions the index process does not have."""
        _, link = await self._there(bucket)
        await link.ask("check", design=design, content=content)

    async def tasks(self) -> list[dict[str, Any]]:
        """Return what is being built and compacted."""
        if self.process.link is None:
            return []
        found: list[dict[str, Any]] = (await self.process.link.ask("tasks"))["tasks"]
        return found

    async def _there(
        self, bucket: str, design: str | None = None
    ) -> tuple[_KnownBucket, IndexLink]:
        """Return a bucket that the index process knows as it is, and the link to ask.

        Raises:
            ConditionError: `missing`: no such design document is persisted.
            RoutingError: `design_differs`: other nodes may have it, and have not said so yet.
            UnavailableError: `index_unavailable`; `no_index_role`.
            MillstreamError: as `find`.
        """
        if not self._is_wanted:
            raise UnavailableError(
                "this node has no views: it was started without the role index",
                code="no_index_role",
                retry="never",
            )
        known = self._known[self._find(bucket)]
        self.process.start()
        if not known.is_told.is_set():
            self._work.set()
            try:
                async with asyncio.timeout(TOLD_S_MAX):
                    await known.is_told.wait()
            except TimeoutError:
                self.process.there()
                raise unavailable(known.why or "it is busy") from None
        if design is not None and design not in known.designs:
            if known.told.lacks_designs():
                raise not_heard()
            raise ConditionError("missing", code="missing")
        return known, self.process.there()

    # -- telling

    def _process_changed(self, _: IndexLink | None) -> None:
        """There is a new index process, or none: nothing is known there."""
        for known in self._known.values():
            known.before = known.figures
            known.changed()

    async def _keep_telling(self) -> None:
        while True:
            await self._work.wait()
            self._work.clear()
            for known in list(self._known.values()):
                if known.is_changed and not known.is_being_told:
                    known.is_being_told = True
                    self._tasks.start(self._tell(known), name=f"telling of {known.name}")

    async def _tell(self, known: _KnownBucket) -> None:
        """Tell of a bucket until it is known as it is, or there is nobody to tell."""
        link = self.process.link
        try:
            while known.is_changed and self._known.get(known.uuid) is known:
                async with self._turns:
                    link = await self._try_to_tell(known)
                if link is None:
                    return
                if known.why:
                    await asyncio.sleep(PAUSE_S)
        finally:
            known.is_being_told = False
            if known.is_changed and self.process.link not in (None, link):
                self._work.set()

    async def _try_to_tell(self, known: _KnownBucket) -> IndexLink | None:
        """Tell of a bucket once; return whom, None if there is nobody."""
        known.is_changed, known.why = False, ""
        link: IndexLink | None = None
        try:
            order = await known.order()
            if any(document.get("views") for document in order["designs"].values()):
                self.process.start()
            link = self.process.link
            if link is not None:
                await link.ask("set_bucket", **order)
        except MillstreamError as error:
            known.why = str(error)
            known.is_changed = True
            if error.code == "index_unavailable":
                return None  # the next process is told everything
            _LOG.warning("bucket %s: its views are not brought up to date: %s", known.name, error)
            return self.process.link
        if link is None:
            known.is_changed = True
        elif not known.is_changed and self.process.link is link:
            known.is_told.set()
        return link


def _share(bucket: str, design: str) -> str:
    return f"_design/{design} of {bucket}"


def not_heard() -> RoutingError:
    """Return why nothing is said of a design document, nor of all: `design_differs`."""
    return RoutingError(
        "a node that has active partitions of this bucket has not said yet which design documents "
        "are in them: ask again",
        code="design_differs",
    )


class _KnownBucket:
    """What was told of one bucket."""

    def __init__(self, told: ToldBucket, wake: Callable[[], None]) -> None:
        self.told = told
        self._wake = wake
        self.name, self.uuid = told.name, told.uuid
        self.designs: Mapping[str, dict[str, Any]] = {}
        """Name -> document, as read last."""
        self.figures = self.before = IndexFigures()
        """What is known, and what was when the index process before this one ended."""
        self.is_changed = True
        self.is_being_told = False
        self.is_told = asyncio.Event()
        """The index process knows it as it is."""
        self.why = ""
        """Why it could not be told."""
        told.subscribe(self.changed)
        wake()

    def take_figures(self, said: IndexFigures) -> None:
        """Take what the index process says; totals grow over its restarts."""
        totals = {
            name: getattr(said, name) + getattr(self.before, name)
            for name in IndexFigures._fields
            if name.endswith("_total")
        }
        self.figures = said._replace(**totals)

    def changed(self) -> None:
        """Something of it is not as it was told."""
        self.is_changed = True
        self.is_told.clear()
        self._wake()

    async def order(self) -> dict[str, Any]:
        """Return what is to be told now.

        Raises:
            UnavailableError: a design document cannot be read now.
        """
        order = await self.told.order()
        self.designs = order["designs"]
        return order
