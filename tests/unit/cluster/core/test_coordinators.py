"""Which nodes coordinate, as members come, fail and leave."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from millstream.cluster.core.coordinators import REPLACE_AFTER_MS, next_coordinators
from millstream.cluster.core.elements import ClusterState, Live, NodeRecord
from millstream.cluster.core.settings import Settings

NOW = 10 * REPLACE_AFTER_MS


def node(state: Any = "in", since: int = 0, zone: str = "", roles: Any = ("coord",)) -> NodeRecord:
    return NodeRecord("n", "h", {}, roles, zone, state, since_ms=since)


def cluster(wanted: int = 3, **nodes: NodeRecord) -> ClusterState:
    live = {one: Live("i", {}, 1) for one, its in nodes.items() if its.state in ("in", "leaving")}
    return ClusterState(settings=Settings(coordinators=wanted), nodes=nodes, live=live)


def following(state: ClusterState, members: str) -> str | None:
    found = next_coordinators(state, members, NOW)
    return None if found is None else "".join(found)


def test_the_group_grows_with_the_third_node_and_no_further_than_is_set() -> None:
    assert following(cluster(a=node()), "a") is None
    assert following(cluster(a=node(), b=node()), "a") is None
    three = cluster(a=node(), b=node(), c=node())
    assert following(three, "a") == "abc"
    assert following(three, "abc") is None
    five = {one: node() for one in "abcde"}
    assert following(cluster(**five), "abc") is None
    assert following(cluster(5, **five), "abc") == "abcde"
    assert following(cluster(1, **five), "a") is None


def test_who_does_not_coordinate_or_has_no_session_is_no_member() -> None:
    assert following(cluster(a=node(), b=node(), c=node(roles=("data",))), "a") is None
    assert following(cluster(a=node(), b=node(), c=node("joining")), "a") is None


def test_new_members_are_of_other_zones() -> None:
    nodes = {one: node(zone="x" if one in "abc" else "y") for one in "abcd"}
    assert following(cluster(**nodes), "a") == "abd"


def test_a_member_that_has_failed_for_long_is_replaced_if_somebody_can() -> None:
    for since, then in ((NOW - REPLACE_AFTER_MS, "abd"), (NOW - REPLACE_AFTER_MS + 1, None)):
        failed = node("failed", since)
        assert following(cluster(a=node(), b=node(), c=failed, d=node()), "abc") == then
        assert following(cluster(a=node(), b=node(), c=failed), "abc") is None


def test_a_member_that_leaves_is_replaced_or_the_group_shrinks_but_not_below_three() -> None:
    for state in ("leaving", "out"):
        gone = node(state)
        assert following(cluster(a=node(), b=node(), c=gone, d=node()), "abc") == "abd"
        assert following(cluster(a=node(), b=node(), c=gone), "abc") is None
        five = {one: node() for one in "abcd"}
        assert following(cluster(5, **five, e=gone), "abcde") == "abc"
    assert following(cluster(a=node("out")), "a") is None


def test_a_member_that_nobody_knows_is_replaced() -> None:
    assert following(cluster(a=node(), b=node(), c=node()), "a?") == "abc"


STATES = st.sampled_from(["in", "leaving", "failed", "out", "joining"])


@given(
    st.dictionaries(st.sampled_from("abcdefg"), st.tuples(STATES, st.sampled_from([0, NOW]))),
    st.sets(st.sampled_from("abcdefg"), min_size=1).filter(lambda one: len(one) % 2),
    st.sampled_from([1, 3, 5, 7]),
)
def test_a_group_is_odd_of_known_members_and_follows_once(
    nodes: dict[str, tuple[Any, int]], members: set[str], wanted: int
) -> None:
    state = cluster(wanted, **{one: node(*what) for one, what in nodes.items()})
    found = next_coordinators(state, members, NOW)
    if found is None:
        return
    assert len(found) % 2
    assert all(one in members or one in state.live for one in found)
    assert next_coordinators(state, found, NOW) is None
