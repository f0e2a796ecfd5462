"""A connection that somebody else opened and feeds: conversations byte for byte, and nonsense."""

from __future__ import annotations

from struct import pack

import pytest

from millstream.errors import RemoteProtocolError
from millstream.kv.core.bucket import Bucket
from millstream.kv.core.copies import moves
from millstream.kv.core.copies.feed_effects import ChangeState, Send, TakenOver, Undo
from millstream.kv.core.copies.pushed_stream import AddedFeed
from millstream.kv.core.partition.partition import Partition, value_of
from millstream.model.bucket_map import BucketMap, NodeAddress
from millstream.model.partitions import PartitionState
from millstream.model.position import FailoverEntry
from millstream.wire.frames import deletion, mutation, snapshot_marker, stream_end
from millstream.wire.mcbp import (
    Datatype,
    Opcode,
    Packet,
    Status,
    StreamFlag,
    cut_packets,
    request,
    response,
)
from support.kv.log_double import NOW, new_bucket

REPLICA, PENDING, ACTIVE = PartitionState.REPLICA, PartitionState.PENDING, PartitionState.ACTIVE
NOW_S = NOW // 1_000_000_000
LOG = pack(">QQ", 0xABCDEF012345, 0)
ADD = request(Opcode.DCP_ADD_STREAM, vbucket=1, opaque=77, extras=bytes(4))
GRANTED = response(Opcode.DCP_STREAM_REQ, Status.SUCCESS, 1, value=LOG)
Said = list[tuple[int, int]]


def packets_of(data: bytes) -> list[Packet]:
    found, rest = cut_packets(data, 1 << 25)
    assert rest == b""
    return found


class Talk:
    """The peer of a feed over partitions that are replicas without a history."""

    def __init__(self, *, window_bytes: int = 1 << 20, is_extended: bool = False) -> None:
        self.bucket: Bucket = new_bucket(3)
        for partition in self.bucket.partitions:
            partition.failover_log, partition.last_branch = (FailoverEntry(9, 0, 0),), 0
            moves.rename(partition, REPLICA)
        self.feed = AddedFeed(
            self.bucket, lambda packet, status: response(packet.opcode, status, packet.opaque),
            is_extended=is_extended, window_bytes=window_bytes,
        )  # fmt: skip
        self.effects: list[object] = []
        self.controls = self.take()
        for packet in self.controls:
            self.say(response(packet.opcode, 0, packet.opaque))

    @property
    def partition(self) -> Partition:
        return self.bucket.partitions[1]

    def say(self, data: bytes) -> list[Packet]:
        """Send it; what comes back."""
        for packet in packets_of(data):
            self.feed.on_packet(packet, NOW_S)
            while self.feed.step():
                pass
        return self.take()

    def take(self) -> list[Packet]:
        data = b""
        for effect in self.feed.take_effects():
            if isinstance(effect, Send):
                data += effect.data
            else:
                self.effects.append(effect)
        return packets_of(data)

    def status(self, data: bytes) -> int:
        (answer,) = self.say(data)
        return answer.status

    def open(self, flags: int = 0) -> None:
        self.say(ADD[:-4] + flags.to_bytes(4, "big"))
        (answer,) = self.say(GRANTED)
        assert (answer.opcode, answer.status) == (Opcode.DCP_ADD_STREAM, 0)


def put(seqno: int, key: bytes = b"k", opaque: int = 1) -> bytes:
    frame = mutation(1, key, b"v%d" % seqno, seqno, 1, 100 + seqno, 0, 0, 0)
    return frame[:12] + opaque.to_bytes(4, "big") + frame[16:]


def marker(start: int, end: int, flags: int = 1) -> bytes:
    return snapshot_marker(1, 1, start, end, flags)


# -- conversations


def test_the_connection_is_configured_by_the_node() -> None:
    texts = {packet.key: packet.value for packet in Talk().controls}
    assert all(packet.opcode == Opcode.DCP_CONTROL for packet in Talk().controls)
    assert texts == {
        b"enable_noop": b"true",
        b"set_noop_interval": b"20",
        b"connection_buffer_size": b"1048576",
        b"enable_expiry_opcode": b"true",
    }


def test_a_stream_byte_for_byte() -> None:
    talk = Talk()
    asked = talk.say(bytes.fromhex("80510000040000010000000400000f010000000000000000 00000000"))
    assert [packet.opcode for packet in asked] == [Opcode.DCP_STREAM_REQ]
    assert talk.feed.take_effects() == []
    raw = "8153000000000000000000100000000100000000000000000000abcdef0123450000000000000000"
    talk.feed.on_packet(packets_of(bytes.fromhex(raw))[0], NOW_S)
    talk.feed.step()
    (sent,) = talk.feed.take_effects()
    assert isinstance(sent, Send)
    assert sent.data.hex() == "81510000040000000000000400000f01000000000000000000000001"
    stream = (
        "8056000014000001000000140000000100000000000000000000000000000001000000000000000300000005"
        "805700021f01000100000023000000010000000000000065000000000000000100000000000000010200000000"
        "00000000000000000000 6b31 7b7d"
        "80580002120000010000001400000001000000000000006600000000000000030000000000000002"
        "0000 6b31"
    )
    assert talk.say(bytes.fromhex(stream)) == []
    assert talk.partition.high_seqno == 3
    frame = talk.partition.newest(b"k1")
    assert frame == deletion(1, b"k1", 3, 2, 0x66, NOW_S)
    assert talk.partition.failover_log[0].uuid == 0xABCDEF012345


def test_changes_of_every_form_are_kept_in_one() -> None:
    talk = Talk()
    talk.open()
    expiration = request(
        Opcode.DCP_EXPIRATION, vbucket=1, opaque=1, cas=9, extras=pack(">QQI", 2, 7, 55), key=b"e"
    )
    version_2 = request(
        Opcode.DCP_SNAPSHOT_MARKER, vbucket=1, opaque=1, extras=b"\2",
        value=pack(">QQIQQQQ", 1, 4, 1, 4, 0, 0, 0),
    )  # fmt: skip
    talk.say(version_2 + put(1, b"a") + expiration + deletion(1, b"d", 4, 1, 9, 66))
    partition = talk.partition
    assert partition.high_seqno == 4
    assert value_of(partition.newest(b"a") or b"") == b"v1"
    assert partition.newest(b"d") == deletion(1, b"d", 4, 1, 9, 66)
    assert (partition.newest(b"e") or b"")[1] == Opcode.DCP_EXPIRATION


def test_no_ops_are_answered_and_flow_is_acknowledged() -> None:
    talk = Talk(window_bytes=200)
    talk.open()
    assert talk.status(request(Opcode.DCP_NOOP, opaque=5)) == 0
    sent = marker(1, 9)
    assert talk.say(sent) == []
    refused = put(99) + put(1, opaque=3)
    answers = talk.say(refused)
    total = len(sent) + len(refused)
    assert [answer.status for answer in answers if answer.opcode == Opcode.DCP_MUTATION] == [
        Status.ERANGE, Status.KEY_ENOENT,
    ]  # fmt: skip
    acked = [answer for answer in answers if answer.opcode == Opcode.DCP_BUFFER_ACK]
    assert sum(int.from_bytes(one.extras, "big") for one in acked) == total


def test_a_source_that_says_go_back_has_the_copy_undone() -> None:
    talk = Talk()
    talk.open()
    talk.say(marker(1, 3) + put(3))
    talk.say(stream_end(1, 1, 2))
    assert talk.partition.high_seqno == 3
    asked = talk.say(ADD)
    assert [packet.opcode for packet in asked] == [Opcode.DCP_STREAM_REQ]
    talk.say(response(Opcode.DCP_STREAM_REQ, Status.ROLLBACK, 1, value=pack(">Q", 2)))
    (undo,) = talk.effects
    assert undo == Undo(1, 2, talk.partition.epoch, talk.partition.last_branch)
    talk.feed.on_not_undone(1)
    (answer,) = talk.take()
    assert (answer.opcode, answer.status) == (Opcode.DCP_ADD_STREAM, Status.ETMPFAIL)
    assert [packet.opcode for packet in talk.say(ADD)] == [Opcode.DCP_STREAM_REQ]


def test_a_partition_is_taken_over() -> None:
    talk = Talk()
    talk.open(StreamFlag.TAKEOVER)
    (answer,) = talk.say(marker(1, 2, 9) + put(2))
    assert (answer.opcode, answer.status) == (Opcode.DCP_SNAPSHOT_MARKER, 0)
    for state in (PENDING, ACTIVE):
        extras = state.to_bytes(1, "big")
        asked = request(Opcode.DCP_SET_VBUCKET_STATE, vbucket=1, opaque=1, extras=extras)
        assert talk.say(asked) == []
        assert talk.effects.pop() == ChangeState(1, state, talk.partition.epoch)
        talk.partition.state = state
        talk.feed.on_state_changed(1, "")
        (answer,) = talk.take()
        assert (answer.opcode, answer.status) == (Opcode.DCP_SET_VBUCKET_STATE, 0)
    assert talk.effects == [TakenOver(1, "")]
    assert talk.say(stream_end(1, 1, 0)) == []
    assert talk.bucket.begin_feeding(1), "it is fed no longer"


def test_a_history_without_a_number_is_later_than_those_known() -> None:
    talk = Talk()
    talk.partition.last_branch = 7
    talk.open()
    first = talk.partition.failover_log
    assert first == (FailoverEntry(0xABCDEF012345, 0, 8),)
    talk.say(marker(1, 2) + put(2))
    talk.say(stream_end(1, 1, 0))
    talk.open()
    assert talk.partition.failover_log == first, "known by now"
    talk.say(stream_end(1, 1, 2))
    talk.say(ADD)
    longer = pack(">QQ", 0xB, 2) + pack(">QQ", 0xA, 1) + LOG
    talk.say(response(Opcode.DCP_STREAM_REQ, 0, 1, value=longer))
    assert [entry.branch for entry in talk.partition.failover_log] == [9, 8, 8]


# -- the end of streams


def test_a_stream_is_closed_by_the_administrator() -> None:
    talk = Talk()
    talk.open()
    close = request(Opcode.DCP_CLOSE_STREAM, vbucket=1, opaque=4)
    answers = talk.say(close)
    assert [(one.magic, one.opcode) for one in answers] == [
        (0x81, Opcode.DCP_CLOSE_STREAM), (0x80, Opcode.DCP_CLOSE_STREAM),
    ]  # fmt: skip
    assert talk.say(marker(1, 2) + put(1)) == [], "sent before the source knew"
    assert talk.partition.queue.high_seqno == 0
    assert talk.status(close) == Status.KEY_ENOENT
    assert talk.say(response(Opcode.DCP_CLOSE_STREAM, 0, 1)) == []
    assert talk.status(put(1)) == Status.KEY_ENOENT
    talk.open()


def test_the_source_ends_a_stream() -> None:
    talk = Talk()
    talk.open()
    assert talk.say(stream_end(1, 1, 0)) == []
    assert talk.status(marker(1, 2)) == Status.KEY_ENOENT
    assert talk.bucket.begin_feeding(1)


def test_a_connection_that_is_gone_feeds_nothing() -> None:
    talk = Talk()
    talk.open()
    assert not talk.bucket.begin_feeding(1)
    talk.feed.close()
    assert talk.bucket.begin_feeding(1)


# -- what is refused


@pytest.mark.parametrize("status", [Status.NOT_MY_VBUCKET, Status.ETMPFAIL, 0x8D])
def test_a_stream_that_the_source_refuses(status: int) -> None:
    talk = Talk()
    talk.say(ADD)
    wanted = status if status in set(Status) else Status.EINTERNAL
    assert talk.status(response(Opcode.DCP_STREAM_REQ, status, 1)) == wanted
    assert talk.bucket.begin_feeding(1)


def test_a_copy_promised_to_a_later_history_is_not_fed() -> None:
    talk = Talk(is_extended=True)
    talk.partition.last_branch = 5
    talk.say(ADD)
    branches = pack(">QQQ", 0xABCDEF012345, 0, 3)
    talk.say(response(Opcode.BRANCH_LOG, 0, 1, value=branches))
    talk.say(GRANTED)
    assert talk.status(response(Opcode.DCP_CLOSE_STREAM, 0, 1)) == Status.EACCESS


def test_streams_that_cannot_be_added() -> None:
    talk = Talk()
    add = Opcode.DCP_ADD_STREAM
    assert talk.status(request(add, vbucket=1)) == Status.EINVAL
    assert talk.status(request(add, vbucket=1, extras=bytes(4), key=b"x")) == Status.EINVAL
    assert talk.status(request(add, vbucket=1, extras=pack(">I", 0x40))) == Status.EINVAL
    assert talk.status(request(add, vbucket=3, extras=bytes(4))) == Status.NOT_MY_VBUCKET
    talk.bucket.partitions[2].state = ACTIVE
    assert talk.status(request(add, vbucket=2, extras=bytes(4))) == Status.NOT_MY_VBUCKET
    talk.partition.suspend()
    assert talk.status(ADD) == Status.ETMPFAIL
    talk.partition.resume()
    talk.open()
    assert talk.status(ADD) == Status.KEY_EEXISTS
    assert talk.bucket.begin_feeding(0)
    assert talk.status(request(add, vbucket=0, extras=bytes(4))) == Status.EBUSY


def test_a_copy_that_follows_a_node_by_the_map_is_not_fed() -> None:
    talk = Talk()
    nodes = tuple(NodeAddress(name, "h", 1, 2) for name in "ab")
    talk.bucket.set_map(BucketMap(1, nodes, (("a", "b"),) * 3), "b")
    assert talk.status(ADD) == Status.EBUSY


def test_changes_that_cannot_be_kept() -> None:
    talk = Talk()
    talk.open()
    talk.say(marker(1, 9))
    extras = pack(">QQIIIHB", 1, 1, 0, 0, 0, 0, 0)
    wrong: list[dict[str, object]] = [
        {"extras": extras[:-1], "key": b"k"},
        {"extras": extras[:-3] + b"\0\5\0", "key": b"k"},
        {"extras": extras, "key": b""},
        {"extras": extras, "key": b"k" * 251},
        {"extras": extras, "key": b"k", "datatype": Datatype.SNAPPY},
    ]
    for parts in wrong:
        frame = request(Opcode.DCP_MUTATION, vbucket=1, opaque=1, **parts)  # type: ignore[arg-type]
        assert talk.status(frame) == Status.EINVAL
    deleted = request(
        Opcode.DCP_DELETION, vbucket=1, opaque=1, extras=bytes(18), key=b"k", value=b"x"
    )
    assert talk.status(deleted) == Status.EINVAL
    odd = request(Opcode.DCP_SNAPSHOT_MARKER, vbucket=1, opaque=1, extras=b"\1", value=bytes(36))
    assert talk.status(odd) == Status.EINVAL
    assert talk.status(put(0)) == Status.ERANGE
    assert talk.say(put(1)) == []
    assert talk.status(put(1)) == Status.ERANGE


@pytest.mark.parametrize(
    "data",
    [
        request(Opcode.DCP_STREAM_REQ, vbucket=1, extras=bytes(48)),
        request(Opcode.DCP_BUFFER_ACK, extras=bytes(4)),
        request(Opcode.DCP_SEQNO_ACKNOWLEDGED, extras=bytes(8)),
        request(Opcode.BARRIER, key=b"c", extras=bytes(4)),
        response(Opcode.DCP_STREAM_REQ, 0, 1, value=LOG),
    ],
)
def test_what_ends_the_connection(data: bytes) -> None:
    talk = Talk()
    talk.open()
    with pytest.raises(RemoteProtocolError):
        talk.say(data)


def test_a_peer_that_overruns_the_window_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.kv.core.copies.pushed_stream.VALUE_BYTES_MAX", 100)
    talk = Talk(window_bytes=100)
    talk.open()
    talk.bucket.writes.refuse("memory")  # nothing is acknowledged now
    talk.say(marker(1, 99))
    many = b"".join(map(put, range(1, 9)))
    with pytest.raises(RemoteProtocolError, match="twice the window"):
        talk.say(many)


def test_there_is_nothing_to_set() -> None:
    control = request(Opcode.DCP_CONTROL, key=b"enable_noop", value=b"true")
    assert Talk().status(control) == Status.EINVAL


def test_a_node_of_our_own_is_asked_for_branches() -> None:
    talk = Talk(is_extended=True)
    asked = [packet.opcode for packet in talk.say(ADD)]
    assert asked == [Opcode.BRANCH_LOG, Opcode.POSITIONS, Opcode.DCP_STREAM_REQ]
