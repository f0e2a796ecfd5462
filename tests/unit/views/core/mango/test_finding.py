"""Bodies of `_find`: what is refused, bookmarks, and what `_explain` shows."""

import pytest

from millstream.errors import UsageError
from millstream.views.core.mango.definitions import parse_definition
from millstream.views.core.mango.finding import (
    LIMIT_DEFAULT,
    NO_BOOKMARK,
    Place,
    bookmark_of,
    explained,
    parse_find,
    scan_warning,
)
from millstream.views.core.mango.planning import Index, plan_query


def find(**options):
    return parse_find({"selector": {}} | options)


def test_defaults_of_options():
    found = find()
    assert (found.limit, found.skip, found.sort, found.fields) == (LIMIT_DEFAULT, 0, (), ())
    assert (found.use_index, found.after, found.bookmark) == ((), None, NO_BOOKMARK)
    assert found.update
    assert not found.descending | found.stable | found.conflicts | found.execution_stats


def test_options_that_are_given():
    found = find(
        use_index="_design/d/n", limit=0, skip=3, sort=[{"a": "desc"}], fields=["a.b", "c"], r=2,
        partition="", conflicts=True, stale="ok", execution_stats=True, bookmark=None,
    )  # fmt: skip
    assert found.use_index == ("d", "n")
    assert (found.limit, found.skip, found.sort_fields, found.descending) == (0, 3, ("a",), True)
    assert found.paths == (("a", "b"), ("c",))
    assert (found.update, found.stable) == (False, True)


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ("d", ("d",)), ("_design/d", ("d",)), ("d/n", ("d", "n")), (["_design/d"], ("d",)),
        (["d", "n"], ("d", "n")), ([], ()), (None, ()),
    ],
)  # fmt: skip
def test_names_of_indexes(given, names):
    assert find(use_index=given).use_index == names


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"more": 1}, "invalid_key"),
        ({"limit": -1}, "invalid_non_neg_integer"),
        ({"limit": "5"}, "invalid_non_neg_integer"),
        ({"skip": True}, "invalid_non_neg_integer"),
        ({"r": 0}, "invalid_pos_integer"),
        ({"sort": "a"}, "invalid_sort_json"),
        ({"fields": "a"}, "invalid_fields"),
        ({"fields": [1]}, "invalid_field"),
        ({"fields": ["a..b"]}, "invalid_field_name"),
        ({"conflicts": 1}, "invalid_boolean"),
        ({"update": None}, "invalid_boolean"),
        ({"stale": "maybe"}, "invalid_value"),
        ({"partition": "p"}, "bad_request"),
        ({"use_index": {}}, "invalid_index_name"),
        ({"use_index": "a/b/c"}, "invalid_index_name"),
        ({"use_index": [1]}, "invalid_index_name"),
        ({"bookmark": "nonsense"}, "invalid_bookmark"),
        ({"bookmark": "é"}, "invalid_bookmark"),
        ({"bookmark": 7}, "invalid_bookmark"),
        ({"bookmark": "W10="}, "invalid_bookmark"),
        ({"selector": []}, "invalid_selector_json"),
    ],
)
def test_refusals(options, code):
    with pytest.raises(UsageError) as caught:
        find(**options)
    assert caught.value.code == code


def test_a_selector_is_needed():
    with pytest.raises(UsageError, match="Missing required key: selector") as caught:
        parse_find({})
    assert caught.value.code == "missing_required_key"


@pytest.mark.parametrize(
    "place", [Place([1, "é", None], "x"), Place(None, "\u2028"), Place([], "")]
)
def test_bookmarks(place):
    found = find(bookmark=bookmark_of(place))
    assert found.after == place
    assert bookmark_of(found.after) == found.bookmark


def test_explanations():
    indexes = [Index("d", "n", parse_definition({"fields": ["a"]}))]

    def explain(**options):
        asked = find(**options)
        plan = plan_query(indexes, asked.selector.normal, asked.sort_fields, asked.use_index)
        return explained("db", asked, plan)

    found = explain(selector={"a": {"$gt": 1}}, sort=[{"a": "desc"}], fields=["a"])
    assert found["dbname"] == "db"
    assert found["index"]["ddoc"] == "_design/d"
    assert found["selector"] == {"a": {"$gt": 1}}
    assert (found["limit"], found["skip"], found["fields"]) == (LIMIT_DEFAULT, 0, ["a"])
    assert found["opts"]["sort"] == {"a": "desc"}
    arguments = found["mrargs"]
    assert arguments["direction"] == "rev"
    assert (arguments["start_key"], arguments["end_key"]) == (["<MAX>"], [1])
    arguments = explain(selector={"x": 1})["mrargs"]
    assert (arguments["start_key"], arguments["end_key"]) == ("", "<MAX>")
    arguments = explain(selector={"a": {"$gt": 1, "$lt": 0}})["mrargs"]
    assert (arguments["start_key"], arguments["end_key"]) == (None, None)


def test_many_documents_for_few_results_are_worth_a_warning():
    assert scan_warning(10, 1) == scan_warning(10, 0) == scan_warning(0, 0) == []
    assert len(scan_warning(11, 1)) == len(scan_warning(11, 0)) == 1
