from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import UsageError
from millstream.pipelines.change_stream.inference import members_of


def found(*documents: object) -> str:
    return members_of(json.dumps(document).encode() for document in documents)


@pytest.mark.parametrize(
    ("documents", "members"),
    [
        ([{"b": 1, "a": "x"}], "a string, b bigint"),
        ([{"x": 1}, {"x": 1.5}], "x double"),
        ([{"x": 1}, {"x": "a"}], "x string"),
        ([{"x": True}, {"x": 1}], "x string"),
        ([{"x": 2**70}], "x double"),
        ([{"x": None}], "x string"),
        ([{"x": None}, {"x": False}], "x boolean"),
        ([{"x": [1, 2.5]}, {"x": []}], "x array<double>"),
        ([{"x": {"b": 1}}, {"x": {"a": []}}], "x struct<a: array<string>, b: bigint>"),
        ([{"x": {}}], "x string"),
        ([{"x": {"a": 1}}, {"x": 1}], "x string"),
        ([{"a b": 1, "`": 2}], "```` bigint, `a b` bigint"),
        ([{"_id": "k", "x": 1}, [1], 5], "x bigint"),
    ],
)
def test_columns_are_those_that_hold_all_values(documents: list[object], members: str) -> None:
    assert found(*documents) == members


def test_a_sample_without_objects_is_an_error() -> None:
    with pytest.raises(UsageError, match="documentSchema"):
        found([1], {}, {"_rev": "1-a"})
    with pytest.raises(UsageError, match="documentSchema"):
        members_of([b"\xff", b""])


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.just(0.5) | st.just("t"),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner),
    max_leaves=4,
)


@given(
    st.lists(st.dictionaries(st.sampled_from("xyz"), VALUES, min_size=1), min_size=1), st.data()
)
def test_the_order_of_documents_does_not_matter(documents: list[Any], data: st.DataObject) -> None:
    other = data.draw(st.permutations(documents))
    assert found(*documents) == found(*other)
