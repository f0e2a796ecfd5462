from __future__ import annotations

from collections.abc import Callable

import pytest

from millstream.kv.core.copies import moves
from millstream.kv.core.partition.replica import Replica
from millstream.kv.core.session.document_commands import OBSERVED_MAX
from millstream.kv.core.session.session import KvSession
from millstream.model.partitions import PartitionState, partition_of
from millstream.model.position import FailoverEntry
from millstream.wire.frames import deletion, mutation
from millstream.wire.mcbp import Feature, Opcode, Packet, Status, cut_packets, request
from support.kv.log_double import NOW, SECOND
from support.kv.session_double import HostDouble, UserDouble, ask, new_session

KEY = b"k"
PARTITION = partition_of(KEY, 4)
COUNTER_EXTRAS = (5).to_bytes(8, "big") + (10).to_bytes(8, "big") + bytes(4)


def do(session: KvSession, opcode: int, **fields: object) -> Packet:
    return ask(session, one(opcode, **fields))[0]


def one(opcode: int, **fields: object) -> bytes:
    return request(opcode, **{"vbucket": PARTITION, "key": KEY, **fields})  # type: ignore[arg-type]


def stored(session: KvSession, value: bytes = b"v") -> Packet:
    return do(session, Opcode.SET, value=value, extras=b"\0\0\0\7\0\0\0\0")


def test_add_replace_delete() -> None:
    session = new_session()
    assert do(session, Opcode.REPLACE, extras=bytes(8)).status == Status.KEY_ENOENT
    assert do(session, Opcode.ADD, extras=bytes(8)).status == 0
    assert do(session, Opcode.ADD, extras=bytes(8)).status == Status.KEY_EEXISTS
    replaced = do(session, Opcode.REPLACE, extras=bytes(8), value=b"2")
    assert do(session, Opcode.REPLACE, extras=bytes(8), cas=1).status == Status.KEY_EEXISTS
    assert do(session, Opcode.DELETE, cas=1).status == Status.KEY_EEXISTS
    assert do(session, Opcode.DELETE, cas=replaced.cas).status == 0
    assert do(session, Opcode.DELETE).status == Status.KEY_ENOENT


def test_quiet_commands_speak_only_when_they_must() -> None:
    session = new_session()
    data = (
        one(Opcode.SETQ, extras=bytes(8), value=b"1")
        + one(Opcode.ADDQ, extras=bytes(8), opaque=1)
        + one(Opcode.GETQ, opaque=2)
        + one(Opcode.GETKQ, opaque=3)
        + one(Opcode.DELETEQ)
        + one(Opcode.GETQ)
        + request(Opcode.NOOP, opaque=4)
    )
    replies = ask(session, data)
    assert [(r.opaque, r.status) for r in replies] == [
        (1, Status.KEY_EEXISTS), (2, 0), (3, 0), (4, 0),
    ]  # fmt: skip
    assert replies[2].key == KEY


def test_counters() -> None:
    session = new_session()
    first = do(session, Opcode.INCREMENT, extras=COUNTER_EXTRAS)
    assert int.from_bytes(first.value, "big") == 10
    assert int.from_bytes(do(session, Opcode.INCREMENT, extras=COUNTER_EXTRAS).value, "big") == 15
    assert int.from_bytes(do(session, Opcode.DECREMENT, extras=COUNTER_EXTRAS).value, "big") == 10
    assert do(session, Opcode.GET).value == b"10"
    stored(session, b"word")
    assert do(session, Opcode.INCREMENT, extras=COUNTER_EXTRAS).status == Status.DELTA_BADVAL
    assert do(session, Opcode.INCREMENT, extras=b"").status == Status.EINVAL
    assert ask(session, one(Opcode.INCREMENTQ, extras=COUNTER_EXTRAS))[0].status == 6


def test_append_prepend_keep_flags() -> None:
    session = new_session()
    assert do(session, Opcode.APPEND, value=b"x").status == Status.NOT_STORED
    stored(session, b"mid")
    assert do(session, Opcode.APPEND, value=b">").status == 0
    assert do(session, Opcode.PREPEND, value=b"<").status == 0
    found = do(session, Opcode.GETK)
    assert (found.value, found.extras, found.key) == (b"<mid>", b"\0\0\0\7", KEY)


def test_touch_and_get_and_touch_set_an_expiry() -> None:
    session = new_session()
    stored(session)
    assert do(session, Opcode.TOUCH, extras=b"\0\0\0\5").status == 0
    assert do(session, Opcode.GAT, extras=b"\0\0\0\x0a").value == b"v"
    request_ = one(Opcode.GET)
    assert ask(session, request_, NOW + 9 * SECOND)[0].status == 0
    assert ask(session, request_, NOW + 10 * SECOND)[0].status == Status.KEY_ENOENT
    assert session.host.changed  # type: ignore[attr-defined]
    assert ask(session, one(Opcode.GATQ, extras=bytes(4)), NOW + 10 * SECOND) == []


def test_a_mutation_may_keep_the_expiry() -> None:
    session = new_session()
    do(session, Opcode.SET, extras=b"\0\0\0\0\0\0\0\5")
    do(session, Opcode.SET, extras=bytes(8), framing=b"\x50", value=b"2")
    assert ask(session, one(Opcode.GET), NOW + 5 * SECOND)[0].status == Status.KEY_ENOENT


def test_get_meta_tells_of_tombstones_too() -> None:
    session = new_session()
    assert do(session, Opcode.GET_META).status == Status.KEY_ENOENT
    stored(session)
    meta = do(session, Opcode.GET_META, extras=b"\2")
    assert meta.extras == bytes(4) + b"\0\0\0\7" + bytes(4) + (1).to_bytes(8, "big") + b"\0"
    do(session, Opcode.DELETE)
    assert do(session, Opcode.GET_META).extras[:4] == b"\0\0\0\1"


def test_observe_tells_what_is_persisted() -> None:
    session = new_session()
    stored(session)
    name = PARTITION.to_bytes(2, "big") + b"\0\1" + KEY
    states = []
    for _ in range(2):
        reply = do(session, Opcode.OBSERVE, key=b"", value=name)
        states.append(reply.value[5])
        assert session.bucket is not None
        session.bucket.partitions[PARTITION].freeze()
        session.bucket.partitions[PARTITION].persisted(1)
    assert states == [0, 1]
    assert do(session, Opcode.OBSERVE, key=b"", value=name[:-1]).status == Status.EINVAL
    missing = PARTITION.to_bytes(2, "big") + b"\0\1x"
    assert do(session, Opcode.OBSERVE, key=b"", value=missing).value[5] == 0x80
    most = do(session, Opcode.OBSERVE, key=b"", value=missing * OBSERVED_MAX)
    assert len(most.value) == 14 * OBSERVED_MAX
    more = do(session, Opcode.OBSERVE, key=b"", value=missing * (OBSERVED_MAX + 1))
    assert more.status == Status.E2BIG


def test_flush_is_for_the_memcached_port() -> None:
    session = new_session()
    assert ask(session, request(Opcode.FLUSH))[0].status == Status.NOT_SUPPORTED
    plain = new_session(hashes_keys=True)
    ask(plain, request(Opcode.SET, key=KEY, extras=bytes(8)))
    assert ask(plain, request(Opcode.FLUSH))[0].status == 0
    assert ask(plain, request(Opcode.GET, key=KEY))[0].status == Status.KEY_ENOENT
    assert ask(plain, request(Opcode.FLUSH, extras=b"1"))[0].status == Status.EINVAL


def test_flush_may_come_later_and_holds_back_what_follows() -> None:
    host, asked = HostDouble(), list[tuple[int, Callable[[], None]]]()
    host.buckets["b"].wipe = lambda at_ns, done: asked.append((at_ns, done))
    plain = new_session(host, hashes_keys=True)
    plain.select(host.buckets["b"])
    data = request(Opcode.FLUSH, extras=b"\0\0\0\5", opaque=1)
    quiet = request(Opcode.FLUSHQ, opaque=2) + request(Opcode.NOOP, opaque=3)
    assert ask(plain, data + quiet) == []
    assert plain.is_clogged
    for at_ns, reply in ((NOW + 5 * SECOND, [1]), (0, [3])):
        assert asked[-1][0] == at_ns
        asked[-1][1]()
        first = plain.take_output()
        rest = plain.receive(b"", NOW)
        assert [r.opaque for r in cut_packets(first + rest, 100)[0]] == reply


def test_design_documents_are_read_by_our_own_clients_and_written_by_none() -> None:
    session = new_session()
    name = b"_design/x"
    partition_of_name = partition_of(name, 4)
    reading = {"key": name, "vbucket": partition_of_name}
    writing = reading | {"extras": bytes(8)}
    session.bucket.partitions[partition_of_name].put(name, b"{}", 0, 0, 0, 0, NOW)
    assert do(session, Opcode.SET, **writing).status == Status.EINVAL
    assert do(session, Opcode.GET, **reading).status == Status.EINVAL
    ask(session, request(Opcode.HELLO, value=Feature.MILLSTREAM.to_bytes(2, "big")))
    assert do(session, Opcode.SET, **writing).status == Status.EINVAL
    assert do(session, Opcode.DELETE, **reading).status == Status.EINVAL
    assert do(session, Opcode.GET, **reading).value == b"{}"
    local = reading | {"key": b"_local/x", "vbucket": partition_of(b"_local/x", 4)}
    assert do(session, Opcode.GET, **local).status == Status.EINVAL


@pytest.mark.parametrize("opcode", [Opcode.DELETE, Opcode.GETK, Opcode.TOUCH, Opcode.GET_META])
def test_lengths_are_checked(opcode: int) -> None:
    session = new_session()
    assert do(session, opcode, extras=b"12345").status == Status.EINVAL
    assert do(session, opcode, key=b"").status == Status.EINVAL


def speaking(session: KvSession, *features: Feature) -> KvSession:
    asked = b"".join(feature.to_bytes(2, "big") for feature in features)
    ask(session, request(Opcode.HELLO, value=asked))
    return session


def test_get_with_lock_keeps_others_from_writing() -> None:
    session = speaking(new_session(), Feature.XERROR)
    stored(session, b"1")
    found = do(session, Opcode.GET_LOCKED, extras=b"\0\0\0\5")
    assert (found.status, found.value, found.extras) == (0, b"1", b"\0\0\0\7")
    assert do(session, Opcode.GET_LOCKED).status == Status.LOCKED
    assert stored(session, b"2").status == Status.LOCKED
    assert do(session, Opcode.INCREMENT, extras=COUNTER_EXTRAS).status == Status.LOCKED
    assert do(session, Opcode.GAT, extras=bytes(4)).status == Status.LOCKED
    assert do(session, Opcode.DELETEQ).status == Status.LOCKED
    assert do(session, Opcode.GET).cas == do(session, Opcode.GET_META).cas == 2**64 - 1
    written = do(session, Opcode.SET, extras=bytes(8), cas=found.cas, value=b"3")
    assert written.status == 0
    assert do(session, Opcode.GET).cas == written.cas
    assert stored(session, b"4").status == 0


def test_a_lock_is_over_with_its_time() -> None:
    session = speaking(new_session(), Feature.XERROR)
    stored(session, b"1")
    do(session, Opcode.GET_LOCKED, extras=b"\0\0\0\5")
    write = one(Opcode.SET, extras=bytes(8), value=b"2")
    assert ask(session, write, NOW + 4 * SECOND)[0].status == Status.LOCKED
    assert ask(session, write, NOW + 5 * SECOND)[0].status == 0


def test_unlock_by_the_cas_of_the_lock() -> None:
    session = speaking(new_session(), Feature.XERROR)
    assert do(session, Opcode.UNLOCK, cas=1).status == Status.KEY_ENOENT
    before = stored(session, b"1").cas
    assert do(session, Opcode.UNLOCK, cas=before).status == Status.NOT_LOCKED
    assert do(session, Opcode.UNLOCK).status == Status.EINVAL
    cas = do(session, Opcode.GET_LOCKED).cas
    assert do(session, Opcode.UNLOCK, cas=before).status == Status.LOCKED
    assert do(session, Opcode.UNLOCK, cas=cas).status == 0
    assert do(session, Opcode.GET).cas == before


def test_older_clients_get_statuses_that_they_know() -> None:
    session = new_session()
    stored(session, b"1")
    assert do(session, Opcode.UNLOCK, cas=1).status == Status.ETMPFAIL
    do(session, Opcode.GET_LOCKED)
    assert do(session, Opcode.GET_LOCKED).status == Status.ETMPFAIL
    assert do(session, Opcode.UNLOCK, cas=1).status == Status.ETMPFAIL
    assert stored(session, b"2").status == Status.KEY_EEXISTS


def test_what_reads_and_changes_needs_both_rights() -> None:
    host = HostDouble()
    stored(new_session(host), b"1")
    host.users.is_empty = False
    session = new_session(host, is_selected=False)
    for rights in (("read",), ("write",)):
        session.user = UserDouble(*rights)  # type: ignore[assignment]
        session.select(host.buckets["b"])
        for opcode in (Opcode.GAT, Opcode.GATQ):
            assert do(session, opcode, extras=bytes(4)).status == Status.EACCESS
        assert do(session, Opcode.GET_LOCKED).status == Status.EACCESS


# -- reading replicas


def following(session: KvSession) -> Replica:
    """Make the session's partition a replica that a source follows."""
    assert session.bucket is not None
    partition = session.bucket.partitions[PARTITION]
    partition.suspend()
    moves.rename(partition, PartitionState.REPLICA)
    partition.resume()
    assert partition.replica is not None
    partition.replica.on_opened((FailoverEntry(5, 0, partition.last_branch + 1),), 0)
    return partition.replica


def sent(key: bytes, seqno: int, *, expiry: int = 0) -> bytes:
    return mutation(PARTITION, key, b"v%d" % seqno, seqno, 1, 1000 + seqno, 7, expiry, 0)


def test_a_replica_shows_what_it_has_up_to_its_last_complete_snapshot() -> None:
    session = new_session()
    replica = following(session)
    replica.apply_marker(1, 3)
    replica.apply_change(sent(KEY, 1), b"\1\1")
    assert do(session, Opcode.GET_REPLICA).status == Status.ETMPFAIL
    replica.apply_change(sent(b"other", 3), b"\1\3")
    found = do(session, Opcode.GET_REPLICA)
    assert (found.value, found.cas, found.extras) == (b"v1", 1001, b"\0\0\0\7")
    assert do(session, Opcode.GET_REPLICA, key=b"none").status == Status.KEY_ENOENT
    assert do(session, Opcode.GET).status == Status.NOT_MY_VBUCKET
    replica.apply_marker(4, 6)
    replica.apply_change(deletion(PARTITION, KEY, 5, 2, 1005, 0), b"\1\5")
    assert do(session, Opcode.GET_REPLICA).status == Status.ETMPFAIL
    replica.apply_advance(6)
    assert do(session, Opcode.GET_REPLICA).status == Status.KEY_ENOENT


def test_a_replica_does_not_show_what_has_expired_and_leaves_it() -> None:
    session = new_session()
    replica = following(session)
    replica.apply_marker(1, 2)
    replica.apply_change(sent(KEY, 1, expiry=NOW // SECOND), b"\1\1")
    replica.apply_change(sent(b"later", 2, expiry=NOW // SECOND + 1), b"\1\2")
    assert do(session, Opcode.GET_REPLICA).status == Status.KEY_ENOENT
    assert do(session, Opcode.GET_REPLICA, key=b"later").status == 0
    assert session.bucket is not None
    assert session.bucket.partitions[PARTITION].high_seqno == 2


@pytest.mark.parametrize(
    ("state", "status"),
    [("ACTIVE", "NOT_MY_VBUCKET"), ("DEAD", "NOT_MY_VBUCKET"), ("PENDING", "ETMPFAIL")],
)
def test_only_replicas_answer_as_such(state: str, status: str) -> None:
    session = new_session()
    assert session.bucket is not None
    partition = session.bucket.partitions[PARTITION]
    if state != "ACTIVE":
        moves.rename(partition, PartitionState[state])
    assert do(session, Opcode.GET_REPLICA).status == Status[status]
    assert do(session, Opcode.GET_REPLICA, vbucket=4).status == Status.NOT_MY_VBUCKET
    assert do(session, Opcode.GET_REPLICA, extras=b"1").status == Status.EINVAL
    assert do(session, Opcode.GET_REPLICA, key=b"_local/x").status == Status.EINVAL


def test_reading_a_replica_needs_the_right_to_read_and_is_not_for_plain_clients() -> None:
    session = new_session()
    following(session)
    session.host.users.is_empty = False  # type: ignore[misc]
    session.user = UserDouble("write")  # type: ignore[assignment]
    session.select(session.bucket)
    assert do(session, Opcode.GET_REPLICA).status == Status.EACCESS
    plain = new_session(hashes_keys=True)
    following(plain)
    assert do(plain, Opcode.GET_REPLICA).status == Status.UNKNOWN_COMMAND


def test_a_touch_answers_no_token() -> None:
    session = new_session()
    tokens = Feature.MUTATION_SEQNO.to_bytes(2, "big")
    ask(session, request(Opcode.HELLO, value=tokens))
    assert len(stored(session).extras) == 16
    touched = do(session, Opcode.TOUCH, extras=b"\0\0\0\5")
    assert (touched.status, touched.extras) == (0, b"")


def test_a_replica_is_observed_too() -> None:
    session = new_session()
    assert session.bucket is not None
    moves.rename(session.bucket.partitions[PARTITION], PartitionState.REPLICA)
    name = PARTITION.to_bytes(2, "big") + b"\0\1" + KEY
    reply = do(session, Opcode.OBSERVE, key=b"", value=name)
    assert (reply.status, reply.value[: len(name)]) == (0, name)
    moves.rename(session.bucket.partitions[PARTITION], PartitionState.DEAD)
    assert do(session, Opcode.OBSERVE, key=b"", value=name).status == Status.NOT_MY_VBUCKET


def test_a_random_key_is_that_of_a_document_that_exists() -> None:
    session = new_session()
    asking = request(Opcode.GET_RANDOM_KEY)
    assert ask(session, asking)[0].status == Status.KEY_ENOENT
    stored(session)
    found = ask(session, asking)[0]
    assert (found.status, found.key, found.value) == (0, KEY, b"v")
    do(session, Opcode.DELETE)
    assert ask(session, asking)[0].status == Status.KEY_ENOENT
    assert ask(session, request(Opcode.GET_RANDOM_KEY, key=b"k"))[0].status == Status.EINVAL
