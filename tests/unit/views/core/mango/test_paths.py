"""Dotted paths: parsing, what they lead to, and projections."""

import pytest

from millstream.errors import UsageError
from millstream.views.core.mango.paths import BAD_PATH, NOT_FOUND, at_path, parse_path, project


@pytest.mark.parametrize(
    ("field", "path"),
    [
        ("ab", ("ab",)),
        ("a.b", ("a", "b")),
        ("a\\.b", ("a.b",)),
        ("a.b\\.c", ("a", "b.c")),
        ("a\\b", ("ab",)),
    ],
)
def test_paths(field, path):
    assert parse_path(field) == path


@pytest.mark.parametrize("field", ["", ".", "a.", ".a", "a..b"])
def test_empty_names(field):
    with pytest.raises(UsageError, match="Invalid field name"):
        parse_path(field)


DOCUMENT = {"a": {"b": [1, {"c": 2}]}, "n": None, "0": "zero"}


@pytest.mark.parametrize(
    ("field", "found"),
    [
        ("a.b.0", 1),
        ("a.b.1.c", 2),
        ("a.b.+1.c", 2),
        ("n", None),
        ("0", "zero"),
        ("x", NOT_FOUND),
        ("a.x.y", NOT_FOUND),
        ("a.b.2", BAD_PATH),
        ("a.b.-1", BAD_PATH),
        ("a.b.x", BAD_PATH),
        ("a.b.0.x", BAD_PATH),
        ("n.x", BAD_PATH),
        ("a.b.99999999999999999999", BAD_PATH),
    ],
)
def test_values(field, found):
    assert at_path(DOCUMENT, parse_path(field)) == found


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ([], {}),
        (["n", "x"], {"n": None}),
        (["a.b"], {"a": {"b": [1, {"c": 2}]}}),
        (["a.b.1.c", "n"], {"a": {"b": {"1": {"c": 2}}}, "n": None}),
        (["a.b.0", "a.b.1"], {"a": {"b": {"0": 1, "1": {"c": 2}}}}),
        (["a.b", "a.b.0"], {"a": {"b": [1, {"c": 2}]}}),
        (["a", "a.b"], {"a": {"b": [1, {"c": 2}]}}),
        (["a.b.0", "a"], {"a": {"b": [1, {"c": 2}]}}),
    ],
)
def test_projections(fields, shown):
    before = repr(DOCUMENT)
    assert project(DOCUMENT, map(parse_path, fields)) == shown
    assert repr(DOCUMENT) == before
