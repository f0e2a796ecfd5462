"""What a design document may say."""

from __future__ import annotations

import json

import msgspec
import pytest

from millstream.errors import UsageError
from millstream.views.core.design.design_documents import (
    QUERY_VIEWS_BYTES_MAX,
    VIEWS_BYTES_MAX,
    design_name,
    parse_design,
    read_design,
    told_design,
    told_designs,
)

GOOD = {"views": {"b": {"map": "function(d){}"}, "a": {"map": "m", "reduce": "_sum"}}}


def test_views_are_numbered_in_the_order_of_their_names():
    design = parse_design(GOOD, "_design/x")
    assert (design.name, design.language) == ("x", "javascript")
    assert [view.name for view in design.views] == ["a", "b"]
    assert design.number_of("b") == 1
    assert design.views[0].has_builtin_reduce
    assert not design.views[1].has_builtin_reduce


def test_a_parsed_document_can_be_written_and_parsed_again():
    design = parse_design({**GOOD, "options": {"include_design": True}}, "x")
    assert parse_design(design.as_json()) == design


RICH = {
    "options": {"include_design": True, "local_seq": True, "partitioned": False},
    "autoupdate": False,
    "views": {
        "lib": {"a": "exports.a = 1;", "b": {"c": "exports.c = 2;"}},
        "v": {"map": "m", "options": {"collation": "raw"}, "reduce": "_top_3"},
    },
}


def signature(views, **members):
    return parse_design({"views": views, **members}, "x").signature


def test_the_signature_is_that_of_what_decides_rows():
    first = parse_design(GOOD, "x").signature
    same = {**GOOD, "_rev": "2-a", "filters": {}, "validate_doc_update": "f", "autoupdate": False}
    assert parse_design(same, "y").signature == first
    views = GOOD["views"]
    assert signature({"other": views["b"], "name": views["a"], "again": views["a"]}) == first
    assert signature({"a": {"map": "m"}}) != first
    a = {"map": "m", "reduce": "_sum"}
    signatures = [
        signature({"a": a}), signature({"a": {"map": "m"}}), signature({"a": {**a, "map": "n"}}),
        signature({"a": {**a, "reduce": "_stats"}}), signature({"a": a}, options={"local_seq": 1}),
        signature({"a": a, "b": {"map": "m", "reduce": "_stats"}}),
        signature({"a": a}, options={"include_design": True}),
        signature({"a": {**a, "options": {"collation": "raw"}}}),
        signature({"a": a, "lib": {"x": "s"}}), signature({"a": a, "lib": {"x": "t"}}),
    ]  # fmt: skip
    assert len({*signatures}) == len(signatures)
    # Every tree has a _count anyhow.
    assert signature({"a": {"map": "m"}}) == signature({"a": {"map": "m", "reduce": "_count"}})
    assert signature({"a": {**a, "reduce": "_stats"}, "b": a}) == signature(
        {"b": {**a, "reduce": "_stats"}, "a": a}
    )


def test_the_signature_covers_no_names():
    first = parse_design(GOOD, "x")
    views = GOOD["views"]
    renamed = parse_design({"views": {"a": views["b"], "b": views["a"]}}, "x")
    assert renamed.signature == first.signature
    assert parse_design({**GOOD, "filters": {}}, "y").signature == first.signature


def test_views_of_one_map_and_options_share_a_tree():
    views = {
        "d": {"map": "n"},
        "c": {"map": " m ", "reduce": "_sum"},
        "b": {"map": "m"},
        "a": {"map": "m", "reduce": "_count"},
        "e": {"map": "m", "reduce": "_sum", "options": {"collation": "raw"}},
        "f": {"map": "m", "reduce": "_sum"},
    }
    design = parse_design({"views": views}, "x")
    assert design.trees == (
        ("m", "raw", ("_count", "_sum")), ("m", "unicode", ("_count", "_sum")),
        ("n", "unicode", ("_count",)),
    )  # fmt: skip
    places = {view.name: (view.tree, view.number) for view in design.views}
    assert places == {
        "a": (1, 0), "b": (1, -1), "c": (1, 1), "d": (2, -1), "e": (0, 1), "f": (1, 1)
    }  # fmt: skip
    assert design.names_of(1) == ("a", "b", "c", "f")


def test_definitions_survive_encoding():
    design = parse_design(RICH, "x")
    assert (design.include_design, design.local_seq, design.autoupdate) == (True, True, False)
    assert parse_design(design.as_json()) == design


def test_a_document_without_views_is_good():
    for document in ({}, {"views": {}}, {"views": {"lib": {"a": "s"}}, "filters": {"f": "s"}}):
        assert parse_design(document, "x").views == ()


def test_a_view_needs_a_map():
    views = {"a": {"map": "m"}, "kept": {"empty": "sad"}, "b": {}}
    assert [view.name for view in parse_design({"views": views}, "x").views] == ["a"]


@pytest.mark.parametrize(
    "document",
    [
        [], {"views": []}, {"views": {"a": 1}}, {"autoupdate": 1},
        {"views": {"a": {"map": 1}}}, {"views": {"a/b": {"map": "m"}}},
        {"views": {"": {"map": "m"}}}, {"views": {"a": {"map": "m", "reduce": 1}}},
        {"views": {"a": {"map": "m", "reduce": "_mean"}}}, {**GOOD, "language": "erlang"},
        {**GOOD, "language": "python"}, {**GOOD, "options": {"partitioned": True}},
        {**GOOD, "options": {"seq": 1}}, {"views": {"a": {"map": "m", "reduce": "_top_101"}}},
        {**GOOD, "options": 1}, {"views": {"a": {"map": "m", "options": {"x": 1}}}},
        {"views": {"a": {"map": "m", "options": {"collation": "icu"}}}},
        {"views": {"lib": {"a": 1}, "a": {"map": "m"}}}, {"views": {"lib": "m"}},
        {"views": {"lib": {"a": {"b": [1]}}}},
        {"language": "python", "views": {"lib": {"a": "m"}}},
        {"views": {"lib": {"a": {"a": {"a": {"a": {"a": {"a": {"a": {"a": {"a": {}}}}}}}}}}}},
        {"views": {f"v{at}": {"map": "m"} for at in range(101)}},
    ],
)  # fmt: skip
def test_invalid_input_is_refused(document):
    with pytest.raises(UsageError) as caught:
        parse_design(document, "x")
    assert caught.value.code == "invalid_design_doc"


def test_python_functions_are_named_not_sent():
    views = {"a": {"map": "registered:m", "reduce": "registered:r"}, "b": {"map": "registered:m"}}
    assert parse_design({"language": "python", "views": views}, "x").language == "python"
    bad = {"a": {"map": "registered:m", "reduce": "lambda k, v, r: 1"}}
    with pytest.raises(UsageError, match="never run"):
        parse_design({"language": "python", "views": bad}, "x")


@pytest.mark.parametrize("name", ["", "_design/", "a/b", "n" * 101])
def test_names_are_bounded(name):
    with pytest.raises(UsageError):
        design_name(name)


def test_a_missing_view_names_those_that_exist():
    with pytest.raises(UsageError, match="it has: a, b") as caught:
        parse_design(GOOD, "x").number_of("c")
    assert caught.value.code == "missing_named_view"


def test_the_indexer_setting_is_outside_the_signature():
    design = parse_design({**GOOD, "engine": "spark"}, "d")
    assert design.engine == "spark"
    assert design.signature == parse_design(GOOD, "d").signature
    assert parse_design(design.as_json()) == design
    assert parse_design(GOOD, "d").engine == "node"
    with pytest.raises(UsageError, match="`engine` is node or spark"):
        parse_design({**GOOD, "engine": "duck"}, "d")


QUERY = {
    "language": "query",
    "views": {
        "n": {
            "map": {"fields": {"b": "asc", "a": "asc"}, "partial_filter_selector": {"a": 1}},
            "reduce": "_count",
            "options": {"def": {"fields": ["b", "a"]}},
        }
    },
}


def test_a_json_index_is_a_view_of_its_definition():
    design = parse_design(QUERY, "x")
    assert design.language == "query"
    assert parse_design(design.as_json()) == design
    assert design.as_json()["views"]["n"]["map"] == QUERY["views"]["n"]["map"]
    (tree,) = design.trees
    assert (tree.reduces, tree.collation) == (("_count",), "unicode")
    other = {**QUERY, "views": {"n": {"map": {"fields": {"a": "asc", "b": "asc"}}}}}
    assert parse_design(other, "x").signature != design.signature
    listed = {
        **QUERY,
        "views": {"m": {"map": {**QUERY["views"]["n"]["map"], "fields": ["b", "a"]}}},
    }
    assert parse_design(listed, "x").signature == design.signature


@pytest.mark.parametrize(
    "view",
    [
        7, {}, {"map": "function (doc) {}"}, {"map": {"fields": []}},
        {"map": {"fields": ["a"], "partial_filter_selector": {"a": {"$no": 1}}}},
        {"map": {"fields": ["a"]}, "reduce": "function () {}"},
        {"map": {"fields": ["a"]}, "reduce": 7},
    ],
)  # fmt: skip
def test_invalid_json_indexes(view):
    with pytest.raises(UsageError) as caught:
        parse_design({"language": "query", "views": {"n": view}}, "x")
    assert caught.value.code == "invalid_design_doc"


@pytest.mark.parametrize("reduce", ["_sum", " _sum ", "_sum\n \r\nand others", "_sum // of all"])
def test_text_after_a_built_in_reduce_name_is_ignored(reduce):
    design = parse_design({"views": {"v": {"map": "d => emit(1)", "reduce": reduce}}}, "d")
    assert design.views[0].reduce == "_sum"


@pytest.mark.parametrize("reduce", ["_product", "_summary", "_", "_ sum"])
def test_prefixes_of_built_in_reduce_names_are_not_built_in(reduce):
    with pytest.raises(UsageError, match="no built-in reduce"):
        parse_design({"views": {"v": {"map": "d => emit(1)", "reduce": reduce}}}, "d")


def test_a_stored_document_is_read_whatever_numbers_are_in_it():
    body = b'{"a":[%d,%d],"b":{"c":%d},"d":1234567890123456789}' % (10**30, -(2**63), 10**400)
    read = read_design(body)
    assert read == {"a": [1e30, -(2**63)], "b": {"c": None}, "d": 1234567890123456789}
    msgspec.json.encode(read)
    assert read_design(b'{"a":1}') == {"a": 1}


def test_what_views_are_made_of_is_told_and_the_largest_is_not_usable(monkeypatch):
    small, large = {"views": {"v": {"map": "m"}}}, {"views": {"v": {"map": "m" * 1000}}}
    designs = {"a": large | {"filters": {}}, "b": small | {"language": "javascript"}}
    designs = {name: told_design(one) for name, one in designs.items()}
    assert all(one.has_views and one.views == {"v"} for one in designs.values())

    def told():
        return {name: json.loads(one.text) for name, one in told_designs(designs).items()}

    assert told() == {"a": large, "b": small | {"language": "javascript"}}
    monkeypatch.setattr("millstream.views.core.design.design_documents.TOLD_BYTES_MAX", 500)
    assert told()["b"] == small | {"language": "javascript"}
    with pytest.raises(UsageError, match=r"its views have 10\d\d bytes.*at most 500"):
        parse_design(told()["a"], "a")


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ({"views": {"v": {"map": "m" * VIEWS_BYTES_MAX}}}, "views"),
        (
            {
                "language": "query",
                "views": {"v": {"map": {"fields": "m" * QUERY_VIEWS_BYTES_MAX}}},
            },
            "indexes",
        ),
    ],
)
def test_views_that_are_too_large_are_refused_and_told_as_unusable(content, what):
    with pytest.raises(UsageError, match=f"its {what} have"):
        parse_design(content, "a")
    told = told_design(content)
    assert (len(told.text) < 300, told.views, told.has_views) == (True, None, False)
    with pytest.raises(UsageError, match=f"its {what} have"):
        parse_design(json.loads(told.text), "a")
