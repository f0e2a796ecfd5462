"""What is asked of `_changes`, and what is refused."""

import json

import pytest

from millstream.errors import UsageError
from millstream.gateway.core.api.coverage import Puller
from millstream.gateway.core.changes import (
    ALL,
    ChangesQuery,
    FilterAsked,
    parse_changes,
    parse_large_changes,
)


def test_without_parameters_everything_is_wanted_once():
    assert parse_changes({}, {}) == ChangesQuery()
    assert ChangesQuery().filter is ALL


def test_all_parameters():
    query = parse_changes(
        {
            "feed": "live", "since": "now", "limit": "7", "descending": "true",
            "style": "all_docs", "include_docs": "true", "attachments": "true",
            "conflicts": "true", "heartbeat": "1500", "timeout": "90000", "seq_interval": "5",
            "att_encoding_info": "true", "unknown": "x",
        },
        {},
    )  # fmt: skip
    assert query == ChangesQuery(
        "continuous",
        0,
        7,
        True,
        True,
        True,
        True,
        True,
        1.5,
        60.0,
        5,
        ALL,
        encoding_info=True,
    )


@pytest.mark.parametrize("since", ["now", "5", "x"])
def test_a_descending_feed_begins_at_the_end_whatever_is_given(since):
    assert parse_changes({"since": since, "descending": "true"}, {}).since == 0


@pytest.mark.parametrize(("options", "puller"), [
    ({}, None), ({"coverage": "false"}, None), ({"coverage": "true"}, Puller("")),
    ({"coverage": "u"}, Puller("u")),
    ({"coverage": "u", "coverage_parts": "true"}, Puller("u", takes_parts=True)),
    ({"coverage_parts": "true"}, None),
])  # fmt: skip
def test_who_takes_records(options, puller):
    assert parse_changes(options, {}).puller == puller


@pytest.mark.parametrize(("text", "seconds"), [("true", 60.0), ("false", None), ("250", 0.25)])
def test_heartbeats(text, seconds):
    assert parse_changes({"heartbeat": text}, {}).heartbeat_s == seconds


def test_an_event_source_that_comes_again_goes_on_where_it_was():
    options = {"feed": "eventsource", "since": "3"}
    assert parse_changes(options, {}, "5").since == 5
    assert parse_changes(options, {}).since == 3
    assert parse_changes({"since": "3"}, {}, "5").since == 3
    assert parse_changes({"since": ""}, {}).since == 0


@pytest.mark.parametrize(
    ("options", "body", "asked"),
    [
        ({"filter": "_doc_ids"}, {"doc_ids": ["a"]}, FilterAsked("ids", frozenset("a"))),
        ({}, {"doc_ids": ["a"]}, FilterAsked("ids", frozenset("a"))),
        ({"filter": "_doc_ids", "doc_ids": '["b"]'}, {}, FilterAsked("ids", frozenset("b"))),
        (
            {"filter": "_selector"},
            {"selector": {"a": 1}},
            FilterAsked("selector", selector={"a": 1}),
        ),
        ({"filter": "_design"}, {}, FilterAsked("design")),
        ({"filter": "_view", "view": "d/v"}, {}, FilterAsked("view", design="d", name="v")),
        (
            {"filter": "d/f", "x": "1"},
            {},
            FilterAsked("function", design="d", name="f", parameters={"filter": "d/f", "x": "1"}),
        ),
    ],
)
def test_filters(options, body, asked):
    assert parse_changes(options, body).filter == asked


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"feed": "x"}, "Supported `feed` types"),
        ({"style": "x"}, "Supported `style`"),
        ({"since": "x"}, "Malformed sequence"),
        ({"limit": "-1"}, "Invalid value for limit"),
        ({"limit": "²"}, "Invalid value for limit"),
        ({"include_docs": "1"}, "Invalid boolean parameter include_docs"),
        ({"heartbeat": "0"}, "positive integer"),
        ({"timeout": "x"}, "Invalid value for timeout"),
        ({"filter": "_doc_ids"}, "not a list of doc ids"),
        ({"filter": "_doc_ids", "doc_ids": "[1]"}, "not a list of doc ids"),
        ({"filter": "_doc_ids", "doc_ids": "["}, "not a list of doc ids"),
        ({"filter": "_selector"}, "expected a JSON object"),
        ({"filter": "_view", "view": "x"}, "designname/viewname"),
        ({"filter": "x"}, "designname/filtername"),
    ],
)
def test_what_is_not_understood_is_refused(options, reason):
    with pytest.raises(UsageError, match=reason):
        parse_changes(options, {})


def test_a_large_body_asks_for_the_same():
    ids = {"doc_ids": ["a", "b", "a"]}
    here = parse_changes({"filter": "_doc_ids", "limit": "3"}, ids)
    there = parse_large_changes(
        json.dumps(ids).encode(), {"filter": "_doc_ids", "limit": "3"}, None
    )
    assert (there.limit, there.filter.kind) == (here.limit, "ids")
    assert set(there.filter.ids) == set(here.filter.ids)
    there = parse_large_changes(b'{"selector":{"a":1}}', {"filter": "_selector"}, "7-x")
    assert (there.filter.kind, there.filter.selector) == ("selector", None)


@pytest.mark.parametrize(
    ("text", "code"), [(b"[]", "bad_json"), (b'{"selector":{"$x":1}}', "invalid_operator")]
)
def test_a_large_body_that_is_none_is_refused(text, code):
    with pytest.raises(UsageError) as caught:
        parse_large_changes(text, {}, None)
    assert caught.value.code == code
