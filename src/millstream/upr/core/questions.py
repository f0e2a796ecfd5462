"""What a bucket reader asks a node beside its streams: requests, and what the replies mean.

The question of a bookkeeper:
1. The last request asks for history and high seqno: what was read before it belongs to the
   history it names, because a history that ended does not come back.
2. A document's seqno is its own where the node tells it, else the high seqno, which is not below.

The history of a source that tells a reader of durable changes to go back:
3. A source whose newest branch is lower than the one last read from was superseded: nobody may
   follow it (`StreamOptions.branch_min`). Another one has the partition, or it will hear of that.
4. What was durable is in every later history. So such a reader goes back only where deletions were
   forgotten that it has not seen: to 0, and reads everything anew.
5. Anything else means that more was lost than the level of durability bears: an error.

Elsewhere: what a bookkeeper asks (`upr.core.bookkeeper`), the connection (`upr.aio.following`).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from struct import Struct
from typing import Final

from millstream.errors import RemoteProtocolError, UnavailableError
from millstream.model.position import FailoverLog
from millstream.upr.core.bookkeeper import Answer, Document, Question
from millstream.upr.core.kept import Kept
from millstream.upr.core.messages import decode_branch_log, decode_high_and_purge
from millstream.wire.mcbp import Opcode, Packet, Status, request
from millstream.wire.replies import error_of

__all__ = [
    "Judgement",
    "decode_answer",
    "decode_history",
    "encode_history_question",
    "encode_question",
    "judge",
]

_OBSERVED: Final = Struct(">BHQQQ")
_VERSIONED: Final = Struct(">IQQQQIB")
_FLAGS: Final = Struct(">I")


def encode_question(question: Question, partition_id: int, *, has_extensions: bool) -> list[bytes]:
    """Return the requests, to be sent together.

    Args:
        question: what to fetch.
        partition_id: of which partition.
        has_extensions: the node granted our own feature, so it tells seqnos of documents.
    """
    opcode = Opcode.GET_VERSIONED if has_extensions else Opcode.GET
    uuid = question.uuid.to_bytes(8, "big")
    return [
        *(request(opcode, vbucket=partition_id, key=key) for key in question.keys),
        request(Opcode.OBSERVE_SEQNO, vbucket=partition_id, value=uuid),
    ]


def decode_answer(question: Question, replies: Sequence[Packet], *, address: str) -> Answer:
    """Return the answer that the replies make.

    Args:
        question: as encoded.
        replies: one for each request, in order.
        address: of the node, for messages.

    Raises:
        UnavailableError: `history_moved`: it is another history's; or the node is busy.
        RoutingError: the node does not serve the partition.
        AccessError: the user may not read documents.
        RemoteProtocolError: `bad_frame`.
    """
    *found, observed = replies
    if observed.status not in (Status.SUCCESS, Status.KEY_ENOENT):
        raise error_of(observed, address=address, what="the newest history")
    if observed.status == Status.SUCCESS and len(observed.value) < _OBSERVED.size:
        raise RemoteProtocolError("a history without its seqnos", code="bad_frame")
    if observed.status == Status.KEY_ENOENT:
        raise _moved(address)
    _, _, uuid, _, high_seqno = _OBSERVED.unpack_from(observed.value)
    if uuid != question.uuid:
        raise _moved(address)
    documents = [
        _document(key, packet, high_seqno, address)
        for key, packet in zip(question.keys, found, strict=True)
    ]
    return Answer(tuple(documents), high_seqno)


def _document(key: bytes, packet: Packet, high_seqno: int, address: str) -> Document:
    if packet.status == Status.KEY_ENOENT:
        return Document(key, None, high_seqno)
    if packet.status != Status.SUCCESS:
        raise error_of(packet, address=address, what="a document to go back to")
    if packet.opcode == Opcode.GET and len(packet.extras) == _FLAGS.size:
        flags = _FLAGS.unpack(packet.extras)[0]
        return Document(key, packet.value, high_seqno, packet.cas, flags, packet.datatype)
    if len(packet.extras) != _VERSIONED.size:
        raise RemoteProtocolError("a document without its version", code="bad_frame")
    flags, _, _, seqno, _, _, is_deleted = _VERSIONED.unpack(packet.extras)
    value = None if is_deleted else packet.value
    return Document(key, value, seqno, packet.cas, flags, packet.datatype)


def _moved(address: str) -> UnavailableError:
    message = f"{address} began another history while documents were fetched; ask again"
    return UnavailableError(message, code="history_moved")


class Judgement(Enum):
    """Why a source says that a reader has to go back."""

    SUPERSEDED = auto()
    PURGED = auto()
    LOST = auto()


def judge(kept: Kept, log: FailoverLog, purge_seqno: int) -> Judgement:
    """Return why the source with this branch log and purge seqno refuses the reader's position."""
    if kept.failover_log and log[0].branch < kept.failover_log[0].branch:
        return Judgement.SUPERSEDED
    return Judgement.PURGED if kept.position.seqno < purge_seqno else Judgement.LOST


def encode_history_question(partition_id: int) -> list[bytes]:
    """Return the requests for branch log and purge seqno, to be sent together."""
    return [
        request(Opcode.BRANCH_LOG, vbucket=partition_id),
        request(Opcode.POSITIONS, value=partition_id.to_bytes(2, "big")),
    ]


def decode_history(replies: Sequence[Packet], *, address: str) -> tuple[FailoverLog, int]:
    """Return branch log and purge seqno.

    Args:
        replies: one for each request, in order.
        address: of the node, for messages.

    Raises:
        RoutingError: the node does not serve the partition.
        RemoteProtocolError: `bad_frame`.
    """
    for packet in replies:
        if packet.status != Status.SUCCESS:
            raise error_of(packet, address=address, what="the history of a partition")
    branches, place = replies
    return decode_branch_log(branches.value), decode_high_and_purge(place.value)[1]
