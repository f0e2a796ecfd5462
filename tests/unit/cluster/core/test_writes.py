"""Every change of a cluster's state, executed by a real state machine: its guards hold."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest

from millstream.cluster.core.elements import (
    FAILOVERS,
    FAILOVERS_KEPT_MAX,
    REQUESTS,
    ROOT,
    Bucket,
    Cluster,
    ClusterState,
    FailOver,
    Live,
    NodeRecord,
    Plan,
    boots_path,
)
from millstream.cluster.core.settings import Settings
from millstream.cluster.core.writes import (
    cancel_plan,
    create_bucket,
    end_session,
    found_cluster,
    join_node,
    open_session,
    put_data_map,
    put_index_map,
    put_members,
    put_node,
    put_rebuilt,
    put_settings,
    reset_failovers,
)
from millstream.errors import ConditionError, UsageError
from millstream.model.bucket_map import BUCKET_NODES_MAX
from millstream.model.cluster_maps import (
    DataMap,
    DataRecord,
    IndexMap,
    IndexRecord,
    MapKey,
    next_data_map,
    next_index_map,
)
from millstream.vsr.core.values import items
from support.cluster.coordination_tree import CoordinationTree

FIRST, SECOND = 11, 12
"""Sessions."""
KEY = MapKey(2, 1)
NODE = NodeRecord("one", "host1", {"kv": 1}, ("data", "index"), "x", "in")
CLUSTER = Cluster("c1", "flights", 2, 1000)
PLAN = Plan(1, "rebalance", {}, {"u1": (("n1",),)}, {"u1": ("n1",)}, 5)
DATA = DataMap(KEY, "u1", (DataRecord(KEY, "n1", 1, (("n1",),)),))
INDEX = IndexMap(KEY, "u1", (IndexRecord(KEY, "n1"),))
replace = msgspec.structs.replace


@pytest.fixture
def tree() -> CoordinationTree:
    made = CoordinationTree()
    assert made.run(found_cluster(CLUSTER, "n1", NODE, Settings()))
    made.campaign(FIRST)
    assert made.run(create_bucket(made.state(), "u1", Bucket("b", 1, 0), DATA, INDEX))
    return made


def live(boots: int, incarnation: str = "i1") -> Live:
    return Live(incarnation, {}, boots)


def test_a_cluster_is_founded_once(tree: CoordinationTree) -> None:
    state = tree.state()
    assert (state.cluster, state.nodes) == (CLUSTER, {"n1": NODE})
    assert (state.plan, state.boots, state.failover_count) == (None, {"n1": 0}, 0)
    assert not tree.run(found_cluster(CLUSTER, "n2", NODE, Settings()))
    assert tree.state().nodes == {"n1": NODE}


def test_a_member_joins_once_and_only_a_cluster(tree: CoordinationTree) -> None:
    assert tree.run(join_node("n2", NODE))
    assert not tree.run(join_node("n2", NODE))
    assert not CoordinationTree().run(join_node("n2", NODE))
    assert set(tree.state().boots) == {"n1", "n2"}


def test_a_node_has_one_session_and_each_has_a_number(tree: CoordinationTree) -> None:
    first = open_session("n1", live(1), tree.version(boots_path("n1")))
    assert tree.run(first, FIRST)
    again = open_session("n1", live(2, "i2"), tree.version(boots_path("n1")))
    assert not tree.run(again, SECOND)
    assert (tree.state().live["n1"], tree.state().boots["n1"]) == (live(1), 1)
    tree.tree.end(FIRST)
    assert tree.state().live == {}
    assert not tree.run(first, SECOND), "its number is used"
    assert tree.run(again, SECOND)
    assert tree.state().live["n1"].boots == tree.state().boots["n1"] == 2


def test_the_orchestrator_marks_a_session_as_ending_and_no_later_one(
    tree: CoordinationTree,
) -> None:
    assert tree.run(open_session("n1", live(1), tree.version(boots_path("n1"))), SECOND)
    state = tree.state()
    end = end_session(state, "n1")
    tree.tree.end(SECOND)
    assert tree.run(open_session("n1", live(2), tree.version(boots_path("n1"))), SECOND)
    assert not tree.run(end, FIRST), "it is a later session"
    assert tree.run(end_session(tree.state(), "n1"), FIRST)
    assert tree.state().live["n1"] == replace(live(2), is_ending=True)
    tree.tree.end(SECOND)
    assert tree.state().live == {}, "it is still the session's own"
    assert tree.run(open_session("n1", live(3), tree.version(boots_path("n1"))), SECOND)
    late = end_session(tree.state(), "n1")
    tree.resign(FIRST)
    tree.campaign(SECOND)
    assert not tree.run(late, FIRST), "another node is the orchestrator"


def test_a_node_replaces_what_its_record_says_if_it_has_read_it(tree: CoordinationTree) -> None:
    moved = replace(NODE, host="elsewhere")
    change = put_node(tree.state(), "n1", moved)
    assert tree.run(change)
    assert not tree.run(change)
    assert tree.state().nodes["n1"] == moved


def test_a_map_is_replaced_by_who_read_it_and_holds_the_lock(tree: CoordinationTree) -> None:
    before = tree.state()
    new = next_data_map(before.data["u1"], {0: replace(DATA.records[0], branch=2)})
    other = next_data_map(before.data["u1"], {0: replace(DATA.records[0], branch=3)})
    assert tree.run(put_data_map(before, new))
    assert not tree.run(put_data_map(before, other)), "it was read before the other write"
    tree.resign(FIRST)
    old = tree.state()
    assert not tree.run(put_data_map(old, next_data_map(new, {})))
    tree.campaign(SECOND)
    assert not tree.run(put_data_map(old, next_data_map(new, {}))), "the lock is another's"
    assert tree.state().data["u1"] == new
    assert tree.run(put_data_map(tree.state(), next_data_map(new, {})))


def test_a_lost_index_owner_must_have_had_no_session_since(tree: CoordinationTree) -> None:
    state = tree.state()
    taken = next_index_map(state.index["u1"], {0: IndexRecord(KEY, "n2")})
    tree.run(open_session("n1", live(1), tree.version(boots_path("n1"))), FIRST)
    assert not tree.run(put_index_map(state, taken, ["n1"])), "it has a session"
    tree.tree.end(FIRST)
    tree.campaign(SECOND)
    state = tree.state()
    tree.run(open_session("n1", live(2), tree.version(boots_path("n1"))), FIRST)
    tree.tree.end(FIRST)
    assert not tree.run(put_index_map(state, taken, ["n1"])), "it had one meanwhile"
    assert tree.run(put_index_map(tree.state(), taken, ["n1"]))
    assert tree.state().index["u1"] == taken


def test_members_and_plan_change_together(tree: CoordinationTree) -> None:
    state = tree.state()
    failed = replace(NODE, state="failed", by="auto")
    first = put_members(state, PLAN, {"n1": failed}, "why", [FailOver("n1", 1, "silent", 3)])
    second = put_members(state, None, {"n1": replace(NODE, state="out")}, "why")
    assert tree.run(first)
    assert not tree.run(second)
    path = f"{ROOT}/plan"
    stale = dataclasses.replace(
        tree.state(), versions={**state.versions, path: tree.version(path)}
    )
    assert not tree.run(put_members(stale, None, {"n1": NODE}, "why")), "the member has changed"
    state = tree.state()
    assert (state.plan, state.nodes["n1"], state.failover_count) == (PLAN, failed, 1)
    assert tree.run(put_members(state, None, {}, "done", resets=True))
    assert (tree.state().plan, tree.state().failover_count) == (None, 0)


def test_all_members_can_change_in_one_transaction(tree: CoordinationTree) -> None:
    names = [f"node{number}" for number in range(BUCKET_NODES_MAX)]
    for name in names:
        assert tree.run(join_node(name, NODE))
    nodes = dict.fromkeys(names, replace(NODE, state="failed"))
    failovers = [FailOver(name, 1, "silent", 3) for name in names]
    assert tree.run(put_members(tree.state(), None, nodes, "why", failovers))
    assert tree.state().failover_count == len(names)
    assert {tree.state().nodes[name].state for name in names} == {"failed"}


def test_the_list_of_fail_overs_is_bounded(tree: CoordinationTree) -> None:
    for number in range(FAILOVERS_KEPT_MAX + 3):
        one = FailOver("n1", number, "silent", 0)
        assert tree.run(put_members(tree.state(), None, {}, "why", [one]))
    listed = items(tree.tree.read("LIST", "RANGE", FAILOVERS, "0", "-1"))
    assert len(listed) == FAILOVERS_KEPT_MAX
    assert b'"at_ms":3' in listed[0]
    assert tree.run(reset_failovers(tree.state()))
    assert tree.state().failover_count == 0


def test_an_administrator_cancels_the_plan_that_was_shown(tree: CoordinationTree) -> None:
    with pytest.raises(UsageError, match="nothing to cancel"):
        cancel_plan(tree.state())
    assert tree.run(put_members(tree.state(), PLAN, {}, "plan"))
    cancels = cancel_plan(tree.state())
    assert tree.run(cancels)
    assert not tree.run(cancels)
    plan = tree.state().plan
    assert plan is not None
    assert plan.is_cancelled


def test_settings_are_changed_by_who_read_them(tree: CoordinationTree) -> None:
    change = put_settings(tree.state(), Settings(moves=5))
    assert tree.run(change)
    assert not tree.run(change)
    assert tree.state().settings.moves == 5


def test_the_name_of_a_bucket_is_taken_once(tree: CoordinationTree) -> None:
    before = tree.state()
    with pytest.raises(ConditionError, match="exists already"):
        create_bucket(before, "u2", Bucket("b", 1, 0), DATA, INDEX)
    data, index = DATA._replace(bucket="u2"), INDEX._replace(bucket="u2")
    made = create_bucket(before, "u2", Bucket("c", 1, 0), data, index)
    assert tree.run(made)
    assert not tree.run(made)
    assert set(tree.state().buckets) == {"u1", "u2"}


def rebuilt(before: ClusterState, generation: int) -> ClusterState:
    key = MapKey(generation, 9)
    return ClusterState(
        cluster=Cluster("c1", "flights", generation, 1000),
        nodes={f"n{number}": replace(NODE, name=f"n{number}") for number in range(70)},
        buckets={"u1": Bucket("default", 1, 0)},
        data={"u1": DataMap(key, "u1", tuple(replace(one, at=key) for one in DATA.records))},
        index={"u1": IndexMap(key, "u1", tuple(replace(one, at=key) for one in INDEX.records))},
        settings=before.settings,
    )


def test_a_cluster_is_rebuilt_from_nothing_and_again_after_an_interruption() -> None:
    tree = CoordinationTree()
    after = rebuilt(ClusterState(), 3)
    txns = put_rebuilt(tree.state(), after)
    for txn in txns[:-1]:
        assert tree.run(txn)
    assert tree.state().cluster is None  # so nobody acts by it
    after = rebuilt(tree.state(), 4)
    for txn in put_rebuilt(tree.state(), after):
        assert tree.run(txn), txn
    found = tree.state()
    assert (found.cluster, found.nodes, found.buckets) == (
        after.cluster, after.nodes, after.buckets,
    )  # fmt: skip
    assert (found.data, found.index, found.plan) == (after.data, after.index, None)
    assert set(found.boots) == set(after.nodes)
    tree.campaign(FIRST)  # the elements of a founded cluster are all there
    assert tree.run(put_members(tree.state(), PLAN, {}, "a plan"), FIRST)


def test_a_rebuilt_state_replaces_what_was_and_drops_what_is_gone(tree: CoordinationTree) -> None:
    tree.campaign(FIRST)
    assert tree.run(create_bucket(tree.state(), "u9", Bucket("gone", 1, 0), DATA, INDEX), FIRST)
    assert tree.tree.do("QUEUE", "PUSH", REQUESTS, "old").startswith((b"+", b":", b"=", b"*"))
    after = rebuilt(tree.state(), 3)
    stale = put_rebuilt(tree.state(), after)
    for txn in put_rebuilt(tree.state(), after):
        assert tree.run(txn), txn
    found = tree.state()
    assert set(found.buckets) == {"u1"}
    assert found.cluster == after.cluster
    assert tree.tree.do("QUEUE", "TAKE", REQUESTS, "8") == b"*\x00\x00\x00\x00"
    assert not tree.run(stale[-1])  # of two recoveries the later one does not undo the first
