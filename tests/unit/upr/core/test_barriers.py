"""Cookies come back in order, once everything accepted before them was sent, and never before."""

from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.model.partitions import PartitionState
from millstream.model.position import Position
from millstream.upr.core import barriers as barriers_module
from millstream.upr.core.messages import (
    Reached,
    StreamRequest,
    decode_barrier_reached,
    encode_barrier,
    encode_stream_request,
)
from millstream.wire.mcbp import Opcode, Packet, Status, request
from support.budget import budget
from support.streams.fake_source import FakePartition
from support.streams.stream_talk import Talk, filled, packets_of
from support.streams.stream_talk import words as words_of_stream


def words(packet: Packet) -> str:
    if packet.opcode == Opcode.BARRIER_REACHED:
        cookie, reached = decode_barrier_reached(packet)
        return cookie.decode() + "".join(f" {p}@{one.seqno}" for p, one in reached.items())
    if packet.opcode == Opcode.CYCLE_END:
        return f"cycle {int.from_bytes(packet.extras, 'big')}"
    return words_of_stream(packet)


def talk_of(*partitions: FakePartition, cycles: bool = False) -> Talk:
    talk = Talk(*partitions, is_extended=True)
    assert talk.control("enable_barriers", "true") == Status.SUCCESS
    if cycles:
        assert talk.control("enable_cycle_ends", "true") == Status.SUCCESS
    return talk


def barrier(talk: Talk, cookie: str, *named: int) -> int:
    return talk.ask(encode_barrier(cookie.encode(), named or None))[0].status


def sent(talk: Talk) -> list[str]:
    return [words(packet) for packet in talk.packets()]


def step(talk: Talk) -> list[str]:
    return [words(packet) for packet in packets_of(talk.producer.produce() or b"")]


def test_a_cookie_on_bytes() -> None:
    talk = talk_of(filled("ab"))
    talk.stream()
    talk.sent()
    reply = talk.ask(
        bytes.fromhex("80680003040000000000000700001234000000000000000000000000") + b"abc"
    )
    assert packets_of(talk.producer.take_replies()) == []
    assert (reply[0].status, reply[0].opaque, len(reply)) == (Status.SUCCESS, 0x1234, 1)
    assert (talk.producer.produce() or b"").hex() == (
        "80690003040000000000001900001234000000000000000000000001"
        "616263"
        "0000" "000000000000a001" "0000000000000002"
    )  # fmt: skip
    assert talk.producer.produce() is None


def test_where_nothing_is_streamed_a_cookie_comes_straight_back() -> None:
    talk = talk_of(filled("ab"))
    assert barrier(talk, "x") == Status.SUCCESS
    assert sent(talk) == ["x"]


def test_a_cookie_waits_for_what_was_accepted_before_it_and_for_no_more() -> None:
    talk = talk_of(filled("ab"), filled("c", 1))
    talk.stream()
    talk.stream(1)
    barrier(talk, "x")
    talk.partition.fill("d")
    assert sent(talk) == ["[0,3] memory", "a1", "b2", "d3", "[0,1] memory", "c1", "x 0@3 1@1"]
    talk.partition.fill("e")
    barrier(talk, "y")
    talk.control("connection_buffer_size", "1")
    assert step(talk) == ["[4,4] memory"]
    talk.partition.fill("f")
    barrier(talk, "z")
    talk.control("connection_buffer_size", "0")
    assert sent(talk) == ["e4", "y 0@4 1@1", "[5,5] memory", "f5", "z 0@5 1@1"]


def test_to_be_past_a_seqno_inside_a_snapshot_is_not_to_be_through() -> None:
    talk = talk_of(filled("ab"))
    talk.stream()
    barrier(talk, "x")
    talk.partition.fill("cd")
    talk.control("connection_buffer_size", "1")
    seen = []
    for _ in range(6):
        seen += step(talk)
        talk.ask(request(Opcode.DCP_BUFFER_ACK, extras=b"\0\0\1\0"))
    assert seen == ["[0,4] memory", "a1", "b2", "c3", "d4", "x 0@4"]


def test_cookies_come_back_first_in_first_out() -> None:
    talk = talk_of(filled("ab"), filled("c", 1))
    talk.stream(1)
    talk.sent()
    talk.stream(0)
    barrier(talk, "x", 0)
    barrier(talk, "y", 1)
    assert sent(talk) == ["[0,2] memory", "a1", "b2", "x 0@2", "y 1@1"]


def test_a_cookie_waits_once_and_may_be_used_again() -> None:
    talk = talk_of(filled("ab"))
    talk.stream()
    assert barrier(talk, "x") == Status.SUCCESS
    assert barrier(talk, "x") == Status.KEY_EEXISTS
    assert sent(talk)[-1] == "x 0@2"
    assert barrier(talk, "x") == Status.SUCCESS
    assert sent(talk) == ["x 0@2"]


def test_a_stream_that_ends_is_not_waited_for_and_not_named() -> None:
    talk = talk_of(filled("ab"), filled("c", 1), filled("d", 2))
    for number in range(3):
        talk.stream(number)
    barrier(talk, "x")
    talk.bucket.partitions[1].state = PartitionState.DEAD
    assert talk.ask(request(Opcode.DCP_CLOSE_STREAM, vbucket=2))[0].status == Status.SUCCESS
    assert sent(talk) == ["[0,2] memory", "a1", "b2", "end 2", "x 0@2"]


def test_a_stream_of_a_history_that_is_gone_must_end_first() -> None:
    talk = talk_of(filled("abcd"))
    talk.stream()
    talk.sent()
    talk.partition.fail_over(2)
    talk.partition.fill("x")
    barrier(talk, "y")
    assert sent(talk) == ["end 6", "y"], "its 4 are not the 3 of this history"


def test_a_stream_opened_later_takes_no_part() -> None:
    talk = talk_of(filled("ab"), filled("c", 1))
    talk.stream()
    barrier(talk, "x")
    talk.stream(1)
    talk.bucket.partitions[1].forget_memory(1)
    assert step(talk) == ["[0,2] memory", "a1", "b2", "x 0@2"]


def test_a_cookie_waits_for_room() -> None:
    talk = talk_of(filled("a"))
    talk.control("connection_buffer_size", "100")
    talk.stream()
    barrier(talk, "x")
    first = talk.producer.produce() or b""
    assert [words(packet) for packet in packets_of(first)] == ["[0,1] memory", "a1"]
    assert talk.producer.produce() is None
    talk.ask(request(Opcode.DCP_BUFFER_ACK, extras=b"\0\0\0\2"))
    second = talk.producer.produce() or b""
    assert [words(packet) for packet in packets_of(second)] == ["x 0@1"]
    assert talk.producer.unacked_bytes == len(first + second) - 2


def test_a_cookie_waits_for_the_disk_where_streams_do() -> None:
    talk = talk_of(filled("ab"))
    talk.control("durable_only", "true")
    talk.stream()
    barrier(talk, "x")
    assert sent(talk) == []
    talk.partition.persisted_seqno = 2
    talk.partition.marks.append(2)
    assert sent(talk) == ["[0,2] memory", "a1", "b2", "x 0@2"]


def test_bounded_streams_and_ends_inside_a_snapshot() -> None:
    talk = talk_of(filled("abcd"), filled("e", 1))
    hold = talk.partition.open_hold()
    assert hold is not None
    talk.bucket.leases[5, 0] = hold
    talk.stream(0, end=2, lease=5)
    talk.stream(1, end=1)
    barrier(talk, "x")
    assert sent(talk) == [
        "[0,4] memory", "a1", "b2", "end 0", "[0,1] memory", "e1", "end 0", "x 1@1",
    ]  # fmt: skip


def test_a_stream_resumed_inside_a_snapshot_is_through_at_its_end() -> None:
    talk = talk_of(filled("abc"))
    uuid = talk.partition.failover_log[0].uuid
    talk.stream(at=Position(uuid, 2, 1, 3))
    assert barrier(talk, "x") == Status.SUCCESS
    talk.control("connection_buffer_size", "1")
    assert step(talk) == ["[1,3] memory"]
    talk.control("connection_buffer_size", "0")
    assert sent(talk) == ["c3", "x 0@3"]


def test_a_purged_end_is_an_end() -> None:
    talk = talk_of(filled("aB"))
    talk.partition.purge(2)
    talk.stream()
    barrier(talk, "x")
    assert sent(talk) == ["[0,2] memory", "a1", "at 2", "x 0@2"]


@pytest.mark.parametrize(
    ("key", "extras", "value", "status"),
    [
        (b"", bytes(4), b"", Status.EINVAL),
        (b"c" * 64, bytes(4), b"", Status.SUCCESS),
        (b"c" * 65, bytes(4), b"", Status.EINVAL),
        (b"c", b"", b"", Status.EINVAL),
        (b"c", b"\0\0\0\2", b"", Status.EINVAL),
        (b"c", b"\0\0\0\3", b"\0\0", Status.EINVAL),
        (b"c", b"\0\0\0\1", b"", Status.EINVAL),
        (b"c", b"\0\0\0\1", b"\0", Status.EINVAL),
        (b"c", bytes(4), b"\0\0", Status.EINVAL),
        (b"c", b"\0\0\0\1", b"\0\0", Status.SUCCESS),
        (b"c", b"\0\0\0\1", b"\0\0\0\0", Status.SUCCESS),
        (b"c", b"\0\0\0\1", b"\0\1", Status.KEY_ENOENT),
        (b"c", b"\0\0\0\1", b"\xff\xff", Status.KEY_ENOENT),
    ],
)
def test_what_a_barrier_may_ask(key: bytes, extras: bytes, value: bytes, status: int) -> None:
    talk = talk_of(filled("ab"), filled("c", 1))
    talk.stream()
    asked = request(Opcode.BARRIER, key=key, extras=extras, value=value)
    assert talk.ask(asked)[0].status == status
    assert talk.producer.statistics()[-1] == ("num_barriers", str(int(status == Status.SUCCESS)))


def test_too_many_cookies_are_refused_and_leave_nothing_behind() -> None:
    talk = talk_of(filled("ab"))
    talk.stream()
    for number in range(barriers_module.BARRIERS_MAX):
        assert barrier(talk, f"{number}") == Status.SUCCESS
    assert barrier(talk, "one more") == Status.ETMPFAIL
    assert len(sent(talk)) == 3 + barriers_module.BARRIERS_MAX
    assert barrier(talk, "one more") == Status.SUCCESS
    talk.partition.fill("c")
    barrier(talk, "and another")
    talk.producer.close()
    assert talk.producer.statistics()[-1] == ("num_barriers", "0")
    assert talk.producer.produce() is None


def test_who_did_not_ask_never_sees_them() -> None:
    asked = encode_barrier(b"x")
    plain = Talk(filled("ab"))
    assert plain.control("enable_barriers", "true") == Status.EINVAL
    assert plain.ask(asked)[0].status == Status.UNKNOWN_COMMAND
    for opcode in (Opcode.BARRIER_REACHED, Opcode.CYCLE_END):
        assert plain.ask(request(opcode))[0].status == Status.UNKNOWN_COMMAND
    own = Talk(filled("ab"), is_extended=True)
    own.stream()
    assert own.ask(asked)[0].status == Status.UNKNOWN_COMMAND
    assert own.sent() == "[0,2] memory a1 b2"
    assert own.ask(request(Opcode.CYCLE_END)) == []
    assert own.producer.wants_close, "that is for the producer to say"


def test_cycles_end_when_every_stream_has_had_its_turn() -> None:
    talk = talk_of(filled("ab"), filled("c", 1), FakePartition(2), cycles=True)
    for number in range(3):
        talk.stream(number)
    assert sent(talk) == ["[0,2] memory", "a1", "b2", "[0,1] memory", "c1", "cycle 1"]
    assert sent(talk) == [], "where nothing is sent nothing ends"
    talk.bucket.partitions[2].fill("d")
    barrier(talk, "x")
    assert sent(talk) == ["[0,1] memory", "d1", "x 0@2 1@1 2@1", "cycle 2"]


def test_what_comes_after_a_cycle_began_belongs_to_the_next() -> None:
    talk = talk_of(filled("a"), filled("b", 1), cycles=True)
    talk.control("connection_buffer_size", "45")
    talk.stream(0)
    talk.stream(1)
    assert step(talk) == ["[0,1] memory", "a1"]
    talk.partition.fill("c")
    talk.control("connection_buffer_size", "0")
    assert sent(talk) == ["[0,1] memory", "b1", "cycle 1", "[2,2] memory", "c2", "cycle 2"]


# -- never early, never forgotten, in order


class Asked(NamedTuple):
    cookie: bytes
    records: dict[int, int | None]
    """Opaque of each stream that takes part -> high seqno of its partition then, None if the
    history that it streams was gone."""


class Peer:
    """What a consumer knows of a stream, by the opaque of its request."""

    def __init__(self) -> None:
        self.state: dict[bytes, bytes] = {}
        self.marker_end = self.last = 0
        self.complete = [0]
        self.is_over = False


class World:
    """A producer whose messages are checked one by one against what the partitions ever had."""

    def __init__(self, count: int, *, cycles: bool) -> None:
        self.talk = talk_of(*(FakePartition(number) for number in range(count)), cycles=cycles)
        self.partitions = self.talk.bucket.partitions
        self.peers: dict[int, Peer] = {}
        self.streams: dict[int, int] = {}
        self.branches: dict[int, int] = {}
        self.asked: list[Asked] = []
        self.cycles = 0

    def do(self, what: str, partition: FakePartition, number: int) -> None:
        getattr(self, what)(partition, number)
        for packet in packets_of(self.talk.producer.take_replies()):
            self.see(packet)

    # -- what happens

    def put(self, partition: FakePartition, number: int) -> None:
        partition.put(b"k%d" % (number % 4), b"%d" % number if number % 3 else None)
        self.talk.producer.on_news()

    def open(self, partition: FakePartition, _: int) -> None:
        opaque = 0x100 * (len(self.peers) + 1)
        asked = StreamRequest(partition.partition_id, Position())
        if self.talk.ask(encode_stream_request(asked, opaque))[0].status == Status.SUCCESS:
            self.peers[opaque] = Peer()
            self.streams[partition.partition_id] = opaque
            self.branches[opaque] = partition.failover_log[0].branch

    def close(self, partition: FakePartition, _: int) -> None:
        self.talk.ask(request(Opcode.DCP_CLOSE_STREAM, vbucket=partition.partition_id))
        if partition.partition_id in self.streams:
            self.peers[self.streams.pop(partition.partition_id)].is_over = True

    def barrier(self, partition: FakePartition, number: int) -> None:
        named = [partition.partition_id] if number % 3 == 0 else None
        cookie = b"%d" % number
        chosen = [p for p in self.streams if named is None or p in named]
        status = self.talk.ask(encode_barrier(cookie, named))[0].status
        if any(one.cookie == cookie for one in self.asked):
            assert status in {Status.KEY_EEXISTS, Status.KEY_ENOENT}
        elif status == Status.SUCCESS:
            self.asked.append(Asked(cookie, {self.streams[p]: self.record(p) for p in chosen}))
        else:
            assert (status, chosen) == (Status.KEY_ENOENT, [])

    def record(self, number: int) -> int | None:
        partition = self.partitions[number]
        is_there = partition.failover_log[0].branch == self.branches[self.streams[number]]
        return partition.high_seqno if is_there else None

    def window(self, _: FakePartition, number: int) -> None:
        self.talk.control("connection_buffer_size", str(number % 4 * (1 + number)))

    def ack(self, _: FakePartition, number: int) -> None:
        acked = (10 * number).to_bytes(4, "big")
        assert self.talk.ask(request(Opcode.DCP_BUFFER_ACK, extras=acked)) == []

    def produce(self, _: FakePartition, __: int) -> None:
        for packet in packets_of(self.talk.producer.produce() or b""):
            self.see(packet)

    def read(self, _: FakePartition, __: int) -> None:
        self.talk.read_log(1)

    def lose(self, partition: FakePartition, _: int) -> None:
        partition.lose_holds()

    def forget(self, partition: FakePartition, _: int) -> None:
        partition.forget_memory(partition.high_seqno)

    def part(self, partition: FakePartition, number: int) -> None:
        partition.fail_over(max(0, partition.high_seqno - number % 3))

    # -- what is seen

    def see(self, packet: Packet) -> None:
        if packet.opcode == Opcode.BARRIER_REACHED:
            self.see_cookie(*decode_barrier_reached(packet))
            return
        if packet.opcode == Opcode.CYCLE_END:
            self.cycles += 1
            assert int.from_bytes(packet.extras, "big") == self.cycles
            return
        peer = self.peers[packet.opaque]
        assert not peer.is_over
        if packet.opcode == Opcode.DCP_STREAM_END:
            peer.is_over = True
            del self.streams[packet.vbucket]
        elif packet.opcode == Opcode.DCP_SNAPSHOT_MARKER:
            peer.marker_end = int.from_bytes(packet.extras[8:16], "big")
        else:
            peer.last = int.from_bytes(packet.extras[:8], "big")
            if packet.opcode == Opcode.DCP_MUTATION:
                peer.state[packet.key] = packet.value
            elif packet.opcode == Opcode.DCP_DELETION:
                peer.state.pop(packet.key, None)
            if peer.last == peer.marker_end:
                peer.complete.append(peer.last)
                partition, branch = self.partitions[packet.vbucket], self.branches[packet.opaque]
                assert peer.state == partition.state_at(peer.last, branch)

    def see_cookie(self, cookie: bytes, reached: dict[int, Reached]) -> None:
        asked = self.asked.pop(0)
        assert cookie == asked.cookie, "first in, first out"
        for opaque, record in asked.records.items():
            peer = self.peers[opaque]
            if not peer.is_over:
                assert record is not None, "its end is due before"
                assert peer.complete[-1] >= record, "early"
                number = next(p for p, known in self.streams.items() if known == opaque)
                assert reached[number].seqno in peer.complete
                assert reached[number].seqno >= record

    def finish(self) -> None:
        """Nothing is written any more: everything comes."""
        self.do("window", self.partitions[0], 0)
        self.talk.producer.on_news()
        for _ in range(60):
            self.do("produce", self.partitions[0], 0)
            self.talk.read_log()
        assert self.asked == [], "forgotten"
        assert len(self.talk.producer._barriers) == 0
        for number, opaque in self.streams.items():
            high = self.partitions[number].high_seqno
            assert self.peers[opaque].complete[-1] == high


HAPPENINGS = (
    "put", "put", "put", "put", "open", "close", "barrier", "barrier", "window", "ack", "ack",
    "produce", "produce", "produce", "read", "read", "lose", "forget", "part",
)  # fmt: skip
happening = st.tuples(st.sampled_from(HAPPENINGS), st.integers(0, 2), st.integers(0, 30))


@settings(max_examples=budget(250), deadline=None)
@given(st.integers(1, 3), st.booleans(), st.lists(happening, min_size=10, max_size=100))
def test_cookies_are_never_early_and_never_lost(
    count: int, cycles: bool, happenings: list[tuple[str, int, int]]
) -> None:
    world = World(count, cycles=cycles)
    for partition in world.partitions:
        world.do("open", partition, 0)
    for what, which, number in happenings:
        world.do(what, world.partitions[which % count], number)
    world.finish()
