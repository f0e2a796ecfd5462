"""Special members are understood, or refused."""

import json

import pytest

from millstream.documents.revisions import Path
from millstream.documents.sent import REVISIONS_MAX, SentAttachment, parse_sent
from millstream.errors import UsageError

DIGITS = "0123456789abcdef0123456789abcdef"


def sent(**members):
    return parse_sent(json.dumps(members).encode())


def test_a_plain_document():
    found = parse_sent(b'{"_id":"x","a":1.0}')
    assert (found.doc_id, found.body, found.content) == ("x", b'{"a":1.0}', {"a": 1.0})
    assert (found.rev, found.path, found.is_deleted, found.attachments) == (None, None, False, {})


def test_revisions_count_for_more_than_rev():
    revisions = {"start": 3, "ids": ["c", DIGITS, "a"]}
    found = sent(_rev="9-z", _revisions=revisions, _deleted=True)
    assert found.path == Path(3, ["c", DIGITS, "a"])
    assert (found.rev, found.is_deleted) == ("3-c", True)
    assert sent(_rev="9-z").rev == "9-z"
    assert sent(_rev="9-z", _revisions={"start": 0, "ids": []}).rev == "9-z"
    assert not sent(_deleted=False).is_deleted


def test_what_reading_brings_along_is_passed_over():
    found = sent(
        _revs_info=[], _conflicts=["1-a"], _deleted_conflicts=[], _local_seq=7,
        _replication_state="completed", _replication_id="x",
    )  # fmt: skip
    assert found.body == b"{}"


@pytest.mark.parametrize(
    ("members", "code"),
    [
        ({"_other": 1}, "doc_validation"),
        ({"_": 1}, "doc_validation"),
        ({"_id": 1}, "illegal_docid"),
        ({"_rev": 1}, "bad_request"),
        ({"_rev": "1"}, "bad_request"),
        ({"_rev": None}, "bad_request"),
        ({"_deleted": "true"}, "doc_validation"),
        ({"_deleted": 1}, "doc_validation"),
        ({"_revisions": []}, "doc_validation"),
        ({"_revisions": {"ids": ["a"]}}, "doc_validation"),
        ({"_revisions": {"start": "1", "ids": ["a"]}}, "doc_validation"),
        ({"_revisions": {"start": True, "ids": ["a"]}}, "doc_validation"),
        ({"_revisions": {"start": 1}}, "doc_validation"),
        ({"_revisions": {"start": 1, "ids": "a"}}, "doc_validation"),
        ({"_revisions": {"start": 1, "ids": [1]}}, "doc_validation"),
        ({"_revisions": {"start": 1, "ids": ["a,b"]}}, "doc_validation"),
        ({"_revisions": {"start": 2, "ids": ["a", ""]}}, "doc_validation"),
        ({"_revisions": {"start": 1, "ids": ["b", "a"]}}, "doc_validation"),
        ({"_revisions": {"start": -1, "ids": ["a"]}}, "bad_request"),
        ({"_revisions": {"start": 0, "ids": ["a"]}}, "bad_request"),
        ({"_revisions": {"start": 2**60, "ids": ["a"]}}, "bad_request"),
        ({"_revisions": {"start": 2**50, "ids": ["a"] * (REVISIONS_MAX + 1)}}, "doc_validation"),
        ({"_attachments": []}, "doc_validation"),
        ({"_attachments": {"a": 1}}, "doc_validation"),
        ({"_attachments": {"_a": {"data": ""}}}, "bad_request"),
        ({"_attachments": {"": {"data": ""}}}, "bad_request"),
        ({"_attachments": {"a": {}}}, "bad_request"),
        ({"_attachments": {"a": {"data": 7}}}, "bad_request"),
        ({"_attachments": {"a": {"data": "???"}}}, "bad_request"),
        ({"_attachments": {"a": {"data": "ü"}}}, "bad_request"),
        ({"_attachments": {"a": {"data": "", "content_type": 7}}}, "doc_validation"),
        ({"_attachments": {"a": {"data": "", "content_type": "a\r\nb"}}}, "doc_validation"),
        ({"_attachments": {"a": {"data": "", "digest": 7}}}, "doc_validation"),
        ({"_attachments": {"a": {"follows": True, "encoding": "br"}}}, "doc_validation"),
        ({"_attachments": {"a": {"stub": True, "revpos": -1}}}, "doc_validation"),
        ({"_attachments": {"a": {"stub": True, "revpos": True}}}, "doc_validation"),
        ({"_attachments": {"a": {"follows": True, "length": "7"}}}, "doc_validation"),
        ({"_attachments": {str(n): {"stub": True} for n in range(10_001)}}, "doc_validation"),
    ],
)
def test_what_is_not_understood_is_refused(members, code):
    with pytest.raises(UsageError) as caught:
        sent(**members)
    assert caught.value.code == code


def test_the_member_is_named():
    with pytest.raises(UsageError, match=r"^Bad special document member: _foo$"):
        sent(_foo=1)


def test_attachments_are_stubs_or_bytes_or_follow():
    found = sent(
        _attachments={
            "z": {"stub": True, "revpos": 2, "digest": "md5-x", "length": 3},
            "a": {"data": "aGk=", "content_type": "text/plain"},
            "m": {"follows": True, "encoding": "gzip", "length": 9, "encoded_length": 5},
        }
    )
    octets = "application/octet-stream"
    assert found.attachments == {
        "z": SentAttachment(octets, True, None, 2, "md5-x", "", 3, None),
        "a": SentAttachment("text/plain", False, b"hi", None, None, "", None, None),
        "m": SentAttachment(octets, False, None, None, None, "gzip", 9, 5),
    }
    assert list(found.attachments) == ["z", "a", "m"]
    assert found.new_attachments() == ["a", "m"]
    assert [one.follows for one in found.attachments.values()] == [False, False, True]
