from __future__ import annotations

from collections.abc import Callable

import pytest

from millstream.kv.core.copies import moves
from millstream.kv.core.session.session import KvSession
from millstream.model.partitions import PartitionState
from millstream.wire.mcbp import Datatype, Opcode, Status, request
from support.kv.session_double import HostDouble, UserDouble, ask, new_session

SET = Opcode.SET_VBUCKET_STATE


class StateHost(HostDouble):
    """Keeps what was asked for until the test answers."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[int, PartitionState, Callable[[Status], None]]] = []

    def change_state(
        self,
        session: KvSession,
        partition_id: int,
        state: PartitionState,
        done: Callable[[Status], None],
    ) -> None:
        self.asked.append((partition_id, state, done))


def become(host: StateHost, partition_id: int, state: PartitionState) -> None:
    """Make the state so, without a disk."""
    moves.rename(host.buckets["b"].partitions[partition_id], state)
    host.buckets["b"].writes.reopen(partition_id)


def test_a_state_is_answered_once_it_is_durable_and_requests_wait_for_it() -> None:
    host = StateHost()
    session = new_session(host)
    set_dead = request(SET, vbucket=2, opaque=7, extras=b"\4")
    assert ask(session, set_dead + request(Opcode.NOOP, opaque=8)) == []
    assert session.is_clogged
    (partition_id, state, done), *others = host.asked
    assert (partition_id, state, others) == (2, PartitionState.DEAD, [])
    done(Status.SUCCESS)
    replies = ask(session, b"")
    assert session.take_output() == b""
    assert [(reply.opaque, reply.vbucket) for reply in replies] == [(7, 0), (8, 0)]


@pytest.mark.parametrize("status", [Status.EINVAL, Status.ETMPFAIL])
def test_a_move_that_fails_says_so(status: Status) -> None:
    host = StateHost()
    session = new_session(host)
    assert ask(session, request(SET, extras=b"\2")) == []
    host.asked[0][2](status)
    (reply,) = ask(session, b"")
    assert reply.vbucket == status


@pytest.mark.parametrize(
    ("extras", "value", "status"),
    [
        (b"", b"", Status.EINVAL),
        (b"\0", b"", Status.EINVAL),
        (b"\5", b"", Status.EINVAL),
        (b"\0\0\0\2", b"", Status.EINVAL),
        (b"\3", b"", Status.EINVAL),  # active to pending is no move
        (b"\2", b'{"topology":[["a"]]}', Status.NOT_SUPPORTED),
    ],
)
def test_what_cannot_be_is_refused_at_once(extras: bytes, value: bytes, status: Status) -> None:
    host = StateHost()
    data = request(SET, extras=extras, value=value, datatype=Datatype.JSON if value else 0)
    (reply,) = ask(new_session(host), data)
    assert (reply.vbucket, host.asked) == (status, [])


def test_an_unknown_partition_is_not_ours() -> None:
    for opcode in (SET, Opcode.GET_VBUCKET, Opcode.DEL_VBUCKET):
        extras = b"\2" if opcode == SET else b""
        (reply,) = ask(new_session(StateHost()), request(opcode, vbucket=9, extras=extras))
        assert (reply.vbucket, reply.value) == (Status.NOT_MY_VBUCKET, b'{"rev":1}')


def test_only_administrators_may_ask() -> None:
    host = StateHost()
    host.users.is_empty = False
    session = new_session(host)
    session.user = UserDouble("read", "write", "stream")  # type: ignore[assignment]
    plain = new_session(StateHost(), hashes_keys=True)
    for opcode, extras in ((SET, b"\2"), (Opcode.GET_VBUCKET, b""), (Opcode.DEL_VBUCKET, b"")):
        for one in (session, plain):
            (reply,) = ask(one, request(opcode, extras=extras))
            assert reply.vbucket == Status.EACCESS
    session.user = UserDouble("admin")  # type: ignore[assignment]
    (reply,) = ask(session, request(Opcode.GET_VBUCKET))
    assert reply.vbucket == Status.SUCCESS
    (reply,) = ask(new_session(StateHost(), is_selected=False), request(Opcode.GET_VBUCKET))
    assert reply.vbucket == Status.NO_BUCKET


def test_the_state_is_told() -> None:
    host = StateHost()
    become(host, 1, PartitionState.REPLICA)
    for partition_id, state in ((0, 1), (1, 2)):
        (reply,) = ask(new_session(host), request(Opcode.GET_VBUCKET, vbucket=partition_id))
        assert (reply.vbucket, reply.value) == (0, state.to_bytes(4, "big"))


def test_only_a_dead_copy_is_deleted() -> None:
    host = StateHost()
    delete = request(Opcode.DEL_VBUCKET, vbucket=1, value=b"async=0")
    (reply,) = ask(new_session(host), delete)
    assert (reply.vbucket, host.asked) == (Status.EINVAL, [])
    become(host, 1, PartitionState.DEAD)
    (reply,) = ask(new_session(host), request(Opcode.DEL_VBUCKET, vbucket=1, value=b"now"))
    assert reply.vbucket == Status.EINVAL
    assert ask(new_session(host), delete) == []
    assert host.asked[0][:2] == (1, PartitionState.ABSENT)
    become(host, 1, PartitionState.ABSENT)
    for opcode in (Opcode.DEL_VBUCKET, Opcode.GET_VBUCKET):
        (reply,) = ask(new_session(host), request(opcode, vbucket=1))
        assert reply.vbucket == Status.NOT_MY_VBUCKET


@pytest.mark.parametrize(
    ("state", "status"),
    [
        (PartitionState.ABSENT, Status.NOT_MY_VBUCKET),
        (PartitionState.REPLICA, Status.NOT_MY_VBUCKET),
        (PartitionState.PENDING, Status.ETMPFAIL),
        (PartitionState.DEAD, Status.NOT_MY_VBUCKET),
    ],
)
def test_documents_of_other_states_are_refused_with_the_map(
    state: PartitionState, status: Status
) -> None:
    host = StateHost()
    session = new_session(host)  # selected before the state changed
    set_one = request(Opcode.SET, vbucket=1, extras=bytes(8), key=b"k", value=b"v")
    get_one = request(Opcode.GET, vbucket=1, key=b"k")
    assert [reply.vbucket for reply in ask(session, set_one + get_one)] == [0, 0]
    host.buckets["b"].partitions[1].freeze()
    become(host, 1, state)
    high = host.buckets["b"].partitions[1].queue.high_seqno
    for data in (
        set_one,
        get_one,
        request(Opcode.DELETE, vbucket=1, key=b"k"),
        request(Opcode.INCREMENT, vbucket=1, key=b"n", extras=bytes(20)),
        request(Opcode.GET_META, vbucket=1, key=b"k"),
    ):
        (reply,) = ask(session, data)
        assert reply.vbucket == status
        is_mapped = status == Status.NOT_MY_VBUCKET
        assert reply.value == (b'{"rev":1}' if is_mapped else b"")
        assert reply.datatype == (Datatype.JSON if is_mapped else 0)
    assert host.buckets["b"].partitions[1].queue.high_seqno == high
    (reply,) = ask(session, request(Opcode.GET, vbucket=0, key=b"k"))
    assert reply.vbucket == Status.KEY_ENOENT


def test_a_suspended_partition_asks_for_patience() -> None:
    host = StateHost()
    session = new_session(host)
    partition = host.buckets["b"].partitions[1]
    partition.suspend()
    get_one = request(Opcode.GET, vbucket=1, key=b"k")
    assert ask(session, get_one)[0].vbucket == Status.ETMPFAIL
    assert partition.open_hold() is None
    partition.resume()
    assert ask(session, get_one)[0].vbucket == Status.KEY_ENOENT
