"""`kv.core.leases`: what readers hold, and for how long."""

from __future__ import annotations

from millstream.kv.core.partition.partition import value_of
from support.kv.log_double import NOW, SECOND, LogDouble, new_bucket


def test_a_lease_may_be_of_a_mark_of_the_log() -> None:
    bucket = new_bucket()
    partition = bucket.partitions[0]
    partition.put(b"k", b"1", 0, 0, 0, 0, NOW)
    log = partition._log
    assert isinstance(log, LogDouble)
    log.take(partition)
    partition.put(b"k", b"2", 0, 0, 0, 0, NOW)
    opened = bucket.leases.open([(0, 1)], 0)
    assert opened is not None
    lease_id, _, holds = opened
    assert holds[0].is_logged
    assert (partition.history_limit(), partition.purge_limit()) == (1, 0)
    frames = [f for part, _ in partition.backfill(0, 1, is_logged=True) for f in part]
    assert [value_of(frame) for frame in frames] == [b"1"]
    assert bucket.lease_hold(lease_id, 0, start=1) == holds[0]
    assert partition.purge_limit() == 1
    partition.queue.holds.lose_below(2)
    assert bucket.lease_hold(lease_id, 0) is None
    assert (partition.history_limit(), partition.purge_limit()) == (2, 2)
    log.history_seqno = 2
    assert bucket.leases.open([(0, 1)], 0) is None


def test_a_lease_lives_until_its_time_is_over() -> None:
    bucket = new_bucket()
    now = [5]
    bucket.leases._monotonic_ns = lambda: now[0]
    opened = bucket.leases.open([(0, None), (1, None)], 10)
    assert opened is not None
    lease_id, seconds, holds = opened
    assert (seconds, sorted(holds)) == (10, [0, 1])
    now[0] += 9 * SECOND
    assert bucket.leases.renew(lease_id, 10) == (10, holds)
    now[0] += 9 * SECOND
    assert bucket.lease_hold(lease_id, 1) == holds[1]
    bucket.leases.release(lease_id, [1])
    assert bucket.lease_hold(lease_id, 1) is None
    assert bucket.leases.holds(lease_id) == {0: holds[0]}
    now[0] += 2 * SECOND
    assert bucket.leases.holds(lease_id) == {}
    assert bucket.lease_hold(lease_id, 0) is None
    assert bucket.leases.renew(lease_id, 10) is None
    assert not bucket.leases


def test_a_lease_of_an_unreadable_past_is_refused_whole() -> None:
    bucket = new_bucket()
    bucket.partitions[1].put(b"k", b"", 0, 0, 0, 0, NOW)
    assert bucket.leases.open([(0, None), (1, 0)], 1) is None
    assert bucket.leases.open([(9, None)], 1) is None
    assert not bucket.partitions[0].queue.holds
    opened = bucket.leases.open([(1, 1)], 0)
    assert opened is not None
    assert opened[1] == 600
