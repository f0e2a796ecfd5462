"""What edits, peers and purges make of documents."""

from base64 import b64encode
from hashlib import md5
from itertools import permutations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.documents.revisions import GENERATION_MAX, GENERATION_SENT_MAX, Path
from millstream.documents.sent import parse_sent
from millstream.documents.stored import Attachment, Content, StoredDocument, load, pack
from millstream.documents.tree import Branch, RevisionTree
from millstream.documents.updating import (
    REPLACED_BYTES_MAX,
    carry,
    interactive,
    keep_purged,
    purge,
    replicated,
    replicated_all,
    sent_path,
)
from millstream.errors import ConditionError, UsageError
from millstream.model.lineage import born
from millstream.model.sides import side_of
from millstream.wire.frames import deletion, mutation
from support.budget import budget
from support.http.revision_forests import NaiveTree, order, worlds

EMPTY_REV = "1-967a00dff5e02add41819138abb3284d"
BUCKET = "b" * 32
LIMIT = 1000


def att(data=b"x", revpos=0):
    digest = md5(data, usedforsecurity=False).digest()
    return Attachment("text/x", revpos, len(data), digest, b"s" * 32, "", len(data))


def shown(data):
    digest = b64encode(md5(data, usedforsecurity=False).digest()).decode()
    return f"md5-{digest}"


def edit(document, text, kept=None, **options):
    options.setdefault("revs_limit", LIMIT)
    change = interactive(document, parse_sent(text.encode()), kept or {}, **options)
    return change.document, change.rev


def told(document, path, *, is_deleted=False, body=',"a":1', kept=None, revs_limit=LIMIT):
    ids = ",".join(f'"{one}"' for one in path.ids)
    gone = ',"_deleted":true' if is_deleted else ""
    text = f'{{"_revisions":{{"start":{path.start},"ids":[{ids}]}}{gone}{body}}}'
    change = replicated(document, parse_sent(text.encode()), kept or {}, revs_limit=revs_limit)
    return document if change.document is None else change.document


def again(document):
    packed = pack(document)
    frame = deletion(1, b"k", 9, 5, 1, 0)
    if packed.value is not None:
        frame = mutation(1, b"k", packed.value, 9, 5, 1, 0, 0, 0)
    return load(BUCKET, b"k", frame, side_of(born(1, 1), packed.sidecar))


def kv(value):
    return load(BUCKET, b"k", mutation(1, b"k", value, 9, 3, 1, 0, 0, 0), born(1 << 50, 7))


def seen(document):
    tree = document.tree
    leaves = {leaf: tuple(tree.path(leaf.rev).ids) for leaf in tree.leaves()}
    return leaves, dict(document.contents), document.is_purged


def refused(code, call, *args, **options):
    with pytest.raises((ConditionError, UsageError)) as caught:
        call(*args, **options)
    assert caught.value.code == code


def test_an_edit_names_the_leaf_that_it_replaces():
    document, first = edit(None, "{}")
    assert first == EMPTY_REV
    refused("conflict", edit, document, '{"a":1}')
    refused("conflict", edit, document, '{"_rev":"1-x"}')
    refused("conflict", edit, None, '{"_rev":"1-x"}')
    second, rev = edit(document, f'{{"_rev":"{first}","a":1}}')
    assert second.tree.path(rev).revs() == [rev, first]
    assert second.contents[rev].body == b'{"a":1}'
    assert set(second.contents) == {rev}
    refused("conflict", edit, second, f'{{"_rev":"{first}"}}')
    assert seen(again(second)) == seen(second)


def test_a_deleted_document_begins_anew_behind_its_deletion():
    document, first = edit(None, "{}")
    document, gone = edit(document, f'{{"_rev":"{first}","_deleted":true,"why":1}}')
    assert document.winner == (gone, True)
    assert document.contents[gone].body == b'{"why":1}'
    assert seen(again(document)) == seen(document)
    back, rev = edit(document, '{"b":1}')
    assert back.tree.path(rev).revs() == [rev, gone, first]
    assert not back.winner.is_deleted
    assert edit(document, f'{{"_rev":"{gone}","b":1}}')[1] == rev
    refused("conflict", edit, document, '{"_deleted":true,"why":2}')
    assert edit(None, "{}", revs_limit=1)[1] == first


def test_deletion_of_the_empty_document_is_couchdbs():
    document, first = edit(None, "{}")
    _, gone = edit(document, f'{{"_rev":"{first}","_deleted":true}}', deletes=True)
    assert gone == "2-eec205a9d413992850a6e32678485900"


def test_a_delete_wants_something_to_delete():
    text = '{"_deleted":true}'
    refused("not_found", edit, None, text, deletes=True)
    document, first = edit(None, "{}")
    refused("conflict", edit, document, text, deletes=True)
    refused("conflict", edit, document, '{"_rev":"1-x","_deleted":true}', deletes=True)
    gone, _ = edit(document, f'{{"_rev":"{first}","_deleted":true}}', deletes=True)
    refused("not_found", edit, gone, text, deletes=True)
    refused("not_found", edit, gone, f'{{"_rev":"{first}","_deleted":true}}', deletes=True)


def test_losing_and_deleted_leaves_are_extended():
    document = told(None, Path(2, ["b", "a"]))
    document = told(document, Path(2, ["c", "a"]))
    document = told(document, Path(2, ["d", "a"]), is_deleted=True)
    for parent in ("2-b", "2-d"):
        after, rev = edit(document, f'{{"_rev":"{parent}"}}')
        assert after.tree.path(rev).revs() == [rev, parent, "1-a"]
        left = {leaf.rev for leaf in document.tree.leaves()} - {parent}
        assert {leaf.rev for leaf in after.tree.leaves()} == left | {rev}
        assert {one: after.contents[one] for one in left} == {
            one: document.contents[one] for one in left
        }


def test_an_edit_that_a_peer_sent_without_ancestors_is_one_revision():
    first, one = edit(None, "{}")
    second, two = edit(first, f'{{"_rev":"{one}","a":1}}')
    met = told(first, Path(2, [two[2:]]))
    assert len(met.tree.leaves()) == 2
    after, rev = edit(met, f'{{"_rev":"{one}","a":1}}')
    assert rev == two
    assert seen(after) == seen(second)


def test_an_edit_that_a_peer_went_on_from_leaves_what_came_after_it():
    first, one = edit(None, "{}")
    _, two = edit(first, f'{{"_rev":"{one}","a":1}}')
    three = "3-" + "c" * 32
    met = told(first, Path(3, ["c" * 32, two[2:]]), body=',"a":2')
    after, rev = edit(met, f'{{"_rev":"{one}","a":1}}')
    assert rev == two
    assert after.tree.leaf_revs() == [three]
    assert again(after).contents == {three: met.contents[three]}


def test_what_a_peer_sends_is_always_taken_and_once():
    document = told(None, Path(3, ["c", "b", "a"]))
    other = told(document, Path(3, ["x", "y"]))
    assert [leaf.rev for leaf in other.tree.leaves()] == ["3-x", "3-c"]
    for path in (Path(3, ["c", "b", "a"]), Path(2, ["b"]), Path(3, ["x"])):
        assert told(other, path) is other
    assert seen(again(other)) == seen(other)


def test_a_path_beyond_the_limit_joins_what_it_is_from():
    document = told(None, Path(2, ["b", "a"]))
    longer = told(document, Path(5, list("edcba")), revs_limit=2)
    assert longer.tree.path("5-e").revs() == ["5-e", "4-d"]
    assert [leaf.rev for leaf in longer.tree.leaves()] == ["5-e"]


def test_a_peer_may_tell_where_a_known_revision_comes_from():
    apart = told(told(None, Path(1, ["a"])), Path(2, ["b"]))
    assert len(apart.tree.leaves()) == 2
    joined = told(apart, Path(2, ["b", "a"]))
    assert joined.tree.path("2-b") == Path(2, ["b", "a"])
    assert set(joined.contents) == {"2-b"}
    short = told(None, Path(3, ["c", "b"]), revs_limit=2)
    assert told(short, Path(3, ["c", "b", "a"]), revs_limit=2) is short


def test_what_a_peer_has_to_say():
    assert sent_path(parse_sent(b'{"_rev":"3-c"}')) == Path(3, ["c"])
    refused("bad_request", sent_path, parse_sent(b"{}"))
    both = parse_sent(b'{"_rev":"4-x","_revisions":{"start":3,"ids":["c","b"]}}')
    assert sent_path(both) == Path(3, ["c", "b"]), "as in CouchDB"


def test_generations_end():
    tree = RevisionTree([Branch(-1, GENERATION_MAX, b"a" * 16)])
    rev = tree.winner.rev
    last = StoredDocument(tree, {rev: Content(b"{}", {})})
    refused("bad_request", edit, last, f'{{"_rev":"{rev}"}}')
    assert told(None, Path(GENERATION_SENT_MAX, ["a"])).winner.rev == f"{GENERATION_SENT_MAX}-a"
    refused("bad_request", told, None, Path(GENERATION_SENT_MAX + 1, ["a"]))


def test_revisions_have_a_limit():
    document, rev = edit(None, "{}")
    for number in range(6):
        document, rev = edit(document, f'{{"_rev":"{rev}","n":{number}}}', revs_limit=3)
    assert len(document.tree.path(rev).ids) == 3


STUB = '"_attachments":{"a":{"stub":true%s}}'


def test_new_attachments_are_of_the_generation_that_has_them():
    """Whatever a client says: what it read it may send back with other data."""
    text = '"_attachments":{"a":{"data":"eA==","revpos":1}}'
    document, first = edit(None, f"{{{text}}}", {"a": att()})
    document, second = edit(document, f'{{"_rev":"{first}",{text}}}', {"a": att(b"y")})
    assert document.contents[second].attachments == {"a": att(b"y", 2)}
    document, third = edit(document, f'{{"_rev":"{second}",{STUB % ""}}}')
    assert document.contents[third].attachments == {"a": att(b"y", 2)}
    assert seen(again(document)) == seen(document)
    document, fourth = edit(document, f'{{"_rev":"{third}"}}')
    assert document.contents[fourth].attachments == {}
    refused("missing_stub", edit, document, f'{{"_rev":"{fourth}",{STUB % ""}}}')


def test_a_peer_says_where_attachments_were_added():
    for said, revpos in (("2", 2), ("9", 3), ("0", 3), ("true", 3), ("null", 3)):
        body = f',"_attachments":{{"a":{{"data":"","revpos":{said}}}}}'
        document = told(None, Path(3, list("cba")), body=body, kept={"a": att()})
        assert document.contents["3-c"].attachments == {"a": att(revpos=revpos)}


def test_stubs_name_what_is_here():
    bodies = ["," + STUB.replace('"stub":true%s', '"data":""')] * 2
    document = told(None, Path(1, ["p"]), body=bodies[0], kept={"a": att(b"x")})
    refused("missing_stub", edit, None, f"{{{STUB % ''}}}")
    wrong = STUB % f',"digest":"{shown(b"y")}"'
    refused("missing_stub", told, document, Path(2, ["q", "p"]), body="," + wrong)
    refused("missing_stub", edit, document, f'{{"_rev":"1-p",{wrong}}}')
    refused("bad_request", edit, document, '{"_rev":"1-p","_attachments":{"a":{}}}')
    document = told(document, Path(1, ["r"]), body=bodies[1], kept={"a": att(b"y")})
    for data, rev in ((b"x", "s"), (b"y", "t")):
        body = "," + STUB % f',"digest":"{shown(data)}"'
        document = told(document, Path(2, [rev, "z"]), body=body)
        assert document.contents[f"2-{rev}"].attachments == {"a": att(data, 1)}


def test_the_value_that_kv_wrote_is_an_attachment_that_stays():
    document = kv(b"\xff\0")
    rev = document.winner.rev
    text = f'{{"_rev":"{rev}","_attachments":{{"value":{{"stub":true}}}},"a":1}}'
    described, described_rev = edit(document, text)
    assert described.contents[described_rev].value == b"\xff\0"
    assert seen(again(described)) == seen(described)
    replaced, replaced_rev = edit(document, f'{{"_rev":"{rev}","a":1}}')
    assert replaced.contents[replaced_rev].attachments == {}
    assert len(replaced.tree.path(replaced_rev).ids) == 4


def test_a_purge_leaves_what_it_does_not_name():
    document = told(told(None, Path(2, ["b", "a"])), Path(3, ["d", "c", "a"]), is_deleted=True)
    assert purge(None, ["2-b"]) == (None, [])
    assert purge(document, ["1-a", "9-z"]) == (None, [])
    refused("bad_request", purge, document, ["x"])
    left, gone = purge(document, ["2-b", "2-b", "1-a"])
    assert gone == ["2-b"]
    assert left.is_purged
    assert left.winner == ("3-d", True)
    assert left.tree.path("3-d").revs() == ["3-d", "2-c", "1-a"]
    assert seen(again(left)) == seen(left)
    nothing, gone = purge(document, ["2-b", "3-d"])
    assert (nothing.exists, gone) == (False, ["2-b", "3-d"])
    assert purge(nothing, ["2-b"]) == (None, [])
    assert seen(again(nothing)) == seen(nothing)
    anew, rev = edit(again(nothing), "{}")
    assert (rev, anew.is_purged) == (EMPTY_REV, False)


def grown(sent, document=None):
    for path, is_deleted in sent:
        document = told(document, path, is_deleted=is_deleted, body=f',"r":"{path.rev}"')
    return document


def paths(document):
    return {leaf.rev: document.tree.path(leaf.rev).revs() for leaf in document.tree.leaves()}


@settings(max_examples=budget(100), deadline=None)
@given(worlds(), st.randoms())
def test_peers_in_any_order_come_to_the_same(sent, random):
    naive, deleted = NaiveTree(), {path.rev: gone for path, gone in sent}
    for path, _ in sent:
        naive.merge(path, is_deleted=False)
    wanted = {rev: path for rev, (_, path) in naive.seen().items()}
    document = grown(sent)
    shuffled = random.sample(sent, len(sent))
    for one in (
        document,
        grown(shuffled),
        grown(shuffled, grown(sent[:2])),
        grown(sent, document),
    ):
        assert paths(one) == wanted
        assert seen(again(one)) == seen(one)
        for leaf in one.tree.leaves():
            body = b'{"r":"%b"}' % leaf.rev.encode()
            assert one.contents[leaf.rev].body == body
            assert leaf.is_deleted == deleted[leaf.rev]
        marks = {rev: (deleted[rev], path) for rev, path in wanted.items()}
        assert one.winner.rev == order(marks)[0]
    assert grown(sent, document) is document


@settings(max_examples=budget(60), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9), st.integers(0, 3)), max_size=14))
def test_documents_that_live_keep_to_the_model(steps):
    """Edits, peers' branches, deletions, purges; after each the document is stored and read."""
    document, naive, known = None, NaiveTree(), []
    for number, (kind, place, back) in enumerate(steps):
        leaves = order(naive.seen())
        chosen = leaves[place % len(leaves)] if leaves else None
        if kind == 4 and chosen:
            document = purge(document, [chosen]).document
            generation, _, signature = chosen.partition("-")
            naive.purge((int(generation), signature))
            naive.deleted &= naive.parents.keys()
        elif kind == 3 and known:
            rev = known[place % len(known)]
            generation, _, signature = rev.partition("-")
            path = (
                naive.path((int(generation), signature))
                if ((int(generation), signature) in naive.parents)
                else [rev]
            )
            ids = [f"{number:032x}", *(one.partition("-")[2] for one in path[: back + 1])]
            sent = Path(int(generation) + 1, ids)
            document = told(document, sent, is_deleted=back == 0)
            naive.merge(sent, is_deleted=back == 0)
            known.append(sent.rev)
        else:
            above = f'"_rev":"{chosen}",' if chosen else ""
            gone = "true" if kind == 2 else "false"
            text = f'{{{above}"_deleted":{gone},"n":{number}}}'
            document, rev = edit(document, text)
            generation, _, signature = rev.partition("-")
            ids = [signature, chosen.partition("-")[2]] if chosen else [signature]
            naive.merge(Path(int(generation), ids), is_deleted=kind == 2)
            known.append(rev)
        if document is None:
            continue
        document = again(document)
        assert [leaf.rev for leaf in document.tree.leaves()] == order(naive.seen())
        wanted = {rev: path for rev, (_, path) in naive.seen().items()}
        assert paths(document) == wanted
        assert set(document.contents) == set(wanted)


def test_the_winner_does_not_depend_on_the_order():
    sent = [(Path(2, ["b", "a"]), False), (Path(2, ["c", "a"]), False), (Path(7, ["z"]), True),
            (Path(1, ["y"]), False)]  # fmt: skip
    winners = {grown(one).winner for one in permutations(sent)}
    assert winners == {("2-c", False)}


def test_revisions_of_an_edit_name_its_leaf_too():
    document, first = edit(None, "{}")
    path = '{"_revisions":{"start":1,"ids":["%s"]},"_rev":"7-x","n":%d}'
    document, rev = edit(document, path % (first.removeprefix("1-"), 2))
    assert document.tree.path(rev).revs() == [rev, first]
    refused("conflict", edit, document, path % (first.removeprefix("1-"), 3))


def test_a_deleted_document_begins_anew_with_attachments_under_couchdbs_revision():
    png = Attachment("image/png", 1, 7, b"m" * 16, b"s" * 32, "", 7)
    document, first = edit(None, "{}")
    document, gone = edit(document, f'{{"_rev":"{first}","_deleted":true}}')
    kept = {"a": png, "b": png._replace(md5=b"n" * 16)}
    table = '{"_attachments":{"a":{"data":""},"b":{"data":""}}%s}'
    anew, rev = edit(document, table % "", kept)
    assert (gone, rev) == (
        "2-eec205a9d413992850a6e32678485900", "3-e7ae45c437b837c12eae4df43b20f101",
    )  # fmt: skip
    assert {one.revpos for one in anew.contents[rev].attachments.values()} == {1}
    named, other = edit(document, table % f',"_rev":"{gone}"', kept)
    assert other != rev
    assert {one.revpos for one in named.contents[other].attachments.values()} == {3}


def test_a_document_that_begins_anew_knows_no_attachments_of_its_deletion():
    stub = '{"_attachments":{"a":{"stub":true}}%s}'
    document, first = edit(None, '{"_attachments":{"a":{"data":""}}}', {"a": att()})
    document, gone = edit(document, stub % f',"_rev":"{first}","_deleted":true')
    refused("missing_stub", edit, document, stub % "")
    assert edit(document, stub % f',"_rev":"{gone}"')[1].startswith("3-")


@settings(max_examples=budget(100), deadline=None)
@given(worlds(), st.integers(0, 3))
def test_revisions_that_come_together_make_what_they_make_one_by_one(world, begun):
    texts = []
    for path, is_deleted in world:
        ids = ",".join(f'"{one}"' for one in path.ids)
        gone_ = ',"_deleted":true' if is_deleted else ""
        texts.append(
            f'{{"_revisions":{{"start":{path.start},"ids":[{ids}]}}{gone_},"n":{len(texts)}}}'
        )
    sent = [parse_sent(text.encode()) for text in texts]
    document = None
    for one in sent[:begun]:
        document = replicated(document, one, revs_limit=LIMIT).document or document
    one_by_one, revs = document, []
    for one in sent[begun:]:
        change = replicated(one_by_one, one, revs_limit=LIMIT)
        revs.append((change.rev, change.document is not None))
        one_by_one = change.document or one_by_one
    made = replicated_all(document, [(one, {}) for one in sent[begun:]], revs_limit=LIMIT)
    assert made.told == revs
    together = made.document or document
    if together is None:
        assert one_by_one is None
        return
    assert together.tree.leaves() == one_by_one.tree.leaves()
    assert together.contents == one_by_one.contents
    assert not together.replaced.keys() & together.contents.keys()
    assert all(map(together.tree.contains, together.replaced))
    known = {} if document is None else document.contents
    assert not together.replaced.keys() & known.keys(), "the log has it"


def test_a_revision_that_is_refused_is_refused_alone():
    good = parse_sent(b'{"_rev":"1-a","n":1}')
    bad = parse_sent(b'{"_rev":"1-b","_attachments":{"x":{"stub":true}}}')
    made = replicated_all(None, [(good, {}), (bad, {})], revs_limit=LIMIT)
    assert made.told[0] == ("1-a", True)
    assert made.told[1].code == "missing_stub"
    assert made.document.tree.leaf_revs() == ["1-a"]


def test_revisions_that_come_together_are_carried_by_the_change_that_stores_them():
    def sent(*ids):
        body = ",".join(f'"{one}"' for one in ids)
        text = f'{{"_revisions":{{"start":{len(ids)},"ids":[{body}]}},"n":{len(ids)}}}'
        return parse_sent(text.encode()), {}

    made = replicated_all(None, [sent("a"), sent("b", "a"), sent("c", "b", "a")], revs_limit=LIMIT)
    assert {rev: one.body for rev, one in made.document.replaced.items()} == {
        "2-b": b'{"n":2}', "1-a": b'{"n":1}'
    }  # fmt: skip
    assert again(made.document).replaced == made.document.replaced
    later = replicated_all(made.document, [sent("d", "c", "b", "a")], revs_limit=LIMIT)
    assert later.document.replaced == {}, "the log has the change that carries them"


def line_of(n, size=8, *, is_purged=False):
    tree = RevisionTree([]).merged(Path(n, [f"{k:032x}" for k in range(n, 0, -1)]))
    leaf = f"{n}-{n:032x}"
    return StoredDocument(tree, {leaf: Content(b"{%s}" % bytes(size), {})}, is_purged=is_purged)


def test_a_change_carries_what_it_replaces_newest_first_up_to_a_bound_and_nothing_after_a_purge():
    before = None
    for n in range(1, 9):
        after = line_of(n, REPLACED_BYTES_MAX // 3)
        if before is not None:
            carry(after, before)
        before = after
    assert [int(rev.partition("-")[0]) for rev in before.replaced] == [7, 6]
    gone = line_of(8, is_purged=True)
    carry(gone, before)
    assert gone.replaced == {}
    other = StoredDocument(RevisionTree([]).merged(Path(1, ["f" * 32])), {})
    carry(other, before)
    assert other.replaced == {}, "its tree has none of these revisions"


def test_a_change_that_supersedes_a_purge_is_marked_as_it_and_carries_what_came_since():
    gone, after, later = line_of(1, is_purged=True), line_of(2), line_of(3)
    carry(after, gone)
    carry(later, after)
    assert (after.is_purged, later.is_purged) == (True, True)
    assert [int(rev.partition("-")[0]) for rev in later.replaced] == [2, 1]
    kept = dict(later.replaced)
    carry(later, line_of(1))
    assert later.replaced == kept, "not what was before the purge"


@pytest.mark.parametrize("members", [[[], {}, []], [[], {}, [], False], [[], {}, [], False, {}]])
def test_a_change_gets_the_mark_of_a_purge_whatever_its_sidecar_leaves_out(members):
    side = side_of(b"\x01", b"\x01" + msgspec.msgpack.encode(members))
    purged = side_of(b"\x01", pack(StoredDocument(RevisionTree([]), {}, is_purged=True)).sidecar)
    assert keep_purged(side, side, is_stored=False) is side
    assert keep_purged(purged, side, is_stored=True) is side
    assert keep_purged(b"", side, is_stored=False) is side
    kept = keep_purged(purged, side, is_stored=False)
    assert load(BUCKET, b"k", deletion(1, b"k", 9, 5, 1, 0), kept).is_purged
    assert keep_purged(kept, kept, is_stored=False) == kept
