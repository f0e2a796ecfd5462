import copy
import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import UsageError
from millstream.model.bucket_map import (
    BUCKET_NODES_MAX,
    COPIES_MAX,
    MAP_REVISION_MAX,
    NODE_NAME_BYTES_MAX,
    BucketMap,
    NodeAddress,
    bucket_map_from_json,
    bucket_map_to_json,
)
from millstream.model.limits import BUCKET_NAME_BYTES_MAX, STREAM_NAME_BYTES_MAX

A = NodeAddress("a", "db-a.example", 11210, 5984)
B = NodeAddress("b", "10.0.0.2", 11210, 5984)
C = NodeAddress("c", "fd00::3", 11211, 5985)
MAP = BucketMap(7, (A, B, C), (("a", "b", "c"), ("b", None, "a"), (None, None, "c"), ("c",)))
GOOD: dict[str, Any] = {
    "revision": 3,
    "nodes": [A._asdict(), B._asdict(), C._asdict()],
    "rows": [["a", "b"], ["b", None], [None, None], ["c", "a"]],
}


def changed(*path: Any, to: Any) -> dict[str, Any]:
    content = copy.deepcopy(GOOD)
    inner = content
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = to
    return content


def test_what_a_row_says() -> None:
    assert [MAP.active(p) for p in range(4)] == ["a", "b", None, "c"]
    assert [MAP.copies(p) for p in range(4)] == [("a", "b", "c"), ("b", "a"), ("c",), ("c",)]
    assert MAP.node("b") is B
    assert MAP.has_node("c")
    assert not MAP.has_node("d")


def test_an_empty_place_counts_for_a_majority() -> None:
    assert [MAP.majority(p) for p in range(4)] == [2, 2, 2, 1]
    assert BucketMap(1, (A,), (("a", None),)).majority(0) == 2
    assert BucketMap(1, (A,), (("a", None, None, None),)).majority(0) == 3


def test_alone_is_who_is_meant_to_have_no_other_copy() -> None:
    assert BucketMap(1, (A, B), (("a",), ("b",))).is_alone
    assert not BucketMap(1, (A, B), (("a", "b"), ("b", "a"))).is_alone
    assert not BucketMap(1, (A, B), (("a", None), ("b", None))).is_alone


def test_a_map_comes_back_from_json() -> None:
    decoded = bucket_map_from_json(GOOD)
    assert decoded.revision == 3
    assert decoded.nodes == (A, B, C)
    assert decoded.rows == (("a", "b"), ("b", None), (None, None), ("c", "a"))
    assert json.loads(json.dumps(bucket_map_to_json(decoded))) == GOOD


def test_other_members_are_left_to_others() -> None:
    assert bucket_map_from_json({**GOOD, "uuid": 7, "this": "a"}) == bucket_map_from_json(GOOD)


@pytest.mark.parametrize(
    ("content", "code", "named"),
    [
        (changed("revision", to=0), "bad_map_revision", "0"),
        (changed("revision", to=True), "bad_map_revision", "True"),
        (changed("revision", to="1"), "bad_map_revision", "'1'"),
        (changed("revision", to=1.0), "bad_map_revision", "1.0"),
        (changed("revision", to=MAP_REVISION_MAX + 1), "bad_map_revision", "1 to"),
        ({}, "bad_map_revision", "None"),
        (changed("nodes", to=[]), "bad_map_nodes", "1 to"),
        (changed("nodes", to={"a": A._asdict()}), "bad_map_nodes", "list"),
        (changed("nodes", to=[A._asdict()] * (BUCKET_NODES_MAX + 1)), "bad_map_nodes", "64"),
        (changed("nodes", 1, to="b"), "bad_map_nodes", "'b'"),
        (changed("nodes", 1, "name", to=""), "bad_node_name", "''"),
        (
            changed("nodes", 1, "name", to="x" * (NODE_NAME_BYTES_MAX + 1)),
            "bad_node_name",
            "1 to 32",
        ),
        (changed("nodes", 1, "name", to="a->b"), "bad_node_name", "a->b"),
        (changed("nodes", 1, "name", to=5), "bad_node_name", "5"),
        (changed("nodes", 1, "host", to=""), "bad_node_address", "host"),
        (changed("nodes", 1, "host", to="h/x"), "bad_node_address", "h/x"),
        (changed("nodes", 1, "host", to="x" * 256), "bad_node_address", "node b"),
        (changed("nodes", 1, "host", to=None), "bad_node_address", "node b"),
        (changed("nodes", 1, "kv", to=0), "bad_node_address", '"kv"'),
        (changed("nodes", 1, "kv", to=65536), "bad_node_address", "65536"),
        (changed("nodes", 1, "http", to="5984"), "bad_node_address", '"http"'),
        (changed("nodes", 1, "http", to=True), "bad_node_address", "True"),
        (changed("nodes", 1, "name", to="a"), "node_listed_twice", "name a"),
        (changed("nodes", 1, "host", to=A.host), "node_listed_twice", "kv address db-a"),
        (
            changed("nodes", 1, to={**A._asdict(), "name": "b", "kv": 9}),
            "node_listed_twice",
            "htt",
        ),
        (changed("rows", to=[]), "bad_map_rows", "each partition"),
        (changed("rows", to="ab"), "bad_map_rows", "each partition"),
        (changed("rows", 1, to=[]), "bad_map_rows", "row 1"),
        (changed("rows", 1, to="ab"), "bad_map_rows", "row 1"),
        (changed("rows", 1, to=["b", *[None] * COPIES_MAX]), "bad_map_rows", "row 1"),
        (changed("rows", 1, to=["b"]), "bad_map_rows", "row 1 has 1 places, row 0 has 2"),
        (changed("rows", 2, 1, to="d"), "unknown_node", "row 2: 'd'"),
        (changed("rows", 2, 1, to=["a"]), "unknown_node", "row 2"),
        (changed("rows", 3, 1, to="c"), "two_copies_on_a_node", "row 3 names c"),
    ],
)
def test_a_faulty_map_is_refused_by_name(content: dict[str, Any], code: str, named: str) -> None:
    with pytest.raises(UsageError, match=r"^[^\n]{10,200}$") as caught:
        bucket_map_from_json(content)
    assert caught.value.code == code
    assert named in str(caught.value)


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)
PATHS = [
    ("revision",), ("nodes",), ("rows",), ("nodes", 0), ("nodes", 0, "name"), ("nodes", 0, "host"),
    ("nodes", 0, "kv"), ("nodes", 2, "http"), ("rows", 0), ("rows", 0, 0), ("rows", 3, 1),
]  # fmt: skip


@given(st.sampled_from(PATHS), ANY_JSON)
def test_whatever_stands_there_it_is_refused_or_comes_back(path: tuple[Any, ...], to: Any) -> None:
    content = changed(*path, to=to)
    decoded = None
    with suppress(UsageError):
        decoded = bucket_map_from_json(content)
    if decoded is not None:
        assert bucket_map_from_json(bucket_map_to_json(decoded)) == decoded


def test_the_longest_names_fit_into_a_stream_name() -> None:
    name = "n" * NODE_NAME_BYTES_MAX
    stream = f"millstream:replication:{name}->{name}:{'b' * BUCKET_NAME_BYTES_MAX}"
    assert len(stream) <= STREAM_NAME_BYTES_MAX


def test_a_map_of_a_managed_cluster_has_a_generation_and_replaces_those_made_by_hand() -> None:
    managed = BucketMap(1, (A,), (("a",),), 9)
    assert bucket_map_from_json(bucket_map_to_json(managed)) == managed
    by_hand = BucketMap(8, (A,), (("a",),))
    assert "generation" not in bucket_map_to_json(by_hand)
    assert by_hand.key < managed.key
    with pytest.raises(UsageError) as caught:
        bucket_map_from_json(bucket_map_to_json(managed) | {"generation": -1})
    assert caught.value.code == "bad_map_revision"
