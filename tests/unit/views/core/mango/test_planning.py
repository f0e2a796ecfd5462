"""Choosing an index: CouchDB's rules as cases, and that a range never loses a document."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import UsageError
from millstream.views.core.collation import encode_key
from millstream.views.core.mango.definitions import key_maker, parse_definition
from millstream.views.core.mango.planning import (
    ALL_DOCS,
    MAXIMUM,
    Index,
    indexes_of,
    plan_query,
)
from millstream.views.core.mango.selectors import parse_selector


def index(name, *fields, design="d", partial=None):
    content = {"fields": list(fields), "partial_filter_selector": partial or {}}
    return Index(design, name, parse_definition(content))


INDEXES = [
    index("a", "a"),
    index("ab", "a", "b"),
    index("abc", "a", "b", "c"),
    index("b", "b"),
    index("b2", "b", design="c"),
    index("p", "a", partial={"b": 1}),
]


def plan(selector, sort=(), use_index=(), indexes=INDEXES, **options):
    return plan_query(indexes, parse_selector(selector).normal, sort, use_index, **options)


@pytest.mark.parametrize(
    ("selector", "sort", "use_index", "chosen"),
    [
        ({"a": 1}, [], (), "a"),
        ({"a": 1, "b": 2}, [], (), "ab"),
        ({"a": 1, "b": 2, "c": {"$exists": True}}, [], (), "ab"),
        ({"a": 1, "b": 2, "c": 3}, [], (), "abc"),
        ({"b": 2}, [], (), "b2"),
        ({"b": {"$in": [1]}}, [], (), "b2"),
        ({"a": {"$exists": False}}, [], (), "_all_docs"),
        ({"x": 1}, [], (), "_all_docs"),
        ({}, [], (), "_all_docs"),
        ({"$or": [{"a": 1}, {"b": 2}]}, [], (), "_all_docs"),
        ({"$or": [{"a": 1}, {"a": 2, "x": 1}]}, [], (), "a"),
        ({"$nor": [{"a": 1}]}, [], (), "a"),
        ({"a": 1}, ["b"], (), "ab"),
        ({"a": {"$gt": 1}}, ["a", "b"], (), "ab"),
        ({"b": 1}, ["a"], (), "a"),
        ({"a": 1, "b": 1}, ["c"], (), "abc"),
        ({"_id": {"$gt": "x"}}, ["_id"], (), "_all_docs"),
        ({"x": {"$ne": 1}}, ["_id"], (), "_all_docs"),
        ({"a": 1}, [], ("d",), "a"),
        ({"a": 1}, [], ("d", "p"), "p"),
        ({"a": 1, "b": 2}, [], ("d", "a"), "a"),
        ({"b": 1}, [], ("d",), "b"),
        ({"a": 1}, [], ("other",), "a"),
        ({"x": 1}, [], ("d", "a"), "_all_docs"),
    ],
)
def test_the_index(selector, sort, use_index, chosen):
    assert plan(selector, sort, use_index).index.name == chosen


@pytest.mark.parametrize(
    ("selector", "sort"),
    [({"a": {"$gt": 1}}, ["b", "a"]), ({"x": 1}, ["x"]), ({}, ["a"])],
)
def test_no_index_has_the_order(selector, sort):
    with pytest.raises(UsageError, match="No index exists for this sort") as caught:
        plan(selector, sort)
    assert caught.value.code == "no_usable_index"


@pytest.mark.parametrize(("selector", "use_index", "reason"), [
    ({"x": 1}, (), "You must specify an index with the `use_index` parameter."),
    ({"a": 1}, ("e",), "_design/e specified by `use_index` could not be found or it is not"),
    ({"a": 1}, ("d", "b"), "_design/d, b specified by `use_index` could not be found"),
])  # fmt: skip
def test_without_a_fallback_a_query_without_its_index_is_refused(selector, use_index, reason):
    assert plan(selector, use_index=use_index).warnings
    with pytest.raises(UsageError, match=reason) as caught:
        plan(selector, use_index=use_index, allow_fallback=False)
    assert caught.value.code == "invalid_index"


@pytest.mark.parametrize("use_index", [(), ("d",), ("d", "ab")])
def test_without_a_fallback_a_query_with_an_index_is_served(use_index):
    found = plan({"a": 1, "b": 1}, use_index=use_index, allow_fallback=False)
    assert found == plan({"a": 1, "b": 1}, use_index=use_index)


def test_warnings():
    assert plan({"a": 1}).warnings == ()
    (warning,) = plan({"x": 1}).warnings
    assert warning == "No matching index found, create an index to optimize query time."
    assert plan({"a": 1}, use_index=("other",)).warnings == (
        "_design/other was not used because it does not contain a valid index for this query.",
    )
    assert plan({"a": 1}, use_index=("d", "b")).warnings == (
        "_design/d, b was not used because it is not a valid index for this query.",
    )


@pytest.mark.parametrize(
    ("selector", "start", "end"),
    [
        ({"a": 1}, [1], [1, MAXIMUM]),
        ({"a": {"$gt": 1}}, [1], [MAXIMUM]),
        ({"a": {"$lte": 5, "$gte": 1}}, [1], [5, MAXIMUM]),
        ({"a": {"$exists": True}}, [], [MAXIMUM]),
        ({"a": 1, "b": {"$gt": 2}}, [1, 2], [1, MAXIMUM]),
        ({"a": {"$gt": 1}, "b": {"$lt": 3}}, [1], [MAXIMUM]),
        ({"a": {"$lt": 1}, "b": 3}, [], [1, 3, MAXIMUM]),
    ],
)
def test_ranges(selector, start, end):
    found = plan(selector)
    assert not found.is_empty
    assert (found.start_key, found.end_key) == (start, end)


@pytest.mark.parametrize(
    "selector",
    [
        {"a": {"$gt": 5, "$lt": 5}},
        {"a": {"$gte": 5, "$lt": 5}},
        {"$and": [{"a": 1}, {"a": 2}]},
        {"x": {"$gt": 2, "$lt": 1}},
        {"$or": []},
        {"$and": []},
        {"_id": {"$gt": "b", "$lt": "B"}},
    ],
)
def test_selectors_that_match_nothing(selector):
    assert plan(selector).is_empty


@pytest.mark.parametrize(
    ("selector", "ids"),
    [
        ({}, (None, None)),
        ({"x": 1}, (None, None)),
        ({"_id": "b"}, ("b", "b")),
        ({"_id": {"$gt": "b", "$lte": "c"}}, ("b", "c")),
        ({"_id": {"$gt": None}}, (None, None)),
        ({"_id": {"$gt": "B", "$lt": "a"}}, ("B", "a")),
    ],
)
def test_ids(selector, ids):
    found = plan(selector)
    assert found.index is ALL_DOCS
    assert not found.is_empty
    assert found.ids == ids


def test_ids_in_an_index_bound_it_only_where_they_are_equal():
    indexes = [index("i", "_id", "a")]
    found = plan({"_id": {"$gt": "B"}, "a": 1}, indexes=indexes)
    assert (found.start_key, found.end_key) == ([], [MAXIMUM])
    found = plan({"_id": "x", "a": 1}, indexes=indexes)
    assert (found.start_key, found.end_key) == (["x", 1], ["x", 1, MAXIMUM])


def test_the_maximum_is_behind_what_documents_have():
    others = [None, True, 1e300, "\uffff", ["\uffff"], {"\uffff": {}}, {"\U0010fffd" * 3: 1}]
    for other in others:
        assert encode_key(other) < encode_key(MAXIMUM)


def test_indexes_of_design_documents():
    content = {
        "language": "query",
        "views": {
            "good": {"map": {"fields": {"a": "asc"}}, "reduce": "_count"},
            "bad": {"map": {"fields": 1}},
            "source": {"map": "function"},
            "odd": 7,
        },
    }
    (found,) = indexes_of("d", content)
    assert found.as_json() == {
        "ddoc": "_design/d", "name": "good", "type": "json", "partitioned": False,
        "def": {"fields": [{"a": "asc"}]},
    }  # fmt: skip
    assert indexes_of("d", content | {"language": "javascript"}) == []
    assert indexes_of("d", {"language": "query"}) == []
    assert ALL_DOCS.as_json() == {
        "ddoc": None, "name": "_all_docs", "type": "special", "def": {"fields": [{"_id": "asc"}]}
    }  # fmt: skip


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 2), st.text("ab", max_size=2),
    st.lists(st.integers(0, 1), max_size=2),
    st.dictionaries(st.sampled_from("ab"), st.integers(0, 1)),
)  # fmt: skip
CONDITIONS = st.dictionaries(
    st.sampled_from(["$lt", "$lte", "$eq", "$gte", "$gt", "$ne"]), VALUES, min_size=1, max_size=2
)
SELECTORS = st.dictionaries(
    st.sampled_from(["a", "b", "c"]), st.one_of(CONDITIONS, VALUES), min_size=1, max_size=3
)
DOCUMENTS = st.lists(st.dictionaries(st.sampled_from(["a", "b", "c"]), VALUES), max_size=8)


@given(SELECTORS, st.booleans(), DOCUMENTS)
def test_every_document_that_matches_is_in_the_range(selector, is_negated, documents):
    parsed = parse_selector({"$not": selector} if is_negated else selector)
    found = plan_query(INDEXES[:5], parsed.normal, (), ())
    matching = [document for document in documents if parsed.matches(document)]
    if found.is_empty:
        assert not matching
    if found.index is ALL_DOCS:
        return
    start, end = encode_key(found.start_key), encode_key(found.end_key)
    key_of = key_maker(found.index.definition)
    for document in matching:
        assert start <= encode_key(key_of(document)) <= end
