"""What clients send is understood or refused."""

import pytest

from millstream.documents.revisions import GENERATION_MAX, Path
from millstream.documents.sent import DOCUMENT_ID_BYTES_MAX, checked_id, parse_sent
from millstream.errors import UsageError


def test_special_members_are_read_and_the_rest_is_the_body():
    sent = parse_sent(
        b'{"_id":"x","a":1.0,"_rev":"2-b","_deleted":true,"_revisions":{"start":2,"ids":["b","a"]},'
        b'"_attachments":{"n":{"stub":true}},"b":[]}'
    )
    assert sent == (
        "x", "2-b", True, Path(2, ["b", "a"]), {"n": {"stub": True}}, b'{"a":1.0,"b":[]}',
        {"a": 1.0, "b": []}, None,
    )  # fmt: skip
    assert parse_sent(b"{}") == (None, None, False, None, None, b"{}", {}, None)
    assert parse_sent(b'{"_deleted":false}').is_deleted is False


def test_what_reading_adds_says_nothing():
    text = b'{"_conflicts":["1-a"],"_revs_info":[],"_local_seq":7,"_deleted_conflicts":0,"a":1}'
    assert parse_sent(text) == parse_sent(b'{"a":1}')


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ('{"_foo":1}', "doc_validation"), ('{"_":1}', "doc_validation"),
        ('{"\\u005ffoo":1}', "doc_validation"),
        ('{"_id":7}', "illegal_docid"), ('{"_id":null}', "illegal_docid"),
        ('{"_rev":7}', "bad_request"), ('{"_rev":"x"}', "bad_request"),
        ('{"_rev":null}', "bad_request"),
        ('{"_deleted":1}', "doc_validation"), ('{"_deleted":null}', "doc_validation"),
        ('{"_attachments":[]}', "bad_request"), ('{"_attachments":{"a":1}}', "bad_request"),
        ("[]", "bad_request"), ("{", "bad_json"), ('{"_id":NaN}', "bad_json"),
        ('{"_attachments":{"a":{"x":1e999}}}', "bad_json"),
        ('{"_revisions":7}', "doc_validation"), ('{"_revisions":{}}', "doc_validation"),
        ('{"_revisions":{"start":"1","ids":["a"]}}', "doc_validation"),
        ('{"_revisions":{"start":true,"ids":["a"]}}', "doc_validation"),
        ('{"_revisions":{"start":1.0,"ids":["a"]}}', "doc_validation"),
        ('{"_revisions":{"start":1,"ids":[]}}', "doc_validation"),
        ('{"_revisions":{"start":1,"ids":["b","a"]}}', "doc_validation"),
        ('{"_revisions":{"start":0,"ids":["a"]}}', "doc_validation"),
        ('{"_revisions":{"start":1,"ids":"a"}}', "doc_validation"),
        ('{"_revisions":{"start":1,"ids":[1]}}', "doc_validation"),
        ('{"_revisions":{"start":1,"ids":["a,b"]}}', "doc_validation"),
        (f'{{"_revisions":{{"start":{GENERATION_MAX + 1},"ids":["a"]}}}}', "doc_validation"),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_refused(text, code):
    with pytest.raises(UsageError) as caught:
        parse_sent(text.encode())
    assert caught.value.code == code


@pytest.mark.parametrize("doc_id", ["a", "a/b", "é" * (DOCUMENT_ID_BYTES_MAX // 2), "_design/x"])
def test_ids(doc_id):
    assert checked_id(doc_id) == doc_id


@pytest.mark.parametrize(
    "doc_id", ["", "_x", "_local/x", "_design", "_design/", "\ud800", "é" * DOCUMENT_ID_BYTES_MAX]
)
def test_ids_that_are_none(doc_id):
    with pytest.raises(UsageError) as caught:
        checked_id(doc_id)
    assert caught.value.code == "illegal_docid"


def test_where_no_design_document_may_be():
    with pytest.raises(UsageError):
        checked_id("_design/x", may_be_design=False)
