from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

from millstream.errors import ConditionError, UnavailableError, UsageError
from millstream.kv.aio.engine import BucketEngine
from millstream.kv.core.partition.partition import Partition, value_of
from millstream.model.bucket_map import BucketMap, NodeAddress
from millstream.model.partitions import PartitionState
from millstream.model.position import FailoverEntry, Position
from millstream.upr.core.decision import decide
from millstream.upr.core.messages import RefusedError, StreamRequest
from millstream.upr.core.producer import Producer
from millstream.wire.frames import iter_frames, mutation, seqno_of
from millstream.wire.mcbp import Opcode, Packet, Status, StreamEndReason

T = TypeVar("T")
NOW = 1_700_000_000_000_000_000
ACTIVE, REPLICA, PENDING, DEAD, ABSENT = (
    PartitionState[name] for name in ("ACTIVE", "REPLICA", "PENDING", "DEAD", "ABSENT")
)


A, B = NodeAddress("a", "h", 1, 2), NodeAddress("b", "h", 3, 4)


async def opened(
    path: Path, failures: list[Exception] | None = None, bucket_map: BucketMap | None = None
) -> BucketEngine:
    return await BucketEngine.open(
        path,
        name="b",
        uuid="00",
        partition_count=2,
        flush_interval_ms=1,
        on_persisted=lambda: None,
        on_fatal=(failures if failures is not None else []).append,
        on_corrupt=lambda error: None,
        bucket_map=bucket_map,
        node_name="a" if bucket_map else "",
    )


def started(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    return asyncio.get_running_loop().create_task(work)


def put(partition: Partition, *pairs: str) -> None:
    for pair in pairs:
        key, _, value = pair.partition("=")
        partition.put(key.encode(), value.encode(), 0, 0, 0, 0, NOW)


def values(partition: Partition) -> dict[str, str]:
    found = {}
    for key in partition.known_keys():
        frame = partition.newest(key)
        if frame is not None and frame[1] == Opcode.DCP_MUTATION:
            found[key.decode()] = value_of(frame).decode()
    return found


async def persisted(engine: BucketEngine, partition: Partition) -> None:
    engine.bucket.changed()
    await engine.until_persisted(partition.partition_id, partition.high_seqno)


# -- states


async def test_a_state_outlives_the_process_whatever_ends_it(tmp_path: Path) -> None:
    engine = await opened(tmp_path)
    log = engine.bucket.partitions[0].failover_log
    put(engine.bucket.partitions[0], "a=1")
    await engine.copies.set_state(0, REPLICA)
    await engine.copies.set_state(1, DEAD)
    await engine.copies.set_state(1, ABSENT)
    for is_clean in (True, False):
        if is_clean:
            await engine.stop()
        else:
            await engine.pager.stop()
            await engine.flusher.stop()
            engine.store.close()
        engine = await opened(tmp_path)
        partition, other = engine.bucket.partitions
        assert (partition.state, other.state) == (REPLICA, ABSENT)
        assert (partition.failover_log, partition.high_seqno) == (log, 1)
        assert partition.replica is not None
        assert partition.replica.position == Position(log[0].uuid, 1, 1, 1)
        assert values(partition) == {"a": "1"}
    await engine.stop()


async def test_copies_promise_once_and_one_is_active_in_that_branch(tmp_path: Path) -> None:
    engine = await opened(tmp_path)
    copies, (partition, other) = engine.copies, engine.bucket.partitions
    put(partition, "a=1", "b=2")
    log = partition.failover_log
    high = max(p.last_branch for p in engine.bucket.partitions)
    await copies.promise([1], high + 10)
    await copies.set_state(1, ACTIVE)
    later = other.last_branch
    assert await copies.promise([0, 1], high + 9) == [0]
    assert (partition.state, partition.persisted_seqno) == (REPLICA, 2)
    assert (other.state, other.last_branch) == (ACTIVE, later)
    assert await copies.promise([0, 1], high + 9) == []
    for branch, end in ((high + 8, 2), (high + 10, 2), (high + 9, 3)):
        assert await copies.activate(branch, {0: end}) == []
        assert partition.state is REPLICA
    for _ in range(2):  # the answer to the first may have been lost
        assert await copies.activate(high + 9, {0: 2, 1: 0}) == [0]
    assert (partition.state, partition.failover_log[1:]) == (ACTIVE, log)
    assert partition.failover_log[0][1:] == (2, high + 9)
    await copies.set_state(0, REPLICA)
    assert await copies.activate(high + 9, {0: 2}) == []  # there is such a history already
    await engine.stop()


async def test_a_promise_ends_a_hand_over(tmp_path: Path) -> None:
    engine = await opened(tmp_path)
    partition = engine.bucket.partitions[0]
    await engine.copies.set_state(0, REPLICA)
    await engine.copies.set_state(0, PENDING)
    await engine.copies.promise([0], partition.last_branch + 5)
    assert partition.state is REPLICA
    with pytest.raises(ConditionError, match="promised branch") as caught:
        await engine.copies.set_state(0, ACTIVE, is_hand_over=True)
    assert (caught.value.code, partition.state) == ("fenced", REPLICA)
    await engine.stop()


async def test_with_a_map_nothing_is_active_by_itself_and_replicas_take_their_places(
    tmp_path: Path,
) -> None:
    bucket_map = BucketMap(1, (A, B), (("a", "b"), ("b", "a")))
    engine = await opened(tmp_path, bucket_map=bucket_map)
    assert (engine.bucket.map, engine.bucket.node_name) == (bucket_map, "a")
    first, second = engine.bucket.partitions
    assert (first.state, second.state) == (ABSENT, ABSENT)
    await engine.copies.take_places()
    assert (first.state, second.state) == (ABSENT, REPLICA)
    moves = engine.copies.statistics().moves_total
    await engine.copies.take_places()
    assert engine.copies.statistics().moves_total == moves == 1
    await engine.copies.set_state(0, ACTIVE)
    put(first, "a=1")
    await persisted(engine, first)
    log = first.failover_log
    await engine.pager.stop()
    await engine.flusher.stop()
    engine.store.close()  # as a kill
    engine = await opened(tmp_path, bucket_map=bucket_map)
    first, second = engine.bucket.partitions
    assert (first.state, first.failover_log, first.high_seqno) == (REPLICA, log, 1)
    assert second.state == REPLICA
    await engine.stop()


async def test_after_a_start_nothing_is_known_to_be_durable_before_the_other_copies_have_told_it(
    tmp_path: Path,
) -> None:
    bucket_map = BucketMap(1, (A, B), (("a", "b"), ("b", "a")))
    engine = await opened(tmp_path, bucket_map=bucket_map)
    await engine.copies.set_state(0, ACTIVE)
    put(engine.bucket.partitions[0], "a=1")
    await persisted(engine, engine.bucket.partitions[0])
    await engine.stop()
    engine = await opened(tmp_path, bucket_map=bucket_map)
    partition = engine.bucket.partitions[0]
    assert (partition.state, partition.durable_mark()) == (ACTIVE, 0)
    assert not partition.is_durable_known
    assert partition.acknowledged is not None
    partition.acknowledged.join("b", stream := object())
    partition.acknowledged.acknowledge("b", stream, 1, 1)
    assert (partition.durable_mark(), partition.is_durable_known) == (1, True)
    await engine.stop()


async def test_what_a_map_does_not_place_here_stays(tmp_path: Path) -> None:
    engine = await opened(tmp_path)
    await engine.copies.take_places()
    await engine.copies.set_state(1, DEAD)
    engine.bucket.set_map(BucketMap(1, (A, B), (("b", None), ("b", "a"))), "a")
    await engine.copies.take_places()
    assert [partition.state for partition in engine.bucket.partitions] == [ACTIVE, DEAD]
    await engine.stop()


async def test_what_an_active_copy_had_is_durable_once_it_stands_down(tmp_path: Path) -> None:
    engine = await opened(tmp_path)
    partition = engine.bucket.partitions[0]
    put(partition, "a=1", "b=2")
    assert partition.persisted_seqno == 0
    await engine.copies.set_state(0, DEAD)
    assert partition.persisted_seqno == 2
    assert (partition.state, engine.bucket.map_changes) == (DEAD, 1)
    await engine.copies.set_state(0, DEAD)
    assert engine.bucket.map_changes == 1
    await engine.stop()


async def test_a_promotion_begins_a_history_where_the_last_complete_snapshot_ended(
    tmp_path: Path,
) -> None:
    engine = await opened(tmp_path)
    partition = engine.bucket.partitions[0]
    await engine.copies.set_state(0, REPLICA)
    source = (FailoverEntry(0xA, 0, partition.last_branch + 1),)
    assert partition.replica is not None
    partition.replica.on_opened(source, 0)
    partition.replica.apply_marker(1, 3)
    partition.replica.apply_change(mutation(0, b"a", b"1", 3, 1, 9, 0, 0, 0), b"\1\3")
    partition.replica.apply_marker(4, 8)
    partition.replica.apply_change(mutation(0, b"b", b"2", 6, 1, 12, 0, 0, 0), b"\1\6")
    await engine.copies.set_state(0, PENDING)
    await engine.copies.set_state(0, ACTIVE)
    newest, *older = partition.failover_log
    assert (newest.seqno, tuple(older)) == (3, source)
    assert newest.branch > source[0].branch
    assert (partition.high_seqno, partition.persisted_seqno) == (6, 6)
    put(partition, "c=3")
    await engine.stop()
    engine = await opened(tmp_path)
    partition = engine.bucket.partitions[0]
    assert partition.failover_log == (newest, *older)
    assert values(partition) == {"a": "1", "b": "2", "c": "3"}
    await engine.stop()


async def test_a_hand_over_keeps_the_history_and_needs_all_of_it(tmp_path: Path) -> None:
    engine = await opened(tmp_path)
    partition = engine.bucket.partitions[0]
    put(partition, "a=1")
    log = partition.failover_log
    await engine.copies.set_state(0, REPLICA)
    assert partition.replica is not None
    partition.replica.apply_marker(2, 3)
    partition.replica.apply_change(mutation(0, b"b", b"2", 2, 1, 9, 0, 0, 0), b"\1\2")
    with pytest.raises(UsageError) as caught:
        await engine.copies.set_state(0, ACTIVE, is_hand_over=True)
    assert caught.value.code == "not_complete"
    assert (partition.state, partition.is_suspended) == (REPLICA, False)
    partition.replica.apply_advance(3)
    await engine.copies.set_state(0, ACTIVE, is_hand_over=True)
    assert (partition.state, partition.failover_log) == (ACTIVE, log)
    assert partition.high_seqno == 3
    await engine.stop()


async def test_a_copy_to_be_handed_over_is_stopped_unless_it_changed(tmp_path: Path) -> None:
    engine = await opened(tmp_path)
    bucket, partition = engine.bucket, engine.bucket.partitions[0]
    epoch = partition.epoch
    put(partition, "a=1")
    assert partition.open_rest(0) is None
    await bucket.stop_copy(0, epoch)
    assert (partition.state, partition.persisted_seqno) == (DEAD, 1)
    hold = partition.open_rest(0)
    assert hold is not None
    assert hold.at == 1
    assert partition.memory_slice(0, 1, 1000, 10) is not None
    partition.release_hold(hold)
    for state, wanted in ((DEAD, partition.epoch), (ACTIVE, partition.epoch)):
        await engine.copies.set_state(0, state)
        with pytest.raises(UsageError) as caught:
            await bucket.stop_copy(0, wanted)
        assert caught.value.code == "illegal_move"
        assert partition.state is state
    await engine.stop()


async def test_a_copy_takes_over_only_as_what_it_was_when_it_asked(tmp_path: Path) -> None:
    engine = await opened(tmp_path)
    copies, partition = engine.copies, engine.bucket.partitions[0]
    log = partition.failover_log
    for state in (ACTIVE, DEAD):
        await copies.set_state(0, state)
        with pytest.raises(ConditionError) as serving:
            await copies.take_over(0, PENDING, partition.epoch)
        assert serving.value.code == "moved_on"
    await copies.set_state(0, REPLICA)
    with pytest.raises(ConditionError):
        await copies.take_over(0, PENDING, partition.epoch - 1)
    assert partition.state is REPLICA
    await copies.take_over(0, PENDING, partition.epoch)
    await copies.take_over(0, ACTIVE, partition.epoch)
    assert (partition.state, partition.failover_log) == (ACTIVE, log)
    await engine.stop()


async def test_who_waited_in_vain_to_take_over_follows_again(tmp_path: Path) -> None:
    engine = await opened(tmp_path)
    partition = engine.bucket.partitions[0]
    await engine.copies.stand_back(0)
    assert partition.state is ACTIVE
    for state in (REPLICA, PENDING):
        await engine.copies.set_state(0, state)
        await engine.copies.stand_back(0)
        assert partition.state is REPLICA
    await engine.stop()


async def test_illegal_moves_change_nothing(tmp_path: Path) -> None:
    engine = await opened(tmp_path)
    partition = engine.bucket.partitions[0]
    with pytest.raises(UsageError, match="cannot become pending") as caught:
        await engine.copies.set_state(0, PENDING)
    assert caught.value.code == "illegal_move"
    assert (partition.state, partition.refusal) == (ACTIVE, None)
    await engine.stop()


async def test_a_removed_partition_can_be_made_anew(tmp_path: Path) -> None:
    engine = await opened(tmp_path)
    partition = engine.bucket.partitions[0]
    put(partition, "a=1")
    last_branch = partition.last_branch
    await engine.copies.set_state(0, DEAD)
    await engine.copies.set_state(0, ABSENT)
    assert (partition.high_seqno, values(partition)) == (0, {})
    assert partition.failover_log[0].branch == 0
    assert partition.last_branch == last_branch
    await engine.copies.set_state(0, ACTIVE)
    assert partition.failover_log[0].branch > last_branch
    put(partition, "b=2")
    await engine.stop()
    engine = await opened(tmp_path)
    assert values(engine.bucket.partitions[0]) == {"b": "2"}
    await engine.stop()


async def test_a_raised_branch_fences_and_stays(tmp_path: Path) -> None:
    engine = await opened(tmp_path)
    branch = engine.bucket.partitions[0].last_branch + 1000
    await engine.copies.set_state(0, REPLICA)
    await engine.copies.promise([0], branch)
    await engine.copies.promise([0], 5)
    await engine.stop()
    engine = await opened(tmp_path)
    partition = engine.bucket.partitions[0]
    assert partition.replica is not None
    assert partition.last_branch == branch
    assert not partition.replica.accepts((FailoverEntry(1, 0, branch - 1),))
    assert partition.replica.accepts((FailoverEntry(1, 0, branch),))
    await engine.stop()


# -- rollback


async def test_everything_is_as_it_was_at_the_mark(tmp_path: Path) -> None:
    engine = await opened(tmp_path)
    partition, other = engine.bucket.partitions
    put(partition, "a=1", "b=1", "c=1")
    put(other, "x=1")
    await persisted(engine, partition)
    put(partition, "a=2", "d=2")
    partition.delete(b"b", 0, NOW)
    await persisted(engine, partition)
    put(partition, "a=3", "e=3")
    log, cas = partition.failover_log, partition.last_cas
    assert await engine.copies.roll_back(0, 5) == 3
    for _ in range(2):
        assert values(partition) == {"a": "1", "b": "1", "c": "1"}
        assert values(other) == {"x": "1"}
        assert (partition.high_seqno, partition.persisted_seqno) == (3, 3)
        assert partition.failover_log[1:] == log
        assert partition.failover_log[0].seqno == 3
        frames = [f for chunk, _ in partition.backfill(0, 3) for f in chunk]
        assert [seqno_of(frame) for frame in frames] == [1, 2, 3]
        log = partition.failover_log[1:]
        if partition.last_cas == cas:
            put(partition, "f=4")
            assert partition.last_cas > cas
            assert partition.high_seqno == 4
            assert await engine.copies.roll_back(0, 3) == 3
            log = partition.failover_log[1:]
            await engine.stop()
            engine = await opened(tmp_path)
            partition, other = engine.bucket.partitions
    assert await engine.copies.roll_back(0, 2) == 0
    assert (partition.high_seqno, values(partition)) == (0, {})
    found = engine.copies.statistics()
    assert (found.rollbacks_total, found.rolled_back_total, found.moves_total) == (1, 3, 0)
    await engine.copies.set_state(1, REPLICA)
    found = engine.copies.statistics()
    assert (found.active, found.replica, found.dead, found.moves_total) == (1, 1, 0, 1)
    await engine.stop()


async def test_a_replica_goes_back_in_the_history_it_has(tmp_path: Path) -> None:
    engine = await opened(tmp_path)
    partition = engine.bucket.partitions[0]
    put(partition, "a=1")
    await engine.copies.set_state(0, REPLICA)
    log = partition.failover_log
    assert partition.replica is not None
    partition.replica.apply_marker(2, 3)
    partition.replica.apply_change(mutation(0, b"b", b"2", 2, 1, 9, 0, 0, 0), b"\1\2")
    assert await engine.copies.roll_back(0, 2) == 1
    assert (partition.state, partition.failover_log) == (REPLICA, log)
    assert partition.replica.position == Position(log[0].uuid, 1, 1, 1)
    assert values(partition) == {"a": "1"}
    await engine.stop()


async def test_documents_are_refused_while_it_lasts_and_the_flusher_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await opened(tmp_path)
    partition, other = engine.bucket.partitions
    put(partition, "a=1")
    await persisted(engine, partition)
    begun, may_end = threading.Event(), threading.Event()
    roll_back = engine.store.roll_back

    def slow(partition_id: int, seqno: int) -> object:
        begun.set()
        assert may_end.wait(60)
        return roll_back(partition_id, seqno)

    monkeypatch.setattr(engine.store, "roll_back", slow)
    task = started(engine.copies.roll_back(0, 0))
    await asyncio.to_thread(begun.wait, 30)
    assert partition.refusal == Status.ETMPFAIL
    assert engine.bucket.open_partitions == [None, other]
    assert partition.open_hold() is None
    with pytest.raises(RefusedError) as caught:
        decide(StreamRequest(0, Position()), engine.bucket, is_streaming=False)
    assert caught.value.status == Status.ETMPFAIL
    put(other, "x=1")
    engine.bucket.changed()
    engine.bucket.hurry()
    waiting = started(engine.until_persisted(1, 1))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done()
    may_end.set()
    assert await task == 0
    await waiting
    assert partition.refusal is None
    put(partition, "b=1")
    await persisted(engine, partition)
    await engine.stop()


async def test_those_who_wait_for_what_is_gone_are_told(tmp_path: Path) -> None:
    engine = await opened(tmp_path)
    partition = engine.bucket.partitions[0]
    put(partition, "a=1")
    async with engine.flusher.paused():
        put(partition, "a=2")
        waiting = started(engine.until_persisted(0, 2))
        rolling = started(engine.copies.roll_back(0, 0))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not waiting.done()
    await rolling
    with pytest.raises(UnavailableError, match="rolled back") as caught:
        await waiting
    assert caught.value.code == "rolled_back"
    put(partition, "a=3", "a=4")
    await persisted(engine, partition)
    await engine.stop()


async def test_streams_end_and_leases_are_lost(tmp_path: Path) -> None:
    engine = await opened(tmp_path)
    partition = engine.bucket.partitions[0]
    put(partition, "a=1")
    await persisted(engine, partition)
    put(partition, "b=2", "c=3")
    lease_id, _, _ = engine.bucket.leases.open([(0, None)], 60) or (0, 0, {})
    producer = Producer(engine.bucket, 1, is_extended=True, has_json=True)
    extras = b"".join((bytes(16), b"\xff" * 8, bytes(24)))
    producer.on_packet(Packet(0x80, Opcode.DCP_STREAM_REQ, 0, 0, 5, 0, b"", extras, b"", b""))
    producer.take_replies()
    sent = b"".join(iter(producer.produce, None))
    assert [seqno_of(f) for f in iter_frames(sent) if f[1] == Opcode.DCP_MUTATION] == [1, 2, 3]
    assert await engine.copies.roll_back(0, 2) == 1
    producer.on_news()
    (end,) = iter_frames(producer.produce() or b"")
    assert end[1] == Opcode.DCP_STREAM_END
    assert int.from_bytes(end[24:28], "big") == StreamEndReason.ROLLED_BACK
    assert engine.bucket.lease_hold(lease_id, 0) is None
    await engine.stop()


async def test_a_full_disk_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures: list[Exception] = []
    engine = await opened(tmp_path, failures)
    partition = engine.bucket.partitions[0]
    put(partition, "a=1")
    await persisted(engine, partition)

    def full(*_: object) -> None:
        raise UnavailableError("no space", code="disk_full")

    for name in ("roll_back", "set_state", "promise"):
        monkeypatch.setattr(engine.store, name, full)
    for call in (
        engine.copies.roll_back(0, 0),
        engine.copies.set_state(0, DEAD),
        engine.copies.promise([0], 1 << 52),
    ):
        with pytest.raises(UnavailableError, match="no space"):
            await call
    assert (partition.state, partition.refusal, failures) == (ACTIVE, None, [])
    assert values(partition) == {"a": "1"}
    monkeypatch.undo()
    put(partition, "b=2")
    await persisted(engine, partition)
    await engine.stop()


async def test_any_other_error_of_the_disk_stops_the_bucket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures: list[Exception] = []
    engine = await opened(tmp_path, failures)

    def broken(*_: object) -> None:
        raise UnavailableError("input/output error", code="disk_failed")

    monkeypatch.setattr(engine.store, "set_state", broken)
    with pytest.raises(UnavailableError, match="input/output"):
        await engine.copies.set_state(0, DEAD)
    assert [str(failure) for failure in failures] == ["input/output error"]
    with pytest.raises(UnavailableError, match="failed earlier"):
        await engine.copies.set_state(0, DEAD)
    await engine.stop()


async def test_a_bucket_that_is_being_stopped_takes_no_change_of_state(tmp_path: Path) -> None:
    engine = await opened(tmp_path)
    async with engine.flusher.paused():
        stopping = started(engine.stop())
        late = started(engine.copies.set_state(0, DEAD))
        while not engine.flusher._is_stopping:  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(0)
        assert not stopping.done()
    await stopping
    with pytest.raises(UnavailableError) as caught:
        await late
    assert caught.value.code == "stopping"
