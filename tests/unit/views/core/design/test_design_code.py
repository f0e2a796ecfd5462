"""Functions of design documents: which there are, and what their ends mean."""

import json

import pytest

from millstream.errors import AccessError, MillstreamError
from millstream.views.core.design.design_code import read_code, refusal


def code_of(**content):
    return read_code("b", "d", "1-a", json.dumps(content).encode())


def test_what_there_is():
    code = code_of(
        validate_doc_update="f",
        filters={"a": "f", "b": "f"},
        updates={},
        views={"v": {"map": "f"}, "lib": {"x": "y"}, "odd": 7},
    )
    assert code.validates
    assert (code.filters, code.updates, code.views) == ({"a", "b"}, frozenset(), {"v"})
    assert (code.key, code.id) == (("b", "d", "1-a"), "_design/d")
    assert json.loads(code.text)["_id"] == "_design/d"
    assert not code_of().validates


@pytest.mark.parametrize(
    ("changes", "member"),
    [
        ({"validate_doc_update": 1}, "validate_doc_update"),
        ({"validate_doc_update": "f", "language": "erlang"}, "validate_doc_update"),
        ({"validate_doc_update": "f", "language": {"a": 1}}, "validate_doc_update"),
        ({"filters": {"a": 1, "b": "f"}}, "filters"), ({"filters": [1]}, "filters"),
        ({"updates": "x"}, "updates"), ({"updates": {"b": "f", "c": None}}, "updates"),
    ],
)  # fmt: skip
def test_members_of_another_form_are_faults_of_their_own(changes, member):
    code = code_of(**changes)
    assert list(code.faults) == [member]
    assert code.validates == (member == "validate_doc_update")
    assert code.filters | code.updates == ({"b"} if "b" in str(changes) else frozenset())


def test_numbers_of_any_size_are_read():
    code = code_of(filters={"f": "f"}, x=10**30, y=[10**400])
    assert code.filters == {"f"}
    assert str(10**30) in code.text
    assert str(10**400) in code.text


def test_other_languages_have_no_functions():
    code = code_of(language="query", filters={"a": "f"})
    assert not code.validates
    assert not code.filters | code.updates | code.views


@pytest.mark.parametrize(
    ("result", "kind", "code", "text"),
    [
        ({"thrown": {"forbidden": "no"}}, AccessError, "forbidden", "no"),
        ({"thrown": {"unauthorized": [1]}}, AccessError, "unauthorized", "[1]"),
        ({"thrown": {"error": "e", "reason": "r"}}, MillstreamError, "e", "r"),
        ({"thrown": {"x": 1}}, MillstreamError, "unknown_error", '{"x":1}'),
        ({"error": "TypeError", "reason": "r"}, MillstreamError, "TypeError", "r"),
        ({"error": "time", "reason": "r"}, MillstreamError, "function_failed", "no end"),
        ({"error": "compile", "reason": "r"}, MillstreamError, "compilation_error", "r"),
        (7, MillstreamError, "unknown_error", ""),
    ],
)
def test_ends(result, kind, code, text):
    error = refusal(result, code_of(), "f")
    assert (type(error), error.code) == (kind, code)
    assert text in str(error)
