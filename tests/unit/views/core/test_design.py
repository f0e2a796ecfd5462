"""What a design document may say."""

from __future__ import annotations

import pytest

from millstream.errors import UsageError
from millstream.views.core.design import design_name, parse_design

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


def test_the_signature_is_that_of_what_decides_rows():
    first = parse_design(GOOD, "x").signature
    assert parse_design({**GOOD, "_rev": "2-a", "filters": {}}, "y").signature == first
    assert parse_design({"views": {"a": {"map": "m"}}}, "x").signature != first


@pytest.mark.parametrize(
    "document",
    [
        [], {}, {"views": {}}, {"views": []}, {"views": {"a": 1}}, {"views": {"a": {}}},
        {"views": {"a": {"map": 1}}}, {"views": {"a/b": {"map": "m"}}},
        {"views": {"": {"map": "m"}}}, {"views": {"a": {"map": "m", "reduce": 1}}},
        {"views": {"a": {"map": "m", "reduce": "_mean"}}}, {**GOOD, "language": "erlang"},
        {**GOOD, "language": "python"}, {**GOOD, "options": {"local_seq": True}},
        {**GOOD, "options": 1}, {"views": {"a": {"map": "m", "options": {"x": 1}}}},
        {"views": {"lib": {}, "a": {"map": "m"}}},
        {"views": {f"v{at}": {"map": "m"} for at in range(101)}},
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused(document):
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
