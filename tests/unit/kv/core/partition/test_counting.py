from __future__ import annotations

import pytest

from millstream.documents.stored import load, pack
from millstream.kv.core.partition.counting import count
from millstream.kv.core.partition.partition import Partition
from millstream.kv.core.partition.revision_changes import write_document
from millstream.kv.core.queue.entry import value_of
from millstream.wire.mcbp import Status
from support.http.revised_documents import signature, with_leaf
from support.kv.log_double import NOW, new_bucket

TOP = 2**64 - 1


def counter(partition: Partition, delta: int = 1, initial: int = 5, expiry: int = 0) -> object:
    found = count(partition, b"n", delta, initial, expiry, 0, NOW)
    return found if isinstance(found, Status) else found[1]


def test_a_counter_is_created_and_counts() -> None:
    partition = new_bucket(1).partitions[0]
    assert counter(partition, expiry=0xFFFFFFFF) is Status.KEY_ENOENT
    assert [counter(partition), counter(partition), counter(partition, -2)] == [5, 6, 4]
    assert counter(partition, -10) == 0
    assert len(partition.queue.counters) == 1


def test_a_sum_wraps() -> None:
    partition = new_bucket(1).partitions[0]
    partition.put(b"n", b"%d" % TOP, 0, 0, 0, 0, NOW)
    assert counter(partition, 2) == 1


@pytest.mark.parametrize("value", [b"x", b"-1", b"1" * 21, b"%d" % (TOP + 1), b""])
def test_other_values_are_no_numbers(value: bytes) -> None:
    partition = new_bucket(1).partitions[0]
    partition.put(b"n", value, 0, 0, 0, 0, NOW)
    assert counter(partition) is Status.DELTA_BADVAL


def test_a_lock_keeps_others_from_counting() -> None:
    partition = new_bucket(1).partitions[0]
    counter(partition)
    locked = partition.lock(b"n", 10, NOW)
    assert not isinstance(locked, Status)
    assert counter(partition) is Status.LOCKED
    assert not isinstance(count(partition, b"n", 1, 0, 0, locked[1], NOW), Status)


def test_a_document_with_revisions_is_counted_as_one_more_revision() -> None:
    bucket = new_bucket(1)
    partition = bucket.partitions[0]
    counter(partition)
    revised = with_leaf(None, "1-" + signature(1), b'{"a":1}')
    write_document(partition, b"n", *pack(revised), NOW)
    partition.put(b"n", b"7", 0, 0, 0, 0, NOW)
    assert counter(partition) == 8
    entry = partition.entry(b"n")
    assert entry is not None
    assert value_of(entry.frame) == b"8"
    document = load(bucket.uuid, b"n", entry.frame, entry.side)
    assert document.winner.rev.startswith("3-")
    assert list(document.contents[document.winner.rev].attachments) == ["value"]
