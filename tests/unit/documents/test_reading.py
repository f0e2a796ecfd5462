"""Texts of documents have the members that were asked for, and what peers ask is answered."""

import json
from base64 import b64encode
from time import process_time

import pytest

from millstream.documents.reading import (
    PLAIN,
    Shown,
    ancestor_generation,
    differences,
    newer_attachments,
    open_leaves,
    text_of,
)
from millstream.documents.revisions import Path
from millstream.documents.stored import Attachment, Content, StoredDocument
from millstream.documents.tree import EMPTY, Branch, Leaf, RevisionTree
from millstream.errors import UsageError

OLD = Attachment("image/png", 1, 10, b"m" * 16, b"s" * 32, "", 10)
NEW = Attachment("text/plain", 3, 20, b"n" * 16, b"t" * 32, "gzip", 8)


def document():
    tree = EMPTY.merged(Path(3, ["c", "b", "a"])).merged(Path(2, ["x", "a"]))
    tree = tree.merged(Path(2, ["y", "a"]), is_deleted=True)
    tree = tree.merged(Path(3, ["u", "t"]), is_deleted=True).merged(Path(2, ["w", "a"]))
    contents = {
        "3-c": Content(b'{"a": 1.0}', {'o"ld': OLD, "new": NEW}),
        "2-x": Content(b"{}", {}),
        "2-y": Content(b'{"why":1}', {}),
        "3-u": Content(b"{}", {}),
    }
    return StoredDocument(tree, contents)


def read(rev="3-c", shown=PLAIN, **options):
    one = document()
    text = text_of('i"d', one, one.tree.leaf(rev), shown, **options)
    return json.loads(text)


def stub(attachment, **more):
    digest = "md5-" + b64encode(attachment.md5).decode()
    return {"content_type": attachment.content_type, "revpos": attachment.revpos,
            "digest": digest, **more}  # fmt: skip


HEAD = {
    "_id": 'i"d', "_rev": "3-c", "a": 1.0,
    "_attachments": {'o"ld': stub(OLD, length=10, stub=True),
                     "new": stub(NEW, length=20, stub=True)},
}  # fmt: skip


def test_a_text_has_the_body_as_it_was():
    assert read() == HEAD
    assert read("2-x") == {"_id": 'i"d', "_rev": "2-x"}
    assert read("2-y") == {"_id": 'i"d', "_rev": "2-y", "_deleted": True, "why": 1}
    one = document()
    assert text_of("i", one, Leaf("2-y", True)).endswith(b',"_deleted":true,"why":1}')


@pytest.mark.parametrize("body", [b"{ }", b' {"a":1}\n', b'{ "a":1}', b"\t{\r\n} "])
def test_bodies_that_kv_wrote_with_spaces(body):
    one = StoredDocument(EMPTY.merged(Path(1, ["a"])), {"1-a": Content(body, {})})
    wanted = {"_id": "i", "_rev": "1-a", **json.loads(body)}
    assert json.loads(text_of("i", one, one.winner)) == wanted


STATUS = [
    {"rev": "3-c", "status": "available"},
    {"rev": "2-b", "status": "missing"},
    {"rev": "1-a", "status": "missing"},
]


@pytest.mark.parametrize(
    ("shown", "more"),
    [
        (Shown(revs=True), {"_revisions": {"start": 3, "ids": ["c", "b", "a"]}}),
        (Shown(revs_info=True), {"_revs_info": STATUS}),
        (Shown(conflicts=True), {"_conflicts": ["2-x", "2-w"]}),
        (Shown(deleted_conflicts=True), {"_deleted_conflicts": ["3-u", "2-y"]}),
        (Shown(local_seq=7), {"_local_seq": 7}),
        (Shown(), {}),
        (
            Shown(revs=True, revs_info=True, conflicts=True, local_seq=9),
            {"_revisions": {"start": 3, "ids": ["c", "b", "a"]}, "_revs_info": STATUS,
             "_conflicts": ["2-x", "2-w"], "_local_seq": 9},
        ),
    ],
)  # fmt: skip
def test_what_is_asked_for_is_said(shown, more):
    assert read(shown=shown) == {**HEAD, **more}


def test_deletions_are_said_of_revisions():
    info = read("2-y", Shown(revs_info=True))["_revs_info"]
    assert [one["status"] for one in info] == ["deleted", "missing"]
    again = document().tree.extended("2-y", "f" * 32)
    one = StoredDocument(again, {"3-" + "f" * 32: Content(b"{}", {})})
    leaf = again.leaf("3-" + "f" * 32)
    info = json.loads(text_of("i", one, leaf, Shown(revs_info=True)))["_revs_info"]
    assert [one["status"] for one in info] == ["available", "deleted", "missing"]


def test_attachments_stand_in_the_text_or_follow():
    said = read(data={"new": [b"QU", b"JD"]}, following=['o"ld'])["_attachments"]
    assert said == {'o"ld': stub(OLD, length=10, follows=True), "new": stub(NEW, data="QUJD")}
    coded = {"encoding": "gzip", "encoded_length": 8}
    assert read(following=["new"])["_attachments"]["new"] == stub(
        NEW, length=20, follows=True, **coded
    )
    assert read(shown=Shown(encoding_info=True))["_attachments"] == {
        'o"ld': stub(OLD, length=10, stub=True),
        "new": stub(NEW, length=20, stub=True, **coded),
    }


def test_attachments_that_a_reader_lacks():
    one = document()
    assert list(newer_attachments(one, "3-c", None)) == ['o"ld', "new"]
    assert list(newer_attachments(one, "3-c", [])) == ['o"ld', "new"]
    assert list(newer_attachments(one, "3-c", ["2-b", "1-a", "3-u"])) == ["new"]
    assert newer_attachments(one, "3-c", ["3-c"]) == {}
    assert list(newer_attachments(one, "3-c", ["2-x"])) == ['o"ld', "new"]
    assert ancestor_generation(one, "3-c", ["1-a", "2-b", "2-x"]) == 2
    assert ancestor_generation(one, "9-z", ["1-a"]) == 0


def test_open_leaves():
    one = document()
    leaves = [Leaf("3-c", False), Leaf("2-x", False), Leaf("2-w", False), Leaf("3-u", True),
              Leaf("2-y", True)]  # fmt: skip
    assert open_leaves(one, None, latest=False) == leaves
    assert open_leaves(None, None, latest=False) == []
    assert open_leaves(None, ["1-a"], latest=True) == ["1-a"]
    asked = ["2-x", "1-a", "2-w", "9-z", "2-x"]
    assert open_leaves(one, asked, latest=False) == [leaves[1], "1-a", "2-w", "9-z"]
    below = open_leaves(one, ["2-b", "1-a", "9-z"], latest=True)
    assert below == [leaves[0], leaves[1], leaves[4], "9-z"]
    gone = StoredDocument(EMPTY, {}, is_purged=True)
    assert open_leaves(gone, None, latest=False) == []
    assert open_leaves(gone, ["1-a"], latest=False) == ["1-a"]


def test_differences():
    one = document()
    assert differences(one, ["3-c", "1-a", "3-u"]) == {}
    assert differences(one, []) == {}
    assert differences(None, []) == {}
    assert differences(None, ["1-a"]) == {"missing": ["1-a"]}
    assert differences(StoredDocument(EMPTY, {}), ["1-a"]) == {"missing": ["1-a"]}
    found = differences(one, ["3-z", "2-b", "1-z"])
    assert found["missing"] == ["3-z", "1-z"]
    assert sorted(found["possible_ancestors"]) == ["2-w", "2-x", "2-y"]
    assert differences(one, ["1-z"]) == {"missing": ["1-z"]}
    for present in (None, one):
        with pytest.raises(UsageError):
            differences(present, ["nonsense"])


def test_revisions_may_have_quotes():
    tree = EMPTY.merged(Path(1, ['a"}\\']))
    one = StoredDocument(tree, {'1-a"}\\': Content(b'{"b":1}', {})})
    assert json.loads(text_of("d", one, one.winner)) == {"_id": "d", "_rev": '1-a"}\\', "b": 1}


@pytest.mark.slow
def test_many_revisions_of_a_wide_document_are_answered_in_one_pass():
    """Work by squares would be some ten million steps in each."""
    wide = RevisionTree(
        [Branch(-1, 1, bytes(32)), *(Branch(0, 2, n.to_bytes(16, "big")) for n in range(1, 3000))]
    )
    revs = wide.leaf_revs()
    one = StoredDocument(wide, dict.fromkeys(revs, Content(b"{}", {})))
    others = [f"2-{number:032x}" for number in range(3000, 6000)]
    started = process_time()
    assert differences(one, [*others, *revs])["missing"] == others
    assert len(open_leaves(one, revs, latest=True)) == 3000
    assert process_time() - started < 2
