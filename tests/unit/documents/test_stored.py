"""Documents come back as they were stored, whoever wrote them."""

from hashlib import md5

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.documents import stored
from millstream.documents.revisions import Path
from millstream.documents.stored import (
    Attachment,
    Content,
    Packed,
    StoredDocument,
    blobs_of,
    by_kv,
    checked_sidecar,
    is_sidecar,
    load,
    only_leaf,
    pack,
)
from millstream.documents.tree import EMPTY, Leaf
from millstream.errors import CorruptionError, UsageError
from millstream.model.lineage import born, with_run
from millstream.model.revision import Revisions
from millstream.model.sides import side_of
from millstream.wire.frames import deletion, expiration, mutation
from support.budget import budget
from support.http.revision_forests import worlds

BUCKET = "b" * 32
KEY = b"key"
LINEAGE = with_run(born(1 << 50, 7), 1 << 51, 3)
PNG = Attachment("image/png", 1, 10, b"m" * 16, b"s" * 32, "gzip", 8)


def put(value, rev=5):
    return mutation(1, KEY, value, 9, rev, 1, 0, 0, 0)


def gone(rev=5):
    return deletion(1, KEY, 9, rev, 1, 0)


def loaded(packed, rev=5):
    frame = gone(rev) if packed.value is None else put(packed.value, rev)
    return load(BUCKET, KEY, frame, side_of(LINEAGE, packed.sidecar))


def after_kv(document, value):
    """What a document is after kv wrote a value, or deleted it (None)."""
    side = side_of(LINEAGE, pack(document).sidecar)
    sidecar = by_kv(BUCKET, KEY, side, value is None, 1 << 51, 10, 6)
    return load(BUCKET, KEY, gone(6) if value is None else put(value, 6), side_of(b"", sidecar))


def seen(document):
    tree = document.tree
    leaves = [(*leaf, tree.path(leaf.rev)) for leaf in tree.leaves()]
    return leaves, document.contents, document.is_purged


def conflicting():
    tree = EMPTY.merged(Path(2, ["b", "a"])).merged(Path(2, ["c", "a"]))
    tree = tree.merged(Path(3, ["d", "e"]), is_deleted=True)
    contents = {
        "2-b": Content(b'{"b":1}', {"x": PNG}),
        "2-c": Content(b'{"c":1}', {"y": PNG}),
        "3-d": Content(b'{"why":1}', {}),
    }
    return StoredDocument(tree, contents)


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_document_of_kv_alone_is_computed(is_gone):
    frame = expiration(1, KEY, 9, 5, 1, 0) if is_gone else put(b'{"a":1}')
    document = load(BUCKET, KEY, frame, LINEAGE)
    revisions = Revisions(BUCKET)
    path = [revisions.of(KEY, LINEAGE, generation) for generation in (5, 4, 3, 2, 1)]
    assert document.exists
    assert document.winner == document.tree.winner == Leaf(path[0], is_gone)
    assert document.tree.winner_path().revs() == path
    assert document.contents == {path[0]: Content(b"{}" if is_gone else b'{"a":1}', {})}
    assert load(BUCKET, KEY, frame, LINEAGE, 2).tree.winner_path().revs() == path[:2]
    assert seen(loaded(pack(document))) == seen(document)


@pytest.mark.parametrize("value", [b"", b"7", b"\xff", b'{"_a":1}', b'{"\\u005fa":1}', b"[{}]"])
def test_a_value_that_is_no_document_is_an_attachment(value):
    document = load(BUCKET, KEY, put(value), LINEAGE)
    content = document.contents[document.winner.rev]
    assert content.body == b"{}"
    digest = md5(value).digest()
    shown = Attachment("application/octet-stream", 5, len(value), digest, b"", "", len(value))
    assert content.attachments == {"value": shown}
    assert content.value == value
    packed = pack(document)
    assert packed.value == value
    assert loaded(packed).contents == document.contents
    assert len(packed.sidecar) < 250


def test_such_a_value_stays_when_its_document_goes_on():
    document = load(BUCKET, KEY, put(b"\xff"), LINEAGE)
    content = document.contents[document.winner.rev]
    tree = document.tree.extended(document.winner.rev, "f" * 32)
    as_body = Content(b'{"a":1}', {**content.attachments, "x": PNG}, content.value)
    described = StoredDocument(tree, {tree.winner.rev: as_body})
    assert pack(described).value == b'{"a":1}'
    assert loaded(pack(described)).contents == described.contents
    lost = tree.merged(Path(9, ["z"]))
    conflict = StoredDocument(lost, {tree.winner.rev: content, "9-z": Content(b"{}", {})})
    assert pack(conflict).value == b"{}"
    assert loaded(pack(conflict)).contents == conflict.contents
    with_png = Content(b"{}", {**content.attachments, "x": PNG}, content.value)
    both = StoredDocument(tree, {tree.winner.rev: with_png})
    assert pack(both).value == b"\xff"
    assert loaded(pack(both)).contents == both.contents


def test_a_value_that_was_an_attachment_stays_one_though_it_would_be_a_document_now():
    value = b'{"_access":1}'
    shown = Attachment("application/octet-stream", 1, 13, b"m" * 16, b"", "", 13)
    tree = EMPTY.extended(None, "a" * 32)
    document = StoredDocument(tree, {tree.winner.rev: Content(b"{}", {"value": shown}, value)})
    assert seen(loaded(pack(document))) == seen(document)


def test_kv_extends_the_winner():
    document = conflicting()
    after = after_kv(document, b'{"kv":1}')
    winner = after.winner
    assert after.tree.path(winner.rev).revs() == [winner.rev, "2-c", "1-a"]
    assert {leaf.rev for leaf in after.tree.leaves()} == {winner.rev, "2-b", "3-d"}
    assert after.contents == {
        winner.rev: Content(b'{"kv":1}', {"y": PNG}),
        "2-b": document.contents["2-b"],
        "3-d": document.contents["3-d"],
    }
    binary = after_kv(after, b"\0")
    assert list(binary.contents[binary.winner.rev].attachments) == ["y", "value"]
    again = after_kv(binary, b"{}")
    assert list(again.contents[again.winner.rev].attachments) == ["y"]


def test_kv_deletes_every_live_leaf_and_writes_over_the_deleted():
    document = conflicting()
    after = after_kv(document, None)
    leaves = after.tree.leaves()
    assert [leaf.is_deleted for leaf in leaves] == [True] * 3
    assert {after.tree.path(leaf.rev).revs()[1] for leaf in leaves} == {"2-b", "2-c", "2-e"}
    assert len({leaf.rev[2:] for leaf in leaves}) == 3
    assert after.contents["3-d"] == document.contents["3-d"]
    assert all(after.contents[leaf.rev].attachments == {} for leaf in leaves)
    assert pack(after).value is None
    back = after_kv(after, b"{}")
    assert after.winner.rev in back.tree.winner_path().revs()
    assert not back.winner.is_deleted


def test_where_and_when_kv_wrote_tells_revisions_apart():
    side = side_of(LINEAGE, pack(conflicting()).sidecar)
    calls = [
        (BUCKET, KEY, side, False, 1, 2, 3),
        ("c", KEY, side, False, 1, 2, 3),
        (BUCKET, b"other", side, False, 1, 2, 3),
        (BUCKET, KEY, side, False, 2, 2, 3),
        (BUCKET, KEY, side, False, 1, 3, 3),
        (BUCKET, KEY, side, True, 1, 2, 3),
    ]
    assert len({by_kv(*call) for call in calls}) == len(calls)
    assert by_kv(*calls[0]) == by_kv(*calls[0])


def test_a_purge_may_leave_nothing_and_kv_begins_anew():
    nothing = StoredDocument(EMPTY, {}, is_purged=True)
    assert not nothing.exists
    packed = pack(nothing)
    assert packed.value is None
    back = loaded(packed)
    assert (back.exists, back.contents, back.is_purged) == (False, {}, True)
    after = after_kv(nothing, b'{"a":1}')
    assert after.tree.winner_path().start == 1
    assert (after.is_purged, list(after.contents.values())) == (False, [Content(b'{"a":1}', {})])


@settings(max_examples=budget(100), deadline=None)
@given(worlds(), st.data())
def test_trees_come_back(sent, data):
    tree = EMPTY
    for path, is_deleted in sent:
        tree = tree.merged(path, is_deleted=is_deleted)
    contents = {
        rev: Content(data.draw(st.sampled_from([b"{}", b'{"a":1}'])), {})
        for rev in tree.leaf_revs()
        if rev == tree.winner.rev or data.draw(st.booleans())
    }
    document = StoredDocument(tree, contents)
    packed = pack(document)
    assert seen(loaded(packed)) == seen(document)
    assert checked_sidecar(packed.sidecar, is_deletion=packed.value is None) == packed.sidecar
    assert checked_sidecar(packed.sidecar, is_deletion=packed.value is not None) is None
    leaf = only_leaf(packed.sidecar)
    if leaf is not None:
        generation, signature, is_deleted = leaf
        assert tree.leaves() == [Leaf(f"{generation}-{signature.hex()}", is_deleted)]
    else:
        assert len(tree.leaves()) > 1 or tree.foreign


@pytest.mark.parametrize("data", [b"", b"x", b"\x02\x94", pack(StoredDocument(EMPTY, {})).sidecar])
def test_what_has_no_only_leaf(data):
    assert only_leaf(data) is None


def test_a_small_document_has_a_small_sidecar():
    tree = EMPTY.extended(None, "a" * 32)
    assert len(pack(StoredDocument(tree, {tree.winner.rev: Content(b"{}", {})})).sidecar) <= 40


def test_there_is_a_limit(monkeypatch):
    monkeypatch.setattr(stored, "SIDECAR_BYTES_MAX", 100)
    with pytest.raises(UsageError, match="at most 100") as caught:
        pack(conflicting())
    assert caught.value.code == "too_large"


def test_what_is_carried_for_old_revisions_alone_makes_no_document_too_large(monkeypatch):
    document = conflicting()
    alone = pack(document)
    monkeypatch.setattr(stored, "SIDECAR_BYTES_MAX", len(alone.sidecar) + 50)
    document.replaced = {"1-a": Content(b'{"a":1}', {})}
    assert loaded(pack(document)).replaced == document.replaced
    document.replaced = {"1-a": Content(b'{"a":"%b"}' % bytes(100), {})}
    assert pack(document) == alone


def wrong_sidecars():
    encode = msgspec.msgpack.encode
    none = b"\x01"
    yield b"\x02" + pack(conflicting()).sidecar[1:]
    yield none + b"\xc1"
    yield none + encode([[], {}])
    yield none + encode([[], {}, [None]])
    for branch in ([-1, 1, b""], [-1, 1, b"x" * 15], [-1, 0, b"x" * 16], [7, 2, b"x" * 16]):
        yield none + encode([[branch], {}, [None]])
    for second in ([0, 1, b"x" * 16], [0, 3, b"x" * 16], [1, 2, b"x" * 16]):
        yield none + encode([[[-1, 1, b"x" * 16], second], {}, [None, None]])


@pytest.mark.parametrize("sidecar", list(wrong_sidecars()))
def test_what_is_no_sidecar_is_told(sidecar):
    with pytest.raises(CorruptionError) as caught:
        load(BUCKET, KEY, put(b"{}"), side_of(LINEAGE, sidecar))
    assert caught.value.code == "bad_sidecar"


def given_sidecars():
    """Sidecars that could be decoded and belong to no value."""
    branch, foreign = [-1, 1, b"x" * 16], {}
    other, kept = [-1, 1, b"a" * 16], [b"", {}]

    def attached(**members):
        said = {**PNG._asdict(), **members}
        return [b"", {"x": list(said.values())}]

    yield [branch], {b"x" * 16: "a\nb"}, [None]
    yield [branch], {b"x" * 16: ""}, [None]
    for body in (b"1", b"[]", b"{", b'{"_id":"a"}', b'{"a":1}}', b'"'):
        yield [branch, other], foreign, [kept, [body, {}]]
    for members in (
        {"sha256": b"s"}, {"sha256": b""}, {"md5": b""}, {"length": -1}, {"stored_length": -1},
        {"revpos": -1},
    ):  # fmt: skip
        yield [branch], foreign, [attached(**members)]
    yield [branch, other], foreign, [kept, [b"{}", {"value": [*PNG[:4], b"", "", 8]}]]


@pytest.mark.parametrize("parts", list(given_sidecars()))
def test_a_sidecar_that_a_client_gives_says_only_what_http_can_show(parts):
    sidecar = b"\1" + msgspec.msgpack.encode((*parts, False))
    assert is_sidecar(sidecar)
    assert checked_sidecar(sidecar, is_deletion=False) is None


@pytest.mark.parametrize("document", [conflicting(), after_kv(conflicting(), b"no object")])
def test_a_sidecar_of_ours_stays_as_it_is_when_a_client_gives_it(document):
    packed = pack(document)
    assert checked_sidecar(packed.sidecar, is_deletion=False) == packed.sidecar


@pytest.mark.parametrize("value", [b"no object", b"[]", b"{", b'{"_id":1}', b'{"a":1}', b""])
def test_what_a_given_sidecar_says_of_its_value_is_not_believed(value, monkeypatch):
    monkeypatch.setattr(stored, "LARGE_BYTES", 1)
    marked = pack(conflicting()).sidecar
    assert loaded(Packed(b"no object", marked)).contents["2-c"].body == b"no object"
    given = checked_sidecar(marked, is_deletion=False)
    found = loaded(Packed(value, given)).contents["2-c"]
    assert found.attachments["y"] == PNG
    if value == b'{"a":1}':
        assert (found.body, found.value) == (value, None)
    else:
        assert (found.body, found.value) == (b"{}", value)
        assert found.attachments["value"].length == len(value)


def test_whether_a_large_value_is_an_object_is_looked_up_once(monkeypatch):
    """Never of what came over HTTP: its sidecar says so, until kv writes over it."""
    looked = []

    def look(value):
        looked.append(len(value))
        return value[:1] == b"{"

    monkeypatch.setattr(stored, "is_plain_object", look)
    monkeypatch.setattr(stored, "LARGE_BYTES", 20)
    large = b'{"a":"' + b"x" * 40 + b'"}'
    sent = StoredDocument(EMPTY.extended(None, "a" * 32), {f"1-{'a' * 32}": Content(large, {})})
    document = loaded(pack(sent))
    assert document.contents == sent.contents
    assert looked == []
    for value in (large, b"0" * 40):
        by = by_kv(BUCKET, KEY, side_of(LINEAGE, pack(sent).sidecar), False, 1, 9, 5)
        for _ in range(2):
            found = load(BUCKET, KEY, put(value), side_of(LINEAGE, by))
            [content] = found.contents.values()
            assert (content.body, content.value) == (
                (value, None) if value is large else (b"{}", value)
            )
        assert looked == [len(value)]
        looked.clear()


def test_nothing_is_worked_out_of_a_document_before_it_is_asked_for(monkeypatch):
    monkeypatch.setattr(stored, "is_plain_object", None)
    value = b'{"a":1}'
    assert load(BUCKET, KEY, put(value), LINEAGE).winner.rev
    sent = StoredDocument(EMPTY.extended(None, "a" * 32), {f"1-{'a' * 32}": Content(value, {})})
    document = loaded(pack(sent))
    assert document.winner.rev == f"1-{'a' * 32}"
    with pytest.raises(TypeError):
        _ = document.contents


def test_what_a_change_carries_comes_back_names_blobs_and_is_not_taken_from_clients():
    tree = EMPTY.merged(Path(2, [f"{2:032x}", f"{1:032x}"]))
    held = Attachment("a/b", 1, 1, b"m" * 16, b"s" * 32, "", 1)
    document = StoredDocument(tree, {f"2-{2:032x}": Content(b"{}", {})})
    plain = pack(document)
    document.replaced = {f"1-{1:032x}": Content(b'{"n":1}', {"a": held})}
    packed = pack(document)
    found = loaded(packed)
    assert found.replaced == document.replaced
    assert list(found.known_revs) == list(found.contents) == [f"2-{2:032x}"]
    assert blobs_of(packed.sidecar) == {b"s" * 32}
    assert blobs_of(plain.sidecar) == frozenset()
    assert checked_sidecar(packed.sidecar, is_deletion=False) == plain.sidecar
    assert only_leaf(plain.sidecar) is not None
    assert only_leaf(packed.sidecar) is None, "slower readers know more"
