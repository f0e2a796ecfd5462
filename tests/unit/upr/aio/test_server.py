"""The shell of a producer connection: in turns, in order, never while paused, gone when closed."""

import asyncio
from collections.abc import Callable, Iterator

import pytest

from millstream.errors import UnavailableError
from millstream.model.partitions import PartitionState
from millstream.model.position import Position
from millstream.upr.aio import server as server_module
from millstream.upr.aio.server import StreamSession
from millstream.upr.core import producer as producer_module
from millstream.upr.core.messages import StreamRequest, encode_stream_request
from millstream.wire.mcbp import (
    Opcode,
    Packet,
    Status,
    StreamFlag,
    cut_packets,
    request,
    response,
)
from support.streams.fake_source import FakeBucket, FakePartition


class Connection:
    """Keeps what was written; wakes whoever waits for it."""

    def __init__(self) -> None:
        self.data = b""
        self.is_paused = False
        self.is_closed = False
        self.changed = asyncio.Event()

    def write(self, data: bytes) -> None:
        assert not self.is_closed
        self.data += data
        self.changed.set()

    def close(self) -> None:
        self.is_closed = True
        self.changed.set()

    def packets(self) -> list[Packet]:
        found, rest = cut_packets(self.data, 1 << 25)
        assert rest == b""
        return found

    async def until(self, is_true: Callable[["Connection"], bool]) -> None:
        async with asyncio.timeout(60):
            while not is_true(self):
                self.changed.clear()
                await self.changed.wait()


class Peer:
    def __init__(self, *partitions: FakePartition) -> None:
        self.connection = Connection()
        self.bucket = FakeBucket(list(partitions))
        self.session = StreamSession(
            self.connection, self.bucket, "me", 0x21, is_extended=True, has_json=True
        )

    def send(self, data: bytes) -> None:
        for packet in cut_packets(data, 1 << 25)[0]:
            self.session.on_packet(packet)

    def stream(self, partition_id: int = 0) -> None:
        self.send(encode_stream_request(StreamRequest(partition_id, Position()), partition_id))

    def control(self, key: bytes, value: bytes) -> None:
        self.send(request(Opcode.DCP_CONTROL, key=key, value=value))

    def keys(self) -> list[bytes]:
        return [p.key for p in self.connection.packets() if p.opcode == Opcode.DCP_MUTATION]


def filled(keys: str, partition_id: int = 0) -> FakePartition:
    partition = FakePartition(partition_id)
    partition.fill(keys)
    return partition


async def test_a_stream_is_answered_sent_and_followed() -> None:
    peer = Peer(filled("ab"))
    peer.stream()
    reply = peer.connection.packets()[0]
    assert (reply.opcode, reply.status) == (Opcode.DCP_STREAM_REQ, Status.SUCCESS)
    await peer.connection.until(lambda _: peer.keys() == [b"a", b"b"])
    peer.bucket.partitions[0].fill("c")
    peer.bucket.changed()
    peer.bucket.partitions[0].fill("d")
    peer.bucket.changed()
    await peer.connection.until(lambda _: peer.keys() == [b"a", b"b", b"c", b"d"])
    peer.session.close()


async def test_news_within_a_moment_leave_together() -> None:
    peer = Peer(filled("a"))
    peer.stream()
    await peer.connection.until(lambda _: peer.keys() == [b"a"])
    for key in "bcd":
        peer.bucket.partitions[0].fill(key)
        peer.bucket.changed()
    await peer.connection.until(lambda _: len(peer.keys()) == 4)
    markers = [p for p in peer.connection.packets() if p.opcode == Opcode.DCP_SNAPSHOT_MARKER]
    assert len(markers) == 2
    peer.session.close()


@pytest.mark.parametrize(
    ("look_us", "at_once"),
    [(20, 1000), (240, 1000), (260, 25), (2000, 0)],
)
async def test_news_are_looked_at_as_they_come_while_that_takes_little_of_the_time(
    monkeypatch: pytest.MonkeyPatch, look_us: int, at_once: int
) -> None:
    now_us = 10**9
    monkeypatch.setattr(server_module, "perf_counter", lambda: now_us / 1e6)
    peer = Peer(filled("a"))
    session = peer.session

    def look() -> None:
        nonlocal now_us
        now_us += look_us

    monkeypatch.setattr(session._producer, "produce", look)
    pauses = []
    for _ in range(1000):  # news come once per millisecond
        before_us = now_us
        pauses.append(session._pause_s(now_us / 1e6))
        assert 0 <= pauses[-1] <= server_module.GATHER_S
        session._pump()
        now_us = max(now_us, before_us + 1000)
    assert abs(pauses.count(0.0) - at_once) <= 50
    peer.session.close()


async def test_the_log_is_read_in_a_thread() -> None:
    partitions = [filled("abcde", number) for number in range(6)]
    for partition in partitions:
        partition.forget_memory(4)
    peer = Peer(*partitions)
    for number in range(6):
        peer.stream(number)
    await peer.connection.until(lambda _: len(peer.keys()) == 30)
    assert all(not partition.holds for partition in partitions)
    peer.session.close()


async def test_durable_only_streams_hear_when_changes_become_durable() -> None:
    peer = Peer(filled("ab"))
    peer.control(b"durable_only", b"true")
    peer.control(b"enable_noop", b"false")
    assert len(peer.bucket.durable_callbacks) == 1
    peer.stream()
    await peer.connection.until(lambda c: len(c.packets()) == 3)
    assert peer.keys() == []
    partition = peer.bucket.partitions[0]
    partition.persisted_seqno, partition.marks = 2, [2]
    peer.bucket.durable_callbacks[0]()
    await peer.connection.until(lambda _: peer.keys() == [b"a", b"b"])
    peer.session.close()
    assert peer.bucket.durable_callbacks == []


class Taker(Peer):
    def __init__(self, *partitions: FakePartition) -> None:
        super().__init__(*partitions)
        self.session.close()
        self.session = StreamSession(
            self.connection, self.bucket, "me", 0x21,
            is_extended=True, has_json=True, may_take_over=True,
        )  # fmt: skip
        asked = StreamRequest(0, Position(), flags=StreamFlag.TAKEOVER)
        self.send(encode_stream_request(asked, 0))

    async def until_asked(self, times: int) -> None:
        def states(connection: Connection) -> int:
            opcodes = [p.opcode for p in connection.packets()]
            return opcodes.count(Opcode.DCP_SET_VBUCKET_STATE)

        await self.connection.until(lambda c: states(c) == times)

    def answer(self, opcode: Opcode) -> None:
        self.send(response(opcode, 0, 0))


async def test_a_copy_is_stopped_when_the_reader_is_pending() -> None:
    peer = Taker(filled("ab"))
    assert peer.session.progress(0) == ("takeover-backfilling", 0)
    await peer.connection.until(lambda _: peer.keys() == [b"a", b"b"])
    peer.answer(Opcode.DCP_SNAPSHOT_MARKER)
    await peer.until_asked(1)
    peer.answer(Opcode.DCP_SET_VBUCKET_STATE)
    await peer.until_asked(2)
    assert peer.bucket.partitions[0].state is PartitionState.DEAD
    peer.answer(Opcode.DCP_SET_VBUCKET_STATE)
    await peer.connection.until(lambda c: c.packets()[-1].opcode == Opcode.DCP_STREAM_END)
    assert peer.bucket.take_overs == set()
    peer.session.close()


async def test_a_copy_that_cannot_be_stopped_ends_the_stream(
    caplog: pytest.LogCaptureFixture,
) -> None:
    peer = Taker(FakePartition(0))
    peer.bucket.stop_error = UnavailableError("no room", code="disk_full")
    await peer.until_asked(1)
    peer.answer(Opcode.DCP_SET_VBUCKET_STATE)
    await peer.connection.until(lambda c: c.packets()[-1].opcode == Opcode.DCP_STREAM_END)
    assert peer.bucket.partitions[0].state is PartitionState.ACTIVE
    assert "cannot be handed over" in caplog.text
    peer.session.close()


async def test_a_copy_is_stopped_though_the_connection_is_lost_meanwhile() -> None:
    peer = Taker(FakePartition(0))
    await peer.until_asked(1)
    peer.answer(Opcode.DCP_SET_VBUCKET_STATE)
    peer.session.close()
    async with asyncio.timeout(60):
        await peer.session._stops.finish()
    assert peer.bucket.partitions[0].state is PartitionState.DEAD


class BrokenPartition(FakePartition):
    def backfill(
        self, after: int, at: int, *, is_logged: bool = False, is_described: bool = False
    ) -> Iterator[tuple[list[bytes], int]]:
        yield [self.frame(self.writes[0])], 1
        raise OSError("the disk is gone")


async def test_a_log_that_cannot_be_read_ends_the_stream(
    caplog: pytest.LogCaptureFixture,
) -> None:
    partition = BrokenPartition(0)
    partition.fill("abc")
    partition.forget_memory(3)
    peer = Peer(partition)
    peer.stream()

    def is_over(connection: Connection) -> bool:
        return any(p.opcode == Opcode.DCP_STREAM_END for p in connection.packets())

    await peer.connection.until(is_over)
    assert "cannot read partition 0" in caplog.text
    assert not partition.holds
    peer.session.close()


async def test_nothing_is_sent_while_the_connection_is_paused() -> None:
    peer = Peer(filled("ab"))
    peer.connection.is_paused = True
    peer.stream()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert peer.keys() == []
    peer.send(request(Opcode.DCP_NOOP))
    assert peer.connection.packets()[-1].opcode == Opcode.DCP_NOOP
    peer.connection.is_paused = False
    peer.session.on_resume()
    await peer.connection.until(lambda _: peer.keys() == [b"a", b"b"])
    peer.session.close()


async def test_acknowledged_bytes_let_the_stream_go_on() -> None:
    peer = Peer(filled("abc"))
    peer.control(b"connection_buffer_size", b"1")
    peer.stream()
    for count in (3, 4, 5, 6):  # two replies, then a message each: the marker first
        await peer.connection.until(lambda c, count=count: len(c.packets()) == count)
        peer.send(request(Opcode.DCP_BUFFER_ACK, extras=b"\0\0\1\0"))
    assert peer.keys() == [b"a", b"b", b"c"]
    peer.session.close()


async def test_signs_of_life_and_the_end_of_a_silent_peer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(producer_module, "IDLE_MS_MAX", 150)
    peer = Peer(filled("a"))
    peer.control(b"enable_noop", b"true")
    peer.control(b"set_noop_interval", b"0.1")
    peer.stream()
    await peer.connection.until(lambda connection: connection.is_closed)
    noops = [p for p in peer.connection.packets() if p.opcode == Opcode.DCP_NOOP]
    assert len(noops) == 1
    assert "me is dead" in caplog.text


async def test_a_peer_that_acknowledges_nothing_is_cut_off_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(producer_module, "STUCK_MS_MAX", 150)
    peer = Peer(filled("abc"))
    peer.control(b"connection_buffer_size", b"1")
    peer.control(b"enable_noop", b"true")
    peer.control(b"set_noop_interval", b"0.1")
    peer.stream()
    await peer.connection.until(lambda connection: connection.is_closed)
    assert peer.keys() == []
    partition = peer.bucket.partitions[0]
    assert (partition.holds, partition.readers, peer.bucket.callbacks) == ({}, [], [])
    assert (peer.session.figures().is_stuck, peer.session.figures().streams) == (True, 0)


async def test_a_peer_that_breaks_the_protocol_is_closed() -> None:
    peer = Peer(filled("a"))
    peer.send(request(Opcode.DCP_MUTATION, extras=bytes(31), key=b"k"))
    assert peer.connection.is_closed
    peer.stream()
    assert peer.connection.data == b""


async def test_after_close_nothing_is_written_and_nothing_held() -> None:
    partition = filled("abcdef")
    partition.forget_memory(5)
    peer = Peer(partition)
    peer.stream()
    await asyncio.sleep(0)
    before = peer.connection.data
    assert partition.holds
    peer.session.close()
    peer.session.close()
    assert not partition.holds
    assert peer.bucket.callbacks == []
    peer.session.on_resume()
    peer.stream()
    await asyncio.get_running_loop().shutdown_default_executor()
    await asyncio.sleep(0)
    assert peer.connection.data == before


async def test_statistics_name_the_consumer() -> None:
    peer = Peer(filled("a"))
    peer.control(b"connection_buffer_size", b"77")
    assert ("eq_dcpq:me:max_buffer_bytes", "77") in peer.session.statistics()
    peer.session.close()
