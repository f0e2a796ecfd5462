"""Carries out the orders of orchestrators at one node.

    reply = await taker.take(request)

Invariants:
1. One request is carried out at a time, and what it changes is durable before the reply.
2. A take-over is only begun here, because it may take minutes. That it is done is told by reports.
3. What one bucket cannot do is answered `refused` for this bucket alone.
4. The session is opened and closed between two requests, never within one.

Elsewhere: what an order means (`cluster.core.admission`), the session (`cluster.aio.node_agent`),
the engine (`cluster.aio.local_engine`).
"""

from __future__ import annotations

import asyncio
import functools
import logging
import secrets
from collections.abc import Mapping, Sequence
from typing import Final

from millstream.cluster.aio.local_engine import ClusterMaps, LocalEngine
from millstream.cluster.aio.messages import OrdersReply, OrdersRequest
from millstream.cluster.core.admission import (
    INDEX_ORDERS,
    Admit,
    Known,
    RaiseToken,
    Ruling,
    Step,
    TakeOver,
    judge_order,
    stopped_at,
)
from millstream.cluster.core.orders import Order, Place, Reply
from millstream.cluster.core.reports import CopyReport, NodeReport, PartReport, no_copy
from millstream.cluster.core.settings import Settings
from millstream.errors import CorruptionError, MillstreamError
from millstream.model.cluster_maps import NO_KEY
from millstream.runtime.tasks import Tasks
from millstream.vsr.core.versions import NEVER, Version

__all__ = ["OrderTaker"]

_LOG = logging.getLogger(__name__)
_REFUSED: Final = Reply("refused")


class _State:
    """Copies and index parts, each as they were when they were first read."""

    def __init__(self, engine: LocalEngine) -> None:
        self._engine = engine

    @functools.cached_property
    def copies(self) -> Mapping[str, Mapping[int, CopyReport]]:
        return self._engine.copies()

    @functools.cached_property
    def parts(self) -> Mapping[str, Mapping[int, PartReport]]:
        return self._engine.parts()

    def copy(self, place: Place) -> CopyReport | None:
        found = self.copies.get(place.bucket, {}).get(place.partition)
        return found if found is not None and found.is_there else None

    def part(self, place: Place) -> PartReport | None:
        return self.parts.get(place.bucket, {}).get(place.partition)


class OrderTaker:
    """Of one node; ended by `stop`.

    Args:
        node: its id.
        cluster: the cluster's uuid.
        engine: of the node.
    """

    def __init__(self, node: str, cluster: str, engine: LocalEngine) -> None:
        self._node, self._cluster, self._engine = node, cluster, engine
        self.boots = 0
        """Number of the session; 0: out of step."""
        self.is_admitted = False
        self.token: Version = NEVER
        """The largest one that was seen."""
        self.problems: dict[str, str] = {}
        """Why a bucket did not do what it was told, by uuid."""
        self.maps: ClusterMaps | None = None
        """What was taken last."""
        self._lease_ms: int | None = None
        self._settings = Settings()
        self._lock = asyncio.Lock()
        self._process, self._number = secrets.token_hex(8), 0
        self._handed: set[Place] = set()
        """Partitions that are being taken over."""
        self._tasks = Tasks()

    async def stop(self) -> None:
        """End take-overs that are under way."""
        await self._tasks.stop()

    # ---- the session

    async def begin(self, boots: int, token: Version, maps: ClusterMaps) -> None:
        """Take what was read after the session was opened; then the node is in step.

        Raises:
            MillstreamError: a bucket could not follow; the node is not in step.
        """
        async with self._lock:
            await self._take_maps(maps)
            self.token = max(self.token, token)
            self.boots, self.is_admitted = boots, False
            self._tell_right()

    def leave(self) -> None:
        """Be out of step, at once."""
        self.boots, self.is_admitted, self._lease_ms = 0, False, None
        self._tell_right()

    def set_lease(self, lease_ms: int) -> None:
        """Serve by the lease until then, while the node is in step."""
        self._lease_ms = lease_ms
        self._tell_right()

    def _tell_right(self) -> None:
        lease_ms = self._lease_ms if self.boots else None
        self._engine.set_right(lease_ms, is_admitted=self.is_admitted)

    # ---- requests

    async def take(self, request: OrdersRequest) -> OrdersReply:
        """Carry out orders, and reply to each."""
        async with self._lock:
            self._number += 1
            number = self._number
            if request.maps is not None and request.maps.cluster == self._cluster:
                try:
                    await self._take_maps(request.maps)
                except MillstreamError as error:
                    _LOG.warning("maps of the cluster: %s", error)
            replies: list[Reply] = []
            while len(replies) < len(request.orders):
                replies += await self._obey(_round(request.orders[len(replies) :]))
            is_asked = any(
                order.kind == "report" and reply.code == "is"
                for order, reply in zip(request.orders, replies, strict=True)
            )
            report = self.report() if is_asked else None
            return OrdersReply(tuple(replies), self._process, number, report)

    def report(self) -> NodeReport:
        """Return what the node tells of itself."""
        engine = self._engine
        return NodeReport(
            self._node,
            self.boots,
            self.is_admitted,
            {bucket: dict(found) for bucket, found in engine.copies().items()},
            {bucket: dict(found) for bucket, found in engine.parts().items()},
            dict(engine.broken()),
            engine.has_space(self._settings.disk_reserve_percent),
            dict(engine.keys()),
        )

    async def _take_maps(self, maps: ClusterMaps) -> None:
        self.maps, self._settings = maps, maps.settings
        self._engine.set_settings(maps.settings)
        await self._engine.take_maps(maps)

    # ---- orders

    async def _obey(self, orders: Sequence[Order]) -> list[Reply]:
        """Carry out orders of different partitions."""
        before = self._state()
        rulings: list[Ruling] = []
        steps: dict[str, list[Step]] = {}
        for order in orders:
            ruling = self._judged(order, before)
            rulings.append(ruling)
            for step in ruling.steps:
                self._sort(step, order.place, steps)
        failed = await self._carry_out(steps)
        after = self._state()
        replies = []
        for order, ruling in zip(orders, rulings, strict=True):
            if order.place.bucket in failed and ruling.refusal is None:
                copy = self._copy_report(order.place, after)
                replies.append(Reply("refused", copy))
                continue
            if any(isinstance(step, TakeOver) for step in ruling.steps):
                self._begin_take_over(order.place)
            replies.append(self._reply(order, ruling, after))
        return replies

    def _judged(self, order: Order, state: _State) -> Ruling:
        place, has_copy, has_part = (
            order.place,
            order.record is not None,
            order.kind in INDEX_ORDERS,
        )
        known = Known(
            self._cluster,
            self._node,
            self.boots,
            self.token,
            self._engine.record(place) if has_copy else None,
            state.copy(place) if has_copy else None,
            self._engine.index_record(place) if has_part else None,
            state.part(place) if has_part else None,
        )
        try:
            return judge_order(order, known)
        except CorruptionError as error:
            _LOG.error("order %s of partition %s: %s", order.kind, order.place, error)
            self.problems[order.place.bucket] = str(error)
            return Ruling(refusal=_REFUSED)

    def _sort(self, step: Step, place: Place, steps: dict[str, list[Step]]) -> None:
        """Do what is the node's own, and leave the rest to the engine."""
        if isinstance(step, RaiseToken):
            self.token = max(self.token, step.token)
        elif isinstance(step, Admit):
            self.is_admitted = True
            self._tell_right()
        elif not isinstance(step, TakeOver):
            steps.setdefault(place.bucket, []).append(step)

    async def _carry_out(self, steps: Mapping[str, Sequence[Step]]) -> set[str]:
        """Return the buckets that failed."""
        done = await asyncio.gather(*(self._carried(*one) for one in steps.items()))
        return {bucket for bucket, is_done in zip(steps, done, strict=True) if not is_done}

    async def _carried(self, bucket: str, steps: Sequence[Step]) -> bool:
        try:
            await self._engine.carry_out(bucket, steps)
        except MillstreamError as error:
            if self.problems.get(bucket) != str(error):
                _LOG.warning("bucket %s did not carry out orders: %s", bucket, error)
            self.problems[bucket] = str(error)
            return False
        self.problems.pop(bucket, None)
        return True

    def _begin_take_over(self, place: Place) -> None:
        if place not in self._handed:
            self._handed.add(place)
            self._tasks.start(self._take_over(place), name=f"take-over of {place.partition}")

    async def _take_over(self, place: Place) -> None:
        try:
            await self._engine.carry_out(place.bucket, [TakeOver(place)])
        except MillstreamError as error:
            _LOG.info("partition %d was not taken over: %s", place.partition, error)
        finally:
            self._handed.discard(place)

    # ---- replies

    def _state(self) -> _State:
        return _State(self._engine)

    def _copy_report(self, place: Place, state: _State) -> CopyReport:
        copy = state.copies.get(place.bucket, {}).get(place.partition)
        if copy is not None:
            return copy
        record = self._engine.record(place)
        return no_copy(place.partition, NO_KEY if record is None else record.at)

    def _reply(self, order: Order, ruling: Ruling, state: _State) -> Reply:
        if ruling.refusal is not None:
            return ruling.refusal
        if ruling.code == "stopped":
            part, record = state.part(order.place), self._engine.index_record(order.place)
            if part is None or record is None or record.at != order.key:
                return _REFUSED
            return Reply("stopped", floor=stopped_at(part, record))
        if order.kind in ("report", "admit", "index", "freeze"):
            return Reply("is")
        copy = self._copy_report(order.place, state)
        if ruling.code == "promised" and copy.standing.last_branch >= order.branch:
            return Reply("promised", copy, order.branch)
        return Reply("is", copy)


def _round(orders: Sequence[Order]) -> Sequence[Order]:
    """Return the first orders, as many as concern different partitions.

    The next order of a partition is judged by what the one before it has done.
    """
    seen = set[Place]()
    for at, order in enumerate(orders):
        if order.place in seen:
            return orders[:at]
        seen.add(order.place)
    return orders
