from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

import pytest

from millstream.kv.core.copies import moves
from millstream.kv.core.measuring import Piece
from millstream.kv.core.partition.acknowledgement import Acknowledged
from millstream.kv.core.partition.partition import Partition
from millstream.kv.core.session import introspection
from millstream.kv.core.session.introspection import PIECES_MAX
from millstream.kv.core.session.session import COSTS, KvSession
from millstream.model.bucket_map import BucketMap, NodeAddress
from millstream.model.limits import FRAME_BYTES_MAX, REQUESTS_PER_WAKEUP_MAX, UINT64_MAX
from millstream.model.partitions import PartitionState
from millstream.model.position import FailoverEntry
from millstream.upr.core.producer import StreamFigures
from millstream.upr.core.source import Hold
from millstream.wire.mcbp import Feature, Opcode, Status, cut_packets, request
from support.kv.log_double import BRANCH, NOW, persist
from support.kv.session_double import HostDouble, ask, new_session


def own_session() -> KvSession:
    session = new_session()
    ask(session, request(Opcode.HELLO, value=Feature.MILLSTREAM.to_bytes(2, "big")))
    assert session.bucket is not None
    for value in (b"1", b"2"):
        session.bucket.partitions[1].put(b"k", value, 7, 0, 0, 0, NOW)
    return session


@pytest.mark.parametrize(
    "opcode", [Opcode.POSITIONS, Opcode.BRANCH_LOG, Opcode.LEASE, Opcode.GET_VERSIONED]
)
def test_extensions_are_invisible_unless_asked_for(opcode: int) -> None:
    assert ask(new_session(), request(opcode, key=b"k"))[0].status == Status.UNKNOWN_COMMAND


def test_positions() -> None:
    session = own_session()
    reply = ask(session, request(Opcode.POSITIONS))[0]
    assert len(reply.value) == 4 * 72
    named = ask(session, request(Opcode.POSITIONS, value=b"\0\1"))[0].value
    assert named == reply.value[72:144]
    assert struct.unpack(">HB5x8Q", named) == (1, 1, 0xABC, BRANCH, 2, 2, 2, 0, 0, 0)
    assert ask(session, request(Opcode.POSITIONS, value=b"\0\4"))[0].status == 7
    assert ask(session, request(Opcode.POSITIONS, value=b"\0"))[0].status == Status.EINVAL
    often = request(Opcode.POSITIONS, value=b"\0\1" * 5)
    assert ask(session, often)[0].status == Status.EINVAL
    lease = request(Opcode.LEASE, extras=b"\1" + bytes(10), value=bytes(10) * 5)
    assert ask(session, lease)[0].status == Status.EINVAL


def test_positions_tell_what_a_majority_has_on_disk() -> None:
    session = own_session()
    assert session.bucket is not None
    partition = session.bucket.partitions[1]
    persist(partition)

    def told() -> tuple[int, int]:
        value = ask(session, request(Opcode.POSITIONS, value=b"\0\1"))[0].value
        found = struct.unpack(">HB5x8Q", value)
        return found[7], found[8]

    assert told() == (2, 2)
    acknowledged = partition.acknowledged = Acknowledged(partition)
    acknowledged.set_rows((("a", "b"),), "a")
    assert told() == (2, 0)
    acknowledged.join("b", 1)
    acknowledged.acknowledge("b", 1, 2, 1)
    assert told() == (2, 1)


def test_histories() -> None:
    session = own_session()
    assert session.bucket is not None
    partition = session.bucket.partitions[1]
    partition.failover_log = (FailoverEntry(0xDEF, 1, BRANCH + 1), *partition.failover_log)
    branches = ask(session, request(Opcode.BRANCH_LOG, vbucket=1))[0].value
    assert struct.unpack(">6Q", branches) == (0xDEF, 1, BRANCH + 1, 0xABC, 0, BRANCH)
    for opcode in (Opcode.GET_FAILOVER_LOG, Opcode.DCP_GET_FAILOVER_LOG):
        log = ask(session, request(opcode, vbucket=1))[0].value
        assert struct.unpack(">4Q", log) == (0xDEF, 1, 0xABC, 0)
        assert ask(session, request(opcode, vbucket=4))[0].status == Status.NOT_MY_VBUCKET


def observed(session: KvSession, uuid: int) -> tuple[int, ...]:
    reply = ask(session, request(Opcode.OBSERVE_SEQNO, vbucket=1, value=uuid.to_bytes(8, "big")))
    value = reply[0].value
    return struct.unpack(">BHQQQ" if len(value) == 27 else ">BHQQQQQ", value) if value else ()


def test_observe_seqno_knows_older_histories() -> None:
    session = own_session()
    assert observed(session, 0xABC) == (0, 1, 0xABC, 0, 2)
    assert session.bucket is not None
    partition = session.bucket.partitions[1]
    partition.failover_log = (FailoverEntry(0xDEF, 1, BRANCH + 1), *partition.failover_log)
    assert observed(session, 0xABC) == (1, 1, 0xDEF, 0, 2, 0xABC, 1)
    assert observed(session, 5) == ()


def test_all_seqnos_by_state() -> None:
    session = own_session()
    reply = ask(session, request(Opcode.GET_ALL_VB_SEQNOS))[0]
    assert struct.unpack(">HQHQHQHQ", reply.value) == (0, 0, 1, 2, 2, 0, 3, 0)
    replicas = ask(session, request(Opcode.GET_ALL_VB_SEQNOS, extras=b"\0\0\0\2"))[0]
    assert replicas.value == b""
    assert session.bucket is not None
    states = (PartitionState.REPLICA, PartitionState.DEAD, PartitionState.ABSENT)
    for partition, state in zip(session.bucket.partitions[1:], states, strict=True):
        partition.freeze()
        moves.rename(partition, state)
    alive = ask(session, request(Opcode.GET_ALL_VB_SEQNOS))[0]
    assert struct.unpack(">HQHQ", alive.value) == (0, 0, 1, 2)
    replicas = ask(session, request(Opcode.GET_ALL_VB_SEQNOS, extras=b"\0\0\0\2"))[0]
    assert struct.unpack(">HQ", replicas.value) == (1, 2)
    log = request(Opcode.GET_FAILOVER_LOG, vbucket=3)
    assert ask(session, log)[0].status == Status.NOT_MY_VBUCKET
    for extras, status in (
        (b"\0", Status.EINVAL),
        (b"\0\0\0\5", Status.EINVAL),
        (bytes(8), Status.SUCCESS),
        (bytes(7) + b"\x09", Status.UNKNOWN_COLLECTION),
    ):
        reply = ask(session, request(Opcode.GET_ALL_VB_SEQNOS, extras=extras))[0]
        assert reply.status == status


def lease(session: KvSession, op: int, lease_id: int, *named: tuple[int, int]):  # type: ignore[no-untyped-def]
    value = b"".join(struct.pack(">HQ", *pair) for pair in named)
    extras = struct.pack(">BQH", op, lease_id, 30)
    return ask(session, request(Opcode.LEASE, extras=extras, value=value))[0]


def test_leases_are_opened_renewed_released() -> None:
    session = own_session()
    opened = lease(session, 1, 0, (1, UINT64_MAX), (2, 0))
    lease_id, seconds = struct.unpack(">QH", opened.extras)
    assert seconds == 30
    held = list(struct.iter_unpack(">HQQQQ", opened.value))
    assert held == [(1, 2, 0xABC, BRANCH, 0), (2, 0, 0xABC, BRANCH, 0)]
    assert lease(session, 2, lease_id).value == opened.value
    assert lease(session, 3, lease_id, (2, 0)).status == 0
    assert lease(session, 2, lease_id).value == opened.value[:34]
    assert lease(session, 3, lease_id).status == 0
    assert lease(session, 2, lease_id).status == Status.LEASE_LOST


def test_a_lease_of_the_durable_mark_leaves_out_who_has_none() -> None:
    session = own_session()
    assert session.bucket is not None
    newest_mark = UINT64_MAX - 1
    none = lease(session, 1, 0, (1, newest_mark))
    assert (none.status, none.value, none.extras) == (0, b"", struct.pack(">QH", 0, 0))
    persist(session.bucket.partitions[1])
    session.bucket.partitions[1].put(b"k", b"3", 7, 0, 0, 0, NOW)
    held = lease(session, 1, 0, (1, newest_mark), (2, newest_mark), (3, 0))
    assert [item[:2] for item in struct.iter_unpack(">HQQQQ", held.value)] == [(1, 2), (3, 0)]


def test_bad_leases_are_refused() -> None:
    session = own_session()
    assert lease(session, 1, 0, (1, 1)).status == Status.LEASE_LOST
    assert lease(session, 1, 0).status == Status.EINVAL
    assert lease(session, 9, 0, (1, 1)).status == Status.EINVAL
    assert lease(session, 1, 0, (9, 1)).status == Status.NOT_MY_VBUCKET
    assert ask(session, request(Opcode.LEASE))[0].status == Status.EINVAL


def measure(session: KvSession, lease_id: int, rows: int, *named: tuple[int, int]):  # type: ignore[no-untyped-def]
    value = struct.pack(">QQ", rows, UINT64_MAX)
    value += b"".join(struct.pack(">HQ", *pair) for pair in named)
    extras = struct.pack(">BQH", 4, lease_id, 0)
    return ask(session, request(Opcode.LEASE, extras=extras, value=value))


class MeasuringHost(HostDouble):
    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[list[tuple[int, int, int]], tuple[int, int, int]]] = []
        self.found: dict[int, list[Piece]] | Status = {}

    def measure(
        self,
        session: KvSession,
        asked: Sequence[tuple[Partition, Hold, int]],
        limits: tuple[int, int, int],
        done: Callable[[dict[int, list[Piece]] | Status], None],
    ) -> None:
        self.asked.append(([(p.partition_id, h.at, after) for p, h, after in asked], limits))
        done(self.found)


def test_a_lease_is_measured() -> None:
    host = MeasuringHost()
    session = new_session(host)
    session.features = frozenset((Feature.MILLSTREAM,))
    assert session.bucket is not None
    session.bucket.partitions[1].put(b"k", b"1", 7, 0, 0, 0, NOW)
    opened = lease(session, 1, 0, (1, UINT64_MAX))
    lease_id = int.from_bytes(opened.extras[:8], "big")
    host.found = {1: [Piece(5, 2, 300), Piece(9, 1, 4000)]}
    (reply,) = measure(session, lease_id, 2, (1, 3), (2, 0))
    assert host.asked == [([(1, 1, 3)], (2, UINT64_MAX, PIECES_MAX // 2))]
    assert list(struct.iter_unpack(">HQQQ", reply.value)) == [(1, 5, 2, 300), (1, 9, 1, 4000)]
    assert reply.extras == struct.pack(">QH", lease_id, 0)
    host.found = Status.ETMPFAIL
    assert measure(session, lease_id, 2, (1, 3))[0].status == Status.ETMPFAIL


def test_what_is_no_request_to_measure_is_refused() -> None:
    session = own_session()
    assert measure(session, 1, 2)[0].status == Status.EINVAL
    assert lease(session, 4, 1, (1, 1)).status == Status.EINVAL
    assert measure(session, 1, 2, (9, 1))[0].status == Status.NOT_MY_VBUCKET


def test_get_versioned_tells_where_a_value_stands() -> None:
    session = own_session()
    reply = ask(session, request(Opcode.GET_VERSIONED, vbucket=1, key=b"k"))[0]
    assert struct.unpack(">IQQQQIB", reply.extras) == (7, 0xABC, BRANCH, 2, 2, 0, 0)
    assert reply.value == b"2"
    ask(session, request(Opcode.DELETE, vbucket=1, key=b"k"))
    gone = ask(session, request(Opcode.GET_VERSIONED, vbucket=1, key=b"k"))[0]
    assert (gone.extras[-1], gone.value, gone.status) == (1, b"", 0)
    missing = ask(session, request(Opcode.GET_VERSIONED, vbucket=1, key=b"x"))[0]
    assert missing.status == Status.KEY_ENOENT


def stats(session: KvSession, group: bytes) -> dict[bytes, bytes]:
    packets = ask(session, request(Opcode.STAT, key=group))
    assert packets[-1].key == packets[-1].value == b""
    return {packet.key: packet.value for packet in packets[:-1]}


def test_statistics() -> None:
    session = own_session()
    assert stats(session, b"")[b"version"] == b"1"
    assert stats(session, b"vbucket-seqno 1")[b"vb_1:high_seqno"] == b"2"
    assert stats(session, b"failovers")[b"vb_3:0:id"] == b"2748"
    assert stats(session, b"vbucket")[b"vb_0"] == b"active"
    assert stats(session, b"vbucket-details 1")[b"vb_1:entries_in_memory"] == b"1"
    assert b"vb_1:places" not in stats(session, b"vbucket-details 1")
    assert session.bucket is not None
    nodes = (NodeAddress("a", "h", 1, 2), NodeAddress("b", "h", 3, 4))
    session.bucket.set_map(
        BucketMap(1, nodes, (("a", "b"), ("b", None), ("a", "b"), ("a", "b"))), "a"
    )
    assert stats(session, b"vbucket-details 1")[b"vb_1:places"] == b"b,-"
    assert stats(session, b"dcp") == {}
    assert stats(session, b"changes") == {
        b"changes_high": b"2",
        b"changes_persisted": b"0",
        b"changes_unflushed": b"2",
    }
    assert stats(session, b"")[b"changes_high"] == b"2"
    assert stats(session, b"timings") == {}
    assert ask(session, request(Opcode.STAT, key=b"nonsense"))[0].status == Status.KEY_ENOENT
    assert ask(session, request(Opcode.STAT, key=b"failovers x"))[0].status == 7


def test_rows_of_many_partitions_are_told_in_steps_and_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(introspection, "STAT_ROWS_STEP", 6)
    host = HostDouble()
    session = new_session(host)
    asked = request(Opcode.STAT, key=b"vbucket-seqno") + request(Opcode.NOOP)
    told = [packet.key for packet in ask(session, asked)]
    assert len(told) == 8  # four rows a partition, which stand together
    assert session.is_waiting
    host.put_off.pop()()
    session.receive(b"", NOW)
    host.put_off.pop()()
    found, rest = cut_packets(session.take_output() + session.receive(b"", NOW), FRAME_BYTES_MAX)
    assert not rest
    told += [packet.key for packet in found]
    assert told[::4] == [b"vb_0:high_seqno", b"vb_1:high_seqno", b"vb_2:high_seqno",
                         b"vb_3:high_seqno", b""]  # fmt: skip
    assert found[-1].opcode == Opcode.NOOP
    assert not host.put_off


@pytest.mark.parametrize("opcode", COSTS)
def test_a_request_that_costs_more_leaves_others_a_turn(opcode: Opcode) -> None:
    session = own_session()
    count = REQUESTS_PER_WAKEUP_MAX // COSTS[opcode] + 3
    session.receive(request(opcode, key=b"vbucket") * count, NOW)
    assert session.has_request


class StreamingDouble:
    since_ms = 0
    last_rollback = None

    def __init__(self, sent: int) -> None:
        self.sent = sent

    def figures(self) -> StreamFigures:
        raise AssertionError("not asked for")

    def statistics(self) -> list[tuple[str, str]]:
        return []

    def progress(self, partition_id: int) -> tuple[str, int] | None:
        return ("takeover-sending", self.sent) if partition_id == 1 else None


def test_how_much_a_take_over_has_still_to_send() -> None:
    session = own_session()
    assert session.bucket is not None
    session.bucket.streams.by_name["me"] = StreamingDouble(1)
    assert stats(session, b"dcp-vbtakeover 1 me") == {
        b"status": b"takeover-sending",
        b"estimate": b"1",
        b"chk_items": b"1",
        b"vb_items": b"1",
        b"on_disk_deletes": b"0",
        b"backfillRemaining": b"0",
    }
    for key in (b"dcp-vbtakeover 1", b"dcp-vbtakeover 1 other"):
        found = stats(session, key)
        assert (found[b"status"], found[b"estimate"]) == (b"does_not_exist", b"2")
    assert stats(session, b"dcp-vbtakeover 2 me")[b"status"] == b"does_not_exist"
    session.bucket.partitions[1].queue.freeze()
    session.bucket.partitions[1].persisted(2)
    session.bucket.streams.by_name["me"] = StreamingDouble(0)
    session.bucket.partitions[1].queue.age(1e9)
    found = stats(session, b"dcp-vbtakeover 1 me")
    assert found[b"estimate"] == b"2"
    assert int(found[b"chk_items"]) + int(found[b"backfillRemaining"]) == 2
    for key in (b"dcp-vbtakeover", b"dcp-vbtakeover x", b"dcp-vbtakeover 99"):
        assert ask(session, request(Opcode.STAT, key=key))[0].status == 7


def test_refusals_are_counted_but_not_misses() -> None:
    session = own_session()
    assert ask(session, request(Opcode.GET, vbucket=1, key=b"absent"))[0].status == 1
    for _ in range(2):
        assert ask(session, request(Opcode.GET, vbucket=9, key=b"k"))[0].status == 7
    assert stats(session, b"refused") == {b"refused_total_not_my_vbucket": b"2"}


def test_the_node_is_known_without_a_bucket() -> None:
    session = new_session(is_selected=False)
    assert stats(session, b"") == {b"version": b"1"}
    assert ask(session, request(Opcode.STAT, key=b"changes"))[0].status == Status.NO_BUCKET


def test_the_plain_port_has_the_groups_of_plain_memcached() -> None:
    plain = new_session(hashes_keys=True)
    assert stats(plain, b"settings")[b"item_size_max"] == b"20971520"
    assert stats(plain, b"slabs") == {b"active_slabs": b"0"}
    assert set(stats(plain, b"items")) == {b"items:1:number"}
    assert ask(own_session(), request(Opcode.STAT, key=b"settings"))[0].status == 1
