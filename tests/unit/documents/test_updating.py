"""Changes are made, merged or refused as CouchDB does."""

import json
import os
import time
from base64 import b64encode
from hashlib import md5

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.documents.revisions import GENERATION_MAX, Path
from millstream.documents.sent import Sent, parse_sent
from millstream.documents.stored import Attachment, Content, StoredDocument, load, pack
from millstream.documents.tree import EMPTY, Branch, Leaf, RevisionTree
from millstream.documents.updating import (
    Change,
    Purge,
    deleted,
    interactive,
    parent_of,
    purged,
    replicated,
    revised,
    with_attachment,
)
from millstream.errors import ConditionError, UsageError
from millstream.model.lineage import born
from millstream.model.sides import side_of
from millstream.wire.frames import deletion, mutation
from revision_forests import worlds

FIRST = "1-967a00dff5e02add41819138abb3284d"
GONE = "2-eec205a9d413992850a6e32678485900"
ONE = "1-23202479633c2b380f79507a776743d5"


def attachment(data=b"hi", content_type="text/plain", revpos=7):
    digest = md5(data).digest()
    return Attachment(content_type, revpos, len(data), digest, b"s" * 32, "", len(data))


def document(**members):
    return parse_sent(json.dumps(members).encode())


def put(before, rev=None, **members):
    sent = document(**members)
    return interactive(before, sent._replace(rev=rev) if rev else sent)


def got(before, start, *ids, **members):
    return replicated(before, document(_revisions={"start": start, "ids": list(ids)}, **members))


def refused(code, change, *arguments, **named):
    with pytest.raises((ConditionError, UsageError)) as caught:
        change(*arguments, **named)
    assert caught.value.code == code
    return caught.value


def nothing():
    return StoredDocument(EMPTY, {}, is_purged=True)


# ---- interactive


@pytest.mark.parametrize("before", [None, nothing()])
def test_a_document_is_created(before):
    after, rev = put(before)
    assert rev == FIRST
    assert after.winner == Leaf(FIRST, False)
    assert after.contents == {FIRST: Content(b"{}", {})}
    assert not after.is_purged
    assert put(before, a=1).rev == ONE
    tombstone = put(before, _deleted=True)
    assert tombstone.document.winner == Leaf(tombstone.rev, True)


def test_an_update_names_the_leaf_that_it_replaces():
    first, rev = put(None)
    second, second_rev = put(first, rev, a=1)
    assert second.tree.winner_path().revs() == [second_rev, rev]
    assert second.contents == {second_rev: Content(b'{"a":1}', {})}
    for wrong in (None, rev, "1-x", "2-x"):
        error = refused("conflict", put, second, wrong, a=2)
        assert str(error) == "Document update conflict."
    refused("conflict", put, None, rev)
    refused("conflict", put, nothing(), rev)


def test_a_conflict_can_be_extended():
    both = got(got(None, 1, "b").document, 1, "a", n=1).document
    after, rev = put(both, "1-a", n=2)
    assert {leaf.rev for leaf in after.tree.leaves()} == {"1-b", rev}
    assert after.winner.rev == rev
    assert set(after.contents) == {"1-b", rev}


def test_a_deleted_document_goes_on():
    first, _ = put(None)
    gone, gone_rev = deleted(first, FIRST)
    assert gone_rev == GONE
    assert gone.winner == Leaf(GONE, True)
    assert gone.contents == {GONE: Content(b"{}", {})}
    for rev in (None, GONE):
        again, again_rev = put(gone, rev, a=1)
        assert again.tree.winner_path().revs() == [again_rev, GONE, FIRST]
    refused("conflict", put, gone, _deleted=True)
    refused("conflict", put, gone, FIRST)


def test_a_deleted_conflict_can_be_extended():
    live = got(None, 3, "z").document
    both = got(live, 2, "d", "c", _deleted=True).document
    after, rev = put(both, "2-d")
    assert after.tree.path(rev).revs() == [rev, "2-d", "1-c"]
    assert rev.startswith("3-")
    assert set(after.tree.leaf_revs()) == {"3-z", rev}


def test_what_is_not_there_is_not_deleted():
    refused("missing", deleted, None, None)
    refused("missing", deleted, nothing(), FIRST)
    first, _ = put(None)
    refused("conflict", deleted, first, None)
    refused("conflict", deleted, first, "1-x")
    refused("deleted", deleted, deleted(first, FIRST).document, GONE)


def test_generations_end():
    last = got(None, GENERATION_MAX, "a").document
    refused("bad_request", put, last, f"{GENERATION_MAX}-a")


def test_history_is_cut_at_the_limit():
    before, rev = put(None)
    for number in range(5):
        sent = document(n=number)._replace(rev=rev)
        before, rev = interactive(before, sent, revs_limit=3)
    path = before.tree.winner_path()
    assert (path.start, len(path.ids)) == (6, 3)


def test_parents():
    assert parent_of(None, None) is None
    assert parent_of(put(None).document, FIRST) == FIRST


# ---- attachments


def with_table(**table):
    return document(_attachments=table, a=1)


def test_new_attachments_get_what_the_document_says_of_them():
    sent = with_table(
        b={"data": "aGk=", "content_type": "text/x"}, a={"follows": True, "revpos": 9}
    )
    after, rev = interactive(None, sent, stored={"a": attachment(), "b": attachment()})
    table = after.contents[rev].attachments
    assert list(table) == ["b", "a"]
    assert [(one.content_type, one.revpos) for one in table.values()] == [
        ("text/x", 1),
        ("application/octet-stream", 1),
    ]
    assert rev != put(None, a=1).rev
    refused("bad_request", interactive, None, sent, stored={"a": attachment()})


def test_stubs_take_over_what_the_parent_has():
    first, rev = interactive(
        None, with_table(a={"data": "aGk="}, b={"data": "aGk="}),
        stored={"a": attachment(), "b": attachment()},
    )  # fmt: skip
    digest = f"md5-{b64encode(md5(b'hi').digest()).decode()}"
    sent = with_table(b={"stub": True}, a={"stub": True, "digest": digest, "revpos": 1})
    second, second_rev = interactive(first, sent._replace(rev=rev))
    assert second.contents[second_rev].attachments == first.contents[rev].attachments
    assert list(second.contents[second_rev].attachments) == ["b", "a"]
    third, third_rev = put(second, second_rev)
    assert third.contents[third_rev].attachments == {}
    for stub, before, at in (
        ({"stub": True}, third, third_rev),
        ({"stub": True}, None, None),
        ({"stub": True, "digest": "md5-other"}, second, second_rev),
    ):
        refused("missing_stub", interactive, before, with_table(a=stub)._replace(rev=at))


def test_replicated_stubs_may_be_of_any_leaf():
    one = document(_revisions={"start": 1, "ids": ["a"]}, _attachments={"x": {"data": "aGk="}})
    two = document(_revisions={"start": 1, "ids": ["b"]}, _attachments={"x": {"data": "aG8="}})
    ours = replicated(None, one, stored={"x": attachment()}).document
    ours = replicated(ours, two, stored={"x": attachment(b"ho")}).document
    stub = {"x": {"stub": True, "revpos": 1}}
    for parent, data in (("a", b"hi"), ("b", b"ho")):
        after, rev = got(ours, 2, "c", parent, _attachments=stub)
        assert after.contents[rev].attachments["x"].md5 == md5(data).digest()
    digest = f"md5-{b64encode(md5(b'ho').digest()).decode()}"
    named = {"x": {"stub": True, "digest": digest}}
    after, rev = got(ours, 2, "c", "a", _attachments=named)
    assert after.contents[rev].attachments["x"].md5 == md5(b"ho").digest()
    refused("missing_stub", got, ours, 2, "c", "a", _attachments={"y": {"stub": True}})
    refused("missing_stub", got, None, 2, "c", "a", _attachments=stub)


def test_replicated_attachments_keep_where_they_were_added():
    for said, revpos in ((2, 2), (None, 3), (9, 3), (0, 3)):
        sent = document(
            _revisions={"start": 3, "ids": ["c"]},
            _attachments={"x": {"data": "aGk=", **({} if said is None else {"revpos": said})}},
        )
        after, rev = replicated(None, sent, stored={"x": attachment()})
        assert after.contents[rev].attachments["x"].revpos == revpos


def test_one_attachment_is_put_and_taken_away():
    first, rev = with_attachment(None, None, "x", attachment())
    assert first.contents[rev] == Content(b"{}", {"x": attachment(revpos=1)})
    second, second_rev = with_attachment(put(None, a=1).document, ONE, "x", attachment())
    assert second.contents[second_rev] == Content(b'{"a":1}', {"x": attachment(revpos=2)})
    third, third_rev = with_attachment(second, second_rev, "x", None)
    assert third.contents[third_rev] == Content(b'{"a":1}', {})
    refused("missing", with_attachment, third, third_rev, "x", None)
    refused("conflict", with_attachment, third, rev, "x", attachment())
    gone, gone_rev = put(second, second_rev, _deleted=True, why=1)
    again, again_rev = with_attachment(gone, gone_rev, "y", attachment())
    assert again.contents[again_rev] == Content(b"{}", {"y": attachment(revpos=4)})


def test_a_value_of_kv_goes_on_as_an_attachment():
    before = load("b", b"k", mutation(0, b"k", b"\xff", 1, 1, 1, 0, 0, 0), born(1, 1))
    rev = before.winner.rev
    sent = with_table(value={"stub": True})._replace(rev=rev)
    after, after_rev = interactive(before, sent)
    assert after.contents[after_rev].value == b"\xff"
    without_it, _ = with_attachment(after, after_rev, "value", None)
    assert without_it.contents[without_it.winner.rev].value is None
    beside, _ = with_attachment(before, rev, "x", attachment())
    assert pack(beside).value == b"\xff"


def test_what_is_stored_may_be_stored_again():
    content = Content(b'{"a":1}', {"x": attachment()})
    copy, rev = revised(None, None, content)
    assert copy.contents[rev] == content
    refused("conflict", revised, copy, None, content)
    assert revised(copy, rev, content).rev.startswith("2-")


# ---- replicated


def test_a_replicated_revision_is_merged():
    ours, _ = put(None)
    after, rev = got(ours, 3, "c", "b", FIRST[2:], n=1)
    assert rev == "3-c"
    assert after.tree.winner_path().revs() == ["3-c", "2-b", FIRST]
    assert after.contents == {"3-c": Content(b'{"n":1}', {})}
    stranger, _ = got(after, 2, "y", "x")
    assert stranger.tree.conflicts() == ["2-y"]
    assert set(stranger.contents) == {"3-c", "2-y"}


def test_what_is_known_is_a_success_that_changes_nothing():
    ours = got(None, 3, "c", "b", "a").document
    for path in ((3, "c", "b", "a"), (3, "c"), (2, "b", "a"), (1, "a")):
        assert got(ours, *path) == Change(None, f"{path[0]}-{path[1]}")


def test_ancestors_are_learned_late():
    ours = got(got(None, 3, "c", n=1).document, 2, "b", "x", n=2).document
    after, rev = got(ours, 3, "c", "b", "x", n=3)
    assert rev == "3-c"
    assert after.tree.winner_path().revs() == ["3-c", "2-b", "1-x"]
    assert after.contents == {"3-c": Content(b'{"n":1}', {})}
    older = document(_revisions={"start": 3, "ids": ["c", "b", "x"]})
    cut, _ = replicated(None, document(_rev="4-d", _revisions={"start": 4, "ids": ["d", "c"]}))
    assert replicated(cut, older, revs_limit=2) == Change(None, "3-c")


def test_a_revision_without_ancestors():
    after, rev = replicated(None, document(_rev="4-d"))
    assert (rev, after.tree.winner_path()) == ("4-d", Path(4, ["d"]))
    refused("bad_request", replicated, None, document())


def test_long_paths_are_cut_at_the_limit():
    ids = [f"{one:032x}" for one in range(50)]
    sent = document(_revisions={"start": 50, "ids": ids})
    after, _ = replicated(None, sent, revs_limit=7)
    assert after.tree.winner_path() == Path(50, ids[:7])
    longer = document(_revisions={"start": 51, "ids": ["x", *ids]})
    again, _ = replicated(after, longer, revs_limit=7)
    assert again.tree.winner_path() == Path(51, ["x", *ids[:6]])


@settings(max_examples=60, deadline=None)
@given(worlds(), st.randoms())
def test_replicas_agree_whatever_the_order(sent, random):
    """Also of bodies: each leaf's is that of the one change that made it."""
    shuffled = list(sent)
    random.shuffle(shuffled)
    seen = []
    for some in (sent, shuffled):
        ours = None
        for path, is_deleted in some:
            body = json.dumps({"rev": path.rev}).encode()
            change = Sent(body, {}, path=path, rev=path.rev, is_deleted=is_deleted)
            ours = replicated(ours, change).document or ours
        tree = ours.tree
        assert ours.contents == {
            rev: Content(json.dumps({"rev": rev}).encode(), {}) for rev in tree.leaf_revs()
        }
        seen.append({leaf.rev: tree.path(leaf.rev) for leaf in tree.leaves()})
    assert seen[0] == seen[1]


# ---- purge


def test_a_purge_takes_leaves():
    ours = got(got(None, 2, "b", "a", n=1).document, 2, "c", "a", n=2).document
    after, revs = purged(ours, ["2-c", "1-a", "2-x", "2-c"])
    assert revs == ["2-c"]
    assert after.is_purged
    assert after.tree.winner_path().revs() == ["2-b", "1-a"]
    assert after.contents == {"2-b": Content(b'{"n":1}', {})}
    assert pack(after).value == b'{"n":1}'
    gone, revs = purged(ours, ["2-b", "2-c"])
    assert (gone.exists, gone.is_purged, pack(gone).value) == (False, True, None)
    assert revs == ["2-b", "2-c"]
    assert purged(ours, ["1-a"]) == purged(None, ["1-a"]) == Purge(None, [])
    again, rev = put(after, "2-b")
    assert not again.is_purged
    assert rev.startswith("3-")


# ---- cost


def test_thousands_of_conflicts_are_bearable():
    """A second is far above what it takes, and far below what work by squares would take."""
    root = "0" * 32
    leaves = [Branch(0, 2, os.urandom(16)) for _ in range(2999)]
    tree = RevisionTree([Branch(-1, 1, bytes(16) + os.urandom(16)), *leaves])
    before = StoredDocument(tree, {rev: Content(b'{"a":1}', {}) for rev in tree.leaf_revs()})
    packed = pack(before)
    frame = mutation(0, b"k", packed.value, 1, 1, 1, 0, 0, 0)
    started = time.process_time()
    ours = load("b", b"k", frame, side_of(b"", packed.sidecar))
    after, _ = got(ours, 2, "z", root)
    pack(after)
    assert time.process_time() - started < 1
    assert len(after.tree.branches) == 3001
    nothing_left, revs = purged(after, after.tree.leaf_revs()[:2000])
    assert len(revs) == 2000
    assert len(nothing_left.tree.branches) == 1001
    tombstone = load("b", b"k", deletion(0, b"k", 1, 1, 1, 0), side_of(b"", pack(after).sidecar))
    assert tombstone.winner == after.winner
