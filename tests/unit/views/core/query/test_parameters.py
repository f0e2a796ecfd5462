"""Each query parameter with its refusal, and random queries against a slow second writing."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import UsageError
from millstream.views.core.collation import encode_key
from millstream.views.core.query.parameters import (
    MISSING,
    QUERIES_MAX,
    QUERY_BODY_BYTES_MAX,
    QUERY_TIMEOUT_MS_MAX,
    Query,
    body_options,
    multi_options,
    parse_query,
    query_options,
    url_options,
)
from support.views.query_reference import MapRow, query_map, query_reduced, reduce_rows


def rows_of(pairs):
    """Rows of (key, id) pairs; the value is their number."""
    rows = [MapRow(encode_key(key), id_.encode(), key, at) for at, (key, id_) in enumerate(pairs)]
    return sorted(rows, key=lambda row: (row.ekey, row.id))


ROWS = rows_of([(key, id_) for key in (1, 2, 3) for id_ in "abc"] + [([1, "x"], "d"), ("t", "e")])
DATES = rows_of(
    [([2013, 1, 1], "a"), ([2013, 1, 2], "b"), ([2013, 2], "c"), ([2014], "d"), ("plain", "e"),
     (7, "f"), ([2013, 1, 1], "g"), (7.0, "h")]
)  # fmt: skip


def ask(rows, **options):
    query = parse_query(options)
    query.check(has_reduce=False)
    return [(row["key"], row["id"]) for row in query_map(rows, query)["rows"]]


def ask_groups(rows, **options):
    query = parse_query(options)
    query.check(has_reduce=True)
    counted = list(reduce_rows(rows, len))
    return [(row["key"], row["value"]) for row in query_reduced(counted, query, sum)]


def test_all_rows_and_their_numbers():
    answer = query_map(ROWS, Query())
    assert (answer["total_rows"], answer["offset"], len(answer["rows"])) == (11, 0, 11)
    answer = query_map(ROWS, Query(startkey=2, skip=1, limit=1))
    assert (answer["total_rows"], answer["offset"]) == (11, 4)
    assert answer["rows"] == [{"id": "b", "key": 2, "value": 4}]


def test_range_and_its_ends():
    assert ask(ROWS, startkey=2, endkey=2) == [(2, "a"), (2, "b"), (2, "c")]
    assert ask(ROWS, start_key=1, end_key=2, inclusive_end=False) == [(1, i) for i in "abc"]
    assert ask(ROWS, startkey=3, endkey=[]) == [(3, i) for i in "abc"] + [("t", "e")]


def test_direction_is_applied_before_the_range():
    down = ask(ROWS, descending=True, startkey=2, endkey=1)
    assert down == [(k, i) for k in (2, 1) for i in "cba"]
    assert ask(ROWS, descending=True, startkey=2, endkey=1, inclusive_end=False) == down[:3]


def test_document_id_bounds_in_both_directions():
    assert ask(ROWS, startkey=1, startkey_docid="b", endkey=2, endkey_docid="a") == [
        (1, "b"), (1, "c"), (2, "a"),
    ]  # fmt: skip
    assert ask(
        ROWS, startkey=2, start_key_doc_id="b", endkey=1, end_key_doc_id="c", descending=True
    ) == [(2, "b"), (2, "a"), (1, "c")]
    assert ask(ROWS, startkey_docid="b", limit=1) == [(1, "a")]
    assert ask(ROWS, key=1, endkey_docid="b", inclusive_end=False) == [(1, "a")]


def test_an_empty_descending_range_begins_behind_the_rows_above_it():
    """Ids the wrong way around are no error."""
    found = query_map(ROWS, Query(
        startkey=2, startkey_docid="a", endkey=2, endkey_docid="c", descending=True,
    ))  # fmt: skip
    assert (found["offset"], found["rows"]) == (7, [])


def test_keys_in_their_order_with_repeats():
    assert ask(ROWS, keys=["t", 9, 1, "t"]) == [
        ("t", "e"), (1, "a"), (1, "b"), (1, "c"), ("t", "e"),
    ]  # fmt: skip
    assert ask(ROWS, keys=["t"], key="t") == [("t", "e")]


def test_groups():
    assert ask_groups(DATES) == [(None, 8)]
    assert ask_groups(DATES, group=True) == [
        (7, 2), ("plain", 1), ([2013, 1, 1], 2), ([2013, 1, 2], 1), ([2013, 2], 1), ([2014], 1),
    ]  # fmt: skip
    assert ask_groups(DATES, group_level=1) == [(7, 2), ("plain", 1), ([2013], 4), ([2014], 1)]
    assert ask_groups(DATES, group_level=2, descending=True, limit=2, skip=1) == [
        ([2013, 2], 1), ([2013, 1], 3),
    ]  # fmt: skip
    assert ask_groups(DATES, group_level=0, startkey=[2013], endkey=[2013, {}]) == [(None, 4)]
    assert ask_groups(DATES, keys=[[2014], 7], group=True) == [([2014], 1), (7, 2)]


def test_an_empty_range_has_no_rows_at_all():
    assert ask_groups(DATES, startkey="x", endkey="y") == []
    assert ask_groups([]) == []


@pytest.mark.parametrize(
    ("has_reduce", "options"),
    [
        (False, {"startkey": 2, "endkey": 1}),
        (False, {"startkey": 1, "endkey": 2, "descending": True}),
        (False, {"reduce": True}),
        (False, {"group": True}),
        (True, {"group": True, "reduce": False}),
        (True, {"group": False, "group_level": 1}),
        (True, {"keys": [1]}),
        (True, {"keys": [1], "group_level": 1}),
        (False, {"keys": [1, 2], "startkey": 1}),
        (False, {"keys": [1], "key": 2}),
        (False, {"key": 1, "endkey": 2}),
        (True, {"include_docs": True}),
        (True, {"conflicts": True}),
    ],
)
def test_contradicting_parameters_are_refused(has_reduce, options):
    with pytest.raises(UsageError) as caught:
        parse_query(options).check(has_reduce)
    assert caught.value.code == "query_parse_error"


@pytest.mark.parametrize(
    "options",
    [{"limit": -1}, {"skip": 1.5}, {"group_level": "2"}, {"reduce": "yes"}, {"keys": 1},
     {"startkey_docid": 1}, {"limit": True}, {"limit": 2**53}, {"skip": None},
     {"partition": "p"}, {"update": "maybe"}, {"update": 1}, {"update": []}, {"stale": "yes"},
     {"stale": True}, {"stale": "ok", "update": True}, {"on_error": "ignore"},
     {"timeout": QUERY_TIMEOUT_MS_MAX + 1}, {"timeout": -1}, {"at": 5}, {"at": {"x": []}},
     {"sorted": "true"}, {"include_docs": 1}],
)  # fmt: skip
def test_wrong_values_are_refused(options):
    with pytest.raises(UsageError) as caught:
        parse_query(options)
    assert caught.value.code == "query_parse_error"


def test_document_id_bounds_do_not_go_with_groups():
    with pytest.raises(UsageError):
        ask_groups(DATES, startkey=1, startkey_docid="a")


def test_key_beside_another_bound_is_refused():
    with pytest.raises(UsageError):
        ask(ROWS, key=1, startkey=2)


keys = st.integers(0, 4) | st.lists(st.integers(0, 2), max_size=2)
options_strategy = st.fixed_dictionaries(
    {},
    optional={
        "startkey": keys,
        "endkey": keys,
        "inclusive_end": st.booleans(),
        "descending": st.booleans(),
        "skip": st.integers(0, 3),
        "limit": st.integers(0, 6),
    },
)


@given(st.lists(st.tuples(keys, st.sampled_from("abcdef")), unique_by=repr), options_strategy)
def test_random_queries_against_a_filter(pairs, options):
    rows = rows_of(pairs)
    try:
        answered = ask(rows, **options)
    except UsageError:
        return
    expected = rows[::-1] if options.get("descending") else rows
    way = -1 if options.get("descending") else 1
    for name, sense in (("startkey", 1), ("endkey", -1)):
        if name in options:
            bound = encode_key(options[name])
            exclusive = name == "endkey" and not options.get("inclusive_end", True)
            expected = [
                row for row in expected
                if ((row.ekey > bound) - (row.ekey < bound)) * sense * way >= exclusive
            ]  # fmt: skip
    skip = options.get("skip", 0)
    expected = expected[skip : skip + options["limit"] if "limit" in options else None]
    assert answered == [(row.key, row.id.decode()) for row in expected]


def from_url(*parameters):
    return parse_query(url_options(parameters))


def test_a_url_has_keys_as_json_and_the_rest_as_words():
    query = from_url(
        ("startkey", '["a",1]'), ("end_key", "null"), ("startkey_docid", "1"), ("limit", "5"),
        ("descending", "true"), ("include_docs", "true"), ("inclusive_end", "false"),
        ("update", "lazy"), ("update_seq", "true"), ("sorted", "false"), ("timeout", "100"),
        ("at", '{"3":["a",9]}'), ("on_error", "continue"),
    )  # fmt: skip
    assert query.startkey == ["a", 1]
    assert query.endkey is None
    assert query.key is MISSING
    assert (query.startkey_docid, query.limit, query.timeout) == ("1", 5, 100)
    assert (query.descending, query.include_docs, query.inclusive_end) == (True, True, False)
    assert (query.update, query.update_seq, query.sorted) == ("lazy", True, False)
    assert query.at is not None
    assert query.at[3].position.seqno == 9
    assert query.on_error == "continue"


def test_old_names_of_update():
    assert from_url(("stale", "ok")) == Query(update="false", stable=True)
    assert from_url(("stale", "update_after")) == Query(update="lazy", stable=True)
    assert from_url(("stale", "false")) == Query()
    assert parse_query({"stale": False}) == Query()
    assert parse_query({"update": False}) == from_url(("update", "false")) == Query(update="false")


def test_unknown_parameters_are_ignored():
    known = parse_query(url_options([("limit", "3")]))
    assert parse_query(url_options([("limit", "3"), ("deleted", "ok"), ("x", "{")])) == known
    assert parse_query(body_options(b'{"limit":3,"deleted":"ok","x":{}}')) == known
    (options,) = multi_options(b'{"queries":[{"limit":3,"deleted":"ok"}]}')
    assert parse_query(options) == known


@pytest.mark.parametrize(
    ("name", "text"),
    [("limit", "-1"), ("limit", "x"), ("limit", "1.5"), ("skip", ""), ("group_level", "-3"),
     ("limit", "9" * 40), ("limit", "\u0663"), ("reduce", "maybe"), ("partition", "a"),
     ("at", "x")],
)  # fmt: skip
def test_wrong_texts_are_refused(name, text):
    with pytest.raises(UsageError) as caught:
        from_url((name, text))
    assert caught.value.code == "query_parse_error"


@pytest.mark.parametrize("text", ["", "abc", "[1", "[" * 100_000, "\ud800", "NaN"])
@pytest.mark.parametrize("name", ["key", "keys", "startkey", "endkey"])
def test_a_key_that_is_not_json_is_a_bad_request(name, text):
    with pytest.raises(UsageError) as caught:
        from_url((name, text))
    assert caught.value.code == "bad_request"


def test_a_key_nested_too_deep_is_refused():
    deep = "[" * 300 + "]" * 300
    for options in (url_options([("key", deep)]), body_options(b'{"keys":[%b]}' % deep.encode())):
        with pytest.raises(UsageError) as caught:
            parse_query(options)
        assert caught.value.code == "query_parse_error"


def test_a_body_has_plain_members_and_the_url_wins_over_it():
    assert body_options(b" ") == {}
    options = body_options(b'{"start_key":1,"limit":5}') | url_options([("startkey", "2")])
    assert parse_query(options) == Query(startkey=2, limit=5)


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b"5",
        b"{",
        b"\xff",
        b"[" * 5000,
        b'{"a":' * 5000,
        b" " * QUERY_BODY_BYTES_MAX + b"{}",
    ],
)
def test_a_body_that_is_too_long_or_not_an_object_is_a_bad_request(body):
    with pytest.raises(UsageError) as caught:
        body_options(body)
    assert caught.value.code == "bad_request"


def test_several_queries_in_one_body():
    several = multi_options(b'{"queries":[{"start_key":1},{}]}')
    assert several == [{"startkey": 1}, {}]
    too_many = b'{"queries":[%b]}' % b",".join([b"{}"] * (QUERIES_MAX + 1))
    for body in (b"{}", b'{"queries":1}', b'{"queries":[1]}', too_many):
        with pytest.raises(UsageError) as caught:
            multi_options(body)
        assert caught.value.code == "query_parse_error"


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "key": keys | st.none(), "startkey": keys, "keys": st.lists(keys),
            "limit": st.integers(0, 9), "reduce": st.booleans(), "group": st.booleans(),
            "update": st.sampled_from(["true", "false", "lazy"]), "sorted": st.booleans(),
            "at": st.just({"1": ["0000000000ab", 4]}), "timeout": st.integers(0, 1000),
            "on_error": st.sampled_from(["stop", "continue"]), "startkey_docid": st.text(),
        },
    )
)  # fmt: skip
def test_a_query_goes_to_another_process_as_its_options(options):
    query = parse_query(options)
    assert parse_query(query_options(query)) == query


names = st.sampled_from(
    ["key", "keys", "startkey", "end_key", "startkey_docid", "limit", "skip", "group", "at",
     "group_level", "reduce", "update", "stale", "timeout", "on_error", "sorted", "partition", "x"]
)  # fmt: skip
texts = st.sampled_from(
    ["", "true", "1", "-1", "1e400", "[1e400]", "{", "[[[", '"\\ud800"', "null", "lazy", "[]",
     "{}", '{"0":[]}', '{"0":["a",1e3]}', "12345678901234567890123", "0-", "5-gaQ", "\x00", "é"]
) | st.text(max_size=8)  # fmt: skip


@given(st.lists(st.tuples(names, texts), max_size=4), st.booleans())
def test_any_parameters_are_accepted_or_refused(parameters, has_reduce):
    try:
        query = parse_query(url_options(parameters))
        query.check(has_reduce)
    except UsageError:
        return
    # What was taken can be asked: all of its keys have a place in the row order.
    for key in (query.key, query.startkey, query.endkey, *(query.keys or ())):
        if key is not MISSING:
            encode_key(key)


@given(st.binary(max_size=30) | st.text(max_size=20).map(lambda text: text.encode()))
def test_any_body_is_accepted_or_refused(body):
    with suppress(UsageError):
        parse_query(body_options(body))
