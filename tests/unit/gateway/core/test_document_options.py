import pytest

from millstream.documents.reading import PLAIN
from millstream.errors import UsageError
from millstream.gateway.core.document_options import (
    OPEN_REVS_MAX,
    is_true,
    parse_options,
    parse_revs,
    prefers_json,
)


def test_without_options_a_document_is_plain():
    assert parse_options({}).shown is PLAIN
    assert parse_options({"other": "x", "revs": "false"}).shown is PLAIN


def test_options():
    options = parse_options(
        {"rev": "1-a", "meta": "true", "revs": "true", "latest": "true", "atts_since": '["1-a"]'}
    )
    shown = options.shown
    assert shown.revs
    assert shown.revs_info
    assert shown.conflicts
    assert shown.deleted_conflicts
    assert (options.rev, options.latest, options.attachments) == ("1-a", True, True)
    assert options.atts_since == ["1-a"]
    assert options.local_seq
    assert parse_options({"open_revs": "all"}).open_revs == []
    assert parse_options({"open_revs": '["2-b"]'}).open_revs == ["2-b"]


@pytest.mark.parametrize(
    "options",
    [{"revs": "yes"}, {"rev": "x"}, {"open_revs": "7"}, {"open_revs": "["},
     {"atts_since": '["x"]'}, {"atts_since": "{}"}],
)  # fmt: skip
def test_what_is_refused(options):
    with pytest.raises(UsageError):
        parse_options(options)


def test_many_revisions_are_too_many():
    with pytest.raises(UsageError, match="at most"):
        parse_revs(["1-a"] * (OPEN_REVS_MAX + 1))


def test_truth():
    assert is_true({"a": "true"}, "a")
    assert not is_true({}, "a")


@pytest.mark.parametrize(
    ("accept", "found"),
    [
        (None, False), ("*/*", False), ("application/json", True),
        ("multipart/mixed", False), ("multipart/mixed, application/json", False),
        ("application/json, multipart/mixed", True),
    ],
)  # fmt: skip
def test_who_wants_json(accept, found):
    assert prefers_json(accept) is found
