"""Orders at one node: what is judged, carried out, refused and told."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from millstream.cluster.aio.local_engine import ClusterMaps
from millstream.cluster.aio.messages import OrdersReply, OrdersRequest
from millstream.cluster.aio.order_taker import OrderTaker
from millstream.cluster.core.admission import Step, TakeOver
from millstream.cluster.core.elements import Bucket
from millstream.cluster.core.orders import Order, Place
from millstream.cluster.core.settings import Settings
from millstream.model.cluster_maps import DataMap, DataRecord, IndexMap, IndexRecord, MapKey
from millstream.model.partitions import PartitionState
from millstream.vsr.core.versions import Version
from support.cluster.engine_double import EngineDouble

KEY, TOKEN = MapKey(2, 5), Version(1, 1, 9)
RECORD = DataRecord(KEY, "b", 7, (("b", "a"),))


def maps(*buckets: str) -> ClusterMaps:
    return ClusterMaps(
        "c", Settings(moves=7), {},
        {one: Bucket(one, 2, 1) for one in buckets},
        {one: DataMap(KEY, one, (RECORD, RECORD)) for one in buckets},
        {one: IndexMap(KEY, one, (IndexRecord(KEY, None),) * 2) for one in buckets},
    )  # fmt: skip


def order(kind: Any, place: Place = Place("u", 0), **others: Any) -> Order:  # noqa: B008
    given = {"record": RECORD} if place.bucket else {}
    return Order(kind, "c", "a", others.pop("token", TOKEN), place, **{**given, **others})


@pytest.fixture
async def engine() -> EngineDouble:
    return EngineDouble("a")


@pytest.fixture
async def taker(engine: EngineDouble) -> OrderTaker:
    made = OrderTaker("a", "c", engine)
    await made.begin(3, TOKEN, maps("u", "v"))
    return made


async def take(taker: OrderTaker, *orders: Order) -> OrdersReply:
    return await taker.take(OrdersRequest(orders))


async def test_a_node_out_of_step_obeys_nothing_and_has_no_lease(engine: EngineDouble) -> None:
    taker = OrderTaker("a", "c", engine)
    taker.set_lease(100)
    assert engine.lease_ms is None
    said = await take(taker, order("report", Place("", 0)), order("adopt"))
    assert [reply.code for reply in said.replies] == ["out_of_step", "out_of_step"]
    assert (said.report, engine.done) == (None, [])
    await taker.begin(1, TOKEN, maps("u"))
    assert (engine.lease_ms, engine.settings.moves) == (100, 7)
    taker.leave()
    assert engine.lease_ms is None


async def test_a_node_is_admitted_in_its_present_session_only(
    taker: OrderTaker, engine: EngineDouble
) -> None:
    await take(taker, order("admit", Place("", 0), boots=2))
    assert not engine.is_admitted
    await take(taker, order("admit", Place("", 0), boots=3))
    assert engine.is_admitted
    taker.leave()
    assert not engine.is_admitted


async def test_orders_of_one_partition_follow_each_other_in_one_request(
    taker: OrderTaker, engine: EngineDouble
) -> None:
    said = await take(
        taker,
        order("promise", branch=9),
        order("promise", Place("u", 1), branch=9),
        order("activate", branch=9, boots=3),
        order("report", Place("", 0)),
    )
    codes = [(reply.code, reply.branch) for reply in said.replies]
    assert codes == [("promised", 9), ("promised", 9), ("is", 0), ("is", 0)]
    assert engine.held[Place("u", 0)].state is PartitionState.ACTIVE
    assert said.report is not None
    assert said.report.copies["u"][0].standing.branch == 9
    assert said.report.keys == {"u": KEY, "v": KEY}


async def test_a_larger_token_is_obeyed_from_then_on(taker: OrderTaker) -> None:
    newer = TOKEN._replace(lsn=10)
    await take(taker, order("report", Place("", 0), token=newer))
    said = await take(taker, order("adopt"))
    assert [(one.code, one.token) for one in said.replies] == [("deposed", newer)]


async def test_a_bucket_that_fails_spoils_no_reply_of_others(
    taker: OrderTaker, engine: EngineDouble
) -> None:
    engine.failing.add("u")
    said = await take(taker, order("promise", branch=9), order("promise", Place("v", 0), branch=9))
    assert [reply.code for reply in said.replies] == ["refused", "promised"]
    assert "broken" in taker.problems["u"]
    copy = said.replies[0].copy
    assert copy is not None
    assert copy.standing.last_branch == 7
    engine.failing.clear()
    said = await take(taker, order("promise", branch=9))
    assert [reply.code for reply in said.replies] == ["promised"]
    assert not taker.problems


async def test_a_record_with_other_content_is_refused_and_told(taker: OrderTaker) -> None:
    other = DataRecord(KEY, "a", 7, (("a", "b"),))
    said = await take(taker, order("adopt", record=other))
    assert [reply.code for reply in said.replies] == ["refused"]
    assert "differ" in taker.problems["u"]


async def test_a_take_over_is_begun_once_and_delays_no_other_request() -> None:
    engine = SlowTakeOver("a")
    taker = OrderTaker("a", "c", engine)
    await taker.begin(3, TOKEN, maps("u"))
    for _ in range(2):
        said = await take(taker, order("take_over"), order("report", Place("", 0)))
        assert [reply.code for reply in said.replies] == ["is", "is"]
    await asyncio.sleep(0)
    assert engine.begun == 1
    engine.go_on.set()
    await taker._tasks.finish()
    await take(taker, order("take_over"))
    await taker._tasks.finish()
    assert engine.begun == 2
    await taker.stop()


async def test_requests_are_numbered_within_the_process(
    taker: OrderTaker, engine: EngineDouble
) -> None:
    first, second = await take(taker), await take(taker)
    assert (second.process, second.number) == (first.process, first.number + 1)
    assert (await take(OrderTaker("a", "c", engine))).process != first.process


async def test_maps_of_another_cluster_are_not_taken(
    taker: OrderTaker, engine: EngineDouble
) -> None:
    other = maps("u", "w")
    await taker.take(OrdersRequest(maps=ClusterMaps("other", Settings(), {}, {}, other.data, {})))
    assert set(engine.taken) == {"u", "v"}
    await taker.take(OrdersRequest(maps=other))
    assert set(engine.taken) == {"u", "v", "w"}


class SlowTakeOver(EngineDouble):
    def __init__(self, node: str) -> None:
        super().__init__(node)
        self.begun, self.go_on = 0, asyncio.Event()

    async def carry_out(self, bucket: str, steps: Any) -> None:
        one: Step = steps[0]
        if isinstance(one, TakeOver):
            self.begun += 1
            await self.go_on.wait()
            return
        await super().carry_out(bucket, steps)
