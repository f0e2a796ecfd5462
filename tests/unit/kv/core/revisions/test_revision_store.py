from __future__ import annotations

from collections.abc import Callable, Collection

import pytest

from millstream.documents.sent import parse_sent
from millstream.documents.stored import REVS_LIMIT_DEFAULT, Packed, StoredDocument, pack
from millstream.documents.updating import interactive, purge
from millstream.errors import ConditionError, UnavailableError, UsageError
from millstream.kv.core.revisions.revision_store import Made, RevisedDocuments
from millstream.model.limits import VALUE_BYTES_MAX
from millstream.model.partitions import PartitionState
from support.http.revised_documents import attachment, signature, with_leaf
from support.kv.log_double import NOW, SECOND, new_bucket

LIMIT = REVS_LIMIT_DEFAULT


def put(documents: RevisedDocuments, key: bytes, text: bytes) -> Made:
    def decide(document: StoredDocument | None) -> StoredDocument | None:
        return interactive(document, parse_sent(text), revs_limit=LIMIT).document

    return documents.update(key, decide, NOW, LIMIT)


def test_a_document_is_written_and_read() -> None:
    bucket = new_bucket(4)
    documents = RevisedDocuments(bucket)
    assert documents.read(b"k", NOW, LIMIT) is None
    made = put(documents, b"k", b'{"a":1}')
    found = documents.read(b"k", NOW, LIMIT)
    assert found is not None
    assert found.document.winner.rev == "1-23202479633c2b380f79507a776743d5"
    assert (found.partition, found.seqno) == (made.partition, made.seqno)
    assert made.seqno == 1
    with pytest.raises(ConditionError):
        put(documents, b"k", b'{"a":2}')


def test_what_kv_wrote_is_a_document_and_goes_on_as_one() -> None:
    bucket = new_bucket(1)
    documents = RevisedDocuments(bucket)
    partition = bucket.partitions[0]
    partition.put(b"k", b'{"a":1}', 0, 0, 0, 0, NOW)
    partition.put(b"k", b'{"a":2}', 0, 0, 0, 0, NOW)
    linear = documents.read(b"k", NOW, LIMIT)
    assert linear is not None
    rev = linear.document.winner.rev
    assert rev.startswith("2-")
    put(documents, b"k", b'{"_rev":"%b","a":3}' % rev.encode())
    found = documents.read(b"k", NOW, LIMIT)
    assert found is not None
    path = found.document.tree.winner_path()
    assert path.revs()[1] == rev
    assert path.start == 3
    partition.put(b"k", b'{"a":4}', 0, 0, 0, 0, NOW)
    later = documents.read(b"k", NOW, LIMIT)
    assert later is not None
    assert later.document.tree.winner_path().revs()[1:] == path.revs()


def test_nothing_is_written_where_nothing_changes() -> None:
    bucket = new_bucket(1)
    documents = RevisedDocuments(bucket)
    made = put(documents, b"k", b"{}")
    same = documents.update(b"k", lambda document: None, NOW, LIMIT)
    assert same.seqno == 0
    assert bucket.partitions[0].high_seqno == made.seqno


def test_what_has_expired_is_gone_before_it_is_looked_at() -> None:
    bucket = new_bucket(1)
    bucket.partitions[0].put(b"k", b"{}", 0, NOW // SECOND + 1, 0, 0, NOW)
    found = RevisedDocuments(bucket).read(b"k", NOW + 2 * SECOND, LIMIT)
    assert found is not None
    assert found.document.winner.is_deleted


def test_a_purge_is_a_change_that_leaves_no_document() -> None:
    bucket = new_bucket(1)
    documents = RevisedDocuments(bucket)
    made = put(documents, b"k", b"{}")
    assert made.document is not None
    rev = made.document.winner.rev
    purged = documents.update(b"k", lambda one: purge(one, [rev]).document, NOW, LIMIT)
    assert purged.seqno == made.seqno + 1
    found = documents.read(b"k", NOW, LIMIT)
    assert found is not None
    assert not found.document.exists
    assert put(documents, b"k", b"{}").document is not None


def test_refusals() -> None:
    bucket = new_bucket(1)
    documents = RevisedDocuments(bucket)
    put(documents, b"k", b"{}")
    with pytest.raises(UsageError, match="at most"):
        put(documents, b"large", b'{"a":"%b"}' % (b"x" * VALUE_BYTES_MAX))
    bucket.partitions[0].lock(b"k", 10, NOW)
    with pytest.raises(UnavailableError, match="locked"):
        documents.update(b"k", lambda one: one, NOW, LIMIT)
    bucket.partitions[0].state = PartitionState.DEAD
    with pytest.raises(UnavailableError):
        documents.read(b"k", NOW, LIMIT)


def test_what_was_decided_elsewhere_is_written_on_its_version_only() -> None:
    bucket = new_bucket(1)
    documents = RevisedDocuments(bucket)
    made = documents.replace(b"k", None, packed_of(b'{"a":1}'), now_ns=NOW)
    assert (made.seqno, made.document) == (1, None)
    kept = documents.kept(b"k", NOW)
    assert kept is not None
    assert documents.replace(b"k", None, packed_of(b"{}"), now_ns=NOW) == Made(None, 0, 0)
    assert (
        documents.replace(b"k", kept.version._replace(cas=1), packed_of(b"{}"), now_ns=NOW).seqno
        == 0
    )
    assert documents.replace(b"k", kept.version, packed_of(b'{"a":2}'), now_ns=NOW).seqno == 2
    found = documents.read(b"k", NOW, LIMIT)
    assert found is not None
    assert found.document.contents[found.document.winner.rev].body == b'{"a":2}'
    assert documents.replace(b"k", kept.version, packed_of(b"{}"), now_ns=NOW).seqno == 0
    with pytest.raises(UsageError):
        documents.replace(b"l", None, Packed(b"x" * (VALUE_BYTES_MAX + 1), b"x"), now_ns=NOW)


def test_a_version_is_another_one_after_any_change() -> None:
    bucket = new_bucket(1)
    documents = RevisedDocuments(bucket)
    partition = bucket.partitions[0]
    seen = set()
    for number in range(4):
        partition.put(b"k", b"%d" % number, 0, 0, 0, 0, NOW)
        kept = documents.kept(b"k", NOW)
        assert kept is not None
        seen.add(kept.version)
    partition.put(b"k", b"short-lived", 0, NOW // SECOND + 1, 0, 0, NOW)
    short = documents.kept(b"k", NOW)
    expired = documents.kept(b"k", NOW + 5 * SECOND)
    assert short is not None
    assert expired is not None
    assert len(seen | {short.version, expired.version}) == 6


def packed_of(body: bytes) -> Packed:
    document = interactive(None, parse_sent(body), revs_limit=LIMIT).document
    assert document is not None
    return pack(document)


class Files:
    """Attachments that are here; `asked` has all that somebody relied on."""

    def __init__(self, *here: bytes) -> None:
        self.here = {attachment(data).sha256 for data in here}
        self.asked: set[bytes] = set()

    def missing(self, names: Collection[bytes]) -> list[bytes]:
        self.asked |= set(names)
        return [name for name in names if name not in self.here]

    def bring(
        self, partition_id: int, names: Collection[bytes], done: Callable[[Exception | None], None]
    ) -> bool:
        raise AssertionError("a client brings its own")


def test_a_change_names_only_attachments_that_are_here_or_were_named_before() -> None:
    bucket, files = new_bucket(1), Files(b"here")
    bucket.partitions[0].blobs = files
    documents = RevisedDocuments(bucket)

    def write(number: int, *data: bytes) -> Made:
        leaf = with_leaf(None, f"{number}-{signature(number)}", blobs=data)
        return documents.update(b"k", lambda _: leaf, NOW, LIMIT)

    write(1, b"here")
    assert files.asked == files.here
    with pytest.raises(UnavailableError) as late:
        write(2, b"here", b"gone")
    assert (late.value.code, late.value.retry) == ("blob_missing", "backoff")
    assert bucket.partitions[0].high_seqno == 1
    files.here.clear()  # a copy may lack what nobody has any more
    assert write(3, b"here").seqno == 2
    write(4)
    with pytest.raises(UnavailableError):
        write(5, b"here")
