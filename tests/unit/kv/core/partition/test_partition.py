from __future__ import annotations

import pytest

from millstream.kv.core.partition.expiry import Expiries
from millstream.kv.core.partition.locks import LOCKED_CAS
from millstream.kv.core.partition.partition import Partition, absolute_expiry, value_of
from millstream.model.lineage import decode
from millstream.model.position import FailoverEntry
from millstream.wire.frames import change_of
from millstream.wire.mcbp import Opcode, Status
from support.kv.log_double import BRANCH, NOW, SECOND, LogDouble, items_of, new_partition


def put(partition: Partition, key: bytes, value: bytes, **fields: int) -> bytes:
    frame = partition.put(
        key, value, fields.get("flags", 0), fields.get("expiry", 0), fields.get("cas", 0), 0, NOW
    )
    assert isinstance(frame, bytes)
    return frame


def test_each_change_takes_the_next_seqno_a_larger_cas_and_the_next_rev() -> None:
    partition = new_partition()
    first, second = change_of(put(partition, b"k", b"1")), change_of(put(partition, b"k", b"2"))
    assert (first.seqno, first.rev, second.seqno, second.rev) == (1, 1, 2, 2)
    assert second.cas > first.cas >= NOW
    assert partition.live(b"k", NOW) == partition.table[b"k"].frame


def test_cas_is_checked() -> None:
    partition = new_partition()
    assert partition.put(b"k", b"", 0, 0, 5, 0, NOW) == Status.KEY_ENOENT
    cas = change_of(put(partition, b"k", b"1")).cas
    assert partition.put(b"k", b"", 0, 0, cas + 1, 0, NOW) == Status.KEY_EEXISTS
    assert partition.delete(b"k", cas + 1, NOW) == Status.KEY_EEXISTS
    assert isinstance(partition.put(b"k", b"2", 0, 0, cas, 0, NOW), bytes)
    assert partition.high_seqno == 2


def test_add_and_replace_look_at_what_is_there() -> None:
    partition = new_partition()
    assert partition.replace(b"k", b"", 0, 0, 0, 0, NOW) == Status.KEY_ENOENT
    assert isinstance(partition.add(b"k", b"1", 0, 0, 0, NOW), bytes)
    assert partition.add(b"k", b"2", 0, 0, 0, NOW) == Status.KEY_EEXISTS
    assert isinstance(partition.replace(b"k", b"3", 0, 0, 0, 0, NOW), bytes)


def test_a_delete_leaves_a_tombstone_whose_revision_goes_on() -> None:
    partition = new_partition()
    put(partition, b"k", b"1")
    frame = partition.delete(b"k", 0, NOW + 9 * SECOND)
    assert isinstance(frame, bytes)
    change = change_of(frame)
    assert (change.opcode, change.rev, change.expiry) == (
        Opcode.DCP_DELETION, 2, NOW // SECOND + 9,
    )  # fmt: skip
    assert partition.live(b"k", NOW) is None
    assert partition.delete(b"k", 0, NOW) == Status.KEY_ENOENT
    assert change_of(put(partition, b"k", b"2")).rev == 3


def test_an_expired_document_becomes_an_expiration_when_it_is_touched_upon() -> None:
    partition = new_partition()
    put(partition, b"k", b"1", expiry=NOW // SECOND + 10)
    assert partition.live(b"k", NOW + 9 * SECOND) is not None
    assert partition.live(b"k", NOW + 10 * SECOND) is None
    change = change_of(partition.table[b"k"].frame)
    assert (change.opcode, change.seqno) == (Opcode.DCP_EXPIRATION, 2)
    assert isinstance(partition.add(b"k", b"2", 0, 0, 0, NOW + 10 * SECOND), bytes)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (0, 0),
        (1, NOW // SECOND + 1),
        (30 * 86400, NOW // SECOND + 30 * 86400),
        (30 * 86400 + 1, 30 * 86400 + 1),
        (0xFFFFFFFF, 0xFFFFFFFF),
    ],
)
def test_small_expiries_count_from_now(given: int, expected: int) -> None:
    assert absolute_expiry(given, NOW) == expected


def test_touch_keeps_value_and_flags() -> None:
    partition = new_partition()
    put(partition, b"k", b"value", flags=0xFFFFFFFF)
    frame = partition.touch(b"k", 99, NOW)
    assert isinstance(frame, bytes)
    change = change_of(frame)
    assert (change.flags, change.expiry, change.value) == (0xFFFFFFFF, 99, b"value")


def test_counters_wrap_upwards_and_stop_at_zero() -> None:
    partition = new_partition()
    assert partition.count(b"n", 1, 5, 0xFFFFFFFF, 0, NOW) == Status.KEY_ENOENT
    result = partition.count(b"n", 1, 5, 0, 0, NOW)
    assert not isinstance(result, Status)
    assert result[1] == 5
    assert partition.count(b"n", 2**64 - 1, 0, 0, 0, NOW)[1] == 4  # type: ignore[index]
    assert partition.count(b"n", -9, 0, 0, 0, NOW)[1] == 0  # type: ignore[index]
    put(partition, b"x", b"no number")
    assert partition.count(b"x", 1, 0, 0, 0, NOW) == Status.DELTA_BADVAL
    put(partition, b"x", "\u0663".encode())
    assert partition.count(b"x", 1, 0, 0, 0, NOW) == Status.DELTA_BADVAL
    put(partition, b"x", b"18446744073709551616")
    assert partition.count(b"x", 1, 0, 0, 0, NOW) == Status.DELTA_BADVAL


def test_extend_needs_a_document_and_obeys_the_limit() -> None:
    partition = new_partition()
    assert partition.extend(b"k", b"", b"x", 0, 9, NOW) == Status.NOT_STORED
    put(partition, b"k", b"mid", flags=3)
    frame = partition.extend(b"k", b"a", b"z", 0, 9, NOW)
    assert isinstance(frame, bytes)
    assert (value_of(frame), change_of(frame).flags) == (b"amidz", 3)
    assert partition.extend(b"k", b"12345", b"", 0, 9, NOW) == Status.E2BIG


def test_lineage_takes_a_run_only_when_the_branch_changed() -> None:
    log = LogDouble()
    partition = new_partition(log=log)
    put(partition, b"k", b"1")
    put(partition, b"k", b"2")
    lineage = decode(partition.table[b"k"].side)
    assert lineage == (BRANCH, 1, ((BRANCH, 1),))
    log.items += items_of(partition.freeze())
    later = Partition(
        0,
        failover_log=(FailoverEntry(0xDEF, 2, BRANCH + 1), *partition.failover_log),
        high_seqno=2,
        purge_seqno=0,
        is_resident=False,
        log=log,
    )
    put(later, b"k", b"3")
    put(later, b"k", b"4")
    assert decode(later.table[b"k"].side).runs == ((BRANCH, 1), (BRANCH + 1, 3))
    assert change_of(later.table[b"k"].frame).rev == 4


def test_what_is_not_in_memory_is_found_in_the_log() -> None:
    log = LogDouble()
    partition = new_partition(log=log)
    put(partition, b"k", b"1")
    log.items += items_of(partition.freeze())
    later = Partition(
        0, failover_log=partition.failover_log, high_seqno=1, purge_seqno=0,
        is_resident=False, log=log,
    )  # fmt: skip
    assert value_of(later.live(b"k", NOW) or b"") == b"1"
    assert later.add(b"k", b"", 0, 0, 0, NOW) == Status.KEY_EEXISTS
    put(later, b"k", b"2")
    assert later.freeze().previous_seqnos == [1]
    assert later.known_keys() == [b"k"]


def test_cas_outruns_a_clock_that_went_back() -> None:
    partition = new_partition()
    cas = change_of(put(partition, b"k", b"1")).cas
    frame = partition.put(b"k", b"2", 0, 0, 0, 0, NOW - SECOND)
    assert isinstance(frame, bytes)
    assert change_of(frame).cas > cas


def locked(partition: Partition, key: bytes = b"k", seconds: int = 15) -> int:
    result = partition.lock(key, seconds, NOW)
    assert isinstance(result, tuple)
    return result[1]


def test_a_locked_document_is_changed_by_its_holder_only() -> None:
    partition = new_partition()
    stored = change_of(put(partition, b"k", b"1"))
    cas = locked(partition)
    assert cas > stored.cas
    for refused in (
        partition.put(b"k", b"2", 0, 0, 0, 0, NOW),
        partition.put(b"k", b"2", 0, 0, stored.cas, 0, NOW),
        partition.replace(b"k", b"2", 0, 0, 0, 0, NOW),
        partition.delete(b"k", 0, NOW),
        partition.touch(b"k", 0, NOW),
        partition.count(b"k", 1, 0, 0, 0, NOW),
        partition.extend(b"k", b"", b"x", 0, 100, NOW),
        partition.lock(b"k", 15, NOW),
    ):
        assert refused == Status.LOCKED
    assert partition.add(b"k", b"2", 0, 0, 0, NOW) == Status.KEY_EEXISTS
    assert partition.high_seqno == 1
    assert isinstance(partition.put(b"k", b"2", 0, 0, cas, 0, NOW), bytes)
    assert partition.is_plain


def test_a_lock_ends_by_its_cas_its_time_and_with_its_document() -> None:
    partition = new_partition()
    assert partition.lock(b"k", 15, NOW) == Status.KEY_ENOENT
    stored = change_of(put(partition, b"k", b"1", expiry=NOW // SECOND + 20))
    assert partition.unlock(b"k", 5, NOW) == Status.NOT_LOCKED
    cas = locked(partition)
    assert partition.unlock(b"k", cas + 1, NOW) == Status.LOCKED
    assert partition.unlock(b"k", cas, NOW) is None
    assert partition.unlock(b"k", cas, NOW) == Status.NOT_LOCKED
    cas = locked(partition)
    later = NOW + 15 * SECOND
    assert partition.put(b"k", b"2", 0, 0, cas, 0, later) == Status.KEY_EEXISTS
    assert partition.put(b"k", b"2", 0, NOW // SECOND + 20, stored.cas, 0, later) is not None
    locked(partition, seconds=30)
    gone = NOW + 20 * SECOND
    assert partition.unlock(b"k", 5, gone) == Status.KEY_ENOENT
    assert partition.is_plain
    put(partition, b"k", b"3")
    cas = locked(partition)
    assert isinstance(partition.delete(b"k", cas, NOW), bytes)
    assert partition.is_plain


def test_readers_do_not_see_the_cas_of_a_locked_document() -> None:
    partition = new_partition()
    frame = put(partition, b"k", b"1")
    cas = change_of(frame).cas
    assert partition.shown_cas(frame, b"k", NOW) == cas
    locked(partition)
    assert partition.shown_cas(frame, b"k", NOW) == LOCKED_CAS
    assert partition.shown_cas(frame, b"k", NOW + 15 * SECOND) == cas


def test_whoever_asked_is_told_when_a_partition_is_plain_again() -> None:
    partition, told = new_partition(3), list[tuple[int, bool]]()
    partition.on_plain = lambda p: told.append((p, partition.is_plain))
    put(partition, b"k", b"1")
    locked(partition)
    partition.drop_ended_locks(NOW + 14 * SECOND)
    assert told == [(3, False)]
    partition.drop_ended_locks(NOW + 15 * SECOND)
    assert told[1:] == [(3, True)]


def test_the_number_of_locks_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.kv.core.partition.locks.LOCKS_MAX", 1)
    partition = new_partition()
    put(partition, b"a", b"")
    put(partition, b"b", b"")
    locked(partition, b"a")
    assert partition.lock(b"b", 15, NOW) == Status.ETMPFAIL


def test_what_is_due_becomes_an_expiration_and_is_counted() -> None:
    partition = new_partition()
    partition.expiries = Expiries(10, is_complete=True)
    soon, later = NOW // SECOND + 5, NOW // SECOND + 50
    put(partition, b"soon", b"1", expiry=soon)
    put(partition, b"later", b"1", expiry=soon)
    put(partition, b"later", b"2", expiry=later)
    put(partition, b"never", b"1", expiry=soon)
    put(partition, b"never", b"2")
    assert isinstance(partition.count(b"n", 1, 1, 5, 0, NOW), tuple)
    due = NOW + 5 * SECOND
    made = {}
    while (key := partition.expiries.next_due(soon)) is not None:
        made[key] = partition.expire(key, due)
    assert made == {b"soon": True, b"never": False, b"n": True}
    assert partition.expired_total == 2
    gone = change_of(partition.newest(b"soon") or b"")
    assert (gone.opcode, gone.expiry) == (Opcode.DCP_EXPIRATION, soon)
    assert partition.expiries.next_due(later) == b"later"


def test_a_clock_set_back_expires_nothing_early_and_brings_nothing_back() -> None:
    partition, hour = new_partition(), 3600 * SECOND
    partition.expiries = Expiries(10, is_complete=True)
    expiry = NOW // SECOND + 5
    put(partition, b"gone", b"1", expiry=expiry)
    put(partition, b"unseen", b"1", expiry=expiry)
    after = NOW + 6 * SECOND
    assert partition.live(b"gone", after) is None
    cas = partition.last_cas
    back = after - hour
    assert partition.live(b"gone", back) is None, "an expiration is a change like any other"
    assert partition.live(b"unseen", back) is not None, "its time is to come again"
    assert not partition.expire(b"unseen", back)
    frame = partition.put(b"new", b"1", 0, absolute_expiry(60, back), 0, 0, back)
    assert isinstance(frame, bytes)
    assert change_of(frame).cas == cas + 1, "CAS grows although the clock went back"
    assert partition.live(b"new", back + 59 * SECOND) is not None
    assert partition.live(b"new", back + 60 * SECOND) is None
    assert partition.expiries.next_due(expiry - 1) == b"new"
    assert partition.expiries.next_due(expiry) == b"gone"
    assert partition.expiries.next_due(expiry) == b"unseen"
