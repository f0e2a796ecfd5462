"""Rows of `_changes`, of documents of all kinds."""

import json

import pytest

from millstream.documents.revisions import Path
from millstream.documents.stored import Content, StoredDocument, pack
from millstream.documents.tree import EMPTY
from millstream.gateway.core.changes import ChangesQuery, FilterAsked
from millstream.gateway.core.changes_rows import RowMaker, document_id
from millstream.model.lineage import born
from millstream.model.revision import Revisions
from millstream.wire.frames import deletion, described, mutation

LINEAGE = born(7, 1)
REV = Revisions("u1").of


def put(key, value=b'{"a":1}', rev=2, sidecar=b""):
    return described(mutation(0, key, value, 9, rev, 5, 0, 0, 1), LINEAGE, sidecar)


def rows(*frames, **query):
    found = RowMaker("u1", ChangesQuery(**query)).rows(frames)
    return [json.loads(b'{"seq":1' + row.text) for row in found]


def stored(*branches, contents=None, is_purged=False):
    tree = EMPTY
    for path, is_deleted in branches:
        tree = tree.merged(path, is_deleted=is_deleted)
    return StoredDocument(tree, contents or {}, is_purged=is_purged)


@pytest.mark.parametrize("key", ["a", "ä", 'q"', "_design/x", "a\\b"])
@pytest.mark.parametrize("include_docs", [False, True])
def test_a_document_that_kv_wrote(key, include_docs):
    raw = key.encode()
    rev = REV(raw, LINEAGE, 2)
    row = {"seq": 1, "id": key, "changes": [{"rev": rev}]}
    if include_docs:
        row["doc"] = {"_id": key, "_rev": rev, "a": 1}
    assert rows(put(raw), include_docs=include_docs) == [row]
    gone = described(deletion(0, raw, 9, 2, 5, 0), LINEAGE)
    row["deleted"] = True
    if include_docs:
        row["doc"] = {"_id": key, "_rev": rev, "_deleted": True}
    assert rows(gone, include_docs=include_docs, all_docs=True) == [row]


@pytest.mark.parametrize("key", [b"\xff", b"_local/x", b"_x"])
def test_a_key_that_is_no_id_has_no_row(key):
    assert rows(put(key)) == []
    assert document_id(key) is None


def test_leaves_and_the_winner():
    document = stored(
        (Path(2, ["b" * 32, "a" * 32]), False),
        (Path(2, ["c" * 32, "a" * 32]), False),
        (Path(3, ["d" * 32, "c" * 32, "a" * 32]), True),
        contents={f"2-{'b' * 32}": Content(b'{"x":1}', {})},
    )
    value, sidecar = pack(document)
    frame = put(b"k", value, sidecar=sidecar)
    winner, other = f"2-{'b' * 32}", f"3-{'d' * 32}"
    assert rows(frame) == [{"seq": 1, "id": "k", "changes": [{"rev": winner}]}]
    assert rows(frame, all_docs=True)[0]["changes"] == [{"rev": winner}, {"rev": other}]
    (row,) = rows(frame, include_docs=True, conflicts=True)
    assert row["doc"] == {"_id": "k", "_rev": winner, "x": 1}


def test_conflicts_are_shown_where_asked_for():
    contents = {f"1-{letter * 32}": Content(b"{}", {}) for letter in "ab"}
    document = stored(
        (Path(1, ["a" * 32]), False), (Path(1, ["b" * 32]), False), contents=contents
    )
    value, sidecar = pack(document)
    frame = put(b"k", value, sidecar=sidecar)
    doc = {"_id": "k", "_rev": f"1-{'b' * 32}"}
    assert rows(frame, include_docs=True)[0]["doc"] == doc
    doc["_conflicts"] = [f"1-{'a' * 32}"]
    assert rows(frame, include_docs=True, conflicts=True)[0]["doc"] == doc


def test_a_document_that_a_purge_left_nothing_of_has_no_row():
    sidecar = pack(stored(is_purged=True)).sidecar
    assert rows(described(deletion(0, b"k", 9, 2, 5, 0), LINEAGE, sidecar)) == []


def test_a_value_that_is_no_document_is_an_attachment():
    (row,) = rows(put(b"k", b"text"), include_docs=True)
    assert row["doc"]["_attachments"]["value"] == {
        "content_type": "application/octet-stream", "revpos": 2, "stub": True, "length": 4,
        "digest": "md5-HLJR7A1WjeapKbUgxK7Y0Q==",
    }  # fmt: skip


def test_filters_by_id():
    frames = [put(b"a"), put(b"b"), put(b"_design/d")]
    ids = FilterAsked("ids", frozenset(("b", "x")))
    assert [row["id"] for row in rows(*frames, filter=ids)] == ["b"]
    assert [row["id"] for row in rows(*frames, filter=FilterAsked("design"))] == ["_design/d"]


def test_texts_that_were_made_elsewhere_stand_in_rows():
    maker = RowMaker("u1", ChangesQuery(include_docs=True))
    found = maker.candidates([put(b"a"), put(b"b"), put(b"c")])
    passing = [found[0].leaves(all_docs=False), [], found[2].leaves(all_docs=False)]
    made = maker.rows_of(found, passing, [[b'{"of":"a"}'], [], [b'{"of":', b'"c"}']])
    shown = [json.loads(b"".join((b'{"seq":1', row.text, *row.more))) for row in made]
    assert [(row["id"], row["doc"]) for row in shown] == [("a", {"of": "a"}), ("c", {"of": "c"})]
