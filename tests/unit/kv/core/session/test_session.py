from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.errors import RemoteProtocolError
from millstream.kv.aio.connection import COMMANDS
from millstream.kv.core.bucket import Bucket
from millstream.kv.core.copies import moves
from millstream.kv.core.copies.durability import DURABLE_WAIT_S_DEFAULT
from millstream.kv.core.partition.partition import Partition
from millstream.kv.core.session.requests import STORING
from millstream.kv.core.session.session import (
    DEFERRED_BYTES_MAX,
    DEFERRED_MAX,
    OTHER_COST,
    KvSession,
)
from millstream.model.bucket_map import BucketMap, NodeAddress
from millstream.model.limits import ASKED_BYTES_MAX, REQUESTS_PER_WAKEUP_MAX
from millstream.model.partitions import PartitionState, partition_of
from millstream.storage.core.summary import RecoveredPartition
from millstream.wire.mcbp import (
    Feature,
    Opcode,
    Packet,
    Status,
    cut_packets,
    packet,
    request,
)
from support.budget import budget
from support.kv.log_double import NOW, SECOND, LogDouble, new_bucket, persist
from support.kv.session_double import HostDouble, ask, new_session

EXTRAS = bytes(8)


def put(key: bytes, value: bytes, **fields: object) -> bytes:
    return request(
        Opcode.SET, vbucket=partition_of(key, 4), key=key, value=value,
        **{"extras": EXTRAS, **fields},  # type: ignore[arg-type]
    )  # fmt: skip


def get(key: bytes, **fields: int) -> bytes:
    return request(Opcode.GET, vbucket=partition_of(key, 4), key=key, **fields)


def durable(level: int) -> bytes:
    return bytes([0x11, level])


def test_set_then_get_keep_order_flags_and_opaque() -> None:
    session = new_session()
    stored, found = ask(
        session,
        put(b"k", b"v", extras=b"\xff\xff\xff\xff\0\0\0\0", opaque=1) + get(b"k", opaque=2),
    )
    assert (stored.status, stored.opaque, stored.extras) == (0, 1, b"")
    assert (found.status, found.opaque, found.extras) == (0, 2, b"\xff" * 4)
    assert (found.value, found.cas) == (b"v", stored.cas)
    assert session.host.changed == [session.bucket]  # type: ignore[attr-defined]


def test_a_missing_key_and_an_expired_one_are_misses() -> None:
    session = new_session()
    assert ask(session, get(b"k"))[0].status == Status.KEY_ENOENT
    ask(session, put(b"k", b"v", extras=b"\0\0\0\0\0\0\0\5"))
    assert ask(session, get(b"k"), NOW + 4 * SECOND)[0].status == 0
    assert ask(session, get(b"k"), NOW + 5 * SECOND)[0].status == Status.KEY_ENOENT


def test_frames_may_come_byte_by_byte() -> None:
    session = new_session()
    data = put(b"k", b"value") + get(b"k")
    replies: list[Packet] = []
    for at in range(len(data)):
        replies += ask(session, data[at : at + 1])
    assert [reply.status for reply in replies] == [0, 0]
    assert replies[1].value == b"value"


@settings(max_examples=budget(50), deadline=None)
@given(st.lists(st.integers(1, 200), min_size=1), st.integers(0, 3000))
def test_any_cut_gives_the_same_answers(cuts: list[int], size: int) -> None:
    data = b"".join(put(b"k%d" % i, b"x" * size) + get(b"k%d" % i) for i in range(5))
    session, replies, at = new_session(), [], 0
    for cut in [*cuts, len(data)]:
        replies += ask(session, data[at : at + cut])
        at += cut
    assert [len(reply.value) for reply in replies] == [0, size] * 5


def test_tokens_name_history_and_seqno() -> None:
    session = new_session()
    ask(session, request(Opcode.HELLO, value=Feature.MUTATION_SEQNO.to_bytes(2, "big")))
    stored = ask(session, put(b"k", b"v"))[0]
    assert stored.extras == (0xABC).to_bytes(8, "big") + (1).to_bytes(8, "big")


def test_the_memcached_port_hashes_keys_itself() -> None:
    session = new_session(hashes_keys=True)
    ask(session, request(Opcode.SET, key=b"a", value=b"1", extras=EXTRAS))
    assert ask(session, request(Opcode.GET, key=b"a"))[0].value == b"1"
    assert session.bucket is not None
    assert b"a" in session.bucket.partitions[partition_of(b"a", 4)].table


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (request(Opcode.GET, vbucket=4, key=b"k"), Status.NOT_MY_VBUCKET),
        (request(Opcode.SET, vbucket=9, key=b"k", extras=EXTRAS), Status.NOT_MY_VBUCKET),
        (request(Opcode.GET, key=b""), Status.EINVAL),
        (request(Opcode.GET, key=b"k" * 251), Status.EINVAL),
        (request(Opcode.SET, key=b"k" * 251, extras=EXTRAS), Status.EINVAL),
        (request(Opcode.SET, key=b"k", extras=b"\0" * 7), Status.EINVAL),
        (request(Opcode.SET, key=b"k", extras=EXTRAS, datatype=1), Status.EINVAL),
        (request(Opcode.SET, key=b"_design/x", extras=EXTRAS), Status.EINVAL),
        (request(0xEE, key=b"k"), Status.UNKNOWN_COMMAND),
        (request(Opcode.SET, key=b"k", extras=EXTRAS, value=bytes(20 * 2**20 + 1)), Status.E2BIG),
        (request(Opcode.SET, key=b"k", extras=EXTRAS, framing=b"\x60"), Status.UNKNOWN_FRAME_INFO),
        (request(Opcode.SET, key=b"k", extras=EXTRAS, framing=durable(4)), 0xA0),
        (request(Opcode.SET, key=b"k", extras=EXTRAS, framing=b"\x13\1\0\0"), Status.EINVAL),
        (request(Opcode.GET, key=b"k", framing=durable(1)), Status.NOT_SUPPORTED),
    ],
)  # fmt: skip
def test_bad_requests_are_answered(data: bytes, status: int) -> None:
    session = new_session()
    replies = ask(session, data + request(Opcode.NOOP))
    assert [reply.status for reply in replies] == [status, 0]


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        packet(0x7F, 0),
        packet(0x81, 0),
        request(Opcode.GET, key=b"abc")[:8] + b"\0\0\0\1" + bytes(13),
        request(Opcode.SET, key=b"k", extras=EXTRAS)[:8] + b"\xff\xff\xff\xff" + bytes(12),
    ],
)
def test_nonsense_closes_the_connection(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        new_session().receive(data, NOW)


def test_replies_behind_a_durable_write_wait_for_the_disk() -> None:
    session = new_session()
    assert session.bucket is not None
    data = (
        get(b"k", opaque=1) + put(b"k", b"v", framing=durable(2), opaque=2) + get(b"k", opaque=3)
    )
    assert [reply.opaque for reply in ask(session, data)] == [1]
    session.on_persisted(NOW)
    assert not session.out
    partition = session.bucket.partition_for(b"k")
    partition.freeze()
    partition.persisted(1)
    session.on_persisted(NOW)
    assert [reply.opaque for reply in ask(session, b"")] == [2, 3]
    assert not session.waits_for_disk


def test_a_durable_write_that_a_rollback_took_is_ambiguous() -> None:
    session = new_session()
    assert session.bucket is not None
    assert ask(session, put(b"k", b"v", framing=durable(2), opaque=2)) == []
    session.bucket.partition_for(b"k").epoch += 1
    session.on_persisted(NOW)
    (reply,) = ask(session, b"")
    assert (reply.status, reply.opcode) == (Status.SYNC_WRITE_AMBIGUOUS, Opcode.SET)
    assert (reply.opaque, reply.extras) == (2, b"")
    assert not session.waits_for_disk


class LongWaySession(KvSession):
    """Answers durable writes by the table of commands alone."""

    def _store_durably(self, *_: object) -> bool:
        return False


durable_sets = st.builds(
    lambda key, value, partition, level, framing, extras, **fields: request(
        Opcode.SET,
        key=key,
        value=value,
        vbucket=partition,
        framing=framing or durable(level),
        extras=extras,
        **fields,
    ),
    key=st.sampled_from([b"", b"k", b"l", b"_k", b"_design/x", b"x" * 250, b"x" * 251]),
    value=st.binary(max_size=20),
    partition=st.sampled_from([0, 1, 3, 4]),
    level=st.integers(0, 4),
    framing=st.sampled_from([b"", b"", b"", b"\x13\2\0\5", b"\0\0", b"\0", b"\x60\0"]),
    extras=st.sampled_from([EXTRAS, b"\0\0\0\1\0\0\0\5", b"\1" * 8, b"", bytes(12)]),
    cas=st.sampled_from([0, 0, 0, 1]),
    datatype=st.integers(0, 2),
    opaque=st.integers(0, 3),
)


@settings(max_examples=budget(100), deadline=None)
@given(
    st.lists(durable_sets, min_size=1, max_size=6),
    st.booleans(),
    st.sampled_from([(), (Feature.MUTATION_SEQNO,), (Feature.JSON, Feature.MUTATION_SEQNO)]),
)
def test_the_short_way_of_durable_writes_answers_as_the_long_one(
    requests: list[bytes], hashes_keys: bool, features: tuple[Feature, ...]
) -> None:
    answers = []
    for kind in (KvSession, LongWaySession):
        session = new_session(hashes_keys=hashes_keys, kind=kind)
        assert session.bucket is not None
        hello = b"".join(feature.to_bytes(2, "big") for feature in features)
        ask(session, request(Opcode.HELLO, value=hello))
        try:
            at_once = ask(session, b"".join(requests))
        except RemoteProtocolError:
            at_once = []
        for partition in session.bucket.partitions:
            partition.freeze()
            partition.persisted(partition.high_seqno)
        session.on_persisted(NOW)
        tables = [partition.table for partition in session.bucket.partitions]
        answers.append((at_once, ask(session, b""), tables))
    assert answers[0] == answers[1]


def test_a_durable_write_hurries_the_disk_of_its_bucket() -> None:
    session = new_session()
    hurried = []
    assert session.bucket is not None
    session.bucket.hurry = lambda: hurried.append(1)
    ask(session, put(b"k", b"v", framing=durable(2)) + request(Opcode.SELECT_BUCKET, key=b"b"))
    assert hurried == [1]


def test_changes_are_told_of_before_the_bucket_changes_and_before_nonsense() -> None:
    host = HostDouble()
    host.buckets["c"] = new_bucket(4, "c")
    session = new_session(host)
    ask(session, put(b"k", b"v") + request(Opcode.SELECT_BUCKET, key=b"c"))
    assert host.changed == [host.buckets["b"]]
    with pytest.raises(RemoteProtocolError):
        session.receive(put(b"k", b"v") + b"\x11" * 24, NOW)
    assert host.changed == [host.buckets["b"], host.buckets["c"]]


def test_replies_behind_a_durable_write_are_bounded_in_bytes() -> None:
    session = new_session()
    ask(session, put(b"big", b"x" * 500_000))
    ask(session, put(b"k", b"v", framing=durable(2)))
    for _ in range(100):
        session.receive(get(b"big"), NOW)
    assert session.is_clogged
    assert session._deferred_bytes < 2 * DEFERRED_BYTES_MAX
    assert session.bucket is not None
    partition = session.bucket.partition_for(b"k")
    partition.freeze()
    partition.persisted(partition.high_seqno)
    session.on_persisted(NOW)
    assert session._deferred_bytes == 0
    assert not session.is_clogged


@pytest.mark.parametrize("opcode", [Opcode.GET, Opcode.GETK, Opcode.GET_META])
def test_reserved_keys_are_not_shown_to_plain_clients(opcode: int) -> None:
    session = new_session()
    assert session.bucket is not None
    session.bucket.partitions[0].put(b"_design/x", b"{}", 0, 0, 0, 0, NOW)
    session.bucket.partitions[0].put(b"_other", b"{}", 0, 0, 0, 0, NOW)
    assert ask(session, request(opcode, key=b"_design/x"))[0].status == Status.EINVAL
    assert ask(session, request(opcode, key=b"_other"))[0].status == 0


def test_the_memcached_port_knows_no_streams_and_no_extensions() -> None:
    session = new_session(hashes_keys=True)
    hello = request(Opcode.HELLO, value=Feature.MILLSTREAM.to_bytes(2, "big"))
    assert ask(session, hello)[0].value == b""
    assert ask(session, request(Opcode.LEASE))[0].status == Status.UNKNOWN_COMMAND
    opened = request(Opcode.DCP_OPEN, key=b"n", extras=bytes(7) + b"\1")
    assert ask(session, opened)[0].status == Status.EACCESS


def test_majority_of_one_is_memory() -> None:
    session = new_session()
    assert ask(session, put(b"k", b"v", framing=durable(1)))[0].status == 0


def test_a_durable_write_that_fails_is_answered_at_once() -> None:
    session = new_session()
    assert ask(session, put(b"k", b"v", cas=5, framing=durable(3)))[0].status == Status.KEY_ENOENT


def test_a_wakeup_is_bounded_and_the_rest_is_kept() -> None:
    session = new_session()
    most = REQUESTS_PER_WAKEUP_MAX // (1 + OTHER_COST)
    data = request(Opcode.NOOP) * (most + 5)
    assert len(session.receive(data, NOW)) == 24 * most
    assert session.has_request
    assert session.needs_care
    assert len(session.receive(b"", NOW)) == 24 * 5
    assert not session.has_request


@pytest.mark.parametrize("opcode", sorted(set(COMMANDS) - STORING))
def test_a_request_that_stores_nothing_may_not_be_large(opcode: int) -> None:
    """20 MiB of partition ids, keys or JSON held the loop for seconds."""
    large = request(opcode, value=bytes(ASKED_BYTES_MAX + 1))
    assert ask(new_session(), large)[0].status == Status.E2BIG


def test_a_wakeup_is_bounded_in_bytes_too() -> None:
    session = new_session()
    session.receive(put(b"k", b"x" * 500_000), NOW)
    out = session.receive(get(b"k") * 100, NOW)
    assert len(out) < 2_000_000
    assert session.has_request


def test_before_a_login_long_frames_are_not_waited_for() -> None:
    host = HostDouble()
    host.users.is_empty = False
    session = new_session(host, is_selected=False)
    head = put(b"k", b"x" * 100_000)[:100]
    with pytest.raises(RemoteProtocolError):
        session.receive(head, NOW)


@pytest.mark.parametrize("datatype", [2, 4, 0x80])
def test_datatype_bits_that_were_not_granted_are_refused(datatype: int) -> None:
    session = new_session()
    ask(session, request(Opcode.HELLO, value=Feature.JSON.to_bytes(2, "big")))
    assert ask(session, put(b"k", b"v", datatype=1))[0].status == 0
    assert ask(session, put(b"k", b"v", datatype=datatype))[0].status == Status.EINVAL
    assert ask(session, put(b"k", b"v", datatype=datatype | 1))[0].status == Status.EINVAL


def test_too_many_waiting_replies_stop_the_reading() -> None:
    session = new_session()
    one = put(b"k", b"v", framing=durable(2))
    for _ in range(DEFERRED_MAX // 500):
        session.receive(one * 500, NOW)
    assert session.is_clogged
    session.receive(one, NOW)
    assert session.pending_bytes == len(one)


def test_without_a_login_only_session_commands_are_answered() -> None:
    host = HostDouble()
    host.users.is_empty = False
    session = new_session(host, is_selected=False)
    statuses = [
        ask(session, data)[0].status
        for data in (get(b"k"), request(Opcode.STAT), request(Opcode.NOOP))
    ]
    assert statuses == [Status.EACCESS, Status.EACCESS, 0]


def test_a_long_value_in_many_pieces_is_joined_once() -> None:
    session = new_session()
    data = put(b"k", b"x" * 1_000_000)
    replies = [session.receive(data[at : at + 50_000], NOW) for at in range(0, len(data), 50_000)]
    assert [len(reply) for reply in replies if reply] == [24]
    assert session.pending_bytes == 0


# -- documents on the disk, and refused writes


def cold_session() -> tuple[KvSession, list[LogDouble]]:
    """Keys k0 .. k7 are in the log only, and reading it would wait."""
    session = new_session()
    bucket = session.bucket
    assert bucket is not None
    ask(session, b"".join(put(b"k%d" % n, b"v%d" % n) for n in range(8)))
    logs = []
    for partition in bucket.partitions:
        persist(partition)
        while partition.table:
            partition.residents.evict(0)
        log = partition._log
        assert isinstance(log, LogDouble)
        log.is_cold = True
        logs.append(log)
    return session, logs


def fetched(session: KvSession, log: LogDouble) -> list[Packet]:
    """The shell fetches what a session waits for, the disk answers, the session goes on."""
    replies: list[Packet] = []

    def go_on(error: Exception | None) -> None:
        session.on_fetched()
        replies.extend(ask(session, b""))

    absent, session.absent = session.absent, None
    assert absent is not None
    assert session.is_clogged
    assert absent.fetch(go_on)
    log.bring()
    return replies


def log_of(logs: list[LogDouble], key: bytes) -> LogDouble:
    return logs[partition_of(key, 4)]


@pytest.mark.parametrize(
    ("request_of", "status", "value"),
    [
        (lambda: get(b"k1"), 0, b"v1"),
        (lambda: put(b"k1", b"new"), 0, b""),
        (lambda: put(b"k1", b"new", cas=1), Status.KEY_EEXISTS, b""),
        (lambda: put(b"k1", b"new", framing=durable(1)), 0, b""),
        (lambda: request(Opcode.ADD, vbucket=partition_of(b"k1", 4), key=b"k1", extras=EXTRAS),
         Status.KEY_EEXISTS, b""),
        (lambda: request(Opcode.DELETE, vbucket=partition_of(b"k1", 4), key=b"k1"), 0, b""),
        (lambda: request(Opcode.APPEND, vbucket=partition_of(b"k1", 4), key=b"k1", value=b"x"),
         0, b""),
    ],
)  # fmt: skip
def test_a_request_waits_for_its_document_and_those_behind_it_for_the_reply(
    request_of, status, value
) -> None:
    session, logs = cold_session()
    bucket = session.bucket
    assert bucket is not None
    highs = [partition.high_seqno for partition in bucket.partitions]
    assert ask(session, get(b"none", opaque=1) + request_of() + get(b"k2", opaque=3)) == ask(
        new_session(), get(b"none", opaque=1)
    )
    assert highs == [partition.high_seqno for partition in bucket.partitions]
    assert ask(session, get(b"none", opaque=4)) == []
    (reply,) = fetched(session, log_of(logs, b"k1"))
    assert (reply.status, reply.value) == (status, value)
    replies = fetched(session, log_of(logs, b"k2"))
    assert [(one.opaque, one.status) for one in replies] == [(3, 0), (4, Status.KEY_ENOENT)]
    assert not session.is_clogged
    assert session.absent is None


def test_several_sessions_wait_for_one_document() -> None:
    session, logs = cold_session()
    host = session.host
    others = [new_session(host) for _ in range(2)]  # type: ignore[arg-type]
    for one in (session, *others):
        assert ask(one, get(b"k1")) == []
    for one in (session, *others):
        assert fetched(one, log_of(logs, b"k1"))[0].value == b"v1"


def test_a_write_meanwhile_wins() -> None:
    session, logs = cold_session()
    other = new_session(session.host)  # type: ignore[arg-type]
    assert ask(session, get(b"k1")) == []
    assert ask(other, put(b"k1", b"newer")) == []
    fetched(other, log_of(logs, b"k1"))
    assert fetched_later(session, log_of(logs, b"k1"))[0].value == b"newer"


def fetched_later(session: KvSession, log: LogDouble) -> list[Packet]:
    """As `fetched`, but the log's double no longer has to be asked."""
    absent, session.absent = session.absent, None
    assert absent is not None
    session.on_fetched()
    return ask(session, b"")


def test_too_many_reads_are_a_temporary_failure_of_that_request_alone() -> None:
    session, logs = cold_session()
    assert ask(session, get(b"k1", opaque=1) + get(b"none", opaque=2)) == []
    log_of(logs, b"k1").fetching_max = 0
    absent, session.absent = session.absent, None
    assert absent is not None
    assert not absent.fetch(lambda _: None)
    session.on_fetch_refused()
    replies = ask(session, b"")
    assert [(one.opaque, one.status) for one in replies] == [
        (1, Status.ETMPFAIL), (2, Status.KEY_ENOENT),
    ]  # fmt: skip


def test_replies_behind_a_durable_write_are_sent_once_while_a_document_is_read() -> None:
    """What was answered before the request that waits must not be sent with it again."""
    session, logs = cold_session()
    bucket = session.bucket
    assert bucket is not None
    data = put(b"new", b"v", framing=durable(2), opaque=1)
    data += put(b"other", b"v", opaque=2) + get(b"k1", opaque=3)
    assert ask(session, data) == []
    assert fetched(session, log_of(logs, b"k1")) == []
    for partition in bucket.partitions:
        persist(partition)
    session.on_persisted(NOW)
    assert [one.opaque for one in cut_packets(session.take_output(), 1000)[0]] == [1, 2, 3]


def test_refused_writes_are_a_temporary_failure_and_reads_go_on() -> None:
    session = new_session()
    bucket = session.bucket
    assert bucket is not None
    ask(session, put(b"k", b"v"))
    bucket.writes.refuse("memory")
    bucket.writes.refuse("disk_full")
    data = put(b"k", b"w") + put(b"k", b"w", framing=durable(3))
    data += request(Opcode.DELETE, vbucket=partition_of(b"k", 4), key=b"k")
    assert [one.status for one in ask(session, data)] == [Status.ETMPFAIL] * 3
    bucket.writes.accept("memory")
    assert ask(session, put(b"k", b"w"))[0].status == Status.ETMPFAIL
    assert ask(session, get(b"k"))[0].value == b"v"
    bucket.writes.accept("disk_full")
    assert ask(session, put(b"k", b"w"))[0].status == 0


def test_writes_of_one_partition_are_held_back_and_the_others_are_not() -> None:
    session = new_session()
    bucket = session.bucket
    assert bucket is not None
    ask(session, put(b"k", b"v"))
    held, other = partition_of(b"k", 4), b"other"
    assert partition_of(other, 4) != held
    bucket.hold_back_writes(held)
    data = put(b"k", b"w") + put(b"k", b"w", framing=durable(3))
    data += request(Opcode.DELETE, vbucket=held, key=b"k")
    assert [one.status for one in ask(session, data)] == [Status.ETMPFAIL] * 3
    assert ask(session, get(b"k"))[0].value == b"v"
    assert ask(session, put(other, b"w"))[0].status == 0
    bucket.accept_writes_again(held)
    assert ask(session, put(b"k", b"w"))[0].status == 0


def test_durable_writes_that_nobody_waits_for_any_longer_are_ambiguous() -> None:
    session = new_session()
    bucket = session.bucket
    assert bucket is not None
    assert ask(session, put(b"k", b"v", framing=durable(2), opaque=1)) == []
    bucket.give_up_waiting()
    assert ask(session, put(b"k", b"w", framing=durable(2), opaque=2)) == []
    session.on_persisted(NOW)
    (reply,) = cut_packets(session.take_output(), 1000)[0]
    assert (reply.opaque, reply.status) == (1, Status.SYNC_WRITE_AMBIGUOUS)
    persist(bucket.partition_for(b"k"))
    session.on_persisted(NOW)
    (reply,) = cut_packets(session.take_output(), 1000)[0]
    assert (reply.opaque, reply.status) == (2, 0)


# -- copies elsewhere

NODES = tuple(NodeAddress(name, "h", port, port) for port, name in enumerate("abc", 1))


def with_copies(*row: str | None) -> tuple[KvSession, Bucket]:
    session = new_session()
    bucket = session.bucket
    assert bucket is not None
    bucket.set_map(BucketMap(1, NODES, (row,) * 4), "a")
    return session, bucket


def released(session: KvSession, now_ns: int = NOW) -> list[tuple[int, int]]:
    session.on_persisted(now_ns)
    replies = cut_packets(session.take_output(), 1000)[0]
    return [(reply.opaque, reply.status) for reply in replies]


DURABLE_WRITES = [
    {"opcode": Opcode.SET, "extras": EXTRAS},
    {"opcode": Opcode.ADD, "extras": EXTRAS, "key": b"new"},
    {"opcode": Opcode.REPLACE, "extras": EXTRAS},
    {"opcode": Opcode.DELETE, "value": b""},
    {"opcode": Opcode.INCREMENT, "extras": bytes(20), "key": b"number", "value": b""},
    {"opcode": Opcode.DECREMENT, "extras": bytes(20), "key": b"number", "value": b""},
    {"opcode": Opcode.APPEND},
    {"opcode": Opcode.PREPEND},
]


@pytest.mark.parametrize("level", [1, 2, 3])
@pytest.mark.parametrize("write", DURABLE_WRITES, ids=lambda write: write["opcode"].name)
def test_each_kind_of_write_waits_for_its_level(level: int, write: dict[str, Any]) -> None:
    session, bucket = with_copies("a", "b")
    partition = bucket.partitions[0]
    partition.put(b"k", b"v", 0, 0, 0, 0, NOW)
    persist(partition)
    fields = {"key": b"k", "value": b"w", "framing": durable(level), "opaque": 7, **write}
    data = request(**fields, vbucket=0)
    before = partition.high_seqno
    assert [one.status for one in ask(session, data)] == [Status.ETMPFAIL]
    assert partition.high_seqno == before, "nothing is stored"
    bucket.on_joined("b", 0, 1)
    assert ask(session, data) == []
    seqno = partition.high_seqno
    assert seqno == before + 1
    assert released(session) == []
    bucket.on_acknowledged("b", 0, 1, before, before)
    assert released(session) == []
    bucket.on_acknowledged("b", 0, 1, seqno, before)
    assert released(session) == ([(7, 0)] if level == 1 else [])
    persist(partition)
    assert released(session) == ([(7, 0)] if level == 2 else [])
    bucket.on_acknowledged("b", 0, 1, seqno, seqno)
    assert released(session) == ([(7, 0)] if level == 3 else [])


def test_of_three_copies_two_are_enough() -> None:
    session, bucket = with_copies("a", None, "c")
    data = [put(b"k", b"v", framing=durable(level), opaque=level) for level in (1, 2, 3)]
    assert [one.status for one in ask(session, data[0])] == [Status.ETMPFAIL]
    p = partition_of(b"k", 4)
    bucket.on_joined("x", p, 1)
    bucket.on_joined("c", p, 2)
    assert ask(session, b"".join(data)) == []
    bucket.on_acknowledged("x", p, 1, 3, 3)
    assert released(session) == []
    bucket.on_acknowledged("c", p, 2, 3, 2)
    assert released(session) == [(1, 0)]
    persist(bucket.partitions[p])
    assert released(session) == [(2, 0)]
    bucket.on_acknowledged("c", p, 2, 3, 3)
    assert released(session) == [(3, 0)]


def test_when_too_few_copies_are_left_what_waits_is_ambiguous() -> None:
    session, bucket = with_copies("a", "b", "c")
    p = partition_of(b"k", 4)
    bucket.on_joined("b", p, 1)
    bucket.on_joined("c", p, 2)
    data = put(b"k", b"v", framing=durable(1), opaque=1) + get(b"k", opaque=2)
    assert ask(session, data) == []
    bucket.on_left("b", p, 1)
    assert released(session) == [], "one of them is enough"
    bucket.on_left("c", p, 2)
    assert released(session) == [(1, Status.SYNC_WRITE_AMBIGUOUS), (2, 0)]
    bucket.on_joined("c", p, 3)
    assert ask(session, put(b"k", b"v", framing=durable(1), opaque=3)) == []
    bucket.on_acknowledged("c", p, 3, 2, 0)
    bucket.on_left("c", p, 3)
    assert released(session) == [(3, 0)], "it had been reached"


@pytest.mark.parametrize(
    ("framing", "patience_ns"),
    [(durable(1), DURABLE_WAIT_S_DEFAULT * SECOND), (b"\x13\1\0\5", 5_000_000)],
)
def test_after_its_time_a_durable_write_is_ambiguous(framing: bytes, patience_ns: int) -> None:
    session, bucket = with_copies("a", "b")
    bucket.on_joined("b", partition_of(b"k", 4), 1)
    ask(session, put(b"k", b"v", framing=framing, opaque=1))
    assert released(session, NOW + patience_ns - 1) == []
    assert released(session, NOW + patience_ns) == [(1, Status.SYNC_WRITE_AMBIGUOUS)]
    ask(session, put(b"k", b"v", framing=framing, opaque=2))
    assert released(session, NOW - 1) == [(2, Status.SYNC_WRITE_AMBIGUOUS)], "clock set back"


def test_a_durable_write_whose_copy_stands_down_is_ambiguous() -> None:
    session, bucket = with_copies("a", "b")
    p = partition_of(b"k", 4)
    partition = bucket.partitions[p]
    bucket.on_joined("b", p, 1)
    ask(session, put(b"k", b"v", framing=durable(1), opaque=1))
    persist(partition)
    moves.rename(partition, PartitionState.REPLICA)
    bucket.on_acknowledged("b", p, 1, 1, 1)
    assert released(session) == [(1, Status.SYNC_WRITE_AMBIGUOUS)]
    reply = ask(session, put(b"k", b"v", framing=durable(1)))[0]
    assert reply.status == Status.NOT_MY_VBUCKET


def settled(partition: Partition) -> RecoveredPartition:
    persist(partition)
    high = partition.high_seqno
    return RecoveredPartition(
        partition.failover_log, high, 0, 0, 9, PartitionState.ACTIVE, high, 0
    )


def test_level_majority_does_not_hurry_the_disk() -> None:
    session, bucket = with_copies("a", "b")
    hurried = []
    bucket.hurry = lambda: hurried.append(1)
    bucket.on_joined("b", partition_of(b"k", 4), 1)
    ask(session, put(b"k", b"v", framing=durable(1)))
    assert not hurried
    partition = bucket.partition_for(b"k")
    assert partition.awaited_seqno == 0
    ask(session, put(b"k", b"v", framing=durable(3)))
    assert hurried
    assert partition.awaited_seqno == 2, "the copies are told to hurry, too"
    moves.activate(partition, settled(partition))
    assert partition.awaited_seqno == 0


def test_a_map_of_one_copy_leaves_the_levels_to_this_node() -> None:
    session, bucket = with_copies("a")
    assert ask(session, put(b"k", b"v", framing=durable(1)))[0].status == 0
    assert ask(session, put(b"k", b"v", framing=durable(3), opaque=3)) == []
    persist(bucket.partition_for(b"k"))
    assert released(session) == [(3, 0)]


def test_reading_marks_documents_as_used() -> None:
    session = new_session()
    ask(session, put(b"k", b"v"))
    bucket = session.bucket
    assert bucket is not None
    entry = bucket.partition_for(b"k").table[b"k"]
    assert not entry.is_used
    ask(session, get(b"k"))
    assert entry.is_used


def test_reads_are_counted_found_or_not_and_other_requests_are_not() -> None:
    session = new_session()
    bucket = session.bucket
    assert bucket is not None
    missed = request(Opcode.GETQ, vbucket=partition_of(b"none", 4), key=b"none")
    touched = request(Opcode.GAT, vbucket=partition_of(b"k", 4), key=b"k", extras=bytes(4))
    session.receive(put(b"k", b"v") + get(b"k") + missed + get(b"none") + touched, NOW)
    session.receive(get(b"k"), NOW)
    assert bucket.published.read("clients")["clients_reads_total"] == 5
