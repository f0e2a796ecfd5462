"""Documents are shown as CouchDB shows them."""

import json
from base64 import b64encode

import pytest

from millstream.documents.reading import (
    Asked,
    RevsDiff,
    Shown,
    asked_revs,
    bulk_get_error,
    bulk_get_result,
    changes_of,
    digest_of,
    document_text,
    open_revs_text,
    revs_diff,
    shown_rev,
    text_of,
    wanted_data,
)
from millstream.documents.revisions import Path
from millstream.documents.stored import Attachment, Content, StoredDocument, load
from millstream.documents.tree import EMPTY
from millstream.errors import ConditionError, UsageError
from millstream.model.lineage import born
from millstream.wire.frames import deletion, mutation

PLAIN_ONE = Attachment("text/plain", 1, 2, b"m" * 16, b"s" * 32, "", 2)
ZIPPED = Attachment("text/html", 3, 90, b"n" * 16, b"t" * 32, "gzip", 40)
EVERYTHING = Shown(
    revs=True, revs_info=True, conflicts=True, deleted_conflicts=True, local_seq=7
)  # fmt: skip


def conflicting():
    tree = EMPTY.merged(Path(3, ["c", "b", "a"])).merged(Path(2, ["d", "a"]))
    tree = tree.merged(Path(4, ["f", "e"]), is_deleted=True)
    contents = {
        "3-c": Content(b'{"n": 1.0}', {"x": PLAIN_ONE, "ü": ZIPPED}),
        "2-d": Content(b'{"n":2}', {}),
        "4-f": Content(b'{"why":3}', {}),
    }
    return StoredDocument(tree, contents)


def shown(rev, what=EVERYTHING, **data):
    return json.loads(text_of("id", conflicting(), rev, what, data))


def refused(code, function, *arguments):
    with pytest.raises((ConditionError, UsageError)) as caught:
        function(*arguments)
    assert caught.value.code == code


def test_a_plain_text_is_the_body_with_id_and_revision_in_front():
    assert text_of("ü", conflicting(), "2-d") == '{"_id":"ü","_rev":"2-d","n":2}'.encode()
    gone = b'{"_id":"a\\"","_rev":"4-f","why":3,"_deleted":true}'
    assert text_of('a"', conflicting(), "4-f") == gone


@pytest.mark.parametrize("gone", [False, True])
def test_what_kv_wrote_is_shown_without_its_history(gone):
    frame = (
        deletion(1, b"k", 9, 10**15, 1, 0)
        if gone
        else mutation(1, b"k", b' { "a" : 1 }\n', 9, 10**15, 1, 0, 0, 0)
    )
    document = load("b", b"k", frame, born(1, 1))
    rev = document.winner.rev
    rest = {"_deleted": True} if gone else {"a": 1}
    assert json.loads(text_of("k", document, rev)) == {"_id": "k", "_rev": rev, **rest}
    assert document._tree is EMPTY  # a thousand hashes that nobody needs were not made


@pytest.mark.parametrize("body", [b"{}", b"{ }", b" {\n}\t"])
def test_empty_bodies_have_many_forms(body):
    assert document_text("a", "1-b", body) == b'{"_id":"a","_rev":"1-b"}'


def test_foreign_revisions_are_quoted():
    rev = '1-a"b\\'
    assert json.loads(document_text("a", rev, b'{"c":1}')) == {"_id": "a", "_rev": rev, "c": 1}


def test_all_that_can_be_told():
    found = shown("3-c")
    table = found.pop("_attachments")
    assert list(found) == [
        "_id", "_rev", "n", "_revisions", "_revs_info", "_local_seq", "_conflicts",
        "_deleted_conflicts",
    ]  # fmt: skip
    assert found["_revisions"] == {"start": 3, "ids": ["c", "b", "a"]}
    assert found["_revs_info"] == [
        {"rev": "3-c", "status": "available"},
        {"rev": "2-b", "status": "missing"},
        {"rev": "1-a", "status": "missing"},
    ]
    assert found["_local_seq"] == 7
    assert found["_conflicts"] == ["2-d"]
    assert found["_deleted_conflicts"] == ["4-f"]
    assert table["x"] == {
        "content_type": "text/plain", "revpos": 1, "digest": digest_of(PLAIN_ONE), "length": 2,
        "stub": True,
    }  # fmt: skip
    assert "encoding" not in table["ü"]
    gone = shown("4-f")
    assert gone["_deleted"] is True
    assert gone["_revs_info"][0] == {"rev": "4-f", "status": "deleted"}
    alone = StoredDocument(EMPTY.extended(None, "a"), {"1-a": Content(b"{}", {})})
    assert "_conflicts" not in json.loads(text_of("id", alone, "1-a", EVERYTHING))


def test_the_body_is_not_written_anew():
    assert b'"n": 1.0' in text_of("id", conflicting(), "3-c", EVERYTHING)


def test_attachments_with_their_data():
    everything = Shown(attachments=True, att_encoding_info=True)
    assert wanted_data(conflicting(), "3-c", everything) == ["x", "ü"]
    table = shown("3-c", everything, x=b"hi", ü=b"plain")["_attachments"]
    assert table == {
        "x": {
            "content_type": "text/plain", "revpos": 1, "digest": digest_of(PLAIN_ONE),
            "data": b64encode(b"hi").decode(),
        },
        "ü": {
            "content_type": "text/html", "revpos": 3, "digest": digest_of(ZIPPED),
            "data": b64encode(b"plain").decode(), "encoding": "gzip", "encoded_length": 40,
        },
    }  # fmt: skip
    assert wanted_data(conflicting(), "3-c", Shown()) == []
    assert wanted_data(conflicting(), "2-d", everything) == []


@pytest.mark.parametrize(
    ("since", "wanted"),
    [
        ([], ["x", "ü"]),
        (["1-a"], ["ü"]),
        (["2-b", "1-a"], ["ü"]),
        (["3-c"], []),
        (["2-d", "9-z"], ["x", "ü"]),
    ],
)
def test_attachments_that_are_newer(since, wanted):
    newer = Shown(atts_since=since)
    assert wanted_data(conflicting(), "3-c", newer) == wanted
    table = shown("3-c", newer, x=b"hi", ü=b"plain")["_attachments"]
    assert [name for name, said in table.items() if "data" in said] == wanted
    assert [name for name, said in table.items() if "stub" not in said] == wanted


def test_attachments_that_follow():
    table = shown("3-c", Shown(atts_since=["1-a"], follows=True))["_attachments"]
    assert table["x"]["stub"] is True
    assert table["ü"] == {
        "content_type": "text/html", "revpos": 3, "digest": digest_of(ZIPPED), "length": 90,
        "follows": True, "encoding": "gzip", "encoded_length": 40,
    }  # fmt: skip


def test_which_revision_is_read():
    document = conflicting()
    assert shown_rev(document) == "3-c"
    assert shown_rev(document, "4-f") == "4-f"
    refused("missing", shown_rev, document, "2-b")
    refused("missing", shown_rev, document, "1-z")
    refused("bad_request", shown_rev, document, "z")
    refused("missing", shown_rev, None)
    refused("missing", shown_rev, StoredDocument(EMPTY, {}))
    gone = StoredDocument(
        EMPTY.merged(Path(1, ["a"]), is_deleted=True), {"1-a": Content(b"{}", {})}
    )
    refused("deleted", shown_rev, gone)
    assert shown_rev(gone, "1-a") == "1-a"


def test_several_revisions():
    document = conflicting()
    everything = [Asked("3-c", True), Asked("2-d", True), Asked("4-f", True)]
    assert asked_revs(document, None) == everything
    assert asked_revs(document, ["2-b", "2-d", "9-z"]) == [
        Asked("2-b", False), Asked("2-d", True), Asked("9-z", False),
    ]  # fmt: skip
    assert asked_revs(document, ["2-b", "1-a", "3-e", "9-z"], latest=True) == [
        *everything, Asked("9-z", False),
    ]  # fmt: skip
    assert asked_revs(None, None) == []
    assert asked_revs(None, ["1-a"], latest=True) == [Asked("1-a", False)]
    refused("bad_request", asked_revs, document, ["x"])
    assert json.loads(open_revs_text([b'{"_id":"a"}', "1-b"])) == [
        {"ok": {"_id": "a"}}, {"missing": "1-b"},
    ]  # fmt: skip
    assert open_revs_text([]) == b"[]"


def test_bulk_get_rows():
    row = bulk_get_result("ü", [b'{"_id":"a"}', bulk_get_error("ü", None)])
    wanted = {"id": "ü", "rev": "undefined", "error": "not_found", "reason": "missing"}
    assert json.loads(row) == {"id": "ü", "docs": [{"ok": {"_id": "a"}}, {"error": wanted}]}


def test_rows_of_changes():
    assert changes_of(conflicting(), all_docs=False) == ["3-c"]
    assert changes_of(conflicting(), all_docs=True) == ["3-c", "2-d", "4-f"]


def test_what_is_missing():
    document = conflicting()
    assert revs_diff(document, ["3-c", "2-b", "1-a"]) == RevsDiff([], [])
    assert revs_diff(document, ["3-x", "2-b"]) == RevsDiff(["3-x"], ["2-d"])
    assert revs_diff(None, ["3-x"]) == RevsDiff(["3-x"], [])
    for ours in (None, document):
        refused("bad_request", revs_diff, ours, ["x"])
