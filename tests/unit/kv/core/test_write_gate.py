"""`kv.core.write_gate`: which writes are taken."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from millstream import accelerated
from millstream.kv.core.session.session import KvSession
from millstream.model.cluster_maps import DataRecord, MapKey
from millstream.model.partitions import partition_of
from millstream.wire.mcbp import Feature, Opcode, Status, request
from support.kv.log_double import NOW, new_bucket
from support.kv.session_double import HostDouble, ask, new_session


def test_writes_are_open_again_once_every_reason_is_withdrawn() -> None:
    gate = new_bucket(2).writes
    first = gate.open_partitions[0]
    assert first is not None
    gate.refuse("memory")
    gate.refuse("disk_full")
    assert gate.open_partitions == [None, None]
    gate.accept("memory")
    assert gate.refuses(0)
    gate.accept("disk_full")
    assert not gate.refuses(0)
    assert gate.open_partitions[0] is first


def test_writes_that_are_held_back_are_those_of_one_partition() -> None:
    gate = new_bucket(2).writes
    gate.hold_back(1)
    assert (gate.refuses(0), gate.refuses(1)) == (False, True)
    assert [one is None for one in gate.open_partitions] == [False, True]
    gate.accept_again(1)
    gate.accept_again(1)
    assert not gate.refuses(1)


def test_who_waits_for_room_is_woken_in_turn_and_not_while_writes_are_delayed() -> None:
    gate, woken = new_bucket(1).writes, list[int]()
    gate.delay()
    assert gate.open_partitions == [None]
    for number in range(3):
        gate.when_room(lambda number=number: woken.append(number))  # type: ignore[misc]
    assert not gate.wake_waiting(3)
    assert woken == []
    gate.end_delay()
    assert gate.wake_waiting(2)
    assert not gate.wake_waiting(2)
    assert woken == [0, 1, 2]


# -- copies that may not serve


@pytest.fixture(name="is_compiled", params=[False, True])
def _is_compiled(request: pytest.FixtureRequest) -> Iterator[bool]:
    if request.param and not accelerated.is_installed():
        pytest.skip(accelerated.state())
    accelerated.use_compiled(request.param)
    yield request.param
    accelerated.use_compiled(True)


RECORD = DataRecord(MapKey(2, 1), "a", 1, (("a", "b"),))
KEY = b"k"
META = bytes(15) + b"\1" + bytes(7) + b"\1"
"""Flags, expiry, rev and CAS."""
EXTRAS = {
    Opcode.SET: bytes(8), Opcode.SETQ: bytes(8), Opcode.ADD: bytes(8), Opcode.REPLACE: bytes(8),
    Opcode.INCREMENT: bytes(20), Opcode.DECREMENT: bytes(20), Opcode.TOUCH: bytes(4),
    Opcode.GAT: bytes(4), Opcode.GET_LOCKED: bytes(4),
    Opcode.SET_WITH_META: META,
    Opcode.DEL_WITH_META: META,
}  # fmt: skip
READS = (
    Opcode.GET, Opcode.GETQ, Opcode.GETK, Opcode.GETKQ, Opcode.GET_META, Opcode.GET_REPLICA,
    Opcode.GET_VERSIONED,
)  # fmt: skip
WRITES = (
    Opcode.SET, Opcode.SETQ, Opcode.ADD, Opcode.REPLACE, Opcode.DELETE, Opcode.DELETEQ,
    Opcode.APPEND, Opcode.PREPEND, Opcode.INCREMENT, Opcode.DECREMENT, Opcode.TOUCH, Opcode.GAT,
    Opcode.GET_LOCKED, Opcode.UNLOCK, Opcode.SET_WITH_META, Opcode.DEL_WITH_META,
)  # fmt: skip


def isolated_session(isolation: str = "stop") -> KvSession:
    """A session on a bucket with one document, of which no copy has a right to serve."""
    host = HostDouble()
    session = new_session(host)
    session.receive(request(Opcode.HELLO, value=Feature.MILLSTREAM.to_bytes(2, "big")), NOW)
    bucket = host.buckets["b"]
    vbucket = partition_of(KEY, bucket.partition_count)
    session.receive(
        request(Opcode.SET, key=KEY, value=b"v", extras=bytes(8), vbucket=vbucket), NOW
    )
    bucket.set_rules(500, isolation)  # type: ignore[arg-type]
    bucket.manage("a", lambda _: RECORD)
    return session


def status_of(session: KvSession, opcode: Opcode, cas: int = 0) -> int:
    assert session.bucket is not None
    data = request(
        opcode, key=KEY, vbucket=partition_of(KEY, session.bucket.partition_count), cas=cas,
        extras=EXTRAS.get(opcode, b""),
    )  # fmt: skip
    found = ask(session, data)
    return found[0].status if found else Status.SUCCESS


@pytest.mark.parametrize("opcode", [*READS, *WRITES])
def test_an_isolated_copy_refuses_every_command_that_touches_documents(
    opcode: Opcode, is_compiled: bool
) -> None:
    session = isolated_session()
    assert session.bucket is not None
    before = [partition.high_seqno for partition in session.bucket.partitions]
    cas = 1 if opcode is Opcode.UNLOCK else 0
    assert status_of(session, opcode, cas) == Status.ETMPFAIL
    assert [partition.high_seqno for partition in session.bucket.partitions] == before
    session.bucket.set_right(10**6, is_admitted=True)
    if opcode is not Opcode.UNLOCK:  # it is answered so where nothing is locked, too
        assert status_of(session, opcode, cas) != Status.ETMPFAIL


@pytest.mark.parametrize("opcode", [*READS, *WRITES])
def test_a_copy_that_serves_reads_only_refuses_writes(opcode: Opcode, is_compiled: bool) -> None:
    session = isolated_session("read_only")
    wanted = opcode in WRITES or opcode is Opcode.GET_REPLICA  # the active copy answers GET
    found = status_of(session, opcode, 1 if opcode is Opcode.UNLOCK else 0)
    assert (found != Status.SUCCESS) == wanted
    if opcode in WRITES:
        assert found == Status.ETMPFAIL


def test_isolation_serve_serves_everything(is_compiled: bool) -> None:
    session = isolated_session("serve")
    assert status_of(session, Opcode.GET) == status_of(session, Opcode.SET) == Status.SUCCESS
    assert session.bucket is not None
    assert session.bucket.serving.isolated == {0, 1, 2, 3}


def test_nothing_is_said_of_documents_in_other_ways_either() -> None:
    session = isolated_session()
    for opcode in (Opcode.GET_RANDOM_KEY, Opcode.GET_ALL_VB_SEQNOS):
        assert ask(session, request(opcode))[0].status == Status.ETMPFAIL
    session.hashes_keys = True
    assert ask(session, request(Opcode.FLUSH))[0].status == Status.ETMPFAIL


def test_the_fast_path_is_closed_for_what_is_refused_and_only_for_that() -> None:
    bucket = new_bucket(2)
    bucket.manage("a", lambda p: RECORD if p else DataRecord(MapKey(2, 1), "a", 1, (("a",),)))
    assert bucket.open_tables[0] is bucket.partitions[0].table
    assert bucket.open_tables[1] is not bucket.partitions[1].table
    assert bucket.open_partitions == [bucket.partitions[0], None]
    bucket.set_rules(500, "read_only")
    assert bucket.open_tables[1] is bucket.partitions[1].table
    assert bucket.open_partitions == [bucket.partitions[0], None]
    bucket.set_right(10**6, is_admitted=True)
    assert bucket.open_partitions == bucket.partitions


def test_who_becomes_active_without_a_right_is_never_open() -> None:
    bucket = new_bucket(1)
    bucket.set_right(10**6, is_admitted=True)
    bucket.manage("a", lambda _: RECORD)
    partition = bucket.partitions[0]
    assert bucket.open_partitions == [partition]
    partition.suspend()
    bucket.set_right(None, is_admitted=False)
    partition.resume()
    assert bucket.open_partitions == [None]
