"""A walk over changes that waits."""

import asyncio

import pytest

from millstream.documents.tokens import Vector, origin_of, parse_token
from millstream.errors import ConditionError, UnavailableError, UsageError
from millstream.kv.aio.documents import changes as module
from millstream.model.partitions import PartitionState
from millstream.model.position import Position
from millstream.runtime import pace
from millstream.wire.frames import description_bytes, seqno_of
from support.streams.changing_bucket import ChangingBucket


@pytest.fixture
def bucket():
    return ChangingBucket()


async def read(walk):
    """One pass: (partition, seqno) of what came, the reader moved along."""
    seen = []
    async for piece in walk.pieces():
        number = piece.snapshot.partition_id
        seen += [(number, seqno_of(frame)) for frame in piece.frames]
        walk.tokens.move(number, piece.snapshot.at(piece.covered))
    return seen


def begin(bucket, since=0, **options):
    changes = bucket.changes
    return changes.open(changes.start_of(since), restarts=False, **options)


async def test_a_reader_is_given_each_key_once_and_stands_at_the_end(bucket):
    bucket.write(0, "abab")
    bucket.write(1, "c")
    walk = begin(bucket)
    assert sorted(await read(walk)) == [(0, 3), (0, 4), (1, 1)]
    assert walk.tokens.vector == bucket.changes.latest()
    assert walk.lag() == 0
    assert await read(walk) == []
    bucket.write(1, "d")
    assert walk.lag() == 1
    assert await read(walk) == [(1, 2)]
    walk.close()
    walk.close()
    assert not bucket.durable_callbacks
    assert not len(bucket.changes)
    assert not any(partition.readers or partition.holds for partition in bucket.partitions)


async def test_what_is_not_durable_is_not_shown(bucket):
    bucket.write(0, "a")
    bucket.partitions[0].fill("b")
    walk = begin(bucket)
    assert await read(walk) == [(0, 1)]
    bucket.flush()
    assert await read(walk) == [(0, 2)]


async def test_small_answers_are_in_the_order_of_time_and_large_ones_are_not(bucket, monkeypatch):
    for number in (0, 1, 0, 1):  # CAS are seqnos here
        bucket.write(number, "abc"[len(bucket.partitions[number].writes) :][:1])
    assert await read(begin(bucket)) == [(0, 1), (1, 1), (0, 2), (1, 2)]
    monkeypatch.setattr(module, "ORDERED_BYTES_MAX", 0)  # the first piece is one too many
    assert await read(begin(bucket)) == [(0, 1), (0, 2), (1, 1), (1, 2)]
    monkeypatch.setattr(module, "ORDERED_CHANGES_MAX", 0)
    assert await read(begin(bucket)) == [(0, 1), (0, 2), (1, 1), (1, 2)]


async def test_what_is_on_the_disk_is_read_in_a_thread(bucket):
    bucket.write(0, "abcde")
    bucket.partitions[0].forget_memory(3)
    assert await read(begin(bucket)) == [(0, seqno) for seqno in range(1, 6)]


async def test_a_walk_over_memory_gives_others_their_turns(bucket, monkeypatch):
    monkeypatch.setattr(module, "ORDERED_CHANGES_MAX", 0)
    monkeypatch.setattr(pace, "STEP_S", -1.0)  # each piece takes longer
    for number in (0, 1):
        bucket.write(number, "abc")
    turns = []

    async def other():
        while True:
            turns.append(1)
            await asyncio.sleep(0)

    running = asyncio.ensure_future(other())
    assert len([piece async for piece in begin(bucket).pieces()]) == 2
    running.cancel()
    assert len(turns) >= 2


async def test_a_lost_hold_costs_nothing(bucket):
    bucket.write(0, "abcde")
    bucket.partitions[0].forget_memory(5)
    walk, seen = begin(bucket), []
    async for piece in walk.pieces():
        seen += [frame[description_bytes(frame) :] for frame in piece.frames]
        bucket.partitions[0].lose_holds()
    assert sorted(map(seqno_of, seen)) == [1, 2, 3, 4, 5]


async def test_waiting_ends_with_a_durable_change_or_with_the_time(bucket):
    bucket.write(0, "a")
    walk = begin(bucket, None)
    assert not await walk.wait(0.001)
    waiting = asyncio.ensure_future(walk.wait(60))
    await asyncio.sleep(0)
    bucket.partitions[0].fill("b")
    bucket.flush()
    assert await waiting
    assert await read(walk) == [(0, 2)]


async def test_a_bucket_that_goes_away_ends_its_readers(bucket):
    walk = begin(bucket)
    waiting = asyncio.ensure_future(walk.wait(60))
    await asyncio.sleep(0)
    bucket.changes.drop()
    with pytest.raises(ConditionError, match="not served any more"):
        await waiting
    with pytest.raises(ConditionError):
        await read(walk)


async def test_a_partition_elsewhere_is_an_answer(bucket):
    walk = begin(bucket)
    bucket.partitions[1].state = PartitionState.REPLICA
    with pytest.raises(UnavailableError, match="partition 1 is not active") as caught:
        await read(walk)
    assert caught.value.code == "not_my_partition"


async def test_some_partitions_are_read_wherever_the_others_are(bucket):
    bucket.write(0, "ab")
    bucket.write(1, "c")
    bucket.partitions[0].state = PartitionState.REPLICA
    walk = bucket.changes.open(bucket.changes.start_of(0), restarts=True, numbers=[1])
    pieces = [piece async for piece in walk.pieces()]
    assert [(piece.snapshot.partition_id, len(piece.frames)) for piece in pieces] == [(1, 1)]
    walk.close()


async def test_a_reader_waits_for_a_partition_that_is_about_to_change(bucket, monkeypatch):
    bucket.write(0, "a")
    walk = begin(bucket)
    bucket.partitions[0].is_suspended = True
    asyncio.get_running_loop().call_soon(setattr, bucket.partitions[0], "is_suspended", False)
    assert await read(walk) == [(0, 1)]
    bucket.partitions[0].is_suspended = True
    monkeypatch.setattr(module, "SUSPENDED_SECONDS_MAX", 0.0)
    with pytest.raises(UnavailableError, match="ask again"):
        await read(walk)


async def test_a_partition_that_begins_to_change_during_a_walk_is_not_left_out(bucket):
    bucket.write(0, "a")
    bucket.write(1, "b")
    walk = begin(bucket)
    walk._is_ordered = False
    numbers = []
    async for piece in walk.pieces():
        numbers.append(piece.snapshot.partition_id)
        other = bucket.partitions[1 - numbers[0]]
        if len(numbers) == 1:
            other.is_suspended = True
            asyncio.get_running_loop().call_later(0.05, setattr, other, "is_suspended", False)
    assert sorted(numbers) == [0, 1]
    walk.close()


async def test_only_the_partition_that_lost_history_goes_back(bucket):
    bucket.write(0, "abc")
    bucket.write(1, "abc")
    walk = begin(bucket)
    await read(walk)
    walk.close()
    since = parse_token(walk.tokens.text().decode())
    bucket.partitions[0].fail_over(2)
    bucket.write(0, "d")
    walk = begin(bucket, since)
    assert [position.seqno for position in walk.tokens.vector.positions] == [2, 3]
    assert await read(walk) == [(0, 3)]


async def test_a_rollback_below_the_reader_shows_also_where_nothing_is_to_read(bucket):
    bucket.write(0, "abc")
    walk = begin(bucket)
    await read(walk)
    bucket.partitions[0].fail_over(2)
    assert await read(walk) == []
    assert walk.tokens.position(0).seqno == 2
    bucket.write(0, "d")
    assert await read(walk) == [(0, 3)]


async def test_purges_are_counted_in_tokens_from_then_on(bucket):
    epoch = 0
    changes = module.BucketChanges(bucket, lambda: epoch)
    bucket.write(0, "a")
    walk = changes.open(changes.start_of(0), restarts=False)
    assert walk.tokens.purge_epoch == 0
    epoch = 1
    await read(walk)
    assert walk.tokens.vector.purge_epoch == changes.latest().purge_epoch == 1


async def test_where_a_reader_begins(bucket):
    bucket.write(0, "ab")
    bucket.write(1, "c")
    changes = bucket.changes
    latest = changes.latest()
    assert latest.total == 3
    assert changes.start_of(None) == changes.start_of(3) == latest
    assert changes.start_of(0).total == 0
    assert [p.seqno for p in changes.start_of(2).positions] == [1, 0]
    with pytest.raises(UsageError, match="another database"):
        changes.start_of(Vector(1, latest.positions))
    with pytest.raises(UsageError, match="partitions"):
        changes.start_of(Vector(origin_of("u1"), (Position(),)))
    copy = module.BucketChanges(bucket, ancestors=("old",))
    assert copy.start_of(latest._replace(origin=origin_of("old"))) == latest
