"""The views of a node: describes buckets to the index process, and forwards calls to it.

Each time a bucket changes, the index process gets a complete description of it: the partitions
that are active here, the other copies to be indexed, and the persisted design documents.

Invariants:
1. A call on a bucket is sent only once the index process has its current description.
2. The index process is not started before some bucket has a view, or a call needs it.
3. A bucket's files are removed only after the index process has closed them, or has ended.
4. While the index process is down, calls fail with `index_unavailable` after `TOLD_S_MAX`.
5. In a managed cluster the indexes here answer while the node is in step only: as the call comes,
   and still when the answer begins.

Elsewhere: the process (`node.processes.index_process`), its work (`views.aio.serving.index_host`),
descriptions of buckets (`databases.own_bucket`, `node.followed_bucket`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from millstream.errors import (
    ConditionError,
    MillstreamError,
    RoutingError,
    UnavailableError,
    UsageError,
)
from millstream.gateway.core.api.node import PartRequest, ViewAnswer, WriterCall
from millstream.node.processes.index_process import IndexProcess
from millstream.node.processes.orders import IndexOrder
from millstream.runtime.tasks import Tasks
from millstream.views.aio.indexing.staging import receive
from millstream.views.aio.serving.index_link import IndexLink, StreamedAnswer, unavailable
from millstream.views.core.design.design_documents import ToldDesign

__all__ = [
    "FIGURES_INTERVAL_S",
    "PAUSE_S",
    "PREPARE_S_MAX",
    "TOLD_S_MAX",
    "IndexFigures",
    "Indexes",
    "Ownership",
    "ToldBucket",
    "not_heard",
]

_LOG = logging.getLogger(__name__)
TOLD_S_MAX: Final = 5.0
"""How long a call waits until the index process runs and has the current description."""
PREPARE_S_MAX: Final = 60.0
"""How long a partition's hand-over waits for the indexes of its new node."""
TOLD_AT_ONCE_MAX: Final = 8
"""Buckets described concurrently, so that a slow one does not delay the others."""
FIGURES_INTERVAL_S: Final = 5.0
"""How often the index process is asked for its statistics."""
PAUSE_S: Final = 1.0
"""Pause before a bucket is described again whose design documents could not be read."""


_PROCESS_FIGURES: Final = ("resident_bytes", "processor_seconds_total", "loop_lag_worst_ms")


class IndexFigures(NamedTuple):
    """Statistics of the group `index`, as last reported by the index process."""

    indexes: int = 0
    building: int = 0
    rows: int = 0
    pending: int = 0
    file_bytes: int = 0
    commits_total: int = 0
    commit_seconds_total: float = 0.0
    rollbacks_total: int = 0
    map_errors: int = 0
    broken: int = 0


class ToldBucket(Protocol):
    """A bucket that is described to the index process."""

    @property
    def name(self) -> str:
        """Return the name of the bucket."""

    @property
    def uuid(self) -> str:
        """Return the uuid of the bucket."""

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Call `callback` when the description has changed."""

    def close(self) -> None:
        """Remove the subscription."""

    def warm(self, partition: int, *, is_wanted: bool) -> None:
        """Start or stop indexing a replica that is about to become active here."""

    def lacks_designs(self) -> bool:
        """Return whether there may be design documents that are not known here yet."""

    async def order(self) -> dict[str, Any]:
        """Return the current description: the members of `BucketOrder`, `designs` as `ToldDesign`.

        Raises:
            UnavailableError: it is not known now.
        """

    def with_documents(self, answer: ViewAnswer, *, attachments: bool = False) -> ViewAnswer:
        """Return an answer with the document beside each row, optionally with attachment data."""


class Ownership(Protocol):
    """Which parts of a bucket's index are here, if it is in a managed cluster."""

    @property
    def is_in_step(self) -> bool:
        """Return whether the node may answer by its index records."""

    def is_managed(self, uuid: str) -> bool:
        """Return whether a bucket has an index map."""

    def bucket_up(self, uuid: str) -> None:
        """Read what is durable of a bucket. Blocks."""

    def bucket_gone(self, uuid: str) -> None:
        """Forget a bucket."""

    def described(self, order: dict[str, Any]) -> dict[str, Any]:
        """Return the description of a bucket, changed if it is managed."""


class Indexes:
    """Implements `gateway.core.api.node.IndexApi`; begins with `start`, ends with `stop`.

    Args:
        order: what the index process is told at its start.
        find: returns the uuid of a served bucket by its name, or raises why there is none.
        is_wanted: whether the node serves views; if not, calls are refused.
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
        self.ownership: Ownership | None = None
        """None: the node cannot be in a managed cluster."""

    def start(self) -> None:
        """Begin: the engine can be followed now."""
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
        if self.ownership is not None:
            self.ownership.bucket_up(told.uuid)
        self._known[told.uuid] = _KnownBucket(told, self._described, self._work.set)

    def figures(self, uuid: str) -> IndexFigures:
        """Return the statistics of a bucket's indexes, as last reported."""
        known = self._known.get(uuid)
        return IndexFigures() if known is None else known.figures

    async def bucket_gone(self, uuid: str) -> None:
        """A bucket was stopped for good; its files may be removed afterwards."""
        known = self._known.pop(uuid, None)
        if known is None:
            return
        known.told.close()
        if self.ownership is not None:
            self.ownership.bucket_gone(uuid)
        link = self.process.link
        if link is None:
            return
        try:
            async with asyncio.timeout(TOLD_S_MAX):
                await link.ask("drop_bucket", uuid=uuid)
        except (MillstreamError, TimeoutError) as error:
            _LOG.warning("stopped the index process: it still had a deleted bucket: %s", error)
            self.process.kill()

    async def _keep_asking(self) -> None:
        while True:
            await asyncio.sleep(FIGURES_INTERVAL_S)
            if self.process.link is not None:
                try:
                    async with asyncio.timeout(TOLD_S_MAX):
                        self._take_figures(await self.process.link.ask("figures"))
                except (MillstreamError, TimeoutError) as error:
                    _LOG.warning("the index process does not report its statistics: %s", error)

    def _take_figures(self, answer: dict[str, Any]) -> None:
        self._process_figures = answer["process"]
        for uuid, figures in answer["buckets"].items():
            if uuid in self._known:
                self._known[uuid].take_figures(IndexFigures(**figures))

    def node_figures(self) -> dict[str, float]:
        """Return the statistics of the index process itself, as last reported."""
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
        """Query a view."""
        known, link = await self._there(bucket, design)
        views = known.designs[design].views
        if views is not None and view not in views:  # if there are none, the process says why
            raise UsageError(
                f"design document {design!r} has no view {view!r}", code="missing_named_view"
            )
        is_in_step = self._is_in_step()
        found = await link.call(
            "query", share=_share(bucket, design), uuid=known.uuid, design=design, view=view,
            options=options, is_in_step=is_in_step,
        )  # fmt: skip
        if found.head.pop("is_here", False) and not self._is_in_step():
            await found.close()
            raise UnavailableError(str(_out_of_step()), code="index_moving")
        if options.get("include_docs") is not True:
            return found
        return known.told.with_documents(found, attachments=options.get("attachments") is True)

    async def part(self, bucket: str, asked: PartRequest) -> StreamedAnswer:
        """Answer a part of a query for another node."""
        known, link = await self._there(bucket, asked.design)
        is_managed = self._is_managed(known)
        if is_managed and not self._is_in_step():
            raise _out_of_step()
        found = await link.call(
            "query", share=_share(bucket, asked.design), uuid=known.uuid, design=asked.design,
            view=asked.view, options=asked.options, partitions=asked.partitions, form=asked.form,
            keys=asked.keys,
        )  # fmt: skip
        if is_managed and not self._is_in_step():
            await found.close()
            raise _out_of_step()
        return found

    async def prepare(self, bucket: str, partition: int) -> None:
        """Index a replica that is about to become active here.

        Returns once the indexes of this node have all of it, or after `PREPARE_S_MAX`. The timeout
        is logged, and queries then wait for the missing part. Without views nothing is done, nor
        in a managed cluster: there the index does not follow the data.
        """
        if not self._is_wanted:
            return
        known = self._known[self._find(bucket)]
        if self._is_managed(known) or not any(
            design.has_views for design in (await known.order())["designs"].values()
        ):
            return
        known.told.warm(partition, is_wanted=True)
        _, link = await self._there(bucket)
        await link.ask("prepare", uuid=known.uuid, partitions=[partition], timeout_s=PREPARE_S_MAX)

    def prepared(self, bucket: str, partition: int) -> None:
        """Stop the extra indexing of a replica: it has become active, or will not."""
        if self._is_wanted:
            self._known[self._find(bucket)].told.warm(partition, is_wanted=False)

    async def info(self, bucket: str, design: str) -> dict[str, Any]:
        """Return the `view_index` of `_info`."""
        known, link = await self._there(bucket, design)
        return await link.ask("info", uuid=known.uuid, design=design)

    async def compact(self, bucket: str, design: str) -> None:
        """Start to compact an index; returns once it has begun."""
        known, link = await self._there(bucket, design)
        await link.ask("compact", uuid=known.uuid, design=design)

    async def cleanup(self, bucket: str) -> None:
        """Remove the files of indexes that no design document uses."""
        known, link = await self._there(bucket)
        if known.told.lacks_designs():
            raise not_heard()
        await link.ask("cleanup", uuid=known.uuid)

    async def write(
        self, bucket: str, design: str, call: WriterCall, arguments: Mapping[str, object]
    ) -> dict[str, Any]:
        """Run an operation of an external writer; see `views.aio.serving.outside_writer`."""
        known, link = await self._there(bucket, design)
        return await link.ask(call, uuid=known.uuid, design=design, **arguments)

    async def offers(self, bucket: str, building: Sequence[str]) -> list[str]:
        """Return the design documents that a pipeline may build; `building`: what it builds."""
        known, link = await self._there(bucket)
        answer = await link.ask("offers", uuid=known.uuid, building=building)
        found: list[str] = answer["offers"]
        return found

    async def stage(
        self, bucket: str, design: str, fence: int, run: str, pieces: AsyncIterator[bytes]
    ) -> None:
        """Store a file that an external writer will have committed."""
        place = await self.write(bucket, design, "place", {"fence": fence, "run": run})
        await receive(Path(place["path"]), pieces)
        await self.write(bucket, design, "staged", {"fence": fence, "run": run})

    async def check(self, bucket: str, design: str, content: bytes) -> None:
        """Reject a design document, as JSON, whose functions the index process does not have."""
        _, link = await self._there(bucket)
        await link.ask("check", design=design, content=msgspec.Raw(content))

    async def tasks(self) -> list[dict[str, Any]]:
        """Return the running builds and compactions."""
        if self.process.link is None:
            return []
        found: list[dict[str, Any]] = (await self.process.link.ask("tasks"))["tasks"]
        return found

    # -- parts, in a managed cluster

    def describe_again(self, uuid: str) -> None:
        """The parts of a bucket have changed: calls wait until the index process knows it."""
        if uuid in self._known:
            self._known[uuid].changed()

    async def until_told(self, uuid: str) -> None:
        """Return once the index process has the current description, or there is none.

        Raises:
            UnavailableError: `index_unavailable`: it does not take the description.
        """
        known, link = self._known.get(uuid), self.process.link
        if known is None or link is None:  # the next one is told everything before it is asked
            return
        try:
            async with asyncio.timeout(TOLD_S_MAX):
                await known.is_told.wait()
        except TimeoutError:
            if self.process.link is link:
                raise unavailable(known.why or "it is busy") from None

    async def parts(self, uuid: str, known: int) -> dict[str, Any] | None:
        """Return how far the indexes are in the parts that are here; None: not known now.

        Without any view it has no `parts`. See `views.aio.serving.owned_parts.PartsTold`. While
        other nodes have not said which design documents they have, `is_certain` is false.
        """
        bucket = self._known.get(uuid)
        if bucket is None:
            return None
        is_certain = bucket.is_certain
        if not bucket.was_complete:
            return None
        if not bucket.has_views:
            return {"is_certain": is_certain}
        link = self.process.link
        if link is None:
            return None
        try:
            async with asyncio.timeout(TOLD_S_MAX):
                answer = await link.ask("parts", uuid=uuid, known=known)
                return {**answer, "is_certain": is_certain}
        except (MillstreamError, TimeoutError):
            return None

    def _described(self, order: dict[str, Any]) -> dict[str, Any]:
        return order if self.ownership is None else self.ownership.described(order)

    def _is_managed(self, known: _KnownBucket) -> bool:
        return self.ownership is not None and self.ownership.is_managed(known.uuid)

    def _is_in_step(self) -> bool:
        return self.ownership is None or self.ownership.is_in_step

    async def _there(
        self, bucket: str, design: str | None = None
    ) -> tuple[_KnownBucket, IndexLink]:
        """Return a bucket whose current description the index process has, and the link to it.

        Raises:
            ConditionError: `missing`: no such design document is persisted.
            RoutingError: `design_differs`: other nodes may have it and have not reported yet.
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
        """There is a new index process, or none: no bucket is described."""
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
        """Describe a bucket until the process has its current state, or there is no process."""
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
        """Describe a bucket once; return the process that was told, None if there is none."""
        known.is_changed, known.why = False, ""
        link: IndexLink | None = None
        try:
            order = await known.order()
            if known.has_views:
                self.process.start()
            link = self.process.link
            if link is not None:
                designs = {name: msgspec.Raw(one.text) for name, one in order["designs"].items()}
                await link.ask("set_bucket", **(order | {"designs": designs}))
        except MillstreamError as error:
            known.why = str(error)
            known.is_changed = True
            if error.code == "index_unavailable":
                return None  # the next process is told everything
            _LOG.warning("bucket %s: its views are not updated: %s", known.name, error)
            return self.process.link
        if link is None:
            known.is_changed = True
        elif not known.is_changed and self.process.link is link:
            known.is_told.set()
        return link


def _share(bucket: str, design: str) -> str:
    return f"_design/{design} of {bucket}"


def _out_of_step() -> RoutingError:
    return RoutingError(
        "this node has no session with the coordination service, so its index may not be the "
        "newest: ask again",
    )


def not_heard() -> RoutingError:
    """Return the error for design documents that were not reported yet: `design_differs`."""
    return RoutingError(
        "a node that has active partitions of this bucket has not said yet which design documents "
        "are in them: ask again",
        code="design_differs",
    )


class _KnownBucket:
    """The description sent for one bucket."""

    def __init__(
        self,
        told: ToldBucket,
        described: Callable[[dict[str, Any]], dict[str, Any]],
        wake: Callable[[], None],
    ) -> None:
        self.told = told
        self._described = described
        self._wake = wake
        self.name, self.uuid = told.name, told.uuid
        self.designs: Mapping[str, ToldDesign] = {}
        """By name, as last read."""
        self.figures = self.before = IndexFigures()
        """The known statistics, and those when the previous index process ended."""
        self.is_changed = True
        self.is_being_told = False
        self.is_told = asyncio.Event()
        """Set while the index process has the current description."""
        self._changes, self._read = 0, -1
        """How often it has changed, and as of which change it was read last."""
        self.was_complete = False
        """Whether all its design documents were known since this process has begun."""
        self.why = ""
        """Why the last description could not be sent."""
        told.subscribe(self.changed)
        wake()

    def take_figures(self, said: IndexFigures) -> None:
        """Store reported statistics; totals keep growing over restarts of the process."""
        totals = {
            name: getattr(said, name) + getattr(self.before, name)
            for name in IndexFigures._fields
            if name.endswith("_total")
        }
        self.figures = said._replace(**totals)

    def changed(self) -> None:
        """The description has changed."""
        self._changes += 1
        self.is_changed = True
        self.is_told.clear()
        self._wake()

    async def order(self) -> dict[str, Any]:
        """Return the current description.

        Raises:
            UnavailableError: a design document cannot be read now.
        """
        changes = self._changes
        order = await self.told.order()
        self.designs, self._read = order["designs"], changes
        return self._described(order)

    @property
    def is_certain(self) -> bool:
        """Whether all its design documents are known now."""
        found = self._read == self._changes and not self.told.lacks_designs()
        self.was_complete = self.was_complete or found
        return found

    @property
    def has_views(self) -> bool:
        """Whether any design document has views, as last read."""
        return any(design.has_views for design in self.designs.values())
