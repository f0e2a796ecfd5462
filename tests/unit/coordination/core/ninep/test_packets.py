"""Messages of 9P as bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.coordination.core.ninep import packets
from millstream.coordination.core.ninep.packets import Cutter, Packet, Qid, decode, encode
from millstream.errors import RemoteProtocolError

NUMBERS = {"1": 8, "2": 16, "4": 32, "8": 64}
NAMES = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=20).map(str.encode)
QIDS = st.builds(Qid, st.integers(0, 255), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1))


def of(sign: str) -> st.SearchStrategy[object]:
    if sign in NUMBERS:
        return st.integers(0, 2 ** NUMBERS[sign] - 1)
    return {
        "s": NAMES, "w": st.lists(NAMES, max_size=16).map(tuple), "q": QIDS,
        "Q": st.lists(QIDS, max_size=16).map(tuple),
    }.get(sign, st.binary(max_size=100))  # fmt: skip


@st.composite
def a_packet(draw: st.DrawFn) -> Packet:
    kind = draw(st.sampled_from(sorted(packets._LAYOUTS)))
    layout, _, optional = packets._LAYOUTS[kind].partition("?")
    signs = layout + (optional if draw(st.booleans()) else "")
    return Packet(kind, draw(st.integers(0, 0xFFFF)), tuple(draw(of(sign)) for sign in signs))


@given(a_packet(), st.data())
def test_what_is_encoded_is_decoded(packet: Packet, data: st.DataObject) -> None:
    encoded = encode(packet)
    cutter = Cutter()
    at = data.draw(st.integers(0, len(encoded)))
    cutter.feed(encoded[:at])
    found = cutter.cut()
    assert found is None or at == len(encoded)
    cutter.feed(encoded[at:] + b"\7")
    assert decode(found or cutter.cut() or b"") == packet


@given(a_packet(), st.data())
def test_damaged_bytes_are_refused_or_are_another_message(
    packet: Packet, data: st.DataObject
) -> None:
    encoded = bytearray(encode(packet))
    at = data.draw(st.integers(0, len(encoded) - 1))
    encoded[at] = data.draw(st.integers(0, 255))
    try:
        found = decode(bytes(encoded))
    except RemoteProtocolError:
        return
    assert encode(found) == encoded


@given(st.binary(max_size=60))
def test_any_bytes_are_taken(data: bytes) -> None:
    cutter = Cutter()
    cutter.feed(data)
    try:
        while (found := cutter.cut()) is not None:
            decode(found)
    except RemoteProtocolError:
        pass


@pytest.mark.parametrize(
    "packet",
    [
        b"\x08\0\0\0\x6c\x01\0\0",  # Tflush with half a tag
        b"\x0a\0\0\0\x6c\x01\0\0\0\0",  # and with a byte too many
        b"\x11\0\0\0\x6e\x01\0\0\0\0\0\0\0\0\0\x11\0",  # Twalk of seventeen names
        b"\x0a\0\0\0\x6b\x01\0\x01\0\xff",  # Rerror that is no text
        b"\x0a\0\0\0\x6b\x01\0\x01\0\0",  # or has a NUL
    ],
)
def test_what_is_no_message_is_refused(packet: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode(packet)


def test_a_length_beyond_the_agreed_one_is_refused_at_once() -> None:
    cutter = Cutter()
    cutter.msize = 512
    cutter.feed((513).to_bytes(4, "little"))
    with pytest.raises(RemoteProtocolError, match="513"):
        cutter.cut()
