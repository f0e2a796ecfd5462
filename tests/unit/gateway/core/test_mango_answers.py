"""Which rows are answered, and what stands behind the last of them."""

import json
import pickle

import msgspec
import pytest

from millstream.errors import UsageError
from millstream.gateway.core.mango_answers import (
    BOUNDS_BYTES_MAX,
    LargeSelector,
    Selection,
    explained_by,
    judged,
    judged_by,
    judged_large,
    planned,
    planned_by,
    rows_in,
)
from millstream.views.core.mango.finding import Place, bookmark_of, parse_find
from millstream.views.core.mango.planning import plan_query
from millstream.views.core.query.rendering import SEPARATOR, head_text, tail_text


def selection(**options):
    find = parse_find({"selector": {"n": {"$gt": 0}}} | options)
    return Selection(find, plan_query([], find.selector.normal, (), ()))


def take(chosen, place, text):
    find = chosen._find
    return chosen.take(place, judged(find.selector.matches, find.paths, text))


def tail(chosen, seconds=0.5):
    return json.loads(b'{"docs":[' + chosen.tail(seconds))


def test_rows_of_a_piece():
    rows = [
        b'{"id":"%d","key":[%d],"value":null,"doc":{"_id":"%d"}}' % (n, n, n) for n in range(3)
    ]
    text = head_text(3, 0) + SEPARATOR.join(rows) + tail_text()
    assert [(row.place, bytes(row.doc)) for row in rows_in(text)] == [
        (Place([n], str(n)), b'{"_id":"%d"}' % n) for n in range(3)
    ]
    assert list(rows_in(b"")) == []


def test_documents_as_they_are_and_projected():
    text = b'{"_id":"a", "n":1.50}'
    assert take(selection(), Place([1], "a"), text) == text
    assert take(selection(fields=["n", "x"]), Place([1], "a"), text) == b'{"n":1.5}'


@pytest.mark.parametrize("text", [b"null", b'{"n":0}', b'{"n":', b"[]", b'{"n":' * 5000])
def test_what_does_not_match_is_passed_over(text):
    chosen = selection()
    assert take(chosen, Place(None, "a"), text) is None
    assert (chosen.examined, chosen.answered) == (1, 0)
    assert tail(chosen)["bookmark"] == "nil"


@pytest.mark.parametrize("selector", [{}, {"n": {"$gt": 0}}])
@pytest.mark.parametrize("fields", [[], ["n"]])
def test_a_helper_judges_as_this_process_does(selector, fields):
    find = parse_find({"selector": selector, "fields": fields})
    for text in (b'{"n":1,"m":2}', b'{"n":0}', b"null"):
        here = judged(find.selector.matches, find.paths, text)
        there = judged_large(find.selector.normal, find.paths, text)
        assert (text if there == b"" else there) == here


def test_limits_skips_and_bookmarks():
    chosen = selection(skip=2, limit=2)
    shown = [take(chosen, Place([n], str(n)), b'{"n":%d}' % n) for n in range(5)]
    assert shown == [None, None, None, b'{"n":3}', b'{"n":4}']
    assert chosen.is_full
    bookmark = tail(chosen)["bookmark"]
    assert bookmark == bookmark_of(Place([4], "4"))
    chosen = selection(bookmark=bookmark)
    shown = [take(chosen, Place([n], str(n)), b'{"n":%d}' % n) for n in (4, 5)]
    assert shown == [None, b'{"n":5}']
    assert tail(selection(bookmark=bookmark))["bookmark"] == bookmark


def test_statistics_and_warnings():
    chosen = selection(execution_stats=True)
    for n in range(12):
        take(chosen, Place(None, str(n)), b'{"n":%d}' % (n // 11))
    found = tail(chosen, 0.25)
    assert found["execution_stats"] == {
        "total_keys_examined": 0, "total_docs_examined": 12, "total_quorum_docs_examined": 0,
        "results_returned": 1, "execution_time_ms": 250.0,
    }  # fmt: skip
    no_index, many = found["warning"].split("\n")
    assert no_index.startswith("No matching index found")
    assert many.startswith("The number of documents examined is high")
    assert "execution_stats" not in tail(selection())


def test_a_large_query_is_planned_and_judged_by_its_text():
    content = {"selector": {"$or": [{"a": 1}, {"b": {"$gt": 1}}]}, "fields": ["a"], "limit": 3}
    text, find = msgspec.json.encode(content), parse_find(content)
    found, plan = pickle.loads(pickle.dumps(planned_by(text, [])))
    assert plan == planned(find, [])
    assert (found.limit, found.fields, found.paths, found.selector.normal) == (3, (), (), {})
    assert json.loads(explained_by(text, "b", []))["fields"] == ["a"]
    selector = LargeSelector(text, has_fields=True)
    assert judged_by(selector, b'{"a":1,"b":0}') == b'{"a":1}'
    assert judged_by(selector, b'{"a":0}') is None
    assert judged_by(LargeSelector(text, has_fields=False), b'{"a":1,"b":0}') == b""


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (b"[]", "bad_json"),
        (b'{"selector":{"_id":"%b"}}' % (b"x" * BOUNDS_BYTES_MAX), "too_large"),
        (b'{"selector":7}', "invalid_selector_json"),
    ],
)
def test_a_large_query_that_is_none_is_refused(text, code):
    for call in (planned_by, lambda text, indexes: explained_by(text, "b", indexes)):
        with pytest.raises(UsageError) as caught:
            call(text, [])
        assert caught.value.code == code
