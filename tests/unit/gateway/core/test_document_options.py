import pytest

from millstream.documents.reading import PLAIN, Shown
from millstream.errors import UsageError
from millstream.gateway.core.document_options import (
    OPEN_REVS_MAX,
    is_true,
    parse_options,
    parse_revs,
    prefers_json,
)


def test_nothing_is_asked_for():
    options = parse_options({})
    assert options == (None, PLAIN, None, False, False, None, False)
    assert parse_options({"other": "x", "rev": ""}) == options


def test_all_that_may_be_asked_for():
    names = ("revs", "latest", "attachments", "local_seq", "conflicts", "att_encoding_info")
    options = parse_options(dict.fromkeys(names, "true") | {"rev": "1-a"})
    assert options.rev == "1-a"
    assert options.shown == Shown(revs=True, conflicts=True, encoding_info=True)
    assert options.latest
    assert options.attachments
    assert options.local_seq
    meta = parse_options({"meta": "true"})
    assert meta.shown == Shown(revs_info=True, conflicts=True, deleted_conflicts=True)
    assert not meta.local_seq


def test_revisions():
    assert parse_options({"open_revs": "all"}).open_revs == []
    assert parse_options({"open_revs": '["1-a","2-b"]'}).open_revs == ["1-a", "2-b"]
    since = parse_options({"atts_since": '["1-a"]'})
    assert (since.atts_since, since.attachments) == (["1-a"], True)
    for bad in ("", "x", "7", "{}", "[7]", '["x"]', "[" * 10_000):
        with pytest.raises(UsageError) as refused:
            parse_revs(bad)
        assert refused.value.code == "bad_request"
    with pytest.raises(UsageError) as refused:
        parse_revs(["1-a"] * (OPEN_REVS_MAX + 1))
    assert refused.value.code == "too_large"


def test_truth():
    assert is_true({"a": "true"}, "a")
    assert not is_true({"a": "false"}, "a")
    for bad in ("", "1", "True"):
        with pytest.raises(UsageError) as refused:
            is_true({"a": bad}, "a")
        assert refused.value.code == "query_parse_error"


@pytest.mark.parametrize(
    ("accept", "is_json"),
    [
        (None, False),
        ("*/*", False),
        ("application/json", True),
        ("multipart/mixed", False),
        ("application/json, multipart/mixed", True),
        ("multipart/mixed, application/json", False),
        ("Multipart/Related", False),
    ],
)
def test_who_wants_json(accept, is_json):
    assert prefers_json(accept) is is_json
