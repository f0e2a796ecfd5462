"""A bookkeeper's question as requests to a node, and the replies as its answer.

Invariants:
1. The last request asks for history and high seqno: what was read before it belongs to the
   history it names, because a history that ended does not come back.
2. A document's seqno is its own where the node tells it, else the high seqno, which is not below.

Elsewhere: what is asked (`upr.core.bookkeeper`), the connection (`upr.aio.streams`).
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

from millstream.errors import RemoteProtocolError, UnavailableError
from millstream.upr.core.bookkeeper import Answer, Document, Question
from millstream.wire.mcbp import Opcode, Packet, Status, request
from millstream.wire.replies import error_of

__all__ = ["decode_answer", "encode_question"]

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
