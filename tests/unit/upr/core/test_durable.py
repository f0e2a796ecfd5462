"""Why a reader of durable changes is told to go back."""

import pytest

from millstream.errors import RemoteProtocolError, RoutingError
from millstream.model.position import FailoverEntry, Position
from millstream.upr.core.durable import (
    Judgement,
    decode_history,
    encode_history_question,
    judge,
)
from millstream.upr.core.kept import Kept
from millstream.upr.core.messages import encode_branch_log
from millstream.upr.core.repair import LoadState
from millstream.wire.mcbp import Opcode, Packet, Status, cut_packets, response

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
