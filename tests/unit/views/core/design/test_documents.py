"""What a map sees of keys and values."""

from __future__ import annotations

import base64
import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.model.lineage import born
from millstream.model.revision import Revisions
from millstream.views.core.design.documents import Changes, Documents, document_id, document_text
from millstream.wire.frames import deletion, expiration, mutation

UUID = "0123456789abcdef0123456789abcdef"
LINEAGE = born(1 << 50, 12)


def texts(key, value, **options):
    frame = mutation(9, key, value, 77, 4, 1, 0, 0, 1)
    return [text for _, _, text in Documents(UUID, **options).of([frame], [LINEAGE])]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"a", {"n": 1}), (b"a", {}), (b'q"\\', {}), ("é\u2028".encode(), {"x": "é"}),
        (b"a", {"b": {"_c": 1}}), (b"a", {"_": 1}), (b"", {"n": [1]}),
        (b"a", {"_replication_state": "completed", "_access": [1]}),
    ],
)  # fmt: skip
def test_documents_have_id_and_revision(key, value):
    if "_" in value:
        value = {"x": "_y"}
    for written in (json.dumps(value), f" \n{json.dumps(value, indent=1)} ", json.dumps(value)):
        (text,) = texts(key, written.encode())
        rev = Revisions(UUID).of(key, LINEAGE, 4)
        assert json.loads(text) == {"_id": key.decode(), "_rev": rev, **value}


@pytest.mark.parametrize(
    "value",
    [
        b"", b"[]", b"7", b"\xff\x00", b'{"a":1', b'{"a":1}x', b'{"_id":"b"}', b'{"a":"\xff"}',
        b'{"\\u005fid":"b"}', b'{"a":1},{"b":2}', b'{"a":' * 5000, b"{}{}", b'{"_attachments":{}}',
    ],
)  # fmt: skip
def test_other_values_are_attachments(value):
    (text,) = texts(b"a", value)
    digest = base64.b64encode(hashlib.md5(value).digest()).decode()
    assert json.loads(text)["_attachments"] == {
        "value": {
            "content_type": "application/octet-stream",
            "revpos": 4,
            "digest": f"md5-{digest}",
            "length": len(value),
            "stub": True,
        }
    }
    assert document_text("a", value) is None
    (text,) = texts(b"a", value, attachments=True)
    shown = json.loads(text)["_attachments"]["value"]
    assert base64.b64decode(shown["data"]) == value
    assert (shown["digest"], shown["revpos"]) == (f"md5-{digest}", 4)
    assert "stub" not in shown


def test_seqnos_are_seen_where_asked_for():
    for value in (b"{}", b'{"a":1}', b"x"):
        (text,) = texts(b"a", value, local_seq=True)
        assert json.loads(text)["_local_seq"] == 77


def test_keys_that_are_not_document_ids_are_left_out():
    for key in (b"\xff\x00", b"_local/x", b"_design/x", b"_"):
        assert texts(key, b"{}") == []
    assert texts(b"_local/x", b"{}", include_design=True) == []
    (text,) = texts(b"_design/x", b'{"views":{}}', include_design=True)
    assert json.loads(text)["_id"] == "_design/x"


def test_deletions_have_no_text():
    frames = [
        deletion(1, b"a", 1, 2, 3, 4), expiration(2, b"b", 1, 2, 3, 4),
        deletion(1, b"_x", 1, 1, 1, 1),
    ]  # fmt: skip
    assert Documents(UUID).of(frames, [LINEAGE] * 3) == [(1, b"a", None), (2, b"b", None)]


@given(st.binary(max_size=5), st.binary(max_size=30))
def test_no_key_or_value_raises(key, value):
    for body in (value, b'{"' + value + b'":1}'):
        for text in texts(key, body):
            document = json.loads(text)
            assert document["_id"].encode() == key
            assert document["_rev"].startswith("4-")
            assert [name[0] == "_" for name in document if name].count(True) in (2, 3)


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("a", b'{"n":1}', b'{"_id":"a","n":1}'),
        ("a", b" \n{ }", b'{"_id":"a"}'),
        ('q"', b"{}", b'{"_id":"q\\""}'),
        ("\\x5c78", b"{}", b'{"_id":"\\\\x"}'),
        ("a", b'{"b":{"_c":1}}', b'{"_id":"a","b":{"_c":1}}'),
        ("a", b'{"_access":1}', b'{"_id":"a","_access":1}'),
    ],
)
def test_texts_without_revision(key, value, text):
    assert document_text(key, value) == text


def test_document_ids():
    assert document_id("a/b") == "a/b"
    assert document_id("\\x5c783431") == "\\x41"
    assert document_id("\\xff") is None
    assert document_id("_design/x") is None


@pytest.mark.parametrize("key", ["_design/x", "\\xff00", "\\xzz"])
def test_keys_without_text(key):
    assert document_text(key, b"{}") is None


def test_equal_documents_are_parsed_once(monkeypatch):
    made = []
    real = Documents.of
    monkeypatch.setattr(Documents, "of", lambda self, *all: made.append(1) or real(self, *all))
    changes = Changes([mutation(3, b"a", b"{}", 7, 4, 1, 0, 0, 1)], [LINEAGE])
    plain, again = Documents("u"), Documents("u")
    assert changes.inputs_for(plain) is changes.inputs_for(again)
    assert b"_local_seq" in changes.inputs_for(Documents("u", local_seq=True))[0][2]
    assert len(made) == 2
