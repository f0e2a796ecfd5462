"""A reader of durable changes alone, told to go back: whether the source is wrong, or the reader.

    replies = ask(encode_history_question(partition_id)); log, purge = decode_history(replies, ...)
    judge(kept, log, purge)

Invariants:
1. A source whose newest branch is lower than the one last read from was superseded: nobody may
   follow it (`StreamOptions.branch_min`). Another one has the partition, or it will hear of that.
2. What was durable is in every later history. So such a reader goes back only where deletions were
   forgotten that it has not seen: to 0, and reads everything anew.
3. Anything else means that more was lost than the level of durability bears: an error.

Elsewhere: the same request by a reader that can undo (`upr.core.bookkeeper`).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto

from millstream.model.position import FailoverLog
from millstream.upr.core.kept import Kept
from millstream.upr.core.messages import decode_branch_log, decode_high_and_purge
from millstream.wire.mcbp import Opcode, Packet, Status, request
from millstream.wire.replies import error_of

__all__ = ["Judgement", "decode_history", "encode_history_question", "judge"]


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
