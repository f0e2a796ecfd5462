"""Stream requests and failover logs survive the wire, and nonsense is refused with a status."""

import contextlib
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import RemoteProtocolError
from millstream.model.limits import UINT64_MAX
from millstream.model.position import FailoverEntry, Position
from millstream.upr.core.messages import (
    Reached,
    RefusedError,
    StreamRequest,
    check_layout,
    decode_acknowledgement,
    decode_barrier,
    decode_barrier_reached,
    decode_branch_log,
    decode_failover_log,
    decode_high_and_purge,
    decode_stream_request,
    encode_acknowledgement,
    encode_barrier,
    encode_barrier_reached,
    encode_branch_log,
    encode_failover_log,
    encode_stream_request,
)
from millstream.wire.mcbp import Opcode, Packet, Status, cut_packets, request

U64 = st.integers(0, UINT64_MAX)
positions = st.builds(Position, U64, U64, U64, U64, st.none() | U64)
requests = st.builds(
    StreamRequest,
    st.integers(0, 1023),
    positions,
    U64,
    st.integers(0, 2**32 - 1),
    st.none() | U64,
    st.none() | U64,
    st.none() | U64,
)
logs = st.lists(st.builds(FailoverEntry, U64, U64, U64), min_size=1, max_size=25).map(tuple)


def cut(data: bytes) -> Packet:
    return cut_packets(data, 1 << 20)[0][0]


@given(requests, st.integers(0, 2**32 - 1))
def test_a_request_is_read_as_it_was_written(asked: StreamRequest, opaque: int) -> None:
    packet = cut(encode_stream_request(asked, opaque))
    assert packet.opaque == opaque
    assert decode_stream_request(packet, is_extended=True) == asked


@given(requests)
def test_members_of_our_own_are_ignored_without_the_feature(asked: StreamRequest) -> None:
    packet = cut(encode_stream_request(asked, 0))
    plain = asked._replace(lease=None, as_of=None, end_uuid=None)
    assert decode_stream_request(packet, is_extended=False) == plain


def test_a_request_is_laid_out_as_documented() -> None:
    asked = StreamRequest(8, Position(0xABCDEF012345, 7, 7, 7), flags=0x10)
    assert encode_stream_request(asked, 0x1000).hex() == (
        "80530000300000080000003000001000000000000000000000000010000000000000000000000007"
        "ffffffffffffffff0000abcdef01234500000000000000070000000000000007"
    )


def decoded(value: bytes, extras: bytes = bytes(48), key: bytes = b"") -> StreamRequest:
    data = request(Opcode.DCP_STREAM_REQ, extras=extras, key=key, value=value)
    return decode_stream_request(cut(data), is_extended=True)


@pytest.mark.parametrize(
    ("value", "status"),
    [
        (b"{", Status.EINVAL),
        (b"[]", Status.EINVAL),
        (b"\xff\xfe", Status.EINVAL),
        (b"[" * 100_000, Status.EINVAL),
        (b'{"purge_seqno": "x"}', Status.EINVAL),
        (b'{"purge_seqno": -1}', Status.EINVAL),
        (b'{"purge_seqno": 1.5}', Status.EINVAL),
        (b'{"purge_seqno": ""}', Status.EINVAL),
        (b'{"purge_seqno": "1_0"}', Status.EINVAL),
        (b'{"purge_seqno": " 1"}', Status.EINVAL),
        (b'{"purge_seqno": "+1"}', Status.EINVAL),
        ('{"purge_seqno": "\u0661"}'.encode(), Status.EINVAL),
        (b'{"lease": "0x1"}', Status.EINVAL),
        (b'{"purge_seqno": true}', Status.EINVAL),
        (b'{"purge_seqno": "18446744073709551616"}', Status.EINVAL),
        (b'{"purge_seqno": "%s"}' % (b"9" * 5000), Status.EINVAL),
        (b'{"lease": {}}', Status.EINVAL),
        (b'{"end_uuid": "g"}', Status.EINVAL),
        (b'{"collections": 7}', Status.EINVAL),
        (b'{"collections": []}', Status.EINVAL),
        (b'{"collections": ["9"]}', Status.UNKNOWN_COLLECTION),
        (b'{"collections": [["9"]]}', Status.UNKNOWN_COLLECTION),
        (b'{"scope": "8"}', Status.UNKNOWN_COLLECTION),
        (b'{"sid": 3}', 0x8D),
    ],
)
def test_what_cannot_be_served_is_refused(value: bytes, status: int) -> None:
    with pytest.raises(RefusedError) as caught:
        decoded(value)
    assert caught.value.status == status


@given(st.binary(max_size=60))
def test_any_value_is_read_or_refused(value: bytes) -> None:
    with contextlib.suppress(RefusedError):
        assert decoded(value).partition_id == 0


def test_what_is_known_and_harmless_is_accepted() -> None:
    value = b'{"uid": "3", "collections": ["0"], "scope": "0", "purge_seqno": "12"}'
    assert decoded(value).position.purge_seqno == 12


@pytest.mark.parametrize(("extras", "key"), [(bytes(47), b""), (b"", b""), (bytes(48), b"k")])
def test_a_request_of_the_wrong_shape(extras: bytes, key: bytes) -> None:
    with pytest.raises(RefusedError) as caught:
        decoded(b"", extras, key)
    assert caught.value.status == Status.EINVAL


@given(logs)
def test_logs_are_read_as_they_were_written(log: tuple[FailoverEntry, ...]) -> None:
    assert decode_branch_log(encode_branch_log(log)) == log
    standard = decode_failover_log(encode_failover_log(log))
    assert standard == tuple(entry._replace(branch=0) for entry in log)


@pytest.mark.parametrize("value", [b"", bytes(15), bytes(25)])
def test_logs_that_are_cut_short(value: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_failover_log(value)
    with pytest.raises(RemoteProtocolError):
        decode_branch_log(value)


def test_the_purge_seqno_of_a_position() -> None:
    assert decode_high_and_purge(pack(">HB5x8Q", 3, 1, 2, 3, 4, 5, 6, 7, 8, 9)) == (4, 9)
    with pytest.raises(RemoteProtocolError):
        decode_high_and_purge(bytes(71))


@pytest.mark.parametrize(
    ("opcode", "parts", "status"),
    [
        (Opcode.DCP_CLOSE_STREAM, {}, None),
        (Opcode.DCP_CLOSE_STREAM, {"extras": b"x"}, Status.EINVAL),
        (Opcode.DCP_CLOSE_STREAM, {"key": b"x"}, Status.EINVAL),
        (Opcode.DCP_CLOSE_STREAM, {"value": b"x"}, Status.EINVAL),
        (Opcode.DCP_CLOSE_STREAM, {"framing": b"\x22\0\1"}, 0x8D),
        (Opcode.DCP_GET_FAILOVER_LOG, {"key": b"x"}, Status.EINVAL),
        (Opcode.DCP_BUFFER_ACK, {"extras": bytes(4)}, None),
        (Opcode.DCP_BUFFER_ACK, {"extras": bytes(5)}, Status.EINVAL),
        (Opcode.DCP_CONTROL, {"key": b"k"}, None),
        (Opcode.DCP_CONTROL, {"key": b"k", "value": b"v"}, None),
        (Opcode.DCP_CONTROL, {"value": b"v"}, Status.EINVAL),
        (Opcode.DCP_CONTROL, {"key": b"k", "extras": b"x"}, Status.EINVAL),
        (Opcode.DCP_NOOP, {"value": b"v"}, Status.EINVAL),
        (Opcode.GET, {"extras": b"x"}, None),
    ],
)
def test_each_part_of_a_request_is_as_its_opcode_wants_it(
    opcode: int, parts: dict[str, bytes], status: int | None
) -> None:
    packet = cut(request(opcode, **parts))  # type: ignore[arg-type]
    if status is None:
        check_layout(packet)
        return
    with pytest.raises(RefusedError) as caught:
        check_layout(packet)
    assert caught.value.status == status


def test_barriers_survive_the_wire() -> None:
    for named in (None, [0], [7, 1023]):
        assert decode_barrier(cut(encode_barrier(b"c", named))) == (b"c", named)
    reached = {7: Reached(5, 6), 1023: Reached(UINT64_MAX, 0)}
    packet = cut(encode_barrier_reached(b"c", 9, reached))
    assert (packet.opcode, packet.opaque) == (Opcode.BARRIER_REACHED, 9)
    assert decode_barrier_reached(packet) == (b"c", reached)
    for bad in (
        packet._replace(value=packet.value[:-1]),
        packet._replace(key=b""),
        packet._replace(extras=b"\0\0\0\1"),
        packet._replace(extras=b"", value=b""),
    ):
        with pytest.raises(RemoteProtocolError):
            decode_barrier_reached(bad)


def test_acknowledgements_survive_the_wire() -> None:
    for ends in ((7, None), (7, 0), (UINT64_MAX, 5)):
        packet = cut(encode_acknowledgement(1023, *ends))
        assert (packet.opcode, packet.vbucket) == (Opcode.DCP_SEQNO_ACKNOWLEDGED, 1023)
        assert decode_acknowledgement(packet, is_extended=True) == (ends[0], ends[1] or 0)
        for bad in (
            packet._replace(key=b"k"),
            packet._replace(value=b"v"),
            packet._replace(extras=packet.extras[1:]),
        ):
            with pytest.raises(RefusedError):
                decode_acknowledgement(bad, is_extended=True)
