"""Partitions of a running bucket are rolled back while they are written, flushed and streamed.

Engine, flush thread, threads that read the log for streams, and stream sessions are the real ones;
queues are so short that streams read the log all the time. Two readers undo exactly, because they
remember everything; one of them begins anew now and then.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from millstream.kv.aio import engine as engine_module
from millstream.kv.aio.engine import BucketEngine
from millstream.kv.core.partition.partition import Partition, value_of
from millstream.kv.core.queue import mutation_queue
from millstream.model.limits import FRAME_BYTES_MAX
from millstream.model.position import Position
from millstream.upr.aio.server import StreamSession
from millstream.upr.core.messages import StreamRequest, encode_stream_request
from millstream.wire.mcbp import RESPONSE, Opcode, Packet, Status, cut_packets
from support.budget import budget
from support.streams.stream_witness import Place, content_of, failovers_of

SEED = random.randrange(2**32)
PARTITIONS = 3
ROUNDS = budget(1500)
KEYS = [b"key%d" % number for number in range(12)]
NOW = 1_700_000_000_000_000_000


class Reader:
    """All partitions on one stream session; also the connection that the session writes to."""

    def __init__(self, engine: BucketEngine, name: str) -> None:
        self.is_paused = False
        self.ends = self.rollbacks = self.markers_of_disk = 0
        self.places = [Place() for _ in range(PARTITIONS)]
        self.news = asyncio.Event()
        self.session = StreamSession(
            self, engine.bucket, name, 0x21, is_extended=True, has_json=True
        )
        self.waiting: set[int] = set(range(PARTITIONS))
        self.rest = b""

    def write(self, data: bytes) -> None:
        packets, self.rest = cut_packets(self.rest + data, FRAME_BYTES_MAX)
        for packet in packets:
            self.take(packet)
        self.news.set()

    def close(self) -> None:
        raise AssertionError("the server found fault with the reader")

    def ask(self) -> None:
        """Ask for what is not streamed."""
        for partition_id in sorted(self.waiting):
            self.waiting.discard(partition_id)
            place = self.places[partition_id]
            uuid = place.uuid if place.seqno else 0
            position = Position(uuid, place.seqno, place.snap_start, place.snap_end)
            data = encode_stream_request(StreamRequest(partition_id, position), partition_id)
            self.session.on_packet(cut_packets(data, FRAME_BYTES_MAX)[0][0])

    def take(self, packet: Packet) -> None:
        partition_id = packet.opaque
        place = self.places[partition_id]
        if packet.magic == RESPONSE:
            self.take_reply(packet, partition_id, place)
        elif packet.opcode == Opcode.DCP_STREAM_END:
            self.ends += 1
            self.waiting.add(partition_id)
        elif packet.opcode == Opcode.DCP_SNAPSHOT_MARKER:
            start, end = (int.from_bytes(packet.extras[at : at + 8], "big") for at in (0, 8))
            assert end >= place.snap_end
            self.markers_of_disk += packet.extras[19] >> 1 & 1
            is_new = start > place.seqno
            place.snap_start = place.seqno if is_new else min(place.snap_start, start)
            place.snap_end = end
        else:
            seqno = int.from_bytes(packet.extras[:8], "big")
            assert place.seqno < seqno <= place.snap_end, (SEED, packet, place)
            if packet.opcode != Opcode.DCP_SEQNO_ADVANCED:
                value = packet.value if packet.opcode == Opcode.DCP_MUTATION else None
                place.items.append((seqno, content_of(packet.key, packet.cas, value)))
            place.seqno = seqno
            if seqno == place.snap_end:
                place.snap_start = seqno
                place.ends.append(seqno)

    def take_reply(self, packet: Packet, partition_id: int, place: Place) -> None:
        if packet.opcode != Opcode.DCP_STREAM_REQ:
            return
        if packet.status == Status.SUCCESS:
            place.log = failovers_of(packet.value)
            if place.seqno == place.snap_start:
                place.snap_end = place.seqno
            return
        self.waiting.add(partition_id)
        if packet.status == Status.ROLLBACK:
            self.rollbacks += 1
            place.undo_to(int.from_bytes(packet.value, "big"))
        else:
            assert packet.status == Status.ETMPFAIL, packet

    def begin_anew(self, partition_id: int) -> None:
        """Forget a partition whose stream is to be closed."""
        if partition_id in self.waiting:
            return
        close = Packet(0x80, Opcode.DCP_CLOSE_STREAM, 0, partition_id, partition_id, 0,
                       b"", b"", b"", b"")  # fmt: skip
        self.session.on_packet(close)
        self.waiting.add(partition_id)
        self.places[partition_id] = Place()

    async def reach(self, partitions: list[Partition]) -> None:
        """Read until everything there is was read."""
        async with asyncio.timeout(60):
            while not all(
                place.seqno == place.snap_end == partition.high_seqno
                and partition.partition_id not in self.waiting
                for place, partition in zip(self.places, partitions, strict=True)
            ):
                self.ask()
                self.news.clear()
                try:
                    await asyncio.wait_for(self.news.wait(), 0.05)
                except TimeoutError:
                    continue


def documents(partition: Partition) -> dict[bytes, object]:
    found = {}
    for key in partition.known_keys():
        frame = partition.newest(key)
        assert frame is not None
        cas = int.from_bytes(frame[16:24], "big")
        value = value_of(frame) if frame[1] == Opcode.DCP_MUTATION else None
        found[key] = content_of(key, cas, value)
    return found


async def test_readers_hold_what_the_partition_does_whatever_is_rolled_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "QUEUE_BYTES_MAX", 3000)
    monkeypatch.setattr(mutation_queue, "SLOT_BYTES", 1)
    engine = await BucketEngine.open(
        tmp_path, name="b", uuid="00", partition_count=PARTITIONS, flush_interval_ms=1,
        on_persisted=lambda: None, on_fatal=failed, on_corrupt=failed,
    )  # fmt: skip
    dice = random.Random(SEED)
    readers = [Reader(engine, "one"), Reader(engine, "two")]
    partitions = engine.bucket.partitions
    rolled = 0
    for number in range(ROUNDS):
        partition = dice.choice(partitions)
        for _ in range(dice.randint(0, 12)):
            key = dice.choice(KEYS)
            if dice.random() < 0.2:
                partition.delete(key, 0, NOW)
            else:
                partition.put(key, b"%d" % number + bytes(dice.choice((5, 300))), 0, 0, 0, 0, NOW)
        engine.bucket.changed()
        choice = dice.random()
        if choice < 0.3:
            await engine.until_persisted(partition.partition_id, partition.high_seqno)
        elif choice < 0.5:
            high = partition.high_seqno
            target = dice.randint(max(0, high - 30), high)
            assert await engine.copies.roll_back(partition.partition_id, target) <= target
            rolled += 1
        elif choice < 0.6:
            readers[1].begin_anew(dice.randrange(PARTITIONS))
        for _ in range(dice.randint(0, 3)):
            await asyncio.sleep(0)  # so that readers are anywhere
        for reader in readers:
            reader.ask()
    for reader in readers:
        await reader.reach(partitions)
        for place, partition in zip(reader.places, partitions, strict=True):
            found = {key: content for key, (_, content) in place.documents().items()}
            assert found == documents(partition), f"seed {SEED}"
        reader.session.close()
    assert rolled > ROUNDS // 20
    assert all(reader.rollbacks and reader.ends for reader in readers)
    assert all(reader.markers_of_disk for reader in readers), "no stream ever read the log"
    await engine.stop()


def failed(error: Exception) -> None:
    raise AssertionError("the disk is sound") from error
