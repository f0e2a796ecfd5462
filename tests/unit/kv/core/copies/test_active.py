from __future__ import annotations

import pytest

from millstream.errors import UnavailableError
from millstream.kv.core.copies.active import active_copy, not_now, place_of
from millstream.model.bucket_map import BucketMap, NodeAddress
from millstream.model.partitions import PartitionState
from support.kv.log_double import new_bucket


def test_the_active_copy_is_found() -> None:
    bucket = new_bucket(2)
    assert active_copy(bucket, b"k") is bucket.partition_for(b"k")


def test_a_copy_elsewhere_names_its_node() -> None:
    bucket = new_bucket(1)
    nodes = (NodeAddress("a", "ha", 1, 2), NodeAddress("b", "hb", 3, 4))
    partition = bucket.partitions[0]
    partition.state = PartitionState.REPLICA
    assert place_of(bucket, partition) == "no node is said to have it"
    bucket.set_map(BucketMap(1, nodes, (("b", "a"),)), "a")
    with pytest.raises(UnavailableError, match="ask node b at hb:4") as caught:
        active_copy(bucket, b"k")
    assert caught.value.code == "not_my_partition"
    bucket.set_map(BucketMap(2, nodes, (("a", "b"),)), "a")
    assert place_of(bucket, partition) == "this node is to have it, and has not yet"


def test_a_copy_that_changes_its_state_is_asked_again() -> None:
    bucket = new_bucket(1)
    bucket.partitions[0].suspend()
    with pytest.raises(UnavailableError, match="try again") as caught:
        active_copy(bucket, b"k")
    assert caught.value.code == not_now("x").code == "temporarily_unavailable"
