"""A connection that feeds copies of a running bucket: disk, rollbacks, take-overs, lost lines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from struct import pack

import pytest

from millstream.errors import UnavailableError
from millstream.kv.aio.engine import BucketEngine
from millstream.kv.aio.pushed_streams import FeedSession
from millstream.kv.core.partition.partition import Partition
from millstream.model.bucket_map import BucketMap, NodeAddress
from millstream.model.partitions import PartitionState
from millstream.wire.frames import mutation, snapshot_marker, stream_end
from millstream.wire.mcbp import Opcode, Packet, Status, StreamFlag, cut_packets, request, response

ACTIVE, REPLICA, PENDING, DEAD = (
    PartitionState[name] for name in ("ACTIVE", "REPLICA", "PENDING", "DEAD")
)
LOG = pack(">QQ", 0xA, 0)


class Connection:
    def __init__(self) -> None:
        self.data = b""
        self.is_closed = False

    def write(self, data: bytes) -> None:
        self.data += data

    def close(self) -> None:
        self.is_closed = True

    def take(self) -> list[Packet]:
        found, self.data = cut_packets(self.data, 1 << 25)
        return found


class Peer:
    def __init__(self, engine: BucketEngine) -> None:
        self.engine = engine
        self.connection = Connection()
        self.session = FeedSession(
            self.connection, engine.bucket, "peer",
            lambda packet, status: response(packet.opcode, status, packet.opaque),
            is_extended=False, now_s=lambda: 1_700_000_000,
        )  # fmt: skip
        self.heard: list[Packet] = []

    @property
    def partition(self) -> Partition:
        return self.engine.bucket.partitions[0]

    def say(self, *frames: bytes) -> None:
        for packet in cut_packets(b"".join(frames), 1 << 25)[0]:
            self.session.on_packet(packet)

    async def hear(self, opcode: int) -> Packet:
        found: list[Packet] = []

        def is_there() -> bool:
            self.heard += self.connection.take()
            found.extend(packet for packet in self.heard if packet.opcode == opcode)
            return bool(found)

        await until(is_there)
        self.heard.remove(found[0])
        return found[0]

    async def open(self, flags: int = 0) -> None:
        self.say(request(Opcode.DCP_ADD_STREAM, extras=pack(">I", flags)))
        await self.hear(Opcode.DCP_STREAM_REQ)
        self.say(response(Opcode.DCP_STREAM_REQ, 0, 0, value=LOG))
        assert (await self.hear(Opcode.DCP_ADD_STREAM)).status == 0


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_so():  # noqa: ASYNC110 - the session's own turns are waited for
            await asyncio.sleep(0)


@pytest.fixture(name="peer")
async def _peer(tmp_path: Path) -> AsyncIterator[Peer]:
    engine = await BucketEngine.open(
        tmp_path, name="b", uuid="00", partition_count=1, flush_interval_ms=1,
        on_persisted=lambda: None, on_fatal=lambda error: None, on_corrupt=lambda error: None,
    )  # fmt: skip
    for state in (DEAD, PartitionState.ABSENT, REPLICA):
        await engine.copies.set_state(0, state)
    peer = Peer(engine)
    yield peer
    peer.session.close()
    await peer.session._work.finish()
    await engine.stop()


def put(seqno: int) -> bytes:
    return mutation(0, b"k%d" % seqno, b"v", seqno, 1, 100 + seqno, 0, 0, 0)


async def test_what_is_fed_is_durable_and_its_source_is_asked_from_there(peer: Peer) -> None:
    await peer.open()
    peer.say(snapshot_marker(0, 0, 1, 700, 1), *map(put, range(1, 701)))
    await until(lambda: peer.partition.persisted_seqno == 700)
    peer.say(stream_end(0, 0, 0))
    peer.say(request(Opcode.DCP_ADD_STREAM, extras=bytes(4)))
    asked = await peer.hear(Opcode.DCP_STREAM_REQ)
    assert asked.extras[8:16] == pack(">Q", 700)


async def test_a_copy_is_undone_for_its_source(peer: Peer) -> None:
    await peer.open()
    for seqno in (1, 2):
        peer.say(snapshot_marker(0, 0, seqno, seqno, 1), put(seqno))
        await until(lambda at=seqno: peer.partition.persisted_seqno == at)  # type: ignore[misc]
    peer.say(stream_end(0, 0, 2))
    peer.say(request(Opcode.DCP_ADD_STREAM, extras=bytes(4)))
    await peer.hear(Opcode.DCP_STREAM_REQ)
    peer.say(response(Opcode.DCP_STREAM_REQ, Status.ROLLBACK, 0, value=pack(">Q", 1)))
    asked = await peer.hear(Opcode.DCP_STREAM_REQ)
    assert asked.extras[8:16] == pack(">Q", 1)
    assert peer.partition.high_seqno == 1


def state_wanted(state: PartitionState) -> bytes:
    return request(Opcode.DCP_SET_VBUCKET_STATE, extras=state.to_bytes(1, "big"))


async def test_a_partition_is_taken_over(peer: Peer) -> None:
    await peer.open(StreamFlag.TAKEOVER)
    peer.say(snapshot_marker(0, 0, 1, 1, 9), put(1), state_wanted(PENDING))
    await peer.hear(Opcode.DCP_SNAPSHOT_MARKER)
    await peer.hear(Opcode.DCP_SET_VBUCKET_STATE)
    assert peer.partition.state is PENDING
    peer.say(state_wanted(ACTIVE))
    assert (await peer.hear(Opcode.DCP_SET_VBUCKET_STATE)).status == 0
    assert peer.partition.state is ACTIVE
    assert peer.partition.failover_log[0].uuid == 0xA
    peer.say(stream_end(0, 0, 0))


@pytest.mark.parametrize("is_cut", [True, False])
async def test_a_copy_that_waits_in_vain_follows_again(peer: Peer, is_cut: bool) -> None:
    await peer.open(StreamFlag.TAKEOVER)
    peer.say(state_wanted(PENDING))
    if is_cut:
        await until(lambda: len(peer.session._work) == 1)
        peer.session.close()
        await peer.session._work.finish()
    else:
        await peer.hear(Opcode.DCP_SET_VBUCKET_STATE)
        peer.say(stream_end(0, 0, 2))
    await until(lambda: peer.partition.state is REPLICA)


async def test_a_copy_that_became_active_meanwhile_does_not_stand_back(peer: Peer) -> None:
    copies = peer.engine.copies
    await copies.set_state(0, PENDING)
    await asyncio.gather(copies.set_state(0, ACTIVE), peer.session._stand_back(0))
    assert peer.partition.state is ACTIVE


async def test_a_copy_that_cannot_stand_back_is_logged(
    peer: Peer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise UnavailableError("no space", code="disk_full")

    await peer.open(StreamFlag.TAKEOVER)
    peer.say(state_wanted(PENDING))
    await peer.hear(Opcode.DCP_SET_VBUCKET_STATE)
    monkeypatch.setattr(peer.engine.store, "set_state", full)
    peer.say(stream_end(0, 0, 2))
    await until(lambda: "cannot follow again: no space" in caplog.text)
    assert peer.partition.state is PENDING


async def mistaken(*_: object) -> None:
    raise KeyError("nobody foresaw this")


async def test_a_mistake_while_a_copy_is_undone_ends_the_connection(
    peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    peer.engine.bucket.copies.undo = mistaken  # type: ignore[assignment]
    await peer.open()
    for seqno in (1, 2):
        peer.say(snapshot_marker(0, 0, seqno, seqno, 1), put(seqno))
    await until(lambda: peer.partition.persisted_seqno == 2)
    peer.say(stream_end(0, 0, 2))
    peer.say(request(Opcode.DCP_ADD_STREAM, extras=bytes(4)))
    await peer.hear(Opcode.DCP_STREAM_REQ)
    peer.say(response(Opcode.DCP_STREAM_REQ, Status.ROLLBACK, 0, value=pack(">Q", 1)))
    await until(lambda: peer.connection.is_closed)
    assert "partition 0 is not undone" in caplog.text
    assert peer.engine.bucket.begin_feeding(0)


async def test_a_mistake_while_a_copy_takes_over_ends_the_connection_and_it_follows_again(
    peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    take_over = peer.engine.copies.take_over

    async def half(*effect: object) -> None:
        await take_over(*effect)  # type: ignore[arg-type]
        await mistaken()

    peer.engine.bucket.copies.take_over = half
    await peer.open(StreamFlag.TAKEOVER)
    peer.say(state_wanted(PENDING))
    await until(lambda: peer.connection.is_closed)
    await peer.session._work.finish()
    assert "partition 0 is not taken over" in caplog.text
    assert peer.partition.state is REPLICA


async def test_nonsense_ends_the_connection(peer: Peer, caplog: pytest.LogCaptureFixture) -> None:
    await peer.open()
    peer.say(request(Opcode.DCP_BUFFER_ACK, extras=bytes(4)))
    assert peer.connection.is_closed
    assert "which sent changes to copies" in caplog.text
    peer.say(put(1))
    assert peer.engine.bucket.begin_feeding(0)


async def test_a_map_ends_the_connection(peer: Peer) -> None:
    await peer.open()
    node = NodeAddress("here", "h", 1, 2)
    peer.engine.bucket.set_map(BucketMap(1, (node,), (("here",),)), "here")
    assert peer.connection.is_closed


async def test_nothing_is_acknowledged_while_writes_are_refused(peer: Peer) -> None:
    await peer.open()
    peer.engine.bucket.writes.refuse("memory")
    size = 1 << 20
    frames = [
        mutation(0, b"k%d" % seqno, bytes(size), seqno, 1, seqno, 0, 0, 0) for seqno in range(1, 6)
    ]
    peer.say(snapshot_marker(0, 0, 1, 5, 1), *frames)
    await until(lambda: peer.partition.high_seqno == 5)
    assert [p for p in peer.connection.take() if p.opcode == Opcode.DCP_BUFFER_ACK] == []
    peer.engine.bucket.writes.accept("memory")
    acked = await peer.hear(Opcode.DCP_BUFFER_ACK)
    assert int.from_bytes(acked.extras, "big") > 5 * size
