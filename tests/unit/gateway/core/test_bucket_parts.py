"""Messages between nodes about parts of a bucket."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import RemoteProtocolError
from millstream.gateway.core.bucket_parts import (
    MESSAGE_BYTES_MAX,
    Ended,
    Failed,
    Found,
    PartChanges,
    PartCutter,
    Reached,
    ReceivedChanges,
    framed,
    is_change,
)
from millstream.model.position import Position
from support.streams.changing_bucket import ChangingBucket

MESSAGES = [
    PartChanges(3, 0xA, 0, 4, None, 4, 0xB, "0.1", [b"x", b""]),
    Reached([(3, Position(0xA, 4, 4, 4))], "0.1"),
    Found([b"a" * 70]),
    Failed("node_failed", "why"),
    Ended(),
]


def changes(letters: str = "abc") -> list[bytes]:
    bucket = ChangingBucket()
    bucket.write(0, letters)
    found = bucket.partitions[0].described_slice(0, len(letters), 10**6, 100)
    assert found is not None
    return found[0]


@given(st.integers(1, 60))
def test_messages_arrive_however_they_are_cut(size: int) -> None:
    data, cutter, found = b"".join(map(framed, MESSAGES)), PartCutter(), []
    for at in range(0, len(data), size):
        found += cutter.receive(data[at : at + size])
    assert found == MESSAGES


@pytest.mark.parametrize(
    "data",
    [(MESSAGE_BYTES_MAX + 1).to_bytes(4, "big"), b"\0\0\0\1\xc0", b"\0\0\0\2\x91\x09"],
)
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        list(PartCutter().receive(data))


def test_a_change_is_one_from_end_to_end() -> None:
    for frame in changes("abA"):
        assert is_change(frame)
        assert not is_change(frame + b"x")
        assert not any(is_change(frame[:size]) for size in range(len(frame)))
        assert not is_change(b"\x80\x57" + frame[2:])


def piece(**members: object) -> PartChanges:
    whole = {
        "partition": 0, "uuid": 0xA, "snap_start": 0, "snap_end": 3, "purge_seqno": None,
        "covered": 3, "branch": 1, "purges": "0.0", "frames": changes(),
    }  # fmt: skip
    return PartChanges(**(whole | members))  # type: ignore[arg-type]


def test_pieces_that_were_asked_for() -> None:
    received = ReceivedChanges({0: Position()})
    frames = changes()
    first = received.piece(piece(covered=1, frames=frames[:1]))
    assert (first.piece.covered, first.branch, first.purges) == (1, 1, "0.0")
    assert received.piece(piece(frames=frames[1:])).piece.frames == frames[1:]
    assert received.positions(Reached([(0, Position(0xA, 3, 3, 3))], "0.0"))[0].seqno == 3


@pytest.mark.parametrize(
    "members",
    [
        {"partition": 1}, {"snap_start": 4}, {"covered": 4}, {"covered": 2},
        {"snap_start": 2}, {"snap_start": -1}, {"uuid": -1}, {"purge_seqno": -1},
        {"frames": [b"no change"]}, {"frames": changes()[::-1]},
    ],
)  # fmt: skip
def test_pieces_that_nobody_asked_for(members: dict[str, object]) -> None:
    with pytest.raises(RemoteProtocolError):
        ReceivedChanges({0: Position()}).piece(piece(**members))


def test_a_piece_that_goes_back_within_an_answer() -> None:
    received = ReceivedChanges({0: Position()})
    received.piece(piece())
    for members in ({}, {"covered": 2, "frames": []}):
        with pytest.raises(RemoteProtocolError):
            received.piece(piece(**members))


@pytest.mark.parametrize(
    "positions", [[], [(1, Position())], [(0, Position(1, 2, 3, 3))], [(0, Position(1, 4, 3, 3))]]
)
def test_ends_that_are_none(positions: list[tuple[int, Position]]) -> None:
    with pytest.raises(RemoteProtocolError):
        ReceivedChanges({0: Position()}).positions(Reached(positions, "0.0"))
