"""Two nodes of one bucket without sockets or threads, and the connection between them.

Store, partitions, sessions, producer and feed are the real ones; the disk is simulated. What the
source wrote is kept apart: the newest of each key among what its history has.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from millstream.kv.aio.reading_back import StoreReader
from millstream.kv.core.bucket import Bucket
from millstream.kv.core.copies import moves
from millstream.kv.core.copies.feed_effects import ChangeState, Read, Send, TakenOver, Undo, Wait
from millstream.kv.core.copies.record_exchange import AdoptRecords
from millstream.kv.core.copies.takeover_stream import TakingFeed
from millstream.kv.core.flush import FlushPlan
from millstream.kv.core.partition.partition import Partition
from millstream.kv.core.partition.states import FOLLOWING
from millstream.kv.core.session.session import KvSession
from millstream.model.cluster_maps import DataRecord
from millstream.model.partitions import PartitionState
from millstream.model.position import FailoverEntry
from millstream.storage.core.segment_log import LogSizes
from millstream.storage.core.store import LogStore
from millstream.upr.core.producer import Producer
from millstream.wire.frames import seqno_of
from millstream.wire.mcbp import Opcode, Packet, Status, cut_packets, request
from support.kv.session_double import HostDouble, StreamDouble, new_session
from support.kv.simulated_disk import SimulatedById, SimulatedDisk

KEYS = [b"key%d" % number for number in range(7)]
NOW = 1_700_000_000_000_000_000
SIZES = LogSizes(700, 2800, fill_from_bytes=1400, fill_bytes=300)
ACTIVE, REPLICA = PartitionState.ACTIVE, PartitionState.REPLICA


class Node:
    """One node with copies of all partitions."""

    def __init__(self, rng: random.Random, numbers: Iterator[int], count: int) -> None:
        self.rng, self.numbers, self.count = rng, numbers, count
        self.disk = SimulatedDisk(rng, numbers)
        self.start()

    def new_entry(self, seqno: int, last_branch: int) -> FailoverEntry:
        number = next(self.numbers)
        return FailoverEntry(number, seqno, max(last_branch + 1, number))

    def start(self) -> None:
        def damaged(error: Exception) -> None:
            raise AssertionError("nothing is damaged here") from error

        self.store = store = LogStore.open(
            self.disk, SimulatedById(self.disk), partition_count=self.count,
            new_entry=self.new_entry, sizes=SIZES, is_alone=False,
        )  # fmt: skip
        store.withdraw_receipt()
        log = StoreReader(store, damaged)
        self.bucket = Bucket(
            "b", "00",
            [
                Partition(
                    p, failover_log=one.failover_log, high_seqno=one.high_seqno,
                    purge_seqno=one.purge_seqno, is_resident=not store.has_records(p), log=log,
                    state=one.state, last_branch=one.last_branch, top_seqno=one.top_seqno,
                    range_end=one.range_end,
                )
                for p, one in enumerate(store.partitions)
            ],
            new_lease_id=lambda: 1, now_ns=lambda: NOW, monotonic_ns=lambda: 0,
        )  # fmt: skip
        self.plan: FlushPlan[None] = FlushPlan(self.bucket.partitions)

    def crash(self) -> None:
        if self.rng.random() < 0.5:
            self.disk.lose_power()
        self.start()

    def flush(self) -> None:
        while (commit := self.plan.freeze()) is not None:
            encoded = self.store.encode(commit.batches)
            self.store.append(encoded)
            self.store.absorb(encoded)
            self.plan.persisted(commit)
        self.bucket.made_durable()

    def set_state(self, p: int, state: PartitionState, *, is_hand_over: bool = False) -> None:
        partition = self.bucket.partitions[p]
        self.flush()
        if is_hand_over and state is ACTIVE:
            assert partition.high_seqno == partition.queue.high_seqno
            self.store.set_state(p, state)
            moves.activate(partition, self.store.partition(p))
        elif state is ACTIVE:
            moves.activate(partition, self.store.activate(p))
        else:
            self.store.set_state(p, state)
            moves.rename(partition, state)

    def roll_back(self, p: int, seqno: int) -> int:
        partition = self.bucket.partitions[p]
        partition.epoch += 1
        moves.restore(partition, self.store.roll_back(p, seqno))
        return partition.high_seqno

    def promise(self, p: int, branch: int) -> None:
        self.store.promise({p: branch})
        partition = self.bucket.partitions[p]
        partition.last_branch = max(partition.last_branch, branch)

    def documents(self, p: int) -> dict[bytes, bytes]:
        frames = {key: self.bucket.partitions[p].newest(key) for key in KEYS}
        return {key: frame for key, frame in frames.items() if frame is not None}

    def lineages(self, p: int) -> dict[bytes, bytes]:
        entries = [self.bucket.partitions[p].entry(key) for key in KEYS]
        return {entry.key: entry.side for entry in entries if entry is not None}


@dataclass(frozen=True)
class Ends:
    """What was acknowledged of a partition."""

    partition_id: int
    complete: int
    persisted: int


class _Host(HostDouble):
    def __init__(self, bucket: Bucket, acknowledged: list[Ends]) -> None:
        super().__init__()
        self.buckets = {"b": bucket}
        self.producer: Producer | None = None
        self.acknowledged = acknowledged
        self.told: list[Mapping[int, DataRecord]] = []
        """Records that the copy had and the source had not."""
        self.refusal = Status.SUCCESS

    def adopt(
        self,
        session: KvSession,
        records: Mapping[int, DataRecord],
        done: Callable[[Status], None],
    ) -> None:
        self.told.append(records)
        if self.refusal == Status.SUCCESS:
            self.buckets["b"].use_records(records)
        done(self.refusal)

    def open_stream(self, session: KvSession, name: str, flags: int) -> StreamDouble:
        self.producer = producer = Producer(
            self.buckets["b"], flags, is_extended=True, has_json=True, may_take_over=True
        )
        host = self

        class Port(StreamDouble):
            def on_packet(self, packet: Packet) -> None:
                if packet.opcode == Opcode.DCP_SEQNO_ACKNOWLEDGED:
                    ends = (int.from_bytes(packet.extras[at : at + 8], "big") for at in (0, 8))
                    host.acknowledged.append(Ends(packet.vbucket, *ends))
                    assert host.acknowledged[-1].persisted <= host.acknowledged[-1].complete
                producer.on_packet(packet)
                assert not producer.wants_close
                session.emit(producer.take_replies())

        return Port()


class Rig:
    """A source, a copy that follows it, and their connection."""

    def __init__(self, rng: random.Random, count: int = 2, window_bytes: int = 2000) -> None:
        self.rng, self.count, self.window_bytes = rng, count, window_bytes
        self.numbers = itertools.count(1000)
        self.source = Node(rng, self.numbers, count)
        self.copy = Node(rng, self.numbers, count)
        self.truth: list[list[tuple[int, bytes, bytes]]] = [[] for _ in range(count)]
        self.acknowledged: list[Ends] = []
        self.undone: list[tuple[int, int]] = []
        self.waits: list[Wait] = []
        self.undos: list[Undo] = []
        self.reads: list[Read] = []
        self.adopts: list[AdoptRecords] = []
        self.changes: list[ChangeState] = []
        self.taken_over: list[TakenOver] = []
        self.now_ms = 0
        self.copy.bucket._monotonic_ns = lambda: self.now_ms * 1_000_000
        self.fenced_ms: list[int | None] = [None] * count
        """Since when copies have promised a larger branch than that of the source."""
        for p in range(count):
            self.source.set_state(p, ACTIVE)
            self.copy.set_state(p, REPLICA)
        self.connect()

    # -- what happens to them

    def connect(self) -> None:
        if (producer := getattr(self, "host", None) and self.host.producer) is not None:
            producer.close()
        self.host = _Host(self.source.bucket, self.acknowledged)
        self.session = new_session(self.host)
        self.session.receive(request(Opcode.HELLO, value=b"\xff\x00\x00\x0b"), NOW)
        self.to_source = self.to_copy = b""
        self.waits, self.undos, self.reads, self.adopts = [], [], [], []
        self.changes, self.taken_over = [], []
        self.feed = TakingFeed(self.copy.bucket, b"copy", "here", window_bytes=self.window_bytes)
        for p in range(self.count):
            self.feed.follow(p)
        self.carry_out()

    def hurry_noops(self) -> None:
        """Have no-ops come ten times a second, as in a managed cluster."""
        self.copy.bucket.manage("here", lambda _: None)
        self.connect()

    def write(self, p: int) -> None:
        rng, partition = self.rng, self.source.bucket.partitions[p]
        if partition.state is not ACTIVE:
            return
        key, now = rng.choice(KEYS), NOW + next(self.numbers)
        before = partition.high_seqno
        match rng.randrange(4):
            case 0:
                partition.delete(key, 0, now)
            case 1:
                counted = partition.count(b"key0", 1, 5, 0, 0, now)
                assert counted is Status.DELTA_BADVAL or not isinstance(counted, Status)
                key = b"key0"
            case _:
                partition.put(key, b"v%d" % next(self.numbers), 0, 0, 0, 0, now)
        frame = partition.newest(key)
        if partition.high_seqno > before:
            assert frame is not None
            self.truth[p].append((partition.high_seqno, key, frame))
        self.source.bucket.changed()

    def crash_source(self) -> None:
        """It loses what was not flushed, and is promoted again."""
        self.source.crash()
        for p, partition in enumerate(self.source.bucket.partitions):
            self.truth[p] = [one for one in self.truth[p] if one[0] <= partition.high_seqno]
            self.source.set_state(p, ACTIVE)
        self.connect()

    def crash_copy(self) -> None:
        self.copy.crash()
        self.connect()

    # -- the connection

    def exchange(self) -> bool:
        """Move some bytes both ways; return whether anything moved."""
        rng, producer = self.rng, self.host.producer
        cut = rng.randint(1, max(1, len(self.to_source)))
        sent, self.to_source = self.to_source[:cut], self.to_source[cut:]
        self.to_copy += self.session.receive(sent, NOW) + self.session.take_output()
        if producer is not None:
            self.now_ms += rng.randint(0, 60)
            producer.on_tick(self.now_ms)
            self.to_copy += producer.take_replies()
            producer.on_news()
            if (data := producer.produce()) is not None:
                self.to_copy += data
            for read in producer.take_reads():
                producer.on_chunk(read, next(read.chunks, None))
        is_moved = bool(sent)
        if self.to_copy and not (self.feed.is_full or self.feed.is_busy):
            cut = rng.randint(1, len(self.to_copy))
            data, self.to_copy = self.to_copy[:cut], self.to_copy[cut:]
            self.feed.receive(data, self.now_ms)
            is_moved = True
        while self.feed.step() and rng.random() < 0.7:
            self.carry_out()
        self.carry_out()
        return is_moved

    def carry_out(self) -> None:
        for effect in self.feed.take_effects():
            match effect:
                case Send(data):
                    self.to_source += data
                    self.check_told(data)
                case Undo():
                    self.undos.append(effect)
                case Wait():
                    self.waits.append(effect)
                case Read():
                    self.reads.append(effect)
                case AdoptRecords():
                    self.adopts.append(effect)
                case ChangeState():
                    self.changes.append(effect)
                case TakenOver():
                    self.taken_over.append(effect)

    def undo(self) -> None:
        """Do what was asked for first, as a shell does it."""
        effect = self.undos.pop(0)
        partition = self.copy.bucket.partitions[effect.partition_id]
        is_due = partition.epoch == effect.epoch and partition.state in FOLLOWING
        if is_due and effect.branch >= partition.last_branch:
            at = self.copy.roll_back(effect.partition_id, effect.seqno)
            self.undone.append((effect.partition_id, at))
            self.feed.on_undone(effect.partition_id, at)
        else:
            self.feed.on_not_undone(effect.partition_id)
        self.carry_out()

    def stop_source(self) -> None:
        """Do what the source's shell does with a copy that is being handed over."""
        assert self.host.producer is not None
        for stream in self.host.producer.take_stops():
            partition = self.source.bucket.partitions[stream.partition_id]
            is_due = partition.epoch == stream.epoch and partition.state is ACTIVE
            if is_due:
                self.source.set_state(stream.partition_id, PartitionState.DEAD)
            self.host.producer.on_stopped(stream, has_stopped=is_due)

    def change_state(self) -> None:
        """Do what was asked for first, as a shell does it."""
        p, state, epoch = self.changes.pop(0)
        partition = self.copy.bucket.partitions[p]
        failure = ""
        if partition.epoch != epoch or partition.state not in FOLLOWING:
            failure = "moved on"
        elif state is ACTIVE and partition.last_branch > partition.failover_log[0].branch:
            failure = "fenced"
        else:
            self.copy.set_state(p, state, is_hand_over=True)
        self.feed.on_state_changed(p, failure)
        self.carry_out()

    def wait(self) -> None:
        self.feed.on_waited(self.waits.pop(0).partition_id)
        self.carry_out()

    def flush_copy(self) -> None:
        self.copy.flush()
        self.feed.on_durable()
        self.carry_out()

    def settle(self) -> None:
        """Go on until nothing happens any more."""
        for _ in range(5000):
            moved = self.exchange()
            if self.feed.is_full:
                self.flush_copy()
            while self.undos:
                self.undo()
                moved = True
            while self.waits:
                self.wait()
                moved = True
            if not moved and not self.to_source and not self.to_copy:
                before = len(self.acknowledged)
                self.flush_copy()
                if not self.to_source and before == len(self.acknowledged):
                    return
        raise AssertionError("no end")

    # -- checks

    def replay(self, p: int, seqno: int) -> dict[bytes, bytes]:
        return {key: frame for at, key, frame in self.truth[p] if at <= seqno}

    def check_copy(self, p: int) -> None:
        """What it is complete up to is what the source's history says, once that accepted it."""
        partition = self.copy.bucket.partitions[p]
        is_complete = partition.queue.high_seqno == partition.high_seqno
        if is_complete and self.feed.is_streaming(p):
            assert self.copy.documents(p) == self.replay(p, partition.high_seqno)

    def check_contact(self) -> int:
        """The source counts no answer of a copy that had promised a larger branch before it.

        And the copy says of none that it was longer ago. Return how many are told apart.
        """
        count = 0
        for p in range(self.count):
            source, copy = self.source.bucket, self.copy.bucket
            branch = source.partitions[p].failover_log[0].branch
            is_fenced = copy.partitions[p].last_branch > branch
            known, told_ms = self.fenced_ms[p], copy.serving.told_ms[p]
            self.fenced_ms[p] = (self.now_ms if known is None else known) if is_fenced else None
            fenced_ms = self.fenced_ms[p]
            for _, peer in source.serving._streams[p].values():
                if peer.sent_ms is not None:
                    assert fenced_ms is None or peer.sent_ms <= fenced_ms
                    assert told_ms is None or peer.sent_ms <= told_ms
                    count += fenced_ms is not None
        return count

    def check_told(self, data: bytes) -> None:
        """What is acknowledged is a complete end, and in the log."""
        for packet in cut_packets(data, 1 << 20)[0]:
            if packet.opcode == Opcode.DCP_BUFFER_ACK:
                assert not self.feed.is_full
                assert not self.feed.is_busy
            if packet.opcode == Opcode.DCP_SEQNO_ACKNOWLEDGED:
                p, ends = packet.vbucket, packet.extras
                complete, persisted = (int.from_bytes(ends[at : at + 8], "big") for at in (0, 8))
                partition = self.copy.bucket.partitions[p]
                assert partition.last_branch <= partition.failover_log[0].branch
                assert complete == partition.high_seqno
                assert persisted == self.copy.store.newest_mark(p, persisted)
                if complete:
                    self.check_copy(p)

    def check_equal(self) -> None:
        for p in range(self.count):
            source, copy = self.source.bucket.partitions[p], self.copy.bucket.partitions[p]
            assert copy.high_seqno == source.high_seqno
            assert copy.persisted_seqno == copy.high_seqno
            assert copy.failover_log == source.failover_log
            assert self.copy.documents(p) == self.source.documents(p) == self.replay(p, 1 << 60)
            assert self.copy.lineages(p) == self.source.lineages(p)
            assert all(seqno_of(f) <= copy.high_seqno for f in self.copy.documents(p).values())
