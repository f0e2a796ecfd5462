"""The copies that the streams of one connection feed, and what their node says of them.

A peer that gives its name keeps copies. It acknowledges what each of them has, and answers no-ops.

Invariants:
1. What is acknowledged of a partition is told to the bucket while its stream lasts.
2. An acknowledgement that names more than the stream has sent, or less than one before it, is
   refused.
3. The first acknowledgement says that the copy has accepted the history of the stream. The peer
   closes the stream before it answers anything once it may not follow that history any more.

Elsewhere: the connection (`upr.core.producer`), what follows from it (the bucket).
"""

from __future__ import annotations

from typing import NamedTuple

from millstream.upr.core.messages import decode_acknowledgement
from millstream.upr.core.source import BucketSource, Peer
from millstream.upr.core.stream import Stream
from millstream.wire.mcbp import Packet

__all__ = ["FedCopies"]


class _Fed(NamedTuple):
    """What the peer acknowledged of a stream."""

    peer: Peer
    stream: Stream
    complete_end: int = 0
    persisted_end: int = 0
    is_accepted: bool = False


class FedCopies:
    """The copies fed by one connection."""

    def __init__(self, bucket: BucketSource) -> None:
        self._bucket = bucket
        self._peer: Peer | None = None
        self._fed: dict[int, _Fed] = {}
        """By partition."""

    def join(self, name: str, stream: Stream) -> None:
        """A stream begins that feeds a copy of the node `name`."""
        if self._peer is None or self._peer.name != name:
            self._peer = Peer(name)
        self._fed[stream.partition_id] = _Fed(self._peer, stream)
        self._bucket.on_joined(name, stream.partition_id, stream)

    def on_acknowledged(self, packet: Packet, *, is_extended: bool) -> bool:
        """Take what a copy has by now; false: that is impossible.

        Of a stream that is over it says nothing.
        """
        complete_end, persisted_end = decode_acknowledgement(packet, is_extended=is_extended)
        known = self._fed.get(packet.vbucket)
        if known is None:
            return True
        peer, stream, has_two = known.peer, known.stream, len(packet.extras) == 16
        persisted_end = persisted_end if has_two else known.persisted_end
        if not (
            known.complete_end <= complete_end <= stream.complete
            and known.persisted_end <= persisted_end <= complete_end
        ):
            return False
        partition_id = stream.partition_id
        self._fed[partition_id] = _Fed(peer, stream, complete_end, persisted_end, True)
        self._bucket.on_acknowledged(peer.name, partition_id, stream, complete_end, persisted_end)
        if not known.is_accepted:
            self._bucket.on_accepted(peer, partition_id, stream)
        return True

    def heard(self, sent_ms: int) -> None:
        """The peer has answered a no-op that was sent then."""
        if self._peer is not None:
            self._peer.sent_ms = sent_ms
            self._bucket.on_heard(self._peer)

    def leave(self, partition_id: int) -> None:
        """The stream of a partition is over."""
        known = self._fed.pop(partition_id, None)
        if known is not None:
            self._bucket.on_left(known.peer.name, partition_id, known.stream)
