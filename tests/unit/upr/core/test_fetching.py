"""Questions as frames, answers from replies, with and without the extension."""

from struct import pack

import pytest

from millstream.errors import (
    AccessError,
    MillstreamError,
    RemoteProtocolError,
    RoutingError,
    UnavailableError,
)
from millstream.upr.core.bookkeeper import Answer, Document, Question
from millstream.upr.core.fetching import decode_answer, encode_question
from millstream.wire.mcbp import Opcode, Packet, Status, cut_packets, response

QUESTION = Question(0xA, (b"k1", b"k2", b"k3"))


def packet(opcode: int, status: int = 0, value: bytes = b"", extras: bytes = b"") -> Packet:
    frame = response(opcode, status, 0, cas=5, datatype=1, extras=extras, value=value)
    return cut_packets(frame, 10_000)[0][0]


def observed(uuid: int = 0xA, high: int = 9, status: int = 0) -> Packet:
    return packet(Opcode.OBSERVE_SEQNO, status, pack(">BHQQQ", 0, 3, uuid, 7, high))


def versioned(seqno: int, value: bytes, *, is_deleted: bool) -> Packet:
    extras = pack(">IQQQQIB", 6, 0xA, 1, seqno, 2, 0, is_deleted)
    return packet(Opcode.GET_VERSIONED, 0, value, extras)


MISSING = packet(Opcode.GET, Status.KEY_ENOENT)


@pytest.mark.parametrize(
    ("has_extensions", "opcode"), [(True, Opcode.GET_VERSIONED), (False, Opcode.GET)]
)
def test_history_is_asked_for_last(has_extensions: bool, opcode: Opcode) -> None:
    frames = encode_question(QUESTION, 3, has_extensions=has_extensions)
    packets, _ = cut_packets(b"".join(frames), 10_000)
    assert [(found.opcode, found.key) for found in packets] == [
        (opcode, b"k1"), (opcode, b"k2"), (opcode, b"k3"), (Opcode.OBSERVE_SEQNO, b""),
    ]  # fmt: skip
    assert {found.vbucket for found in packets} == {3}
    assert packets[-1].value == (0xA).to_bytes(8, "big")


def test_documents_have_their_seqno_or_the_high_one() -> None:
    replies = [
        versioned(4, b"v", is_deleted=False), versioned(6, b"", is_deleted=True), MISSING,
        observed(),
    ]  # fmt: skip
    assert decode_answer(QUESTION, replies, address="n") == Answer(
        (
            Document(b"k1", b"v", 4, 5, 6, 1), Document(b"k2", None, 6, 5, 6, 1),
            Document(b"k3", None, 9),
        ),
        9,
    )  # fmt: skip
    plain = [packet(Opcode.GET, 0, b"v", pack(">I", 8)), MISSING, MISSING, observed()]
    found = decode_answer(QUESTION, plain, address="n").documents
    assert found == (
        Document(b"k1", b"v", 9, 5, 8, 1), Document(b"k2", None, 9), Document(b"k3", None, 9)
    )  # fmt: skip


@pytest.mark.parametrize(
    ("first", "last", "error"),
    [
        (MISSING, observed(uuid=0xB), UnavailableError),
        (MISSING, observed(status=Status.KEY_ENOENT), UnavailableError),
        (MISSING, observed(status=Status.NOT_MY_VBUCKET), RoutingError),
        (MISSING, packet(Opcode.OBSERVE_SEQNO), RemoteProtocolError),
        (packet(Opcode.GET, Status.NOT_MY_VBUCKET), observed(), RoutingError),
        (packet(Opcode.GET, Status.ETMPFAIL), observed(), UnavailableError),
        (packet(Opcode.GET, Status.EACCESS), observed(), AccessError),
        (packet(Opcode.GET_VERSIONED, 0, b"v", b"short"), observed(), RemoteProtocolError),
    ],
)
def test_what_is_no_answer(first: Packet, last: Packet, error: type[MillstreamError]) -> None:
    with pytest.raises(error):
        decode_answer(QUESTION, [first, MISSING, MISSING, last], address="n")
