"""Keeps the copies of one bucket following their sources by the bucket's map or records.

Each copy here that follows (`kv.core.partition.states.FOLLOWING`), and that is active on another
node by the newest record or map, has a stream. In a managed cluster a copy that no record places
follows nobody. One connection per source node carries all its streams.

Invariants:
1. The source of a copy is chosen again after each map or record, each move of a copy and each
   rollback. Without a stream a copy tries the others that count: one may have been promoted.
2. A lost connection is opened again after a pause that grows up to `PAUSE_S_MAX`. The copies
   continue from their positions.
3. A rollback that has begun is finished, whatever happens to the connection that requested it.
4. After `stop` nothing is applied any more.
5. An unexpected error is logged, and everything is retried after the longest pause.

Elsewhere: data of a connection (`kv.core.copies.replica_stream`), the map (`model.bucket_map`),
rollbacks (`kv.aio.copies`), acknowledgements on the other side
(`kv.core.partition.acknowledgement`).

Source: docs/design/0006-copies.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from functools import partial
from time import monotonic_ns
from typing import Final, NamedTuple

from millstream.access.kv_login import Login
from millstream.errors import (
    ConditionError,
    MillstreamError,
    UnavailableError,
    UsageError,
)
from millstream.kv.aio.copies import Copies
from millstream.kv.aio.reading_back import BUSY_WAIT_S
from millstream.kv.core.bucket import Bucket
from millstream.kv.core.copies.feed_effects import ChangeState, Read, Send, TakenOver, Undo, Wait
from millstream.kv.core.copies.record_exchange import AdoptRecords
from millstream.kv.core.copies.replica_stream import FULL_WAIT_S, FeedFigures
from millstream.kv.core.copies.takeover_stream import TakingFeed
from millstream.kv.core.partition.residents import NotInMemory
from millstream.kv.core.partition.states import FOLLOWING
from millstream.kv.core.serving import HEARD_MS
from millstream.model.bucket_map import NodeAddress
from millstream.model.cluster_maps import DataRecord
from millstream.model.partitions import PartitionState
from millstream.model.pauses import Pauses
from millstream.runtime.tasks import Tasks
from millstream.upr.aio.link import TIMEOUT_S, Link

__all__ = ["LinkTo", "Replicator", "SourceStatus", "plain_link"]

_LOG = logging.getLogger(__name__)
PAUSE_S_MIN: Final = 0.1
"""Pause before a lost connection to a source is opened again; doubled after each failure."""
PAUSE_S_MAX: Final = 5.0
REACH_S_MAX: Final = 5.0
"""How long a take-over waits for a connection to the source."""
TAKE_OVER_S_MAX: Final = 100.0
"""How long a take-over may last, from its request to the copy being active."""
ELSEWHERE_S: Final = 0.5
"""A copy of a managed cluster that has no stream for twice this time tries another source."""
HIGHS_INTERVAL_S: Final = 1.0
"""How often a source is asked for its high seqnos, for statistics."""

LinkTo = Callable[[NodeAddress, str], Link]
"""Connects to a node, for a bucket by name."""


class ReplicationStatistics(NamedTuple):
    """Statistics of the copies that follow."""

    sources: int
    connected: int
    following: int
    streams: int
    behind: int
    lag: int
    unflushed_bytes: int
    changes_total: int
    rollbacks_total: int
    reconnects_total: int


class SourceStatus(NamedTuple):
    """The source of a copy: the node, whether changes arrive, and why not."""

    node: str
    is_streaming: bool
    failure: str


def plain_link(node: NodeAddress, bucket: str) -> Link:
    """Connect to a node without users and encryption."""
    login = Login(f"{node.host}:{node.kv}", None, "", bucket)
    return Link(login, node.host, node.kv, tls=None, timeout_s=TIMEOUT_S)


class Replicator:
    """The sources of one bucket's copies; started when created, ended by `stop`."""

    def __init__(self, bucket: Bucket, copies: Copies, link_to: LinkTo = plain_link) -> None:
        self._bucket = bucket
        self._copies = copies
        self._link_to = link_to
        self._sources: dict[NodeAddress, _Source] = {}
        self._follows: list[NodeAddress | None] = [None] * bucket.partition_count
        self._tried: dict[int, tuple[str | None, int]] = {}
        """The active node of a copy's record, and how many sources it has tried in vain since."""
        self._tasks = Tasks()
        self._undoing = Tasks()
        self._before = FeedFigures(0, 0, 0, 0, 0, 0, 0)
        """Totals of former sources."""
        self._reconnects_before = 0
        bucket.subscribe_map(self._on_map)
        bucket.subscribe_durable(self._on_durable)
        copies.subscribe_moved(self._on_moved)
        self._on_map()
        self._tasks.start(self._look_elsewhere(), name=f"look for sources {bucket.name}")

    async def stop(self) -> None:
        """Stop following; rollbacks that have begun are finished."""
        self._bucket.unsubscribe(self._on_map)
        self._bucket.unsubscribe(self._on_durable)
        self._copies.unsubscribe_moved(self._on_moved)
        await self._tasks.stop()
        await self._undoing.finish()

    def status(self, partition_id: int) -> SourceStatus | None:
        """Return the source of a copy; None if there is none."""
        node = self._follows[partition_id]
        if node is None:
            return None
        source = self._sources[node]
        feed = source.feed
        if feed is None:
            return SourceStatus(node.name, False, source.failure)
        return SourceStatus(node.name, feed.is_streaming(partition_id), feed.failure(partition_id))

    def failed_nodes(self) -> set[str]:
        """Return the names of source nodes that cannot be reached."""
        return {
            node.name
            for node, source in self._sources.items()
            if source.wanted and source.feed is None and source.failure
        }

    def streams(self) -> dict[str, bool]:
        """Return the names of source nodes, and whether copies hear them on a stream."""
        return {
            node.name: any(map(self._hears, source.wanted))
            for node, source in self._sources.items()
            if source.wanted
        }

    def _hears(self, partition_id: int) -> bool:
        status, quiet_ms = self.status(partition_id), self._bucket.quiet_ms(partition_id)
        is_streaming = status is not None and status.is_streaming
        return is_streaming and quiet_ms is not None and quiet_ms <= HEARD_MS

    def statistics(self) -> ReplicationStatistics:
        """Return the current statistics."""
        sources = list(self._sources.values())
        figures = [source.figures() for source in sources]
        return ReplicationStatistics(
            sources=len(sources),
            connected=sum(source.feed is not None for source in sources),
            following=sum(len(source.wanted) for source in sources),
            streams=sum(one.streams for one in figures),
            behind=sum(one.behind for one in figures),
            lag=sum(one.lag for one in figures),
            unflushed_bytes=sum(one.unflushed_bytes for one in figures),
            changes_total=self._before.changes_total + sum(one.changes_total for one in figures),
            rollbacks_total=self._before.rollbacks_total
            + sum(one.rollbacks_total for one in figures),
            reconnects_total=self._reconnects_before
            + sum(source.reconnects_total for source in sources),
        )

    async def take_over(self, partition_id: int) -> None:
        """Make a following copy active, and stop its source's; does nothing if it is active.

        Nothing is lost, and clients continue to write at one node or the other. Ends within
        `TAKE_OVER_S_MAX`; continues if the waiting caller is gone.

        Raises:
            UsageError: `not_following`.
            ConditionError: `taking_over`: it is already running.
            UnavailableError: `not_taken_over`: the copy keeps following, the source keeps serving
                or is dead; `unreachable`, and the errors of the disk.
        """
        node = self._follows[partition_id]
        if self._bucket.partitions[partition_id].state is PartitionState.ACTIVE:
            return
        if node is None:
            message = f"partition {partition_id} follows no other node here: only a copy that does"
            raise UsageError(f"{message} can take over from it", code="not_following")
        work = self._sources[node].try_taking_over(partition_id)
        error = await asyncio.shield(self._undoing.start(work, name="wait for a take-over"))
        if error is not None:
            raise error

    # -- choice of sources

    def _on_map(self) -> None:
        for partition_id in range(self._bucket.partition_count):
            self._place(partition_id)
        self._end_idle()

    def _on_moved(self, partition_id: int) -> None:
        self._place(partition_id)
        self._end_idle()

    def _source_of(self, partition_id: int) -> NodeAddress | None:
        if self._bucket.partitions[partition_id].state not in FOLLOWING:
            return None
        sources = self._bucket.sources(partition_id)
        active, tries = self._tried.get(partition_id, (None, 0))
        is_same = active == self._bucket.active_node(partition_id)
        return sources[tries % len(sources) if is_same else 0] if sources else None

    async def _look_elsewhere(self) -> None:
        """Have copies without a stream try their next source: it may have been promoted."""
        bucket, before = self._bucket, set[int]()
        while True:
            await asyncio.sleep(ELSEWHERE_S)
            pairs = enumerate(self._follows)
            idle = {p for p, node in pairs if node and not self._sources[node].is_busy(p)}
            for p in before & idle if bucket.is_managed else ():
                active, tries = self._tried.get(p, (None, 0))
                now = bucket.active_node(p)
                self._tried[p] = now, tries + 1 if now == active else 1
                self._place(p)
            before = idle - before
            self._end_idle()

    def _place(self, partition_id: int) -> None:
        """Let a copy follow its source by the map."""
        before, wanted = self._follows[partition_id], self._source_of(partition_id)
        self._follows[partition_id] = wanted
        if before is not None and before != wanted:
            self._sources[before].leave(partition_id)
        if wanted is not None:
            if wanted not in self._sources:
                source = _Source(wanted, self._bucket, self._copies, self._link_to, self._undoing)
                self._sources[wanted] = source
                name = f"follow {wanted.name} {self._bucket.name}"
                source.task = self._tasks.start(source.run(), name=name)
            self._sources[wanted].follow(partition_id)

    def _end_idle(self) -> None:
        """Close connections without streams."""
        for node in [node for node, source in self._sources.items() if not source.wanted]:
            source = self._sources.pop(node)
            figures = source.figures()
            self._before = self._before._replace(
                changes_total=self._before.changes_total + figures.changes_total,
                rollbacks_total=self._before.rollbacks_total + figures.rollbacks_total,
            )
            self._reconnects_before += source.reconnects_total
            if source.task is not None:
                source.task.cancel()

    def _on_durable(self) -> None:
        for source in self._sources.values():
            source.on_durable()


class _Source:
    """One node that copies of the bucket follow, over successive connections."""

    def __init__(
        self, node: NodeAddress, bucket: Bucket, copies: Copies, link_to: LinkTo, undoing: Tasks
    ) -> None:
        self.node = node
        self.wanted: set[int] = set()
        self.feed: TakingFeed | None = None
        """None: not connected."""
        self.failure = "it is being connected to"
        self.reconnects_total = 0
        self.task: asyncio.Task[None] | None = None
        self._bucket = bucket
        self._copies = copies
        self._link_to = link_to
        self._undoing = undoing
        self._before = FeedFigures(0, 0, 0, 0, 0, 0, 0)
        """Totals of lost connections."""
        self._news = asyncio.Event()
        """The feed may have effects."""
        self._progress = asyncio.Event()
        """A document was read, or changes became durable."""
        self._read_error: Exception | None = None
        self._connected = asyncio.Event()
        self._takings: dict[int, asyncio.Future[str]] = {}
        """Partition -> why it could not be taken over, empty if it was."""
        self._changing: dict[int, asyncio.Task[None]] = {}

    # -- events of the bucket

    def follow(self, partition_id: int) -> None:
        """Let a copy follow this node, or check whether it still may."""
        self.wanted.add(partition_id)
        if self.feed is not None:
            self.feed.follow(partition_id)
            self.feed.look(partition_id)
            self._news.set()

    def leave(self, partition_id: int) -> None:
        """Stop a copy from following this node."""
        self.wanted.discard(partition_id)
        if self.feed is not None:
            self.feed.leave(partition_id)
            self._news.set()

    def on_durable(self) -> None:
        """Changes became durable."""
        if self.feed is not None:
            self.feed.on_durable()
            self._news.set()
            self._progress.set()

    def is_busy(self, partition_id: int) -> bool:
        """Return whether a copy has its stream, or is taking the partition over."""
        is_streaming = self.feed is not None and self.feed.is_streaming(partition_id)
        return is_streaming or partition_id in self._takings or partition_id in self._changing

    def figures(self) -> FeedFigures:
        """Return the progress of the copies, and totals of all connections."""
        before = self._before
        if self.feed is None:
            return before
        now = self.feed.figures()
        return now._replace(
            changes_total=now.changes_total + before.changes_total,
            rollbacks_total=now.rollbacks_total + before.rollbacks_total,
        )

    # -- connections

    async def run(self) -> None:
        """Follow until cancelled."""
        pauses = Pauses(PAUSE_S_MIN, PAUSE_S_MAX)
        while True:
            before, is_mistake = self._before.changes_total, False
            try:
                await self._follow()
            except* (MillstreamError, OSError) as group:
                self._tell(group, logging.WARNING)
            except* Exception as group:  # noqa: BLE001 - one copy must not end all others for good
                is_mistake = True
                self._tell(group, logging.ERROR)
            if self._before.changes_total > before:
                pauses.restart()
            self.reconnects_total += 1
            pause_s = pauses.next()
            await asyncio.sleep(PAUSE_S_MAX if is_mistake else pause_s)

    def _tell(self, error: BaseException, level: int) -> None:
        """Store why nothing arrives; log it once, an unexpected error with its traceback."""
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        is_mistake = level == logging.ERROR
        failure = (
            f"a mistake in this node, its log has more: {error!r}" if is_mistake else str(error)
        )
        if failure != self.failure:
            _LOG.log(
                level, "bucket %s: copies do not follow node %s: %s",
                self._bucket.name, self.node.name, failure, exc_info=error if is_mistake else None,
            )  # fmt: skip
        self.failure = failure

    async def _follow(self) -> None:
        """Connect and follow until the connection is lost."""
        bucket = self._bucket
        link = self._link_to(self.node, bucket.name)
        try:
            await link.open_bucket(bucket.uuid)
            name = f"millstream:replication:{bucket.node_name}->{self.node.name}:{bucket.name}"
            feed = TakingFeed(bucket, name.encode(), bucket.node_name)
            self.feed = feed
            for partition_id in sorted(self.wanted):
                feed.follow(partition_id)
            self._news.set()
            self._connected.set()
            self._read_error = None
            async with asyncio.TaskGroup() as group:
                group.create_task(self._read(link, feed), name="follow: read")
                group.create_task(self._write(link, feed), name="follow: write")
                group.create_task(self._ask_highs(feed), name="follow: ask")
        finally:
            self._before, self.feed = self.figures()._replace(streams=0), None
            self._connected.clear()
            for partition_id in self._takings:
                self._taken(partition_id, "the connection was lost")
            await link.close()

    async def _read(self, link: Link, feed: TakingFeed) -> None:
        """Give received bytes to the feed, as fast as it can take them."""
        while True:
            feed.receive(await link.read(), monotonic_ns() // 1_000_000)
            while feed.is_busy or feed.is_full:
                if feed.step():
                    self._news.set()
                    await asyncio.sleep(0)
                elif feed.is_busy or feed.is_full:
                    await self._until_progress()
            self._news.set()

    async def _until_progress(self) -> None:
        """Wait until the feed may take more."""
        self._news.set()
        self._progress.clear()
        try:
            async with asyncio.timeout(FULL_WAIT_S):
                await self._progress.wait()
        except TimeoutError:
            pass
        if self._read_error is not None:
            raise self._read_error

    async def _write(self, link: Link, feed: TakingFeed) -> None:
        """Run the feed's effects, in order."""
        while True:
            await self._news.wait()
            self._news.clear()
            for effect in feed.take_effects():
                match effect:
                    case Send(data):
                        await link.write(data)
                    case Read(absent):
                        self._fetch(feed, absent)
                    case Wait(partition_id, pause_s):
                        loop = asyncio.get_running_loop()
                        loop.call_later(pause_s, self._waited, feed, partition_id)
                    case Undo():
                        self._undoing.start(self._undo(feed, effect), name="undo a copy")
                    case ChangeState(partition_id):
                        self._changing[partition_id] = self._undoing.start(
                            self._change(feed, effect), name="take a partition over"
                        )
                    case AdoptRecords(records):
                        self._undoing.start(self._adopt(feed, records), name="adopt records")
                    case TakenOver(partition_id, failure):
                        self._taken(partition_id, failure)

    # -- taking over

    async def try_taking_over(self, partition_id: int) -> MillstreamError | None:
        """See `Replicator.take_over`; returns what it raises."""
        try:
            await self._take_over(partition_id)
        except MillstreamError as error:
            return error
        return None

    async def _take_over(self, partition_id: int) -> None:
        name = self.node.name
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REACH_S_MAX):
                await self._connected.wait()
        feed = self.feed
        if feed is None:
            message = f"node {name} cannot be reached to take partition {partition_id} over"
            raise UnavailableError(f"{message}: {self.failure}", code="unreachable")
        if partition_id in self._takings:
            message = f"partition {partition_id} is being taken over from node {name} already"
            raise ConditionError(f"{message}: wait for its end", code="taking_over")
        done = self._takings[partition_id] = asyncio.get_running_loop().create_future()
        feed.take_over(partition_id)
        self._news.set()
        try:
            async with asyncio.timeout(TAKE_OVER_S_MAX):
                failure = await done
        except TimeoutError:
            failure = f"it took longer than {TAKE_OVER_S_MAX} seconds"
            feed.give_up_taking(partition_id)
            self._news.set()
        finally:
            del self._takings[partition_id]
        await self._check_taken(partition_id, failure)

    async def _check_taken(self, partition_id: int, failure: str) -> None:
        """Raise if the copy is not active, after all changes of it have ended."""
        changing = self._changing.pop(partition_id, None)
        if changing is not None:
            await asyncio.wait([changing])
        if self._bucket.partitions[partition_id].state is PartitionState.ACTIVE:
            _LOG.info("bucket %s: partition %d was taken over from node %s",
                      self._bucket.name, partition_id, self.node.name)  # fmt: skip
            return
        await self._copies.stand_back(partition_id)
        raise UnavailableError(
            f"partition {partition_id} was not taken over from node {self.node.name}: "
            f"{failure}; see whether its copy there serves, and begin again, or promote one",
            code="not_taken_over",
        )

    def _taken(self, partition_id: int, failure: str) -> None:
        done = self._takings.get(partition_id)
        if done is not None and not done.done():
            done.set_result(failure)

    async def _change(self, feed: TakingFeed, effect: ChangeState) -> None:
        failure = ""
        try:
            await self._copies.take_over(*effect)
        except MillstreamError as error:
            failure = str(error)
        except Exception as error:  # noqa: BLE001 - the waiting caller gets it
            failure = f"a mistake in this node, its log has more: {error!r}"
            _LOG.exception("bucket %s: partition %d is not taken over from node %s",
                           self._bucket.name, effect.partition_id, self.node.name)  # fmt: skip
        if self.feed is feed:
            feed.on_state_changed(effect.partition_id, failure)
            self._news.set()

    async def _ask_highs(self, feed: TakingFeed) -> None:
        while True:
            await asyncio.sleep(HIGHS_INTERVAL_S)
            feed.ask_highs()
            self._news.set()

    # -- effects

    def _fetch(self, feed: TakingFeed, absent: NotInMemory) -> None:
        if not absent.fetch(partial(self._fetched, feed)):
            loop = asyncio.get_running_loop()
            loop.call_later(BUSY_WAIT_S, self._fetched, feed, None)

    async def _adopt(self, feed: TakingFeed, records: Mapping[int, DataRecord]) -> None:
        failure, adopt = "", self._bucket.adopt
        assert adopt is not None
        try:
            await adopt(records)
        except MillstreamError as error:
            failure = str(error)
            _LOG.error("bucket %s: records of node %s are not adopted: %s",
                       self._bucket.name, self.node.name, error)  # fmt: skip
        if self.feed is feed:
            feed.on_adopted(records, failure)
            self._news.set()

    def _fetched(self, feed: TakingFeed, error: Exception | None) -> None:
        if self.feed is not feed:
            return
        try:
            if error is not None:
                raise error
            feed.on_read()
        except Exception as failure:  # noqa: BLE001 - whoever reads the connection raises it
            self._read_error = failure
        self._progress.set()
        self._news.set()

    def _waited(self, feed: TakingFeed, partition_id: int) -> None:
        if self.feed is feed:
            feed.on_waited(partition_id)
            self._news.set()

    async def _undo(self, feed: TakingFeed, effect: Undo) -> None:
        partition_id = effect.partition_id
        seqno: int | None = None
        try:
            seqno = await self._copies.undo(*effect)
        except MillstreamError as error:
            _LOG.warning("bucket %s: partition %d is not rolled back for node %s: %s",
                         self._bucket.name, partition_id, self.node.name, error)  # fmt: skip
        except Exception:  # noqa: BLE001 - it rests and asks again
            _LOG.exception("bucket %s: partition %d is not rolled back for node %s",
                           self._bucket.name, partition_id, self.node.name)  # fmt: skip
        if self.feed is feed:
            if seqno is None:
                feed.on_not_undone(partition_id)
            else:
                feed.on_undone(partition_id, seqno)
            self._news.set()
