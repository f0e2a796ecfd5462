from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from millstream.cluster.cluster_state import NodeAt
from millstream.databases.documents.document_owners import (
    HERE,
    is_alone,
    no_owner,
    other_nodes,
    place,
)
from millstream.model.bucket_map import BucketMap, NodeAddress
from millstream.model.partitions import PartitionState
from support.http.sharing_nodes import SpreadNodes, sharing_nodes
from support.kv.running_bucket import opened


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[SpreadNodes]:
    async with sharing_nodes(tmp_path) as found:
        yield found


async def test_a_bucket_without_a_map_is_here(tmp_path: Path) -> None:
    running = await opened(tmp_path)
    bucket = running.bucket
    assert is_alone(bucket)
    assert other_nodes(bucket) == []
    assert place(bucket, "x") == HERE
    bucket.set_map(BucketMap(1, (NodeAddress("a", "h", 1, 2),), (("a",),) * 4), "a")
    assert is_alone(bucket)
    assert other_nodes(bucket) == []
    await running.stop()


async def test_what_is_active_here_is_here_whatever_the_map_says(nodes: SpreadNodes) -> None:
    bucket = nodes["a"].running.bucket
    here, there = nodes.id_at("a"), nodes.id_at("b")
    assert not is_alone(bucket)
    assert (place(bucket, here), place(bucket, there)) == (HERE, NodeAt("b", 1))
    assert other_nodes(bucket) == [NodeAt("b", 1)]
    nodes.give_map("bbbb")
    assert place(bucket, here) == HERE
    await nodes.set_state(
        "a", bucket.partition_for(here.encode()).partition_id, PartitionState.DEAD
    )
    assert place(bucket, here) == NodeAt("b", 1)


async def test_nobody_has_what_is_to_be_here_and_is_not(nodes: SpreadNodes) -> None:
    bucket, doc_id = nodes["a"].running.bucket, nodes.id_at("a")
    number = bucket.partition_for(doc_id.encode()).partition_id
    await nodes.set_state("a", number, PartitionState.DEAD)
    assert place(bucket, doc_id) is None
    error = no_owner(bucket, doc_id)
    assert (error.code, error.retry) == ("not_my_partition", "refresh_map")
    assert "this node is to have it" in str(error)
