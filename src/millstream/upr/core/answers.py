"""What a source wants answered: markers, once their snapshot is applied, and states of the copy.

Invariants:
1. A snapshot is answered once, however many markers continued it, if one of them asked for it.
2. A state is answered when whoever keeps the copy says so, and only a state that was asked for.

Elsewhere: when answers are sent (`upr.core.consumer`), the source's side (`upr.core.takeover`).

Source: the released protocol's take-over; docs/reference/wire/streams.md.
"""

from __future__ import annotations

from typing import NamedTuple

from millstream.errors import RemoteProtocolError
from millstream.wire.mcbp import Opcode, Packet, SnapshotFlag, Status, response

__all__ = ["Answers", "StateRequested"]


class StateRequested(NamedTuple):
    """A take-over: give the copy that state (a number of `PartitionState`), then answer.

    Everything before has been received. By `ConsumerCore.answer_state`.
    """

    partition_id: int
    state: int


class Answers:
    """The answers that one connection owes; streams have their partition's id as opaque."""

    def __init__(self) -> None:
        self._markers: set[int] = set()
        self._states: set[int] = set()
        self._due: list[bytes] = []

    def on_marker(self, partition_id: int, flags: int) -> None:
        """A snapshot begins or goes on."""
        if flags & SnapshotFlag.ACK:
            self._markers.add(partition_id)

    def on_complete(self, partition_id: int) -> None:
        """All of the snapshot was received: its answer is due once that is applied."""
        if partition_id in self._markers:
            self._markers.remove(partition_id)
            self._due.append(response(Opcode.DCP_SNAPSHOT_MARKER, Status.SUCCESS, partition_id))

    def on_state(self, packet: Packet) -> StateRequested:
        """Take a request for a state.

        Raises:
            RemoteProtocolError: it is none, or the one before was not answered yet.
        """
        partition_id = packet.vbucket
        if packet.opcode != Opcode.DCP_SET_VBUCKET_STATE or partition_id in self._states:
            message = f"opcode 0x{packet.opcode:02x} for partition {partition_id}, not awaited"
            raise RemoteProtocolError(message, code="unexpected_message")
        self._states.add(partition_id)
        return StateRequested(partition_id, packet.extras[0])

    def to_state(self, partition_id: int, status: int) -> bytes:
        """Return the answer to a request for a state, nothing if its stream is over."""
        if partition_id not in self._states:
            return b""
        self._states.remove(partition_id)
        return response(Opcode.DCP_SET_VBUCKET_STATE, status, partition_id)

    def take(self) -> list[bytes]:
        """Return the answers that are due."""
        due, self._due = self._due, []
        return due

    def forget(self, partition_id: int) -> None:
        """The stream has ended: its requests are no longer answered."""
        self._markers.discard(partition_id)
        self._states.discard(partition_id)
