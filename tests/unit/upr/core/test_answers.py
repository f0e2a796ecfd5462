"""What the reader of a take-over answers, and both sides of one, cut at every message."""

from __future__ import annotations

import pytest

from millstream.errors import RemoteProtocolError
from millstream.model.partitions import PartitionState
from millstream.upr.core.answers import StateRequested
from millstream.upr.core.consumer import (
    ChangesReceived,
    ConsumerCore,
    StreamEnded,
)
from millstream.upr.core.follower import StreamOptions
from millstream.upr.core.producer import Producer
from millstream.upr.core.takeover import Phase, TakeOverStream
from millstream.wire.frames import change_of, iter_frames, mutation, snapshot_marker, stream_end
from millstream.wire.mcbp import (
    Opcode,
    SnapshotFlag,
    Status,
    StreamEndReason,
    StreamFlag,
    cut_packets,
    request,
    response,
)
from support.streams.fake_source import FakeBucket, FakePartition
from support.streams.stream_talk import filled

TAKE_OVER = StreamOptions(flags=StreamFlag.TAKEOVER)
ACTIVE, REPLICA, PENDING, DEAD = (
    PartitionState.ACTIVE,
    PartitionState.REPLICA,
    PartitionState.PENDING,
    PartitionState.DEAD,
)


def put(seqno: int) -> bytes:
    return mutation(0, b"k%d" % seqno, b"v", seqno, 1, seqno, 0, 0, 0)


def marker(start: int, end: int, flags: int = SnapshotFlag.MEMORY | SnapshotFlag.ACK) -> bytes:
    return snapshot_marker(0, 0, start, end, flags)


def be(state: int, opcode: int = Opcode.DCP_SET_VBUCKET_STATE) -> bytes:
    return request(opcode, extras=bytes([state]))


def taking(options: StreamOptions = TAKE_OVER) -> ConsumerCore:
    core = ConsumerCore(has_extensions=False)
    core.follow(0, options=options)
    log = (0xA).to_bytes(8, "big") + bytes(8)
    core.receive_data(response(Opcode.DCP_STREAM_REQ, Status.SUCCESS, 0, value=log))
    core.take_bytes()
    return core


def answers(core: ConsumerCore) -> list[tuple[int, int]]:
    packets, rest = cut_packets(core.take_bytes(), 1 << 20)
    assert rest == b""
    return [(packet.opcode, packet.status) for packet in packets]


LATE = (Phase.ANNOUNCED, Phase.STOPPING)
MARKER_ANSWERED = (int(Opcode.DCP_SNAPSHOT_MARKER), 0)


def test_a_marker_is_answered_once_its_last_change_is_there() -> None:
    core = taking()
    core.receive_data(marker(1, 2) + put(1))
    assert answers(core) == []
    core.receive_data(put(2))
    assert answers(core) == [MARKER_ANSWERED]
    core.receive_data(marker(3, 4, SnapshotFlag.MEMORY) + put(3) + put(4))
    assert answers(core) == []


def test_a_snapshot_that_was_continued_is_answered_once() -> None:
    core = taking()
    core.receive_data(marker(1, 2) + put(1) + marker(0, 5) + put(3))
    assert answers(core) == []
    advance = request(Opcode.DCP_SEQNO_ADVANCED, extras=(5).to_bytes(8, "big"))
    core.receive_data(advance)
    assert answers(core) == [MARKER_ANSWERED]


def test_a_state_is_answered_when_the_copy_has_it() -> None:
    core = taking()
    assert core.receive_data(be(3)) == [StateRequested(0, 3)]
    assert answers(core) == []
    core.answer_state(0, Status.SUCCESS)
    assert answers(core) == [(Opcode.DCP_SET_VBUCKET_STATE, Status.SUCCESS)]
    core.receive_data(be(1))
    core.answer_state(0, Status.ETMPFAIL)
    assert answers(core) == [(Opcode.DCP_SET_VBUCKET_STATE, Status.ETMPFAIL)]


def test_nothing_is_answered_to_a_stream_that_is_over() -> None:
    core = taking()
    core.receive_data(marker(1, 2) + be(3) + stream_end(0, 0, 2))
    core.follow(0, options=TAKE_OVER)
    core.take_bytes()
    core.answer_state(0, Status.SUCCESS)
    assert answers(core) == []


@pytest.mark.parametrize(
    "data",
    [be(3) + be(1), be(3, Opcode.DCP_COMMIT), request(Opcode.DCP_SET_VBUCKET_STATE)],
)
def test_what_no_take_over_sends(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        taking().receive_data(data)


def test_other_streams_set_no_states() -> None:
    with pytest.raises(RemoteProtocolError):
        taking(StreamOptions()).receive_data(be(3))


# -- both sides of a take-over


class Sides:
    """A source that is written to, and a reader that takes it over; messages go one by one.

    Every step that moves anything counts; from step `cut_at` on the line is dead.
    """

    def __init__(self, cut_at: int, keys: str = "abc") -> None:
        self.cut_at, self.steps = cut_at, 0
        self.bucket = FakeBucket([filled(keys)])
        self.source: FakePartition = self.bucket.partitions[0]
        self.source.forget_memory(1)
        self.producer = Producer(self.bucket, 0x21, is_extended=True, has_json=True,
                                 may_take_over=True)  # fmt: skip
        self.core = ConsumerCore()
        self.core.start(b"taker")
        self.core.follow(0, options=TAKE_OVER)
        self.state = REPLICA
        self.held: dict[bytes, bytes] = {}
        self.accepted = {key.encode(): b"%d" % (at + 1) for at, key in enumerate(keys)}
        self.asked: list[int] = []
        self.writes = 0
        self.phase_when_cut: Phase | None = None
        self.is_done = False

    def goes_on(self) -> bool:
        """Count a step; False: the line is cut before it."""
        if self.steps == self.cut_at:
            self.cut()
            return False
        self.steps += 1
        return True

    def cut(self) -> None:
        stream = self.producer._streams.get(0)
        if isinstance(stream, TakeOverStream):
            self.phase_when_cut = stream.phase
        stops = self.producer.take_stops()
        self.producer.close()
        for one in stops:  # the shell has begun: it goes on
            self.source.state = DEAD
            self.producer.on_stopped(one, has_stopped=True)

    def write(self) -> None:
        """A client writes; it is accepted where the copy is active and says so."""
        self.writes += 1
        stream = self.producer._streams.get(0)
        is_late = isinstance(stream, TakeOverStream) and stream.phase in LATE
        if self.source.state is ACTIVE and (self.writes < 5 or is_late):
            seqno = self.source.put(b"w%d" % self.source.high_seqno, b"w")
            self.accepted[b"w%d" % (seqno - 1)] = b"w"
        self.producer.on_news()

    def check(self) -> None:
        """Never two active copies, and whoever is active has all that was accepted."""
        assert not (self.source.state is ACTIVE and self.state is ACTIVE)
        if self.state is ACTIVE:
            assert self.source.state is DEAD
            assert self.held == self.accepted
        if self.source.state is ACTIVE:
            assert self.source.state_at(self.source.high_seqno) == self.accepted

    def run(self) -> None:
        while not self.is_done:
            self.check()
            if not self.pass_on():
                return

    def pass_on(self) -> bool:
        """Everything that can move moves, one message after the other; False: cut."""
        packets, _ = cut_packets(self.core.take_bytes(), 1 << 20)
        for packet in packets:
            if not self.goes_on():
                return False
            if packet.opcode not in (Opcode.DCP_OPEN, Opcode.BRANCH_LOG, Opcode.POSITIONS):
                self.producer.on_packet(packet)
            self.check()
        self.write()
        for stream in self.producer.take_stops():
            self.write()
            if not self.goes_on():
                return False
            self.source.state = DEAD
            self.producer.on_stopped(stream, has_stopped=True)
            self.check()
        data = self.producer.take_replies() + (self.producer.produce() or b"")
        for read in self.producer.take_reads():
            self.producer.on_chunk(read, next(read.chunks, None))
        for frame in iter_frames(data):
            if not self.goes_on():
                return False
            self.hear(frame)
            self.check()
        return True

    def hear(self, frame: bytes) -> None:
        for event in self.core.receive_data(frame):
            match event:
                case ChangesReceived(_, _, frames):
                    for one in frames:
                        change = change_of(one)
                        self.held[change.key] = change.value
                case StateRequested(_, state):
                    self.asked.append(state)
                    self.state = PartitionState(state)
                    self.core.answer_state(0, Status.SUCCESS)
                case StreamEnded(_, _, reason):
                    assert reason == StreamEndReason.OK
                    self.is_done = True


def test_a_take_over_that_nothing_disturbs() -> None:
    sides = Sides(cut_at=1 << 30)
    sides.run()
    assert (sides.source.state, sides.state) == (DEAD, ACTIVE)
    assert sides.asked == [PENDING, ACTIVE]
    assert sides.held == sides.accepted
    assert len(sides.held) > 6
    assert not sides.source.holds


def test_a_take_over_cut_at_every_message_leaves_one_active_copy_at_most() -> None:
    whole = Sides(cut_at=1 << 30)
    whole.run()
    phases: set[Phase | None] = set()
    for cut_at in range(whole.steps):
        sides = Sides(cut_at)
        sides.run()
        sides.check()
        phases.add(sides.phase_when_cut)
        if sides.source.state is ACTIVE:
            assert sides.state is not ACTIVE
        assert sides.bucket.take_overs == set()
        assert sides.bucket.held_back == set()
        assert not sides.source.holds
        assert not sides.source.readers
    assert phases >= set(Phase)
