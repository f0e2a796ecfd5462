from __future__ import annotations

from collections.abc import Callable

import pytest

from millstream.errors import UnavailableError
from millstream.kv.core.copies.active import (
    active_copy,
    check_served,
    check_writable,
    not_now,
    place_of,
)
from millstream.model.bucket_map import BucketMap, NodeAddress
from millstream.model.cluster_maps import DataRecord, MapKey
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


def code_of(call: Callable[[], object]) -> str:
    try:
        call()
    except UnavailableError as error:
        return error.code
    return ""


def test_a_copy_without_a_right_is_isolated_and_says_what_to_do() -> None:
    bucket = new_bucket(1)
    bucket.manage("a", lambda _: DataRecord(MapKey(2, 1), "a", 1, (("a", "b"),)))
    with pytest.raises(UnavailableError, match="ask another node") as caught:
        active_copy(bucket, b"k")
    assert caught.value.code == "isolated"
    assert code_of(lambda: check_served(bucket, [0])) == "isolated"
    assert code_of(lambda: check_writable(bucket, bucket.partitions[0])) == "isolated"
    bucket.set_rules(500, "read_only")
    assert active_copy(bucket, b"k") is bucket.partitions[0]
    assert code_of(lambda: check_served(bucket, [0])) == ""
    assert code_of(lambda: check_writable(bucket, bucket.partitions[0])) == "isolated"
    bucket.set_right(10**6, is_admitted=True)
    assert code_of(lambda: check_writable(bucket, bucket.partitions[0])) == ""


def test_a_lease_that_has_lapsed_is_noticed_when_it_is_used() -> None:
    bucket, clock = new_bucket(1), [0]
    bucket._monotonic_ns = lambda: clock[0]
    bucket.manage("a", lambda _: DataRecord(MapKey(2, 1), "a", 1, (("a", "b"),)))
    bucket.set_right(1000, is_admitted=True)
    clock[0] = 999_999_999
    assert code_of(lambda: active_copy(bucket, b"k")) == ""
    clock[0] = 1_000_000_000
    assert code_of(lambda: active_copy(bucket, b"k")) == "isolated"
