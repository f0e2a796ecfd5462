"""Definitions of JSON indexes and sorts: what is refused, what documents contribute."""

import pytest

from millstream.errors import UsageError
from millstream.views.core.mango.definitions import (
    FIELDS_MAX,
    key_maker,
    parse_definition,
    parse_sort,
)


def test_fields_in_all_their_forms_are_one_definition():
    forms = (["a", "b.c"], [{"a": "asc"}, "b.c"], {"a": "asc", "b.c": "asc"})
    definitions = {repr(parse_definition({"fields": fields})) for fields in forms}
    assert len(definitions) == 1
    definition = parse_definition({"fields": ["a", "b.c"], "partial_filter_selector": {"a": 1}})
    assert definition.columns == ("a", "b.c")
    assert parse_definition(definition.as_json()) == definition
    assert definition.as_listed() == {
        "fields": [{"a": "asc"}, {"b.c": "asc"}], "partial_filter_selector": {"a": 1}
    }  # fmt: skip
    assert "partial_filter_selector" not in parse_definition({"fields": ["a"]}).as_json()


def test_design_documents_may_have_the_older_name_of_a_filter():
    older = {"fields": {"a": "asc"}, "selector": {"a": {"$gt": 1}}}
    newer = {"fields": {"a": "asc"}, "partial_filter_selector": {"a": {"$gt": 1}}}
    assert parse_definition(older) == parse_definition(newer)
    with pytest.raises(UsageError, match="Invalid key selector"):
        parse_definition(older, is_request=True)


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (None, "invalid_index"),
        ([], "invalid_index"),
        ({}, "missing_required_key"),
        ({"fields": []}, "invalid_index"),
        ({"fields": ["a", "a"]}, "invalid_index"),
        ({"fields": [f"f{n}" for n in range(FIELDS_MAX + 1)]}, "invalid_index"),
        ({"fields": ["a"], "more": 1}, "invalid_key"),
        ({"fields": ["a..b"]}, "invalid_field_name"),
        ({"fields": ["a"], "partial_filter_selector": {"a": {"$no": 1}}}, "invalid_operator"),
        ({"fields": ["a"], "partial_filter_selector": [1]}, "invalid_selector_json"),
        ({"fields": None}, "invalid_sort_json"),
        ({"fields": "a"}, "invalid_sort_json"),
        ({"fields": [2.0]}, "invalid_sort_field"),
        ({"fields": [""]}, "invalid_sort_field"),
        ({"fields": [{"": "asc"}]}, "invalid_sort_field"),
        ({"fields": [{"a": "asc", "b": "desc"}]}, "invalid_sort_field"),
        ({"fields": [{"a": 2}]}, "invalid_sort_dir"),
        ({"fields": [{"a": "asc"}, {"b": "desc"}]}, "unsupported_mixed_sort"),
    ],
)
def test_refusals(content, code):
    with pytest.raises(UsageError) as caught:
        parse_definition(content)
    assert caught.value.code == code


def test_sorts():
    assert parse_sort([]) == ()
    assert parse_sort([{"a": "desc"}, {"b": "desc"}]) == (("a", "desc"), ("b", "desc"))


def test_keys_of_documents():
    key = key_maker(parse_definition({"fields": ["a", "b.0"]}))
    assert key({"a": None, "b": [{"x": 1}], "c": 2}) == [None, {"x": 1}]
    assert key({"a": 1, "b": []}) is None
    assert key({"b": [1]}) is None
    assert key({"_id": "_design/d", "a": 1, "b": [1]}) is None
    partial = {"fields": ["a"], "partial_filter_selector": {"a": {"$gt": 5}}}
    key = key_maker(parse_definition(partial))
    assert key({"a": 6}) == [6]
    assert key({"a": 5}) is None
