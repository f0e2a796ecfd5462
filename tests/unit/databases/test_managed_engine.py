"""The engine of a managed cluster, with orders that the real core decides."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from millstream.model.partitions import PartitionState
from support.cluster.managed_nodes import UUID, ManagedNodes

ACTIVE, REPLICA, DEAD, ABSENT = (
    PartitionState[name] for name in ("ACTIVE", "REPLICA", "DEAD", "ABSENT")
)
ROWS = (("a", "b"), ("b", "a"), ("c", "a"))


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ManagedNodes]:
    made = ManagedNodes(tmp_path, ROWS)
    await made.start()
    yield made
    await made.stop()


def states(cluster: ManagedNodes, name: str) -> list[PartitionState]:
    return [partition.state for partition in cluster.nodes[name].bucket.partitions]


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
        [REPLICA, REPLICA, REPLICA], [REPLICA, REPLICA, ABSENT], [ABSENT, ABSENT, REPLICA]
    ]  # fmt: skip
    for node in cluster.nodes.values():
        assert node.engine.keys() == {UUID: cluster.data_map.key}
        assert node.bucket.uuid == UUID


async def test_fresh_replicas_are_promoted_where_nobody_ever_served(cluster: ManagedNodes) -> None:
    await cluster.until(lambda: is_served(cluster))
    assert [record.active for record in cluster.data_map.records] == ["a", "b", "c"]
    copy = cluster.nodes["a"].engine.copies()[UUID][0]
    assert copy.standing.state is ACTIVE
    assert copy.standing.branch == cluster.record().branch > 0
    assert copy.may_serve
    assert cluster.nodes["a"].partition().acknowledged.rows == (("a", "b"),)
