"""Documents as functions see them, Python maps, and reduces in parts."""

from __future__ import annotations

import json

import pytest

from millstream.errors import UsageError
from millstream.views.aio.sandbox.mapping import (
    PythonMapper,
    open_mapper,
    reduce_groups,
)
from millstream.views.aio.sandbox.process import ROWS_PER_DOCUMENT_MAX
from millstream.views.core.design.design_documents import parse_design
from millstream.views.core.design.registered import register
from millstream.views.core.reduce.reductions import REDUCE_VALUES_MAX


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


def python_mapper(*names, reduce=""):
    return PythonMapper(python_design(*names, reduce=reduce).functions_by_view())


def test_python_maps_see_documents_of_their_own():
    mapped = python_mapper("words", "words", "nothing").map(
        [b'{"_id":"a","words":["x"]}', b'{"_id":"b"}', b'{"_id":"c","words":[]}']
    )
    assert mapped[0].rows == [(0, b'"x"', b"1.0"), (1, b'"x"', b"1.0")]
    assert [error.view for error in mapped[1].errors] == [0, 1]
    assert mapped[1].errors[0].message == "KeyError: 'words'"
    assert mapped[2] == ([], ())


def test_keys_are_canonical():
    (mapped,) = python_mapper("keys").map([b"{}"])
    assert [key for _, key, _ in mapped.rows] == [b"1", b'[2,"x"]', b'{"a":3}', b"1.5", b"null"]


def test_both_languages_open():
    javascript = open_mapper(parse_design({"views": {"a": {"map": "d => emit(1.0)"}}}, "x"))
    assert bytes(javascript.map([b"{}"])[0].rows[0][1]) == b"1"
    javascript.close()
    open_mapper(python_design("words")).close()
    with pytest.raises(UsageError):
        open_mapper(python_design("unknown"))


def test_reduces_are_cut_in_parts_and_merged():
    mapper = python_mapper("words", reduce="registered:test.mapping.total")
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


def test_own_reduces_take_texts_too():
    reduce = "registered:test.mapping.total"
    script = (
        "(k, v, again) => { if (v[0] === 'bad') throw 'bad value'; return [k, again, sum(v)]; }"
    )
    javascript = open_mapper(
        parse_design({"views": {"a": {"map": "d => 1", "reduce": script}}}, "x")
    )
    calls = [(b'[["k","id"]]', b"[1,2]", False), (b"null", b'["bad"]', True)]
    for mapper, good, reason in (
        (python_mapper("words", reduce=reduce), b"3", "ValueError: bad value"),
        (javascript, b'[[["k","id"]],false,3]', "bad value"),
    ):
        found = mapper.reduce_texts(0, calls)
        mapper.close()
        assert found == [good, {"error": "reduce_error", "reason": reason}]


def test_a_reduce_that_does_not_shrink_is_an_error_value():
    source = "function (keys, values) { return values.join('').repeat(10); }"
    mapper = open_mapper(parse_design({"views": {"a": {"map": "d => 1", "reduce": source}}}, "x"))
    try:
        (result,) = reduce_groups(mapper, 0, [([[1, "a"]], ["x" * 1000])])
    finally:
        mapper.close()
    assert result["error"] == "reduce_overflow_error"
    assert json.dumps(result)


INDEXES = {
    "language": "query",
    "views": {
        "a": {"map": {"fields": {"n": "asc", "t.0": "asc"}}, "reduce": "_count"},
        "b": {"map": {"fields": {"n": "asc"}, "partial_filter_selector": {"n": {"$gt": 1}}}},
    },
}


def test_json_indexes_are_mapped_here():
    design = parse_design(INDEXES, "test")
    mapper = open_mapper(design)
    documents = [
        b'{"_id":"1","n":1.0,"t":["x"]}', b'{"_id":"2","n":2}', b'{"_id":"3","t":[1]}',
        b'{"_id":"4","n":{"deep":2.0},"t":[null,7]}',
    ]  # fmt: skip
    assert [(found.rows, found.errors) for found in mapper.map(documents)] == [
        ([(0, b'[1,"x"]', b"null")], ()),
        ([(1, b"[2]", b"null")], ()),
        ([], ()),
        ([(0, b'[{"deep":2},null]', b"null"), (1, b'[{"deep":2}]', b"null")], ()),
    ]
    mapper.close()


def test_a_document_that_is_too_deep_costs_its_own_rows():
    mapper = open_mapper(parse_design(INDEXES, "test"))
    deep = b'{"n":2,"t":' + b"[" * 20_000 + b"]" * 20_000 + b"}"
    lost, found = mapper.map([deep, b'{"n":2}'])
    assert (lost.rows, lost.errors[0].view) == ((), -1)
    assert found.rows == [(1, b"[2]", b"null")]


@register("test.mapping.many")
def many(document):
    return ((n, None) for n in range(document["n"]))


def test_a_python_map_that_emits_too_many_rows_loses_them():
    most = ROWS_PER_DOCUMENT_MAX
    mapped = python_mapper("many").map([b'{"n":%d}' % n for n in (most, most + 1, 1)])
    assert [len(one.rows) for one in mapped] == [most, 0, 1]
    assert "more than 100000 rows" in mapped[1].errors[0].message
