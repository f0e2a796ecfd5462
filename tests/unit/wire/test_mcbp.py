"""Frames are packed and cut byte for byte, whole or in pieces, and never trusted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import RemoteProtocolError
from millstream.wire.mcbp import (
    ALT_REQUEST,
    REQUEST,
    RESPONSE,
    FrameInfo,
    Opcode,
    Packet,
    Status,
    cut_packets,
    packet,
    parse_frame_infos,
    request,
    response,
)

LIMIT = 1 << 20
SHORT = st.binary(max_size=40)
packets = st.builds(
    Packet,
    magic=st.sampled_from([REQUEST, RESPONSE]),
    opcode=st.integers(0, 255),
    datatype=st.integers(0, 255),
    vbucket=st.integers(0, 2**16 - 1),
    opaque=st.integers(0, 2**32 - 1),
    cas=st.integers(0, 2**64 - 1),
    framing=st.just(b""),
    extras=SHORT,
    key=SHORT,
    value=SHORT,
)


def packed(one: Packet) -> bytes:
    fields = one._asdict()
    return packet(fields.pop("magic"), fields.pop("opcode"), **fields)


def test_a_get_is_laid_out_as_documented() -> None:
    data = request(Opcode.GET, vbucket=3, opaque=0xDEADBEEF, key=b"Hello")
    assert data.hex(" ") == (
        "80 00 00 05 00 00 00 03 00 00 00 05 de ad be ef 00 00 00 00 00 00 00 00 48 65 6c 6c 6f"
    )


def test_framing_extras_change_magic_and_key_length() -> None:
    data = request(Opcode.SET, framing=b"\x11\x03", extras=bytes(8), key=b"k", value=b"v")
    assert data[0] == ALT_REQUEST
    assert data[2:4] == b"\x02\x01"
    found, rest = cut_packets(data, LIMIT)
    assert rest == b""
    assert (found[0].framing, found[0].key, found[0].value) == (b"\x11\x03", b"k", b"v")
    assert parse_frame_infos(found[0].framing) == {FrameInfo.DURABILITY: b"\x03"}


def test_a_response_carries_its_status() -> None:
    found, _ = cut_packets(response(Opcode.GET, Status.KEY_ENOENT, 7), LIMIT)
    assert found[0].status == Status.KEY_ENOENT
    assert found[0].opaque == 7


@given(st.lists(packets, max_size=5), st.integers(0, 400))
def test_frames_are_cut_wherever_the_bytes_end(sent: list[Packet], cut: int) -> None:
    data = b"".join(packed(one) for one in sent)
    first, rest = cut_packets(data[:cut], LIMIT)
    second, rest = cut_packets(rest + data[cut:], LIMIT)
    assert first + second == sent
    assert rest == b""


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"\x47" + bytes(23), "bad_magic"),
        (packet(REQUEST, 0, value=bytes(9)), "too_large"),
        (b"\x80\x00\x00\x05" + bytes(20), "bad_frame"),
        (b"\x80\x00\x00\x00\x05" + bytes(19), "bad_frame"),
    ],
)
def test_malformed_frames_are_refused(data: bytes, code: str) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        cut_packets(data, 8)
    assert caught.value.code == code


@given(st.binary(max_size=200))
def test_any_bytes_are_cut_or_refused(data: bytes) -> None:
    try:
        found, rest = cut_packets(data, 64)
    except RemoteProtocolError:
        return
    assert len(rest) <= len(data)
    assert all(len(one.value) <= 64 for one in found)


def test_frame_infos_with_long_ids_and_sizes() -> None:
    assert parse_frame_infos(b"\x0f\x01" + bytes(16)) == {0: bytes(16)}
    assert parse_frame_infos(b"\xf2\x05ab") == {20: b"ab"}


@given(st.binary(max_size=40))
def test_any_frame_infos_are_read_or_refused(data: bytes) -> None:
    try:
        found = parse_frame_infos(data)
    except RemoteProtocolError:
        return
    assert sum(map(len, found.values())) <= len(data)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (
            request(Opcode.GET, vbucket=55, opaque=1, key=b"a"),
            "80000001000000370000000100000001000000000000000061",
        ),
        (
            request(
                Opcode.SET, vbucket=62, opaque=14, datatype=1, framing=b"\x13\x01\x07\x08",
                extras=b"\x02" + bytes(7), key=b"b", value=b"{}",
            ),
            "080104010801003e0000000f0000000e0000000000000000130107080200000000000000627b7d",
        ),
        (
            response(Opcode.DCP_STREAM_REQ, Status.ROLLBACK, 0x1000, value=(5).to_bytes(8, "big")),
            "8153000000000023000000080000100000000000000000000000000000000005",
        ),
        (
            request(Opcode.DCP_BUFFER_ACK, extras=(4096).to_bytes(4, "big")),
            "805d0000040000000000000400000000000000000000000000001000",
        ),
    ],
    ids=["get", "durable set", "rollback", "acknowledgement"],
)  # fmt: skip
def test_frames_as_other_implementations_write_them(data: bytes, expected: str) -> None:
    assert data.hex() == expected
    found, rest = cut_packets(data, LIMIT)
    assert (len(found), rest) == (1, b"")
