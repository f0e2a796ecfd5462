from __future__ import annotations

import pytest

from millstream.errors import ConditionError, UnavailableError, UsageError
from millstream.kv.core.bucket import Bucket
from millstream.kv.core.copies import moves
from millstream.kv.core.partition.partition import Partition
from millstream.kv.core.revisions.design_documents import DesignDocuments, design_key
from millstream.model.bucket_map import BucketMap, NodeAddress
from millstream.model.partitions import PartitionState
from millstream.wire.frames import mutation
from support.kv.log_double import NOW, LogDouble, new_bucket
from support.kv.log_double import persist as persist_partition

KEY = design_key("sales")


def persist(bucket: Bucket) -> None:
    for partition in bucket.partitions:
        persist_partition(partition)


def documents_of(bucket: Bucket | None = None) -> tuple[Bucket, DesignDocuments]:
    bucket = bucket or new_bucket(4)
    return bucket, DesignDocuments(bucket)


def test_a_document_is_made_changed_and_deleted_by_its_revision() -> None:
    _, documents = documents_of()
    assert documents.read(KEY) is None
    first = documents.write(KEY, b'{"views":{}}', None, NOW)
    assert (first.name, first.body, first.is_deleted) == ("sales", b'{"views":{}}', False)
    assert first.rev.startswith("1-")
    for wrong in (None, "1-0", "2-" + first.rev[2:]):
        with pytest.raises(ConditionError) as caught:
            documents.write(KEY, b"{}", wrong, NOW)
        assert caught.value.code == "conflict"
    second = documents.write(KEY, b"{}", first.rev, NOW)
    assert second.rev.startswith("2-")
    assert documents.read(KEY) == second
    gone = documents.write(KEY, None, second.rev, NOW)
    assert (gone.is_deleted, gone.body, gone.rev[:2]) == (True, b"", "3-")
    assert documents.read(KEY) == gone


def test_what_is_not_there_cannot_be_deleted_and_comes_back_without_a_revision() -> None:
    _, documents = documents_of()
    with pytest.raises(ConditionError, match="missing"):
        documents.write(KEY, None, None, NOW)
    with pytest.raises(ConditionError, match="conflict"):
        documents.write(KEY, b"{}", "1-abc", NOW)
    first = documents.write(KEY, b"{}", None, NOW)
    gone = documents.write(KEY, None, first.rev, NOW)
    with pytest.raises(ConditionError, match="deleted"):
        documents.write(KEY, None, gone.rev, NOW)
    again = documents.write(KEY, b"{}", None, NOW)
    assert again.rev.startswith("3-")
    documents.write(KEY, None, again.rev, NOW)
    assert documents.write(KEY, b"{}", documents.read(KEY).rev, NOW).rev.startswith("5-")


def test_equal_revisions_are_of_one_document_only() -> None:
    _, documents = documents_of()
    revs = {documents.write(design_key(n), b"{}", None, NOW).rev for n in ("a", "b", "c")}
    assert len(revs) == 3


@pytest.mark.parametrize("name", ["", "x" * 243, "\ud800"])
def test_names_that_cannot_be_keys_are_refused(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        design_key(name)
    assert caught.value.code == "illegal_docid"
    assert design_key("x" * 242)
    assert design_key("a/b") == b"_design/a/b"


def test_whoever_wants_to_know_is_told_once_it_is_persisted() -> None:
    bucket, documents = documents_of()
    told: list[bool] = []

    def subscriber() -> None:
        told.append(documents.read(KEY).is_persisted)

    documents.subscribe(subscriber)
    written = documents.write(KEY, b"{}", None, NOW)
    assert not written.is_persisted
    bucket.made_durable()  # of something else
    assert told == []
    persist(bucket)
    bucket.made_durable()
    bucket.made_durable()
    assert told == [True]
    bucket.partitions[0].put(b"k", b"v", 0, 0, 0, 0, NOW)
    persist(bucket)
    bucket.made_durable()
    assert told == [True], "another document"
    documents.write(KEY, None, written.rev, NOW)
    persist(bucket)
    bucket.made_durable()
    assert told == [True, True]
    documents.unsubscribe(subscriber)
    documents.unsubscribe(subscriber)
    documents.write(KEY, b"{}", None, NOW)
    persist(bucket)
    bucket.made_durable()
    assert told == [True, True]


def test_a_copy_that_went_back_is_told_of() -> None:
    bucket, documents = documents_of()
    told: list[int] = []
    documents.write(KEY, b"{}", None, NOW)
    persist(bucket)
    bucket.made_durable()
    documents.subscribe(lambda: told.append(1))
    bucket.partition_for(KEY).epoch += 1
    bucket.made_durable()
    bucket.made_durable()
    assert told == [1]


def test_keys_are_those_known_at_the_start_written_and_copied() -> None:
    bucket, documents = documents_of()
    bucket.partition_for(b"_design/old").design_keys.add(b"_design/old")
    documents.write(KEY, b"{}", None, NOW)
    copied = b"_design/other"
    old = bucket.partition_for(copied)
    assert old is not bucket.partition_for(KEY)
    number = old.partition_id
    replica = bucket.partitions[number] = Partition(
        number, failover_log=old.failover_log, high_seqno=0, purge_seqno=0, is_resident=True,
        log=LogDouble(), state=PartitionState.REPLICA,
    )  # fmt: skip
    replica.design_keys = old.design_keys
    assert replica.replica is not None
    replica.replica.on_opened(old.failover_log, 0)
    replica.replica.apply_marker(1, 1)
    frame = mutation(number, copied, b"{}", 1, 1, NOW, 0, 0, 1)
    replica.replica.apply_change(frame, bytes([7, 1]))
    assert documents.known_keys() == [b"_design/old", copied, KEY]
    found = documents.read_copy(copied)
    assert found is not None
    assert found.body == b"{}"


def test_elsewhere_is_said_with_the_node_to_ask() -> None:
    bucket, documents = documents_of()
    nodes = (NodeAddress("a", "h1", 1, 2), NodeAddress("b", "h2", 3, 4))
    partition = bucket.partition_for(KEY)
    moves.rename(partition, PartitionState.REPLICA)
    moves.rename(partition, PartitionState.DEAD)
    with pytest.raises(UnavailableError, match="no node is said") as caught:
        documents.read(KEY)
    assert (caught.value.code, caught.value.retry) == ("not_my_partition", "refresh_map")
    bucket.set_map(BucketMap(1, nodes, (("b", "a"),) * 4), "a")
    for call in (
        lambda: documents.read(KEY),
        lambda: documents.write(KEY, b"{}", None, NOW),
    ):
        with pytest.raises(UnavailableError, match="ask node b at h2:4"):
            call()
    bucket.set_map(BucketMap(2, nodes, (("a", "b"),) * 4), "a")
    with pytest.raises(UnavailableError, match="has not yet"):
        documents.read(KEY)


def test_nothing_is_read_or_written_while_states_change() -> None:
    bucket, documents = documents_of()
    bucket.partition_for(KEY).suspend()
    with pytest.raises(UnavailableError) as caught:
        documents.read(KEY)
    assert caught.value.code == "temporarily_unavailable"
    bucket.partition_for(KEY).resume()
    bucket.writes.refuse("full")
    with pytest.raises(UnavailableError, match="writes are refused"):
        documents.write(KEY, b"{}", None, NOW)


def test_a_locked_document_is_not_changed() -> None:
    bucket, documents = documents_of()
    first = documents.write(KEY, b"{}", None, NOW)
    bucket.partition_for(KEY).lock(KEY, 5, NOW)
    with pytest.raises(UnavailableError, match="locked"):
        documents.write(KEY, b"{}", first.rev, NOW)
