"""Maps of the buckets of a managed cluster; those made by hand are tested with the buckets."""

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
from millstream.data_directory.map_file import RECORDS_FILE, AdoptedMap, PlacedMap
from millstream.errors import ConditionError, CorruptionError, MillstreamError, UnavailableError
from millstream.model.bucket_map import BucketMap, NodeAddress
from millstream.model.cluster_maps import DataMap, DataRecord, MapKey
from millstream.model.partitions import PartitionState
from support.cluster.managed_engines import HERE, UUID, ManagedNode, ManagedNodes, keys_of, put

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
        await cluster.nodes["a"].buckets.set_map("b", UUID, 4, placed)
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
    known = buckets.adopted("b")
    assert known is not None
    given: AdoptedMap = known.adopted._replace(**changed)  # type: ignore[arg-type]
    if not given.data_map.records:
        given = given._replace(data_map=given.data_map._replace(records=cluster.data_map.records))
    with pytest.raises(MillstreamError) as caught:
        await buckets.take_map(name, partitions, given)
    assert caught.value.code == code
    assert known.adopted.data_map == cluster.data_map


async def test_a_map_of_the_same_key_and_another_content_is_damage(cluster: ManagedNodes) -> None:
    buckets = cluster.nodes["a"].buckets
    known = buckets.adopted("b")
    assert known is not None
    other = replace(cluster.record(), building=("c",))
    data_map = cluster.data_map._replace(records=(other, *cluster.data_map.records[1:]))
    with pytest.raises(CorruptionError) as caught:
        await buckets.take_map("b", 4, known.adopted._replace(data_map=data_map))
    assert caught.value.code == "other_map"


async def test_addresses_that_change_are_taken_with_the_same_map(cluster: ManagedNodes) -> None:
    node = cluster.nodes["a"]
    known = node.buckets.adopted("b")
    assert known is not None
    moved = tuple(one._replace(host="10.0.0.9") for one in known.adopted.nodes)
    await node.buckets.take_map("b", 4, known.adopted._replace(nodes=moved))
    assert node.bucket.map is not None
    assert node.bucket.map.node("b").host == "10.0.0.9"
    await node.stop()
    await node.start()
    assert node.bucket.map is not None
    assert node.bucket.map.node("b").host == "10.0.0.9"
