"""Maps of buckets: of a managed cluster, and made by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from millstream.cluster.aio.local_engine import ClusterMaps
from millstream.cluster.core.admission import Adopt
from millstream.cluster.core.elements import Bucket, NodeRecord
from millstream.cluster.core.settings import Settings
from millstream.data_directory import map_file
from millstream.data_directory.map_file import MAP_FILE, RECORDS_FILE, AdoptedMap, PlacedMap
from millstream.errors import (
    ConditionError,
    CorruptionError,
    MillstreamError,
    UnavailableError,
    UsageError,
)
from millstream.model.bucket_map import BucketMap, NodeAddress
from millstream.model.cluster_maps import DataMap, DataRecord, MapKey
from millstream.model.partitions import PartitionState
from support.cluster.managed_engines import HERE, UUID, ManagedNode, ManagedNodes, keys_of, put
from support.kv.node_buckets import NODES, opened, placed
from support.kv.node_buckets import UUID as OWN_UUID

ACTIVE = PartitionState.ACTIVE


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ManagedNodes]:
    made = ManagedNodes(tmp_path, (("a", "b"),) * 4, names="ab")
    await made.start()
    yield made
    await made.stop()


async def test_maps_made_by_hand_are_refused(cluster: ManagedNodes) -> None:
    nodes = (NodeAddress("a", "h", 1, 2), NodeAddress("b", "h", 3, 4))
    placed = PlacedMap(BucketMap(9, nodes, (("a", "b"),) * 4), "a")
    with pytest.raises(ConditionError) as caught:
        await cluster.nodes["a"].buckets.maps.set_map("b", UUID, 4, placed)
    assert caught.value.code == "managed"


async def test_a_bucket_of_its_own_node_becomes_managed_and_keeps_its_documents(
    tmp_path: Path,
) -> None:
    node = ManagedNode("a", tmp_path / "a")
    await node.start()
    uuid = (await node.buckets.create("b", 2)).uuid
    put(node, 1, "k")
    record = DataRecord(MapKey(2, 1), "a", 0, (("a",),))
    maps = ClusterMaps(
        "c1", Settings(), {"a": NodeRecord("a", "h", {"kv": 1, "http": 2}, ("data",))},
        {uuid: Bucket("b", 2, 0)}, {uuid: DataMap(MapKey(2, 1), uuid, (record, record))}, {},
    )  # fmt: skip
    await node.engine.take_maps(maps)
    assert node.bucket.is_managed
    await node.stop()
    await node.start()
    assert [one.state for one in node.bucket.partitions] == [ACTIVE, ACTIVE]
    assert keys_of(node, 1) == {"k"}
    await node.stop()


@pytest.mark.parametrize("content", [None, b"{}"])
async def test_without_its_records_a_bucket_is_not_served_and_a_whole_map_heals_it(
    cluster: ManagedNodes, content: bytes | None
) -> None:
    node = cluster.nodes["a"]
    file = node.path / "buckets" / UUID / RECORDS_FILE
    await node.stop()
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    await node.start()
    (status,) = node.buckets.statuses()
    assert status.state == "failed"
    assert RECORDS_FILE in status.reason
    assert node.engine.copies() == {}
    assert node.engine.record(HERE) is None
    await cluster.give_maps("a")
    assert node.buckets.statuses()[0].state == "ready"
    assert node.engine.record(HERE) == cluster.record()


async def test_a_record_that_cannot_be_written_is_not_in_force(
    cluster: ManagedNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = cluster.nodes["a"]
    newer = replace(cluster.record(), at=MapKey(2, 90), building=("c",))

    def refuse(*_: object, **__: object) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as full:
        full.setattr(map_file, "write_atomically", refuse)
        with pytest.raises(UnavailableError, match="no space left"):
            await node.engine.carry_out(UUID, [Adopt(HERE, newer)])
    assert node.engine.record(HERE) == cluster.record()
    await node.engine.carry_out(UUID, [Adopt(HERE, newer)])
    assert node.engine.record(HERE) == newer


@pytest.mark.parametrize(
    ("changed", "name", "partitions", "code"),
    [
        ({"cluster": "c2"}, "b", 4, "other_cluster"),
        ({}, "n", 4, "uuid_taken"),
        ({}, "b", 2, "bad_cluster_map"),
        ({}, "_b", 4, "bad_bucket_name"),
        ({}, "b", 3, "bad_partitions"),
        ({"data_map": DataMap(MapKey(9, 9), "f" * 32, ())}, "b", 4, "other_uuid"),
    ],
)
async def test_a_map_of_something_else_changes_nothing(
    cluster: ManagedNodes, changed: dict[str, object], name: str, partitions: int, code: str
) -> None:
    buckets = cluster.nodes["a"].buckets
    known = buckets.maps.adopted("b")
    assert known is not None
    given: AdoptedMap = known.adopted._replace(**changed)  # type: ignore[arg-type]
    if not given.data_map.records:
        given = given._replace(data_map=given.data_map._replace(records=cluster.data_map.records))
    with pytest.raises(MillstreamError) as caught:
        await buckets.maps.take_map(name, partitions, given)
    assert caught.value.code == code
    assert known.adopted.data_map == cluster.data_map


async def test_a_map_of_the_same_key_and_another_content_is_damage(cluster: ManagedNodes) -> None:
    buckets = cluster.nodes["a"].buckets
    known = buckets.maps.adopted("b")
    assert known is not None
    other = replace(cluster.record(), building=("c",))
    data_map = cluster.data_map._replace(records=(other, *cluster.data_map.records[1:]))
    with pytest.raises(CorruptionError) as caught:
        await buckets.maps.take_map("b", 4, known.adopted._replace(data_map=data_map))
    assert caught.value.code == "other_map"


async def test_addresses_that_change_are_taken_with_the_same_map(cluster: ManagedNodes) -> None:
    node = cluster.nodes["a"]
    known = node.buckets.maps.adopted("b")
    assert known is not None
    moved = tuple(one._replace(host="10.0.0.9") for one in known.adopted.nodes)
    await node.buckets.maps.take_map("b", 4, known.adopted._replace(nodes=moved))
    assert node.bucket.map is not None
    assert node.bucket.map.node("b").host == "10.0.0.9"
    await node.stop()
    await node.start()
    assert node.bucket.map is not None
    assert node.bucket.map.node("b").host == "10.0.0.9"


# -- made by hand


async def test_a_map_makes_the_bucket_with_its_uuid(make, tmp_path):
    buckets = await opened(make)
    await buckets.maps.set_map("m", OWN_UUID, 2, placed())
    assert buckets.maps.map_of("m") == placed()
    (status,) = buckets.statuses()
    assert (status.name, status.uuid, status.partitions, status.state) == (
        "m",
        OWN_UUID,
        2,
        "ready",
    )
    assert buckets.copies("m").asked == 2, "when it was brought up, and to be told of failure"
    again = await opened(make)
    assert again.maps.map_of("m") == placed()
    assert again.copies("m").asked == 1


async def test_a_bucket_is_given_a_map_and_newer_ones(make):
    buckets = await opened(make)
    uuid = (await buckets.create("m", 2)).uuid
    assert buckets.maps.map_of("m") is None
    assert (await opened(make)).maps.map_of("m") is None
    for one in (placed(), placed(), placed(7, rows=(("b", None), (None, "b")))):
        await buckets.maps.set_map("m", uuid, 2, one)
        assert buckets.maps.map_of("m") == one
        assert (await opened(make)).maps.map_of("m") == one


@pytest.mark.parametrize(
    ("uuid", "partitions", "given", "code"),
    [
        ("f" * 32, 2, placed(6), "other_uuid"),
        (OWN_UUID, 4, placed(6, rows=(("a", "b"),) * 4), "other_partitions"),
        (OWN_UUID, 2, placed(6, this="a"), "other_node_name"),
        (OWN_UUID, 2, placed(5, this="a"), "other_node_name"),
        (OWN_UUID, 2, placed(4), "older_map"),
        (OWN_UUID, 2, placed(5, rows=(("b", "a"), ("b", "a"))), "other_map"),
        (
            OWN_UUID,
            2,
            placed(5, nodes=(*NODES, NodeAddress("c", "h", 5, 6))),
            "other_map",
        ),
    ],
)
async def test_a_map_that_must_not_take_its_place(make, uuid, partitions, given, code):
    buckets = await opened(make)
    await buckets.maps.set_map("m", OWN_UUID, 2, placed(5))
    with pytest.raises(ConditionError) as caught:
        await buckets.maps.set_map("m", uuid, partitions, given)
    assert caught.value.code == code
    assert buckets.maps.map_of("m") == placed(5)
    assert (await opened(make)).maps.map_of("m") == placed(5)


@pytest.mark.parametrize("uuid", ["", "f" * 31, "F" * 32, "../" + "f" * 29, "f" * 31 + "\n"])
async def test_a_uuid_is_one(make, uuid):
    buckets = await opened(make)
    with pytest.raises(UsageError) as caught:
        await buckets.maps.set_map("m", uuid, 2, placed())
    assert caught.value.code == "bad_bucket_uuid"


async def test_what_a_new_bucket_may_not_be_by_map_either(make, tmp_path):
    buckets = await opened(make)
    await buckets.maps.set_map("m", OWN_UUID, 2, placed())
    for name, uuid, partitions, code in (
        ("n", OWN_UUID, 2, "uuid_taken"),
        ("_n", "f" * 32, 2, "bad_bucket_name"),
        ("n", "f" * 32, 3, "bad_partitions"),
        ("n", "f" * 32, 4, "bad_map_rows"),
    ):
        with pytest.raises((ConditionError, UsageError)) as caught:
            await buckets.maps.set_map(name, uuid, partitions, placed())
        assert caught.value.code == code
    assert [path.name for path in (tmp_path / "buckets").iterdir()] == [OWN_UUID]


async def test_replicas_that_could_not_be_made_are_asked_for_again(make):
    buckets = await opened(make)
    await buckets.maps.set_map("m", OWN_UUID, 2, placed())
    buckets.copies("m").errors.append(UnavailableError("full", code="disk_full"))
    with pytest.raises(UnavailableError, match="full"):
        await buckets.maps.set_map("m", OWN_UUID, 2, placed(2))
    assert buckets.maps.map_of("m") == placed(2)
    asked = buckets.copies("m").asked
    await buckets.maps.set_map("m", OWN_UUID, 2, placed(2))
    assert buckets.copies("m").asked == asked + 1


@pytest.mark.parametrize("content", [None, b"", b"{}"])
async def test_without_its_map_a_bucket_is_not_served_and_a_map_heals_it(make, tmp_path, content):
    await (await opened(make)).maps.set_map("m", OWN_UUID, 2, placed(3))
    file = tmp_path / "buckets" / OWN_UUID / MAP_FILE
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    buckets = await opened(make)
    (status,) = buckets.statuses()
    assert status.state == "failed"
    assert MAP_FILE in status.reason
    assert not buckets.served
    with pytest.raises(UnavailableError, match=MAP_FILE):
        buckets.maps.map_of("m")
    with pytest.raises(ConditionError, match="has the uuid"):
        await buckets.maps.set_map("m", "f" * 32, 2, placed(4))
    await buckets.maps.set_map("m", OWN_UUID, 2, placed(4))
    assert buckets.statuses()[0].state == "ready"
    assert buckets.maps.map_of("m") == placed(4)
    assert (await opened(make)).maps.map_of("m") == placed(4)


async def test_a_bucket_damaged_elsewhere_is_not_healed_by_a_map(make, tmp_path):
    await (await opened(make)).maps.set_map("m", OWN_UUID, 2, placed(3))
    (tmp_path / "buckets" / OWN_UUID / MAP_FILE).unlink()
    buckets = await opened(make, damaged=("m",))
    with pytest.raises(UnavailableError, match="offset 7"):
        await buckets.maps.set_map("m", OWN_UUID, 2, placed(4))
    with pytest.raises(UnavailableError, match="offset 7"):
        await buckets.maps.set_map("m", OWN_UUID, 2, placed(4))
    assert buckets.statuses()[0].state == "failed"


@pytest.mark.parametrize("is_new", [True, False])
async def test_a_map_that_cannot_be_written_is_not_in_force(make, tmp_path, monkeypatch, is_new):
    buckets = await opened(make)
    if not is_new:
        await buckets.maps.set_map("m", OWN_UUID, 2, placed())

    def refuse(path, content, **_):
        raise OSError("no space left")

    with monkeypatch.context() as broken:
        broken.setattr(map_file, "write_atomically", refuse)
        with pytest.raises(UnavailableError, match="no space left") as caught:
            await buckets.maps.set_map("m", OWN_UUID, 2, placed(2))
        assert caught.value.code == "disk_error"
    if is_new:
        assert not buckets.statuses()
        assert list((tmp_path / "buckets").iterdir()) == []
    else:
        assert buckets.maps.map_of("m") == placed()
    await buckets.maps.set_map("m", OWN_UUID, 2, placed(2))
    assert buckets.maps.map_of("m") == placed(2)
