"""A consumer's dialogue: bytes in, events out, bytes back; and bytes that nobody should send."""

from collections.abc import Iterable
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import AccessError, LocalProtocolError, MillstreamError, RemoteProtocolError
from millstream.model.limits import UINT64_MAX
from millstream.model.position import FailoverEntry, FailoverLog, Position
from millstream.upr.core.consumer import (
    BarrierReached,
    ChangesReceived,
    ConsumerCore,
    Event,
    ReplyReceived,
    RollbackRequired,
    SnapshotCompleted,
    SnapshotStarted,
    StreamEnded,
    StreamOpened,
    StreamRefused,
)
from millstream.upr.core.follower import StreamOptions
from millstream.upr.core.messages import (
    Reached,
    decode_barrier,
    decode_stream_request,
    encode_barrier_reached,
    encode_branch_log,
    encode_failover_log,
)
from millstream.wire.frames import deletion, mutation, snapshot_marker, stream_end
from millstream.wire.mcbp import Opcode, Packet, Status, cut_packets, request, response

A, B, C = 0xA, 0xB, 0xC
LOG: FailoverLog = (FailoverEntry(C, 300, 3), FailoverEntry(B, 200, 2), FailoverEntry(A, 0, 1))
PARTITION = 5


def put(seqno: int, key: bytes = b"k", value: bytes = b"v", partition: int = PARTITION) -> bytes:
    return mutation(partition, key, value, seqno, 1, seqno, 0, 0, 0)


def marker(start: int, end: int, partition: int = PARTITION) -> bytes:
    return snapshot_marker(partition, partition, start, end, 1)


def advance(seqno: int) -> bytes:
    extras = seqno.to_bytes(8, "big")
    return request(Opcode.DCP_SEQNO_ADVANCED, vbucket=PARTITION, opaque=PARTITION, extras=extras)


def granted(log: FailoverLog = LOG, partition: int = PARTITION) -> bytes:
    return response(
        Opcode.DCP_STREAM_REQ, Status.SUCCESS, partition, value=encode_failover_log(log)
    )


def branches(log: FailoverLog = LOG, partition: int = PARTITION) -> bytes:
    value = encode_branch_log(log)
    return response(Opcode.BRANCH_LOG, Status.SUCCESS, partition, value=value)


def purged(purge_seqno: int, partition: int = PARTITION, high: int = 0) -> bytes:
    value = pack(">HB5x8Q", partition, 1, 0, 0, high, high, 0, 0, 0, purge_seqno)
    return response(Opcode.POSITIONS, Status.SUCCESS, partition, value=value)


def sent_by(core: ConsumerCore) -> list[Packet]:
    found, rest = cut_packets(core.take_bytes(), 1 << 20)
    assert rest == b""
    return found


def opcodes(packets: Iterable[Packet]) -> list[int]:
    return [packet.opcode for packet in packets]


def following(
    position: Position = Position(),  # noqa: B008
    window_bytes: int = 1 << 20,
    log: FailoverLog = (),
) -> ConsumerCore:
    core = ConsumerCore(window_bytes=window_bytes)
    core.follow(PARTITION, position, log)
    core.take_bytes()
    return core


def opened(position: Position = Position(), window_bytes: int = 1 << 20) -> ConsumerCore:  # noqa: B008
    core = following(position, window_bytes)
    core.receive_data(branches() + purged(0) + granted())
    return core


# -- barriers


def test_cookies_are_enabled_once_and_come_back_among_the_changes() -> None:
    core = opened(window_bytes=100)
    core.ask_barrier(b"one")
    core.ask_barrier(b"two")
    control, *barriers = sent_by(core)
    assert (control.key, control.value) == (b"enable_barriers", b"true")
    assert [decode_barrier(packet) for packet in barriers] == [(b"one", None), (b"two", None)]
    opaques = [packet.opaque for packet in (control, *barriers)]
    assert len(set(opaques)) == 3
    assert core.receive_data(b"".join(response(p.opcode, 0, p.opaque) for p in barriers)) == []
    assert core.receive_data(response(control.opcode, 0, control.opaque)) == []
    reached = {PARTITION: Reached(C, 1)}
    back = encode_barrier_reached(b"one", barriers[0].opaque, reached)
    events = core.receive_data(marker(0, 1) + put(1) + back)
    assert events[-1] == BarrierReached(b"one", reached)
    assert isinstance(events[-2], SnapshotCompleted)
    assert [p.opcode for p in sent_by(core)] == [Opcode.DCP_BUFFER_ACK]
    core.ask_barrier(b"three")
    assert [decode_barrier(packet) for packet in sent_by(core)] == [(b"three", None)]


def test_a_cookie_that_is_refused_or_was_not_asked_for() -> None:
    core = opened()
    with pytest.raises(RemoteProtocolError, match="not streamed"):
        core.receive_data(encode_barrier_reached(b"one", 0, {}))
    core = opened()
    core.ask_barrier(b"one")
    barrier = sent_by(core)[-1]
    with pytest.raises(RemoteProtocolError, match="refused a barrier"):
        core.receive_data(response(barrier.opcode, Status.KEY_EEXISTS, barrier.opaque))


def test_only_nodes_of_our_own_send_cookies_back() -> None:
    core = ConsumerCore(has_extensions=False)
    with pytest.raises(LocalProtocolError, match="no barrier cookies"):
        core.ask_barrier(b"one")


# -- opening


def test_a_connection_is_opened_for_the_canonical_profile() -> None:
    core = ConsumerCore(window_bytes=1000)
    core.start(b"me", noop_interval_s=30)
    packets = sent_by(core)
    assert packets[0].opcode == Opcode.DCP_OPEN
    assert (packets[0].key, packets[0].extras) == (b"me", bytes(4) + (0x21).to_bytes(4, "big"))
    assert {packet.key: packet.value for packet in packets[1:]} == {
        b"enable_noop": b"true",
        b"set_noop_interval": b"30",
        b"connection_buffer_size": b"1000",
        b"enable_expiry_opcode": b"true",
    }
    assert core.receive_data(b"".join(response(p.opcode, 0, p.opaque) for p in packets)) == []


@pytest.mark.parametrize(
    ("status", "error"), [(Status.EACCESS, AccessError), (Status.EINVAL, RemoteProtocolError)]
)
def test_a_connection_that_is_refused(status: int, error: type[MillstreamError]) -> None:
    core = ConsumerCore()
    core.start(b"me")
    first = sent_by(core)[0]
    with pytest.raises(error):
        core.receive_data(response(first.opcode, status, first.opaque))


def test_a_copy_says_whose_it_is_and_how_far_it_is() -> None:
    core = ConsumerCore()
    core.start(b"me", consumer_name=b"node7")
    named = sent_by(core)[-1]
    assert (named.key, named.value) == (b"consumer_name", b"node7")
    core.acknowledge(PARTITION, 300, 250)
    told = sent_by(core)[0]
    assert (told.opcode, told.vbucket) == (Opcode.DCP_SEQNO_ACKNOWLEDGED, PARTITION)
    assert told.extras == pack(">QQ", 300, 250)


def test_a_first_load_asks_for_branches_and_the_purge_point() -> None:
    core = ConsumerCore()
    core.follow(PARTITION)
    asked = sent_by(core)
    assert opcodes(asked) == [Opcode.BRANCH_LOG, Opcode.POSITIONS, Opcode.DCP_STREAM_REQ]
    assert all(packet.opaque == PARTITION for packet in asked)
    events = core.receive_data(branches() + purged(70, high=91) + granted())
    assert events == [StreamOpened(PARTITION, Position(A, 0, 0, 0, 70), LOG, 91)]
    assert core.failover_log(PARTITION) == LOG
    assert core.position(PARTITION).purge_seqno == 70


def test_a_server_without_our_feature_is_asked_for_the_stream_only() -> None:
    core = ConsumerCore(has_extensions=False)
    core.follow(PARTITION)
    assert opcodes(sent_by(core)) == [Opcode.DCP_STREAM_REQ]
    events = core.receive_data(granted())
    log = tuple(entry._replace(branch=0) for entry in LOG)
    assert events == [StreamOpened(PARTITION, Position(A, 0, 0, 0), log)]


def test_what_is_asked_for() -> None:
    core = ConsumerCore()
    position = Position(C, 310, 0, 320, 40)
    options = StreamOptions(end=315, flags=0x10, lease=7, as_of=320, end_uuid=C)
    core.follow(PARTITION, position, LOG, options)
    packets = sent_by(core)
    assert opcodes(packets) == [Opcode.BRANCH_LOG, Opcode.POSITIONS, Opcode.DCP_STREAM_REQ]
    asked = decode_stream_request(packets[2], is_extended=True)
    assert asked == (PARTITION, position, 315, 0x10, 7, 320, C)


def test_history_that_changes_between_two_answers_is_asked_for_again() -> None:
    core = following()
    assert core.receive_data(branches(LOG[1:]) + granted() + marker(0, 5)) == []
    assert opcodes(sent_by(core)) == [Opcode.DCP_CLOSE_STREAM]
    events = core.receive_data(put(3) + response(Opcode.DCP_CLOSE_STREAM, 0, PARTITION))
    assert events == [StreamEnded(PARTITION, Position(A, 0, 0, 0), 1)]
    core.follow(PARTITION, core.position(PARTITION))


@pytest.mark.parametrize(
    ("branch_min", "told", "is_left"),
    [(3, True, False), (4, True, True), (1, False, True), (0, False, False)],
)
def test_a_source_whose_branch_is_too_low_is_left(
    branch_min: int, told: bool, is_left: bool
) -> None:
    core = ConsumerCore()
    core.follow(PARTITION, Position(), (), StreamOptions(branch_min=branch_min))
    core.take_bytes()
    refusal = response(Opcode.BRANCH_LOG, Status.EACCESS, PARTITION)
    events = core.receive_data((branches() if told else refusal) + granted() + marker(0, 5))
    assert opcodes(sent_by(core)) == [Opcode.DCP_CLOSE_STREAM] * is_left
    assert [type(event) for event in events] == [StreamOpened, SnapshotStarted] * (not is_left)


def test_durable_changes_alone_are_asked_for_of_nodes_of_ours() -> None:
    core = ConsumerCore(durable_only=True)
    core.start(b"me")
    assert (b"durable_only", b"true") in {(p.key, p.value) for p in sent_by(core)}
    with pytest.raises(LocalProtocolError, match="durable_only"):
        ConsumerCore(durable_only=True, has_extensions=False).start(b"me")


def test_a_server_that_refuses_to_tell_branches() -> None:
    core = following()
    refusal = response(Opcode.BRANCH_LOG, Status.EACCESS, PARTITION)
    events = core.receive_data(refusal + granted())
    assert isinstance(events[0], StreamOpened)
    assert events[0].failover_log[0].branch == 0


def test_a_refused_request_and_another_try() -> None:
    core = following()
    refusal = response(Opcode.DCP_STREAM_REQ, Status.NOT_MY_VBUCKET, PARTITION)
    assert core.receive_data(refusal) == [StreamRefused(PARTITION, Status.NOT_MY_VBUCKET)]
    core.follow(PARTITION)
    with pytest.raises(LocalProtocolError):
        core.follow(PARTITION)


def test_responses_to_requests_of_the_shell_come_back() -> None:
    core = following()
    data = response(Opcode.GET_VERSIONED, 0, 0x20000, value=b"x")
    events = core.receive_data(data)
    assert [event.packet.value for event in events if isinstance(event, ReplyReceived)] == [b"x"]


# -- the stream


def test_a_snapshot() -> None:
    core = opened()
    first, second = put(3), deletion(PARTITION, b"k", 9, 2, 9, 1)
    assert core.receive_data(marker(0, 9) + first + second) == [
        SnapshotStarted(PARTITION, Position(A, 0, 0, 9, 0), 1),
        ChangesReceived(PARTITION, Position(A, 9, 9, 9), [first, second]),
        SnapshotCompleted(PARTITION, Position(A, 9, 9, 9)),
    ]


def test_changes_of_partitions_by_turns() -> None:
    core = opened()
    core.follow(6)
    core.receive_data(branches(partition=6) + granted(partition=6))
    core.receive_data(marker(0, 9) + marker(0, 9, 6))
    data = put(1) + put(2, partition=6) + put(3, partition=6) + put(4)
    events = core.receive_data(data)
    turns = [event[:2] for event in events if isinstance(event, ChangesReceived)]
    assert [(number, position.seqno) for number, position in turns] == [(5, 1), (6, 3), (5, 4)]


def test_an_advance_completes_a_snapshot_without_a_change() -> None:
    core = opened()
    events = core.receive_data(marker(0, 9) + put(3) + advance(9))
    assert events[-1] == SnapshotCompleted(PARTITION, Position(A, 9, 9, 9))


def test_the_end_of_a_stream_inside_a_snapshot() -> None:
    core = opened()
    events = core.receive_data(marker(0, 9) + put(3) + stream_end(PARTITION, PARTITION, 0))
    assert events[-1] == StreamEnded(PARTITION, Position(A, 3, 0, 9, 0), 0)
    core.follow(PARTITION, core.position(PARTITION), core.failover_log(PARTITION))


@given(st.lists(st.integers(1, 60), max_size=12))
def test_bytes_are_cut_wherever_they_end(sizes: list[int]) -> None:
    data = branches() + purged(0) + granted() + marker(0, 9) + put(1) + put(2, value=bytes(90))
    data += request(Opcode.DCP_NOOP) + put(9) + stream_end(PARTITION, PARTITION, 0)
    core = following()
    events: list[Event] = []
    for size in [*sizes, len(data)]:
        events += core.receive_data(data[:size])
        data = data[size:]
    frames = [f for e in events if isinstance(e, ChangesReceived) for f in e.frames]
    assert frames == [put(1), put(2, value=bytes(90)), put(9)]
    assert events[-1] == StreamEnded(PARTITION, Position(A, 9, 9, 9), 0)
    assert opcodes(sent_by(core)) == [Opcode.DCP_NOOP]


def test_a_closed_stream_says_nothing_more() -> None:
    core = opened()
    core.receive_data(marker(0, 9) + put(1))
    core.close_stream(PARTITION)
    closed = response(Opcode.DCP_CLOSE_STREAM, 0, PARTITION)
    events = core.receive_data(put(2) + marker(0, 12) + closed)
    assert events == [StreamEnded(PARTITION, Position(A, 1, 0, 9, 0), 1)]


# -- rollback


def told_back(seqno: int) -> bytes:
    value = seqno.to_bytes(8, "big")
    return response(Opcode.DCP_STREAM_REQ, Status.ROLLBACK, PARTITION, value=value)


def test_a_rollback_is_told_undone_and_asked_again() -> None:
    core = following(Position(B, 320, 320, 320), log=LOG[1:])
    events = core.receive_data(branches() + purged(0) + told_back(300))
    assert events == [RollbackRequired(PARTITION, 300, LOG[0].branch)]
    assert core.take_bytes() == b""
    assert core.undone_to(PARTITION, 250) == Position(B, 250, 250, 250)
    asked = sent_by(core)
    assert opcodes(asked) == [Opcode.BRANCH_LOG, Opcode.POSITIONS, Opcode.DCP_STREAM_REQ]
    request_ = decode_stream_request(asked[2], is_extended=True)
    assert request_.position == Position(B, 250, 250, 250)
    events = core.receive_data(branches() + purged(0, high=400) + granted())
    assert events == [StreamOpened(PARTITION, Position(B, 250, 250, 250), LOG, 400)]


def test_a_rollback_may_be_given_up() -> None:
    core = following(Position(B, 320, 320, 320), log=LOG[1:])
    core.receive_data(branches() + told_back(300))
    core.give_up(PARTITION)
    assert not core.is_open(PARTITION)
    core.follow(PARTITION, Position(B, 320, 320, 320), LOG[1:])
    core.receive_data(branches() + granted())
    assert core.is_open(PARTITION)


def test_a_rollback_to_zero_asks_for_the_failover_log_first() -> None:
    core = following(Position(C, 350, 350, 350), log=LOG)
    assert core.receive_data(branches() + told_back(0)) == []
    assert opcodes(sent_by(core)) == [Opcode.DCP_GET_FAILOVER_LOG]
    theirs = (FailoverEntry(0xD, 260, 4), *LOG[1:])
    data = response(Opcode.DCP_GET_FAILOVER_LOG, 0, PARTITION, value=encode_failover_log(theirs))
    assert core.receive_data(data) == [RollbackRequired(PARTITION, 260, LOG[0].branch)]
    core.undone_to(PARTITION, 0)
    assert opcodes(sent_by(core)) == [
        Opcode.BRANCH_LOG, Opcode.POSITIONS, Opcode.DCP_STREAM_REQ,
    ]  # fmt: skip


def test_a_failover_log_that_is_refused() -> None:
    core = following(Position(C, 350, 350, 350), log=LOG)
    core.receive_data(told_back(0))
    data = response(Opcode.DCP_GET_FAILOVER_LOG, Status.NOT_MY_VBUCKET, PARTITION)
    assert core.receive_data(data) == [StreamRefused(PARTITION, Status.NOT_MY_VBUCKET)]


# -- flow control and signs of life


def test_bytes_are_acknowledged_at_half_the_window() -> None:
    frame = put(1)
    core = opened(window_bytes=2 * (44 + 2 * len(frame)))
    core.receive_data(marker(0, 9) + frame)
    assert core.take_bytes() == b""
    core.receive_data(put(2))
    assert core.take_bytes(is_handled=False) == b""
    acked = sent_by(core)[0]
    assert acked.opcode == Opcode.DCP_BUFFER_ACK
    assert int.from_bytes(acked.extras, "big") == 44 + 2 * len(frame)
    assert core.take_bytes() == b""


def test_noops_and_replies_are_not_counted() -> None:
    core = opened(window_bytes=2)
    core.receive_data(request(Opcode.DCP_NOOP, opaque=8) + response(Opcode.STAT, 0, 99))
    answer = sent_by(core)
    assert [(p.opcode, p.status, p.opaque) for p in answer] == [(Opcode.DCP_NOOP, 0, 8)]


# -- what a server must not do


NONSENSE = {
    "no marker": put(1),
    "beyond the marker": marker(0, 9) + put(10),
    "twice": marker(0, 9) + put(3) + put(3),
    "backwards": marker(0, 9) + put(3) + put(2) + put(5),
    "another partition": marker(0, 9) + put(3, partition=9),
    "another opaque": marker(0, 9) + put(3).replace(b"\0\0\0\5\0", b"\0\0\0\6\0"),
    "a marker backwards": marker(9, 0),
    "a marker of another partition": marker(0, 9, 8),
    "the end of another partition": stream_end(8, 8, 0),
    "an unknown message": request(Opcode.DCP_PREPARE, vbucket=PARTITION, extras=bytes(31)),
    "a short marker": request(Opcode.DCP_SNAPSHOT_MARKER, vbucket=PARTITION, extras=bytes(3)),
    "an advance without a marker": advance(3),
    "no frame": b"\x47" + bytes(40),
    "too long": b"\x80\x57" + bytes(6) + b"\xff\xff\xff\xff" + bytes(24),
    "a short change": marker(0, 9) + request(0x57, vbucket=5, opaque=5, extras=bytes(7) + b"\1"),
    "a key beyond the body": marker(0, 9) + b"\x80\x57\xff\xff" + put(1)[4:],
    "a rollback of an open stream": told_back(3),
    "a second grant": granted(),
}


@pytest.mark.parametrize("name", NONSENSE)
def test_protocol_errors(name: str) -> None:
    core = opened()
    with pytest.raises(RemoteProtocolError):
        core.receive_data(NONSENSE[name])


def test_a_change_without_a_stream() -> None:
    core = following()
    with pytest.raises(RemoteProtocolError):
        core.receive_data(put(1))


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_are_events_or_a_protocol_error(data: bytes, is_framed: bool) -> None:
    core = opened()
    core.receive_data(marker(0, UINT64_MAX))
    if is_framed:
        data = b"\x80\x57" + data
    try:
        core.receive_data(data)
    except RemoteProtocolError as error:
        assert error.code  # noqa: PT017 - either way is right
