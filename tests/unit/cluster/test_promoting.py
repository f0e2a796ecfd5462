"""Promotions over false nodes: whole runs, runs cut off at every request, two at a time."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from typing import Any

import pytest

from millstream.cluster.promoting import ROUNDS_MAX, Promoter, Report
from millstream.errors import UnavailableError, UsageError
from support.node.false_nodes import ABSENT, ACTIVE, REPLICA, UUID, FalseNode, FalseNodes

THREE = (("a", "b", "c"), ("b", "c", "a"))


def three(**ends: list[int]) -> FalseNodes:
    return FalseNodes(THREE, {"a": [9, 5], "b": [7, 5], "c": [8, 4]} | ends)


def promote(
    nodes: FalseNodes,
    wanted: Collection[int] = (0, 1),
    to: str | None = None,
    *,
    force: bool = False,
    branch: int = 10,
    drop: str | None = None,
) -> Report:
    numbers = itertools.count(branch)
    promoter = Promoter(
        UUID, nodes.open_pages, new_branch=lambda: next(numbers), pause=lambda number: None
    )  # fmt: skip
    return promoter.run(nodes.map, wanted, to, is_forced=force, drop=drop)


def ends_of(report: Report) -> list[tuple[str, str | None]]:
    return [(one.what, one.now) for one in report.outcomes]


def revisions(nodes: FalseNodes) -> set[int]:
    return {node.map.revision for node in nodes.nodes.values() if node.map}


def test_what_is_served_is_left_alone() -> None:
    nodes = three()
    report = promote(nodes)
    assert ends_of(report) == [("served", "a"), ("served", "b")]
    assert (report.revision, dict(report.silent)) == (3, {})
    assert {page for _, page in nodes.calls} == {"GET map", "GET standings"}


def test_the_furthest_of_the_others_takes_the_place_of_a_dead_node() -> None:
    nodes = three()
    nodes.down("a")
    report = promote(nodes)
    assert ends_of(report) == [("promoted", "c"), ("served", "b")]
    one = report.outcomes[0]
    assert (one.was, one.branch, one.seqno, one.at_risk) == ("a", 10, 8, ())
    assert nodes.nodes["c"].states == ["active", "replica"]
    for name in "bc":
        found = nodes.nodes[name].map
        assert found is not None
        assert (found.revision, found.rows[0]) == (4, ("c", "a", "b"))
        assert nodes.nodes[name].copies[0].last_branch == 10
    assert "a" in report.silent


def test_a_node_that_hangs_is_waited_for_once() -> None:
    nodes = three()
    nodes.down("a")
    report = promote(nodes)
    assert [page for name, page in nodes.calls if name == "a"] == ["GET map"]
    assert dict(report.silent) == {"a": "a does not answer"}


def test_a_node_that_comes_back_is_fenced_and_learns_the_map() -> None:
    nodes = three()
    nodes.down("a")
    promote(nodes)
    nodes.nodes["a"].is_up = True  # it was cut off, and is active still
    report = promote(nodes, branch=50)
    assert ends_of(report) == [("served", "c"), ("served", "b")]
    assert nodes.nodes["a"].states == ["replica", "replica"]
    assert nodes.nodes["a"].copies[0].last_branch == 10
    assert revisions(nodes) == {4}


def test_a_node_that_lost_everything_is_admitted_behind_the_promises() -> None:
    nodes = three()
    nodes.down("a")
    promote(nodes)
    nodes.nodes["a"] = FalseNode("a", None, [])
    report = promote(nodes, branch=50)
    assert dict(report.silent) == {}
    assert nodes.nodes["a"].states == ["replica", "replica"]
    assert [copy.last_branch for copy in nodes.nodes["a"].copies] == [10, 1]


def test_without_a_quorum_nobody_is_asked_to_promise_anything() -> None:
    nodes = three()
    nodes.down("a", "b")
    report = promote(nodes)
    assert [one.what for one in report.outcomes] == ["refused", "refused"]
    assert "1 of 3 copies answered, not a, b" in report.outcomes[0].reason
    assert not [page for _, page in nodes.calls if page.startswith(("POST", "PUT"))]


def test_force_does_it_and_says_what_may_be_lost() -> None:
    nodes = three()
    nodes.down("a", "b")
    report = promote(nodes, force=True)
    assert ends_of(report) == [("promoted", "c"), ("promoted", "c")]
    assert {one.at_risk for one in report.outcomes} == {("majority", "persisted")}
    nodes.down("c")
    report = promote(nodes, force=True)
    assert [one.what for one in report.outcomes] == ["refused", "refused"]


def test_a_copy_that_others_are_fenced_against_is_replaced() -> None:
    nodes = three()
    for name in "bc":  # a promotion got so far and no further
        nodes.ask(name, "POST", "promises", {"branch": 20, "partitions": [0]})
    report = promote(nodes)
    assert ends_of(report) == [("promoted", "a"), ("served", "b")]
    assert report.outcomes[0].branch == 21
    assert report.revision == 3


def test_what_is_served_is_handed_over_to_another_node() -> None:
    nodes = three()
    report = promote(nodes, to="c")
    assert ends_of(report) == [("handed_over", "c"), ("handed_over", "c")]
    assert nodes.nodes["c"].states == ["active", "active"]
    assert nodes.nodes["a"].states == nodes.nodes["b"].states == ["replica", "replica"]
    assert report.outcomes[0].branch == nodes.nodes["c"].copies[0].branch == 1
    assert [row[0] for row in nodes.nodes["a"].map.rows] == ["c", "c"]  # type: ignore[union-attr]


def test_what_cannot_be_handed_over_stays_where_it_is() -> None:
    nodes = three()

    def lose(number: int, name: str, page: str) -> None:
        if page == "partitions/1":
            raise UnavailableError("in time it was not", code="not_taken_over")

    nodes.before = lose
    report = promote(nodes, to="c")
    assert ends_of(report) == [("handed_over", "c"), ("failed", "b")]
    assert report.outcomes[1].reason == "in time it was not"
    assert_one_serves(nodes)
    nodes.down("a")
    nodes.down("b")
    nodes.before = lambda number, name, page: None
    assert ends_of(promote(nodes, to="c", force=True)) == [("served", "c"), ("promoted", "c")]


def test_of_those_that_are_as_far_the_wanted_one_wins() -> None:
    nodes = three(b=[8, 5])
    nodes.down("a")
    assert ends_of(promote(nodes, [0], to="c")) == [("promoted", "c")]


@pytest.mark.parametrize("is_done", [False, True])
@pytest.mark.parametrize("kind", ["promises", "activations", "map"])
@pytest.mark.parametrize("is_once", [False, True])
def test_an_answer_that_is_lost_costs_a_round_or_a_run(
    kind: str, is_done: bool, is_once: bool
) -> None:
    nodes = three()
    nodes.down("a")
    lost = []

    def lose(number: int, name: str, page: str) -> None:
        if page == kind and name == "c" and nodes.calls[number][1] != "GET map":
            if is_once and lost:
                return
            lost.append(name)
            raise UnavailableError("cut off", code="unreachable")

    setattr(nodes, "after" if is_done else "before", lose)
    promote(nodes)
    assert lost
    nodes.before = nodes.after = lambda number, name, page: None
    second = promote(nodes, branch=100)
    assert {one.what for one in second.outcomes} <= {"served", "promoted"}
    assert_one_serves(nodes)


def assert_one_serves(nodes: FalseNodes) -> None:
    """Of copies that are up one is active, none is fenced against it, and all maps say so."""
    up = [node for node in nodes.nodes.values() if node.is_up]
    for p in range(2):
        active = [node for node in up if node.copies[p].state is ACTIVE]
        assert len(active) == 1
        assert {node.copies[p].last_branch for node in up} == {active[0].copies[p].branch}
        assert {node.map.rows[p][0] for node in up if node.map} == {active[0].name}


def count_of_a_run() -> int:
    nodes = three()
    nodes.down("a")
    promote(nodes)
    return len(nodes.calls)


@pytest.mark.parametrize("at", range(count_of_a_run()))
def test_a_run_that_dies_at_any_request_is_completed_by_the_next(at: int) -> None:
    nodes = three()
    nodes.down("a")

    def die(number: int, name: str, page: str) -> None:
        if number >= at:
            raise RuntimeError("killed")

    nodes.after = die
    with pytest.raises(RuntimeError):
        promote(nodes)
    nodes.after = lambda number, name, page: None
    assert not [one for one in promote(nodes, branch=100).outcomes if one.what == "failed"]
    assert_one_serves(nodes)


@pytest.mark.parametrize("at", range(count_of_a_run()))
@pytest.mark.parametrize("branch", [5, 10, 500])
def test_two_at_once_end_with_one_active_copy(at: int, branch: int) -> None:
    nodes = three()
    nodes.down("a")
    inner: list[Any] = []

    def interfere(number: int, name: str, page: str) -> None:
        if number == at:
            inner.append(promote(nodes, branch=branch))

    nodes.before = interfere
    outer = promote(nodes)
    assert inner
    for report in (outer, *inner):
        assert {one.what for one in report.outcomes} <= {"served", "promoted"}
    branches = [copy.branch for n in nodes.nodes.values() for copy in n.copies[:1]]
    assert len(set(branches) - {1}) == len([b for b in branches if b != 1])
    promote(nodes, branch=900)
    assert_one_serves(nodes)


def test_maps_that_differ_are_replaced_by_one_that_is_newer_than_both() -> None:
    nodes = three()
    rows = (("a", "c", "b"), THREE[1])
    nodes.nodes["b"].map = nodes.map.__class__(3, nodes.map.nodes, rows)
    assert promote(nodes).revision == 4
    assert revisions(nodes) == {4}


def test_a_bucket_of_another_uuid_takes_no_part() -> None:
    nodes = three()
    promoter = Promoter("f" * 32, nodes.open_pages, new_branch=lambda: 9, pause=lambda n: None)
    report = promoter.run(nodes.map, [0], None, is_forced=True)
    assert report.outcomes[0].what == "refused"
    assert set(report.silent) == {"a", "b", "c"}
    assert "another bucket" in report.silent["a"]


def test_who_is_always_outbid_gives_up_in_time() -> None:
    nodes = three()
    nodes.down("a")
    bids = itertools.count(1000, 1000)

    def outbid(number: int, name: str, page: str) -> None:
        if page == "activations":
            content = {"branch": next(bids), "partitions": [0]}
            nodes.nodes[name].ask("POST", "promises", content)

    nodes.before = outbid
    report = promote(nodes)
    assert ends_of(report)[0] == ("failed", None)
    assert len([page for _, page in nodes.calls if page == "POST activations"]) == ROUNDS_MAX
    assert nodes.nodes["b"].copies[0].state is nodes.nodes["c"].copies[0].state is REPLICA
    assert ABSENT not in [copy.state for copy in nodes.nodes["c"].copies]


def test_a_lost_node_is_dropped_from_the_map_of_those_that_are_left() -> None:
    nodes = FalseNodes((("a", "b"), ("b", "a")), {"a": [9, 5], "b": [9, 5]})
    with pytest.raises(UsageError) as failure:
        promote(nodes, drop="a")
    assert failure.value.code == "node_answers"
    nodes.down("a")
    report = promote(nodes, drop="a")
    assert ends_of(report) == [("promoted", "b"), ("served", "b")]
    left = nodes.nodes["b"].map
    assert left is not None
    assert ([node.name for node in left.nodes], left.rows) == (["b"], (("b",), ("b",)))
    assert report.revision == left.revision > nodes.map.revision
