from __future__ import annotations

from log_double import NOW, SECOND, new_bucket

from millstream.model.partitions import partition_of


def test_keys_find_their_partition() -> None:
    bucket = new_bucket(8)
    assert bucket.partition_for(b"a").partition_id == partition_of(b"a", 8) == 7
    assert bucket.partition(8) is None


def test_subscribers_are_told_until_they_leave() -> None:
    bucket, told = new_bucket(), []

    def subscriber() -> None:
        told.append(1)

    bucket.subscribe(subscriber)
    bucket.changed()
    bucket.unsubscribe(subscriber)
    bucket.unsubscribe(subscriber)
    bucket.changed()
    assert told == [1]


def test_a_lease_lives_until_its_time_is_over() -> None:
    bucket = new_bucket()
    now = [NOW]
    bucket._now_ns = lambda: now[0]
    opened = bucket.open_lease([(0, None), (1, None)], 10)
    assert opened is not None
    lease_id, seconds, holds = opened
    assert (seconds, sorted(holds)) == (10, [0, 1])
    now[0] += 9 * SECOND
    assert bucket.renew_lease(lease_id, 10) == (10, holds)
    now[0] += 9 * SECOND
    assert bucket.lease_hold(lease_id, 1) == holds[1]
    bucket.release_lease(lease_id, [1])
    assert bucket.lease_hold(lease_id, 1) is None
    now[0] += 2 * SECOND
    assert bucket.lease_hold(lease_id, 0) is None
    assert bucket.renew_lease(lease_id, 10) is None
    assert not bucket.leases


def test_a_lease_of_an_unreadable_past_is_refused_whole() -> None:
    bucket = new_bucket()
    bucket.partitions[1].put(b"k", b"", 0, 0, 0, 0, NOW)
    assert bucket.open_lease([(0, None), (1, 0)], 1) is None
    assert bucket.open_lease([(9, None)], 1) is None
    assert not bucket.partitions[0].queue._holds
    opened = bucket.open_lease([(1, 1)], 0)
    assert opened is not None
    assert opened[1] == 600


def test_flush_all_deletes_what_is_live() -> None:
    bucket = new_bucket()
    for key in (b"a", b"b", b"c"):
        bucket.partition_for(key).put(key, b"", 0, 0, 0, 0, NOW)
    bucket.flush_all()
    assert all(bucket.partition_for(k).live(k, NOW) is None for k in (b"a", b"b", b"c"))
