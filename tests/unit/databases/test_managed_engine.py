"""The engine of a managed cluster, with orders that the real core decides."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from millstream.cluster.aio.local_engine import ClusterMaps, LocalEngine
from millstream.cluster.core.admission import (
    Activate,
    Adopt,
    AdoptIndex,
    Freeze,
    Promise,
    Remove,
    Step,
    StopPart,
    TakeOver,
)
from millstream.cluster.core.elements import Bucket, NodeRecord
from millstream.cluster.core.orders import Place
from millstream.cluster.core.reports import PartReport
from millstream.cluster.core.settings import TAKE_OVERS_MAX, Settings
from millstream.databases.managed_engine import IndexStep, ManagedEngine
from millstream.errors import ConditionError, CorruptionError, UnavailableError
from millstream.model.cluster_maps import DataMap, DataRecord, IndexRecord, MapKey, next_data_map
from millstream.model.partitions import PartitionState
from millstream.model.serving_rights import Right
from millstream.storage.core.records import NOTHING_OWED
from millstream.vsr.core.versions import Version
from support.cluster.managed_engines import (
    HERE,
    UUID,
    WAIT_S,
    ManagedNode,
    ManagedNodes,
    keys_of,
    put,
)

ACTIVE, REPLICA, DEAD, ABSENT = (
    PartitionState[name] for name in ("ACTIVE", "REPLICA", "DEAD", "ABSENT")
)
ROWS = (("a", "b"), ("b", "a"), ("c", "a"), ("a", "b"))


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ManagedNodes]:
    made = ManagedNodes(tmp_path, ROWS)
    await made.start()
    yield made
    await made.stop()


def states(cluster: ManagedNodes, name: str) -> list[PartitionState]:
    return [partition.state for partition in cluster.nodes[name].bucket.partitions]


async def until(is_so: Callable[[], object]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not is_so():  # noqa: ASYNC110 - connections go on meanwhile
            await asyncio.sleep(0.01)


def is_served(cluster: ManagedNodes) -> bool:
    return all(
        record.active is not None
        and cluster.nodes[record.active].partition(number).state is ACTIVE
        for number, record in enumerate(cluster.data_map.records)
    )


async def test_a_map_makes_the_bucket_and_replicas_where_it_places_them(
    cluster: ManagedNodes,
) -> None:
    assert [states(cluster, name) for name in "abc"] == [
        [REPLICA] * 4, [REPLICA, REPLICA, ABSENT, REPLICA], [ABSENT, ABSENT, REPLICA, ABSENT]
    ]  # fmt: skip
    for node in cluster.nodes.values():
        engine: LocalEngine = node.engine
        assert engine.keys() == {UUID: cluster.data_map.key}
        assert node.bucket.uuid == UUID


async def test_fresh_replicas_are_promoted_where_nobody_ever_served(cluster: ManagedNodes) -> None:
    await cluster.until(lambda: is_served(cluster))
    assert [record.active for record in cluster.data_map.records] == ["a", "b", "c", "a"]
    copy = cluster.nodes["a"].engine.copies()[UUID][0]
    assert copy.standing.state is ACTIVE
    assert copy.standing.branch == cluster.record().branch > 0
    assert copy.may_serve
    assert cluster.nodes["a"].partition().acknowledged.rows == (("a", "b"),)


async def served(cluster: ManagedNodes) -> None:
    await cluster.until(lambda: is_served(cluster))


async def test_copies_tell_their_share_of_the_log(cluster: ManagedNodes) -> None:
    await served(cluster)
    node = cluster.nodes["a"]
    put(node, 0, "k1", "k2", "k3")
    put(node, 3, "k4")
    found = node.engine.copies()[UUID]
    sizes = [found[number].log_bytes or 0 for number in (0, 3, 1)]
    assert sizes[0] // 3 == sizes[1] > 0 == sizes[2]
    assert cluster.nodes["b"].engine.copies()[UUID][2].log_bytes is None, "it has no copy"


async def test_a_copy_moves_to_another_node_with_all_it_had(cluster: ManagedNodes) -> None:
    await served(cluster)
    put(cluster.nodes["a"], 0, "k1", "k2")
    cluster.set_plan(("c", "b"), *ROWS[1:])

    def is_moved() -> bool:
        record = cluster.record()
        is_settled = record.rows == (("c", "b"),) and not record.building
        return is_settled and states(cluster, "a")[0] is ABSENT

    await cluster.until(is_moved)
    assert cluster.record().active == "c"
    assert (states(cluster, "c")[0], states(cluster, "b")[0]) == (ACTIVE, REPLICA)
    assert keys_of(cluster.nodes["c"]) == {"k1", "k2"}
    kinds = {kind for kind, _ in cluster.seen}
    assert {"promise", "activate", "take_over", "remove"} <= kinds
    shown = cluster.nodes["a"].bucket.map
    assert shown is not None
    assert shown.rows[0] == ("c", "b")
    assert (shown.generation, shown.revision) == cluster.data_map.key


async def test_joint_rows_need_a_majority_of_each_and_are_confirmed_by_the_last(
    cluster: ManagedNodes,
) -> None:
    await served(cluster)
    node = cluster.nodes["a"]
    joint = replace(cluster.record(), rows=(("a", "b"), ("a", "c")))
    cluster.write(next_data_map(cluster.data_map, {0: joint}))
    await cluster.give_maps("a")
    acknowledged = node.partition().acknowledged
    assert acknowledged is not None
    await cluster.until(lambda: "b" in acknowledged._following)
    assert not acknowledged.is_possible, "c has no copy yet"
    put(node, 0, "k")
    assert acknowledged.majority_seqno == 0
    await cluster.give_maps("c")
    await until(lambda: acknowledged.majority_seqno == 1)
    await until(lambda: acknowledged.durable_seqno == 1)
    assert node.engine.copies()[UUID][0].is_confirmed


async def test_adopted_records_and_maps_outlive_the_process(cluster: ManagedNodes) -> None:
    await served(cluster)
    node = cluster.nodes["a"]
    newer = replace(cluster.record(), at=MapKey(2, 90), building=("c",))
    await node.engine.carry_out(UUID, [Adopt(HERE, newer)])
    key, shown = node.engine.keys(), node.bucket.map
    await node.stop()
    await node.start()
    assert node.engine.record(HERE) == newer
    assert node.engine.keys() == key
    held = node.engine.adopted()[UUID]
    assert (held.records[HERE.partition], held.key) == (newer, key[UUID])
    assert {one.name for one in held.nodes} >= {"a"}
    assert len(held.standings) == len(held.records)
    assert node.bucket.map == shown
    assert node.bucket.is_managed


async def test_a_node_that_was_killed_brings_its_copies_back_as_replicas_but_for_lone_ones(
    tmp_path: Path,
) -> None:
    cluster = ManagedNodes(tmp_path, (("a",), ("a", "b")), names="ab")
    await cluster.start()
    try:
        await served(cluster)
        node = cluster.nodes["a"]
        put(node, 0, "k")
        await node.buckets.running["b"].until_persisted(0, 1)
        await node.kill()
        await node.start()
        assert states(cluster, "a") == [ACTIVE, REPLICA]
        assert keys_of(node) == {"k"}
    finally:
        await cluster.stop()


async def test_a_copy_that_no_record_places_follows_nobody_and_is_left_alone(
    cluster: ManagedNodes,
) -> None:
    await served(cluster)
    acknowledged = cluster.nodes["a"].partition().acknowledged
    assert acknowledged is not None
    await cluster.until(lambda: "b" in acknowledged._following)
    without = replace(cluster.record(), rows=(("a", "c"),))
    cluster.write(next_data_map(cluster.data_map, {0: without}))
    for name in "abc":
        await cluster.give_maps(name)
    await until(lambda: "b" not in acknowledged._following)
    await until(lambda: "c" in acknowledged._following)
    assert states(cluster, "b")[0] is REPLICA
    assert cluster.nodes["b"].engine.copies()[UUID][0].at == cluster.record().at


async def test_a_source_with_an_older_record_adopts_the_newer_one_before_it_is_acknowledged_to(
    cluster: ManagedNodes,
) -> None:
    await served(cluster)
    source, copy = cluster.nodes["a"], cluster.nodes["b"]
    acknowledged = source.partition().acknowledged
    assert acknowledged is not None
    await cluster.until(lambda: "b" in acknowledged._following)
    newer = replace(cluster.record(), at=MapKey(2, 90), building=("c",))
    await copy.engine.carry_out(UUID, [Adopt(HERE, newer)])
    await until(lambda: source.engine.record(HERE) == newer)
    put(source, 0, "k")
    await until(lambda: acknowledged.majority_seqno == 1)


async def test_nothing_is_acknowledged_to_a_source_that_cannot_adopt(
    cluster: ManagedNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    await served(cluster)
    source, copy = cluster.nodes["a"], cluster.nodes["b"]
    acknowledged = source.partition().acknowledged
    assert acknowledged is not None
    await cluster.until(lambda: "b" in acknowledged._following)

    async def refuse(_: object) -> None:
        raise UnavailableError("no space", code="disk_error")

    with monkeypatch.context() as full:
        full.setattr(source.bucket, "adopt", refuse)
        newer = replace(cluster.record(), at=MapKey(2, 90), building=("c",))
        await copy.engine.carry_out(UUID, [Adopt(HERE, newer)])
        put(source, 0, "k")
        await until(lambda: copy.partition().high_seqno == 1)
        await until(lambda: copy.partition().persisted_seqno == 1)
        assert acknowledged.majority_seqno == 0
    await until(lambda: acknowledged.majority_seqno == 1)
    assert source.engine.record(HERE) == newer


async def test_a_copy_with_an_older_record_takes_that_of_its_source(cluster: ManagedNodes) -> None:
    await served(cluster)
    newer = replace(cluster.record(), at=MapKey(2, 90), building=("c",))
    await cluster.nodes["a"].engine.carry_out(UUID, [Adopt(HERE, newer)])
    copy = cluster.nodes["b"]
    await copy.stop()
    await copy.start()
    await until(lambda: copy.engine.record(HERE) == newer)


async def test_a_partition_is_handed_over_only_to_the_first_of_the_row_by_who_may_serve(
    cluster: ManagedNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    await served(cluster)
    source, copy = cluster.nodes["a"], cluster.nodes["b"]
    take = copy.buckets.replicator("b").take_over
    with pytest.raises(UnavailableError, match="not taken over"):
        await take(0)
    moved = replace(cluster.record(), rows=(("a", "b"), ("b", "a")))
    cluster.write(next_data_map(cluster.data_map, {0: moved}))
    for name in "abc":
        await cluster.give_maps(name)
    with monkeypatch.context() as isolated:
        isolated.setattr(source.bucket, "may_serve_now", lambda _: False)
        isolated.setattr(source.bucket, "right_now", lambda _: Right(False, False), raising=False)
        with pytest.raises(UnavailableError, match="not taken over"):
            await take(0)
    assert states(cluster, "a")[0] is ACTIVE
    await take(0)
    assert (states(cluster, "a")[0], states(cluster, "b")[0]) == (DEAD, ACTIVE)


async def test_a_branch_above_the_one_that_serves_is_heard_of(cluster: ManagedNodes) -> None:
    await served(cluster)
    copy = cluster.nodes["b"]
    branch = cluster.record().branch + 5
    await copy.engine.carry_out(UUID, [Promise(HERE, branch, False, True)])
    engine = cluster.nodes["a"].engine
    await until(lambda: engine.copies()[UUID][0].heard == branch)
    await cluster.until(lambda: cluster.record().branch > branch and is_served(cluster))


async def test_many_steps_of_a_kind_share_one_commit(
    cluster: ManagedNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = cluster.nodes["a"]
    store, calls = node.buckets.running["b"].store, list[str]()
    for name in ("promise", "activate_all"):
        real = getattr(store, name)

        def counted(*args: Any, real: Any = real, name: str = name, **named: Any) -> Any:
            calls.append(name)
            return real(*args, **named)

        monkeypatch.setattr(store, name, counted)
    steps: list[Step] = []
    for number in range(3):
        place = Place(UUID, number)
        steps += [
            Adopt(place, replace(cluster.record(number), at=MapKey(2, 50))),
            Promise(place, 70 + number, False, True),
            Activate(place, 70 + number, ()),
        ]
    await node.engine.carry_out(UUID, steps)
    assert calls == ["promise", "activate_all"]
    assert states(cluster, "a") == [ACTIVE] * 3 + [REPLICA]
    assert [node.partition(n).failover_log[0].branch for n in range(3)] == [70, 71, 72]
    assert node.engine.record(Place(UUID, 2)).at == MapKey(2, 50)


async def test_two_records_of_one_key_are_damage(cluster: ManagedNodes) -> None:
    node = cluster.nodes["a"]
    other = replace(cluster.record(), building=("c",))
    with pytest.raises(CorruptionError) as caught:
        await node.engine.carry_out(UUID, [Adopt(HERE, other)])
    assert caught.value.code == "other_map"
    assert node.engine.record(HERE) == cluster.record()


async def test_a_bucket_that_is_gone_is_dropped_but_not_by_maps_that_are_older(
    cluster: ManagedNodes,
) -> None:
    engine, node = cluster.nodes["a"].engine, cluster.nodes["a"]
    maps = cluster.maps()
    gone = replace(maps, buckets={}, data={}, version=Version(1, 1, 0))
    await engine.take_maps(gone)
    await engine.take_maps(replace(gone, cluster="other", version=Version(1, 1, 9)))
    assert node.dropped == []
    await engine.take_maps(replace(gone, version=Version(1, 1, 9)))
    assert node.dropped == ["b"]
    assert engine.keys() == engine.copies() == {}


async def test_nodes_without_any_stream_are_reported_as_broken(cluster: ManagedNodes) -> None:
    await served(cluster)
    engine = cluster.nodes["a"].engine
    await until(lambda: engine.broken() == {"b": False, "c": False})
    await cluster.nodes["b"].stop()
    await until(lambda: engine.broken() == {"b": True, "c": False})
    await cluster.nodes["b"].start()
    assert engine.has_space(0)
    assert not engine.has_space(100)


async def test_copies_follow_another_one_that_was_promoted_before_a_record_says_so(
    tmp_path: Path,
) -> None:
    cluster = ManagedNodes(tmp_path, (("a", "b", "c"),))
    await cluster.start()
    try:
        await served(cluster)
        put(cluster.nodes["a"], 0, "k")
        await until(lambda: keys_of(cluster.nodes["b"]) == keys_of(cluster.nodes["c"]) == {"k"})
        await cluster.nodes["a"].stop()
        branch = cluster.record().branch + 10
        for name in "bc":
            steps = [Promise(HERE, branch, False, True)]
            await cluster.nodes[name].engine.carry_out(UUID, steps)
        await cluster.nodes["b"].engine.carry_out(UUID, [Activate(HERE, branch, ())])
        put(cluster.nodes["b"], 0, "l")
        acknowledged = cluster.nodes["b"].partition().acknowledged
        assert acknowledged is not None
        await until(lambda: acknowledged.majority_seqno == 2)
        assert keys_of(cluster.nodes["c"]) == {"k", "l"}
        await cluster.nodes["a"].start()
    finally:
        await cluster.stop()


@pytest.mark.parametrize(
    ("is_there", "told"),
    [(True, "only this copy had the 1 changes after 1"), (False, "it is not known")],
)
async def test_what_only_a_removed_copy_had_is_logged(
    cluster: ManagedNodes, caplog: pytest.LogCaptureFixture, is_there: bool, told: str
) -> None:
    await served(cluster)
    source, copy = cluster.nodes["a"], cluster.nodes["b"]
    put(source, 0, "k")
    await until(lambda: keys_of(copy) == {"k"})
    moved = replace(cluster.record(), rows=(("a", "c"),))
    await copy.engine.carry_out(UUID, [Adopt(HERE, replace(moved, at=MapKey(2, 60)))])
    branch = cluster.record().branch + 3
    await copy.engine.carry_out(
        UUID, [Promise(HERE, branch, False, True), Activate(HERE, branch, ())]
    )
    put(copy, 0, "l")
    if not is_there:
        await source.stop()
    await copy.engine.carry_out(UUID, [Remove(HERE)])
    assert states(cluster, "b")[0] is ABSENT
    assert told in caplog.text
    if not is_there:
        await source.start()


async def test_a_bucket_that_cannot_follow_is_told_of_and_the_others_do(
    cluster: ManagedNodes, caplog: pytest.LogCaptureFixture
) -> None:
    node = cluster.nodes["a"]
    maps = cluster.maps()
    other = DataMap(MapKey(2, 1), "f" * 32, (DataRecord(MapKey(2, 1), None, 0, (("a",),)),) * 2)
    bad = DataMap(MapKey(2, 1), "e" * 32, other.records[:1])
    more = replace(
        maps,
        buckets={**maps.buckets, "e" * 32: Bucket("bad", 2, 0), "f" * 32: Bucket("n", 2, 0)},
        data={"e" * 32: bad, **maps.data, "f" * 32: other},
    )
    for _ in range(2):
        with pytest.raises(CorruptionError) as caught:
            await node.engine.take_maps(more)
        assert caught.value.code == "bad_cluster_map"
    assert node.engine.keys().keys() == {UUID, "f" * 32}
    assert [one.name for one in node.buckets.records()] == ["b", "n"]
    assert caplog.text.count("bucket bad does not follow") == 1


async def test_take_overs_go_on_in_the_background_some_at_a_time(tmp_path: Path) -> None:
    node = ManagedNode("a", tmp_path / "a")
    await node.start()
    begun: list[int] = []
    may_end = asyncio.Event()

    async def take_over(name: str, partition: int) -> None:
        begun.append(partition)
        await may_end.wait()
        raise UnavailableError("not now", code="not_taken_over")

    async def delete(_: str) -> None: ...

    engine = ManagedEngine("a", node.buckets, tmp_path, delete=delete, take_over=take_over)
    record = DataRecord(MapKey(2, 1), "b", 1, (("a", "b"),))
    nodes = {name: NodeRecord(name, "127.0.0.1", {"kv": 1, "http": 2}, ("data",)) for name in "ab"}
    await engine.take_maps(
        ClusterMaps("c1", Settings(), nodes, {UUID: Bucket("b", 8, 1)},
                    {UUID: DataMap(MapKey(2, 1), UUID, (record,) * 8)}, {})
    )  # fmt: skip
    steps = [TakeOver(Place(UUID, number)) for number in range(6)]
    for _ in range(2):
        await engine.carry_out(UUID, steps)
        await until(lambda: len(begun) == TAKE_OVERS_MAX)
    may_end.set()
    await until(lambda: len(begun) == 6)
    await engine.carry_out(UUID, steps[:1])
    await until(lambda: len(begun) == 7)
    await engine.stop()
    await node.stop()


async def test_a_copy_being_built_is_whole_once_what_is_beside_its_log_is_here(
    tmp_path: Path,
) -> None:
    node, is_here, asked = ManagedNode("a", tmp_path / "a"), False, set[tuple[str, int]]()
    await node.start()

    def is_copied(name: str, partition: int) -> bool:
        asked.add((name, partition))
        return is_here

    async def delete(_: str) -> None: ...

    engine = ManagedEngine("a", node.buckets, tmp_path, delete=delete, is_copied=is_copied)
    built = DataRecord(MapKey(2, 1), "b", 1, (("b",),), building=("a",))
    counted = DataRecord(MapKey(2, 1), "b", 1, (("b", "a"),))
    nodes = {name: NodeRecord(name, "127.0.0.1", {"kv": 1, "http": 2}, ("data",)) for name in "ab"}
    await engine.take_maps(
        ClusterMaps("c1", Settings(), nodes, {UUID: Bucket("b", 2, 1)},
                    {UUID: DataMap(MapKey(2, 1), UUID, (built, counted))}, {})
    )  # fmt: skip
    for partition in node.bucket.partitions:
        assert partition.replica is not None
        partition.replica.owed = NOTHING_OWED
    assert [one.standing.is_whole for one in engine.copies()[UUID].values()] == [False, True]
    is_here = True
    assert [one.standing.is_whole for one in engine.copies()[UUID].values()] == [True, True]
    assert asked == {("b", 0)}, "a copy that counts is not doubted"
    asked.clear()
    record = replace(built, at=MapKey(2, 2))
    await engine.carry_out(UUID, [Adopt(Place(UUID, 0), record), Adopt(Place(UUID, 1), record)])
    assert asked == {("b", 0), ("b", 1)}, "it begins before it is asked to report"
    await engine.stop()
    await node.stop()


async def test_a_bucket_is_unknown_and_not_missing_until_the_cluster_has_told(
    tmp_path: Path,
) -> None:
    node = ManagedNode("a", tmp_path / "a")
    await node.start()

    async def delete(_: str) -> None: ...

    engine = ManagedEngine("a", node.buckets, tmp_path, delete=delete)
    for ask in (lambda: node.buckets.engine("b"), node.buckets.check_known):
        with pytest.raises(UnavailableError) as caught:
            ask()
        assert caught.value.code == "buckets_unknown"
    await engine.take_maps(ClusterMaps("c1", Settings(), {}, {}, {}, {}))
    node.buckets.check_known()
    with pytest.raises(ConditionError) as missing:
        node.buckets.engine("b")
    assert missing.value.code == "bucket_not_found"
    await engine.stop()
    await node.stop()


class IndexDouble:
    """Keeps the steps that it is told."""

    def __init__(self) -> None:
        self.steps: list[object] = []

    def parts(self) -> dict[str, dict[int, PartReport]]:
        return {UUID: {}}

    def index_record(self, place: Place) -> IndexRecord | None:
        return IndexRecord(MapKey(2, place.partition), None)

    async def carry_out(self, bucket: str, steps: Sequence[IndexStep]) -> None:
        self.steps += steps

    async def take_maps(self, *_: object) -> None: ...

    def set_lease(self, lease_ms: int | None) -> None: ...


async def delete_nothing(_: str) -> None: ...


async def test_steps_of_the_index_go_to_the_index(cluster: ManagedNodes, tmp_path: Path) -> None:
    index = IndexDouble()
    buckets = cluster.nodes["a"].buckets
    engine = ManagedEngine("a", buckets, tmp_path, delete=delete_nothing, index=index)
    await engine.carry_out(UUID, [Freeze(HERE), Promise(HERE, 99, False, True), StopPart(HERE)])
    assert index.steps == [Freeze(HERE), StopPart(HERE)]
    assert cluster.nodes["a"].partition().last_branch == 99
    assert engine.parts() == {UUID: {}}
    assert engine.index_record(Place(UUID, 3)) == IndexRecord(MapKey(2, 3), None)
    with pytest.raises(ConditionError) as caught:
        await cluster.nodes["a"].engine.carry_out(UUID, [Freeze(HERE)])
    assert caught.value.code == "not_indexed"


async def test_a_late_order_makes_no_index_part_of_a_bucket_that_was_dropped(
    cluster: ManagedNodes, tmp_path: Path
) -> None:
    index, gone = IndexDouble(), Place("f" * 32, 0)
    buckets = cluster.nodes["a"].buckets
    engine = ManagedEngine("a", buckets, tmp_path, delete=delete_nothing, index=index)
    order = AdoptIndex(gone, IndexRecord(MapKey(1, 1), "a"))
    for step in (order, Freeze(gone), StopPart(gone)):
        with pytest.raises(ConditionError) as caught:
            await engine.carry_out(gone.bucket, [step])
        assert caught.value.code == "bucket_not_found"
    assert index.steps == []
    with pytest.raises(ConditionError) as caught:
        await engine.carry_out("f" * 32, [Promise(Place("f" * 32, 0), 1, False, True)])
    assert caught.value.code == "bucket_not_found"
