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
from millstream.model.position import FailoverEntry, Position
from millstream.upr.core.bookkeeper import Answer, Document, Question
from millstream.upr.core.kept import Kept
from millstream.upr.core.messages import encode_branch_log
from millstream.upr.core.questions import (
    Judgement,
    decode_answer,
    decode_history,
    encode_history_question,
    encode_question,
    judge,
)
from millstream.upr.core.repair import LoadState
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


# -- the history of a source

OLD, NEW, NEWER = FailoverEntry(0xA, 0, 5), FailoverEntry(0xB, 40, 7), FailoverEntry(0xC, 60, 9)
KEPT = Kept(Position(0xB, 50, 50, 50), (NEW, OLD), LoadState())


@pytest.mark.parametrize(
    ("log", "purge_seqno", "wanted"),
    [
        ((OLD,), 0, Judgement.SUPERSEDED),
        ((OLD,), 99, Judgement.SUPERSEDED),
        ((NEW, OLD), 51, Judgement.PURGED),
        ((NEWER, NEW, OLD), 51, Judgement.PURGED),
        ((NEW, OLD), 50, Judgement.LOST),
        ((NEWER, OLD), 0, Judgement.LOST),
    ],
)
def test_only_a_purge_is_a_reason_to_begin_anew(
    log: tuple[FailoverEntry, ...], purge_seqno: int, wanted: Judgement
) -> None:
    assert judge(KEPT, log, purge_seqno) is wanted


def replies(*frames: bytes) -> list[Packet]:
    return [packet for frame in frames for packet in cut_packets(frame, 1 << 20)[0]]


def test_question_and_answer() -> None:
    asked = replies(*encode_history_question(3))
    assert [(packet.opcode, packet.vbucket) for packet in asked] == [
        (Opcode.BRANCH_LOG, 3),
        (Opcode.POSITIONS, 0),
    ]
    assert asked[1].value == b"\0\3"
    branches = response(Opcode.BRANCH_LOG, Status.SUCCESS, 0, value=encode_branch_log((NEW, OLD)))
    with pytest.raises(RemoteProtocolError):
        decode_history(
            replies(branches, response(Opcode.POSITIONS, Status.SUCCESS, 0, value=b"x")),
            address="n",
        )
    refused = response(Opcode.BRANCH_LOG, Status.NOT_MY_VBUCKET, 0)
    with pytest.raises(RoutingError):
        decode_history(replies(refused, branches), address="n")
