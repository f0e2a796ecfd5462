"""The consumer against a scripted source; the real one is followed in tests/e2e/test_tail.py."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from struct import pack
from typing import Any

import pytest

from millstream.errors import AccessError, StreamError, UnavailableError, UsageError
from millstream.model.position import Position
from millstream.upr import Consumer
from millstream.upr.aio import client
from millstream.upr.aio.checkpoints import FileCheckpointStore
from millstream.upr.aio.client import BarrierReached, Changes, ConnectionLost, RolledBack
from millstream.upr.core import driver
from millstream.upr.core.checkpoint import Checkpoint, StreamProgress
from millstream.upr.core.consumer import SnapshotCompleted
from millstream.upr.core.messages import Reached
from millstream.wire.frames import snapshot_marker, stream_end
from millstream.wire.mcbp import Opcode, Status, StreamEndReason, request, response
from support.streams.scripted_source import A, B, Source, snapshot


def refused(partition_id: int, status: int, value: bytes = b"") -> bytes:
    return response(Opcode.DCP_STREAM_REQ, status, partition_id, value=value)


END = stream_end(0, 0, StreamEndReason.OK)


@pytest.fixture
async def source() -> AsyncIterator[Source]:
    made = Source()
    await made.start()
    yield made
    await made.stop()


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "PAUSE_S_MIN", 0.0)


def consumer_of(source: Source, **options: Any) -> Consumer:
    return Consumer(source.address, bucket="orders", partitions=[0], until_now=True, **options)


async def events_of(consumer: Consumer) -> list[Any]:
    async with consumer:
        return [event async for event in consumer]


async def test_changes_and_progress(source: Source) -> None:
    source.script = [source.opened(0) + snapshot(0, 1, 3) + snapshot(0, 4, 6)[:-5]]
    consumer = Consumer(source.address, bucket="orders", partitions=[0])
    async with consumer:
        events = consumer.__aiter__()
        changes = await anext(events)
        assert isinstance(changes, Changes)
        assert (changes.partition_id, changes.uuid, changes.branch) == (0, 0xA, 5)
        assert len(changes.frames) == 2
        done = await anext(events)
        assert done == SnapshotCompleted(0, Position(0xA, 3, 3, 3))
        assert consumer.progress(0).ends == (3,)
        inside = await anext(events)
        assert inside.position == Position(0xA, 4, 3, 6)
        assert consumer.checkpoint.progress[0].position == inside.position


async def test_all_partitions_by_default(source: Source) -> None:
    assert await events_of(Consumer(source.address, bucket="orders", until_now=True)) == []
    assert [asked[0] for asked in source.asked] == [0, 1]
    assert all(asked[1] == 0x04 for asked in source.asked)


async def test_iteration_can_be_left_and_taken_up_again(source: Source) -> None:
    source.script = [source.opened(0) + snapshot(0, 1, 2) + snapshot(0, 3, 4) + END]
    async with consumer_of(source) as consumer:
        async for event in consumer:
            assert isinstance(event, Changes)
            break
        rest = [event async for event in consumer]
    assert [type(event).__name__ for event in rest] == [
        "SnapshotCompleted", "Changes", "SnapshotCompleted",
    ]  # fmt: skip


async def test_start_now(source: Source) -> None:
    consumer = Consumer(source.address, bucket="orders", start="now", until_now=True)
    await events_of(consumer)
    assert [asked[3:4] + asked[5:] for asked in source.asked] == [(10, 0xA, 10, 10), (0, 0, 0, 0)]
    assert consumer.progress(0).began_at == 10


async def test_rollback_goes_to_what_the_reader_can_restore_and_is_told_once(
    source: Source, tmp_path: Path
) -> None:
    store = FileCheckpointStore(tmp_path / "place")
    progress = StreamProgress(Position(0xA, 8, 6, 9), (A,), (2, 3, 6))
    store.save(Checkpoint("orders", "feed", {0: progress}))
    source.logs[0] = (B, A)
    source.script = [
        refused(0, Status.ROLLBACK, pack(">Q", 4)),
        refused(0, Status.ROLLBACK, pack(">Q", 2)),
        source.opened(0) + snapshot(0, 3, 5) + END,
    ]
    consumer = consumer_of(source, checkpoints=store)
    first, changes, _ = await events_of(consumer)
    assert first == RolledBack(0, 2, 0xB, 9, Position(0xA, 2, 2, 2))
    assert (changes.uuid, changes.branch) == (0xB, 9)
    assert [asked[3] for asked in source.asked] == [8, 3, 2]
    assert consumer.progress(0).ends == (2, 5)


async def test_rollback_to_nothing(source: Source) -> None:
    source.script = [
        source.opened(0) + snapshot(0, 1, 2) + stream_end(0, 0, StreamEndReason.ROLLED_BACK),
        refused(0, Status.ROLLBACK, pack(">Q", 1)),
        source.opened(0) + END,
    ]
    events = await events_of(consumer_of(source))
    assert [type(event).__name__ for event in events] == [
        "Changes", "SnapshotCompleted", "ConnectionLost", "RolledBack",
    ]  # fmt: skip
    assert events[-1].seqno == 0


async def test_reader_that_began_later_goes_back_to_where_history_agrees(source: Source) -> None:
    source.script = [
        source.opened(0) + stream_end(0, 0, StreamEndReason.DISCONNECTED),
        refused(0, Status.ROLLBACK, pack(">Q", 7)),
        source.opened(0) + END,
    ]
    events = await events_of(consumer_of(source, start="now"))
    assert isinstance(events[0], ConnectionLost)
    assert events[1].seqno == 7


async def test_a_lost_connection_resumes_from_its_progress(source: Source) -> None:
    source.script = [
        source.opened(0) + snapshot(0, 1, 2, 5)[:-5],
        None,
        source.opened(0) + snapshot_marker(0, 0, 1, 7, 2) + snapshot(0, 7)[44:] + END,
    ]
    consumer = consumer_of(source)

    async with consumer:
        found = []
        async for event in consumer:
            found.append(event)
            if isinstance(event, Changes) and len(found) == 1:
                (session,) = consumer._streams.sessions.values()
                assert session.streams._writer is not None
                session.streams._writer.transport.abort()
    assert [type(event).__name__ for event in found] == [
        "Changes", "ConnectionLost", "ConnectionLost", "Changes", "SnapshotCompleted",
    ]  # fmt: skip
    assert source.asked[-1][3:] == (2, 2**64 - 1, 0xA, 0, 5)


async def test_a_cookie_is_sent_once_its_streams_are_open_and_waited_for(source: Source) -> None:
    source.script = [
        refused(0, Status.ETMPFAIL),
        source.opened(0) + snapshot(0, 1, 5),
    ]
    consumer = Consumer(source.address, bucket="orders", partitions=[0])
    consumer.barrier(b"here")
    with pytest.raises(UsageError, match="cookie"):
        consumer.barrier(b"here")
    with pytest.raises(UsageError, match="cookie"):
        consumer.barrier(b"")
    async with consumer:
        events = consumer.__aiter__()
        while not isinstance(event := await anext(events), BarrierReached):
            pass
    assert event == BarrierReached(b"here", {0: Reached(0xA, 5)})
    opcodes = [packet.opcode for packet in source.requests]
    assert len(source.cookies) == 1
    assert opcodes.count(Opcode.DCP_STREAM_REQ) == 2
    assert opcodes.index(Opcode.BARRIER) > max(
        at for at, opcode in enumerate(opcodes) if opcode == Opcode.DCP_STREAM_REQ
    )


async def test_a_cookie_lost_with_the_connection_is_sent_again(source: Source) -> None:
    source.drops_cookies = True
    source.script = [source.opened(0) + snapshot(0, 1, 5), source.opened(0)]
    consumer = Consumer(source.address, bucket="orders", partitions=[0])
    consumer.barrier(b"here")
    found = []
    async with consumer:
        async for event in consumer:
            found.append(event)
            source.drops_cookies = not isinstance(event, ConnectionLost)
            if isinstance(event, BarrierReached):
                break
    assert [event for event in found if isinstance(event, ConnectionLost)]
    assert found[-1] == BarrierReached(b"here", {0: Reached(0xA, 5)})
    assert len(source.cookies) == 2


async def test_a_barrier_does_not_wait_for_streams_that_came_to_their_end(source: Source) -> None:
    source.script = [source.opened(0) + snapshot(0, 1, 5) + END]
    consumer = consumer_of(source)
    consumer.barrier(b"here")
    found = await events_of(consumer)
    assert isinstance(found[0], Changes)
    assert found[-1] == BarrierReached(b"here", {})


async def test_recreated_bucket_is_an_error(source: Source, tmp_path: Path) -> None:
    store = FileCheckpointStore(tmp_path / "place")
    store.save(Checkpoint("orders", "another", {}))
    with pytest.raises(StreamError, match="deleted and created again") as failed:
        await events_of(consumer_of(source, checkpoints=store))
    assert failed.value.code == "bucket_recreated"
    store.save(Checkpoint("trains", "feed", {}))
    with pytest.raises(UsageError, match="is of bucket 'trains'"):
        await events_of(consumer_of(source, checkpoints=store))
    store.save(Checkpoint("orders", "feed", {2: StreamProgress()}))
    with pytest.raises(UsageError, match="partitions 0 to 1, not 2"):
        await events_of(consumer_of(source, checkpoints=store))


async def test_saved_places_are_taken_up(source: Source, tmp_path: Path) -> None:
    store = FileCheckpointStore(tmp_path / "place")
    source.script = [source.opened(0) + snapshot(0, 1, 6) + END]
    async with consumer_of(source, checkpoints=store) as consumer:
        async for _ in consumer:
            await asyncio.gather(consumer.save(), consumer.save())
    found = store.load()
    assert found is not None
    assert found.bucket_uuid == "feed"
    assert found.progress[0].position == Position(0xA, 6, 6, 6)
    await events_of(consumer_of(source, checkpoints=store))
    assert source.asked[-1][3:] == (6, 2**64 - 1, 0xA, 6, 6)


async def test_first_connection_fails_at_once(source: Source) -> None:
    with pytest.raises(AccessError, match="no bucket 'trains'"):
        await events_of(Consumer(source.address, bucket="trains"))
    await source.stop()
    with pytest.raises(UnavailableError, match="cannot connect to") as failed:
        await events_of(consumer_of(source))
    assert failed.value.code == "unreachable"


async def test_refusals_that_no_waiting_mends(source: Source) -> None:
    source.script = [refused(0, Status.EACCESS)]
    with pytest.raises(AccessError, match="stream of partition 0"):
        await events_of(consumer_of(source))
    source.script = [source.opened(0) + stream_end(0, 0, StreamEndReason.LOST_PRIVILEGES)]
    with pytest.raises(AccessError):
        await events_of(consumer_of(source))
    source.open_status = Status.EACCESS
    with pytest.raises(AccessError):
        await events_of(consumer_of(source))


async def test_partition_that_moves_is_asked_for_again(source: Source) -> None:
    source.script = [refused(0, Status.NOT_MY_VBUCKET), source.opened(0) + END]
    (lost,) = await events_of(consumer_of(source))
    assert isinstance(lost, ConnectionLost)


async def test_noops_are_answered(source: Source) -> None:
    noop = request(Opcode.DCP_NOOP, opaque=99)
    source.script = [source.opened(0) + noop + snapshot(0, 1) + noop + snapshot(0, 2) + END]
    await events_of(consumer_of(source))
    assert source.script == []


async def test_a_bucket_that_is_re_created_meanwhile_is_an_error(source: Source) -> None:
    source.script = [source.opened(0) + stream_end(0, 0, StreamEndReason.CLOSED)]
    async with consumer_of(source) as consumer:
        events = consumer.__aiter__()
        assert isinstance(await anext(events), ConnectionLost)
        source.uuid = "other"
        with pytest.raises(StreamError, match="deleted and created again"):
            await anext(events)


async def test_a_consumer_that_is_closed_does_not_look_finished(source: Source) -> None:
    source.script = [source.opened(0) + snapshot(0, 1, 2)]
    async with consumer_of(source) as consumer:
        events = consumer.__aiter__()
        await anext(events)
        await consumer.close()
        assert isinstance(await anext(events), SnapshotCompleted)
        with pytest.raises(StreamError, match="was closed"):
            await anext(events)


async def test_losses_that_nobody_looks_at_are_bounded(source: Source) -> None:
    source.script = [None] * 1000
    async with consumer_of(source) as consumer:
        while len(source.asked) < client.LOSSES_MAX + 20:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.001)
        assert consumer._batches.qsize() == client.LOSSES_MAX
