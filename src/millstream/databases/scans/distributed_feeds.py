"""The changes of a bucket whose partitions are active on several nodes, as one feed.

A node reads its own partitions directly, and those of other nodes through their internal feeds,
from the reader's position. Each pass takes every partition to the end of one snapshot. Between
passes, a node is asked to answer once it has more.

Invariants:
1. The owner of a partition judges the reader's position in it; each partition is judged
   separately.
2. If the owner of a partition refuses, fails or sends an unexpected response, the partition is
   requested again from the node that the map then names, after the last received change. After all
   pauses without progress the feed fails.
3. Memory holds one piece of one node, or at most `ORDERED_BYTES_MAX` of a small answer.
4. Before the effects of a purge are sent to the reader, the reader's token has the new purge
   epoch.
5. If all partitions are here, no other node is asked.

Elsewhere: a node's own walk (`kv.aio.documents.changes`), requests (`databases.remote_node`),
where partitions are (`databases.routing`), the state of the bucket
(`databases.scans.bucket_view`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import aclosing, suppress
from typing import Final, NamedTuple

from millstream.cluster.cluster_state import NodeAt
from millstream.databases.routing import (
    HERE,
    Router,
    may_continue,
    nowhere,
    pauses,
)
from millstream.databases.scans.bucket_view import BucketView, OwnerState
from millstream.documents.tokens import (
    SPREAD_PURGED,
    History,
    TokenWriter,
    Vector,
    judged,
    may_hide,
    start_at,
    vector_at,
)
from millstream.errors import MillstreamError
from millstream.gateway.core.bucket_parts import WantedChanges, WantedHistories
from millstream.kv.aio.documents.changes import (
    ORDERED_BYTES_MAX,
    ORDERED_CHANGES_MAX,
    BucketChanges,
    Changes,
)
from millstream.kv.core.partition.partition import Partition
from millstream.kv.core.revisions.changes_feed import Piece, in_order_of_time, lasting_mark
from millstream.model.position import Position
from millstream.runtime.tasks import Tasks

__all__ = ["WATCH_S", "DistributedFeed", "DistributedWalk"]

WATCH_S: Final = 50.0
"""How long another node is asked to wait for new changes before it is asked again."""


class _Lane(NamedTuple):
    """Partitions that are read together."""

    node: NodeAt | None
    """The node with the partitions. None: this node."""
    numbers: Sequence[int]


class DistributedFeed:
    """Implements `gateway.core.api.changes.DatabaseChanges` for a recent state of the bucket.

    Args:
        own: the changes of the partitions that are here.
        router: of the bucket.
        seen: the recent state of the bucket.
        purges: of this node.
    """

    def __init__(
        self,
        own: BucketChanges,
        router: Router,
        seen: BucketView,
        purges: Callable[[], str],
    ) -> None:
        self._own, self._router, self._seen = own, router, seen
        self._purges = purges

    @property
    def uuid(self) -> str:
        """Return the uuid of the database."""
        return self._own.uuid

    def histories(self) -> list[History]:
        """Return the histories against which positions are judged."""
        return self._seen.histories

    def purge_epoch(self) -> int:
        """Return the name of the set of purges so far."""
        return self._seen.state.epoch

    def latest(self) -> Vector:
        """Return the position of a reader that has all durable changes."""
        seen = self._seen
        return vector_at(self._own.origin, seen.histories, seen.marks, seen.state.epoch)

    def start_of(self, since: Vector | int | None) -> Vector:
        """Return the position for a token, a number, or None: now."""
        return start_at(since, self.latest(), self._seen.histories, self._own.origins)

    def open(self, start: Vector, *, restarts: bool) -> DistributedWalk:
        """Return a walk from a position on; to be closed."""
        return DistributedWalk(
            self._own, self._router, self._seen, self._purges, start, restarts=restarts
        )


class DistributedWalk:
    """One reader's walk; implements `gateway.core.api.changes.ChangesWalk`.

    Args:
        own: the changes of the partitions that are here.
        router: of the bucket.
        seen: the recent state of the bucket.
        purges: of this node.
        start: position of the reader, in this bucket.
        restarts: the reader sees a subset of the documents, selected by content.
    """

    def __init__(
        self,
        own: BucketChanges,
        router: Router,
        seen: BucketView,
        purges: Callable[[], str],
        start: Vector,
        *,
        restarts: bool,
    ) -> None:
        self._changes, self._router, self._purges = own, router, purges
        self._restarts = restarts
        self._marks = list(seen.marks)
        self._state = OwnerState(list(seen.state.branches), list(seen.state.purges))
        self._sticky = SPREAD_PURGED if may_hide(start.purge_epoch) else 0
        start = judged(start, seen.histories, restarts=restarts)
        self._positions = list(start.positions)
        """Position of the reader after everything that was sent."""
        start = start._replace(purge_epoch=self._state.epoch | self._sticky)
        self.tokens = TokenWriter(start)
        self._numbers = frozenset(range(len(self._positions)))
        self._watched: dict[asyncio.Task[None], _Lane] = {}
        """Requests to nodes that answer once they have more changes after a completed read."""
        self._is_told = False
        """A node reported more changes, or that it lacks a requested partition."""
        self._tasks = Tasks()
        self._here = self._open_here(router.plan(self._numbers).own)
        router.bucket.subscribe_map(self._map_changed)

    # -- reading

    def lag(self) -> int:
        """Return the number of seqnos above the reader's position, by the latest reports.

        It may be too large, and never too small, while it is not known what a majority has.
        """
        self._here.check()
        partitions = self._router.bucket.partitions
        for number in self._here.positions:
            self._marks[number] = self._mark_here(partitions[number])
        return sum(
            max(0, mark - self.tokens.position(number).seqno)
            for number, mark in enumerate(self._marks)
        )

    def _mark_here(self, partition: Partition) -> int:
        """Return what lasts of a partition; while that is not known yet, all that it has."""
        try:
            return lasting_mark(partition)
        except MillstreamError as error:
            if not may_continue(error, self._router, HERE):
                raise
            return partition.high_seqno

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        """Yield the changes available now, each partition to the end of one snapshot.

        Raises:
            ConditionError: `bucket_not_found`, the bucket was removed.
            MillstreamError: `not_my_partition`, `node_failed`: a partition cannot be read now.
        """
        self._here.check()
        self._is_told = False
        self._drop_stale()
        waiting = frozenset[int]().union(*(lane.numbers for lane in self._watched.values()))
        async with aclosing(self._read(self._numbers - waiting)) as reading:
            if self.lag() <= ORDERED_CHANGES_MAX:
                for gathered in in_order_of_time(await _gathered(reading)):
                    yield gathered
            async for piece in reading:
                yield piece
        for number, position in enumerate(self._positions):
            if self.tokens.position(number) != position:
                self.tokens.move(number, position)

    async def _read(self, numbers: frozenset[int]) -> AsyncGenerator[Piece, None]:
        """Yield the changes of partitions, lane by lane, on whatever nodes they end up."""
        is_managed = self._router.is_managed
        left, waits = set(numbers), pauses(is_managed)
        while True:
            before = list(self._positions)
            failure: MillstreamError | None = None
            plan = self._router.plan(sorted(left))
            if plan.nowhere:
                failure = nowhere(plan.nowhere)
            for lane in self._in_order(plan.own, plan.by_node):
                try:
                    async with aclosing(self._lane_pieces(lane)) as pieces:
                        async for piece in pieces:
                            yield piece
                    left.difference_update(lane.numbers)
                except MillstreamError as error:
                    if not may_continue(error, self._router, lane.node or HERE):
                        raise
                    failure = error
            if failure is None:
                return
            if before != self._positions:
                waits = pauses(is_managed)
            pause = next(waits, None)
            if pause is None:
                raise failure
            await asyncio.sleep(pause)

    def _in_order(
        self, own: Sequence[int], by_node: dict[NodeAt, list[int]]
    ) -> list[_Lane]:  # fmt: skip
        """Return the reading order: open snapshots first, then the partitions that lag most.

        So snapshots are completed, however small the reader's steps are.
        """
        whole = [_Lane(None, own)] if own else []
        whole += [_Lane(node, numbers) for node, numbers in by_node.items()]
        parts: list[_Lane] = []
        for node, numbers in whole:
            under_way = [number for number in numbers if not self._positions[number].is_closed]
            rest = [number for number in numbers if self._positions[number].is_closed]
            parts += [_Lane(node, part) for part in (under_way, rest) if part]
        return sorted(parts, key=self._turn)

    def _turn(self, lane: _Lane) -> tuple[bool, int]:
        is_closed = self._positions[lane.numbers[0]].is_closed
        return is_closed, -sum(self._marks[n] - self._positions[n].seqno for n in lane.numbers)

    def _lane_pieces(self, lane: _Lane) -> AsyncGenerator[Piece, None]:
        return self._own_pieces(lane) if lane.node is None else self._pieces_of(lane.node, lane)

    async def _own_pieces(self, lane: _Lane) -> AsyncGenerator[Piece, None]:
        """Yield the changes of this node."""
        self._cover(lane.numbers)
        partitions = self._router.bucket.partitions
        async for piece in self._here.pieces():
            number, snapshot = piece.snapshot.partition_id, piece.snapshot
            self._mark(number, partitions[number].failover_log[0].uuid, self._purges())
            self._positions[number] = snapshot.at(piece.covered)
            yield piece
        for number, position in self._here.positions.items():
            self._positions[number] = position

    def _cover(self, numbers: Collection[int]) -> None:
        """Set the partitions of the local walk; a different set starts a new one."""
        if self._here.positions.keys() != set(numbers):
            self._here.close()
            self._here = self._open_here(numbers)

    def _open_here(self, numbers: Collection[int]) -> Changes:
        start = self.tokens.vector._replace(positions=tuple(self._positions))
        return self._changes.open(start, restarts=self._restarts, numbers=numbers)

    async def _pieces_of(self, node: NodeAt, lane: _Lane) -> AsyncGenerator[Piece, None]:
        """Yield the changes of another node."""
        restarts = self._restarts or may_hide(self.tokens.purge_epoch)
        positions = [self._positions[number] for number in lane.numbers]
        wanted = WantedChanges(self._router.uuid, list(lane.numbers), positions, restarts=restarts)
        async with aclosing(self._router.link_to(node).changes(wanted)) as received:
            async for each in received:
                self._here.check()
                if isinstance(each, dict):
                    self._take_ends(each)
                    return
                piece, number = each.piece, each.piece.snapshot.partition_id
                self._mark(number, each.branch, each.purges)
                self._positions[number] = piece.snapshot.at(piece.covered)
                yield piece

    def _take_ends(self, ends: dict[int, Position]) -> None:
        for number, position in ends.items():
            self._positions[number] = position
            self._marks[number] = position.seqno

    def _mark(self, number: int, branch: int, purges: str) -> None:
        """Store the report of a partition's owner before its changes are sent. Hot path."""
        self._state.take(number, branch, purges)
        epoch = self._state.epoch | self._sticky
        if epoch != self.tokens.purge_epoch:
            if may_hide(epoch) and not self._sticky:
                self._sticky = SPREAD_PURGED
                self._here.mark_purges()
            self.tokens.mark_purges(epoch)

    # -- waiting

    async def wait(self, seconds: float) -> bool:
        """Return once there may be more to read; False: the time has passed without changes.

        Raises:
            ConditionError: `bucket_not_found`.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        self._cover(self._router.plan(self._numbers).own)
        news = self._here.news
        while True:
            news.clear()
            if self._is_told or self._has_more_here():
                return True
            self._watch()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(until):
                    await news.wait()
            if loop.time() >= until:
                return False

    def _has_more_here(self) -> bool:
        try:
            return self._here.has_more()
        except MillstreamError as error:
            if not may_continue(error, self._router):
                raise
            return True

    def _watch(self) -> None:
        """Ask every other node to answer when it has more."""
        self._drop_stale()
        watched = (lane.numbers for lane in self._watched.values())
        plan = self._router.plan(self._numbers - frozenset(self._here.positions).union(*watched))
        if plan.own or plan.nowhere:  # they moved: the next pass finds out
            self._tell()
        for node, numbers in plan.by_node.items():
            task = self._tasks.start(self._watch_node(node, numbers), name=f"changes at {node}")
            self._watched[task] = _Lane(node, numbers)
            task.add_done_callback(self._watched_no_more)

    async def _watch_node(self, node: NodeAt, numbers: list[int]) -> None:
        positions = [self._positions[number] for number in numbers]
        wanted = WantedHistories(self._router.uuid, numbers, positions, WATCH_S)
        with suppress(MillstreamError):  # the next pass finds out
            is_new = False
            while not is_new:
                said = await self._router.link_to(node).histories(wanted)
                for one in said.partitions:
                    self._marks[one.partition] = one.mark
                    is_new |= one.mark > self._positions[one.partition].seqno
        task = asyncio.current_task()
        assert task is not None
        self._watched_no_more(task)  # before the next pass, since it concerns these
        self._tell()

    def _map_changed(self) -> None:
        """The map has changed: wake the waiting reader."""
        self._here.news.set()

    def _drop_stale(self) -> None:
        """Cancel requests to nodes that, by the map, no longer have the requested partitions."""
        for task, lane in list(self._watched.items()):
            if self._router.plan(lane.numbers).by_node != {lane.node: lane.numbers}:
                task.cancel()
                self._watched_no_more(task)
                self._tell()

    def _watched_no_more(self, task: asyncio.Task[None]) -> None:
        self._watched.pop(task, None)

    def _tell(self) -> None:
        self._is_told = True
        self._here.news.set()

    def close(self) -> None:
        """Stop reading; may be called repeatedly."""
        for task in list(self._watched):
            task.cancel()
        self._router.bucket.unsubscribe(self._map_changed)
        self._here.close()


async def _gathered(reading: AsyncGenerator[Piece, None]) -> list[Piece]:
    """Collect pieces as far as the memory bound allows."""
    found, size = list[Piece](), 0
    async for piece in reading:
        found.append(piece)
        size += sum(map(len, piece.frames))
        if size > ORDERED_BYTES_MAX:
            break
    return found
