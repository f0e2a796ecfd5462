"""The state of a cluster from what its nodes hold: the newest of each, nothing that was lost."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from millstream.cluster.core.elements import Bucket, Cluster, ClusterState, NodeRecord
from millstream.cluster.core.identity import Identity
from millstream.cluster.core.recovery import Held, HeldBucket, known_nodes, losses, rebuild
from millstream.cluster.core.settings import Settings
from millstream.errors import ConditionError
from millstream.model.bucket_map import NodeAddress
from millstream.model.cluster_maps import (
    NO_KEY,
    DataMap,
    DataRecord,
    Floor,
    IndexMap,
    IndexRecord,
    MapKey,
)
from millstream.model.partitions import PartitionState
from millstream.model.standing import Standing
from millstream.vsr.core.versions import Version

CLUSTER, BUCKET = "c1", "u1"
IDENTITY = Identity(CLUSTER, "flights")
NOBODY = frozenset[str]()
ROW = ("a", "b", "c")
REPLICA = PartitionState.REPLICA


def key(revision: int, generation: int = 2) -> MapKey:
    return MapKey(generation, revision)


def record(revision: int = 1, *rows: tuple[str | None, ...], active: str = "a") -> DataRecord:
    rows = rows or (ROW,)
    since = key(revision) if len(rows) > 1 else NO_KEY
    return DataRecord(key(revision), active, 7, rows, since=since)


def standing(end: int = 10, *, is_intact: bool = True) -> Standing:
    return Standing(0, REPLICA, 7, 7, end, end, 7, is_intact, True)


def node(name: str, port: int = 1) -> NodeRecord:
    return NodeRecord(name, "host", {"http": port, "kv": port}, ("data", "index"), state="in")


def held(
    name: str,
    *records: DataRecord,
    index: Mapping[int, IndexRecord] | None = None,
    uuid: str = BUCKET,
    **others: object,
) -> Held:
    addresses = tuple(NodeAddress(one, f"host-{one}", 1, 2) for one in "abc")
    newest = max((one.at for one in records), default=NO_KEY)
    own = HeldBucket("default", addresses, newest, records, dict(index or {}), (standing(),))
    made = Held(name, CLUSTER, node(""), False, {uuid: own} if records else {})
    return replace(made, **others)


def three(*records: DataRecord, **others: object) -> dict[str, Held]:
    return {name: held(name, *records, **others) for name in ROW}  # type: ignore[arg-type]


def state(*records: DataRecord, **others: object) -> ClusterState:
    data = DataMap(max(one.at for one in records), BUCKET, records)
    parts = tuple(IndexRecord(key(1), "a") for _ in records)
    made = ClusterState(
        cluster=Cluster(CLUSTER, "flights", 2, 5),
        nodes={name: node(f"n{number}") for number, name in enumerate(ROW, 1)},
        buckets={BUCKET: Bucket("default", len(records), 2)},
        data={BUCKET: data},
        index={BUCKET: IndexMap(key(1), BUCKET, parts)},
    )
    return dataclasses.replace(made, **others)


def test_of_each_record_the_newest_counts_whoever_has_it() -> None:
    old, moved = record(3), record(9, ROW, ("b", "c", "d"), active="b")
    told = three(old) | {"c": held("c", moved), "d": held("d", old)}
    for before in (state(record(4)), ClusterState()):
        after = rebuild(before, told, NOBODY, IDENTITY, 0)
        (found,) = after.data[BUCKET].records
        assert (found.rows, found.active, found.branch) == (moved.rows, "b", 7)
        assert found.at == found.since == after.data[BUCKET].key == key(10, 3)


def test_a_restored_state_that_is_newer_than_what_nodes_adopted_counts() -> None:
    newer = record(5, ROW, ("b", "a", "c"))
    after = rebuild(state(newer), three(record(3)), NOBODY, IDENTITY, 0)
    assert after.data[BUCKET].records[0].rows == newer.rows


@given(st.lists(st.integers(2, 9), min_size=1, max_size=4), st.integers(1, 9))
def test_the_generation_is_above_all_that_anybody_knows(known: list[int], own: int) -> None:
    told = {
        f"x{number}": held(f"x{number}", replace(record(), at=key(1, one)))
        for number, one in enumerate(known)
    } | three(record())
    before = state(record(), cluster=Cluster(CLUSTER, "flights", own, 5))
    after = rebuild(before, told, NOBODY, IDENTITY, 0)
    assert after.cluster is not None
    assert after.cluster.generation == max(*known, own, 2) + 1 == after.data[BUCKET].key.generation


def test_parts_that_were_being_made_are_forgotten_and_floors_stay() -> None:
    part = IndexRecord(key(4), "b", "c", Floor(7, 11))
    told = three(record()) | {"b": held("b", record(), index={0: part})}
    after = rebuild(state(record()), told, NOBODY, IDENTITY, 0)
    (found,) = after.index[BUCKET].records
    assert (found.owner, found.building, found.floor) == ("b", None, Floor(7, 11))
    assert found.at == key(5, 3)


def test_without_any_index_record_the_node_that_serves_owns_the_part() -> None:
    after = rebuild(ClusterState(), three(record(active="b")), NOBODY, IDENTITY, 0)
    assert after.index[BUCKET].records[0].owner == "b"


def test_nodes_that_only_records_name_are_known_too() -> None:
    told = {"a": held("a", record())}
    assert set(known_nodes(ClusterState(), told)) == set(ROW)
    assert known_nodes(ClusterState(), told)["b"].host == "host-b"
    assert set(known_nodes(state(record()), {})) == set(ROW)


def test_nodes_that_nobody_names_get_names_and_others_keep_theirs() -> None:
    told = three(record()) | {"a": held("a", record(), nodes={"b": node("n1")})}
    names = {one: node.name for one, node in known_nodes(ClusterState(), told).items()}
    assert names["b"] == "n1"
    assert sorted(names.values()) == ["n1", "n2", "n3"]


def test_a_node_given_up_is_failed_by_force_and_the_others_are_members() -> None:
    before = state(record())
    nodes = {**before.nodes, "b": replace(before.nodes["b"], state="out")}
    before = dataclasses.replace(before, nodes=nodes, boots={"c": 5})
    told = three(record())
    del told["c"]
    after = rebuild(before, told, frozenset("c"), IDENTITY, 77)
    assert after.nodes["c"].is_given_up
    assert (after.nodes["c"].boots, after.nodes["c"].since_ms) == (5, 77)
    assert {name: after.nodes[name].state for name in "ab"} == {"a": "in", "b": "in"}


def test_a_node_that_was_not_asked_is_no_member_of_a_rebuilt_cluster() -> None:
    with pytest.raises(AssertionError):
        rebuild(state(record()), {"a": held("a", record())}, NOBODY, IDENTITY, 0)


def test_a_bucket_that_no_node_has_was_dropped_unless_nodes_are_given_up() -> None:
    before, told = state(record()), {name: held(name) for name in ROW}
    assert rebuild(before, told, NOBODY, IDENTITY, 0).buckets == {}
    del told["c"]
    assert set(rebuild(before, told, frozenset("c"), IDENTITY, 0).buckets) == {BUCKET}


def test_a_bucket_that_the_state_does_not_know_is_taken_from_the_nodes() -> None:
    told = {name: held(name, record(), uuid="u2") for name in ROW}
    before = state(record(), buckets={}, data={}, index={})
    after = rebuild(before, told, NOBODY, IDENTITY, 0)
    assert after.buckets == {"u2": Bucket("default", 1, 2)}
    described = Bucket("default", 1, 2, settings={"memory_quota_bytes": 9})
    told["a"] = replace(told["a"], described={"u2": described}, version=Version(1, 0, 1))
    assert rebuild(before, told, NOBODY, IDENTITY, 0).buckets == {"u2": described}


def test_a_bucket_made_anew_replaces_the_one_of_its_name_in_the_old_state() -> None:
    told = {name: held(name, record(), uuid="u2") for name in ROW}
    after = rebuild(state(record()), told, NOBODY, IDENTITY, 0)
    assert set(after.buckets) == {"u2"}


def test_two_buckets_of_one_name_are_refused() -> None:
    told = three(record()) | {"c": held("c", record(), uuid="u2")}
    with pytest.raises(ConditionError) as caught:
        rebuild(state(record()), told, NOBODY, IDENTITY, 0)
    assert caught.value.code == "two_buckets"


def test_settings_are_those_that_were_told_last_if_the_state_is_gone() -> None:
    told = three(record())
    told["a"] = replace(told["a"], settings=Settings(moves=9), version=Version(1, 0, 4))
    told["b"] = replace(told["b"], settings=Settings(moves=8), version=Version(1, 0, 3))
    assert rebuild(ClusterState(), told, NOBODY, IDENTITY, 0).settings.moves == 9
    assert rebuild(state(record()), told, NOBODY, IDENTITY, 0).settings.moves == 2


def test_levels_are_at_risk_where_a_quorum_is_given_up() -> None:
    told = three(record())
    whole = rebuild(state(record()), told, NOBODY, IDENTITY, 0)
    assert losses(whole, told) == []
    del told["c"]
    one_less = rebuild(state(record()), told, frozenset("c"), IDENTITY, 0)
    assert losses(one_less, told) == []
    del told["b"]
    (found,) = losses(rebuild(state(record()), told, frozenset("bc"), IDENTITY, 0), told)
    assert (found.bucket, found.at_risk, found.gone) == (
        "default", {"majority": 1, "persisted": 1}, (),
    )  # fmt: skip
    elsewhere = record(2, ("b", "c", None))
    told = {"a": held("a", elsewhere)}
    (found,) = losses(rebuild(ClusterState(), told, frozenset("bc"), IDENTITY, 0), told)
    assert found.gone == (0,)
