"""Requests about buckets, executed by a real state machine."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.cluster.core.elements import Cluster, NodeRecord, Request, Role
from millstream.cluster.core.requests import Outcome, outcome_of
from millstream.cluster.core.settings import Settings
from millstream.cluster.core.writes import forget_bucket, found_cluster, join_node
from millstream.errors import ConditionError, MillstreamError
from millstream.model.cluster_maps import MapKey
from support.cluster.coordination_tree import CoordinationTree

UUID = "ab" * 16


def record(name: str, *roles: Role) -> NodeRecord:
    return NodeRecord(name, f"host-{name}", {}, roles or ("data", "index"), "", "in")


def tree_of(*names: str) -> CoordinationTree:
    tree = CoordinationTree()
    cluster = Cluster("c1", "flights", 3, 0)
    assert tree.run(found_cluster(cluster, names[0], record(names[0]), Settings()))
    for name in names[1:]:
        assert tree.run(join_node(name, record(name)))
    tree.campaign(11)
    return tree


@pytest.fixture
def tree() -> CoordinationTree:
    return tree_of("n1", "n2", "n3")


def ask(tree: CoordinationTree, op: str, id: str = "r1", **args: Any) -> Outcome:
    """Have a request done; it can be repeated then, and changes nothing."""
    outcome = outcome_of(tree.state(), Request(id, op, args, "ann"), 5000)
    if outcome.txn is not None:
        assert tree.run(outcome.txn)
    return outcome


def refused(tree: CoordinationTree, op: str, **args: Any) -> str:
    before = tree.elements()
    with pytest.raises(MillstreamError) as caught:
        ask(tree, op, "other", **args)
    assert tree.elements() == before
    return caught.value.code


def test_a_bucket_is_made_with_balanced_rows_that_nobody_serves_yet(
    tree: CoordinationTree,
) -> None:
    answer = ask(tree, "create_bucket", name="a/b", partitions=8, uuid=UUID).answer
    assert (answer["uuid"], answer["replicas"], answer["partitions"]) == (UUID, 1, 8)
    state = tree.state()
    data, index = state.data[UUID], state.index[UUID]
    assert data.key == index.key == MapKey(3, 1)
    assert {(one.active, one.branch, one.building) for one in data.records} == {(None, 0, ())}
    led = [one.row[0] for one in data.records]
    assert sorted(map(led.count, ("n1", "n2", "n3"))) == [2, 3, 3]
    assert all(len(set(one.row)) == 2 for one in data.records)
    owners = [one.owner for one in index.records]
    assert owners == led
    assert ask(tree, "create_bucket", name="a/b", partitions=8, uuid=UUID).txn is None


def test_the_uuid_comes_from_the_request_so_that_a_repetition_makes_no_second_bucket(
    tree: CoordinationTree,
) -> None:
    made = ask(tree, "create_bucket", "17", name="b").answer["uuid"]
    assert len(made) == 32
    again = ask(tree, "create_bucket", "17", name="b")
    assert (again.txn, again.answer["uuid"]) == (None, made)
    assert ask(tree, "create_bucket", "cd" * 16, name="c").answer["uuid"] == "cd" * 16
    assert refused(tree, "create_bucket", name="b") == "bucket_exists"
    assert refused(tree, "create_bucket", name="d", uuid=made) == "bucket_exists"


def test_replicas_are_lowered_to_what_the_nodes_allow_unless_strict() -> None:
    tree = tree_of("n1", "n2")
    assert refused(tree, "create_bucket", name="b", replicas=2, strict=True) == "too_few_nodes"
    answer = ask(tree, "create_bucket", name="b", replicas=3).answer
    assert (answer["replicas"], answer["replicas_wanted"]) == (1, 3)
    (uuid,) = tree.state().buckets
    assert {None not in one.row for one in tree.state().data[uuid].records} == {True}


@pytest.mark.parametrize(
    ("args", "code"),
    [
        ({"name": "_x"}, "bad_bucket_name"),
        ({"name": "b", "partitions": 3}, "bad_partitions"),
        ({"name": "b", "partitions": 2048}, "bad_partitions"),
        ({"name": "b", "replicas": 4}, "bad_request"),
        ({"name": "b", "replicas": -1}, "bad_request"),
        ({"name": "b", "index_replicas": 2}, "bad_request"),
        ({"name": "b", "uuid": "x"}, "bad_bucket_uuid"),
        ({"name": "b", "settings": {"memory_quota_bytes": 1}}, "bad_memory_quota"),
        ({"name": "b", "settings": {"speed": 1}}, "bad_request"),
        ({"partitions": 4}, "bad_request"),
    ],
)
def test_a_bucket_that_cannot_be_is_refused(
    tree: CoordinationTree, args: dict[str, Any], code: str
) -> None:
    assert refused(tree, "create_bucket", **args) == code


def test_a_change_of_replicas_makes_a_plan_in_the_same_write(tree: CoordinationTree) -> None:
    ask(tree, "create_bucket", name="b", partitions=4, replicas=0, uuid=UUID)
    outcome = ask(tree, "set_bucket", name="b", replicas=2)
    assert outcome.answer["moves"]["copies"] == 8
    state = tree.state()
    assert state.buckets[UUID].replicas == 2
    assert state.plan is not None
    assert {len(row) for row in state.plan.rows[UUID]} == {3}
    assert state.plan.by == "ann"
    assert ask(tree, "set_bucket", name="b", replicas=2).txn is None
    quota = {"memory_quota_bytes": 1 << 30}
    ask(tree, "set_bucket", name="b", settings=quota, index_replicas=1)
    after = tree.state()
    assert (after.buckets[UUID].settings, after.buckets[UUID].index_replicas) == (quota, 1)
    assert after.plan == state.plan
    ask(tree, "set_bucket", name="b", replicas=1)
    amended = tree.state().plan
    assert amended is not None
    assert amended.id > state.plan.id
    assert {len(row) for row in amended.rows[UUID]} == {2}


def test_copies_of_a_bucket_that_is_not_there_or_too_many_are_refused(
    tree: CoordinationTree,
) -> None:
    assert refused(tree, "set_bucket", name="b", replicas=1) == "bucket_not_found"
    ask(tree, "create_bucket", name="b")
    assert refused(tree, "set_bucket", name="b", replicas=3, strict=True) == "too_few_nodes"
    assert ask(tree, "set_bucket", name="b", replicas=3).answer["replicas"] == 2


def test_a_dropped_bucket_keeps_its_name_until_it_is_forgotten(tree: CoordinationTree) -> None:
    ask(tree, "create_bucket", name="b", uuid=UUID)
    assert ask(tree, "drop_bucket", name="b").answer == {"uuid": UUID, "name": "b"}
    state = tree.state()
    assert state.buckets[UUID].state == "dropping"
    opened = state.without_dropped()
    assert (opened.buckets, opened.data, opened.index) == ({}, {}, {})
    assert ask(tree, "drop_bucket", name="b").txn is None
    assert refused(tree, "create_bucket", name="b") == "bucket_dropping"
    assert refused(tree, "set_bucket", name="b", replicas=0) == "bucket_not_found"
    assert tree.run(forget_bucket(state, UUID))
    assert not tree.state().buckets
    assert ask(tree, "drop_bucket", uuid=UUID).txn is None
    assert refused(tree, "drop_bucket", name="b") == "bucket_not_found"
    assert refused(tree, "drop_bucket") == "bad_request"
    ask(tree, "create_bucket", "r2", name="b")
    assert len(tree.state().buckets) == 1


def test_a_bucket_needs_a_data_node() -> None:
    tree = CoordinationTree()
    cluster = Cluster("c1", "flights", 3, 0)
    assert tree.run(found_cluster(cluster, "n1", record("n1", "index"), Settings()))
    tree.campaign(11)
    assert refused(tree, "create_bucket", name="b") == "too_few_nodes"


def test_a_write_that_comes_late_changes_no_bucket(tree: CoordinationTree) -> None:
    ask(tree, "create_bucket", name="b", uuid=UUID)
    late = outcome_of(tree.state(), Request("r", "set_bucket", {"name": "b", "replicas": 2}), 0)
    drop = outcome_of(tree.state(), Request("r", "drop_bucket", {"name": "b"}), 0)
    ask(tree, "set_bucket", name="b", replicas=0)
    assert late.txn is not None
    assert drop.txn is not None
    assert not tree.run(late.txn)
    assert not tree.run(drop.txn)
    assert tree.state().buckets[UUID].replicas == 0
    with pytest.raises(ConditionError):
        ask(tree, "create_bucket", "x", name="b")
