"""Index parts of a managed cluster: two nodes in this process, each with a real index process."""

from __future__ import annotations

import json
import time

import pytest
import pytest_asyncio
from msgspec import structs

from millstream.cluster import peers
from millstream.cluster.core.admission import AdoptIndex, Freeze, StopPart, stopped_at
from millstream.cluster.core.elements import NodeRecord, Plan
from millstream.cluster.core.index_moving import IndexMoves
from millstream.cluster.core.memory import Stopped
from millstream.cluster.core.orders import Place
from millstream.errors import CorruptionError, MillstreamError, UnavailableError
from millstream.model.cluster_maps import (
    NO_FLOOR,
    DataMap,
    DataRecord,
    Floor,
    IndexMap,
    IndexRecord,
    MapKey,
    next_index_map,
)
from millstream.node.index_parts import INDEX_PARTS_FILE, IndexParts
from support.cluster.scene import ACTIVE, HERE, REPLICA, Scene, copy_report
from support.kv.two_engines import BUCKET, PARTITIONS, UUID, port_of, two_engines, until

pytestmark = pytest.mark.asyncio(loop_scope="module")
VIEWS = {"views": {"v": {"map": "function (doc) { emit(doc.n); }"}}}
FAR_MS = 1 << 60


class Managed:
    """Two nodes with an index map; letters stand for the nodes."""

    def __init__(self, two) -> None:
        self.two = two
        self.ids = {name: engine.uuid for name, engine in two.engines.items()}
        self.parts = {name: engine.index_parts for name, engine in two.engines.items()}
        self.revision = 0
        self.records: list[IndexRecord] = []
        self.written: list[int] = []
        """What the view must show."""

    def write(self, key=None):
        """Write a document with the next number."""
        number = len(self.written)
        self.two.put(key or f"k{number}", {"n": number})
        self.written.append(number)

    @property
    def nodes(self):
        return {
            self.ids[name]: NodeRecord(
                name, "127.0.0.1", {"kv": port_of(one, "kv"), "http": port_of(one, "http")},
                ("data", "index"), state="in",
            )
            for name, one in self.two.engines.items()
        }  # fmt: skip

    def next(self, partition=None, owner=None, building=None, floor=NO_FLOOR):
        """Make the next index map, with another record of a partition."""
        self.revision += 1
        key = MapKey(2, self.revision)
        if partition is not None:
            self.records[partition] = IndexRecord(
                key, self.ids.get(owner), self.ids.get(building), floor
            )
        return IndexMap(key, UUID, tuple(self.records))

    def owners(self, owners):
        self.revision += 1
        self.records = [IndexRecord(MapKey(2, self.revision), self.ids.get(o)) for o in owners]
        return IndexMap(MapKey(2, self.revision), UUID, tuple(self.records))

    def data_map(self):
        key = MapKey(2, self.two.revision)
        rows = [self.ids[name] for name in self.two.rows]
        return DataMap(key, UUID, tuple(DataRecord(key, one, 1, ((one,),)) for one in rows))

    async def take(self, index_map, *names):
        for name in names or "ab":
            await self.parts[name].take_maps(UUID, index_map, self.data_map(), self.nodes)

    async def adopt(self, name, partition):
        step = AdoptIndex(Place(UUID, partition), self.records[partition])
        await self.parts[name].carry_out(UUID, [step])

    async def part(self, name, partition):
        await self.parts[name].refresh()
        return self.parts[name].parts()[UUID].get(partition)

    async def rows(self, name, design, **options):
        indexes = self.two.engines[name].indexes
        answer = await indexes.query(BUCKET, design, "v", {"timeout": 20_000, **options})
        try:
            text = b"".join([piece async for piece in answer])
        finally:
            await answer.close()
        return json.loads(text)

    async def keys(self, name, design, **options):
        return [row["key"] for row in (await self.rows(name, design, **options))["rows"]]

    async def refused(self, name, design, **options):
        with pytest.raises(MillstreamError) as raised:
            await self.rows(name, design, timeout=1000, **options)
        return raised.value.code


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(peers, "NODE_ASK_S", 0.02)
        async with two_engines(tmp_path_factory.mktemp("two")) as two:
            made = Managed(two)
            made.design = two.design_of("a")
            await two.design(made.design, VIEWS)
            for _ in range(40):
                made.write()
            yield made


@pytest.fixture
def managed(shared):
    for parts in shared.parts.values():
        parts.set_lease(FAR_MS)
    return shared


async def until_known(managed):
    """Wait until both nodes know the design document."""
    for engine in managed.two.engines.values():
        own = engine.others.own[UUID]
        await until(lambda own=own: not own.lacks_designs())
        await until(lambda engine=engine: engine.indexes._known[UUID].has_views)


async def test_one_node_owns_the_index_of_partitions_that_lie_on_two(managed):
    await managed.take(managed.owners("bbbb"))
    await until_known(managed)
    assert await managed.keys("b", managed.design) == managed.written
    assert await managed.keys("a", managed.design) == managed.written, "it asks the owner"
    assert await managed.part("a", 0) is None
    part = await managed.part("b", 0)
    assert (part.state, part.has_floor, part.at) == ("active", True, managed.records[0].at)
    assert part.reached.seqno == managed.two.engines["a"].served[BUCKET].partitions[0].high_seqno


async def test_data_that_moves_moves_no_index(managed):
    await managed.take(managed.owners("aabb"))
    await until_known(managed)
    assert await managed.keys("a", managed.design) == managed.written
    records = [managed.parts["a"].index_record(Place(UUID, p)) for p in range(PARTITIONS)]
    before = [await managed.part("a", p) for p in (0, 1)]
    managed.two.revision += 1  # a whole map of the same places, and a node more
    await managed.take(managed.next())
    assert records == [managed.parts["a"].index_record(Place(UUID, p)) for p in range(PARTITIONS)]
    assert [await managed.part("a", p) for p in (0, 1)] == before
    assert await managed.keys("b", managed.design) == managed.written


async def test_a_bucket_without_owners_is_refused_and_never_short(managed):
    await managed.take(managed.owners("aaab"))
    await until_known(managed)
    assert await managed.keys("a", managed.design) == managed.written
    await managed.take(managed.next(3, None))
    assert await managed.refused("a", managed.design) == "index_moving"
    assert await managed.refused("b", managed.design, update="false") == "index_moving"
    found = await managed.rows("a", managed.design, on_error="continue")
    (error,) = found["errors"]
    assert (error["error"], error["partitions"]) == ("index_moving", [3])
    assert len(found["rows"]) < len(managed.written)


async def test_a_node_out_of_step_answers_nothing(managed):
    await managed.take(managed.owners("aabb"))
    await until_known(managed)
    assert await managed.keys("b", managed.design) == managed.written
    managed.parts["a"].set_lease(time.monotonic_ns() // 1_000_000 - 1)
    assert await managed.refused("a", managed.design) == "index_moving"
    assert await managed.refused("b", managed.design) == "index_moving"
    managed.parts["a"].set_lease(FAR_MS)
    assert await managed.keys("a", managed.design) == managed.written


class Orchestrated:
    """The decisions of an orchestrator about partition 1, carried out at two real nodes."""

    def __init__(self, managed, wanted):
        self.managed, self.wanted = managed, wanted
        self.scene = Scene(("a", "b"), nodes="ab")
        for name in "ab":
            self.scene.set_node(name, roles=("data", "index"))
        key = managed.records[1].at
        self.scene.set(index={"u1": IndexMap(key, "u1", (IndexRecord(key, "a"),))})
        plan = Plan(1, "rebalance", self.scene.state.basis, {}, {"u1": (wanted,)}, 0)
        self.scene.set(plan=plan)
        self.kinds = []

    @property
    def record(self):
        return self.scene.state.index["u1"].records[0]

    def real(self):
        ids = self.managed.ids
        record = self.record
        return structs.replace(
            record, owner=ids.get(record.owner), building=ids.get(record.building)
        )

    async def step(self):
        scene, managed = self.scene, self.managed
        scene.now_ms += 10
        for name in "ab":
            part = await managed.part(name, 1)
            parts = {} if part is None else {"u1": {0: part}}
            scene.hear(name, copy_report(ACTIVE if name == "a" else REPLICA), parts=parts)
        step = scene.step()
        change = IndexMoves(step).tend(HERE, self.record)
        for order in step.decision.orders:
            await self.obey(order)
        if change is not None:
            index_map = next_index_map(scene.state.index["u1"], {0: change.record})
            scene.set(index={"u1": index_map})
            managed.records[1], managed.revision = self.real(), index_map.key.revision

    async def obey(self, order):
        parts, place = self.managed.parts[order.to], Place(UUID, 1)
        self.kinds.append(order.kind)
        if order.kind == "index":
            await parts.carry_out(UUID, [AdoptIndex(place, self.real())])
            return
        assert parts.index_record(place).at == order.key
        kind = Freeze if order.kind == "freeze" else StopPart
        await parts.carry_out(UUID, [kind(place)])
        if order.kind == "stop":
            floor = stopped_at(parts.parts()[UUID][1], parts.index_record(place))
            self.scene.memory.stopped[HERE] = Stopped(order.key, floor, self.scene.now_ms)


async def test_a_part_is_handed_over_and_no_answer_shows_less_than_one_before(managed):
    await managed.take(managed.owners("aaaa"))
    await until_known(managed)
    assert await managed.keys("a", managed.design) == managed.written
    moving = Orchestrated(managed, "b")
    shown = len(managed.written)
    last = shown + 160

    async def is_done():
        nonlocal shown
        await moving.step()
        if len(managed.written) < last:
            managed.write()
        for name in "ab":
            try:
                found = await managed.keys(name, managed.design, update="false", timeout=1)
            except UnavailableError as error:
                if error.code != "index_moving":
                    raise
            else:
                assert len(found) >= shown, f"{name} shows {found}"
                shown = len(found)
        return moving.record.owner == "b" and moving.record.building is None

    await until(is_done)
    assert "stop" in moving.kinds
    floor = moving.record.floor
    assert floor.seqno > 0
    assert (await managed.part("a", 1)).state == "passive", "it has not heard of the new record"
    await until(lambda: is_gone(managed, moving))
    for name in "ab":
        assert await managed.keys(name, managed.design) == managed.written
    part = await managed.part("b", 1)
    assert (part.state, part.has_floor) == ("active", True)
    assert part.reached >= floor


async def is_gone(managed, moving):
    await moving.step()
    return await managed.part("a", 1) is None


async def behind(managed, name, partition, floor):
    part = await managed.part(name, partition)
    return part is not None and part.reached >= floor


async def test_a_stopped_part_never_answers_again_under_its_record(managed):
    await managed.take(managed.owners("aabb"))
    await until_known(managed)
    assert await managed.keys("b", managed.design) == managed.written
    await managed.parts["a"].carry_out(UUID, [StopPart(Place(UUID, 0))])
    await managed.take(managed.next())
    await managed.adopt("a", 0)
    assert await managed.refused("a", managed.design, update="false") == "index_moving"
    folder = managed.parts["a"]._folder
    again = IndexParts(managed.ids["a"], folder, Told())
    again.bucket_up(UUID)
    assert again.parts()[UUID][0].state == "passive"
    assert again.parts()[UUID][1].state == "active"
    await managed.take(managed.next(0, "a"))
    assert await managed.keys("a", managed.design) == managed.written


async def test_a_new_owner_answers_once_it_has_reached_the_floor(managed):
    await managed.take(managed.owners("aabb"))
    await until_known(managed)
    assert await managed.keys("b", managed.design) == managed.written
    part = await managed.part("a", 0)
    beyond = Floor(part.reached.branch, part.reached.seqno + 1)
    await managed.take(managed.next(0, "b", None, beyond))
    await until(lambda: behind(managed, "b", 0, part.reached))
    assert not (await managed.part("b", 0)).has_floor
    for name in "ab":
        assert await managed.refused(name, managed.design, update="false") == "index_moving"
    key = next(f"m{n}" for n in range(100) if managed.two.engines["a"].served[BUCKET]
               .partition_for(f"m{n}".encode()).partition_id == 0)  # fmt: skip
    managed.write(key)
    assert await managed.keys("a", managed.design) == managed.written
    assert (await managed.part("b", 0)).has_floor


async def test_a_floor_of_a_history_that_is_not_followed_yet_is_not_reached(managed):
    await managed.take(managed.owners("aabb"))
    await until_known(managed)
    assert await managed.keys("b", managed.design) == managed.written
    part = await managed.part("a", 0)
    higher = Floor(part.reached.branch + 1, 0)
    await managed.take(managed.next(0, "a", None, higher))
    assert await managed.refused("a", managed.design, update="false") == "index_moving"


async def test_without_views_a_part_is_where_its_record_demands(tmp_path):
    async with two_engines(tmp_path) as two:
        managed = Managed(two)
        floor = Floor(5, 7)
        managed.owners("aabb")
        await managed.take(managed.next(0, "a", "b", floor))
        for engine in two.engines.values():
            own = engine.others.own[UUID]
            await until(lambda own=own: not own.lacks_designs())
            await until(lambda engine=engine: engine.indexes._known[UUID].is_certain)
        going, coming = [await managed.part(name, 0) for name in "ab"]
        assert going.reached == coming.reached == floor
        assert going.designs == coming.designs
        assert coming.state == "passive"
        await managed.parts["a"].carry_out(UUID, [StopPart(Place(UUID, 0))])
        assert not two.engines["a"].indexes.process.is_wanted


async def test_what_is_not_known_is_told_as_equal_to_nothing(managed, monkeypatch):
    await managed.take(managed.owners("aaaa"))
    await managed.take(managed.next(0, "a", "b"))

    async def nothing(uuid, known):
        return None

    for engine in managed.two.engines.values():
        monkeypatch.setattr(engine.indexes, "parts", nothing)
    going, coming = [await managed.part(name, 0) for name in "ab"]
    assert going.designs != coming.designs
    with pytest.raises(UnavailableError):
        await managed.parts["a"].carry_out(UUID, [StopPart(Place(UUID, 0))])
    assert (await managed.part("a", 0)).state == "active", "it goes on"


# ---- without an index process


class Told:
    """Has the shape of `Indexes`."""

    def __init__(self) -> None:
        self.ownership = None
        self.told = 0
        self.failures: list[MillstreamError] = []
        self.answer: dict | None = {"is_certain": True}

    def describe_again(self, uuid):
        self.told += 1

    async def until_told(self, uuid):
        if self.failures:
            raise self.failures.pop()

    async def parts(self, uuid, known):
        return self.answer


RECORDS = tuple(IndexRecord(MapKey(2, 1), owner) for owner in ("me", "me", "other"))
MAP = IndexMap(MapKey(2, 1), UUID, RECORDS)
PLACE = Place(UUID, 0)


@pytest.fixture
def told():
    return Told()


@pytest.fixture
def parts(tmp_path, told):
    (tmp_path / UUID).mkdir()
    return IndexParts("me", tmp_path, told)


async def test_what_was_ordered_is_durable(parts, told, tmp_path):
    await parts.take_maps(UUID, MAP, None, {})
    await parts.carry_out(UUID, [Freeze(PLACE), StopPart(Place(UUID, 1))])
    again = IndexParts("me", tmp_path, told)
    again.bucket_up(UUID)
    found = again.parts()[UUID]
    assert [(found[p].state, found[p].is_frozen) for p in (0, 1)] == [
        ("active", True), ("passive", True),
    ]  # fmt: skip
    assert again.index_record(Place(UUID, 2)) == RECORDS[2]
    order = again.described({"uuid": UUID, "active": [5], "follows": None})
    assert (order["active"], order["passive"], order["owned"].frozen) == ([0], [1], [0, 1])
    assert again.is_managed(UUID)
    again.bucket_gone(UUID)
    assert not again.is_managed(UUID)


async def test_older_maps_and_records_are_passed_over(parts, told):
    newer = IndexRecord(MapKey(2, 5), "other")
    await parts.carry_out(UUID, [AdoptIndex(PLACE, newer)])
    await parts.take_maps(UUID, MAP, None, {})
    assert parts.index_record(PLACE) == newer
    before = told.told
    await parts.take_maps(UUID, MAP, None, {})
    assert told.told == before, "nothing is new"
    with pytest.raises(CorruptionError):
        await parts.carry_out(UUID, [AdoptIndex(PLACE, IndexRecord(MapKey(2, 5), "me"))])


def answer(count=1, shown=50):
    return {"count": count, "designs": "d", "cleaning": [], "is_certain": True,
            "own_designs": "d", "outside_s": None,
            "parts": {"0": [[2, 1], [3, 10], [3, shown], True, True, [3, 10]]}}  # fmt: skip


async def test_only_a_stop_waits_for_the_index_process(parts, told):
    told.failures = [UnavailableError("busy", code="index_unavailable")] * 3
    told.answer = answer()
    await parts.take_maps(UUID, MAP, None, {})
    await parts.carry_out(UUID, [Freeze(PLACE)])
    with pytest.raises(UnavailableError, match="busy"):
        await parts.carry_out(UUID, [StopPart(PLACE)])
    assert parts.parts()[UUID][0].state == "passive", "it is durable"
    told.failures = []
    await parts.carry_out(UUID, [StopPart(PLACE)])


async def test_a_part_goes_on_if_how_far_it_is_cannot_be_known(parts, told):
    await parts.take_maps(UUID, MAP, None, {})
    told.answer = None
    with pytest.raises(UnavailableError, match="how far part 0"):
        await parts.carry_out(UUID, [StopPart(PLACE)])
    assert parts.parts()[UUID][0].state == "active"


async def test_while_design_documents_are_missing_parts_equal_nothing_and_may_stop(parts, told):
    await parts.take_maps(UUID, MAP, None, {})
    told.answer = {**answer(), "is_certain": False}
    await parts.refresh()
    part = parts.parts()[UUID][0]
    assert part.reached == Floor(3, 50)
    assert part.designs != "d"
    await parts.carry_out(UUID, [StopPart(PLACE)])
    assert stopped_at(parts.parts()[UUID][0], RECORDS[0]) == Floor(3, 50)


async def test_what_a_stopped_part_showed_stays_known(parts, told):
    await parts.take_maps(UUID, MAP, None, {})
    told.answer = answer()
    await parts.carry_out(UUID, [StopPart(PLACE)])
    told.answer = None
    await parts.refresh()
    stopped = parts.parts()[UUID][0]
    assert (stopped.reached, stopped.has_floor) == (Floor(3, 50), True)
    assert stopped_at(stopped, RECORDS[0]) == Floor(3, 50)
    await parts.carry_out(UUID, [AdoptIndex(PLACE, IndexRecord(MapKey(2, 2), "me"))])
    assert not parts.parts()[UUID][0].has_floor, "how far it is now is not known"


async def test_what_cannot_be_written_is_not_in_force(parts, told, tmp_path):
    (tmp_path / UUID).rmdir()
    with pytest.raises(UnavailableError) as raised:
        await parts.take_maps(UUID, MAP, None, {})
    assert raised.value.code == "disk_error"
    assert parts.index_record(PLACE) is None
    assert told.told == 0


async def test_parts_of_a_damaged_file_answer_nothing_under_the_record_they_had(parts, tmp_path):
    await parts.take_maps(UUID, MAP, None, {})
    path = tmp_path / UUID / INDEX_PARTS_FILE
    path.write_bytes(path.read_bytes().replace(b'"me"', b'"mf"'))
    again = IndexParts("me", tmp_path, Told())
    again.bucket_up(UUID)
    assert again.is_managed(UUID), "it does not answer by its data map"
    await again.take_maps(UUID, MAP, None, {})
    assert [again.parts()[UUID][p].state for p in (0, 1)] == ["passive"] * 2
    newer = IndexRecord(MapKey(2, 2), "me")
    await again.carry_out(UUID, [AdoptIndex(PLACE, newer)])
    assert again.parts()[UUID][0].state == "active"


async def test_what_an_owner_has_reported_does_not_fall(parts, told):
    await parts.take_maps(UUID, MAP, None, {})
    for count, shown, reached in [(1, 50, 50), (2, 20, 50), (3, 60, 60)]:
        told.answer = answer(count, shown)
        await parts.refresh()
        assert parts.parts()[UUID][0].reached == Floor(3, reached)
    told.answer = {"count": 3, "is_certain": True}
    await parts.refresh()
    assert parts.parts()[UUID][0].designs == "d", "nothing has happened"
    told.answer = None
    await parts.refresh()
    assert parts.parts()[UUID][0].designs != "d"
