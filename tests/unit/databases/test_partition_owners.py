"""Where the partitions of a bucket are."""

from __future__ import annotations

from millstream.cluster.cluster_state import NodeAt
from millstream.databases.partition_owners import BucketPlaces, is_elsewhere, nowhere
from millstream.errors import RoutingError, UnavailableError
from millstream.model.partitions import PartitionState
from support.views.spread_nodes import BUCKET, SpreadNodes

B, C = NodeAt("b", 2), NodeAt("c", 2)


def places_of(nodes: SpreadNodes) -> BucketPlaces:
    return nodes["a"].changes.places(BUCKET)


def test_what_is_active_here_is_here_and_the_map_says_the_rest() -> None:
    nodes = SpreadNodes.false("abcab")
    places = places_of(nodes)
    assert places.plan(range(5)) == ([0, 3], {B: [1, 4], C: [2]}, [])
    assert places.plan([2, 0]) == ([0], {C: [2]}, [])
    assert places.others() == {B, C}
    assert places.is_shared
    assert not places.is_whole
    nodes.tell_map("bbaab")
    assert places.plan(range(5)) == ([0, 3], {B: [1, 4]}, [2])


def test_what_moves_is_here_until_it_has_moved() -> None:
    nodes = SpreadNodes.false("ab")
    partition = nodes["a"].bucket.partitions[0]
    partition.state, partition.is_suspended = PartitionState.DEAD, True
    assert places_of(nodes).plan([0]).own == [0]


def test_without_a_map_there_is_no_other_node() -> None:
    nodes = SpreadNodes.false("ab")
    nodes["a"].bucket.map = None
    places = places_of(nodes)
    assert places.plan([0, 1]) == ([0], {}, [1])
    assert not places.is_shared
    assert places.others() == set()


def test_which_errors_may_be_another_nodes_answer() -> None:
    assert is_elsewhere(nowhere([3, 2]))
    assert "partition 2" in str(nowhere([3, 2]))
    assert is_elsewhere(RoutingError("", code="not_my_partition"))
    assert is_elsewhere(UnavailableError("", code="node_failed"))
    assert not is_elsewhere(UnavailableError("", code="bucket_failed"))
