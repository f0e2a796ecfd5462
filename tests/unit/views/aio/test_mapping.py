"""Documents as functions see them, Python maps, and reduces in parts."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import UsageError
from millstream.views.aio.mapping import (
    PythonMapper,
    document_id,
    document_text,
    open_mapper,
    reduce_groups,
)
from millstream.views.core.design import parse_design
from millstream.views.core.reductions import REDUCE_VALUES_MAX
from millstream.views.core.registered import register


@register("test.mapping.words")
def words(document):
    document["words"].append("spoilt")
    for word in document["words"][:-1]:
        yield word, 1.0


@register("test.mapping.keys")
def keys(document):
    return [(key, None) for key in (1.0, [2.0, "x"], {"a": 3.0}, 1.5, float("nan"))]


@register("test.mapping.nothing")
def nothing(document):
    return None


@register("test.mapping.total")
def total(keys, values, rereduce):
    if "bad" in values:
        raise ValueError("bad value")
    return sum(values)


def python_design(*names, reduce=""):
    views = {
        f"v{at}": {"map": f"registered:test.mapping.{name}", "reduce": reduce}
        for at, name in enumerate(names)
    }
    return parse_design({"language": "python", "views": views}, "test")


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("a", b'{"n":1}', b'{"_id":"a","n":1}'),
        ("a", b" \n{ }", b'{"_id":"a"}'),
        ('q"', b"{}", b'{"_id":"q\\""}'),
        ("\\x5c78", b"{}", b'{"_id":"\\\\x"}'),
        ("a", b'{"b":{"_c":1}}', b'{"_id":"a","b":{"_c":1}}'),
    ],
)
def test_documents(key, value, text):
    assert document_text(key, value) == text


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("_design/x", b"{}"), ("\\xff00", b"{}"), ("a", b""), ("a", b"[]"), ("a", b"7"),
        ("a", b"\xff\x00"), ("a", b'{"a":1'), ("a", b'{"a":1}x'), ("a", b'{"_id":"b"}'),
        ("a", b'{"\\u005fid":"b"}'), ("a", b'{"a":1},{"b":2}'), ("\\xzz", b"{}"),
        ("a", b'{"a":' * 5000),
    ],
)  # fmt: skip
def test_what_is_no_document(key, value):
    assert document_text(key, value) is None


def test_document_ids():
    assert document_id("a/b") == "a/b"
    assert document_id("\\x5c783431") == "\\x41"
    assert document_id("\\xff") is None
    assert document_id("_design/x") is None


@given(st.text(max_size=5), st.binary(max_size=30))
def test_no_key_or_value_raises(key, value):
    document_text(key, value)
    document_text(key, b'{"' + value + b'":1}')


def test_python_maps_see_documents_of_their_own():
    mapped = PythonMapper(python_design("words", "words", "nothing")).map(
        [b'{"_id":"a","words":["x"]}', b'{"_id":"b"}', b'{"_id":"c","words":[]}']
    )
    assert mapped[0].rows == [(0, b'"x"', b"1.0"), (1, b'"x"', b"1.0")]
    assert [error.view for error in mapped[1].errors] == [0, 1]
    assert mapped[1].errors[0].message == "KeyError: 'words'"
    assert mapped[2] == ([], [])


def test_keys_are_canonical():
    (mapped,) = PythonMapper(python_design("keys")).map([b"{}"])
    assert [key for _, key, _ in mapped.rows] == [b"1", b'[2,"x"]', b'{"a":3}', b"1.5", b"null"]


def test_both_languages_open():
    javascript = open_mapper(parse_design({"views": {"a": {"map": "d => emit(1.0)"}}}, "x"))
    assert bytes(javascript.map([b"{}"])[0].rows[0][1]) == b"1"
    javascript.close()
    open_mapper(python_design("words")).close()
    with pytest.raises(UsageError):
        open_mapper(python_design("unknown"))


def test_reduces_are_cut_in_parts_and_merged():
    mapper = PythonMapper(python_design("words", reduce="registered:test.mapping.total"))
    many = list(range(2 * REDUCE_VALUES_MAX + 5))
    groups = [
        ([[n, "id"] for n in many], many),
        (None, [1, 2]),
        ([[1, "a"]], ["bad"]),
        ([[1, "a"]], [7]),
    ]
    results = reduce_groups(mapper, 0, groups)
    assert results[:2] == [sum(many), 3]
    assert results[2] == {"error": "reduce_error", "reason": "ValueError: bad value"}
    assert results[3] == 7


def test_a_reduce_that_does_not_shrink_is_an_error_value():
    source = "function (keys, values) { return values.join('').repeat(10); }"
    mapper = open_mapper(parse_design({"views": {"a": {"map": "d => 1", "reduce": source}}}, "x"))
    try:
        (result,) = reduce_groups(mapper, 0, [([[1, "a"]], ["x" * 1000])])
    finally:
        mapper.close()
    assert result["error"] == "reduce_overflow_error"
    assert json.dumps(result)
