"""Where the indexes of a bucket are."""

import pytest

from millstream.errors import UnavailableError, UsageError
from millstream.pipelines.index.nodes import hosts_of, http_at, index_addresses, shown
from millstream.pipelines.index.shard import IndexAddress
from millstream.wire.cluster_map import ClusterMap, NodeAddress

NODES = (NodeAddress("a", 1), NodeAddress("::1", 2), NodeAddress("c", 3))
MAP = ClusterMap(1, 1, NODES, (0, 1, -1), {}, "u", NODES[1], (8, 9, 0))
BASE = IndexAddress(host="x", port=5, bucket="b", design="d", user="u", password="p")


def test_each_node_with_http_has_one():
    found = index_addresses(BASE, MAP)
    assert [(each.host, each.port) for each in found] == [("a", 8), ("::1", 9)]
    assert {(each.bucket, each.design, each.user, each.password) for each in found} == {
        ("b", "d", "u", "p")
    }
    assert [shown(each) for each in found] == ["a:8", "[::1]:9"]


def test_nodes_that_only_index_are_named_once():
    found = index_addresses(BASE, MAP, ["i:7", "j", "a:8"])
    assert [shown(each) for each in found] == ["a:8", "[::1]:9", "i:7", "j:5984"]
    with pytest.raises(UsageError):
        index_addresses(BASE, MAP, ["i:x"])


def test_a_design_document_is_where_its_partition_is_or_anywhere():
    assert http_at(MAP, 0) == ("a", 8)
    assert http_at(MAP, 2) == ("::1", 9)
    with pytest.raises(UnavailableError) as caught:
        http_at(MAP._replace(owners=(2,)), 0)
    assert caught.value.code == "no_http"


def test_any_node_may_be_asked():
    assert hosts_of("a:1, z:4", MAP) == "a:1,z:4,[::1]:2,c:3"
