from __future__ import annotations

import pytest

from millstream.errors import RemoteProtocolError
from millstream.kv.core.session.requests import cut_request, durability_of
from millstream.wire.mcbp import ALT_REQUEST, Opcode, Status, packet, request

SET = request(
    Opcode.SET, vbucket=3, opaque=4, cas=5, datatype=1, framing=b"\x11\x02", extras=b"ex",
    key=b"key", value=b"value",
)  # fmt: skip


def test_a_request_is_cut_out_of_what_stands_around_it() -> None:
    found = cut_request(b"before" + SET + b"behind", 6, 6 + len(SET))
    assert (found.magic, found.opcode, found.vbucket, found.opaque, found.cas, found.datatype) == (
        ALT_REQUEST, Opcode.SET, 3, 4, 5, 1,
    )  # fmt: skip
    assert (found.framing, found.extras, found.key, found.value) == (
        b"\x11\x02", b"ex", b"key", b"value",
    )  # fmt: skip


def test_parts_longer_than_the_frame_are_refused() -> None:
    exact = request(Opcode.SET, extras=b"ex", key=b"key")
    assert cut_request(exact, 0, len(exact)).value == b""
    with pytest.raises(RemoteProtocolError, match="shorter"):
        cut_request(exact, 0, len(exact) - 1)


@pytest.mark.parametrize(
    ("opcode", "framing", "refusal", "level"),
    [
        (Opcode.SET, b"\x11\x01", None, 1),
        (Opcode.SET, b"\x13\x03\x00\x05", None, 3),
        (Opcode.SET, b"\x13\x03\x00\x00", Status.EINVAL, 0),
        (Opcode.SET, b"\x13\x03\xff\xff", Status.EINVAL, 0),
        (Opcode.SET, b"\x12\x03\x00", Status.EINVAL, 0),
        (Opcode.SET, b"\x11\x04", Status.DURABILITY_INVALID_LEVEL, 0),
        (Opcode.GET, b"\x11\x01", Status.NOT_SUPPORTED, 0),
        (Opcode.GET, b"\x00", None, 0),
        (Opcode.SET, b"\xe0", Status.UNKNOWN_FRAME_INFO, 0),
    ],
)
def test_framing_extras_say_how_durable(
    opcode: Opcode, framing: bytes, refusal: Status | None, level: int
) -> None:
    data = packet(ALT_REQUEST, opcode, framing=framing, key=b"k")
    assert durability_of(cut_request(data, 0, len(data)))[:2] == (refusal, level)


@pytest.mark.parametrize(
    ("framing", "patience_ms"), [(b"\x11\x01", 0), (b"\x13\x01\x01\x05", 261)]
)
def test_framing_extras_say_how_long_that_may_take(framing: bytes, patience_ms: int) -> None:
    data = packet(ALT_REQUEST, Opcode.SET, framing=framing, key=b"k")
    assert durability_of(cut_request(data, 0, len(data)))[2] == patience_ms
