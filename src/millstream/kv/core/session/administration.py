"""Administration commands: set, read and delete the state of this node's copy of a partition.

Invariants:
1. They need the right `admin`, and are refused on the plain memcached port.
2. In a managed cluster states are read only.
3. Success is answered once the state is durable and in force; until then the connection waits.

Elsewhere: legal moves (`kv.core.partition.states`), making them (`kv.aio.copies`).

Source: the released protocol's SET_VBUCKET, GET_VBUCKET, DEL_VBUCKET;
docs/reference/wire/partitions.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from millstream.kv.core.partition.partition import Partition
from millstream.kv.core.partition.states import move_between
from millstream.kv.core.session.session import Command, KvSession
from millstream.model.partitions import PartitionState
from millstream.wire.mcbp import Opcode, Packet, Status, response

__all__ = ["ADMINISTRATION_COMMANDS"]

_SETTABLE: Final = {int(state): state for state in PartitionState if state}
_DELETE_VALUES: Final = (b"", b"async=0", b"async=1")


def _partition(session: KvSession, packet: Packet) -> Partition | Status:
    if session.bucket is None:
        return Status.NO_BUCKET
    if session.hashes_keys or not session.may("admin"):
        return Status.EACCESS
    return session.bucket.partition(packet.vbucket) or Status.NOT_MY_VBUCKET


def _set_state(session: KvSession, packet: Packet, _: int) -> bytes | None:
    """SET_VBUCKET_STATE: forced, so an activation begins a new history."""
    partition = _partition(session, packet)
    if isinstance(partition, Status):
        return session.refusal(packet, partition)
    state = _SETTABLE.get(int.from_bytes(packet.extras, "big"))
    if len(packet.extras) != 1 or state is None or packet.key:
        return session.refusal(packet, Status.EINVAL)
    if packet.value not in (b"", b"{}"):  # replication topology: not supported here
        return session.refusal(packet, Status.NOT_SUPPORTED)
    return _move(session, packet, partition, state)


def _get_state(session: KvSession, packet: Packet, _: int) -> bytes | None:
    partition = _partition(session, packet)
    if isinstance(partition, Partition) and partition.state is PartitionState.ABSENT:
        partition = Status.NOT_MY_VBUCKET
    if isinstance(partition, Status):
        return session.refusal(packet, partition)
    value = partition.state.to_bytes(4, "big")
    return response(packet.opcode, Status.SUCCESS, packet.opaque, value=value)


def _delete(session: KvSession, packet: Packet, _: int) -> bytes | None:
    """DEL_VBUCKET: delete a dead copy; answered when it is gone, whatever `async` says."""
    partition = _partition(session, packet)
    if isinstance(partition, Partition) and partition.state is PartitionState.ABSENT:
        partition = Status.NOT_MY_VBUCKET
    if isinstance(partition, Status):
        return session.refusal(packet, partition)
    if packet.extras or packet.key or packet.value not in _DELETE_VALUES:
        return session.refusal(packet, Status.EINVAL)
    return _move(session, packet, partition, PartitionState.ABSENT)


def _move(
    session: KvSession, packet: Packet, partition: Partition, state: PartitionState
) -> bytes | None:
    assert session.bucket is not None
    if session.bucket.is_managed:  # the orchestrator of the cluster decides
        return session.refusal(packet, Status.NOT_SUPPORTED)
    if move_between(partition.state, state) is None:
        return session.refusal(packet, Status.EINVAL)

    def start(done: Callable[[bytes], None]) -> None:
        def answer(status: Status) -> None:
            is_done = status == Status.SUCCESS
            reply = response(packet.opcode, status, packet.opaque)
            done(reply if is_done else session.refusal(packet, status))

        session.host.change_state(session, partition.partition_id, state, answer)

    session.wait_for_reply(start)
    return None


ADMINISTRATION_COMMANDS: Final[dict[int, Command]] = {
    Opcode.SET_VBUCKET_STATE: _set_state,
    Opcode.GET_VBUCKET: _get_state,
    Opcode.DEL_VBUCKET: _delete,
}
