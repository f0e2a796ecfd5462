from __future__ import annotations

import pytest

from millstream.documents.stored import StoredDocument, load, pack
from millstream.kv.core.partition.locks import LOCKED_CAS
from millstream.kv.core.partition.memory import Memory
from millstream.kv.core.partition.partition import Partition
from millstream.kv.core.partition.revision_changes import write_document
from millstream.kv.core.queue.entry import Entry, size_of, value_of
from millstream.model.lineage import decode
from millstream.model.position import FailoverEntry
from millstream.model.sides import has_sidecar, lineage_of, side_of, split
from millstream.wire.frames import change_of, described, description_bytes
from millstream.wire.mcbp import Datatype, Opcode, Status
from support.http.revised_documents import signature, with_leaf
from support.kv.log_double import BRANCH, NOW, SECOND, LogDouble, new_bucket, new_partition

UUID = "ab" * 16
TWO = "2-" + signature(2)
ONE = "1-" + signature(1)


def entry_of(partition: Partition, key: bytes = b"k") -> Entry:
    entry = partition.entry(key)
    assert entry is not None
    return entry


def document_of(partition: Partition, key: bytes = b"k") -> StoredDocument:
    entry = entry_of(partition, key)
    return load(UUID, key, entry.frame, entry.side)


def write(partition: Partition, document: StoredDocument, key: bytes = b"k") -> bytes:
    frame = write_document(partition, key, *pack(document), NOW)
    assert isinstance(frame, bytes)
    return frame


def conflicted(partition: Partition | None = None, key: bytes = b"k") -> Partition:
    """Return a partition with a document of two live leaves."""
    partition = partition or new_bucket(1).partitions[0]
    document = with_leaf(with_leaf(None, TWO, b'{"a":2}'), ONE, b'{"a":1}')
    write(partition, document, key)
    return partition


def test_a_document_is_its_winner_and_has_the_rest_beside_it() -> None:
    partition = conflicted()
    change = change_of(entry_of(partition).frame)
    assert (change.value, change.datatype, change.rev) == (b'{"a":2}', Datatype.JSON, 1)
    assert (change.flags, change.expiry) == (0, 0)
    assert partition.live(b"k", NOW) == entry_of(partition).frame
    lineage, sidecar = split(entry_of(partition).side)
    assert decode(lineage) == (BRANCH, 1, ((BRANCH, 1),))
    assert sidecar
    found = document_of(partition)
    assert found.winner == (TWO, False)
    assert found.contents[ONE].body == b'{"a":1}'


def test_all_leaves_deleted_are_a_tombstone_with_what_they_were() -> None:
    partition = conflicted()
    document = with_leaf(None, "3-" + signature(3), b'{"why":1}', is_deleted=True)
    frame = write(partition, document)
    assert change_of(frame).opcode == Opcode.DCP_DELETION
    assert partition.live(b"k", NOW) is None
    assert document_of(partition).contents["3-" + signature(3)].body == b'{"why":1}'


def test_what_leaves_the_value_as_it_is_keeps_flags_expiry_and_datatype() -> None:
    partition = new_bucket(1).partitions[0]
    later = NOW // SECOND + 100
    partition.put(b"k", b"raw", 7, later, 0, 0, NOW)
    document = document_of(partition)
    assert document.winner.rev.startswith("1-")
    write(partition, with_leaf(document, "1-" + signature(0), b'{"loses":true}'))
    change = change_of(entry_of(partition).frame)
    assert (change.value, change.flags, change.expiry, change.datatype) == (b"raw", 7, later, 0)
    assert change.rev == 2
    write(partition, with_leaf(document_of(partition), TWO, b'{"wins":true}'))
    change = change_of(entry_of(partition).frame)
    assert (change.flags, change.expiry, change.datatype) == (0, 0, Datatype.JSON)


def test_a_kv_write_extends_the_winner_and_leaves_the_others() -> None:
    partition = conflicted()
    frame = partition.put(b"k", b'{"by":"kv"}', 3, 0, 0, Datatype.JSON, NOW)
    assert isinstance(frame, bytes)
    change, found = change_of(frame), document_of(partition)
    assert (change.rev, change.flags, change.value) == (2, 3, b'{"by":"kv"}')
    assert found.winner.rev.startswith("3-")
    assert found.tree.path(found.winner.rev) == (3, [found.winner.rev[2:], TWO[2:]])
    assert found.tree.conflicts() == [ONE]
    assert found.contents[ONE].body == b'{"a":1}'
    assert found.contents[found.winner.rev].body == b'{"by":"kv"}'


def test_cas_is_the_winners() -> None:
    partition = conflicted()
    cas = change_of(entry_of(partition).frame).cas
    assert partition.put(b"k", b"", 0, 0, cas + 1, 0, NOW) == Status.KEY_EEXISTS
    assert partition.add(b"k", b"", 0, 0, 0, NOW) == Status.KEY_EEXISTS
    assert isinstance(partition.replace(b"k", b"{}", 0, 0, cas, 0, NOW), bytes)
    assert isinstance(partition.extend(b"k", b"[", b"]", 0, 100, NOW), bytes)
    assert value_of(entry_of(partition).frame) == b"[{}]"
    assert document_of(partition).winner.rev.startswith("4-")


def test_touch_and_counters_are_writes_like_others() -> None:
    partition = conflicted()
    assert isinstance(partition.touch(b"k", NOW // SECOND + 9, NOW), bytes)
    assert document_of(partition).winner.rev.startswith("3-")
    partition.put(b"k", b"41", 0, 0, 0, 0, NOW)
    counted = partition.count(b"k", 1, 0, 0, 0, NOW)
    assert not isinstance(counted, Status)
    assert counted[1] == 42
    assert value_of(entry_of(partition).frame) == b"42"
    assert document_of(partition).winner.rev.startswith("5-")
    assert not partition.queue.counters


@pytest.mark.parametrize("how", ["delete", "expire"])
def test_what_kv_deletes_is_gone_with_all_its_leaves(how: str) -> None:
    partition = conflicted()
    if how == "delete":
        assert isinstance(partition.delete(b"k", 0, NOW), bytes)
    else:
        partition.touch(b"k", NOW // SECOND + 9, NOW)
        assert partition.expire(b"k", NOW + 10 * SECOND)
    found = document_of(partition)
    assert change_of(entry_of(partition).frame).is_deleted
    assert [leaf.is_deleted for leaf in found.tree.leaves()] == [True, True]
    assert partition.delete(b"k", 0, NOW) == Status.KEY_ENOENT
    partition.put(b"k", b"{}", 0, 0, 0, 0, NOW)
    assert not document_of(partition).winner.is_deleted


def test_revisions_by_kv_are_the_same_wherever_the_change_is_computed() -> None:
    one, other = conflicted(), conflicted()
    for partition in (one, other):
        partition.put(b"k", b"1", 0, 0, 0, 0, NOW)
    assert entry_of(one).side == entry_of(other).side


def test_what_is_locked_is_not_written() -> None:
    partition = conflicted()
    locked = partition.lock(b"k", 10, NOW)
    assert not isinstance(locked, Status)
    document = with_leaf(None, TWO)
    assert write_document(partition, b"k", *pack(document), NOW) == Status.LOCKED
    assert isinstance(partition.put(b"k", b"{}", 0, 0, locked[1], 0, NOW), bytes)
    assert not partition.locks
    assert partition.shown_cas(entry_of(partition).frame, b"k", NOW) != LOCKED_CAS


def test_the_lineage_goes_on_beside_the_sidecar() -> None:
    partition = conflicted()
    entry = FailoverEntry(9, 1, BRANCH + 1)
    partition.replace_log((entry, *partition.failover_log))
    partition.begin_branch()
    partition.put(b"k", b"{}", 0, 0, 0, 0, NOW)
    assert decode(lineage_of(entry_of(partition).side)).runs == ((BRANCH, 1), (BRANCH + 1, 2))


def test_the_log_gets_both_and_they_come_back() -> None:
    log = LogDouble()
    partition = new_partition(log=log)
    partition.put(b"j", b"1", 0, 0, 0, 0, NOW)
    conflicted(partition)
    batch = partition.freeze()
    lineage, sidecar = split(entry_of(partition).side)
    assert list(batch.sidecars or ()) == [b"", sidecar]
    assert list(batch.lineages) == [entry_of(partition, b"j").side, lineage]
    assert partition.freeze().sidecars is None, "nothing was frozen then"


def evicted(partition: Partition) -> Partition:
    """Return a partition of the same log that has nothing in memory."""
    log = partition._log
    assert isinstance(log, LogDouble)
    log.take(partition)
    return Partition(
        0,
        failover_log=partition.failover_log,
        high_seqno=partition.high_seqno,
        purge_seqno=0,
        is_resident=False,
        log=log,
        memory=Memory(),
    )


@pytest.mark.parametrize("change", ["store", "put", "count", "delete"])
def test_what_comes_back_from_the_log_is_changed_as_what_was_in_memory(change: str) -> None:
    partition = evicted(conflicted())
    told: list[int] = []
    partition.on_plain = told.append
    assert partition.is_linear
    if change == "store":  # as the request loop does
        partition.store(b"k", b"k{}", 0, 0, 0, NOW)
    elif change == "put":
        partition.put(b"k", b"{}", 0, 0, 0, 0, NOW)
    elif change == "count":
        assert partition.count(b"k", 1, 0, 0, 0, NOW) == Status.DELTA_BADVAL
        partition.put(b"k", b"1", 0, 0, 0, 0, NOW)
        partition.count(b"k", 1, 0, 0, 0, NOW)
    else:
        partition.delete(b"k", 0, NOW)
    assert told == [0]
    assert not partition.is_linear
    assert has_sidecar(entry_of(partition).side)
    assert document_of(partition).tree.contains(TWO)
    partition.residents.check()


def test_only_a_linear_partition_is_written_without_further_questions() -> None:
    bucket = new_bucket(2)
    assert bucket.open_partitions == bucket.partitions
    conflicted(bucket.partitions[1])
    assert bucket.open_partitions == [bucket.partitions[0], None]
    assert bucket.open_tables[1] is bucket.partitions[1].table, "reading is as quick as ever"


def test_memory_is_counted_with_the_sidecar() -> None:
    memory = Memory()
    partition = new_bucket(1, memory=memory).partitions[0]
    conflicted(partition)
    partition.put(b"k", b"longer" * 9, 0, 0, 0, 0, NOW)
    assert memory.table_bytes == size_of(entry_of(partition))
    assert size_of(entry_of(partition)) > len(entry_of(partition).side) > 80
    hold = partition.open_hold()
    assert hold is not None
    before = partition.queue.retained_bytes
    side = entry_of(partition).side
    partition.put(b"k", b"", 0, 0, 0, 0, NOW)
    assert partition.queue.retained_bytes - before > len(side)
    partition.queue.check()
    partition.release_hold(hold)
    assert partition.queue.retained_bytes == 0


def test_streams_get_the_side_that_each_change_was_accepted_with() -> None:
    partition = new_bucket(1).partitions[0]
    partition.put(b"j", b"1", 0, 0, 0, 0, NOW)
    conflicted(partition)
    first = entry_of(partition)
    expected = [(first.frame, first.side)]
    hold = partition.open_hold()
    assert hold is not None
    partition.put(b"k", b"{}", 0, 0, 0, 0, NOW)
    second = entry_of(partition)
    held = partition.described_slice(1, hold.at, 1 << 20, 100)
    assert held is not None
    assert held[0] == [described(frame, *split(side)) for frame, side in expected]
    now = partition.described_slice(2, 3, 1 << 20, 100)
    assert now == ([described(second.frame, *split(second.side))], 3)
    assert [frame[description_bytes(frame) :] for frame in now[0]] == [second.frame]


def test_what_holds_keep_is_streamed_beside_the_log_with_its_side() -> None:
    partition = conflicted(new_partition(log=LogDouble()))
    hold = partition.open_hold()
    assert hold is not None
    kept = entry_of(partition).side
    partition.put(b"k", b"{}", 0, 0, 0, 0, NOW)
    log = partition._log
    assert isinstance(log, LogDouble)
    log.take(partition)
    partition.queue.collect(0)
    frames = [one for some, _ in partition.backfill(0, hold.at, is_described=True) for one in some]
    assert [frame[34 : description_bytes(frame)] for frame in frames] == [b"".join(split(kept))]
    assert side_of(*split(kept)) == kept
