"""The state of a cluster is what its elements say, and a damaged element is named."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.cluster.core.elements import (
    CLUSTER,
    FAILOVER_COUNT,
    ORCHESTRATOR,
    PLAN,
    ROOT,
    SETTINGS,
    Bucket,
    Cluster,
    ClusterState,
    Element,
    Leader,
    Live,
    NodeRecord,
    Plan,
    Request,
    boots_path,
    bucket_path,
    index_map_path,
    live_path,
    map_path,
    node_path,
    result_path,
    state_from_elements,
    to_json,
)
from millstream.cluster.core.settings import Settings, settings_to_json
from millstream.errors import CorruptionError
from millstream.model.cluster_maps import (
    DataMap,
    DataRecord,
    IndexMap,
    IndexRecord,
    MapKey,
    data_map_to_json,
    index_map_to_json,
)
from millstream.vsr.core.versions import NEVER, Version

KEY = MapKey(2, 4)
NODES = {
    "n1": NodeRecord("one", "host1", {"kv": 11210}, ("data", "index"), "x", "in"),
    "n2": NodeRecord("two", "host2", {"kv": 11210}, ("data",), "y", "failed", "force", boots=3),
    "n3": NodeRecord("three", "host3", {"kv": 11210}, ("index", "data"), "x", "in"),
}
DATA = DataMap(KEY, "u1", (DataRecord(KEY, "n1", 5, (("n1", "n2"),)),))
INDEX = IndexMap(KEY, "u1", (IndexRecord(KEY, "n1"),))
STATE = ClusterState(
    cluster=Cluster("c1", "flights", 2, 1000),
    settings=Settings(moves=3),
    leader=Leader("n1", "host1:1"),
    token=Version(1, 1, 9),
    nodes=NODES,
    live={"n1": Live("i1", {"kv": "host1:11210"}, 4)},
    boots={"n1": 4, "n2": 3},
    buckets={"u1": Bucket("flights", 1, 1)},
    data={"u1": DATA},
    index={"u1": INDEX},
    plan=Plan(3, "rebalance", {"n1": "data@x"}, {"u1": (("n1", None),)}, {"u1": ("n1",)}, 7),
    failover_count=2,
)


def elements_of(state: ClusterState) -> dict[str, Element]:
    contents = {
        CLUSTER: to_json(state.cluster),
        SETTINGS: settings_to_json(state.settings),
        ORCHESTRATOR: to_json(state.leader),
        PLAN: to_json(state.plan),
        FAILOVER_COUNT: b"%d" % state.failover_count,
        f"{ROOT}/nodes": b"",
        f"{ROOT}/buckets": b"",
        **{node_path(name): to_json(one) for name, one in state.nodes.items()},
        **{live_path(name): to_json(one) for name, one in state.live.items()},
        **{boots_path(name): b"%d" % one for name, one in state.boots.items()},
        **{bucket_path(name): to_json(one) for name, one in state.buckets.items()},
        **{map_path(name): data_map_to_json(one) for name, one in state.data.items()},
        **{index_map_path(name): index_map_to_json(one) for name, one in state.index.items()},
    }
    numbered = enumerate(contents.items())
    return {path: Element(Version(1, 1, number), data) for number, (path, data) in numbered}


def test_the_state_comes_back_from_its_elements() -> None:
    elements = elements_of(STATE)
    state = state_from_elements(elements, Version(1, 1, 9))
    for name in ("cluster", "settings", "leader", "token", "nodes", "live", "boots", "buckets",
                 "data", "index", "plan", "failover_count"):  # fmt: skip
        assert getattr(state, name) == getattr(STATE, name), name
    assert state.version(PLAN) == elements[PLAN].version
    assert state.version("/.system/nothing") == NEVER


def test_a_state_is_forked_from_a_fork_of_its_group_until_the_cluster_is_written_again() -> None:
    before, after = Version(3, 1, 9), Version(1 << 16, 0, 10)
    cluster = Element(before, to_json(Cluster("c1", "flights", 2, 5)))
    moved = Element(Version(5, 2, 12), b"")  # the members have changed, nothing was lost
    assert not state_from_elements({CLUSTER: cluster, PLAN: moved}, epoch=5).is_forked
    assert state_from_elements({CLUSTER: cluster}, epoch=after.epoch).is_forked
    assert state_from_elements({CLUSTER: cluster}, token=after).is_forked
    assert state_from_elements({CLUSTER: cluster, PLAN: Element(after, b"")}).is_forked
    written = cluster._replace(version=after)
    assert not state_from_elements({CLUSTER: written}, epoch=after.epoch).is_forked
    assert not ClusterState(epoch=after.epoch).is_forked


def test_no_elements_are_no_cluster() -> None:
    state = state_from_elements({})
    assert state == ClusterState()
    assert state.basis == {}


def test_a_basis_names_members_that_are_in_with_roles_and_zone() -> None:
    assert STATE.basis == {"n1": "data,index@x", "n3": "data,index@x"}
    assert STATE.members("data") == {"n1": "x", "n3": "x"}
    assert STATE.is_named("n2")
    assert not STATE.is_named("n3")


def test_only_a_forced_fail_over_gives_a_node_up() -> None:
    assert NODES["n2"].is_given_up
    assert not msgspec.structs.replace(NODES["n2"], by="auto").is_given_up
    assert not msgspec.structs.replace(NODES["n2"], state="in").is_given_up


@given(
    st.sampled_from(sorted(path for path, one in elements_of(STATE).items() if one.data)),
    st.sampled_from((b"{", b"[]", b'{"name": 1}', b"\xff")),
)
def test_a_damaged_element_is_named(path: str, damaged: bytes) -> None:
    elements = elements_of(STATE)
    elements[path] = Element(NEVER, damaged)
    if path == SETTINGS:
        return
    with pytest.raises(CorruptionError) as caught:
        state_from_elements(elements)
    assert caught.value.code in ("bad_cluster_element", "bad_cluster_map")


@pytest.mark.parametrize("changes", [{"replicas": 4}, {"replicas": -1}, {"partitions": 0}])
def test_a_bucket_has_up_to_three_replicas(changes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="bucket b has"):
        Bucket(**({"name": "b", "partitions": 64, "replicas": 1} | changes))  # type: ignore[arg-type]


def test_requests_come_back_and_have_a_place_for_their_result() -> None:
    request = Request("r1", "rebalance", {"add": ["n4"]}, "admin")
    assert msgspec.json.decode(to_json(request), type=Request) == request
    assert result_path("r1") == "/.system/results/r1"
    assert to_json(None) == b""
